# SPDX-License-Identifier: Apache-2.0
"""JAX's functions as formulas.py and draws.py call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..grid import Ways
from ..scan_call import LINEAR, ScanCall
from ..smooth import smooth
from . import scans

exp, sqrt, maximum, where = jnp.exp, jnp.sqrt, jnp.maximum, jnp.where
sigmoid, logsigmoid, softplus, tanh, relu = walked = smooth(
    where, exp, jnp.log1p, lax.logistic, jnp.tanh
)
concatenate, stack, zeros_like, constant = (
    jnp.concatenate, jnp.stack, jnp.zeros_like, lax.stop_gradient,
)  # fmt: skip


def apart(value: Any) -> Any:
    return value


def full(shape: Sequence[int], value: float, like: Any) -> Any:
    return jnp.full(shape, value, like.dtype)


def cast(value: Any, dtype: Any) -> Any:
    return value.astype(dtype)


def wide(value: Any) -> Any:
    return value.astype(jnp.promote_types(value.dtype, "float32"))


def counted(count: int, like: Any) -> Any:
    return jnp.arange(count)


def as_indices(value: Any) -> Any:
    return value


def behind(ends: Any, numbers: Any) -> Any:
    """How many of the ends, which rise, are at most each number."""
    return jnp.searchsorted(ends, numbers, side="right")


def longest(lengths: Any, most: int) -> int:
    """What none is longer than, since lengths may be traced."""
    return most


def scanned(
    step: Callable[..., Any], state: list[Any], inputs: Sequence[Any], reverse: bool
) -> tuple[list[Any], Any]:
    """A walk of Ways."""
    return lax.scan(step, list(state), list(inputs), reverse=reverse)


def scan(a: Any, b: Any, h_0: Any, reverse: bool, reset: Any) -> Any:
    """A scan of Ways, the library's own."""
    return scans.run(ScanCall(LINEAR, reverse, 0, a, b, None, reset, h_0))[0]


WAYS = Ways(scanned, scan)


# ---- numbers of 64 bits without a sign


class Numbers:
    """Two halves of uint32, since JAX has no more unless jax_enable_x64 says so."""

    def __init__(self, high: Any, low: Any) -> None:
        self.high, self.low = high, low

    def __add__(self, other: Any) -> Numbers:
        other = _number(other)
        low = self.low + other.low
        return Numbers(self.high + other.high + (low < other.low).astype(jnp.uint32), low)

    def __mul__(self, other: Any) -> Numbers:
        by = _number(other)
        high, low = _product(self.low, by.low)
        return Numbers(high + self.low * by.high + self.high * by.low, low)

    def __xor__(self, other: Any) -> Numbers:
        other = _number(other)
        return Numbers(self.high ^ other.high, self.low ^ other.low)

    def __rshift__(self, by: int) -> Numbers:
        """By at most 32."""
        if by == 32:
            return Numbers(jnp.zeros_like(self.high), self.high)
        return Numbers(self.high >> by, self.low >> by | self.high << (32 - by))

    def __lt__(self, other: int) -> Any:
        than = _number(other)
        return (self.high < than.high) | (self.high == than.high) & (self.low < than.low)


def _number(value: Any) -> Numbers:
    if isinstance(value, Numbers):
        return value
    return Numbers(jnp.uint32(value >> 32), jnp.uint32(value & 0xFFFFFFFF))


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """The halves of the product of two of uint32."""
    low, a_high, b_high = 0xFFFF, a >> 16, b >> 16
    a, b = a & low, b & low
    least, one, other = a * b, a * b_high, a_high * b
    middle = (least >> 16) + (one & low) + (other & low)
    high = a_high * b_high + (one >> 16) + (other >> 16) + (middle >> 16)
    return high, least & low | middle << 16


def number(seed: Any) -> Numbers:
    """A seed as keys.py has it."""
    return Numbers(seed[1], seed[0])


def numbers(value: Any) -> Numbers:
    """Integers of at least 0."""
    high = value >> 32 if value.dtype.itemsize == 8 else jnp.zeros_like(value)
    return Numbers(high.astype(jnp.uint32), value.astype(jnp.uint32))
