# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence: any shape, both directions, linear and logarithmic, against the oracle."""

import functools

import numpy as np
import pytest
import reference
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE, assert_close, normal, tolerance

scan = functools.partial(scanrnn.scan, device=DEVICE)
scan_log = functools.partial(scanrnn.scan_log, device=DEVICE)

SHAPES = [(1,), (7,), (300,), (1, 1), (17, 3), (64, 2, 5), (5, 2, 3, 4), (2000, 2)]
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def decays(*shape, seed=1):
    return 1 / (1 + np.exp(-3 * normal(*shape, dtype=np.float64, seed=seed)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_scan(shape, reverse, dtype):
    if dtype == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        dtype = ml_dtypes.bfloat16
    a, b = decays(*shape).astype(dtype), normal(*shape).astype(dtype)
    h_0 = normal(*shape[1:], seed=2).astype(dtype)
    share = tolerance(str(a.dtype), shape[0])
    got = scan(a, b, h_0, reverse=reverse)
    assert got.dtype == a.dtype
    assert_close(got, reference.scan(a, b, h_0, reverse), share, "with h_0")
    assert_close(scan(a, b, reverse=reverse), reference.scan(a, b, None, reverse), share)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scan_log(shape, dtype):
    a, b = decays(*shape), normal(*shape, dtype=np.float64)
    h_0 = -normal(*shape[1:], seed=2).astype(dtype)
    log_a, log_b, sign_b = (v.astype(dtype) for v in (np.log(a), np.log(np.abs(b)), np.sign(b)))
    a, b = np.exp(log_a.astype(np.float64)), sign_b * np.exp(log_b.astype(np.float64))
    share = 4 * tolerance(dtype, shape[0])
    for reverse in (False, True):
        got = scan_log(log_a, log_b, sign_b, h_0, reverse)
        assert_close(got, reference.scan(a, b, h_0, reverse), share)
    assert_close(scan_log(log_a, log_b), reference.scan(a, np.abs(b)), share)


def test_scan_log_knows_zero():
    log_a = np.log(np.array([0.5, 0.5, 0.5, 0.5]))
    log_b = np.array([-np.inf, 0.0, -np.inf, -np.inf])
    np.testing.assert_allclose(scan_log(log_a, log_b), [0, 1, 0.5, 0.25], rtol=1e-15)
    log_a[3] = -np.inf
    np.testing.assert_allclose(scan_log(log_a, log_b), [0, 1, 0.5, 0], rtol=1e-15)


@pytest.mark.parametrize("steps", [4096, 100_000])
def test_scan_log_survives_where_products_underflow(steps):
    """A product of these decays is e^-2000 and less; the states are as exact as at the start."""
    a = np.full((steps, 2), 0.5, np.float32)
    b = np.ones_like(a)
    got = scan_log(np.log(a), np.zeros_like(b))
    assert_close(got, reference.scan(a, b), 3e-7 * (1 + np.log2(steps)))
    assert abs(got[-1, 0] - 2) < 1e-5


def test_scan_keeps_a_long_memory():
    """Decays within 1e-7 of 1 over 2^17 steps."""
    steps = 2**17
    a = np.full((steps, 1), 1 - 2.0**-23, np.float32)
    b = normal(steps, 1)
    assert_close(scan(a, b), reference.scan(a, b), 3e-7 * 18)


def laid(values, axis, apart=1):
    """[T, rows] with its steps along the axis, contiguous there but for rows that lie apart."""
    wide = np.ascontiguousarray(np.moveaxis(np.repeat(values, apart, axis=1), 0, axis))
    return wide[:, ::apart] if axis == 0 else wide[::apart]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [1, 2, 9, 70])
@pytest.mark.parametrize("steps", [2, 33, 4096, 50_000])
@pytest.mark.parametrize("spread", [30.0, 1e3, 1e8])
def test_large_decays_behind_small_ones(spread, steps, rows, axis):
    """What a small decay has forgotten stays forgotten when a large one follows it."""
    size = np.exp(np.log(spread) * np.abs(np.tanh(normal(steps, rows, dtype=np.float64))))
    a, b = np.empty((steps, rows), np.float32), np.abs(normal(steps, rows, seed=2))
    a[0::2] = 1 / size[0::2]
    a[1::2] = 0.9 * size[0::2][: steps // 2]
    a[4::8] = 0
    h_0 = np.abs(normal(rows, seed=3))
    share = 3e-7 * (1 + np.log2(steps))
    wanted = laid(reference.scan(a, b, h_0), axis)
    assert_close(scan(laid(a, axis), laid(b, axis), h_0, axis=axis), wanted, share)
    with np.errstate(divide="ignore"):
        log_a, log_b = np.log(a), np.log(b)
    exact = reference.scan(np.exp(log_a.astype(np.float64)), np.exp(log_b.astype(np.float64)), h_0)
    got = scan_log(laid(log_a, axis), laid(log_b, axis), None, h_0, axis=axis)
    assert_close(got, laid(exact, axis), 4 * share)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("steps", "rows"), [(5, 1), (40, 3), (300, 2), (300, 64), (20_000, 1)])
def test_infinite_states_stay_infinite(steps, rows, axis):
    a, b = np.full((steps, rows), 0.9, np.float32), np.ones((steps, rows), np.float32)
    first = steps - 4
    b[first] = np.inf
    got = np.moveaxis(np.asarray(scan(laid(a, axis), laid(b, axis), axis=axis)), axis, 0)
    assert np.isfinite(got[:first]).all()
    assert (got[first:] == np.inf).all()
    grown = scan(laid(np.full_like(a, 1.5), axis), laid(np.ones_like(a), axis), axis=axis)
    assert not np.isnan(np.asarray(grown)).any()
    given = scan(
        laid(a[:200], axis),
        laid(np.ones_like(a[:200]), axis),
        np.full(rows, np.inf, "f"),
        axis=axis,
    )
    assert (np.asarray(given) == np.inf).all()


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize(
    ("steps", "rows"), [(4, 1), (40, 3), (300, 2), (300, 64), (20_000, 1), (5000, 200)]
)
def test_zero_stays_zero_whatever_its_decays_multiply_to(steps, rows, dtype, axis, apart):
    def scanned():
        h = scan(laid(a, axis, apart), laid(b, axis, apart), axis=axis)
        return np.moveaxis(np.asarray(h), axis, 0).astype(complex)

    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    large = 1e200 if dtype == "float64" else 1e30
    a, b = np.full((steps, rows), large, dtype), np.zeros((steps, rows), dtype)
    a[1::2] *= -1
    first = steps - steps // 4 - 1
    a[first], b[first:] = 0, 1
    a[first + 1 :] = 0.5
    wanted = np.zeros((steps, rows), complex)
    wanted[first:] = (2 - 0.5 ** np.arange(steps - first))[:, None]
    np.testing.assert_allclose(scanned(), wanted, rtol=1e-2)
    a[first // 2] = np.nan
    lost = np.isnan(scanned())
    assert not lost[: first // 2].any()
    assert lost[first // 2 :].all()


@given(
    steps=st.integers(0, 200),
    rows=st.lists(st.integers(0, 4), max_size=2),
    reverse=st.booleans(),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_any_shape(steps, rows, reverse, scale):
    shape = (steps, *rows)
    a, b = normal(*shape, dtype=np.float64), scale * normal(*shape, dtype=np.float64, seed=3)
    a = np.clip(a, -1, 1)  # decays of both signs
    h_0 = scale * normal(*rows, dtype=np.float64, seed=4)
    h_0 = np.asarray(h_0)
    got = scan(a, b, h_0, reverse=reverse)
    assert_close(got, reference.scan(a, b, h_0, reverse), 1e-12)


def test_no_cast_and_no_broadcast():
    a = np.ones((4, 2, 3), np.float32)
    with pytest.raises(TypeError, match=r"^b: expected dtype float32, got float64"):
        scan(a, a.astype(np.float64))
    with pytest.raises(TypeError, match=r"^a: expected dtype one of 'float64', .*, got int64"):
        scan(np.ones(4, np.int64), a)
    with pytest.raises(ValueError, match=r"^b: expected shape \(4, 2, 3\) .* got \(4, 3, 2\)"):
        scan(a, a.reshape(4, 3, 2))
    with pytest.raises(ValueError, match=r"^h_0: expected shape \(2, 3\) .* got \(6,\)"):
        scan(a, a, np.ones(6, np.float32))
    with pytest.raises(ValueError, match=r"^a: expected at least one axis, time, got shape \(\)"):
        scan(np.ones((), np.float32), a)
    with pytest.raises(ValueError, match=r"^sign_b: expected shape"):
        scan_log(a, a, a[0])
    with pytest.raises(TypeError, match=r"^reverse: expected True or False, got 1"):
        scan(a, a, reverse=1)
    with pytest.raises(TypeError, match=r"^log_b: expected an array of NumPy.* got list"):
        scan_log(a, [1.0])


def test_the_device_is_the_arrays_own_unless_named():
    a, b = decays(50, 3), normal(50, 3, dtype=np.float64)
    np.testing.assert_array_equal(scanrnn.scan(a, b), scanrnn.scan(a, b, device="cpu"))
    assert_close(scan(a, b), scanrnn.scan(a, b), 1e-14)
    with pytest.raises(ValueError, match=r"^device: expected 'auto', 'cpu', .* got 'gpu'"):
        scanrnn.scan(a, b, device="gpu")
    with pytest.raises(TypeError, match=r"^device: expected a string, got 0"):
        scanrnn.scan_log(a, b, device=0)
