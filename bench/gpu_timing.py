# SPDX-License-Identifier: Apache-2.0
"""Times of anything that runs on PyTorch's stream, ours from C++, and the rows that hold them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from scanrnn import _core, measure
from torch import Tensor

GPU = _core.Device("cuda")

Run = Callable[[], Any]


class Bench:
    """Times runs and keeps their rows."""

    def __init__(self, only: str, minutes: float) -> None:
        self.only, self.end = re.compile(only), time.monotonic() + 60 * minutes
        self.rows: list[dict[str, Any]] = []
        torch.manual_seed(0)
        size = 2**29
        a, b = torch.rand(size, device="cuda"), torch.empty(size, device="cuda")
        copies = (lambda: b.copy_(a), lambda: torch.neg(a, out=b))
        self.copy_gbps = 8 * size / min(timed(run)[0].ms for run in copies) / 1e6

    def add(self, row: dict[str, Any], make: Callable[[], tuple[Run, float]]) -> None:
        """`make` gives what to time, and its error; what it raises is kept instead."""
        if not self.wanted(row):
            return
        try:
            run, error = make()
            timing, how = timed(run)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            kept = run()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            del kept
            found = {**timing.row(), "timing": how, "peak_bytes": peak}
            found["max_error"] = float(f"{error:.2g}")
        except Exception as problem:
            found = failure(problem)
        self.keep(row | found)
        torch.cuda.empty_cache()

    def keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        names = ["bench", "cell", "impl", "strategy", "pass", "dtype", "B", "T", "H"]
        names += ["ms", "timing", "max_error", "failed"]
        print(*(row[name] for name in names if name in row), flush=True)

    def wanted(self, row: dict[str, Any]) -> bool:
        words = " ".join(f"{value}" for value in row.values())
        return bool(self.only.search(words)) and time.monotonic() < self.end

    def recorded(
        self, row: dict[str, Any], layer: _core.Layer, error: Callable[[], float] | None
    ) -> None:
        """Ours, from C++ on tensors of its own: beside y and the gradients what it works in."""
        if not self.wanted(row):
            return
        training = row["pass"] == "forward_backward"
        try:
            workload = _core.Workload(layer, GPU, row["T"], row["B"], training)
            run = workload.record(None, None)
            once = {"ours": min(run.milliseconds() for _ in range(3))}
            timing = measure.replayed({"ours": run}, once, 0.05, True)["ours"]
            weights = sum(math.prod(shape) for _, shape in layer.parameters())
            values = row["B"] * row["T"] * (row["H"] + training * row["C"]) + training * weights
            item = 4 if row["dtype"] == "float32" else 2
            way = run.strategy
            if way == "parallel_scan":
                way += ", device" if run.across_blocks else ", block"
            found = {"strategy": way, **timing.row(), "timing": "graph"}
            found["peak_bytes"] = run.nbytes + item * values
            if error is not None:
                found["max_error"] = float(f"{error():.2g}")
        except Exception as problem:
            found = failure(problem)
        self.keep(row | found)


def timed(run: Run, seconds: float = 0.06) -> tuple[measure.Timing, str]:
    """Median milliseconds, and how they were taken."""
    for _ in range(3):
        kept = run()
    del kept
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take(call: Run) -> float:
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    once = min(take(run) for _ in range(2))
    calls = min(20, max(1, int(0.5 / max(once, 1e-3))))
    how = "events"

    def series() -> None:
        for _ in range(calls):
            run()

    if once < 5:  # where the gaps between launches can matter
        try:
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.stream(side):
                series()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                series()
            replay, how = graph.replay, "graph"
            take(replay)
        except Exception:  # it synchronises, or its library cannot be captured
            torch.cuda.synchronize()
            replay = series
    else:
        calls, replay = 1, run
    count = max(3, min(15, int(1e3 * seconds / max(once * calls, 1e-3))))
    return measure.Timing.of([take(replay) / calls for _ in range(count)]), how


def failure(problem: Exception) -> dict[str, Any]:
    return {"failed": f"{type(problem).__name__}: {problem}".splitlines()[0][:200]}


def error_of(got: Tensor, want: Tensor) -> float:
    """The largest, relative to the largest; the caller sees to it that NaN does not pass."""
    error = float((got.double() - want).abs().max() / want.abs().max())
    if not error < 0.1:
        raise AssertionError(f"wrong result: error {error}")
    return error
