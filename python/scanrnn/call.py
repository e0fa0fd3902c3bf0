# SPDX-License-Identifier: Apache-2.0
"""What a call needs of a layer, and of its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .arguments import Array
from .description import Description, Planned, Planner
from .ragged import Ragged


def log(plan: _core.Plan) -> None:
    """For a user who wants plans: ask `_core.wants_plans()` first."""
    print(f"scanrnn: {plan}", file=sys.stderr)


class Placed:
    """A layer's parameters where they are used: NumPy's arrays, and copies of them elsewhere."""

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays, self.views = arrays, _core.Tensors("params", arrays)
        self._elsewhere: dict[Any, Any] = {}

    def kept(self, where: Any, make: Callable[[list[Array]], Any]) -> Any:
        """What `make` gives of NumPy's arrays, when a call there first needs it."""
        found = self._elsewhere.get(where)
        if found is None:
            found = self._elsewhere[where] = make(self.arrays)
        return found


class Stack(NamedTuple):
    """What calls read of a layer."""

    description: Description
    input_size: int
    core: _core.Layer
    device: _core.Device
    where: str  # the device by name
    dtype: np.dtype[Any]
    batch_axis: int
    states: int
    shapes: dict[str, tuple[int, ...]]  # of the parameters, by torch's names
    planner: Planner
    placed: Placed


class Call:
    """What an array library needs for one call."""

    stack: Stack
    planned: Planned
    x: Any  # [T,B,C] or [B,T,C]; for one step [B,C]; packed [tokens,C]
    h_0: list[Any]  # each [L*D,B,H]; none for zeros; with state_indices a pool, to be written
    ragged: Ragged | None  # None: a rectangular batch
    pooled: bool  # with state_indices
    training: bool
    seed: int
    one_step: bool
    names: tuple[str, str]  # what errors call x and h of the initial state
