# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence as a custom call of XLA: its own derivative, as often as one likes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core, arguments
from ..adjoint import scan_vjp
from .calls import call, check, check_sizes, kinds_of_device, shape_of, work_memory


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def rows(a: Any, b: Any, sign_b: Any, h_0: Any, log_form: bool, reverse: bool) -> Any:
    """a, b, sign_b [T,N] and h_0 [N]; sign_b and h_0 may be None."""
    steps, width = a.shape
    plans = [
        _core.scan_plan(_core.Device(kind), steps, width, str(a.dtype), log_form, None)
        for kind in kinds_of_device()
    ]
    h, _ = call(
        "scanrnn_scan",
        [
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            work_memory(max(plan.workspace_bytes for plan in plans)),
        ],
        *(value for value in (a, b, sign_b, h_0) if value is not None),
        log_form=np.int64(log_form), reverse=np.int64(reverse),
        signed=np.int64(sign_b is not None), initial=np.int64(h_0 is not None),
    )  # fmt: skip
    return h


def _forward(a: Any, b: Any, sign_b: Any, h_0: Any, log_form: bool, reverse: bool) -> Any:
    h = rows(a, b, sign_b, h_0, log_form, reverse)
    return h, (a, b, sign_b, h_0, h)


def _backward(log_form: bool, reverse: bool, saved: Any, dh: Any) -> Any:
    _, _, sign_b, h_0, _ = saved
    da, db, dh_0 = scan_vjp(jnp, rows, saved, dh, log_form, reverse, h_0 is not None)
    return da, db, None if sign_b is None else jnp.zeros_like(sign_b), dh_0


rows.defvjp(_forward, _backward)


def scan(a: Any, b: Any, h_0: Any = None, reverse: bool = False) -> Any:
    """All states h_t = a_t h_{t-1} + b_t: a, b [T, ...], h_0 [...] or None for zeros -> [T, ...].

    With `reverse` time runs from T-1 down to 0 and h_0 enters at T-1.
    """
    return _scan({"a": a, "b": b}, None, h_0, False, reverse)


def scan_log(
    log_a: Any, log_b: Any, sign_b: Any = None, h_0: Any = None, reverse: bool = False
) -> Any:
    """The same states (not their logarithms) from log a and log |b|; sign_b is +-1, None for +1.

    -inf stands for zero. h_0 is a plain value of any sign.
    """
    return _scan({"log_a": log_a, "log_b": log_b}, sign_b, h_0, True, reverse)


def _scan(operands: dict[str, Any], sign_b: Any, h_0: Any, log_form: bool, reverse: bool) -> Any:
    reverse = arguments.flag("reverse", reverse)
    first, decay = next(iter(operands.items()))
    if getattr(decay, "ndim", 0) == 0:
        raise ValueError(f"{first}: expected at least one axis, time, got {shape_of(decay)}")
    shape, dtype = decay.shape, decay.dtype
    if str(dtype) not in arguments.DTYPES:
        raise TypeError(f"{first}: expected dtype one of {arguments.DTYPES}, got {dtype}")
    check_sizes(first, decay)
    for name, value in operands.items():
        check(name, value, shape, dtype)
    if sign_b is not None:
        check("sign_b", sign_b, shape, dtype)
    if h_0 is not None:
        check("h_0", h_0, shape[1:], dtype)
    if decay.size == 0:
        return decay
    a, b, signs = (
        None if value is None else value.reshape(shape[0], -1)
        for value in (*operands.values(), sign_b)
    )
    h_0 = None if h_0 is None else h_0.reshape(-1)
    return rows(a, b, signs, h_0, log_form, reverse).reshape(shape)
