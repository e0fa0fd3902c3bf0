# SPDX-License-Identifier: Apache-2.0
"""What a call needs of a layer, and of its arguments."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .arguments import Array
from .description import Description


def log(plan: _core.Plan) -> None:
    """As the user's SCANRNN_LOG=plan wants it."""
    if os.environ.get("SCANRNN_LOG") == "plan":
        print(f"scanrnn: {plan}", file=sys.stderr)


def names(one_step: bool) -> tuple[str, str, str]:
    """What errors call x and the initial state."""
    return ("x_t", "h", "c") if one_step else ("x", "h_0", "c_0")


class Placed:
    """A layer's parameters where they are used: NumPy's arrays, and copies of them elsewhere."""

    def __init__(self, device: _core.Device, arrays: list[Array]) -> None:
        self.device, self.arrays = device, arrays
        self._elsewhere: dict[str, Any] = {}

    def kept(self, where: str, make: Callable[[list[Array]], Any]) -> Any:
        """What `make` gives of NumPy's arrays, when a call there first needs it."""
        if where not in self._elsewhere:
            self._elsewhere[where] = make(self.arrays)
        return self._elsewhere[where]

    @functools.cached_property
    def core(self) -> _core.Parameters:
        """What calls on NumPy's arrays read."""
        return _core.Parameters(self.device, self.arrays)


class Stack(NamedTuple):
    """What calls read of a layer."""

    description: Description
    input_size: int
    core: _core.Layer
    device: _core.Device
    dtype: np.dtype[Any]
    shapes: dict[str, tuple[int, ...]]  # of the parameters, by torch's names
    placed: Placed


class Call(NamedTuple):
    """What an array library needs for one call."""

    stack: Stack
    plan: _core.Plan
    x: Any  # [T,B,C] or [B,T,C]; for one step [B,C]
    h_0: list[Any]  # each [L*D,B,H]; none for zeros
    training: bool = False
    seed: int = 0
    one_step: bool = False

    def names(self) -> tuple[str, str, str]:
        return names(self.one_step)

    def states(self) -> int:
        return self.stack.description.states

    def shape_of_y(self) -> tuple[int, ...]:
        d = self.stack.description
        return (*self.x.shape[:-1], d.directions * d.hidden_size)

    def shape_of_state(self) -> tuple[int, ...]:
        return self.stack.description.state_sizes(self.plan.batch)
