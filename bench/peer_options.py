# SPDX-License-Identifier: Apache-2.0
"""What options cost: a layer with each beside the layer without, and cells beside LSTM.

A row's `times` is its time over that of the plain layer of its problem, in the same turns. Modules
are in training mode, in which masks are drawn, and forward alone keeps what backward would read: a
layer that draws and one that does not do the same work. A graph replays the draws that it was
captured with. Cells and options that nobody else has stand beside their formulas in PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import scanrnn.torch
import torch
from checks import check, fill, gradients, numbers
from gpu_timing import Bench, Contest, Run, at_most, run_of
from peer_cells import FORMULA, FORMULAS
from peer_dense import BOUNDS, PASSES
from peer_scans import DTYPES
from rows import OURS, Row
from torch import Tensor

COMPILING = 30  # seconds that a formula may take until it has run
# A loop in PyTorch adds its gradients of R step by step in bfloat16: a sum of T terms is off by up
# to 2^-9 sqrt(T / 2) of its size.
LOOSE = (0.05, 0.1)


class Problem(NamedTuple):
    """Ways to run one size; the first is what the others are measured by."""

    B: int
    T: int
    H: int
    ways: dict[str, tuple[str, dict[str, Any]]]  # (cell, options)


def ways(cell: str, **options: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    return {cell: (cell, {})} | {f"{cell} {k}": (cell, own) for k, own in options.items()}


PROBLEMS = [
    Problem(
        16, 1024, 768,
        ways(
            "LSTM", heads={"num_heads": 12}, projection={"proj_size": 256},
            peephole={"peephole": True}, zoneout={"zoneout": (0.1, 0.1)},
            dropconnect={"dropconnect": 0.1}, input_dropout={"input_dropout": 0.1},
            layer_norm={"layer_norm": True},
        ) | {"SLSTM heads": ("SLSTM", {"num_heads": 12})},
    ),
    Problem(
        16, 1024, 1024,
        ways("LSTM") | {"SLSTM": ("SLSTM", {}), "SLSTM heads": ("SLSTM", {"num_heads": 4})}
        | ways("IndRNN"),
    ),
    Problem(
        16, 1024, 768,
        ways(
            "GRU", heads={"num_heads": 12}, zoneout={"zoneout": 0.1},
            reset_before={"reset_after": False}, layer_norm={"layer_norm": True},
        ),
    ),
    Problem(
        8, 4096, 1024,
        ways("MinGRU", zoneout={"zoneout": 0.1}) | ways("QRNN") | ways("RGLRU"),
    ),
    Problem(
        8, 4096, 1024,
        ways(
            "SRU", zoneout={"zoneout": 0.1}, state_dropout={"state_dropout": 0.1},
            rescale={"rescale": True}, projection={"projection_size": 256},
        ),
    ),
    Problem(1, 65536, 1024, ways("MinGRU", zoneout={"zoneout": 0.1})),
]  # fmt: skip


class Layer:
    """A layer with its operands, which are the same numbers in every dtype."""

    def __init__(self, problem: Problem, way: str, dtype: torch.dtype) -> None:
        B, T, H, _ = problem
        cell, own = problem.ways[way]
        self.rnn = getattr(scanrnn.torch, cell)(H, H, device="cuda", dtype=dtype, **own)
        torch.manual_seed(0)
        fill(self.rnn, H)
        self.x = numbers(T, B, H).to(dtype).requires_grad_()
        self.params = dict(self.rnn.named_parameters())
        self.names = [name.removesuffix("_l0") for name in self.params]
        self.leaves = [self.x, *self.params.values()]
        self.dy = numbers(*self.call(self.x).shape).to(dtype)

    def call(self, x: Tensor, *_: Tensor) -> Tensor:
        y: Tensor = self.rnn(x)[0]
        return y

    def by_formula(self, formula: Callable[..., Tensor], x: Tensor, *params: Tensor) -> Tensor:
        return formula(x, **dict(zip(self.names, params, strict=True)))

    def gradients(self, call: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return gradients(call, self.leaves, ["x", *self.names], self.dy)


Exact = Callable[[], tuple[Tensor, dict[str, Tensor]]]


def exact(problem: Problem, way: str) -> tuple[Tensor, dict[str, Tensor]]:
    layer = Layer(problem, way, torch.float64)
    return layer.gradients(layer.call)


def made(
    problem: Problem, way: str, training: bool, formula: Callable[..., Tensor] | None, want: Exact
) -> tuple[Run, Row]:
    """The layer, or a formula of it. What has a formula is held against float64."""
    layer = Layer(problem, way, DTYPES["bfloat16"])
    call = layer.call if formula is None else functools.partial(layer.by_formula, formula)
    got: dict[str, Tensor] = {}
    if way in FORMULAS and training:
        y, got = layer.gradients(call)
    else:
        y = call(*layer.leaves)
    if not y.isfinite().all():
        raise AssertionError("wrong result: it is not finite")
    said: Row = {}
    if way in FORMULAS:
        y_want, wanted = want()
        bounds = BOUNDS["bfloat16"] if formula is None else LOOSE
        said = check(y, y_want, got, wanted if training else {}, bounds)
    if not training:
        return lambda: call(*layer.leaves), said
    return run_of(call, layer.leaves, layer.dy, training), said


def in_time(
    problem: Problem, way: str, training: bool, formula: Callable[..., Tensor], want: Exact
) -> tuple[Run, Row]:
    with at_most(COMPILING):
        return made(problem, way, training, formula, want)


def options(bench: Bench) -> None:
    for problem in PROBLEMS:
        wants = functools.cache(functools.partial(exact, problem))
        for direction in PASSES:
            one_pass(bench, problem, direction, wants)


def one_pass(bench: Bench, problem: Problem, direction: str, wants: Callable[[str], Any]) -> None:
    row: Row = {"bench": "options", "pass": direction, "layout": "TBH"}
    row |= {"B": problem.B, "T": problem.T, "C": problem.H, "H": problem.H, "dtype": "bfloat16"}
    contest, training = Contest(bench, row), direction != "forward"
    for way, (cell, _) in problem.ways.items():
        want = functools.partial(wants, way)
        make = functools.partial(made, problem, way, training, None, want)
        contest.enter({"impl": OURS, "cell": cell, "way": way}, make)
        if way in FORMULAS:
            make = functools.partial(in_time, problem, way, training, FORMULAS[way], want)
            contest.enter({"impl": FORMULA, "cell": cell, "way": way}, make)
    first = len(bench.rows)
    contest.measure()
    found = [row for row in bench.rows[first:] if "ms" in row]
    for row in found:
        row["times"] = round(row["ms"] / found[0]["ms"], 3)
    bench.save()
