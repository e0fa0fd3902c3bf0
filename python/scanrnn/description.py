# SPDX-License-Identifier: Apache-2.0
"""What a layer is, without its tensors: one description for NumPy, torch and JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _core, profile
from .registry import cells

STATES = {cell.name: cell.states for cell in cells()}  # tensors of a state: h, or h and c


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

    def plan(
        self, layer: _core.Layer, device: _core.Device, shape: Sequence[int], training: bool
    ) -> _core.Plan:
        steps, batch = shape[1 - self.batch_axis], shape[self.batch_axis]
        return layer.plan(device, steps, batch, training, self.strategy)

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
