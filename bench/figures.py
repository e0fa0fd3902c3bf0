# SPDX-License-Identifier: Apache-2.0
"""Every figure and table of the documentation that comes from bench/results, by one command.

    python bench/figures.py

It reads NAME-crossover.json and NAME-peers.json and writes docs/figures/*, beside the JSON
NAME-regret.md and NAME-peers.md, and the tables of other pages of docs. Figures have no background,
so that they can be read on a light page and on a dark one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tables
from losses import compared, list_of, name_of, own_row, problem_of
from rows import OURS, Row, commits, dtype_of, measured, shape_of
from scanrnn import _core, profile
from scanrnn.tools import measure, optional, regret
from scanrnn.tools.fit import Problem, problems

ROOT = Path(__file__).resolve().parents[1]
RESULTS, FIGURES = ROOT / "bench" / "results", ROOT / "docs" / "figures"
COLOURS = ("#3b8ede", "#d9822b", "#3a9d5d", "#cf5c5c", "#9a6fc4", "#a0784f", "#c9a227", "#2aa7a7")
COLOURS += ("#d46aa8", "#7f868d", "#6c7bd0", "#8aa33a")
PASSES = regret.PASSES


class Colours:
    """One colour for each implementation in all figures; ours is the first."""

    def __init__(self, rows: list[Row]) -> None:
        impls = dict.fromkeys(row["impl"] for row in rows if row["impl"] != OURS)
        others = dict(zip(impls, itertools.cycle(COLOURS[1:]), strict=False))
        self.of = {OURS: COLOURS[0]} | others


# ---- the strategies


def crossover(content: Row, rules: _core.Profile, path: Path) -> None:
    """Time against T, a line for each way, and what is picked."""
    plt, pick = optional.plots(), regret.picker(content, rules)
    found = [p for p in problems(content) if p.cell == "MinGRU" and p.domain == "log"]
    dtype = "bfloat16" if content["device"] == "cuda" else "float32"
    found = [p for p in found if p.dtype == dtype and not p.held_out]
    by_rows: dict[tuple[int, int], list[Problem]] = {}
    for p in sorted(found, key=lambda p: (p.B * p.H, p.H, p.T)):
        by_rows.setdefault((p.B, p.H), []).append(p)
    wide = [(1, 256), (1, 1024), (16, 1024), (128, 1024)] if dtype != "float32" else []
    chosen = [key for key in wide or list(by_rows)[:: max(1, len(by_rows) // 3)] if key in by_rows]
    ways = [way for way in regret.MARKS if any(way in p.ms for p in found)]
    figure, panels = plt.subplots(
        2, len(chosen), figsize=(3.6 * len(chosen), 6.4), sharex="col", squeeze=False
    )
    for row, direction in zip(panels, PASSES, strict=True):
        for panel, (B, H) in zip(row, chosen, strict=True):
            here = [p for p in by_rows[B, H] if p.direction == direction]
            for index, way in enumerate(ways):
                line = [(p.T, p.ms[way]) for p in here if way in p.ms]
                panel.plot(*zip(*line, strict=True), color=COLOURS[index], label=way, lw=1.4)
            picked = [(p.T, p.ms[pick(p)]) for p in here if pick(p) in p.ms]
            panel.plot(
                *zip(*picked, strict=True), "o", ms=4.5, mfc="none", mec="#7f868d", label="the pick"
            )
            panel.set(xscale="log", yscale="log", title=f"B{B} H{H}, {PASSES[direction]}")
            panel.set_xscale("log", base=2)
            panel.minorticks_off()
            panel.grid(True)
    for panel in panels[-1]:
        panel.set_xlabel("steps T")
    for row in panels:
        row[0].set_ylabel("ms")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"MinGRU layer, {dtype}, {content['processor']}")
    optional.save_figure(figure, path)


# ---- peers


def bars(
    groups: dict[str, dict[str, float]], unit: str, title: str, colours: Colours, path: Path
) -> None:
    """A group of bars for each problem, one bar for each implementation, on a log scale."""
    if not groups:
        return
    plt = optional.plots()
    bar, gap, at, ticks = 0.8, 1.0, 0.0, []
    count = sum(len(group) for group in groups.values())
    figure, panel = plt.subplots(figsize=(9, 2 + 0.24 * count + 0.25 * len(groups)))
    seen: dict[str, Any] = {}
    for name, group in groups.items():
        ticks.append((at + (len(group) - 1) / 2, name))
        for impl in sorted(group, key=lambda impl: (impl != OURS, group[impl])):
            drawn = panel.barh(at, group[impl], bar, color=colours.of[impl])
            panel.text(group[impl], at, f" {group[impl]:.3g}", va="center", fontsize=7)
            seen.setdefault(impl, drawn)
            at += 1
        at += gap
    panel.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    panel.set(xscale="log", xlabel=unit, title=title)
    panel.minorticks_off()
    panel.margins(x=0.12, y=0.01)
    panel.invert_yaxis()
    panel.grid(True, axis="x")
    figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=3, fontsize=8)
    optional.save_figure(figure, path)


def grouped(
    rows: list[Row], name: Callable[[Row], str], value: str = "ms"
) -> dict[str, dict[str, float]]:
    """By problem, where somebody is beside us."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if value in row and (row["impl"] == OURS or row["bench"] != "scan" or "ms" in row):
            groups.setdefault(name(row), {})[row["impl"]] = row[value]
    return {key: group for key, group in groups.items() if len(group) > 1}


def label(row: Row) -> str:
    """With the layout where it is not ours, [T,B,.]: a peer may be there in two."""
    return row["impl"] if row["layout"] == "TBH" else f"{row['impl']} ({row['layout']})"


def peers(content: Row, figures: Path, stem: str) -> None:
    where = content["gpu"]
    rows = [row | {"impl": label(row)} for row in content["rows"]]
    colours = Colours(rows)

    def named(row: Row) -> str:
        if row["bench"] == "step":
            return row["cell"]
        # cuDNN's GRU stands beside minGRU, as what it is meant to replace.
        cell = "MinGRU" if "domain" in row else row["cell"]
        return "\n".join(
            [*([cell] if row["bench"] == "layer" else []), shape_of(row), dtype_of(row)]
        )

    def draw(name: str, title: str, some: list[Row], value: str = "ms", unit: str = "ms") -> None:
        path = figures / f"{stem}-{name}.svg"
        bars(grouped(some, named, value), unit, f"{title}, {where}", colours, path)

    for direction, title in PASSES.items():
        layers = measured(rows, bench="layer", **{"pass": direction})
        linear = [row for row in layers if "domain" in row]
        name = direction.replace("_", "-")
        draw(name, f"MinGRU layer, {title}", linear)
        dense = [row for row in layers if "domain" not in row]
        draw(f"dense-{name}", f"LSTM and GRU layers, {title}", dense)
        mib = [row | {"mib": row["peak_bytes"] / 2**20} for row in linear if "peak_bytes" in row]
        title = f"Memory beside inputs and parameters, MinGRU layer, {title}"
        draw(f"memory-{name}", title, mib, "mib", "MiB")
    draw("scan", "The bare scan, forward", measured(rows, bench="scan"))
    steps = [row | {"us": 1e3 * row["ms"]} for row in measured(rows, bench="step")]
    title = "One step of one sequence, C = H = 1024, bfloat16"
    draw("step", title, steps, "us", "microseconds")
    if grown := measured(rows, bench="growth"):
        growth(grown, where, colours, figures / f"{stem}-growth.svg")


def growth(rows: list[Row], where: str, colours: Colours, path: Path) -> None:
    """Time and memory against T, and the share of the floor that is reached."""
    plt = optional.plots()
    lines: dict[str, Callable[[Row], float | None]] = {
        "ms": lambda row: row["ms"],
        "MiB beside inputs and parameters": lambda row: row["peak_bytes"] / 2**20,
        "share of the floor, %": lambda row: (
            100 / row["floor_ratio"] if "floor_ratio" in row else None
        ),
    }
    figure, panels = plt.subplots(2, 3, figsize=(13, 7.2), sharex=True)
    seen: dict[str, Any] = {}
    for row_of_panels, (direction, title) in zip(panels, PASSES.items(), strict=True):
        for panel, (unit, value) in zip(row_of_panels, lines.items(), strict=True):
            for impl, colour in colours.of.items():
                here = [row for row in rows if (row["impl"], row["pass"]) == (impl, direction)]
                line = [(row["T"], value(row)) for row in here if value(row) is not None]
                if line:
                    width = 2.4 if impl == OURS else 1.4
                    drawn = panel.plot(*zip(*line, strict=True), "o-", ms=3, lw=width, color=colour)
                    seen.setdefault(impl, drawn[0])
            panel.set_xscale("log", base=2)
            panel.minorticks_off()
            panel.set(yscale="linear" if "%" in unit else "log", ylabel=unit, title=title)
            panel.grid(True)
    for panel in panels[-1]:
        panel.set_xlabel("steps T")
    figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=4)
    figure.suptitle(f"Growth with T: a layer of B16 H768, bfloat16, {where}")
    optional.save_figure(figure, path)


def table(content: Row) -> str:
    """Markdown: where a peer is faster than we are, and every row."""
    rows = content["rows"]
    keys = ("bench", "cell", "pass", "dtype", "size", "layout")
    named = [row | {"dtype": dtype_of(row), "size": shape_of(row)} for row in rows]
    titles = [*keys, "implementation", "ms", "ours is", "x floor", "x copy", "MiB", "error"]
    titles += ["error of gradients", "clock, MHz"]
    lines = []
    for row in named:
        own = own_row([r for r in rows if problem_of(r) == problem_of(row)], row["layout"])
        lines.append([*(str(row.get(key, "")) for key in keys), name_of(row), *values(row, own)])
    return (
        f"# Beside its peers: {content['gpu']}\n\n"
        f"PyTorch {content['torch']}, cuDNN {content['cudnn']}, driver {content['driver']}, commit "
        f"{commits(content)}, {content['date']}; copy {content['copy_gbps']} GB/s.\n"
        f"`{content['command']}`; this page by `python bench/figures.py`.\n\n"
        f"## Where we lose\n\nAmong {compared(rows)} problems:\n\n{list_of(rows)}"
        "\n\n## All rows\n\nMemory is what a call takes beside its inputs and parameters.\n\n"
        + measure.markdown(titles, lines)
        + "\n"
    )


def values(row: Row, own: Row | None) -> list[str]:
    if "ms" not in row:
        tried = "; ".join(f"{name}: {why}" for name, why in row.get("tried", {}).items())
        reason = f"{row['failed']} {tried}".strip().replace("|", "/")
        return [f"failed: {reason}", *[""] * 7]
    ratio = row["ms"] / own["ms"] if own and row["impl"] != OURS else None
    return [
        f"{row['ms']:.4g}",
        f"{ratio:.2f} x as fast" if ratio else "",
        str(row.get("floor_ratio", "")),
        str(row.get("copy_share", "")),
        f"{row['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in row else "",
        f"{row['max_error']:.1e}" if row.get("max_error") else "",
        f"{row['gradient_error']:.1e}" if "gradient_error" in row else "",
        " to ".join(map(str, row["sm_mhz"])) if "sm_mhz" in row else "",
    ]


def profile_of(content: Row) -> _core.Profile:
    """That of the sources, which may be newer than the one that is compiled in."""
    names = (content["architecture"], f"{content['device']}-generic")
    files = [ROOT / "dispatch" / "profiles" / f"{name}.json" for name in names]
    file = next(file for file in files if file.exists())
    return profile.parse(measure.load(file), str(file.relative_to(ROOT)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="folder for SVG files")
    args = parser.parse_args()
    for file in sorted(args.results.glob("*-crossover.json")):
        content = measure.load(file)
        rules = profile_of(content)
        stem = file.stem.removesuffix("-crossover")
        crossover(content, rules, args.figures / f"{stem}-crossover.svg")
        (args.results / f"{stem}-regret.md").write_text(regret.report(content, rules))
        for cell in dict.fromkeys(p.cell for p in problems(content)):
            path = args.figures / f"{stem}-regret-{cell.lower()}.png"
            regret.draw(content, rules, cell, path)
    for file in sorted(args.results.glob("*-peers.json")):
        content = measure.load(file)
        file.with_suffix(".md").write_text(table(content))
        peers(content, args.figures, file.stem.removesuffix("-peers"))
    for page in tables.PAGES:
        tables.fill(ROOT / page, args.results)


if __name__ == "__main__":
    main()
