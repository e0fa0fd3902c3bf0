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

Pair = tuple[Array, Array]


class Run:
    """One call: its arguments as batches, its plan and its outputs."""

    def __init__(
        self, layer: Layer, x: Array, h_0: Array | None, strategy: str | None, training: bool
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
        self.h_0 = None if h_0 is None else states("h_0", h_0, layer.dtype, self.single)
        if training and self.h_0 is not None:
            self.h_0 = self.h_0.copy()  # small, and the caller may well reuse it
        batch, steps = self.x.shape[:2] if layer.batch_first else self.x.shape[1::-1]
        self.plan = layer.plan(steps, batch, strategy, training)
        self.y = np.empty(
            (*self.x.shape[:2], layer._layer.directions * layer.hidden_size), layer.dtype
        )
        self.h_n = np.empty(layer._state_shape(batch), layer.dtype)

    def forward(self) -> Pair:
        log(self.plan)
        self.layer._layer.forward(
            self.plan, self.params, self.x, self.h_0, self.y, self.h_n, self.reserve, self.seed
        )
        return self.as_given(self.y), self.h_n[:, 0] if self.single else self.h_n

    def backward(
        self, dy: Array | None, dh_n: Array | None
    ) -> tuple[Array, Array, dict[str, Array]]:
        layer = self.layer
        if dy is not None:
            dy = self.as_batch(_like_x("dy", dy, layer.dtype, self.single))
        dh_n = None if dh_n is None else states("dh_n", dh_n, layer.dtype, self.single)
        dx, dh_0 = np.empty(self.x.shape, layer.dtype), np.empty(self.h_n.shape, layer.dtype)
        dparams = {name: np.empty(shape, layer.dtype) for name, shape in layer._shapes.items()}
        layer._layer.backward(
            self.plan, self.params, self.x, self.h_0, self.y, dy, dh_n, dx, dh_0,
            list(dparams.values()), self.reserve, self.seed,
        )  # fmt: skip
        return self.as_given(dx), dh_0[:, 0] if self.single else dh_0, dparams

    def as_batch(self, value: Array) -> Array:
        if not self.single:
            return value
        return value[None] if self.layer.batch_first else value[:, None]

    def as_given(self, value: Array) -> Array:
        if not self.single:
            return value
        return value[0] if self.layer.batch_first else value[:, 0]


def states(name: str, value: Array, dtype: np.dtype[Any], single: bool) -> Array:
    """States as the core takes them, [L*D,B,H]."""
    value = _like_x(name, value, dtype, single)
    return value[:, None] if single else value


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
        self, dy: Array | None, dh_n: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        """dy, dh_n like y, h_n; None for zeros -> dx like x, dh_0 like h_0, dparams by name."""
        return self._run.backward(dy, dh_n)
