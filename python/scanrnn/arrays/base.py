# SPDX-License-Identifier: Apache-2.0
"""What a layer and a scan ask of an array library: its arrays on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arguments import Array
from ..call import Call
from ..scan_call import ScanCall
from .identify import TRACED


class ArrayLibrary:
    """One library's arrays on one device."""

    library = ""  # as identify.library_of says

    def __init__(self, device: str = "cpu", first: str = "x") -> None:
        """`first`: the argument whose library and device those of the others have to be."""
        self.device, self.first = device, first

    # ---- arguments

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        """`value` as the core can walk it, or an error that says what would do."""
        raise NotImplementedError

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        """`value` of a scan, which walks all strides of at least 0, or an error likewise."""
        raise NotImplementedError

    def bools(self, name: str, value: Any) -> Any:
        """The same of bools, which may also be NumPy's, on the host."""
        raise NotImplementedError

    def integers(self, name: str, value: Any) -> Any:
        """The same of integers, as the core can walk them."""
        raise NotImplementedError

    def to_check(self, name: str, value: Any) -> Array | None:
        """Integers that are on the host and go to a device, where nobody looks at their values."""
        return None

    def writable(self, name: str, value: Any, dtype: Any) -> Any:
        """`value` itself, as memory that a call reads and writes, or an error likewise."""
        raise NotImplementedError

    def signs(self, value: Any) -> Array | None:
        """Those to check, on the host; None where looking would wait for a device, or at nothing
        that is there."""
        return None

    def for_layer(self, name: str, device: str) -> ArrayLibrary:
        """What a layer on `device` works with; raises unless it can read these arrays."""
        raise NotImplementedError

    def for_scan(self, device: str | None) -> ArrayLibrary:
        """The same of a scan; None is where the arrays are."""
        if device is not None and self.device not in (device, TRACED):
            raise ValueError(
                f"device: expected None or {self.device!r}, where the arrays are, got {device!r}"
            )
        return self

    def copy(self, value: Any) -> Any:
        raise NotImplementedError

    def host(self, value: Any) -> Array:
        """An array that is on the CPU, as NumPy's: the same memory."""
        raise NotImplementedError

    def freeze(self, *values: Any) -> None:
        """Makes what a pullback will read again read-only, where the library can."""

    def versions(self, *values: Any) -> tuple[int, ...]:
        """Numbers that are others once somebody has written to an array, where the library counts
        it."""
        return (0,) * len(values)

    # ---- calls

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        """y, the states at the end, and the reserve of training mode."""
        raise NotImplementedError

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        """dx, the cotangents of the initial states, and of the parameters."""
        raise NotImplementedError

    def scan(self, call: ScanCall) -> tuple[Any, Any]:
        """The states, and their signs where they are logarithms, else None."""
        raise NotImplementedError
