# SPDX-License-Identifier: Apache-2.0
"""What options cost: a layer with each beside the layer without, and cells beside LSTM.

A row's `times` is its time over that of the plain layer of its problem, in the same turns. Modules
are in training mode, in which masks are drawn, and forward alone keeps what backward would read: a
layer that draws and one that does not do the same work. A graph replays the draws that it was
captured with.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import scanrnn.torch
import torch
from checks import fill, numbers
from gpu_timing import Bench, Contest, Run, run_of
from peer_dense import PASSES
from peer_scans import DTYPES
from rows import OURS, Row
from torch import Tensor


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
        ways("LSTM") | {"SLSTM": ("SLSTM", {}), "SLSTM heads": ("SLSTM", {"num_heads": 4})},
    ),
    Problem(
        16, 1024, 768,
        ways(
            "GRU", heads={"num_heads": 12}, zoneout={"zoneout": 0.1},
            reset_before={"reset_after": False}, layer_norm={"layer_norm": True},
        ),
    ),
    Problem(8, 4096, 1024, ways("MinGRU", zoneout={"zoneout": 0.1})),
    Problem(
        8, 4096, 1024,
        ways(
            "SRU", zoneout={"zoneout": 0.1}, state_dropout={"state_dropout": 0.1},
            rescale={"rescale": True}, projection={"projection_size": 256},
        ),
    ),
    Problem(1, 65536, 1024, ways("MinGRU", zoneout={"zoneout": 0.1})),
]  # fmt: skip


def made(problem: Problem, cell: str, options: dict[str, Any], training: bool) -> tuple[Run, Row]:
    B, T, H, _ = problem
    rnn = getattr(scanrnn.torch, cell)(H, H, device="cuda", dtype=DTYPES["bfloat16"], **options)
    torch.manual_seed(0)
    fill(rnn, H)
    params = list(rnn.parameters())
    x = numbers(T, B, H).to(DTYPES["bfloat16"]).requires_grad_()

    def call(x: Tensor, *_: Tensor) -> Tensor:
        y: Tensor = rnn(x)[0]
        return y

    y = call(x)
    if not y.isfinite().all():
        raise AssertionError("wrong result: it is not finite")
    if not training:
        return lambda: call(x), {}
    return run_of(call, [x, *params], numbers(*y.shape).to(y.dtype), training), {}


def options(bench: Bench) -> None:
    for problem in PROBLEMS:
        for direction in PASSES:
            row: Row = {"bench": "options", "pass": direction, "layout": "TBH"}
            row |= {"B": problem.B, "T": problem.T, "C": problem.H, "H": problem.H}
            contest = Contest(bench, row | {"dtype": "bfloat16", "impl": OURS})
            for name, (cell, own) in problem.ways.items():
                make = functools.partial(made, problem, cell, own, direction != "forward")
                contest.enter({"cell": cell, "way": name}, make)
            first = len(bench.rows)
            contest.measure()
            found = [row for row in bench.rows[first:] if "ms" in row]
            for row in found:
                row["times"] = round(row["ms"] / found[0]["ms"], 3)
            bench.save()
