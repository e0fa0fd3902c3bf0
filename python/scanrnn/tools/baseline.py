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
from ..description import FRESH


def sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def product(x: Array, matrix: Array) -> Array:
    """One GEMM. NumPy would make one of each step, were x to keep its three axes."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[1])


def _positive(v: Array) -> tuple[Array, Callable[[], Array]]:
    """g(v), and its slope for who asks."""
    s = sigmoid(v)
    return np.where(v >= 0, v + 0.5, s), lambda: np.where(v >= 0, 1, s * (1 - s))


# A cell: pre-activations [T,B,G*H], and x and the vectors where they are read -> (a, b, vjp);
# vjp(da, db) gives the cotangents of each gate's and of the vectors, and that of x.


def _mingru(pre: Array, *_: Array) -> tuple[Any, ...]:
    k, v = np.split(pre, 2, axis=-1)
    z = sigmoid(k)
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [(db * g - da) * z * (1 - z), db * z * slope()]

    return 1 - z, z * g, vjp


def _minlstm(pre: Array, *_: Array) -> tuple[Any, ...]:
    p, q, v = np.split(pre, 3, axis=-1)
    f, i = sigmoid(p), sigmoid(q)
    forget = f / (f + i)
    keep = 1 - forget
    g, slope = _positive(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        du = (da - db * g) * forget * keep
        return [du * (1 - f), -du * (1 - i), db * keep * slope()]

    return forget, keep * g, vjp


def _sru(pre: Array, *_: Array) -> tuple[Any, ...]:
    u, p, q = np.split(pre, 3, axis=-1)
    f = sigmoid(p)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [db * (1 - f), (da - db * u) * f * (1 - f), np.zeros_like(q)]

    return f, (1 - f) * u, vjp


def _qrnn(pre: Array, *_: Array) -> tuple[Any, ...]:
    v, p, q = np.split(pre, 3, axis=-1)
    f, z = sigmoid(p), np.tanh(v)

    def vjp(da: Array, db: Array) -> list[Array]:
        return [db * (1 - f) * (1 - z * z), (da - db * z) * f * (1 - f), np.zeros_like(q)]

    return f, (1 - f) * z, vjp


def _rglru(pre: Array, x: Array, w: Array) -> tuple[Any, ...]:
    r, i = np.split(sigmoid(pre), 2, axis=-1)
    rate = -8 * np.logaddexp(0, w)
    a = np.exp(rate * r)
    root = np.sqrt(-np.expm1(2 * rate * r))

    def vjp(da: Array, db: Array) -> list[Array]:
        dlog_a = a * (da - db * i * x * a / root)
        dw = -8 * sigmoid(w) * (dlog_a * r).sum(axis=(0, 1))
        di = db * root * x * i * (1 - i)
        return [dlog_a * rate * r * (1 - r), di, dw, db * root * i]

    return a, root * i * x, vjp


CELLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "MinGRU": _mingru,
    "MinLSTM": _minlstm,
    "SRU": _sru,
    "QRNN": _qrnn,
    "RGLRU": _rglru,
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


def project(weight: Array, bias: Array, x: Array) -> Array:
    """Pre-activations of all steps; the first rows may have no bias, as SRU's."""
    pre = product(x, weight.T)
    pre[..., len(weight) - len(bias) :] += bias
    return pre


def projection_vjp(weight: Array, bias: Array, x: Array, dpre: Array) -> tuple[Array, ...]:
    """(dx, dweight, dbias)."""
    tokens = dpre.reshape(-1, dpre.shape[-1])
    dbias = tokens.sum(axis=0)[len(weight) - len(bias) :]
    return product(dpre, weight), tokens.T @ x.reshape(-1, x.shape[-1]), dbias


def layer_vjp(
    cell: str, params: Sequence[Array], x: Array, h_0: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, ...]]]:
    """One layer: (y, h_n, pullback); params are the weight, the vectors where there are any, and
    the bias. pullback(dy, dh_n) -> (dx, dh_0, *dparams)."""
    weight, *vectors, bias = params
    hidden = h_0.shape[-1]
    pre = project(weight, bias, x)
    a, b, lift_vjp = CELLS[cell](pre, x, *vectors)
    states = np.empty_like(b)
    h = h_0
    for a_t, b_t, after in zip(a, b, states, strict=True):
        np.multiply(a_t, h, out=after)
        after += b_t
        h = after
    y = states
    if cell in OUTPUTS:
        y, output_vjp = OUTPUTS[cell](pre[..., -hidden:], states, x)

    def pullback(dy: Array, dh_n: Array | None = None) -> tuple[Array, ...]:
        dstates: Any = dy
        dskip: Any = 0.0
        if cell in OUTPUTS:
            dlast, dstates, dskip = output_vjp(dy)
        db = np.empty_like(b)
        carry = np.zeros_like(h_0) if dh_n is None else dh_n
        for a_t, dstate, db_t in zip(a[::-1], dstates[::-1], db[::-1], strict=True):
            np.add(dstate, carry, out=db_t)
            carry = a_t * db_t
        before = np.concatenate([h_0[None], states[:-1]])
        dpre = lift_vjp(db * before, db)
        dvectors = []
        if vectors:
            *dpre, dvector, dskip = dpre
            dvectors = [dvector]
        if cell in OUTPUTS:
            dpre[-1] = dlast
        dx, dweight, dbias = projection_vjp(weight, bias, x, np.concatenate(dpre, axis=-1))
        return dx + dskip, carry, dweight, *dvectors, dbias

    return y, h, pullback


# A diagonal cell: one step from pre-activations [B,G*H], x, the state and the vectors -> (y, state,
# vjp); vjp(dy, dstate) gives the cotangents of those four, that of the vectors for each sequence.


def _indrnn(u: Array, x: Array, h: Array, vector: Array) -> tuple[Any, ...]:
    after = np.maximum(u + vector * h, 0)

    def vjp(dy: Array, dh: Array) -> tuple[Array, float, Array, Array]:
        du = (dy + dh) * (after > 0)
        return du, 0.0, du * vector, du * h

    return after, after, vjp


def _peephole_sru(u: Array, x: Array, c: Array, vectors: Array) -> tuple[Any, ...]:
    v, p, q = np.split(u, 3, axis=-1)
    of_f, of_r = np.split(vectors, 2)
    f, r = sigmoid(p + of_f * c), sigmoid(q + of_r * c)
    after = f * c + (1 - f) * v

    def vjp(dy: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
        dc = dc + dy * r
        df, dr = dc * (c - v) * f * (1 - f), dy * (after - x) * r * (1 - r)
        du = np.concatenate([dc * (1 - f), df, dr], axis=-1)
        of_vectors = np.concatenate([df * c, dr * c], axis=-1)
        return du, dy * (1 - r), dc * f + df * of_f + dr * of_r, of_vectors

    return r * after + (1 - r) * x, after, vjp


DIAGONAL: dict[str, Callable[..., tuple[Any, ...]]] = {
    "PeepholeSRU": _peephole_sru,
    "IndRNN": _indrnn,
}


def diagonal_vjp(
    cell: str, params: Sequence[Array], x: Array, h_0: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, ...]]]:
    """As layer_vjp, step by step."""
    weight, vectors, bias = params
    pre = project(weight, bias, x)
    y, h, backs = np.empty((*x.shape[:2], h_0.shape[-1]), x.dtype), h_0, []
    for t in range(len(x)):
        y[t], h, back = DIAGONAL[cell](pre[t], x[t], h, vectors)
        backs.append(back)

    def pullback(dy: Array) -> tuple[Array, ...]:
        dpre, dskip, dvectors = np.empty_like(pre), np.empty_like(x), np.zeros_like(vectors)
        dh = np.zeros_like(h_0)
        for t in reversed(range(len(x))):
            dpre[t], dskip[t], dh, of_vectors = backs[t](dy[t], dh)
            dvectors += of_vectors.sum(axis=0)
        dx, dweight, dbias = projection_vjp(weight, bias, x, dpre)
        return dx + dskip, dh, dweight, dvectors, dbias

    return y, h, pullback


# A dense cell: one step from (W x + b_ih)_t, R h + b_hh, h, the rest of the state and the vectors
# -> (h, the rest, vjp); vjp(dh, the rest's) gives the cotangents of all of these, that of h without
# what comes back through R, and of the vectors those of each token.

Arrays = tuple[Array, ...]


def _rnn(u: Array, m: Array, h: Array, *_: Any) -> tuple[Any, ...]:
    after = np.tanh(u + m)

    def vjp(dh: Array, _: Arrays) -> tuple[Any, ...]:
        dv = dh * (1 - after * after)
        return dv, dv, np.zeros_like(dh), ()

    return after, (), vjp


def _lstm(u: Array, m: Array, h: Array, rest: Arrays, vectors: Array | None) -> tuple[Any, ...]:
    (c,) = rest
    p, q, v, s = np.split(u + m, 4, axis=-1)
    of_i, of_f, of_o = (0, 0, 0) if vectors is None else np.split(vectors, 3)
    i, f, g = sigmoid(p + of_i * c), sigmoid(q + of_f * c), np.tanh(v)
    after = f * c + i * g
    o, squashed = sigmoid(s + of_o * after), np.tanh(after)

    def vjp(dh: Array, drest: Arrays) -> tuple[Any, ...]:
        ds = dh * squashed * o * (1 - o)
        dc = drest[0] + dh * o * (1 - squashed * squashed) + ds * of_o
        di, df = dc * g * i * (1 - i), dc * c * f * (1 - f)
        du = np.concatenate([di, df, dc * i * (1 - g * g), ds], axis=-1)
        of_vectors = np.concatenate([di * c, df * c, ds * after], axis=-1)
        return du, du, np.zeros_like(dh), (dc * f + di * of_i + df * of_f,), of_vectors

    return o * squashed, (after,), vjp


def _slstm(u: Array, m: Array, h: Array, rest: Arrays, _: Any) -> tuple[Any, ...]:
    c, n, scale = rest
    p, q, v, s = np.split(u + m, 4, axis=-1)
    kept = scale - np.logaddexp(0, -q).astype(u.dtype)
    scale = np.maximum(kept, p)
    i, f, g, o = np.exp(p - scale), np.exp(kept - scale), np.tanh(v), sigmoid(s)
    after, sums = f * c + i * g, f * n + i
    y = after / sums

    def vjp(dh: Array, drest: Arrays) -> tuple[Any, ...]:
        dy = dh * o / sums
        dc, dn = drest[0] + dy, drest[1] - dy * y
        df = (dc * c + dn * n) * f * (1 - sigmoid(q))
        parts = [(dc * g + dn) * i, df, dc * i * (1 - g * g), dh * y * o * (1 - o)]
        du = np.concatenate(parts, axis=-1)
        return du, du, np.zeros_like(dh), (dc * f, dn * f, np.zeros_like(dh))

    return o * y, (after, sums, scale), vjp


def _gru(u: Array, m: Array, h: Array, *_: Any) -> tuple[Any, ...]:
    hidden = h.shape[-1]
    r, z = np.split(sigmoid((u + m)[..., : 2 * hidden]), 2, axis=-1)
    candidate = m[..., 2 * hidden :]
    n = np.tanh(u[..., 2 * hidden :] + r * candidate)

    def vjp(dh: Array, _: Arrays) -> tuple[Any, ...]:
        dn = dh * (1 - z) * (1 - n * n)
        gates = [dn * candidate * r * (1 - r), dh * (h - n) * z * (1 - z)]
        du, dm = (np.concatenate([*gates, part], axis=-1) for part in (dn, dn * r))
        return du, dm, dh * z, ()

    return (1 - z) * n + z * h, (), vjp


DENSE: dict[str, Callable[..., tuple[Any, ...]]] = {
    "RNN": _rnn,
    "LSTM": _lstm,
    "GRU": _gru,
    "PeepholeLSTM": _lstm,
    "SLSTM": _slstm,
}


def dense_vjp(
    cell: str, params: Sequence[Array], x: Array, h_0: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, ...]]]:
    """As layer_vjp, step by step; params are weights ih and hh, vectors, then biases ih and hh."""
    weight, recurrent, *vectors, bias, recurrent_bias = params
    own = vectors[0] if vectors else None
    u = product(x, weight.T) + bias
    y, h, backs = np.empty((*x.shape[:2], h_0.shape[-1]), x.dtype), h_0, []
    rest: Arrays = tuple(np.full_like(h_0, value) for value in FRESH[cell][1:])
    for t in range(len(x)):
        h, rest, back = DENSE[cell](u[t], h @ recurrent.T + recurrent_bias, h, rest, own)
        backs.append(back)
        y[t] = h

    def pullback(dy: Array) -> tuple[Array, ...]:
        du, dm, dvectors = np.empty_like(u), np.empty_like(u), [np.zeros_like(v) for v in vectors]
        dh, drest = np.zeros_like(h_0), tuple(np.zeros_like(part) for part in rest)
        for t in reversed(range(len(x))):
            du[t], dm[t], dh, drest, *of_vectors = backs[t](dh + dy[t], drest)
            dh = dh + dm[t] @ recurrent
            for total, part in zip(dvectors, of_vectors, strict=False):
                total += part.sum(axis=0)
        before = np.concatenate([h_0[None], y[:-1]]).reshape(-1, h_0.shape[-1])
        flat_u, flat_m = (d.reshape(-1, d.shape[-1]) for d in (du, dm))
        dweights = flat_u.T @ x.reshape(-1, x.shape[-1]), flat_m.T @ before
        dbiases = flat_u.sum(axis=0), flat_m.sum(axis=0)
        return product(du, weight), dh, *dweights, *dvectors, *dbiases

    return y, h, pullback


class Stack:
    """Layers on top of each other, called as scanrnn's are; what a state has beside h is fresh."""

    def __init__(self, cell: str, state_dict: Mapping[str, Array]) -> None:
        self.cell, self.params = cell, dict(state_dict)
        self.layers = sum(name.startswith("weight_ih") for name in self.params)
        self.kinds = [name[: -len("_l0")] for name in self.params if name.endswith("_l0")]

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
        run = dense_vjp if self.cell in DENSE else layer_vjp
        return (diagonal_vjp if self.cell in DIAGONAL else run)(self.cell, params, x, h_0)
