# SPDX-License-Identifier: Apache-2.0
"""torch's own switches of float32 products on CUDA, which say what the factors are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..description import Description
from ..precision import Used
from ..registry import cells

# The classes that torch.nn has, by name: layers, and one step of them. And the cells of ours that
# classes of these names make.
TORCHS_OWN: dict[str, type[nn.Module]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
TORCHS_CELLS: dict[str, type[nn.Module]] = {
    "RNNCell": nn.RNNCell,
    "LSTMCell": nn.LSTMCell,
    "GRUCell": nn.GRUCell,
}
_CELLS = {cell.name for cell in cells() if cell.made_by()[0] in TORCHS_OWN}
_AS_IT_IS = contextlib.nullcontext()
# What torch.backends.cudnn.rnn.fp32_precision and torch.backends.cuda.matmul.fp32_precision ask:
# each look at torch.backends takes as long as a small step of ours.
_fp32_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
_OF_RECURRENCES, _OF_PRODUCTS = ("cuda", "rnn"), ("cuda", "matmul")
_USED = {precision: Used(precision) for precision in ("high", "highest")}


def matmul_precision(cell: str, one_step: bool = False) -> str:
    """By our name. The layers of torch.nn follow the switch of cuDNN's recurrent networks, as they
    do there, which says TF32 unless it is told otherwise; all others that of products, and so do
    torch.nn's cells, which are one step."""
    switch = _OF_RECURRENCES if cell in _CELLS and not one_step else _OF_PRODUCTS
    return "high" if _fp32_precision(*switch) == "tf32" else "highest"


def followed(told: Description, x: Tensor) -> contextlib.AbstractContextManager[None]:
    """For the plan and the call of a layer on x: elsewhere there is nothing to choose."""
    if not x.is_cuda or x.dtype != torch.float32:
        return _AS_IT_IS
    return _USED[matmul_precision(told.cell, told.one_step)]
