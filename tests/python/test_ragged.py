# SPDX-License-Identifier: Apache-2.0
"""Sequences of many lengths in one call: each is to the letter what a call on it alone gives."""

import numpy as np
import pytest
from ragged_support import Batch, as_state, flat
from scanrnn.arrays.numpy import Elsewhere, NumPy
from support import (
    ALL_CELLS,
    ALL_VARIANTS,
    DEVICE,
    FORCED,
    OPTION,
    assert_close,
    assert_close_rms,
    domains,
    gradient_tolerance,
    make,
    normal,
    normal_states,
    rows,
    tolerance,
)

LENGTHS = {
    "unsorted": [5, 0, 37, 1, 20, 36],
    "none": [0, 0, 0],
    "all": [9, 9, 9, 9],
    "one": [17],
    "steps": [2, 1, 2, 1, 1],
}
LAYOUTS = ["padded", "packed", "padded_reset", "packed_reset", "reset"]


def layers(cell, *sizes, **options):
    """The layer, and the same one with steps first."""
    rnn = make(cell, *sizes, **options)
    plain = make(cell, *sizes, **{**options, "batch_first": False})
    plain.load_state_dict(rnn.state_dict())
    return rnn, plain


def batch_of(rnn, plain, lengths, layout, **options):
    if layout == "reset":
        lengths = [max(lengths)] * len(lengths)
    return Batch(rnn, plain, lengths, packed="packed" in layout, reset="reset" in layout, **options)


def check(batch, strategy=None):
    """Forward, training and gradients of a call against single calls on each stretch."""
    rnn, dtype = batch.rnn, str(batch.rnn.dtype)
    x, options = batch.lay(batch.xs), batch.options()
    given = as_state(batch.h_0)
    share = 2 * rnn.num_layers * tolerance(dtype, batch.steps)
    wanted, finals = batch.wanted()
    y, h_n = rnn(x, given, strategy=strategy, **options)
    (again, h_again), pullback = rnn.vjp(x, given, strategy=strategy, **options)
    for got, state_n, name in ((y, h_n, "y"), (again, h_again, "y in training")):
        assert_close(got, wanted, share, name)
        for part, final in zip(flat(state_n), finals, strict=True):
            assert_close(part, final, share, f"state with {name}")
    dx, dh_0, dparams = pullback(batch.lay(batch.dys), as_state(batch.dh_n))
    wanted_dx, wanted_dh_0, wanted_params, sizes = batch.gradients()
    share = 3 * rnn.num_layers * gradient_tolerance(dtype)
    assert_close_rms(dx, wanted_dx, share, "dx")
    for got, part in zip(flat(dh_0), wanted_dh_0, strict=True):
        assert_close_rms(got, part, share, "dh_0")
    for name, got in dparams.items():
        assert_close_rms(got, wanted_params[name], share, f"d{name}", sizes[name], floor=1e-30)
    absent = batch.lay([np.ones(n, bool) for n in batch.lengths], False) == 0
    assert not y[absent].any()
    assert not again[absent].any()
    assert not dx[absent].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_lengths(cell, lengths, layout):
    check(batch_of(*layers(cell), LENGTHS[lengths], layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_stacks(cell, batch_first, num_layers, bidirectional, layout):
    options = {
        "num_layers": num_layers, "bidirectional": bidirectional, "batch_first": batch_first,
        "dtype": "float64",
    }  # fmt: skip
    check(batch_of(*layers(cell, 4, 6, **options), [3, 19, 0, 11], layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("variant", ALL_VARIANTS, ids="-".join)
def test_dtypes_and_variants(variant, dtype, layout):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    cell, variant = variant
    check(batch_of(*layers(cell, 16, 16, variant=variant, dtype=dtype), [8, 21, 1, 0, 13], layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("cell", "strategy", "domain"), [(*way, domain) for way in FORCED for domain in domains(way[0])]
)
def test_strategies(cell, domain, strategy, layout):
    """Long enough that time is split between threads."""
    rnn, plain = layers(cell, 3, 40, domain=domain, bidirectional=True, dtype="float64")
    check(batch_of(rnn, plain, [700, 3, 1024, 300], layout), strategy)


@pytest.mark.parametrize("hidden", [1, 7, 33, 130])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_sizes(cell, hidden):
    for layout in LAYOUTS:
        check(batch_of(*layers(cell, 2, hidden), [4, 0, 9, 9, 1, 2, 8, 3, 5], layout))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_dropout_is_that_of_the_tokens_places(cell):
    """The same seed drops the same places whatever the padding holds."""
    rnn = make(cell, 4, 6, num_layers=2, dropout=0.5)
    x, lengths = normal(9, 3, rnn.input_size), np.array([9, 2, 5])
    other = x.copy()
    for row, n in enumerate(lengths):
        other[n:, row] = np.nan
    (y, _), pullback = rnn.vjp(x, seed=3, lengths=lengths)
    (again, _), other_pullback = rnn.vjp(other, seed=3, lengths=lengths)
    np.testing.assert_array_equal(y, again)
    for one, two in zip(pullback(y)[2].values(), other_pullback(again)[2].values(), strict=True):
        np.testing.assert_array_equal(one, two)


# ---- what does not exist reaches nothing


@pytest.mark.parametrize("padding", [np.nan, np.inf])
@pytest.mark.parametrize("cell", ["SRU", "PeepholeSRU"])
def test_padding_reaches_no_gradient_through_a_projection_of_x(cell, padding):
    """weight_ih meets what the projection makes of x, not x itself."""
    rnn = make(cell, 3, 4, projection_size=2, num_layers=2)
    lengths, x = np.array([3, 0, 5]), normal(5, 3, 3)
    clean, other = x.copy(), x.copy()
    for row, n in enumerate(lengths):
        clean[n:, row], other[n:, row] = 0, padding
    (y, _), pullback = rnn.vjp(clean, lengths=lengths)
    (again, _), other_pullback = rnn.vjp(other, lengths=lengths)
    np.testing.assert_array_equal(y, again)
    wanted, got = pullback(np.ones_like(y)), other_pullback(np.ones_like(y))
    np.testing.assert_array_equal(wanted[0], got[0])
    for name, value in wanted[2].items():
        np.testing.assert_array_equal(got[2][name], value, name)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_nothing_crosses_a_reset(cell, bidirectional):
    smooth = "tanh" if cell in OPTION else None  # a slope that is nowhere zero
    rnn = make(cell, 3, 5, smooth, bidirectional=bidirectional, dtype="float64")
    x, reset = normal(12, 2, rnn.input_size, dtype=np.float64), np.zeros((12, 2), bool)
    reset[7] = True
    h_0 = as_state(normal_states(cell, rows(rnn), 2, 5, dtype=np.float64))
    (y, _), pullback = rnn.vjp(x, h_0, reset=reset)
    dy = np.zeros_like(y)
    dy[7:] = normal(5, *y.shape[1:], dtype=np.float64)
    dx, dh_0, _ = pullback(dy)
    assert not dx[:7].any()
    assert np.abs(dx[7:]).min() > 0
    for part in flat(dh_0)[:3]:  # m of four has none
        assert not part[0].any()
        assert part[1:].all()
    dy = np.zeros_like(y)
    dy[:7] = 1
    dx, dh_0, _ = pullback(dy)
    assert not dx[7:].any()
    for part in flat(dh_0)[:3]:
        assert part[0].all()
        assert not part[1:].any()


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_resets_at_the_ends_everywhere_and_nowhere(cell):
    rnn = make(cell, 3, 5, dtype="float64")
    x = normal(9, 2, rnn.input_size, dtype=np.float64)
    h_0 = as_state(normal_states(cell, 1, 2, 5, dtype=np.float64))

    def reset(*where):
        out = np.zeros((9, 2), bool)
        out[list(where)] = True
        return out

    plain, last = rnn(x, h_0)
    y, h_n = rnn(x, h_0, reset=reset())
    assert_close(y, plain, 1e-12)
    assert_close(flat(h_n)[0], flat(last)[0], 1e-12)
    assert_close(rnn(x, h_0, reset=reset(0))[0], rnn(x)[0], 1e-12, "at t = 0")
    y, h_n = rnn(x, h_0, reset=reset(8))
    assert_close(y[:8], plain[:8], 1e-12, "before t = T-1")
    assert_close(y[8:], rnn(x[8:])[0], 1e-12, "at t = T-1")
    y, h_n = rnn(x, h_0, reset=reset(*range(9)))
    alone = np.concatenate([rnn(x[t : t + 1])[0] for t in range(9)])
    assert_close(y, alone, 1e-12, "everywhere")


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_of_one_sequence(cell):
    """reset is [T], and x may be a single step."""
    rnn = make(cell, 3, 5, batch_first=True)
    x, reset = normal(8, rnn.input_size), np.arange(8) % 3 == 2
    (y, h_n), pullback = rnn.vjp(x, reset=reset)
    (batch, h_batch), whole = rnn.vjp(x[None], reset=reset[None])
    np.testing.assert_array_equal(y, batch[0])
    np.testing.assert_array_equal(flat(h_n)[0], flat(h_batch)[0][:, 0])
    np.testing.assert_array_equal(pullback(y)[0], whole(batch)[0][0])
    assert rnn(x[:0], reset=reset[:0])[0].shape == (0, 5)


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (5, 0), (0, 0)])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_empty(cell, steps, batch):
    rnn = make(cell, 4, 6)
    x = np.ones((steps, batch, rnn.input_size), np.float32)
    options = {"lengths": np.zeros(batch, int), "reset": np.ones((steps, batch), bool)}
    (y, h_n), pullback = rnn.vjp(x, **options)
    assert y.shape == (steps, batch, 6)
    assert not flat(h_n)[0].any()
    dx, _, dparams = pullback(y)
    assert dx.shape == x.shape
    assert not any(value.any() for value in dparams.values())
    for ends in ([0], [0, 0], [0, 0, 0, 0]):
        none = x.reshape(-1, rnn.input_size)[:0]
        (y, h_n), pullback = rnn.vjp(none, cu_seqlens=np.array(ends))
        assert y.shape == (0, 6)
        assert flat(h_n)[0].shape == (1, len(ends) - 1, 6)
        pullback(y)


# ---- the arrays themselves


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_integers_of_every_dtype_and_stride(cell):
    rnn = make(cell)
    x, lengths = normal(9, 3, rnn.input_size), np.array([4, 9, 0])
    wanted, _ = rnn(x, lengths=lengths)
    for dtype in "bBhHiIlLqQ":
        np.testing.assert_array_equal(rnn(x, lengths=lengths.astype(dtype))[0], wanted)
    np.testing.assert_array_equal(rnn(x, lengths=lengths.astype(">i8"))[0], wanted)
    spread = np.repeat(lengths[::-1], 2)[::-2]
    np.testing.assert_array_equal(rnn(x, lengths=spread)[0], wanted)
    misaligned = np.frombuffer(b"." + lengths.tobytes(), lengths.dtype, offset=1)
    np.testing.assert_array_equal(rnn(x, lengths=misaligned)[0], wanted)
    reset = np.zeros((3, 9), bool)
    reset[1, 4] = True
    np.testing.assert_array_equal(
        rnn(x, reset=reset.T)[0], rnn(x, reset=np.ascontiguousarray(reset.T))[0]
    )
    row = np.broadcast_to(reset[1, :, None], (9, 3))
    np.testing.assert_array_equal(rnn(x, reset=row)[0], rnn(x, reset=row.copy())[0])


def test_numpys_arrays_on_a_device(monkeypatch):
    """They go there and back in each call, here also where the device is the CPU."""
    monkeypatch.setattr(NumPy, "for_layer", lambda *_: Elsewhere(DEVICE))
    for layout in LAYOUTS:
        check(batch_of(*layers("LSTM"), [5, 0, 9, 3], layout))
    test_integers_of_every_dtype_and_stride("GRU")
    test_empty("MinGRU", 0, 3)
    test_empty("MinGRU", 5, 0)
    test_steps_of_a_pool("LSTM", "float32")


def test_a_pullback_holds_copies():
    rnn, x = make("GRU"), normal(9, 3, 3)
    lengths, reset = np.array([4, 9, 0]), np.zeros((9, 3), bool)
    (y, _), pullback = rnn.vjp(x, lengths=lengths, reset=reset)
    before = pullback(y)[0]
    lengths[:], reset[:] = 0, True
    np.testing.assert_array_equal(pullback(y)[0], before)


def test_plans():
    rnn = make("MinGRU")
    assert "12 tokens of 3 sequences" in str(rnn.plan(12, 3, packed=True))
    assert "T=12 B=3" in str(rnn.plan(12, 3))
    with pytest.raises(TypeError, match="packed: expected True or False, got 1"):
        rnn.plan(12, 3, packed=1)


# ---- a pool of states


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_steps_of_a_pool(cell, dtype):
    rnn = make(cell, 4, 6, num_layers=2, dtype=dtype)
    pool = normal_states(cell, 2, 7, 6, dtype=dtype)
    before = [part.copy() for part in pool]
    x_t, taken_from = normal(5, rnn.input_size, dtype=dtype), np.array([6, -1, 0, 3, -1], np.int32)
    y, h = rnn.step(x_t, as_state(pool), state_indices=taken_from)
    for given, back in zip(pool, flat(h), strict=True):
        assert given is back
    taken = taken_from >= 0
    own = taken_from[taken]
    alone, after = rnn.step(x_t[taken], as_state([part[:, own] for part in before]))
    share = 4 * tolerance(dtype, 1)
    assert not y[~taken].any()
    assert_close(y[taken], alone, share, "y")
    for part, was, wanted in zip(pool, before, flat(after), strict=True):
        assert_close(part[:, own], wanted, share, "pool")
        others = [1, 2, 4, 5]
        np.testing.assert_array_equal(part[:, others], was[:, others])


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_decoding_from_a_pool_is_the_sequence(cell):
    rnn = make(cell, 4, 6, num_layers=2)
    x = normal(8, 3, rnn.input_size)
    pool = as_state([np.zeros((2, 9, 6), np.float32) for _ in range(rnn._cell.states)])
    ys = [rnn.step(x_t, pool, state_indices=np.array([8, 2, 5]))[0] for x_t in x]
    assert_close(np.stack(ys), rnn(x)[0], 1e-6)
    y, _ = rnn.step(x[0], pool, state_indices=np.full(3, -1))
    assert not y.any()
    assert rnn.step(x[0, :0], pool, state_indices=np.zeros(0, int))[0].shape == (0, 6)
