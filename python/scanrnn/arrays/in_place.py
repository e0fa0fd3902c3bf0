# SPDX-License-Identifier: Apache-2.0
"""A library whose memory we can ask for, read and write. Nothing is copied but what cannot be
walked, and nothing is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, arguments
from ..arguments import Array, dtype_name, short_name
from ..call import Call, Placed
from . import dlpack
from .base import ArrayLibrary
from .identify import TITLES, described, device_of, library_of
from .memory import Memory


class InPlace(Memory):
    """A library whose memory we can ask for, read and write: results are allocated by it."""

    advice = ""  # how its user moves an array to {device}
    making = ""  # how its user makes one of another library's array
    negative = ""  # how its user gets rid of negative strides
    producers: tuple[int, ...] = ()  # streams that arrays of this call came with

    # What a library says; stream() is the caller's current one on this device.
    def work_memory(self, count: int) -> tuple[Any, int]:
        """So many bytes, and their address."""
        raise NotImplementedError

    def strides(self, value: Any) -> Sequence[int]:
        """In elements."""
        raise NotImplementedError

    def packed(self, value: Any) -> Any:
        """A contiguous copy."""
        raise NotImplementedError

    def uploaded(self, value: Array) -> Any:
        """NumPy's array as one of this library, for the current stream: nothing is waited for."""
        raise NotImplementedError

    def wait(self) -> None:
        """Until the current stream has done what it was given."""
        raise NotImplementedError

    def check(self, name: str, value: Any) -> None:
        """Raises for what this library alone can do wrong."""

    def adopted(self, value: _core.Exported) -> Any:
        """Memory of a library that we do not know, as an array of this library."""
        raise NotImplementedError

    # What follows from it.
    @property
    def title(self) -> str:
        return TITLES[self.library]

    def owns(self, value: Any) -> bool:
        return library_of(value) == self.library and device_of("", value) == self.device

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        if self.is_strangers(name, value):
            value = self.bridged(name, value, False)
        if not self.owns(value):
            ours = library_of(value) == self.library
            advice = (self.advice if ours else self.making).format(device=self.device)
            raise TypeError(
                f"{name}: expected {self.title} on {self.device}, as {self.first} is one, "
                f"got {described(name, value)}: {advice}"
            )
        self.check(name, value)
        found = dtype_name(value)
        parts = "complex" in found and not any("complex" in dtype for dtype in dtypes)
        advice = "pass its real and imaginary parts" if parts else ""
        arguments.check_dtype(name, found, dtypes, advice)
        strides = self.strides(value)
        if any(step < 0 for step in strides):
            raise ValueError(
                f"{name}: expected strides of at least 0, got {tuple(strides)}: {self.negative}"
            )
        return value

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        dtypes = arguments.DTYPES if dtype is None else (short_name(dtype),)
        value = self.operand(name, value, dtypes)
        return value if walkable(value.shape, self.strides(value)) else self.packed(value)

    def tokens(self, x: Any) -> Any:
        """x of a layer, copied where on a GPU it would take a product for each of many parts."""
        whole = self.device == "cpu" or x.ndim != 3 or even(x.shape, self.strides(x))
        return x if whole else self.packed(x)

    def bools(self, name: str, value: Any) -> Any:
        if type(value) is np.ndarray:
            value = self.uploaded(arguments.checked(name, value, ("bool",)))
        return self.operand(name, value, ("bool",))

    def integers(self, name: str, value: Any) -> Any:
        if type(value) is np.ndarray:
            value = self.uploaded(arguments.integers(name, value))
        return self.operand(name, value, arguments.INTEGERS)

    def to_check(self, name: str, value: Any) -> Array | None:
        if self.device == "cpu" or type(value) is not np.ndarray:
            return None
        values: Array = arguments.integers(name, value)
        return values

    def writable(self, name: str, value: Any, dtype: Any) -> Any:
        if self.is_strangers(name, value):
            value = self.bridged(name, value, True)
        value = self.operand(name, value, (short_name(dtype),))
        if not contiguous(value.shape, self.strides(value)):
            raise ValueError(
                f"{name}: expected memory in C order, for the call to write, got strides "
                f"{tuple(self.strides(value))}"
            )
        return value

    def for_layer(self, name: str, device: str) -> ArrayLibrary:
        if device != self.device:
            known = self.device.partition(":")[0] in ("cpu", "cuda")
            raise TypeError(
                f"{name}: expected an array on {device}, where the layer is, got {self.title} on "
                f"{self.device}: {self.advice.format(device=device)}"
                + (f", or make the layer with device={self.device!r}" if known else "")
            )
        return self

    def is_strangers(self, name: str, value: Any) -> bool:
        """Whether it is an array of a library that we do not know, on this device."""
        return library_of(value) == "other" and device_of(name, value) == self.device

    def bridged(self, name: str, value: Any, writable: bool) -> Any:
        stream = self.stream()
        if hasattr(value, "__dlpack__"):
            tensor = dlpack.take(name, value, None if self.device == "cpu" else stream, writable)
        else:
            interface = value.__cuda_array_interface__
            tensor = _core.from_interface(name, interface)
            if writable and interface["data"][1]:
                raise ValueError(f"{name}: expected memory to write, got read-only")
            theirs = interface.get("stream")
            if theirs is not None:
                _core.order_streams(_core.Device(self.device), theirs, stream)
                self.producers += (theirs,)
        return self.adopted(_core.Exported(tensor, value, stream))

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        call.x = self.tokens(call.x)
        return super().forward(call)

    def finish(self) -> None:
        # What a producer does next on a stream that it named waits for what we have enqueued.
        for stream in self.producers:
            _core.order_streams(_core.Device(self.device), self.stream(), stream)

    def workspace(self, count: int) -> Any:
        return None if self.device == "cpu" else self.bytes(count)

    def reserve(self, call: Call, count: int) -> Any:
        return super().reserve(call, count) if self.device == "cpu" else self.bytes(count)

    def bytes(self, count: int) -> tuple[int, int, Any]:
        """Memory to work in, aligned to 256 bytes: address, count, and what keeps it."""
        slack = 256
        memory, address = self.work_memory(count + slack)
        return address + -address % slack, count, memory

    def params(self, placed: Placed) -> _core.Tensors:
        def make(arrays: list[Array]) -> _core.Tensors:
            held = [self.uploaded(value) for value in arrays]
            self.wait()  # other streams read them, too
            return _core.Tensors("params", self.all_given("params", held))

        views: _core.Tensors = placed.kept((self.library, self.device), make)
        return views


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """In C order, without gaps."""
    packed = 1
    for size, step in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and step != packed:
            return 0 in shape
        packed *= size
    return True


def walkable(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """The last axis is contiguous, and rows do not overlap."""
    if 0 in shape or not shape:
        return True
    last = shape[-1]
    if last != 1 and strides[-1] != 1:
        return False
    # A loop, since it runs for every argument of every call.
    for size, step in zip(shape[:-1], strides[:-1], strict=True):
        if size != 1 and step < last:
            return False
    return True


MOST_PRODUCTS = 8  # that a layer makes in place of one before a copy is the lesser evil


def even(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether tokens on the first two of three axes have one distance, in their order, or there are
    but a few parts that have."""
    outer, inner, _ = shape
    if outer <= MOST_PRODUCTS or inner == 1:
        return True
    return strides[0] == inner * strides[1]
