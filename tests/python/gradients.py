# SPDX-License-Identifier: Apache-2.0
"""The oracle with its gradients, fast enough for thousands of cases.

A cell is differentiated where it stands, in reference.py: its step is a function of one unit, so a
tiny imaginary part of one argument gives every unit's partial derivative at once, exact to
rounding. What is left, products and the way back through time, is linear. Run on squares, the same
linear code gives the size that a gradient has where its terms do not cancel: `scales`.
"""

from typing import NamedTuple

import numpy as np
import reference

TINY = 1e-30  # of an imaginary part: its square is lost beside the real part
FLAT = 0.05  # what a partial derivative that is smaller is taken for in scales


class Description(NamedTuple):
    """What the oracle needs of a layer, and its parameters in float64."""

    cell: str
    variant: str
    num_layers: int
    directions: int
    hidden: int
    vectors: tuple[str, int]  # the name of their parameter, and how many there are
    fresh: tuple[float, ...]  # what a state is where there is none before
    params: dict

    @classmethod
    def of(cls, rnn):
        params = {name: value.astype(np.float64) for name, value in rnn.state_dict().items()}
        return cls(
            rnn._cell.name, reference.variant_of(rnn), rnn.num_layers,
            2 if rnn.bidirectional else 1, rnn.hidden_size,
            (rnn._cell.vectors_name, rnn._cell.vectors), rnn._cell.fresh, params,
        )  # fmt: skip

    @property
    def dense(self):
        return self.cell in reference.DENSE_STEP

    def names(self, layer, direction):
        """The names of one direction's parameters in a layer, by their kind."""
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        kinds = ("weight_ih", "weight_hh", self.vectors[0], "bias_ih", "bias_hh")
        return {kind: kind + suffix for kind in kinds if kind + suffix in self.params}


class Walk:
    """One direction of one layer, time in the order of the walk: forward at once, then `back`.

    `inputs` of the cell's function are the sums with x by gates, of a dense cell those with h, the
    states before each step, the vectors and, where the cell reads it, x; its results are y and the
    states. Bools `there` [T,B,1] say which steps there are, `cut` where no state comes into one.
    """

    def __init__(self, told, layer, direction, x, initial, there, cut):
        self.told, self.names, self.x = told, told.names(layer, direction), x
        self.there, self.cut = there, cut
        self.weight, self.recurrent = (self.param(kind) for kind in ("weight_ih", "weight_hh"))
        self.gates = self.weight.shape[0] // told.hidden
        self.u = x @ self.weight.T + self.full_bias("bias_ih")
        self.split_u = np.split(self.u, self.gates, axis=-1)
        if told.dense:
            self.finals = self.walk_dense(initial)
        else:
            self.finals = [self.walk_units(initial[0])]
        self.y = np.where(there, self.function(*self.inputs)[0], 0)

    def param(self, kind):
        return self.told.params.get(self.names.get(kind))

    def full_bias(self, kind):
        bias, full = self.param(kind), np.zeros(self.gates * self.told.hidden)
        if bias is not None:
            full[self.bias_start() : self.bias_start() + len(bias)] = bias
        return full

    def bias_start(self):
        return reference.bias_start(self.told.cell, self.told.hidden)

    def walk_units(self, h):
        """Cells that read no other unit's state."""
        told, shape, first = self.told, self.split_u[0].shape, self.gates + 1
        step, (name, count) = reference.STEP[told.cell], told.vectors

        def function(*inputs):
            gates, vectors = inputs[: self.gates], inputs[first : first + count]
            return step(gates, inputs[self.gates], inputs[-1], vectors, told.variant)

        # Each vector at every token, so that it has a partial derivative there.
        vectors = np.split(self.param(name), count) if count else []
        last = [np.broadcast_to(vector, shape) for vector in vectors]
        last += [self.x] if reference.reads_x(told.cell, self.gates) else []
        before, b = np.empty(shape), ()
        if told.cell not in reference.DIAGONAL:
            _, lifted = function(*self.split_u, np.full(shape, TINY * 1j), *last)
            a, b = lifted.imag / TINY, lifted.real
        for t in range(len(before)):
            before[t] = np.where(self.cut[t], 0, h)
            if told.cell in reference.DIAGONAL:
                _, after = function(*(v[t] for v in (*self.split_u, before, *last)))
            else:
                after = a[t] * before[t] + b[t]
            h = np.where(self.there[t], after, h)
        self.function, self.inputs = function, [*self.split_u, before, *last]
        # A sum with x is off by a share of its terms, which it may be small beside; the state moves
        # by a gate's slope, at most 1/4, times that; IndRNN has no gate.
        terms = np.sqrt(np.square(self.x) @ np.square(self.weight).T)
        terms = terms if told.cell == "IndRNN" else terms / 4
        self.first_state, self.largest = self.gates, _largest(before, h, b, terms, *last[count:])
        return h

    def walk_dense(self, initial):
        step, hidden = reference.DENSE_STEP[self.told.cell], self.told.hidden
        state, bias = list(initial), self.full_bias("bias_hh")
        name, count = self.told.vectors
        vectors = np.split(self.param(name), count) if count else []
        m = np.empty(self.u.shape)
        before = [np.empty((*self.x.shape[:2], hidden)) for _ in state]
        for t in range(len(self.x)):
            for kept, now, fresh in zip(before, state, self.told.fresh, strict=True):
                kept[t] = np.where(self.cut[t], fresh, now)
            now = [kept[t] for kept in before]
            m[t] = now[0] @ self.recurrent.T + bias
            gates = ([part[t] for part in self.split_u], np.split(m[t], self.gates, axis=-1))
            after = step(*gates, now, vectors, self.told.variant)
            pairs = zip(after, state, strict=True)
            state = [np.where(self.there[t], new, held) for new, held in pairs]

        def function(*inputs):
            g, first_vector = self.gates, 2 * self.gates + len(state)
            states, own = inputs[2 * g : first_vector], inputs[first_vector:]
            after = step(inputs[:g], inputs[g : 2 * g], states, own, self.told.variant)
            return (after[0], *after)

        self.function = function
        last = [np.broadcast_to(vector, before[0].shape) for vector in vectors]
        self.inputs = [*self.split_u, *np.split(m, self.gates, axis=-1), *before, *last]
        # The logarithm m is no size.
        self.first_state, self.largest = 2 * self.gates, _largest(1.0, *before[:3], *state[:3])
        return state

    def partials(self):
        """[input][result], each as large as y."""
        out = []
        for index, value in enumerate(self.inputs):
            moved = [*self.inputs[:index], value + TINY * 1j, *self.inputs[index + 1 :]]
            out.append([np.imag(r) / TINY * self.there for r in self.function(*moved)])
        return out

    def back(self, partials, dy, dfinals, square):
        """Cotangents of x, of the initial states and, by name, of the parameters."""
        power = np.square if square else lambda value: value
        if square:
            bound = FLAT * (1 + self.largest)
            partials = [[(p * p + bound**2) * self.there for p in one] for one in partials]
        told, dstates, first, count = self.told, list(dfinals), self.first_state, len(self.finals)
        recurrent = power(self.recurrent) if self.told.dense else None
        through = np.zeros((count, *self.y.shape))  # what comes to the states after each step
        for t in reversed(range(len(self.x))):
            for index in range(count):
                through[index][t] = dstates[index]
            after = dstates
            dstates = [self.pulled(partials[first + i], dy, through, t) for i in range(count)]
            if self.told.dense:
                g = range(self.gates, 2 * self.gates)
                dm = [self.pulled(partials[i], dy, through, t) for i in g]
                dstates[0] = dstates[0] + np.concatenate(dm, axis=-1) @ recurrent
            held = [np.where(self.there[t], d, a) for d, a in zip(dstates, after, strict=True)]
            dstates = [np.where(self.cut[t], 0, d) for d in held]
        everywhere = slice(None)
        pulled = [self.pulled(of_input, dy, through, everywhere) for of_input in partials]
        du = np.concatenate(pulled[: self.gates], axis=-1)
        dx = du @ power(self.weight)
        if not told.dense and reference.reads_x(told.cell, self.gates):
            dx = dx + pulled[-1]
        return dx, dstates, self.of_parameters(pulled, du, power)

    @staticmethod
    def pulled(of_input, dy, through, t):
        own = sum(p[t] * d[t] for p, d in zip(of_input[1:], through, strict=True))
        return own if dy is None else own + of_input[0][t] * dy[t]

    def of_parameters(self, pulled, du, power):
        def product(d, with_):
            return np.einsum("tbi,tbj->ij", d, power(with_))

        out = {self.names["weight_ih"]: product(du, self.x)}
        sums = {"bias_ih": du}
        if self.told.dense:
            dm = np.concatenate(pulled[self.gates : 2 * self.gates], axis=-1)
            out[self.names["weight_hh"]] = product(dm, self.inputs[self.first_state])
            sums["bias_hh"] = dm
        name, count = self.told.vectors
        if count:
            start = self.first_state + len(self.finals)
            of_vectors = pulled[start : start + count]
            out[self.names[name]] = np.concatenate([d.sum((0, 1)) for d in of_vectors])
        for kind, d in sums.items():
            if kind in self.names:
                start = self.bias_start()
                of_bias = d.sum((0, 1))
                out[self.names[kind]] = of_bias[start : start + len(self.param(kind))]
        return out


def _largest(*values):
    return max((float(np.abs(v).max()) for v in values if np.size(v)), default=0.0)


class Oracle:
    """A call in float64: x [T,B,C], the list of initial states; `masks` multiply y between layers.

    Bools `there` and `reset` [T,B] say which steps there are, and where no state comes into one.
    `y`, `finals` and `largest`, the largest of what was added up on the way.
    """

    def __init__(self, told, x, initial, masks=None, there=None, reset=None):
        self.told, self.walks, self.largest = told, [], 0.0
        self.masks = masks or {}
        there = np.ones(x.shape[:2], bool) if there is None else there
        reset = there & reset if reset is not None else np.zeros_like(there)
        # Backwards the same cuts are a step earlier in time: behind the step that is walked next.
        back = np.concatenate([reset[1:], np.zeros_like(reset[:1])])
        cuts, finals = (reset[..., None], back[..., None]), []
        for layer in range(told.num_layers):
            outs = []
            for direction in range(told.directions):
                at = layer * told.directions + direction
                order = slice(None, None, -1 if direction else 1)
                steps = there[..., None][order], cuts[direction][order]
                walk = Walk(told, layer, direction, x[order], [p[at] for p in initial], *steps)
                self.walks.append(walk)
                self.largest = max(self.largest, walk.largest)
                outs.append(walk.y[order])
                finals.append(walk.finals)
            x = np.concatenate(outs, axis=-1)
            if layer in self.masks:
                x = x * self.masks[layer]
        self.y = x
        self.finals = [np.stack(parts) for parts in zip(*finals, strict=True)]

    def vjp(self, dy, dfinals):
        """Gradients of x, the initial states and the parameters; and the scales of all of them."""
        partials = [walk.partials() for walk in self.walks]
        return tuple(self._vjp(partials, dy, dfinals, square) for square in (False, True))

    def _vjp(self, partials, dy, dfinals, square):
        told, dparams = self.told, {}
        if square:
            dy, dfinals = dy * dy, [d * d for d in dfinals]
        dinitials = [np.empty_like(d) for d in dfinals]
        for layer in reversed(range(told.num_layers)):
            if layer in self.masks:
                dy = dy * (self.masks[layer] ** 2 if square else self.masks[layer])
            dx = 0
            for direction in range(told.directions):
                at = layer * told.directions + direction
                order = slice(None, None, -1 if direction else 1)
                part = dy[..., direction * told.hidden : (direction + 1) * told.hidden][order]
                one, starts, named = self.walks[at].back(
                    partials[at], part, [d[at] for d in dfinals], square
                )
                dx = dx + one[order]
                dparams |= named
                for whole, start in zip(dinitials, starts, strict=True):
                    whole[at] = start
            dy = dx
        named = {name: dparams[name] for name in told.params}
        if not square:
            return dy, dinitials, named
        roots = {name: np.sqrt(value) for name, value in named.items()}
        return np.sqrt(dy), [np.sqrt(d) for d in dinitials], roots


def drop_masks(told, shape, share, seed):
    """What multiplies y of every layer but the last, [T,B,.]: the rule of stack/drops.h."""
    golden, behind, bits = 0x9E3779B97F4A7C15, 0x626568696E64, (1 << 64) - 1
    count = int(np.prod(shape))
    threshold = np.uint64(int(share * (2.0**64 - 2.0**11)))

    def mix(value):
        value = value + np.uint64(golden)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))

    out = {}
    for layer in range(told.num_layers - 1):
        of_layer = mix(np.array([seed ^ (behind + layer * golden) & bits], np.uint64))
        drawn = mix(of_layer ^ mix(np.arange(count, dtype=np.uint64)))
        out[layer] = (drawn >= threshold).reshape(shape) / (1 - share)
    return out
