# SPDX-License-Identifier: Apache-2.0
"""What there is: cells, devices, and what this build can do."""

from __future__ import annotations

from typing import NamedTuple

from . import _core


class CellInfo(NamedTuple):
    """One cell; row_order names the row blocks of weight_ih, of which bias_gates have a bias.

    states is 2 where the state is the pair (h, c). With readout the output differs from the state,
    with highway it reads x as well. Without an option the one variant has no name.
    """

    name: str
    recurrence: str
    gates: int
    bias_gates: int
    states: int
    readout: bool
    highway: bool
    variant_option: str
    variants: tuple[str, ...]
    row_order: tuple[str, ...]

    def words(self) -> str:
        """What the docstrings of a cell's classes say of it."""
        rows = f"row blocks of the weights: {', '.join(self.row_order)}."
        if not self.variant_option:
            return rows
        return f"{rows} {self.variant_option}: one of {', '.join(map(repr, self.variants))}."


class DeviceInfo(NamedTuple):
    """One device; units are multiprocessors, or the threads that this process may use."""

    device: str
    name: str
    units: int
    memory: int
    architecture: str


def cells() -> list[CellInfo]:
    return [CellInfo(*described) for described in _core.cells()]


def devices() -> list[DeviceInfo]:
    """The CPU, then every CUDA device that can be used."""
    return [DeviceInfo(*described) for described in _core.devices()]


def build_info() -> str:
    """Version, compiler, BLAS, instruction sets: one "key: value" a line."""
    return _core.build_info()


def cuda_available() -> bool:
    return _core.cuda_available()


def version() -> str:
    """The version of the library that runs."""
    return dict(line.split(": ", 1) for line in build_info().strip().splitlines())["version"]
