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

    What a reset forgets is taken out before anything is made of it: the derivative of a product
    that is hidden afterwards would be 0 times what may have no end.
    """

    def __init__(self, xp: Any, call: ScanCall, h: Any, sign_h: Any) -> None:
        self.xp, self.call, self.cut = xp, call, (slice(None),) * call.axis
        a, share = self.kept(call.a), None
        decay = a
        if call.form == LOG_OUTPUT:
            # A state that is zero: nothing moves its logarithm.
            dead, zeros = h == -float("inf"), xp.zeros_like(h)

            def part(log: Any) -> Any:
                return xp.where(dead, zeros, xp.exp(xp.where(dead, zeros, log - h)) * sign_h)

            decay = part(a + self.before(h, call.h_0, -float("inf")))
            decay = self.kept(decay * self.before(sign_h, call.sign_h_0, 1.0))
            share = part(call.b)
        elif call.form != LINEAR:
            decay, share = self.kept(xp.exp(a)), xp.exp(call.b)
        if share is not None and call.sign_b is not None:
            share = share * call.sign_b
        self.decay, self.share, self.h = decay, share, h

    def by_a(self, values: Any, conj: Callable[[Any], Any] = lambda value: value) -> Any:
        """`values` times the derivative of a step by a: nothing at a reset, whatever they are."""
        values = self.kept(values)
        if self.call.form == LOG_OUTPUT:
            return values * self.decay
        slope = conj(self.before(self.h, self.call.h_0, 0.0))
        # A term of h: values times the state may be beyond the range where this is not.
        return values * (slope if self.call.form == LINEAR else slope * self.decay)

    def by_b(self, values: Any) -> Any:
        return values if self.share is None else values * self.share

    def shifted(self, values: Any, edge: Any, against: bool) -> Any:
        """A step later, from `edge` on; or earlier, up to it."""
        rest = values[(*self.cut, slice(1, None) if against else slice(0, -1))]
        pair = [rest, edge] if against else [edge, rest]
        return self.xp.concatenate(pair, self.call.axis)

    def before(self, values: Any, start: Any, absent: float) -> Any:
        """The value of the step before each; `absent` at a reset, and where there is no start."""
        first = self.xp.full_like(values[(*self.cut, slice(0, 1))], absent)
        if start is not None:
            first = start[(*self.cut, None)]
        found, reset = self.shifted(values, first, self.call.reverse), self.call.reset
        return found if reset is None else self.xp.where(reset, absent, found)

    def later(self, values: Any) -> Any:
        """The value of the step after each; zero, or no reset, at the end."""
        edge = self.xp.zeros_like(values[(*self.cut, slice(0, 1))])
        return self.shifted(values, edge, not self.call.reverse)

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
    along = LINEAR, call.reverse, call.axis
    return scan(ScanCall(*along, slopes.decay, moved, reset=call.reset, h_0=dh_0))


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
    cuts = None if call.reset is None else slopes.later(call.reset)
    against = LINEAR, not call.reverse, call.axis
    adjoint = scan(ScanCall(*against, slopes.later(back), dh, reset=cuts))
    first = (*slopes.cut, slice(-1, None) if call.reverse else slice(0, 1))
    dh_0 = (back[first] * slopes.kept(adjoint)[first]).sum(call.axis)  # zeros of no steps
    return slopes.by_a(adjoint, conj), slopes.by_b(adjoint), dh_0
