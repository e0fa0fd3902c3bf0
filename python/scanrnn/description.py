# SPDX-License-Identifier: Apache-2.0
"""What a layer is, without its tensors: one description for NumPy, torch and JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _core, profile
from .ragged import PACKED, RECTANGULAR, Ragged
from .registry import cells

STATES = {cell.name: cell.states for cell in cells()}  # tensors of a state
FRESH = {cell.name: cell.fresh for cell in cells()}  # what they are where there is none before


class Batch(NamedTuple):
    """Sizes of a call: T steps of B sequences, or of packed ones T tokens of all together."""

    steps: Any
    sequences: Any
    layout: str = RECTANGULAR


class Planned(NamedTuple):
    """A plan, and the sizes of its call: made once, and kept for as long as it holds."""

    plan: _core.Plan
    y: tuple[int, ...]  # shapes
    y_of_step: tuple[int, ...]
    state: tuple[int, ...]
    workspace: int  # bytes
    reserve: int


# (settings, T, B, training, strategy, layout, which is rectangular where it is absent) -> Planned
Planner = Callable[..., Planned]


class Description(NamedTuple):
    """It can be compared, so a cache or a compiled function has it as a key; torch's operators take
    it as so many arguments. Sizes are asked of a shape of x."""

    cell: str
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    dropconnect: float = 0.0
    input_dropout: float = 0.0
    bidirectional: bool = False
    variant: str = ""  # the cell's first
    domain: str = "log"
    strategy: str | None = None  # asked of a plan, no part of the layer

    def layer(self, input_size: int, dtype: str) -> _core.Layer:
        return _layer(self, input_size, dtype)

    @property
    def drops(self) -> bool:
        """Whether training draws numbers."""
        between = self.dropout > 0 and self.num_layers > 1
        return between or self.dropconnect > 0 or self.input_dropout > 0

    def without_drops(self) -> Description:
        return self._replace(dropout=0.0, dropconnect=0.0, input_dropout=0.0)

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
        self, input_size: int, dtype: str, device: _core.Device, batch: Batch, training: bool
    ) -> Planned:
        planner = _planner(self, input_size, dtype, device)
        steps, sequences, layout = batch
        settings = _core.settings(device)
        return planner(settings, steps, sequences, training, self.strategy, layout)

    def batch(self, shape: Sequence[Any], ragged: Ragged | None = None) -> Batch:
        if ragged is not None and ragged.cu_seqlens is not None:
            return Batch(shape[0], ragged.cu_seqlens.shape[0] - 1, PACKED)
        axis = self.batch_axis
        layout = RECTANGULAR if ragged is None else ragged.layout
        return Batch(shape[1 - axis], shape[axis], layout)

    def output_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return *shape[:-1], self.directions * self.hidden_size

    def state_shape(self, sequences: Any) -> tuple[Any, ...]:
        return self.num_layers * self.directions, sequences, self.hidden_size


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
        settings: int, steps: int, batch: int, training: bool, strategy: str | None,
        layout: str = RECTANGULAR,
    ) -> Planned:  # fmt: skip
        plan = layer.plan(device, steps, batch, training, strategy, layout)
        tokens = [batch, steps] if description.batch_first else [steps, batch]
        if layout == PACKED:
            tokens = [steps]
        return Planned(
            plan, (*tokens, width), (batch, width), description.state_shape(batch),
            plan.workspace_bytes, plan.reserve_bytes,
        )  # fmt: skip

    return planned
