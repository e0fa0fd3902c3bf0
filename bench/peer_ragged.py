# SPDX-License-Identifier: Apache-2.0
"""Ragged batches: padded, told by lengths, packed, and with states that are reset on the way.

Lengths are uniform in [1, T]. Every way gives the same tokens and the same gradients, since no
cotangent comes to the padding; all are held against the whole batch in float64. A row's `share` is
its time over that of the padded batch. Some cells run in every way, the others padded alone, with
resets and without.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import scanrnn.torch
import torch
from checks import check, fill, gradients, numbers
from cudnn import MATHS
from gpu_timing import Bench, Contest, Run, at_most, run_of
from peer_dense import BOUNDS, PASSES
from peer_scans import DTYPES, optional
from rows import OURS, Row
from scanrnn.registry import cells
from scanrnn.tools.sizes import made
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

CELLS = ("LSTM", "GRU", "MinGRU", "MinLSTM", "SRU")  # in every way
OTHERS = tuple(cell.name for cell in cells() if cell.name not in CELLS)  # padded alone
B, T, H, DTYPE = 64, 1024, 768, "bfloat16"
FEW = 16  # sequences, which other kernels of LSTM and GRU walk
RESETS = 0.03  # of the steps
# B, T, H of a batch of episodes, and the passes. A program of TorchRL's backward has all units of a
# line: from 256 of them on ptxas takes minutes for the configurations that it tries.
LEARNING = (((256, 128, 512), PASSES[:1]), ((256, 128, 128), PASSES))
COMPILING = 60  # seconds that a kernel of others may take until it has run
SCANNED, CHANNELS = 2**26, 1024  # tokens times channels, of bare scans
MEAN_LENGTHS = (None, 50, 500, 5000)

Call = Callable[..., Tensor]  # from x and parameters to y


def module(library: Any, cell: str, hidden: int, dtype: torch.dtype) -> torch.nn.Module:
    """With the same parameters for every library and dtype."""
    rnn: torch.nn.Module = made(library, cell, hidden, device="cuda", dtype=dtype)
    torch.manual_seed(0)
    fill(rnn, hidden)
    return rnn


def names_of(rnn: torch.nn.Module) -> list[str]:
    """The leaves: x and the parameters."""
    return ["x", *(name for name, _ in rnn.named_parameters())]


# ---- a batch of sequences, padded or packed


class Padded:
    """One cell's operands, and in float64 what all ways should give."""

    def __init__(self, cell: str, batch: int) -> None:
        self.cell, self.batch = cell, batch
        self.lengths = torch.randint(1, T + 1, (batch,), generator=torch.Generator().manual_seed(1))
        present = torch.arange(T) < self.lengths[:, None]  # [B,T]
        row, step = (index.cuda() for index in present.nonzero(as_tuple=True))
        self.token = step, row  # of [T,B], in the order of packed tokens
        self.told = {
            "padded": {},
            "padded, resets": {"reset": torch.rand(T, batch, device="cuda") < RESETS},
        }
        if cell in CELLS:
            ends = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
            self.told["lengths"] = {"lengths": self.lengths.cuda()}
            self.told["cu_seqlens"] = {"cu_seqlens": ends.cuda()}
        self.x = numbers(T, batch, H)
        self.dy = numbers(T, batch, H) * present.T.cuda()[..., None]

    @functools.cached_property
    def wants(self) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
        wide = module(scanrnn.torch, self.cell, H, torch.float64)
        return {
            way: self.as_tokens(*gradients(*self.parts(wide, way), self.dy.double()))
            for way in ("padded", "padded, resets")
        }

    def parts(self, rnn: torch.nn.Module, way: str) -> tuple[Call, list[Tensor], list[str]]:
        params = list(rnn.parameters())
        x = self.x[self.token] if way == "cu_seqlens" else self.x
        told = self.told[way]
        call = lambda x, *_: rnn(x, **told)[0]  # noqa: E731
        return call, [x.to(params[0].dtype).requires_grad_(), *params], names_of(rnn)

    def as_tokens(self, y: Tensor, found: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return y[self.token], found | {"x": found["x"][self.token]}

    def ours(self, way: str, training: bool) -> tuple[Run, Row]:
        packed = way == "cu_seqlens"
        call, leaves, names = self.parts(module(scanrnn.torch, self.cell, H, DTYPES[DTYPE]), way)
        dy = (self.dy[self.token] if packed else self.dy).to(DTYPES[DTYPE])
        run = run_of(call, leaves, dy, training)
        y, found = gradients(call, leaves, names, dy)
        return run, self.checked(
            way, *((y, found) if packed else self.as_tokens(y, found)), training
        )

    def by_torch(self, training: bool) -> tuple[Run, Row]:
        """torch.nn on a PackedSequence, which is made outside the time."""
        rnn = module(torch.nn, self.cell, H, DTYPES[DTYPE])
        pack = functools.partial(pack_padded_sequence, lengths=self.lengths, enforce_sorted=False)
        x, dy = (pack(value.to(DTYPES[DTYPE])) for value in (self.x, self.dy))
        call = lambda data, *_: rnn(PackedSequence(data, *x[1:]))[0].data  # noqa: E731
        leaves = [x.data.requires_grad_(), *rnn.parameters()]
        y, found = gradients(call, leaves, names_of(rnn), dy.data)
        unpack = lambda data: pad_packed_sequence(PackedSequence(data, *x[1:]))[0]  # noqa: E731
        found["x"] = unpack(found["x"])
        said = self.checked("padded", *self.as_tokens(unpack(y), found), training)
        return run_of(call, leaves, dy.data, training), said

    def checked(self, way: str, y: Tensor, found: dict[str, Tensor], training: bool) -> Row:
        want, wanted = self.wants.get(way, self.wants["padded"])
        return check(y, want, found if training else {}, wanted if training else {}, BOUNDS[DTYPE])


def layers(bench: Bench) -> None:
    many = [(cell, B) for cell in (*CELLS, *OTHERS)]
    for cell, batch in (*many, ("LSTM", FEW), ("GRU", FEW)):
        problem = Padded(cell, batch)
        for direction in PASSES:
            one_pass(bench, problem, direction)


def one_pass(bench: Bench, problem: Padded, direction: str) -> None:
    row: Row = {"bench": "ragged", "cell": problem.cell, "pass": direction, "layout": "TBH"}
    row |= {"B": problem.batch, "T": T, "C": H, "H": H, "dtype": DTYPE}
    row["tokens"] = round(problem.token[0].numel() / (problem.batch * T), 3)
    contest, training = Contest(bench, row), direction != "forward"
    for way in problem.told:
        contest.enter({"impl": OURS, "way": way}, functools.partial(problem.ours, way, training))
    if problem.cell in CELLS and hasattr(torch.nn, problem.cell):
        make = functools.partial(problem.by_torch, training)
        contest.enter({"impl": "torch.nn", "way": "PackedSequence"}, make, graph=False)
    first = len(bench.rows)
    contest.measure()
    rows = [row for row in bench.rows[first:] if "ms" in row]
    padded = next((row["ms"] for row in rows if row["way"] == "padded"), None)
    for found in rows:
        if padded:
            found["share"] = round(found["ms"] / padded, 3)
    bench.save()


# ---- episodes: TorchRL's kernels for states that are reset on the way


class Episodes:
    def __init__(self, cell: str, batch: int, steps: int, hidden: int) -> None:
        self.cell, self.hidden = cell, hidden
        self.reset = torch.rand(steps, batch, device="cuda") < RESETS
        self.x, self.dy = numbers(steps, batch, hidden), numbers(steps, batch, hidden)
        wide = module(scanrnn.torch, cell, hidden, torch.float64)
        self.want, self.wanted = gradients(*self.parts(wide), self.dy.double())

    def parts(self, rnn: torch.nn.Module) -> tuple[Call, list[Tensor], list[str]]:
        params = list(rnn.parameters())
        call = lambda x, *_: rnn(x, reset=self.reset)[0]  # noqa: E731
        return call, [self.x.to(params[0].dtype).requires_grad_(), *params], names_of(rnn)

    def ours(self, math: str, training: bool) -> tuple[Run, Row]:
        rnn = module(scanrnn.torch, self.cell, self.hidden, MATHS[math][0])
        return self.run(math, training, *self.parts(rnn))

    def theirs(self, kernels: Any, math: str, training: bool) -> tuple[Run, Row]:
        """All tensors are float32, the products' operands in the type that is asked for; x and y
        turned to and from the layout that it is made for."""
        kernel, states = getattr(kernels, f"{self.cell.lower()}_triton"), 1 + (self.cell == "LSTM")

        def call(x: Tensor, *params: Tensor) -> Tensor:
            rows, reset = x.transpose(0, 1).contiguous(), self.reset.T.contiguous()
            zeros = [torch.zeros_like(rows) for _ in range(states)]
            y: Tensor = kernel(
                rows, *zeros, *params, reset, MATHS[math][0], input_precision="tf32"
            )[0]
            return y.transpose(0, 1)

        _, leaves, names = self.parts(module(scanrnn.torch, self.cell, self.hidden, torch.float32))
        return self.run(math, training, call, leaves, names)

    def in_time(self, kernels: Any, math: str, training: bool) -> tuple[Run, Row]:
        with at_most(COMPILING):
            return self.theirs(kernels, math, training)

    def run(
        self, math: str, training: bool, call: Call, leaves: list[Tensor], names: list[str]
    ) -> tuple[Run, Row]:
        dy = self.dy.to(leaves[0].dtype)
        run = run_of(call, leaves, dy, training)
        if not training:  # no kernel of backward is compiled
            return run, check(run(), self.want, {}, {}, BOUNDS[math])
        y, found = gradients(call, leaves, names, dy)
        return run, check(y, self.want, found, self.wanted, BOUNDS[math])


def episodes(bench: Bench) -> None:
    kernels = optional("torchrl.modules.tensordict_module._rnn_triton")
    for sizes, directions in LEARNING:
        for cell in ("LSTM", "GRU"):
            problem = Episodes(cell, *sizes)
            for math, direction in itertools.product(("bfloat16", "tf32"), directions):
                torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
                row: Row = {"bench": "episodes", "cell": cell, "pass": direction}
                row |= {"dtype": math, **dict(zip("BTH", sizes, strict=True)), "C": sizes[-1]}
                contest, training = Contest(bench, row), direction != "forward"
                ours = functools.partial(problem.ours, math, training)
                # A capture with backward has failed here; ours alone can be captured. After one
                # that fails torch draws no more.
                contest.enter({"impl": OURS}, ours, graph=not training)
                if kernels is not None:
                    make = functools.partial(problem.in_time, kernels, math, training)
                    contest.enter({"impl": "TorchRL, Triton"}, make, graph=not training)
                contest.measure()
    torch.backends.cuda.matmul.allow_tf32 = False


# ---- bare scans over packed tokens


def one_scan(bench: Bench, dtype: str, mean_length: int | None) -> None:
    tokens = SCANNED // CHANNELS
    shape = tokens, 1, CHANNELS
    a = torch.sigmoid(3 * torch.rand(shape, device="cuda") - 1).to(DTYPES[dtype])
    b = torch.rand(shape, device="cuda").to(a.dtype)
    reset = None if mean_length is None else torch.rand(tokens, 1, device="cuda") < 1 / mean_length
    row: Row = {"bench": "packed scan", "pass": "forward", "dtype": dtype, "impl": OURS}
    row |= {"B": 1, "T": tokens, "H": CHANNELS, "mean_length": mean_length}
    contest = Contest(bench, row)

    def make() -> tuple[Run, Row]:
        run = lambda: scanrnn.torch.scan(a, b, reset=reset)  # noqa: E731
        wide = a.double() if reset is None else a.double().masked_fill(reset[..., None], 0)
        return run, check(run(), scanrnn.torch.scan(wide, b.double()), {}, {}, BOUNDS[dtype])

    def finish(row: Row, sticks: dict[str, float]) -> Row:
        return row | {"gbps": round(3 * SCANNED * a.element_size() / row["ms"] / 1e6)}

    contest.enter({}, make)
    contest.measure(finish)


def scans(bench: Bench) -> None:
    for dtype in ("float32", "bfloat16"):
        for mean_length in MEAN_LENGTHS:
            one_scan(bench, dtype, mean_length)
