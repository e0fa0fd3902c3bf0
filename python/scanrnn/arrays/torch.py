# SPDX-License-Identifier: Apache-2.0
"""torch's tensors in scanrnn's own layers and scans."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, arguments
from ..arguments import Array
from . import dlpack
from .identify import short_name
from .in_place import InPlace


class Torch(InPlace):
    library = "torch"
    advice = "move it with .to({device!r})"
    making = "make one of it by torch.as_tensor or torch.from_dlpack"
    negative = "torch makes none"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.torch = sys.modules["torch"]

    @functools.cached_property
    def core(self) -> _core.Device:
        return _core.Device(self.device)

    def check(self, name: str, value: Any) -> None:
        if value.requires_grad:
            raise TypeError(
                f"{name}: expected a tensor without gradient, got a torch tensor that requires "
                "grad: use scanrnn.torch, whose modules train, or detach it"
            )
        if value.layout != self.torch.strided or value.is_nested:
            layout = "nested" if value.is_nested else value.layout
            raise TypeError(f"{name}: expected a dense tensor, got layout {layout}")
        if value.is_neg():
            raise TypeError(f"{name}: expected a plain tensor: pass it by .resolve_neg()")

    def stream(self) -> int:
        if self.device == "cpu":
            return 0
        stream: int = self.torch.cuda.current_stream(self.device).cuda_stream
        return stream

    def tensor(self, name: str, value: Any, writable: bool = False) -> _core.Tensor:
        # By its address: it is ours to use on the current stream, and the caller holds it.
        try:
            address = value.data_ptr()
        except RuntimeError as problem:  # inside a transformation it has none
            raise dlpack.refused(name, value, problem) from problem
        return _core.from_address(
            name, address, short_name(value.dtype), self.core, value.shape, value.stride()
        )

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(
            tuple(shape), dtype=getattr(self.torch, dtype), device=self.device, requires_grad=False
        )

    def strides(self, value: Any) -> Sequence[int]:
        strides: Sequence[int] = value.stride()
        return strides

    def packed(self, value: Any) -> Any:
        return value.contiguous() if not value.is_contiguous() else value.clone()

    def copy(self, value: Any) -> Any:
        return value.clone()

    def host(self, value: Any) -> Array:
        raw: Array = value.contiguous().view(self.torch.uint8).numpy()
        return raw.view(arguments.dtype(short_name(value.dtype)))

    def adopted(self, value: _core.Exported) -> Any:
        return self.torch.from_dlpack(value)

    def uploaded(self, values: Sequence[Any]) -> list[Any]:
        out = []
        for value in values:  # through bytes, since torch does not know ml_dtypes
            raw = self.torch.from_numpy(value.view(np.uint8).copy())
            out.append(raw.to(self.device).view(getattr(self.torch, str(value.dtype))))
        if self.device != "cpu":
            self.torch.cuda.current_stream(self.device).synchronize()
        return out
