# SPDX-License-Identifier: Apache-2.0
"""What a call of TimeSharded is on this rank, and what follows from it when all ranks agree."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from ...arguments import state_names
from ...description import Description
from ...ragged import checked, of_sequence
from .. import modules, tensors
from ..modules import Recurrent
from . import groups as cutting
from . import masks, tails
from . import rows as by_rows
from .agree import Ranks
from .exchange import Link, refuse_transforms
from .groups import Groups, Work
from .parts import Call, Dropped, Steps, drawn_inside, info, may_split_units
from .rows import Rows
from .schedule import Shape
from .stack import Sharded, Wanted
from .told import PLACE, SEED, Agreed

DIFFERING = ("steps", "wants_x", SEED, PLACE)  # from rank to rank


class Asked:
    """One call on this rank: its arguments, and what follows from them and the other ranks'."""

    def __init__(
        self, rnn: Recurrent, groups: int | None, way: str, ranks: Ranks, x: Any, hx: Any,
        lengths: Any, cu_seqlens: Any, reset: Any,
    ) -> None:  # fmt: skip
        self.rnn, self.ranks, self.wanted_groups, self.way = rnn, ranks, groups, way
        self.x, self.hx, self.lengths, self.reset = x, hx, lengths, reset
        self.cu_seqlens = cu_seqlens
        self.batch_axis = 0 if self.rnn.batch_first else 1
        self.single = False
        self.length_values: list[int] | None = None
        self.grouped: Groups | None = None
        self.taken = "pipeline"

    # ---- before ranks agree

    def prepared(self) -> dict[str, Any]:
        """Arguments checked and as batches; what the other ranks have to know of them."""
        rnn = self.rnn
        self._check_kinds()
        rnn._check_input(self.x, packed=False)
        place = self.ranks.place("input", self.x.device)
        self.params = [getattr(rnn, name) for name in rnn._names]
        self._check_params()
        self.single = self.x.dim() == 2
        self._ragged()
        if self.single:
            self.x = self.x.unsqueeze(self.batch_axis)
            self.reset = None if self.reset is None else self.reset.unsqueeze(self.batch_axis)
        self.description = self._described()
        for planner in (tails, by_rows):
            planner.refuse_forced(self.way, self.description, rnn.input_size)
        batch = self.description.batch(self.x.shape)
        self.steps, self.batch = int(batch.steps), int(batch.sequences)
        shapes = self.description.state_shapes(self.batch)
        self.states = [] if self.hx is None else rnn._states(shapes, self.hx, self.single)
        refuse_transforms("TimeSharded", self.x, *self.states, *self.params)
        target = modules._autocast_dtype(self.x, self.params[0])
        if target is not None:
            cast = functools.partial(modules._cast, target=target)
            self.x, *self.states = map(cast, (self.x, *self.states))
            self.params = [*map(cast, self.params)]
        names = ["input", *state_names("h_0", len(self.states))]
        for name, value in zip(names, [self.x, *self.states], strict=True):
            rnn._check_like(name, value, self.params[0])
        grads = torch.is_grad_enabled()
        return {
            "call": "TimeSharded",
            "module": (type(rnn).__name__, rnn.input_size, *self.description),
            "device": self.x.device.type,
            "dtype": str(self.x.dtype),
            "batch size of input": self.batch,
            "h_0": bool(self.states),
            "lengths": self._told_lengths(),
            "reset": self.reset is not None,
            "groups": self.wanted_groups,
            "way": self.way,
            "grad mode": grads,
            "requires_grad of h_0": tuple(value.requires_grad for value in self.states),
            "requires_grad of parameters": "".join(str(int(p.requires_grad)) for p in self.params),
            "steps": self.steps,
            PLACE: place,
            "wants_x": grads and self.x.requires_grad,
            # A number of torch's own generator, so that manual_seed and checkpointing govern it.
            SEED: int(torch.randint(2**62, (), device="cpu")) if self.drops else 0,
        }

    def _check_kinds(self) -> None:
        if isinstance(self.x, nn.utils.rnn.PackedSequence):
            raise TypeError("input: expected a tensor, got a PackedSequence: use lengths")
        if self.cu_seqlens is not None:
            raise ValueError(
                "cu_seqlens: expected None where time is split over ranks: use lengths, or reset "
                "where a sequence begins"
            )

    def _check_params(self) -> None:
        for name, value in zip(self.rnn._names, self.params, strict=True):
            if type(value) not in (Tensor, nn.Parameter):
                raise TypeError(
                    f"{name}: expected a plain parameter, got {type(value).__name__}: apply "
                    "fully_shard to the TimeSharded or to what contains it, not to its module"
                )
        first = self.params[0]
        for name, value in zip(self.rnn._names, self.params, strict=True):
            if value.device != first.device:
                raise TypeError(
                    f"{name}: expected device {first.device}, where the other parameters are, got "
                    f"{value.device}: move the module with .to()"
                )
        if self.x.device != first.device:  # such as another rank's GPU
            raise self.rnn._other_device("input", self.x, first)

    def _described(self) -> Description:
        rnn, told = self.rnn, self.rnn._description()
        self.drops = rnn.training and told.drops
        if not self.drops:
            return told.without_drops()
        inside = drawn_inside(told, rnn.input_size)
        for name in inside:
            why = f"beside {inside[0]}, as one call draws both by one seed" * (name != inside[0])
            if name.startswith("zoneout") and told.bidirectional:
                why = "in both directions, as one of them numbers steps against time"
            if why:
                raise NotImplementedError(
                    f"{name}: expected 0 in training where time is split over ranks {why}, got "
                    f"{told.own_options[name]}"
                )
        return told

    def _ragged(self) -> None:
        """lengths and reset, where they are given, as tensors beside x."""
        on, shape = tensors.Operands("input", self.x), self.x.shape
        if self.reset is not None:
            told = of_sequence(None, None, self.reset)
            self.reset = checked(on, told, shape, self.batch_axis).reset
        if self.lengths is None:
            return
        if self.single:
            raise ValueError("lengths: expected None for one sequence, whose length is that of x")
        given = self.lengths
        self.lengths = on.integers("lengths", given)
        if tuple(self.lengths.shape) != (shape[self.batch_axis],):
            raise ValueError(
                f"lengths: expected shape ({shape[self.batch_axis]},) = (batch,), got "
                f"{tuple(self.lengths.shape)}"
            )
        if not (isinstance(given, Tensor) and given.is_cuda):
            self.length_values = [int(value) for value in given]

    def _told_lengths(self) -> Any:
        """Those on a GPU are not looked at: that would wait for it."""
        if self.length_values is None:
            return self.lengths is not None
        return f"{zlib.crc32(repr(self.length_values).encode()):x}"

    # ---- when all ranks have agreed, or will have by a guess

    def run(self, agreed: Agreed) -> list[Tensor]:
        self.taken, every = "pipeline", agreed.every
        counts = [int(one["steps"]) for one in every]
        self._check_lengths(sum(counts))
        told = every[self.ranks.rank]
        grads = told["grad mode"]
        on_x = any(one["wants_x"] for one in every)
        on_h_0 = grads and any(told["requires_grad of h_0"])
        on_params = grads and "1" in told["requires_grad of parameters"]
        wanted = Wanted(on_x or on_h_0 or on_params, on_x, on_h_0, on_params)
        work = _work(
            self.description, self.rnn.input_size, self.x.dtype, self.ranks.size, max(counts),
            sum(counts), self.batch, wanted.any,
        )  # fmt: skip
        on = self.x.device.type
        grouped = self.grouped = _grouped(
            self.description, self.rnn.input_size, self.x.dtype, on, work, self.batch,
            self.wanted_groups,
        )  # fmt: skip
        way = self.way if self.batch else "pipeline"
        forget = tails.planned_layer(
            way, self.description, self.rnn.input_size, work, on, grouped, min(counts),
            agreed.kept,
        )  # fmt: skip
        own = None
        if forget is None:
            own = by_rows.planned(
                way, self.description, self.rnn.input_size, work, on, grouped, self.batch
            )
        shape = _shape(self.description, self.ranks.size, len(grouped), grouped.by_units)
        link, seed = Link(self.ranks, self.x.device, self.x.dtype, agreed.kept), self.ranks.seed
        rows = None if own is None else Rows(link, own, self.batch_axis, counts)
        if rows is not None:
            self.taken, self.grouped, shape = "rows", own, _shape(self.description, 1, 1)
        between = self.description.dropout if self.drops else 0.0
        dropped = Dropped(between, self._share("input_dropout"), seed)
        call = Call(
            self.description, self.rnn.input_size, self.x.dtype, self.grouped, self.batch,
            *self._time(counts, link, rows), dropped, None if rows is None else link.rank,
        )  # fmt: skip
        sharded = Sharded(call, link, shape, wanted, len(self.states), forget, rows)
        out = sharded.run(self.x, self.states, self._dropped_params(seed))
        if forget is not None and forget.lengths:
            self.taken, self.grouped = "tails", cutting.cut(self.batch, 1)
        return out

    def _check_lengths(self, steps: int) -> None:
        for at, value in enumerate(self.length_values or ()):
            if not 0 <= value <= steps:
                raise ValueError(
                    f"lengths: expected integers in [0, {steps}], the steps of all ranks, got "
                    f"{value} at {at}"
                )

    def _time(self, counts: list[int], link: Link, rows: Rows | None) -> tuple[int, int, Steps]:
        """How many steps this rank works on, from which one, and its part of lengths and resets;
        those also as a direction against time reads them."""
        first, steps = sum(counts[: link.rank]), self.steps
        lengths, reset, reset_back = self.lengths, self.reset, None
        if rows is not None:
            first, steps = 0, sum(counts)
            reset = None if reset is None else rows.to_rows(reset.to(torch.uint8)).bool()
        ends = None if lengths is None else lengths - first
        if reset is not None and self.description.bidirectional:
            if rows is None:
                after, here = self._first_resets(counts, link), (0, self.batch)
            else:
                after, here = None, rows.groups.rows(link.rank, self.batch)
            own = None if ends is None else ends.narrow(0, *here)
            reset_back = self._reset_back(reset, own, after)
        lengths = None if ends is None else ends.clamp(0, steps)
        return steps, first, Steps(lengths, reset, reset_back)

    def _first_resets(self, counts: list[int], link: Link) -> Tensor | None:
        """[1,B]: those before the first step of the next rank that has one."""
        own = self.reset.movedim(1 - self.batch_axis, 0)
        first = own[:1] if self.steps else own.new_zeros(1, self.batch)
        every = link.every(first.to(torch.uint8).contiguous(), "resets")
        behind = range(link.rank + 1, len(counts))
        return next((every[r].bool() for r in behind if counts[r]), None)

    def _reset_back(self, reset: Tensor, ends: Tensor | None, after: Tensor | None) -> Tensor:
        """A step's reset stands between it and the step before, to which no state comes back.

        What stands before the first step of the next rank, `after`, belongs to the last one of
        this rank. Where a sequence ends here, nothing stands behind its end; `ends` are numbers of
        steps from this rank's first one on, more than are here where a sequence goes on.
        """
        time = 1 - self.batch_axis
        own = reset.movedim(time, 0)
        steps, batch = own.shape
        back = torch.cat([own[1:], own.new_zeros(1, batch) if after is None else after])[:steps]
        if ends is not None:
            step = torch.arange(steps, device=own.device)[:, None]
            back = back & (step + 1 < ends)
        return back.movedim(0, time)

    # ---- what is dropped

    def _share(self, name: str) -> float:
        return self.description.own_options.get(name, 0.0) if self.drops else 0.0

    def _dropped_params(self, seed: int) -> list[Tensor]:
        share = self._share("dropconnect")
        if share == 0:
            return self.params
        out = list(self.params)
        for place, name in enumerate(self.rnn._names):
            what, _, where = name.partition("_l")
            if what == "weight_hh":
                layer, _, reverse = where.partition("_")
                matrix = masks.of_matrix(seed, int(layer), int(bool(reverse)))
                out[place] = masks.drop_rows(out[place], share, matrix)
        return out


# ---- groups


def _shape(told: Description, ranks: int, count: int, mixed: bool = False) -> Shape:
    return Shape(ranks, told.num_layers, told.directions, count, mixed)


@functools.lru_cache(maxsize=256)
def _work(
    told: Description, input_size: int, dtype: torch.dtype, ranks: int, most_steps: int,
    all_steps: int, batch: int, training: bool,
) -> Work:  # fmt: skip
    """That of the rank with the most steps."""
    cell, hidden = info(told), told.hidden_size
    sizes = [input_size, *[hidden * told.directions] * (told.num_layers - 1)]
    recurrent = hidden if cell.recurrence == "dense" else 0
    tokens, size_of_one = most_steps * batch, dtype.itemsize
    lines = tokens * told.directions * hidden
    products = 2.0 * lines * cell.gates * sum(size + recurrent for size in sizes)
    moved = float(lines * (cell.gates + 2) * len(sizes) * size_of_one)
    times, passes = (3, 2) if training else (1, 1)  # backward is twice forward
    return Work(
        times * products, times * moved, size_of_one == 2, cell.recurrence, cell.gates,
        most_steps, passes, _shape(told, ranks, 1), all_steps,
        float(passes * tokens * (input_size + hidden * told.directions) * size_of_one),
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _grouped(
    told: Description, input_size: int, dtype: torch.dtype, device: str, work: Work, batch: int,
    wanted: int | None,
) -> Groups:  # fmt: skip
    """By sizes that all ranks know, so that all choose alike."""
    whole = by_rows.whole_rows(told, input_size)
    return cutting.choose(
        work, device, batch, 1 if whole else max(1, batch), told.hidden_size,
        functools.partial(may_split_units, told, input_size, dtype), wanted,
    )  # fmt: skip
