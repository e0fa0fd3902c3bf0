# SPDX-License-Identifier: Apache-2.0
"""The precision of float32 matrix products on CUDA, by torch's names."""

from __future__ import annotations

from . import _core, arguments


def set_float32_matmul_precision(precision: str) -> None:
    """What the factors of float32 matrix products are on CUDA, in every layer's later calls.

    "highest": float32, the default; "high": TF32; "medium": bfloat16. Sums are float32, and neither
    the recurrence nor the CPU knows of it. Modules of scanrnn.torch go by torch's own switches.
    """
    _core.set_float32_matmul_precision(arguments.text("precision", precision))


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` set, for the whole process."""
    return _core.get_float32_matmul_precision()


class Used:
    """Within it this thread's calls have this precision, whatever the process has chosen."""

    def __init__(self, precision: str) -> None:
        self._precision = precision

    def __enter__(self) -> None:
        _core.use_matmul_precision(self._precision)

    def __exit__(self, *_: object) -> None:
        _core.use_matmul_precision("")
