# SPDX-License-Identifier: Apache-2.0
"""One call of a layer: its arguments as batches, its plan, its outputs, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .arguments import strategy_name
from .arrays import ArrayLibrary, library_for
from .call import Call, Stack, log

State = Any  # h, or the pair (h, c), of the library that came in

_SEQUENCE, _STEP = ("x", "h_0", "c_0"), ("x_t", "h", "c")


class Run(Call):
    """One call: the library of its arrays, its arguments as batches, its plan and its outputs.

    The x of one step has no axis of time.
    """

    def __init__(
        self,
        stack: Stack,
        x: Any,
        h_0: Any,
        strategy: str | None = None,
        training: bool = False,
        seed: int = 0,
        one_step: bool = False,
    ) -> None:
        self.names = names = _STEP if one_step else _SEQUENCE
        self.stack, self.training, self.seed, self.one_step = stack, training, seed, one_step
        name = names[0]
        library = library_for(name, x)
        x = library.array(name, x, stack.dtype)
        self.library = library = library.for_layer(name, stack.where)
        shape, axes = x.shape, 2 if one_step else 3
        self.batch_axis = batch_axis = 0 if one_step else stack.description.batch_axis
        self.single = single = len(shape) == axes - 1
        if single:
            x = self.as_batch(x)
            shape = x.shape
        elif len(shape) != axes:
            batches = "(B, T, C)" if stack.description.batch_first else "(T, B, C)"
            batches, one = ("(B, C)", "(C,)") if one_step else (batches, "(T, C)")
            raise ValueError(
                f"{name}: expected {batches}, or {one} for one sequence, got shape {tuple(shape)}"
            )
        self.x = x
        initial = [] if h_0 is None else states(library, names[1], h_0, stack, single)
        if training:  # small, and the caller may well reuse it
            initial = [None if value is None else library.copy(value) for value in initial]
        self.h_0 = initial
        steps = 1 if one_step else shape[1 - batch_axis]
        strategy = None if strategy is None else strategy_name(strategy)
        settings = _core.settings(stack.device)
        self.planned = stack.planner(settings, steps, shape[batch_axis], training, strategy)

    def forward(self) -> tuple[Any, State]:
        log(self.planned.plan)
        y, h_n, reserve = self.library.forward(self)
        given = self.as_given(y)
        if self.training:
            self.y, self.reserve = y, reserve
            self.library.freeze(y, given)
        return given, given_state(h_n, self.single)

    def backward(self, dy: Any, dh_n: Any) -> tuple[Any, State, dict[str, Any]]:
        if dy is not None:
            dy = self.as_batch(_like_x(self.library, "dy", dy, self.stack.dtype, self.single))
        dfinals = states(self.library, "dh_n", dh_n, self.stack, self.single)
        dx, dinitials, dparams = self.library.backward(self, self.y, self.reserve, dy, dfinals)
        named = dict(zip(self.stack.shapes, dparams, strict=True))
        return self.as_given(dx), given_state(dinitials, self.single), named

    def as_batch(self, value: Any) -> Any:
        if not self.single:
            return value
        return value[None] if self.batch_axis == 0 else value[:, None]

    def as_given(self, value: Any) -> Any:
        if not self.single:
            return value
        return value[0] if self.batch_axis == 0 else value[:, 0]


def states(library: ArrayLibrary, name: str, value: Any, stack: Stack, single: bool) -> list[Any]:
    """States as the core takes them, each [L*D,B,H]: h, and c of a pair."""
    if value is None:
        return []
    if stack.states == 1:
        return [_state(library, name, value, stack.dtype, single)]
    other = name.replace("h", "c")
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name}: expected the pair ({name}, {other}), got {_kind(value)}")
    return [
        None if state is None else _state(library, which, state, stack.dtype, single)
        for which, state in zip((name, other), value, strict=True)
    ]


def _state(library: ArrayLibrary, name: str, value: Any, dtype: np.dtype[Any], single: bool) -> Any:
    value = _like_x(library, name, value, dtype, single)
    return value[:, None] if single else value


def _kind(value: Any) -> str:
    many = isinstance(value, (tuple, list))
    return f"{len(value)} of them" if many else type(value).__name__


def given_state(values: list[Any], single: bool) -> State:
    """States as callers know them: one array, or the pair."""
    values = [value[:, 0] for value in values] if single else values
    return values[0] if len(values) == 1 else (values[0], values[1])


def _like_x(
    library: ArrayLibrary, name: str, value: Any, dtype: np.dtype[Any], single: bool
) -> Any:
    value, axes = library.array(name, value, dtype), 2 if single else 3
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
