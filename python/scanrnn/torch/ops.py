# SPDX-License-Identifier: Apache-2.0
"""Calls of a layer: in eager mode directly, elsewhere by its operators, those of layer_op.py, as
compilers, tracers and transformations see them.

torch's way through its dispatcher takes longer than a small layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..arrays.eager import is_eager
from ..description import Description
from ..ragged import Ragged
from . import layer_op, layer_work, onnx_form
from .batched import is_batched, of_batches
from .layer_op import LAYER, LAYER_BACKWARD
from .layer_work import RECTANGULAR
from .tensors import ready_tokens


def run(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], ragged: Ragged | None,
    seed: Tensor | None, wanted: bool, description: Description,
) -> list[Tensor]:  # fmt: skip
    """y and the states at the end, of one step those alone; `wanted`: gradients may be."""
    training, steps, tensors = wanted or seed is not None, RECTANGULAR, [x, *h_0, *params]
    if ragged is not None:
        steps = ragged[:3]
        tensors += [value for value in steps if value is not None]
    if is_eager(tensors):
        return list(run_eager(x, h_0, params, wanted, description, steps, seed))
    if torch.onnx.is_in_onnx_export():
        out = onnx_form.run(x, h_0, params, Ragged(*steps), description)
    else:
        out = LAYER(x, h_0, params, *steps, seed, training, *description)
    return list(out[description.one_step : 1 + description.states])


def layer(x: Tensor, h_0: list[Tensor], params: list[Tensor], *others: Any) -> Any:
    """As the operator does it, for those who have no use for its gradient."""
    direct = is_eager([x, *h_0, *params])
    return (layer_op.layer if direct else LAYER)(x, h_0, params, *others)


def layer_backward(
    dy: Tensor | None, dh_n: list[Tensor], x: Tensor, h_0: list[Tensor], y: Tensor,
    params: list[Tensor], *others: Any,
) -> list[Tensor]:  # fmt: skip
    """The same of its backward."""
    direct = is_eager([*([] if dy is None else [dy]), *dh_n, x, *h_0, y, *params])
    out: list[Tensor] = (layer_op.layer_backward if direct else LAYER_BACKWARD)(
        dy, dh_n, x, h_0, y, params, *others
    )
    return out


# ---- eager mode


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], x: Tensor, *rest: Tensor) -> Any:
        description, states, steps, seed = call
        y, finals, reserve, planned = layer_work.forward(
            description, x, rest[:states], rest[states:], steps, seed, True
        )
        ctx.set_materialize_grads(False)
        ctx.described = description, states, planned
        ctx.save_for_backward(x, y, reserve, *steps, seed, *rest)
        # y of one step is its h, which is given once.
        return tuple(finals) if description.one_step else (y, *finals)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        given = [d for d in cotangents if d is not None]
        # With create_graph the operator, which has a derivative.
        if torch.is_grad_enabled() or any(map(is_batched, given)) or not is_eager(given):
            return _by_operator(ctx, *cotangents)
        description, states, planned = ctx.described
        need = ctx.needs_input_grad
        nothing = [None] * (len(need) - 2)
        if not given:
            return None, None, *nothing
        x, y, reserve, lengths, cu_seqlens, reset, seed, *rest = ctx.saved_tensors
        steps, dy, dh_n = (lengths, cu_seqlens, reset), None, cotangents
        if not description.one_step:
            dy, *dh_n = cotangents
        if dy is not None and len(given) == 1:  # as nearly always
            dh_n = ()
        elif len(given) < len(cotangents):
            dh_n = layer_work.whole(description, x, steps, dh_n)
        needs = need[1], True in need[2 : 2 + states], True in need[2 + states :]
        dx, dh_0, dparams = layer_work.backward(
            description, x, rest[:states], rest[states:], steps, seed, y, reserve, dy, dh_n, needs,
            planned,
        )  # fmt: skip
        return None, dx, *(dh_0 or nothing[:states]), *(dparams or nothing[states:])


@of_batches
def _by_operator(ctx: Any, *cotangents: Any) -> Any:
    description, states, _ = ctx.described
    needs = ctx.needs_input_grad[1], any(ctx.needs_input_grad[2 + states :])
    of_outputs = (None, *cotangents) if description.one_step else cotangents
    dx, dh_0, dparams = layer_op.pulled_back(ctx, description, states, needs, of_outputs)
    return None, dx, *dh_0, *dparams


# Beneath torch's own `apply`, which asks at length what eager mode has answered but for this one,
# and without that of its backward, which finds this function.
_apply = super(torch.autograd.Function, _Eager).apply
_Eager._backward_cls.apply = _Eager.backward
_alive = torch._C._functorch.unwrap_if_dead  # what torch.func may have left around a tensor


def run_eager(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], wanted: bool, description: Description,
    steps: Sequence[Any] = RECTANGULAR, seed: Tensor | None = None,
) -> Sequence[Tensor]:  # fmt: skip
    """As `run`, of plain tensors in eager mode."""
    states = len(h_0)
    x, *rest = map(_alive, (x, *h_0, *params))
    if wanted:
        x = ready_tokens(x)  # for both passes
        with_gradient: Sequence[Tensor] = _apply((description, states, steps, seed), x, *rest)
        return with_gradient
    training = seed is not None
    y, finals, *_ = layer_work.forward(
        description, x, rest[:states], rest[states:], steps, seed, training,
        shared=description.one_step,
    )  # fmt: skip
    return finals if description.one_step else (y, *finals)
