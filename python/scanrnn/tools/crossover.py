# SPDX-License-Identifier: Apache-2.0
"""`bench crossover`: every way to run a layer or a bare scan, over sizes, on the CPU or a GPU.

A way is timed only after its results agree with a float64 run of the fused-sequential one, which
the tests hold against a walk of one step at a time. Times are the device's own: a GPU replays
timed graphs, and the CPU is timed in C++. A CPU's cores may be slow for a while, by what else
they share: of more than a small grid it is gone through three times, and a way's least median
counts.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _core
from ..description import Description
from . import measure, optional
from .sizes import PASSES, SCAN, TF32, Shape, is_dense, is_linear

DTYPES = {"cpu": ("float32",), "cuda": ("float32", TF32, "bfloat16", "float16")}
# A parallel scan is split in two ways on a GPU, of which a plan names one.
WAYS: dict[str, dict[str, tuple[str, bool | None]]] = {
    "cpu": {name: (name, None) for name in _core.strategies()},
    "cuda": {
        **{name: (name, None) for name in _core.strategies() if name != "parallel_scan"},
        "parallel_scan, block": ("parallel_scan", False),
        "parallel_scan, device": ("parallel_scan", True),
    },
}
LOG_ONLY = "parallel_scan, device"  # the one way whose kernel differs between the domains
# Tokens beyond which one kernel for everything repeats the weights' way from memory too often.
DIRECT_TOKENS = {"cpu": 2**62, "cuda": 4096}
HOPELESS = 8  # times the best: such a way is timed once, and not again for longer sequences
ROUNDS: dict[Any, int] = {("cpu", "small"): 1, "cpu": 3}  # of a grid, or of all others


def layer_of(
    cell: str, H: int, dtype: str, domain: str = "log", layout: str = "TBH"
) -> _core.Layer:
    """A description with C = H; it is on no device."""
    description = Description(cell, H, batch_first=layout == "BTH", domain=domain)
    return description.layer(H, stored(dtype))


def stored(dtype: str) -> str:
    """The type of the tensors."""
    return "float32" if dtype == TF32 else dtype


def tolerances(dtype: str, T: int, H: int) -> tuple[float, float]:
    """Bounds of y, as a share of the largest, and of gradients, as a relative RMS.

    The bound of y is the scan's and the GEMM's (H = 0: there is none). That of gradients is wide: g
    has a kink, and rounding puts a few of many pre-activations on its other side. Where there is
    none, the tests check gradients to the last digits. In half precision the pre-activations
    themselves are rounded.
    """
    if dtype in ("bfloat16", "float16", TF32):
        return 0.05, 0.1
    return 3e-7 * (1 + math.log2(T)) + H * 2.0**-24, 1e-3


class Sweep:
    """Measures shapes one by one; `rows` is what a result file holds."""

    def __init__(self, device: str, seconds: float, rows: list[dict[str, Any]]) -> None:
        self.device, self.kind = _core.Device(device), device.partition(":")[0]
        self.seconds, self.rows = seconds, rows
        self.wrong: list[str] = []
        self.hopeless: dict[tuple[Any, ...], int] = {}  # from how many steps on
        self.turn = 1
        self.point: list[dict[str, Any]] = []  # rows of a point that is not finished
        self.known = {_way_of(row): row for row in rows}

    def has(self, cell: str, shape: Shape, times: int) -> bool:
        """Whether this was measured so many times."""
        key = (cell, shape.layout, shape.B, shape.T, shape.H)
        return any(
            tuple(r[name] for name in ("cell", "layout", "B", "T", "H")) == key
            and r["rounds"] >= times
            for r in self.rows
        )

    def measure(self, cell: str, shape: Shape, turn: int) -> None:
        """All passes, dtypes and domains, for the first time or once more. `rows` has all of it or,
        where an interrupt ends it, nothing.
        """
        if turn != self.turn:
            self.turn, self.hopeless = turn, {}
        self.point = []
        if cell == SCAN:
            self._measure_scan(shape)
        else:
            self._measure_layer(cell, shape)
        for row in self.point:
            self._keep(row)

    def _measure_layer(self, cell: str, shape: Shape) -> None:
        B, T, H, layout = shape.B, shape.T, shape.H, shape.layout
        trains = shape.direction != PASSES[0]
        of_exact = layer_of(cell, H, "float64", layout=layout)
        exact = _core.Workload(of_exact, self.device, T, B, trains)
        # Sequential steps are the reference; a cell that has another way only gets its planner's.
        exact.record(None if is_dense(cell) else "fused_sequential", None)
        ways = WAYS[self.kind]
        if is_dense(cell):  # a planner may mix two ways, which cannot be forced: it goes last
            ways = {**ways, "auto": (None, None)}
        one_kernel = {LOG_ONLY: ways[LOG_ONLY]} if LOG_ONLY in ways else {}
        directions = (shape.direction,) if shape.direction else PASSES
        for dtype, direction in itertools.product(self._dtypes(shape), directions):
            row = {"cell": cell, "pass": direction, **shape.row(), "C": H, "dtype": dtype}
            for domain in ("log", "linear") if is_linear(cell) and one_kernel else ("log",):
                layer = layer_of(cell, H, dtype, domain, layout)
                workload = _core.Workload(
                    layer, self.device, T, B, direction != PASSES[0], tf32=dtype == TF32
                )
                tried = ways if domain == "log" else one_kernel
                bounds = tolerances(dtype, T, H)
                by_domain = {LOG_ONLY: {"domain": domain}}
                self._measure(workload, exact, row, tried, bounds, by_domain)

    def _measure_scan(self, shape: Shape) -> None:
        T, rows = shape.T, shape.H
        ways = {way: how for way, how in WAYS[self.kind].items() if way != "direct"}
        for domain in ("log", "linear"):
            exact = _core.Workload("float64", self.device, T, rows, domain == "log")
            exact.record("fused_sequential", None)
            for dtype in dict.fromkeys(map(stored, self._dtypes(shape))):
                row = {"cell": SCAN, "domain": domain, "pass": "forward", **shape.row()}
                row |= {"C": rows, "dtype": dtype}
                workload = _core.Workload(dtype, self.device, T, rows, domain == "log")
                self._measure(workload, exact, row, ways, tolerances(dtype, T, 0), {})

    def _dtypes(self, shape: Shape) -> tuple[str, ...]:
        """A drawn problem's own; else all, and of the two 16-bit ones each in its turn."""
        if shape.dtype:
            return (shape.dtype,)
        left_out = ("bfloat16", "float16")[(shape.T + shape.B) % 2]
        return tuple(dtype for dtype in DTYPES[self.kind] if dtype != left_out)

    def _measure(
        self,
        workload: _core.Workload,
        exact: _core.Workload,
        row: dict[str, Any],
        ways: Mapping[str, tuple[str | None, bool | None]],
        bounds: tuple[float, float],
        extra: Mapping[str, dict[str, Any]],
    ) -> None:
        """A row for each way, with what `extra` has for it."""
        recorded: dict[str, _core.Recorded] = {}
        errors, once = {}, {}
        names = ("cell", "domain", "dtype", "pass", "layout", "B", "H")
        series = tuple(row.get(key) for key in names)
        for way, (strategy, across_blocks) in ways.items():
            too_many = way == "direct" and DIRECT_TOKENS[self.kind] < row["B"] * row["T"]
            if too_many or row["T"] >= self.hopeless.get((*series, way), math.inf):
                continue
            try:
                found = workload.record(strategy, across_blocks)
            except ValueError:  # a strategy that this cell has not
                continue
            if way == "auto":
                way = found.strategy
                if way in recorded:
                    continue
            off = workload.errors(exact)
            if not all(error <= bound for error, bound in zip(off, bounds, strict=True)):
                self.wrong.append(f"{row | {'strategy': way}}: off by {off}")
                continue
            recorded[way], errors[way] = found, off
            once[way] = min(found.milliseconds() for _ in range(2))
        if not recorded:
            return
        limit = HOPELESS * min(once.values())
        live = {way: found for way, found in recorded.items() if once[way] <= limit}
        times = {way: measure.Timing.of([once[way]]) for way in recorded}
        times |= measure.replayed(live, once, self.seconds, self.kind == "cuda")
        for way, timing in times.items():
            if way not in live and way in ("direct", "fused_sequential") and row["T"] > 1:
                self.hopeless[(*series, way)] = row["T"]
            self.point.append(
                {
                    "bench": "crossover",
                    "impl": "scanrnn",
                    "strategy": way,
                    **row,
                    **extra.get(way, {}),
                    **timing.row(),
                    "rounds": 1,
                    "peak_bytes": recorded[way].nbytes,
                    "max_error": float(f"{max(errors[way]):.2g}"),
                }
            )

    def _keep(self, row: dict[str, Any]) -> None:
        before = self.known.setdefault(_way_of(row), row)
        if before is row:
            self.rows.append(row)
        else:
            faster = min(before, row, key=lambda measured: measured["ms"])
            before.update({**faster, "rounds": before["rounds"] + 1})


def _way_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("cell", "domain", "pass", "dtype", "layout", "B", "T", "H", "strategy")
    return tuple(row.get(name) for name in names)


def cost(cell: str, shape: Shape, device: str) -> float:
    """About how long it takes, in units of the shortest: for the progress bar's estimate."""
    size = shape.B * shape.T * shape.H
    return 1 + (size * shape.H / 2e7 if device == "cpu" and cell != SCAN else size / 2e6)


def run(
    grid: str,
    points: list[tuple[str, Shape]],
    device: str,
    out: Path | None = None,
    minutes: float | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """The sweep's content, which is written to `out`, also when the sweep is interrupted; `grid` is
    what its points are called.
    """
    content = measure.provenance(_core.Device(device)) | {"grid": grid, "rows": []}
    if out is not None:
        measure.ready(out)
    if resume and out is not None and out.exists():
        content["rows"] = _rows_of(out, content)
    kind = device.partition(":")[0]
    rows: list[dict[str, Any]] = content["rows"]
    rounds = ROUNDS.get((kind, grid), ROUNDS.get(kind, 1))
    sweep = Sweep(device, 0.02 if grid == "small" else 0.1 / rounds, rows)
    left = [
        (cell, shape, turn)
        for turn in range(1, rounds + 1)
        for cell, shape in points
        if not sweep.has(cell, shape, turn)
    ]
    if not left and not rows:
        raise SystemExit(f"nothing to measure: on {device} these cells have one way to run")
    end = time.monotonic() + 60 * (minutes if minutes is not None else math.inf)
    saved = time.monotonic()
    form = "{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, about {remaining} left {postfix}"
    total = sum(cost(cell, shape, kind) for cell, shape, _ in left)
    done = 0
    try:
        with optional.progress(total, "crossover", bar_format=form) as bar:
            for cell, shape, turn in left:
                if time.monotonic() > end:
                    break
                bar.set_postfix_str(f"{cell} B={shape.B} T={shape.T} H={shape.H}")
                sweep.measure(cell, shape, turn)
                bar.update(cost(cell, shape, kind))
                done += 1
                if out is not None and time.monotonic() > saved + 60:  # whatever happens
                    measure.save(out, content, quiet=True)
                    saved = time.monotonic()
    finally:
        if out is not None and rows:
            measure.save(out, content)
        if done < len(left):
            more = "" if out is None else "; --resume goes on"
            print(f"{done} of {len(left)} points were measured{more}")
    if sweep.wrong:
        raise SystemExit("\n".join(["wrong results, which were not timed:", *sweep.wrong]))
    return content


def _rows_of(out: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """What a sweep as this one has left there."""
    before = measure.load(out)
    for key in ("commit", "processor", "grid"):
        if before.get(key) != content[key]:
            raise SystemExit(
                f"{out} cannot be resumed: its {key} is {before.get(key)}, not {content[key]}"
            )
    rows: list[dict[str, Any]] = before["rows"]
    return rows
