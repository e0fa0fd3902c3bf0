# SPDX-License-Identifier: Apache-2.0
"""JAX's keys as the library's seeds, traced or not: the bits of the key are those of the seed.

A seed is [2] of uint32, the lower half first, since JAX has no 64 bits unless it is told to.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import arguments


def seed_of_number(number: int) -> Any:
    return jnp.asarray(np.array([number & 0xFFFFFFFF, number >> 32], np.uint32))


def seed_of(key: Any) -> Any:
    """`jax.random.key(n)` is the seed n; of a key that has other than 64 bits, 64 are drawn."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and dtype != jnp.uint32:
        got = arguments.type_name(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(f"key: expected one of jax.random.key, got {got}")
    if key.ndim != (0 if typed else 1):
        shape = tuple(key.shape) if typed else tuple(key.shape[:-1])
        raise ValueError(f"key: expected one key, got keys of shape {shape}")
    if not typed:
        try:
            key = jax.random.wrap_key_data(key)
        except TypeError:
            shape = tuple(key.shape)
            raise ValueError(f"key: expected the bits of a key, got shape {shape}") from None
    bits = jax.random.key_data(key)
    if bits.shape != (2,):
        bits = jax.random.bits(key, (2,), "uint32")
    return bits[::-1]
