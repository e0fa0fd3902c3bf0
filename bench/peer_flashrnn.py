# SPDX-License-Identifier: Apache-2.0
"""FlashRNN beside cuDNN and this library: one LSTM and one GRU in bfloat16.

It compiles its kernels with nvcc when they are first asked for, for one size each, which takes
minutes. The query of the device that its fused kernels begin with does not compile with CUDA 13,
which has dropped members of cudaDeviceProp; so the four limits that it needs come from PyTorch.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import our_ways
import torch
from gpu_timing import Bench, Contest, Run
from peer_dense import PASSES, Dense, Size, enter_ours
from rows import Row
from torch import Tensor
from torch.nn.functional import linear

SIZE, MATH = Size(16, 1024, 768), "bfloat16"
BACKENDS = {"LSTM": ("cuda_fused", "cuda"), "GRU": ("cuda",)}  # a GRU has no fused kernel
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

    def __init__(self, library: Any, cell: str, backend: str, size: Size) -> None:
        B, self.T, self.H, *_ = size
        self.cell, self.flashrnn = cell, library.flashrnn
        self.config = library.FlashRNNConfig(
            backend=backend,
            function=cell.lower(),
            hidden_dim=self.H,
            num_heads=1,
            batch_size=B,
            input_shape="TBGHD",
            output_shape="STBHD",
            dtype=MATH,
        )

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, b_w: Tensor, b_r: Tensor) -> Tensor:
        H, (T, B, _) = self.H, x.shape
        gates = w.shape[0] // H
        r, b_w, b_r = r.view(gates, 1, H, H), b_w.view(gates, 1, H), b_r.view(gates, 1, H)
        bias = b_w + b_r
        if self.cell == "GRU":
            r = r[list(GRU_R)]
            bias = torch.stack([b_r[2], b_w[0] + b_r[0], b_w[1] + b_r[1], b_w[2]])
        pre = linear(x, w).view(T, B, gates, 1, H)
        states, _ = self.flashrnn(pre, r, bias, config=self.config)
        return states[0].reshape(T, B, H)


def flashrnn(bench: Bench, cell: str, direction: str) -> None:
    library = importlib.import_module("flashrnn.flashrnn.flashrnn")
    importlib.import_module("flashrnn.flashrnn.cuda_init").time.sleep = lambda _: None
    library.get_gpu_info = limits
    one_pass(bench, library, Dense(cell, SIZE), direction)


# Each pass of a cell by itself: its backward cannot be captured, and a capture that fails leaves
# torch's generators of random numbers unusable for whatever the process does next.
PARTS = {
    f"flashrnn-{cell}-{direction}": functools.partial(flashrnn, cell=cell, direction=direction)
    for cell, direction in itertools.product(BACKENDS, PASSES)
}


def one_pass(bench: Bench, library: Any, dense: Dense, direction: str) -> None:
    contest, training = (
        Contest(bench, dense.row("flashrnn", MATH, direction)),
        direction != "forward",
    )
    if our_ways.is_known(dense.cell):
        enter_ours(contest, dense, MATH, training)

    def make(backend: str) -> tuple[Run, Row]:
        call = FlashRnn(library, dense.cell, backend, SIZE)
        params = [p.to(torch.bfloat16).requires_grad_() for p in dense.params.values()]
        return dense.function(call, params, MATH, training)

    for backend in BACKENDS[dense.cell]:
        contest.enter({"impl": f"flashrnn 1.0.8, {backend}"}, functools.partial(make, backend))
    contest.measure()
