# SPDX-License-Identifier: Apache-2.0
"""Functions of gates whose derivatives of any order keep their digits, by plain operators.

Both libraries' own have slopes by their values, s (1 - s) and 1 - y^2, of which nothing is left
where a gate is open or shut. And JAX loses a function's own rule where lax.scan is differentiated
twice: the slopes at 0 would be those of the maximum and the absolute value that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Function = Callable[..., Any]


class Smooth(NamedTuple):
    sigmoid: Function
    logsigmoid: Function
    softplus: Function
    tanh: Function
    relu: Function


def smooth(where: Function, exp: Function, log1p: Function, tanh: Function) -> Smooth:
    """Those of the library that these are of."""

    def of_exp(x: Any) -> tuple[Any, Any]:
        """Whether x is below 0, and e^-|x|."""
        below = x < 0
        return below, exp(where(below, x, -x))

    def sigmoid(x: Any) -> Any:
        below, e = of_exp(x)
        return where(below, e, 1) / (1 + e)

    def softplus(x: Any) -> Any:
        below = x < 0
        small, large = where(below, x, 0), where(below, 0, x)
        return where(below, log1p(exp(small)), large + log1p(exp(-large)))

    def hyperbolic_tangent(x: Any) -> Any:
        near = (x < 0.5) & (x > -0.5)
        below, e = of_exp(2 * x)
        return where(near, tanh(where(near, x, 0)), where(below, e - 1, 1 - e) / (1 + e))

    return Smooth(
        sigmoid,
        lambda x: -softplus(-x),
        softplus,
        hyperbolic_tangent,
        lambda x: where((x > 0) | (x != x), x, 0),
    )
