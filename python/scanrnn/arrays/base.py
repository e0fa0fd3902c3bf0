# SPDX-License-Identifier: Apache-2.0
"""What a layer and a scan ask of an array library: its arrays on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arguments import Array
from ..call import Call
from .identify import TRACED


class ArrayLibrary:
    """One library's arrays on one device."""

    library = ""  # as identify.library_of says

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    # ---- arguments

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        """`value` as the core can walk it, or an error that says what would do."""
        raise NotImplementedError

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

    # ---- calls

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        """y, the states at the end, and the reserve of training mode."""
        raise NotImplementedError

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        """dx, the cotangents of the initial states, and of the parameters."""
        raise NotImplementedError

    def scan(
        self, operands: Sequence[Any], h_0: Any, shape: tuple[int, int], log_form: bool,
        reverse: bool,
    ) -> Any:  # fmt: skip
        """operands: a, b and maybe sign_b, all [T,N] = shape; h_0 [N]."""
        raise NotImplementedError
