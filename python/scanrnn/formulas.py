# SPDX-License-Identifier: Apache-2.0
"""A stack of layers in torch's or JAX's own functions, which has derivatives of any order: linear
cells by scans over all steps, all others one step at a time, which is slow and keeps every step. It
serves derivatives of derivatives, and exports.

`f` has the functions of one library: torch/functions.py or jax/functions.py.
"""

from __future__ import annotations

import math
from typing import Any

from . import grid as grids
from .arguments import short_name
from .description import FRESH, Description
from .draws import Masks
from .equations import LINEAR, STEPS, Array, Functions, Own, Parts, normed
from .grid import Grid, Ways
from .ragged import Ragged
from .registry import CellInfo, cells

CELLS = {cell.name: cell for cell in cells()}
# What a description may say; every other option is an error where it is used.
_OPTIONS = {
    "cell", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
    "variant", "domain", "strategy", "options", "longest", "one_step",
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


# ---- a stack


def run(
    f: Functions, x: Array, h_0: Parts, params: Parts, ragged: Ragged, seed: Any,
    told: Description, ways: Ways,
) -> list[Array]:  # fmt: skip
    """y and the states at the end, as a layer gives them in training."""
    if told.one_step:
        x, h_0 = x[None], [state[None] for state in h_0]
        out = run(f, x, h_0, params, ragged, seed, told.as_sequence(), ways)
        return [value[0] for value in out]
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
    if told.cell not in LINEAR:
        ways = ways._replace(scan=None)
    grid = grids.made(f, x, ragged, ways)
    x = grid.opened(x)
    if not first:
        pairs = zip(told.state_shapes(grid.sequences), FRESH[told.cell], strict=True)
        first = [f.full(shape, value, x) for shape, value in pairs]
    masks, finals = Masks(f, told, seed), []
    for index in range(told.num_layers):
        x, ends = _layer(index, x, first, named, grid, masks, told)
        finals += ends
        if index + 1 < told.num_layers:
            x = masks.behind(index, grid.token, x)
    x = grid.closed(x)
    y = x.swapaxes(0, 1) if time_last else x
    states = (f.stack(parts) for parts in zip(*finals, strict=True))
    return [f.cast(value, kind) for value in (y, *states)]


def _layer(
    index: int, x: Array, first: Parts, named: dict[str, Array], grid: Grid, masks: Masks,
    told: Description,
) -> tuple[Array, list[list[Array]]]:  # fmt: skip
    """y [T,B,D*H] and the states of each direction at the end."""
    outs, ends = [], []
    masked = masks.of_input(index, grid.row, x)
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
        sums = normed(f, sums, own["norm_ih"])
    if told.bias:
        sums = sums + _whole_bias(f, own["bias_ih"], cell, sums.shape[-1], hidden)
    vectors = _blocks(own[cell.vectors_name], hidden) if cell.vectors else ()
    vectors = [f.apart(vector) for vector in vectors]
    place, like = 2 * index + direction, sums[..., :hidden]
    moves = [masks.moves(n, place, grid.token, like) for n in ("zoneout", "zoneout_cell")]
    keep = masks.of_readout(place, grid.row, f.full((*grid.row.shape, hidden), 0, x))
    resets = not told.own_options.get("reset_after", 1)
    norm = [own[name] for name in ("norm_c", "norm_c_bias") if name in own]
    unit = Own(f, told.variant, moves, keep, _highway(told), resets, norm)
    if grid.ways.scan is None:
        return _walked(sums, skip, state, own, vectors, unit, grid, direction, told)
    gates, linear = _blocks(sums, hidden), LINEAR[told.cell]
    h, end = grid.scanned(*linear.elements(gates, skip, vectors, unit), state[0], direction)
    y = linear.output(h, gates, skip, unit)
    return y if grid.there is None else f.where(grid.there, y, 0), [end]


def _walked(
    sums: Array, skip: Array, state: list[Array], own: dict[str, Array], vectors: Parts, unit: Own,
    grid: Grid, direction: int, told: Description,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """`unit` has masks of all steps."""
    cell, hidden, f = CELLS[told.cell], told.hidden_size, grid.f
    reset, there, moves = grid.resets[direction], grid.there, unit.moves
    if "weight_hh" in own and cell.recurrence == "dense":
        recurrent = _of_heads(f, own["weight_hh"], int(told.own_options.get("num_heads", 1)))

    def products(h: Array, gates: Parts) -> Parts:
        """R h and its bias by gates; or the last of them is that of r h."""
        if not unit.resets:
            whole = h @ recurrent.T
            whole = normed(f, whole, own["norm_hh"]) if "norm_hh" in own else whole
            return _blocks(whole + own["bias_hh"] if told.bias else whole, hidden)
        rows = [recurrent[at : at + hidden] for at in range(0, 3 * hidden, hidden)]
        bias = _blocks(own["bias_hh"], hidden) if told.bias else (0, 0, 0)
        r, z = (h @ part.T + b for part, b in zip(rows[:2], bias[:2], strict=True))
        return r, z, (f.walked.sigmoid(gates[0] + r) * h) @ rows[2].T + bias[2]

    def step(state: Parts, inputs: Parts) -> tuple[list[Array], Array]:
        (sums, skip), marks = inputs[:2], list(inputs[2:])
        given = [None if m is None else marks.pop() for m in moves[::-1]][::-1]
        before, m = state, ()
        if reset is not None:
            cut = marks.pop(0)
            pairs = zip(state, FRESH[told.cell], strict=True)
            before = [f.where(cut, value, part) for part, value in pairs]
        gates = _blocks(sums, hidden)
        if cell.recurrence == "dense":
            m = products(before[0], gates)
        y, *after = STEPS[told.cell](gates, m, before, skip, vectors, unit._replace(moves=given))
        if "weight_hr" in own:
            y = after[0] = y @ own["weight_hr"].T
        if there is not None:
            (exists,) = marks
            y = f.where(exists, y, 0)
            after = [f.where(exists, *pair) for pair in zip(after, state, strict=True)]
        return after, y

    inputs = [value for value in (sums, skip, reset, there, *moves) if value is not None]
    state, y = grid.ways.walk(step, state, inputs, bool(direction))
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
