# SPDX-License-Identifier: Apache-2.0
"""Writes a device's profile from what layer_cuda measured: the thresholds of least regret.

python bench/fit_cuda_profile.py bench/results/h200-layer.json sm_90 132 OUT.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

SEQUENTIAL, BLOCK, DEVICE = "fused_sequential", "parallel_scan, block", "parallel_scan, device"


def points(rows: list[dict[str, Any]], units: int, training: bool) -> list[dict[str, Any]]:
    """One entry for each problem: its rows per unit and each kernel's time."""
    wanted = "forward_backward" if training else "forward"
    found: dict[tuple, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if row["bench"] != "layer" or row["pass"] != wanted:
            continue
        key = tuple(row[k] for k in ("cell", "B", "T", "H", "dtype", "layout"))
        found[key]["rows"] = row["B"] * row["H"] / units
        found[key][row["strategy"]] = row["ms"]
    return list(found.values())


def between(values: set[float]) -> list[int]:
    """Thresholds that tell neighbouring values apart, and those beyond the ends."""
    ordered = sorted(values)
    middles = [math.sqrt(a * b) for a, b in itertools.pairwise(ordered)]
    return [0, *(round(m) for m in middles), round(2 * ordered[-1])]


def regret(problems: list[dict[str, Any]], blocks_max: int, parallel_max: int) -> float:
    """The sum over problems of log(time picked / best time)."""
    total = 0.0
    for p in problems:
        picked = SEQUENTIAL if p["rows"] > parallel_max else BLOCK
        if p["rows"] <= min(blocks_max, parallel_max):
            picked = DEVICE
        times = [p[k] for k in (SEQUENTIAL, BLOCK, DEVICE) if k in p]
        total += math.log(p.get(picked, 10 * max(times)) / min(times))
    return total


def fit(problems: list[dict[str, Any]]) -> tuple[int, int, float]:
    choices = between({p["rows"] for p in problems})
    best = min(itertools.product(choices, choices), key=lambda c: (regret(problems, *c), *c))
    return *best, math.exp(regret(problems, *best) / len(problems)) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="JSON of layer_cuda")
    parser.add_argument("name", help="architecture, as in sm_90")
    parser.add_argument("units", type=int, help="multiprocessors of the device")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    measured = json.loads(args.results.read_text())
    generic = json.loads((args.out.parent / "cuda-generic.json").read_text())
    profile: dict[str, Any] = {
        "name": args.name,
        "device": measured["gpu"],
        "commit": measured["commit"],
        "command": f"{measured['command']}; bench/fit_cuda_profile.py {args.results}",
    }
    for mode in ("inference", "training"):
        problems = points(measured["rows"], args.units, mode == "training")
        blocks_max, parallel_max, mean = fit(problems)
        print(f"{mode}: mean regret {100 * mean:.1f} % over {len(problems)} problems")
        profile[mode] = generic[mode] | {
            "parallel_max_rows_per_unit": parallel_max,
            "blocks_max_rows_per_unit": blocks_max,
        }
    args.out.write_text(json.dumps(profile, indent=2) + "\n")


if __name__ == "__main__":
    main()
