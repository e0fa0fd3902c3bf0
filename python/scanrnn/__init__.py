# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: linear cells by parallel scan, dense cells, and the bare recurrence.

The classes of layers are made from the registry of cells, so a new cell appears here by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import waiting  # noqa: F401
from ._core import CudaError, Plan
from .layers import Layer, make_class
from .layouts import load
from .precision import get_float32_matmul_precision, set_float32_matmul_precision
from .registry import (
    CellInfo,
    DeviceInfo,
    build_info,
    cells,
    classes,
    cuda_available,
    devices,
    version,
)
from .run import Pullback
from .scans import scan, scan_log

__version__ = version()
_classes = classes(make_class)
globals().update(_classes)

if TYPE_CHECKING:
    from .layer_classes import *  # noqa: F403


__all__ = [
    "CellInfo",
    "CudaError",
    "DeviceInfo",
    "Layer",
    "Plan",
    "Pullback",
    "build_info",
    "cells",
    "cuda_available",
    "devices",
    "get_float32_matmul_precision",
    "load",
    "scan",
    "scan_log",
    "set_float32_matmul_precision",
    *_classes,
]
