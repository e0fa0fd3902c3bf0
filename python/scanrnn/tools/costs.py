# SPDX-License-Identifier: Apache-2.0
"""From a sweep's rows to costs: what one of each term takes, for each way and class of problems.

A way's time is a sum of terms, each a count that the planner knows times the microseconds of one,
none of them negative. The least squares of the relative errors decide. Ways that begin with the
same product of matrices share its microseconds, so that what is not known of the product is the
same for all of them and does not decide between two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import _core, profile
from ..arguments import Array
from . import optional
from .fit import Problem, core_problem, strategy_of
from .sizes import QUOTED, QUOTED_SCANS, SCAN

PRODUCT = (
    *("multiply_add", "weight_byte", "depth", "gate_byte", "product_wave"),
    *(f"product_{edge}{over}" for edge in (128, 64) for over in ("", "_over_1", "_over_4")),
)
ALONE = "direct"  # the one way that makes its product otherwise
LOST, AROUND = 0.03, 1.25  # what a prediction may lose where people look first, and how far that is
SHARE = 1e-3  # of every prediction: what never takes so much is left out


def fit(found: Iterable[Problem], units: int, shared_bytes: int) -> list[dict[str, Any]]:
    """The costs as a profile's file has them."""
    classes: dict[Any, list[tuple[Problem, Array]]] = {}
    for problem in found:
        if not problem.held_out:
            of, counts = _core.counted(units, shared_bytes, core_problem(problem))
            classes.setdefault(of, []).append((problem, np.array(counts)))
    return [cost for of, members in sorted(classes.items()) for cost in _class(of, members)]


def rules(
    found: Iterable[Problem], units: int, pick: Callable[[Problem], str]
) -> list[dict[str, Any]]:
    """Boxes around the sizes that people quote, where the pick without them loses too much."""
    quoted = [p for p in found if is_quoted(p)]
    out = []
    for problem in sorted(quoted, key=lambda p: -p.regret(pick(p))):
        if problem.regret(pick(problem)) <= LOST:
            break
        at = problem.features(units)
        inside = [p for p in quoted if _near(p.features(units), at)]
        best = min(problem.ms, key=lambda way: sum(p.regret(way) for p in inside))
        if sum(p.regret(best) for p in inside) < sum(p.regret(pick(p)) for p in inside) - LOST:
            out.append(_rule(at, inside, best))
    return [rule for index, rule in enumerate(out) if rule not in out[:index]]


def is_quoted(p: Problem) -> bool:
    return (p.H, p.T) in QUOTED_SCANS if p.cell == SCAN else (p.B, p.T, p.H) in QUOTED


SIZES = ("steps", "tokens", "hidden")


def _near(one: dict[str, float], other: dict[str, float]) -> bool:
    """In the box around the other."""
    sizes = all(other[name] / AROUND < one[name] <= other[name] * AROUND for name in SIZES)
    kinds = ("gates", "bytes", "training", "log_domain")
    return sizes and all(one[name] == other[name] for name in kinds)


def _rule(at: dict[str, float], inside: list[Problem], best: str) -> dict[str, Any]:
    strategy = strategy_of(best)
    times = [
        (p.ms[best], w, t) for p in inside for w, t in p.ms.items() if strategy_of(w) != strategy
    ]
    second = min(times, key=lambda time: time[2] / time[0])
    above = {name: int(at[name] / AROUND) for name in SIZES}
    above |= {name: at[name] - 1 for name in ("gates", "training", "log_domain") if at[name] > 0}
    above |= {"bytes": at["bytes"] / 2}
    at_most = {name: int(at[name] * AROUND) for name in SIZES}
    at_most |= {name: at[name] for name in ("gates", "bytes", "training", "log_domain")}
    return {
        "strategy": strategy,
        "runner_up": strategy_of(second[1]),
        "across_blocks": best == "parallel_scan, device",
        "margin": round(second[2] / second[0], 2),
        "above": above,
        "at_most": at_most,
        "points": len(inside),
    }


def _class(of: Any, members: list[tuple[Problem, Array]]) -> list[dict[str, Any]]:
    ways = sorted({way for problem, _ in members for way in problem.ms})
    shared = np.array([name in PRODUCT for name in profile.TERMS])
    own = {way: ~shared | (way == ALONE) for way in ways}
    ends = np.cumsum([shared.sum(), *(own[way].sum() for way in ways)])
    rows = []
    for problem, counts in members:
        for index, way in enumerate(ways):
            if way in problem.ms:
                row = np.zeros(ends[-1])
                row[ends[index] : ends[index + 1]] = counts[own[way]]
                if way != ALONE:
                    row[: ends[0]] = counts[shared]
                rows.append(row / (1e3 * problem.ms[way]))
    each = _not_negative(np.array(rows))
    costs = []
    for index, way in enumerate(ways):
        us = np.zeros(len(profile.TERMS))
        if way != ALONE:
            us[shared] = each[: ends[0]]
        us[own[way]] = each[ends[index] : ends[index + 1]]
        costs.append(_cost(of, way, us, [m for m in members if way in m[0].ms]))
    return costs


def _not_negative(shares: Array) -> Array:
    """x >= 0 whose products with all rows are the nearest to 1."""
    scale = np.sqrt(np.square(shares).sum(axis=0))
    scale[scale == 0] = 1
    matrix, target = shares / scale, np.ones(len(shares))
    if len(matrix) > len(scale):  # the same solution from a smaller system
        q, matrix = np.linalg.qr(matrix)
        target = q.T @ target
    found, _ = optional.need("scipy.optimize").nnls(matrix, target, maxiter=100 * len(scale))
    return found / scale


def _cost(of: Any, way: str, us: Array, members: list[tuple[Problem, Array]]) -> dict[str, Any]:
    parts = np.array([counts * us for _, counts in members])
    predicted = parts.sum(axis=1)
    us = np.where((parts > SHARE * predicted[:, None]).any(axis=0), us, 0)
    errors = [abs(p / (1e3 * m.ms[way]) - 1) for p, (m, _) in zip(predicted, members, strict=True)]
    return {
        **dict(zip(profile.CLASS, of, strict=True)),
        "strategy": strategy_of(way),
        "across_blocks": way == "parallel_scan, device",
        "us": {n: float(f"{v:.4g}") for n, v in zip(profile.TERMS, us, strict=True) if v > 0},
        "points": len(members),
        "error": round(float(np.median(errors)), 3),
    }
