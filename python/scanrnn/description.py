# SPDX-License-Identifier: Apache-2.0
"""What a layer is, without its tensors: one description for NumPy, torch and JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _core, profile
from .registry import cells

STATES = {cell.name: cell.states for cell in cells()}  # tensors of a state: h, or h and c


class Planned(NamedTuple):
    """A plan, and the sizes of its call: made once, and kept for as long as it holds."""

    plan: _core.Plan
    y: tuple[int, ...]
    y_of_step: tuple[int, ...]
    state: tuple[int, ...]
    workspace: int  # bytes
    reserve: int


# (settings, T, B, training, strategy) -> Planned
Planner = Callable[[int, int, int, bool, "str | None"], Planned]


class Description(NamedTuple):
    """It can be compared, so a cache or a compiled function has it as a key; torch's operators take
    it as so many arguments. Sizes are asked of a shape of x: T steps, B batch."""

    cell: str
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    variant: str = ""  # the cell's first
    domain: str = "log"
    strategy: str | None = None  # asked of a plan, no part of the layer

    def layer(self, input_size: int, dtype: str) -> _core.Layer:
        return _layer(self, input_size, dtype)

    @property
    def states(self) -> int:
        return STATES[self.cell]

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def batch_axis(self) -> int:
        return 0 if self.batch_first else 1

    def planner(self, input_size: int, dtype: str, device: _core.Device) -> Planner:
        """Its plans on a device. Whoever asks passes `_core.settings(device)`, on which they
        depend, too."""
        return _planner(self, input_size, dtype, device)

    def plan(
        self, input_size: int, dtype: str, device: _core.Device, shape: Sequence[int],
        training: bool,
    ) -> Planned:  # fmt: skip
        planner = _planner(self, input_size, dtype, device)
        steps, batch = shape[1 - self.batch_axis], shape[self.batch_axis]
        return planner(_core.settings(device), steps, batch, training, self.strategy)

    def output_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return shape[0], shape[1], self.directions * self.hidden_size

    def state_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return self.state_sizes(shape[self.batch_axis])

    def state_sizes(self, batch: Any) -> tuple[Any, ...]:
        return self.num_layers * self.directions, batch, self.hidden_size


@functools.lru_cache(maxsize=1024)
def _layer(description: Description, input_size: int, dtype: str) -> _core.Layer:
    profile.load_users()
    options = description._asdict()
    del options["strategy"]
    return _core.Layer(input_size=input_size, dtype=dtype, **options)


@functools.lru_cache(maxsize=1024)
def _planner(
    description: Description, input_size: int, dtype: str, device: _core.Device
) -> Planner:
    layer = description.layer(input_size, dtype)
    width = description.directions * description.hidden_size

    @functools.lru_cache(maxsize=256)
    def planned(
        settings: int, steps: int, batch: int, training: bool, strategy: str | None
    ) -> Planned:
        plan = layer.plan(device, steps, batch, training, strategy)
        first = (batch, steps) if description.batch_first else (steps, batch)
        return Planned(
            plan, (*first, width), (batch, width), description.state_sizes(batch),
            plan.workspace_bytes, plan.reserve_bytes,
        )  # fmt: skip

    return planned
