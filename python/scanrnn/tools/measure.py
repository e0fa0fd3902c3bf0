# SPDX-License-Identifier: Apache-2.0
"""How times are taken and kept: medians of many, and files that say where they come from."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..arguments import Array
from ..registry import build_info, devices, version

SLICE = 2e-3  # seconds: shorter calls are repeated up to this, to be above the clock's grain
# Seconds until the threads of what ran before sleep. Those of an OpenBLAS or OpenMP team wait
# awake for a while, and take the processor from the next team.
SETTLE = 0.1


class Timing(NamedTuple):
    ms: float
    spread: float  # between the quartiles
    least: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Timing:
        least, low, middle, high = np.quantile(milliseconds, [0, 0.25, 0.5, 0.75])
        return cls(float(middle), float(high - low), float(least))

    def row(self) -> dict[str, float]:
        return {"ms": round(self.ms, 5), "ms_spread": round(self.spread, 5)}


def timed(
    calls: Mapping[Any, Callable[[], Any]],
    seconds: float = 0.15,
    least: int = 5,
    turn: float = SLICE,
    wait: Callable[[], Any] = lambda: None,
) -> dict[Any, Timing]:
    """Medians. The calls take turns, so that a slow spell of the machine meets them all.

    A turn is so many calls in a row as take `turn` seconds, with a GPU's work in flight: `wait`
    waits for it at the end.
    """

    def taken(call: Callable[[], Any], times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        return time.perf_counter() - start

    repeats: dict[Any, int] = {}
    samples: dict[Any, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        taken(call, 1)
        repeats[name] = max(1, int(turn / max(taken(call, 1), 1e-7)))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(next(iter(samples.values()))) < least:
        for name, call in calls.items():
            samples[name].append(1e3 * taken(call, repeats[name]) / repeats[name])
    return {name: Timing.of(values) for name, values in samples.items()}


def replayed(
    recorded: Mapping[str, _core.Recorded],
    once: Mapping[str, float],
    seconds: float,
    on_gpu: bool,
) -> dict[str, Timing]:
    """Medians of timed graphs that take turns; `once` is about what each takes, in ms.

    Short ones are captured again, several calls in a row, since a GPU's events and a CPU's clock
    have a grain.
    """
    grain, least, most = (0.2, 5, 9) if on_gpu else (1e3 * SLICE, 5, 10**6)
    series = {}
    for name, found in recorded.items():
        calls = min(max(1, int(grain / max(once[name], 1e-4))), 20 if on_gpu else 10**6)
        series[name] = found if calls == 1 else found.again(calls)
    samples: dict[str, list[float]] = {name: [] for name in series}
    end = time.perf_counter() + seconds * len(series)
    for turn in range(most):
        if turn >= (least if max(once.values()) < 20 else 2) and time.perf_counter() > end:
            break
        for name, found in series.items():
            samples[name].append(found.milliseconds())
    return {name: Timing.of(values) for name, values in samples.items()}


def max_error(got: Array, wanted: Array) -> float:
    """Largest error over the largest magnitude; NaN where either holds one."""
    if wanted.size == 0:
        return 0.0
    scale = max(float(np.abs(wanted).max()), 1e-30)
    return float(np.abs(got.astype(np.float64) - wanted).max()) / scale


def copy_gbps(threads: int, megabytes: int = 256) -> float:
    """Read + write bandwidth of a copy by as many threads as the library uses."""
    source = np.ones((threads, megabytes * 2**20 // 4 // threads), np.float32)
    target = np.zeros_like(source)
    with ThreadPoolExecutor(threads) as pool:
        best = min(
            _seconds(lambda: list(pool.map(np.copyto, target, source)))  # releases the GIL
            for _ in range(5)
        )
    return 2 * source.nbytes / best / 1e9


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def command() -> str:
    """This process's."""
    program = Path(sys.argv[0])
    package = __package__.partition(".")[0]
    module = program.parent.name == package
    name = f"-m {package}" if module else f"{program.parent.name}/{program.name}"
    return f"python {name} {shlex.join(sys.argv[1:])}".strip()


def provenance(device: _core.Device) -> dict[str, Any]:
    commit, dirty = _commit()
    kind, _, index = str(device).partition(":")
    name = str(device) if kind == "cpu" else f"{kind}:{index or 0}"
    info = next(found for found in devices() if found.device == name)
    if kind == "cpu":
        where: dict[str, Any] = {"threads": info.units}
    else:
        build = dict(line.split(": ", 1) for line in build_info().strip().splitlines())
        where = {"gpu": info.name, "driver": _driver(), "cuda": build["cuda"]}
        where |= {"units": device.units, "shared_bytes": device.shared_bytes}
    return {
        "device": kind,
        "processor": info.name,
        "architecture": info.architecture,
        **where,
        "version": version(),
        "host": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit,
        "dirty": dirty,
        "command": command(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = _output(query)
    return done.splitlines()[0] if done else None


def _commit() -> tuple[str | None, bool | None]:
    """The commit of this file's repository: the one it lies in, or the working folder's.

    A copy of the sources that is in no repository is told by BENCH_COMMIT.
    """
    if "BENCH_COMMIT" in os.environ:
        return os.environ["BENCH_COMMIT"], False
    here = Path(__file__)
    for folder in (here.parent, Path.cwd()):
        root = _git(folder, "rev-parse", "--show-toplevel")
        copy = Path(root or "/nowhere") / "python" / "scanrnn" / "tools" / here.name
        if root and copy.exists() and copy.read_bytes() == here.read_bytes():
            status = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return _git(folder, "rev-parse", "HEAD"), bool(status)
    return None, None


def _git(folder: Path, *command: str) -> str | None:
    return _output(["git", "-C", str(folder), *command])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def load(path: Path) -> dict[str, Any]:
    """What save() wrote."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SystemExit(f"{path}: {problem}") from None
    return content


OF_A_DEVICE = ("device", "architecture", "units", "shared_bytes")
# What a row must say, by what wrote it; a scan's is a sweep's only if it has a strategy and a time.
OF_A_SCAN = {"pass": str, "dtype": str, "layout": str, "B": int, "T": int, "H": int}
OF_A_LAYER = OF_A_SCAN | {"cell": str, "strategy": str, "ms": float}
OF_A_ROW = {"crossover": OF_A_LAYER, "layer": OF_A_LAYER, "scan": OF_A_SCAN}


def load_sweep(path: Path, beside: dict[str, Any] | None = None) -> dict[str, Any]:
    """What `bench crossover` wrote; or `beside` a sweep bench/layer_cuda.cu, which says no more of
    its device than the GPU's name.
    """
    content = load(path)
    if beside is not None and isinstance(content, dict) and "gpu" in content:
        kind = {name: beside[name] for name in OF_A_DEVICE if name in beside}
        content = kind | {"processor": content["gpu"]} | content
    if not isinstance(content, dict) or not {"device", "architecture", "rows"} <= set(content):
        raise SystemExit(f"{path}: it is not what bench crossover writes")
    if words := _misfit(content):
        raise SystemExit(f"{path}: {words}")
    return content


def _misfit(content: dict[str, Any]) -> str:
    """What in a sweep is not as a sweep has it; nothing: all is."""
    rows = content["rows"]
    if not isinstance(rows, list):
        return f"rows: expected a list, got {rows!r:.60}"
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("bench"), str):
            return f"rows[{i}]: expected what a bench has measured, got {row!r:.60}"
        for name, kind in OF_A_ROW.get(row["bench"], {}).items():
            if not isinstance(row.get(name), (int, float) if kind is float else kind):
                return f"rows[{i}]: {name}: expected {kind.__name__}, got {row.get(name)!r:.60}"
    count = "units" if content["device"] == "cuda" else "threads"
    if rows and not isinstance(content.get(count), int):
        return f"{count}: expected int, got {content.get(count)!r:.60}"
    return ""


def ready(path: Path) -> None:
    """Before long work: the folder is there and can be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SystemExit(f"{path}: {problem}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise SystemExit(f"{path}: it cannot be written")


def save(path: Path, content: dict[str, Any], quiet: bool = False) -> None:
    """One row or rule a line, so that two files can be compared."""
    lists = {
        key: value for key, value in content.items() if key in ("rows", "rules", "costs") and value
    }
    head = {key: value for key, value in content.items() if key not in lists}
    text = json.dumps(head, indent=2)
    for key, values in lists.items():
        lines = ",\n".join("    " + json.dumps(value) for value in values)
        text = f'{text[:-2]},\n  "{key}": [\n{lines}\n  ]\n}}'
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.part")  # so that there is the old file or the new one
    half.write_text(text + "\n", encoding="utf-8")
    half.replace(path)
    if not quiet:
        print(f"written: {path}", file=sys.stderr)


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Columns, the first ones (words) to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        return "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        ).rstrip()

    return "\n".join([line(titles), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """The same as a table of a page."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *rows])
