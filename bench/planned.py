# SPDX-License-Identifier: Apache-2.0
"""What the planner of today picks among the ways that a GPU's result file has times of.

A file says what was picked when it was measured. Profiles are fitted more often than everything is
measured anew, and a table is to say what a user gets.
"""

from __future__ import annotations

from typing import Any

from rows import Row
from scanrnn import profile
from scanrnn.tools import measure, regret
from scanrnn.tools.fit import Problem
from scanrnn.tools.sizes import SCAN, is_linear


def planned(content: Row, rules: Any) -> Row:
    """The file with the marks of its picked rows as they would be now, and without steps that would
    run another way. A dense cell's sequences stay as they were measured, and so do scans with time
    along lanes, which no profile decides, and complex ones, of which no sweep has any.
    """
    fitted = measure.load(rules)  # it says on what device
    pick = regret.picker(fitted, profile.parse(fitted, rules.name))
    ways: dict[tuple[Any, ...], set[str]] = {}
    by_lanes = set()
    for row in content["rows"]:
        ways.setdefault(key(row), set()).add(row.get("strategy", ""))
        if row.get("picked") and "lanes" in row.get("strategy", ""):
            by_lanes.add(key(row))
    rows = []
    for row in content["rows"]:
        fitted_one = "strategy" in row and not row["dtype"].startswith("complex")
        way = pick(problem(row)) if fitted_one else ""
        if row["bench"] == "step":
            rows += [row] if way == row.get("strategy", "") else []
        elif (
            not fitted_one
            or "picked" not in row
            or not is_linear(row.get("cell", SCAN))
            or key(row) in by_lanes
        ):
            rows.append(row)
        elif way in ways[key(row)]:
            rows.append(row | {"picked": row["strategy"] == way})
        else:
            rows.append(row)
    return content | {"rows": rows}


def problem(row: Row) -> Problem:
    bare = row["bench"] == SCAN
    B, H = (1, row["B"] * row["C"]) if bare else (row["B"], row["H"])
    is_step = row.get("pass", "step") == "step"  # a stack's does not say so
    direction = "forward" if is_step else row["pass"]
    at = row.get("domain", "log"), row.get("layout", "TBH"), B, row["T"], H
    return Problem(row.get("cell", SCAN), direction, row["dtype"], *at, False, {})


def key(row: Row) -> tuple[Any, ...]:
    """The problem without its times."""
    return problem(row)[:-1]
