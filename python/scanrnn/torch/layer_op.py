# SPDX-License-Identifier: Apache-2.0
"""A stack as operators of torch: `torch.ops.scanrnn.layer` and its derivative, `layer_backward`,
which has one, too.

Nothing of torch is linked, so one build goes with every release of it. Shapes: T steps, B batch,
C input size, H hidden size, L layers, D directions. Packed sequences, those of cu_seqlens, have
tokens in the place of T and B, and N sequences as the batch of their states. One step, that of
one_step, has x and y [B,.] and states [B,H].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..description import Description
from ..ragged import Ragged, of_sequence
from . import layer_work
from .batched import call_by_call
from .operators import Operator
from .second import Call, backward_vjp

# What both operators of a layer are told about it; `description` packs the same.
_DESCRIPTION = (
    "str cell, int hidden_size, int num_layers, bool bias, bool batch_first, float dropout, "
    "bool bidirectional, str variant, str domain, str options, str? strategy, int longest, "
    "bool one_step"
)
# Absent where the batch is rectangular.
_STEPS = "Tensor? lengths, Tensor? cu_seqlens, Tensor? reset"
_MOST_STATES = 4
# reserve is what backward needs and nobody else; states that the cell has not are empty.
LAYER = Operator(
    "layer",
    f"(Tensor x, Tensor[] h_0, Tensor[] params, {_STEPS}, Tensor? seed, bool training,"
    f" {_DESCRIPTION}) -> (Tensor y, Tensor h_n, Tensor c_n, Tensor n_n, Tensor m_n,"
    " Tensor reserve)",
)
# [dx, *dh_0, *dparams]: dx is empty when it is not needed, dparams are absent.
LAYER_BACKWARD = Operator(
    "layer_backward",
    "(Tensor? dy, Tensor[] dh_n, Tensor x, Tensor[] h_0, Tensor y, Tensor[] params,"
    f" {_STEPS}, Tensor reserve, Tensor? seed, bool need_x, bool need_params, {_DESCRIPTION})"
    " -> Tensor[]",
)


# ---- forward


def layer(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any,
    seed: Tensor | None, training: bool, *described: Any,
) -> Any:  # fmt: skip
    description, steps = Description(*described), (lengths, cu_seqlens, reset)
    shape = None
    if training:  # as the fake has it
        batch = description.batch(x.shape, of_sequence(*steps))
        shape = _reserve_shape(x, batch, description)
    y, states, reserve, _ = layer_work.forward(
        description, x, h_0, params, steps, seed, training, shape
    )
    if reserve is None:
        reserve = x.new_empty((0, 0), dtype=torch.uint8)
    return _padded(y, states, reserve)


def _reserve_shape(x: Tensor, batch: Any, description: Description) -> tuple[Any, Any]:
    return layer_work.reserve_shape(layer_work.layer_of(x, description), x.device, batch)


def _padded(y: Tensor, states: Sequence[Tensor], reserve: Tensor) -> Any:
    """As the operator gives them, with what the cell has not."""
    return y, *states, *(y.new_empty((0,)) for _ in range(_MOST_STATES - len(states))), reserve


def _fake(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any,
    seed: Tensor | None, training: bool, *described: Any,
) -> Any:  # fmt: skip
    description = Description(*described)
    batch = description.batch(x.shape, of_sequence(lengths, cu_seqlens, reset))
    y = x.new_empty(description.output_shape(x.shape))
    states = [x.new_empty(shape) for shape in description.state_shapes(batch.sequences)]
    shape = _reserve_shape(x, batch, description) if training else (0, 0)
    return _padded(y, states, x.new_empty(shape, dtype=torch.uint8))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, h_0, params, *steps, seed, training = inputs[:8]
    y, *_, reserve = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(reserve)
    ctx.training, ctx.description, ctx.states = training, Description(*inputs[8:]), len(h_0)
    ctx.save_for_backward(x, y, reserve, *steps, seed, *h_0, *params)


def _vjp(ctx: Any, *cotangents: Any) -> Any:
    nothing = (None,) * (5 + len(ctx.description))
    if not ctx.training:
        raise RuntimeError(
            "scanrnn::layer: backward needs what training=True leaves in the reserve; "
            "scanrnn.torch's modules pass it when a gradient may be wanted"
        )
    needs = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2])
    found = pulled_back(ctx, ctx.description, ctx.states, needs, cotangents[:-1])
    return *found, *nothing


def pulled_back(
    ctx: Any, description: Description, states: int, needs: tuple[bool, bool],
    cotangents: Sequence[Any],
) -> tuple[Any, list[Any], list[Any]]:  # fmt: skip
    """Cotangents of x, h_0 and params by the operator, which has a derivative; the first and the
    last where they are needed. Those given are of y and the states, and maybe of others."""
    x, y, reserve, lengths, cu_seqlens, reset, seed, *rest = ctx.saved_tensors
    h_0, params = rest[:states], rest[states:]
    if all(d is None for d in cotangents):
        return None, [None] * len(h_0), [None] * len(params)
    dy, *finals = cotangents[: 1 + description.states]
    finals = layer_work.whole(description, x, (lengths, cu_seqlens, reset), finals)
    dx, *others = LAYER_BACKWARD(
        dy, finals, x, h_0, y, params, lengths, cu_seqlens, reset, reserve, seed, *needs,
        *description,
    )  # fmt: skip
    dparams = others[states:] if needs[1] else [None] * len(params)
    return dx if needs[0] else None, others[:states], dparams


# ---- backward


def layer_backward(
    dy: Tensor | None, dh_n: list[Tensor], x: Tensor, h_0: list[Tensor], y: Tensor,
    params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any, reserve: Tensor,
    seed: Tensor | None, need_x: bool, need_params: bool, *described: Any,
) -> list[Tensor]:  # fmt: skip
    dx, dh_0, dparams = layer_work.backward(
        Description(*described), x, h_0, params, (lengths, cu_seqlens, reset), seed, y, reserve,
        dy, dh_n, (need_x, True, need_params),
    )  # fmt: skip
    return [x.new_empty((0,)) if dx is None else dx, *dh_0, *dparams]


def _backward_fake(
    dy: Any, dh_n: Any, x: Tensor, h_0: list[Tensor], y: Any, params: list[Tensor], lengths: Any,
    cu_seqlens: Any, reset: Any, reserve: Any, seed: Any, need_x: bool, need_params: bool, *_: Any,
) -> list[Tensor]:  # fmt: skip
    given = [*h_0, *params] if need_params else h_0
    return [x.new_empty(x.shape if need_x else (0,)), *(v.new_empty(v.shape) for v in given)]


def _save_back(ctx: Any, inputs: Any, output: Any) -> None:
    dy, dh_n, x, h_0, _, params, *steps, _, seed, ctx.need_x, ctx.need_params = inputs[:13]
    ctx.set_materialize_grads(False)
    ctx.description, ctx.counts = Description(*inputs[13:]), (len(dh_n), len(h_0))
    ctx.save_for_backward(dy, x, *steps, seed, *dh_n, *h_0, *params)


def _backward_vjp(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    """y and the reserve follow from x, h_0 and the parameters, which answer for them."""
    dy, x, *steps, seed = ctx.saved_tensors[:6]
    finals, states = ctx.counts
    rest = list(ctx.saved_tensors[6:])
    dh_n, h_0, params = rest[:finals], rest[finals : finals + states], rest[finals + states :]
    dx = cotangents[0] if ctx.need_x else None
    dh_0, dparams = cotangents[1 : 1 + states], cotangents[1 + states :]
    nothing = (None,) * (7 + len(ctx.description))
    if all(d is None for d in cotangents):
        return None, [None] * finals, None, [None] * states, None, [None] * len(params), *nothing
    call = Call(dy, dh_n, x, h_0, params, Ragged(*steps), seed, ctx.description)
    of_dy, of_dh_n, of_x, of_h_0, of_params = backward_vjp(call, dx, dh_0, dparams)
    return of_dy, of_dh_n, of_x, of_h_0, None, of_params, *nothing


# ---- vmap: a layer by folding the mapped axis into the batch where no gradient is wanted, else
# call by call, since gradients of parameters are sums over the batch


def _mapped(
    info: Any, in_dims: Any, x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any,
    cu_seqlens: Any, reset: Any, seed: Tensor | None, training: bool, *description: Any,
) -> Any:  # fmt: skip
    steps = lengths, cu_seqlens, reset
    x_dim, h_dims, param_dims, *_ = in_dims
    seed_dim, ragged = in_dims[6], any(value is not None for value in steps)
    if training or ragged or seed_dim is not None or any(d is not None for d in param_dims):
        return call_by_call(LAYER)(
            info, in_dims, x, h_0, params, *steps, seed, training, *description
        )
    told = Description(*description)
    count, batch_axis, state_axis = info.batch_size, told.batch_axis, 0 if told.one_step else 1

    def fold(value: Tensor, dim: int | None, axis: int) -> Tensor:
        value = value.unsqueeze(axis) if dim is None else value.movedim(dim, axis)
        return value.expand(*value.shape[:axis], count, *value.shape[axis + 1 :]).flatten(
            axis, axis + 1
        )

    lines = x.shape[batch_axis + (x_dim is not None and x_dim <= batch_axis)]

    def unfold(value: Tensor, axis: int) -> Tensor:
        return value.unflatten(axis, (count, lines))

    y, *states, reserve = LAYER(
        fold(x, x_dim, batch_axis),
        [fold(h, dim, state_axis) for h, dim in zip(h_0, h_dims, strict=True)],
        params, *steps, seed, training, *description,
    )  # fmt: skip
    axes = [state_axis if state.dim() > 1 else None for state in states]
    unfolded = [
        state if axis is None else unfold(state, axis)
        for state, axis in zip(states, axes, strict=True)
    ]
    return (unfold(y, batch_axis), *unfolded, reserve), (batch_axis, *axes, None)


LAYER.register(work=layer, fake=_fake, mapped=_mapped, gradient=_vjp, setup=_save)
LAYER_BACKWARD.register(
    work=layer_backward,
    fake=_backward_fake,
    mapped=call_by_call(LAYER_BACKWARD),
    gradient=_backward_vjp,
    setup=_save_back,
)
