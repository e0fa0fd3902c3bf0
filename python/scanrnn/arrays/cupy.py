# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from .. import _core, arguments
from .in_place import InPlace


class CuPy(InPlace):
    library = "cupy"
    advice = "move it with cupy.asarray on {device}"
    making = "make one of it by cupy.asarray or cupy.from_dlpack"
    negative = "pass cupy.ascontiguousarray of it"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.cupy = sys.modules["cupy"]

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        device: contextlib.AbstractContextManager[Any] = self.cupy.cuda.Device(
            int(self.device.partition(":")[2])
        )
        return device

    def stream(self) -> int:
        with self.on_device():
            stream: int = self.cupy.cuda.get_current_stream().ptr
        return stream

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        with self.on_device():
            return self.cupy.empty(tuple(shape), arguments.dtype(dtype))

    def strides(self, value: Any) -> Sequence[int]:
        return [step // value.itemsize for step in value.strides]

    def packed(self, value: Any) -> Any:
        with self.on_device():
            return self.cupy.array(value, order="C")

    def adopted(self, value: _core.Exported) -> Any:
        with self.on_device():
            return self.cupy.from_dlpack(value)

    def uploaded(self, values: Sequence[Any]) -> list[Any]:
        with self.on_device():
            out = [self.cupy.asarray(value) for value in values]
            self.cupy.cuda.get_current_stream().synchronize()
        return out
