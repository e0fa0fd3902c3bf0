# SPDX-License-Identifier: Apache-2.0
"""What a ragged call must give: single calls on each stretch of each sequence, put together."""

from typing import Any, NamedTuple

import numpy as np
from support import normal, normal_states
from support import rows as rows_of


def flat(state):
    """h and c of a pair, or h alone."""
    return list(state) if isinstance(state, (tuple, list)) else [state]


def as_state(parts):
    return tuple(parts) if len(parts) > 1 else parts[0]


class Stretch(NamedTuple):
    """Steps begin to end - 1 of a sequence, and where its directions begin with h_0."""

    begin: int
    end: int
    from_front: bool  # the forward direction begins here with h_0
    from_back: bool  # the reverse direction does
    pullback: Any


class Sequence:
    """One sequence through a layer: x [n,C], states a list of [L*D,1,H], reset [n] or None."""

    def __init__(self, rnn, x, states, reset):
        self.rnn, self.x, self.states, self.stretches = rnn, x, states, []
        self.y = np.zeros((len(x), (1 + rnn.bidirectional) * rnn.hidden_size), x.dtype)
        self.finals = [part.copy() for part in states]
        reset = np.zeros(len(x), bool) if reset is None else reset
        cuts = [t for t in range(1, len(x)) if reset[t]]
        for begin, end in zip([0, *cuts], [*cuts, len(x)], strict=True) if len(x) else ():
            front, back = begin == 0 and not reset[0], end == len(x)
            fresh = zip(states, rnn._cell.fresh, strict=True)
            initial = as_state([self.rows(part, front, back, value) for part, value in fresh])
            (y, last), pullback = rnn.vjp(x[begin:end, None], initial)
            self.y[begin:end] = y[:, 0]
            self.put(self.finals, flat(last), end == len(x), begin == 0)
            self.stretches.append(Stretch(begin, end, front, back, pullback))

    def rows(self, part, forward, reverse, other=0.0):
        """`part` where a direction is wanted, and `other`."""
        out, step = np.full_like(part, other), 1 + self.rnn.bidirectional
        if forward:
            out[::step] = part[::step]
        if reverse and step == 2:
            out[1::2] = part[1::2]
        return out

    def put(self, parts, values, forward, reverse):
        step = 1 + self.rnn.bidirectional
        for part, value in zip(parts, values, strict=True):
            if forward:
                part[::step] = value[::step]
            if reverse and step == 2:
                part[1::2] = value[1::2]

    def vjp(self, dy, dfinals):
        """(dx, dstates, dparams)."""
        dx = np.zeros_like(self.x)
        none = not self.stretches
        dstates = [part.copy() if none else np.zeros_like(part) for part in dfinals]
        dparams = {name: np.zeros_like(value) for name, value in self.rnn.state_dict().items()}
        for begin, end, front, back, pullback in self.stretches:
            last, first = end == len(self.x), begin == 0
            cotangents = as_state([self.rows(part, last, first) for part in dfinals])
            found, dinitial, of_params = pullback(dy[begin:end, None], cotangents)
            dx[begin:end] = found[:, 0]
            self.put(dstates, flat(dinitial), front, back)
            for name, value in of_params.items():
                dparams[name] += value
        return dx, dstates, dparams


class Batch:
    """Random sequences of these lengths, in their layout, and what a layer makes of them.

    `packed`: in x [tokens,C]; else in [T,B,C], or [B,T,C], whose padding is NaN and infinity.
    """

    def __init__(self, rnn, plain, lengths, *, steps=0, packed=False, reset=False, seed=0):
        """`plain`: the same layer with steps first."""
        self.rnn, self.packed, self.lengths = rnn, packed, np.array(lengths, np.int64)
        self.steps = max([steps, *lengths])
        random = np.random.default_rng([3, seed])
        dtype, width = rnn.dtype, (1 + rnn.bidirectional) * rnn.hidden_size
        self.xs = [normal(n, rnn.input_size, dtype=dtype, seed=i) for i, n in enumerate(lengths)]
        self.dys = [normal(n, width, dtype=dtype, seed=90 + i) for i, n in enumerate(lengths)]
        self.resets = [random.random(n) < 0.2 if reset else None for n in lengths]
        shape = rows_of(rnn), len(lengths), rnn.hidden_size
        self.h_0, self.dh_n = (
            normal_states(rnn._cell.name, *shape, dtype=dtype, seed=seed) for seed in (7, 17)
        )
        self.sequences = [
            Sequence(plain, x, [part[:, i : i + 1] for part in self.h_0], reset)
            for i, (x, reset) in enumerate(zip(self.xs, self.resets, strict=True))
        ]

    def lay(self, values, padding=np.nan):
        """One array of all sequences, as the layer's calls have it."""
        if self.packed:
            return np.concatenate(values)
        out = np.full((len(values), self.steps, *values[0].shape[1:]), padding, values[0].dtype)
        for row, value in zip(out, values, strict=True):
            row[: len(value)] = value
        if out.ndim == 3 and np.isnan(padding):
            out[..., ::2][np.isnan(out[..., ::2])] = np.inf
        return out if self.rnn.batch_first else np.ascontiguousarray(out.swapaxes(0, 1))

    def options(self):
        out = {}
        if self.packed:
            out["cu_seqlens"] = np.concatenate([[0], np.cumsum(self.lengths)])
        elif (self.lengths != self.steps).any():
            out["lengths"] = self.lengths
        if self.resets[0] is not None:
            out["reset"] = self.lay(self.resets, True)
        return out

    def wanted(self):
        """(y, h_n), with zeros where there is no step."""
        y = self.lay([sequence.y for sequence in self.sequences], 0)
        parts = zip(*(sequence.finals for sequence in self.sequences), strict=True)
        return y, [np.concatenate(part, axis=1) for part in parts]

    def gradients(self):
        """(dx, dh_0, dparams), and how large the terms of dparams are, which may cancel."""
        found = []
        for i, sequence in enumerate(self.sequences):
            dfinals = [part[:, i : i + 1] for part in self.dh_n]
            found.append(sequence.vjp(self.dys[i], dfinals))
        dxs, dstates, dparams = zip(*found, strict=True)
        states = [np.concatenate(part, axis=1) for part in zip(*dstates, strict=True)]
        sums = {name: sum(each[name] for each in dparams) for name in dparams[0]}
        each = {name: np.array([d[name] for d in dparams], np.float64) for name in sums}
        sizes = {name: np.sqrt(np.square(values).sum(axis=0)) for name, values in each.items()}
        return self.lay(list(dxs), 0), states, sums, sizes
