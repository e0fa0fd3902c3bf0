# SPDX-License-Identifier: Apache-2.0
"""Dense cells: against the oracle and against torch.nn, with states that are pairs."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import reference
import scanrnn
from ragged_support import as_state, flat
from support import (
    DENSE,
    DENSE_VARIANTS,
    INFO,
    OPTION,
    assert_close,
    differentiable,
    make,
    normal,
    normal_states,
    tolerance,
)

DTYPES = ["float64", "float32", "float16", "bfloat16"]


def state_of(cell, *shape, dtype=np.float32, seed=1):
    return as_state(normal_states(cell, *shape, dtype=dtype, seed=seed))


def agrees(rnn, x, state=None, strategy=None):
    y, last = rnn(x, state, strategy=strategy)
    wanted_y, wanted_last = reference.run_dense(
        rnn, x.swapaxes(0, 1) if rnn.batch_first else x, None if state is None else flat(state)
    )
    wanted_y = wanted_y.swapaxes(0, 1) if rnn.batch_first else wanted_y
    share = rnn.num_layers * tolerance(str(rnn.dtype), x.shape[1 if rnn.batch_first else 0])
    assert_close(y, wanted_y, share, f"y of {rnn}")
    assert isinstance(last, tuple) == (len(wanted_last) > 1)
    for got, wanted in zip(flat(last), wanted_last, strict=True):
        assert got.dtype == rnn.dtype
        assert_close(got, wanted, share, f"state of {rnn}")
    return y, last


@pytest.mark.parametrize("cell", [cell for cell in DENSE if not INFO[cell].base])
def test_signature_is_that_of_torch_plus_ours(cell):
    found = inspect.signature(getattr(scanrnn, cell)).parameters
    assert list(found) == [
        *("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"),
        *("bidirectional", *([OPTION[cell]] if cell in OPTION else [])),
        *(["peephole"] if cell == "LSTM" else []),
        *("input_dropout", "dropconnect", "zoneout", "num_heads"),
        *(["reset_after"] if cell == "GRU" else []),
        *(["layer_norm"] if cell != "SLSTM" else []),
        *(["proj_size"] if cell == "LSTM" else []),
        *("dtype", "device", "seed"),
    ]
    with pytest.raises(TypeError, match=f"^{cell}: unexpected argument 'domain'"):
        getattr(scanrnn, cell)(3, 5, domain="log")


@pytest.mark.parametrize("cell", DENSE)
def test_parameters_have_torchs_names_and_order(cell):
    rnn = make(cell, 3, 5, num_layers=2, bidirectional=True)
    rows = {"RNN": 5, "GRU": 15}.get(cell, 20)
    vectors = [("weight_ch", (15,))] if cell == "PeepholeLSTM" else []
    assert [(name, value.shape) for name, value in rnn.state_dict().items()] == [
        (f"{kind}_l{layer}{direction}", shape)
        for layer, width in [(0, 3), (1, 10)]
        for direction in ("", "_reverse")
        for kind, shape in [
            ("weight_ih", (rows, width)),
            ("weight_hh", (rows, 5)),
            *vectors,
            ("bias_ih", (rows,)),
            ("bias_hh", (rows,)),
        ]
    ]
    assert list(make(cell, bias=False).state_dict()) == [
        *("weight_ih_l0", "weight_hh_l0", *(f"{name}_l0" for name, _ in vectors))
    ]
    again = eval(repr(rnn), vars(scanrnn).copy())
    for other in (pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn), again):
        assert repr(other) == repr(rnn)
    assert "weight_hh_l1_reverse" in dir(rnn)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 17, 61])
@pytest.mark.parametrize("hidden", [1, 7, 37, 129])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("cell", "variant"), DENSE_VARIANTS)
def test_dtypes_and_sizes(cell, variant, dtype, hidden, steps):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = make(cell, 4, hidden, variant, dtype=dtype)
    x = normal(steps, 3, 4).astype(rnn.dtype)
    agrees(rnn, x, state_of(cell, 1, 3, hidden, dtype=rnn.dtype))
    agrees(rnn, x, strategy="step_loop")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("cell", "variant"), DENSE_VARIANTS)
def test_options(cell, variant, bias, bidirectional, batch_first):
    rnn = make(
        cell, 4, 6, variant, num_layers=3, bias=bias, bidirectional=bidirectional,
        batch_first=batch_first, dtype="float64",
    )  # fmt: skip
    states = 3 * (2 if bidirectional else 1)
    state = state_of(cell, states, 3, 6, dtype=np.float64)
    x = normal(*((3, 20) if batch_first else (20, 3)), 4, dtype=np.float64)
    y, last = agrees(rnn, x, state)
    one = [part[:, 1] for part in flat(state)]  # unbatched
    one_y, one_last = rnn(x[1] if batch_first else x[:, 1], as_state(one))
    assert_close(one_y, y[1] if batch_first else y[:, 1], 1e-14, "unbatched y")
    for got, wanted in zip(flat(one_last), flat(last), strict=True):
        assert_close(got, wanted[:, 1], 1e-14, "unbatched state")


@pytest.mark.parametrize(("cell", "variant"), DENSE_VARIANTS)
def test_whole_is_chunks_is_steps(cell, variant):
    rnn = make(cell, 4, 33, variant, num_layers=2, dtype="float64")
    x, state = normal(90, 2, 4, dtype=np.float64), state_of(cell, 2, 2, 33, dtype=np.float64)
    whole, last = rnn(x, state)
    carried, pieces = state, []
    for piece in np.split(x, [1, 40, 40, 43]):
        y, carried = rnn(piece, carried)
        pieces.append(y)
    assert_close(np.concatenate(pieces), whole, 1e-13, "chunks")
    for got, wanted in zip(flat(carried), flat(last), strict=True):
        assert_close(got, wanted, 1e-13, "state after chunks")
    carried, steps = state, []
    for x_t in x:
        y_t, carried = rnn.step(x_t, carried)
        steps.append(y_t)
    assert_close(np.stack(steps), whole, 1e-13, "steps")
    for got, wanted in zip(flat(carried), flat(last), strict=True):
        assert_close(got, wanted, 1e-13, "state after steps")
    single, _ = rnn.step(x[0, 0], as_state([part[:, 0] for part in flat(state)]))
    assert_close(single, whole[0, 0], 1e-13, "a step of one sequence")


@pytest.mark.parametrize("cell", DENSE)
def test_gradients_against_differences(cell):
    """In the first variants, which are smooth: differences step across no kink."""
    rnn = make(cell, 3, 4, num_layers=2, bidirectional=True, dtype="float64")
    x, state = normal(9, 2, 3, dtype=np.float64), flat(state_of(cell, 4, 2, 4, dtype=np.float64))
    (y, last), pullback = rnn.vjp(x, as_state(state))
    dy = normal(*y.shape, dtype=np.float64, seed=7)
    dlast = [normal(*part.shape, dtype=np.float64, seed=8 + i) for i, part in enumerate(flat(last))]
    dlast = differentiable(cell, dlast)
    dx, dstate, dparams = pullback(dy, as_state(dlast))
    assert list(dparams) == list(rnn.state_dict())
    arguments = {"x": x, **{f"state{i}": part for i, part in enumerate(state)}, **rnn.state_dict()}
    gradients = {"x": dx, **{f"state{i}": d for i, d in enumerate(flat(dstate))}, **dparams}

    def value(moved):
        rnn.load_state_dict({name: moved[name] for name in dparams})
        y, last = rnn(moved["x"], as_state([moved[f"state{i}"] for i in range(len(state))]))
        return np.vdot(dy, y) + sum(map(np.vdot, dlast, flat(last)))

    for name, argument in arguments.items():
        if name == "state3":
            assert not gradients[name].any()
            continue
        direction, step = normal(*argument.shape, dtype=np.float64, seed=5), 1e-6
        there, back = (
            value({**arguments, name: argument + sign * step * direction}) for sign in (1, -1)
        )
        wanted, got = (there - back) / (2 * step), np.vdot(gradients[name], direction)
        scale = max(abs(wanted), np.linalg.norm(gradients[name]) * np.linalg.norm(direction))
        assert abs(got - wanted) <= 1e-7 * scale, f"{name}: {got}, {wanted}"


@pytest.mark.parametrize("cell", DENSE)
def test_absent_cotangents_are_zeros(cell):
    rnn = make(cell, 3, 5, dtype="float64")
    (y, last), pullback = rnn.vjp(normal(12, 2, 3, dtype=np.float64))
    zeros = [np.zeros_like(part) for part in flat(last)]
    wanted = pullback(y, as_state(zeros))
    count = len(zeros) if len(zeros) > 1 else 0
    parts = [
        tuple(zeros[i] if i in some else None for i in range(count)) for some in ([], [0], [1])
    ]
    for absent in [None, *(parts if count else [])]:
        np.testing.assert_array_equal(pullback(y, absent)[0], wanted[0])


@pytest.mark.parametrize("cell", DENSE)
def test_the_pullback_keeps_its_own_state(cell):
    rnn = make(cell, 3, 5)
    x, state = normal(7, 2, 3), state_of(cell, 1, 2, 5)
    (y, _), pullback = rnn.vjp(x, state)
    first = pullback(y)[0]
    for part in flat(state):
        part[:] = 9
    np.testing.assert_array_equal(pullback(y)[0], first)


@pytest.mark.parametrize("cell", DENSE)
def test_nothing_to_do(cell):
    rnn = make(cell, 3, 5, num_layers=2)
    state = state_of(cell, 2, 2, 5)
    y, last = rnn(np.zeros((0, 2, 3), np.float32), state)
    assert y.shape == (0, 2, 5)
    for got, wanted in zip(flat(last), flat(state), strict=True):
        np.testing.assert_array_equal(got, wanted)
    y, last = rnn(np.zeros((7, 0, 3), np.float32))
    assert [part.shape for part in flat(last)] == [(2, 0, 5)] * len(flat(last))


def test_state_of_lstm_is_a_pair():
    rnn, x = make("LSTM"), normal(6, 2, 3)
    h = normal(1, 2, 5)
    for wrong, kind, message in [
        (h, TypeError, r"^h_0: expected the pair \(h_0, c_0\), got ndarray$"),
        ((h, h, h), TypeError, r"^h_0: expected the pair \(h_0, c_0\), got 3 of them$"),
        ((h, None), ValueError, r"^c_0: the state of LSTM is the pair \(h_0, c_0\), got h_0 alone"),
        ((None, h), ValueError, r"^h_0: the state of LSTM is the pair \(h_0, c_0\), got c_0 alone"),
        ((h, h[0]), ValueError, r"^c_0: expected 3 axes, x being a batch, got shape \(2, 5\)"),
        ((h, normal(2, 2, 5)), ValueError, r"^c_0: expected shape \(1, 2, 5\) = .*got \(2, 2, 5\)"),
        ((h, h.astype(np.float64)), TypeError, "^c_0: expected dtype float32, got float64"),
    ]:
        with pytest.raises(kind, match=message):
            rnn(x, wrong)
    with pytest.raises(TypeError, match=r"^h: expected the pair \(h, c\), got ndarray"):
        rnn.step(x[0], h)
    _, pullback = rnn.vjp(x)
    with pytest.raises(ValueError, match=r"^dc_n: expected shape"):
        pullback(None, (h, normal(2, 2, 5)))
    with pytest.raises(TypeError, match=r"^h_0: expected an array of NumPy.* got tuple"):
        make("GRU")(x, (h, h))


def test_state_of_slstm_is_four():
    rnn, x = make("SLSTM"), normal(6, 2, 3)
    h, c, n, m = normal_states("SLSTM", 1, 2, 5)
    for wrong, kind, message in [
        ((h, c), TypeError, r"^h_0: expected \(h_0, c_0, n_0, m_0\), got 2 of them$"),
        (
            (h, c, None, m),
            ValueError,
            r"^n_0: the state of SLSTM is \(h_0, c_0, n_0, m_0\), got h_0, c_0, m_0$",
        ),
        ((h, c, n, m[0]), ValueError, r"^m_0: expected 3 axes, x being a batch, got shape"),
    ]:
        with pytest.raises(kind, match=message):
            rnn(x, wrong)
    fresh = tuple(np.full_like(h, value) for value in (0, 0, 0, -np.inf))
    np.testing.assert_array_equal(rnn(x, fresh)[0], rnn(x)[0])


@pytest.mark.parametrize("cell", DENSE)
def test_strategies_that_do_not_fit(cell):
    rnn, x = make(cell, device="cpu"), normal(6, 2, 3)
    for strategy in ("direct", "fused_sequential", "parallel_scan", "persistent"):
        with pytest.raises(ValueError, match=f"^strategy: '{strategy}' cannot run: "):
            rnn(x, strategy=strategy)
    with pytest.raises(ValueError, match=r"^strategy: 'step_loop' cannot run: .*linear"):
        make("MinGRU")(x, strategy="step_loop")
    plan = rnn.plan(6, 2)
    assert (plan.strategy, plan.reason, plan.runner_up) == ("step_loop", "every_step", "step_loop")
    assert "state before it" in str(plan)


@pytest.mark.parametrize("cell", DENSE)
def test_runs_give_the_same_bits(cell):
    rnn = make(cell, 16, 70)
    x = normal(200, 5, 16)
    runs = []
    for _ in range(3):
        (y, _), pullback = rnn.vjp(x)
        dx, _, dparams = pullback(y)
        runs.append([y, dx, *dparams.values()])
    for other in runs[1:]:
        for got, wanted in zip(other, runs[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


# ---- torch's own layers

TORCHS = ["RNN", "LSTM", "GRU"]


def torchs(rnn):
    torch = pytest.importorskip("torch", reason="no torch to compare with")
    cell = type(rnn).__name__
    options = ["num_layers", "bias", "batch_first", "bidirectional"]
    options += [OPTION[cell]] if cell in OPTION else []
    other = getattr(torch.nn, cell)(
        rnn.input_size, rnn.hidden_size, **{name: getattr(rnn, name) for name in options}
    ).double()
    other.load_state_dict({k: torch.from_numpy(v) for k, v in rnn.state_dict().items()})
    return torch, other


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [1, 7, 37, 129])
@pytest.mark.parametrize(
    ("cell", "variant"), [pair for pair in DENSE_VARIANTS if pair[0] in TORCHS]
)
def test_as_torch(cell, variant, hidden, bias, bidirectional, batch_first):
    """Weights go over as they are; outputs, states and every gradient agree to rounding."""
    rnn = make(
        cell, 5, hidden, variant, num_layers=2, bias=bias, bidirectional=bidirectional,
        batch_first=batch_first, dtype="float64",
    )  # fmt: skip
    torch, other = torchs(rnn)
    assert list(other.state_dict()) == list(rnn.state_dict())
    x = normal(*((3, 12) if batch_first else (12, 3)), 5, dtype=np.float64)
    state = state_of(cell, 4 if bidirectional else 2, 3, hidden, dtype=np.float64)
    (y, last), pullback = rnn.vjp(x, state)
    dy = normal(*y.shape, dtype=np.float64, seed=7)
    dlast = [normal(*part.shape, dtype=np.float64, seed=8 + i) for i, part in enumerate(flat(last))]
    dx, dstate, dparams = pullback(dy, as_state(dlast))

    leaf = torch.from_numpy(x).requires_grad_()
    leaves = [torch.from_numpy(part).requires_grad_() for part in flat(state)]
    their_y, their_last = other(leaf, as_state(leaves))
    theirs = torch.autograd.grad(
        [their_y, *flat(their_last)],
        [leaf, *leaves, *other.parameters()],
        [torch.from_numpy(d) for d in (dy, *dlast)],
    )
    results = [(y, their_y), *zip(flat(last), flat(their_last), strict=True)]
    results += zip([dx, *flat(dstate), *dparams.values()], theirs, strict=True)
    for got, wanted in results:
        assert_close(got, wanted.detach().numpy(), 1e-12)


@pytest.mark.parametrize("cell", TORCHS)
def test_weights_come_back_from_torch(cell):
    rnn = make(cell, 4, 6, num_layers=2, dtype="float64")
    torch, other = torchs(rnn)
    torch.manual_seed(1)
    other.reset_parameters()
    rnn.load_state_dict({name: value.numpy() for name, value in other.state_dict().items()})
    x = normal(8, 4, dtype=np.float64)  # one sequence
    y, last = rnn(x)
    with torch.no_grad():
        their_y, their_last = other(torch.from_numpy(x))
    assert_close(y, their_y.numpy(), 1e-13)
    for got, wanted in zip(flat(last), flat(their_last), strict=True):
        assert_close(got, wanted.numpy(), 1e-13)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_stride_of_one_element_says_nothing(batch_first):
    """NumPy keeps strides of its own for such axes, of which no product may make a row's length."""
    rnn = make("LSTM", 5, 4, proj_size=3, batch_first=batch_first)
    x, dy = normal(1, 1, 5), normal(1, 1, 3)
    h, c = normal(1, 3, 1).transpose(0, 2, 1), normal(4, 1, 1).transpose(2, 1, 0)
    assert h.strides[1] < h.nbytes
    plain = [array.ravel().reshape(array.shape) for array in (h, c)]
    results = []
    for state in ((h, c), tuple(plain)):
        (y, h_n), pullback = rnn.vjp(x, state)
        dx, dh_0, dparams = pullback(dy)
        results.append([y, *h_n, dx, *dh_0, *dparams.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
