# SPDX-License-Identifier: Apache-2.0
"""A library whose memory we can ask for, read and write. Nothing is copied but what cannot be
walked, and nothing is waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from .. import _core, arguments
from ..arguments import Array
from ..call import Call, Placed, log
from . import dlpack
from .base import ArrayLibrary
from .identify import TITLES, described, device_of, dtype_name, library_of, short_name


class InPlace(ArrayLibrary):
    """A library whose memory we can ask for, read and write: results are allocated by it."""

    advice = ""  # how its user moves an array to {device}
    making = ""  # how its user makes one of another library's array
    negative = ""  # how its user gets rid of negative strides

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.producers: list[int] = []  # streams that arrays of this call came with

    # What a library says.
    def stream(self) -> int:
        """The caller's current stream on this device; 0 is the default stream."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        raise NotImplementedError

    def strides(self, value: Any) -> Sequence[int]:
        """In elements."""
        raise NotImplementedError

    def packed(self, value: Any) -> Any:
        """A contiguous copy."""
        raise NotImplementedError

    def uploaded(self, values: Sequence[Any]) -> list[Any]:
        """NumPy's arrays as arrays of this library; the host waits until they are there."""
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

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        if library_of(value) == "other" and device_of(name, value) == self.device:
            value = self.bridged(name, value)
        if not self.owns(value):
            ours = library_of(value) == self.library
            advice = (self.advice if ours else self.making).format(device=self.device)
            raise TypeError(
                f"{name}: expected {self.title} on {self.device}, as x is one, got "
                f"{described(name, value)}: {advice}"
            )
        self.check(name, value)
        found, wanted = dtype_name(value), None if dtype is None else short_name(dtype)
        if found not in arguments.DTYPES if wanted is None else found != wanted:
            listed = wanted or "one of " + ", ".join(map(repr, arguments.DTYPES))
            advice = (
                "pass its real and imaginary parts" if "complex" in found else "nothing is cast"
            )
            raise TypeError(f"{name}: expected dtype {listed}, got {found}; {advice}")
        strides = self.strides(value)
        if any(step < 0 for step in strides):
            raise ValueError(
                f"{name}: expected strides of at least 0, got {tuple(strides)}: {self.negative}"
            )
        return value if walkable(value.shape, strides) else self.packed(value)

    def check_device(self, name: str, device: str) -> None:
        if device != self.device:
            known = self.device.partition(":")[0] in ("cpu", "cuda")
            raise TypeError(
                f"{name}: expected an array on {device}, where the layer is, got {self.title} on "
                f"{self.device}: {self.advice.format(device=device)}"
                + (f", or make the layer with device={self.device!r}" if known else "")
            )

    def tensor(self, name: str, value: Any, writable: bool = False) -> _core.Tensor:
        """A view of it, safe to use on our stream from now on."""
        return dlpack.take(name, value, self.stream() if self.device != "cpu" else None, writable)

    def bridged(self, name: str, value: Any) -> Any:
        stream = self.stream()
        if hasattr(value, "__dlpack__"):
            tensor = dlpack.take(name, value, None if self.device == "cpu" else stream, False)
        else:
            interface = value.__cuda_array_interface__
            tensor = _core.from_interface(name, interface)
            theirs = interface.get("stream")
            if theirs is not None:
                _core.order_streams(_core.Device(self.device), theirs, stream)
                self.producers.append(theirs)
        return self.adopted(_core.Exported(tensor, value, stream))

    def release(self) -> None:
        """What a producer does next on a stream that it named waits for what we have enqueued."""
        for stream in self.producers:
            _core.order_streams(_core.Device(self.device), self.stream(), stream)

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def bytes(self, count: int) -> tuple[Any, tuple[int, int]]:
        """Memory to work in, aligned to 256 bytes, and where it is."""
        slack = 256
        memory = self.empty((count // 2 + slack // 2,), "float16")
        address = self.tensor("workspace", memory, writable=True).address
        return memory, (address + -address % slack, count)

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        stack, plan, dtype = call.stack, call.plan, short_name(call.stack.dtype)
        x, h, _ = call.names()
        with self.on_device():
            y = self.empty(call.shape_of_y(), dtype)
            h_n = [self.empty(call.shape_of_state(), dtype) for _ in range(call.states())]
            workspace = self.bytes(plan.workspace_bytes)
            reserve = self.bytes(plan.reserve_bytes) if call.training else None
            _core.forward(
                stack.core, plan, self.stream(), self.params(stack.placed),
                self.tensor(x, call.x), self.tensors(h, call.h_0), self.tensor("y", y, True),
                self.tensors("h_n", h_n, True), workspace[1], reserve[1] if reserve else None,
                call.seed, call.one_step,
            )  # fmt: skip
            self.release()
        return y, h_n, reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        stack, plan, dtype = call.stack, call.plan, short_name(call.stack.dtype)
        with self.on_device():
            dx = self.empty(call.x.shape, dtype)
            dh_0 = [self.empty(call.shape_of_state(), dtype) for _ in range(call.states())]
            dparams = [self.empty(shape, dtype) for shape in stack.shapes.values()]
            workspace = self.bytes(plan.workspace_bytes)
            _core.backward(
                stack.core, plan, self.stream(), self.params(stack.placed),
                self.tensor("x", call.x), self.tensors("h_0", call.h_0), self.tensor("y", y),
                None if dy is None else self.tensor("dy", dy), self.tensors("dh_n", dh_n),
                self.tensor("dx", dx, True), self.tensors("dh_0", dh_0, True),
                self.tensors("dparams", dparams, True), workspace[1], reserve[1], call.seed,
            )  # fmt: skip
            self.release()
        return dx, dh_0, dparams

    def scan(
        self, dtype: str, operands: Sequence[Any], h_0: Any, shape: tuple[int, int],
        log_form: bool, reverse: bool, device: str,
    ) -> Any:  # fmt: skip
        with self.on_device():
            out = self.empty(shape, dtype)
            plan = _core.scan_plan(_core.Device(device), *shape, dtype, log_form, None)
            log(plan)
            workspace = self.bytes(plan.workspace_bytes)
            a, b, *sign = (self.tensor("a, b or sign_b", value) for value in operands)
            _core.scan_tensors(
                plan, self.stream(), a, b, sign[0] if sign else None,
                None if h_0 is None else self.tensor("h_0", h_0), self.tensor("h", out, True),
                workspace[1], log_form, reverse,
            )  # fmt: skip
            self.release()
        return out

    def params(self, placed: Placed) -> list[_core.Tensor | None]:
        def make(arrays: list[Array]) -> tuple[list[Any], list[_core.Tensor | None]]:
            held = self.uploaded(arrays)
            return held, self.tensors("params", held)

        views: list[_core.Tensor | None]
        _, views = placed.kept(f"{self.title} on {self.device}", make)
        return views

    def tensors(
        self, name: str, values: Sequence[Any], writable: bool = False
    ) -> list[_core.Tensor | None]:
        return [None if v is None else self.tensor(name, v, writable) for v in values]


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
