# SPDX-License-Identifier: Apache-2.0
"""What a layer is, without its tensors: one description for NumPy, torch and JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _core, profile
from .ragged import PACKED, RECTANGULAR, Ragged
from .registry import CellInfo, cells

STATES = {cell.name: cell.states for cell in cells()}  # tensors of a state
FRESH = {cell.name: cell.fresh for cell in cells()}  # what they are where there is none before


class Batch(NamedTuple):
    """Sizes of a call: T steps of B sequences, or of packed ones T tokens of all together."""

    steps: Any
    sequences: Any
    layout: str = RECTANGULAR


class Planned(NamedTuple):
    """A plan, and the sizes of its call: made once, and kept for as long as it holds."""

    core: _core.Layer
    plan: _core.Plan
    y: tuple[int, ...]  # shapes
    y_of_step: tuple[int, ...]
    states: list[tuple[int, ...]]
    workspace: int  # bytes
    reserve: int
    device: _core.Device
    settings: int  # what it depends on beside the call, `_core.settings(device)`


# (settings, T, B, training, strategy, layout, longest) -> Planned; the last two are not there for a
# rectangular batch
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
    bidirectional: bool = False
    variant: str = ""  # the cell's first
    domain: str = "log"
    options: str = ""  # the cell's own, "name=number ..."; see options_text
    strategy: str | None = None  # asked of a plan, no part of the layer
    longest: int = 0  # of packed sequences, which a plan is told; 0: not known
    one_step: bool = False  # x is [B,C] and a state [B,H]: one step of a layer, which has one row

    def layer(self, input_size: int, dtype: str) -> _core.Layer:
        return _layer(self._of_any_batch(), input_size, dtype)

    @property
    def own_options(self) -> dict[str, float]:
        return _options(self.options) if self.options else {}

    @property
    def drops(self) -> bool:
        """Whether training draws numbers."""
        if not self.options and not self.dropout:  # as nearly always
            return False
        told = self.own_options
        between = self.dropout > 0 and self.num_layers > 1
        return self.draws and (between or any(told.get(s, 0) > 0 for s in SHARES))

    @property
    def draws(self) -> bool:
        """False: training computes what inference does."""
        return self.own_options.get("draws", 1) > 0

    def without_drops(self) -> Description:
        """What computes in training as in inference."""
        return self._replace(options=f"{self.options} draws=0".strip()) if self.drops else self

    @property
    def states(self) -> int:
        return STATES[self.cell]

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def batch_axis(self) -> int:
        return 0 if self.batch_first or self.one_step else 1

    def planner(self, input_size: int, dtype: str, device: _core.Device) -> Planner:
        """Its plans on a device. Whoever asks passes `_core.settings(device)`, on which they
        depend, too."""
        return _planner(self._of_any_batch(), input_size, dtype, device)

    def _of_any_batch(self) -> Description:
        return self._replace(longest=0) if self.longest else self

    def plan(
        self, input_size: int, dtype: str, device: _core.Device, batch: Batch, training: bool
    ) -> Planned:
        planner = self.planner(input_size, dtype, device)
        steps, sequences, layout = batch
        settings = _core.settings(device)
        return planner(settings, steps, sequences, training, self.strategy, layout, self.longest)

    def batch(self, shape: Sequence[Any], ragged: Ragged | None = None) -> Batch:
        if ragged is not None and ragged.cu_seqlens is not None:
            return Batch(shape[0], ragged.cu_seqlens.shape[0] - 1, PACKED)
        if self.one_step:
            return Batch(1, shape[0])
        axis = self.batch_axis
        layout = RECTANGULAR if ragged is None else ragged.layout
        return Batch(shape[1 - axis], shape[axis], layout)

    @property
    def output_size(self) -> int:
        """Features of one direction's output, and of h."""
        if not self.options:
            return self.hidden_size
        return int(self.own_options.get("proj_size", 0)) or self.hidden_size

    def output_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return *shape[:-1], self.directions * self.output_size

    def state_shapes(self, sequences: Any) -> list[tuple[Any, ...]]:
        """The shape of each tensor of the state."""
        rows = () if self.one_step else (self.num_layers * self.directions,)
        sizes = [self.output_size] + [self.hidden_size] * (self.states - 1)
        return [(*rows, sequences, size) for size in sizes]

    def as_sequence(self) -> Description:
        return self._replace(one_step=False)


# What training draws by, beside dropout between layers.
SHARES = ("input_dropout", "state_dropout", "dropconnect", "zoneout", "zoneout_cell")


def options_text(cell: CellInfo, values: Mapping[str, Any]) -> str:
    """A cell's own options as a description has them, those alone that are not the default. What
    zoneout says of LSTM may be a pair, for h and for c."""
    told, known = dict(values), dict(cell.options)
    zoneout = told.get("zoneout")
    if isinstance(zoneout, tuple):
        if "zoneout_cell" not in known:
            raise ValueError(
                f"zoneout: expected a number, as {cell.name} has one tensor that it is for, got "
                f"{zoneout!r}"
            )
        told["zoneout"], told["zoneout_cell"] = zoneout
    words = [f"{k}={float(told[k])!r}" for k, v in known.items() if told.get(k, v) != v]
    return " ".join(words)


def _options(text: str) -> dict[str, float]:
    pairs = (word.split("=") for word in text.split())
    return {name: float(value) for name, value in pairs}


@functools.lru_cache(maxsize=1024)
def _layer(description: Description, input_size: int, dtype: str) -> _core.Layer:
    profile.load_users()
    options = description._asdict()
    del options["strategy"], options["longest"], options["one_step"]
    return _core.Layer(input_size=input_size, dtype=dtype, **options)


@functools.lru_cache(maxsize=1024)
def _planner(
    description: Description, input_size: int, dtype: str, device: _core.Device
) -> Planner:
    layer = description.layer(input_size, dtype)
    width = description.directions * description.output_size

    @functools.lru_cache(maxsize=256)
    def planned(
        settings: int, steps: int, batch: int, training: bool, strategy: str | None,
        layout: str = RECTANGULAR, longest: int = 0,
    ) -> Planned:  # fmt: skip
        plan = layer.plan(device, steps, batch, training, strategy, layout, longest)
        tokens = [batch, steps] if description.batch_first else [steps, batch]
        if layout == PACKED:
            tokens = [steps]
        elif description.one_step:
            tokens = [batch]
        return Planned(
            layer, plan, (*tokens, width), (batch, width), description.state_shapes(batch),
            plan.workspace_bytes, plan.reserve_bytes, device, settings,
        )  # fmt: skip

    return planned
