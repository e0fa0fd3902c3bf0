# SPDX-License-Identifier: Apache-2.0
"""What a step of each cell computes, in torch's or JAX's own functions; of a linear cell also what
all steps compute at once. Each equation stands here once, for both libraries and both ways.

`f` has the functions of one library: torch/functions.py or jax/functions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Array = Any  # of the library
Functions = Any
Parts = Sequence[Array]


class Own(NamedTuple):
    """The library's functions, what options make of a cell, masks say of one step, and a highway's
    input is times."""

    f: Functions
    variant: str
    moves: Sequence[Array | None] = (None, None)  # by tensor of the state
    keep: Array | None = None
    highway: float = 1.0
    resets: bool = False  # GRU's r is in m already
    norm: Sequence[Array] = ()  # of c: its scale and what is added

    def moved(self, after: Array, before: Any, index: int = 0) -> Array:
        share = self.moves[index]
        return after if share is None else share * after + (1 - share) * before

    def seen(self, c: Array) -> Array:
        return normed(self.f, c, self.norm[0]) + self.norm[1] if self.norm else c

    def kept(self, value: Array) -> Array:
        return value if self.keep is None else value * self.keep

    def shares(self, gate: Array, new: Array) -> tuple[Array, Array]:
        """How much of what was there stays, and what comes to it: sigmoid(gate) of the one, the
        rest of what is new."""
        return self.f.sigmoid(gate), self.f.sigmoid(-gate) * new

    def mix(self, gate: Array, kept: Array, new: Array) -> Array:
        stays, comes = self.shares(gate, new)
        return stays * kept + comes

    def candidate(self, v: Array) -> Array:
        if self.variant == "g":
            return self.f.where(v >= 0, v + 0.5, self.f.sigmoid(v))
        return v if self.variant == "linear" else self.f.tanh(v)

    def activated(self, value: Array) -> Array:
        if self.variant == "identity":
            return value
        return self.f.relu(value) if self.variant == "relu" else self.f.tanh(value)


def normed(f: Functions, value: Array, scale: Array) -> Array:
    """The norm over the last axis, as lib/src/recurrence/norm.h has it."""
    apart = value - value.mean(-1)[..., None]
    variance = (apart * apart).mean(-1)[..., None]
    return apart / f.sqrt(variance + 1e-5) * scale


# ---- linear cells: from sums with x by gates, x of the same unit, vectors and the variant to a and
# b of h_t = a h_{t-1} + b, and from h_t to y; of one step [B,H], or of all of them [T,B,H]


def _mingru(u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
    return own.shares(-u[0], own.candidate(u[1]))


def _minlstm(u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
    # f / (f + i) as one gate, which does not divide.
    gate = own.f.logsigmoid(u[0]) - own.f.logsigmoid(u[1])
    return own.shares(gate, own.candidate(u[2]))


def _sru(u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
    return own.shares(u[1], u[0])


def _sru_output(c: Array, u: Parts, x: Any, own: Own) -> Array:
    skip = (u[3] if len(u) == 4 else x) * own.highway
    return own.mix(u[2], own.kept(own.activated(c)), skip)


def _qrnn(u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
    return own.shares(u[1], own.f.tanh(u[0]))


def _qrnn_output(c: Array, u: Parts, x: Any, own: Own) -> Array:
    return own.f.sigmoid(u[2]) * own.kept(c)


_CLOSED = -37.0  # log(1 + e^x) is e^x below


def _rglru(u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
    f, v = own.f, vectors[0]
    s = 8 * f.softplus(v) * f.sigmoid(u[0])
    a = f.exp(-s)
    # The root of 1 - a^2, as it stands where most is forgotten. Elsewhere 1 - a^2 is
    # tanh(s) (1 + a^2), whose root is that of s times that of the rest: at 0, where a closed gate
    # brings s, the slope of a root has no end, but that of e^(log(s) / 2) has.
    forgets, small = s > 1, s < 1e-4
    left = f.where(forgets, a, 0)
    low = f.where(v > _CLOSED, v, _CLOSED)
    root = f.sqrt(8 * f.softplus(low)) * f.exp((v - low + f.logsigmoid(u[0])) / 2)
    wide = f.where(small | forgets, 1, s)
    rest = f.where(small, 1 - s * s / 3, f.tanh(wide) / wide) * (1 + a * a)
    share = f.where(forgets, f.sqrt(1 - left * left), root * f.sqrt(rest))
    return a, share * f.sigmoid(u[1]) * x


def _state_itself(h: Array, u: Parts, x: Any, own: Own) -> Array:
    return h


class Linear(NamedTuple):
    shares: Callable[..., tuple[Array, Array]]
    output: Callable[..., Array]

    def elements(self, u: Parts, x: Any, vectors: Parts, own: Own) -> tuple[Array, Array]:
        """a and b, with what zoneout leaves of a step."""
        a, b = self.shares(u, x, vectors, own)
        return own.moved(a, 1), own.moved(b, 0)

    def step(self, u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
        a, b = self.elements(u, x, vectors, own)
        h = a * state[0] + b
        return self.output(h, u, x, own), h


LINEAR: dict[str, Linear] = {
    "MinGRU": Linear(_mingru, _state_itself),
    "MinLSTM": Linear(_minlstm, _state_itself),
    "SRU": Linear(_sru, _sru_output),
    "QRNN": Linear(_qrnn, _qrnn_output),
    "RGLRU": Linear(_rglru, _state_itself),
}

# ---- a step of any cell: from sums with x and with h by gates, the state before, x of the same
# unit, vectors and the variant to y and the state after, each [B,H]


def _peephole_sru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    f, r = (gate + vector * state[0] for gate, vector in zip(u[1:3], vectors, strict=True))
    return LINEAR["SRU"].step([u[0], f, r, *u[3:]], m, state, x, (), own)


def _indrnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(own.activated(u[0] + vectors[0] * state[0]), state[0])
    return h, h


def _rnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(own.activated(u[0] + m[0]), state[0])
    return h, h


def _lstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    sigmoid, tanh = own.f.walked.sigmoid, own.f.walked.tanh
    i, f, g, o = (of_x + of_h for of_x, of_h in zip(u, m, strict=True))
    if vectors:
        i, f = i + vectors[0] * state[1], f + vectors[1] * state[1]
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    if vectors:
        o = o + vectors[2] * c
    h = own.moved(sigmoid(o) * tanh(own.seen(c)), state[0])
    return h, h, own.moved(c, state[1], 1)


def _slstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    i, f, z, o = (of_x + of_h for of_x, of_h in zip(u, m, strict=True))
    h, c, n, largest = state
    gates = own.f.walked
    kept = gates.logsigmoid(f) + own.f.constant(largest)
    new = own.f.constant(own.f.maximum(kept, i))  # only what keeps exponents in range
    forget, take = own.f.exp(kept - new), own.f.exp(i - new)
    c, n = forget * c + take * gates.tanh(z), forget * n + take
    h = own.moved(gates.sigmoid(o) * c / n, h)
    return h, h, c, n, new


def _gru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    gates = own.f.walked
    n = gates.tanh(u[2] + (m[2] if own.resets else gates.sigmoid(u[0] + m[0]) * m[2]))
    z = u[1] + m[1]
    h = own.moved(gates.sigmoid(z) * state[0] + gates.sigmoid(-z) * n, state[0])
    return h, h


STEPS: dict[str, Callable[..., Any]] = {
    **{name: cell.step for name, cell in LINEAR.items()},
    "PeepholeSRU": _peephole_sru,
    "IndRNN": _indrnn,
    "RNN": _rnn,
    "LSTM": _lstm,
    "PeepholeLSTM": _lstm,
    "SLSTM": _slstm,
    "GRU": _gru,
}
