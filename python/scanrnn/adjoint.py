# SPDX-License-Identifier: Apache-2.0
"""The adjoint of the bare recurrence, for torch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def scan_vjp(
    xp: Any, scan: Callable[..., Any], saved: Any, dh: Any, log_form: bool, reverse: bool,
    want_h_0: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(da, db, dh_0) from dh; `saved` is (a, b, sign_b, h_0, h), `xp` torch or jax.numpy.

    lambda_t = dh_t + a_{t+1} lambda_{t+1}; da_t = lambda_t h_{t-1}, db_t = lambda_t, dh_0 = a_1
    lambda_1: the same recurrence against time, so it can be differentiated again.
    """
    a, b, sign_b, h_0, h = saved
    decay = xp.exp(a) if log_form else a
    nothing = xp.zeros_like(decay[:1])
    first = xp.zeros_like(h[:1]) if h_0 is None else h_0[None]
    later = [nothing, decay[:-1]] if reverse else [decay[1:], nothing]
    before = [h[1:], first] if reverse else [first, h[:-1]]
    adjoint = scan(xp.concatenate(later), dh, None, None, False, not reverse)
    da, db = adjoint * xp.concatenate(before), adjoint
    if log_form:
        da, db = da * decay, db * xp.exp(b) * (1 if sign_b is None else sign_b)
    edge = -1 if reverse else 0
    return da, db, decay[edge] * adjoint[edge] if want_h_0 else None
