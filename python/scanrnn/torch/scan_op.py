# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence as operators of torch: `torch.ops.scanrnn.scan` and its derivative,
`scan_backward`, which has one, too.

All axes are as their caller has them: memory is the business of arrays/torch.py, as of every
library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..adjoint import scan_vjp
from ..arrays.eager import is_eager
from ..arrays.identify import of_torch
from ..arrays.torch import Torch
from ..scan_call import LINEAR, LOG_OUTPUT, ScanCall
from .batched import of_batches
from .operators import Operator
from .tensors import without_autocast

# reset has as many axes as a, each of a's size or of size 1. sign_h is empty but for log_output.
_HOW = "str form, bool reverse, int axis"
_scan_operator = Operator(
    "scan",
    f"({_HOW}, Tensor a, Tensor b, Tensor? sign_b, Tensor? reset, Tensor? h_0,"
    " Tensor? sign_h_0) -> (Tensor h, Tensor sign_h)",
)
# b is absent in the linear form; what is not needed comes back empty.
_backward_operator = Operator(
    "scan_backward",
    f"({_HOW}, Tensor a, Tensor? b, Tensor? sign_b, Tensor? reset, Tensor? h_0,"
    " Tensor? sign_h_0, Tensor h, Tensor? sign_h, Tensor dh, bool[] needs)"
    " -> (Tensor da, Tensor db, Tensor dh_0)",
)
_ARGUMENTS = len(ScanCall._fields)


def scan(call: ScanCall) -> tuple[Tensor, Tensor | None]:
    """The states, and their signs where they are logarithms."""
    given = [value for value in call[3:] if value is not None]
    if not is_eager(given):
        h, sign_h = _scan_operator(*call)
    elif torch.is_grad_enabled() and any(value.requires_grad for value in given):
        h, sign_h = _Eager.apply(*call)
    else:
        h, sign_h = _scan(*call)
    return h, sign_h if call.form == LOG_OUTPUT else None


# ---- what the operators do


def _scan(*call: Any) -> tuple[Tensor, Tensor]:
    on, told = _plain(ScanCall(*call))
    h, sign_h = on.scan(told)
    return h, h.new_empty(0) if sign_h is None else sign_h


def _scan_backward(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
    told, (h, sign_h, dh, needs) = ScanCall(*call[:_ARGUMENTS]), call[_ARGUMENTS:]
    on, told = _plain(told)
    out = on.scan_backward(told, h, sign_h, dh.resolve_conj().resolve_neg(), needs)
    da, db, dh_0 = (h.new_empty(0) if value is None else value for value in out)
    return da, db, dh_0


def _plain(call: ScanCall) -> tuple[Torch, ScanCall]:
    """Without bits that say how numbers are to be read."""
    values = (value if value is None else value.resolve_conj().resolve_neg() for value in call[3:])
    return Torch(of_torch(call.a.device)), ScanCall(*call[:3], *values)


def _scan_fake(form: str, reverse: bool, axis: int, a: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape), a.new_empty(a.shape if form == LOG_OUTPUT else (0,))


def _scan_backward_fake(*call: Any) -> tuple[Tensor, ...]:
    a, axis, needs = call[3], call[2], call[-1]
    of_state = (*a.shape[:axis], *a.shape[axis + 1 :])
    shapes = (a.shape, a.shape, of_state)
    return tuple(a.new_empty(s if n else (0,)) for s, n in zip(shapes, needs, strict=True))


# ---- derivatives


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    call, (h, sign_h) = ScanCall(*inputs), output
    ctx.mark_non_differentiable(sign_h)
    ctx.set_materialize_grads(False)
    ctx.how = call[:3]
    b = None if call.form == LINEAR else call.b
    ctx.save_for_backward(*call._replace(b=b)[3:], h, sign_h if call.form == LOG_OUTPUT else None)


def _vjp(ctx: Any, backward: Any, dh: Tensor | None) -> Any:
    out: list[Any] = [None] * _ARGUMENTS
    if dh is None:
        return tuple(out)
    of = [ScanCall._fields.index(name) for name in ("a", "b", "h_0")]
    needs = [ctx.needs_input_grad[index] for index in of]
    found = backward(*ctx.how, *ctx.saved_tensors, dh, needs)
    for index, need, value in zip(of, needs, found, strict=True):
        out[index] = value if need else None
    return tuple(out)


def _scan_vjp(ctx: Any, dh: Tensor | None, _: Any) -> Any:
    return _vjp(ctx, _backward_operator, dh)


def _save_back(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.how, ctx.needs = inputs[:3], inputs[-1]
    ctx.save_for_backward(*inputs[3:-1])


def _scan_backward_vjp(ctx: Any, *cotangents: Tensor) -> Any:
    """By torch's own operators and further scans, so that this has derivatives, too."""
    needs, given = ctx.needs_input_grad[3:-1], list(ctx.saved_tensors)
    wanted = [index for index, need in enumerate(needs) if need]

    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        for index, value in zip(wanted, inputs, strict=True):
            given[index] = value
        count = _ARGUMENTS - 3
        told = ScanCall(*ctx.how, *given[:count])
        found = scan_vjp(torch, _states, told, *given[count:], conj=torch.conj)
        return tuple(value for value, need in zip(found, ctx.needs, strict=True) if need)

    needed = [value for value, need in zip(cotangents, ctx.needs, strict=True) if need]
    with without_autocast(needed[0]):
        _, pull = torch.func.vjp(gradients, *(given[index] for index in wanted))
        found = iter(pull(tuple(needed)))
    return None, None, None, *(next(found) if need else None for need in needs), None


def _states(call: ScanCall) -> Tensor:
    return scan(call)[0]


class _Eager(torch.autograd.Function):
    """The same without the operators' way through torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, *call: Any) -> Any:
        out = _scan(*call)
        _save(ctx, call, out)
        return out

    @staticmethod
    @of_batches
    def backward(ctx: Any, dh: Tensor | None, _: Any) -> Any:
        # With create_graph the operator, which has a derivative.
        plain = dh is None or (not torch.is_grad_enabled() and is_eager([dh]))
        return _vjp(ctx, _scan_backward if plain else _backward_operator, dh)


# ---- vmap


def _mapped_first(info: Any, dims: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """A mapped axis becomes the first; what is not mapped has it without a copy."""
    out = []
    for value, dim in zip(values, dims, strict=True):
        if value is None:
            out.append(None)
        elif dim is None:
            out.append(value.unsqueeze(0).expand(info.batch_size, *value.shape))
        else:
            out.append(value.movedim(dim, 0))
    return out


def _scan_mapped(info: Any, in_dims: Any, form: str, reverse: bool, axis: int, *values: Any) -> Any:
    values = _mapped_first(info, in_dims[3:], values)
    h, sign_h = _scan_operator(form, reverse, axis + 1, *values)
    return (h, sign_h), (0, 0 if form == LOG_OUTPUT else None)


def _scan_backward_mapped(
    info: Any, in_dims: Any, form: str, reverse: bool, axis: int, *rest: Any
) -> Any:
    *values, needs = rest
    values = _mapped_first(info, in_dims[3:-1], values)
    out = _backward_operator(form, reverse, axis + 1, *values, needs)
    return out, tuple(0 if need else None for need in needs)


_scan_operator.register(
    work=_scan, fake=_scan_fake, mapped=_scan_mapped, gradient=_scan_vjp, setup=_save
)
_backward_operator.register(
    work=_scan_backward,
    fake=_scan_backward_fake,
    mapped=_scan_backward_mapped,
    gradient=_scan_backward_vjp,
    setup=_save_back,
)
