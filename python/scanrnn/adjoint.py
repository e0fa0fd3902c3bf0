# SPDX-License-Identifier: Apache-2.0
"""The adjoint of the bare recurrence from scans and torch's or JAX's own operators.

What torch and JAX differentiate again: a first derivative is the library's own call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scan_call import LINEAR, LOG_OUTPUT, ScanCall


def scan_vjp(
    xp: Any, scan: Callable[[ScanCall], Any], call: ScanCall, h: Any, sign_h: Any, dh: Any,
    conj: Callable[[Any], Any] = lambda value: value,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(da, db, dh_0) from dh. `xp` is torch or jax.numpy; torch's complex gradients want `conj`.

    lambda_t = dh_t + conj(a_{t+1}) lambda_{t+1}; da_t = lambda_t conj(h_{t-1}), db_t = lambda_t,
    dh_0 = conj(a_1) lambda_1, and a is 0 at a reset. Where log |h| comes out, the same with
    a_t h_{t-1} / h_t in the place of a_t, since the cotangents are those of logarithms.
    """
    axis, log_output = call.axis, call.form == LOG_OUTPUT
    cut = (slice(None),) * axis

    def shifted(values: Any, edge: Any, against: bool) -> Any:
        """A step later, from `edge` on; or earlier, up to it."""
        rest = values[(*cut, slice(1, None) if against else slice(0, -1))]
        return xp.concatenate([rest, edge] if against else [edge, rest], axis)

    def before(values: Any, start: Any, absent: float) -> Any:
        first = xp.full_like(values[(*cut, slice(0, 1))], absent)
        if start is not None:
            first = start[(*cut, None)]
        return shifted(values, first, call.reverse)

    def kept(values: Any) -> Any:
        return values if call.reset is None else xp.where(call.reset, xp.zeros_like(values), values)

    decay, share = call.a, None  # share: of b in what comes out
    if log_output:
        dead = h == -float("inf")  # a state that is zero: nothing moves its logarithm
        scale = xp.where(dead, xp.zeros_like(h), h)
        decay = xp.exp(call.a + before(h, call.h_0, -float("inf")) - scale)
        decay = decay * sign_h * before(sign_h, call.sign_h_0, 1.0)
        decay = xp.where(dead, xp.zeros_like(h), decay)
        share = xp.where(dead, xp.zeros_like(h), xp.exp(call.b - scale) * sign_h)
    elif call.form != LINEAR:
        decay, share = xp.exp(call.a), xp.exp(call.b)
    if share is not None and call.sign_b is not None:
        share = share * call.sign_b
    decay = kept(decay)
    back = conj(decay)
    later = shifted(back, xp.zeros_like(back[(*cut, slice(0, 1))]), not call.reverse)
    adjoint = scan(ScanCall(LINEAR, not call.reverse, axis, later, dh))
    if log_output:
        da = adjoint * decay
    else:
        da = kept(adjoint * conj(before(h, call.h_0, 0.0)))
        da = da if call.form == LINEAR else da * decay
    db = adjoint if share is None else adjoint * share
    first = (*cut, -1 if call.reverse else 0)
    return da, db, back[first] * adjoint[first]
