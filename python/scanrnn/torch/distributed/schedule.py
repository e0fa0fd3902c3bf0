# SPDX-License-Identifier: Apache-2.0
"""Which rank works on what, and when: a pure function of sizes, the same on every rank.

A unit of work is one group of one direction of one layer. Time goes in slots: in one slot a rank
works on one unit at most. A unit's state leaves at the end of its slot, so that the next rank can
go on with it in any later slot. Backward walks the same slots from the last to the first: what
waits for a unit there is what the unit waited for here.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Unit(NamedTuple):
    layer: int
    direction: int  # 0: time runs with the ranks; 1: against them
    group: int


Slot = tuple[Unit | None, ...]  # by rank


class Shape(NamedTuple):
    """`mixed`: a layer reads every group of the layer below, else its own group alone."""

    ranks: int
    layers: int
    directions: int
    groups: int
    mixed: bool = False


def following(unit: Unit, rank: int, ranks: int, back: bool = False) -> int | None:
    """The rank that goes on with the unit's state, or `back` with its cotangent; None at the
    end."""
    other = rank + (1 if (unit.direction == 0) != back else -1)
    return other if 0 <= other < ranks else None


@functools.lru_cache(maxsize=64)
def slots_of(shape: Shape) -> tuple[Slot, ...]:
    """Each rank, slot by slot, takes the unit with the longest way to the end among those that it
    can work on. In one direction that is one layer after the other, on each rank a slot later."""
    ranks, layers, directions, groups, _ = shape
    ways = _ways(shape)
    units = [
        Unit(layer, direction, group)
        for layer in range(layers)
        for direction in range(directions)
        for group in range(groups)
    ]
    left = [
        sorted(units, key=lambda unit: (-ways[unit.layer][unit.direction][rank], unit))
        for rank in range(ranks)
    ]
    done: list[set[Unit]] = [set() for _ in range(ranks)]
    slots: list[Slot] = []
    while any(left):
        slot = tuple(
            next((unit for unit in left[rank] if _ready(shape, done, rank, unit)), None)
            for rank in range(ranks)
        )
        for rank, unit in enumerate(slot):
            if unit is not None:
                done[rank].add(unit)
                left[rank].remove(unit)
        slots.append(slot)
    return tuple(slots)


def _ready(shape: Shape, done: list[set[Unit]], rank: int, unit: Unit) -> bool:
    before = following(unit, rank, shape.ranks, back=True)
    if before is not None and unit not in done[before]:
        return False
    groups = range(shape.groups) if shape.mixed else (unit.group,)
    return unit.layer == 0 or all(
        Unit(unit.layer - 1, direction, group) in done[rank]
        for direction in range(shape.directions)
        for group in groups
    )


def _ways(shape: Shape) -> list[list[list[int]]]:
    """By layer, direction and rank: slots from such a unit to the end, if no rank had to choose."""
    ranks = shape.ranks
    above, ways = [0] * ranks, []
    for _ in range(shape.layers):
        forwards, backwards = [0] * ranks, [0] * ranks
        for rank in reversed(range(ranks)):
            later = forwards[rank + 1] if rank + 1 < ranks else 0
            forwards[rank] = 1 + max(later, above[rank])
        for rank in range(ranks):
            later = backwards[rank - 1] if rank else 0
            backwards[rank] = 1 + max(later, above[rank])
        layer = [forwards, backwards][: shape.directions]
        above = [max(values) for values in zip(*layer, strict=True)]
        ways.append(layer)
    return ways[::-1]


def idle_slots(shape: Shape) -> int:
    """About how many slots of a pass a rank is idle: its share of the pipeline's bubble."""
    passes = 1 if shape.directions == 1 else shape.layers  # a layer waits for both directions
    return passes * (shape.ranks - 1)
