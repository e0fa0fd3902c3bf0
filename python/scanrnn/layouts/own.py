# SPDX-License-Identifier: Apache-2.0
"""A layer's own parameters, and what another library's arrays of them are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import Array
from ..registry import CellInfo
from .blocks import PROJECTIONS, own_fields, taken_apart
from .names import Place, named, parsed
from .tables import Layout

Params = dict[str, Array]  # of one direction of a layer, by their names without the layer


class Names:
    """What the arrays of one unit are called."""

    def __init__(self, kind: Layout, layer: int, direction: int, layers: int, directions: int):
        self.place = (layer, direction)
        self.rest = (kind.template, layers, 1 if kind.joined else directions)

    def __call__(self, field: str) -> str:
        return named(Place(*self.place, field), *self.rest)


def by_layer(layer: Any) -> list[list[Params]]:
    """Its parameters for each layer and direction."""
    directions = range(1 + layer.bidirectional)
    out: list[list[Params]] = [[{} for _ in directions] for _ in range(layer.num_layers)]
    state = layer.state_dict()
    for (index, way, field), name in parsed(state, True).items():
        out[index][way][field] = state[name]
    return out


def written(
    kind: Layout, cell: CellInfo, params: Sequence[Params], hidden_size: int
) -> list[dict[str, Array]]:
    """The arrays of one layer, for both directions or for each."""
    own, fields = own_fields(cell), kind.fields(cell)
    if kind.needs_bias:
        params = [_with_biases(cell, each, hidden_size) for each in params]
    blocks = [taken_apart(own, each, hidden_size) for each in params]
    out = []
    for unit in [blocks] if kind.joined else [[each] for each in blocks]:
        arrays = {}
        for field in fields:
            names = [name for name in field.blocks if name in unit[0]]
            if names:
                arrays[field.name] = field.form.pack(
                    [[way[name] for name in names] for way in unit]
                )
        if kind.own:
            whole = [name for name in PROJECTIONS if f"{name}." in unit[0]]
            arrays |= {name: unit[0][f"{name}."] for name in whole}
        out.append(arrays)
    return out


def _with_biases(cell: CellInfo, params: Params, hidden_size: int) -> Params:
    """Zeros in their place where a layer has none."""
    kind = params["weight_ih"].dtype
    zeros: Params = {"bias_ih": np.zeros(cell.bias_gates * hidden_size, kind)}
    if cell.recurrence == "dense":
        zeros["bias_hh"] = zeros["bias_ih"]
    return zeros | params
