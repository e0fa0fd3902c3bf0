# SPDX-License-Identifier: Apache-2.0
"""Another library's arrays on their way into a layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import arguments
from ..arguments import Array
from ..arrays import on_host
from ..registry import CellInfo
from .blocks import PROJECTIONS, own_fields, put_together, taken_apart
from .names import Place, named, parsed
from .own import Names, Params, by_layer, written
from .tables import LAYOUTS, First, Layout
from .unit import Unit

_BOOLS = (bool, np.bool_)


class Coming:
    """Arrays on their way into a layer: units of each layer, one where directions are joined."""

    def __init__(
        self,
        kind: Layout,
        layout: str,
        cell: CellInfo,
        weights: Mapping[str, Any],
        options: Mapping[str, Any],
        forget_bias: float,
    ) -> None:
        self.kind, self.cell, self.options = kind, cell, dict(options)
        self.fields = kind.fields(cell)
        self.places = parsed(weights, kind.own, [field.name for field in self.fields])
        values = self._on_host(weights)
        self.layers = len({place.layer for place in self.places})
        self.directions = self._directions(values)
        check_directions(layout, kind, self.directions)
        self.said: dict[str, Any] = {}  # options that the arrays themselves tell
        self.units: list[list[dict[str, Any]]] = []
        for layer in range(self.layers):
            ways = range(1 if kind.joined else self.directions)
            self.units.append([self._unit(values, layer, way, forget_bias) for way in ways])
        found = [array for units in self.units for unit in units for array in unit]
        biases = [field.name for field in self.fields if field.is_bias]
        self.bias = kind.needs_bias or any(name in found for name in biases)
        self._check_names()

    def _on_host(self, weights: Mapping[str, Any]) -> dict[Place, Any]:
        """All arrays in the layer's dtype, which is theirs unless one is told."""
        told = arguments.dtype(self.options["dtype"]) if "dtype" in self.options else None
        values = {
            place: arguments.named_again(weights[name], told) for place, name in self.places.items()
        }
        arrays = {
            place: on_host(self.places[place], value, None)
            for place, value in values.items()
            if place.field not in self.kind.raw
        }
        found = sorted({str(array.dtype) for array in arrays.values()})
        if told is None:
            if len(found) != 1:
                raise ValueError(
                    f"weights: expected arrays of one dtype, got {', '.join(found) or 'none'}: "
                    "dtype= says what they are to be"
                )
            self.options["dtype"] = found[0]
            told = arguments.dtype(found[0])
        return values | {place: v.astype(told, copy=False) for place, v in arrays.items()}

    def _directions(self, values: Mapping[Place, Any]) -> int:
        if not self.kind.joined:
            return 1 + any(place.direction for place in self.places)
        if self.kind.axes == 3:  # the first axis of the matrix
            matrix = values.get(Place(0, 0, self.fields[0].name))
            return 2 if matrix is not None and matrix.ndim == 3 and matrix.shape[0] == 2 else 1
        return 1 + arguments.flag("bidirectional", self.options.get("bidirectional", False))

    def _unit(
        self, values: Mapping[Place, Any], layer: int, way: int, forget_bias: float
    ) -> dict[str, Any]:
        arrays = {
            at.field: v for at, v in values.items() if (at.layer, at.direction) == (layer, way)
        }
        label = functools.partial(self._label, layer, way)
        self.said = agreeing(self.said, self.kind.says(arrays, self.cell), "one layer says so")
        return self.kind.coming(arrays, Unit(self.cell, self.directions, label, forget_bias))

    def _check_names(self) -> None:
        wanted = [
            field.name
            for field in self.fields
            if (self.bias or not field.is_bias)
            and (not field.option or self.said.get(field.option, False))
        ]
        if self.kind.own:
            has = dict(self.cell.options)
            told = [name for name, option in PROJECTIONS.items() if option in has]
            wanted += [name for name in told if Place(0, 0, name) in self.places]
        missing, unexpected = [], []
        for layer, units in enumerate(self.units):
            for way, unit in enumerate(units):
                names = Names(self.kind, layer, way, self.layers, self.directions)
                missing += [names(name) for name in wanted if name not in unit]
                places = [Place(layer, way, name) for name in unit if name not in wanted]
                unexpected += [self.places.get(place, place.field) for place in places]
        known = [
            (layer, way) for layer, units in enumerate(self.units) for way in range(len(units))
        ]
        unexpected += [
            name for at, name in self.places.items() if (at.layer, at.direction) not in known
        ]
        if missing or unexpected:
            raise ValueError(f"weights: missing {missing}, unexpected {unexpected}")

    def _hidden_size(self, matrix: str) -> int | None:
        """As the caller says, or as the second layer of our own layout reads it."""
        if "hidden_size" in self.options or not self.kind.own or self.layers == 1:
            return self.options.get("hidden_size")
        second = self.units[1][0]
        found = second.get("weight_pr", second.get(matrix))
        return None if found is None else found.shape[-1] // self.directions

    def layer(self, cls: type) -> Any:
        """The layer itself: what sizes there are, and then all values."""
        first, matrix = self.units[0][0], self.fields[0]
        name = self._label(0, 0, matrix.name)
        shape = first[matrix.name].shape
        if len(shape) != self.kind.axes:
            raise ValueError(f"{name}: expected {self.kind.axes} axes, got shape {shape}")
        label, size = functools.partial(self._label, 0, 0), self._hidden_size(matrix.name)
        told = First(self.cell, label, shape, matrix, first, self.directions, size)
        input_size, hidden_size = (max(1, size) for size in self.kind.sizes(told))
        found = {
            "input_size": input_size,
            "hidden_size": hidden_size,
            "num_layers": self.layers,
            "bias": self.bias,
            "bidirectional": self.directions == 2,
        }
        found |= self.kind.options(told, hidden_size) | self.said
        options = agreeing(self.options, found, "the arrays say so")
        made = cls(**{"seed": 0} | options)
        values: dict[str, Array] = {}
        own = own_fields(self.cell)
        for index, params in enumerate(by_layer(made)):
            wanted = written(self.kind, self.cell, params, made.hidden_size)
            self._check_shapes(index, wanted, made)
            apart = [taken_apart(own, each, made.hidden_size) for each in params]
            ways = [apart] if self.kind.joined else [[each] for each in apart]
            read: list[dict[str, Array]] = []
            for unit, blocks in zip(self.units[index], ways, strict=True):
                read += self._read(unit, blocks)
            for way, (blocks, each) in enumerate(zip(read, params, strict=True)):
                shapes = {name: value.shape for name, value in each.items()}
                params_of = put_together(own, blocks, shapes, made.hidden_size)
                values |= {
                    named(Place(index, way, name), LAYOUTS["torch"].template, 1, 1): value
                    for name, value in params_of.items()
                }
        made.load_state_dict(values)
        return made

    def _read(self, unit: Mapping[str, Array], like: Sequence[Params]) -> list[dict[str, Array]]:
        """The blocks of each direction that the arrays of a unit have."""
        blocks: list[dict[str, Array]] = [{} for _ in like]
        for field in self.fields:
            names = [name for name in field.blocks if name in like[0]]
            if names and field.name in unit:
                unpacked = field.form.unpack(unit[field.name], len(like), len(names))
                for into, values in zip(blocks, unpacked, strict=True):
                    into |= dict(zip(names, values, strict=True))
        if self.kind.own:
            blocks[0] |= {f"{name}.": unit[name] for name in PROJECTIONS if name in unit}
        return blocks

    def _check_shapes(self, layer: int, wanted: Sequence[Mapping[str, Array]], made: Any) -> None:
        for way, (unit, fields) in enumerate(zip(self.units[layer], wanted, strict=True)):
            for name, value in fields.items():
                if unit[name].shape != value.shape:
                    raise ValueError(
                        f"{self._label(layer, way, name)}: expected shape {value.shape}, as "
                        f"{self.cell.name} of input_size {made.input_size} and hidden_size "
                        f"{made.hidden_size} has it, got {unit[name].shape}"
                    )

    def _label(self, layer: int, way: int, field: str) -> str:
        names = Names(self.kind, layer, way, self.layers, self.directions)
        return self.places.get(Place(layer, way, field)) or names(field)


def check_directions(layout: str, kind: Layout, directions: int) -> None:
    if directions > kind.directions:
        raise ValueError(f"bidirectional: {layout!r} has one direction, got {directions}")


def agreeing(options: Mapping[str, Any], found: Mapping[str, Any], reason: str) -> dict[str, Any]:
    for name, value in found.items():
        given = options.get(name, value)
        if given != value or isinstance(given, _BOOLS) != isinstance(value, _BOOLS):
            raise ValueError(f"{name}: expected {value!r}, since {reason}, got {given!r}")
    return {**options, **found}
