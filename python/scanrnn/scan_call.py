# SPDX-License-Identifier: Apache-2.0
"""What a scan is given: checked for all array libraries alike, and how it lies as [T,B,N]."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import arguments
from .arguments import Array

# A scan reads a and b; or log a and log |b|; or these, and its states are logarithms with signs.
LINEAR, LOG, LOG_OUTPUT = "linear", "log", "log_output"


class ScanCall(NamedTuple):
    """The arguments of one scan, all of one library. `axis` is that of time, from the front."""

    form: str
    reverse: bool
    axis: int
    a: Any
    b: Any  # None in a linear form's backward, which has no use for it
    sign_b: Any = None
    reset: Any = None  # bools, with as many axes as a: time's of a's size, others of it or of 1
    h_0: Any = None  # of a's shape without time
    sign_h_0: Any = None


class Lines(NamedTuple):
    """How arrays [..., T, ...] are walked as [T,B,N]."""

    axes: int
    order: tuple[int, ...] | None  # of the axes, time first; None: as they are
    shape: tuple[int, int, int]
    time_contiguous: bool  # in results, which are in C order

    @staticmethod
    def of(shape: Sequence[int], axis: int, split: int) -> Lines:
        """`split` of the axes beside time are B, the others N."""
        others = (*shape[:axis], *shape[axis + 1 :])
        order = None
        if axis:
            order = (axis, *range(axis), *range(axis + 1, len(shape)))
        rows = math.prod(others[split:])
        return Lines(
            len(shape),
            order,
            (shape[axis], math.prod(others[:split]), rows),
            math.prod(shape[axis + 1 :]) == 1,
        )


@functools.lru_cache(maxsize=1024)
def lines_of(shape: tuple[int, ...], axis: int, strides: tuple[tuple[int, ...], ...]) -> Lines:
    """B and N such that the fewest arrays are copied; `strides` are theirs, but for time's.

    Results are in C order, so that axes before and after time cannot be one.
    """
    count = len(shape) - 1
    if math.prod(shape[:axis]) != 1 and math.prod(shape[axis + 1 :]) != 1:
        return Lines.of(shape, axis, axis)
    if count < 2:
        return Lines.of(shape, axis, 0)
    others = (*shape[:axis], *shape[axis + 1 :])
    gaps = [_gaps(others, steps) for steps in strides]
    return Lines.of(shape, axis, min(range(count), key=lambda s: sum(bool(g - {s}) for g in gaps)))


def _gaps(sizes: Sequence[int], strides: Sequence[int]) -> set[int]:
    """The axes that are not one with what is before them."""
    out, before = set(), None
    for axis, (size, step) in enumerate(zip(sizes, strides, strict=True)):
        if size != 1:
            if before is not None and before != size * step:
                out.add(axis)
            before = step
    return out


# ---- arguments


class Operands(Protocol):
    """What checks need of an array library."""

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        """`value` if it is of this library, where its arrays are, and of one of these dtypes."""

    def bools(self, name: str, value: Any) -> Any:
        """The same of bools, which may also be NumPy's, on the host."""

    def signs(self, value: Any) -> Array | None:
        """Those to check, on the host; None where looking would wait for a device, or at nothing
        that is there."""


def checked(
    library: Operands,
    operands: dict[str, Any],
    h_0: Any,
    reverse: Any,
    axis: Any,
    reset: Any,
    log_output: Any = False,
) -> ScanCall:
    """`operands`: a and b, or log_a, log_b and sign_b, which may be None."""
    reverse = arguments.flag("reverse", reverse)
    names = list(operands)
    linear = len(names) == 2
    first = names[0]
    a = library.operand(first, operands[first], arguments.SCAN_DTYPES)
    dtype, shape = arguments.dtype_name(a), tuple(a.shape)
    if not linear and "complex" in dtype:
        raise TypeError(f"{first}: expected real numbers, got {dtype}: scan takes complex ones")
    axis = _axis(axis, first, shape)
    beside = (*shape[:axis], *shape[axis + 1 :])

    def like(name: str, value: Any, wanted: tuple[int, ...]) -> Any:
        value = library.operand(name, value, (dtype,))
        if tuple(value.shape) != wanted:
            raise ValueError(
                f"{name}: expected shape {wanted} to go with {first}, got {tuple(value.shape)}"
            )
        return value

    def sign(name: str, value: Any, wanted: tuple[int, ...]) -> Any:
        if value is None:
            return None
        value = like(name, value, wanted)
        signs = library.signs(value)
        if signs is not None:
            _check_signs(name, signs)
        return value

    b = like(names[1], operands[names[1]], shape)
    sign_b = None if linear else sign(names[2], operands[names[2]], shape)
    sign_h_0, form = None, LINEAR if linear else LOG
    if arguments.flag("log_output", log_output):
        form = LOG_OUTPUT
        if h_0 is not None:
            h_0, sign_h_0 = _pair(h_0)
            sign_h_0 = sign("h_0[1]", sign_h_0, beside)
    if h_0 is not None:
        h_0 = like("h_0[0]" if form == LOG_OUTPUT else "h_0", h_0, beside)
    reset = None if reset is None else _reset(library, reset, shape, axis)
    return ScanCall(form, reverse, axis, a, b, sign_b, reset, h_0, sign_h_0)


def checks_devices() -> bool:
    """Whether values on a device are looked at, too, which waits for it: as the core decides."""
    return os.environ.get("SCANRNN_CHECK") == "1"


def _check_signs(name: str, signs: Array) -> None:
    wrong = np.abs(signs) != 1
    if np.count_nonzero(wrong):  # for small arrays the fastest look
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"{name}: expected +1 and -1 alone, got {signs[at]} at {at}: copysign(1, b) has a "
            "sign for zeros, too"
        )


def _axis(value: Any, first: str, shape: tuple[int, ...]) -> int:
    axis, count = arguments.integer("axis", value), len(shape)
    if count == 0:
        raise ValueError(f"{first}: expected at least one axis, time, got shape ()")
    if not -count <= axis < count:
        raise ValueError(
            f"axis: expected {-count} to {count - 1}, an axis of {first} of shape {shape}, got "
            f"{axis}"
        )
    return axis % count


def _pair(h_0: Any) -> tuple[Any, Any]:
    if not isinstance(h_0, (tuple, list)) or len(h_0) != 2:
        many = isinstance(h_0, (tuple, list))
        got = f"{len(h_0)} of them" if many else arguments.type_name(h_0)
        raise TypeError(f"h_0: expected the pair (log|h_0|, sign) with log_output, got {got}")
    if h_0[0] is None and h_0[1] is not None:
        got = arguments.type_name(h_0[1])
        raise ValueError(f"h_0[1]: expected None where h_0[0], log|h_0|, is None, got {got}")
    return h_0[0], h_0[1]


def _reset(library: Operands, value: Any, shape: tuple[int, ...], axis: int) -> Any:
    """With as many axes as a."""
    value = library.bools("reset", value)
    given = tuple(value.shape)
    whole = (1,) * axis + given if len(given) == 1 else given
    whole += (1,) * (len(shape) - len(whole))
    fits = len(given) > 0 and len(whole) == len(shape) and whole[axis] == shape[axis]
    if not fits or any(n not in (1, size) for n, size in zip(whole, shape, strict=True)):
        prefix = shape[: axis + 1]
        raise ValueError(
            f"reset: expected shape {shape}, {(shape[axis],)} or a part of the first that begins "
            f"with {prefix}, where axes beside time may have size 1, got {given}"
        )
    return value.reshape(whole)
