# SPDX-License-Identifier: Apache-2.0
"""The oracle: every cell in float64 NumPy, one step at a time, straight from its formula.

The formulas take complex numbers too, by whose imaginary part gradients.py differentiates them.
"""

from typing import NamedTuple

import numpy as np


class Options(NamedTuple):
    """What makes other sums of a step; `means` of zoneout say how far h and c move in inference."""

    heads: int = 1
    reset_after: bool = True
    layer_norm: bool = False
    proj: int = 0
    means: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, rnn):
        zoneout = getattr(rnn, "zoneout", 0.0)
        shares = zoneout if isinstance(zoneout, tuple) else (zoneout, 0.0)
        return cls(
            getattr(rnn, "num_heads", 1), getattr(rnn, "reset_after", True),
            getattr(rnn, "layer_norm", False), getattr(rnn, "proj_size", 0),
            (1 - shares[0], 1 - shares[1]),
        )  # fmt: skip


def sigmoid(x):
    """And 1 - sigmoid(x) is sigmoid(-x), whose last digits a subtraction would lose."""
    positive = np.real(x) >= 0
    e = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1 / (1 + e), e / (1 + e))


def softplus(w):
    """log(1 + exp w). NumPy's own logarithms of complex numbers lose digits beside 1."""
    found = np.logaddexp(0, np.real(w))
    return found + 1j * sigmoid(np.real(w)) * np.imag(w) if np.iscomplexobj(w) else found


def norm(values):
    """The norm of a token's values, before they are scaled."""
    apart = values - values.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5)


def spread(recurrent, heads):
    """weight_hh as the block-diagonal matrix that it stands for."""
    rows, units = recurrent.shape
    head = np.arange(rows) % (units * heads) // units
    out = np.zeros((rows, heads, units))
    out[np.arange(rows), head] = recurrent
    return out.reshape(rows, heads * units)


CANDIDATES = {
    "g": lambda v: np.where(np.real(v) >= 0, v + 0.5, sigmoid(v)),
    "linear": lambda v: v,
    "tanh": np.tanh,
}
ACTIVATIONS = {
    "identity": lambda c: c,
    "tanh": np.tanh,
    # Products of two of gradients.py's imaginary parts are real, and no sign of anything.
    "relu": lambda c: np.where(np.real(c) > 1e-50, c, 0),
}


# From the sums with x by gates, the state before, x of the same unit and the vectors, to the output
# and the state.


def mingru(gates, h, x, vectors, variant):
    k, v = gates
    z = sigmoid(k)
    h = sigmoid(-k) * h + z * CANDIDATES[variant](v)
    return h, h


def minlstm(gates, h, x, vectors, variant):
    f, i, v = gates
    f, i = sigmoid(f), sigmoid(i)
    h = f / (f + i) * h + i / (f + i) * CANDIDATES[variant](v)
    return h, h


def sru(gates, c, x, vectors, variant):
    u, f, r, *highway = gates
    c = sigmoid(f) * c + sigmoid(-f) * u
    skip = highway[0] if highway else x
    return sigmoid(r) * ACTIVATIONS[variant](c) + sigmoid(-r) * skip, c


def peephole_sru(gates, c, x, vectors, variant):
    u, f, r, *highway = gates
    of_f, of_r = vectors
    return sru([u, f + of_f * c, r + of_r * c, *highway], c, x, (), variant)


def qrnn(gates, c, x, vectors, variant):
    z, f, o = gates
    c = sigmoid(f) * c + sigmoid(-f) * np.tanh(z)
    return sigmoid(o) * c, c


def rglru(gates, h, x, vectors, variant):
    r, i = gates
    log_a = -8 * softplus(vectors[0]) * sigmoid(r)
    h = np.exp(log_a) * h + np.sqrt(-np.expm1(2 * log_a)) * sigmoid(i) * x
    return h, h


def indrnn(gates, h, x, vectors, variant):
    h = ACTIVATIONS[variant](gates[0] + vectors[0] * h)
    return h, h


STEP = {
    "MinGRU": mingru,
    "MinLSTM": minlstm,
    "SRU": sru,
    "PeepholeSRU": peephole_sru,
    "QRNN": qrnn,
    "RGLRU": rglru,
    "IndRNN": indrnn,
}


DIAGONAL = ("PeepholeSRU", "IndRNN")  # whose gates read the state before


def bias_start(cell, hidden):
    """The first row with a bias: SRU's candidate has none."""
    return hidden if cell in ("SRU", "PeepholeSRU") else 0


def reads_x(cell, gates):
    """Whether x of the same unit comes into a step: SRU may have a projection in its place."""
    return cell == "RGLRU" or (cell in ("SRU", "PeepholeSRU") and gates == 3)


def variant_of(rnn):
    """The name of the layer's variant, "" where the cell has none."""
    option = rnn._cell.variant_option
    return getattr(rnn, option) if option else ""


def _direction(cell, params, x, h, variant, options):
    weight, bias, vectors, scale = params
    hidden = h.shape[-1]
    rows = weight.shape[0] // hidden
    full = np.zeros(weight.shape[0])
    if bias is not None:
        start = bias_start(cell, hidden)
        full[start : start + len(bias)] = bias
    out = np.empty((*x.shape[:2], hidden))
    for t, x_t in enumerate(x):
        product = x_t @ weight.T
        sums = product if scale is None else scale * norm(product)
        gates = np.split(sums + full, rows, axis=-1)
        out[t], after = STEP[cell](gates, h, x_t, vectors, variant)
        moves = options.means[0]
        h = after if moves == 1 else h + moves * (after - h)
        out[t] = h if cell == "IndRNN" else out[t]  # no other is walked with zoneout here
    return out, h


def run(rnn, x, h_0=None):
    """(y, h_n) of a layer's own parameters, in float64; x [T,B,C] whatever rnn.batch_first says."""
    params = {name: value.astype(np.float64) for name, value in rnn.state_dict().items()}
    cell, directions = rnn._cell, 2 if rnn.bidirectional else 1
    x, finals = x.astype(np.float64), []
    if h_0 is None:
        h_0 = np.zeros((rnn.num_layers * directions, x.shape[1], rnn.hidden_size))
    for layer in range(rnn.num_layers):
        outs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            order = slice(None, None, -1 if direction else 1)
            vectors = (
                np.split(params[cell.vectors_name + suffix], cell.vectors) if cell.vectors else []
            )
            out, final = _direction(
                cell.name,
                (
                    params["weight_ih" + suffix],
                    params.get("bias_ih" + suffix),
                    vectors,
                    params.get("norm_ih" + suffix),
                ),
                x[order],
                h_0[layer * directions + direction].astype(np.float64),
                variant_of(rnn),
                Options.of(rnn),
            )
            outs.append(out[order])
            finals.append(final)
        x = np.concatenate(outs, axis=-1)
    return x, np.stack(finals)


def scan(a, b, h_0=None, reverse=False, axis=0, reset=None):
    """h_t = a_t h_{t-1} + b_t in float64 or complex128; h_{t-1} is 0 where reset is true."""
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    a, b = (np.moveaxis(value.astype(wide), axis, 0) for value in (a, b))
    h = np.zeros(a.shape[1:], wide) if h_0 is None else h_0.astype(wide)
    reset = None if reset is None else np.moveaxis(reset, axis, 0)
    out = np.empty(a.shape, wide)
    for t in range(len(a))[:: -1 if reverse else 1]:
        h = a[t] * (h if reset is None else np.where(reset[t], 0, h)) + b[t]
        out[t] = h
    return np.moveaxis(out, 0, axis)


def scan_logarithms(log_a, log_b, sign_b, h_0, reverse=False, reset=None):
    """(log|h|, sign h) over axis 0 in float64, which leaves no range; h_0 is such a pair."""
    log_h, sign = (np.array(value, np.float64) for value in h_0)
    logs, signs = np.empty(log_a.shape), np.empty(log_a.shape)
    for t in range(len(log_a))[:: -1 if reverse else 1]:
        kept = log_h + log_a[t].astype(np.float64)
        if reset is not None:
            kept = np.where(reset[t], -np.inf, kept)
        largest = np.maximum(kept, log_b[t])
        largest = np.where(np.isinf(largest), 0, largest)
        value = sign * np.exp(kept - largest) + sign_b[t] * np.exp(log_b[t] - largest)
        with np.errstate(divide="ignore"):
            log_h = largest + np.log(np.abs(value))
        sign = np.where(value < 0, -1.0, 1.0)
        logs[t], signs[t] = log_h, sign
    return logs, signs


# From the products with x and with h, by gates, the state before and the vectors, to the state.
# `seen` gives what tanh reads of an LSTM's c.


def elman(u, m, state, vectors, variant, seen=None):
    return (ACTIVATIONS[variant](u[0] + m[0]),)


def lstm(u, m, state, vectors, variant, seen=lambda c: c):
    _, c = state
    of_i, of_f, of_o = vectors or (0, 0, 0)
    i, f, g, o = (from_x + from_h for from_x, from_h in zip(u, m, strict=True))
    i, f = i + of_i * c, f + of_f * c
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o + of_o * c) * np.tanh(seen(c)), c


def slstm(u, m, state, vectors, variant, seen=None):
    """The scale is no part of what is differentiated."""
    _, c, n, scale = state
    i, f, z, o = (from_x + from_h for from_x, from_h in zip(u, m, strict=True))
    kept = np.real(scale) - softplus(-f)
    scale = np.maximum(np.real(kept), np.real(i))
    i, f = np.exp(i - scale), np.exp(kept - scale)
    c, n = f * c + i * np.tanh(z), f * n + i
    return sigmoid(o) * c / n, c, n, scale


def gru(u, m, state, vectors, variant, seen=None):
    (h,), (r, z, n), (mr, mz, mn) = state, u, m
    r, z = sigmoid(r + mr), sigmoid(z + mz)
    n = np.tanh(n + r * mn)
    return ((1 - z) * n + z * h,)


def gru_of_reset_h(u, m, state, vectors, variant, seen=None):
    """The reset gate has been in the product with R."""
    (h,), (_, z, n), (_, mz, mn) = state, u, m
    z = sigmoid(z + mz)
    return ((1 - z) * np.tanh(n + mn) + z * h,)


DENSE_STEP = {"RNN": elman, "LSTM": lstm, "GRU": gru, "PeepholeLSTM": lstm, "SLSTM": slstm}


def dense_step(cell, options):
    return DENSE_STEP[cell] if options.reset_after else gru_of_reset_h


def _dense_step(cell, own, options, x, state, variant, vectors):
    def sums(product, side):
        scale = own.get(f"norm_{side}")
        return (product if scale is None else scale * norm(product)) + own.get(f"bias_{side}", 0.0)

    def seen(c):
        return own["norm_c"] * norm(c) + own["norm_c_bias"] if options.layer_norm else c

    recurrent, u = spread(own["weight_hh"], options.heads), sums(x @ own["weight_ih"].T, "ih")
    gates, h = u.shape[-1] // own["hidden"], state[0]
    product = h @ recurrent.T
    if not options.reset_after:
        third = own["hidden"]
        r = sigmoid((u + sums(product, "hh"))[:, :third])
        product[:, 2 * third :] = (r * h) @ recurrent[2 * third :].T
    u, m = (np.split(part, gates, axis=-1) for part in (u, sums(product, "hh")))
    q, *after = dense_step(cell, options)(u, m, state, vectors, variant, seen)
    new = [q @ own["weight_hr"].T if options.proj else q, *after]
    means = (*options.means, 1.0, 1.0)
    return [
        b + mean * (a - b) if mean < 1 else a for a, b, mean in zip(new, state, means, strict=False)
    ]


def run_dense(rnn, x, state=None):
    """(y, parts of the last state) of a dense cell in float64; x [T,B,C]."""
    values = {name: value.astype(np.float64) for name, value in rnn.state_dict().items()}
    directions, options = 2 if rnn.bidirectional else 1, Options.of(rnn)
    x, finals = x.astype(np.float64), []
    cell, features = rnn._cell, options.proj or rnn.hidden_size
    sizes = [features, *[rnn.hidden_size] * (cell.states - 1)]
    fresh = [
        np.full((rnn.num_layers * directions, x.shape[1], size), value)
        for size, value in zip(sizes, cell.fresh, strict=True)
    ]
    first = fresh if state is None else [p.astype(np.float64) for p in state]
    for layer in range(rnn.num_layers):
        outs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            own = {k.removesuffix(suffix): v for k, v in values.items() if k.endswith(suffix)}
            own["hidden"] = rnn.hidden_size
            vectors = np.split(own[cell.vectors_name], cell.vectors) if cell.vectors else []
            at = layer * directions + direction
            now = [part[at] for part in first]
            out = np.empty((*x.shape[:2], features))
            for t in range(len(x))[:: -1 if direction else 1]:
                now = _dense_step(cell.name, own, options, x[t], now, variant_of(rnn), vectors)
                out[t] = now[0]
            outs.append(out)
            finals.append(now)
        x = np.concatenate(outs, axis=-1)
    return x, [np.stack(parts) for parts in zip(*finals, strict=True)]
