# SPDX-License-Identifier: Apache-2.0
"""Which steps of a batch there are, and where its states lie: checked for all libraries alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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


def of_sequence(lengths: Any, cu_seqlens: Any, reset: Any) -> Ragged | None:
    """What a call on whole sequences was given; None for a rectangular batch."""
    if lengths is None and cu_seqlens is None and reset is None:
        return None
    if lengths is not None and cu_seqlens is not None:
        raise ValueError(
            "lengths: expected None beside cu_seqlens, which says how long each sequence is"
        )
    return Ragged(lengths, cu_seqlens, reset)


def checked(library: Operands, told: Ragged, shape: Sequence[Any], batch_axis: int) -> Ragged:
    """With arrays of the library. `shape` is that of x as it came in, which may be one sequence."""
    lengths, cu_seqlens, reset, state_indices = told
    if lengths is not None:
        if len(shape) == 2:
            raise ValueError(
                "lengths: expected None for one sequence, whose length is that of x: pass a part "
                "of x, or give it an axis of batch"
            )
        lengths = _integers(library, "lengths", lengths, shape[batch_axis])
    if cu_seqlens is not None:
        cu_seqlens = library.integers("cu_seqlens", cu_seqlens)
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(
                "cu_seqlens: expected shape (N + 1,) for N sequences, got "
                f"{tuple(cu_seqlens.shape)}"
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


def _integers(library: Operands, name: str, value: Any, batch: Any) -> Any:
    value = library.integers(name, value)
    if tuple(value.shape) != (batch,):
        raise ValueError(f"{name}: expected shape {(batch,)} = (batch,), got {tuple(value.shape)}")
    return value
