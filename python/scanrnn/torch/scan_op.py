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
from ..arrays.identify import of_torch
from ..arrays.torch import Torch
from ..scan_call import LINEAR, LOG_OUTPUT, ScanCall
from .ops import library
from .tensors import is_eager

# reset has as many axes as a, each of a's size or of size 1. sign_h is empty but for log_output.
_HOW = "str form, bool reverse, int axis"
library.define(
    f"scan({_HOW}, Tensor a, Tensor b, Tensor? sign_b, Tensor? reset, Tensor? h_0,"
    " Tensor? sign_h_0) -> (Tensor h, Tensor sign_h)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
# b is absent in the linear form; what is not needed comes back empty.
library.define(
    f"scan_backward({_HOW}, Tensor a, Tensor? b, Tensor? sign_b, Tensor? reset, Tensor? h_0,"
    " Tensor? sign_h_0, Tensor h, Tensor? sign_h, Tensor dh, bool[] needs)"
    " -> (Tensor da, Tensor db, Tensor dh_0)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_ARGUMENTS = len(ScanCall._fields)


def scan(call: ScanCall) -> tuple[Tensor, Tensor | None]:
    """The states, and their signs where they are logarithms."""
    given = [value for value in call[3:] if value is not None]
    if not is_eager(given):
        h, sign_h = torch.ops.scanrnn.scan(*call)
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
    return _vjp(ctx, torch.ops.scanrnn.scan_backward, dh)


def _save_back(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.how, ctx.needs = inputs[:3], inputs[-1]
    ctx.save_for_backward(*inputs[3:-1])


def _scan_backward_vjp(ctx: Any, *cotangents: Tensor) -> Any:
    """By torch's own operators and further scans, so that this has derivatives, too."""
    again, given = torch.is_grad_enabled(), ctx.saved_tensors
    needs = ctx.needs_input_grad[3:-1]
    with torch.enable_grad():
        # Views: what comes in may depend on what else comes in, and that is not asked for here.
        inputs = [v.view_as(v) if need else v for v, need in zip(given, needs, strict=True)]
        count = _ARGUMENTS - 3
        told = ScanCall(*ctx.how, *inputs[:count])
        found = scan_vjp(torch, _states, told, *inputs[count:], conj=torch.conj)
        pairs = [
            (value, cotangent)
            for value, cotangent, need in zip(found, cotangents, ctx.needs, strict=True)
            if need and value.requires_grad
        ]
        wanted = [value for value, need in zip(inputs, needs, strict=True) if need]
        values, seeds = zip(*pairs, strict=True) if pairs else ((), ())
        gradients = iter(
            torch.autograd.grad(values, wanted, seeds, create_graph=again, allow_unused=True)
        )
    return None, None, None, *(next(gradients) if need else None for need in needs), None


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
    def backward(ctx: Any, dh: Tensor | None, _: Any) -> Any:
        # With create_graph the operator, which has a derivative.
        plain = dh is None or (not torch.is_grad_enabled() and is_eager([dh]))
        return _vjp(ctx, _scan_backward if plain else torch.ops.scanrnn.scan_backward, dh)


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
    h, sign_h = torch.ops.scanrnn.scan(form, reverse, axis + 1, *values)
    return (h, sign_h), (0, 0 if form == LOG_OUTPUT else None)


def _scan_backward_mapped(
    info: Any, in_dims: Any, form: str, reverse: bool, axis: int, *rest: Any
) -> Any:
    *values, needs = rest
    values = _mapped_first(info, in_dims[3:-1], values)
    out = torch.ops.scanrnn.scan_backward(form, reverse, axis + 1, *values, needs)
    return out, tuple(0 if need else None for need in needs)


for _device_type in ("CPU", "CUDA"):
    library.impl("scan", _scan, _device_type)
    library.impl("scan_backward", _scan_backward, _device_type)
for _name, _fake, _mapped, _gradient, _setup in (
    ("scan", _scan_fake, _scan_mapped, _scan_vjp, _save),
    ("scan_backward", _scan_backward_fake, _scan_backward_mapped, _scan_backward_vjp, _save_back),
):
    _full = f"scanrnn::{_name}"
    torch.library.register_fake(_full, _fake, lib=library)
    torch.library.register_autograd(_full, _gradient, setup_context=_setup, lib=library)
    torch.library.register_vmap(_full, _mapped, lib=library)
