# SPDX-License-Identifier: Apache-2.0
"""What training draws, as lib/src/stack/drops.h does: a function of the seed and the place.

`f` has the functions of one library (see formulas.py), and arithmetic of 64 bits among them.
"""

from __future__ import annotations

from typing import Any

from .description import Description

Array = Any  # of the library

GOLDEN, _FACTORS, _SHIFTS = (
    0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (30, 27, 31),
)  # fmt: skip
_WALK = ((16, 0x7FEB352D), (15, 0x846CA68B))  # of the numbers inside a recurrence
BEHIND = 0x626568696E64  # what is drawn behind a layer, and by each share of a layer's own
OF = {
    "input_dropout": 0x696E707574,
    "dropconnect": 0x6D6174726978,
    "state_dropout": 0x726561646F7574,
    "zoneout": 0x7374617465,
    "zoneout_cell": 0x63656C6C,
}
_LARGEST = 2.0**64 - 2.0**11  # the last double below 2^64


def mixed(numbers: Any) -> Any:
    """The finaliser of splitmix64, of numbers with +, *, ^ and >> of 64 bits without a sign."""
    numbers = numbers + GOLDEN
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers ^ (numbers >> _SHIFTS[-1])


def unmixed(value: int) -> int:
    """What `mixed` makes this number of."""

    def unshifted(x: int, bits: int) -> int:
        out = x
        for _ in range(64 // bits):
            out = x ^ (out >> bits)
        return out

    for shift, factor in zip(_SHIFTS[:0:-1], _FACTORS[::-1], strict=True):
        value = unshifted(value, shift) * pow(factor, -1, 2**64) % 2**64
    return (unshifted(value, _SHIFTS[0]) - GOLDEN) % 2**64


def key(what: int, place: int) -> int:
    """What tells one kind of draw at a layer, or at a layer and direction, from all others."""
    return (what + place * GOLDEN) % 2**64


def of_place(f: Any, seed: Any, what: int, place: int) -> Any:
    """The number that one kind of draw at a place goes by."""
    return mixed(f.number(seed) ^ key(what, place))


def kept(f: Any, rows: Array, like: Array, share: float, of_seed: Any) -> Array:
    """`like`, of rows with these numbers: a share of its elements is 0, the others are scaled."""
    numbers = mixed(mixed(_places(f, rows, like)) ^ of_seed)
    return f.where(numbers < threshold(share), 0, like * (1 / (1 - share)))


def threshold(share: float) -> int:
    return int(share * _LARGEST)


def of_units(f: Any, rows: Array, like: Array, of_seed: Any) -> Any:
    """A number of 32 bits, in the upper half, for each row with these numbers and each unit of
    `like`: UnitNumbers of lib/src/recurrence/masks.h."""
    own = mixed((of_seed >> 32) * 2**32 + f.numbers(f.counted(like.shape[-1], like)))
    token = f.numbers(rows[..., None]) + of_seed
    numbers = ((own >> 32) + token * (own * 2 + 1)) * 2**32
    for shift, factor in _WALK:
        numbers = ((numbers ^ (numbers >> shift)) >> 32) * (factor * 2**32)
    return numbers


def _places(f: Any, rows: Array, like: Array) -> Any:
    width = like.shape[-1]
    return f.numbers(rows[..., None]) * width + f.numbers(f.counted(width, like))


class Masks:
    """What one call in training draws; a share of 0 leaves everything as it is."""

    def __init__(self, f: Any, told: Description, seed: Any) -> None:
        self._f, self._told, self._seed = f, told, seed

    def _of(self, what: int, place: int) -> Any:
        return of_place(self._f, self._seed, what, place)

    def _share(self, name: str) -> float:
        return self._told.own_options.get(name, 0.0) if self._told.drops else 0.0

    def _rows(self, like: Array) -> Array:
        return self._f.counted(like.shape[0], like)

    def behind(self, layer: int, token: Array, y: Array) -> Array:
        """Outputs between layers, each for itself; `token` [T,B] numbers them."""
        share = self._told.dropout if self._told.drops else 0.0
        return kept(self._f, token, y, share, self._of(BEHIND, layer)) if share else y

    def of_input(self, layer: int, row: Array, x: Array) -> Array:
        """What a layer reads, x [T,B,C], of sequences with the numbers `row`, [B] or [T,B]: once
        for all steps of a sequence."""
        share = self._share("input_dropout")
        if not share:
            return x
        return kept(self._f, row, x, share, self._of(OF["input_dropout"], layer))

    def of_matrix(self, place: int, weight: Array) -> Array:
        share = self._share("dropconnect")
        if not share:
            return weight
        return kept(self._f, self._rows(weight), weight, share, self._of(OF["dropconnect"], place))

    # ---- inside a recurrence (lib/src/recurrence/masks.h)

    def moves(self, name: str, place: int, token: Array, like: Array) -> Array | None:
        """[T,B,H] as `like` is: how far the states move that zoneout, or zoneout_cell, is for."""
        share = self._told.own_options.get(name, 0.0)
        if not share:
            return None
        if not self._told.draws:
            return self._f.full(like.shape, 1 - share, like)
        return self._drawn(OF[name], place, token, like, share, 1.0)

    def of_readout(self, place: int, row: Array, like: Array) -> Array | None:
        """[B,H] or [T,B,H], as `row` and `like` are: what a state's part of the output is times."""
        share = self._share("state_dropout")
        if not share:
            return None
        return self._drawn(OF["state_dropout"], place, row, like, share, 1 / (1 - share))

    def _drawn(
        self, what: int, place: int, rows: Array, like: Array, share: float, scale: float
    ) -> Array:
        f = self._f
        numbers = of_units(f, rows, like, self._of(what, place))
        least = threshold(share) >> 32 << 32
        return f.where(numbers < least, 0, f.full(like.shape, scale, like))
