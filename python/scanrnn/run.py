# SPDX-License-Identifier: Apache-2.0
"""One call of a layer: its arguments as batches, its plan, its outputs, and the way back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, arguments
from .arguments import Array

if TYPE_CHECKING:
    from .layers import Layer

State = Array | tuple[Array, Array]  # h, or the pair (h, c)


class Run:
    """One call: its arguments as batches, its plan and its outputs."""

    def __init__(
        self, layer: Layer, x: Array, h_0: State | None, strategy: str | None, training: bool
    ) -> None:
        self.layer, self.params = layer, layer._placed
        self.seed = 0
        self.reserve: _core.Buffer | None = None
        x = arguments.array("x", x, layer.dtype)
        if x.ndim not in (2, 3):
            wanted = "(B, T, C)" if layer.batch_first else "(T, B, C)"
            raise ValueError(
                f"x: expected {wanted}, or (T, C) for one sequence, got shape {x.shape}"
            )
        self.single = x.ndim == 2
        self.x = self.as_batch(x)
        self.h_0 = states("h_0", h_0, layer, self.single)
        if training:  # small, and the caller may well reuse it
            self.h_0 = [None if state is None else state.copy() for state in self.h_0]
        self.batch, steps = self.x.shape[:2] if layer.batch_first else self.x.shape[1::-1]
        self.plan = layer.plan(steps, self.batch, strategy, training)
        self.y = np.empty(
            (*self.x.shape[:2], layer._layer.directions * layer.hidden_size), layer.dtype
        )
        self.h_n = layer._new_states(self.batch)

    def forward(self) -> tuple[Array, State]:
        log(self.plan)
        self.layer._layer.forward(
            self.plan, self.params, self.x, self.h_0, self.y, self.h_n, self.reserve, self.seed
        )
        return self.as_given(self.y), given_state(self.h_n, self.single)

    def backward(
        self, dy: Array | None, dh_n: State | None
    ) -> tuple[Array, State, dict[str, Array]]:
        layer = self.layer
        if dy is not None:
            dy = self.as_batch(_like_x("dy", dy, layer.dtype, self.single))
        dfinals = states("dh_n", dh_n, layer, self.single)
        dx, dinitials = np.empty(self.x.shape, layer.dtype), layer._new_states(self.batch)
        dparams = {name: np.empty(shape, layer.dtype) for name, shape in layer._shapes.items()}
        layer._layer.backward(
            self.plan, self.params, self.x, self.h_0, self.y, dy, dfinals, dx, dinitials,
            list(dparams.values()), self.reserve, self.seed,
        )  # fmt: skip
        return self.as_given(dx), given_state(dinitials, self.single), dparams

    def as_batch(self, value: Array) -> Array:
        if not self.single:
            return value
        return value[None] if self.layer.batch_first else value[:, None]

    def as_given(self, value: Array) -> Array:
        if not self.single:
            return value
        return value[0] if self.layer.batch_first else value[:, 0]


def states(name: str, value: State | None, layer: Layer, single: bool) -> list[Array | None]:
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
        None if state is None else _state(which, state, layer.dtype, single)
        for which, state in named.items()
    ]


def _state(name: str, value: Array, dtype: np.dtype[Any], single: bool) -> Array:
    value = _like_x(name, value, dtype, single)
    return value[:, None] if single else value


def _kind(value: Any) -> str:
    many = isinstance(value, (tuple, list))
    return f"{len(value)} of them" if many else type(value).__name__


def given_state(values: list[Array], single: bool) -> State:
    """States as callers know them: one array, or the pair."""
    values = [value[:, 0] for value in values] if single else values
    return values[0] if len(values) == 1 else (values[0], values[1])


def _like_x(name: str, value: Array, dtype: np.dtype[Any], single: bool) -> Array:
    value, axes = arguments.array(name, value, dtype), 2 if single else 3
    if value.ndim != axes:
        kind = "one sequence" if single else "a batch"
        raise ValueError(f"{name}: expected {axes} axes, x being {kind}, got shape {value.shape}")
    return value


def log(plan: _core.Plan) -> None:
    if os.environ.get("SCANRNN_LOG") == "plan":
        print(f"scanrnn: {plan}", file=sys.stderr)


class Pullback:
    """Carries cotangents of (y, h_n) back to (x, h_0, parameters), as often as it is called."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(
        self, dy: Array | None, dh_n: State | None = None
    ) -> tuple[Array, State, dict[str, Array]]:
        """dy, dh_n like y, h_n; None for zeros -> dx like x, dh_0 like h_0, dparams by name.

        Of a pair (dh_n, dc_n) either may be None.
        """
        return self._run.backward(dy, dh_n)
