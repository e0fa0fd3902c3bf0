# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: second derivatives of linear cells, which are scans over all steps."""

import pytest
from scanrnn import formulas
from scanrnn.grid import Ways
from scanrnn.ragged import Ragged
from scanrnn.torch import functions
from support import ALL_CELLS, INFO, rows
from test_torch_second import shares
from torch.utils._python_dispatch import TorchDispatchMode
from torch_support import FORMS, flat, integers, module, options_of, same, state, tensor, torch

LINEAR = [cell for cell in ALL_CELLS if INFO[cell].recurrence == "linear"]
# Some of these sequences have no step, and the last has no token but an initial state.
EMPTY = {"cu_seqlens": [0, 0, 5, 5, 14, 14], "lengths": [0, 9, 1, 0]}


def twice(loss, inputs):
    """First and second derivatives."""
    inputs = [value for value in inputs if value.requires_grad]
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    return first, torch.autograd.grad(sum(d.square().sum() for d in first), inputs)


def by_formulas(ways, rnn, x, h_0, options):
    out = formulas.run(
        functions, x, h_0, list(rnn.parameters()), Ragged(**options), 5, rnn._description(), ways
    )
    return out, *twice(sum(value.sin().sum() for value in out), [x, *h_0, *rnn.parameters()])


def agree(rnn, x, h_0, options):
    ways = functions.WAYS, Ways(functions.one_by_one)
    scanned, walked = (by_formulas(way, rnn, x, h_0, options) for way in ways)
    for got, wanted in zip(scanned, walked, strict=True):
        same(got, wanted, 1e-10)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("cell", LINEAR)
def test_scans_are_the_walk(cell, form):
    rnn = module(cell, 3, 3, 2, bidirectional=True, **shares(cell))
    packed = form is not None and "packed" in form
    x = tensor(*((19,) if packed else (9, 4)), rnn.input_size, grad=True)
    agree(rnn, x, flat([state(rnn, 4, grad=True)]), options_of(form) if form else {})


@pytest.mark.parametrize("what", EMPTY)
@pytest.mark.parametrize("cell", LINEAR)
def test_sequences_without_a_step(cell, what):
    rnn = module(cell, 3, 3, 2, bidirectional=True)
    count = len(EMPTY[what]) - (what == "cu_seqlens")
    x = tensor(*((14,) if what == "cu_seqlens" else (9, 4)), rnn.input_size, grad=True)
    agree(rnn, x, flat([state(rnn, count, grad=True)]), {what: integers(EMPTY[what])})


@pytest.mark.parametrize("options", [{}, {"lengths": [0, 0]}, {"cu_seqlens": [0, 0, 0]}], ids=str)
@pytest.mark.parametrize("cell", ["MinGRU", "SRU"])
def test_no_step_at_all(cell, options):
    rnn, h_0 = module(cell, 3, 3, 2, bidirectional=True), None
    options = {name: integers(values) for name, values in options.items()}
    x = tensor(*((0,) if "cu_seqlens" in options else (0, 2)), rnn.input_size, grad=True)
    h_0 = state(rnn, 2, grad=True)
    y, h_n = rnn(x, h_0, **options)
    first, second = twice(y.sum() + h_n.square().sum(), [x, h_0])
    same(first, [x, 2 * h_0])
    same(second, [x, 8 * h_0])


@pytest.mark.parametrize("form", [None, "lengths_reset", "packed"])
@pytest.mark.parametrize("cell", [*LINEAR, "GRU"])
def test_no_steps_are_walked(cell, form, monkeypatch):
    """As many scans for many steps as for a few, and no walk; other cells walk."""
    rnn, calls = module(cell, 3, 3, 2, bidirectional=True), []

    def scan(*args):
        calls.append("scan")
        return functions.scan(*args)

    def walk(*args):
        calls.append("walk")
        return functions.one_by_one(*args)

    monkeypatch.setattr(functions, "WAYS", Ways(walk, scan))
    for steps in (9, 90):
        calls.clear()
        if form == "packed":
            x, options = tensor(steps, rnn.input_size), {"cu_seqlens": integers([0, 5, 5, steps])}
        else:
            x = tensor(steps, 4, rnn.input_size)
            options = options_of(form, steps) if form else {}
        twice(rnn(x.requires_grad_(), **options)[0].sin().sum(), [x])
        assert calls == ["walk" if cell == "GRU" else "scan"] * rows(rnn)


class Made(TorchDispatchMode):
    """Counts the elements of all that torch makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [out] if isinstance(out, torch.Tensor) else out
        if isinstance(made, (list, tuple)):
            self.elements += sum(v.numel() for v in made if isinstance(v, torch.Tensor))
        return out


@pytest.mark.parametrize("cell", ["MinGRU", "GRU"])
def test_work_grows_with_the_number_of_steps_alone(cell):
    rnn, found = module(cell, 3, 3), []
    for steps in (128, 256, 512):  # so many rows of tokens have no rest
        x = tensor(steps, 2, 3, grad=True)
        with Made() as made:
            twice(rnn(x)[0].sin().sum(), [x])
        found.append(made.elements)
    few, some, many = found
    assert abs((many - some) / (some - few) - 2) < 0.02


@pytest.mark.parametrize("cell", LINEAR)
def test_third_derivatives(cell):
    variant = "tanh" if "tanh" in INFO[cell].variants else None  # which has no jump
    rnn = module(cell, 2, 2, variant=variant, bidirectional=True)

    def curves(x, h_0):
        first = torch.autograd.grad(rnn(x, h_0)[0].sin().sum(), (x, h_0), create_graph=True)
        total = sum(d.square().sum() for d in first)
        return torch.autograd.grad(total, (x, h_0), create_graph=True)

    x, h_0 = tensor(3, 1, rnn.input_size, grad=True), state(rnn, 1, grad=True)
    assert torch.autograd.gradcheck(curves, (x, h_0), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_steps(dtype):
    results = []
    for kind in (dtype, torch.float64):
        rnn = module("MinLSTM", 3, 5, bidirectional=True, dtype=dtype).to(kind)
        x = tensor(4000, 2, 3, dtype=dtype).to(kind).requires_grad_()
        _, second = twice(rnn(x)[0].square().mean() * 100, [x, *rnn.parameters()])
        results.append(second)
    assert {value.dtype for value in results[0]} == {dtype}
    same(*results, share=5e-2 if dtype == torch.bfloat16 else 1e-4)
