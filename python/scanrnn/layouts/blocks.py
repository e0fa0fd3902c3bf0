# SPDX-License-Identifier: Apache-2.0
"""Parameters as blocks, and how the blocks lie in another library's arrays.

A block is what one gate has of one parameter: "weight_ih.i" [H, C], "bias_hh.n" [H]. "bias.i" is
the sum of both biases, for libraries that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..arguments import Array
from ..registry import CellInfo

Blocks = dict[str, Array]
SKIP = "s"  # the gate's letter of a highway projection


class Form(NamedTuple):
    """How the blocks of a layer's directions lie in one array. `unpack` takes how many directions
    there are and how many blocks each has."""

    pack: Callable[[list[list[Array]]], Array]
    unpack: Callable[[Array, int, int], list[list[Array]]]


class Field(NamedTuple):
    """One array of a library: its name, and the blocks in it, in its order."""

    name: str
    form: Form
    blocks: tuple[str, ...]

    @property
    def is_bias(self) -> bool:
        return self.blocks[0].startswith("bias")

    @property
    def option(self) -> str:
        """Without which a layer has no such array; empty: all layers have it."""
        parts = {"norm": "layer_norm", "weight_pr": "projection_size"}
        found = [option for part, option in parts.items() if self.blocks[0].startswith(part)]
        return found[0] if found else ""


def field(name: str, form: Form, *groups: str) -> Field:
    """With blocks such as "weight_ih.igfo", a letter for each gate."""
    named = [group.split(".") for group in groups]
    return Field(name, form, tuple(f"{part}.{gate}" for part, gates in named for gate in gates))


# ---- forms; the first four have one direction in an array


def _kernel_of_both(units: list[list[Array]]) -> Array:
    half = len(units[0]) // 2
    x, h = np.concatenate(units[0][:half]), np.concatenate(units[0][half:])
    return np.concatenate([x, h], axis=1).T


def _both_of_kernel(value: Array, _: int, count: int) -> list[list[Array]]:
    half = count // 2
    width = value.shape[0] - value.shape[1] // half  # C
    return [np.split(value.T[:, :width], half) + np.split(value.T[:, width:], half)]


ROWS = Form(  # [G*H, C] or [G*H]
    lambda units: np.concatenate(units[0]),
    lambda value, _, count: [np.split(value, count)],
)
COLUMNS = Form(  # [C, G*H]
    lambda units: np.concatenate(units[0]).T,
    lambda value, _, count: [np.split(value.T, count)],
)
X_ABOVE_H = Form(_kernel_of_both, _both_of_kernel)  # [C+H, G*H]: both matrices
PAIR = Form(  # [2, G*H]: both biases
    lambda units: np.concatenate(units[0]).reshape(2, -1),
    lambda value, _, count: [np.split(value.reshape(-1), count)],
)


def _heads_of(units: list[list[Array]]) -> Array:
    value = np.stack(units[0])
    if value.ndim == 2:
        return value[:, None]
    return value.reshape(len(value), -1, value.shape[2], value.shape[2])


HEADS = Form(  # [G, heads, H/heads, H/heads], or of a bias [G, 1, H]
    _heads_of,
    lambda value, _, count: [list(value.reshape(len(value), -1, *value.shape[3:]))],
)
DIRECTIONS = Form(  # [D, G*H, C] or [D, G*H]
    lambda units: np.stack([np.concatenate(unit) for unit in units]),
    lambda value, _, count: [np.split(unit, count) for unit in value],
)
INTERLEAVED = Form(  # [C, D*H*G], the G values of a unit side by side
    lambda units: np.array(units).transpose(3, 0, 2, 1).reshape(units[0][0].shape[1], -1),
    lambda value, directions, count: list(
        value.reshape(len(value), directions, -1, count).transpose(1, 3, 2, 0)
    ),
)


SHARED = Form(  # [C, P], the same for all directions
    lambda units: units[0][0].T,
    lambda value, directions, count: [[value.T]] * directions,
)
GATES_FIRST = Form(  # [G*D*H]
    lambda units: np.array(units).swapaxes(0, 1).reshape(-1),
    lambda value, directions, count: list(value.reshape(count, directions, -1).swapaxes(0, 1)),
)


# ---- this library's parameters


def own_fields(cell: CellInfo) -> tuple[Field, ...]:
    """The parameters themselves, by their names without the layer."""
    gates, dense = "".join(cell.row_order), cell.recurrence == "dense"
    skip = SKIP if cell.highway and not cell.square else ""
    told = {
        "weight_ih": gates + skip,
        "weight_hh": gates if dense else "",
        cell.vectors_name: _PEEPHOLES.get(cell.name, gates[-cell.vectors :]) * (cell.vectors > 0),
        "bias_ih": gates[-cell.bias_gates :],
        "bias_hh": gates if dense else "",
    }
    if "layer_norm" in dict(cell.options):
        of_c = "c" if cell.states == 2 else ""
        told |= {"norm_ih": gates, "norm_hh": gates if dense else ""}
        told |= {"norm_c": of_c, "norm_c_bias": of_c}
    return tuple(field(name, ROWS, f"{name}.{has}") for name, has in told.items() if has)


_PEEPHOLES = {"PeepholeLSTM": "ifo"}  # where vectors are not those of the last gates
# Parameters of some options: each is one block, whatever its size.
PROJECTIONS = {"weight_hr": "proj_size", "weight_pr": "projection_size"}


def taken_apart(fields: Sequence[Field], params: Mapping[str, Array], hidden_size: int) -> Blocks:
    """Parameters of one direction of a layer, `fields` being their own."""
    blocks: Blocks = {}
    for own in fields:
        value = params.get(own.name)
        if value is not None:  # a layer without biases, or without a projection of the highway
            count = len(value) // hidden_size
            blocks |= dict(zip(own.blocks, np.split(value, count), strict=False))
    blocks |= {f"{name}.": params[name] for name in PROJECTIONS if name in params}
    for name in [name for name in blocks if name.startswith("bias_hh.")]:
        _, gate = name.split(".")
        blocks[f"bias.{gate}"] = blocks[f"bias_ih.{gate}"] + blocks[name]
    return blocks


def put_together(
    fields: Sequence[Field], blocks: Blocks, shapes: Mapping[str, tuple[int, ...]], hidden_size: int
) -> dict[str, Array]:
    """The parameters of these shapes. Where there is one bias, it becomes bias_ih."""
    params = {}
    for own in fields:
        if own.name not in shapes:
            continue
        count = shapes[own.name][0] // hidden_size
        params[own.name] = np.concatenate([_block(blocks, name) for name in own.blocks[:count]])
    return params | {name: blocks[f"{name}."] for name in PROJECTIONS if name in shapes}


def _block(blocks: Blocks, name: str) -> Array:
    part, gate = name.split(".")
    if name in blocks:
        return blocks[name]
    total = blocks[f"bias.{gate}"]
    return np.zeros_like(total) if part == "bias_hh" else total
