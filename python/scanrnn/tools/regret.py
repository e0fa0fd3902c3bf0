# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher picks against the best way, over all problems of a sweep.

The planner itself is asked, with the units of the device that was measured; it need not be here.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from . import measure, optional
from .fit import Problem, core_problem, problems, units_of

CLOSE, FAR = 0.05, 0.2
MARKS = {
    "direct": "1",
    "fused_sequential": "=",
    "parallel_scan": "p",
    "parallel_scan, block": "b",
    "parallel_scan, device": "d",
    "step_loop": "s",
    "persistent": "o",
}
PASSES = {"forward": "forward", "forward_backward": "forward + backward"}


def picker(content: dict[str, Any], profile: _core.Profile) -> Callable[[Problem], str]:
    cuda = content["device"] == "cuda"
    limits = cuda, units_of(content), content.get("shared_bytes", 0)

    def pick(p: Problem) -> str:
        strategy, across_blocks, *_ = _core.pick(profile, *limits, core_problem(p))
        if cuda and strategy == "parallel_scan":
            return f"{strategy}, {'device' if across_blocks else 'block'}"
        return strategy

    return pick


def timed(found: list[Problem], pick: Callable[[Problem], str]) -> list[Problem]:
    """Those whose pick has a time: a file may have left out what other kernels run by now."""
    return [p for p in found if pick(p) in p.ms]


def summary(found: list[Problem], pick: Callable[[Problem], str]) -> str:
    """One line for each of the points on the grid and those held out."""
    lines = []
    for held_out, title in ((False, "on the grid"), (True, "held out")):
        points = [p for p in found if p.held_out == held_out]
        regrets = np.array([p.regret(pick(p)) for p in timed(points, pick)])
        if len(regrets):
            without = len(points) - len(regrets)
            lines.append(
                f"{title}: {len(regrets)} points, the pick within 5 % of the best at "
                f"{np.mean(regrets <= CLOSE):.1%}, within 20 % at {np.mean(regrets <= FAR):.1%}, "
                f"worst {regrets.max():.0%}, mean {regrets.mean():.1%}"
                + (f"; {without} whose pick has no time are left out" if without else "")
            )
    return "\n".join(lines)


def report(content: dict[str, Any], profile: _core.Profile) -> str:
    """Markdown: the summary, and a line for each cell, pass, dtype and kind of point."""
    found, pick = problems(content), picker(content, profile)
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for p in timed(found, pick):
        key = (p.cell, PASSES[p.direction], p.dtype, p.domain, "held out" if p.held_out else "grid")
        groups.setdefault(key, []).append(p)
    titles = ["cell", "pass", "dtype", "domain", "points", "number", "within 5 %", "within 20 %"]
    titles += ["mean", "worst", "the worst point"]
    lines = []
    for key, members in groups.items():
        regrets = np.array([p.regret(pick(p)) for p in members])
        at = members[int(np.argmax(regrets))]
        where = f"B{at.B} T{at.T} H{at.H}: {pick(at)} instead of {at.best}"
        numbers = (
            np.mean(regrets <= CLOSE),
            np.mean(regrets <= FAR),
            regrets.mean(),
            regrets.max(),
        )
        close, far, mean, worst = (f"{100 * number:.1f} %" for number in numbers)
        where = where if regrets.max() > 0 else ""
        lines.append([*key, str(len(members)), close, far, mean, worst, where])
    table = measure.markdown(titles, lines)
    source = f"{content['processor']}, commit {content['commit']}, `{content['command']}`"
    return (
        f"# What the dispatcher picks against the best way: {content['processor']}\n\n"
        f"Measured: {source}.\nProfile: {profile.name}, {profile.origin}. Regret is the time of "
        f"what is picked over the best\ntime, less one. Written by `python -m scanrnn bench "
        f"regret`.\n\n" + summary(found, pick).replace("\n", "\n\n") + f"\n\n{table}\n"
    )


def draw(content: dict[str, Any], profile: _core.Profile, cell: str, path: Path) -> None:
    """A heat map: the regret over T and B*H, and a letter for what is picked."""
    plt = optional.plots()
    pick = picker(content, profile)
    found = [p for p in timed(problems(content), pick) if p.cell == cell]
    domain = "log" if any(p.domain == "log" for p in found) else "linear"
    found = [p for p in found if p.domain == domain]
    dtypes = sorted({p.dtype for p in found}, reverse=True)
    passes = {key: title for key, title in PASSES.items() if any(p.direction == key for p in found)}
    size = 6 * len(passes), 1 + 4 * len(dtypes)
    figure, panels = plt.subplots(
        len(dtypes), len(passes), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    shades = plt.matplotlib.colors.LinearSegmentedColormap.from_list(
        "loss", ["#2f8f55", "#a08a1c", "#c23b3b"]
    )
    for row, dtype in zip(panels, dtypes, strict=True):
        for panel, (direction, title) in zip(row, passes.items(), strict=True):
            here = [p for p in found if (p.dtype, p.direction) == (dtype, direction)]
            x, y = (
                [math.log2(v) for v in vs]
                for vs in ([p.T for p in here], [p.B * p.H for p in here])
            )
            colours = [min(p.regret(pick(p)), FAR) * 100 for p in here]
            shown = panel.scatter(
                x, y, c=colours, cmap=shades, vmin=0, vmax=100 * FAR, s=70, marker="s"
            )
            for p, at_x, at_y in zip(here, x, y, strict=True):
                mark = MARKS.get(pick(p), "?")
                panel.text(at_x, at_y, mark, ha="center", va="center", fontsize=6, color="white")
            panel.set(title=f"{cell}, {title}, {dtype}", xlabel="steps T", ylabel="rows B·H")
            panel.xaxis.set_major_locator(plt.MultipleLocator(4))
            panel.yaxis.set_major_locator(plt.MultipleLocator(2))
            panel.xaxis.set_major_formatter(lambda v, _: f"$2^{{{v:.0f}}}$")
            panel.yaxis.set_major_formatter(lambda v, _: f"$2^{{{v:.0f}}}$")
            panel.label_outer()
    figure.colorbar(shown, ax=panels, label="time lost against the best way, %", fraction=0.03)
    known = {pick(p) for p in found}
    words = ", ".join(f"{mark} {way}" for way, mark in MARKS.items() if way in known)
    figure.suptitle(textwrap.fill(f"What is picked: {words}", 60 * len(passes)))
    optional.save_figure(figure, path)


def run(content: dict[str, Any], profile: _core.Profile, out: Path | None) -> None:
    text = report(content, profile)
    print(text)
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    for cell in dict.fromkeys(p.cell for p in problems(content)):
        draw(content, profile, cell, out.with_name(f"{out.stem}-{cell.lower()}.png"))
