# SPDX-License-Identifier: Apache-2.0
"""A task that needs a memory, and the training of one layer for it, by whatever runs the layer.

Each step shows a number, and few steps are marked. From a marked step on, the output has to be
that step's number, until another step is marked. The error is the mean square over the variance of
the numbers: 100 % for one who always says their mean, and nobody does much better without a memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import scanrnn

from ..arguments import Array
from . import measure
from .optional import progress

MARKS = 20  # in a sequence, on average
VARIANCE = 1 / 3  # of the numbers, uniform in [-1, 1]
RATE = 2e-2  # of Adam
TURN = 60  # updates of one before it is the next one's turn
WINDOW = 10  # updates over whose errors a mean is taken: each is one sequence's


def sequence(random: np.random.Generator, steps: int, gap: int) -> tuple[Array, Array]:
    """x [T,1,2], numbers and marks, and the wanted output [T]; the first step is marked."""
    numbers = random.uniform(-1, 1, steps).astype(np.float32)
    marked = random.random(steps) < 1 / gap
    marked[0] = True
    last = np.maximum.accumulate(np.where(marked, np.arange(steps), 0))
    x = np.stack([numbers, marked.astype(np.float32)], axis=-1)
    return x[:, None], numbers[last]


def gap_of(steps: int) -> int:
    """Steps from a mark to the next, on average."""
    return max(2, steps // MARKS)


def start(rnn: scanrnn.Layer, seed: int) -> dict[str, Array]:
    """The layer's parameters, and those of the sum of its units that is the output."""
    hidden = rnn.hidden_size
    weights = np.random.default_rng(seed).uniform(-1, 1, hidden) / math.sqrt(hidden)
    head = {"out_weight": weights.astype(np.float32), "out_bias": np.zeros(1, np.float32)}
    return rnn.state_dict() | head


def error_of(states: Array, params: dict[str, Array], wanted: Array) -> tuple[float, Array]:
    """The error of states [T,1,H] as a share, and the cotangent of the output."""
    off = states[:, 0] @ params["out_weight"] + params["out_bias"] - wanted
    scale = 1 / (VARIANCE * len(off))
    return float(np.vdot(off, off)) * scale, np.float32(2 * scale) * off


class Adam:
    def __init__(self, params: dict[str, Array]) -> None:
        self.params, self.count = params, 0
        self.first = {name: np.zeros_like(value) for name, value in params.items()}
        self.second = {name: np.zeros_like(value) for name, value in params.items()}

    def update(self, grads: dict[str, Array]) -> None:
        self.count += 1
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        clip = min(1.0, 1.0 / (norm + 1e-12))
        scale = RATE * math.sqrt(1 - 0.99**self.count) / (1 - 0.9**self.count)
        for name, grad in grads.items():
            first, second = self.first[name], self.second[name]
            first += 0.1 * (clip * grad - first)
            second += 0.01 * ((clip * grad) ** 2 - second)
            self.params[name] -= scale * first / (np.sqrt(second) + 1e-8)


class Training:
    """One of those that are compared: its parameters, and error and own time after each update.

    `recurrent` has vjp and load_state_dict; all the rest is the same for all of them.
    """

    def __init__(self, recurrent: Any, params: Mapping[str, Array], steps: int, seed: int) -> None:
        self.recurrent, self.steps = recurrent, steps
        self.params = {name: value.copy() for name, value in params.items()}
        self.random = np.random.default_rng(seed)
        self.adam = Adam(self.params)
        self.h_0 = np.zeros((1, 1, len(params["out_weight"])), np.float32)
        self.seconds: list[float] = []
        self.errors: list[float] = []
        # Once before the clock runs, so that threads are started.
        self.recurrent.vjp(sequence(np.random.default_rng(seed), steps, gap_of(steps))[0], self.h_0)

    def update(self) -> None:
        """One sequence there and back."""
        begin = time.perf_counter()
        x, wanted = sequence(self.random, self.steps, gap_of(self.steps))
        (states, _), pullback = self.recurrent.vjp(x, self.h_0)
        error, dout = error_of(states, self.params, wanted)
        grads = {"out_weight": dout @ states[:, 0], "out_bias": dout.sum(keepdims=True)}
        grads |= pullback(dout[:, None, None] * self.params["out_weight"])[2]
        self.adam.update(grads)
        self.recurrent.load_state_dict(self.own())
        self.errors.append(error)
        self.seconds.append(self.spent + time.perf_counter() - begin)

    def own(self) -> dict[str, Array]:
        """The parameters of the recurrent layer."""
        return {n: value for n, value in self.params.items() if not n.startswith("out_")}

    @property
    def spent(self) -> float:
        return self.seconds[-1] if self.seconds else 0.0

    @property
    def ms(self) -> float:
        """The median update's."""
        return 1e3 * float(np.median(np.diff([0.0, *self.seconds])))

    def recent(self) -> float:
        """The last of smooth()."""
        return float(np.mean(self.errors[-WINDOW:]))

    def smooth(self) -> Array:
        """Means of the last WINDOW errors, or of those there are."""
        sums = np.cumsum([0.0, *self.errors])
        ends = np.arange(1, len(sums))
        starts = np.maximum(ends - WINDOW, 0)
        return (sums[ends] - sums[starts]) / (ends - starts)

    def updates_to(self, error: float) -> int | None:
        """How many it takes until the smooth error is no larger."""
        there = np.flatnonzero(self.smooth() <= error)
        return int(there[0]) + 1 if len(there) else None


def take_turns(trainings: Sequence[Training], goal: float, budget: float) -> float:
    """Updates until all have reached the goal or the budget in seconds ends, at least one each.

    They take turns of as many updates, so that a slow spell of the machine meets them all. Returns
    the smallest error that all have reached, but not less than the goal.
    """
    begin = time.perf_counter()
    left = list(trainings)
    with progress(budget, "training", bar_format="{desc} {bar} {elapsed}{postfix}") as bar:
        while left:
            for training in left:
                time.sleep(measure.SETTLE)
                for _ in range(TURN):
                    training.update()
                    if training.recent() <= goal or time.perf_counter() - begin > budget:
                        break
            bar.set_postfix_str(" ".join(f"{each.recent():.1%}" for each in trainings))
            spent = time.perf_counter() - begin
            bar.update(min(spent, budget) - bar.n)
            if spent >= budget:
                break
            left = [training for training in left if training.recent() > goal]
    return max(goal, *(float(training.smooth().min()) for training in trainings))
