# SPDX-License-Identifier: Apache-2.0
"""The tables of the documentation, from the JSON in bench/results; figures.py writes them.

A table stands between `<!-- NAME -->` and `<!-- end -->`, and is written anew each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanrnn import measure

Row = dict[str, Any]
OURS = "scanrnn"


def shape_of(row: Row, layout: bool = False) -> str:
    size = f"B{row['B']} T{row['T']} H{row['H']}"
    return f"{size} {row['layout']}" if layout else size


def by(rows: list[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def measured(rows: list[Row], **wanted: Any) -> list[Row]:
    return [r for r in rows if "ms" in r and all(r.get(key) == v for key, v in wanted.items())]


def find(rows: list[Row], **wanted: Any) -> Row | None:
    return next(iter(measured(rows, **wanted)), None)


def number(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:.0f}"


def source(content: Row) -> str:
    where = content.get("gpu") or f"{content['processor']}, {content['architecture']}"
    return f"{where}, commit {content['commit'][:9]}, `{content['command']}`:\n\n"


# ---- a GPU


def gpu_layers(content: Row) -> str:
    """Linear cells: what the planner picks, in bfloat16 and [T,B,C]."""
    wanted = {"bench": "layer", "layout": "TBH", "dtype": "bfloat16", "picked": True}
    rows = measured(content["rows"], **wanted)
    lines = []
    for (cell, size), group in by(rows, lambda r: (r["cell"], shape_of(r))).items():
        line = [cell, size]
        for direction in ("forward", "forward_backward"):
            row = find(group, **{"pass": direction})
            line += [number(row["ms"]), f"{row['floor_ratio']:.2f}"] if row else ["", ""]
        lines.append(line)
    titles = ["layer", "size", "forward, ms", "of the floor"]
    titles += ["forward + backward, ms", "of the floor"]
    return source(content) + measure.markdown(titles, lines)


def gpu_steps(content: Row) -> str:
    lines = []
    for row in measured(content["rows"], bench="step"):
        size = f"B{row['B']} H{row['H']}, {row['dtype']}"
        times = (f"{1e3 * row[key]:.1f}" for key in ("ms", "gemm_ms"))
        lines.append([row["cell"], size, row["strategy"], *times])
    titles = ["one step", "size", "strategy", "us", "its products alone, us"]
    return source(content) + measure.markdown(titles, lines)


def gpu_scans(content: Row) -> str:
    """The bare recurrence: of its kernels the best, as a share of the bandwidth of a copy."""
    rows = measured(content["rows"], bench="scan", impl=OURS)
    columns = [(t, d) for t in ("float32", "bfloat16") for d in ("linear", "log")]
    lines = []
    for size, group in by(rows, lambda r: shape_of(r, layout=True)).items():
        line = [size]
        for dtype, domain in columns:
            here = measured(group, dtype=dtype, domain=domain)
            best = max(here, key=lambda r: r["copy_share"], default=None)
            line.append(f"{best['copy_share']:.0%}, {best['strategy']}" if best else "")
        lines.append(line)
    titles = ["size, layout", *(f"{dtype} {domain}" for dtype, domain in columns)]
    return source(content) + measure.markdown(titles, lines)


def gpu_dense(content: Row) -> str:
    """LSTM and GRU: what the planner picks; a star where backward goes step by step."""
    rows = measured(content["rows"], bench="layer", picked=True)
    columns = ("bfloat16", "float16", "float32", "tf32")
    titles = ["layer", "size", "bfloat16", "float16", "float32", "float32, TF32 allowed"]
    lines = []
    for (cell, size), group in by(rows, lambda r: (r["cell"], shape_of(r))).items():
        line = [cell, size]
        for math in columns:
            forward, both = (
                find(group, math=math, **{"pass": direction})
                for direction in ("forward", "forward_backward")
            )
            star = "*" if both and both["strategy"] != "persistent" else ""
            line.append(
                f"{number(forward['ms'])} / {number(both['ms'])}{star}" if forward and both else ""
            )
        lines.append(line)
    return source(content) + measure.markdown(titles, lines)


# ---- a CPU


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


# ---- docs/examples/language_model.py


def language_models(content: Row) -> str:
    lines = []
    for row in content["rows"]:
        library = "scanrnn.torch" if row["impl"] == OURS else "torch.nn"
        speed = f"{row['tokens_per_second'] / 1e6:.2f}"
        bits = (f"{row[key]:.2f}" for key in ("training_bits", "held_out_bits"))
        lines.append([f"{library}.{row['cell']}", str(row["H"]), speed, *bits])
    titles = ["recurrence", "H", "million tokens a second", "bits, training", "bits, held out"]
    return source(content) + measure.markdown(titles, lines)


TABLES: dict[str, tuple[str, Callable[[Row], str]]] = {
    "gpu layers": ("h200-layer", gpu_layers),
    "gpu steps": ("h200-layer", gpu_steps),
    "gpu scans": ("h200-scan", gpu_scans),
    "gpu dense": ("h200-dense", gpu_dense),
    "gpu dense steps": ("h200-dense", gpu_steps),
    "cpu layers": ("cpu-layer", cpu_layers),
    "cpu steps": ("cpu-layer", cpu_steps),
    "language models": ("h200-language-model", language_models),
}
PAGES = ("performance.md", "frameworks.md")


def fill(page: Path, results: Path) -> None:
    """Writes the tables that the page asks for."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        file, make = TABLES[name]
        return f"<!-- {name} -->\n{make(measure.load(results / f'{file}.json'))}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    pattern = r"<!-- ([a-z ]+) -->\n.*?<!-- end -->"
    page.write_text(re.sub(pattern, table, text, flags=re.DOTALL), encoding="utf-8")
