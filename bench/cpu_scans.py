# SPDX-License-Identifier: Apache-2.0
"""The bare scan on the CPU beside an addition of the same three arrays, which sets its bound.

    python bench/cpu_scans.py [--seconds S] [--out FILE]

All ways of a size take turns, and the least time of each counts: on a shared machine only that is
the way's own. `share` is of the bandwidth of np.add(a, b, out=c) by as many threads as scans have;
backward reads three tensors and writes two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scanrnn
from scanrnn import _core
from scanrnn.tools import measure

SIZES = ((4096, 4096), (1 << 20, 8), (1 << 24, 1), (65536, 256), (1 << 22, 3))
WAYS = ("fused_sequential", "parallel_scan")
BOUND = "np.add, all threads"
# What is measured of the planner's picks alone: what it is, its dtype, whether it is backward, and
# whether steps are adjacent.
OTHERS = (
    ("float16", np.float16, False, False),
    ("backward", np.float32, True, False),
    ("float16, backward", np.float16, True, False),
    ("steps adjacent", np.float32, False, True),
    ("steps adjacent, backward", np.float32, True, True),
)

Call = Callable[[], Any]


def other(T: int, N: int, device: _core.Device, dtype: Any, backward: bool, by_time: bool) -> Any:
    """The strategy, the call and how many bytes it moves."""
    random = np.random.default_rng(7)

    def tensor() -> Any:
        values = random.uniform(0.01, 0.99, (N, T) if by_time else (T, N)).astype(dtype)
        return values.T if by_time else values

    a, b, h, da, db = (tensor() for _ in range(5))
    name, adjacent = np.dtype(dtype).name, by_time or N == 1
    plan = _core.scan_plan(device, T, 1, N, name, "linear", backward, adjacent, None)
    given = (plan, 0, "linear", False, a)

    def forward() -> None:
        _core.scan(*given, b, None, None, None, None, h, None, None)

    def back() -> None:
        _core.scan_backward(*given, None, None, None, None, None, h, None, b, da, db, None, None)

    forward()
    return plan.strategy, back if backward else forward, (5 if backward else 3) * a.nbytes


def ways(T: int, N: int, device: _core.Device, threads: int, pool: ThreadPoolExecutor) -> Any:
    """What is timed in float32, forward, with steps apart, by (impl, strategy): all but those named
    fresh write to memory in use.
    """
    random = np.random.default_rng(7)
    a, b, out = (random.uniform(0.01, 0.99, (T, N)).astype(np.float32) for _ in range(3))
    flat = [x.reshape(-1) for x in (a, b, out)]
    cuts = [a.size * i // threads for i in range(threads + 1)]

    def add_part(i: int) -> None:
        x, y, z = (values[cuts[i] : cuts[i + 1]] for values in flat)
        np.add(x, y, out=z)

    memory = np.empty(4 * a.size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    h = memory[begin : begin + 4 * a.size].view(np.float32).reshape(T, N)

    def scan(strategy: str | None) -> tuple[str, Call]:
        plan = _core.scan_plan(device, T, 1, N, "float32", "linear", False, N == 1, strategy)
        reads, writes = (a, b, None, None, None, None), (h, None)
        return plan.strategy, lambda: _core.scan(plan, 0, "linear", False, *reads, *writes, None)

    found: dict[tuple[str, str | None], Call] = {
        ("np.add", None): lambda: np.add(a, b, out=out),
        (BOUND, None): lambda: list(pool.map(add_part, range(threads))),
        ("np.add, fresh result", None): lambda: np.add(a, b),
    }
    picked, call = scan(None)
    found["scanrnn", picked] = call
    found["scanrnn, fresh result", picked] = lambda: scanrnn.scan(a, b)
    for name in WAYS:
        if name != picked:
            found["scanrnn, not picked", name] = scan(name)[1]
    call()
    rows = slice(0, min(N, 16))
    state = np.zeros(N, np.float64)[rows]
    for t in range(min(T, 2000)):
        state = a[t, rows] * state + b[t, rows]
        assert np.allclose(h[t, rows], state, rtol=1e-5), f"T {T} N {N}: wrong at step {t}"
    return found


def least(calls: dict[Any, Call], seconds: float) -> dict[Any, float]:
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="for each size")
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu-scan.json"))
    args = parser.parse_args(arguments)
    device = _core.Device("cpu")
    content = measure.provenance(device)
    rows = []
    with ThreadPoolExecutor(content["threads"]) as pool:
        for T, N in SIZES:
            calls, moved = ways(T, N, device, content["threads"], pool), {}
            for what, *how in OTHERS:
                strategy, call, size = other(T, N, device, *how)
                calls[f"scanrnn, {what}", strategy] = call
                moved[f"scanrnn, {what}"] = size
            best = least(calls, args.seconds)
            bound = 12 * T * N / best[BOUND, None]
            for (impl, strategy), ms in best.items():
                row: dict[str, Any] = {"bench": "scan", "impl": impl}
                row |= {"strategy": strategy} if strategy else {}
                size = moved.get(impl, 12 * T * N)
                row |= {"T": T, "N": N, "ms": round(ms, 5)}
                row |= {"gbps": round(1e-6 * size / ms, 2), "share": round(size / ms / bound, 3)}
                rows.append(row)
                print(f"T {T} N {N} {impl} {strategy or ''}: {ms:.2f} ms, {row['share']:.0%}")
    measure.save(args.out, content | {"rows": rows})


if __name__ == "__main__":
    main()
