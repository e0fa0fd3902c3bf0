# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence h_t = a_t h_{t-1} + b_t over axis 0, without a cell."""

from __future__ import annotations

import math
from typing import Any

from . import _core, arguments, profile
from .arguments import Array
from .arrays import library_for


def scan(
    a: Array,
    b: Array,
    h_0: Array | None = None,
    reverse: bool = False,
    *,
    device: str | None = None,
) -> Array:
    """All states h_t = a_t h_{t-1} + b_t: a, b [T, ...], h_0 [...] or None for zeros -> [T, ...].

    With `reverse` time runs from T-1 down to 0 and h_0 enters at T-1. `device` None is where the
    arrays are, which for NumPy's is the CPU; with "cuda" they are copied there and back.
    """
    return _scan({"a": a, "b": b}, h_0, device, log_form=False, reverse=reverse)


def scan_log(
    log_a: Array,
    log_b: Array,
    sign_b: Array | None = None,
    h_0: Array | None = None,
    reverse: bool = False,
    *,
    device: str | None = None,
) -> Array:
    """The same states (not their logarithms) from log a and log |b|; sign_b is +-1, None for +1.

    -inf stands for zero. h_0 is a plain value of any sign.
    """
    operands = {"log_a": log_a, "log_b": log_b}
    if sign_b is not None:
        operands["sign_b"] = sign_b
    return _scan(operands, h_0, device, log_form=True, reverse=reverse)


def _scan(
    operands: dict[str, Any], h_0: Any, device: str | None, log_form: bool, reverse: bool
) -> Any:
    reverse = arguments.flag("reverse", reverse)
    profile.load_users()
    where = None if device is None else str(_core.Device(arguments.text("device", device)))
    first, decay = next(iter(operands.items()))
    library = library_for(first, decay)
    decay = library.array(first, decay, None)
    if decay.ndim == 0:
        raise ValueError(f"{first}: expected at least one axis, time, got shape ()")
    shape = tuple(decay.shape)
    steps, rows = shape[0], math.prod(shape[1:])

    def flat(name: str, value: Any, wanted: tuple[int, ...], flat_shape: tuple[int, ...]) -> Any:
        value = library.array(name, value, decay.dtype)
        if tuple(value.shape) != wanted:
            raise ValueError(
                f"{name}: expected shape {wanted} to go with {first}, got {tuple(value.shape)}"
            )
        return library.array(name, value.reshape(flat_shape), decay.dtype)

    flattened = [flat(name, value, shape, (steps, rows)) for name, value in operands.items()]
    start = None if h_0 is None else flat("h_0", h_0, shape[1:], (rows,))
    library = library.for_scan(where)
    return library.scan(flattened, start, (steps, rows), log_form, reverse).reshape(shape)
