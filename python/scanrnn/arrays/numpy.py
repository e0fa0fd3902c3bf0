# SPDX-License-Identifier: Apache-2.0
"""NumPy's arrays, which go to a CUDA device and back in each call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, arguments
from ..arguments import Array
from ..call import Placed
from ..scan_call import Lines
from . import dlpack
from .base import ArrayLibrary
from .identify import described, library_of
from .memory import Memory, Placing

# Large results begin at whole cache lines, so that they can be written past the caches; NumPy's own
# begin 16 bytes into one. It asks for huge pages for arrays from this size on.
LARGE, LINE = 1 << 22, 64


class NumPy(Memory):
    """On the CPU, in place."""

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        """`value` as the core can walk it, or an error that says what would do."""
        if type(value) is np.ndarray:
            flags = value.flags  # what nearly every array is comes first
            if value.dtype is dtype and flags.c_contiguous and flags.aligned:
                return value
        return arguments.array(name, self.own(name, value), dtype)

    def own(self, name: str, value: Any) -> Any:
        """An array of another library's as NumPy's; what is no array is an error later."""
        library = library_of(value)
        if library == "other":
            try:
                value = np.from_dlpack(value)
            except dlpack.REFUSALS as problem:
                raise dlpack.refused(name, value, problem) from problem
        elif library:
            raise TypeError(
                f"{name}: expected a NumPy array, as {self.first} is one, got "
                f"{described(name, value)}"
            )
        return value

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        checked = arguments.checked(name, self.own(name, value), dtypes)
        return arguments.forwards(np.asarray(checked))  # a matrix' views keep its two axes

    def bools(self, name: str, value: Any) -> Any:
        return self.operand(name, value, ("bool",))

    def integers(self, name: str, value: Any) -> Any:
        return arguments.integers(name, self.own(name, value))

    def writable(self, name: str, value: Any, dtype: Any) -> Any:
        value = arguments.checked(name, self.own(name, value), (str(dtype),))
        if not (value.flags.c_contiguous and value.flags.aligned and value.flags.writeable):
            what = "writable" if value.flags.writeable else "read-only"
            raise ValueError(
                f"{name}: expected memory in C order that the call can write, got {what} memory "
                f"with strides {value.strides}"
            )
        return value

    def signs(self, value: Any) -> Array | None:
        signs: Array = value
        return signs

    def spread(self, value: Any, shape: Sequence[int]) -> Any:
        return np.broadcast_to(value, shape)

    def strides(self, value: Any) -> Sequence[int]:
        return [step // value.itemsize for step in value.strides]

    def for_layer(self, name: str, device: str) -> ArrayLibrary:
        return self if device == "cpu" else Elsewhere(device, self.first)

    def for_scan(self, device: str | None) -> ArrayLibrary:
        return self.for_layer("", device or "cpu")

    def copy(self, value: Any) -> Any:
        return value.copy()

    def host(self, value: Any) -> Array:
        array: Array = value
        return array

    def freeze(self, *values: Any) -> None:
        for value in values:
            value.flags.writeable = False

    def empty(self, shape: Any, like: Any) -> Any:
        out = np.empty(shape, like.dtype)
        size = out.nbytes
        if size < LARGE:  # asked of the array, which knows it at once
            return out
        del out
        memory = np.empty(size + LINE, np.uint8)
        begin = -memory.ctypes.data % LINE
        return memory[begin : begin + size].view(like.dtype).reshape(shape)

    def params(self, placed: Placed) -> _core.Tensors:
        return placed.views


@functools.lru_cache(maxsize=64)
def on_cpu(first: str) -> NumPy:
    return NumPy("cpu", first)


class Elsewhere(Placing, NumPy):
    """On a CUDA device: arrays are uploaded, results are downloaded."""

    def __init__(self, device: str, first: str = "x") -> None:
        super().__init__(device, first)
        self.core = _core.Device(device)
        self.results: list[tuple[str, _core.Copy, Array]] = []  # of one call

    def for_call(self) -> Elsewhere:
        return Elsewhere(self.device, self.first)

    def given(self, name: str, value: Any) -> Any:
        return None if value is None else self.uploaded(value)

    def to_check(self, name: str, value: Any) -> Array | None:
        values: Array = self.integers(name, value)
        return values

    def uploaded(self, value: Array) -> _core.Copy:
        packed = np.ascontiguousarray(value)
        copy = _core.Copy(self.core, packed)
        copy.upload(packed)
        return copy

    # On the device an array lies in C order, whatever it does here.
    def given_lines(self, name: str, value: Any, lines: Lines) -> Any:
        if value is None:
            return None
        packed = np.asarray(value, order="C")
        return self.walked(self.uploaded(packed.reshape(-1)), packed, lines)

    def result_lines(self, name: str, value: Any, lines: Lines) -> Any:
        if value is None:
            return None
        return self.walked(self.result(name, value.reshape(-1)), value, lines)

    def walked(self, copy: _core.Copy, like: Array, lines: Lines) -> _core.Tensor:
        view = self.as_lines(like, lines)
        return copy.walked(view.shape, self.strides(view))

    def result(self, name: str, value: Any) -> Any:
        copy = _core.Copy(self.core, value)
        self.results.append((name, copy, value))
        return copy

    def in_place(self, name: str, value: Any) -> Any:
        for before, _, other in self.results:  # copies of theirs would not show it
            if np.may_share_memory(value, other):
                raise ValueError(f"{name}: expected memory of its own, got that of {before}")
        copy = self.result(name, value)
        copy.upload(value)
        return copy

    def finish(self) -> None:
        for _, copy, value in self.results:
            copy.download(value)

    def params(self, placed: Placed) -> _core.Tensors:
        views: _core.Tensors = placed.kept(
            self.device,
            lambda arrays: _core.Tensors("params", [self.uploaded(value) for value in arrays]),
        )
        return views
