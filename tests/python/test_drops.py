# SPDX-License-Identifier: Apache-2.0
"""dropconnect and input_dropout: what is dropped, when, and that gradients know it."""

import numpy as np
import pytest
import scanrnn
from support import DEVICE, construct, make


def every_cell(test):
    return pytest.mark.parametrize("cell", scanrnn.cells(), ids=lambda cell: cell.name)(test)


def shares(cell, **more):
    """All that training can drop of a cell."""
    drawn = dict.fromkeys(cell.shares(), 0.3)
    return {**drawn, **more}


def inputs(rnn, steps=7, batch=3, seed=5):
    random = np.random.default_rng(seed)
    x = random.normal(size=(steps, batch, rnn.input_size)).astype(rnn.dtype)
    return x, random.normal(size=(steps, batch, rnn.hidden_size)).astype(rnn.dtype)


@every_cell
def test_only_training_drops_and_its_seed_decides(cell):
    rnn = make(cell.name, 6, 6, **shares(cell), num_layers=2, dtype="float64")
    whole = make(cell.name, 6, 6, num_layers=2, dtype="float64")
    whole.load_state_dict(rnn.state_dict())
    x, _ = inputs(rnn)
    assert np.array_equal(rnn(x)[0], whole(x)[0])
    (one, _), _ = rnn.vjp(x, seed=1)
    assert np.array_equal(rnn.vjp(x, seed=1)[0][0], one)
    assert not np.array_equal(rnn.vjp(x, seed=2)[0][0], one)
    assert not np.array_equal(whole(x)[0], one)


@every_cell
@pytest.mark.parametrize("batch_first", [False, True])
def test_pullback_is_the_derivative(cell, batch_first):
    options = shares(cell, num_layers=2, dropout=0.2, batch_first=batch_first, dtype="float64")
    if "tanh" in cell.variants:  # which has no jump
        options["variant"] = "tanh"
    rnn = make(cell.name, 5, 5, **options)
    x, dy = inputs(rnn)
    random = np.random.default_rng(8)
    (_, final), pullback = rnn.vjp(x, seed=4)
    zeros = np.zeros_like(final) if cell.states == 1 else tuple(map(np.zeros_like, final))
    dx, _, dparams = pullback(dy, zeros)
    along = random.normal(size=x.shape)
    moves = {name: random.normal(size=value.shape) for name, value in rnn.state_dict().items()}
    values = rnn.state_dict()

    def loss(by):
        moved = make(cell.name, 5, 5, **options)
        moved.load_state_dict({k: v + by * moves[k] for k, v in values.items()})
        return float((moved.vjp(x + by * along, seed=4)[0][0] * dy).sum())

    step = 1e-6
    want = (loss(step) - loss(-step)) / (2 * step)
    got = (dx * along).sum() + sum((dparams[name] * moves[name]).sum() for name in moves)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


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
    rnn = make(cell, 6, 6, num_layers=2, input_dropout=0.4, dtype="float64")
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


def test_what_is_no_share_is_named():
    for name in ("input_dropout", "dropconnect"):
        for value in (1.0, -0.25):
            with pytest.raises(ValueError, match=rf"{name}: expected a probability in \[0, 1\)"):
                make("GRU", 3, 4, **{name: value})
        with pytest.raises(TypeError, match=f"{name}: expected a number, got '0.5'"):
            make("GRU", 3, 4, **{name: "0.5"})
    with pytest.raises(TypeError, match="dropconnect"):
        construct(scanrnn, "SRU", 3, 4, dropconnect=0.5)


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


def test_jax_arrays_are_refused():
    jax = pytest.importorskip("jax")
    rnn = make("GRU", 4, 6, dropconnect=0.5)
    with pytest.raises(ValueError, match=r"dropconnect: expected 0 for JAX arrays, got 0\.5"):
        rnn.vjp(jax.numpy.zeros((5, 2, 4), "float32"))
