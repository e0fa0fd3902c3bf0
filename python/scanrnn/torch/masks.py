# SPDX-License-Identifier: Apache-2.0
"""What training drops, as lib/src/stack/drops.h draws it: a function of the seed and the place.

Numbers are those of 64 bits without a sign there, and of int64 here, with the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..description import Description

GOLDEN = 0x9E3779B97F4A7C15
SALTS = {
    "input_dropout": 0x696E707574,
    "dropconnect": 0x6D6174726978,
    "state_dropout": 0x726561646F7574,
    "zoneout": 0x7374617465,
    "zoneout_cell": 0x63656C6C,
}
_LARGEST = 2.0**64 - 2.0**11  # the last double below 2^64


def signed(bits: int) -> int:
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(value: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (value >> by) & (2 ** (64 - by) - 1)


def mixed(value: Tensor) -> Tensor:
    """The finaliser of splitmix64."""
    value = value + signed(GOLDEN)
    value = (value ^ _shifted(value, 30)) * signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def of_place(seed: int, place: int) -> int:
    return signed(seed + place * GOLDEN)


def salted(seed: int, name: str) -> int:
    """The seed of what is drawn by this share."""
    return int(mixed(torch.tensor(signed(seed ^ SALTS[name]))))


def _places(rows: Tensor, width: int) -> Tensor:
    return rows.unsqueeze(-1) * width + torch.arange(width, device=rows.device)


def _below(numbers: Tensor, share: float) -> Tensor:
    """Which of them are among the share of the smallest."""
    # With the first bit turned, int64 is ordered as numbers without a sign are.
    threshold = signed(int(share * _LARGEST) ^ 2**63)
    return (numbers ^ signed(2**63)) < threshold


def kept(rows: Tensor, like: Tensor, share: float, seed: int) -> Tensor:
    """`like`, of rows with these numbers: a share of its elements is 0, the others are scaled."""
    numbers = mixed(mixed(_places(rows, like.shape[-1])) ^ seed)
    return (like * (1 / (1 - share))).masked_fill(_below(numbers, share), 0)


class Masks:
    """What one call in training drops; a share of 0 leaves everything as it is."""

    def __init__(self, told: Description, seed: int) -> None:
        self._told, self._seed = told, seed

    def _of(self, name: str, place: int) -> int:
        return of_place(salted(self._seed, name), place)

    def _share(self, name: str) -> float:
        return self._told.own_options.get(name, 0.0) if self._told.drops else 0.0

    def behind(self, layer: int, token: Tensor, y: Tensor) -> Tensor:
        """Outputs between layers, each for itself; `token` [T,B] numbers them."""
        share = self._told.dropout if self._told.drops else 0.0
        return kept(token, y, share, of_place(self._seed, layer)) if share else y

    def of_input(self, layer: int, x: Tensor) -> Tensor:
        """What a layer reads, x [T,B,C]: once for all steps of a sequence."""
        share = self._share("input_dropout")
        if not share:
            return x
        sequences = torch.arange(x.shape[1], device=x.device)
        return kept(sequences, x, share, self._of("input_dropout", layer))

    def of_matrix(self, place: int, weight: Tensor) -> Tensor:
        share = self._share("dropconnect")
        if not share:
            return weight
        rows = torch.arange(weight.shape[0], device=weight.device)
        return kept(rows, weight, share, self._of("dropconnect", place))

    # ---- inside a recurrence (lib/src/recurrence/masks.h)

    def moves(self, name: str, place: int, token: Tensor, like: Tensor) -> Tensor | None:
        """[T,B,H] as `like` is: how far the states move that zoneout, or zoneout_cell, is for."""
        share = self._told.own_options.get(name, 0.0)
        if not share:
            return None
        if not self._told.draws:
            return torch.full_like(like, 1 - share)
        seed = self._of(name, place)
        left = _below(mixed(_places(token, like.shape[-1]) + seed), share)
        return torch.ones_like(like).masked_fill(left, 0)

    def of_readout(self, place: int, like: Tensor) -> Tensor | None:
        """[B,H] as `like` is: what a state's part of the output is times."""
        share = self._share("state_dropout")
        if not share:
            return None
        seed = self._of("state_dropout", place)
        sequences = torch.arange(like.shape[0], device=like.device)
        dropped = _below(mixed(_places(sequences, like.shape[-1]) + seed), share)
        return torch.full_like(like, 1 / (1 - share)).masked_fill(dropped, 0)
