# SPDX-License-Identifier: Apache-2.0
"""Where a peer, or a way that the planner does not pick, is faster than what a user gets."""

from __future__ import annotations

from typing import Any, NamedTuple

from rows import OURS, Row, by, dtype_of, shape_of

OTHER_WAY = "scanrnn, not picked"
WORTH = 0.97  # of the pick's time, from which on another way is worth showing
NO_PEERS = ("its matrix product alone",)
PASSES = {"forward": "forward", "forward_backward": "forward + backward", "step": "one step"}
KEYS = (
    "bench",
    "cell",
    "domain",
    "pass",
    "dtype",
    "products",
    "B",
    "T",
    "C",
    "H",
    "layers",
    "directions",
)


def problem_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key, "") for key in KEYS)


def name_of(row: Row) -> str:
    """An implementation with what it ran."""
    how = row.get("algorithm", row.get("strategy", ""))
    return row["impl"] + (f" ({how})" if how else "")


class Loss(NamedTuple):
    row: Row  # the faster one's
    ours: Row

    @property
    def ratio(self) -> float:
        return float(self.ours["ms"] / self.row["ms"])

    @property
    def layout(self) -> str:
        """Said where it is not ours, [T,B,.]."""
        layouts = dict.fromkeys(row["layout"] for row in (self.row, self.ours))
        return "" if list(layouts) == ["TBH"] else f", {' against '.join(layouts)}"

    @property
    def problem(self) -> str:
        domains = {"linear": "scan", "log": "scan_log"}
        what = self.row.get("cell") or domains[self.row["domain"]]
        return f"{what} {shape_of(self.row)}"


def own_row(group: list[Row], layout: str) -> Row | None:
    """Ours in this layout, else in the one that it is made for."""
    ours = {row["layout"]: row for row in group if row["impl"] == OURS and "ms" in row}
    return ours.get(layout) or ours.get("TBH") or next(iter(ours.values()), None)


def losses(rows: list[Row]) -> list[Loss]:
    """By how much, the worst first; of several that are faster the fastest."""
    found = []
    for group in by(rows, problem_of).values():
        worst: dict[bool, Loss] = {}
        for row in group:
            own = own_row(group, row["layout"])
            if own is None or "ms" not in row or row["impl"] in (OURS, *NO_PEERS):
                continue
            loss, kind = Loss(row, own), row["impl"] == OTHER_WAY
            if loss.ratio > (1 / WORTH if kind else 1) and (
                (kind not in worst) or loss.ratio > worst[kind].ratio
            ):
                worst[kind] = loss
        found += worst.values()
    return sorted(found, key=lambda loss: -loss.ratio)


def compared(rows: list[Row]) -> int:
    """Problems that somebody else has run, too."""
    groups = by((row for row in rows if "ms" in row), problem_of).values()
    others = (OURS, OTHER_WAY, *NO_PEERS)
    return sum(
        own_row(group, "TBH") is not None and any(row["impl"] not in others for row in group)
        for group in groups
    )


def list_of(rows: list[Row]) -> str:
    """Markdown: a line for each problem, with each pass and dtype in which it is lost."""
    lines = []
    for problem, group in by_problem(losses(rows)).items():
        lines.append(f"- {problem}")
        for loss in group:
            where = f"{dtype_of(loss.row)}, {PASSES[loss.row['pass']]}{loss.layout}"
            times = f"{loss.row['ms']:.3g} ms, ours {loss.ours['ms']:.3g}"
            lines.append(f"  - {where}: {loss.ratio:.2f} x as fast, {name_of(loss.row)}: {times}")
    return "\n".join(lines) or "- nowhere"


def by_problem(found: list[Loss]) -> dict[str, list[Loss]]:
    groups: dict[str, list[Loss]] = {}
    for loss in found:
        groups.setdefault(loss.problem, []).append(loss)
    return groups
