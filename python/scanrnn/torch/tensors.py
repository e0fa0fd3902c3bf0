# SPDX-License-Identifier: Apache-2.0
"""torch's tensors as the library takes them: views of their memory, their device and its stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core
from ..arrays.identify import short_name
from ..arrays.in_place import walkable

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@functools.lru_cache(maxsize=64)
def device_of(device: torch.device) -> _core.Device:
    # Sizes of tensors without memory are those of the CPU's.
    return _core.Device("cpu" if device.type == "meta" else str(device))


def _stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def _walkable(value: Tensor) -> Tensor:
    """With a contiguous last axis and rows that do not overlap, copied where it has not."""
    return value if walkable(value.shape, value.stride()) else value.contiguous()


class Call:
    """Views of tensors for one call, which must outlive it."""

    def __init__(self, like: Tensor) -> None:
        self.device, self.stream = device_of(like.device), _stream(like.device)
        self.held: list[Tensor] = []

    def view(self, name: str, value: Tensor) -> _core.Tensor:
        value = value if value.is_contiguous() else _walkable(value)
        self.held.append(value)
        return _core.from_address(
            name,
            value.data_ptr(),
            short_name(value.dtype),
            device_of(value.device),
            value.shape,
            value.stride(),
        )

    def views(self, name: str, values: Sequence[Tensor]) -> list[_core.Tensor]:
        return [self.view(name, value) for value in values]

    def maybe(self, name: str, value: Tensor | None) -> _core.Tensor | None:
        return None if value is None else self.view(name, value)

    def bytes(self, value: Tensor) -> tuple[int, int]:
        self.held.append(value)
        return value.data_ptr(), value.nbytes


def work_memory(like: Tensor, size: int) -> Tensor:
    return like.new_empty(size, dtype=torch.uint8)


def refuse_transforms(what: str, *values: Tensor | None) -> None:
    """Derivatives that formulas registered by torch.library take no part in.

    In forward mode torch would drop the tangents without a word.
    """
    given = [value for value in values if value is not None]
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(value).tangent is not None for value in given
    ):
        raise NotImplementedError(
            f"{what}: there are no derivatives in forward mode (torch.func.jvp, jacfwd): use "
            "backward()"
        )
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    wrapped = torch._C._functorch.is_gradtrackingtensor
    if any(value.requires_grad and wrapped(value) for value in given):
        raise NotImplementedError(
            f"{what}: there are no derivatives by torch.func.grad, vjp or jacrev: use backward() "
            "or torch.autograd.grad"
        )
