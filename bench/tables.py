# SPDX-License-Identifier: Apache-2.0
"""The tables of the documentation, from the JSON in bench/results; figures.py writes them.

A table stands between `<!-- NAME -->` and `<!-- end -->`, and is written anew each time.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from asked import (
    CUDNN_RATIO,
    FLOOR_RATIO,
    LAYERS_ASKED,
    SCANS_ASKED,
    explained,
    has_less,
    is_slow,
    layer_reasons,
    marked,
    why_less,
)
from cpu_tables import cpu_layers, cpu_ragged, cpu_scans, cpu_stacks, cpu_steps
from how_fast import how_fast
from losses import OTHER_WAY, WORTH, compared, list_of
from many_tables import many_ranks
from planned import planned
from rows import OURS, Row, by, dtype_of, find, measured, number, shape_of, source
from scanrnn.tools import measure
from scanrnn.tools.regret import PASSES
from torch_tables import calls, language_models, memory, replaced


def pick_and_best(rows: list[Row]) -> tuple[Row | None, Row | None]:
    """What a caller gets, and another way where it is faster. Files from before picks were noted
    have kernels alone."""
    pick = find(rows, picked=True)
    best = min((r for r in rows if r is not pick), key=lambda r: r["ms"], default=None)
    if pick is not None and best is not None and best["ms"] > WORTH * pick["ms"]:
        best = None
    return pick, best


# ---- a GPU


def gpu_layers(content: Row) -> str:
    """Linear cells: what the planner picks, in bfloat16 and [T,B,C]."""
    wanted = {"bench": "layer", "layout": "TBH", "dtype": "bfloat16"}
    rows = measured(content["rows"], **wanted)
    lines: list[list[str]] = []
    below: list[Row] = []
    for (cell, size), group in by(rows, lambda r: (r["cell"], shape_of(r))).items():
        line = [cell, size]
        for direction in FLOOR_RATIO:
            pick, best = pick_and_best(measured(group, **{"pass": direction}))
            less = bool(pick and is_slow(pick))
            below += [pick] if pick and less else []
            line += (
                [number(pick["ms"]), marked(f"{pick['floor_ratio']:.2f}", less)]
                if pick
                else ["not measured", ""]
            )
            line.append(f"{number(best['ms'])}, {best['strategy']}" if best else "")
        lines.append(line)
    titles = ["layer", "size", "forward, ms", "of the floor", "a faster way"]
    titles += ["forward + backward, ms", "of the floor", "a faster way"]
    why = explained(LAYERS_ASKED, layer_reasons(below, rows))
    return source(content) + measure.markdown(titles, lines) + why


def gpu_steps(content: Row) -> str:
    lines = []
    for row in measured(content["rows"], bench="step"):
        size = f"B{row['B']} H{row['H']}, {row['dtype']}"
        less = row["B"] == 1 and row["ms"] > row["gemm_ms"]
        time = marked(f"{1e3 * row['ms']:.1f}", less)
        lines.append([row["cell"], size, row["strategy"], time, f"{1e3 * row['gemm_ms']:.1f}"])
    titles = ["one step", "size", "strategy", "us", "its products alone, us"]
    return source(content) + measure.markdown(titles, lines)


def gpu_stack_steps(content: Row) -> str:
    """A step of four layers, with the state in place of the old one or apart from it."""
    rows = measured(content["rows"], bench="stack_step")
    lines = []
    for (cell, size), every in by(
        rows, lambda r: (r["cell"], f"B{r['B']} H{r['H']}, {r['dtype']}")
    ).items():
        times = {(row["in_place"], row["way"]): f"{1e3 * row['ms']:.1f}" for row in every}
        ways = [(place, way) for place in (True, False) for way in ("one launch", "one by one")]
        lines.append([cell, size, *(times.get(way, "") for way in ways)])
    titles = ["a step of four layers", "size", "in place, one launch, us", "one by one"]
    titles += ["apart, one launch, us", "one by one"]
    return source(content) + measure.markdown(titles, lines)


def call_of_scan(row: Row) -> str:
    call = {"linear": "scan", "log": "scan_log"}[row["domain"]]
    return call + (" and its backward" if row["pass"] == "forward_backward" else "")


def gpu_scans(content: Row) -> str:
    """The bare recurrence, rows adjacent (TBH) or steps (BHT): share of the bandwidth of a copy."""
    rows = measured(content["rows"], bench="scan")
    lines: list[list[str]] = []
    below: dict[str, str] = {}
    for (size, layout, dtype, call), every in by(
        rows, lambda r: (shape_of(r), r["layout"], r["dtype"], call_of_scan(r))
    ).items():
        group, peers = measured(every, impl=OURS), [r for r in every if r["impl"] != OURS]
        pick, best = pick_and_best(group)
        less = bool(pick and has_less(pick))
        below |= [why_less(pick, group)] if pick and less else []
        shown = marked(f"{pick['copy_share']:.0%}", less) if pick else "not measured"
        line = [size, layout, dtype, call, pick["strategy"] if pick else "", shown]
        line.append(f"{best['copy_share']:.0%}, {best['strategy']}" if best else "")
        lines.append([*line, f"{peers[0]['copy_share']:.0%}" if peers else ""])
    titles = ["size", "layout", "dtype", "call", "the pick", "share of a copy", "a faster way"]
    if any(line[-1] for line in lines):
        titles.append("cub::DeviceScan")
    lines = [line[: len(titles)] for line in lines]
    return source(content) + measure.markdown(titles, lines) + explained(SCANS_ASKED, below)


def where_we_lose(content: Row, *others: Row) -> str:
    """To peers; and the pick to another way, in whichever file."""
    rows = content["rows"]
    ways = [way for other in others for way in as_ways(other["rows"])]
    return f"{source(content)}Among {compared(rows)} problems:\n\n{list_of(rows + ways)}"


def as_ways(rows: list[Row]) -> list[Row]:
    """Rows of our own benches by the names that the peers' file has for them: picks, and ways that
    are enough faster. A bench of its own keeps them apart from runs at another clock."""
    found = []
    for row in measured(rows):
        if "picked" in row:
            impl = OURS if row["picked"] else OTHER_WAY
            tf32 = {"products": "tf32"} if row.get("math") == "tf32" else {}
            found.append(row | {"impl": impl, "bench": f"own {row['bench']}"} | tf32)
    return found


def gpu_cudnn(content: Row) -> str:
    """LSTM and GRU beside cuDNN's fastest algorithm and torch.nn as it comes."""
    return source(content) + against_cudnn([r for r in content["rows"] if r["bench"] == "layer"])


def gpu_part(content: Row, bench: str) -> str:
    """The same beside cuDNN, of another part of the sweep."""
    return source(content) + against_cudnn(measured(content["rows"], bench=bench))


def against_cudnn(rows: list[Row]) -> str:
    lines, ratios = [], []
    dense = [row for row in rows if row.get("cell") in ("LSTM", "GRU") and "domain" not in row]
    for (cell, size, dtype), group in by(
        dense, lambda r: (r["cell"], shape_of(r), dtype_of(r))
    ).items():
        line = [cell, size, dtype]
        for direction in PASSES:
            here = measured(group, **{"pass": direction})
            best = min(
                (r for r in here if "algorithm" in r),
                key=lambda r: r["ms"],
                default=None,
            )
            eager = find(here, impl="torch.nn, eager")
            own = find(here, impl=OURS)
            ratios += [best["ms"] / own["ms"]] if own and best else []
            line.append(pick_beside_best(here))
            line.append(f"{number(best['ms'])}, {best['algorithm']}" if best else "")
            line.append(number(eager["ms"]) if eager else "")
        lines.append(line)
    titles = ["layer", "size", "dtype"]
    for direction in ("forward", "forward + backward"):
        titles += [f"{direction}, ms", "cuDNN at its best", "torch.nn, eager"]
    used = [i for i in range(len(titles)) if i < 3 or any(line[i] for line in lines)]
    table = measure.markdown([titles[i] for i in used], [[line[i] for i in used] for line in lines])
    return table + in_the_median(ratios)


def in_the_median(ratios: list[float]) -> str:
    """What is asked for of all rows at once: a median, and that none is below a ratio."""
    if not ratios:
        return ""
    less, lost = (sum(ratio < bound for ratio in ratios) for bound in (CUDNN_RATIO, 1))
    return (
        f"\n\nIn the median of {len(ratios)} times cuDNN at its best takes "
        f"{statistics.median(ratios):.2f} times ours; {less} are below {CUDNN_RATIO}, and {lost} "
        "below 1."
    )


def pick_beside_best(rows: list[Row]) -> str:
    """Our time of a problem, and that of another way of ours where it is faster."""
    own = find(rows, impl=OURS)
    if own is None:
        return ""
    other = find(rows, impl=OTHER_WAY, layout=own["layout"])
    faster = other is not None and other["ms"] < WORTH * own["ms"]
    return number(own["ms"]) + (f" (best {number(other['ms'])})" if other and faster else "")


def gpu_stacks(content: Row) -> str:
    """Shares of one layer's time as picked, how, and one layer call after the other."""
    lines = []
    for size, group in by(content["rows"], lambda r: (r["cell"], r["B"], r["T"], r["H"])).items():
        for direction in PASSES:
            found = {(r["stack"], r["way"]): r for r in group if r["pass"] == direction}
            line = [size[0], "B{} T{} H{}".format(*size[1:]), PASSES[direction]]
            line.append(number(found["one layer", "picked"]["ms"]))
            for stack in ("both directions", "4 layers"):
                ways = [row for (s, way), row in found.items() if s == stack and way != "picked"]
                pick = found[stack, "picked"]
                best = min(ways, key=lambda row: row["share"])
                text = f"{pick['share']:.2f}, {pick['plan']}"
                if best["share"] < 0.97 * pick["share"]:
                    text += f" (best: {best['share']:.2f}, {best['plan']})"
                line += [text, f"{found[stack, 'one by one']['share']:.2f}"]
            lines.append(line)
    titles = ["cell", "size", "pass", "one layer, ms", "both directions", "one by one"]
    return source(content) + measure.markdown([*titles, "four layers", "one by one"], lines)


def gpu_options(content: Row) -> str:
    """The first layer of a size by its time, the others as so many times that; and milliseconds of
    formulas in PyTorch, where there are such."""
    lines = []
    groups = by(measured(content["rows"], bench="options"), lambda r: (r["B"], r["T"], r["H"]))
    for size, group in groups.items():
        for way, rows in by(group, lambda r: r["way"]).items():
            found = {row["pass"]: row for row in measured(rows, impl=OURS)}
            formulas = {row["pass"]: row["ms"] for row in rows if row["impl"] != OURS}
            unit, key = ("ms", "ms") if way in ("LSTM", "GRU", "MinGRU", "SRU") else ("x", "times")
            line = ["B{} T{} H{}".format(*size), way]
            line += [f"{found[one][key]:.2f} {unit}" if one in found else "" for one in PASSES]
            lines.append(
                line + [number(formulas[one]) if one in formulas else "" for one in PASSES]
            )
    titles = ["size", "layer", "forward", "with backward"]
    if any(line[-1] or line[-2] for line in lines):
        titles += ["by torch.compile, ms", "with backward, ms"]
    lines = [line[: len(titles)] for line in lines]
    return source(content) + measure.markdown(titles, lines)


def gpu_ragged(content: Row) -> str:
    """A batch of sequences as shares of the padded time, episodes beside TorchRL, packed scans."""
    lines = []
    rows = measured(content["rows"], bench="ragged")
    for (batch, cell, direction), group in by(
        rows, lambda r: (r["B"], r["cell"], r["pass"])
    ).items():
        ways = {row["way"]: row for row in group}
        if "padded" not in ways:  # what failed has no time, and the others no share
            continue
        found = (ways.get(way) for way in RAGGED_WAYS)
        shares = (f"{row['share']:.2f}" if row else "" for row in found)
        line = [f"{cell}, B{batch}", PASSES[direction], f"{ways['padded']['ms']:.2f}"]
        lines.append([*line, *shares])
    titles = ["layer", "pass", "padded, ms", "with resets", "with lengths", "packed", "torch.nn's"]
    text = source(content) + measure.markdown(titles, lines)

    lines = []
    rows = measured(content["rows"], bench="episodes")
    for (size, cell, dtype, direction), group in by(
        rows, lambda r: (shape_of(r), r["cell"], r["dtype"], r["pass"])
    ).items():
        ms = {row["impl"]: row["ms"] for row in group}
        theirs = next((value for impl, value in ms.items() if impl != OURS), None)
        ratio = f"{theirs / ms[OURS]:.1f} x" if theirs and OURS in ms else ""
        times = [number(ms[OURS]), number(theirs) if theirs else ""]
        lines.append([cell, size, dtype, PASSES[direction], *times, ratio])
    titles = ["resets at 3 %", "size", "products", "pass", "ms", "TorchRL, Triton, ms", ""]
    if lines:
        text += "\n\n" + measure.markdown(titles, lines)

    lines = []
    rows = measured(content["rows"], bench="packed scan")
    for mean_length, group in by(rows, lambda r: r["mean_length"]).items():
        gbps = {row["dtype"]: f"{row['gbps']}" for row in group}
        length = "one sequence" if mean_length is None else f"mean length {mean_length}"
        lines.append([length, *(gbps.get(dtype, "") for dtype in ("float32", "bfloat16"))])
    titles = ["scan of 2^26 elements, packed", "float32, GB/s", "bfloat16, GB/s"]
    return text + "\n\n" + measure.markdown(titles, lines)


RAGGED_WAYS = ("padded, resets", "lengths", "cu_seqlens", "PackedSequence")


# Each with the files that it is made from.
TABLES: dict[str, tuple[str, Callable[..., str]]] = {
    "how fast": ("h200-layer h200-peers cpu-layer", how_fast),
    "where we lose": ("h200-peers h200-layer h200-scan", where_we_lose),
    "gpu layers": ("h200-layer", gpu_layers),
    "gpu steps": ("h200-layer", gpu_steps),
    "gpu scans": ("h200-scan", gpu_scans),
    "gpu dense steps": ("h200-dense", gpu_steps),
    "gpu stack steps": ("h200-dense", gpu_stack_steps),
    "gpu cudnn": ("h200-peers", gpu_cudnn),
    "gpu deepbench": ("h200-peers", partial(gpu_part, bench="deepbench")),
    "gpu uneven": ("h200-peers", partial(gpu_part, bench="uneven")),
    "cpu layers": ("cpu-layer", cpu_layers),
    "cpu steps": ("cpu-layer", cpu_steps),
    "cpu scans": ("cpu-scan", cpu_scans),
    "cpu ragged": ("cpu-ragged", cpu_ragged),
    "cpu stacks": ("cpu-stacks", cpu_stacks),
    "gpu stacks": ("h200-stacks", gpu_stacks),
    "gpu options": ("h200-options", gpu_options),
    "gpu ragged": ("h200-ragged", gpu_ragged),
    "gpu calls": ("h200-calls", calls),
    "cpu calls": ("cpu-calls", calls),
    "cpu memory": ("cpu-memory", memory),
    "gpu memory": ("h200-memory", memory),
    "gpu replaced": ("h200-replaced", replaced),
    "language models": ("h200-language-model", language_models),
    "many ranks": ("h100x4-many", many_ranks),
}
PROFILES = Path(__file__).resolve().parents[1] / "dispatch" / "profiles"
PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/frameworks.md",
    "docs/torch.md",
    "docs/many_gpus.md",
)


def loaded(file: Path) -> Row:
    """A result file; of a GPU's the picks as they are now."""
    content = measure.load(file)
    if any("picked" in row for row in content["rows"]) and "gpu" in content:
        return planned(content, PROFILES / "sm_90.json")
    return content


def fill(page: Path, results: Path) -> None:
    """Writes the tables that the page asks for; one whose files are not all there stays."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        files, make = TABLES[name]
        paths = [results / f"{file}.json" for file in files.split()]
        if not all(path.exists() for path in paths):
            print(f"{page.name}: no file for the table '{name}', which stays as it is")
            return found[0]
        return f"<!-- {name} -->\n{make(*map(loaded, paths))}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    pattern = r"<!-- ([a-z ]+) -->\n.*?<!-- end -->"
    page.write_text(re.sub(pattern, table, text, flags=re.DOTALL), encoding="utf-8")
