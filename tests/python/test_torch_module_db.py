# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: torch's own samples of its recurrent modules, given to ours in their place.

What is asked of a module is what torch's own tests of modules ask.
"""

import copy
import pickle

import pytest
from support import DEVICE
from torch_module_db import (
    CELLS,
    CONSTRUCTION,
    INFOS,
    LAYERS,
    RECTANGULAR,
    SAMPLES,
    Packed,
    both,
    construct,
    error_samples,
    sample_of,
    samples,
)
from torch_support import WIDE, same, st, torch

pytree = torch.utils._pytree

EVERY_SAMPLE = pytest.mark.parametrize(("name", "at"), SAMPLES)
EVERY_CLASS = pytest.mark.parametrize("name", INFOS)
EVERY_LAYER = pytest.mark.parametrize("name", LAYERS)


def tensors(value):
    """Those of inputs or outputs that hold floating-point numbers."""
    leaves = pytree.tree_flatten(
        pytree.tree_map(lambda v: list(v) if isinstance(v, Packed) else v, value)
    )[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def test_every_class_is_tested():
    assert set(LAYERS) == {"RNN", "LSTM", "GRU"}
    assert set(CELLS) == {"RNNCell", "LSTMCell", "GRUCell"}
    assert not torch.backends.flags_frozen()  # which torch's samples do when they are imported


@EVERY_SAMPLE
def test_forward(name, at):
    sample = sample_of(name, at)
    ours, theirs = both(name, sample)
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        got, wanted = ours(*args, **kwargs), theirs(*args, **kwargs)
        assert type(got[0]) is type(wanted[0])
        same(tensors(got), tensors(wanted), 1e-10)
        if sample.reference_fn is not None and not isinstance(args[0], Packed):
            by_reference = sample.reference_fn(ours, *args, **kwargs)
            same(tensors(got), tensors(by_reference))


@EVERY_SAMPLE
def test_first_and_second_derivatives(name, at):
    sample = sample_of(name, at)
    ours, _ = both(name, sample)
    args, count = sample.forward_input.args, len(tensors(sample.forward_input.args))
    names = [name for name, _ in ours.named_parameters()]

    def call(*flat):
        given = iter(flat[:count])
        packed = isinstance(args[0], Packed)
        values = [args[0]._replace(data=next(given))] if packed else [next(given)]
        values += pytree.tree_map_only(torch.Tensor, lambda _: next(given), list(args[1:]))
        params = dict(zip(names, flat[count:], strict=True))
        return tuple(tensors(torch.func.functional_call(ours, params, tuple(values))))

    flat = [value.detach().requires_grad_() for value in (*tensors(args), *ours.parameters())]
    assert torch.autograd.gradcheck(call, flat, fast_mode=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, flat, fast_mode=True, check_batched_grad=True)


def scattered(value):
    """The same numbers, every other one of a larger tensor's."""
    wide = torch.repeat_interleave(value.detach(), 2, dim=-1)
    return wide[..., ::2].requires_grad_()


@pytest.mark.parametrize(("name", "at"), RECTANGULAR)  # what is packed has been copied
def test_inputs_that_are_not_contiguous(name, at):
    sample = sample_of(name, at)
    ours, _ = both(name, sample)
    results = []
    for of_leaf in (lambda v: v.detach().requires_grad_(), scattered):
        args = pytree.tree_map_only(torch.Tensor, of_leaf, list(sample.forward_input.args))
        ours.zero_grad()
        out = tensors(ours(*args))
        sum(value.sin().sum() for value in out).backward()
        leaves = [*tensors(args), *ours.parameters()]
        results.append([*out, *(leaf.grad for leaf in leaves)])
    assert not tensors(args)[0].is_contiguous()
    same(*results, share=0)


@EVERY_SAMPLE
def test_copies(name, at):
    sample = sample_of(name, at)
    ours, _ = both(name, sample)
    args = sample.forward_input.args
    wanted = tensors(ours(*args))
    for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), copy.copy(ours)):
        assert type(other) is type(ours)
        same(tensors(other(*args)), wanted, 0)


@EVERY_SAMPLE
def test_factory_arguments_and_moves(name, at):
    kind, given = getattr(st, name), sample_of(name, at).constructor_input
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        rnn = construct(kind, given, device=DEVICE, dtype=dtype)
        assert {p.dtype for p in rnn.parameters()} == {dtype}
        assert {p.device.type for p in rnn.parameters()} == {DEVICE}
    with torch.device("meta"):
        assert all(p.is_meta for p in construct(kind, given).parameters())
    rnn = construct(kind, given, device="meta").to_empty(device=DEVICE)
    rnn.reset_parameters()
    moved = rnn.to(WIDE).to("cpu").to(DEVICE)
    sample = sample_of(name, at)
    assert moved is rnn
    wanted = [value.detach() for value in tensors(rnn(*sample.forward_input.args))]
    future = torch.__future__
    future.set_swap_module_params_on_conversion(True)
    try:
        before = [id(value) for value in rnn.parameters()]
        rnn.float().double()
        assert before == [id(value) for value in rnn.parameters()]
    finally:
        future.set_swap_module_params_on_conversion(False)
    same(tensors(rnn(*sample.forward_input.args)), wanted, 1e-5)


@EVERY_CLASS
def test_state_dicts_go_both_ways(name):
    for sample in samples(name):
        ours, theirs = both(name, sample)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        with torch.no_grad():
            for value in ours.parameters():
                value.mul_(2)
        theirs.load_state_dict(ours.state_dict())
        same(list(ours.parameters()), list(theirs.parameters()), 0)
        if name in LAYERS:
            for mine, other in zip(ours.all_weights, theirs.all_weights, strict=True):
                same(mine, other, 0)


@EVERY_CLASS
@pytest.mark.parametrize("whose", ["ours", "torch's"])  # torch's too: the samples are as expected
def test_errors(name, whose):
    kind = getattr(st if whose == "ours" else torch.nn, name)
    for error in error_samples(name):
        given = error.module_error_input
        if error.error_on == CONSTRUCTION:
            with pytest.raises(error.error_type, match=error.error_regex):
                construct(kind, given.constructor_input)
            continue
        rnn = construct(kind, given.constructor_input)
        with pytest.raises(error.error_type, match=error.error_regex):
            rnn(*given.forward_input.args, **given.forward_input.kwargs)


# Beyond torch's samples: (module and input -> a wrong call). Both say the same.
OTHER_DEVICE = "cpu" if DEVICE == "cuda" else "meta"
WRONG_CALLS = {
    "rank": lambda rnn, x, hx: rnn(x[0, 0]),
    "rank of four": lambda rnn, x, hx: rnn(x[None]),
    "size": lambda rnn, x, hx: rnn(x[..., :3]),
    "dtype": lambda rnn, x, hx: rnn(x.float()),
    "states of a batch": lambda rnn, x, hx: rnn(x[:, 0], hx),
    "states of one": lambda rnn, x, hx: rnn(x, pytree.tree_map(lambda h: h[:, 0], hx)),
    "sizes of states": lambda rnn, x, hx: rnn(x, pytree.tree_map(lambda h: h[:, :2], hx)),
    "dtype of states": lambda rnn, x, hx: rnn(x, pytree.tree_map(torch.Tensor.float, hx)),
    "device of states": lambda rnn, x, hx: rnn(
        x, pytree.tree_map(lambda h: h.to(OTHER_DEVICE), hx)
    ),
}
WRONG_ARGUMENTS = [
    ((4, 6, 0), {}),
    ((4, 6), {"dropout": 1.5}),
    ((4, 6), {"dropout": True}),
    ((4, 6), {"dropout": -0.5}),
    ((4, -6), {}),
    ((4, "6"), {}),
    ((4, 6, 1, "gelu"), {}),
    ((4, 6, 1, 3), {}),
    ((4,), {}),
]


def said(call, *args, **kwargs):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("wrong", WRONG_CALLS)
@EVERY_LAYER
def test_wrong_calls_are_torchs_errors(name, wrong):
    ours, theirs = (getattr(m, name)(4, 6, device=DEVICE, dtype=WIDE) for m in (st, torch.nn))
    x = torch.randn(9, 3, 4, device=DEVICE, dtype=WIDE)
    h = torch.randn(1, 3, 6, device=DEVICE, dtype=WIDE)
    hx = (h, h) if name == "LSTM" else h
    wanted, got = (said(WRONG_CALLS[wrong], rnn, x, hx) for rnn in (theirs, ours))
    assert type(got) is type(wanted)
    if wrong != "dtype of states":  # of which each device says something else
        words = str(wanted).removesuffix(" instead").removesuffix(" tensor")
        assert str(got).startswith(words)


@pytest.mark.parametrize(("args", "options"), WRONG_ARGUMENTS, ids=str)
@EVERY_LAYER
def test_wrong_arguments_are_torchs_errors(name, args, options):
    wanted, got = (said(getattr(m, name), *args, **options) for m in (torch.nn, st))
    assert type(got) is type(wanted)
    if str(wanted).startswith(("dropout", "hidden", "num", "bias", "Unknown")):
        assert str(got).startswith(str(wanted))


def test_an_lstm_has_two_states():
    x, h = torch.zeros(9, 3, 4), torch.zeros(1, 3, 6)
    wanted, got = (said(m.LSTM(4, 6), x, (h, h, h)) for m in (torch.nn, st))
    assert type(got) is type(wanted)
    assert str(got).startswith(str(wanted))


@pytest.mark.parametrize("name", ["RNN", "GRU"])
def test_projections_are_lstms_alone(name):
    wanted, got = (said(getattr(m, name), 4, 6, proj_size=3) for m in (torch.nn, st))
    assert (type(got), str(got)) == (type(wanted), str(wanted))


@EVERY_LAYER
def test_dropout_behind_no_layer_is_a_warning(name):
    for module in (torch.nn, st):
        with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
            getattr(module, name)(4, 6, dropout=0.5)


@EVERY_LAYER
def test_pickles_of_torchs_own_go_on(name):
    """What torch.nn's class has pickled, read as ours."""
    theirs = getattr(torch.nn, name)(4, 6, 2, bidirectional=True, device=DEVICE, dtype=WIDE).eval()
    ours = getattr(st, name).__new__(getattr(st, name))
    ours.__setstate__(pickle.loads(pickle.dumps(theirs.__getstate__())))
    x = torch.randn(9, 3, 4, device=DEVICE, dtype=WIDE)
    same(tensors(ours(x)), tensors(theirs(x)), 1e-10)
    assert not ours.training
    assert (repr(ours), ours.mode) == (repr(theirs), theirs.mode)
    again = pickle.loads(pickle.dumps(ours))
    same(tensors(again(x)), tensors(ours(x)), 0)
