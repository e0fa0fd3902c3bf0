# SPDX-License-Identifier: Apache-2.0
"""Weights of another library into a layer, and a layer's weights as that library has them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import arguments
from ..arguments import Array
from ..registry import CellInfo
from . import files, sru
from .coming import Coming, agreeing, check_directions
from .names import Place, named
from .own import Names, by_layer, written
from .tables import LAYOUTS, MAKING_WEIGHTS, Layout
from .unit import Unit


def export(layer: Any, layout: str, forget_bias: float | None = None) -> dict[str, Array]:
    """`Layer.export`: copies of a layer's parameters, as another library has them."""
    cell: CellInfo = layer._cell
    kind = _known(layout, cell)
    directions = 1 + layer.bidirectional
    check_directions(layout, kind, directions)
    option = cell.variant_option
    if option:
        _check_variant(layout, kind, cell, getattr(layer, option))
    _check_kept(layout, kind, cell, vars(layer))
    reset_after = vars(layer).get("reset_after", True)
    scale = sru.highway_scale(vars(layer))
    added = _forget_bias(layout, kind, cell, forget_bias)
    out: dict[str, Array] = {}
    for index, params in enumerate(by_layer(layer)):
        if kind.joined:
            _check_shared([each["weight_pr"] for each in params if "weight_pr" in each])
        for way, arrays in enumerate(written(kind, cell, params, layer.hidden_size)):
            names = Names(kind, index, way, layer.num_layers, directions)
            told = kind.going(arrays, Unit(cell, directions, names, added, reset_after, scale))
            out |= {names(field): np.array(value, order="C") for field, value in told.items()}
    return out


def load(
    weights: Any,
    layout: str,
    cls: type,
    *,
    prefix: str = "",
    forget_bias: float | None = None,
    **options: Any,
) -> Any:
    """A layer of the class `cls` with another library's weights.

    `weights` maps that library's names to arrays of any library on the CPU, or is the path of a
    .npz, .safetensors, .pt or .onnx file; of Keras and TensorFlow it may be a list of arrays.
    `layout` is "torch", "haste", "flashrnn", "asapp-sru", "tensorflow", "keras" or "onnx". Sizes,
    num_layers, bias, bidirectional and dtype are those of the arrays, and `options` are the
    constructor's; a dtype that is given is what the arrays become. "asapp-sru" and lists want
    bidirectional=True where it is so. With `prefix` only names that begin with it count.
    TensorFlow's LSTM adds `forget_bias`, 1 by default, to its forget gate.
    """
    cell = _cell_of(cls, options)
    kind = _known(layout, cell)
    added = _forget_bias(layout, kind, cell, forget_bias)
    _check_kept(layout, kind, cell, options)
    if isinstance(weights, (str, os.PathLike)):
        weights, said = files.read(weights, cell.name)
        options = agreeing(options, said, "the file says so")
    elif isinstance(weights, (list, tuple)) and kind.listed:
        weights = _listed(weights, kind, cell, options)
    if not isinstance(weights, Mapping):
        got = arguments.type_name(weights)
        raise TypeError(f"weights: expected a path or a mapping of names to arrays, got {got}")
    other = next((name for name in weights if not isinstance(name, str)), None)
    if other is not None:
        raise TypeError(f"weights: expected names of arrays that are strings, got {other!r}")
    arguments.text("prefix", prefix)
    chosen = {name[len(prefix) :]: weights[name] for name in weights if name.startswith(prefix)}
    if not chosen:
        raise ValueError(f"weights: expected arrays, got none whose name begins with {prefix!r}")
    option = cell.variant_option
    if option and cell.name in kind.variants:
        options = {option: kind.variants[cell.name][0]} | options
        _check_variant(layout, kind, cell, options[option])
    try:
        return Coming(kind, layout, cell, chosen, options, added).layer(cls)
    except IndexError as problem:
        words = f"weights: an array has fewer axes or elements than {layout!r} says: {problem}"
        raise ValueError(words) from problem


# ---- of the arguments


def _known(layout: str, cell: CellInfo) -> Layout:
    if arguments.text("layout", layout) not in LAYOUTS:
        known = ", ".join(map(repr, LAYOUTS))
        raise ValueError(f"layout: expected one of {known}, got {layout!r}")
    kind = LAYOUTS[layout]
    if kind.cells and cell.name not in kind.cells:
        raise ValueError(f"layout: {layout!r} has {', '.join(kind.cells)}, got {cell.name}")
    return kind


def _cell_of(cls: Any, options: Mapping[str, Any]) -> CellInfo:
    cell = getattr(cls, "_cell", None)
    # Modules of scanrnn.torch have a cell, too, and take a state_dict of a layer.
    if not (isinstance(cls, type) and isinstance(cell, CellInfo) and hasattr(cls, "vjp")):
        raise TypeError(f"cls: expected a class of scanrnn, such as scanrnn.LSTM, got {cls!r}")
    return cell.chosen(cell.own_options() | options)


def _forget_bias(layout: str, kind: Layout, cell: CellInfo, given: float | None) -> float:
    adds = kind.forget_bias is not None and cell.made_by()[0] == "LSTM"  # with peepholes, too
    if given is None:
        return kind.forget_bias if adds and kind.forget_bias else 0.0
    if not adds:
        raise ValueError(
            f"forget_bias: expected None, since {cell.name} of {layout!r} adds none, got {given!r}"
        )
    if not math.isfinite(arguments.real("forget_bias", given)):
        raise ValueError(f"forget_bias: expected a finite number, got {given!r}")
    return float(given)


def _check_kept(layout: str, kind: Layout, cell: CellInfo, told: Mapping[str, Any]) -> None:
    for name, default in cell.options:
        value = told.get(name, default)
        if name in MAKING_WEIGHTS and name not in kind.keeps and value != default:
            raise ValueError(f"{name}: {layout!r} has no layers of it, got {value!r}")


def _check_shared(projections: Sequence[Array]) -> None:
    if any(not np.array_equal(each, projections[0]) for each in projections):
        raise ValueError(
            "weight_pr: expected the same in both directions, which share one projection there, "
            "got others"
        )


def _check_variant(layout: str, kind: Layout, cell: CellInfo, variant: str) -> None:
    known = kind.variants.get(cell.name, cell.variants)
    if variant not in known:
        wanted = " or ".join(map(repr, known))
        raise ValueError(f"{cell.variant_option}: {layout!r} has {wanted}, got {variant!r}")


def _listed(
    arrays: Sequence[Any], kind: Layout, cell: CellInfo, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Arrays by their names, from the order in which Keras' get_weights() has them."""
    fields = kind.fields(cell)
    directions = 1 + arguments.flag("bidirectional", options.get("bidirectional", False))
    told = options.get("bias", True if kind.needs_bias else None)
    bias = _third_is_bias(arrays, cell) if told is None else told
    names = [field.name for field in fields if bias or not field.is_bias]
    units, rest = divmod(len(arrays), len(names))
    if rest or units % directions or not units:
        wanted = len(names) * directions
        raise ValueError(
            f"weights: expected {wanted} arrays for each layer ({', '.join(names)}"
            f"{' of each direction' if directions == 2 else ''}), got {len(arrays)}"
        )
    order = [
        (unit // directions, unit % directions, name) for unit in range(units) for name in names
    ]
    return {
        named(Place(*place), kind.template, units // directions, directions): value
        for place, value in zip(order, arrays, strict=True)
    }


def _third_is_bias(arrays: Sequence[Any], cell: CellInfo) -> bool:
    """A bias has one axis, or GRU's [2, 3*H] two, as a kernel of two inputs has: then it is told by
    where the recurrent kernels lie, which have one shape.
    """
    shapes = [np.shape(array) for array in arrays]
    if not shapes or len(shapes) % 3 != 0:
        return False
    if len(shapes[2]) == 1:
        return True
    with_bias, without = (len(set(shapes[1::each])) == 1 for each in (3, 2))
    if cell.name != "GRU" or any(shape[:1] != (2,) for shape in shapes[2::3]):
        return False
    if with_bias and without and len(shapes) % 2 == 0:
        raise ValueError(
            "bias: expected to be told, since these arrays may be of layers with biases or without"
        )
    return with_bias
