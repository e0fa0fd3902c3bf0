# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: T and B unknown to Inductor and to torch.export, and checkpoints in a compiled
function. test_torch_transforms.py has what torch.compile does otherwise."""

import io

import pytest
from support import ALL_CELLS
from torch_support import COMPILES, flat, integers, module, same, state, tensor, torch


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
    """Of any T and B, also after it has been saved."""
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
    program = torch.export.export(Model(), (x, integers([5, 2, 1])), strict=True)
    lengths = integers([1, 0, 4])
    same(program.module()(x, lengths), rnn(x, lengths=lengths))
