# SPDX-License-Identifier: Apache-2.0
"""Batches of cotangents, as `torch.autograd.grad` has them with `is_grads_batched`.

Its tensors are of an older vmap than torch.func's, which stands in for it here: that one calls what
an operator has for vmap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

is_batched = torch._C._functorch.is_legacy_batchedtensor
_LISTS = (list, tuple)
_LEVELS = 64  # as many as torch has


def of_batches(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient, a function of a context and cotangents, for batches of them, too."""

    @functools.wraps(gradient)
    def wrapped(ctx: Any, *cotangents: Any) -> Any:
        for value in cotangents:  # as fast as can be, since it runs in every backward
            if value is not None and (
                is_batched(value) if type(value) not in _LISTS else _any_batched(value)
            ):
                return by_vmap(functools.partial(gradient, _Read(ctx)), cotangents)
        return gradient(ctx, *cotangents)

    return wrapped


class _Read:
    """A context whose tensors have been read: a checkpoint runs forward again when they are."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _any_batched(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and is_batched(value) for value in values)


def by_vmap(call: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What the call gives, tensors and None, some of them in lists, for each of a batch."""
    values, given = pytree.tree_flatten(args)
    flat: list[Any] = []
    found: Any = None

    def tensors(*values: Any) -> list[Tensor]:
        nonlocal found
        flat[:], found = pytree.tree_flatten(call(*pytree.tree_unflatten(values, given)))
        return [value for value in flat if value is not None]

    mapped = iter(_mapped(tensors, values))
    of_batch = [value if value is None else next(mapped) for value in flat]
    return pytree.tree_unflatten(of_batch, found)


def _mapped(call: Callable[..., list[Tensor]], values: list[Any]) -> list[Tensor]:
    """The same of lists, and for batches of batches."""
    levels: list[int] = []
    for level in range(1, _LEVELS + 1):
        if not _any_batched(values):
            break
        of_level = [isinstance(value, Tensor) and _has(value, level) for value in values]
        if any(of_level):
            levels.append(level)
            call = torch.func.vmap(call, tuple(0 if has else None for has in of_level))
            values = [
                torch._remove_batch_dim(value, level, 1, 0) if has else value
                for value, has in zip(values, of_level, strict=True)
            ]
    out = call(*values)
    for axis, level in zip(range(len(levels))[::-1], levels, strict=True):  # torch wants them so
        out = [torch._add_batch_dim(value, axis, level) for value in out]
    return out


def _has(value: Tensor, level: int) -> bool:
    """A tensor without this level would be expanded. A thread of a backward knows no level."""
    return len({torch._remove_batch_dim(value, level, n, 0).shape[0] for n in (1, 2)}) == 1


# ---- torch.func's vmap


def _unmapped(value: Any, dim: Any, index: int | None) -> Any:
    """What one call gets; without an index zeros, of an axis that has no elements."""
    if isinstance(value, (list, tuple)):
        return [_unmapped(v, d, index) for v, d in zip(value, dim, strict=True)]
    if dim is None or value is None:
        return value
    if index is None:
        return value.new_zeros((*value.shape[:dim], *value.shape[dim + 1 :]))
    return value.select(dim, index)


def call_by_call(operator: Callable[..., Any]) -> Callable[..., Any]:
    """What vmap does of an operator that has no better way: as many calls as there are."""

    def mapped(info: Any, in_dims: Any, *args: Any) -> Any:
        size = info.batch_size
        calls = [
            operator(*(_unmapped(a, d, index) for a, d in zip(args, in_dims, strict=True)))
            for index in (range(size) if size else [None])  # none has the shapes of one
        ]

        def stack(parts: Sequence[Tensor]) -> Tensor:
            return torch.stack(parts) if size else torch.stack(parts)[:0]

        if isinstance(calls[0], Tensor):
            return stack(calls), 0
        stacked = [stack(parts) for parts in zip(*calls, strict=True)]
        dims = [0] * len(stacked)
        return (stacked, dims) if isinstance(calls[0], list) else (tuple(stacked), tuple(dims))

    return mapped
