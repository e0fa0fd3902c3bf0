# SPDX-License-Identifier: Apache-2.0
"""What training drops, bit for bit as one device would drop it from the whole sequence.

The library numbers the elements of a tensor, and drops one by a function of seed and number alone.
A call on a part of the sequence would number its elements from zero, so the masks are made here,
with the numbers of the whole. Where the library draws inside a recurrence, seed and number are
added, so that another seed stands for other numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..masks import GOLDEN, SALTS, kept, of_place, salted

_BITS = 2**64
_AT_ONCE = 2**22  # elements: their numbers take 8 bytes each, several times


# ---- seeds of places


def behind(seed: int, layer: int) -> int:
    """That of what is dropped behind a layer."""
    return of_place(seed, layer)


def of_input(seed: int, layer: int) -> int:
    """That of what is dropped from what a layer reads."""
    return of_place(salted(seed, "input_dropout"), layer)


def of_matrix(seed: int, layer: int, direction: int) -> int:
    """That of what is dropped from a recurrent matrix."""
    return of_place(salted(seed, "dropconnect"), 2 * layer + direction)


def for_part(seed: int, name: str, place: int, number: int = 0) -> int:
    """The seed, without a sign, by which a call on one layer draws by this share what a stack with
    `seed` draws at `place`: its layer or, of what has directions, 2 layer + direction.

    The call's first element has this number in the stack's. Its numbers have to go on as the
    stack's do; input_dropout has no others than those from 0 on.
    """
    return _unmixed((of_place(salted(seed, name), place) + number) % _BITS) ^ SALTS[name]


def _unmixed(value: int) -> int:
    """What `mixed` makes this of."""

    def unshifted(x: int, bits: int) -> int:
        out = x
        for _ in range(64 // bits):
            out = x ^ (out >> bits)
        return out

    value = unshifted(value, 31) * pow(0x94D049BB133111EB, -1, _BITS) % _BITS
    value = unshifted(value, 27) * pow(0xBF58476D1CE4E5B9, -1, _BITS) % _BITS
    return (unshifted(value, 30) - GOLDEN) % _BITS


# ---- masks


def drop_rows(rows: Tensor, share: float, seed: int, first: int = 0) -> Tensor:
    """[n,width], the rows from number `first` on; differentiable."""
    numbers = torch.arange(first, first + len(rows), device=rows.device)
    return kept(numbers, rows, share, seed)


def drop_tokens(
    tokens: Tensor, share: float, seed: int, batch_axis: int, rows: tuple[int, int], first_step: int
) -> Tensor:
    """A part of a layer's tokens: those of the rows from rows[0] on of a batch of rows[1], and of
    the steps from first_step on."""
    out = torch.empty_like(tokens)
    source, target = (value.movedim(1 - batch_axis, 0) for value in (tokens, out))
    steps, count, width = source.shape
    if source.numel() == 0:
        return out
    row = torch.arange(rows[0], rows[0] + count, device=tokens.device)
    at_once = max(1, _AT_ONCE // (count * width))
    for begin in range(0, steps, at_once):
        part = source[begin : begin + at_once]
        step = torch.arange(len(part), device=tokens.device)[:, None] + (first_step + begin)
        target[begin : begin + at_once] = kept(step * rows[1] + row, part, share, seed)
    return out
