# SPDX-License-Identifier: Apache-2.0
"""Arrays of every library: what came in, on what device and stream, and memory of the same kind.

`kind_of` finds the kind of a call's first argument; everything else of the call is then of that
kind, and so are its results.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core, arguments
from .arguments import Array
from .kinds import InPlace, Kind
from .origin import described, device_of, library_of, short_name


class Torch(InPlace):
    library = "torch"
    advice = "move it with .to({device!r})"
    making = "make one of it by torch.as_tensor or torch.from_dlpack"
    negative = "torch makes none"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.torch = sys.modules["torch"]

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


_KINDS = {"torch": Torch, "cupy": CuPy}


def kind_of(name: str, value: Any) -> Kind:
    """The kind of an argument; what is no array at all is an error later, as NumPy's kind.

    A library that we do not know comes in as NumPy's arrays on the CPU, and on CUDA as CuPy's or,
    without CuPy, as torch's: as that it comes out again, for its library to take.
    """
    library = library_of(value)
    if library == "jax":
        from .jax.kind import Jax

        return Jax(device_of(name, value))
    if library in _KINDS:
        return _KINDS[library](device_of(name, value))
    if library == "" or device_of(name, value) == "cpu":
        return Kind()
    for bridge in ("cupy", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(bridge)
            return _KINDS[bridge](device_of(name, value))
    raise TypeError(f"{name}: {described(name, value)} needs CuPy or torch to come in through")


def on_host(name: str, value: Any, dtype: Any) -> Array:
    """An array of any library that is on the CPU, as NumPy's."""
    if library_of(value) and device_of(name, value) != "cpu":
        raise TypeError(
            f"{name}: expected an array on cpu, got {described(name, value)}: copy it there first"
        )
    kind = kind_of(name, value)
    return kind.host(kind.array(name, value, dtype))
