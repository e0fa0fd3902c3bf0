# SPDX-License-Identifier: Apache-2.0
"""torch's tensors in scanrnn's own layers and scans."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, arguments
from ..arguments import Array, short_name
from .in_place import InPlace


class Torch(InPlace):
    library = "torch"
    advice = "move it with .to({device!r})"
    making = "make one of it by torch.as_tensor or torch.from_dlpack"
    negative = "torch makes none"

    def __init__(self, device: str, first: str = "x") -> None:
        super().__init__(device, first)
        self.torch = sys.modules["torch"]
        self.own_device = _device(device)

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        # What nearly every call is given passes here; everything else has a reason of its own.
        torch = self.torch
        if (
            type(value) is torch.Tensor
            and value.dtype is _dtype(dtype)
            and value.device == self.own_device
            and value.is_contiguous()
            and value.layout is torch.strided
            and not (value.requires_grad or value.is_nested or value.is_neg())
        ):
            return value
        return super().array(name, value, dtype)

    def check(self, name: str, value: Any) -> None:
        if value.requires_grad:
            raise TypeError(
                f"{name}: expected a tensor without gradient, got a torch tensor that requires "
                "grad: use scanrnn.torch, whose modules train, or detach it"
            )
        if value.layout != self.torch.strided or value.is_nested:
            layout = "nested" if value.is_nested else value.layout
            raise TypeError(f"{name}: expected a dense tensor, got layout {layout}")
        if value.is_neg() or value.is_conj():
            way = "neg" if value.is_neg() else "conj"
            raise TypeError(f"{name}: expected a plain tensor: pass it by .resolve_{way}()")

    def signs(self, value: Any) -> Array | None:
        from .eager import signs_of  # which imports torch

        return signs_of(value)

    def stream(self) -> int:
        if self.device == "cpu":
            return 0
        # torch.cuda.current_stream makes an object around it, which takes longer.
        stream: int = self.torch._C._cuda_getCurrentRawStream(self.own_device.index)
        return stream

    def spread(self, value: Any, shape: Sequence[int]) -> Any:
        return value.expand(shape)

    def turned(self, value: Any, order: Sequence[int]) -> Any:
        return value.permute(order)

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        if type(like) is self.torch.Tensor:
            return like.new_empty(shape)
        return self.torch.empty(tuple(shape), dtype=like.dtype, device=self.device)

    def work_memory(self, count: int) -> tuple[Any, int]:
        memory = self.torch.empty(count, dtype=self.torch.uint8, device=self.device)
        return memory, memory.data_ptr()

    def strides(self, value: Any) -> Sequence[int]:
        strides: Sequence[int] = value.stride()
        return strides

    def packed(self, value: Any) -> Any:
        return value.contiguous() if not value.is_contiguous() else value.clone()

    def copy(self, value: Any) -> Any:
        return value.clone()

    def versions(self, *values: Any) -> tuple[int, ...]:
        return tuple(0 if value.is_inference() else value._version for value in values)

    def host(self, value: Any) -> Array:
        raw: Array = value.reshape(-1).view(self.torch.uint8).numpy()  # a scalar has no bytes
        return raw.view(arguments.dtype(short_name(value.dtype))).reshape(value.shape)

    def adopted(self, value: _core.Exported) -> Any:
        return self.torch.from_dlpack(value)

    def uploaded(self, value: Array) -> Any:
        if value.size == 0:  # whose strides are no bytes' to torch
            return self.torch.empty(value.shape, dtype=_dtype(value.dtype), device=self.device)
        # Through bytes, since torch does not know ml_dtypes.
        raw = self.torch.from_numpy(value.reshape(-1).view(np.uint8).copy())
        placed = raw.to(self.device, non_blocking=True).view(_dtype(value.dtype))
        return placed.reshape(value.shape)

    def wait(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.current_stream(self.device).synchronize()


@functools.lru_cache(maxsize=64)
def _device(name: str) -> Any:
    return sys.modules["torch"].device(name)


@functools.lru_cache(maxsize=16)
def _dtype(dtype: Any) -> Any:
    """torch's of the same name; None for None."""
    return None if dtype is None else getattr(sys.modules["torch"], short_name(dtype))
