# SPDX-License-Identifier: Apache-2.0
"""Gradients: against finite differences in float64, between strategies, and their life outside."""

import gc
import weakref

import numpy as np
import pytest
import scanrnn
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    ALL_CELLS,
    CELLS,
    FORCED,
    INFO,
    OPTION,
    PICKED_AND_FORCED,
    VARIANTS,
    assert_close,
    domains,
    make,
    normal,
    one_layer_tolerance,
    rows,
    strategies,
)


def cotangents(y, h_n, seed=9):
    return [normal(*a.shape, seed=seed).astype(a.dtype) for a in (y, h_n)]


def check_against_differences(rnn, x, h_0, strategy=None):
    """Directional derivatives of <dy, y> + <dh_n, h_n> along random directions, all arguments."""
    (y, h_n), pullback = rnn.vjp(x, h_0, strategy=strategy)
    dy, dh_n = cotangents(y, h_n)
    dx, dh_0, dparams = pullback(dy, dh_n)
    assert list(dparams) == list(rnn.state_dict())
    state = rnn.state_dict()
    arguments = {"x": x, "h_0": h_0, **state}
    gradients = {"x": dx, "h_0": dh_0, **dparams}

    def value(changed):
        moved = {**arguments, **changed}
        rnn.load_state_dict({name: moved[name] for name in state})
        y, h_n = rnn(moved["x"], moved["h_0"], strategy=strategy)
        return np.vdot(dy, y) + np.vdot(dh_n, h_n)

    for name, argument in arguments.items():
        assert gradients[name].shape == argument.shape
        assert gradients[name].dtype == argument.dtype
        direction, step = normal(*argument.shape, dtype=np.float64, seed=5), 1e-6
        there, back = (value({name: argument + sign * step * direction}) for sign in (1, -1))
        rnn.load_state_dict(state)
        wanted, got = (there - back) / (2 * step), np.vdot(gradients[name], direction)
        scale = max(abs(wanted), np.linalg.norm(gradients[name]) * np.linalg.norm(direction))
        rounding = 2.0**-50 * (np.vdot(abs(dy), abs(y)) + np.vdot(abs(dh_n), abs(h_n))) / step
        assert abs(got - wanted) <= 1e-7 * scale + rounding, f"{name} of {rnn}: {got}, {wanted}"


@pytest.mark.parametrize(
    ("cell", "variant", "strategy", "domain"),
    [
        (*of, way, domain)
        for of in VARIANTS
        for way in strategies(of[0])
        for domain in domains(of[0])
    ],
)
def test_gradients(cell, variant, strategy, domain):
    rnn = make(cell, 6, 6, variant, domain=domain, dtype="float64")
    x, h_0 = normal(50, 2, 6, dtype=np.float64), normal(1, 2, 6, dtype=np.float64)
    check_against_differences(rnn, x, h_0, strategy)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_stacks(cell, bias, bidirectional, batch_first):
    rnn = make(
        cell, 3, 5, num_layers=2, bias=bias, bidirectional=bidirectional,
        batch_first=batch_first, dtype="float64",
    )  # fmt: skip
    x = normal(*((2, 21) if batch_first else (21, 2)), rnn.input_size, dtype=np.float64)
    check_against_differences(rnn, x, normal(rows(rnn), 2, 5, dtype=np.float64))


@settings(max_examples=25)
@given(
    way=st.sampled_from(PICKED_AND_FORCED),
    sizes=st.tuples(
        *[st.integers(1, 40), st.integers(1, 3), st.integers(1, 9), st.integers(1, 20)]
    ),
    scale=st.sampled_from([0.01, 1.0, 8.0]),
)
def test_gradients_of_any_shape(way, sizes, scale):
    (cell, strategy), (steps, batch, inputs, hidden) = way, sizes
    smooth = "tanh" if cell in OPTION else None  # no kink to step across
    rnn = make(cell, inputs, hidden, smooth, dtype="float64")
    x = normal(steps, batch, rnn.input_size, dtype=np.float64, scale=scale)
    h_0 = normal(1, batch, hidden, dtype=np.float64, scale=scale)
    check_against_differences(rnn, x, h_0, strategy)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_one_sequence(cell):
    rnn = make(cell, 3, 5, dtype="float64")
    x, h_0 = normal(17, rnn.input_size, dtype=np.float64), normal(1, 5, dtype=np.float64)
    check_against_differences(rnn, x, h_0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("cell", "strategy"), FORCED)
def test_gradients_in_less_precision(cell, strategy, dtype):
    """Relative RMS against the same layer in float64, as docs/numerics states it."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = make(cell, 8, 40, dtype=dtype)
    wide = make(cell, 8, 40, dtype="float64")
    wide.load_state_dict({k: v.astype(np.float64) for k, v in rnn.state_dict().items()})
    x, h_0 = (v.astype(rnn.dtype) for v in (normal(200, 2, rnn.input_size), normal(1, 2, 40)))
    (y, h_n), pullback = rnn.vjp(x, h_0, strategy=strategy)
    dy, dh_n = cotangents(y, h_n)
    results = pullback(dy, dh_n)
    _, exact = wide.vjp(x.astype(np.float64), h_0.astype(np.float64))
    wanted = exact(dy.astype(np.float64), dh_n.astype(np.float64))
    for got, want in [*zip(results[:2], wanted[:2], strict=True)] + [
        (results[2][name], wanted[2][name]) for name in wanted[2]
    ]:
        assert got.dtype == rnn.dtype
        error = np.sqrt(np.square(got.astype(np.float64) - want).mean() / np.square(want).mean())
        assert error <= one_layer_tolerance(dtype, want.size)


@pytest.mark.parametrize("cell", CELLS)
def test_forward_of_vjp_is_the_call(cell):
    rnn = make(cell, 4, 9, num_layers=2, bidirectional=True)
    x, h_0 = normal(60, 2, rnn.input_size), normal(rows(rnn), 2, 9)
    for got, wanted in zip(rnn.vjp(x, h_0)[0], rnn(x, h_0), strict=True):
        assert_close(got, wanted, 1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_absent_cotangents_are_zeros(cell):
    rnn = make(cell, 3, 5, dtype="float64")
    x = normal(12, 2, rnn.input_size, dtype=np.float64)
    (y, h_n), pullback = rnn.vjp(x)
    dy, dh_n = cotangents(y, h_n)
    whole, parts = pullback(dy, dh_n), (pullback(dy), pullback(None, dh_n))
    explicit = pullback(dy, np.zeros_like(dh_n))
    for index in (0, 1):
        np.testing.assert_array_equal(parts[0][index], explicit[index])
        assert_close(parts[0][index] + parts[1][index], whole[index], 1e-13)
    for name in whole[2]:
        assert_close(parts[0][2][name] + parts[1][2][name], whole[2][name], 1e-13)


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("cell", CELLS)
def test_a_pullback_can_be_used_again_and_outlives_everything(cell):
    rnn = make(cell, 4, 6, num_layers=2)
    x, h_0 = normal(40, 2, rnn.input_size), normal(2, 2, 6)
    (y, h_n), pullback = rnn.vjp(x, h_0)
    dy, dh_n = cotangents(y, h_n)
    first = pullback(dy, dh_n)
    kept = [first[0].copy(), first[1].copy(), {k: v.copy() for k, v in first[2].items()}]
    h_0[:] = 7
    rnn.load_state_dict({name: value + 1 for name, value in rnn.state_dict().items()})
    layer = weakref.ref(x)
    del rnn, x, y, h_n, h_0
    gc.collect()
    assert layer() is not None, "the pullback holds what it needs"
    again = pullback(dy, dh_n)
    for index in (0, 1):
        np.testing.assert_array_equal(again[index], kept[index])
        assert not np.shares_memory(again[index], first[index])
    for name, value in kept[2].items():
        np.testing.assert_array_equal(again[2][name], value)
    del pullback
    gc.collect()
    assert layer() is None, "and lets it go"


def test_what_the_pullback_reads_cannot_be_written():
    (y, _), _ = make("MinGRU").vjp(normal(4, 3))
    with pytest.raises(ValueError, match="read-only"):
        y += 1


@pytest.mark.parametrize("cell", CELLS)
def test_nothing_to_do(cell):
    rnn = make(cell, 3, 5)
    for tokens in [(0, 2), (4, 0)]:
        shape = *tokens, rnn.input_size
        (y, h_n), pullback = rnn.vjp(np.zeros(shape, np.float32))
        dx, dh_0, dparams = pullback(y, h_n + 1)
        assert dx.shape == shape
        np.testing.assert_array_equal(dh_0, np.ones_like(h_n))
        for value in dparams.values():
            np.testing.assert_array_equal(value, np.zeros_like(value))


@pytest.mark.parametrize("cell", CELLS)
def test_dropout(cell):
    """Between layers and in vjp only; the same seed drops the same, and gradients know what."""
    rnn = make(cell, 8, 32, num_layers=2, dropout=0.5, dtype="float64")
    plain = make(cell, 8, 32, num_layers=2, dtype="float64")
    x = normal(30, 2, rnn.input_size, dtype=np.float64)
    np.testing.assert_array_equal(rnn(x)[0], plain(x)[0])
    (first, _), pullback = rnn.vjp(x, seed=1)
    (same, _), _ = rnn.vjp(x, seed=1)
    np.testing.assert_array_equal(first, same)
    for seed in (2, None, None):
        assert not np.array_equal(rnn.vjp(x, seed=seed)[0][0], first)
    dy = normal(*first.shape, dtype=np.float64)
    direction, step = normal(*x.shape, dtype=np.float64, seed=3), 1e-6
    there, back = (np.vdot(dy, rnn.vjp(x + s * step * direction, seed=1)[0][0]) for s in (1, -1))
    wanted = (there - back) / (2 * step)
    assert abs(np.vdot(pullback(dy)[0], direction) - wanted) <= 1e-6 * abs(wanted)
    one = make(cell, 8, 32, dropout=0.5, dtype="float64")  # one layer has nothing between
    way = "fused_sequential"  # training and inference may pick two
    np.testing.assert_array_equal(one.vjp(x, None, way, seed=1)[0][0], one(x, None, way)[0])


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_is_of_outputs_alone(cell):
    """A layer's last state is not its output: what comes back from it was not dropped."""
    rnn = make(cell, 16, 16, num_layers=2, dropout=0.25, dtype="float64")
    x = normal(200, 1, 16, dtype=np.float64)
    first_layer = make(cell, 16, 16, dtype="float64")
    first_layer.load_state_dict(
        {name: value for name, value in rnn.state_dict().items() if "_l0" in name}
    )
    (_, _), pullback = rnn.vjp(x, seed=0)
    dh_n = np.zeros((2, 1, 16))
    dh_n[0] = 1
    (_, _), whole = first_layer.vjp(x)
    assert_close(pullback(None, dh_n)[0], whole(None, dh_n[:1])[0], 1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_have_the_same_bits_again(cell):
    rnn = make(cell, 16, 48)
    x = normal(500, 2, rnn.input_size)
    for strategy in strategies(cell):
        runs = []
        for _ in range(2):
            (y, _), pullback = rnn.vjp(x, strategy=strategy)
            dx, _, dparams = pullback(np.ones_like(y))
            runs.append([dx, *dparams.values()])
        for one, other in zip(*runs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_baseline_agrees():
    """What demo and bench compare with computes the same."""
    from scanrnn.tools.baseline import Stack

    for cell in ALL_CELLS:
        rnn = make(cell, 6, 6, num_layers=2, dtype="float64")
        x, h_0 = normal(30, 2, 6, dtype=np.float64), normal(2, 2, 6, dtype=np.float64)
        stack = Stack(cell, rnn.state_dict())
        fresh = INFO[cell].fresh[1:]
        state = (h_0, *(np.full_like(h_0, value) for value in fresh)) if fresh else h_0
        (y, h_n), pullback = rnn.vjp(x, state)
        (other_y, other_h), other = stack.vjp(x, h_0)
        assert_close(other_y, y, 1e-12)
        assert_close(other_h, h_n[0] if fresh else h_n, 1e-12)
        dy = normal(*y.shape, dtype=np.float64)
        dx, dh_0, _ = pullback(dy)
        assert_close(other(dy)[0], dx, 1e-11)
        assert_close(other(dy)[1], dh_0[0] if fresh else dh_0, 1e-11)
        for name, wanted in pullback(dy)[2].items():
            assert_close(other(dy)[2][name], wanted, 1e-11, name)


def test_types_are_public():
    (_, _), pullback = make("SRU").vjp(normal(3, 3))
    assert isinstance(pullback, scanrnn.Pullback)
