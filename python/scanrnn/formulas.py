# SPDX-License-Identifier: Apache-2.0
"""A stack of layers in torch's or JAX's own functions, one step at a time, which has derivatives of
any order. It is slow and keeps every step: it serves derivatives of derivatives, and exports.

`f` has the functions of one library: torch/functions.py or jax/functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .arguments import short_name
from .description import FRESH, Description
from .draws import Masks
from .ragged import Ragged
from .registry import CellInfo, cells

# ---- cells: from sums with x and with h by gates, the state before, x of the same unit, vectors
# and the variant to y and the state after, each [B,H]

Array = Any  # of the library
Functions = Any
Parts = Sequence[Array]
CELLS = {cell.name: cell for cell in cells()}


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

    def moved(self, after: Array, before: Array, index: int = 0) -> Array:
        share = self.moves[index]
        return after if share is None else share * after + (1 - share) * before

    def seen(self, c: Array) -> Array:
        return _normed(self.f, c, self.norm[0]) + self.norm[1] if self.norm else c

    def kept(self, value: Array) -> Array:
        return value if self.keep is None else value * self.keep

    def mix(self, gate: Array, kept: Array, new: Array) -> Array:
        """sigmoid(gate) of what is kept, the rest of what is new."""
        return self.f.sigmoid(gate) * kept + self.f.sigmoid(-gate) * new

    def candidate(self, v: Array) -> Array:
        if self.variant == "g":
            return self.f.where(v >= 0, v + 0.5, self.f.sigmoid(v))
        return v if self.variant == "linear" else self.f.tanh(v)

    def activated(self, value: Array) -> Array:
        if self.variant == "identity":
            return value
        return self.f.relu(value) if self.variant == "relu" else self.f.tanh(value)


def _normed(f: Functions, value: Array, scale: Array) -> Array:
    """The norm over the last axis, as lib/src/recurrence/norm.h has it."""
    apart = value - value.mean(-1)[..., None]
    variance = (apart * apart).mean(-1)[..., None]
    return apart / f.sqrt(variance + 1e-5) * scale


def _mingru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(own.mix(-u[0], state[0], own.candidate(u[1])), state[0])
    return h, h


def _minlstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    # f / (f + i) as one gate, which does not divide.
    gate = own.f.logsigmoid(u[0]) - own.f.logsigmoid(u[1])
    h = own.moved(own.mix(gate, state[0], own.candidate(u[2])), state[0])
    return h, h


def _sru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    c = own.moved(own.mix(u[1], state[0], u[0]), state[0])
    skip = (u[3] if len(u) == 4 else x) * own.highway
    return own.mix(u[2], own.kept(own.activated(c)), skip), c


def _peephole_sru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    f, r = (gate + vector * state[0] for gate, vector in zip(u[1:3], vectors, strict=True))
    return _sru([u[0], f, r, *u[3:]], m, state, x, (), own)


def _qrnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    c = own.moved(own.mix(u[1], state[0], own.f.tanh(u[0])), state[0])
    return own.f.sigmoid(u[2]) * own.kept(c), c


def _rglru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    f = own.f
    log_a = 8 * f.logsigmoid(-vectors[0]) * f.sigmoid(u[0])
    a = f.exp(log_a)
    rest = f.tanh(-log_a) * (1 + a * a)  # 1 - a^2 without a subtraction, also where no expm1 is
    h = own.moved(a * state[0] + f.sqrt(rest) * f.sigmoid(u[1]) * x, state[0])
    return h, h


def _indrnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(own.activated(u[0] + vectors[0] * state[0]), state[0])
    return h, h


def _rnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(own.activated(u[0] + m[0]), state[0])
    return h, h


def _lstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    sigmoid, tanh = own.f.sigmoid, own.f.tanh
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
    kept = own.f.logsigmoid(f) + own.f.constant(largest)
    new = own.f.constant(own.f.maximum(kept, i))  # only what keeps exponents in range
    forget, take = own.f.exp(kept - new), own.f.exp(i - new)
    c, n = forget * c + take * own.f.tanh(z), forget * n + take
    h = own.moved(own.f.sigmoid(o) * c / n, h)
    return h, h, c, n, new


def _gru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    n = own.f.tanh(u[2] + (m[2] if own.resets else own.f.sigmoid(u[0] + m[0]) * m[2]))
    h = own.moved(own.mix(u[1] + m[1], state[0], n), state[0])
    return h, h


STEPS: dict[str, Callable[..., Any]] = {
    "MinGRU": _mingru,
    "MinLSTM": _minlstm,
    "SRU": _sru,
    "PeepholeSRU": _peephole_sru,
    "QRNN": _qrnn,
    "RGLRU": _rglru,
    "IndRNN": _indrnn,
    "RNN": _rnn,
    "LSTM": _lstm,
    "PeepholeLSTM": _lstm,
    "SLSTM": _slstm,
    "GRU": _gru,
}
# What a description may say; every other option is an error where it is used.
_OPTIONS = {
    "cell", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
    "variant", "domain", "strategy", "options", "longest",
}  # fmt: skip
_OWN_OPTIONS = {
    "draws", "dropconnect", "input_dropout", "state_dropout", "zoneout", "zoneout_cell",
    "num_heads", "proj_size", "projection_size", "rescale", "highway_bias", "reset_after",
    "layer_norm",
}  # fmt: skip


def check(told: Description, what: str) -> None:
    """That all of it stands in this file; `what` is not there where it does not."""
    defaults = Description._field_defaults
    for name, value in told._asdict().items():
        if name not in _OPTIONS and value != defaults[name]:
            raise NotImplementedError(f"{name}: {what} is not there with {name}={value!r}")
    for name, number in told.own_options.items():
        if name not in _OWN_OPTIONS:
            raise NotImplementedError(f"{name}: {what} is not there with {name}={number:g}")
    if told.cell not in STEPS:
        raise NotImplementedError(f"{told.cell}: {what} is not there for this cell")


# ---- which steps there are


class Grid(NamedTuple):
    """A batch as [T,B] whatever it came as, and how its steps are walked."""

    f: Functions
    walk: Callable[..., Any]
    sequences: int
    there: Array | None  # bools [T,B,1]: which steps exist; None: all
    resets: tuple[Array | None, Array | None]  # [T,B,1], by direction: no state comes in
    token: Array  # [T,B]: the number of a token, by which outputs between layers are dropped
    places: tuple[Array, Array] | None  # of packed tokens: their steps and sequences


def _grid(f: Functions, x: Array, ragged: Ragged, walk: Callable[..., Any]) -> Grid:
    """x is [T,B,C], or [tokens,C] with cu_seqlens."""
    lengths, cu_seqlens, reset, _ = ragged
    places = None
    if cu_seqlens is not None:
        ends = f.as_indices(cu_seqlens)
        lengths = ends[1:] - ends[:-1]
        sequences = lengths.shape[0]
        steps = f.longest(lengths, x.shape[0])
        number = f.counted(x.shape[0], x)
        of = f.behind(ends[1:], number)
        places = number - ends[of], of
        token = ends[:-1] + f.counted(steps, x)[:, None]
    else:
        steps, sequences = x.shape[:2]
        token = f.counted(steps * sequences, x).reshape(steps, sequences)
    there = None
    if lengths is not None:
        there = (f.counted(steps, x)[:, None] < lengths)[..., None]
    forwards = backwards = None
    if reset is not None:
        forwards = reset[..., None]
        if places is not None:
            forwards = _padded(f, forwards, token)
        forwards = forwards if there is None else forwards & there
        # Backwards the same cuts lie behind the step that is walked next.
        backwards = f.concatenate([forwards[1:], f.zeros_like(forwards[:1])], 0)
    return Grid(f, walk, sequences, there, (forwards, backwards), token, places)


def _padded(f: Functions, value: Array, token: Array) -> Array:
    """[tokens,N] as [T,B,N]; anything where no step is."""
    count = value.shape[0]
    if count == 0:
        return f.concatenate([value[:0]], 0).reshape(*token.shape, value.shape[1])
    return value[f.where(token < count, token, count - 1)]


# ---- a stack


def run(
    f: Functions, x: Array, h_0: Parts, params: Parts, ragged: Ragged, seed: Any,
    told: Description, walk: Callable[..., Any],
) -> list[Array]:  # fmt: skip
    """y and the states at the end, as a layer gives them in training, by `walk`: from a step, a
    state, inputs [T,B,.] and whether time runs backwards to the state at the end and all y. A step
    gives the state after it and y."""
    layer = told.layer(int(x.shape[-1]), short_name(x.dtype))
    names = [name for name, _ in layer.parameters()]
    kind = x.dtype
    x, *values = (f.wide(value) for value in (x, *h_0, *params))
    first, named = values[: len(h_0)], dict(zip(names, values[len(h_0) :], strict=True))
    time_last = told.batch_first and ragged.cu_seqlens is None
    if time_last:
        x = x.swapaxes(0, 1)
        if ragged.reset is not None:
            ragged = ragged._replace(reset=ragged.reset.swapaxes(0, 1))
    grid = _grid(f, x, ragged, walk)
    if grid.places is not None:
        x = _padded(f, x, grid.token)
    if grid.there is not None:
        x = f.where(grid.there, x, 0)  # NaN behind an end reaches nothing
    if not first:
        pairs = zip(told.state_shapes(grid.sequences), FRESH[told.cell], strict=True)
        first = [f.full(shape, value, x) for shape, value in pairs]
    masks, finals = Masks(f, told, seed), []
    for index in range(told.num_layers):
        x, ends = _layer(index, x, first, named, grid, masks, told)
        finals += ends
        if index + 1 < told.num_layers:
            x = masks.behind(index, grid.token, x)
    if grid.places is not None:
        x = x[grid.places]
    y = x.swapaxes(0, 1) if time_last else x
    states = (f.stack(parts) for parts in zip(*finals, strict=True))
    return [f.cast(value, kind) for value in (y, *states)]


def _layer(
    index: int, x: Array, first: Parts, named: dict[str, Array], grid: Grid, masks: Masks,
    told: Description,
) -> tuple[Array, list[list[Array]]]:  # fmt: skip
    """y [T,B,D*H] and the states of each direction at the end."""
    outs, ends = [], []
    masked = masks.of_input(index, x)
    for direction in range(told.directions):
        suffix = f"_l{index}" + ("_reverse" if direction else "")
        own = {name: value for name, value in named.items() if name.endswith(suffix)}
        own = {name.removesuffix(suffix): value for name, value in own.items()}
        if "weight_hh" in own and CELLS[told.cell].recurrence == "dense":
            own["weight_hh"] = masks.of_matrix(2 * index + direction, own["weight_hh"])
        state = [part[index * told.directions + direction] for part in first]
        y, state = _direction(masked, x, state, own, grid, direction, told, index, masks)
        outs.append(y)
        ends.append(state)
    return grid.f.concatenate(outs, -1), ends


def _direction(
    x: Array, skip: Array, state: list[Array], own: dict[str, Array], grid: Grid,
    direction: int, told: Description, index: int, masks: Masks,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """`skip` is x as a highway reads it."""
    cell, hidden, f = CELLS[told.cell], told.hidden_size, grid.f
    sums = (x @ own["weight_pr"].T if "weight_pr" in own else x) @ own["weight_ih"].T
    if "norm_ih" in own:
        sums = _normed(f, sums, own["norm_ih"])
    if told.bias:
        sums = sums + _whole_bias(f, own["bias_ih"], cell, sums.shape[-1], hidden)
    vectors = _blocks(own[cell.vectors_name], hidden) if cell.vectors else ()
    vectors = [f.apart(vector) for vector in vectors]
    reset, there = grid.resets[direction], grid.there

    place, like = 2 * index + direction, sums[..., :hidden]
    moves = [masks.moves(n, place, grid.token, like) for n in ("zoneout", "zoneout_cell")]
    keep = masks.of_readout(place, f.full((x.shape[1], hidden), 0, x))
    highway = _highway(told)
    if "weight_hh" in own and cell.recurrence == "dense":
        recurrent = _of_heads(f, own["weight_hh"], int(told.own_options.get("num_heads", 1)))
    resets = not told.own_options.get("reset_after", 1)
    norm = [own[name] for name in ("norm_c", "norm_c_bias") if name in own]

    def products(h: Array, gates: Parts) -> Parts:
        """R h and its bias by gates; or the last of them is that of r h."""
        if not resets:
            whole = h @ recurrent.T
            whole = _normed(f, whole, own["norm_hh"]) if "norm_hh" in own else whole
            return _blocks(whole + own["bias_hh"] if told.bias else whole, hidden)
        rows = [recurrent[at : at + hidden] for at in range(0, 3 * hidden, hidden)]
        bias = _blocks(own["bias_hh"], hidden) if told.bias else (0, 0, 0)
        r, z = (h @ part.T + b for part, b in zip(rows[:2], bias[:2], strict=True))
        return r, z, (f.sigmoid(gates[0] + r) * h) @ rows[2].T + bias[2]

    def step(state: Parts, inputs: Parts) -> tuple[list[Array], Array]:
        (sums, skip), marks = inputs[:2], list(inputs[2:])
        given = [None if m is None else marks.pop() for m in moves[::-1]][::-1]
        unit = Own(f, told.variant, given, keep, highway, resets, norm)
        before, m = state, ()
        if reset is not None:
            cut = marks.pop(0)
            pairs = zip(state, FRESH[told.cell], strict=True)
            before = [f.where(cut, value, part) for part, value in pairs]
        gates = _blocks(sums, hidden)
        if cell.recurrence == "dense":
            m = products(before[0], gates)
        y, *after = STEPS[told.cell](gates, m, before, skip, vectors, unit)
        if "weight_hr" in own:
            y = after[0] = y @ own["weight_hr"].T
        if there is not None:
            (exists,) = marks
            y = f.where(exists, y, 0)
            after = [f.where(exists, *pair) for pair in zip(after, state, strict=True)]
        return after, y

    inputs = [value for value in (sums, skip, reset, there, *moves) if value is not None]
    state, y = grid.walk(step, state, inputs, bool(direction))
    return y, state


def _blocks(value: Array, size: int) -> list[Array]:
    return [value[..., at : at + size] for at in range(0, value.shape[-1], size)]


def _of_heads(f: Functions, weight: Array, heads: int) -> Array:
    """[G*H,H/heads] as the block-diagonal matrix of all units."""
    if heads == 1:
        return weight
    units = weight.shape[1]
    parts = weight.reshape(-1, heads, units, 1, units)
    number = f.counted(heads, weight)
    own = number[:, None, None, None] == number[:, None]
    return f.where(own, parts, 0).reshape(weight.shape[0], heads * units)


def _highway(told: Description) -> float:
    options = told.own_options
    return (
        math.sqrt(1 + 2 * math.exp(options.get("highway_bias", 0))) if "rescale" in options else 1
    )


def _whole_bias(f: Functions, bias: Array, cell: CellInfo, rows: int, hidden: int) -> Array:
    """A bias for all rows: SRU's candidate and its highway's projection have none, so zeros."""
    start = (cell.gates - cell.bias_gates) * hidden
    around = [f.full((count,), 0, bias) for count in (start, rows - start - bias.shape[0])]
    return f.concatenate([around[0], bias, around[1]], 0)
