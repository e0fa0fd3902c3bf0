# SPDX-License-Identifier: Apache-2.0
"""`bench crossover`: every way to run a layer or a bare scan, over sizes, on the CPU or a GPU.

A way is timed only after its results agree with a float64 run of the fused-sequential one, which
the tests hold against a walk of one step at a time. Times are the device's own: a GPU replays
recorded graphs, and the CPU is timed in C++.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _core, measure, optional
from .registry import CellInfo, cells

SCAN = (
    "scan"  # stands where a cell's name does: the bare recurrence, of B*H rows and one batch entry
)
PASSES = ("forward", "forward_backward")
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
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
# Larger problems cost much and tell nothing: on a CPU (multiply-adds of a forward pass) all is the
# GEMM, on a GPU (elements of B*T*H) the best way is that of half as many steps.
MAX_GEMM, MAX_ELEMENTS = 1.5e9, 2**24
LONGEST = (1, 2**20, 64)  # is measured all the same
DENSE_STEPS = 1024  # of cells that can only walk: twice as many take twice as long

POWERS = tuple(2**k for k in range(21))
ODD = tuple(3 * power // 2 + 1 for power in POWERS[2:])  # between the powers, not even by alignment
# Of each grid the batches by hidden size, and T; held out: measured to judge a fit, and not shown
# to it.
GRIDS: dict[str, dict[str, tuple[dict[int, tuple[int, ...]], tuple[int, ...]]]] = {
    "cpu": {
        "small": ({64: (1, 8), 512: (1, 8)}, (1, 8, 64, 512, 4096)),
        "full": (
            dict.fromkeys((8, 32, 128, 512), (1, 4, 32)),
            (*POWERS[:13:2], 512, 2048, 16384, 65536, 3, 91, 701),
        ),
        "held out": ({24: (3,), 40: (1,), 72: (2,), 200: (12,)}, (1, 5, 33, 333, 3000, 9000)),
    },
    "cuda": {
        "small": ({64: (1,), 1024: (1, 16, 128)}, POWERS[::3]),
        "full": (
            {64: (1, 16), 256: (1, 8, 32), 1024: (1, 4, 16, 32, 64, 128, 256), 2048: (512,)},
            (*POWERS, *ODD[::2]),
        ),
        "held out": (
            {96: (1,), 320: (3,), 512: (24,), 640: (96,), 768: (6, 40), 1536: (192,)},
            (1, 7, 23, 100, 600, 3000, 20000, 150000),
        ),
    },
}


class Shape(NamedTuple):
    B: int
    T: int
    H: int
    held_out: bool = False

    def row(self) -> dict[str, Any]:
        out = {"B": self.B, "T": self.T, "H": self.H}
        return out | ({"held_out": True} if self.held_out else {})


def shapes(grid: str, device: str) -> list[Shape]:
    """By B and H, and then from short to long; the full grid comes with what is held out."""
    out = []
    for name in (grid, "held out") if grid == "full" else (grid,):
        rows, lengths = GRIDS[device][name]
        for H, batches in rows.items():
            for B, T in itertools.product(batches, sorted(lengths)):
                shape = Shape(B, T, H, name == "held out")
                out += [shape] if _is_worth(shape, device) else []
    return out


def _is_worth(shape: Shape, device: str) -> bool:
    elements = shape.B * shape.T * shape.H
    if device == "cpu":
        return 2 * elements * shape.H <= MAX_GEMM
    return elements <= MAX_ELEMENTS or shape[:3] == LONGEST


def scan_shapes(grid: str, device: str) -> list[Shape]:
    """The same for the bare scan: each number of rows once."""
    return sorted({Shape(1, s.T, s.B * s.H, s.held_out) for s in shapes(grid, device)})


@functools.cache
def cell_of(name: str) -> CellInfo:
    return next(known for known in cells() if known.name == name)


def layer_of(cell: str, H: int, dtype: str, domain: str = "log") -> _core.Layer:
    """A description with C = H; it is on no device."""
    options = (1, True, False, 0.0, False, cell_of(cell).variants[0], domain, dtype)
    return _core.Layer(cell, H, H, *options)


def tolerances(dtype: str, T: int, H: int) -> tuple[float, float]:
    """Of y, as a share of the largest: the scan's bound and the GEMM's (H = 0: there is none); of
    gradients, relative RMS.

    That one is wide: g has a kink, and rounding puts a few of many pre-activations on its other
    side. Where there is none, the tests check gradients to the last digits. In half precision the
    pre-activations themselves are rounded.
    """
    if dtype in ("bfloat16", "float16"):
        return 0.05, 0.1
    return 3e-7 * (1 + math.log2(T)) + H * 2.0**-24, 1e-3


class Sweep:
    """Measures shapes one by one; `rows` is what a result file holds."""

    def __init__(self, device: str, seconds: float, rows: list[dict[str, Any]]) -> None:
        self.device, self.kind = _core.Device(device), device.partition(":")[0]
        self.seconds, self.rows = seconds, rows
        self.wrong: list[str] = []
        self.hopeless: set[tuple[Any, ...]] = set()

    def has(self, cell: str, shape: Shape) -> bool:
        key = (cell, shape.B, shape.T, shape.H)
        return any((r["cell"], r["B"], r["T"], r["H"]) == key for r in reversed(self.rows))

    def measure(self, cell: str, shape: Shape) -> None:
        """All passes, dtypes and domains."""
        if cell == SCAN:
            self._measure_scan(shape)
        else:
            self._measure_layer(cell, shape)

    def _measure_layer(self, cell: str, shape: Shape) -> None:
        B, T, H, _ = shape
        exact = _core.Workload(layer_of(cell, H, "float64"), self.device, T, B, True)
        # Sequential steps are the reference; a cell that has another way only gets its planner's.
        exact.record("fused_sequential" if is_linear(cell) else None, None)
        ways = WAYS[self.kind]
        if not is_linear(cell):  # a planner may mix two ways, which cannot be forced: it goes last
            ways = {**ways, "auto": (None, None)}
        one_kernel = {LOG_ONLY: ways[LOG_ONLY]} if LOG_ONLY in ways else {}
        for dtype, direction in itertools.product(DTYPES[self.kind], PASSES):
            row = {"cell": cell, "pass": direction, **shape.row(), "C": H, "dtype": dtype}
            for domain in ("log", "linear") if cell == "MinGRU" and one_kernel else ("log",):
                layer = layer_of(cell, H, dtype, domain)
                workload = _core.Workload(layer, self.device, T, B, direction != "forward")
                tried = ways if domain == "log" else one_kernel
                bounds = tolerances(dtype, T, H)
                by_domain = {LOG_ONLY: {"domain": domain}}
                self._measure(workload, exact, row, tried, bounds, by_domain)

    def _measure_scan(self, shape: Shape) -> None:
        _, T, rows, _ = shape
        ways = {way: how for way, how in WAYS[self.kind].items() if way != "direct"}
        for domain in ("log", "linear"):
            exact = _core.Workload("float64", self.device, T, rows, domain == "log")
            exact.record("fused_sequential", None)
            for dtype in DTYPES[self.kind]:
                row = {"cell": SCAN, "domain": domain, "pass": "forward", **shape.row()}
                row |= {"C": rows, "dtype": dtype}
                workload = _core.Workload(dtype, self.device, T, rows, domain == "log")
                self._measure(workload, exact, row, ways, tolerances(dtype, T, 0), {})

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
        series = tuple(row.get(key) for key in ("cell", "domain", "dtype", "pass", "B", "H"))
        for way, (strategy, across_blocks) in ways.items():
            too_many = way == "direct" and DIRECT_TOKENS[self.kind] < row["B"] * row["T"]
            if too_many or (*series, way) in self.hopeless:
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
        times = {way: measure.Timing(once[way], 0.0) for way in recorded}
        times |= measure.replayed(live, once, self.seconds, self.kind == "cuda")
        for way, timing in times.items():
            if way not in live and way in ("direct", "fused_sequential") and row["T"] > 1:
                self.hopeless.add((*series, way))
            self.rows.append(
                {
                    "bench": "crossover",
                    "impl": "scanrnn",
                    "strategy": way,
                    "layout": "TBH",
                    **row,
                    **extra.get(way, {}),
                    **timing.row(),
                    "peak_bytes": recorded[way].nbytes,
                    "max_error": float(f"{max(errors[way]):.2g}"),
                }
            )


def is_linear(cell: str) -> bool:
    return cell == SCAN or cell_of(cell).recurrence == "linear"


def cost(cell: str, shape: Shape, device: str) -> float:
    """About how long it takes, in units of the shortest: for the progress bar's estimate."""
    size = shape.B * shape.T * shape.H
    return 1 + (size * shape.H / 2e7 if device == "cpu" and cell != SCAN else size / 2e6)


def wanted(grid: str, names: Iterable[str], device: str) -> Iterator[tuple[str, Shape]]:
    """All shapes for the first cell. The others share its kernels and differ in bytes alone, so on
    a GPU they take half of the shapes, in turns, and those held out.
    """
    for turn, cell in enumerate(names):
        if cell == SCAN:
            yield from ((cell, shape) for shape in scan_shapes(grid, device))
            continue
        for index, shape in enumerate(shapes(grid, device)):
            if not is_linear(cell) and shape.T > DENSE_STEPS:
                continue
            if device == "cpu" and not is_linear(cell):
                continue  # there is no choice
            if turn == 0 or device == "cpu" or shape.held_out or (index + turn) % 2:
                yield cell, shape


def run(
    grid: str,
    names: list[str],
    device: str,
    out: Path | None = None,
    minutes: float | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """The sweep's content, which is written to `out`, also when the sweep is interrupted."""
    content = measure.provenance(_core.Device(device)) | {"grid": grid, "rows": []}
    if out is not None:
        measure.ready(out)
    if resume and out is not None and out.exists():
        content["rows"] = _rows_of(out, content)
    kind = device.partition(":")[0]
    rows: list[dict[str, Any]] = content["rows"]
    sweep = Sweep(device, 0.02 if grid == "small" else 0.1, rows)
    left = [(cell, s) for cell, s in wanted(grid, names, kind) if not sweep.has(cell, s)]
    if not left and not rows:
        raise SystemExit(f"nothing to measure: on {device} these cells have one way to run")
    end = time.monotonic() + 60 * (minutes if minutes is not None else math.inf)
    saved = time.monotonic()
    form = "{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, about {remaining} left {postfix}"
    total = sum(cost(cell, shape, kind) for cell, shape in left)
    done, whole = 0, len(rows)
    try:
        with optional.progress(total, "crossover", bar_format=form) as bar:
            for cell, shape in left:
                if time.monotonic() > end:
                    break
                bar.set_postfix_str(f"{cell} B={shape.B} T={shape.T} H={shape.H}")
                sweep.measure(cell, shape)
                bar.update(cost(cell, shape, kind))
                done, whole = done + 1, len(rows)
                if out is not None and time.monotonic() > saved + 60:  # whatever happens
                    measure.save(out, content, quiet=True)
                    saved = time.monotonic()
    finally:
        del rows[whole:]  # of a point that was not finished, which --resume would leave out
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
