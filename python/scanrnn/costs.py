# SPDX-License-Identifier: Apache-2.0
"""From a sweep's rows to costs: what one of each term takes, for each way and class of problems.

A way's time is a sum of terms, each a count that the planner knows times the microseconds of one,
none of them negative. The least squares of the relative errors decide. Ways that begin with the
same product of matrices share its microseconds, so that what is not known of the product is the
same for all of them and does not decide between two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _core, optional, profile
from .arguments import Array
from .fit import Problem, core_problem, strategy_of

PRODUCT = (
    *("multiply_add", "weight_byte", "depth", "gate_byte", "product_wave"),
    *(f"product_{edge}{over}" for edge in (128, 64) for over in ("", "_over_1", "_over_4")),
)
ALONE = "direct"  # the one way that makes its product otherwise
SHARE = 1e-3  # of every prediction: what never takes so much is left out


def fit(found: Iterable[Problem], units: int, shared_bytes: int) -> list[dict[str, Any]]:
    """The costs as a profile's file has them."""
    classes: dict[Any, list[tuple[Problem, Array]]] = {}
    for problem in found:
        if not problem.held_out:
            of, counts = _core.counted(units, shared_bytes, core_problem(problem))
            classes.setdefault(of, []).append((problem, np.array(counts)))
    return [cost for of, members in sorted(classes.items()) for cost in _class(of, members)]


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
