# SPDX-License-Identifier: Apache-2.0
"""torch's tensors as the library takes them: their device and its stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core, arguments
from ..arguments import Array
from ..arrays.eager import is_eager, signs_of
from ..arrays.in_place import even, walkable

DEVICE_TYPES = ("cpu", "cuda", "meta")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@functools.lru_cache(maxsize=64)
def device_of(device: torch.device) -> _core.Device:
    # Sizes of tensors without memory are those of the CPU's.
    return _core.Device("cpu" if device.type == "meta" else str(device))


def stream_of(like: Tensor) -> int:
    """The current stream on its device, without an object of torch's around it."""
    return torch._C._cuda_getCurrentRawStream(like.get_device()) if like.is_cuda else 0


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """In which torch's own operators have the dtypes of what they are given."""
    kind = like.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def ready(value: Tensor) -> Tensor:
    """With a contiguous last axis and rows that do not overlap, copied where it has not."""
    if value.is_contiguous() or walkable(value.shape, value.stride()):
        return value
    return value.contiguous()


def evenly_spaced(tokens: Tensor) -> Tensor:
    """[B,T,C] or [T,B,C] whose tokens one product can read, copied where it would take a product
    for each of many parts, such as for some columns of the batch in [T,B,C]."""
    if tokens.is_contiguous() or tokens.dim() != 3 or even(tokens.shape, tokens.stride()):
        return tokens
    return tokens.contiguous()


def ready_tokens(tokens: Tensor) -> Tensor:
    """x of a layer: on CUDA evenly spaced, too, where each product is a launch."""
    if tokens.is_contiguous():
        return tokens
    return ready(evenly_spaced(tokens) if tokens.is_cuda else tokens)


def check_dense(name: str, value: Tensor) -> None:
    """Before anybody asks for its shape, which a nested one has not."""
    if value.is_nested or value.layout != torch.strided:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name}: expected a dense tensor, got layout {layout}")


class Operands:
    """A call's tensors, checked: all where the first one is."""

    def __init__(self, name: str, first: Any) -> None:
        self.device = self._tensor(name, first).device

    def _tensor(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {arguments.type_name(value)}")
        check_dense(name, value)
        return value

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Tensor:
        tensor = self._tensor(name, value)
        arguments.check_dtype(name, arguments.dtype_name(tensor), dtypes)
        if tensor.device != self.device:
            raise TypeError(
                f"{name}: expected device {self.device}, got {tensor.device}: move it with .to()"
            )
        return tensor

    def bools(self, name: str, value: Any) -> Tensor:
        if isinstance(value, np.ndarray):
            value = arguments.forwards(arguments.checked(name, value, ("bool",)))
            value = self._moved(torch.tensor(value, device="cpu"))
        return self.operand(name, value, ("bool",))

    def _moved(self, value: Tensor) -> Tensor:
        """From the CPU, without waiting for the device."""
        return value.to(self.device, non_blocking=True)

    def integers(self, name: str, value: Any) -> Tensor:
        """Those on the CPU are moved, as they are what lengths mostly are."""
        if isinstance(value, np.ndarray):
            value = torch.tensor(arguments.integers(name, value), device="cpu")
        value = self._tensor(name, value)
        if value.device.type == "cpu":
            value = self._moved(value)
        return self.operand(name, value, arguments.INTEGERS)

    def to_check(self, name: str, value: Any) -> Array | None:
        if self.device.type == "cpu" or torch.compiler.is_compiling():
            return None
        if isinstance(value, np.ndarray):
            values: Array = arguments.integers(name, value)
            return values
        on_host = value.device.type == "cpu" and value.layout is torch.strided
        if not on_host or not is_eager([value]):
            return None
        values = value.numpy()
        return values

    def signs(self, value: Any) -> Array | None:
        return signs_of(value)


def workspace(like: Tensor, size: int) -> Tensor | None:
    """Memory for one call; on the CPU the call has its own."""
    return like.new_empty(size, dtype=torch.uint8) if size and like.is_cuda else None


def have_tangents(*values: Tensor | None) -> bool:
    """Whether derivatives in forward mode are asked for."""
    if forward_ad._current_level < 0:
        return False
    given = (value for value in values if value is not None)
    return any(forward_ad.unpack_dual(value).tangent is not None for value in given)


def refuse_forward_mode(what: str, where: str, *values: Tensor | None) -> None:
    """Raises where tangents would be dropped without a word."""
    if have_tangents(*values):
        raise NotImplementedError(
            f"{what}: there are no derivatives in forward mode (torch.func.jvp, jacfwd) {where}: "
            "use backward()"
        )


def refuse_compiled_forward_mode(what: str, *values: Tensor | None) -> None:
    """A compiler takes operators as they are, which have none."""
    if torch.compiler.is_compiling():
        refuse_forward_mode(what, "inside torch.compile", *values)
