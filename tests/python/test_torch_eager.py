# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: calls in eager mode, which go past torch's dispatcher, and short ways of those
that are as nearly all are."""

import pytest
from scanrnn import _core
from support import DEVICE
from test_torch_cells import EVERY_CELL, both
from test_torch_cells import state as cells_state
from test_torch_transforms import Seen
from torch_support import flat, module, same, st, state, tensor, torch

# ---- usual calls


def usual_in_eager_mode_alone(module, x, hx):
    """That a call goes the long way under autocast, in forward mode and under vmap."""
    with torch.autocast(DEVICE.partition(":")[0], torch.bfloat16):
        assert module._usual(x, hx) is None
    with torch.autograd.forward_ad.dual_level():
        assert module._usual(x, hx) is None
    torch.func.vmap(lambda one: one * (1 if module._usual(x, hx) is None else 1 / 0))(x)
    assert module._usual(x, hx) is not None


@pytest.mark.parametrize("cell", ["LSTM", "MinGRU"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_usual_call_is_what_the_long_way_gives(cell, grad, monkeypatch):
    rnn, x = module(cell, 3, 4, batch_first=True), tensor(2, 5, 3, grad=grad)
    found = []
    for h_0 in (None, state(rnn, 2)):
        with torch.set_grad_enabled(grad):
            found.append(rnn._usual(x, h_0))
        assert found[-1] is not None
        assert found[-1][0].requires_grad == grad
    monkeypatch.setattr(st.Recurrent, "_usual", lambda *_: None)
    for got, h_0 in zip(found, (None, state(rnn, 2)), strict=True):
        for one, other in zip(flat(got), flat(rnn(x, h_0)), strict=True):
            assert torch.equal(one, other)


def test_what_is_not_usual_goes_the_long_way():
    lstm, gru, x = module("LSTM", 3, 4), module("GRU", 3, 4), tensor(5, 2, 3)
    h, wrong = state(gru, 2), state(gru, 3)
    calls = [
        (lstm, x, h), (lstm, x, (h,)), (lstm, x, (h, None)), (lstm, x, (h, wrong)),
        (gru, x, (h,)), (gru, x, wrong), (gru, x, h.float()), (gru, x, h.to("meta")),
        (gru, x.float(), None), (gru, x[0], None), (gru, x[..., :2], None), (gru, None, None),
        (gru, x.to_sparse(), None), (gru, torch.nn.utils.rnn.pack_sequence([x[:, 0]]), None),
        (module("MinGRU", 3, 4, 2, dropout=0.5), x, None),
    ]  # fmt: skip
    assert [rnn._usual(*given) for rnn, *given in calls] == [None] * len(calls)
    usual_in_eager_mode_alone(gru, x, None)


def test_plans_are_said_to_who_wants_them(monkeypatch, capsys):
    rnn = module("GRU", 3, 4)

    def said():
        rnn(tensor(5, 2, 3, grad=True))[0].sum().backward()
        return capsys.readouterr().err.splitlines()

    monkeypatch.delenv("SCANRNN_LOG", raising=False)
    assert said() == []
    monkeypatch.setenv("SCANRNN_LOG", "plan")
    assert len(lines := said()) == 2
    assert all(line.startswith("scanrnn: ") and "T=5 B=2 H=4" in line for line in lines)


@pytest.mark.parametrize("grad", [False, True])
def test_a_tensor_that_a_transformation_has_left_is_what_it_was(grad):
    rnn, x, left = module("GRU", 3, 4), tensor(5, 2, 3), []
    torch.func.grad(lambda value: (left.append(value), value.sum())[1])(x)
    with torch.set_grad_enabled(grad):
        y, wanted = rnn(left[0])[0], rnn(x)[0]
    assert torch.equal(y, wanted)
    assert y.requires_grad == grad


def fitting(name):
    """Calls of a cell that are as nearly all are: input, and states before it."""
    parts = flat([cells_state(name, 3)])
    return (tensor(3, 4), []), (tensor(3, 4), parts)


@EVERY_CELL
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_usual_step_is_what_the_long_way_gives(name, bias, grad, monkeypatch):
    cell, _ = both(name, bias=bias)
    with torch.set_grad_enabled(grad):
        found = [cell._usual(*given) for given in fitting(name)]
        monkeypatch.setattr(type(cell), "_usual", lambda *_: None)
        wanted = [cell._one(*given) for given in fitting(name)]
    for got, want in zip(found, wanted, strict=True):
        assert [value.requires_grad for value in got] == [grad] * len(want)
        same(list(got), want, 0)


@EVERY_CELL
def test_a_step_that_is_not_usual_goes_the_long_way(name):
    cell, _ = both(name)
    _, (x, hx) = fitting(name)
    calls = [
        (x[0], []), (x[..., :2], []), (x.float(), []), (x.to_sparse(), []), (None, []),
        (x, [hx[0][0], *hx[1:]]), (x, [hx[0][:2], *hx[1:]]), (x, [hx[0].float(), *hx[1:]]),
        (x, [*hx[:-1], None]), (x, [*hx[:-1], hx[-1].to("meta")]),
    ]  # fmt: skip
    assert [cell._usual(*given) for given in calls] == [None] * len(calls)
    usual_in_eager_mode_alone(cell, x, hx)
    torch.nn.utils.parametrizations.weight_norm(cell, "weight_hh")
    assert cell._usual(x, hx) is None


@EVERY_CELL
def test_a_step_in_eager_mode_is_the_operator(name):
    cell, _ = both(name)
    x, hx = tensor(3, 4, grad=True), cells_state(name, 3, grad=True)

    def run():
        out = flat([cell(x, hx)])
        leaves = [x, *flat([hx]), *cell.parameters()]
        return [*out, *torch.autograd.grad([v.sin().sum() for v in out], leaves)]

    eager = run()
    with Seen() as seen:
        watched = run()
    assert seen.names == ["layer", "layer_backward"]
    same(eager, watched, 0)
    with torch.no_grad(), Seen() as seen:
        same(flat([cell(x, hx)]), eager[: len(flat([hx]))], 0)
    assert seen.names == ["layer"]


# ---- how memory is to be read


def turned(value):
    """The same values, where memory has them with the other sign."""
    with torch.no_grad():
        out = torch._neg_view(-value)
    assert out.is_neg()
    return out


def results(rnn, x, states, turn):
    """What a call gives, and its gradients, when `turn` has been done to all that it is given."""
    x, *states = (turn(value).requires_grad_() for value in (x, *states))
    h_0 = tuple(states) if len(states) > 1 else states[0]
    out = flat(flat([rnn(x, h_0)]))
    cotangents = [turn(value.detach().sin()) for value in out]
    with torch.no_grad():
        inference = flat(flat([rnn(x, h_0)]))
    leaves = [x, *states, *rnn.parameters()]
    return [*inference, *out, *torch.autograd.grad(out, leaves, cotangents)]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "MinGRU"])
def test_signs_that_a_bit_turns(cell):
    rnn, x = module(cell, 4, 6), tensor(5, 3, 4)
    states = flat([state(rnn, 3)])
    wanted = results(rnn, x, states, torch.clone)
    same(results(rnn, x, states, turned), wanted, 0)
    rnn.weight_ih_l0 = torch.nn.Parameter(turned(rnn.weight_ih_l0))
    same(results(rnn, x, states, torch.clone), wanted, 0)


@EVERY_CELL
def test_signs_of_a_step_that_a_bit_turns(name):
    cell, _ = both(name)
    x, states = tensor(3, 4), flat([cells_state(name, 3)])
    wanted = results(cell, x, states, torch.clone)
    same(results(cell, x, states, turned), wanted, 0)
    cell.bias_hh = torch.nn.Parameter(turned(cell.bias_hh))
    same(results(cell, x, states, torch.clone), wanted, 0)


@pytest.mark.parametrize("cell", ["LSTM", "MinGRU"])
def test_memory_that_cannot_be_walked_is_copied(cell):
    """Operands whose last axis is not contiguous, and a cotangent that is one number."""
    rnn, x = module(cell, 4, 6), tensor(5, 3, 4)
    states = flat([state(rnn, 3)])

    def turn(value):
        return value.mT.contiguous().mT

    wanted = results(rnn, x, states, torch.clone)
    same(results(rnn, x, states, turn), wanted, 0)
    name = rnn._names[0]
    setattr(rnn, name, torch.nn.Parameter(turn(getattr(rnn, name).detach())))
    same(results(rnn, x, states, torch.clone), wanted, 0)
    gradients = []
    for ones in (torch.ones(5, 3, 6), torch.ones(1).expand(5, 3, 6)):
        y, _ = rnn(x)
        gradients.append(torch.autograd.grad(y, rnn.parameters(), ones.to(y)))
    same(*gradients, share=0)


# ---- gradients


@pytest.mark.parametrize("cell", ["LSTM", "MinGRU"])
def test_each_gradient_that_is_wanted_alone(cell):
    """Whatever else is left out of the way back."""
    rnn, x = module(cell, 4, 6), tensor(5, 3, 4, grad=True)
    states = [value.requires_grad_() for value in flat([state(rnn, 3)])]
    leaves = [x, *states, *rnn.parameters()]

    h_0 = tuple(states) if len(states) > 1 else states[0]

    def loss():
        return sum(value.sin().sum() for value in flat(rnn(x, h_0)))

    wanted = torch.autograd.grad(loss(), leaves)
    for leaf, want in zip(leaves, wanted, strict=True):
        for other in leaves:
            other.requires_grad_(other is leaf)
        (got,) = torch.autograd.grad(loss(), leaf)
        assert torch.equal(got, want)


def test_gradients_are_taken_as_they_come(monkeypatch):
    """torch takes what a backward gives in place of a copy of it: each is memory of its own."""
    rnn, x, made = module("GRU", 4, 6), tensor(5, 3, 4), []
    backward = _core.backward

    def noted(*args):
        made.extend(value.data_ptr() for value in args[11])
        return backward(*args)

    monkeypatch.setattr(_core, "backward", noted)
    rnn(x)[0].sum().backward()
    assert [value.grad.data_ptr() for value in rnn.parameters()] == made
