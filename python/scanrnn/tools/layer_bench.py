# SPDX-License-Identifier: Apache-2.0
"""`bench layer`: whole layers beside their GEMMs alone (the floor), plain NumPy, and torch's own
layer of that name where torch is installed and has one.

Each implementation is timed by itself: the waiting threads of one OpenBLAS or OpenMP team would
otherwise take the processor from the next. They take turns in a few rounds, and of each one's
medians the lowest counts, so that a slow spell of the machine does not meet one alone.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scanrnn

from .. import _core
from ..arguments import Array
from ..registry import cells
from . import baseline, crossover, measure, optional, sizes

SHAPES = ((8, 1024, 512), (1, 1024, 512), (16, 128, 256))  # B, T, C = H
STEP = (1, 1, 512)
PAUSE = 0.3  # seconds, until the threads of the last one sleep
ROUNDS = 3


class Point(NamedTuple):
    cell: str
    direction: str  # "forward", "forward_backward", "step"
    B: int
    T: int
    H: int


def by_us(rnn: scanrnn.Layer, x: Array, dy: Array, direction: str) -> Callable[[], list[Array]]:
    """The pass as a call that gives y, or y and all gradients."""
    if direction == "forward":
        return lambda: [rnn(x)[0]]
    if direction == "step":
        h: Any = np.zeros((1, *x.shape[1:]), np.float32)
        count = rnn._cell.states
        state = (h,) * count if count > 1 else h
        return lambda: [rnn.step(x[0], state)[0]]

    def both() -> list[Array]:
        (y, _), pullback = rnn.vjp(x)
        dx, _, dparams = pullback(dy)
        return [y, dx, *dparams.values()]

    return both


def gemms(params: dict[str, Array], x: Array, direction: str) -> Callable[[], Any]:
    """The matrix products of a pass and nothing else, by NumPy's BLAS: those of all steps at once.

    A dense cell's product with h is one more such product, as if h were known beforehand.
    """
    weight, flat = params["weight_ih_l0"], x.reshape(-1, x.shape[-1])
    recurrent = params.get("weight_hh_l0")
    if recurrent is not None and recurrent.ndim == 2:  # [W R] times (x, h), C being H
        weight = np.concatenate([weight, recurrent], axis=1)
        flat = np.concatenate([flat, flat], axis=1)
    pre, dx, dweight = flat @ weight.T, np.empty_like(flat), np.empty_like(weight)
    if direction != "forward_backward":
        return lambda: np.matmul(flat, weight.T, out=pre)

    def three() -> None:
        np.matmul(flat, weight.T, out=pre)
        np.matmul(pre, weight, out=dx)
        np.matmul(pre.T, flat, out=dweight)

    return three


def by_numpy(cell: str, params: dict[str, Array], x: Array, dy: Array, direction: str) -> Any:
    stack = baseline.Stack(cell, params)
    h_0 = np.zeros((1, *x.shape[1:]), np.float32)

    def call() -> list[Array]:
        (y, _), pullback = stack.vjp(x, h_0)
        if direction != "forward_backward":
            return [y]
        dx, _, dparams = pullback(dy)
        return [y, dx, *(dparams[name] for name in params)]

    return call


def by_torch(point: Point, params: dict[str, Array], x: Array, dy: Array) -> Any:
    """torch's layer of the same name and parameters, on as many threads as ours; None without."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if not hasattr(torch.nn, point.cell):
        return None
    torch.set_num_threads(_core.Device("cpu").units)
    rnn = getattr(torch.nn, point.cell)(point.H, point.H)
    rnn.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
    inputs, cotangent = torch.from_numpy(x), torch.from_numpy(dy)

    def forward() -> list[Array]:
        with torch.no_grad():
            return [rnn(inputs[:1] if point.direction == "step" else inputs)[0].numpy()]

    def both() -> list[Array]:
        leaf = inputs.detach().requires_grad_()
        y, _ = rnn(leaf)
        gradients = torch.autograd.grad(y, [leaf, *rnn.parameters()], cotangent)
        return [y.detach().numpy(), *(gradient.numpy() for gradient in gradients)]

    both_passes = point.direction == "forward_backward"
    return f"torch {torch.__version__}", both if both_passes else forward


def measure_one(point: Point, seconds: float) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    shape = (point.T, point.B, point.H)
    x, dy = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    rnn: scanrnn.Layer = sizes.made(scanrnn, point.cell, point.H, device="cpu", seed=0)
    params = rnn.state_dict()
    plan = rnn.plan(point.T, point.B, training=point.direction == "forward_backward")
    calls = {
        "scanrnn": by_us(rnn, x, dy, point.direction),
        f"numpy {np.__version__}": by_numpy(point.cell, params, x, dy, point.direction),
        "GEMM alone": gemms(params, x, point.direction),
    }
    peer = by_torch(point, params, x, dy)
    if peer:
        calls[peer[0]] = peer[1]
    wanted = calls[f"numpy {np.__version__}"]()
    errors = {}
    for name in ["scanrnn", *([peer[0]] if peer else [])]:
        errors[name] = measure.max_error(calls[name]()[0].reshape(shape), wanted[0])
        if not errors[name] <= crossover.tolerances("float32", point.T, point.H)[0]:
            raise AssertionError(f"{point}: y of {name} differs from NumPy's by {errors[name]}")
    times: dict[str, measure.Timing] = {}
    for name in list(calls) * ROUNDS:
        time.sleep(PAUSE)
        timing = measure.timed({name: calls[name]}, seconds / ROUNDS, least=3)[name]
        times[name] = min(timing, times.get(name, timing))
    floor = times["GEMM alone"].ms
    domain = {"domain": "log"} if rnn._cell.recurrence == "linear" else {}
    common = {**domain, "pass": point.direction, "layout": "TBH", "B": point.B}
    common |= {"T": point.T, "C": point.H, "H": point.H, "dtype": "float32"}
    return [
        {
            "bench": "step" if point.direction == "step" else "layer",
            "cell": point.cell,
            "impl": name,
            **({"strategy": plan.strategy} if name == "scanrnn" else {}),
            **common,
            **timing.row(),
            "floor_ms": round(floor, 5),
            "floor_ratio": round(timing.ms / floor, 3),
            **({"max_error": float(f"{errors[name]:.3g}")} if name in errors else {}),
        }
        for name, timing in times.items()
    ]


def run(out: Path, names: list[str], seconds: float = 2.0) -> None:
    measure.ready(out)
    head = measure.provenance(_core.Device("cpu"))
    head |= {"floor": "the layer's matrix products alone, by NumPy's OpenBLAS"}
    head["copy_gbps"] = round(measure.copy_gbps(head["threads"]), 1)
    wanted = [
        Point(cell.name, direction, *shape)
        for cell in cells()
        if cell.name in names
        for shape, directions in [*((s, crossover.PASSES) for s in SHAPES), (STEP, ("step",))]
        for direction in directions
    ]
    rows: list[dict[str, Any]] = []
    try:
        with optional.progress(len(wanted), "layer") as bar:
            for point in wanted:
                bar.set_postfix_str(" ".join(map(str, point)))
                rows += measure_one(point, seconds)
                bar.update()
    finally:  # also of what was measured until an interrupt
        print(_table(rows))
    measure.save(out, head | {"rows": rows})


def _table(rows: list[dict[str, Any]]) -> str:
    titles = ["cell", "pass", "B", "T", "H", "impl", "strategy", "ms", "spread", "x floor"]
    keys = ("cell", "pass", "B", "T", "H", "impl")
    lines = [
        [
            *(str(row[key]) for key in keys),
            row.get("strategy", ""),
            f"{row['ms']:.3f}",
            f"{row['ms_spread']:.3f}",
            f"{row['floor_ratio']:.2f}",
        ]
        for row in rows
    ]
    return measure.table(titles, lines)
