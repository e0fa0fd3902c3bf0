# SPDX-License-Identifier: Apache-2.0
"""A small crossover of this machine: each way to run a layer, and the NumPy loop, over T.

The ways are measured as `bench crossover` does it, so each is checked before it is timed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import scanrnn

from .. import _core
from . import measure, optional, regret
from .baseline import Stack
from .crossover import Sweep
from .fit import Problem, problems
from .sizes import Shape

CELL = "MinGRU"
LENGTHS = tuple(4**k for k in range(9))
EACH = 0.05  # seconds for each way at each length
LOOP = "NumPy loop"


def words(way: str) -> str:
    return way.replace("_", " ").replace("fused sequential", "sequential")


class Ways:
    """What was measured until the budget ended: the problems, shortest first, and by T the ms of
    a call from Python and of the loop.
    """

    def __init__(self, device: str, hidden: int) -> None:
        self.device, self.hidden = device, hidden
        self.found: list[Problem] = []
        self.loop: dict[int, float] = {}
        self.call: dict[int, float] = {}
        self.picked: dict[int, str] = {}
        self.wrong: list[str] = []

    def measure(self, budget: float) -> None:
        sweep = Sweep(self.device, EACH, [])
        begin = time.perf_counter()
        with optional.progress(len(LENGTHS), "every way to run it") as bar:
            for T in LENGTHS:
                if time.perf_counter() - begin > budget:
                    break
                time.sleep(measure.SETTLE)
                sweep.measure(CELL, Shape(1, T, self.hidden, direction="forward"), 1)
                self.call[T], self.loop[T] = self._from_python(T)
                bar.update()
        self.wrong = sweep.wrong
        if sweep.rows:
            device = _core.Device(self.device)
            content = measure.provenance(device) | {"rows": sweep.rows}
            pick = regret.picker(content, _core.profile(device))
            rows = [row for row in sweep.rows if row["dtype"] == "float32"]
            self.found = [p for p in problems(content | {"rows": rows}) if p.domain == "log"]
            self.picked = {p.T: pick(p) for p in self.found}

    def _from_python(self, T: int) -> tuple[float, float]:
        rnn = getattr(scanrnn, CELL)(self.hidden, self.hidden, device=self.device, seed=0)
        stack = Stack(CELL, rnn.state_dict())
        x = np.random.default_rng(0).standard_normal((T, 1, self.hidden)).astype(np.float32)
        h_0 = np.zeros((1, 1, self.hidden), np.float32)
        times = []
        for call in (lambda: rnn(x), lambda: stack.vjp(x, h_0)):
            time.sleep(measure.SETTLE)
            with optional.one_blas_thread():
                times.append(measure.timed({"": call}, EACH, least=3)[""].ms)
        return times[0], times[1]

    def names(self) -> list[str]:
        return [way for way in regret.MARKS if any(way in p.ms for p in self.found)]

    def table(self) -> str:
        """Milliseconds by T: each way inside the library, and the whole call beside the loop."""
        names = self.names()
        lines = []
        for p in self.found:
            times = [f"{p.ms[way]:.3f}" if way in p.ms else "too slow" for way in names]
            call, loop = self.call[p.T], self.loop[p.T]
            pick = words(self.picked[p.T])
            lines.append(
                [str(p.T), *times, pick, f"{call:.3f}", f"{loop:.3f}", f"{loop / call:.1f}"]
            )
        titles = ["T", *map(words, names), "picked", "a call", LOOP, "ratio"]
        return measure.table(titles, lines)

    def draw(self, panel: Any, colours: tuple[str, ...]) -> None:
        """A line for each way and for the loop, and a ring around what is picked."""
        for way, colour in zip(self.names(), colours[1:], strict=False):
            line = [(p.T, p.ms[way]) for p in self.found if way in p.ms]
            panel.plot(*zip(*line, strict=True), color=colour, label=words(way))
        rings = [(p.T, p.ms[self.picked[p.T]]) for p in self.found if self.picked[p.T] in p.ms]
        if rings:
            panel.plot(
                *zip(*rings, strict=True), "o", mfc="none", mec="#7f868d", label="what is picked"
            )
        loop = [(p.T, self.loop[p.T]) for p in self.found]
        panel.plot(*zip(*loop, strict=True), color=colours[0], label=LOOP)
        panel.set_xscale("log", base=2)
        panel.set(yscale="log", xlabel="steps T", ylabel="ms, forward")
        panel.set_title(f"{CELL}, one sequence, {self.hidden} units")
        panel.grid(True)
        panel.legend()
