# SPDX-License-Identifier: Apache-2.0
"""`bench crossover`: every strategy over a grid of (B, T, H), and what the dispatcher picks.

A strategy is timed only after its results agree with a float64 walk, one step at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scanrnn

from . import _core, measure, optional
from .arguments import Array
from .registry import cells

STRATEGIES = ("direct", "fused_sequential", "parallel_scan")
PASSES = ("forward", "forward_backward")
GRIDS = {
    "small": {"T": (1, 8, 64, 512, 4096), "B": (1, 8), "H": (64, 512)},
    "full": {
        "T": (1, 4, 16, 64, 256, 512, 1024, 4096, 16384),
        "B": (1, 4, 32),
        "H": (8, 32, 128, 512),
    },
}
MAX_GEMM = 1.5e9  # multiply-adds of one forward pass: beyond it nothing but the GEMM is seen


class Point(NamedTuple):
    cell: str
    direction: str  # one of PASSES
    B: int
    T: int
    H: int


class Measured(NamedTuple):
    point: Point
    pick: str
    times: dict[str, measure.Timing]
    errors: dict[str, float]

    @property
    def best(self) -> str:
        return min(self.times, key=lambda name: self.times[name].ms)

    def regret(self, pick: str) -> float:
        return self.times[pick].ms / self.times[self.best].ms - 1


def points(grid: str, names: Iterable[str], passes: Iterable[str] = PASSES) -> list[Point]:
    axes, gates = GRIDS[grid], {cell.name: cell.gates for cell in cells()}
    return [
        Point(cell, direction, B, T, H)
        for cell in names
        for direction in passes
        for H in axes["H"]
        for B in axes["B"]
        for T in axes["T"]
        if B * T * H * H * gates[cell] <= MAX_GEMM
    ]


def layer_of(point: Point, device: str, dtype: str = "float32") -> scanrnn.Layer:
    kind: type[scanrnn.Layer] = getattr(scanrnn, point.cell)
    return kind(point.H, point.H, dtype=dtype, device=device, seed=0)


def call_of(
    rnn: scanrnn.Layer, x: Array, dy: Array, direction: str, strategy: str
) -> Callable[[], list[Array]]:
    """The pass as a call that gives y, or y and all gradients."""
    if direction == "forward":
        return lambda: [rnn(x, strategy=strategy)[0]]

    def both() -> list[Array]:
        (y, _), pullback = rnn.vjp(x, strategy=strategy)
        dx, _, dparams = pullback(dy)
        return [y, dx, *dparams.values()]

    return both


def tolerances(point: Point) -> tuple[float, float]:
    """Of y, as a share of the largest: the scan's bound and the GEMM's; of gradients, relative RMS.

    That one is wide: g has a kink, and rounding puts a few of many pre-activations on its other
    side. Where there is none, the tests check gradients to the last digits.
    """
    return 3e-7 * (1 + math.log2(point.T)) + point.H * 2.0**-24, 1e-3


def measure_point(point: Point, device: str, seconds: float) -> Measured:
    random = np.random.default_rng(point.T * 7919 + point.B * 104729 + point.H)
    x, dy = (
        random.standard_normal((point.T, point.B, point.H)).astype(np.float32) for _ in range(2)
    )
    rnn, exact = layer_of(point, device), layer_of(point, device, "float64")
    exact.load_state_dict({k: v.astype(np.float64) for k, v in rnn.state_dict().items()})
    wide = call_of(
        exact, x.astype(np.float64), dy.astype(np.float64), point.direction, STRATEGIES[1]
    )
    wanted = wide()
    of_y, of_gradients = tolerances(point)
    calls, errors = {}, {}
    for strategy in STRATEGIES:
        call = call_of(rnn, x, dy, point.direction, strategy)
        y, *gradients = call()
        errors[strategy] = measure.max_error(y, wanted[0])
        if not errors[strategy] <= of_y:
            raise AssertionError(f"{point} {strategy}: y is off by {errors[strategy]} > {of_y}")
        for got, gradient in zip(gradients, wanted[1:], strict=True):
            error = measure.rms_error(got, gradient)
            if not error <= of_gradients:
                raise AssertionError(f"{point} {strategy}: a gradient is off by {error}")
        calls[strategy] = call
    plan = rnn.plan(point.T, point.B, training=point.direction != "forward")
    return Measured(point, plan.strategy, measure.timed(calls, seconds), errors)


def sweep(wanted: list[Point], device: str, seconds: float) -> list[Measured]:
    out = []
    with optional.progress(len(wanted), "crossover") as bar:
        for point in wanted:
            bar.set_postfix_str(" ".join(map(str, point)))
            out.append(measure_point(point, device, seconds))
            bar.update()
    return out


def rows(results: list[Measured]) -> list[dict[str, Any]]:
    return [
        {
            "bench": "crossover",
            "cell": point.cell,
            "impl": "scanrnn",
            "strategy": strategy,
            "picked": strategy == pick,
            "domain": "log",
            "pass": point.direction,
            "layout": "TBH",
            "B": point.B,
            "T": point.T,
            "C": point.H,
            "H": point.H,
            "dtype": "float32",
            **timing.row(),
            "max_error": float(f"{errors[strategy]:.3g}"),
        }
        for point, pick, times, errors in results
        for strategy, timing in times.items()
    ]


def summary(results: list[Measured]) -> str:
    regrets = np.array([found.regret(found.pick) for found in results])
    return (
        f"the dispatcher's pick is within 5 % of the best at {np.mean(regrets <= 0.05):.0%} of "
        f"{len(regrets)} points; worst {regrets.max():.0%}, mean {regrets.mean():.1%}"
    )


def show(results: list[Measured]) -> str:
    titles = ["cell", "pass", "B", "T", "H", *(f"{name} ms" for name in STRATEGIES)]
    lines = [
        [
            *map(str, found.point),
            *(f"{found.times[name].ms:.4f}" for name in STRATEGIES),
            found.pick,
            found.best,
            f"{found.regret(found.pick):.1%}",
        ]
        for found in results
    ]
    return measure.table([*titles, "pick", "best", "regret"], lines)


def draw(results: list[Measured], path: Path) -> None:
    """Which strategy is best where, and where the pick is another one."""
    plt = optional.plots()
    colours = dict(zip(STRATEGIES, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    figure, panels = plt.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
    for panel, direction in zip(panels, PASSES, strict=True):
        for found in results:
            if found.point.direction != direction:
                continue
            # Points that share T and B*H differ in H and cell: a small shift keeps them apart.
            shift = 1.06 ** (math.log2(found.point.H) - 7)
            at = (found.point.T * shift, found.point.B * found.point.H)
            panel.scatter(*at, color=colours[found.best], s=35, alpha=0.7, linewidths=0)
            if found.regret(found.pick) > 0.05:
                panel.scatter(*at, color=colours[found.pick], marker="x", s=70)
        panel.set(xscale="log", yscale="log", xlabel="steps T", title=direction.replace("_", " + "))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("rows B·H")
    marks = [plt.Line2D([], [], color=c, marker="o", linestyle="") for c in colours.values()]
    cross = plt.Line2D([], [], color="grey", marker="x", linestyle="")
    legend = [*(f"best: {name}" for name in STRATEGIES), "picked instead, > 5 % off"]
    figure.legend([*marks, cross], legend, loc="outside lower center", ncols=4)
    figure.suptitle(summary(results))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(grid: str, names: list[str], device: str, out: Path) -> None:
    where = _core.Device(device)
    head = measure.provenance(where)
    results = sweep(points(grid, names), device, 0.02 if grid == "small" else 0.1)
    print(show(results))
    print(f"\n{summary(results)} [profile {_core.profile(where).name}]")
    measure.save(out, head | {"rows": rows(results)})
    draw(results, out.with_suffix(".png"))
