# SPDX-License-Identifier: Apache-2.0
"""The tables of the documentation of what was measured on a CPU."""

from __future__ import annotations

from rows import OURS, Row, by, find, measured, number, shape_of, source
from scanrnn.tools import measure
from scanrnn.tools.regret import PASSES


def cpu_layers(content: Row) -> str:
    """Beside their products alone, and beside torch where it has the same cell."""
    rows = measured(content["rows"], bench="layer")
    lines = []
    for (cell, size), group in by(rows, lambda r: (r["cell"], shape_of(r))).items():
        line = [cell, size]
        for direction in ("forward", "forward_backward"):
            own = find(group, impl=OURS, **{"pass": direction})
            line += [f"{own['ms']:.1f}", f"{own['floor_ratio']:.2f}"] if own else ["", ""]
            both = measured(group, **{"pass": direction})
            torch = [r for r in both if r["impl"].startswith("torch")]
            line.append(f"{torch[0]['ms'] / own['ms']:.2f}" if own and torch else "")
        lines.append(line)
    titles = ["layer", "size", "forward, ms", "of its products", "torch's time over ours"]
    titles += ["forward + backward, ms", *titles[3:]]
    return source(content) + measure.markdown(titles, lines)


def cpu_steps(content: Row) -> str:
    rows = measured(content["rows"], bench="step")
    lines = []
    for cell, group in by(rows, lambda r: r["cell"]).items():
        impls = (
            next((f"{1e3 * r['ms']:.0f}" for r in group if r["impl"].startswith(name)), "")
            for name in (OURS, "GEMM", "numpy", "torch")
        )
        lines.append([cell, shape_of(group[0]), *impls])
    titles = ["one step", "size", "us", "its products alone, us", "plain NumPy, us", "torch, us"]
    return source(content) + measure.markdown(titles, lines)


def cpu_scans(content: Row) -> str:
    """Beside an addition of as many bytes."""
    lines = [
        [f"T{r['T']} N{r['N']}", r["impl"], r.get("strategy", ""), number(r["ms"]),
         number(r["gbps"]), f"{100 * r['share']:.0f} %"]
        for r in measured(content["rows"], bench="scan")
    ]  # fmt: skip
    titles = ["size", "what", "strategy", "ms", "GB/s", "of the addition"]
    return source(content) + measure.markdown(titles, lines)


def cpu_ragged(content: Row) -> str:
    """Shares of the padded batch's time."""
    lines = []
    for (cell, direction), group in by(content["rows"], lambda r: (r["cell"], r["pass"])).items():
        ways = {row["way"]: row for row in group}
        shares = (ways[way]["share"] for way in ("padded, resets", "lengths", "cu_seqlens"))
        padded = f"{ways['padded']['ms']:.1f}"
        lines.append([cell, PASSES[direction], padded, *(f"{share:.2f}" for share in shares)])
    titles = ["layer", "pass", "padded, ms", "with resets", "with lengths", "packed"]
    return source(content) + measure.markdown(titles, lines)


def cpu_stacks(content: Row) -> str:
    """Shares of one layer's time: forward, and with backward."""
    lines = []
    for (cell, hidden), group in by(content["rows"], lambda r: (r["cell"], r["H"])).items():
        found = {(row["stack"], row["pass"]): row for row in group}

        def both(stack: str, key: str, found: Row = found) -> str:
            return " / ".join(f"{found[stack, direction][key]:.2f}" for direction in PASSES)

        shares = (both(stack, "share") for stack in ("both directions", "four layers"))
        lines.append([cell, str(hidden), both("one layer", "ms"), *shares])
    titles = ["cell", "H", "one layer, ms", "both directions", "four layers"]
    return source(content) + measure.markdown(titles, lines)
