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
    ranks = range(shape.ranks)
    chains = [(layer, d) for layer in range(shape.layers) for d in range(shape.directions)]
    ways = _ways(shape)
    left = [
        sorted(chains, key=lambda chain: (-ways[chain[0]][chain[1]][rank], chain)) for rank in ranks
    ]
    done = [dict.fromkeys(chains, 0) for _ in ranks]  # groups, which come in their order
    slots: list[Slot] = []
    while any(left):
        slot = tuple(_picked(shape, done, rank, left[rank]) for rank in ranks)
        for rank, unit in enumerate(slot):
            if unit is not None:
                done[rank][unit[:2]] += 1
                if done[rank][unit[:2]] == shape.groups:
                    left[rank].remove(unit[:2])
        slots.append(slot)
    return tuple(slots)


class Turn(NamedTuple):
    """A rank's part of a slot: its work, then messages."""

    unit: Unit | None
    behind: int | None  # the rank that goes on with what comes out
    arriving: tuple[tuple[int, Unit], ...]  # ranks, and of which units they send what came out


@functools.lru_cache(maxsize=256)
def turns_of(shape: Shape, rank: int, back: bool = False) -> tuple[Turn, ...]:
    """A rank's slots, forward or `back`; the two ranks of a message have it in the same one."""
    turns, ranks = [], shape.ranks
    for slot in slots_of(shape)[:: -1 if back else 1]:
        own, peers = slot[rank], [r for r in (rank - 1, rank + 1) if 0 <= r < ranks]
        arriving = tuple(
            (peer, unit)
            for peer in peers
            if (unit := slot[peer]) is not None and following(unit, peer, ranks, back) == rank
        )
        behind = None if own is None else following(own, rank, ranks, back)
        if own is not None or arriving:
            turns.append(Turn(own, behind, arriving))
    return tuple(turns)


Done = list[dict[tuple[int, int], int]]


def _picked(shape: Shape, done: Done, rank: int, left: list[tuple[int, int]]) -> Unit | None:
    """The first that can be worked on; a chain is a layer's direction, and ends with its groups."""
    for layer, direction in left:
        below = [done[rank][layer - 1, d] for d in range(shape.directions) if layer]
        if layer and not any(below):
            return None  # nor has any layer above anything to read
        unit = Unit(layer, direction, done[rank][layer, direction])
        before = following(unit, rank, shape.ranks, back=True)
        came = before is None or done[before][layer, direction] > unit.group
        wanted = shape.groups if shape.mixed else unit.group + 1
        if came and all(count >= wanted for count in below):
            return unit
    return None


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
