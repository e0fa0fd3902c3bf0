# SPDX-License-Identifier: Apache-2.0
"""scanrnn in torch: modules that train, and the bare recurrence as a differentiable function.

Everything is an operator of torch (`torch.ops.scanrnn`), so autograd, autocast, torch.compile, vmap
and CUDA graphs go through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("scanrnn.torch needs torch: pip install 'scanrnn[torch]'") from None
from torch import Tensor

from .. import arguments
from ..registry import cells
from . import scan_op, tensors
from .modules import Recurrent, make_module


def scan(a: Tensor, b: Tensor, h_0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """All states h_t = a_t h_{t-1} + b_t: a, b [T, ...], h_0 [...] or None for zeros -> [T, ...].

    With `reverse` time runs from T-1 down to 0 and h_0 enters at T-1. It can be differentiated as
    often as one likes.
    """
    _check({"a": a, "b": b}, {"h_0": h_0})
    return scan_op.scan(a, b, None, h_0, False, arguments.flag("reverse", reverse))


def scan_log(
    log_a: Tensor,
    log_b: Tensor,
    sign_b: Tensor | None = None,
    h_0: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The same states (not their logarithms) from log a and log |b|; sign_b is +-1, None for +1.

    -inf stands for zero. h_0 is a plain value of any sign.
    """
    operands = {"log_a": log_a, "log_b": log_b}
    _check(operands if sign_b is None else operands | {"sign_b": sign_b}, {"h_0": h_0})
    return scan_op.scan(log_a, log_b, sign_b, h_0, True, arguments.flag("reverse", reverse))


def _check(operands: dict[str, Any], initial: dict[str, Any]) -> None:
    """All of one dtype and device; operands [T, ...], and [...] where there is an initial state."""
    given = operands | {name: value for name, value in initial.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {arguments.type_name(value)}")
    first, like = next(iter(operands.items()))
    if like.dim() == 0:
        raise ValueError(f"{first}: expected at least one axis, time, got shape ()")
    for name, value in given.items():
        if value.dtype not in tensors.DTYPES or value.dtype != like.dtype:
            wanted = like.dtype if like.dtype in tensors.DTYPES else f"one of {tensors.DTYPES}"
            raise TypeError(f"{name}: expected dtype {wanted}, got {value.dtype}; nothing is cast")
        if value.device != like.device:
            raise TypeError(
                f"{name}: expected device {like.device}, got {value.device}: move it with .to()"
            )
        shape = like.shape if name in operands else like.shape[1:]
        if value.shape != shape:
            raise ValueError(
                f"{name}: expected shape {tuple(shape)} to go with {first}, got "
                f"{tuple(value.shape)}"
            )
    tensors.refuse_transforms("scan", *given.values())


_modules = {cell.name: make_module(cell) for cell in cells()}
globals().update(_modules)

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Recurrent]: ...


__all__ = ["Recurrent", "scan", "scan_log", *_modules]
