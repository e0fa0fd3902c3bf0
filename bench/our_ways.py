# SPDX-License-Identifier: Apache-2.0
"""The library's ways to run a problem beside the one that its planner picks.

What a user gets is the pick, through scanrnn.torch. Another way only gets a row where it is faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from gpu_timing import GPU, Contest, Recorded, Taken
from losses import OTHER_WAY, WORTH
from rows import OURS, Row
from scanrnn import _core
from scanrnn.description import Description
from scanrnn.registry import cells
from scanrnn.tools import crossover


def is_known(cell: str) -> bool:
    return any(found.name == cell for found in cells())


def layer(
    cell: str, C: int, H: int, dtype: str, layers: int = 1, directions: int = 1
) -> _core.Layer:
    return Description(cell, H, layers, bidirectional=directions == 2).layer(C, dtype)


def name_of(found: _core.Recorded) -> str:
    if found.strategy != "parallel_scan":
        return found.strategy
    return f"parallel_scan, {'device' if found.across_blocks else 'block'}"


def enter_better(
    contest: Contest,
    workload: _core.Workload,
    exact: Callable[[], _core.Workload],
    bounds: tuple[float, float],
) -> None:
    """Names the pick in the row that has entered last, and enters the fastest way beside it."""
    if not contest.turns or contest.turns[-1][0]["impl"] != OURS:
        return
    row = contest.turns[-1][0]
    pick = workload.record(None, None)
    row["strategy"] = name_of(pick)
    found = {name_of(pick): min(pick.milliseconds() for _ in range(3))}
    ways = {}
    for strategy, across in itertools.product(_core.strategies(), (False, True)):
        if across and strategy != "parallel_scan":
            continue
        if strategy == "direct" and row["B"] * row["T"] > crossover.DIRECT_TOKENS["cuda"]:
            continue
        try:
            way = workload.record(strategy, across if strategy == "parallel_scan" else None)
        except (ValueError, RuntimeError):  # a way that this problem has not
            continue
        ways[name_of(way)] = strategy, way.across_blocks
        found.setdefault(name_of(way), min(way.milliseconds() for _ in range(3)))
    best = min(found, key=lambda name: found[name])
    if found[best] > WORTH * found[name_of(pick)]:
        return

    def make() -> tuple[Taken, Row]:
        strategy, across = ways[best]
        way = workload.record(strategy, across if strategy == "parallel_scan" else None)
        off = workload.errors(exact())
        if not all(error <= bound for error, bound in zip(off, bounds, strict=True)):
            raise ValueError(f"wrong result of {best}: {off}")
        calls = min(20, max(1, int(0.5 / found[best])))
        return Recorded(way, calls), {"strategy": best, "max_error": float(f"{off[0]:.2g}")}

    shown = {"impl": OTHER_WAY, "layout": row["layout"]}
    contest.enter_if_faster(float("inf"), shown, make)


def exact_layer(cell: str, B: int, T: int, H: int, training: bool) -> _core.Workload:
    exact = _core.Workload(layer(cell, H, H, "float64"), GPU, T, B, training)
    exact.record("fused_sequential", None)
    return exact


def exact_scan(T: int, rows: int, log_form: bool) -> _core.Workload:
    exact = _core.Workload("float64", GPU, T, rows, log_form)
    exact.record("fused_sequential", None)
    return exact
