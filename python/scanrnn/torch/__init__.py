# SPDX-License-Identifier: Apache-2.0
"""scanrnn in torch: modules that train, and the bare recurrence as a differentiable function.

Everything is an operator of torch (`torch.ops.scanrnn`), so autograd, autocast, torch.compile, vmap
and CUDA graphs go through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import torch
except ImportError:
    raise ImportError("scanrnn.torch needs torch: pip install 'scanrnn[torch]'") from None
from torch import Tensor

from ..registry import cells
from . import ops, scan_op
from .modules import Recurrent, make_module


def scan(a: Tensor, b: Tensor, h_0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """All states h_t = a_t h_{t-1} + b_t: a, b [T, ...], h_0 [...] or None for zeros -> [T, ...].

    With `reverse` time runs from T-1 down to 0 and h_0 enters at T-1. It can be differentiated as
    often as one likes.
    """
    _check("a", a, a, None)
    _check("b", b, a, a.shape)
    _check("h_0", h_0, a, a.shape[1:])
    return scan_op.scan(a, b, None, h_0, False, reverse)


def scan_log(
    log_a: Tensor, log_b: Tensor, sign_b: Tensor | None = None, h_0: Tensor | None = None
) -> Tensor:
    """The same states (not their logarithms) from log a and log |b|; sign_b is +-1, None for +1.

    -inf stands for zero. h_0 is a plain value of any sign.
    """
    _check("log_a", log_a, log_a, None)
    _check("log_b", log_b, log_a, log_a.shape)
    _check("sign_b", sign_b, log_a, log_a.shape)
    _check("h_0", h_0, log_a, log_a.shape[1:])
    return scan_op.scan(log_a, log_b, sign_b, h_0, True, False)


def _check(name: str, value: Tensor | None, like: Tensor, shape: torch.Size | None) -> None:
    if value is None:
        return
    if value.dtype not in ops.DTYPES or value.dtype != like.dtype:
        wanted = like.dtype if like.dtype in ops.DTYPES else f"one of {ops.DTYPES}"
        raise TypeError(f"{name}: expected dtype {wanted}, got {value.dtype}; nothing is cast")
    if value.device != like.device:
        raise TypeError(
            f"{name}: expected device {like.device}, got {value.device}: move it with .to()"
        )
    if value.dim() == 0 and shape is None:
        raise ValueError(f"{name}: expected at least one axis, time, got shape ()")
    if shape is not None and value.shape != shape:
        raise ValueError(
            f"{name}: expected shape {tuple(shape)} to go with the first, got {tuple(value.shape)}"
        )


_modules = {cell.name: make_module(cell) for cell in cells()}
globals().update(_modules)

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Recurrent]: ...


__all__ = ["Recurrent", "scan", "scan_log", *_modules]
