# SPDX-License-Identifier: Apache-2.0
"""A stack's passes behind tails: each layer reads them, all ranks exchange what they end with, and
then work on their shards at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...description import Description
from .parts import Call, from_message, message_of
from .schedule import Unit, following
from .tails import Reading, Tails

_layer = torch.ops.scanrnn.layer
_layer_backward = torch.ops.scanrnn.layer_backward

HUGE = {torch.float16: 2.0**15}  # a state in whose place the product is seen beside any other


def _huge(dtype: torch.dtype) -> float:
    return HUGE.get(dtype, 2.0**100)


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
    finals: list[Tensor]  # cotangents of all ranks

    def read(self, unit: Unit) -> Tensor: ...
    def of_output(self, unit: Unit) -> Tensor | None: ...
    def work(
        self, unit: Unit, message: Tensor | None, x: Tensor | None = None, dy: Tensor | None = None
    ) -> Tensor: ...


def forward(run: Forward, tails: Tails) -> bool:
    """All layers, one after the other; False where gates keep, of whatever layer."""
    call, link = run.call, run.sharded.link
    for layer in range(call.description.num_layers):
        units = [Unit(layer, direction, 0) for direction in range(call.description.directions)]
        sources = [run.read(unit) for unit in units]
        every = tails.settled(link, _reading(run, units, sources))
        if every is None:
            return False
        for unit, x in zip(units, sources, strict=True):
            before = following(unit, link.rank, link.size, back=True)
            message = None
            if before is not None:
                ends = every[before].view(_starts(run), 2, len(units), -1)
                message = _aligned(ends[0, 0, unit.direction])
            run.work(unit, message, x)
    return tails.hold(link)


def _starts(run: Forward) -> int:
    """Ends of a shard that are read: the last steps are for the rank behind and, with backward, the
    first ones for what the rank before is to hear."""
    return 1 + run.sharded.wanted.any


def _aligned(state: Tensor) -> Tensor:
    """As memory of its own begins."""
    return state if state.data_ptr() % 16 == 0 else state.clone()


def _reading(run: Forward, units: list[Unit], sources: list[Tensor]) -> Reading:
    """One call for each direction reads all that is read, from zero and from a huge state: a
    product of decays is the share of it that is left. Messages are [starts, 2, units, state]; what
    they end with goes to all ranks as it is, since what takes time here is launches."""
    starts, dtype = _starts(run), run.call.dtype

    def message(length: int) -> Tensor:
        rows = [
            end.view(2 * starts, -1)
            for unit, x in zip(units, sources, strict=True)
            for end in _ends(run, unit, x, length)
        ]
        return (rows[0] if len(rows) == 1 else torch.cat(rows, 1)).view(-1)

    def product(every: Tensor) -> Tensor:
        ends = every.view(len(every), starts, 2, -1)
        return torch.dist(ends[:, :, 1], ends[:, :, 0], math.inf)

    return Reading(message, product, _huge(dtype))


def _ends(run: Forward, unit: Unit, x: Tensor, length: int) -> list[Tensor]:
    """[1, starts * 2 * B, H] of each tensor of a state. Where no other rank is to hear of it, the
    state begins with zero in both of two."""
    call, link, starts = run.call, run.sharded.link, _starts(run)
    back = (False, True)[:starts]
    heard = tuple(following(unit, link.rank, link.size, b) is not None for b in back)
    initial = _initial(heard, tuple(call.state_shapes(unit)), x.dtype, x.device)
    if not any(heard):
        return list(initial)
    parts = [
        part
        for start in (call.steps - length, 0)[:starts]
        for part in 2 * [_part(call, unit, x, start, length)]
    ]
    _, *finals = _layer(
        _side_by_side([part.x for part in parts], call.batch_axis), list(initial),
        call.of_layer(unit, run.params), _side_by_side([part.lengths for part in parts], 0), None,
        _side_by_side([part.reset for part in parts], call.batch_axis), None, False,
        *_described(call, unit),
    )  # fmt: skip
    return finals[: len(initial)]


@functools.lru_cache(maxsize=32)
def _initial(
    heard: tuple[bool, ...], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The states that tails begin with; nobody writes there."""
    with torch.inference_mode(False):
        out = []
        for _, batch, size in shapes:
            state = torch.zeros(len(heard), 2, batch, size, dtype=dtype, device=device)
            for start, wanted in enumerate(heard):
                state[start, 1].fill_(_huge(dtype) if wanted else 0)
            out.append(state.view(1, -1, size))
        return tuple(out)


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


def backward(run: Backward, tails: Tails, finals: Sequence[Tensor | None]) -> None:
    """The way back through what `forward` has done; `finals` are this rank's cotangents of the
    states at the end, which go with the first exchange."""
    call, link, directions = run.call, run.sharded.link, run.call.description.directions
    for layer in reversed(range(call.description.num_layers)):
        units = [Unit(layer, direction, 0) for direction in range(directions)]
        given = [(run.read(unit), run.of_output(unit)) for unit in units]
        sent = [
            part
            for unit, (x, dy) in zip(units, given, strict=True)
            for part in _begin(run, unit, x, dy, tails.lengths[layer])
        ]
        size = sum(map(math.prod, call.state_shapes(units[0])))
        if layer + 1 == call.description.num_layers:
            sent += [
                _none(shape, call.dtype, link.device) if final is None else final
                for final, shape in zip(finals, call.whole_state_shapes, strict=True)
            ]
        every = link.every(message_of(sent), "tails")
        if layer + 1 == call.description.num_layers:
            run.finals = _summed(run, every[:, directions * size :])
        for unit, (x, dy) in zip(units, given, strict=True):
            source, message = following(unit, link.rank, link.size), None
            if source is not None:
                message = _aligned(every[source].narrow(0, unit.direction * size, size))
            run.work(unit, message, x, dy)


def _summed(run: Backward, every: Tensor) -> list[Tensor]:
    """Over ranks, of whom each is given the states; nothing on a rank that begins with none."""
    call, link = run.call, run.sharded.link
    if 0 < link.rank < link.size - 1:
        return []
    wide = torch.promote_types(call.dtype, torch.float32)
    return from_message(every.sum(0, dtype=wide).to(call.dtype), call.whole_state_shapes)


@functools.lru_cache(maxsize=32)
def _none(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, which nobody writes to."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)


def _begin(run: Backward, unit: Unit, x: Tensor, dy: Tensor | None, length: int) -> list[Tensor]:
    """The cotangent that leaves the shard at its beginning, by its first steps alone, for a rank
    before that goes on with it."""
    call, link = run.call, run.sharded.link
    if dy is None or following(unit, link.rank, link.size, back=True) is None:
        return [_none(shape, call.dtype, link.device) for shape in call.state_shapes(unit)]
    h_0 = [run.kept["h_0", unit, i] for i in range(call.description.states)]
    params, described = call.of_layer(unit, run.params), _described(call, unit)
    x, *ragged = _part(call, unit, x, 0, length)
    steps = ragged[0], None, ragged[1]
    y, *_, reserve = _layer(x, h_0, params, *steps, None, True, *described)
    dy = dy.narrow(1 - call.batch_axis, 0, length)
    _, *dh_0 = _layer_backward(
        dy, [], x, h_0, y, params, *steps, reserve, None, False, False, *described
    )
    return dh_0[: len(h_0)]
