# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's cells of version 1 have: matrices [C+H, G*H], the rows of x above those of h.

LSTM has one, of i, j, f, o, where j is g, and adds a number to f in every step. GRU has two, of r
and z and of n, and its r comes before the product with h; its variables are in two scopes.
"""

from __future__ import annotations

from typing import Any

from ..arguments import Array
from ..registry import CellInfo
from .blocks import ROWS, X_ABOVE_H, field
from .unit import Unit

_PEEPHOLES = ("w_f_diag", "w_i_diag", "w_o_diag")
_LSTM = (
    field("kernel", X_ABOVE_H, "weight_ih.igfo", "weight_hh.igfo"),
    field("bias", ROWS, "bias.igfo"),
)
CELLS = {
    "LSTM": _LSTM,
    "PeepholeLSTM": (
        *_LSTM,
        *(field(f"w_{gate}_diag", ROWS, f"weight_ch.{gate}") for gate in "fio"),
    ),
    "GRU": (
        field("gates/kernel", X_ABOVE_H, "weight_ih.rz", "weight_hh.rz"),
        field("gates/bias", ROWS, "bias.rz"),
        field("candidate/kernel", X_ABOVE_H, "weight_ih.n", "weight_hh.n"),
        field("candidate/bias", ROWS, "bias.n"),
    ),
    "RNN": (
        field("kernel", X_ABOVE_H, "weight_ih.h", "weight_hh.h"),
        field("bias", ROWS, "bias.h"),
    ),
}


def says(arrays: dict[str, Any], cell: CellInfo) -> dict[str, Any]:
    return {"reset_after": False} if cell.name == "GRU" else {}


def coming(arrays: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """With forget_bias in the bias."""
    if not unit.cell.vectors:
        why = "expected scanrnn.LSTM with peephole=True"
        unit.refuse(arrays, dict.fromkeys(_PEEPHOLES, why))
    return _f_raised(arrays, unit.forget_bias)


def going(arrays: dict[str, Array], unit: Unit) -> dict[str, Array]:
    """Without it."""
    if unit.cell.name == "GRU" and unit.reset_after:
        raise ValueError("reset_after: 'tensorflow' has GRU with False alone, got True")
    return _f_raised(arrays, -unit.forget_bias)


def _f_raised(arrays: dict[str, Any], by: float) -> dict[str, Any]:
    """The cell adds it in every step, so it is not in the bias."""
    if by == 0 or "bias" not in arrays:
        return arrays
    bias = arrays["bias"].copy()
    bias[bias.size // 2 : bias.size // 4 * 3] += by
    return arrays | {"bias": bias}
