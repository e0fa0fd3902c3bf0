# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence h_t = a_t h_{t-1} + b_t over one axis, without a cell."""

from __future__ import annotations

from typing import Any

from . import _core, arguments
from .arguments import Array
from .arrays import library_for
from .scan_call import checked


def scan(
    a: Array,
    b: Array,
    h_0: Array | None = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Array | None = None,
    device: str | None = None,
) -> Array:
    """All states h_t = a_t h_{t-1} + b_t along `axis`: a, b [..., T, ...] -> [..., T, ...].

    h_0 has a's shape without that axis, None is zeros. With `reverse` time runs from T-1 down to 0
    and h_0 enters at T-1. Numbers may be complex. Where `reset` is True, the state before that step
    is zero: bools of a's shape, of shape [T], or of a part of a's shape that begins as that does
    and reaches time, such as [B,T] for an a of [B,T,C]. `device` None is where the arrays are,
    which for NumPy's is the CPU; with "cuda" they are copied there and back.
    """
    return _scan({"a": a, "b": b}, h_0, reverse, axis, reset, device)[0]


def scan_log(
    log_a: Array,
    log_b: Array,
    sign_b: Array | None = None,
    h_0: Array | tuple[Array, Array | None] | None = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Array | None = None,
    log_output: bool = False,
    device: str | None = None,
) -> Any:
    """The same states from log a and log |b|; sign_b is +-1, None for +1, and -inf stands for zero.

    The states are values, and so is h_0. With `log_output` they are the pair (log|h|, sign h), and
    h_0 is the pair (log|h_0|, sign), whose sign None is +1: such states may leave the range of
    their dtype. Signs other than +-1 are an error, of arrays on a device only with SCANRNN_CHECK=1.
    """
    operands = {"log_a": log_a, "log_b": log_b, "sign_b": sign_b}
    h, sign_h = _scan(operands, h_0, reverse, axis, reset, device, log_output)
    return h if sign_h is None else (h, sign_h)


def _scan(
    operands: dict[str, Any], h_0: Any, reverse: Any, axis: Any, reset: Any, device: str | None,
    log_output: Any = False,
) -> tuple[Any, Any]:  # fmt: skip
    where = None if device is None else str(_core.Device(arguments.text("device", device)))
    library = library_for(*next(iter(operands.items())))
    call = checked(library, operands, h_0, reverse, axis, reset, log_output)
    return library.for_scan(where).scan(call)
