# SPDX-License-Identifier: Apache-2.0
"""The derivative of a layer's backward: the layer runs once more, in torch's own operators, and
for linear cells by the library's scans.

What that gives has derivatives in turn, so there are third ones, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import formulas
from ..arrays.eager import is_eager
from ..description import Description
from ..ragged import Ragged
from . import functions as f
from .tensors import without_autocast


class Call(NamedTuple):
    """Arguments of `layer_backward` whose cotangents are wanted, and what it was told."""

    dy: Tensor | None
    dh_n: Sequence[Tensor]  # of all states, or none
    x: Tensor
    h_0: Sequence[Tensor]
    params: Sequence[Tensor]
    ragged: Ragged
    seed: Tensor | None
    told: Description


def backward_vjp(
    call: Call, ddx: Tensor | None, ddh_0: Sequence[Any], ddparams: Sequence[Any]
) -> tuple[Tensor | None, list[Tensor], Tensor, list[Tensor], list[Tensor]]:
    """From cotangents of dx, dh_0 and dparams those of dy, dh_n, x, h_0 and params.

    A cotangent that is None is of zeros.
    """
    formulas.check(call.told, "a second derivative")
    seed: int | Tensor = 0
    if call.seed is not None:
        seed = int(call.seed) if is_eager([call.seed]) else call.seed.to(call.x.device)
    states, outputs = len(call.h_0), [call.dy] if call.dy is not None else []
    cotangents = (*outputs, *call.dh_n)

    def outcome(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, h_0, params = inputs[0], inputs[1 : 1 + states], inputs[1 + states :]
        y, *finals = formulas.run(f, x, h_0, params, call.ragged, seed, call.told, f.WAYS)
        return (*([y] if outputs else []), *(finals if call.dh_n else []))

    wanted = [ddx, *ddh_0, *(ddparams or [None] * len(call.params))]

    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        given, of_outputs = inputs[len(cotangents) :], inputs[: len(cotangents)]
        _, pull = torch.func.vjp(outcome, *given)
        found = pull(of_outputs)
        return tuple(f for f, w in zip(found, wanted, strict=True) if w is not None)

    inputs = (*cotangents, call.x, *call.h_0, *call.params)
    with without_autocast(call.x):
        _, pull = torch.func.vjp(gradients, *inputs)
        found = list(pull(tuple(w for w in wanted if w is not None)))
    dy = found.pop(0) if outputs else None
    finals, (dx, *others) = found[: len(call.dh_n)], found[len(call.dh_n) :]
    return dy, finals, dx, others[:states], others[states:]
