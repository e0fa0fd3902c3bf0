# SPDX-License-Identifier: Apache-2.0
"""One direction of one layer of the oracle, there and back.

A cell is differentiated where it stands, in reference.py: its step is a function of one unit, so a
tiny imaginary part of one argument gives every unit's partial derivative at once, exact to
rounding. What is left, products, norms and the way back through time, is linear, and runs on
squares as well.
"""

import functools

import numpy as np
import reference

TINY = 1e-30  # of an imaginary part: its square is lost beside the real part
FLAT = 0.05  # what a partial derivative that is smaller is taken for in scales


class Norm:
    """Norms of tokens, scaled, and the way back; `growth` is what rounding of the values, a share
    of `terms`, may be of the norm."""

    def __init__(self, values, scale, terms):
        self.scale, self.value = scale, reference.norm(values)
        self.deviation = np.sqrt(values.var(-1, keepdims=True) + 1e-5)
        self.out = scale * self.value
        self.growth = _largest(terms / self.deviation)

    def back(self, d, at, square):
        """Cotangents of the values and, token by token, of the scale, at some tokens."""
        value, deviation, n = self.value[at], self.deviation[at], self.value.shape[-1]
        if square:
            d_norm, value = d * self.scale**2, value**2
            shared = d_norm.sum(-1, keepdims=True) + value * (d_norm * value).sum(-1, keepdims=True)
            return (d_norm + shared / n**2) / deviation**2, d * value
        d_norm = d * self.scale
        shared = d_norm.mean(-1, keepdims=True) + value * (d_norm * value).mean(-1, keepdims=True)
        return (d_norm - shared) / deviation, d * value


class Walk:
    """One direction of one layer, time in the order of the walk: forward at once, then `back`.

    `inputs` of the cell's function are the sums with x by gates, of a dense cell those with h, the
    states before each step, the vectors and, where the cell reads it, x; its results are y and the
    states. Bools `there` [T,B,1] say which steps there are, `cut` where no state comes into one.
    """

    def __init__(self, told, layer, direction, x, initial, there, cut, moves=(None, None)):
        self.told, self.names, self.x = told, told.names(layer, direction), x
        self.there, self.cut, self.growth = there, cut, 0.0
        self.weight, self.norm_x = self.param("weight_ih"), None
        self.gates = self.weight.shape[0] // told.hidden
        # Zoneout: how far h and c move at each step.
        self.moves = [
            drawn if drawn is not None else np.full((*x.shape[:2], told.hidden), mean)
            for drawn, mean in zip(moves, told.options.means, strict=True)
        ]
        self.u = x @ self.weight.T
        if told.options.layer_norm:
            terms = np.sqrt(np.square(x) @ np.square(self.weight).T)
            self.norm_x = self.normed(self.u, "norm_ih", terms)
            self.u = self.norm_x.out
        self.u = self.u + self.full_bias("bias_ih")
        self.split_u = np.split(self.u, self.gates, axis=-1)
        self.finals = self.walk(initial)

    def normed(self, values, kind, terms):
        out = Norm(values, self.param(kind), terms)
        self.growth = max(self.growth, out.growth)
        return out

    def param(self, kind):
        return self.told.params.get(self.names.get(kind))

    def full_bias(self, kind):
        bias, full = self.param(kind), np.zeros(self.gates * self.told.hidden)
        if bias is not None:
            full[self.bias_start() : self.bias_start() + len(bias)] = bias
        return full

    def bias_start(self):
        return reference.bias_start(self.told.cell, self.told.hidden)

    def walk(self, initial):
        """Cells that read no other unit's state."""
        (h,) = initial
        told, shape, first = self.told, self.split_u[0].shape, self.gates + 1
        step, (name, count) = reference.STEP[told.cell], told.vectors

        zoned = told.options.means[0] < 1  # of IndRNN, whose output is its state

        def function(*inputs, now=slice(None)):
            gates, vectors = inputs[: self.gates], inputs[first : first + count]
            before = inputs[self.gates]
            out, after = step(gates, before, inputs[-1], vectors, told.variant)
            if not zoned:
                return out, after
            after = before + self.moves[0][now] * (after - before)
            return after, after

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
                _, after = function(*(v[t] for v in (*self.split_u, before, *last)), now=t)
            else:
                after = a[t] * before[t] + b[t]
            h = np.where(self.there[t], after, h)
        self.function, self.inputs = function, [*self.split_u, before, *last]
        # A sum with x is off by a share of its terms, which it may be small beside; the state moves
        # by a gate's slope, at most 1/4, times that; IndRNN has no gate.
        terms = np.sqrt(np.square(self.x) @ np.square(self.weight).T)
        terms = terms if told.cell == "IndRNN" else terms / 4
        self.first_state, self.largest = self.gates, _largest(before, h, b, terms, *last[count:])
        self.y = np.where(self.there, function(*self.inputs)[0], 0)
        return [h]

    def partials(self):
        """[input][result], each as large as y."""
        out = []
        for index, value in enumerate(self.inputs):
            moved = [*self.inputs[:index], value + TINY * 1j, *self.inputs[index + 1 :]]
            out.append([np.imag(r) / TINY * self.there for r in self.function(*moved)])
        return out

    def squared(self, partials):
        bound = FLAT * (1 + self.largest)
        return [[(p * p + bound**2) * self.there for p in one] for one in partials]

    def back(self, partials, dy, dfinals, square):
        """Cotangents of x, of the initial states and, by name, of the parameters."""
        partials = self.squared(partials) if square else partials
        told, (dstate,), first = self.told, dfinals, self.first_state
        through = np.zeros((1, *self.y.shape))  # what comes to the state after each step
        for t in reversed(range(len(self.x))):
            through[0][t] = after = dstate
            dstate = self.pulled(partials[first], dy, through, t)
            dstate = np.where(self.cut[t], 0, np.where(self.there[t], dstate, after))
        pulled = [self.pulled(of_input, dy, through, slice(None)) for of_input in partials]
        dx, named = self.of_sums(pulled, square)
        if reference.reads_x(told.cell, self.gates):
            dx = dx + pulled[-1]
        return dx, [dstate], named

    @staticmethod
    def pulled(of_input, dy, through, t):
        own = sum(p[t] * d[t] for p, d in zip(of_input[1:], through, strict=True))
        return own + of_input[0][t] * dy[t]

    def of_sums(self, pulled, square):
        """From the cotangents of what a step reads, unit by unit, those of x, of the weight that it
        meets, of the bias and of the vectors."""
        out, du = {}, np.concatenate(pulled[: self.gates], axis=-1)
        self.give_bias(out, "bias_ih", du)
        if self.norm_x:
            du, dscale = self.norm_x.back(du, slice(None), square)
            out[self.names["norm_ih"]] = dscale.sum((0, 1))
        out[self.names["weight_ih"]] = product(du, self.x, square)
        name, count = self.told.vectors
        if count:
            start = self.first_state + len(self.finals)
            of_vectors = pulled[start : start + count]
            out[self.names[name]] = np.concatenate([d.sum((0, 1)) for d in of_vectors])
        return du @ power(self.weight, square), out

    def give_bias(self, out, kind, d):
        if kind in self.names:
            start = self.bias_start()
            out[self.names[kind]] = d.sum((0, 1))[start : start + len(self.param(kind))]


def power(values, square):
    return np.square(values) if square else values


def product(d, with_, square):
    """Over all tokens."""
    return np.einsum("tbi,tbj->ij", d, power(with_, square))


def _largest(*values):
    return max((float(np.abs(v).max()) for v in values if np.size(v)), default=0.0)


class DenseWalk(Walk):
    """The walk of a cell that reads all units' h. What its function gives behind the states is what
    a step hands to a product or a norm in its middle, r h or c."""

    def walk(self, initial):
        told, options, state = self.told, self.told.options, list(initial)
        step, hidden = reference.dense_step(told.cell, options), told.hidden
        self.recurrent = reference.spread(self.param("weight_hh"), options.heads)
        self.projection = self.param("weight_hr")
        name, count = told.vectors
        vectors = np.split(self.param(name), count) if count else []
        shape, g = self.x.shape[:2], self.gates
        self.raw, self.m = np.zeros((2, *self.u.shape))
        self.seen, self.fed = np.zeros((2, *shape, hidden))
        before = [np.empty((*shape, part.shape[-1])) for part in state]
        self.q = np.empty((*shape, hidden))
        after = [np.empty_like(part) for part in before]
        for t in range(len(self.x)):
            for kept, now, fresh in zip(before, state, told.fresh, strict=True):
                kept[t] = np.where(self.cut[t], fresh, now)
            now = [kept[t] for kept in before]
            self.multiply(t, now[0])
            gates = ([part[t] for part in self.split_u], np.split(self.m[t], g, axis=-1))
            new = step(*gates, now, vectors, told.variant, functools.partial(self.see, t))
            self.q[t], *new = new
            new = [self.q[t] if self.projection is None else self.q[t] @ self.projection.T, *new]
            new = self.moved(now, new, t)
            for kept, value in zip(after, new, strict=True):
                kept[t] = value
            pairs = zip(new, state, strict=True)
            state = [np.where(self.there[t], value, held) for value, held in pairs]
        self.y = np.where(self.there, after[0], 0)
        self.before, self.count = before, len(state)
        last = [np.broadcast_to(vector, self.q.shape) for vector in vectors]
        # A projection is no function of a unit: what it takes of h goes by the products alone.
        states = [self.q * 0 if self.projection is not None else before[0], *before[1:]]
        self.inputs = [*self.split_u, *np.split(self.m, g, axis=-1), *states, *last, self.seen]
        # The logarithm m is no size.
        self.first_state, self.largest = 2 * g, _largest(1.0, *before[:3], *state[:3])
        if options.layer_norm:
            terms = np.sqrt(np.square(before[0]) @ np.square(self.recurrent).T)
            self.norm_h = self.normed(self.raw, "norm_hh", terms)
        if "norm_c" in self.names:
            self.norm_c = self.normed(self.fed, "norm_c", 1 + np.abs(self.fed))
        return state

    def moved(self, before, after, now):
        """What zoneout leaves of a step; a projection's h has none."""
        out = list(after)
        for i, moves in enumerate(self.moves[: len(out)]):
            if self.told.options.means[i] < 1:
                out[i] = before[i] + moves[now] * (after[i] - before[i])
        return out

    def multiply(self, t, h):
        hidden, options, bias = self.told.hidden, self.told.options, self.full_bias("bias_hh")
        self.raw[t] = h @ self.recurrent.T
        if not options.reset_after:
            r = reference.sigmoid((self.u[t] + self.raw[t] + bias)[:, :hidden])
            self.fed[t] = r * h
            self.raw[t][:, 2 * hidden :] = self.fed[t] @ self.recurrent[2 * hidden :].T
        normed = reference.norm(self.raw[t]) if options.layer_norm else self.raw[t]
        self.m[t] = normed * (self.param("norm_hh") if options.layer_norm else 1) + bias

    def see(self, t, c):
        """What tanh reads of an LSTM's c."""
        self.seen[t] = c
        if self.told.options.layer_norm:
            self.fed[t] = c
            self.seen[t] = self.param("norm_c") * reference.norm(c) + self.param("norm_c_bias")
        return self.seen[t]

    def function(self, *inputs):
        g, count, told = self.gates, self.count, self.told
        first_vector = self.first_state + count
        u, m, states = inputs[:g], inputs[g : 2 * g], inputs[2 * g : first_vector]
        step, own = reference.dense_step(told.cell, told.options), inputs[first_vector:-1]
        normed = told.options.layer_norm
        new = step(u, m, states, own, told.variant, lambda c: inputs[-1] if normed else c)
        fed = 0 * inputs[0]
        if not told.options.reset_after:
            fed = reference.sigmoid(u[0] + m[0]) * states[0]
        elif normed and count == 2:
            fed = new[1]
        if self.projection is None:
            new = self.moved(states, new, slice(None))
        else:
            new = [new[0], *self.moved(states, new, slice(None))[1:]]
        return (*new, fed)

    def back(self, partials, dy, dfinals, square):
        partials = self.squared(partials) if square else partials
        dstates, first, g = list(dfinals), self.first_state, self.gates
        recurrent, hidden = power(self.recurrent, square), self.told.hidden
        projection = None if self.projection is None else power(self.projection, square)
        reset, normed = not self.told.options.reset_after, self.told.options.layer_norm
        pulled = [np.zeros(self.q.shape) for _ in partials]
        draw, dscale = np.zeros((2, *self.raw.shape))
        dh, dseen_c, dseen_scale = np.zeros(self.y.shape), *np.zeros((2, *self.q.shape))
        for t in reversed(range(len(self.x))):
            after = dstates
            dh[t] = (dstates[0] + dy[t]) * self.there[t]
            into = [dh[t] if projection is None else dh[t] @ projection, *dstates[1:]]

            def all_pulled(of_fed, into=into, t=t):
                ways = (*into, of_fed)
                return [sum(p[t] * d for p, d in zip(one, ways, strict=True)) for one in partials]

            now = all_pulled(0 * self.q[t])
            if reset:
                now = all_pulled(now[2 * g - 1] @ recurrent[2 * hidden :])
            elif "norm_c" in self.names:
                dseen_c[t] = now[-1]
                d_c, dseen_scale[t] = self.norm_c.back(now[-1], t, square)
                now = all_pulled(d_c)
            for all_of_it, value in zip(pulled, now, strict=True):
                all_of_it[t] = value
            dm = np.concatenate(now[g : 2 * g], axis=-1)
            draw[t] = dm
            if normed:
                draw[t], dscale[t] = self.norm_h.back(dm, t, square)
            rows = 2 * hidden if reset else len(recurrent)
            dstates = now[first : first + self.count]
            through = draw[t][:, :rows] @ recurrent[:rows]
            dstates[0] = through if projection is not None else dstates[0] + through
            held = [np.where(self.there[t], d, a) for d, a in zip(dstates, after, strict=True)]
            dstates = [np.where(self.cut[t], 0, d) for d in held]
        dx, out = self.of_sums(pulled, square)
        dm = np.concatenate(pulled[g : 2 * g], axis=-1)
        self.give_bias(out, "bias_hh", dm)
        whole = product(draw, self.before[0], square)
        if reset:
            whole[2 * hidden :] = product(draw[..., 2 * hidden :], self.fed, square)
        out[self.names["weight_hh"]] = self.gathered(whole)
        if normed:
            out[self.names["norm_hh"]] = dscale.sum((0, 1))
        if "norm_c" in self.names:
            out[self.names["norm_c"]] = dseen_scale.sum((0, 1))
            out[self.names["norm_c_bias"]] = dseen_c.sum((0, 1))
        if projection is not None:
            out[self.names["weight_hr"]] = product(dh, self.q, square)
        return dx, dstates, out

    def gathered(self, whole):
        """The blocks of the heads."""
        heads = self.told.options.heads
        rows, hidden = whole.shape
        if heads == 1:
            return whole
        units = hidden // heads
        head = np.arange(rows) % hidden // units
        return whole.reshape(rows, heads, units)[np.arange(rows), head]
