# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: T and B unknown to Inductor and to torch.export, and checkpoints in a compiled
function. test_torch_transforms.py has what torch.compile does otherwise."""

import functools
import io

import pytest
from support import ALL_CELLS
from torch.nn.utils.rnn import pack_padded_sequence
from torch_support import COMPILES, flat, integers, module, packed, same, state, tensor, torch


def results(call, rnn, x):
    rnn.zero_grad()
    leaf = x.clone().requires_grad_()
    out = flat(call(leaf))
    sum(value.square().sum() for value in out).backward()
    return [*out, leaf.grad, *(value.grad.clone() for value in rnn.parameters())]


@COMPILES
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_inductor_knows_no_sizes(cell):
    rnn = module(cell, 4, 6, 2)
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True)
    for steps, batch in ((5, 3), (9, 2), (17, 7)):
        x = tensor(steps, batch, 4)
        same(results(compiled, rnn, x), results(rnn, rnn, x))
    torch.compiler.reset()


SEVERAL = [9, 5, 4, 1], [7, 7, 2], [12, 2, 9, 2, 3, 1]  # lengths in batches of other sizes


@COMPILES
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_inductor_knows_no_sizes_of_ragged_batches(cell):
    rnn = module(cell, 4, 6, 2)

    def call(x, lengths):
        return rnn(x, lengths=lengths)

    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    for lengths in map(integers, SEVERAL):
        x = tensor(12, len(lengths), 4)
        got, want = (
            results(functools.partial(one, lengths=lengths), rnn, x) for one in (compiled, call)
        )
        same(got, want)
    torch.compiler.reset()


@COMPILES
@pytest.mark.parametrize("sorts", [False, True])
def test_inductor_takes_packed_sequences(sorts):
    """Without a break. torch itself breaks where sequences are packed."""
    rnn = module("LSTM", 4, 6, 2)

    def call(x, lengths):
        y, h_n = rnn(pack_padded_sequence(x, lengths, enforce_sorted=not sorts))
        return y.data, h_n

    def of_data(run, given):
        def called(x):
            y, h_n = run(given._replace(data=x))
            return y.data, h_n

        return called

    whole = torch.compile(call, dynamic=True)
    inner = torch.compile(rnn, fullgraph=True, dynamic=True)
    for lengths in SEVERAL if sorts else SEVERAL[:2]:
        x, lengths = tensor(12, len(lengths), 4), torch.tensor(lengths)
        got, want = (
            results(functools.partial(one, lengths=lengths), rnn, x) for one in (whole, call)
        )
        same(got, want)
        given = pack_padded_sequence(x, lengths, enforce_sorted=not sorts)
        got, want = (results(of_data(one, given), rnn, given.data) for one in (inner, rnn))
        same(got, want)
    torch.compiler.reset()


@COMPILES
def test_a_checkpoint_is_compiled():
    rnn = module("GRU", 4, 6, 2, dropout=0.5)

    def call(x):
        def part(x):
            return rnn(x)[0].sin()

        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)

    compiled, found = torch.compile(call, fullgraph=True, backend="aot_eager"), []
    for function in (call, compiled):
        torch.manual_seed(3)
        found.append(results(function, rnn, tensor(5, 3, 4)))
    same(*found)
    torch.compiler.reset()


@COMPILES
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_an_exported_program(cell):
    """It takes any T and B, also after it has been saved."""
    rnn = module(cell, 4, 6, 2, bidirectional=True).eval()
    steps, batch = torch.export.Dim("T", min=2), torch.export.Dim("B", min=2)
    of_state = {1: batch}
    of_states = (of_state,) * rnn._cell.states
    shapes = {0: steps, 1: batch}, of_states if len(of_states) > 1 else of_state
    given = tensor(5, 3, rnn.input_size), state(rnn, 3)
    program, file = torch.export.export(rnn, given, dynamic_shapes=shapes), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    given = tensor(9, 7, rnn.input_size), state(rnn, 7)
    for made in (program, torch.export.load(file)):
        same(made.module()(*given), rnn(*given))


@COMPILES
def test_an_exported_program_takes_lengths():
    rnn = module("MinGRU", 4, 6)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x, lengths):
            return self.rnn(x, lengths=lengths)

    x = tensor(5, 3, 4)
    steps, batch = torch.export.Dim("T", min=2), torch.export.Dim("B", min=2)
    shapes = {0: steps, 1: batch}, {0: batch}
    for strict in (False, True):
        program = torch.export.export(
            Model(), (x, integers([5, 2, 1])), dynamic_shapes=shapes, strict=strict
        )
        given, lengths = tensor(7, 4, 4), integers([1, 0, 4, 7])
        same(program.module()(given, lengths), rnn(given, lengths=lengths))


@COMPILES
def test_an_exported_program_takes_a_packed_sequence():
    rnn = module("GRU", 4, 6)
    first, other = (packed(tensor(9, 4, 4, seed=i), [9, 4, 1, 5]) for i in range(2))
    program = torch.export.export(rnn, (first,))
    (y, h_n), (want, last) = program.module()(other), rnn(other)
    same([y.data, h_n], [want.data, last])
