# SPDX-License-Identifier: Apache-2.0
"""Where gates forget, all ranks work at once: a shard's last steps say how it ends.

A linear state that enters the last K steps of a shard leaves them multiplied by the product of
their decays. Where that product is nothing beside rounding, the last K steps alone, from zero, give
the state at the shard's end: they are its tail. So each rank reads its tail, all ranks exchange
what came out, and then all of them run their shards at the same time. Backward does the same with
the first K steps and the cotangent that leaves them. docs/many_gpus.md has the arithmetic.

Every rank hears of every product, so all ranks decide alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...description import Description
from .exchange import Link, Messages
from .groups import Groups, Work
from .parts import Call, drawn_inside, info, message_of
from .schedule import Unit, following

WAYS = ("auto", "pipeline", "tails")
FIRST = 512  # steps of a tail at first: few beside a shard, and fewer would not be faster
LEAST = 16  # fewer are not worth an exchange
SHARE = 16  # a tail has one part in so many of the smallest shard at most
TRIES = 3
PAYS = 0.95  # of the pipeline's time
_GRAIN = 16  # longer tails have a multiple of so many steps

_layer = torch.ops.scanrnn.layer
_layer_backward = torch.ops.scanrnn.layer_backward


class Forward(Protocol):
    """What is used here of a stack's way forward."""

    call: Call
    sharded: Any
    params: Sequence[Tensor]

    def read(self, unit: Unit) -> Tensor: ...
    def work(self, unit: Unit, message: Tensor | None, x: Tensor | None = None) -> Tensor: ...


class Backward(Protocol):
    """The same of its way back."""

    call: Call
    sharded: Any
    params: Sequence[Tensor]
    kept: dict[Any, Tensor]

    def read(self, unit: Unit) -> Tensor: ...
    def of_output(self, unit: Unit) -> Tensor | None: ...
    def work(
        self, unit: Unit, message: Tensor | None, x: Tensor | None = None, dy: Tensor | None = None
    ) -> Tensor: ...


def bound_of(dtype: torch.dtype) -> float:
    """The largest product of decays that is nothing: a quarter of what rounding is in the type that
    cells compute in. What is left out is the product times a state of the same sequence, so at most
    this share of the largest state."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 8


class Tails:
    """One call's: of how many steps they are. `lengths`, by layer, is empty until gates were found
    to forget, and where they do not."""

    def __init__(self, first: int, most: int, pays: Callable[[int], bool] | None) -> None:
        """`pays` of a length is None where they are forced."""
        self.first, self.most, self._pays = first, most, pays
        self.lengths: list[int] = []

    def settled(self, link: Link, probe: Callable[[int], Ends]) -> list[Tensor] | None:
        """Every rank's states, when products over the length are nothing; None where gates keep.

        This waits for the device, once for each length that is tried.
        """
        longer, bound = self.first, bound_of(link.dtype)
        for _ in range(TRIES):
            length, found = longer, probe(longer)
            size = found.states.nbytes
            told = torch.cat([_bytes(found.states), _bytes(found.product.reshape(1).float())])
            every = link.every(told, "tails")
            products = torch.stack([one[size:] for one in every]).view(torch.float32)
            product = float(products.max())
            if product <= bound:
                self.lengths.append(length)
                return [one[:size].view(link.dtype) for one in every]
            longer = self._longer(length, product, bound)
            if longer == length:
                break
        self.lengths.clear()
        if self._pays is None:
            raise ValueError(
                f"way: expected 'auto' or 'pipeline' where gates keep a state, got 'tails': the "
                f"largest product of decays over {length} steps is {product:.3g}, where "
                f"{bound:.3g} would be nothing"
            )
        return None

    def _longer(self, length: int, product: float, bound: float) -> int:
        """What gates need that go on forgetting as they did, and a quarter more; `length` itself
        where there are not so many steps, or where that takes too long. The largest product over a
        few steps promises less than more steps will have, so that half of it may do."""
        if not 0 < product < 1:
            return length
        wanted = 1.25 * length * math.log(bound) / math.log(product)
        longer = min(self.most, -(-math.ceil(min(wanted, self.most)) // _GRAIN) * _GRAIN)
        if self._pays is None or (wanted <= 2 * self.most and self._pays(longer)):
            return longer
        return length


class Ends(NamedTuple):
    """What tails of some length are on this rank."""

    states: Tensor  # with which the shard ends; flat
    product: Tensor  # the largest that matters to another rank


def _bytes(value: Tensor) -> Tensor:
    return value.contiguous().view(torch.uint8)


# ---- whether


def checked_way(way: str, groups: int | None) -> str:
    """What a user asks for."""
    if way not in WAYS:
        raise ValueError(f"way: expected one of {', '.join(map(repr, WAYS))}, got {way!r}")
    if way == "tails" and groups is not None:
        raise ValueError(
            f"groups: expected None beside way='tails', which has no pipeline, got {groups}"
        )
    return "pipeline" if groups is not None else way


def refuse_forced(way: str, told: Description, input_size: int) -> None:
    """Raises where tails are asked for by name and cannot be read."""
    why = _why_not(told, input_size)
    if way == "tails" and why:
        raise ValueError(f"way: expected 'auto' or 'pipeline' {why}, got 'tails'")


@functools.lru_cache(maxsize=256)
def _why_not(told: Description, input_size: int) -> str:
    cell = info(told)
    if cell.recurrence != "linear":
        return f"for {cell.as_made()}, whose recurrence is {cell.recurrence}"
    inside = drawn_inside(told, input_size)
    return f"where training draws {inside[0]} inside the recurrence" if inside else ""


def planned_layer(
    way: str, told: Description, input_size: int, work: Work, device: str, grouped: Groups,
    least: int,
) -> Tails | None:  # fmt: skip
    """For `grouped`, which the pipeline would have; None: the pipeline."""
    possible = not _why_not(told, input_size)
    return planned(way, work, device, grouped, least) if possible else None


def planned(way: str, work: Work, device: str, grouped: Groups, least: int) -> Tails | None:
    """By sizes that all ranks know; `least` are the steps of the smallest shard."""
    if way == "pipeline" or work.shape.ranks == 1:
        return None
    if way == "tails":
        if least == 0:
            raise ValueError(
                "way: expected 'auto' or 'pipeline' where a rank has no steps, got 'tails'"
            )
        return Tails(min(FIRST, least), least, None)
    pipeline = work.seconds(device, len(grouped), grouped.by_units)

    def pays(length: int) -> bool:
        return work.tail_seconds(device, length) < PAYS * pipeline

    most = least // SHARE
    first = min(FIRST, most)
    return Tails(first, most, pays) if first >= LEAST and pays(first) else None


# ---- a stack


def forward(run: Forward, tails: Tails) -> bool:
    """All layers, one after the other; False where gates keep, of whatever layer."""
    call, link = run.call, run.sharded.link
    for layer in range(call.description.num_layers):
        units = [Unit(layer, direction, 0) for direction in range(call.description.directions)]
        sources = [run.read(unit) for unit in units]
        every = tails.settled(link, functools.partial(_layer_ends, run, units, sources))
        if every is None:
            return False
        for unit, x in zip(units, sources, strict=True):
            before = following(unit, link.rank, link.size, back=True)
            message = None
            if before is not None:
                message = every[before].chunk(len(units))[unit.direction].clone()
            run.work(unit, message, x)
    return True


def _layer_ends(run: Forward, units: list[Unit], sources: list[Tensor], length: int) -> Ends:
    """The ends of all directions of a layer, as one message."""
    found = [_ends(run, unit, x, length) for unit, x in zip(units, sources, strict=True)]
    states, products = zip(*found, strict=True)
    return Ends(message_of(states), largest(products))


def largest(values: Sequence[Tensor]) -> Tensor:
    """The largest scalar; a few launches are what a tail costs most."""
    return values[0] if len(values) == 1 else torch.stack(list(values)).amax()


HUGE = {torch.float16: 2.0**15}  # a state in whose place the product is seen beside any other


def _ends(run: Forward, unit: Unit, x: Tensor, length: int) -> Ends:
    """One call reads the last steps for the next rank and, with backward, the first ones for what
    the rank before is to hear. It reads each of them from zero and from a huge state: a product of
    decays is the share of it that is left."""
    call, link = run.call, run.sharded.link
    shapes, wide = call.state_shapes(unit), torch.promote_types(call.dtype, torch.float32)
    starts = []
    if following(unit, link.rank, link.size) is not None:
        starts.append(call.steps - length)
    if run.sharded.wanted.any and following(unit, link.rank, link.size, back=True) is not None:
        starts.append(0)
    if not starts:
        none = x.new_zeros(sum(map(math.prod, shapes)))
        return Ends(none, x.new_zeros((), dtype=wide))
    huge = HUGE.get(call.dtype, 2.0**100)
    parts = [part for start in starts for part in 2 * [_part(call, unit, x, start, length)]]
    h_0 = [x.new_zeros(len(starts), 2, call.batch, shape[-1]) for shape in shapes]
    for state in h_0:
        state[:, 1].fill_(huge)
    _, *finals = _layer(
        _side_by_side([part.x for part in parts], call.batch_axis),
        [state.flatten(0, 2)[None] for state in h_0],
        call.of_layer(unit, run.params),
        _side_by_side([part.lengths for part in parts], 0), None,
        _side_by_side([part.reset for part in parts], call.batch_axis),
        None, False, *_described(call, unit),
    )  # fmt: skip
    ends = [f.unflatten(1, (-1, 2, call.batch)) for f in finals[: len(shapes)]]
    left = [(end[:, :, 1].to(wide) - end[:, :, 0]).abs().amax() / huge for end in ends]
    return Ends(message_of([end[:, 0, 0] for end in ends]), largest(left))


class _Part(NamedTuple):
    """Some of the steps that a unit's call reads, in the order in which it walks."""

    x: Tensor
    lengths: Tensor | None
    reset: Tensor | None


def _part(call: Call, unit: Unit, x: Tensor, start: int, length: int) -> _Part:
    axis = 1 - call.batch_axis
    lengths, _, reset = call.steps_of(unit)
    if lengths is not None:
        lengths = (lengths - start).clamp(0, length)
    if reset is not None:
        reset = reset.narrow(axis, start, length)
    return _Part(x.narrow(axis, start, length), lengths, reset)


def _side_by_side(values: Sequence[Tensor | None], axis: int) -> Tensor | None:
    there = [value for value in values if value is not None]
    return torch.cat(there, axis) if there else None


def _described(call: Call, unit: Unit) -> Description:
    """A strategy that is asked of the whole may not do for a few steps."""
    return call.layer_of(unit)._replace(strategy=None)


def backward(run: Backward, tails: Tails) -> None:
    """The way back through what `forward` has done."""
    call, link = run.call, run.sharded.link
    for layer in reversed(range(call.description.num_layers)):
        units = [Unit(layer, direction, 0) for direction in range(call.description.directions)]
        given = [(run.read(unit), run.of_output(unit)) for unit in units]
        sent: Messages = []
        received: Messages = []
        for unit, (x, dy) in zip(units, given, strict=True):
            target = following(unit, link.rank, link.size, back=True)
            source = following(unit, link.rank, link.size)
            if target is not None:
                sent.append((target, _begin(run, unit, x, dy, tails.lengths[layer])))
            if source is not None:
                size = sum(map(math.prod, call.state_shapes(unit)))
                received.append((source, x.new_empty(size)))
        sources = [source for source, _ in received]
        came = dict(zip(sources, link.swap(sent, received), strict=True))
        for unit, (x, dy) in zip(units, given, strict=True):
            run.work(unit, came.get(following(unit, link.rank, link.size)), x, dy)


def _begin(run: Backward, unit: Unit, x: Tensor, dy: Tensor | None, length: int) -> Tensor:
    """The cotangent that leaves the shard at its beginning, by its first steps alone."""
    call, states = run.call, range(run.call.description.states)
    h_0 = [run.kept["h_0", unit, i] for i in states]
    if dy is None:
        return torch.zeros_like(message_of(h_0))
    params, described = call.of_layer(unit, run.params), _described(call, unit)
    x, *ragged = _part(call, unit, x, 0, length)
    steps = ragged[0], None, ragged[1]
    y, *_, reserve = _layer(x, h_0, params, *steps, None, True, *described)
    dy = dy.narrow(1 - call.batch_axis, 0, length)
    _, *dh_0 = _layer_backward(
        dy, [], x, h_0, y, params, *steps, reserve, None, False, False, *described
    )
    return message_of(dh_0)
