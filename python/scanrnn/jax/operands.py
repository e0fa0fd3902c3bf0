# SPDX-License-Identifier: Apache-2.0
"""The arrays of a call, checked, of layers and of bare scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import arguments
from ..arguments import Array
from ..scan_call import checks_devices


def shape_of(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return arguments.type_name(value)


def check(name: str, value: Any, shape: tuple[int, ...], dtype: Any, axes: str = "") -> None:
    """Raises unless `value` has this dtype and this shape, whose axes may be named."""
    if not hasattr(value, "shape") or tuple(value.shape) != tuple(shape):
        named = f" = {axes}" if axes else ""
        raise ValueError(f"{name}: expected shape {tuple(shape)}{named}, got {shape_of(value)}")
    arguments.refuse_mask(name, value)
    if value.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, got {value.dtype}; nothing is cast")


def check_sizes(name: str, value: Any) -> None:
    """Raises where jit does not know them: memory for work is sized when a function is traced."""
    if not all(isinstance(size, int) for size in value.shape):
        raise TypeError(
            f"{name}: expected sizes that are known when a function is traced, got "
            f"{shape_of(value)}"
        )


class Operands:
    """The arrays of a call, or what stands for them in a function that is traced."""

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        if not hasattr(value, "shape"):
            raise ValueError(f"{name}: expected an array, got {shape_of(value)}")
        arguments.refuse_mask(name, value)
        arguments.check_dtype(name, arguments.dtype_name(value), dtypes)
        check_sizes(name, value)
        return value

    def bools(self, name: str, value: Any) -> Any:
        return jnp.asarray(self.operand(name, value, ("bool",)))

    def integers(self, name: str, value: Any) -> Any:
        if type(value) is np.ndarray:
            return jnp.asarray(arguments.integers(name, value))
        return self.operand(name, value, arguments.INTEGERS)

    def to_check(self, name: str, value: Any) -> Array | None:
        # Whatever the device: JAX narrows integers to 32 bits, and a compiled function's errors
        # are no ValueError.
        if type(value) is not np.ndarray:
            return None
        values: Array = arguments.integers(name, value)
        return values

    def signs(self, value: Any) -> Array | None:
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
            return None
        on_host = all(device.platform == "cpu" for device in value.devices())
        looks = value.is_fully_addressable and (on_host or checks_devices())
        return np.asarray(value) if looks else None
