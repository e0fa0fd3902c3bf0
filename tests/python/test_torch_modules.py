# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: modules as objects, and bad input."""

import copy
import inspect
import io
import pickle

import numpy as np
import pytest
from scanrnn import _core
from support import ALL_CELLS, DEVICE, INFO, OPTION, assert_close, normal
from test_errors import raises
from torch_support import (
    TORCHS_OWN,
    WHOLE,
    WIDE,
    integers,
    module,
    numpy,
    operands,
    same,
    st,
    tensor,
    torch,
)

# ---- being a module


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_pickle_copy_and_move(cell):
    variant, (kind, own) = INFO[cell].variants[-1], INFO[cell].made_by()
    rnn = module(cell, 4, 6, 2, variant=variant)
    x = tensor(9, 3, rnn.input_size)
    wanted = rnn(x)[0]
    file = io.BytesIO()
    torch.save(rnn.state_dict(), file)
    file.seek(0)
    fresh = module(cell, 4, 6, 2, variant=variant)
    torch.nn.init.zeros_(fresh.weight_ih_l0)
    fresh.load_state_dict(torch.load(file))
    for other in (pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn), fresh):
        np.testing.assert_array_equal(numpy(other(x)[0]), numpy(wanted))
        assert repr(other) == repr(rnn)
    single = copy.deepcopy(rnn).to(torch.float32)
    assert single(x.float())[0].dtype == torch.float32
    assert_close(numpy(single(x.float())[0]), numpy(wanted), 1e-5)
    assert copy.deepcopy(rnn).to("meta").weight_ih_l0.is_meta
    assert repr(rnn).startswith(f"{kind}({rnn.input_size}, 6, num_layers=2")
    assert all(getattr(rnn, name) and f"{name}=True" in repr(rnn) for name in own)
    assert not variant or (getattr(rnn, OPTION[cell]) == variant and variant in repr(rnn))


@pytest.mark.parametrize("cell", TORCHS_OWN)
def test_what_a_program_may_ask_torchs_own(cell):
    sizes = {"num_layers": 2, "bias": False, "batch_first": True, "bidirectional": True}
    ours = getattr(st, cell)(4, 6, **sizes, device="cpu", dtype=WIDE)
    theirs = getattr(torch.nn, cell)(4, 6, **sizes, device="cpu", dtype=WIDE)
    for name in ("input_size", "hidden_size", "dropout", "proj_size", *sizes):
        assert getattr(ours, name) == getattr(theirs, name)
    assert repr(ours) == repr(theirs)
    shapes = [[[p.shape for p in group] for group in m.all_weights] for m in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    ours.flatten_parameters()
    ours.load_state_dict(theirs.state_dict())
    x = tensor(3, 9, 4).cpu()
    same(ours(input=x, hx=None), theirs(input=x, hx=None))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn_takes_its_nonlinearity_where_torchs_does(nonlinearity):
    given = 4, 6, 2, nonlinearity, False, True, 0.0, True
    named = {"num_layers": 2, "bias": False, "batch_first": True, "bidirectional": True}
    theirs, x = torch.nn.RNN(*given, dtype=WIDE), tensor(3, 9, 4).cpu()
    for ours in (
        st.RNN(*given, device="cpu", dtype=WIDE),
        st.RNN(4, 6, **named, nonlinearity=nonlinearity, device="cpu", dtype=WIDE),
    ):
        assert ours.nonlinearity == theirs.nonlinearity
        ours.load_state_dict(theirs.state_dict())
        same(ours(x), theirs(x))


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_directions_may_be_a_number_as_torchs(cell):
    rnn, theirs = (getattr(of, cell)(4, 6, bidirectional=1) for of in (st, torch.nn))
    assert rnn.bidirectional is True
    assert [*rnn.state_dict()] == [*theirs.state_dict()]
    assert st.replace(theirs) == [""]
    assert theirs.bidirectional is True


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_signatures_have_the_cells_own_options(cell):
    kind, _ = INFO[cell].made_by()
    found = inspect.signature(getattr(st, kind)).parameters
    for name, default in INFO[kind].own_options().items():
        assert found[name].default == default
    assert {"input_size", "hidden_size", "num_layers"} <= set(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_initial_values(dtype):
    """Others as torch's; RG-LRU's decays are drawn in float32 at least and then rounded."""
    rnn = module("RGLRU", 512, 512, dtype=dtype)
    bound = 1 / np.sqrt(512)
    for name in ("weight_ih_l0", "bias_ih_l0"):
        assert 0.98 * bound < getattr(rnn, name).abs().max() <= bound
    decay = np.exp(-8 * np.logaddexp(0, numpy(rnn.weight_a_l0)))
    rounded = 8 * torch.finfo(dtype).eps
    assert abs(decay.min() - 0.9) < 0.002 + rounded
    assert abs(decay.max() - 0.999) < 0.002 + rounded
    assert st.RGLRU(8, 8, device="meta").weight_a_l0.is_meta


def test_shapes_on_the_meta_device():
    rnn = st.MinGRU(4, 6, device="meta")
    y, h_n = rnn(torch.empty(9, 3, 4, device="meta"))
    assert (y.shape, h_n.shape, y.is_meta) == ((9, 3, 6), (1, 3, 6), True)


def test_dropout_is_governed_by_torchs_generator():
    rnn, x = module("MinGRU", 4, 32, 3, dropout=0.5), tensor(9, 3, 4, grad=True)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(numpy(rnn(x)[0]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.abs(draws[0] - draws[2]).max() > 0.01
    with torch.no_grad():
        torch.manual_seed(1)
        np.testing.assert_array_equal(numpy(rnn(x)[0]), draws[0])  # with or without a gradient
    rnn.eval()
    same([rnn(x)[0]], [rnn(x)[0]], 0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_activations_may_be_made_again(cell, reentrant):
    """By torch.utils.checkpoint, with what is dropped: the same bits."""
    rnn, lengths = module(cell, 4, 6, 2, dropout=0.5), integers([9, 2, 5])
    leaves, found = [tensor(9, 3, rnn.input_size, grad=True), *rnn.parameters()], []

    def call(x):
        return rnn(x, lengths=lengths)[0]

    def made_again(x):
        return torch.utils.checkpoint.checkpoint(call, x, use_reentrant=reentrant)

    for run in (call, made_again):
        torch.manual_seed(1)
        y = run(leaves[0])
        y.square().sum().backward()  # torch.autograd.grad is an error of the reentrant one
        found.append([y, *(leaf.grad.clone() for leaf in leaves)])
        for leaf in leaves:
            leaf.grad = None
    same(*found, share=0)


def test_training_finds_what_to_remember():
    torch.manual_seed(0)
    rnn = st.MinLSTM(2, 16, device=DEVICE)
    head = torch.nn.Linear(16, 2, device=DEVICE)
    params = [*rnn.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(params, 0.05)
    for _ in range(100):  # which of two symbols came first, 6 steps ago
        first = torch.randint(0, 2, (32,), device=DEVICE)
        x = torch.randn(6, 32, 2, device=DEVICE) * 0.1
        x[0] = torch.nn.functional.one_hot(first, 2).float()
        loss = torch.nn.functional.cross_entropy(head(rnn(x)[0][-1]), first)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


# ---- bad input


def test_errors():
    rnn, x = module("MinGRU", 4, 6, dtype=torch.float32), tensor(9, 3, 4, dtype=torch.float32)
    with raises(TypeError, "input: expected dtype torch.float32, that of the parameters, got .*64"):
        rnn(x.double())
    with raises(TypeError, "h_0: expected dtype torch.float32"):
        rnn(x, tensor(1, 3, 6))
    with raises(TypeError, "input: expected device .*, got meta: move one of them"):
        rnn(x.to("meta"))
    with raises(ValueError, "input: expected .T, B, C., or .*C = 4", r"got shape \(9, 3, 5\)"):
        rnn(tensor(9, 3, 5, dtype=torch.float32))
    with raises(ValueError, "input: expected", r"got shape \(4,\)"):
        rnn(x[0, 0])
    with raises(ValueError, r"h_0: expected shape \(1, 3, 6\) = ", r"got \(2, 3, 6\)"):
        rnn(x, tensor(2, 3, 6, dtype=torch.float32))
    with raises(TypeError, "h_0: expected a tensor, got tuple"):
        rnn(x, (x, x))
    with raises(TypeError, "input: expected a tensor, got ndarray"):
        rnn(normal(9, 3, 4))
    pair = module("LSTM", 4, 6, dtype=torch.float32)
    for nothing in ((), []):
        with raises(TypeError, r"h_0: expected the pair \(h_0, c_0\), got 0 of them"):
            pair(x, nothing)
    with raises(TypeError, r"c_0: expected a tensor, got NoneType"):
        pair(x, (tensor(1, 3, 6, dtype=torch.float32), None))
    sparse = module("LSTM", 4, 6, dtype=torch.float32)
    sparse.weight_hh_l0 = torch.nn.Parameter(sparse.weight_hh_l0.detach().to_sparse())
    with raises(TypeError, "weight_hh_l0: expected a dense tensor, got layout torch.sparse_coo"):
        sparse(x)
    pair.bias_ih_l0 = None
    with raises(TypeError, "bias_ih_l0: expected a parameter, got None"):
        pair(x)
    with raises(ValueError, "proj_size: expected 0"):
        module("MinGRU", 4, 6, proj_size=3)
    with raises(ValueError, "dtype: expected one of .*, got torch.int32"):
        module("MinGRU", 4, 6, dtype=torch.int32)
    with raises(ValueError, "hidden_size: expected a positive number, got 0"):
        module("MinGRU", 4, 0)
    with raises(ValueError, "candidate: expected one of 'g'", "got 'relu'"):
        module("MinGRU", 4, 6, candidate="relu")
    with raises(TypeError, "MinGRU: unexpected argument 'activation'"):
        module("MinGRU", 4, 6, activation="tanh")
    for changed, kind, parts in [
        ({"strategy": "fastest"}, ValueError, ("strategy: expected one of", "got 'fastest'")),
        ({"strategy": 1}, TypeError, ("strategy: expected a string, got 1",)),
        ({"candidate": 1}, TypeError, ("candidate: expected a string, got 1",)),
        ({"hidden_size": 6.0}, TypeError, ("hidden_size: expected an integer, got 6.0",)),
        ({"batch_first": "no"}, TypeError, ("batch_first: expected True or False, got 'no'",)),
        ({"dropout": "0.5"}, TypeError, ("dropout: expected a number, got '0.5'",)),
        ({"dropout": 1.5}, ValueError, (r"dropout: expected a probability in \[0, 1\)",)),
        ({"dtype": "float32"}, ValueError, ("dtype: expected one of .*, got 'float32'",)),
    ]:
        with raises(kind, *parts):
            st.MinGRU(**({"input_size": 4, "hidden_size": 6} | changed))
    with raises(ValueError, "Unknown nonlinearity 'gelu'. Select from 'tanh' or 'relu'."):
        st.RNN(4, 6, 1, "gelu")
    with raises(
        ValueError, "Unknown nonlinearity 'True'. Select from 'tanh' or 'relu'."
    ):  # as torch
        st.RNN(4, 6, 1, True)  # as if it were GRU, where bias comes here
    with raises(TypeError, "GRU: unexpected argument 'nonlinearity'"):
        st.GRU(4, 6, nonlinearity="tanh")
    with raises(TypeError, "MinGRU: unexpected argument 'peephole'"):
        st.MinGRU(4, 6, peephole=False)
    with raises(TypeError, "peephole: expected True or False, got 'no'"):
        st.SRU(4, 6, peephole="no")
    with raises(
        ValueError, "domain: SRU with peephole=True is no scan and has no choice, got 'linear'"
    ):
        st.SRU(4, 6, peephole=True, domain="linear")
    with raises(ValueError, "hidden_size: RGLRU reads x of its own unit.* input_size, 4, got 6"):
        st.RGLRU(4, 6)
    with raises(ValueError, "domain: LSTM is no scan and has no choice, got 'linear'"):
        st.LSTM(4, 6, domain="linear")
    with raises(TypeError, "input: expected a dense tensor, got layout torch.sparse_coo"):
        rnn(x.to_sparse())
    with raises(TypeError, "a: expected a tensor, got numpy.ndarray"):
        st.scan(normal(9, 3), x)
    with raises(TypeError, "h_0: expected a tensor, got float"):
        st.scan(x, x, 1.0)
    with raises(TypeError, "reverse: expected True or False, got 1"):
        st.scan(x, x, None, 1)
    with raises(TypeError, "b: expected dtype float32, got float64; nothing is cast"):
        st.scan(x, x.double())
    with raises(TypeError, "b: expected dtype complex64, got float32; nothing is cast"):
        st.scan(x.to(torch.complex64), x)
    with raises(TypeError, "a: expected dtype one of .*, got int64"):
        st.scan(x.long(), x)
    with raises(TypeError, "b: expected device .*, got meta"):
        st.scan(x, x.to("meta"))
    with raises(ValueError, r"h_0: expected shape \(3, 4\) to go", r"got \(1, 4\)"):
        st.scan(x, x, x[0, :1])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore")  # torch's, of a prototype
def test_nested_tensors_are_refused(layout):
    x = tensor(9, 3, 4)
    nested = torch.nested.nested_tensor([*x[:, :2].unbind(1), x[:4, 2]], layout=layout)
    state = torch.nested.nested_tensor([x[0], x[0, :2]], layout=layout)
    words = "expected a dense tensor, got layout nested"
    for name in ("MinGRU", "GRU", "LSTM"):
        rnn = module(name, 4, 6)
        with raises(TypeError, f"input: {words}"):
            rnn(nested)
        with raises(TypeError, f"input: {words}"):
            rnn(nested, lengths=integers([9, 9, 4]))
        if name != "LSTM":
            with raises(TypeError, f"h_0: {words}"):
                rnn(x, state)
    for kind in (st.GRUCell, st.LSTMCell):
        cell, pair = kind(4, 6, device=DEVICE, dtype=WIDE), kind is st.LSTMCell
        with raises(TypeError, f"input: {words}"):
            cell(state)
        with raises(TypeError, rf"{'hx.1.' if pair else 'hx'}: {words}"):
            cell(x[0], (x[0], state) if pair else state)
    with raises(TypeError, f"a: {words}"):
        st.scan(nested, nested)
    with raises(TypeError, f"b: {words}"):
        st.scan(x, nested)


def test_the_operator_checks_too():
    rnn = module("MinGRU", 4, 6)
    x, h_0, params = operands(rnn, 9, 3)
    description = rnn._description()
    with raises(TypeError, "weight_ih_l0: expected dtype float32, got float64"):
        torch.ops.scanrnn.layer(x.float(), [], params, *WHOLE, None, False, *description)
    with raises(ValueError, "params: expected 2 tensors, got 1"):
        torch.ops.scanrnn.layer(x, [], params[:1], *WHOLE, None, False, *description)
    with raises(RuntimeError, "backward needs what training=True leaves"):
        x.requires_grad_()
        torch.ops.scanrnn.layer(x, h_0, params, *WHOLE, None, False, *description)[
            0
        ].sum().backward()


def test_tokens_that_lie_apart_are_copied_once(monkeypatch):
    """On CUDA, where each of many products would be a launch; the CPU reads them where they are."""
    read = []

    def reading(own):
        def call(planned, plan, stream, params, x, *rest):
            read.append(x)
            return own(planned, plan, stream, params, x, *rest)

        return call

    for name in ("forward", "backward"):
        monkeypatch.setattr(_core, name, reading(getattr(_core, name)))
    whole, rnn = tensor(12, 6, 4, grad=True), module("MinGRU", 4, 8)
    for x in (whole[:, :3], whole[:, :, :], whole[:8, :3]):
        read.clear()
        y, _ = rnn(x)
        (gradient,) = torch.autograd.grad(y.sum(), whole)
        assert (gradient != 0).sum() == x.numel()
        forward, backward = read
        assert forward.data_ptr() == backward.data_ptr()
        apart = len(x) == 12 and x.shape[1] == 3
        assert (forward.data_ptr() != x.data_ptr()) == (apart and DEVICE == "cuda")
        assert torch.equal(forward, x)
