# SPDX-License-Identifier: Apache-2.0
"""A unit of work as a call of one layer: which part it has of x, of the parameters, of the states,
and in which order of time.

Shapes: T steps of this rank, B batch, C input size, H hidden size; of a unit b rows and n units.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...arguments import short_name
from ...description import Description
from ...registry import CellInfo, cells
from . import masks
from .groups import Groups
from .schedule import Unit

_INFO = {cell.name: cell for cell in cells()}
# Parameters whose rows belong to hidden units, block after block.
_OF_UNITS = ("weight_ih", "bias_ih", "weight_hh", "weight_ch")


def info(description: Description) -> CellInfo:
    return _INFO[description.cell]


def options_without(options: str, names: set[str]) -> str:
    """A description's options but for these, which are dealt with here."""
    return " ".join(word for word in options.split() if word.partition("=")[0] not in names)


class Steps(NamedTuple):
    """Which of this rank's steps there are: arrays as a call takes them, or None."""

    lengths: Tensor | None  # [B]: of this rank's part of time
    reset: Tensor | None  # as x without its last axis
    reset_back: Tensor | None  # of the direction against time, by the same steps


class Dropped(NamedTuple):
    """What training drops; `seed` is that of the whole call."""

    between: float
    from_input: float
    seed: int


class Call(NamedTuple):
    """What this rank has of a call on a stack, but for tensors that have gradients."""

    description: Description
    input_size: int
    dtype: torch.dtype
    groups: Groups
    batch: int
    steps: int  # T
    first_step: int
    ragged: Steps
    dropped: Dropped
    own: int | None = None  # the one group whose rows x, y and resets have; None: those of all

    # ---- sizes

    @property
    def width(self) -> int:
        """Features of a layer's output."""
        return int(self.description.output_shape((self.input_size,))[-1])

    def features(self, unit: Unit) -> tuple[int, int]:
        """First and number of a unit's in its layer's output."""
        own = self.width // self.description.directions
        start, count = self.groups.units(unit.group, own)
        return unit.direction * own + start, count

    def input_size_of(self, layer: int) -> int:
        return self.width if layer else self.input_size

    @property
    def batch_axis(self) -> int:
        return self.description.batch_axis

    def rows(self, unit: Unit) -> tuple[int, int]:
        return self.groups.rows(unit.group, self.batch)

    def units(self, unit: Unit) -> tuple[int, int]:
        return self.groups.units(unit.group, self.description.hidden_size)

    def state_shapes(self, unit: Unit) -> list[tuple[int, ...]]:
        """Those of the tensors of a unit's state."""
        return self.layer_of(unit).state_shapes(self.rows(unit)[1])

    @property
    def whole_state_shapes(self) -> list[tuple[int, ...]]:
        """Those of the tensors of the stack's, [L*D,B,H]."""
        return self.description.state_shapes(self.batch)

    def block_rows(self, block: int) -> tuple[int, int]:
        return self.groups.rows(block, self.batch)

    @property
    def blocks(self) -> Sequence[int]:
        """Those that this rank works on."""
        return range(self.groups.blocks) if self.own is None else (self.own,)

    def of_block(self, tokens: Tensor, block: int) -> Tensor:
        """A block's rows of what has all that this rank has."""
        if self.own is not None:
            return tokens
        return tokens.narrow(self.batch_axis, *self.block_rows(block))

    def units_of_block(self, layer: int, block: int) -> list[Unit]:
        """In the order of their features."""
        groups = range(len(self.groups)) if self.groups.by_units else (block,)
        return [Unit(layer, d, g) for d in range(self.description.directions) for g in groups]

    # ---- the layer of a unit

    def carries_input(self, layer: int) -> bool:
        """Whether a step reads x of its own unit, without a projection."""
        size = self.input_size_of(layer)
        return info(self.description).highway and size == self.description.hidden_size

    def drops_itself(self, layer: int) -> bool:
        """Where a highway reads x itself the library has to drop from x; else it is done here."""
        return self.dropped.from_input > 0 and self.carries_input(layer)

    def layer_of(self, unit: Unit) -> Description:
        gone = {"dropconnect"} | (set() if self.drops_itself(unit.layer) else {"input_dropout"})
        return self.description._replace(
            hidden_size=self.units(unit)[1], num_layers=1, bidirectional=False, dropout=0.0,
            options=options_without(self.description.options, gone),
        )  # fmt: skip

    def seed_of(self, unit: Unit) -> Tensor | None:
        """By which the library draws in the unit's call: by one share at most."""
        inside = drawn_inside(self.description, self.input_size)
        place, row = 2 * unit.layer + unit.direction, 0
        if "input_dropout" in inside:
            place = unit.layer
            inside = inside if self.drops_itself(unit.layer) else ()
        elif "state_dropout" in inside:
            row = self.rows(unit)[0]
        else:
            row = self.first_step * self.batch
        if not inside:
            return None
        seed = masks.for_part(self.dropped.seed, inside[0], place, row)
        return torch.tensor(seed, dtype=torch.uint64)

    def steps_of(self, unit: Unit) -> tuple[Tensor | None, None, Tensor | None]:
        lengths, reset, reset_back = self.ragged
        if lengths is not None:
            lengths = lengths.narrow(0, *self.rows(unit))
        reset = reset if unit.direction == 0 else reset_back
        if reset is not None:
            block = self.groups.block(unit.group)
            reset = self.in_walked_order(unit, self.of_block(reset, block))
        return lengths, None, reset

    # ---- x as the unit reads it

    def in_walked_order(self, unit: Unit, tokens: Tensor) -> Tensor:
        """The last step first where the unit walks against time, and again the way back. Steps that
        are not there stay where they are."""
        if unit.direction == 0:
            return tokens
        axis = 1 - self.batch_axis
        if self.ragged.lengths is None:
            return tokens.flip(axis)
        lengths = self.ragged.lengths.narrow(0, *self.rows(unit))
        step = torch.arange(self.steps, device=tokens.device)
        step, lengths = (step[None], lengths[:, None]) if axis else (step[:, None], lengths[None])
        index = torch.where(step < lengths, lengths - 1 - step, step)
        index = index.reshape(*index.shape, *(1,) * (tokens.dim() - 2)).expand_as(tokens)
        return tokens.gather(axis, index)

    def as_read(self, unit: Unit, source: Tensor) -> Tensor:
        """x of a unit's own call: of a block of its layer's input, or of what is projected."""
        if self.groups.by_units:
            return self.in_walked_order(unit, source.narrow(-1, *self.columns(unit)))
        return self.without_dropped(unit, self.in_walked_order(unit, source))

    def from_read(self, unit: Unit, dx: Tensor) -> Tensor:
        """The cotangent of a block from that of a unit's x."""
        return self.in_walked_order(unit, self.without_dropped(unit, dx))

    def without_dropped(self, unit: Unit, x: Tensor) -> Tensor:
        """x, or its cotangent, without the features that training drops for all steps."""
        share = self.dropped.from_input
        if share == 0 or self.drops_itself(unit.layer):
            return x
        start, count = self.rows(unit)
        ones = torch.ones(count, x.shape[-1], device=x.device, dtype=x.dtype)
        seed = masks.of_input(self.dropped.seed, unit.layer)
        return x * masks.drop_rows(ones, share, seed, start).unsqueeze(1 - self.batch_axis)

    def behind_layer(self, layer: int, block: int, tokens: Tensor) -> Tensor:
        """What a layer hands on to the next one; the same for cotangents."""
        if self.dropped.between == 0:
            return tokens
        seed = masks.behind(self.dropped.seed, layer)
        rows = self.block_rows(block)[0], self.batch
        return masks.drop_tokens(
            tokens, self.dropped.between, seed, self.batch_axis, rows, self.first_step
        )

    # ---- parameters

    def of_layer(self, unit: Unit, params: Sequence[Tensor]) -> list[Tensor]:
        """Those of the unit's layer and direction, of all that the stack has."""
        places = _places(self.description, self.input_size, self.dtype)
        return [params[place] for place in places[unit.layer, unit.direction]]

    def part_of(self, unit: Unit, params: Sequence[Tensor]) -> list[Tensor]:
        """Those of a unit's own hidden units. Their x is projected before: see projection."""
        if not self.groups.by_units:
            return list(params)
        out = [self.own_rows(unit, value).flatten(0, 1) for value in params]
        size = self.columns(unit)[1]
        out[0] = torch.eye(size, device=out[0].device, dtype=out[0].dtype)
        return out

    def columns(self, unit: Unit) -> tuple[int, int]:
        """First and number of a unit's among those of projected x."""
        cell = info(self.description)
        blocks = cell.gates + cell.highway
        start, count = self.units(unit)
        return start * blocks, count * blocks

    def projection(self, layer: int, weight: Tensor) -> Tensor:
        """weight_ih with rows group by group, and in each block by block. Where a step reads x of
        its own unit, another block hands it that."""
        if self.carries_input(layer):
            ones = torch.eye(weight.shape[1], device=weight.device, dtype=weight.dtype)
            weight = torch.cat([weight, ones])
        every = [Unit(layer, 0, group) for group in range(len(self.groups))]
        return torch.cat([self.own_rows(unit, weight).flatten(0, 1) for unit in every])

    def add_projection(self, layer: int, total: Tensor, gradient: Tensor) -> None:
        """What `projection` makes of weight_ih, the way back: to the gradient, in place."""
        for group in range(len(self.groups)):
            unit = Unit(layer, 0, group)
            part = gradient.narrow(0, *self.columns(unit)).unflatten(0, (-1, self.units(unit)[1]))
            own = self.own_rows(unit, total)
            own += part[: len(own)]  # but for what a highway had

    def without_absent(self, tokens: Tensor) -> Tensor:
        """With zeros in place of steps that are not there, whatever stands there."""
        if self.ragged.lengths is None:
            return tokens
        step, lengths = torch.arange(self.steps, device=tokens.device), self.ragged.lengths
        there = step < lengths[:, None] if self.batch_axis == 0 else step[:, None] < lengths
        return torch.where(there[..., None], tokens, 0)

    def own_rows(self, unit: Unit, value: Tensor) -> Tensor:
        """[blocks, n, ...], a view."""
        start, count = self.units(unit)
        return value.unflatten(0, (-1, self.description.hidden_size)).narrow(1, start, count)

    def add_part(self, unit: Unit, total: Tensor, gradient: Tensor) -> None:
        """A unit's part of a parameter's gradient to the whole, in place."""
        if self.groups.by_units:
            total = self.own_rows(unit, total)
            gradient = gradient.view(total.shape)
        total += gradient


@functools.lru_cache(maxsize=256)
def _places(
    description: Description, input_size: int, dtype: torch.dtype
) -> dict[tuple[int, int], list[int]]:
    """Where a stack's parameters have those of a layer and a direction."""
    names = [name for name, _ in description.layer(input_size, short_name(dtype)).parameters()]

    def places(suffix: str) -> list[int]:
        return [place for place, name in enumerate(names) if name.endswith(suffix)]

    return {
        (layer, direction): places(f"_l{layer}" + "_reverse" * direction)
        for layer in range(description.num_layers)
        for direction in range(description.directions)
    }


@functools.lru_cache(maxsize=256)
def drawn_inside(description: Description, input_size: int) -> tuple[str, ...]:
    """The shares by which the library itself has to draw, in a unit's call."""
    told = description.own_options if description.drops else {}
    names = [n for n in ("state_dropout", "zoneout", "zoneout_cell") if told.get(n, 0) > 0]
    sizes = [input_size]
    if description.num_layers > 1:
        sizes += description.output_shape(())
    # A highway beside a dropped input reads x itself, which is not what is projected.
    if told.get("input_dropout", 0) > 0 and info(description).highway:
        names += ["input_dropout"] * (description.hidden_size in sizes)
    return tuple(names)


@functools.lru_cache(maxsize=256)
def may_split_units(
    description: Description, input_size: int, dtype: torch.dtype, groups: Groups
) -> bool:
    """Whether the hidden units of a stack can be worked on part by part: no unit reads another's
    state, and each row of every parameter belongs to one unit."""
    cell = info(description)
    if cell.recurrence == "dense" or cell.square:
        return False
    layer = description.layer(input_size, short_name(dtype))
    if any(name.partition("_l")[0] not in _OF_UNITS for name, _ in layer.parameters()):
        return False
    return not drawn_inside(description, input_size)


def states_of(states: Sequence[Tensor], call: Call, unit: Unit) -> list[Tensor]:
    """Views of the stack's states, each [L*D,B,H]: what a unit begins or ends with, [1,b,n]."""
    row = unit.layer * call.description.directions + unit.direction
    parts = [state[row : row + 1].narrow(1, *call.rows(unit)) for state in states]
    if call.groups.by_units:
        return [part.narrow(2, *call.units(unit)) for part in parts]
    return parts


def message_of(states: Sequence[Tensor]) -> Tensor:
    """One flat tensor of all; of one alone its own memory, where that is contiguous."""
    if len(states) == 1:
        return states[0].reshape(-1)
    return torch.cat([state.reshape(-1) for state in states])


def from_message(message: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    if len(shapes) == 1:
        return [message.view(shapes[0])]
    parts = message.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
