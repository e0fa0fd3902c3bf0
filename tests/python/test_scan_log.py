# SPDX-License-Identifier: Apache-2.0
"""States as logarithms, beyond the range of floats; and how exact a scan is over long times."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import reference
import scanrnn
from support import DEVICE, assert_close, normal, tolerance

scan = functools.partial(scanrnn.scan, device=DEVICE)
scan_log = functools.partial(scanrnn.scan_log, device=DEVICE, log_output=True)
EXAMPLE = Path(__file__).parents[2] / "docs/examples/hidden_markov_model.py"


def logarithms(shape, seed=0):
    """log_a, log_b, sign_b, (log_h_0, sign)."""
    random = np.random.default_rng([seed, *shape])

    def sign(*of):
        return random.choice([-1.0, 1.0], of)

    log_a, log_b = -random.exponential(size=shape), random.normal(size=shape) * 3
    return log_a, log_b, sign(*shape), (random.normal(size=shape[1:]), sign(*shape[1:]))


def assert_logarithms(got, wanted, dtype, steps, values):
    """Signs where they can be told; logarithms by what rounding of the states does to them.

    `values`: the sums of magnitudes that the states come from, as logarithms.
    """
    (log_h, sign), (wanted_log, wanted_sign) = got, wanted
    assert np.isin(sign, (-1, 1)).all()
    assert log_h.dtype == sign.dtype
    bound = 4 * tolerance(dtype, steps) * np.maximum(1, abs(wanted_log))
    lost = np.exp(np.minimum(values - wanted_log, 700))  # how much of it cancels
    told = bound * lost < 0.1
    assert told.mean() > 0.9
    error = abs(log_h.astype(np.float64) - wanted_log)
    assert (error <= 2 * bound * lost)[told].all(), error[told].max()
    np.testing.assert_array_equal(sign[told], wanted_sign[told])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(1,), (40, 3), (700, 5), (6, 2, 3)])
def test_states_as_logarithms(shape, dtype):
    log_a, log_b, sign_b, (log_h, sign_h) = (
        v if isinstance(v, tuple) else v.astype(dtype) for v in logarithms(shape)
    )
    start = np.asarray(log_h).astype(dtype), np.asarray(sign_h).astype(dtype)
    ones = np.ones_like(sign_b), (start[0], np.ones_like(start[1]))
    reset = normal(*shape, seed=5) > 1.5
    for reverse in (False, True):
        for given in (None, reset):
            got = scan_log(log_a, log_b, sign_b, start, reverse, reset=given)
            wanted = reference.scan_logarithms(log_a, log_b, sign_b, start, reverse, given)
            sums = reference.scan_logarithms(log_a, log_b, *ones, reverse, given)[0]
            assert_logarithms(got, wanted, dtype, shape[0], sums)
    values = scanrnn.scan_log(log_a, log_b, sign_b, device=DEVICE)
    log_h, sign = scan_log(log_a, log_b, sign_b)
    assert_close(sign * np.exp(log_h), values, 8 * tolerance(dtype, shape[0]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_every_axis(axis):
    log_a, log_b, sign_b, _ = logarithms((5, 4, 6))
    wanted = reference.scan_logarithms(
        *(np.moveaxis(v, axis, 0) for v in (log_a, log_b, sign_b)),
        (np.full(np.moveaxis(log_a, axis, 0).shape[1:], -np.inf), 1.0),
    )
    log_h, sign = scan_log(log_a, log_b, sign_b, axis=axis)
    assert_close(log_h, np.moveaxis(wanted[0], 0, axis), 1e-11)
    np.testing.assert_array_equal(sign, np.moveaxis(wanted[1], 0, axis))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_far_beyond_the_range(dtype):
    """e^-100000 and e^100000, whose values no float holds."""
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    steps = 1000
    for step in (-100.0, 100.0):
        log_a = np.full((steps, 3), step).astype(kind)
        nothing = np.full((steps, 3), -np.inf).astype(kind)
        zero = np.zeros(3).astype(kind)
        log_h, sign = scan_log(log_a, nothing, None, (zero, -np.ones(3).astype(kind)))
        wanted = step * np.arange(1, steps + 1)[:, None] * np.ones(3)
        assert_close(log_h, wanted, 4 * tolerance(dtype, steps))
        assert (sign == -1).all()


def test_zero_is_minus_infinity():
    log_a = np.log(np.full((4, 1), 0.5))
    log_b = np.array([[-np.inf], [0.0], [np.log(0.5)], [-np.inf]])
    sign_b = np.array([[1.0], [1.0], [-1.0], [1.0]])
    log_h, sign = scan_log(log_a, log_b, sign_b)
    np.testing.assert_array_equal(log_h[:, 0], [-np.inf, 0, -np.inf, -np.inf])
    np.testing.assert_array_equal(sign[:, 0], 1)


def test_a_hidden_markov_model_over_a_million_observations(capsys):
    """docs/examples/hidden_markov_model.py, which compares with a loop in float64 itself, too."""
    spec = importlib.util.spec_from_file_location("hidden_markov_model", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.main(["--observations", "1000000", "--device", DEVICE])
    assert -1.2e6 < found["exact"] < -0.8e6
    # In float64 what the loop itself may round in a million additions.
    for dtype, bound in (("float32", 3e-7 * 21), ("float64", 1e6 * 2.0**-53)):
        assert abs(found[dtype] - found["exact"]) <= bound * abs(found["exact"])
    assert "log-likelihood" in capsys.readouterr().out
    again = example.main(["--observations", "1000", "--seed", "3", "--device", DEVICE])
    assert abs(again["float64"] - again["exact"]) <= 1e-9


# ---- sizes and tolerances of accelerated-scan's test: relative 1.3e-6, absolute 1e-7


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("steps", [32, 64, 1000, 4096, 32768, 65536, 65537, 100_003, 127_323])
def test_accuracy_over_long_times(steps, axis):
    random = np.random.default_rng(steps)
    shape = (2, 3, steps)
    a = (0.999 + 0.001 * random.random(shape)).astype(np.float32)
    b = random.random(shape).astype(np.float32) / steps
    wanted = np.moveaxis(reference.scan(a, b, axis=-1), -1, axis)
    got = scan(*(np.moveaxis(v, -1, axis) for v in (a, b)), axis=axis)
    np.testing.assert_allclose(got, wanted, rtol=1.3e-6, atol=1e-7)


# ---- errors


@pytest.mark.parametrize("log_h", [-1.5e9, -2.5e9, -4e15, 3e9])
@pytest.mark.parametrize("log_a", [-3e9, -5e9, -7e20, 2.2e9])
def test_steps_and_states_far_beyond_the_range(log_a, log_h):
    a, b = np.full(3, log_a, np.float32), np.full(3, -np.inf, np.float32)
    got, sign = scan_log(a, b, h_0=(np.float32(log_h), None), log_output=True)
    wanted = np.float64(np.float32(log_h)) + np.cumsum(a.astype(np.float64))
    np.testing.assert_allclose(got, wanted, rtol=3e-7)
    assert (np.asarray(sign) == 1).all()


def test_errors_of_logarithms():
    a = np.zeros((4, 3), np.float32)
    sign = np.ones_like(a)
    sign[2, 1] = 0
    with pytest.raises(
        ValueError, match=r"^sign_b: expected \+1 and -1 alone, got 0.0 at \(2, 1\)"
    ):
        scan_log(a, a, sign)
    with pytest.raises(
        ValueError, match=r"^sign_b: expected \+1 and -1 alone, got nan at \(0, 0\)"
    ):
        scanrnn.scan_log(a, a, sign * np.nan, device=DEVICE)
    with pytest.raises(ValueError, match=r"^h_0\[1\]: expected \+1 and -1 alone, got 0.5"):
        scan_log(a, a, None, (a[0], a[0] + 0.5))
    with pytest.raises(TypeError, match=r"^h_0: expected the pair \(log\|h_0\|, sign\) .* numpy"):
        scan_log(a, a, None, a[0])
    with pytest.raises(TypeError, match=r"^h_0: expected the pair .* got 3 of them"):
        scan_log(a, a, None, (a[0],) * 3)
    with pytest.raises(TypeError, match=r"^h_0: expected an array of NumPy.* got tuple"):
        scanrnn.scan_log(a, a, None, (a[0], a[0]), device=DEVICE)
    with pytest.raises(ValueError, match=r"^h_0\[1\]: expected shape \(3,\)"):
        scan_log(a, a, None, (a[0], a))
    with pytest.raises(ValueError, match=r"^h_0\[0\]: expected shape \(3,\)"):
        scan_log(a, a, None, (a, None))
    alone = r"^h_0\[1\]: expected None where h_0\[0\], log\|h_0\|, is None, got numpy.ndarray"
    with pytest.raises(ValueError, match=alone):
        scan_log(a, a, None, (None, sign[0]))
    with pytest.raises(TypeError, match=r"^log_output: expected True or False, got 1"):
        scanrnn.scan_log(a, a, log_output=1)


def test_decays_up_to_the_largest_number():
    """float64 ends at e^709.78, wherever elements lie."""
    for steps, log_a, log_b, h_0 in (
        (3, -1.0, 709.0, None), (1, 708.0, -np.inf, 1e-3), (2, 709.5, -np.inf, 1e-300),
    ):  # fmt: skip
        a, b = np.full((steps, 24), log_a), np.full((steps, 24), -1.0)
        b[0] = log_b
        state = None if h_0 is None else np.full(24, h_0)
        h = 0 if h_0 is None else h_0
        with np.errstate(over="ignore"):
            wanted = np.array([h := np.exp(log_a) * h + np.exp(value) for value in b[:, 0]])
        assert np.isfinite(wanted[0])
        for step in (1, 2):
            start = state if state is None else state[::step]
            found = scanrnn.scan_log(a[:, ::step], b[:, ::step], h_0=start, device=DEVICE)
            np.testing.assert_allclose(found, np.tile(wanted[:, None], 24 // step), rtol=1e-12)
