# SPDX-License-Identifier: Apache-2.0
"""A stack of layers as ONNX has it, for torch.onnx.export: LSTM, GRU and RNN are the operators of
these names, one for each layer; all else is the operator Scan over what formulas.py has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .. import formulas
from ..arguments import short_name
from ..description import Description
from ..grid import Ways
from ..layouts.tables import ONNX_ROWS
from ..ragged import Ragged
from . import functions

# Options that the operators have, and what only training draws by.
_OF_OPERATORS = {"reset_after", "draws", "dropconnect", "input_dropout"}
_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}
# torch's own gates are operators of ONNX, and nothing here is differentiated.
_FUNCTIONS = SimpleNamespace(**{**vars(functions), **functions.walked._asdict()})


def run(
    x: Tensor, h_0: Sequence[Tensor], params: Sequence[Tensor], ragged: Ragged, told: Description
) -> list[Tensor]:
    """y and the states at the end, as the operator `layer` gives them; nothing is dropped."""
    formulas.check(told, "an ONNX form")
    if told.drops:
        raise NotImplementedError(
            "dropout: expected a module in eval mode for ONNX, which draws no masks: call .eval()"
        )
    if told.one_step:
        h_0, told = [state[None] for state in h_0], told.as_sequence()
        return [value[0] for value in run(x[None], h_0, params, ragged, told)]
    if ragged.cu_seqlens is not None:
        raise NotImplementedError(
            "cu_seqlens: expected None for ONNX, whose sequences have an axis of their own: pass "
            "`lengths`, and no PackedSequence"
        )
    beyond = set(told.own_options) - _OF_OPERATORS
    if told.cell not in ONNX_ROWS or ragged.reset is not None or beyond:
        # torch 2.13 cuts a scan that wants derivatives in two, which fails where sizes are symbols.
        x, *values = (value.detach() for value in (x, *h_0, *params))
        h_0, params = values[: len(h_0)], values[len(h_0) :]
        return formulas.run(_FUNCTIONS, x, h_0, params, ragged, 0, told, Ways(_scanned))
    return _operators(x, h_0, params, ragged.lengths, told)


def _scanned(
    step: Callable[..., Any], state: list[Tensor], inputs: list[Tensor], reverse: bool
) -> tuple[list[Tensor], Tensor]:
    """What functions.one_by_one gives, as one operator, whose results may be no views."""
    from torch._higher_order_ops.scan import scan

    def apart(state: Any, inputs: Any) -> Any:
        after, y = step(state, inputs)
        return [part.clone() for part in after], y.clone()

    finals, y = scan(apart, [part.clone() for part in state], inputs, reverse=reverse)
    return finals, y


def _operators(
    x: Tensor, h_0: Sequence[Tensor], params: Sequence[Tensor], lengths: Tensor | None,
    told: Description,
) -> list[Tensor]:  # fmt: skip
    layer = told.layer(int(x.shape[-1]), short_name(x.dtype))
    names = [name for name, _ in layer.parameters()]
    named = dict(zip(names, params, strict=True))
    if lengths is not None:
        lengths = lengths.to(torch.int32)
    x = x.transpose(0, 1) if told.batch_first else x
    finals, directions = [], told.directions
    for index in range(told.num_layers):
        rows = slice(index * directions, (index + 1) * directions)
        weights = _weights(named, index, told)
        x, *ends = _operator(x, weights, lengths, [part[rows] for part in h_0], told)
        finals.append(ends)
    y = x.transpose(0, 1) if told.batch_first else x
    return [y, *(torch.cat(parts) for parts in zip(*finals, strict=True))]


def _weights(named: dict[str, Tensor], index: int, told: Description) -> list[Tensor | None]:
    """W [D,G*H,C], R [D,G*H,H] and B [D,2*G*H] with their rows in ONNX's order."""
    order = [formulas.CELLS[told.cell].row_order.index(row) for row in ONNX_ROWS[told.cell]]

    def ordered(kind: str, direction: int) -> Tensor:
        value = named[f"{kind}_l{index}" + ("_reverse" if direction else "")]
        blocks = value.chunk(len(order))
        return torch.cat([blocks[at] for at in order])

    def stacked(*kinds: str) -> Tensor:
        both = range(told.directions)
        return torch.stack([torch.cat([ordered(kind, d) for kind in kinds]) for d in both])

    bias = stacked("bias_ih", "bias_hh") if told.bias else None
    return [stacked("weight_ih"), stacked("weight_hh"), bias]


def _operator(
    x: Tensor, weights: list[Tensor | None], lengths: Tensor | None, first: list[Tensor],
    told: Description,
) -> list[Tensor]:  # fmt: skip
    """One layer's y [T,B,D*H] and states at the end, each [D,B,H]."""
    steps, batch, _ = x.shape
    directions, hidden = told.directions, told.hidden_size
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if told.cell == "GRU":
        attributes["linear_before_reset"] = int(told.own_options.get("reset_after", 1))
    if told.cell == "RNN":
        attributes["activations"] = [_ACTIVATIONS[told.variant]] * directions
    state = directions, batch, hidden
    shapes = [(steps, directions, batch, hidden), *[state] * told.states]
    y, *finals = torch.onnx.ops.symbolic_multi_out(
        told.cell, [x, *weights, lengths, *first], attributes,
        dtypes=[x.dtype] * len(shapes), shapes=shapes,
    )  # fmt: skip
    return [y.transpose(1, 2).reshape(steps, batch, directions * hidden), *finals]
