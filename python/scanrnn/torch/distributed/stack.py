# SPDX-License-Identifier: Apache-2.0
"""A stack of layers over ranks as one function of autograd, whose both passes exchange states.

Which messages there are follows from the call alone, never from what a rank happens to need: a rank
that wants no gradient takes part in the others' backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops, tensors
from . import at_once
from .exchange import Link, refuse_graph
from .groups import cut
from .parts import Call, from_message, message_of, states_of
from .rows import Rows
from .schedule import Shape, Unit, following, slots_of
from .tails import Tails

_layer, _layer_backward = ops.layer, ops.layer_backward  # a test looks on


class Wanted(NamedTuple):
    """Gradients, the same on all ranks but for x's."""

    any: bool
    x: bool  # by any rank
    h_0: bool
    params: bool


class Sharded(NamedTuple):
    """A call, and how this rank works on it with the others."""

    call: Call
    link: Link
    shape: Shape
    wanted: Wanted
    states: int  # tensors of h_0; 0 where there is none
    tails: Tails | None = None  # to be read, where gates forget
    rows: Rows | None = None  # of each rank for the whole time; without both: the pipeline

    def run(self, x: Tensor, h_0: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """y and the states at the end, [L*D,B,H] each, which all ranks are given."""
        if not self.wanted.any:
            return list(self.passed(x, h_0, params).results())
        # On a rank whose own tensors want no gradient, what autograd knows the result by.
        anchor = torch.empty((), device=x.device, requires_grad=True)
        return list(_Function.apply(self, anchor, x, *h_0, *params))

    def passed(self, x: Tensor, h_0: list[Tensor], params: list[Tensor]) -> Forward:
        """Forward, by one of the ways."""
        if self.tails is not None:
            call = self.call._replace(groups=cut(self.call.batch, 1))
            for _ in self.tails.attempts():
                run = Forward(self._replace(call=call), x, h_0, params)
                if at_once.forward(run, self.tails):
                    return run
        x = x if self.rows is None else self.rows.to_rows(x)
        run = Forward(self._replace(tails=None), x, h_0, params)
        run.sharded.walk(run.work)
        return run

    def walk(self, work: Any, back: bool = False) -> None:
        call = self.call
        if self.rows is not None:  # all of its group's units, one after the other
            for (unit,) in slots_of(self.shape)[:: -1 if back else 1]:
                work(unit._replace(group=call.own), None)
            return

        def size_of(unit: Unit) -> int:
            return sum(map(math.prod, call.state_shapes(unit)))

        self.link.walk(self.shape, size_of, work, back)

    def ends_here(self, unit: Unit, back: bool = False) -> bool:
        alone = self.rows is not None
        return alone or following(unit, self.link.rank, self.link.size, back) is None

    def spread(self, states: list[Tensor]) -> list[Tensor]:
        """Each [L*D,B,H], in place: a direction's rows from the rank where its time ends."""
        if self.rows is not None:
            return self.rows.spread(states)
        directions = self.call.description.directions
        if self.link.size == 1:
            return states
        for direction in range(directions):
            rows = [state[direction::directions] for state in states]
            message = message_of(rows)
            self.link.spread(message, 0 if direction else self.link.size - 1)
            if len(rows) == 1 and rows[0].is_contiguous():  # the message is the row's own memory
                continue
            for row, came in zip(rows, from_message(message, [r.shape for r in rows]), strict=True):
                row.copy_(came)
        return states


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sharded: Sharded, anchor: Tensor, x: Tensor, *rest: Tensor) -> Any:
        h_0, params = list(rest[: sharded.states]), list(rest[sharded.states :])
        run = sharded.passed(x, h_0, params)
        out = run.results()
        ctx.set_materialize_grads(False)
        ctx.sharded, ctx.names = run.sharded, list(run.kept)
        ctx.save_for_backward(*run.kept.values(), *params)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        refuse_graph("TimeSharded")
        count, saved = len(ctx.names), ctx.saved_tensors  # which a checkpoint gives once
        run = Backward(ctx.sharded, dict(zip(ctx.names, saved[:count], strict=True)), saved[count:])
        with ctx.sharded.link.meeting():
            return None, None, *run.run(cotangents)


class Forward:
    """`kept` is what backward reads: inputs by layer and block, what is projected of them by layer
    and direction, and of each unit y, its reserve and what it began with."""

    def __init__(
        self, sharded: Sharded, x: Tensor, h_0: list[Tensor], params: list[Tensor]
    ) -> None:
        self.sharded, self.call = sharded, sharded.call
        self.x, self.h_0, self.params = x, h_0, params
        self.kept: dict[Any, Tensor] = {}
        self.y: dict[Unit, Tensor] = {}
        self.finals = [x.new_empty(shape) for shape in self.call.whole_state_shapes]

    def results(self) -> Iterable[Tensor]:
        call, last = self.call, self.call.description.num_layers - 1
        blocks = [self._assembled(last, block) for block in call.blocks]
        y = blocks[0] if len(blocks) == 1 else torch.cat(blocks, call.batch_axis)
        if self.sharded.rows is not None:
            y = self.sharded.rows.to_steps(y)
        return y, *self.sharded.spread(self.finals)

    def work(self, unit: Unit, message: Tensor | None, x: Tensor | None = None) -> Tensor:
        """A unit, with what comes to it from another rank; x is what `read` gives."""
        call, x = self.call, self.read(unit) if x is None else x
        if message is not None:
            h_0 = from_message(message, call.state_shapes(unit))
        else:
            h_0 = states_of(self.h_0, call, unit)
        params = call.part_of(unit, call.of_layer(unit, self.params))
        y, *finals, reserve = _layer(
            x, h_0, params, *call.steps_of(unit), call.seed_of(unit), self.sharded.wanted.any,
            *call.layer_of(unit),
        )  # fmt: skip
        finals = finals[: call.description.states]
        self.y[unit] = y
        if self.sharded.wanted.any:
            self.kept["y", unit], self.kept["reserve", unit] = y, reserve
            self.kept |= {("h_0", unit, i): h for i, h in enumerate(h_0)}
        if self.sharded.ends_here(unit):
            for target, final in zip(states_of(self.finals, call, unit), finals, strict=True):
                target.copy_(final)
        return message_of(finals)

    def read(self, unit: Unit) -> Tensor:
        """x of a unit's own call, as `Backward` reads it again."""
        call, layer = self.call, unit.layer
        source = self._input(layer, call.groups.block(unit.group))
        if not call.groups.by_units:
            return call.as_read(unit, source)
        key = "projected", layer, unit.direction
        if key not in self.kept:
            weight = call.projection(layer, call.of_layer(unit, self.params)[0])
            self.kept[key] = source @ weight.T
        return call.as_read(unit, self.kept[key])

    def _input(self, layer: int, block: int) -> Tensor:
        """That of a block, made once for all units that read it."""
        key = "input", layer, block
        if key not in self.kept:
            if layer == 0:
                own = self.call.of_block(self.x, block)
                self.kept[key] = tensors.evenly_spaced(own)  # for both passes
            else:
                tokens = self._assembled(layer - 1, block)
                self.kept[key] = self.call.behind_layer(layer - 1, block, tokens)
            if self.call.groups.by_units:
                there = self.call.without_absent(self.kept[key])
                self.kept[key] = self.call.without_dropped(Unit(layer, 0, 0), there)
        return self.kept[key]

    def _assembled(self, layer: int, block: int) -> Tensor:
        """A layer's output, and then the units' own are not needed any more."""
        call = self.call
        if not self.sharded.wanted.any:
            del self.kept["input", layer, block]
            for direction in range(call.description.directions):
                self.kept.pop(("projected", layer, direction), None)
        parts = [
            call.in_walked_order(unit, self.y.pop(unit))
            for unit in call.units_of_block(layer, block)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class Backward:
    def __init__(self, sharded: Sharded, kept: dict[Any, Tensor], params: Sequence[Tensor]) -> None:
        self.sharded, self.call, self.kept, self.params = sharded, sharded.call, kept, params
        self.wide = torch.promote_types(self.call.dtype, torch.float32)
        self.sums: dict[tuple[int, int], Tensor] = {}  # of a layer's input, by layer and block
        self.done: dict[tuple[int, int], Tensor] = {}
        self.projected: dict[tuple[int, int], tuple[Tensor, set[int]]] = {}
        self.split = sum(math.prod(shape) for shape in self.call.whole_state_shapes)

    @functools.cached_property
    def flat(self) -> Tensor:
        """The cotangents of h_0, then of the parameters, so that one exchange adds them over ranks;
        made behind what other ranks wait for."""
        size = self.split + sum(value.numel() for value in self.params)
        return torch.zeros(size, device=self.params[0].device, dtype=self.wide)

    @functools.cached_property
    def _parts(self) -> list[Tensor]:
        shapes = [*self.call.whole_state_shapes, *(value.shape for value in self.params)]
        return from_message(self.flat, shapes)

    @property
    def initial(self) -> list[Tensor]:
        return self._parts[: self.call.description.states]

    @property
    def totals(self) -> list[Tensor]:
        return self._parts[self.call.description.states :]

    def run(self, cotangents: Sequence[Tensor | None]) -> Iterable[Tensor | None]:
        """The cotangents of x, of each tensor of h_0 and of each parameter."""
        wanted, call, rows = self.sharded.wanted, self.call, self.sharded.rows
        self.dy, *finals = cotangents
        if rows is not None:
            self.dy = rows.to_rows(rows.no_steps(call.width) if self.dy is None else self.dy)
        if self.sharded.tails is not None:
            at_once.backward(self, self.sharded.tails, finals)
        else:
            self.finals = self._total(finals)
            self.sharded.walk(self.work, back=True)
        dx = None
        if wanted.x:
            blocks = [self._of_input(0, block) for block in call.blocks]
            dx = blocks[0] if len(blocks) == 1 else torch.cat(blocks, call.batch_axis)
            dx = dx if rows is None else rows.to_steps(dx)
        begin, end = 0 if wanted.h_0 else self.split, None if wanted.params else self.split
        self.sharded.link.add(self.flat[begin:end])
        dh_0, dparams = self.initial[: self.sharded.states], self.totals
        return (
            dx,
            *(value.to(call.dtype) if wanted.h_0 else None for value in dh_0),
            *(value.to(call.dtype) if wanted.params else None for value in dparams),
        )

    def _total(self, finals: Sequence[Tensor | None]) -> list[Tensor]:
        """The sum over ranks, as each of them is given the states."""
        wide = [
            torch.zeros_like(like) if final is None else final.to(self.wide)
            for like, final in zip(self.initial, finals, strict=True)
        ]
        total = torch.cat([value.reshape(-1) for value in wide])  # not the cotangents' own memory
        self.sharded.link.add(total)
        return from_message(total.to(self.call.dtype), self.call.whole_state_shapes)

    def read(self, unit: Unit) -> Tensor:
        """x of a unit's own call."""
        source = "input", unit.layer, self.call.groups.block(unit.group)
        if self.call.groups.by_units:
            source = "projected", unit.layer, unit.direction
        return self.call.as_read(unit, self.kept[source])

    def work(
        self, unit: Unit, message: Tensor | None, x: Tensor | None = None, dy: Tensor | None = None
    ) -> Tensor:
        """A unit, with what comes to it; x and dy are what `read` and `of_output` give."""
        call, wanted = self.call, self.sharded.wanted
        if message is not None:
            dh_n = from_message(message, call.state_shapes(unit))
        else:
            dh_n = states_of(self.finals, call, unit)
        x, dy = self.read(unit) if x is None else x, self.of_output(unit) if dy is None else dy
        held = [self.kept.get(("h_0", unit, i)) for i in range(call.description.states)]
        h_0 = [h for h in held if h is not None]
        needs_x = unit.layer > 0 or wanted.x or (call.groups.by_units and wanted.params)
        params = call.part_of(unit, call.of_layer(unit, self.params))
        dx, *others = _layer_backward(
            dy, dh_n, x, h_0, self.kept["y", unit], params, *call.steps_of(unit),
            self.kept["reserve", unit], call.seed_of(unit), needs_x, wanted.params,
            *call.layer_of(unit),
        )  # fmt: skip
        dh_0, dparams = others[: len(h_0)], others[len(h_0) :]
        totals = call.of_layer(unit, self.totals)
        if call.groups.by_units:  # their weight is none: the projection has one
            totals, dparams = totals[1:], dparams[1:]
            if needs_x:
                self._to_projected(unit, dx)
        elif needs_x:
            self._add(unit.layer, call.groups.block(unit.group), call.from_read(unit, dx))
        for total, gradient in zip(totals, dparams, strict=False):
            call.add_part(unit, total, gradient)
        if self.sharded.ends_here(unit, back=True):
            for target, value in zip(states_of(self.initial, call, unit), dh_0, strict=False):
                target.copy_(value)
        return message_of(dh_0) if dh_0 else self.flat.new_empty(0)

    def _to_projected(self, unit: Unit, dx: Tensor) -> None:
        """A unit's part of the cotangent of what was projected; the last one takes all of it back
        to x and to the weight."""
        call, wanted, key = self.call, self.sharded.wanted, (unit.layer, unit.direction)
        if key not in self.projected:
            whole = torch.empty_like(self.kept[("projected", *key)])
            self.projected[key] = whole, set(range(len(call.groups)))
        whole, left = self.projected[key]
        whole.narrow(-1, *call.columns(unit)).copy_(call.in_walked_order(unit, dx))
        left.remove(unit.group)
        if left:
            return
        del self.projected[key]
        if unit.layer > 0 or wanted.x:
            weight = call.projection(unit.layer, call.of_layer(unit, self.params)[0])
            self._add(unit.layer, 0, call.without_dropped(unit, whole @ weight))
        if wanted.params:
            x = self.kept["input", unit.layer, 0]
            gradient = whole.flatten(0, 1).T @ x.flatten(0, 1)
            call.add_projection(unit.layer, call.of_layer(unit, self.totals)[0], gradient)

    def _add(self, layer: int, block: int, dx: Tensor) -> None:
        """Several units' in the wider type."""
        before = self.sums.get((layer, block))
        self.sums[layer, block] = dx if before is None else before.to(self.wide) + dx

    def _of_input(self, layer: int, block: int) -> Tensor:
        return self.sums.pop((layer, block)).to(self.call.dtype)

    def of_output(self, unit: Unit) -> Tensor | None:
        """A unit's part of its layer's cotangent."""
        call, block = self.call, self.call.groups.block(unit.group)
        if unit.layer + 1 == call.description.num_layers:
            if self.dy is None:
                return None
            whole = call.of_block(self.dy, block)
        else:
            key = unit.layer, block
            if key not in self.done:
                above = self._of_input(unit.layer + 1, block)
                self.done[key] = call.behind_layer(unit.layer, block, above)
            whole = self.done[key]
        return call.in_walked_order(unit, whole.narrow(-1, *call.features(unit)))
