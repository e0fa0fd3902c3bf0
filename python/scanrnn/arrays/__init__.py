# SPDX-License-Identifier: Apache-2.0
"""Arrays of every library: what came in, on what device and stream, and memory of the same library.

`library_for` finds the library of a call's first argument; everything else of the call is then of
that library, and so are its results.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from ..arguments import Array
from .base import ArrayLibrary
from .cupy import CuPy
from .identify import described, device_of, library_of, of_torch
from .numpy import on_cpu
from .torch import Torch

_IN_PLACE = {"torch": Torch, "cupy": CuPy}


def library_for(name: str, value: Any) -> ArrayLibrary:
    """The library of an argument; what is no array at all is an error later, as NumPy's.

    A library that we do not know comes in as NumPy's arrays on the CPU, and on CUDA as CuPy's or,
    without CuPy, as torch's: as that it comes out again, for its library to take.
    """
    torch = sys.modules.get("torch")  # the usual ones first
    if torch is not None and type(value) is torch.Tensor:
        return Torch(of_torch(value.device), name)
    library = library_of(value)
    if library == "jax":
        from .jax import Jax

        return Jax(device_of(name, value), name)
    if library in _IN_PLACE:
        return _IN_PLACE[library](device_of(name, value), name)
    if library == "" or device_of(name, value) == "cpu":
        return on_cpu(name)
    for bridge in ("cupy", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(bridge)
            return _IN_PLACE[bridge](device_of(name, value), name)
    raise TypeError(f"{name}: {described(name, value)} needs CuPy or torch to come in through")


def on_host(name: str, value: Any, dtype: Any) -> Array:
    """An array of any library that is on the CPU, as NumPy's."""
    if library_of(value) and device_of(name, value) != "cpu":
        raise TypeError(
            f"{name}: expected an array on cpu, got {described(name, value)}: copy it there first"
        )
    library = library_for(name, value)
    return library.host(library.array(name, value, dtype))
