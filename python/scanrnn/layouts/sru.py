# SPDX-License-Identifier: Apache-2.0
"""What cells of the sru package have beside their arrays' order.

A cell reads x itself for its highway where C is D*H, and has a projection of it elsewhere. A layer
here does so where C is H. With two directions one of both may have a projection and the other not:
where C is 2*H a direction of a cell reads its own half of x, a projection by a part of the unit
matrix. scale_x, of cells with rescale=True, multiplies x itself, and nothing where there is a
projection, whose weights begin with it; here both are multiplied. weight_proj [C, P], of cells with
n_proj, stands before the weight of all directions, which has P rows then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arguments import Array
from ..registry import CellInfo
from .unit import Unit


def highway_scale(told: Mapping[str, Any]) -> float:
    """What a layer of these options multiplies its highway by."""
    if not told.get("rescale", False):
        return 1.0
    return math.sqrt(1 + 2 * math.exp(told["highway_bias"]))


def says(arrays: dict[str, Any], cell: CellInfo) -> dict[str, Any]:
    """The options of a cell with these arrays."""
    proj = arrays.get("weight_proj")
    out: dict[str, Any] = {"projection_size": 0 if proj is None else proj.shape[-1]}
    scale = _scale_of(arrays)
    if scale <= 1:  # one below 1 is an error later
        return out | {"rescale": False}
    bias = math.log((scale * scale - 1) / 2)
    # As few digits as give the same: what a user has said, who sees what a float32 has of it.
    eps = np.finfo(np.float32).eps if str(arrays["scale_x"].dtype) != "float64" else 0
    short = round(bias, 6)
    again = highway_scale({"rescale": True, "highway_bias": short})
    return out | {"rescale": True, "highway_bias": short if abs(again - scale) <= eps else bias}


def _scale_of(arrays: Mapping[str, Any]) -> float:
    scale = arrays.get("scale_x")
    return 1.0 if scale is None else float(np.asarray(scale, np.float64).reshape(-1)[0])


def coming(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """With the projection of x that a layer here has for its highway."""
    scale = _scale_of(arrays)
    if scale < 1:
        raise ValueError(
            f"{unit.label('scale_x')}: expected a number of at least 1, as rescale=True makes it, "
            f"got {scale}"
        )
    arrays = _peepholes(_without(arrays, "scale_x")[1], unit)
    weight, bias = arrays.get("weight"), arrays.get("bias")
    size = 0 if bias is None else bias.size // (2 * unit.directions)
    if weight is None or weight.ndim != 2 or size == 0:
        return arrays  # an error later
    columns = unit.directions * size
    count = weight.shape[1] // columns
    if weight.shape[1] != count * columns or count not in (3, 4):
        return arrays  # likewise
    blocks = weight.reshape(len(weight), unit.directions, size, count)
    proj = arrays.get("weight_proj")
    inputs = len(weight) if proj is None else len(proj)
    return arrays | {"weight": _with_ours(blocks, inputs, proj is not None, scale, unit)}


def _with_ours(blocks: Array, inputs: int, projected: bool, scale: float, unit: Unit) -> Array:
    """The weight of blocks [C or P, D, H, k]; `inputs` is C."""
    _, directions, size, count = blocks.shape
    if count == 3 and inputs != directions * size:
        raise ValueError(
            f"{unit.label('weight')}: expected four blocks where C is not D*H, got three: a cell "
            "with has_skip_term=False is not here"
        )
    if projected and inputs in (size, directions * size) and directions == 2:
        raise ValueError(
            f"{unit.label('weight_proj')}: expected one direction where C is H or D*H, as a "
            "direction reads x itself there, and a layer here what is projected"
        )
    if count == 3 and inputs != size:
        own = _unit_matrix(inputs, directions, size)
        blocks = np.concatenate([blocks, own[..., None].astype(blocks.dtype)], axis=3)
    elif count == 4 and inputs == size:
        if not np.array_equal(blocks[..., 3], _unit_matrix(inputs, directions, size)):
            raise ValueError(
                f"{unit.label('weight')}: expected the unit matrix as fourth block: where C is H "
                "a layer here has no projection of x"
            )
        if scale != 1:
            raise ValueError(
                f"{unit.label('scale_x')}: expected 1, got {scale}: where C is H a layer here with "
                "rescale=True multiplies x, and two directions of a cell do not"
            )
        blocks = blocks[..., :3]
    elif count == 4:
        blocks = _scaled(blocks, 1 / scale)
    return blocks.reshape(len(blocks), -1)


def _scaled(blocks: Array, by: float) -> Array:
    """With the projection of x times a number."""
    if by == 1:
        return blocks
    return np.concatenate([blocks[..., :3], (blocks[..., 3:] * by).astype(blocks.dtype)], axis=3)


def going(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """With the projection that a cell has, and what its state_dict has besides."""
    weight, bias, proj = arrays["weight"], arrays["bias"], arrays.get("weight_proj")
    size = bias.size // (2 * unit.directions)
    blocks = weight.reshape(len(weight), unit.directions, size, -1)
    _, directions, size, count = blocks.shape
    inputs = len(weight) if proj is None else len(proj)
    halves = directions == 2 and inputs in (size, 2 * size)
    if halves and (proj is not None or (unit.scale != 1 and inputs == size)):
        name = "projection_size" if proj is not None else "rescale"
        raise ValueError(
            f"{name}: expected none with two directions where C is H or 2*H, as a cell there has "
            "another highway than a layer here"
        )
    if halves:
        own = _unit_matrix(inputs, directions, size)
        if count == 3:
            blocks = np.concatenate([blocks, own[..., None].astype(weight.dtype)], axis=3)
        elif np.array_equal(blocks[..., 3], own):
            blocks = blocks[..., :3]
        else:
            raise ValueError(
                f"{unit.label('weight')}: where C is 2*H each direction of a cell reads its half "
                "of x, but this layer has another projection of x: it cannot go there"
            )
    elif count == 4:
        blocks = _scaled(blocks, unit.scale)
    told = {"weight": blocks.reshape(len(weight), -1), "weight_c": np.zeros_like(bias)}
    told |= {"bias": bias, "scale_x": np.full(1, unit.scale, bias.dtype)}
    return told | _without(arrays, "weight")[1]


def _unit_matrix(inputs: int, directions: int, size: int) -> Array:
    """[C, D, H]: the unit matrix for each direction where C is H, and a part of it for C = D*H."""
    if inputs == size:
        return np.repeat(np.eye(size)[:, None], directions, axis=1)
    return np.eye(inputs).reshape(inputs, directions, size)


def _peepholes(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    if unit.cell.vectors:
        none = {} if "bias" not in arrays else {"weight_c": np.zeros_like(arrays["bias"])}
        return none | arrays
    vectors, arrays = _without(arrays, "weight_c")
    if vectors is not None and np.any(vectors != 0):
        raise ValueError(
            f"{unit.label('weight_c')}: its values are not 0, so the gates read the state: "
            "expected scanrnn.SRU with peephole=True"
        )
    return arrays


def _without(arrays: dict[str, Any], name: str) -> tuple[Any, dict[str, Any]]:
    return arrays.get(name), {key: value for key, value in arrays.items() if key != name}
