# SPDX-License-Identifier: Apache-2.0
"""torch's PackedSequence: its tokens lie step by step, those of a layer sequence by sequence.

Nothing here waits for a device: torch keeps batch_sizes, how many sequences have a step, on the
CPU, and what is made of it is made where the tokens are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..arrays.eager import is_eager
from ..ragged import Ragged


class Order(NamedTuple):
    """Indices, by which index_select puts tokens into the other order."""

    cu_seqlens: Tensor
    by_sequence: Tensor
    by_step: Tensor


def order_of(sequences: int, batch_sizes: Tensor, device: torch.device, tokens: int) -> Order:
    """Sequences are in descending order of their lengths, as PackedSequence has them."""
    sizes = batch_sizes.to(device, non_blocking=True)
    steps = torch.arange(sizes.shape[0], device=device)
    step = steps.repeat_interleave(sizes, output_size=tokens)  # of each token, as they came
    token = torch.arange(tokens, device=device)
    sequence = token - (sizes.cumsum(0) - sizes)[step]
    # A sequence has the steps that more sequences have than are before it.
    number = torch.arange(sequences, device=device)
    lengths = sizes.shape[0] - torch.searchsorted(sizes.flip(0), number, right=True)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    by_step = cu_seqlens[sequence] + step
    by_sequence = torch.empty_like(token).scatter_(0, by_step, token)
    return Order(cu_seqlens, by_sequence, by_step)


def run(
    forward: Callable[..., Any], given: PackedSequence, hx: Any, ragged: Ragged | None
) -> tuple[PackedSequence, Any]:
    """`forward` of a module on the sequences; states are in the order of the batch."""
    if ragged is not None:
        name = next(name for name, value in ragged._asdict().items() if value is not None)
        raise ValueError(
            f"{name}: expected None with a PackedSequence, which has lengths of its own"
        )
    data, batch_sizes, sorted_indices, unsorted_indices = given
    eager = is_eager([data, batch_sizes])
    if eager:
        _check(batch_sizes, data.shape[0])
    sequences = int(batch_sizes[0]) if sorted_indices is None else sorted_indices.shape[0]
    order = order_of(sequences, batch_sizes, data.device, data.shape[0])
    y, states = forward(
        data.index_select(0, order.by_sequence),
        _permuted(hx, sorted_indices),
        cu_seqlens=order.cu_seqlens,
        # A compiled function would be one for this number.
        longest=batch_sizes.shape[0] if eager else None,
    )
    y = y.index_select(0, order.by_step)
    packed = PackedSequence(y, batch_sizes, sorted_indices, unsorted_indices)
    return packed, _permuted(states, unsorted_indices)


def _check(batch_sizes: Tensor, tokens: int) -> None:
    """A PackedSequence takes any tensors."""
    name, dtype = "input.batch_sizes", batch_sizes.dtype
    if dtype != torch.int64 or batch_sizes.device.type != "cpu":
        raise TypeError(f"{name}: expected int64 on cpu, got {dtype} on {batch_sizes.device}")
    if batch_sizes.dim() != 1 or not len(batch_sizes):
        got = tuple(batch_sizes.shape)
        raise ValueError(f"{name}: expected a number for each step, got shape {got}")
    sizes = batch_sizes.numpy()
    if (sizes[1:] > sizes[:-1]).any() or sizes[-1] < 1 or sizes.sum() != tokens:
        got = f"{sizes.tolist()}" if len(sizes) <= 10 else f"{sizes.sum()} in all"
        raise ValueError(
            f"{name}: expected numbers that do not rise, none below 1, {tokens} in all as "
            f"input.data has tokens, got {got}"
        )


def _permuted(states: Any, indices: Tensor | None) -> Any:
    """With the batch in another order; what is no state is an error of the module's."""
    if indices is None or states is None:
        return states
    if isinstance(states, (tuple, list)):
        return tuple(_permuted(state, indices) for state in states)
    whole = isinstance(states, Tensor) and states.dim() == 3
    if not whole or states.shape[1] != indices.shape[0]:
        return states
    return states.index_select(1, indices)
