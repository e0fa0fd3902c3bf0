# SPDX-License-Identifier: Apache-2.0
"""How a call is cut into groups that follow one another through the ranks, and into how many.

Groups are rows of the batch. Where the batch is small they are hidden units, of a cell whose units
do not read one another's states: see Groups. docs/many_gpus.md has the arithmetic of `best`, and of
the ways that need no groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .schedule import Shape, idle_slots

LEAST_UNITS = 8  # a part of the hidden units is so many of them, or a multiple


class Groups(NamedTuple):
    """Parts [start, stop) of the rows of a batch or, `by_units`, of the hidden units."""

    by_units: bool
    bounds: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.bounds)

    def rows(self, group: int, batch: int) -> tuple[int, int]:
        """First row and number of rows."""
        return (0, batch) if self.by_units else self._part(group)

    def units(self, group: int, hidden_size: int) -> tuple[int, int]:
        """First hidden unit and number of units."""
        return self._part(group) if self.by_units else (0, hidden_size)

    def _part(self, group: int) -> tuple[int, int]:
        start, stop = self.bounds[group]
        return start, stop - start

    def block(self, group: int) -> int:
        """Blocks are what layers hand on: each group of rows is one, all units are one."""
        return 0 if self.by_units else group

    @property
    def blocks(self) -> int:
        return 1 if self.by_units else len(self)


def cut(size: int, count: int, grain: int = 1, by_units: bool = False) -> Groups:
    """`count` nearly equal parts whose sizes are multiples of `grain`, but perhaps for the last."""
    grains = -(-size // grain)
    ends = [min(size, (i + 1) * grains // count * grain) for i in range(count)]
    return Groups(by_units, tuple(zip([0, *ends[:-1]], ends, strict=True)))


# ---- how many


class Rates(NamedTuple):
    """What a device does in a second, in round numbers: they only have to be of the right order,
    as the best number of groups goes with their square root."""

    products: float  # multiplications and additions of matrices, in float32
    half_products: float  # in a 16-bit type
    memory: float  # bytes
    slot: float  # seconds that a slot takes beside its work: launches, and a message to wait for
    step: Mapping[str, float]  # seconds of a step, however few its rows, by kind of recurrence
    exchange: float  # bytes that a rank sends to others, as many coming at the same time


RATES = {
    "cuda": Rates(5e13, 3e14, 2e12, 5e-5, {"linear": 0.0, "diagonal": 3e-8, "dense": 1.2e-6}, 2e11),
    "cpu": Rates(1e11, 1e11, 2e10, 3e-4, {"linear": 0.0, "diagonal": 1e-8, "dense": 2e-6}, 1e9),
}


class Work(NamedTuple):
    """What a rank has to do, forward alone or in both passes, and how it can be cut."""

    operations: float
    bytes_moved: float
    half: bool
    recurrence: str
    gates: int
    steps: int  # of one unit, one after the other
    passes: int  # 2 with backward
    shape: Shape  # groups are what is looked for
    all_steps: int = 0  # of all ranks
    exchanged: float = 0.0  # bytes of what a rank reads and writes of its steps, in all passes

    def seconds(self, device: str, groups: int, by_units: bool = False) -> float:
        """That it takes: slots, times what each of them takes.

        Hidden units are projected before the pipeline begins, which no rank has to wait for. Then
        they are written and read once more, and a product with the identity brings them in.
        """
        rates = RATES[device]
        products, moved = self._parts(rates)
        before, whole = 0.0, products + moved
        if by_units:
            before, whole = products, 2 * moved + products * self.gates / groups
        units = groups * self.shape.layers * self.shape.directions
        follow = self.steps * rates.step[self.recurrence]
        slots = units + idle_slots(self.shape)
        return before + slots * (whole / units + self.passes * (rates.slot + follow))

    def tail_seconds(self, device: str, length: int) -> float:
        """The same where all ranks work at once, behind tails of so many steps: they are read
        twice, and each layer has a call for them and an exchange that is waited for."""
        rates = RATES[device]
        calls = self.passes * self.shape.layers * (self.shape.directions + 2)
        return sum(self._parts(rates)) * (1 + 2 * length / self.steps) + calls * rates.slot

    def rows_seconds(self, device: str, share: float) -> float:
        """The same where each rank has this share of the rows for the whole time, between two
        exchanges. A step takes what it takes for one row, and its share of what all rows take."""
        rates, ranks = RATES[device], self.shape.ranks
        units = self.shape.layers * self.shape.directions
        follow = units * self.all_steps * rates.step[self.recurrence]
        own = sum(self._parts(rates)) * share * self.all_steps / self.steps if self.steps else 0.0
        sent = self.exchanged * (ranks - 1) / ranks / rates.exchange
        return own + sent + self.passes * (follow + (units + 2) * rates.slot)

    def _parts(self, rates: Rates) -> tuple[float, float]:
        """Seconds of products and of memory."""
        products = self.operations / (rates.half_products if self.half else rates.products)
        return products, self.bytes_moved / rates.memory

    def best(self, device: str, most: int, by_units: bool = False) -> int:
        """The number of groups, from 1 to `most`, by which it takes the least time."""
        counts = {1, max(1, most)} | {n for k in range(12) for n in (2**k, 3 * 2**k) if n <= most}
        return min(sorted(counts), key=lambda count: self.seconds(device, count, by_units))


PAYS = 0.95  # of the pipeline's time, another way
UNITS_PAY = 0.8  # units need more memory than rows do, so that they have to be worth it


def choose(
    work: Work,
    device: str,
    batch: int,
    most_rows: int,
    hidden_size: int,
    may_split: Callable[[Groups], bool],
    wanted: int | None = None,
) -> Groups:
    """Rows, in most_rows groups at most, or units where `may_split` allows it and takes much less
    time; `wanted` many."""
    most_units = max(1, hidden_size // LEAST_UNITS)

    def by_units(count: int) -> Groups | None:
        groups = cut(hidden_size, count, LEAST_UNITS, by_units=True)
        return groups if 1 < count <= most_units and may_split(groups) else None

    if wanted is not None:
        if 1 <= wanted <= most_rows:
            return cut(batch, wanted)
        groups = by_units(wanted)
        if groups is None:
            raise ValueError(
                f"groups: expected 1 to {most_rows} for the rows of this batch, or a number of "
                f"parts of the hidden units, where they can be split, got {wanted}"
            )
        return groups
    if work.shape.ranks == 1:
        return cut(batch, 1)
    rows, units = work.best(device, most_rows), work.best(device, most_units, by_units=True)
    pays = work.seconds(device, units, True) < UNITS_PAY * work.seconds(device, rows)
    return (by_units(units) if pays else None) or cut(batch, rows)
