# SPDX-License-Identifier: Apache-2.0
"""Which steps of a batch there are, and where its states lie: checked for all libraries alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .arguments import Array, count

# How a batch lies in memory, as plans know it.
RECTANGULAR, RAGGED, PACKED = "rectangular", "ragged", "packed"


class Ragged(NamedTuple):
    """Arrays of one library. An absent one leaves everything as it is in a rectangular batch."""

    lengths: Any = None  # [B] of integers: steps from there on do not exist
    cu_seqlens: Any = None  # [N+1] of integers: where sequences begin and end in x [tokens,C]
    reset: Any = None  # bools, shaped as x without its last axis: no state comes into this step
    state_indices: Any = None  # [B] of integers: rows of a pool of states, -1 for none; step alone

    @property
    def layout(self) -> str:
        return RAGGED if self.cu_seqlens is None else PACKED


class Operands(Protocol):
    """What checks need of an array library. Arrays may also be NumPy's, on the host."""

    def integers(self, name: str, value: Any) -> Any:
        """`value` if it holds integers, where the library's arrays are."""

    def bools(self, name: str, value: Any) -> Any:
        """The same of bools."""

    def to_check(self, name: str, value: Any) -> Array | None:
        """Integers that are on the host and go to a device, where nobody looks at their values.

        None of all others: on the CPU the core looks, and of a device's own nobody asks.
        """


def of_sequence(lengths: Any, cu_seqlens: Any, reset: Any) -> Ragged | None:
    """What a call on whole sequences was given; None for a rectangular batch."""
    if lengths is None and cu_seqlens is None and reset is None:
        return None
    if lengths is not None and cu_seqlens is not None:
        raise ValueError(
            "lengths: expected None beside cu_seqlens, which says how long each sequence is"
        )
    return Ragged(lengths, cu_seqlens, reset)


def longest_told(longest: int | None, cu_seqlens: Any, x: Any) -> int:
    """The most steps that a packed sequence has, 0 where nobody says or there are no tokens."""
    if longest is None:
        return 0
    if cu_seqlens is None:
        raise ValueError(f"longest: expected None without cu_seqlens, got {longest!r}")
    most, shape = count("longest", longest), np.shape(x)
    if most == 0 and len(shape) == 2 and shape[0] != 0:  # x of another rank has its own error
        raise ValueError(f"longest: expected at least 1 where there are tokens, got {longest!r}")
    return most


def checked(
    library: Operands, told: Ragged, shape: Sequence[Any], batch_axis: int, longest: int = 0
) -> Ragged:
    """With arrays of the library. `shape` is that of x as it came in, which may be one sequence;
    no packed one has more than `longest` steps, where that is not 0."""
    lengths, cu_seqlens, reset, state_indices = told
    if lengths is not None:
        if len(shape) == 2:
            raise ValueError(
                "lengths: expected None for one sequence, whose length is that of x: pass a part "
                "of x, or give it an axis of batch"
            )
        lengths = _integers(library, "lengths", lengths, shape[batch_axis])
        values = library.to_check("lengths", told.lengths)
        if values is not None:
            _check_values("lengths", values, 0, shape[1 - batch_axis])
    if cu_seqlens is not None:
        cu_seqlens = library.integers("cu_seqlens", cu_seqlens)
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(
                "cu_seqlens: expected shape (N + 1,) for N sequences, got "
                f"{tuple(cu_seqlens.shape)}"
            )
        ends = library.to_check("cu_seqlens", told.cu_seqlens)
        if ends is not None:
            _check_ends(ends, shape[0], longest)
        if longest > shape[0]:
            raise ValueError(
                f"longest: expected at most the number of tokens, {shape[0]}, got {longest}"
            )
    if reset is not None:
        reset, wanted = library.bools("reset", reset), tuple(shape[:-1])
        if tuple(reset.shape) != wanted:
            raise ValueError(
                f"reset: expected shape {wanted}, that of x without its last axis, got "
                f"{tuple(reset.shape)}"
            )
    if state_indices is not None:
        if len(shape) == 1:
            raise ValueError(
                "state_indices: expected None for one sequence: pass its own state, or give x_t "
                "an axis of batch"
            )
        state_indices = _integers(library, "state_indices", state_indices, shape[0])
    return Ragged(lengths, cu_seqlens, reset, state_indices)


def check_rows(library: Operands, state_indices: Any, states: int) -> None:
    """The values of state_indices, as `checked` those of the others, once the pool's size is
    known."""
    rows = library.to_check("state_indices", state_indices)
    if rows is None:
        return
    _check_values("state_indices", rows, -1, states - 1)
    again = rows >= 0
    again[np.unique(rows, return_index=True)[1]] = False  # the first of each
    if again.any():
        at = int(again.argmax())
        raise ValueError(f"state_indices: expected each state once, got {rows[at]} again at {at}")


# Values are checked in the words of the core, which checks those on the CPU (ragged_check.cpp).
def _check_values(name: str, values: Array, least: Any, most: int) -> None:
    wrong = (values < least) | (values > most)
    if wrong.any():
        at = int(wrong.argmax())
        low = np.broadcast_to(least, values.shape)[at]
        raise ValueError(f"{name}: expected integers in [{low}, {most}], got {values[at]} at {at}")


def _check_ends(ends: Array, tokens: int, longest: int) -> None:
    _check_values("cu_seqlens", ends, np.concatenate([[0], ends[:-1]]), tokens)
    if ends[0] != 0 or ends[-1] != tokens:
        raise ValueError(
            f"cu_seqlens: expected 0 at first and the number of tokens, {tokens}, at last, got "
            f"{ends[0]} and {ends[-1]}"
        )
    steps = np.diff(ends)
    if longest and (steps > longest).any():
        at = int((steps > longest).argmax())
        raise ValueError(
            f"longest: expected at least {steps[at]}, the steps of sequence {at}, got {longest}"
        )


def _integers(library: Operands, name: str, value: Any, batch: Any) -> Any:
    value = library.integers(name, value)
    if tuple(value.shape) != (batch,):
        raise ValueError(f"{name}: expected shape {(batch,)} = (batch,), got {tuple(value.shape)}")
    return value
