# SPDX-License-Identifier: Apache-2.0
"""From a sweep's rows to costs: what one of each term takes, for each way and class of problems.

A way's time is a sum of terms, each a count that the planner knows times the microseconds of one,
none of them negative. The least squares of the relative errors decide. The planner counts for each
way what its kernels do. What several ways do alike, such as the product with the input, has the
same microseconds in all of them, so that what is not known of it does not decide between two. What
the terms miss then is fitted once more, by each way's trend over sizes and cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import _core, profile
from ..arguments import Array
from . import optional
from .fit import Problem, core_problem, strategy_of
from .sizes import QUOTED, QUOTED_SCANS, SCAN

OVER_BLOCKS = "parallel_scan, device"
LOST, AROUND = 0.03, 1.25  # what a prediction may lose where people look first, and how far that is
REFITS, TRUSTED = 8, 0.1  # until weights settle; relative error up to which squares count
STIFF = (
    10  # problems that a slope of a trend must be worth: a way with few problems has little trend
)
SHARE = 1e-3  # of every prediction: what never takes so much is left out


class Timed(NamedTuple):
    """How long a way took, and what of it the planner counts."""

    way: str
    counts: Array
    trends: Array
    us: float


def fit(found: Iterable[Problem], units: int, shared_bytes: int) -> list[dict[str, Any]]:
    """The costs as a profile's file has them."""
    classes: dict[Any, list[Timed]] = {}
    for problem in found:
        if problem.held_out:
            continue
        core = core_problem(problem)
        for way, ms in problem.ms.items():
            split = way == OVER_BLOCKS
            of, *counted = _core.counted(units, shared_bytes, core, strategy_of(way), split)
            classes.setdefault(of, []).append(Timed(way, *map(np.array, counted), 1e3 * ms))
    return [cost for of, timed in sorted(classes.items()) for cost in _class(of, timed)]


def rules(
    found: Iterable[Problem], units: int, pick: Callable[[Problem], str]
) -> list[dict[str, Any]]:
    """Boxes around the sizes that people quote, where the pick without them loses too much."""
    quoted = [p for p in found if is_quoted(p) and len(set(map(strategy_of, p.ms))) > 1]
    out = []
    for problem in sorted(quoted, key=lambda p: -p.regret(pick(p))):
        if problem.regret(pick(problem)) <= LOST:
            break
        at = problem.features(units)
        # A planner passes over a rule for cells of another kind.
        same_kind = [p for p in quoted if not p.ms.keys().isdisjoint(problem.ms)]
        inside = [p for p in same_kind if _near(p.features(units), at)]
        best = min(problem.ms, key=lambda way: sum(p.regret(way) for p in inside))
        if sum(p.regret(best) for p in inside) < sum(p.regret(pick(p)) for p in inside) - LOST:
            out.append(_rule(at, inside, best))
    return [rule for index, rule in enumerate(out) if rule not in out[:index]]


def is_quoted(p: Problem) -> bool:
    return (p.H, p.T) in QUOTED_SCANS if p.cell == SCAN else (p.B, p.T, p.H) in QUOTED


SIZES = ("steps", "tokens")


def _near(one: dict[str, float], other: dict[str, float]) -> bool:
    """In the box around the other, whose width is its own: others have lines that begin elsewhere,
    and other times.
    """
    sizes = all(other[name] / AROUND < one[name] <= other[name] * AROUND for name in SIZES)
    kinds = ("hidden", "gates", "bytes", "training", "log_domain")
    return sizes and all(one[name] == other[name] for name in kinds)


def _rule(at: dict[str, float], inside: list[Problem], best: str) -> dict[str, Any]:
    strategy = strategy_of(best)
    times = [
        (p.ms[best], w, t) for p in inside for w, t in p.ms.items() if strategy_of(w) != strategy
    ]
    second = min(times, key=lambda time: time[2] / time[0])
    above = {name: int(at[name] / AROUND) for name in SIZES}
    above |= {name: at[name] - 1 for name in ("gates", "training", "log_domain") if at[name] > 0}
    above |= {"hidden": at["hidden"] - 1, "bytes": at["bytes"] / 2}
    at_most = {name: int(at[name] * AROUND) for name in SIZES}
    at_most |= {name: at[name] for name in ("hidden", "gates", "bytes", "training", "log_domain")}
    return {
        "strategy": strategy,
        "runner_up": strategy_of(second[1]),
        "across_blocks": best == OVER_BLOCKS,
        "margin": round(second[2] / second[0], 2),
        "above": above,
        "at_most": at_most,
        "points": len(inside),
    }


def _class(of: Any, timed: list[Timed]) -> list[dict[str, Any]]:
    """The ways of a class together, since they have terms in common; a column is a term of a way,
    or of all of them.
    """
    in_common = set(_core.shared_terms())
    ways = sorted({one.way for one in timed})
    columns: dict[tuple[str, int], int] = {}

    def column(way: str, term: int) -> int:
        key = ("" if profile.TERMS[term] in in_common else way, term)
        return columns.setdefault(key, len(columns))

    places = [[column(one.way, term) for term in np.flatnonzero(one.counts)] for one in timed]
    shares = np.zeros((len(timed), len(columns)))
    for row, at, one in zip(shares, places, timed, strict=True):
        row[at] = one.counts[one.counts != 0] / one.us
    each = _robust(shares)
    costs = []
    for way in ways:
        us = np.zeros(len(profile.TERMS))
        for (owner, term), at in columns.items():
            if owner in ("", way):
                us[term] = each[at]
        costs.append(_cost(of, way, us, [one for one in timed if one.way == way]))
    return costs


def _robust(shares: Array) -> Array:
    """x >= 0 whose products with all rows are near to 1, by Huber's loss: a time that the terms do
    not explain, such as of a product for which the library chose badly, counts by its error, not
    by the square.
    """
    weights = np.ones(len(shares))
    for _ in range(REFITS):
        each = _not_negative(shares, weights)
        weights = _trust(shares @ each - 1)
    return each


def _trust(errors: Array) -> Array:
    """What errors are multiplied by, so that their squares beyond TRUSTED grow no faster."""
    return np.sqrt(np.minimum(1, TRUSTED / np.maximum(np.abs(errors), 1e-9)))


def _not_negative(shares: Array, weights: Array) -> Array:
    """x >= 0 whose products with all rows are the nearest to 1, in weighted least squares."""
    shares = shares * weights[:, None]
    scale = np.sqrt(np.square(shares).sum(axis=0))
    scale[scale == 0] = 1
    matrix, target = shares / scale, weights
    if len(matrix) > len(scale):  # the same solution from a smaller system
        q, matrix = np.linalg.qr(matrix)
        target = q.T @ target
    found, _ = optional.need("scipy.optimize").nnls(matrix, target, maxiter=100 * len(scale))
    return found / scale


def _trend(products: Array, missed: Array) -> Array:
    """The slopes of a way's trend: logarithms of what the terms missed, by ridge regression."""
    weights = np.ones(len(missed))
    for _ in range(REFITS):
        rows = products * weights[:, None]
        stiff = STIFF * np.eye(products.shape[1])
        slopes = np.linalg.solve(rows.T @ rows + stiff, rows.T @ (weights * missed))
        weights = _trust(products @ slopes - missed)
    return slopes


def _cost(of: Any, way: str, us: Array, timed: list[Timed]) -> dict[str, Any]:
    parts = np.array([one.counts * us for one in timed])
    us = np.where((parts > SHARE * parts.sum(axis=1)[:, None]).any(axis=0), us, 0)
    products, found = np.array([one.trends for one in timed]), np.array([one.us for one in timed])
    predicted = np.array([one.counts @ us for one in timed])
    slopes = _trend(products, np.log(found / predicted))
    errors = np.abs(predicted * np.exp(products @ slopes) / found - 1)
    return {
        **dict(zip(profile.CLASS, of, strict=True)),
        "strategy": strategy_of(way),
        "across_blocks": way == OVER_BLOCKS,
        "us": {n: float(f"{v:.4g}") for n, v in zip(profile.TERMS, us, strict=True) if v > 0},
        "trend": [round(float(slope), 4) for slope in slopes],
        "points": len(timed),
        "error": round(float(np.median(errors)), 3),
    }
