# SPDX-License-Identifier: Apache-2.0
"""One call of a layer: its arguments as batches, its plan, its outputs, and the way back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _core, exchange
from .arguments import Array
from .kinds import Kind, log

if TYPE_CHECKING:
    from .layers import Layer

State = Any  # h, or the pair (h, c), of the kind that came in


class Placed:
    """A layer's parameters where they are used: NumPy's arrays, and copies of them elsewhere."""

    def __init__(self, device: _core.Device, arrays: list[Array]) -> None:
        self.device, self.arrays = device, arrays
        self.elsewhere: dict[str, Any] = {}  # by kind, made when a call first needs them

    @functools.cached_property
    def core(self) -> _core.Parameters:
        """What calls on NumPy's arrays read."""
        return _core.Parameters(self.device, self.arrays)


class Call(NamedTuple):
    """What a kind of arrays needs for one call."""

    layer: Layer
    placed: Placed
    plan: _core.Plan
    x: Any  # [T,B,C] or [B,T,C]; for one step [B,C]
    h_0: list[Any]  # each [L*D,B,H]; none for zeros
    training: bool = False
    seed: int = 0
    one_step: bool = False

    def names(self) -> tuple[str, str, str]:
        """What errors call x and the initial state."""
        return ("x_t", "h", "c") if self.one_step else ("x", "h_0", "c_0")

    def states(self) -> int:
        return self.layer._cell.states

    def shape_of_y(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], self.layer._layer.directions * self.layer.hidden_size)

    def shape_of_state(self) -> tuple[int, ...]:
        layer = self.layer
        return layer.num_layers * layer._layer.directions, self.plan.batch, layer.hidden_size


class Run:
    """One call: the kind of its arrays, its arguments as batches, its plan and its outputs."""

    def __init__(
        self, layer: Layer, x: Any, h_0: Any, strategy: str | None, training: bool, seed: int = 0
    ) -> None:
        self.layer, self.kind = layer, exchange.kind_of("x", x)
        x = self.kind.array("x", x, layer.dtype)
        self.kind.check_device("x", layer.device)
        if x.ndim not in (2, 3):
            wanted = "(B, T, C)" if layer.batch_first else "(T, B, C)"
            raise ValueError(
                f"x: expected {wanted}, or (T, C) for one sequence, got shape {tuple(x.shape)}"
            )
        self.single = x.ndim == 2
        x = self.as_batch(x)
        initial = states(self.kind, "h_0", h_0, layer, self.single)
        if training:  # small, and the caller may well reuse it
            initial = [None if state is None else self.kind.copy(state) for state in initial]
        batch, steps = x.shape[:2] if layer.batch_first else x.shape[1::-1]
        plan = layer.plan(steps, batch, strategy, training)
        self.call = Call(layer, layer._placed, plan, x, initial, training, seed)

    def forward(self) -> tuple[Any, State]:
        log(self.call.plan)
        self.y, h_n, self.reserve = self.kind.forward(self.call)
        y = self.as_given(self.y)
        if self.call.training:
            self.kind.freeze(self.y, y)
        return y, given_state(h_n, self.single)

    def backward(self, dy: Any, dh_n: Any) -> tuple[Any, State, dict[str, Any]]:
        if dy is not None:
            dy = self.as_batch(_like_x(self.kind, "dy", dy, self.layer.dtype, self.single))
        dfinals = states(self.kind, "dh_n", dh_n, self.layer, self.single)
        dx, dinitials, dparams = self.kind.backward(self.call, self.y, self.reserve, dy, dfinals)
        named = dict(zip(self.layer._shapes, dparams, strict=True))
        return self.as_given(dx), given_state(dinitials, self.single), named

    def as_batch(self, value: Any) -> Any:
        if not self.single:
            return value
        return value[None] if self.layer.batch_first else value[:, None]

    def as_given(self, value: Any) -> Any:
        if not self.single:
            return value
        return value[0] if self.layer.batch_first else value[:, 0]


def states(kind: Kind, name: str, value: Any, layer: Layer, single: bool) -> list[Any]:
    """States as the core takes them, each [L*D,B,H]: h, and c of a pair."""
    if value is None:
        return []
    named: dict[str, Any] = {name: value}
    if layer._cell.states == 2:
        other = name.replace("h", "c")
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise TypeError(f"{name}: expected the pair ({name}, {other}), got {_kind(value)}")
        named = dict(zip((name, other), value, strict=True))
    return [
        None if state is None else _state(kind, which, state, layer.dtype, single)
        for which, state in named.items()
    ]


def _state(kind: Kind, name: str, value: Any, dtype: np.dtype[Any], single: bool) -> Any:
    value = _like_x(kind, name, value, dtype, single)
    return value[:, None] if single else value


def _kind(value: Any) -> str:
    many = isinstance(value, (tuple, list))
    return f"{len(value)} of them" if many else type(value).__name__


def given_state(values: list[Any], single: bool) -> State:
    """States as callers know them: one array, or the pair."""
    values = [value[:, 0] for value in values] if single else values
    return values[0] if len(values) == 1 else (values[0], values[1])


def _like_x(kind: Kind, name: str, value: Any, dtype: np.dtype[Any], single: bool) -> Any:
    value, axes = kind.array(name, value, dtype), 2 if single else 3
    if value.ndim != axes:
        described = "one sequence" if single else "a batch"
        raise ValueError(
            f"{name}: expected {axes} axes, x being {described}, got shape {tuple(value.shape)}"
        )
    return value


class Pullback:
    """Carries cotangents of (y, h_n) back to (x, h_0, parameters), as often as it is called."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, dy: Any, dh_n: State | None = None) -> tuple[Any, State, dict[str, Any]]:
        """dy, dh_n like y, h_n; None for zeros -> dx like x, dh_0 like h_0, dparams by name.

        Of a pair (dh_n, dc_n) either may be None.
        """
        return self._run.backward(dy, dh_n)
