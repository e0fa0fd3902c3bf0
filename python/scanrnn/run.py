# SPDX-License-Identifier: Apache-2.0
"""One call of a layer: its arguments as batches, its plan, its outputs, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .arguments import state_names, state_words, strategy_name
from .arrays import library_for
from .arrays.numpy import on_cpu
from .call import Call, Stack, log
from .ragged import Ragged, check_rows, checked

State = Any  # h, or a tuple (h, c) or (h, c, n, m), of the library that came in

_SEQUENCE, _STEP = ("x", "h_0"), ("x_t", "h")


class Run(Call):
    """One call: the library of its arrays, its arguments as batches, its plan and its outputs.

    The x of one step has no axis of time, and packed sequences have none of batch.
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
        ragged: Ragged | None = None,
        longest: int = 0,
    ) -> None:
        self.names = names = _STEP if one_step else _SEQUENCE
        self.stack, self.training, self.seed, self.one_step = stack, training, seed, one_step
        name = names[0]
        library = on_cpu(name) if type(x) is np.ndarray else library_for(name, x)
        x = library.array(name, x, stack.dtype)
        self.library = library = library.for_layer(name, stack.where)
        shape, axes = x.shape, 2 if one_step else 3
        self.batch_axis = batch_axis = 0 if one_step else stack.batch_axis
        self.packed = packed = ragged is not None and ragged.cu_seqlens is not None
        self.single = single = len(shape) == axes - 1 and not packed
        if len(shape) != (2 if packed else axes) and not single:
            raise ValueError(f"{name}: expected {self._wanted()}, got shape {tuple(shape)}")
        self.pooled = ragged is not None and ragged.state_indices is not None
        told = ragged
        if ragged is not None:
            ragged = checked(library, ragged, shape, batch_axis, longest)
            if single and ragged.reset is not None:
                ragged = ragged._replace(reset=self.as_batch(ragged.reset))
        if single:
            x = self.as_batch(x)
            shape = x.shape
        self.x, self.ragged = x, ragged
        initial = [] if h_0 is None and not self.pooled else self.states(names[1], h_0)
        if self.pooled and initial[0] is not None:
            check_rows(library, told.state_indices, initial[0].shape[1])
        if training:  # small, and the caller may well reuse it
            initial = [None if value is None else library.copy(value) for value in initial]
            if ragged is not None:
                self.ragged = Ragged(*(v if v is None else library.copy(v) for v in ragged))
        self.h_0 = initial
        strategy = None if strategy is None else strategy_name(strategy)
        settings = _core.settings(stack.device)
        steps = 1 if one_step else shape[1 - batch_axis]
        if ragged is None:
            self.planned = stack.planner(settings, steps, shape[batch_axis], training, strategy)
        else:
            sizes = (1, shape[0]) if one_step else stack.description.batch(shape, ragged)[:2]
            layout = ragged.layout
            self.planned = stack.planner(settings, *sizes, training, strategy, layout, longest)

    def _wanted(self) -> str:
        if self.packed:
            return "(tokens, C), since cu_seqlens is given"
        if self.one_step:
            return "(B, C), or (C,) for one sequence"
        batches = "(B, T, C)" if self.stack.description.batch_first else "(T, B, C)"
        return f"{batches}, or (T, C) for one sequence"

    def forward(self) -> tuple[Any, State]:
        if _core.wants_plans():
            log(self.planned.plan)
        y, h_n, reserve = self.library.forward(self)
        given = self.as_given(y)
        if self.training:
            self.y, self.reserve = y, reserve
            self.library.freeze(y, given)
            self.versions = self.library.versions(self.x, y)
        return given, given_state(h_n, self.single)

    def backward(self, dy: Any, dh_n: Any) -> tuple[Any, State, dict[str, Any]]:
        now = self.library.versions(self.x, self.y)
        for name, before, after in zip(("x", "y"), self.versions, now, strict=True):
            if before != after:
                raise RuntimeError(
                    f"{name}: expected as it was in vjp, since the pullback reads it, and it was "
                    "changed in place: change a copy of it"
                )
        if dy is not None:
            dy = self.as_batch(self._like_x("dy", dy, 2 if self.packed else 3))
        dfinals = [] if dh_n is None else self.states("dh_n", dh_n)
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

    def states(self, name: str, value: Any) -> list[Any]:
        """States as the core takes them, each [L*D,B,H]."""
        count = self.stack.states
        if count == 1:
            return [self._state(name, value)]
        if not isinstance(value, (tuple, list)) or len(value) != count:
            raise TypeError(f"{name}: expected {state_words(name, count)}, got {_kind(value)}")
        return [
            None if state is None else self._state(which, state)
            for which, state in zip(state_names(name, count), value, strict=True)
        ]

    def _state(self, name: str, value: Any) -> Any:
        if self.pooled:
            return self._pool(name, value)
        value = self._like_x(name, value, 3)
        return value[:, None] if self.single else value

    def _like_x(self, name: str, value: Any, axes: int) -> Any:
        """`axes`: of a batch; one sequence has one less."""
        value = self.library.array(name, value, self.stack.dtype)
        axes -= self.single
        if value.ndim != axes:
            described = "packed" if self.packed else "one sequence" if self.single else "a batch"
            raise ValueError(
                f"{name}: expected {axes} axes, x being {described}, got shape {tuple(value.shape)}"
            )
        return value

    def _pool(self, name: str, value: Any) -> Any:
        """Memory that the call reads and writes, so that no copy will do."""
        if value is None:
            raise TypeError(f"{name}: expected the states that state_indices points into, got None")
        value = self.library.writable(name, value, self.stack.dtype)
        if value.ndim != 3:
            raise ValueError(
                f"{name}: expected (num_layers, states, hidden_size), since state_indices is "
                f"given, got shape {tuple(value.shape)}"
            )
        return value


def given_state(values: list[Any], single: bool) -> State:
    """States as callers know them: one array, or a tuple."""
    values = [value[:, 0] for value in values] if single else values
    return values[0] if len(values) == 1 else tuple(values)


def _kind(value: Any) -> str:
    many = isinstance(value, (tuple, list))
    return f"{len(value)} of them" if many else type(value).__name__


class Pullback:
    """Carries cotangents of (y, h_n) back to (x, h_0, parameters), as often as it is called."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, dy: Any, dh_n: State | None = None) -> tuple[Any, State, dict[str, Any]]:
        """dy, dh_n like y, h_n; None for zeros -> dx like x, dh_0 like h_0, dparams by name.

        Any part of a tuple (dh_n, dc_n, ...) may be None.
        """
        return self._run.backward(dy, dh_n)
