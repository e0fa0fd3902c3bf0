# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch in CUDA graphs: calls, whole training steps, and torch.cuda.make_graphed_callables.
On the CPU the same training steps run without a graph."""

import contextlib
import copy
from typing import NamedTuple

import pytest
from support import ALL_CELLS, DEVICE
from torch_support import GPU, flat, integers, module, same, state, tensor, torch

pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # of a warm-up
SINGLE = torch.float32
SIZES = 32, 8, 64  # T, B, C = H
WARM_UP, REPLAYS = 3, 4


def recorded(run):
    """A function that does what `run` does, after calls of it outside: a graph's replay. Every time
    the same is dropped, since a graph has the seed of its capture."""

    def seeded():
        torch.manual_seed(3)
        run()

    if DEVICE == "cpu":
        for _ in range(WARM_UP):
            seeded()
        return seeded
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            seeded()
    torch.cuda.current_stream().wait_stream(side)
    torch.manual_seed(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def numbers(seed, grad=False):
    return tensor(*SIZES, dtype=SINGLE, seed=seed, grad=grad)


def lengths_of(seed):
    steps, batch = SIZES[:2]
    return integers([(7 * i + 5 * seed) % (steps + 1) for i in range(batch)])


@GPU
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_a_call_and_its_gradients(cell):
    rnn = module(cell, 64, 64, 2, dtype=SINGLE)
    x, h_0 = numbers(0, grad=True), state(rnn, 8, SINGLE)
    kept = []

    def run():
        x.grad = None
        rnn.zero_grad()
        y, h_n = rnn(x, h_0)
        sum(v.square().sum() for v in flat([y, h_n])).backward()
        kept[:] = [y, x.grad, *(p.grad for p in rnn.parameters())]

    replay = recorded(run)
    static = list(kept)
    with torch.no_grad():
        x.copy_(numbers(3))
    replay()
    got = [value.clone() for value in static]
    run()
    same(got, kept, 1e-6)


# ---- training


class Case(NamedTuple):
    cell: str
    own: dict
    ragged: bool = False
    half: bool = False


CASES = [
    Case("LSTM", {}),
    Case("LSTM", {"bidirectional": True}, half=True),
    Case("GRU", {"dropout": 0.5}),
    Case("MinGRU", {}),
    Case("MinGRU", {"dropout": 0.5, "zoneout": 0.1}, ragged=True),
    Case("LSTM", {"dropconnect": 0.2}, ragged=True),
    Case("SRU", {"batch_first": True}, ragged=True),
]


class Training:
    """A model, its optimiser, and a step that reads `given` and writes `loss`."""

    def __init__(self, case):
        self.rnn = module(case.cell, 64, 64, 2, dtype=SINGLE, **case.own)
        width = 64 * (1 + self.rnn.bidirectional)
        self.head = torch.nn.Linear(width, 64, device=DEVICE)
        params = [*self.rnn.parameters(), *self.head.parameters()]
        # eps is above what rounding makes of a gradient that is 0.
        on_device = DEVICE != "cpu"
        self.optimiser = torch.optim.Adam(params, 0.01, eps=1e-4, capturable=on_device)
        self.loss = torch.zeros((), device=DEVICE)
        self.case, self.given = case, batch_of(case, 0)

    def step(self):
        x, wanted, *lengths = self.given
        half = torch.autocast(DEVICE, torch.bfloat16) if self.case.half else None
        self.optimiser.zero_grad(set_to_none=True)
        with half or contextlib.nullcontext():
            y, _ = self.rnn(x, lengths=lengths[0] if lengths else None)
            error = self.head(y) - wanted
        loss = error.float().square().mean()
        loss.backward()
        self.optimiser.step()
        self.loss.copy_(loss.detach())


def batch_of(case, seed):
    out = [numbers(seed), numbers(100 + seed)]
    if case.own.get("batch_first"):
        out = [value.transpose(0, 1).contiguous() for value in out]
    return out + ([lengths_of(seed)] if case.ragged else [])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_training_step(case):
    """Losses over replays with other inputs in the same memory are those of eager steps with inputs
    of their own; and so are the parameters at the end."""
    still, eager = Training(case), Training(case)
    replay = recorded(still.step)
    for number in range(WARM_UP + REPLAYS):
        seed = max(0, number - WARM_UP + 1)  # a warm-up has the first
        eager.given = batch_of(case, seed)
        torch.manual_seed(3)
        eager.step()
        if seed:
            for value, new in zip(still.given, batch_of(case, seed), strict=True):
                value.copy_(new)
            replay()
            same([still.loss], [eager.loss], 1e-2 if case.half else 1e-5)
    share = 1e-1 if case.half else 1e-4
    same(list(still.rnn.parameters()), list(eager.rnn.parameters()), share)


class Model(torch.nn.Module):
    """torch graphs what has tensors by position."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, lengths):
        return self.rnn(x, lengths=lengths)


@GPU
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "MinGRU", "SRU"])
def test_callables_that_torch_graphs(cell):
    eager = Model(module(cell, 64, 64, 2, dtype=SINGLE))
    model = torch.cuda.make_graphed_callables(
        copy.deepcopy(eager), (numbers(0, grad=True), lengths_of(0))
    )
    for seed in (1, 2):
        found = []
        for call in (eager, model):
            x = numbers(seed, grad=True)
            out = flat(call(x, lengths_of(seed)))
            call.zero_grad()
            sum(v.square().sum() for v in out).backward()
            found.append([*out, x.grad, *(p.grad.clone() for p in call.parameters())])
        same(found[1], found[0], 1e-5)
