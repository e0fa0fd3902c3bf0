# SPDX-License-Identifier: Apache-2.0
"""torch's tensors whose values are there to be looked at. Whoever imports it has imported torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arguments import Array
from ..scan_call import checks_devices

_PLAIN = (torch.nn.Parameter, Tensor)


def is_eager(values: list[Tensor]) -> bool:
    """Whether nobody looks on: a compiler, a tracer, a transformation, forward
    mode, a mode, a kind of tensor."""
    if (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    ):
        return False
    for value in values:  # noqa: SIM110 a loop, since it runs for every argument of every call
        if type(value) not in _PLAIN or value.is_meta:
            return False
    return True


def signs_of(value: Tensor) -> Array | None:
    """Those to check before a scan, on the host; None where nobody looks."""
    if not is_eager([value]) or value.layout != torch.strided:
        return None
    if not value.is_cpu:
        looks = value.is_cuda and checks_devices()
        # A graph that is being captured has no values yet.
        if not looks or torch.cuda.is_current_stream_capturing():
            return None
        value = value.cpu()
    if value.requires_grad or value.is_neg():
        value = value.detach().resolve_neg()
    # NumPy has no bfloat16.
    signs: Array = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    return signs
