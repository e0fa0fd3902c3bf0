# SPDX-License-Identifier: Apache-2.0
"""Plain NumPy, for comparison: one GEMM for all steps, then a Python loop over them.

Written as one would without this library, and no slower than that: nothing is computed inside the
loop that can be computed outside it. Default variants, one direction, [T,B,C].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .arguments import Array


def sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _positive(v: Array) -> tuple[Array, Array]:
    """g(v) and its slope."""
    s = sigmoid(v)
    return np.where(v >= 0, v + 0.5, s), np.where(v >= 0, 1, s * (1 - s))


# A cell: pre-activations [T,B,G*H] -> (a, b, vjp); vjp(da, db) gives the cotangents of each gate's.


def _mingru(pre: Array) -> tuple[Any, ...]:
    k, v = np.split(pre, 2, axis=-1)
    z = sigmoid(k)
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [(db * g - da) * z * (1 - z), db * z * slope]

    return 1 - z, z * g, vjp


def _minlstm(pre: Array) -> tuple[Any, ...]:
    p, q, v = np.split(pre, 3, axis=-1)
    f, i = sigmoid(p), sigmoid(q)
    forget = f / (f + i)
    keep = 1 - forget
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        du = (da - db * g) * forget * keep
        return [du * (1 - f), -du * (1 - i), db * keep * slope]

    return forget, keep * g, vjp


def _sru(pre: Array) -> tuple[Any, ...]:
    u, p, q = np.split(pre, 3, axis=-1)
    f = sigmoid(p)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [db * (1 - f), (da - db * u) * f * (1 - f), np.zeros_like(q)]

    return f, (1 - f) * u, vjp


CELLS: dict[str, Callable[[Array], tuple[Any, ...]]] = {
    "MinGRU": _mingru,
    "MinLSTM": _minlstm,
    "SRU": _sru,
}


def _bias(cell: str, bias: Array, hidden: int) -> Array:
    return np.concatenate([np.zeros(hidden, bias.dtype), bias]) if cell == "SRU" else bias


def layer_vjp(
    cell: str, weight: Array, bias: Array, x: Array, h_0: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, Array, Array, Array]]]:
    """One layer: (y, h_n, pullback); pullback(dy, dh_n) -> (dx, dh_0, dweight, dbias)."""
    hidden = h_0.shape[-1]
    pre = x @ weight.T + _bias(cell, bias, hidden)
    a, b, lift_vjp = CELLS[cell](pre)
    states = np.empty_like(b)
    h = h_0
    for t in range(len(x)):
        np.multiply(a[t], h, out=states[t])
        states[t] += b[t]
        h = states[t]
    y = states
    if cell == "SRU":
        r = sigmoid(pre[..., 2 * hidden :])
        y = r * states + (1 - r) * x

    def pullback(dy: Array, dh_n: Array | None = None) -> tuple[Array, Array, Array, Array]:
        dstates = r * dy if cell == "SRU" else dy
        db = np.empty_like(b)
        carry = np.zeros_like(h_0) if dh_n is None else dh_n
        for t in reversed(range(len(x))):
            np.add(dstates[t], carry, out=db[t])
            carry = a[t] * db[t]
        before = np.concatenate([h_0[None], states[:-1]])
        dpre = lift_vjp(db * before, db)
        if cell == "SRU":
            dpre[2] = dy * (states - x) * r * (1 - r)
        flat = np.concatenate(dpre, axis=-1)
        dx = flat @ weight
        if cell == "SRU":
            dx += dy * (1 - r)
        tokens = flat.reshape(-1, flat.shape[-1])
        dbias = tokens.sum(axis=0)[-len(bias) :]
        return dx, carry, tokens.T @ x.reshape(-1, x.shape[-1]), dbias

    return y, h, pullback


class Stack:
    """Layers on top of each other, called as scanrnn's are."""

    def __init__(self, cell: str, state_dict: Mapping[str, Array]) -> None:
        self.cell, self.params = cell, dict(state_dict)
        self.layers = sum(name.startswith("weight_ih") for name in self.params)

    def load_state_dict(self, state_dict: Mapping[str, Array]) -> None:
        self.params = dict(state_dict)

    def vjp(self, x: Array, h_0: Array) -> tuple[tuple[Array, Array], Callable[..., Any]]:
        finals, pullbacks = [], []
        for index in range(self.layers):
            weight, bias = self.params[f"weight_ih_l{index}"], self.params[f"bias_ih_l{index}"]
            x, final, back = layer_vjp(self.cell, weight, bias, x, h_0[index])
            finals.append(final)
            pullbacks.append(back)

        def pullback(dy: Array) -> tuple[Array, Array, dict[str, Array]]:
            dh_0 = np.empty_like(h_0)
            dparams: dict[str, Array] = {}
            for index in reversed(range(self.layers)):
                dy, dh_0[index], dweight, dbias = pullbacks[index](dy)
                dparams |= {f"weight_ih_l{index}": dweight, f"bias_ih_l{index}": dbias}
            return dy, dh_0, dparams

        return (x, np.stack(finals)), pullback
