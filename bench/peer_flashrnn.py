# SPDX-License-Identifier: Apache-2.0
"""FlashRNN beside this library in bfloat16: an LSTM and a GRU, and LSTM and SLSTM with heads.

It compiles its kernels with nvcc when they are first asked for, for one size each, which takes
minutes; those of Triton take seconds, and their heads have to be small. The query of the device
that its fused kernels begin with does not compile with CUDA 13, which has dropped members of
cudaDeviceProp; so the four limits that it needs come from PyTorch.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import our_ways
import scanrnn.torch
import torch
from checks import check
from gpu_timing import GPU, Bench, Contest, Run
from peer_dense import BOUNDS, PASSES, Dense, Size, enter_ours
from rows import Row
from scanrnn.description import Description, options_text
from scanrnn.tools.sizes import cell_of
from torch import Tensor
from torch.nn.functional import linear


class Problem(NamedTuple):
    cell: str
    size: Size
    heads: int
    backends: tuple[str, ...]


MATH = "bfloat16"
SMALL, LARGE = Size(16, 1024, 768), Size(16, 1024, 1024)
QUICK_FIRST = ("triton_fused", "cuda", "cuda_fused")
PROBLEMS = {
    "LSTM": Problem("LSTM", SMALL, 1, ("cuda_fused", "cuda")),
    "GRU": Problem("GRU", SMALL, 1, ("cuda",)),  # a GRU has no fused kernel
    "SLSTM-4": Problem("SLSTM", LARGE, 4, ("cuda", "cuda_fused")),
    "LSTM-12": Problem("LSTM", SMALL, 12, QUICK_FIRST),
    "SLSTM-12": Problem("SLSTM", SMALL, 12, QUICK_FIRST),
}
# Row blocks of torch's parameters in its order: r, z, n; there n's recurrent part, r, z and, of
# inputs alone, n.
GRU_R = (2, 0, 1)


def limits(device_id: int) -> dict[str, int]:
    found = torch.cuda.get_device_properties(device_id)
    return {
        "maxThreadsPerBlock": 1024,
        "regsPerMultiprocessor": found.regs_per_multiprocessor,
        "multiProcessorCount": found.multi_processor_count,
        "sharedMemPerBlockOptin": found.shared_memory_per_block_optin,
    }


class FlashRnn:
    """A layer by one of its backends, of torch's parameters and with the product of its input."""

    def __init__(self, library: Any, backend: str, problem: Problem) -> None:
        B, _, self.H, *_ = problem.size
        self.cell, self.heads, self.flashrnn = problem.cell, problem.heads, library.flashrnn
        self.config = library.FlashRNNConfig(
            backend=backend,
            function=self.cell.lower(),
            hidden_dim=self.H,
            num_heads=self.heads,
            batch_size=B,
            input_shape="TBGHD",
            output_shape="STBHD",
            dtype=MATH,
        )

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, b_w: Tensor, b_r: Tensor) -> Tensor:
        H, (T, B, _) = self.H, x.shape
        gates, heads = w.shape[0] // H, (self.heads, H // self.heads)
        r = r.view(gates, *heads, heads[1])
        b_w, b_r = b_w.view(gates, *heads), b_r.view(gates, *heads)
        bias = b_w + b_r
        if self.cell == "GRU":
            r = r[list(GRU_R)]
            bias = torch.stack([b_r[2], b_w[0] + b_r[0], b_w[1] + b_r[1], b_w[2]])
        pre = linear(x, w).view(T, B, gates, *heads)
        states, _ = self.flashrnn(pre, r, bias, config=self.config)
        return states[0].reshape(T, B, H)


class Headed(Dense):
    """A problem with heads, or of a cell that torch has not: ours in float64 is what all are held
    against. FlashRNN keeps an SLSTM's scales in bfloat16, so that gradients are bounded as y is."""

    def __init__(self, problem: Problem, training: bool) -> None:
        self.heads = problem.heads
        super().__init__(problem.cell, problem.size, training)

    def layer(self, dtype: torch.dtype, strategy: str | None = None) -> torch.nn.Module:
        kind, options = getattr(scanrnn.torch, self.cell), {"num_heads": self.heads}
        H = self.size.H
        return kind(H, H, **options, strategy=strategy, device="cuda", dtype=dtype)

    def torch_rnn(self, dtype: torch.dtype) -> torch.nn.Module:
        return self.layer(dtype)

    def row(self, name: str, math: str, direction: str) -> Row:
        return super().row(name, math, direction) | {"cell": f"{self.cell}, {self.heads} heads"}

    def ours(self, math: str, training: bool, strategy: str | None = None) -> tuple[Run, Row]:
        return self.module(self.layer(torch.bfloat16, strategy), math, training)

    def pick(self, math: str, training: bool) -> str:
        B, T, H, *_ = self.size
        options = options_text(cell_of(self.cell), {"num_heads": self.heads})
        described = Description(self.cell, H, options=options)
        return described.layer(H, math).plan(GPU, T, B, training, None).strategy

    def checked(self, math: str, y: Tensor, gradients: Mapping[str, Tensor]) -> Row:
        bounds = (BOUNDS[math][0], BOUNDS[math][0])
        return check(y, self.want, gradients, self.wanted if gradients else {}, bounds)


def flashrnn(bench: Bench, problem: Problem, direction: str) -> None:
    library = importlib.import_module("flashrnn.flashrnn.flashrnn")
    importlib.import_module("flashrnn.flashrnn.cuda_init").time.sleep = lambda _: None
    library.get_gpu_info = limits
    training = direction != "forward"
    plain = problem.heads == 1
    dense = Dense(problem.cell, problem.size) if plain else Headed(problem, training)
    one_pass(bench, library, dense, problem, direction)


# Each pass of a cell by itself: a capture that fails leaves torch's generators of random numbers
# unusable for whatever the process does next.
PARTS = {
    f"flashrnn-{name}-{direction}": functools.partial(
        flashrnn, problem=problem, direction=direction
    )
    for (name, problem), direction in itertools.product(PROBLEMS.items(), PASSES)
}


def one_pass(bench: Bench, library: Any, dense: Dense, problem: Problem, direction: str) -> None:
    contest = Contest(bench, dense.row("flashrnn", MATH, direction))
    training = direction != "forward"
    if our_ways.is_known(dense.cell):
        enter_ours(contest, dense, MATH, training)

    def make(backend: str) -> tuple[Run, Row]:
        call = FlashRnn(library, backend, problem)
        params = [p.to(torch.bfloat16).requires_grad_() for p in dense.params.values()]
        return dense.function(call, params, MATH, training)

    for backend in problem.backends:
        row: Row = {"impl": f"flashrnn 1.0.8, {backend}"}
        # Its backward cannot be captured.
        contest.enter(row, functools.partial(make, backend), graph=not training)
    contest.measure()
