# SPDX-License-Identifier: Apache-2.0
"""`tune`: measures this machine and writes the thresholds that fit it best, as a profile.

The fit asks the planner itself what it would pick, so that its rule is written in one place only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from . import _core, crossover, measure, profile
from .crossover import Measured

NEVER = 2**31  # more steps than any sequence has
NOISE = 0.02  # a difference that timing cannot tell

Thresholds = tuple[int, int, int, int]  # in the order of profile.THRESHOLDS


def candidates(results: list[Measured], units: int) -> Iterator[Thresholds]:
    """From the simplest choice (always fused-sequential) on: of equals the first is taken."""
    found = [result.point for result in results]
    blocks = 0  # is for CUDA alone
    tokens = [0, *sorted({p.B * p.T for p in found})]
    steps = sorted({p.T for p in found}, reverse=True)
    rows = sorted({-(-p.B * p.H // units) for p in found})
    for split in [(NEVER, 0), *itertools.product(steps, rows)]:
        yield from ((direct, *split, blocks) for direct in tokens)


class Fit:
    """Measured points of one mode, and how well thresholds do on them."""

    def __init__(self, results: list[Measured], device: _core.Device) -> None:
        self.results, self.device = results, device
        self.layers = {
            (p.cell, p.H): crossover.layer_of(p, str(device))._layer
            for p in (found.point for found in results)
        }

    def picks(self, thresholds: Thresholds) -> list[Measured]:
        """The same measurements with what the planner picks under these thresholds."""
        before = _core.profile(self.device)
        _core.set_profile(self.device, _core.Profile("candidate", "", thresholds, thresholds))
        try:
            return [found._replace(pick=self._pick(found.point)) for found in self.results]
        finally:
            _core.set_profile(self.device, before)

    def _pick(self, p: crossover.Point) -> str:
        layer = self.layers[p.cell, p.H]
        return layer.plan(self.device, p.T, p.B, p.direction != "forward", None).strategy

    def cost(self, thresholds: Thresholds) -> float:
        """Total regret; what is within the noise counts nothing."""
        regrets = (found.regret(found.pick) for found in self.picks(thresholds))
        return sum(max(0.0, regret - NOISE) for regret in regrets)

    def best(self) -> Thresholds:
        return min(candidates(self.results, self.device.units), key=self.cost)


def run(grid: str, names: list[str], device: str, out: Path | None) -> None:
    where = _core.Device(device)
    head = measure.provenance(where)
    results = crossover.sweep(crossover.points(grid, names), device, 0.05)
    print(f"now:   {crossover.summary(results)} [profile {_core.profile(where).name}]")
    thresholds, after = [], []
    for direction in crossover.PASSES:
        fit = Fit([found for found in results if found.point.direction == direction], where)
        thresholds.append(fit.best())
        after += fit.picks(thresholds[-1])
    path = out or profile.user_file()
    fitted = _core.Profile(out.stem if out else "tuned", "measured", *thresholds)
    _core.set_profile(where, fitted)
    print(f"tuned: {crossover.summary(after)}")
    content = profile.as_json(fitted)
    for mode in profile.MODES:
        print(f"  {mode}: " + ", ".join(f"{key} {value}" for key, value in content[mode].items()))
    measure.save(path, content | head)
