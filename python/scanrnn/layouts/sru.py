# SPDX-License-Identifier: Apache-2.0
"""What cells of the sru package have beside their arrays' order.

A cell reads x itself for its highway where C is D*H, and has a projection of it elsewhere. A layer
here does so where C is H. With two directions one of both may have a projection and the other not:
where C is 2*H a direction of a cell reads its own half of x, a projection by a part of the unit
matrix. scale_x multiplies x itself, and nothing where there is a projection.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Array
from .unit import Unit


def coming(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """With the projection that a layer here has."""
    scale, arrays = _without(arrays, "scale_x")
    unit.refuse(arrays, {"weight_proj": "projections (n_proj) are not here"})
    arrays = _peepholes(arrays, unit)
    weight, bias = arrays.get("weight"), arrays.get("bias")
    size = 0 if bias is None else bias.size // (2 * unit.directions)
    if weight is None or weight.ndim != 2 or size == 0:
        return arrays  # an error later
    columns = unit.directions * size
    count = weight.shape[1] // columns
    if weight.shape[1] != count * columns or count not in (3, 4):
        return arrays  # likewise
    blocks = weight.reshape(len(weight), unit.directions, size, count)
    return arrays | {"weight": _with_ours(blocks, scale, unit)}


def _with_ours(blocks: Array, scale: Any, unit: Unit) -> Array:
    """The weight of blocks [C, D, H, k]."""
    inputs, directions, size, count = blocks.shape
    if count == 3 and inputs != directions * size:
        raise ValueError(
            f"{unit.label('weight')}: expected four blocks where C is not D*H, got three: a cell "
            "with has_skip_term=False is not here"
        )
    factor = 1.0 if scale is None else float(np.asarray(scale, np.float64).reshape(-1)[0])
    if count == 3 and inputs != size:
        own = factor * _unit_matrix(inputs, directions, size)
        blocks = np.concatenate([blocks, own[..., None].astype(blocks.dtype)], axis=3)
    elif count == 3 and factor != 1:
        raise ValueError(
            f"{unit.label('scale_x')}: expected 1, got {factor}: a cell with rescale=True "
            "multiplies x by it, which is not here where C is H"
        )
    elif count == 4 and inputs == size:
        if not np.array_equal(blocks[..., 3], _unit_matrix(inputs, directions, size)):
            raise ValueError(
                f"{unit.label('weight')}: expected the unit matrix as fourth block: where C is H "
                "a layer here has no projection of x"
            )
        blocks = blocks[..., :3]
    return blocks.reshape(inputs, -1)


def going(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """With the projection that a cell has, and what its state_dict has besides."""
    weight, bias = arrays["weight"], arrays["bias"]
    size = bias.size // (2 * unit.directions)
    blocks = weight.reshape(len(weight), unit.directions, size, -1)
    inputs, directions, size, count = blocks.shape
    if directions == 2 and inputs in (size, 2 * size):
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
    told = {"weight": blocks.reshape(inputs, -1), "weight_c": np.zeros_like(bias)}
    return told | {"bias": bias, "scale_x": np.ones(1, bias.dtype)} | _without(arrays, "weight")[1]


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
