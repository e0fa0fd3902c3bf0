# SPDX-License-Identifier: Apache-2.0
"""A stack of layers in torch's own operators, one step at a time, which has derivatives of any
order. It is slow and keeps every step: it serves derivatives of derivatives, and exports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..arguments import short_name
from ..description import FRESH, Description
from ..ragged import Ragged
from ..registry import CellInfo, cells
from .masks import Masks

# ---- cells: from sums with x and with h by gates, the state before, x of the same unit, vectors
# and the variant to y and the state after, each [B,H]

Parts = Sequence[Tensor]
CELLS = {cell.name: cell for cell in cells()}
_CANDIDATES: dict[str, Callable[[Tensor], Tensor]] = {
    "g": lambda v: torch.where(v >= 0, v + 0.5, v.sigmoid()),
    "linear": lambda v: v,
    "tanh": torch.tanh,
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda c: c,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


class Own(NamedTuple):
    """What options make of a cell, masks say of one step, and a highway's input is times."""

    variant: str
    moves: Sequence[Tensor | None] = (None, None)  # by tensor of the state
    keep: Tensor | None = None
    highway: float = 1.0
    resets: bool = False  # GRU's r is in m already
    norm: Sequence[Tensor] = ()  # of c: its scale and what is added

    def moved(self, after: Tensor, before: Tensor, index: int = 0) -> Tensor:
        share = self.moves[index]
        return after if share is None else share * after + (1 - share) * before

    def seen(self, c: Tensor) -> Tensor:
        return _normed(c, self.norm[0]) + self.norm[1] if self.norm else c

    def kept(self, value: Tensor) -> Tensor:
        return value if self.keep is None else value * self.keep


def _normed(value: Tensor, scale: Tensor) -> Tensor:
    """The norm over the last axis, as lib/src/recurrence/norm.h has it."""
    apart = value - value.mean(-1, keepdim=True)
    variance = (apart * apart).mean(-1, keepdim=True)
    return apart / (variance + 1e-5).sqrt() * scale


def _mix(gate: Tensor, kept: Tensor, new: Tensor) -> Tensor:
    """sigmoid(gate) of what is kept, the rest of what is new."""
    return gate.sigmoid() * kept + (-gate).sigmoid() * new


def _mingru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(_mix(-u[0], state[0], _CANDIDATES[own.variant](u[1])), state[0])
    return h, h


def _minlstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    # f / (f + i) as one gate, which does not divide.
    h = _mix(logsigmoid(u[0]) - logsigmoid(u[1]), state[0], _CANDIDATES[own.variant](u[2]))
    h = own.moved(h, state[0])
    return h, h


def _sru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    c = own.moved(_mix(u[1], state[0], u[0]), state[0])
    skip = (u[3] if len(u) == 4 else x) * own.highway
    return _mix(u[2], own.kept(_ACTIVATIONS[own.variant](c)), skip), c


def _peephole_sru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    f, r = (gate + vector * state[0] for gate, vector in zip(u[1:3], vectors, strict=True))
    return _sru([u[0], f, r, *u[3:]], m, state, x, (), own)


def _qrnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    c = own.moved(_mix(u[1], state[0], u[0].tanh()), state[0])
    return u[2].sigmoid() * own.kept(c), c


def _rglru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    log_a = 8 * logsigmoid(-vectors[0]) * u[0].sigmoid()
    a = log_a.exp()
    rest = (-log_a).tanh() * (1 + a * a)  # 1 - a^2 without a subtraction, also where no expm1 is
    h = own.moved(a * state[0] + rest.sqrt() * u[1].sigmoid() * x, state[0])
    return h, h


def _indrnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(_ACTIVATIONS[own.variant](u[0] + vectors[0] * state[0]), state[0])
    return h, h


def _rnn(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    h = own.moved(_ACTIVATIONS[own.variant](u[0] + m[0]), state[0])
    return h, h


def _lstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    i, f, g, o = (of_x + of_h for of_x, of_h in zip(u, m, strict=True))
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    h = own.moved(o.sigmoid() * own.seen(c).tanh(), state[0])
    return h, h, own.moved(c, state[1], 1)


def _peephole_lstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    i, f, g, o = (of_x + of_h for of_x, of_h in zip(u, m, strict=True))
    i, f = i + vectors[0] * state[1], f + vectors[1] * state[1]
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    h = own.moved((o + vectors[2] * c).sigmoid() * c.tanh(), state[0])
    return h, h, own.moved(c, state[1], 1)


def _slstm(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    i, f, z, o = (of_x + of_h for of_x, of_h in zip(u, m, strict=True))
    h, c, n, largest = state
    kept = logsigmoid(f) + largest.detach()
    new = torch.maximum(kept, i).detach()  # only what keeps exponents in range
    forget, take = (kept - new).exp(), (i - new).exp()
    c, n = forget * c + take * z.tanh(), forget * n + take
    h = own.moved(o.sigmoid() * c / n, h)
    return h, h, c, n, new


def _gru(u: Parts, m: Parts, state: Parts, x: Any, vectors: Parts, own: Own) -> Any:
    n = torch.tanh(u[2] + (m[2] if own.resets else (u[0] + m[0]).sigmoid() * m[2]))
    h = own.moved(_mix(u[1] + m[1], state[0], n), state[0])
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
    "PeepholeLSTM": _peephole_lstm,
    "SLSTM": _slstm,
    "GRU": _gru,
}
# Of a description; every other one is an error where it is used.
_OPTIONS = {
    "cell", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
    "variant", "domain", "strategy", "options",
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

    walk: Callable[..., Any]
    sequences: int
    there: Tensor | None  # bools [T,B,1]: which steps exist; None: all
    resets: tuple[Tensor | None, Tensor | None]  # [T,B,1], by direction: no state comes in
    token: Tensor  # [T,B]: the number of a token, by which outputs between layers are dropped
    places: tuple[Tensor, Tensor] | None  # of packed tokens: their steps and sequences


def _grid(x: Tensor, ragged: Ragged, walk: Callable[..., Any]) -> Grid:
    """x is [T,B,C], or [tokens,C] with cu_seqlens."""
    lengths, cu_seqlens, reset, _ = ragged
    device, places = x.device, None
    if cu_seqlens is not None:
        ends = cu_seqlens.to(torch.int64)
        lengths = ends.diff()
        sequences = lengths.shape[0]
        steps = int(lengths.max()) if sequences else 0
        number = torch.arange(x.shape[0], device=device)
        of = torch.searchsorted(ends[1:].contiguous(), number, right=True)
        places = number - ends[of], of
        token = ends[:-1] + torch.arange(steps, device=device)[:, None]
    else:
        steps, sequences = x.shape[:2]
        token = torch.arange(steps * sequences, device=device).reshape(steps, sequences)
    there = None
    if lengths is not None:
        there = (torch.arange(steps, device=device)[:, None] < lengths).unsqueeze(-1)
    forwards = backwards = None
    if reset is not None:
        forwards = reset.unsqueeze(-1)
        if places is not None:
            forwards = _padded(forwards, token, there)
        forwards = forwards if there is None else forwards & there
        # Backwards the same cuts lie behind the step that is walked next.
        backwards = torch.cat([forwards[1:], torch.zeros_like(forwards[:1])])
    return Grid(walk, sequences, there, (forwards, backwards), token, places)


def _padded(value: Tensor, token: Tensor, there: Tensor | None) -> Tensor:
    """[tokens,N] as [T,B,N]; anything where no step is."""
    count = value.shape[0]
    if count == 0:
        return value.new_zeros(*token.shape, value.shape[1])
    return value[token.clamp(max=count - 1)]


# ---- a stack


def run(
    x: Tensor, h_0: Parts, params: Parts, ragged: Ragged, seed: int, told: Description,
    walk: Callable[..., Any],
) -> list[Tensor]:  # fmt: skip
    """y and the states at the end, as the operator `layer` gives them in training, by `walk`, which
    is `one_by_one` or does the same."""
    layer = told.layer(int(x.shape[-1]), short_name(x.dtype))
    names = [name for name, _ in layer.parameters()]
    kind, wide = x.dtype, torch.promote_types(x.dtype, torch.float32)
    x, *values = (value.to(wide) for value in (x, *h_0, *params))
    first, named = values[: len(h_0)], dict(zip(names, values[len(h_0) :], strict=True))
    time_last = told.batch_first and ragged.cu_seqlens is None
    if time_last:
        x = x.transpose(0, 1)
        if ragged.reset is not None:
            ragged = ragged._replace(reset=ragged.reset.transpose(0, 1))
    grid = _grid(x, ragged, walk)
    if grid.places is not None:
        x = _padded(x, grid.token, grid.there)
    if grid.there is not None:
        x = x.masked_fill(~grid.there, 0)  # NaN behind an end reaches nothing
    if not first:
        pairs = zip(told.state_shapes(grid.sequences), FRESH[told.cell], strict=True)
        first = [x.new_full(shape, value) for shape, value in pairs]
    masks, finals = Masks(told, seed), []
    for index in range(told.num_layers):
        x, ends = _layer(index, x, first, named, grid, masks, told)
        finals += ends
        if index + 1 < told.num_layers:
            x = masks.behind(index, grid.token, x)
    if grid.places is not None:
        x = x[grid.places]
    y = x.transpose(0, 1) if time_last else x
    return [y.to(kind), *(torch.stack(parts).to(kind) for parts in zip(*finals, strict=True))]


def _layer(
    index: int, x: Tensor, first: Parts, named: dict[str, Tensor], grid: Grid, masks: Masks,
    told: Description,
) -> tuple[Tensor, list[list[Tensor]]]:  # fmt: skip
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
    return torch.cat(outs, -1), ends


def _direction(
    x: Tensor, skip: Tensor, state: list[Tensor], own: dict[str, Tensor], grid: Grid,
    direction: int, told: Description, index: int, masks: Masks,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """`skip` is x as a highway reads it."""
    cell, hidden = CELLS[told.cell], told.hidden_size
    sums = (x @ own["weight_pr"].T if "weight_pr" in own else x) @ own["weight_ih"].T
    if "norm_ih" in own:
        sums = _normed(sums, own["norm_ih"])
    if told.bias:
        sums = sums + _whole_bias(own["bias_ih"], cell, sums.shape[-1], hidden)
    # Copies: a walk that is one operator reads no two views of one tensor.
    vectors = own[cell.vectors_name].split(hidden) if cell.vectors else ()
    vectors = [vector.clone() for vector in vectors]
    reset, there = grid.resets[direction], grid.there

    place, like = 2 * index + direction, sums[..., :hidden]
    moves = [masks.moves(n, place, grid.token, like) for n in ("zoneout", "zoneout_cell")]
    keep, highway = masks.of_readout(place, x.new_zeros(x.shape[1], hidden)), _highway(told)
    if "weight_hh" in own and cell.recurrence == "dense":
        recurrent = _of_heads(own["weight_hh"], int(told.own_options.get("num_heads", 1)))
    resets = not told.own_options.get("reset_after", 1)
    norm = [own[name] for name in ("norm_c", "norm_c_bias") if name in own]

    def products(h: Tensor, gates: Parts) -> Parts:
        """R h and its bias by gates; or the last of them is that of r h."""
        if not resets:
            whole = h @ recurrent.T
            whole = _normed(whole, own["norm_hh"]) if "norm_hh" in own else whole
            return (whole + own["bias_hh"] if told.bias else whole).split(hidden, -1)
        rows = recurrent.split(hidden)
        bias = own["bias_hh"].split(hidden) if told.bias else (0, 0, 0)
        r, z = (h @ part.T + b for part, b in zip(rows[:2], bias[:2], strict=True))
        return r, z, ((gates[0] + r).sigmoid() * h) @ rows[2].T + bias[2]

    def step(state: Parts, inputs: Parts) -> tuple[list[Tensor], Tensor]:
        (sums, skip), marks = inputs[:2], list(inputs[2:])
        given = [None if m is None else marks.pop() for m in moves[::-1]][::-1]
        unit = Own(told.variant, given, keep, highway, resets, norm)
        before, m = state, ()
        if reset is not None:
            cut = marks.pop(0)
            pairs = zip(state, FRESH[told.cell], strict=True)
            before = [part.masked_fill(cut, value) for part, value in pairs]
        gates = sums.split(hidden, -1)
        if cell.recurrence == "dense":
            m = products(before[0], gates)
        y, *after = STEPS[told.cell](gates, m, before, skip, vectors, unit)
        if "weight_hr" in own:
            y = after[0] = y @ own["weight_hr"].T
        if there is not None:
            (exists,) = marks
            y = y.masked_fill(~exists, 0)
            after = [torch.where(exists, *pair) for pair in zip(after, state, strict=True)]
        return after, y

    inputs = [value for value in (sums, skip, reset, there, *moves) if value is not None]
    state, y = grid.walk(step, state, inputs, bool(direction))
    return y, state


def one_by_one(
    step: Callable[..., Any], state: list[Tensor], inputs: Parts, reverse: bool
) -> tuple[list[Tensor], Tensor]:
    """The state at the end and all y; inputs are [T,B,.]."""
    steps = inputs[0].shape[0]
    if steps == 0:
        return state, state[0].new_zeros(0, *state[0].shape)
    ys = [state[0]] * steps
    for t in range(steps)[:: -1 if reverse else 1]:
        state, ys[t] = step(state, [value[t] for value in inputs])
    return state, torch.stack(ys)


def _of_heads(weight: Tensor, heads: int) -> Tensor:
    """[G*H,H/heads] as the block-diagonal matrix of all units."""
    if heads == 1:
        return weight
    units = weight.shape[1]
    parts = weight.reshape(-1, heads, units, 1, units)
    own = torch.eye(heads, dtype=weight.dtype, device=weight.device)
    return (parts * own[:, None, :, None]).reshape(weight.shape[0], heads * units)


def _highway(told: Description) -> float:
    options = told.own_options
    return (
        math.sqrt(1 + 2 * math.exp(options.get("highway_bias", 0))) if "rescale" in options else 1
    )


def _whole_bias(bias: Tensor, cell: CellInfo, rows: int, hidden: int) -> Tensor:
    """Of all rows: those of SRU's candidate and of its highway's projection have none."""
    start = (cell.gates - cell.bias_gates) * hidden
    return torch.nn.functional.pad(bias, (start, rows - start - bias.shape[0]))
