# SPDX-License-Identifier: Apache-2.0
"""Plain NumPy, for comparison: one GEMM for all steps, then a Python loop over them.

Written as one would without this library, and no slower than that: nothing is computed inside the
loop that can be computed outside it. Default variants, one direction, [T,B,C].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import Array


def sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def product(x: Array, matrix: Array) -> Array:
    """One GEMM. NumPy would make one of each step, were x to keep its three axes."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[1])


def _positive(v: Array) -> tuple[Array, Callable[[], Array]]:
    """g(v), and its slope for who asks."""
    s = sigmoid(v)
    return np.where(v >= 0, v + 0.5, s), lambda: np.where(v >= 0, 1, s * (1 - s))


# A cell: pre-activations [T,B,G*H] -> (a, b, vjp); vjp(da, db) gives the cotangents of each gate's.


def _mingru(pre: Array) -> tuple[Any, ...]:
    k, v = np.split(pre, 2, axis=-1)
    z = sigmoid(k)
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [(db * g - da) * z * (1 - z), db * z * slope()]

    return 1 - z, z * g, vjp


def _minlstm(pre: Array) -> tuple[Any, ...]:
    p, q, v = np.split(pre, 3, axis=-1)
    f, i = sigmoid(p), sigmoid(q)
    forget = f / (f + i)
    keep = 1 - forget
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        du = (da - db * g) * forget * keep
        return [du * (1 - f), -du * (1 - i), db * keep * slope()]

    return forget, keep * g, vjp


def _sru(pre: Array) -> tuple[Any, ...]:
    u, p, q = np.split(pre, 3, axis=-1)
    f = sigmoid(p)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [db * (1 - f), (da - db * u) * f * (1 - f), np.zeros_like(q)]

    return f, (1 - f) * u, vjp


def _qrnn(pre: Array) -> tuple[Any, ...]:
    v, p, q = np.split(pre, 3, axis=-1)
    f, z = sigmoid(p), np.tanh(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [db * (1 - f) * (1 - z * z), (da - db * z) * f * (1 - f), np.zeros_like(q)]

    return f, (1 - f) * z, vjp


CELLS: dict[str, Callable[[Array], tuple[Any, ...]]] = {
    "MinGRU": _mingru,
    "MinLSTM": _minlstm,
    "SRU": _sru,
    "QRNN": _qrnn,
}

# An output that is not the state: from the last gate's pre-activations, states and x -> (y, vjp);
# vjp(dy) gives the cotangents of those three.


def _sru_output(q: Array, states: Array, x: Array) -> tuple[Any, ...]:
    r = sigmoid(q)

    def vjp(dy: Array) -> tuple[Array, Array, Array]:
        return dy * (states - x) * r * (1 - r), dy * r, dy * (1 - r)

    return r * states + (1 - r) * x, vjp


def _qrnn_output(q: Array, states: Array, x: Array) -> tuple[Any, ...]:
    o = sigmoid(q)

    def vjp(dy: Array) -> tuple[Array, Array, float]:
        return dy * states * o * (1 - o), dy * o, 0.0

    return o * states, vjp


OUTPUTS: dict[str, Callable[..., tuple[Any, ...]]] = {"SRU": _sru_output, "QRNN": _qrnn_output}


def _bias(cell: str, bias: Array, hidden: int) -> Array:
    return np.concatenate([np.zeros(hidden, bias.dtype), bias]) if cell == "SRU" else bias


def layer_vjp(
    cell: str, weight: Array, bias: Array, x: Array, h_0: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, Array, Array, Array]]]:
    """One layer: (y, h_n, pullback); pullback(dy, dh_n) -> (dx, dh_0, dweight, dbias)."""
    hidden = h_0.shape[-1]
    pre = product(x, weight.T) + _bias(cell, bias, hidden)
    a, b, lift_vjp = CELLS[cell](pre)
    states = np.empty_like(b)
    h = h_0
    for a_t, b_t, after in zip(a, b, states, strict=True):
        np.multiply(a_t, h, out=after)
        after += b_t
        h = after
    y = states
    if cell in OUTPUTS:
        y, output_vjp = OUTPUTS[cell](pre[..., -hidden:], states, x)

    def pullback(dy: Array, dh_n: Array | None = None) -> tuple[Array, Array, Array, Array]:
        dstates = dy
        if cell in OUTPUTS:
            dlast, dstates, dskip = output_vjp(dy)
        db = np.empty_like(b)
        carry = np.zeros_like(h_0) if dh_n is None else dh_n
        for a_t, dstate, db_t in zip(a[::-1], dstates[::-1], db[::-1], strict=True):
            np.add(dstate, carry, out=db_t)
            carry = a_t * db_t
        before = np.concatenate([h_0[None], states[:-1]])
        dpre = lift_vjp(db * before, db)
        if cell in OUTPUTS:
            dpre[-1] = dlast
        flat = np.concatenate(dpre, axis=-1)
        dx = product(flat, weight)
        if cell in OUTPUTS:
            dx += dskip
        tokens = flat.reshape(-1, flat.shape[-1])
        dbias = tokens.sum(axis=0)[-len(bias) :]
        return dx, carry, tokens.T @ x.reshape(-1, x.shape[-1]), dbias

    return y, h, pullback


# A dense cell: one step from (W x + b_ih)_t, R h + b_hh, h and c -> (h, c, vjp); vjp(dh, dc) gives
# the cotangents of those four, that of h without what comes back through R.


def _rnn(u: Array, m: Array, h: Array, c: Array) -> tuple[Any, ...]:
    after = np.tanh(u + m)

    def vjp(dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
        dv = dh * (1 - after * after)
        return dv, dv, np.zeros_like(dh), dc

    return after, c, vjp


def _lstm(u: Array, m: Array, h: Array, c: Array) -> tuple[Any, ...]:
    p, q, v, s = np.split(u + m, 4, axis=-1)
    i, f, g, o = sigmoid(p), sigmoid(q), np.tanh(v), sigmoid(s)
    after = f * c + i * g
    squashed = np.tanh(after)

    def vjp(dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
        dc = dc + dh * o * (1 - squashed * squashed)
        parts = [dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g)]
        du = np.concatenate([*parts, dh * squashed * o * (1 - o)], axis=-1)
        return du, du, np.zeros_like(dh), dc * f

    return o * squashed, after, vjp


def _gru(u: Array, m: Array, h: Array, c: Array) -> tuple[Any, ...]:
    hidden = h.shape[-1]
    r, z = np.split(sigmoid((u + m)[..., : 2 * hidden]), 2, axis=-1)
    candidate = m[..., 2 * hidden :]
    n = np.tanh(u[..., 2 * hidden :] + r * candidate)

    def vjp(dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
        dn = dh * (1 - z) * (1 - n * n)
        gates = [dn * candidate * r * (1 - r), dh * (h - n) * z * (1 - z)]
        return np.concatenate([*gates, dn], axis=-1), np.concatenate(
            [*gates, dn * r], axis=-1
        ), dh * z, dc  # fmt: skip

    return (1 - z) * n + z * h, c, vjp


DENSE: dict[str, Callable[..., tuple[Any, ...]]] = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}


def dense_vjp(
    cell: str, params: Sequence[Array], x: Array, h_0: Array, c_0: Array
) -> tuple[Array, Array, Array, Callable[..., tuple[Any, ...]]]:
    """One layer: (y, h_n, c_n, pullback); params are weights ih and hh, then biases ih and hh.

    pullback(dy) -> (dx, dh_0, dc_0, dparams).
    """
    weight, recurrent, bias, recurrent_bias = params
    u = product(x, weight.T) + bias
    y, h, c, backs = np.empty((*x.shape[:2], h_0.shape[-1]), x.dtype), h_0, c_0, []
    for t in range(len(x)):
        h, c, back = DENSE[cell](u[t], h @ recurrent.T + recurrent_bias, h, c)
        backs.append(back)
        y[t] = h

    def pullback(dy: Array) -> tuple[Any, ...]:
        du, dm = np.empty_like(u), np.empty_like(u)
        dh, dc = np.zeros_like(h_0), np.zeros_like(c_0)
        for t in reversed(range(len(x))):
            du[t], dm[t], dh, dc = backs[t](dh + dy[t], dc)
            dh = dh + dm[t] @ recurrent
        before = np.concatenate([h_0[None], y[:-1]]).reshape(-1, h_0.shape[-1])
        flat_u, flat_m = (d.reshape(-1, d.shape[-1]) for d in (du, dm))
        dweights = flat_u.T @ x.reshape(-1, x.shape[-1]), flat_m.T @ before
        return product(du, weight), dh, dc, (*dweights, flat_u.sum(axis=0), flat_m.sum(axis=0))

    return y, h, c, pullback


class Stack:
    """Layers on top of each other, called as scanrnn's are; a pair (h_0, c_0) begins at zero."""

    def __init__(self, cell: str, state_dict: Mapping[str, Array]) -> None:
        self.cell, self.params = cell, dict(state_dict)
        self.layers = sum(name.startswith("weight_ih") for name in self.params)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.kinds = kinds if cell in DENSE else kinds[::2]

    def load_state_dict(self, state_dict: Mapping[str, Array]) -> None:
        self.params = dict(state_dict)

    def vjp(self, x: Array, h_0: Array) -> tuple[tuple[Array, Array], Callable[..., Any]]:
        finals, pullbacks = [], []
        for index in range(self.layers):
            own = [self.params[f"{kind}_l{index}"] for kind in self.kinds]
            x, final, back = self._layer(own, x, h_0[index])
            finals.append(final)
            pullbacks.append(back)

        def pullback(dy: Array) -> tuple[Array, Array, dict[str, Array]]:
            dh_0 = np.empty_like(h_0)
            dparams: dict[str, Array] = {}
            for index in reversed(range(self.layers)):
                dy, dh_0[index], *own = pullbacks[index](dy)
                names = [f"{kind}_l{index}" for kind in self.kinds]
                dparams |= dict(zip(names, own, strict=True))
            return dy, dh_0, dparams

        return (x, np.stack(finals)), pullback

    def _layer(self, params: list[Array], x: Array, h_0: Array) -> tuple[Any, ...]:
        if self.cell not in DENSE:
            return layer_vjp(self.cell, params[0], params[1], x, h_0)
        y, h_n, _, back = dense_vjp(self.cell, params, x, h_0, np.zeros_like(h_0))

        def pullback(dy: Array) -> tuple[Any, ...]:
            dx, dh_0, _, dparams = back(dy)
            return dx, dh_0, *dparams

        return y, h_n, pullback
