# SPDX-License-Identifier: Apache-2.0
"""What training drops, bit for bit as one device would drop it from the whole sequence.

The library numbers the elements of a tensor, and drops one by a function of seed and number alone
(lib/src/stack/drops.h). A call on a part of the sequence would number its elements from zero, so
the masks are made here, with the numbers of the whole. Integers are those of 64 bits, which wrap
in torch as they do in C++.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_OF_INPUT, _OF_MATRIX = 0x696E707574, 0x6D6174726978
_AT_ONCE = 2**22  # elements: their numbers take 8 bytes each, several times


def _signed(value: int) -> int:
    """The same 64 bits, as torch reads them."""
    value %= _BITS
    return value - _BITS if value >= _BITS // 2 else value


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(_GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _mixed(value: int) -> int:
    return int(_mix(torch.tensor(_signed(value)))) % _BITS


def _unmixed(value: int) -> int:
    """What `_mixed` makes this of."""

    def unshifted(x: int, bits: int) -> int:
        out = x
        for _ in range(64 // bits):
            out = x ^ (out >> bits)
        return out

    value = unshifted(value, 31) * pow(0x94D049BB133111EB, -1, _BITS) % _BITS
    value = unshifted(value, 27) * pow(0xBF58476D1CE4E5B9, -1, _BITS) % _BITS
    return (unshifted(value, 30) - _GOLDEN) % _BITS


# ---- seeds of places


def _of_place(seed: int, place: int) -> int:
    return (seed + place * _GOLDEN) % _BITS


def behind(seed: int, layer: int) -> int:
    """That of what is dropped behind a layer."""
    return _of_place(seed, layer)


def of_input(seed: int, layer: int) -> int:
    """That of what is dropped from what a layer reads."""
    return _of_place(_mixed(seed ^ _OF_INPUT), layer)


def of_matrix(seed: int, layer: int, direction: int) -> int:
    """That of what is dropped from a recurrent matrix."""
    return _of_place(_mixed(seed ^ _OF_MATRIX), 2 * layer + direction)


def for_one_layer(seed: int, layer: int) -> int:
    """The seed by which a stack of one layer drops from its input what this layer of a stack
    does."""
    return _unmixed(of_input(seed, layer)) ^ _OF_INPUT


# ---- masks


def _kept(share: float, seed: int, numbers: Tensor) -> Tensor:
    threshold = int(share * 18446744073709549568.0)
    drawn = _mix(_mix(numbers) ^ _signed(seed))
    top = _signed(_BITS // 2)  # with the sign turned, an unsigned comparison
    return (drawn ^ top) >= _signed(threshold ^ (_BITS // 2))


def _numbers(first: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, device=device)


def drop(value: Tensor, share: float, seed: int, first: int = 0) -> Tensor:
    """A tensor whose elements have the numbers from `first` on; differentiable."""
    kept = _kept(share, seed, _numbers(first, value.numel(), value.device))
    return torch.where(kept.view(value.shape), value * (1 / (1 - share)), 0)


def drop_tokens(
    value: Tensor, share: float, seed: int, batch_axis: int, rows: tuple[int, int], first_step: int
) -> Tensor:
    """A part of a layer's tokens: those of the rows from rows[0] on of a batch of rows[1], and of
    the steps from first_step on."""
    out = torch.empty_like(value)
    source, target = (v.movedim(1 - batch_axis, 0) for v in (value, out))
    steps, count, width = source.shape
    if source.numel() == 0:
        return out
    row = _numbers(rows[0], count, value.device)[:, None]
    column = _numbers(0, width, value.device)
    at_once = max(1, _AT_ONCE // (count * width))
    for begin in range(0, steps, at_once):
        part = source[begin : begin + at_once]
        step = _numbers(first_step + begin, part.shape[0], value.device)[:, None, None]
        kept = _kept(share, seed, (step * rows[1] + row) * width + column)
        target[begin : begin + at_once] = torch.where(kept, part * (1 / (1 - share)), 0)
    return out
