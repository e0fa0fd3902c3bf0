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
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, arguments
from .kinds import InPlace, Kind
from .origin import TITLES, TRACED, described, device_of, dtype_name, library_of, short_name

if TYPE_CHECKING:
    from .run import Call


class Torch(InPlace):
    library = "torch"
    advice = "move it with .to({device!r})"
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
        if value.layout != self.torch.strided:
            raise TypeError(f"{name}: expected a dense tensor, got layout {value.layout}")
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


class Jax(Kind):
    """JAX's arrays are written by XLA alone, so calls on them are XLA's: those of scanrnn.jax."""

    library = "jax"

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        if library_of(value) != "jax":
            raise TypeError(
                f"{name}: expected a JAX array, as x is one, got {described(name, value)}"
            )
        device = device_of(name, value)
        if TRACED not in (device, self.device) and device != self.device:
            raise TypeError(
                f"{name}: expected a JAX array on {self.device}, where x is, got one on {device}: "
                "move it with jax.device_put"
            )
        found = dtype_name(value)
        if found not in arguments.DTYPES if dtype is None else found != short_name(dtype):
            listed = arguments.DTYPES if dtype is None else dtype
            raise TypeError(f"{name}: expected dtype {listed}, got {found}; nothing is cast")
        return value

    def check_device(self, name: str, device: str) -> None:
        if self.device not in (device, TRACED):
            raise TypeError(
                f"{name}: expected an array on {device}, where the layer is, got a JAX array on "
                f"{self.device}: move it with jax.device_put, or make the layer with "
                f"device={self.device!r}"
            )

    def check_scan_device(self, device: str | None) -> None:
        if device is not None and self.device not in (device, TRACED):
            raise ValueError(
                f"device: expected None or {self.device!r}, where the arrays are, got {device!r}"
            )

    def copy(self, value: Any) -> Any:
        return value  # nobody can write to it

    def freeze(self, *values: Any) -> None:
        pass

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        from . import jax

        layer, x = call.layer, call.x
        if call.training and layer.dropout:
            raise ValueError(
                f"dropout: expected 0 for JAX arrays, got {layer.dropout}: a seed would be fixed "
                "when jit compiles, so drop between layers of your own"
            )
        axis = 1 if layer.batch_first else 0
        x = x.reshape(*x.shape[:axis], 1, *x.shape[axis:]) if call.one_step else x
        h_0 = jax.whole_state(call.h_0, call.shape_of_state(), x.dtype)
        y, h_n, reserve = jax._run(
            jax.describe(layer, call.plan), x, h_0, self.params(call), call.training
        )
        return y.squeeze(axis) if call.one_step else y, list(h_n), reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        from . import jax

        x, shape = call.x, call.shape_of_state()
        given = jax.whole_state(call.h_0, shape, x.dtype) or jax.zeros(
            shape, x.dtype, call.states()
        )
        dfinals = jax.whole_state(dh_n, shape, x.dtype) or jax.zeros(shape, x.dtype, call.states())
        dy = jax.zeros(y.shape, y.dtype, 1)[0] if dy is None else dy
        dx, dh_0, dparams = jax._layer_backward(
            jax.describe(call.layer, call.plan),
            (x, given, self.params(call), y, reserve),
            (dy, dfinals),
        )
        return dx, list(dh_0), list(dparams)

    def scan(
        self, dtype: str, operands: Sequence[Any], h_0: Any, shape: tuple[int, int],
        log_form: bool, reverse: bool, device: str,
    ) -> Any:  # fmt: skip
        from . import jax

        a, b, *sign = operands
        return jax._scan(a, b, sign[0] if sign else None, h_0, log_form, reverse)

    def params(self, call: Call) -> tuple[Any, ...]:
        from . import jax

        device = call.layer.device if self.device == TRACED else self.device
        key = f"{TITLES[self.library]} on {device}"
        held = call.placed.elsewhere.get(key)
        if held is None:
            held = jax.placed(call.placed.arrays, device)
            call.placed.elsewhere[key] = held
        return held


_KINDS = {"torch": Torch, "cupy": CuPy, "jax": Jax}


def kind_of(name: str, value: Any) -> Kind:
    """The kind of an argument; what is no array at all is an error later, as NumPy's kind.

    A library that we do not know comes in as NumPy's arrays on the CPU, and on CUDA as CuPy's or,
    without CuPy, as torch's: as that it comes out again, for its library to take.
    """
    library = library_of(value)
    if library in _KINDS:
        return _KINDS[library](device_of(name, value))
    if library == "" or device_of(name, value) == "cpu":
        return Kind()
    for bridge in ("cupy", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(bridge)
            return _KINDS[bridge](device_of(name, value))
    raise TypeError(f"{name}: {described(name, value)} needs CuPy or torch to come in through")
