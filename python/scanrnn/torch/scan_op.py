# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence as an operator of torch, `torch.ops.scanrnn.scan`: its own derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core, profile
from ..adjoint import scan_vjp
from ..arrays.identify import short_name
from ..call import log
from .ops import library
from .tensors import device_of, ready, stream_of, workspace

library.define(
    "scan(Tensor a, Tensor b, Tensor? sign_b, Tensor? h_0, bool log_form, bool reverse) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _scan(
    a: Tensor, b: Tensor, sign_b: Tensor | None, h_0: Tensor | None, log_form: bool, reverse: bool
) -> Tensor:
    h = a.new_empty(a.shape)
    steps, rows = a.shape[0], a[:1].numel() if a.shape[0] else 0
    if h.numel() == 0:
        return h
    profile.load_users()
    device = device_of(a.device)
    plan = _core.scan_plan(device, steps, rows, short_name(a.dtype), log_form, None)
    log(plan)

    def flat(value: Tensor | None, *shape: int) -> Tensor | None:
        return None if value is None else ready(value.reshape(*shape))

    _core.scan(
        plan, stream_of(a), flat(a, -1, rows), flat(b, -1, rows), flat(sign_b, -1, rows),
        flat(h_0, rows), h.view(-1, rows), workspace(a, plan.workspace_bytes), log_form, reverse,
    )  # fmt: skip
    return h


def _scan_save(ctx: Any, inputs: Any, output: Tensor) -> None:
    a, b, sign_b, h_0, ctx.log_form, ctx.reverse = inputs
    ctx.save_for_backward(a, b if ctx.log_form else None, sign_b, h_0, output)


def _scan_vjp(ctx: Any, dh: Tensor) -> Any:
    want_h_0 = ctx.needs_input_grad[3]
    da, db, dh_0 = scan_vjp(torch, scan, ctx.saved_tensors, dh, ctx.log_form, ctx.reverse, want_h_0)
    return da, db, None, dh_0, None, None


def scan(
    a: Tensor, b: Tensor, sign_b: Tensor | None, h_0: Tensor | None, log_form: bool, reverse: bool
) -> Tensor:
    out: Tensor = torch.ops.scanrnn.scan(a, b, sign_b, h_0, log_form, reverse)
    return out


def _scan_mapped(
    info: Any, in_dims: Any, a: Tensor, b: Tensor, sign_b: Any, h_0: Any, log_form: bool,
    reverse: bool,
) -> Any:  # fmt: skip
    """Rows are independent, so a mapped axis is one more of them."""

    def last(value: Tensor | None, dim: int | None) -> Tensor | None:
        if value is None:
            return None
        moved = value.unsqueeze(-1) if dim is None else value.movedim(dim, -1)
        return moved.expand(*moved.shape[:-1], info.batch_size)

    values = [last(v, d) for v, d in zip((a, b, sign_b, h_0), in_dims, strict=False)]
    out = torch.ops.scanrnn.scan(*values, log_form, reverse)
    return out, out.dim() - 1


for _device_type in ("CPU", "CUDA"):
    library.impl("scan", _scan, _device_type)
torch.library.register_fake(
    "scanrnn::scan", lambda a, b, sign_b, h_0, log_form, reverse: a.new_empty(a.shape), lib=library
)
torch.library.register_autograd("scanrnn::scan", _scan_vjp, setup_context=_scan_save, lib=library)
torch.library.register_vmap("scanrnn::scan", _scan_mapped, lib=library)
