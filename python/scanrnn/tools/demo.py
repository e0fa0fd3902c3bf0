# SPDX-License-Identifier: Apache-2.0
"""The demo: time to the same error, beside a loop over the steps in NumPy, and what else would run.

One layer of MinGRU learns the task of recall.py twice, from the same start and on the same
sequences: by this library, and by baseline.py. Then ways.py measures this machine.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import scanrnn

from .. import _core
from ..arguments import Array
from . import measure, recall
from .baseline import Stack
from .optional import need, one_blas_thread, plots, save_figure
from .ways import LOOP, Ways

GOAL = 0.01
OURS = "scanrnn"
RACE, WAYS = 0.75, 0.14  # shares of the demo's time, at most; the rest is for start, test and plot
TEST = 2**18  # steps of the sequence after training, or as many as in training
COLOURS = ("#d9822b", "#3b8ede", "#3a9d5d", "#cf5c5c", "#9a6fc4")  # the loop's is the first


class Race(NamedTuple):
    """Both trainings, and the error that both have reached."""

    trainings: dict[str, recall.Training]
    goal: float

    def updates(self, name: str) -> int:
        found = self.trainings[name].updates_to(self.goal)
        assert found is not None  # by what the goal is
        return found

    def seconds(self, name: str) -> float:
        """Seconds of its own until the goal."""
        return self.trainings[name].seconds[self.updates(name) - 1]

    @property
    def ratio(self) -> float:
        return self.seconds(LOOP) / self.seconds(OURS)

    def table(self) -> str:
        lines = [
            [name, str(self.updates(name)), f"{training.ms:.1f}", f"{self.seconds(name):.2f}"]
            for name, training in self.trainings.items()
        ]
        error = f"seconds to an error of {100 * self.goal:.3g} %"
        titles = ["", "updates", "median ms of one", error]
        return measure.table(titles, lines)

    def verdict(self) -> str:
        ours, loop = (self.trainings[name].ms for name in (OURS, LOOP))
        return (
            f"The NumPy loop takes {self.ratio:.1f} times as long to the same error "
            f"(median update: {loop / ours:.1f} times)."
        )


def race(
    rnn: scanrnn.Layer, start: dict[str, Array], steps: int, seed: int, seconds: float
) -> Race:
    trainings = {
        OURS: recall.Training(rnn, start, steps, seed),
        LOOP: recall.Training(Stack("MinGRU", start), start, steps, seed),
    }
    return Race(trainings, recall.take_turns(list(trainings.values()), GOAL, seconds))


def test(rnn: scanrnn.Layer, trained: recall.Training, steps: int, seed: int) -> str:
    """A new sequence, much longer than those of the training, in one call of each."""
    x, wanted = recall.sequence(
        np.random.default_rng(seed + 1), steps, recall.gap_of(trained.steps)
    )
    stack, h_0 = Stack("MinGRU", trained.own()), np.zeros((1, 1, rnn.hidden_size), np.float32)
    begin = time.perf_counter()
    states, _ = rnn(x)
    between = time.perf_counter()
    (other, _), _ = stack.vjp(x, h_0)
    end = time.perf_counter()
    ours, theirs = (recall.error_of(y, trained.params, wanted)[0] for y in (states, other))
    if not math.isclose(ours, theirs, rel_tol=1e-2, abs_tol=1e-5):
        raise AssertionError(f"the two forward passes disagree: {ours} and {theirs}")
    return (
        f"One new sequence of {steps:,} steps: error {ours:.2%} by both;\n"
        f"scanrnn runs it in {1e3 * (between - begin):.0f} ms, the NumPy loop in "
        f"{1e3 * (end - between):.0f} ms."
    )


def draw(found: Race, ways: Ways, path: Path) -> None:
    plt = plots()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    for (name, training), colour in zip(found.trainings.items(), COLOURS[1::-1], strict=True):
        left.plot(training.seconds, 100 * training.smooth(), color=colour, label=name)
        left.plot(found.seconds(name), 100 * found.goal, "o", color=colour)
    left.axhline(100 * found.goal, color="#7f868d", linestyle="--")
    left.set(xlabel="its own time, s", ylabel="error, % of the variance", yscale="log")
    left.set_title(f"The loop takes {found.ratio:.1f} times as long to the same error")
    left.grid(True)
    left.legend()
    if ways.found:
        ways.draw(right, COLOURS)
    else:
        right.set_axis_off()
    save_figure(figure, path)


def run(seconds: float, hidden: int, steps: int, out: Path, seed: int, device: str = "cpu") -> Race:
    measure.ready(out)
    pictures = need("matplotlib.backends.backend_agg").FigureCanvasAgg.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in pictures:  # without one it is a PNG
        raise SystemExit(f"{out}: expected a picture, .{' .'.join(pictures)}")
    begin, gap = time.perf_counter(), recall.gap_of(steps)
    rnn = scanrnn.MinGRU(2, hidden, device=device, seed=seed)
    print(
        f"Task: a sequence of {steps:,} numbers, of which about one in {gap} is marked. At each "
        "step the\nlayer has to say the number that was marked last. Without a memory the error is "
        f"100 %.\nLayer: MinGRU, {hidden} units, float32; {device}, "
        f"{_core.Device('cpu').units} threads. It is trained twice, in turns, from\n"
        "the same start on the same sequences: by scanrnn, and by NumPy with one matrix product\n"
        "for all steps (on one thread, which is faster for it) and a Python loop over them.\n"
    )
    with one_blas_thread():
        found = race(rnn, recall.start(rnn, seed), steps, seed, RACE * seconds)
    print(f"{found.table()}\n\n{found.verdict()}\n", flush=True)
    with one_blas_thread():
        print(f"{test(rnn, found.trainings[OURS], max(TEST, steps), seed)}\n", flush=True)
    ways = Ways(device, hidden)
    left = seconds - (time.perf_counter() - begin)
    ways.measure(min(WAYS * seconds, left))
    if ways.found:
        print(
            f"Every way to run one layer on this machine: ms for one sequence of T steps, forward, "
            f"{hidden} units.\nPicked: what the planner takes. A call: that way, from Python; "
            "ratio: the loop's time over a call's.\n"
        )
        print(ways.table())
    else:
        print("No time was left to measure every way to run a layer; --seconds gives more.")
    draw(found, ways, out)
    print(f"\nBoth as a plot: {out}")
    if ways.wrong:
        raise SystemExit("\n".join(["wrong results, which were not timed:", *ways.wrong]))
    return found
