# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: cotangents that are a batch, against the same ones by one."""

import functools

import pytest
from support import ALL_CELLS
from test_scan_torch import FORMS as SCANS
from test_scan_torch import Case
from test_torch_second import shares
from test_torch_transforms import Seen
from torch_support import (
    COMPILES,
    LENGTHS,
    flat,
    input_of,
    module,
    options_of,
    packed,
    same,
    st,
    state,
    tensor,
    torch,
)

COUNT = 3


def cotangents(values):
    """A batch for each of them."""
    shapes = [(COUNT, *value.shape) for value in values]
    if values[0].is_complex():
        return [torch.complex(tensor(*s), tensor(*s, seed=1)) for s in shapes]
    return [tensor(*shape, seed=i) for i, shape in enumerate(shapes)]


def by_batch(outputs, inputs, given, **options):
    return torch.autograd.grad(
        outputs, inputs, given, retain_graph=True, is_grads_batched=True, **options
    )


def by_one(outputs, inputs, given, **options):
    calls = [
        torch.autograd.grad(outputs, inputs, [g[i] for g in given], retain_graph=True, **options)
        for i in range(COUNT)
    ]
    return [None if d[0] is None else torch.stack(d) for d in zip(*calls, strict=True)]


def squares(values):
    return sum(value.abs().square().sum() for value in values)


def agree(*both):
    same(*([torch.view_as_real(v) if v.is_complex() else v for v in values] for values in both))


def check(outputs, inputs):
    """First derivatives, with a graph too, and second ones."""
    outputs = [value for value in outputs if value.requires_grad]
    given = cotangents(outputs)
    wanted = by_one(outputs, inputs, given)
    assert any(value.abs().max() > 0 for value in wanted)
    agree(by_batch(outputs, inputs, given), wanted)
    slopes = [call(outputs, inputs, given, create_graph=True) for call in (by_batch, by_one)]
    agree(*slopes)
    again = [
        torch.autograd.grad(total, inputs, retain_graph=True) for total in map(squares, slopes)
    ]
    agree(*again)
    first = torch.autograd.grad(outputs, inputs, [value[0] for value in given], create_graph=True)
    given = cotangents(first)
    agree(*(call(first, inputs, given) for call in (by_batch, by_one)))


@pytest.mark.parametrize("form", [None, "lengths", "packed_reset"])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_layers(cell, form):
    rnn = module(cell, 2, 3, 2, bidirectional=True, **shares(cell))
    x, h_0 = input_of(rnn, form or "lengths", grad=True), state(rnn, 4, grad=True)
    out = flat(rnn(x, h_0, **(options_of(form) if form else {})))
    leaves = [value for value in flat([x, h_0, *rnn.parameters()]) if value.requires_grad]
    check(out, leaves)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_packed_sequences(cell):
    rnn, x = module(cell, 4, 6, 2, bidirectional=True), tensor(9, 4, 4, grad=True)
    y, h_n = rnn(packed(x, LENGTHS))
    check(flat([y.data, h_n]), [x, *rnn.parameters()])


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("form", SCANS)
def test_scans(form, start):
    case = Case(form, (5, 2, 3), axis=1, reverse=True, start=start)
    check([case.scan(*case.leaves)], case.leaves)


def test_what_is_not_wanted_has_none():
    rnn, x = module("GRU", 2, 3), tensor(5, 2, 2, grad=True)
    rnn.requires_grad_(False)
    h_0 = state(rnn, 2, grad=True)
    y, h_n = rnn(x, h_0)
    check([h_n], [x, h_0])
    check([y], [h_0])


def test_operators():
    """What a mode has seen in forward has the operators' derivatives."""
    rnn, x = module("LSTM", 2, 3), tensor(5, 2, 2, grad=True)
    case = Case("linear", (5, 2))
    with Seen():
        outs = [flat(rnn(x)), [case.scan(*case.leaves)]]
    assert "Layer" not in type(outs[0][0].grad_fn).__name__
    for out, leaves in zip(outs, ([x, *rnn.parameters()], case.leaves), strict=True):
        check(out, leaves)


@pytest.mark.parametrize("cell", ["MinGRU", "GRU"])
def test_under_vmap(cell):
    rnn, x = module(cell, 2, 3), tensor(4, 5, 2, 2, grad=True)
    check(flat(torch.vmap(rnn)(x)), [x, *rnn.parameters()])


def by_checkpoint(call):
    return functools.partial(torch.utils.checkpoint.checkpoint, call, use_reentrant=False)


def compiled(call):
    torch.compiler.reset()
    return torch.compile(call, backend="aot_eager")


@COMPILES
@pytest.mark.parametrize("way", [by_checkpoint, compiled])
def test_ways_to_call(way):
    rnn, case, x = module("GRU", 2, 3), Case("log", (5, 2)), tensor(5, 2, 2, grad=True)
    for call, given, leaves in (
        (lambda v: flat(rnn(v)), [x], [x, *rnn.parameters()]),
        (lambda *v: [case.scan(*v)], case.leaves, case.leaves),
    ):
        out = call(*given)
        batches = cotangents(out)
        same(by_batch(way(call)(*given), leaves, batches), by_one(out, leaves, batches))


def test_batches_of_batches():
    rnn, x = module("GRU", 2, 3), tensor(5, 2, 2, grad=True)
    leaves = [x, *rnn.parameters()]
    y, h_n = rnn(x)
    given = tensor(2, COUNT, *y.shape), tensor(COUNT, *h_n.shape, seed=1)

    def inner(dy):
        return by_batch([y, h_n], leaves, [dy, given[1]])

    got = torch._vmap_internals._vmap(inner)(given[0])
    wanted = [by_one([y, h_n], leaves, [dy, given[1]]) for dy in given[0]]
    same(got, [torch.stack(values) for values in zip(*wanted, strict=True)])


def test_jacobians_and_hessians():
    rnn, x, b = module("GRU", 2, 3), tensor(3, 2, 2), tensor(4, 3, seed=1)
    f = torch.autograd.functional
    for call, at in (
        (lambda v: rnn(v)[0].sin(), x),
        (lambda v: rnn(v, lengths=torch.tensor([3, 1]))[1].sin(), x),
        (lambda v: st.scan(v, b).sin(), tensor(4, 3).sigmoid()),
        (lambda v: st.scan_log(-v.abs(), b, log_output=True)[0].sin(), tensor(4, 3)),
    ):
        same(*([f.jacobian(call, at, vectorize=v)] for v in (True, False)))
        total = functools.partial(lambda call, v: call(v).sum(), call)
        same(*([f.hessian(total, at, vectorize=v)] for v in (True, False)))


def test_a_batch_of_a_scan_is_one_call(monkeypatch):
    calls, scan_backward = [], st.scan_op.Torch.scan_backward
    monkeypatch.setattr(
        st.scan_op.Torch, "scan_backward", lambda *a: calls.append(a) or scan_backward(*a)
    )
    case = Case("linear", (5, 2))
    h = case.scan(*case.leaves)
    by_batch([h], case.leaves, cotangents([h]))
    assert len(calls) == 1
