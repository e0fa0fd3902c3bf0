# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU beside cuDNN at its best, torch.nn as it comes, and FlashRNN.

One float64 run of torch.nn is what all are held against: outputs and every gradient. Inputs and
parameters are numbers that every dtype holds, so it serves all dtypes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import cudnn
import our_ways
import scanrnn.torch
import torch
from checks import check, fill, numbers
from gpu_timing import GPU, Bench, Contest, Run, Turn, run_of
from losses import OTHER_WAY, WORTH
from rows import OURS, Row
from torch import Tensor

PASSES = ("forward", "forward_backward")
# Largest error of y over its largest value, largest relative RMS of a gradient. That of float32 is
# too small for a product in TF32.
BOUNDS = {
    "float32": (1e-4, 1e-4),
    "tf32": (5e-3, 5e-3),
    "float16": (0.01, 0.01),
    "bfloat16": (0.05, 0.03),
}


class Size(NamedTuple):
    B: int
    T: int
    H: int  # and C
    layers: int = 1
    directions: int = 1


DENSE = [
    Size(16, 1024, 768),
    Size(8, 4096, 1024),
    Size(64, 1024, 1024),
    Size(16, 1024, 128),
    Size(32, 128, 512),
    Size(1, 2048, 512),
]
LARGE = [  # where R fills the chip, or there are many lines or layers
    Size(16, 256, 2048),
    Size(32, 256, 1536),
    Size(128, 256, 1024),
    Size(256, 256, 512),
    Size(16, 1024, 512, layers=4),
    Size(16, 512, 512, directions=2),
    Size(64, 128, 1024, layers=2),
]
# Everyday sizes: many sequences, as of reinforcement learning, and few units.
EVERYDAY = [
    Size(128, 128, 1024),
    Size(256, 64, 512),
    Size(512, 50, 256),
    Size(16, 1024, 256),
]
# In float32, in which torch lets a recurrence use TF32 unless it is told otherwise.
EVERYDAY_FLOAT32 = [Size(64, 128, 1024, layers=2)]
# In exact float32 alone.
EVERYDAY_EXACT = EVERYDAY[:2]
# Sizes of language models, which are no multiples of 8.
UNEVEN = [Size(20, 35, 650, layers=2), Size(80, 70, 1150), Size(32, 256, 300)]
# The LSTM and GRU problems of DeepBench: for training H, batches, T; for serving forward alone.
DEEPBENCH = {
    "LSTM": [
        (512, (16, 32, 64, 128), (25,)),
        (1024, (16, 32, 64, 128), (25,)),
        (2048, (16, 32, 64, 128), (25,)),
        (4096, (16, 32, 64, 128), (25,)),
        (1536, (8, 16, 32), (50,)),
        (256, (16, 32, 64), (150,)),
    ],
    "GRU": [
        (2816, (32,), (187, 375, 750)),
        (2048, (32,), (187, 375, 750, 1500)),
        (1536, (32,), (187, 375, 750, 1500)),
        (2560, (32,), (187, 375, 750, 1500)),
        (512, (32,), (1,)),
        (1024, (32, 64), (1500,)),
    ],
}
SERVED = {
    "LSTM": [(H, (1, 2, 4), (T,)) for H, T in ((512, 25), (1024, 25), (2048, 25), (1536, 50))]
    + [(256, (1, 2, 4), (150,))],
    "GRU": [(H, (1, 2, 4), (187, 375, 750, 1500)) for H in (2816, 2048, 1536, 2560)]
    + [(512, (1, 2, 4), (1,)), (1024, (1, 2, 4), (1500,))],
}


class Dense:
    """One problem: operands, and what they make in float64."""

    def __init__(self, cell: str, size: Size, training: bool = True) -> None:
        self.cell, self.size = cell, size
        B, T, H, _, directions = size
        wide = self.torch_rnn(torch.float64)
        fill(wide, H)
        self.params = {name: value.detach().float() for name, value in wide.named_parameters()}
        self.x, self.dy = numbers(T, B, H), numbers(T, B, directions * H)
        x = self.x.double().requires_grad_()
        y = wide(x)[0]
        self.want, self.wanted = y.detach(), {}
        self.made: tuple[str, dict[str, cudnn.Rnn]] = "", {}
        if training:
            leaves = [x, *wide.parameters()]
            gradients = torch.autograd.grad(y, leaves, self.dy.double())
            self.wanted = dict(zip(("x", *self.params), gradients, strict=True))

    def torch_rnn(self, dtype: torch.dtype) -> torch.nn.Module:
        _, _, H, layers, directions = self.size
        options = {"num_layers": layers, "bidirectional": directions == 2}
        kind = getattr(torch.nn, self.cell)
        return kind(H, H, **options, device="cuda", dtype=dtype)

    def row(self, name: str, math: str, direction: str) -> Row:
        B, T, H, layers, directions = self.size
        row: Row = {"bench": name, "cell": self.cell, "pass": direction, "layout": "TBH"}
        row |= {"B": B, "T": T, "C": H, "H": H}
        row |= {"layers": layers} if layers > 1 else {}
        row |= {"directions": directions} if directions > 1 else {}
        row["dtype"] = "float32" if math == "tf32" else math
        return row | ({"products": "tf32"} if math == "tf32" else {})

    def checked(self, math: str, y: Tensor, gradients: Mapping[str, Tensor]) -> Row:
        wanted = self.wanted if gradients else {}
        return check(y, self.want, gradients, wanted, BOUNDS[math])

    def module(self, rnn: torch.nn.Module, math: str, training: bool) -> tuple[Run, Row]:
        """A module that has torch.nn's parameters and arguments."""
        with torch.no_grad():
            for name, parameter in rnn.named_parameters():
                parameter.copy_(self.params[name])

        def call(x: Tensor, *_: Tensor) -> Tensor:
            y: Tensor = rnn(x)[0]
            return y

        return self.function(call, list(rnn.parameters()), math, training)

    def function(
        self, call: Callable[..., Tensor], params: list[Tensor], math: str, training: bool
    ) -> tuple[Run, Row]:
        """A function of x and of leaves in the order of torch's parameters."""
        dtype = cudnn.MATHS[math][0]
        x, dy = self.x.to(dtype).requires_grad_(), self.dy.to(dtype)
        leaves = [x, *params]
        run = run_of(call, leaves, dy, training)
        with torch.no_grad():
            y = call(*leaves)
        got = dict(zip(self.wanted, run(), strict=True)) if training else {}
        return run, self.checked(math, y, got)

    def ours(self, math: str, training: bool, strategy: str | None = None) -> tuple[Run, Row]:
        _, _, H, layers, directions = self.size
        options = {"num_layers": layers, "bidirectional": directions == 2, "strategy": strategy}
        kind = getattr(scanrnn.torch, self.cell)
        rnn = kind(H, H, **options, device="cuda", dtype=cudnn.MATHS[math][0])
        return self.module(rnn, math, training)

    def pick(self, math: str, training: bool) -> str:
        B, T, H, layers, directions = self.size
        dtype = "float32" if math == "tf32" else math
        layer = our_ways.layer(self.cell, H, H, dtype, layers, directions)
        return layer.plan(GPU, T, B, training, None).strategy

    def by_cudnn(self, algorithm: str, math: str, training: bool) -> tuple[Run, Row]:
        layers, directions = self.size.layers, self.size.directions
        if self.made[0] != math:
            self.made = math, {}
        rnn = self.made[1].get(algorithm)
        if rnn is None:  # one for both passes, since persist_dynamic compiles its kernels
            rnn = cudnn.Rnn(self.cell, algorithm, math, self.params, self.x, layers, directions)
            self.made[1][algorithm] = rnn
        dy = self.dy.to(rnn.x.dtype)

        def run() -> None:
            rnn.forward(training)
            if training:
                rnn.backward(dy)

        run()
        found = self.checked(math, rnn.y, rnn.gradients() if training else {})
        return run, found | {"peak_bytes": rnn.nbytes(training)}


def problem(
    bench: Bench,
    name: str,
    cell: str,
    size: Size,
    maths: tuple[str, ...],
    passes: tuple[str, ...] = PASSES,
    eager: bool = True,
) -> None:
    shown = f"{name} {cell} {' '.join(map(str, size))} {' '.join(maths)} scanrnn cuDNN torch.nn"
    if not bench.wanted({"shown": shown}):
        return
    dense = Dense(cell, size, training=len(passes) > 1)
    for math, direction in itertools.product(maths, passes):
        one_pass(bench, name, dense, math, direction, eager)


def one_pass(bench: Bench, name: str, dense: Dense, math: str, direction: str, eager: bool) -> None:
    contest, training = Contest(bench, dense.row(name, math, direction)), direction != "forward"
    scanrnn.set_float32_matmul_precision("high" if math == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = math == "tf32"
    if our_ways.is_known(dense.cell):
        enter_ours(contest, dense, math, training)
    enter_cudnn(contest, dense, math, training)
    if eager:
        rnn = dense.torch_rnn(cudnn.MATHS[math][0])
        make = functools.partial(dense.module, rnn, math, training)
        contest.enter({"impl": "torch.nn, eager"}, make, graph=False)
    steps = dense.size.T
    contest.measure(lambda row, _: row | {"us_per_step": round(1e3 * row["ms"] / steps, 4)})
    scanrnn.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def enter_cudnn(contest: Contest, dense: Dense, math: str, training: bool) -> None:
    by_cudnn = functools.partial(dense.by_cudnn, math=math, training=training)
    makes = {algorithm: functools.partial(by_cudnn, algorithm) for algorithm in cudnn.ALGORITHMS}
    version = cudnn.library().version()
    row: Row = {"impl": f"cuDNN {version}, best", "cell": dense.cell, "layout": "TBH"}
    contest.enter_best(row, makes)


def enter_ours(contest: Contest, dense: Dense, math: str, training: bool) -> None:
    """The pick, and the other strategy if that is faster."""
    pick, first = dense.pick(math, training), len(contest.turns)
    ours = functools.partial(dense.ours, math, training)
    contest.enter({"impl": OURS, "strategy": pick}, ours)
    if len(contest.turns) == first:
        return
    limit = WORTH * contest.quick()

    def forced(strategy: str) -> tuple[Turn, Row]:
        run, said = ours(strategy)
        return Turn(run), said

    for other in sorted({"persistent", "step_loop"} - {pick}):
        shown = {"impl": OTHER_WAY, "strategy": other}
        contest.enter_if_faster(limit, shown, functools.partial(forced, other))


def dense(bench: Bench) -> None:
    for size, cell in itertools.product(DENSE, ("LSTM", "GRU")):
        problem(bench, "layer", cell, size, ("bfloat16", "float16", "float32", "tf32"))


def large(bench: Bench) -> None:
    for size, cell in itertools.product(LARGE, ("LSTM", "GRU")):
        problem(bench, "layer", cell, size, ("bfloat16", "float16"), eager=False)


def everyday(bench: Bench) -> None:
    """`--only "128 128 1024"` takes those of one size, B T H."""
    for size, cell in itertools.product(EVERYDAY_FLOAT32, ("LSTM", "GRU")):
        problem(bench, "layer", cell, size, ("float32", "tf32"))
    for size, cell in itertools.product(EVERYDAY_EXACT, ("LSTM", "GRU")):
        problem(bench, "layer", cell, size, ("float32",), eager=False)
    for size, cell in itertools.product(EVERYDAY, ("LSTM", "GRU")):
        problem(bench, "layer", cell, size, ("bfloat16", "float16"), eager=False)


def deepbench(bench: Bench) -> None:
    """The shortest sequences first: a step takes as long in the others."""
    sizes = [
        (T, cell, Size(B, T, H))
        for cell, sets in DEEPBENCH.items()
        for H, batches, lengths in sets
        for B, T in itertools.product(batches, lengths)
    ]
    for _, cell, size in sorted(sizes, key=lambda found: found[0]):
        problem(bench, "deepbench", cell, size, ("float16", "tf32"), eager=False)


def uneven(bench: Bench) -> None:
    for size, cell in itertools.product(UNEVEN, ("LSTM", "GRU")):
        problem(bench, "uneven", cell, size, ("bfloat16", "float16", "tf32"), eager=False)


def served(bench: Bench) -> None:
    for cell, sets in SERVED.items():
        for H, batches, lengths in sets:
            for B, T in itertools.product(batches, lengths):
                size = Size(B, T, H)
                problem(bench, "deepbench", cell, size, ("float16",), PASSES[:1], eager=False)
