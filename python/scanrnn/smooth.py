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


def smooth(where: Function, exp: Function, log1p: Function, s: Function, t: Function) -> Smooth:
    """Made of a library's functions; `s` is its sigmoid and `t` its tanh."""

    def negative(x: Any) -> tuple[Any, Any, Any]:
        """Whether x is below 0, its sign, and -|x|, where 1 - s is close to 1."""
        below = x < 0
        sign = where(below, -1, 1)
        return below, sign, -sign * x

    def sigmoid(x: Any) -> Any:
        below, sign, least = negative(x)
        return where(below, 0, 1) - sign * s(least)

    def softplus(x: Any) -> Any:
        below, _, least = negative(x)
        return where(below, 0, x) + log1p(exp(least))

    def tanh(x: Any) -> Any:
        near = (x < 0.5) & (x > -0.5)
        _, sign, least = negative(x)
        return where(near, t(where(near, x, 0)), sign - 2 * sign * s(2 * least))

    return Smooth(
        sigmoid,
        lambda x: -softplus(-x),
        softplus,
        tanh,
        lambda x: where((x > 0) | (x != x), x, 0),
    )
