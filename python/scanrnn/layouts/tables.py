# SPDX-License-Identifier: Apache-2.0
"""What each library's arrays hold: the order of the gates, the shapes, and what has to be said.

Gates by their letters here: i, f, g, o of LSTM; r, z, n of GRU, where h' = z h + (1 - z) n in every
one of these libraries, n = tanh(u + r m) and m the product with h and its bias, or with
reset_after=False n = tanh(u + m) and m the product with r h; x, f, r of SRU, and s of its highway
projection; h where there is one; c of the norm of an LSTM's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..registry import CellInfo
from . import sru, tensorflow
from .blocks import (
    COLUMNS,
    DIRECTIONS,
    GATES_FIRST,
    HEADS,
    INTERLEAVED,
    PAIR,
    PROJECTIONS,
    ROWS,
    SHARED,
    SKIP,
    Field,
    field,
    own_fields,
)
from .unit import Unit

Arrays = dict[str, Any]
Sizes = tuple[int, int]  # C, H


class First(NamedTuple):
    """What tells the sizes: the shape of the first layer's matrix, and what else there is. `label`
    gives an array's name as the caller knows it."""

    cell: CellInfo
    label: Callable[[str], str]
    shape: tuple[int, ...]
    matrix: Field
    arrays: Arrays
    directions: int
    hidden_size: int | None  # if the caller says so, or the second layer does

    @property
    def count(self) -> int:
        return len(self.matrix.blocks)


# Options of which a layer's weights are others.
MAKING_WEIGHTS = (
    "num_heads", "proj_size", "projection_size", "rescale", "reset_after", "layer_norm",
)  # fmt: skip


def _unchanged(arrays: Arrays, unit: Unit) -> Arrays:
    return arrays


class Layout(NamedTuple):
    """One library. `cells` has the fields by cell, the matrix that tells the sizes first.

    `coming` makes of a unit's arrays what `cells` says, `going` the reverse.
    """

    cells: Mapping[str, tuple[Field, ...]]
    sizes: Callable[[First], Sizes]
    axes: int = 2  # of the matrix
    template: str = "{stack}{way}{field}"  # of names
    directions: int = 2  # at most
    joined: bool = False  # both directions are in one array
    needs_bias: bool = False
    listed: bool = False  # also without names, in this order
    forget_bias: float | None = None  # what its LSTM adds to f
    variants: Mapping[str, tuple[str, ...]] = {}  # those that it has, by cell
    raw: tuple[str, ...] = ()  # what is a number beside the arrays
    coming: Callable[[Arrays, Unit], Arrays] = _unchanged
    going: Callable[[Arrays, Unit], Arrays] = _unchanged
    options: Callable[[First, int], dict[str, Any]] = lambda first, hidden_size: {}
    says: Callable[[Arrays, CellInfo], dict[str, Any]] = lambda arrays, cell: {}  # as they came
    keeps: tuple[str, ...] = ()  # of the options that make other weights

    @property
    def own(self) -> bool:
        return not self.cells

    def fields(self, cell: CellInfo) -> tuple[Field, ...]:
        return self.cells[cell.name] if self.cells else own_fields(cell)


# ---- torch, and every cell here


def _own_sizes(first: First) -> Sizes:
    """A layer with a highway has a block less where C is H, and biases [2*H] say which it is."""
    rows, width = first.shape
    arrays = first.arrays
    if first.cell.square:
        return width, width
    if "weight_pr" in arrays:
        width = arrays["weight_pr"].shape[-1]
    if "weight_hh" in arrays and arrays["weight_hh"].ndim == 2:
        return width, rows // first.count
    if not first.matrix.blocks[-1].endswith(f".{SKIP}"):
        return width, rows // first.count
    for name in ("bias_ih", "weight_ch"):
        if name in arrays:
            return width, arrays[name].size // 2
    if first.hidden_size is None and rows == (first.count - 1) * width:
        return width, width
    return width, first.hidden_size or rows // first.count


def _own_options(first: First, hidden_size: int) -> dict[str, Any]:
    arrays, R = first.arrays, first.arrays.get("weight_hh")
    out = {option: arrays[name].shape[0] for name, option in PROJECTIONS.items() if name in arrays}
    if "proj_size" in out and not 0 < out["proj_size"] < hidden_size:
        raise ValueError(
            f"{first.label('weight_hr')}: expected shape (P, {hidden_size}) with P in "
            f"[1, {hidden_size}), as {first.cell.name} of hidden_size {hidden_size} has it, got "
            f"{arrays['weight_hr'].shape}"
        )
    if "weight_hr" not in arrays and R is not None and R.ndim == 2:
        out |= _heads_of(first.cell, hidden_size, R.shape[1])
    return out


def _heads_of(cell: CellInfo, hidden_size: int, width: int) -> dict[str, int]:
    """Heads of so many units; nothing where they cannot be, so that the array's shape is wrong."""
    fits = width > 0 and hidden_size % width == 0 and "num_heads" in dict(cell.options)
    return {"num_heads": hidden_size // width} if fits else {}


def _normed_by(name: str) -> Callable[[Arrays, CellInfo], dict[str, Any]]:
    """Says layer_norm of a cell that may have it, by the array of this name."""

    def says(arrays: Arrays, cell: CellInfo) -> dict[str, Any]:
        return {"layer_norm": name in arrays} if "layer_norm" in dict(cell.options) else {}

    return says


# ---- Haste: transposed, LSTM in the order i, g, f, o with one bias, GRU in the order z, r, n


def _of_columns(first: First) -> Sizes:
    return first.shape[0], first.shape[1] // first.count


def _kernels(order: str) -> tuple[Field, ...]:
    return (
        field("kernel", COLUMNS, f"weight_ih.{order}"),
        field("recurrent_kernel", COLUMNS, f"weight_hh.{order}"),
    )


_HASTE = {
    "LSTM": (
        *_kernels("igfo"),
        field("bias", ROWS, "bias.igfo"),
        field("gamma", PAIR, "norm_ih.igfo", "norm_hh.igfo"),
        field("gamma_h", ROWS, "norm_c.c"),
        field("beta_h", ROWS, "norm_c_bias.c"),
    ),
    "GRU": (
        *_kernels("zrn"),
        field("bias", ROWS, "bias_ih.zrn"),
        field("recurrent_bias", ROWS, "bias_hh.zrn"),
        field("gamma", PAIR, "norm_ih.zrn", "norm_hh.zrn"),
    ),
    "IndRNN": (  # h' = tanh(x kernel + bias + h recurrent_scale)
        field("kernel", COLUMNS, "weight_ih.h"),
        field("recurrent_scale", ROWS, "weight_hh.h"),
        field("bias", ROWS, "bias_ih.h"),
        field("gamma", ROWS, "norm_ih.h"),
    ),
}


def _one_gamma(arrays: Arrays, unit: Unit) -> Arrays:
    """Haste's LayerNormIndRNN has two rows, and reads the first."""
    gamma = arrays.get("gamma")
    if unit.cell.name != "IndRNN" or gamma is None or gamma.ndim != 2 or len(gamma) != 2:
        return arrays  # an error later, where it is one
    return arrays | {"gamma": gamma[0]}


def _two_gammas(arrays: Arrays, unit: Unit) -> Arrays:
    if unit.cell.name != "IndRNN" or "gamma" not in arrays:
        return arrays
    return arrays | {"gamma": np.stack([arrays["gamma"], np.ones_like(arrays["gamma"])])}


# ---- FlashRNN: the caller makes W x, in torch's shape; R [G, heads, D, D], and its LSTM's z is g


def _of_rows(first: First) -> Sizes:
    return first.shape[1], first.shape[0] // first.count


def _joined_bias(arrays: Arrays, unit: Unit) -> Arrays:
    """The bias of all heads, [G, 1, H]."""
    R, b = arrays.get("R"), arrays.get("b")
    if R is None or b is None or R.ndim != 4 or b.shape[1:] != R.shape[1:3]:
        return arrays
    return arrays | {"b": b.reshape(len(b), 1, -1)}


def _bias_by_heads(arrays: Arrays, unit: Unit) -> Arrays:
    R, b = arrays["R"], arrays["b"]
    return arrays | {"b": b.reshape(len(b), *R.shape[1:3])}


def _heads(first: First, hidden_size: int) -> dict[str, Any]:
    R = first.arrays.get("R")
    return {} if R is None or R.ndim != 4 else _heads_of(first.cell, hidden_size, R.shape[3])


def _flashrnn(w: str, r: str, *biases: str) -> tuple[Field, ...]:
    return (
        field("W", ROWS, f"weight_ih.{w}"),
        field("R", HEADS, f"weight_hh.{r}"),
        field("b", HEADS, *biases),
    )


_FLASHRNN = {
    "LSTM": _flashrnn("ifgo", "ifgo", "bias.ifgo"),
    # n has a bias for each of its products, and the one with h comes first.
    "GRU": _flashrnn("rzn", "nrz", "bias_hh.n", "bias.rz", "bias_ih.n"),
    "RNN": _flashrnn("h", "h", "bias.h"),
    "SLSTM": _flashrnn("ifzo", "ifzo", "bias.ifzo"),
}


# ---- sru: columns of a unit side by side; both directions in an array


def _of_sru(first: First) -> Sizes:
    matrix = first.arrays.get("weight_proj", first.arrays["weight"])
    return matrix.shape[0], first.arrays["bias"].size // (2 * first.directions)


_SRU = (
    field("weight", INTERLEAVED, "weight_ih.xfrs"),
    field("bias", GATES_FIRST, "bias_ih.fr"),
    Field("weight_proj", SHARED, ("weight_pr.",)),
)


# ---- Keras: as Haste, with orders of its own; GRU's bias is [2, 3*H], and [3*H] where r comes
# before the product


def _before_by_bias(arrays: Arrays, cell: CellInfo) -> dict[str, Any]:
    if cell.name != "GRU" or "bias" not in arrays:
        return {}
    return {"reset_after": arrays["bias"].ndim != 1}


def _two_biases(arrays: Arrays, unit: Unit) -> Arrays:
    bias = arrays.get("bias")
    if unit.cell.name != "GRU" or bias is None or bias.ndim != 1:
        return arrays
    return arrays | {"bias": np.stack([bias, np.zeros_like(bias)])}


def _one_bias(arrays: Arrays, unit: Unit) -> Arrays:
    if unit.reset_after or "bias" not in arrays:
        return arrays
    return arrays | {"bias": arrays["bias"].sum(0)}


_KERAS = {
    "LSTM": (*_kernels("ifgo"), field("bias", ROWS, "bias.ifgo")),
    "GRU": (*_kernels("zrn"), field("bias", PAIR, "bias_ih.zrn", "bias_hh.zrn")),
    "RNN": (*_kernels("h"), field("bias", ROWS, "bias.h")),
}


# ---- TensorFlow's cells of version 1


def _of_both(first: First) -> Sizes:
    size = first.shape[1] // (first.count // 2)
    return first.shape[0] - size, size


# ---- ONNX: a node's inputs, and the attribute that says which GRU it is

ONNX_ROWS = {"LSTM": "iofg", "GRU": "zrn", "RNN": "h"}  # by operator, in the order of its rows


def _of_node(first: First) -> Sizes:
    return first.shape[2], first.shape[1] // first.count


def _before_by_attribute(arrays: Arrays, cell: CellInfo) -> dict[str, Any]:
    """Where the attribute is not there it is 0."""
    if cell.name != "GRU":
        return {}
    told = np.asarray(arrays.get("linear_before_reset", 0))
    if told.size != 1 or told.item() not in (0, 1):
        raise ValueError(f"linear_before_reset: expected 0 or 1, got {told.tolist()!r}")
    return {"reset_after": bool(told.item())}


def _of_its_kind(arrays: Arrays, unit: Unit) -> Arrays:
    peepholes, weight = arrays.get("P"), arrays.get("W")
    if unit.cell.vectors:
        fits = weight is not None and weight.ndim == 3  # else there is an error later
        shape = (len(weight), weight.shape[1] // 4 * 3) if fits else ()
        return {"P": np.zeros(shape, next(iter(arrays.values())).dtype)} | arrays
    if peepholes is not None and np.any(peepholes != 0):
        raise ValueError(
            f"{unit.label('P')}: its values are not 0, so the gates read c: expected scanrnn.LSTM "
            "with peephole=True"
        )
    return {name: arrays[name] for name in arrays if name not in ("P", "linear_before_reset")}


def _saying_its_kind(arrays: Arrays, unit: Unit) -> Arrays:
    kind = {"linear_before_reset": np.array(int(unit.reset_after))}
    return arrays | (kind if unit.cell.name == "GRU" else {})


def _node(order: str) -> tuple[Field, ...]:
    return (
        field("W", DIRECTIONS, f"weight_ih.{order}"),
        field("R", DIRECTIONS, f"weight_hh.{order}"),
        field("B", DIRECTIONS, f"bias_ih.{order}", f"bias_hh.{order}"),
    )


LAYOUTS = {
    "torch": Layout(
        {}, _own_sizes, template="{field}_l{layer}{reverse}", options=_own_options,
        says=_normed_by("norm_ih"), keeps=MAKING_WEIGHTS,
    ),
    "haste": Layout(
        _HASTE, _of_columns, directions=1, needs_bias=True, variants={"IndRNN": ("tanh",)},
        coming=_one_gamma, going=_two_gammas, says=_normed_by("gamma"), keeps=("layer_norm",),
    ),
    "flashrnn": Layout(
        _FLASHRNN, _of_rows, directions=1, needs_bias=True, variants={"RNN": ("tanh",)},
        coming=_joined_bias, going=_bias_by_heads, options=_heads, keeps=("num_heads",),
    ),
    "asapp-sru": Layout(
        {"SRU": _SRU, "PeepholeSRU": (*_SRU, field("weight_c", GATES_FIRST, "weight_ch.fr"))},
        _of_sru, template="rnn_lst.{layer}.{field}", joined=True, needs_bias=True,
        variants=dict.fromkeys(("SRU", "PeepholeSRU"), ("identity", "tanh")),
        coming=sru.coming, going=sru.going, says=sru.says, keeps=("projection_size", "rescale"),
    ),
    "tensorflow": Layout(
        tensorflow.CELLS, _of_both, needs_bias=True, listed=True, forget_bias=1.0,
        coming=tensorflow.coming, going=tensorflow.going, says=tensorflow.says,
        keeps=("reset_after",),
    ),
    "keras": Layout(
        _KERAS, _of_columns, listed=True, coming=_two_biases, going=_one_bias,
        says=_before_by_bias, keeps=("reset_after",),
    ),
    "onnx": Layout(
        {name: _node(rows) for name, rows in ONNX_ROWS.items()}
        | {"PeepholeLSTM": (*_node(ONNX_ROWS["LSTM"]), field("P", DIRECTIONS, "weight_ch.iof"))},
        _of_node, axes=3, joined=True, raw=("linear_before_reset",), coming=_of_its_kind,
        going=_saying_its_kind, says=_before_by_attribute, keeps=("reset_after",),
    ),
}  # fmt: skip
