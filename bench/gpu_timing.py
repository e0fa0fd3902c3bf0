# SPDX-License-Identifier: Apache-2.0
"""Runs on PyTorch's stream that are checked first and then take turns, and the rows of their times.

Taking turns matters: under load a GPU lowers its clock, and all runs of a problem should meet the
same one. Each row says what the clock was.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from rows import Row
from scanrnn import _core
from scanrnn.tools import measure
from scanrnn.tools.memory import peak_bytes

GPU = _core.Device("cuda")
COPY_BYTES = 2**32  # read and written, by the copy that takes its turn beside the others

Run = Callable[[], Any]
Make = Callable[[], tuple[Run, Row]]


def run_of(call: Callable[..., Any], leaves: list[Any], dy: Any, training: bool) -> Run:
    """call(*leaves) alone, or with the gradients of all leaves."""

    def run() -> Any:
        if training:
            return torch.autograd.grad(call(*leaves), leaves, dy)
        with torch.no_grad():
            return call(*leaves)

    return run


class Taken(Protocol):
    """What can take its turn: `take` runs it once and gives milliseconds."""

    timing: str

    def take(self) -> float: ...


class Turn:
    """A run between two events: a CUDA graph where it can be captured, else calls in a row."""

    def __init__(self, run: Run, graph: bool = True) -> None:
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.run = run  # a graph reads the tensors that the run holds
        self.calls, self.replay, self.timing = 1, run, "events"
        for _ in range(2):
            kept = run()
        del kept
        torch.cuda.synchronize()
        calls = self._repeats()
        if graph:
            try:
                self._capture(calls)
                self._capture(self._repeats())  # more, where the host was what took the time
                return
            except Exception as problem:  # it synchronises, or its library cannot be captured
                print("no graph:", str(problem).splitlines()[:1], flush=True)
                torch.cuda.synchronize()
        self.calls, self.timing = calls, "events"
        self.replay = functools.partial(self._series, calls)

    def _repeats(self) -> int:
        """Calls that take half a millisecond: events have a grain, and a replay has its latency."""
        return min(50, max(1, int(0.5 / max(min(self.take() for _ in range(2)), 1e-3))))

    def _series(self, calls: int) -> None:
        for _ in range(calls):
            self.run()

    def _capture(self, calls: int) -> None:
        if self.timing == "graph" and calls <= self.calls:
            return
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._series(calls)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self._series(calls)
        self.calls, self.replay, self.timing = calls, graph.replay, "graph"
        self.take()

    def take(self) -> float:
        self.begin.record()
        self.replay()
        self.end.record()
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end)) / self.calls


class Recorded:
    """A run that the library has recorded itself, on tensors of its own."""

    timing = "graph"

    def __init__(self, recorded: _core.Recorded, calls: int = 1) -> None:
        self.take = (recorded if calls == 1 else recorded.again(calls)).milliseconds


def clock_mhz() -> int | None:
    """That of the multiprocessors, now."""
    try:
        return int(torch.cuda.clock_rate())
    except Exception:  # it needs nvidia-ml-py
        return None


class Bench:
    """Keeps the rows, and writes them after each problem, so that a stop loses nothing."""

    def __init__(self, out: Path, head: Row, rows: list[Row], only: str, minutes: float) -> None:
        self.out, self.head, self.rows = out, head, rows
        self.only, self.end = re.compile(only), time.monotonic() + 60 * minutes
        self.part, self.late = "", 0
        self._target = torch.empty(COPY_BYTES // 8, device="cuda")
        self._source = torch.rand(COPY_BYTES // 8, device="cuda")
        self.copy = Turn(lambda: self._target.copy_(self._source))

    def copy_gbps(self) -> int:
        return round(COPY_BYTES / min(self.copy.take() for _ in range(5)) / 1e6)

    def wanted(self, row: Row) -> bool:
        """Whether it was asked for, and there is time left."""
        if not self.only.search(" ".join(f"{value}" for value in row.values())):
            return False
        late = time.monotonic() > self.end
        self.late += late
        return not late

    def keep(self, row: Row) -> None:
        self.rows.append({**row, "part": self.part})
        names = ["bench", "cell", "impl", "layout", "strategy", "algorithm", "pass", "dtype"]
        names += ["products", "B", "T", "H", "ms", "timing", "max_error", "gradient_error"]
        names += ["sm_mhz", "failed"]
        print(*(row[name] for name in names if name in row), flush=True)

    def save(self) -> None:
        measure.save(self.out, self.head | {"rows": self.rows}, quiet=True)


class Contest:
    """The runs of one problem. `row` is what their rows share."""

    def __init__(self, bench: Bench, row: Row) -> None:
        self.bench, self.row = bench, row
        self.turns: list[tuple[Row, Taken]] = []
        self.yardsticks: dict[str, Taken] = {"copy": bench.copy}

    def enter(self, row: Row, make: Make, graph: bool = True) -> None:
        """`make` checks a run and gives it, and what its row says; what it raises is kept."""
        row = self.row | row
        if not self.bench.wanted(row):
            return
        try:
            run, said = make()
            turn = Turn(run, graph)
            if "peak_bytes" not in said:
                said["peak_bytes"] = peak_bytes(run)
            self.turns.append((row | said, turn))
        except Exception as problem:
            self.bench.keep(row | failure(problem))

    def enter_best(self, row: Row, makes: Mapping[str, Make]) -> None:
        """The fastest of several algorithms; its row says what became of each."""
        row = self.row | row
        if not self.bench.wanted(row):
            return
        best: tuple[float, Row, Taken] | None = None
        torch.cuda.empty_cache()  # what an algorithm takes for itself is not torch's
        tried: dict[str, Any] = {}
        for name, make in makes.items():
            try:
                run, said = make()
                turn = Turn(run)
                ms = statistics.median(turn.take() for _ in range(3))
                tried[name] = round(ms, 4)
                if best is None or ms < best[0]:
                    best = ms, row | said | {"algorithm": name}, turn
            except Exception as problem:
                tried[name] = failure(problem)["failed"]
        if best is None:
            self.bench.keep(row | {"failed": "no algorithm has it", "tried": tried})
        else:
            self.turns.append((best[1] | {"tried": tried}, best[2]))

    def quick(self) -> float:
        """About what the run that has entered last takes; infinity where none has."""
        if not self.turns:
            return math.inf
        return statistics.median(self.turns[-1][1].take() for _ in range(3))

    def enter_if_faster(self, than: float, row: Row, make: Callable[[], tuple[Taken, Row]]) -> None:
        """A run that may well be slower, or may not exist: then nothing is kept."""
        row = self.row | row
        if not self.bench.wanted(row):
            return
        try:
            taken, said = make()
            if statistics.median(taken.take() for _ in range(3)) < than:
                self.turns.append((row | said, taken))
        except (ValueError, RuntimeError) as problem:
            print(row["impl"], row.get("strategy", ""), "does not run:", problem, flush=True)

    def yardstick(self, name: str, run: Run) -> None:
        """What the others are measured by, and no row."""
        if self.turns:
            self.yardsticks[name] = Turn(run)

    def measure(self, finish: Callable[[Row, dict[str, float]], Row] | None = None) -> None:
        """All take turns; `finish` adds to a row what follows from the yardsticks' times."""
        if self.turns:
            times, clocks = take_turns([*self.yardsticks.values(), *(t for _, t in self.turns)])
            count = len(self.yardsticks)
            sticks = {name: t.ms for name, t in zip(self.yardsticks, times[:count], strict=True)}
            for (row, turn), timing in zip(self.turns, times[count:], strict=True):
                row = row | timing.row() | {"timing": turn.timing}
                row["copy_gbps"] = round(COPY_BYTES / sticks["copy"] / 1e6)
                if clocks:
                    row["sm_mhz"] = clocks
                self.bench.keep(row if finish is None else finish(row, sticks))
        self.turns.clear()
        self.yardsticks = {"copy": self.bench.copy}
        torch.cuda.empty_cache()
        self.bench.save()


def take_turns(turns: list[Taken], seconds: float = 0.25) -> tuple[list[measure.Timing], list[int]]:
    """Medians of all, and the lowest and the highest clock that was seen."""
    samples: list[list[float]] = [[] for _ in turns]
    clocks = [clock_mhz()]
    end = time.monotonic() + seconds
    for turn in range(15):
        if turn >= 5 and time.monotonic() > end:
            break
        if turn >= 3 and time.monotonic() > end + 3 * seconds:  # runs of a second
            break
        for values, taken in zip(samples, turns, strict=True):
            values.append(taken.take())
        clocks.append(clock_mhz())
    seen = [clock for clock in clocks if clock is not None]
    return [measure.Timing.of(values) for values in samples], [min(seen), max(seen)] if seen else []


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """A TimeoutError in what takes longer in the main thread, as compilers may. Backward runs
    there, too, since no other thread hears that the time is over."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not ready within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def failure(problem: Exception) -> Row:
    return {"failed": f"{type(problem).__name__}: {problem}".splitlines()[0][:200]}
