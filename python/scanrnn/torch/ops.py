# SPDX-License-Identifier: Apache-2.0
"""The library's calls as operators of torch, `torch.ops.scanrnn.*`, in pure Python: nothing of
torch is linked, so one build goes with every release of it.

`layer` and `layer_backward` run a stack; `scan`, the bare recurrence, is in scan_op.py. All memory
is torch's, all work is on the current stream, and nothing is waited for. Shapes: T steps, B batch,
C input size, H hidden size, L layers, D directions. Packed sequences, those of cu_seqlens, have
tokens in the place of T and B, and N sequences as the batch of their states. One step, that of
one_step, has x and y [B,.] and states [B,H].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..arguments import short_name
from ..arrays.eager import is_eager
from ..description import Batch, Description
from ..ragged import PACKED, Ragged, of_sequence
from . import onnx_form
from .batched import call_by_call, of_batches
from .operators import Operator
from .plans import plan_of
from .second import Call, backward_vjp
from .switches import followed
from .tensors import all_ready, device_of, ready, ready_tokens, stream_of, workspace

# What both operators of a layer are told about it; `description` packs the same.
_DESCRIPTION = (
    "str cell, int hidden_size, int num_layers, bool bias, bool batch_first, float dropout, "
    "bool bidirectional, str variant, str domain, str options, str? strategy, int longest, "
    "bool one_step"
)
# Absent where the batch is rectangular.
_STEPS = "Tensor? lengths, Tensor? cu_seqlens, Tensor? reset"
_RECTANGULAR: tuple[Any, Any, Any] = (None, None, None)
_MOST_STATES = 4
# reserve is what backward needs and nobody else; states that the cell has not are empty.
_layer_operator = Operator(
    "layer",
    f"(Tensor x, Tensor[] h_0, Tensor[] params, {_STEPS}, Tensor? seed, bool training,"
    f" {_DESCRIPTION}) -> (Tensor y, Tensor h_n, Tensor c_n, Tensor n_n, Tensor m_n,"
    " Tensor reserve)",
)
# [dx, *dh_0, *dparams]: dx is empty when it is not needed, dparams are absent.
_backward_operator = Operator(
    "layer_backward",
    "(Tensor? dy, Tensor[] dh_n, Tensor x, Tensor[] h_0, Tensor y, Tensor[] params,"
    f" {_STEPS}, Tensor reserve, Tensor? seed, bool need_x, bool need_params, {_DESCRIPTION})"
    " -> Tensor[]",
)


# ---- descriptions and memory


def _layer_of(x: Tensor, description: Description) -> _core.Layer:
    return description.layer(int(x.shape[-1]), short_name(x.dtype))


@functools.lru_cache(maxsize=1024)
def _reserve_width(layer: _core.Layer, device: _core.Device, layout: str) -> int:
    # 256 tokens of one step make every part of the reserve a whole number of its alignment.
    sizes = (256, 1) if layout == PACKED else (1, 256)
    return layer.plan(device, *sizes, True, None, layout).reserve_bytes // 256


def _reserve_shape(layer: _core.Layer, device: torch.device, batch: Batch) -> tuple[Any, Any]:
    """At least what forward leaves for backward, as an expression that may hold symbolic sizes.

    Every part of it is so many bytes a token, rounded up to 256; so are these rows of tokens.
    """
    steps, sequences, layout = batch
    tokens = steps if layout == PACKED else (steps if steps > 0 else 1) * sequences
    return (tokens + 255) // 256 * 256, _reserve_width(layer, device_of(device), layout)


def _outputs(x: Tensor, batch: Batch, training: bool, description: Description) -> Any:
    y = x.new_empty(description.output_shape(x.shape))
    states = [x.new_empty(shape) for shape in description.state_shapes(batch.sequences)]
    shape = (0, 0)
    if training:
        shape = _reserve_shape(_layer_of(x, description), x.device, batch)
    return y, *states, x.new_empty(shape, dtype=torch.uint8)


def _padded(outputs: Any) -> Any:
    """As the operator gives them, with what the cell has not."""
    y, *states, reserve = outputs
    return y, *states, *(y.new_empty((0,)) for _ in range(_MOST_STATES - len(states))), reserve


# ---- a layer


def _with_axis(values: Sequence[Tensor | None]) -> list[Any]:
    """What one step takes and gives, with the axis of time or of layers that it has not."""
    return [value if value is None else value.unsqueeze(0) for value in values]


def _forward(
    description: Description, x: Tensor, h_0: list[Tensor], params: list[Tensor],
    steps: Sequence[Any], seed: Tensor | None, training: bool, reserve_shape: Any = None,
) -> Any:  # fmt: skip
    """y, the states and the reserve, which inference has not, and whose shape is the least."""
    ragged, reserve, alone = of_sequence(*steps), None, description.one_step
    with followed(description, x):
        planned = plan_of(x, ragged, training, description)
        y, states = x.new_empty(planned.y), [x.new_empty(shape) for shape in planned.states]
        x_in, first, y_out, last = ready_tokens(x), all_ready(h_0), y, states
        if alone:
            first, last = _with_axis(first), _with_axis(last)
            if training:  # else the core takes x and y as they are
                x_in, y_out = _with_axis((x_in, y))
                alone = False
        if training:
            shape = (planned.reserve,) if reserve_shape is None else reserve_shape
            reserve = x.new_empty(shape, dtype=torch.uint8)
        _core.forward(
            planned.core, planned.plan, stream_of(x), all_ready(params), x_in, first, y_out, last,
            workspace(x, planned.workspace), reserve,
            0 if seed is None else seed.item(), alone, ragged,
        )  # fmt: skip
    return y, *states, reserve


def _layer(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any,
    seed: Tensor | None, training: bool, *described: Any,
) -> Any:  # fmt: skip
    description, steps = Description(*described), (lengths, cu_seqlens, reset)
    shape = None
    if training:  # as the fake has it
        batch = description.batch(x.shape, of_sequence(*steps))
        shape = _reserve_shape(_layer_of(x, description), x.device, batch)
    y, *states, reserve = _forward(description, x, h_0, params, steps, seed, training, shape)
    if reserve is None:
        reserve = x.new_empty((0, 0), dtype=torch.uint8)
    return _padded((y, *states, reserve))


def _layer_fake(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any,
    seed: Tensor | None, training: bool, *described: Any,
) -> Any:  # fmt: skip
    description = Description(*described)
    batch = description.batch(x.shape, of_sequence(lengths, cu_seqlens, reset))
    return _padded(_outputs(x, batch, training, description))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, h_0, params, *steps, seed, training = inputs[:8]
    y, *_, reserve = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(reserve)
    ctx.training, ctx.description, ctx.states = training, Description(*inputs[8:]), len(h_0)
    ctx.save_for_backward(x, y, reserve, *steps, seed, *h_0, *params)


def _layer_vjp(ctx: Any, *cotangents: Any) -> Any:
    nothing = (None,) * (5 + len(ctx.description))
    if not ctx.training:
        raise RuntimeError(
            "scanrnn::layer: backward needs what training=True leaves in the reserve; "
            "scanrnn.torch's modules pass it when a gradient may be wanted"
        )
    needs = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2])
    of_outputs = list(cotangents[:-1])  # but of the reserve
    found = _pulled_back(ctx, _backward_operator, needs, of_outputs)
    return *found, *nothing


def _pulled_back(
    ctx: Any, backward: Callable[..., Any], needs: tuple[bool, bool], cotangents: list[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """Cotangents of x, h_0 and params; the first and the last where they are needed."""
    x, y, reserve, lengths, cu_seqlens, reset, seed, *rest = ctx.saved_tensors
    h_0, params = rest[: ctx.states], rest[ctx.states :]
    if all(d is None for d in cotangents):
        return None, [None] * len(h_0), [None] * len(params)
    dy, *finals = cotangents[: 1 + ctx.description.states]
    if any(d is not None for d in finals):
        batch = ctx.description.batch(x.shape, of_sequence(lengths, cu_seqlens, reset))
        shapes = ctx.description.state_shapes(batch.sequences)
        pairs = zip(finals, shapes, strict=True)
        finals = [x.new_zeros(shape) if d is None else d for d, shape in pairs]
    else:
        finals = []
    dx, *others = backward(
        dy, finals, x, h_0, y, params, lengths, cu_seqlens, reset, reserve, seed, *needs,
        *ctx.description,
    )  # fmt: skip
    dparams = others[len(h_0) :] if needs[1] else [None] * len(params)
    return dx if needs[0] else None, others[: len(h_0)], dparams


def _gradients(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], need_x: bool, need_params: bool
) -> list[Tensor]:
    return [
        x.new_empty(x.shape if need_x else (0,)),
        *(h.new_empty(h.shape) for h in h_0),
        *(p.new_empty(p.shape) for p in params if need_params),
    ]


def _layer_backward(
    dy: Tensor | None, dh_n: list[Tensor], x: Tensor, h_0: list[Tensor], y: Tensor,
    params: list[Tensor], lengths: Any, cu_seqlens: Any, reset: Any, reserve: Tensor,
    seed: Tensor | None, need_x: bool, need_params: bool, *described: Any,
) -> list[Tensor]:  # fmt: skip
    out = _gradients(x, h_0, params, need_x, need_params)
    dx, dh_0, dparams = out[0], out[1 : 1 + len(h_0)], out[1 + len(h_0) :]
    description, ragged = Description(*described), of_sequence(lengths, cu_seqlens, reset)
    alignment = 128 if x.is_cuda else 64
    if reserve.data_ptr() % alignment or not reserve.is_contiguous():
        reserve = reserve.clone(memory_format=torch.contiguous_format)  # somebody has moved it
    x_in, first, y, last = ready_tokens(x), all_ready(h_0), ready(y), all_ready(dh_n)
    dy = None if dy is None else ready(dy)
    into, of_first = dx if need_x else None, dh_0
    if description.one_step:
        x_in, y, dy, into = _with_axis((x_in, y, dy, into))
        first, last, of_first = _with_axis(first), _with_axis(last), _with_axis(of_first)
    with followed(description, x):
        planned = plan_of(x, ragged, True, description)
        _core.backward(
            planned.core, planned.plan, stream_of(x), all_ready(params), x_in, first, y, dy, last,
            into, of_first, dparams, workspace(x, planned.workspace), reserve,
            0 if seed is None else seed.item(), ragged,
        )  # fmt: skip
    return out


def _layer_backward_fake(
    dy: Any, dh_n: Any, x: Tensor, h_0: list[Tensor], y: Any, params: list[Tensor], lengths: Any,
    cu_seqlens: Any, reset: Any, reserve: Any, seed: Any, need_x: bool, need_params: bool, *_: Any,
) -> list[Tensor]:  # fmt: skip
    return _gradients(x, h_0, params, need_x, need_params)


def _save_back(ctx: Any, inputs: Any, output: Any) -> None:
    dy, dh_n, x, h_0, _, params, *steps, _, seed, ctx.need_x, ctx.need_params = inputs[:13]
    ctx.set_materialize_grads(False)
    ctx.description, ctx.counts = Description(*inputs[13:]), (len(dh_n), len(h_0))
    ctx.save_for_backward(dy, x, *steps, seed, *dh_n, *h_0, *params)


def _layer_backward_vjp(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
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


# ---- eager mode: the same two functions without the operators' way through torch's dispatcher,
# which takes longer than a small layer


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, description: Description, states: int, steps: Sequence[Any], seed: Any,
        x: Tensor, *rest: Tensor,
    ) -> Any:  # fmt: skip
        h_0, params = list(rest[:states]), list(rest[states:])
        out = _forward(description, x, h_0, params, steps, seed, True)
        ctx.set_materialize_grads(False)
        ctx.description, ctx.states = description, states
        ctx.save_for_backward(x, out[0], out[-1], *steps, seed, *rest)
        return out[description.one_step : -1]  # y of one step is its h, which is given once

    @staticmethod
    @of_batches
    def backward(ctx: Any, *cotangents: Any) -> Any:
        # With create_graph the operator, which has a derivative.
        plain = not torch.is_grad_enabled() and is_eager([d for d in cotangents if d is not None])
        backward = _layer_backward if plain else _backward_operator
        needs = ctx.needs_input_grad[4], any(ctx.needs_input_grad[5 + ctx.states :])
        of_outputs = [None, *cotangents] if ctx.description.one_step else list(cotangents)
        dx, dh_0, dparams = _pulled_back(ctx, backward, needs, of_outputs)
        return None, None, None, None, dx, *dh_0, *dparams


# Beneath torch's own `apply`, which asks at length what eager mode has answered but for this one.
_apply = super(torch.autograd.Function, _Eager).apply
_alive = torch._C._functorch.unwrap_if_dead  # what torch.func may have left around a tensor


def run_eager(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], wanted: bool, description: Description,
    steps: Sequence[Any] = _RECTANGULAR, seed: Tensor | None = None,
) -> Sequence[Tensor]:  # fmt: skip
    """As `run`, of plain tensors in eager mode."""
    states = len(h_0)
    x, *rest = map(_alive, (x, *h_0, *params))
    x = ready_tokens(x)  # for both passes
    if wanted:
        with_gradient: Sequence[Tensor] = _apply(description, states, steps, seed, x, *rest)
        return with_gradient
    training = seed is not None
    out = _forward(description, x, rest[:states], rest[states:], steps, seed, training)
    given: Sequence[Tensor] = out[description.one_step : -1]
    return given


def layer(x: Tensor, h_0: list[Tensor], params: list[Tensor], *others: Any) -> Any:
    """As the operator does it, for those who have no use for its gradient."""
    direct = is_eager([x, *h_0, *params])
    return (_layer if direct else _layer_operator)(x, h_0, params, *others)


def layer_backward(
    dy: Tensor | None, dh_n: list[Tensor], x: Tensor, h_0: list[Tensor], y: Tensor,
    params: list[Tensor], *others: Any,
) -> list[Tensor]:  # fmt: skip
    """The same of its backward."""
    direct = is_eager([*([] if dy is None else [dy]), *dh_n, x, *h_0, y, *params])
    out: list[Tensor] = (_layer_backward if direct else _backward_operator)(
        dy, dh_n, x, h_0, y, params, *others
    )
    return out


def run(
    x: Tensor, h_0: list[Tensor], params: list[Tensor], ragged: Ragged | None,
    seed: Tensor | None, wanted: bool, description: Description,
) -> list[Tensor]:  # fmt: skip
    """y and the states at the end, of one step those alone; `wanted`: gradients may be."""
    training, steps, tensors = wanted or seed is not None, _RECTANGULAR, [x, *h_0, *params]
    if ragged is not None:
        steps = ragged[:3]
        tensors += [value for value in steps if value is not None]
    if is_eager(tensors):
        return list(run_eager(x, h_0, params, wanted, description, steps, seed))
    if torch.onnx.is_in_onnx_export():
        out = onnx_form.run(x, h_0, params, Ragged(*steps), description)
    else:
        out = _layer_operator(x, h_0, params, *steps, seed, training, *description)
    return list(out[description.one_step : 1 + description.states])


# ---- vmap: a layer by folding the mapped axis into the batch where no gradient is wanted, else
# call by call, since gradients of parameters are sums over the batch


def _layer_mapped(
    info: Any, in_dims: Any, x: Tensor, h_0: list[Tensor], params: list[Tensor], lengths: Any,
    cu_seqlens: Any, reset: Any, seed: Tensor | None, training: bool, *description: Any,
) -> Any:  # fmt: skip
    steps = lengths, cu_seqlens, reset
    x_dim, h_dims, param_dims, *_ = in_dims
    seed_dim, ragged = in_dims[6], any(value is not None for value in steps)
    if training or ragged or seed_dim is not None or any(d is not None for d in param_dims):
        return call_by_call(_layer_operator)(
            info, in_dims, x, h_0, params, *steps, seed, training, *description
        )
    told = Description(*description)
    count, batch_axis, state_axis = info.batch_size, told.batch_axis, 0 if told.one_step else 1

    def fold(value: Tensor, dim: int | None, axis: int) -> Tensor:
        value = value.unsqueeze(axis) if dim is None else value.movedim(dim, axis)
        return value.expand(*value.shape[:axis], count, *value.shape[axis + 1 :]).flatten(
            axis, axis + 1
        )

    def unfold(value: Tensor, axis: int) -> Tensor:
        return value.unflatten(axis, (count, value.shape[axis] // count))

    y, *states, reserve = _layer_operator(
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


_layer_operator.register(
    work=_layer, fake=_layer_fake, mapped=_layer_mapped, gradient=_layer_vjp, setup=_save
)
_backward_operator.register(
    work=_layer_backward,
    fake=_layer_backward_fake,
    mapped=call_by_call(_backward_operator),
    gradient=_layer_backward_vjp,
    setup=_save_back,
)
