# SPDX-License-Identifier: Apache-2.0
"""torch's functions as formulas.py and draws.py call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from ..grid import Ways
from ..scan_call import LINEAR, ScanCall
from ..smooth import smooth
from . import scan_op

exp, sqrt, maximum, where = torch.exp, torch.sqrt, torch.maximum, torch.where
sigmoid, logsigmoid, softplus, tanh, relu = gates = smooth(
    where, exp, torch.log1p, torch.sigmoid, torch.tanh
)
# For cells that are walked one step after another in any case: torch's own, as torch.nn has them.
# The others would take three times as long there.
walked = gates._replace(
    sigmoid=torch.sigmoid,
    logsigmoid=torch.nn.functional.logsigmoid,
    tanh=torch.tanh,
    relu=torch.relu,
)
concatenate, stack, zeros_like = torch.cat, torch.stack, torch.zeros_like


def constant(value: Tensor) -> Tensor:
    return value.detach()


def apart(value: Tensor) -> Tensor:
    """Not a view: a walk that is one operator reads no two views of one tensor."""
    return value.clone()


def full(shape: Sequence[int], value: float, like: Tensor) -> Tensor:
    return like.new_full(tuple(shape), value)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype)


def wide(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


def counted(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def as_indices(value: Tensor) -> Tensor:
    return value.to(torch.int64)


def behind(ends: Tensor, numbers: Tensor) -> Tensor:
    """How many of the ends, which rise, are at most each number."""
    return torch.searchsorted(ends.contiguous(), numbers.contiguous(), right=True)


def is_mapped(value: Tensor) -> bool:
    """Whether vmap maps over it, so that it is several."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def longest(lengths: Tensor, most: int) -> int:
    """Where vmap maps over them, and where they have no values, what none is longer than."""
    if is_mapped(lengths) or is_fake(lengths):
        return most
    return int(lengths.max()) if lengths.shape[0] else 0


class _Stack(torch.autograd.Function):
    """torch.stack, whose own second derivative makes a whole of zeros for each of the values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*values: Tensor) -> Tensor:
        return torch.stack(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent.unbind()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return torch.stack(tangents)


def one_by_one(
    step: Callable[..., Any], state: list[Tensor], inputs: Sequence[Tensor], reverse: bool
) -> tuple[list[Tensor], Tensor]:
    """A walk of Ways, whose results have derivatives of any order."""
    steps = inputs[0].shape[0]
    if steps == 0:
        return state, state[0].new_zeros(0, *state[0].shape)
    # All steps are taken apart at once: the derivative of value[t] is as large as the value.
    given = list(zip(*(value.unbind() for value in inputs), strict=True))
    ys = [state[0]] * steps
    for t in range(steps)[:: -1 if reverse else 1]:
        state, ys[t] = step(state, list(given[t]))
    return state, _Stack.apply(*ys)


def scan(
    a: Tensor, b: Tensor, h_0: Tensor | None, reverse: bool, reset: Tensor | None
) -> Tensor:  # fmt: skip
    """A scan of Ways, the library's own."""
    return scan_op.scan(ScanCall(LINEAR, reverse, 0, a, b, None, reset, h_0))[0]


WAYS = Ways(one_by_one, scan)


# ---- numbers of 64 bits without a sign


def signed(bits: int) -> int:
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


class Numbers:
    """They lie in int64, with the same bits."""

    def __init__(self, bits: Tensor) -> None:
        self.bits = bits

    def _of(self, other: Any) -> Any:
        return other.bits if isinstance(other, Numbers) else signed(other)

    def __add__(self, other: Any) -> Numbers:
        return Numbers(self.bits + self._of(other))

    def __mul__(self, other: Any) -> Numbers:
        return Numbers(self.bits * self._of(other))

    def __xor__(self, other: Any) -> Numbers:
        return Numbers(self.bits ^ self._of(other))

    def __rshift__(self, by: int) -> Numbers:
        return Numbers((self.bits >> by) & (2 ** (64 - by) - 1))

    def __lt__(self, other: int) -> Tensor:
        # With the first bit turned, int64 is ordered as numbers without a sign are.
        return (self.bits ^ signed(2**63)) < signed(other ^ 2**63)


def number(seed: int | Tensor) -> Numbers:
    return Numbers(seed if isinstance(seed, Tensor) else torch.tensor(signed(seed)))


def numbers(value: Tensor) -> Numbers:
    return Numbers(value)
