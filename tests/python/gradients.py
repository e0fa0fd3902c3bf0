# SPDX-License-Identifier: Apache-2.0
"""The oracle with its gradients, fast enough for thousands of cases: layers and directions, each a
walk of walks.py. Run on squares, the way back gives the size that a gradient has where its terms do
not cancel: `scales`.
"""

from typing import NamedTuple

import numpy as np
import reference
from walks import DenseWalk, Walk


class Description(NamedTuple):
    """What the oracle needs of a layer, and its parameters in float64."""

    cell: str
    variant: str
    num_layers: int
    directions: int
    hidden: int
    vectors: tuple[str, int]  # the name of their parameter, and how many there are
    fresh: tuple[float, ...]  # what a state is where there is none before
    options: reference.Options
    params: dict

    @classmethod
    def of(cls, rnn):
        params = {name: value.astype(np.float64) for name, value in rnn.state_dict().items()}
        return cls(
            rnn._cell.name, reference.variant_of(rnn), rnn.num_layers,
            2 if rnn.bidirectional else 1, rnn.hidden_size,
            (rnn._cell.vectors_name, rnn._cell.vectors), rnn._cell.fresh,
            reference.Options.of(rnn), params,
        )  # fmt: skip

    @property
    def dense(self):
        return self.cell in reference.DENSE_STEP

    @property
    def features(self):
        """The features of h and of one direction's y."""
        return self.options.proj or self.hidden

    def names(self, layer, direction):
        """The names of one direction's parameters in a layer, by their kind."""
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        kinds = (
            "weight_ih", "weight_hh", self.vectors[0], "bias_ih", "bias_hh", "norm_ih", "norm_hh",
            "norm_c", "norm_c_bias", "weight_hr",
        )  # fmt: skip
        return {kind: kind + suffix for kind in kinds if kind + suffix in self.params}


class Oracle:
    """A call in float64: x [T,B,C], the list of initial states; `masks` multiply y between layers,
    `moves` [T,B,H] say how far zoneout lets h and c move, by layer * directions + direction.

    Bools `there` and `reset` [T,B] say which steps there are, and where no state comes into one.
    `y`, `finals` and `largest`, the largest of what was added up on the way.
    """

    def __init__(self, told, x, initial, masks=None, there=None, reset=None, moves=None):
        self.told, self.walks, self.largest, self.growth = told, [], 0.0, 0.0
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
                moved = [
                    None if m is None else m[order] for m in (moves or {}).get(at, (None, None))
                ]
                kind = DenseWalk if told.dense else Walk
                walk = kind(
                    told, layer, direction, x[order], [p[at] for p in initial], *steps, moved
                )
                self.walks.append(walk)
                self.largest = max(self.largest, walk.largest)
                self.growth = max(self.growth, walk.growth)
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
                part = dy[..., direction * told.features : (direction + 1) * told.features][order]
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


GOLDEN, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1
BEHIND, STATE, CELL = (int.from_bytes(name, "big") for name in (b"behind", b"state", b"cell"))


def mixed(value):
    """splitmix64's finaliser."""
    value = value + np.uint64(GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def seed_of(seed, kind, place):
    return mixed(np.array([seed ^ (kind + place * GOLDEN) & BITS], np.uint64))


def stays(numbers, share):
    return numbers >= np.uint64(int(share * (2.0**64 - 2.0**11)))


def drop_masks(told, shape, share, seed):
    """What multiplies y of every layer but the last, [T,B,.]: the rule of stack/drops.h."""
    places, out = mixed(np.arange(int(np.prod(shape)), dtype=np.uint64)), {}
    for layer in range(told.num_layers - 1):
        drawn = mixed(seed_of(seed, BEHIND, layer) ^ places)
        out[layer] = stays(drawn, share).reshape(shape) / (1 - share)
    return out


def moves(seed, tokens, hidden, mean):
    """[tokens,H]: the rule of UnitNumbers in recurrence/masks.h."""
    low = np.uint64(0xFFFFFFFF)
    units = mixed((seed & ~low) + np.arange(hidden, dtype=np.uint64))
    apart = (units & low).astype(np.uint32) * np.uint32(2) + np.uint32(1)
    x = (units >> np.uint64(32)).astype(np.uint32) + (
        (seed & low).astype(np.uint32) + tokens
    ) * apart
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return (x >= np.uint32(int((1 - mean) * (2.0**64 - 2.0**11)) >> 32)) * 1.0


def zoneout_moves(told, tokens, seed):
    """How far h and c move, by layer and direction: 0 or 1, [*tokens,H]; None where all do."""
    shape, out = (*tokens, told.hidden), {}
    rows = np.arange(int(np.prod(tokens)), dtype=np.uint32)[:, None]
    for at in range(told.num_layers * told.directions):
        place = at // told.directions * 2 + at % told.directions
        pairs = zip((STATE, CELL), told.options.means, strict=True)
        out[at] = [
            moves(seed_of(seed, kind, place), rows, told.hidden, mean).reshape(shape)
            if mean < 1
            else None
            for kind, mean in pairs
        ]
    return out
