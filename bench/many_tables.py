# SPDX-License-Identifier: Apache-2.0
"""The table of sequences over ranks, from what many.py wrote."""

from __future__ import annotations

from rows import Row, by, number, shape_of, source
from scanrnn.tools import measure
from scanrnn.tools.regret import PASSES

TITLES = (
    "layer", "size", "pass", "GPUs", "groups", "ms", "efficiency", "in a row, ms",
    "efficiency", "GiB on a GPU", "of one GPU's", "a slot's messages, us", "error",
)  # fmt: skip


def many_ranks(content: Row) -> str:
    """A line for each number of GPUs, one problem after the other; a column that some line has."""
    lines = []
    for group in by(content["rows"], lambda r: (r["cell"], shape_of(r), r["pass"])).values():
        for row in group:
            line = [row["cell"], f"{shape_of(row)}, {row['dtype']}", PASSES[row["pass"]]]
            lines.append([*line, str(row["ranks"]), *_values(row)])
    there = [index for index, column in enumerate(zip(*lines, strict=True)) if any(column)]
    lines = [[line[index] for index in there] for line in lines]
    return source(content) + measure.markdown([TITLES[index] for index in there], lines)


def _values(row: Row) -> list[str]:
    peak = max(row.get("peak_bytes", [0])) / 2**30
    found = (
        row["way"] if row.get("way") in ("tails", "rows") else str(row.get("groups", "")),
        number(row["ms"]) if "ms" in row else row["failed"].replace("|", "/"),
        f"{row['efficiency']:.2f}" if "efficiency" in row else "",
        number(row["in_a_row_ms"]) if "in_a_row_ms" in row else "",
        f"{row['in_a_row_efficiency']:.2f}" if "in_a_row_efficiency" in row else "",
        number(peak) if peak else "",
        f"{row['memory']:.2f}" if "memory" in row else "",
        number(row["exchange_us"]) if "exchange_us" in row else "",
        f"{row['max_error']:.1e}" if row.get("max_error") else "",
    )
    return list(found)
