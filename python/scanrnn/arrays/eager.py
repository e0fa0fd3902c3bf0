# SPDX-License-Identifier: Apache-2.0
"""torch's tensors whose values are there to be looked at. Whoever imports it has imported torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arguments import Array
from ..scan_call import checks_devices

_PLAIN = (torch.nn.Parameter, Tensor)
# Found once, since they are looked at in every call.
_strided = torch.strided
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_transforms = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


def is_eager(values: Iterable[Tensor]) -> bool:
    """Whether nobody looks on: a compiler, a tracer, a transformation, forward mode, a mode, a kind
    of tensor. And whether the memory holds the values, all of them, without a bit that turns their
    signs."""
    if (
        _is_compiling()
        or _is_tracing()
        or _transforms()
        or _dispatch_modes()
        or _function_modes()
        or forward_ad._current_level >= 0
    ):
        return False
    for value in values:
        if type(value) not in _PLAIN or value.layout is not _strided:
            return False
        if value.is_meta or value.is_neg():
            return False
    return True


def signs_of(value: Tensor) -> Array | None:
    """Those to check before a scan, on the host; None where nobody looks."""
    value = value.resolve_neg()
    if not is_eager([value]):
        return None
    if not value.is_cpu:
        looks = value.is_cuda and checks_devices()
        # A graph that is being captured has no values yet.
        if not looks or torch.cuda.is_current_stream_capturing():
            return None
        value = value.cpu()
    if value.requires_grad:
        value = value.detach()
    # NumPy has no bfloat16.
    signs: Array = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    return signs
