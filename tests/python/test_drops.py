# SPDX-License-Identifier: Apache-2.0
"""What training draws: when, how often, and that gradients know it."""

import numpy as np
import pytest
import scanrnn
from derivative import KINDS, check_derivative
from ragged_support import as_state, flat
from support import DEVICE, assert_close, construct, make, strategies


def every_cell(test):
    return pytest.mark.parametrize("cell", scanrnn.cells(), ids=lambda cell: cell.name)(test)


def shares(cell, **more):
    """All that training can draw of a cell."""
    drawn = {name: 0.3 for name, _ in cell.options if cell.is_drawn(name)}
    if drawn.pop("zoneout_cell", 0):
        drawn["zoneout"] = (0.3, 0.2)
    return {**drawn, **more}


def inputs(rnn, steps=7, batch=3, seed=5):
    random = np.random.default_rng(seed)
    x = random.normal(size=(steps, batch, rnn.input_size)).astype(rnn.dtype)
    return x, random.normal(size=(steps, batch, rnn.hidden_size)).astype(rnn.dtype)


@every_cell
def test_only_training_draws_and_its_seed_decides(cell):
    drawn = {k: v for k, v in shares(cell).items() if k != "zoneout"}
    rnn = make(cell.name, 6, 6, **drawn, num_layers=2, dtype="float64")
    whole = make(cell.name, 6, 6, num_layers=2, dtype="float64")
    whole.load_state_dict(rnn.state_dict())
    x, _ = inputs(rnn)
    assert np.array_equal(rnn(x)[0], whole(x)[0])
    (one, _), _ = rnn.vjp(x, seed=1)
    assert np.array_equal(rnn.vjp(x, seed=1)[0][0], one)
    assert not np.array_equal(rnn.vjp(x, seed=2)[0][0], one)
    assert not np.array_equal(whole(x)[0], one)


@every_cell
@pytest.mark.parametrize("kind", KINDS)
def test_pullback_is_the_derivative(cell, kind):
    options = shares(cell, num_layers=2, dropout=0.2, batch_first=kind == "reset")
    if "tanh" in cell.variants:  # which has no jump
        options["variant"] = "tanh"
    check_derivative(lambda: make(cell.name, 5, 5, **options, dtype="float64", seed=1), kind)


@every_cell
def test_draws_are_the_same_for_every_strategy_and_dtype(cell):
    options = shares(cell, num_layers=2)
    rnn = make(cell.name, 6, 6, **options, dtype="float64")
    x, dy = inputs(rnn, steps=40)
    (want, _), pullback = rnn.vjp(x, seed=3)
    dx = pullback(dy)[0]
    for strategy in ["step_loop"] if cell.recurrence == "dense" else strategies(cell.name):
        (y, _), pull = rnn.vjp(x, strategy=strategy, seed=3)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-11)
        np.testing.assert_allclose(pull(dy)[0], dx, rtol=0, atol=1e-10)
    for dtype in ("float32", "bfloat16", "float16"):
        other = make(cell.name, 6, 6, **options, dtype=dtype)
        other.load_state_dict({k: v.astype(other.dtype) for k, v in rnn.state_dict().items()})
        y = other.vjp(x.astype(other.dtype), seed=3)[0][0].astype("float64")
        assert_close(y, want, 1e-5 if dtype == "float32" else 0.1)


def moved(before, after, share):
    """A state between two others."""
    return [b + m * (a - b) for b, a, m in zip(before, after, share, strict=True)]


@every_cell
def test_inference_moves_states_by_the_mean(cell):
    zoneout = (0.3, 0.6) if cell.states == 2 else 0.3
    rnn = make(cell.name, 5, 5, zoneout=zoneout, dtype="float64")
    whole = make(cell.name, 5, 5, dtype="float64")
    whole.load_state_dict(rnn.state_dict())
    x, _ = inputs(rnn)
    means = [0.7, 0.4] if cell.states == 2 else [0.7, *[1.0] * (cell.states - 1)]
    state = flat(whole(x[:3])[1])
    y, final = rnn(x, as_state(state))
    for t, step in enumerate(x):
        stepped = rnn.step(step, as_state(state))
        state = moved(state, flat(whole.step(step, as_state(state))[1]), means)
        for got, want in zip(flat(stepped[1]), state, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)
        np.testing.assert_allclose(stepped[0], y[t], rtol=0, atol=1e-13)
    for got, want in zip(flat(final), state, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@every_cell
def test_zoneout_leaves_its_share_of_states(cell):
    share, H = 0.25, 60
    variant = "tanh" if "tanh" in cell.variants else None  # relu leaves some at 0 by itself
    rnn = make(cell.name, H, H, variant, zoneout=share, dtype="float64")
    whole = make(cell.name, H, H, variant, dtype="float64")
    whole.load_state_dict(rnn.state_dict())
    x, _ = inputs(rnn, steps=12, batch=9)
    state, left = flat(whole(x[:3])[1]), []
    for t in range(len(x)):
        # The state after step t is that of the sequence that ends there, drawn alike.
        after = flat(rnn.vjp(x[: t + 1], as_state(flat(whole(x[:3])[1])), seed=9)[0][1])
        stepped = flat(whole.step(x[t], as_state(state))[1])
        left.append(np.isclose(after[0][0], state[0][0], rtol=1e-13, atol=1e-15))
        taken = np.isclose(after[0][0], stepped[0][0], rtol=0, atol=1e-12)
        assert (taken | left[-1]).all()
        for got, want in zip(after[1:], stepped[1:], strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
        state = after
    left = np.array(left)
    deviation = np.sqrt(share * (1 - share) / left.size)
    assert abs(left.mean() - share) < 5 * deviation
    assert abs((left[1:] & left[:-1]).mean() - share**2) < 6 * deviation  # steps by themselves
    assert (left.mean(0) < 1).all()


@pytest.mark.parametrize("cell", ["SRU", "QRNN", "PeepholeSRU"])
def test_states_are_dropped_from_the_output_for_a_whole_sequence(cell):
    rnn = make(cell, 50, 50, state_dropout=0.4, dtype="float64")
    values = {k: 0.1 * v for k, v in rnn.state_dict().items()}
    values["bias_ih_l0"][-50:] = 40  # the output is the state
    rnn.load_state_dict(values)
    x, _ = inputs(rnn, steps=6, batch=8)
    y, some = rnn(x)[0], rnn.vjp(x, seed=2)[0][0]
    ratio = some / y
    dropped = np.abs(ratio) < 1e-9
    np.testing.assert_allclose(ratio[~dropped], 1 / 0.6, rtol=1e-6)
    assert (dropped == dropped[:1]).all()
    assert abs(dropped[0].mean() - 0.4) < 5 * np.sqrt(0.24 / dropped[0].size)
    packed = np.ascontiguousarray(x.swapaxes(0, 1)).reshape(48, -1)
    for told in ({}, {"reset": np.zeros(48, bool)}):
        y_packed = rnn.vjp(packed, seed=2, cu_seqlens=np.arange(0, 49, 6), **told)[0][0]
        again = y_packed.reshape(8, 6, -1).swapaxes(0, 1)
        np.testing.assert_allclose(again, some, rtol=0, atol=1e-12)


def identity(share, features=64):
    """A layer whose output is its positive input."""
    rnn = make("IndRNN", features, features, bias=False, input_dropout=share, dtype="float64")
    values = {"weight_ih_l0": np.eye(features), "weight_hh_l0": np.zeros(features)}
    rnn.load_state_dict(values)
    return rnn


def test_input_is_dropped_for_a_whole_sequence():
    rnn, share = identity(0.25), 0.25
    x = np.random.default_rng(1).uniform(0.5, 1, size=(9, 30, 64))
    y = rnn.vjp(x, seed=1)[0][0]
    dropped = y == 0
    assert (dropped == dropped[:1]).all()
    np.testing.assert_allclose(y[~dropped], (x / (1 - share))[~dropped], rtol=1e-12)
    assert abs(dropped[0].mean() - share) < 5 * np.sqrt(share * (1 - share) / dropped[0].size)
    assert (dropped[0] != dropped[0][0]).any()


@pytest.mark.parametrize("cell", ["SRU", "RGLRU", "MinGRU", "GRU", "IndRNN"])
def test_a_packed_sequence_drops_what_it_would_in_a_batch(cell):
    rnn = make(cell, 6, 6, input_dropout=0.4, dtype="float64")
    x, dy = inputs(rnn, steps=5, batch=4)
    (y, h), pullback = rnn.vjp(x, seed=2)
    packed, cotangent = (np.ascontiguousarray(v.swapaxes(0, 1)).reshape(20, -1) for v in (x, dy))
    cu_seqlens = np.arange(0, 21, 5)
    (y_packed, h_packed), back = rnn.vjp(packed, seed=2, cu_seqlens=cu_seqlens)
    np.testing.assert_allclose(y_packed.reshape(4, 5, -1).swapaxes(0, 1), y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(h_packed, h, rtol=0, atol=1e-12)
    for got, want in zip(
        back(cotangent, np.zeros_like(h))[2].values(),
        pullback(dy, np.zeros_like(h))[2].values(),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cell", ["SRU", "MinLSTM", "LSTM"])
def test_what_is_behind_a_sequence_reaches_nothing(cell):
    rnn = make(cell, 6, 6, num_layers=2, input_dropout=0.4, zoneout=0.2, dtype="float64")
    x, dy = inputs(rnn)
    lengths = np.array([7, 3, 0])
    bad, bad_dy = x.copy(), dy.copy()
    for row, length in enumerate(lengths):
        bad[length:, row], bad_dy[length:, row] = np.nan, np.nan
    results = []
    for of_x, of_y in ((x, dy), (bad, bad_dy)):
        (y, h), pullback = rnn.vjp(of_x, seed=2, lengths=lengths)
        zeros = tuple(map(np.zeros_like, h)) if isinstance(h, tuple) else np.zeros_like(h)
        dx, _, dparams = pullback(of_y, zeros)
        results.append([y, dx, *dparams.values()])
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


def eight(cell, *biases, variant=None, of_h=0, **options):
    """A layer of 8 units whose first gate is x, and whose other gates are their biases."""
    rnn = make(cell, 8, 8, variant, bias=bool(biases), dtype="float64", **options)
    values = {name: np.zeros_like(value) for name, value in rnn.state_dict().items()}
    for name, value in values.items():
        if name.startswith("weight_ih"):
            value[:8] = np.eye(8)
        elif name.startswith("weight_hh"):
            value[...] = of_h
        elif name.startswith("bias_ih"):
            value[...] = np.repeat(biases, 8)
    rnn.load_state_dict(values)
    return rnn


def drawn(kind, seed=2024, share=0.3):
    """Which elements a kind of draw drops, or which states it leaves as they are."""
    x, batch = np.ones((2, 4, 8)), np.zeros((1, 8, 8))
    if kind == "dropout":
        return eight("IndRNN", num_layers=2, dropout=share).vjp(x, seed=seed)[0][0] == 0
    if kind == "input_dropout":
        return eight("IndRNN", input_dropout=share).vjp(x, seed=seed)[0][0][0] == 0
    if kind == "dropconnect":
        rnn = eight("RNN", variant="relu", of_h=1, dropconnect=share)
        return rnn.vjp(batch, np.eye(8)[None], seed=seed)[0][0][0] == 0
    if kind == "state_dropout":
        return eight("SRU", -40, 40, state_dropout=share).vjp(x, seed=seed)[0][0][0] < 0.5
    if kind == "zoneout":
        y = eight("IndRNN", bidirectional=True, zoneout=share).vjp(x.cumsum(0), seed=seed)[0][0]
        ahead, back = np.split(y, 2, axis=-1)
        steps = np.diff(ahead, axis=0, prepend=0), np.diff(back, axis=0, append=0)
        return np.concatenate(steps, axis=-1) == 0
    rnn = eight("LSTM", 0, -40, 0, 0, zoneout=(0, share))
    return rnn.vjp(batch, (batch, batch + 1), seed=seed)[0][1][1][0] > 0.5


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("dropout", "112a10598050c231"),
        ("input_dropout", "15c0d34c"),
        ("dropconnect", "c430a5410820c41e"),
        ("state_dropout", "2d0333b4"),
        ("zoneout", "40080a3162b5440448083468622b42c1"),
        ("zoneout_cell", "6e8641a3000050d4"),
    ],
)
def test_a_seed_draws_the_same_bits_everywhere(kind, bits):
    """After a restart and on another machine. Users must hear of a change that draws others."""
    assert np.packbits(drawn(kind)).tobytes().hex() == bits
    assert np.packbits(drawn(kind, seed=2025)).tobytes().hex() != bits


def test_what_is_no_share_is_named():
    for name in ("input_dropout", "dropconnect", "zoneout"):
        for value in (1.0, -0.25):
            with pytest.raises(ValueError, match=rf"{name}: expected a probability in \[0, 1\)"):
                make("GRU", 3, 4, **{name: value})
        with pytest.raises(TypeError, match=f"{name}: expected a number, got '0.5'"):
            make("GRU", 3, 4, **{name: "0.5"})
    with pytest.raises(TypeError, match="dropconnect"):
        construct(scanrnn, "SRU", 3, 4, dropconnect=0.5)
    with pytest.raises(ValueError, match=r"zoneout: expected a number.*\(0\.1, 0\.2\)"):
        make("GRU", 3, 4, zoneout=(0.1, 0.2))
    with pytest.raises(ValueError, match=r"zoneout: expected probabilities in \[0, 1\), got"):
        make("LSTM", 3, 4, zoneout=(0.1, 1.5))


def test_torch_draws_from_its_generator():
    torch = pytest.importorskip("torch")
    import scanrnn.torch

    for name in ("LSTM", "SRU"):
        options = {"dropconnect": 0.25} if name == "LSTM" else {}
        rnn = getattr(scanrnn.torch, name)(
            4, 4, 2, input_dropout=0.25, device=DEVICE, dtype=torch.float64, **options
        )
        x = torch.randn(5, 3, 4, device=DEVICE, dtype=torch.float64, requires_grad=True)

        def run(x, rnn=rnn):
            torch.manual_seed(7)
            return rnn(x)[0]

        first = run(x)
        assert torch.equal(run(x), first)
        torch.manual_seed(8)
        assert not torch.equal(rnn(x)[0], first)
        assert torch.autograd.gradcheck(run, (x,))
        rnn.eval()
        torch.testing.assert_close(rnn(x)[0], rnn(x)[0], rtol=0, atol=0)
