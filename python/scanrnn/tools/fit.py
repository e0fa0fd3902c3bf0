# SPDX-License-Identifier: Apache-2.0
"""From a sweep's rows to a profile: a shallow tree, whose leaves are the rules.

A tree is grown from the root, each time by the split that takes away the most loss, until no split
is worth a rule. The loss of a problem is its regret, the time of what is picked over the best
time less one, counted beyond the noise and more than in proportion, so that one problem that is
far off weighs more than many that are a little off.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _core, profile
from ..arguments import Array
from . import crossover
from .sizes import PASSES, SCAN, TF32, cell_of

NOISE = 0.02  # a difference that timing cannot tell
ENOUGH = 0.1  # regret whose loss is twice that of half of it, four times
WORTH = 1.0  # loss that a further rule must take away
FEWEST = 2  # problems of a rule
MOST_RULES = 32  # of each kind of cells: more fit the noise
layer_of = functools.cache(crossover.layer_of)
BITS = {"float64": 8, "float32": 4, TF32: 4, "bfloat16": 2, "float16": 2}


class Problem(NamedTuple):
    """One problem of a sweep: what the planner sees of it, and how long each way takes."""

    cell: str
    direction: str
    dtype: str
    domain: str
    layout: str
    B: int
    T: int
    H: int
    held_out: bool
    ms: dict[str, float]

    @property
    def best(self) -> str:
        return min(self.ms, key=lambda way: self.ms[way])

    def regret(self, way: str) -> float:
        """A way that was not measured was hopeless, and counts as just that."""
        return self.ms.get(way, crossover.HOPELESS * self.ms[self.best]) / self.ms[self.best] - 1

    def features(self, units: int) -> dict[str, float]:
        return {
            "steps": self.T,
            "tokens": self.B * self.T,
            "elements": self.B * self.T * self.H,
            "rows_per_unit": self.B * self.H / units,
            "hidden": self.H,
            "gates": 0 if self.cell == SCAN else cell_of(self.cell).gates,
            "bytes": BITS[self.dtype],
            "training": int(self.direction != "forward"),
            "log_domain": int(self.domain == "log"),
        }


def _scan(row: dict[str, Any]) -> dict[str, Any]:
    """A row of bench/scan_cuda.cu as a sweep's, whose scans are forward, of real numbers and of one
    entry whose rows lie beside one another.
    """
    as_swept = row["pass"] == "forward" and row["layout"] == "TBH" and row["dtype"] in BITS
    if not as_swept or row.get("strategy") not in crossover.WAYS["cuda"]:
        return row
    rows = row["B"] * row["H"]
    return row | {"bench": "crossover", "cell": SCAN, "B": 1, "C": rows, "H": rows}


def problems(content: dict[str, Any]) -> list[Problem]:
    """The rows of a sweep, by problem; of layers and scans that were measured otherwise, those that
    a sweep may have. A row without a domain is of both.
    """
    found: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    held_out = {}
    for measured in content["rows"]:
        row = _scan(measured) if measured["bench"] == SCAN else measured
        if row["bench"] not in ("crossover", "layer"):
            continue
        if row.get("C", row["H"]) != row["H"] or row["pass"] not in PASSES:
            continue
        key = tuple(row[name] for name in ("cell", "pass", "dtype", "layout", "B", "T", "H"))
        held_out[key] = row.get("held_out", False)
        by_domain = found.setdefault(key, {})
        by_domain.setdefault(row.get("domain", ""), {})[row["strategy"]] = row["ms"]
    out = []
    for key, by_domain in found.items():
        both = by_domain.pop("", {})
        for domain, ms in (by_domain or {"log": {}}).items():
            cell, direction, dtype, layout, B, T, H = key
            sizes = layout, B, T, H, held_out[key]
            out.append(Problem(cell, direction, dtype, domain, *sizes, both | ms))
    return out


def core_problem(p: Problem) -> _core.Problem:
    """As the planner sees it."""
    if p.cell == SCAN:
        return _core.scan_problem(p.dtype, p.T, p.H, p.domain == "log")
    layer = layer_of(p.cell, p.H, p.dtype, p.domain, p.layout)
    return _core.layer_problem(layer, p.T, p.B, p.direction != "forward", p.dtype == TF32)


def units_of(content: dict[str, Any]) -> int:
    return content["units"] if content["device"] == "cuda" else content["threads"]


class Leaf(NamedTuple):
    """The problems in a box, `above < feature <= at_most`."""

    members: Array  # indices of problems
    bounds: dict[str, tuple[float, float]]


class Tree:
    def __init__(self, found: list[Problem], units: int) -> None:
        self.problems = found
        self.ways = list(dict.fromkeys(way for problem in found for way in problem.ms))
        features = [problem.features(units) for problem in found]
        self.values = {name: np.array([f[name] for f in features]) for name in profile.FEATURES}
        self.regrets = np.array([[p.regret(way) for way in self.ways] for p in found])
        excess = np.maximum(0, self.regrets - NOISE)
        self.losses = excess + (excess / ENOUGH) ** 2

    def grow(self, bounds: dict[str, tuple[float, float]], most: int) -> list[Leaf]:
        """So many at most, inside these bounds."""
        leaves = [Leaf(np.arange(len(self.problems)), bounds)]
        splits = {0: self._far_split(leaves[0])}
        while len(leaves) < most:
            at = max(splits, key=lambda index: splits[index][0])
            gain, name, threshold = splits[at]
            if gain < WORTH:
                break
            low, high = self._split(leaves[at], name, threshold)
            leaves[at] = low
            leaves.append(high)
            splits[at] = self._far_split(low)
            splits[len(leaves) - 1] = self._far_split(high)
        return leaves

    def _splits(self, leaf: Leaf) -> Iterator[tuple[str, Array, Array, Array, Array]]:
        """For each feature: its values in order, how many are below each split, and the losses of
        the two sides of each under one rule.
        """
        for name in profile.FEATURES:
            values = self.values[name][leaf.members]
            order = np.argsort(values, kind="stable")
            ordered = values[order]
            ends = np.flatnonzero(ordered[1:] > ordered[:-1]) + 1  # how many are below a split
            ends = ends[(ends >= FEWEST) & (ends <= len(ordered) - FEWEST)]
            if len(ends):
                losses = np.cumsum(self.losses[leaf.members][order], axis=0)
                below = losses[ends - 1]
                yield name, ordered, ends, below.min(axis=1), (losses[-1] - below).min(axis=1)

    def _loss(self, leaf: Leaf) -> float:
        return float(self.losses[leaf.members].sum(axis=0).min())

    def _split_once(self, leaf: Leaf) -> float:
        """The loss after the best split, which costs a rule, or after none."""
        after = (float((low + high).min()) + WORTH for *_, low, high in self._splits(leaf))
        return min(after, default=math.inf)

    def _far_split(self, leaf: Leaf) -> tuple[float, str, float]:
        """The split that gains most when each of its sides may be split once more.

        One split alone often gains nothing where two do: "short, and few rows".
        """
        here, best = self._loss(leaf), (0.0, "", 0.0)
        if here < WORTH:
            return best
        for name, ordered, ends, lows, highs in self._splits(leaf):
            for end, *losses in zip(ends, lows, highs, strict=True):
                threshold = between(name, ordered[end - 1], ordered[end])
                sides = self._split(leaf, name, threshold)
                after = sum(
                    min(loss, self._split_once(side)) if loss > WORTH else loss
                    for side, loss in zip(sides, losses, strict=True)
                )
                if here - after > best[0] + 1e-9:
                    best = (here - after, name, threshold)
        return best

    def _split(self, leaf: Leaf, name: str, threshold: float) -> tuple[Leaf, Leaf]:
        above, at_most = leaf.bounds.get(name, (profile.OPEN["above"], profile.OPEN["at_most"]))
        low = self.values[name][leaf.members] <= threshold
        return (
            Leaf(leaf.members[low], leaf.bounds | {name: (above, threshold)}),
            Leaf(leaf.members[~low], leaf.bounds | {name: (threshold, at_most)}),
        )

    def rule(self, leaf: Leaf) -> dict[str, Any]:
        """As a profile has it."""
        total = self.losses[leaf.members].sum(axis=0) + 1e-6 * self.regrets[leaf.members].sum(
            axis=0
        )
        ranked = [self.ways[index] for index in np.argsort(total, kind="stable")]
        strategy = strategy_of(ranked[0])
        others = (way for way in ranked if strategy_of(way) != strategy)
        second = next(others, ranked[0])  # a cell may have one strategy alone
        pairs = [self.problems[index].ms for index in leaf.members]
        margins = [ms[second] / ms[ranked[0]] for ms in pairs if second in ms and ranked[0] in ms]
        over_blocks = "parallel_scan, device", "parallel_scan, block"
        split = next((way for way in ranked if way in over_blocks), None)
        rule: dict[str, Any] = {"strategy": strategy, "runner_up": strategy_of(second)}
        rule["across_blocks"] = split == over_blocks[0]
        rule["margin"] = round(float(np.median(margins)), 2) if margins else 0
        for side, index in (("above", 0), ("at_most", 1)):
            open_bound = profile.OPEN[side]
            bounds = {n: leaf.bounds[n][index] for n in profile.FEATURES if n in leaf.bounds}
            bounds = {n: bound for n, bound in bounds.items() if bound != open_bound}
            if bounds:
                rule[side] = {n: int(v) if v == int(v) else v for n, v in bounds.items()}
        return rule | {"points": len(leaf.members)}


def between(name: str, low: float, high: float) -> float:
    """A short number that tells the two apart: at or above `low` and below `high`."""
    if name in ("gates", "bytes", "training", "log_domain"):
        return low
    middle = math.sqrt(max(low, 1e-3) * high)
    if name != "rows_per_unit":
        return math.floor(middle)
    for digits in range(2, 17):
        short = float(f"{middle:.{digits}g}")
        if low <= short < high:
            return short
    return low


def strategy_of(way: str) -> str:
    return way.partition(",")[0]


def fit(found: Iterable[Problem], units: int) -> list[dict[str, Any]]:
    """The rules for these problems, those of one strategy beside each other.

    Linear and dense cells have no strategy in common, and a planner passes over the rules of the
    others, so each kind has a tree of its own. So has the bare scan, whose rules come first and ask
    that nothing is projected: without them it runs by those of the linear cells. Diagonal cells do,
    too, but where those split time: there they come to rules of their own.
    """
    kinds: dict[str, list[Problem]] = {}
    for problem in found:
        if not problem.held_out:
            kind = SCAN if problem.cell == SCAN else cell_of(problem.cell).recurrence
            kinds.setdefault(kind, []).append(problem)
    order = {name: index for index, name in enumerate(_core.strategies())}
    rules = []
    most = min(MOST_RULES, _core.most_rules() // max(1, len(kinds)))
    for kind in sorted(kinds, key=(SCAN, "linear", "diagonal", "dense").index):
        tree = Tree(kinds[kind], units)
        bounds = {"gates": (profile.OPEN["above"], 0.0)} if kind == SCAN else {}
        grown = [tree.rule(leaf) for leaf in tree.grow(bounds, most)]
        rules += sorted(grown, key=lambda rule: (order[rule["strategy"]], rule["across_blocks"]))
    return rules
