# SPDX-License-Identifier: Apache-2.0
"""Custom calls of XLA (jax.ffi): their targets, and the memory that they work in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .. import _core
from ..registry import cuda_available

for _name, (_cpu, _cuda) in _core.jax_targets().items():
    jax.ffi.register_ffi_target(_name, _cpu, platform="cpu")
    if cuda_available():
        jax.ffi.register_ffi_target(_name, _cuda, platform="CUDA")


def call(target: str, results: list[jax.ShapeDtypeStruct], *args: Any, **attributes: Any) -> Any:
    # One call after the other under vmap: a mapped parameter has a gradient of its own.
    return jax.ffi.ffi_call(target, results, vmap_method="sequential")(*args, **attributes)


def work_memory(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.uint8)


def kinds_of_device() -> list[str]:
    """One device of each kind that a compiled function may run on."""
    return ["cpu", "cuda"] if cuda_available() else ["cpu"]
