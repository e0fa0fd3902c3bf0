# SPDX-License-Identifier: Apache-2.0
"""Which library an array is of, and where it is. No library is imported to find out."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from .. import _core, arguments

TRACED = "traced"  # the device of an array of a function that JAX compiles
TITLES = {"torch": "a torch tensor", "cupy": "a CuPy array", "jax": "a JAX array"}
_CLASSES = {"torch": "Tensor", "cupy": "ndarray", "jax": "Array"}


def library_of(value: Any) -> str:
    """One of torch, cupy, jax; other with a protocol for exchange; "" for NumPy and the rest."""
    if type(value) is np.ndarray:
        return ""
    for library, kind in _CLASSES.items():
        found = sys.modules.get(library)
        if found is not None and isinstance(value, getattr(found, kind, ())):
            return library
    if isinstance(value, (np.ndarray, np.generic)):
        return ""
    protocols = ("__dlpack__", "__cuda_array_interface__")
    return "other" if any(hasattr(value, protocol) for protocol in protocols) else ""


def device_of(name: str, value: Any) -> str:
    """ "cpu", "cuda:N", TRACED, or what else a library calls it; of an array that is no NumPy's."""
    library = library_of(value)
    if library == "torch":
        return of_torch(value.device)
    if library == "cupy":
        return f"cuda:{int(value.device.id)}"
    if library == "jax":
        return _of_jax(name, value)
    if not hasattr(value, "__dlpack_device__"):
        return _core.from_interface(name, value.__cuda_array_interface__).device
    kind, index = value.__dlpack_device__()
    if kind in (1, 3):  # the CPU, and its pinned memory
        return "cpu"
    if kind in (2, 13):  # CUDA, and memory that it manages
        return f"cuda:{index}"
    raise TypeError(
        f"{name}: expected memory of the CPU or of a CUDA device, got DLPack device {kind, index}"
    )


@functools.lru_cache(maxsize=64)
def of_torch(device: Any) -> str:
    """The name of a torch.device."""
    return device.type if device.index is None else f"{device.type}:{device.index}"


def _of_jax(name: str, value: Any) -> str:
    if isinstance(value, sys.modules["jax"].core.Tracer):
        return TRACED
    devices = list(value.devices())
    if len(devices) > 1:
        raise TypeError(f"{name}: expected an array on one device, got one on {len(devices)}")
    # XLA numbers the devices that it may see, and so does CUDA.
    cpu = devices[0].platform == "cpu"
    return "cpu" if cpu else f"cuda:{devices[0].local_hardware_id}"


def described(name: str, value: Any) -> str:
    library = library_of(value)
    if library in TITLES:
        return f"{TITLES[library]} on {device_of(name, value)}"
    return "a NumPy array" if isinstance(value, np.ndarray) else arguments.type_name(value)
