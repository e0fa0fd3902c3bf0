# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from ..arguments import Array
from ..call import Call
from ..scan_call import ScanCall, checks_devices
from . import dlpack
from .in_place import InPlace
from .memory import Placing


class CuPy(Placing, InPlace):
    library = "cupy"
    advice = "move it with cupy.asarray on {device}"
    making = "make one of it by cupy.asarray or cupy.from_dlpack"
    negative = "pass cupy.ascontiguousarray of it"

    def __init__(self, device: str, first: str = "x") -> None:
        super().__init__(device, first)
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

    # Everything of a call is allocated where its arrays are.
    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        with self.on_device():
            return super().forward(call)

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        with self.on_device():
            return super().backward(call, y, reserve, dy, dh_n)

    def scan(self, call: ScanCall) -> tuple[Any, Any]:
        with self.on_device():
            return super().scan(call)

    def scan_backward(
        self, call: ScanCall, h: Any, sign_h: Any, dh: Any, wanted: Sequence[bool]
    ) -> tuple[Any, Any, Any]:
        with self.on_device():
            return super().scan_backward(call, h, sign_h, dh, wanted)

    def signs(self, value: Any) -> Array | None:
        if not checks_devices():
            return None
        with self.on_device():
            # A graph that is being captured has no values yet.
            capturing = self.cupy.cuda.get_current_stream().is_capturing()
            return None if capturing else value.get()

    def spread(self, value: Any, shape: Sequence[int]) -> Any:
        return self.cupy.broadcast_to(value, tuple(shape))

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return self.cupy.empty(tuple(shape), like.dtype)

    def work_memory(self, count: int) -> tuple[Any, int]:
        memory = self.cupy.empty(count, np.uint8)
        return memory, int(memory.data.ptr)

    def given(self, name: str, value: Any) -> Any:
        # CuPy makes it safe to use on our stream from now on.
        return None if value is None else dlpack.take(name, value, self.stream(), False)

    def result(self, name: str, value: Any) -> Any:
        return dlpack.take(name, value, self.stream(), True)

    def strides(self, value: Any) -> Sequence[int]:
        return [step // value.itemsize for step in value.strides]

    def packed(self, value: Any) -> Any:
        with self.on_device():
            return self.cupy.array(value, order="C")

    def copy(self, value: Any) -> Any:
        with self.on_device():
            return value.copy()

    def adopted(self, value: _core.Exported) -> Any:
        with self.on_device():
            return self.cupy.from_dlpack(value)

    def uploaded(self, value: Array) -> Any:
        with self.on_device():
            return self.cupy.asarray(value)

    def wait(self) -> None:
        with self.on_device():
            self.cupy.cuda.get_current_stream().synchronize()
