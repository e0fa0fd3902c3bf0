# SPDX-License-Identifier: Apache-2.0
"""How times are taken and kept: medians of many, and files that say where they come from."""

from __future__ import annotations

import json
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

from . import _core
from .arguments import Array
from .registry import devices

SLICE = 2e-3  # seconds: shorter calls are repeated up to this, to be above the clock's grain


class Timing(NamedTuple):
    ms: float
    spread: float  # between the quartiles

    def row(self) -> dict[str, float]:
        return {"ms": round(self.ms, 5), "ms_spread": round(self.spread, 5)}


def timed(
    calls: Mapping[str, Callable[[], Any]], seconds: float = 0.15, least: int = 5
) -> dict[str, Timing]:
    """Medians. The calls take turns, so that a slow spell of the machine meets them all."""
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(SLICE / max(time.perf_counter() - start, 1e-7)))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(next(iter(samples.values()))) < least:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.perf_counter() - start) / repeats[name])
    out = {}
    for name, values in samples.items():
        low, middle, high = 1e3 * np.quantile(values, [0.25, 0.5, 0.75])
        out[name] = Timing(float(middle), float(high - low))
    return out


def max_error(got: Array, wanted: Array) -> float:
    """Largest error over the largest magnitude; NaN where either holds one."""
    if wanted.size == 0:
        return 0.0
    scale = max(float(np.abs(wanted).max()), 1e-30)
    return float(np.abs(got.astype(np.float64) - wanted).max()) / scale


def rms_error(got: Array, wanted: Array) -> float:
    difference = got.astype(np.float64) - wanted
    return float(np.sqrt(np.square(difference).mean() / max(np.square(wanted).mean(), 1e-60)))


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


def provenance(device: _core.Device) -> dict[str, Any]:
    commit, dirty = _commit()
    info = next(found for found in devices() if found.device == str(device))
    return {
        "device": str(device).partition(":")[0],
        "processor": info.name,
        "architecture": info.architecture,
        "threads": info.units,
        "host": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit,
        "dirty": dirty,
        "command": "python -m scanrnn " + shlex.join(sys.argv[1:]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _commit() -> tuple[str | None, bool | None]:
    """Of the repository that this file is from: the one it lies in, or the working folder's."""
    here = Path(__file__)
    for folder in (here.parent, Path.cwd()):
        root = _git(folder, "rev-parse", "--show-toplevel")
        copy = Path(root or "/nowhere") / "python" / "scanrnn" / here.name
        if root and copy.exists() and copy.read_bytes() == here.read_bytes():
            status = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return _git(folder, "rev-parse", "HEAD"), bool(status)
    return None, None


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def save(path: Path, content: dict[str, Any]) -> None:
    """One row a line, so that two files can be compared."""
    rows = content.get("rows", [])
    head = {key: value for key, value in content.items() if key != "rows"}
    text = json.dumps(head, indent=2)
    if rows:
        lines = ",\n".join("    " + json.dumps(row) for row in rows)
        text = f'{text[:-2]},\n  "rows": [\n{lines}\n  ]\n}}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
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
