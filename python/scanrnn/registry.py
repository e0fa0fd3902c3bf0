# SPDX-License-Identifier: Apache-2.0
"""What there is: cells, devices, and what this build can do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from . import _core

T = TypeVar("T")


class CellInfo(NamedTuple):
    """One cell; row_order names the row blocks of weight_ih, of which bias_gates have a bias.

    recurrence is "linear", "diagonal", whose gates read their own unit's state, or "dense". A state
    is so many arrays: h, the pair (h, c), or (h, c, n, m), each filled with its value of `fresh`
    where there is none before. With readout the output differs from the state. With
    highway a step reads x of its own unit as well, and a layer of a square cell has no projection
    for it: its input size is H. The parameter vectors_name holds so many vectors of H values.
    Without variant_option the one variant has no name. A cell with a base has no class: it is what
    `option=True` makes of the class `base`. options are those that not every cell has, with their
    defaults.
    """

    name: str
    recurrence: str
    gates: int
    bias_gates: int
    states: int
    fresh: tuple[float, ...]
    readout: bool
    highway: bool
    square: bool
    vectors: int
    vectors_name: str
    variant_option: str
    variants: tuple[str, ...]
    row_order: tuple[str, ...]
    base: str
    option: str
    options: tuple[tuple[str, Any], ...]

    def words(self) -> str:
        """What the docstrings of a cell's classes say of it."""
        out = [f"row blocks of the weights: {', '.join(self.row_order)}.", *self._size_words()]
        if self.variant_option:
            out.append(f"{self.variant_option}: one of {', '.join(map(repr, self.variants))}.")
        for name, cell in self._made_of_it().items():
            out += [f"{name}=True: {cell.recurrence} recurrence.", *cell._size_words()]
        return " ".join(out)

    def _size_words(self) -> list[str]:
        out = ["input_size is hidden_size."] if self.square else []
        if self.vectors:
            size = "H" if self.vectors == 1 else f"{self.vectors}*H"
            out.append(f"{self.vectors_name} [{size}]: one value a unit for each vector.")
        return out

    # ---- classes and their options

    def _made_of_it(self) -> dict[str, CellInfo]:
        """The cells that its class also makes, by the option that does it."""
        return {cell.option: cell for cell in cells() if cell.base == self.name}

    def own_options(self) -> dict[str, Any]:
        """What its class takes beyond the options of all classes, with the defaults."""
        variant = {self.variant_option: self.variants[0]} if self.variant_option else {}
        numbers = {name: value for name, value in self.options if name != "zoneout_cell"}
        return variant | dict.fromkeys(self._made_of_it(), False) | numbers

    def takes(self, option: str) -> bool:
        """Whether its class has this option, which not every cell's has."""
        return option in self.own_options() or (option == "domain" and self.recurrence == "linear")

    def is_drawn(self, option: str) -> bool:
        """Whether it is a share that training draws by."""
        return option.endswith("dropout") or option in ("dropconnect", "zoneout")

    def chosen(self, options: Mapping[str, Any]) -> CellInfo:
        """The cell that its class makes by these options."""
        made = [cell for name, cell in self._made_of_it().items() if options[name]]
        return made[0] if made else self

    def made_by(self) -> tuple[str, dict[str, Any]]:
        """The class that makes it, and the options by which it does."""
        return (self.base, {self.option: True}) if self.base else (self.name, {})

    def as_made(self) -> str:
        """The same in words."""
        name, options = self.made_by()
        return " with ".join([name, *(f"{option}=True" for option in options)])


class DeviceInfo(NamedTuple):
    """One device; units are multiprocessors, or the threads that this process may use."""

    device: str
    name: str
    units: int
    memory: int
    architecture: str


def cells() -> list[CellInfo]:
    return [CellInfo(*described) for described in _core.cells()]


def classes(make: Callable[[CellInfo], T]) -> dict[str, T]:
    """What `make` gives for each cell that has a class, by its name."""
    return {cell.name: make(cell) for cell in cells() if not cell.base}


def signature(kind: Callable[..., Any], options: Mapping[str, Any]) -> inspect.Signature:
    """That of a framework's class, with a cell's own options where it takes any by keyword."""
    found = inspect.signature(kind)
    *common, _ = found.parameters.values()
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in options.items()
        if name not in found.parameters
    ]
    return found.replace(parameters=[*common, *own])


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
