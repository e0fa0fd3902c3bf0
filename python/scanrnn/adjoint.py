# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the bare recurrence from scans and torch's or JAX's own operators.

What torch and JAX differentiate again, and JAX's tangents: a first derivative in reverse mode is
the library's own call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scan_call import LINEAR, LOG_OUTPUT, ScanCall


class _Slopes:
    """What a step of a scan multiplies with: its state by `decay`, which is 0 at a reset, b by
    `share`, which is None for 1. Where log |h| comes out, these are of derivatives of logarithms.
    """

    def __init__(self, xp: Any, call: ScanCall, h: Any, sign_h: Any) -> None:
        self.xp, self.call, self.cut = xp, call, (slice(None),) * call.axis
        decay, share = call.a, None
        if call.form == LOG_OUTPUT:
            dead = h == -float("inf")  # a state that is zero: nothing moves its logarithm
            scale = xp.where(dead, xp.zeros_like(h), h)
            decay = xp.exp(call.a + self.before(h, call.h_0, -float("inf")) - scale)
            decay = decay * sign_h * self.before(sign_h, call.sign_h_0, 1.0)
            decay = xp.where(dead, xp.zeros_like(h), decay)
            share = xp.where(dead, xp.zeros_like(h), xp.exp(call.b - scale) * sign_h)
        elif call.form != LINEAR:
            decay, share = xp.exp(call.a), xp.exp(call.b)
        if share is not None and call.sign_b is not None:
            share = share * call.sign_b
        self.decay, self.share, self.h = self.kept(decay), share, h

    def by_a(self, values: Any, conj: Callable[[Any], Any] = lambda value: value) -> Any:
        """`values` times the derivative of a step by a: nothing at a reset, whatever they are."""
        if self.call.form == LOG_OUTPUT:
            return values * self.decay
        out = self.kept(values * conj(self.before(self.h, self.call.h_0, 0.0)))
        return out if self.call.form == LINEAR else out * self.decay

    def by_b(self, values: Any) -> Any:
        return values if self.share is None else values * self.share

    def shifted(self, values: Any, edge: Any, against: bool) -> Any:
        """A step later, from `edge` on; or earlier, up to it."""
        rest = values[(*self.cut, slice(1, None) if against else slice(0, -1))]
        pair = [rest, edge] if against else [edge, rest]
        return self.xp.concatenate(pair, self.call.axis)

    def before(self, values: Any, start: Any, absent: float) -> Any:
        first = self.xp.full_like(values[(*self.cut, slice(0, 1))], absent)
        if start is not None:
            first = start[(*self.cut, None)]
        return self.shifted(values, first, self.call.reverse)

    def kept(self, values: Any) -> Any:
        reset = self.call.reset
        return values if reset is None else self.xp.where(reset, self.xp.zeros_like(values), values)


def scan_jvp(
    xp: Any, scan: Callable[[ScanCall], Any], call: ScanCall, h: Any, sign_h: Any,
    da: Any, db: Any, dh_0: Any,
) -> Any:  # fmt: skip
    """dh from (da, db, dh_0), which is a scan, too; dh_0 is None where h_0 is."""
    slopes = _Slopes(xp, call, h, sign_h)
    moved = slopes.by_a(da) + slopes.by_b(db)
    return scan(ScanCall(LINEAR, call.reverse, call.axis, slopes.decay, moved, h_0=dh_0))


def scan_vjp(
    xp: Any, scan: Callable[[ScanCall], Any], call: ScanCall, h: Any, sign_h: Any, dh: Any,
    conj: Callable[[Any], Any] = lambda value: value,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(da, db, dh_0) from dh. `xp` is torch or jax.numpy; torch's complex gradients want `conj`.

    lambda_t = dh_t + conj(a_{t+1}) lambda_{t+1}; da_t = lambda_t conj(h_{t-1}), db_t = lambda_t,
    dh_0 = conj(a_1) lambda_1, and a is 0 at a reset. Where log |h| comes out, the same with
    a_t h_{t-1} / h_t in the place of a_t, since the cotangents are those of logarithms.
    """
    slopes = _Slopes(xp, call, h, sign_h)
    back = conj(slopes.decay)
    edge = xp.zeros_like(back[(*slopes.cut, slice(0, 1))])
    later = slopes.shifted(back, edge, not call.reverse)
    adjoint = scan(ScanCall(LINEAR, not call.reverse, call.axis, later, dh))
    first = (*slopes.cut, -1 if call.reverse else 0)
    return slopes.by_a(adjoint, conj), slopes.by_b(adjoint), back[first] * adjoint[first]
