# SPDX-License-Identifier: Apache-2.0
"""What training drops, bit for bit as one device would drop it from the whole sequence.

The library numbers the elements of a tensor, and drops one by a function of seed and number alone.
A call on a part of the sequence would number its elements from zero, so the masks are made here,
with the numbers of the whole. Where the library draws inside a recurrence, a seed's lower half is
added to the number of a token, so that another seed stands for other numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...draws import BEHIND, OF, kept, key, of_place, unmixed
from .. import functions as f
from ..functions import Numbers

_AT_ONCE = 2**22  # elements: their numbers take 8 bytes each, several times


# ---- seeds of places


def behind(seed: int, layer: int) -> Numbers:
    """That of what is dropped behind a layer."""
    return of_place(f, seed, BEHIND, layer)


def of_input(seed: int, layer: int) -> Numbers:
    """That of what is dropped from what a layer reads."""
    return of_place(f, seed, OF["input_dropout"], layer)


def of_matrix(seed: int, layer: int, direction: int) -> Numbers:
    """That of what is dropped from a recurrent matrix."""
    return of_place(f, seed, OF["dropconnect"], 2 * layer + direction)


def for_part(seed: int, name: str, place: int, row: int = 0) -> int:
    """The seed, without a sign, by which a call on one layer draws by this share what a stack with
    `seed` draws at `place`: its layer or, of what has directions, 2 layer + direction.

    The call's first token, or for state_dropout its first sequence, has this number in the
    stack's. Its numbers have to go on as the stack's do; input_dropout has no others than those
    from 0 on.
    """
    drawn = int(of_place(f, seed, OF[name], place).bits) % 2**64
    upper, lower = divmod(drawn, 2**32)
    return unmixed(upper * 2**32 + (lower + row) % 2**32) ^ key(OF[name], 0)


# ---- masks


def drop_rows(rows: Tensor, share: float, seed: Numbers, first: int = 0) -> Tensor:
    """[n,width], the rows from number `first` on; differentiable."""
    numbers = torch.arange(first, first + len(rows), device=rows.device)
    return kept(f, numbers, rows, share, seed)


def drop_tokens(
    tokens: Tensor, share: float, seed: Numbers, batch_axis: int, rows: tuple[int, int],
    first_step: int,
) -> Tensor:  # fmt: skip
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
        target[begin : begin + at_once] = kept(f, step * rows[1] + row, part, share, seed)
    return out
