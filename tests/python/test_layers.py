# SPDX-License-Identifier: Apache-2.0
"""Layers against the oracle: every cell, option, dtype and strategy; whole == chunks == steps."""

import inspect
import math

import numpy as np
import pytest
import reference
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from support import (
    CELLS,
    FORCED,
    INFO,
    PICKED_AND_FORCED,
    VARIANTS,
    assert_close,
    domains,
    make,
    normal,
    rows,
    strategies,
    tolerance,
)

DTYPES = ["float64", "float32", "float16", "bfloat16"]
LENGTHS = [1, 2, 3, 15, 16, 17, 61, 300]


def agrees(rnn, x, h_0=None, strategy=None):
    """The call against the oracle, in the layer's own layout."""
    y, h_n = rnn(x, h_0, strategy=strategy)
    time_first = x.swapaxes(0, 1) if rnn.batch_first else x
    wanted_y, wanted_h = reference.run(rnn, time_first, h_0)
    if rnn.batch_first:
        wanted_y = wanted_y.swapaxes(0, 1)
    steps = time_first.shape[0]
    share = rnn.num_layers * tolerance(str(rnn.dtype), steps)
    assert y.dtype == h_n.dtype == rnn.dtype
    assert_close(y, wanted_y, share, f"y of {rnn} {strategy} T={steps}")
    assert_close(h_n, wanted_h, share, f"h_n of {rnn} {strategy} T={steps}")
    return y, h_n


@pytest.mark.parametrize("cell", CELLS)
def test_signature_is_that_of_torch_plus_ours(cell):
    info = INFO[INFO[cell].base or cell]
    found = inspect.signature(getattr(scanrnn, info.name)).parameters
    option = {info.variant_option: info.variants[0]} if info.variant_option else {}
    option |= {"peephole": False} if info.name == "SRU" else {}
    option |= {"input_dropout": 0.0} | ({"state_dropout": 0.0} if info.readout else {})
    option |= {"zoneout": 0.0}
    if info.name == "SRU":
        option |= {"projection_size": 0, "rescale": False, "highway_bias": 0.0}
    option |= {"layer_norm": False} if info.name == "IndRNN" else {}
    option |= {"domain": "log"} if info.recurrence == "linear" else {}
    assert list(found) == [
        *("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"),
        *("bidirectional", *option, "dtype", "device", "seed"),
    ]
    assert [p.default for p in found.values()][2:] == [
        *(1, True, False, 0.0, False, *option.values(), "float32", "auto", None),
    ]


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize(("cell", "strategy"), PICKED_AND_FORCED)
def test_strategies(cell, strategy, steps):
    rnn = make(cell, 4, 7)
    h_0 = normal(1, 2, 7)
    agrees(rnn, normal(steps, 2, rnn.input_size), h_0, strategy)


@pytest.mark.parametrize(
    ("cell", "variant", "strategy", "domain"),
    [
        (*of, way, domain)
        for of in VARIANTS
        for way in strategies(of[0])
        for domain in domains(of[0])
    ],
)
def test_variants_and_domains(cell, variant, strategy, domain):
    rnn = make(cell, 6, 6, variant, domain=domain, dtype="float64")
    agrees(rnn, normal(70, 3, 6, dtype=np.float64), -normal(1, 3, 6, dtype=np.float64), strategy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("cell", "strategy"), FORCED)
def test_dtypes(cell, strategy, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = make(cell, 5, 33, dtype=dtype)
    x, h_0 = normal(40, 3, rnn.input_size), normal(1, 3, 33)
    agrees(rnn, x.astype(rnn.dtype), h_0.astype(rnn.dtype), strategy)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_options(cell, num_layers, bias, bidirectional, batch_first):
    rnn = make(
        cell, 4, 6, num_layers=num_layers, bias=bias, bidirectional=bidirectional,
        batch_first=batch_first, dtype="float64",
    )  # fmt: skip
    h_0 = normal(rows(rnn), 3, 6, dtype=np.float64)
    x = normal(*((3, 20) if batch_first else (20, 3)), rnn.input_size, dtype=np.float64)
    y, h_n = agrees(rnn, x, h_0)
    assert y.shape == (*x.shape[:2], 12 if bidirectional else 6)
    one_y, one_h = rnn(x[1] if batch_first else x[:, 1], h_0[:, 1])  # unbatched
    assert_close(one_y, y[1] if batch_first else y[:, 1], 1e-14, "unbatched y")
    assert_close(one_h, h_n[:, 1], 1e-14, "unbatched h_n")


@pytest.mark.parametrize("cell", CELLS)
def test_the_highway_of_sru_and_other_sizes(cell):
    for input_size, hidden_size in [(1, 1), (1, 9), (9, 1), (16, 16), (31, 64), (64, 31)]:
        rnn = make(cell, input_size, hidden_size, num_layers=2)
        agrees(rnn, normal(33, 2, rnn.input_size))


@pytest.mark.parametrize(("cell", "strategy"), PICKED_AND_FORCED)
def test_nothing_to_do(cell, strategy):
    rnn = make(cell, 3, 5, num_layers=2, bidirectional=True)
    h_0, C = normal(rows(rnn), 2, 5), rnn.input_size
    y, h_n = rnn(np.zeros((0, 2, C), np.float32), h_0, strategy=strategy)
    assert y.shape == (0, 2, 10)
    np.testing.assert_array_equal(h_n, h_0)
    _, h_n = rnn(np.zeros((0, 2, C), np.float32), strategy=strategy)
    np.testing.assert_array_equal(h_n, np.zeros_like(h_0))
    y, h_n = rnn(np.zeros((7, 0, C), np.float32), strategy=strategy)
    assert y.shape == (7, 0, 10)
    assert h_n.shape == (rows(rnn), 0, 5)


@given(
    way=st.sampled_from(PICKED_AND_FORCED),
    sizes=st.tuples(
        *[st.integers(1, 70), st.integers(1, 5), st.integers(1, 20), st.integers(1, 40)]
    ),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_any_shape_and_magnitude(way, sizes, scale, seed):
    (cell, strategy), (steps, batch, inputs, hidden) = way, sizes
    rnn = make(cell, inputs, hidden, dtype="float64", seed=seed)
    x = normal(steps, batch, rnn.input_size, dtype=np.float64, seed=seed, scale=scale)
    agrees(rnn, x, normal(1, batch, hidden, dtype=np.float64, seed=seed, scale=scale), strategy)


@given(
    cell=st.sampled_from(CELLS),
    cuts=st.lists(st.integers(0, 90), max_size=4),
    batch=st.integers(1, 3),
    hidden=st.integers(1, 33),
    batch_first=st.booleans(),
)
def test_whole_is_chunks_is_steps(cell, cuts, batch, hidden, batch_first):
    rnn = make(cell, 4, hidden, num_layers=2, batch_first=batch_first)
    axis = 1 if batch_first else 0
    x = normal(*((batch, 90) if batch_first else (90, batch)), rnn.input_size)
    h_0 = normal(2, batch, hidden)
    whole, h_n = rnn(x, h_0)
    h, pieces = h_0, []
    for piece in np.split(x, sorted(cuts), axis=axis):
        y, h = rnn(piece, h)
        pieces.append(y)
    share = 2 * tolerance("float32", 90)
    assert_close(np.concatenate(pieces, axis=axis), whole, share, "chunks")
    assert_close(h, h_n, share, "state after chunks")
    h, steps = h_0, []
    for t in range(90):
        y_t, h = rnn.step(x.take(t, axis=axis), h)
        steps.append(y_t)
    assert_close(np.stack(steps, axis=axis), whole, share, "steps")
    assert_close(h, h_n, share, "state after steps")


@pytest.mark.parametrize("cell", CELLS)
def test_step_of_one_sequence(cell):
    rnn = make(cell, 4, 6, num_layers=2)
    x, h = normal(5, rnn.input_size), normal(2, 6)
    y, h_n = rnn(x[:1], h)
    y_t, h_t = rnn.step(x[0], h)
    assert_close(y_t, y[0], 1e-6)
    assert_close(h_t, h_n, 1e-6)
    assert_close(rnn.step(x[0])[0], rnn(x[:1])[0][0], 1e-6)


@pytest.mark.parametrize(
    ("cell", "strategy", "domain"), [(*way, domain) for way in FORCED for domain in domains(way[0])]
)
@pytest.mark.parametrize("bias", [-30, -17, 0, 17, 30])
def test_gates_at_their_limits(cell, domain, strategy, bias):
    """All forgotten, all kept, decays within 1e-7 of 1: over a sequence long enough to show."""
    rnn = make(cell, 4, 8, domain=domain)
    state = rnn.state_dict()
    first = 8 if cell == "QRNN" else 0  # its z comes first, which is no gate
    state["bias_ih_l0"][first : first + 8] = bias
    rnn.load_state_dict(state)
    agrees(rnn, normal(700, 2, rnn.input_size), normal(1, 2, 8), strategy)


@pytest.mark.parametrize(("cell", "strategy"), PICKED_AND_FORCED)
def test_nan_stays_where_it_is(cell, strategy):
    """A NaN in one sequence reaches the steps from its own on, and no other sequence."""
    rnn = make(cell, 4, 37, num_layers=2)
    x = normal(100, 3, rnn.input_size)
    clean, _ = rnn(x, strategy=strategy)
    x[60, 1] = np.nan
    y, h_n = rnn(x, strategy=strategy)
    np.testing.assert_array_equal(y[:, [0, 2]], clean[:, [0, 2]])
    np.testing.assert_array_equal(y[:60, 1], clean[:60, 1])
    assert np.isnan(y[60:, 1]).all()
    assert np.isnan(h_n[:, 1]).all()
    assert not np.isnan(h_n[:, [0, 2]]).any()


@pytest.mark.parametrize("cell", CELLS)
def test_initial_values(cell):
    bound = 1 / math.sqrt(64)
    same, other = make(cell, 32, 64, seed=3), make(cell, 32, 64, seed=3)
    for name, value in same.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])
        if name.startswith("weight_a"):
            decay = np.exp(-8 * np.logaddexp(0, value.astype(np.float64)))
            assert 0.9 <= decay.min() < 0.92
            assert 0.98 < decay.max() <= 0.999 * (1 + 1e-6)
            continue
        assert np.abs(value).max() <= bound
        if value.size > 1000:
            assert np.abs(value).max() > 0.98 * bound
            assert abs(value.mean()) < 0.05 * bound
            assert abs(value.std() - bound / math.sqrt(3)) < 0.05 * bound
    different = make(cell, 32, 64, seed=4).weight_ih_l0
    assert not np.array_equal(different, same.weight_ih_l0)
    fresh = [make(cell, 32, 64, seed=None).weight_ih_l0 for _ in range(2)]
    assert not np.array_equal(*fresh)


@pytest.mark.parametrize("cell", CELLS)
def test_runs_give_the_same_bits(cell):
    rnn = make(cell, 16, 48)
    x = normal(500, 2, rnn.input_size)
    for strategy in strategies(cell):
        first, again = (rnn(x, strategy=strategy)[0] for _ in range(2))
        np.testing.assert_array_equal(first, again)
