# SPDX-License-Identifier: Apache-2.0
"""Rows of result files: which they are, and how a page writes their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
OURS = "scanrnn"


def by(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def shape_of(row: Row, layout: bool = False) -> str:
    input_size = f" C{row['C']}" if row.get("C", row["H"]) != row["H"] else ""
    size = f"B{row['B']} T{row['T']}{input_size} H{row['H']}"
    size += f", {row['layers']} layers" if row.get("layers", 1) > 1 else ""
    size += ", both directions" if row.get("directions", 1) > 1 else ""
    return f"{size} {row['layout']}" if layout else size


def dtype_of(row: Row) -> str:
    return f"{row['dtype']} ({row['products']})" if "products" in row else str(row["dtype"])


def measured(rows: list[Row], **wanted: Any) -> list[Row]:
    return [r for r in rows if "ms" in r and all(r.get(key) == v for key, v in wanted.items())]


def find(rows: list[Row], **wanted: Any) -> Row | None:
    return next(iter(measured(rows, **wanted)), None)


def number(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:.0f}"


def source(content: Row) -> str:
    where = content.get("gpu") or f"{content['processor']}, {content['architecture']}"
    first, *others = content["command"].split("; ")
    more = " and other parts" if others else ""
    return f"{where}, commit {commits(content)}, `{first}`{more}:\n\n"


def commits(content: Row) -> str:
    """The commit of a file's rows, and those of parts that were measured at others."""
    last = content["commit"]
    apart = by(content.get("commits", {}).items(), lambda item: item[1])
    others = (
        f"{commit[:9]} for {' and '.join(repr(part) for part, _ in parts)}"
        for commit, parts in apart.items()
        if commit != last
    )
    return "; ".join([last[:9], *others])
