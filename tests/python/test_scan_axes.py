# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence along any axis, in any memory, with resets and of complex numbers."""

import functools

import numpy as np
import pytest
import reference
import scanrnn
from scanrnn.arrays.numpy import Elsewhere, on_cpu
from scanrnn.scan_call import checked, lines_of
from support import DEVICE, assert_close, normal, tolerance

NUMPY = on_cpu("a")
scan = functools.partial(scanrnn.scan, device=DEVICE)
scan_log = functools.partial(scanrnn.scan_log, device=DEVICE)

SHAPES = [(9,), (7, 5), (4, 6, 3), (3, 4, 2, 5), (2, 3, 4, 2, 3)]
AXES = [(shape, axis) for shape in SHAPES for axis in range(-len(shape), len(shape))]
BOUND = {
    "float32": "float32",
    "float64": "float64",
    "complex64": "float32",
    "complex128": "float64",
}


def values(shape, dtype, seed=0):
    real = normal(*shape, dtype=np.float64, seed=seed)
    if "complex" in dtype:
        real = (real + 1j * normal(*shape, dtype=np.float64, seed=seed + 50)) / np.sqrt(2)
    return np.asarray(real).astype(dtype)


def decays(shape, dtype, seed=1):
    """At most 1 in magnitude, of every sign or phase."""
    found = values(shape, dtype, seed)
    return (found / np.maximum(np.abs(found), 1)).astype(dtype)


def without(shape, axis):
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def case(shape, axis, dtype):
    a, b = decays(shape, dtype), values(shape, dtype)
    return a, b, values(without(shape, axis), dtype, 2), normal(*shape, seed=3) > 1


def share(dtype, steps):
    return (2 if "complex" in dtype else 1) * tolerance(BOUND[dtype], steps)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_every_axis(shape, axis, dtype):
    a, b, h_0, reset = case(shape, axis, dtype)
    bound = share(dtype, shape[axis])
    for reverse in (False, True):
        for given in (None, reset):
            got = scan(a, b, h_0, reverse, axis=axis, reset=given)
            assert got.dtype == a.dtype
            assert got.flags.c_contiguous
            wanted = reference.scan(a, b, h_0, reverse, axis, given)
            assert_close(got, wanted, bound, f"reverse {reverse}")
        got = scan(a, b, None, reverse, axis=axis)
        assert_close(got, reference.scan(a, b, None, reverse, axis), bound)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
@pytest.mark.parametrize("steps", [1, 2, 4, 7, 16, 33, 100, 101, 256])
def test_many_short_rows(steps, dtype):
    """Their steps are adjacent; they lie side by side in memory, or with a gap between them."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    kind = "complex64" if dtype == "complex64" else "float64"
    wide = 5000, steps + 3
    a, b = decays(wide, kind).astype(dtype), values(wide, kind).astype(dtype)
    h_0, reset = values((5000,), kind, 2).astype(dtype), normal(*wide, seed=3) > 1
    bound = 4 * tolerance(BOUND.get(str(a.dtype), "bfloat16"), steps)
    for view in (slice(1, 1 + steps), slice(steps)):
        views = [v[:, view] for v in (a, b, reset)]
        if view.start is None:
            views = [v.copy() for v in views]
        for reverse in (False, True):
            for given in (None, views[2]):
                got = scan(*views[:2], h_0, reverse, axis=1, reset=given)
                wanted = reference.scan(*views[:2], h_0, reverse, 1, given)
                assert_close(got, wanted, bound, f"{view}, reverse {reverse}")


@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_logarithms_along_every_axis(shape, axis):
    a, b, h_0, reset = case(shape, axis, "float64")
    log_a, log_b, sign_b = np.log(abs(a)), np.log(abs(b)), np.sign(b)
    for reverse in (False, True):
        got = scan_log(log_a, log_b, sign_b, h_0, reverse, axis=axis, reset=reset)
        wanted = reference.scan(abs(a), b, h_0, reverse, axis, reset)
        assert_close(got, wanted, 4 * tolerance("float64", shape[axis]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_strides(axis, dtype):
    """Transposed, sliced, backwards, expanded and unaligned arrays are what their copies are."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    shape = (6, 4, 8)
    kind = "complex64" if dtype == "complex64" else "float64"
    wide = decays((12, 8, 16), kind).astype(dtype)
    raw = np.zeros(wide.itemsize * 192 + 1, np.uint8)
    raw[1:] = wide[:6, :4, :8].reshape(-1).view(np.uint8)
    views = [
        wide[:6, :4, :8],
        wide[::2, ::2, ::2],
        wide[5::-1, :4, 7::-1],
        wide[:8, :4, :6].transpose(2, 1, 0),
        wide[:4, :6, :8].transpose(1, 0, 2),
        np.broadcast_to(wide[:6, :1, :8], shape),
        np.broadcast_to(wide[0, 0, 0], shape),
        np.broadcast_to(wide[:6, :4, :1], shape),
        raw[1:].view(dtype).reshape(shape),
    ]
    states = [v[tuple(0 if i == axis else slice(None) for i in range(3))] for v in views]
    for number, view in enumerate(views):
        assert view.shape == shape
        other, h_0 = views[number - 3], states[number - 5]
        copies = [v.copy() for v in (view, other, h_0)]
        got, wanted = scan(view, other, h_0, axis=axis), scan(*copies, axis=axis)
        assert_close(got, wanted, 4 * tolerance(BOUND.get(str(wide.dtype), "bfloat16"), 8), number)
        for v, copy in zip((view, other, h_0), copies, strict=True):
            np.testing.assert_array_equal(v, copy, "a call wrote to its argument")


# Sizes of a with their strides, what the core walks, and whether anything is copied.
@pytest.mark.parametrize(
    ("shape", "axis", "strides", "walked"),
    [
        ((9, 2, 3), 0, [(3, 1)], (9, 1, 6)),
        ((9, 2, 3), 0, [(6, 1)], (9, 2, 3)),  # a slice of wider rows
        ((9, 2, 3), 0, [(3, 1), (1, 0)], (9, 2, 3)),  # a reset of [T,B]
        ((9, 2, 3), 0, [(1, 2)], (9, 2, 3)),
        ((2, 9, 3), 1, [(27, 1)], (9, 2, 3)),
        ((2, 3, 9), 2, [(27, 9)], (9, 1, 6)),
        ((2, 9, 1), 1, [(9, 1)], (9, 1, 2)),
        ((1, 9, 2, 3), 1, [(54, 3, 1)], (9, 1, 6)),
        ((2, 3, 9), 2, [(100, 9)], (9, 2, 3)),
        ((2, 1, 3, 9), 3, [(100, 7, 9)], (9, 2, 3)),  # axes of one size have no stride
        ((9, 2, 3, 4), 0, [(12, 4, 1), (24, 4, 1)], (9, 2, 12)),
        ((9, 2, 3, 4), 0, [(12, 4, 1), (24, 8, 1)], (9, 6, 4)),
        ((9, 2, 3, 4), 0, [(99, 8, 1), (24, 8, 1), (30, 9, 1)], (9, 6, 4)),  # the fewest copies
    ],
)
def test_what_is_walked(shape, axis, strides, walked):
    lines = lines_of(shape, axis, tuple(strides))
    assert lines.shape == walked
    assert lines.time_contiguous == (axis == len(shape) - 1 or shape[-1] == 1)


def test_nothing_is_copied_where_strides_allow_it():
    """Slices, transposes and a reset of [T,B]: what the core is given is memory of the caller."""
    wide = normal(40, 6, 16)
    for a, axis, reset in [
        (wide[:, :, 4:12], 0, normal(40, 6) > 1),
        (wide[:, :, 4:12].transpose(1, 2, 0), 2, normal(6, 1, 40) > 1),
        (wide.transpose(1, 0, 2), 1, normal(6, 40) > 1),
    ]:
        h_0 = a[tuple(0 if i == axis else slice(None) for i in range(3))]
        call = checked(NUMPY, {"a": a, "b": a}, h_0, False, axis, reset)
        call = NUMPY.reset_spread(call)
        lines = NUMPY.lines(call)
        for value in (call.a, call.reset, call.h_0):
            assert np.shares_memory(NUMPY.as_lines(value, lines), value), (axis, value.shape)


@pytest.mark.parametrize(("shape", "axis"), AXES[::3])
def test_copies_on_a_device_and_backward(shape, axis):
    """NumPy's arrays elsewhere, here the CPU: they lie in C order there. Backward as well."""
    a, b, h_0, reset = case(shape, axis, "complex128")
    near = checked(NUMPY, {"a": a, "b": b}, h_0, True, axis, reset)
    far = near._replace(a=np.asfortranarray(a), b=b)
    dh = values(shape, "complex128", 7)
    h = NUMPY.scan(near)[0]
    wanted = NUMPY.scan_backward(near, h, None, dh, (True, True, True))
    assert_close(h, reference.scan(a, b, h_0, True, axis, reset), 1e-12)
    on = Elsewhere("cpu")
    np.testing.assert_array_equal(on.scan(far)[0], h)
    for needs in ((True, True, True), (False, True, False)):
        got = on.scan_backward(far, h, None, dh, needs)
        for one, other, need in zip(got, wanted, needs, strict=True):
            assert (one is None) == (not need)
            if need:
                assert_close(one, other, 1e-13)
    # <dh, J (a', b', h_0')> is <J^T dh, (a', b', h_0')>, by differences
    moves = [values(v.shape, "complex128", 9 + i) for i, v in enumerate((a, b, h_0))]
    ends = [
        reference.scan(
            *(v + step * move for v, move in zip((a, b, h_0), moves, strict=True)),
            True,
            axis,
            reset,
        )
        for step in (1e-6, -1e-6)
    ]
    found = np.vdot(dh, (ends[0] - ends[1]) / 2e-6).real
    told = sum(np.vdot(d, move).real for d, move in zip(wanted, moves, strict=True))
    assert abs(found - told) <= 1e-6 * (abs(found) + np.linalg.norm(dh))


# ---- resets


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_shapes_of_resets(axis):
    """[T], prefixes that reach time, and axes of size 1 are what they are when spread."""
    shape = (6, 4, 5)
    a, b, h_0, whole = case(shape, axis, "float64")
    one = normal(shape[axis], seed=8) > 0.5
    found = [np.moveaxis(one.reshape(-1, 1, 1), 0, axis)]
    given = [one]
    for end in range(axis + 1, 4):
        given.append(whole[(slice(None),) * end + (0,) * (3 - end)])
        found.append(given[-1].reshape(*shape[:end], *(1,) * (3 - end)))
    for other in range(3):
        if other != axis:
            found.append(whole.take([0], other))
            given.append(found[-1])
    for reset, spread in zip(given, found, strict=True):
        spread = np.broadcast_to(spread, shape)
        got = scan(a, b, h_0, axis=axis, reset=reset)
        assert_close(got, reference.scan(a, b, h_0, False, axis, spread), 1e-12, str(reset.shape))


def test_a_reset_is_a_new_sequence():
    """Not even infinities and NaN cross it, in both directions."""
    a, b = decays((30, 4), "float64"), values((30, 4), "float64")
    reset = np.zeros(30, bool)
    reset[[0, 11, 20]] = True
    b[5] = np.nan
    b[10] = np.inf
    got = scan(a, b, np.full(4, np.inf), reset=reset)
    assert_close(got[:5], scan(a[:5], b[:5]), 1e-13)
    assert_close(got[11:20], scan(a[11:20], b[11:20]), 1e-13)
    assert_close(got[20:], scan(a[20:], b[20:]), 1e-13)
    assert np.isnan(got[5:10]).all()
    got = scan(a, b, reverse=True, reset=reset)
    assert_close(got[12:], scan(a[12:], b[12:], reverse=True, reset=reset[12:]), 1e-13)
    assert np.isinf(got[10]).all() or np.isnan(got[10]).all()


# ---- empty ones, and errors


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_of_numpys():
    a = np.matrix(normal(9, 4))
    np.testing.assert_array_equal(scanrnn.scan(a, a), scanrnn.scan(np.asarray(a), np.asarray(a)))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (2, 0, 3), (0, 0), (2, 3, 0)])
def test_empty(shape):
    for axis in range(len(shape)):
        for dtype in ("float32", "complex128"):
            a = np.zeros(shape, dtype)
            h_0, reset = np.ones(without(shape, axis), dtype), np.ones(shape, bool)
            got = scan(a, a, h_0, axis=axis, reset=reset)
            assert got.shape == shape
            assert got.dtype == dtype
        a, h_0 = a.real, h_0.real
        log_h, sign = scan_log(a, a, axis=axis, log_output=True, h_0=(h_0, h_0))
        assert log_h.shape == sign.shape == shape


def test_errors_of_axes_resets_and_complex_numbers():
    a = np.ones((4, 2, 3), np.float32)
    z = a.astype(np.complex64)
    for axis in (3, -4):
        with pytest.raises(ValueError, match=r"^axis: expected -3 to 2, an axis of a of shape"):
            scan(a, a, axis=axis)
    for axis in (1.0, None, "0", True):
        with pytest.raises(TypeError, match=r"^axis: expected an integer, got "):
            scan(a, a, axis=axis)
    with pytest.raises(ValueError, match=r"^h_0: expected shape \(4, 3\) .* got \(2, 3\)"):
        scan(a, a, a[0], axis=1)
    with pytest.raises(TypeError, match=r"^reset: expected dtype bool, got float32"):
        scan(a, a, reset=a)
    for shape in [(), (3,), (4, 3), (4, 2, 3, 1), (1, 2, 3), (4, 1, 2)]:
        with pytest.raises(ValueError, match=r"^reset: expected shape \(4, 2, 3\), \(4,\) or "):
            scan(a, a, reset=np.ones(shape, bool))
    with pytest.raises(ValueError, match=r"^reset: .* begins with \(4, 2\), .* got \(4, 1\)"):
        scan(a, a, axis=1, reset=np.ones((4, 1), bool))
    with pytest.raises(TypeError, match=r"^h_0: expected dtype complex64, got float32"):
        scan(z, z, a[0])
    with pytest.raises(TypeError, match=r"^b: expected dtype complex64, got float32"):
        scan(z, a)
    with pytest.raises(TypeError, match=r"^a: expected dtype one of .*, got complex256"):
        scan(a.astype(np.complex256), a)
    with pytest.raises(TypeError, match=r"^log_a: expected real numbers, got complex64"):
        scan_log(z, z, log_output=True)
    with pytest.raises(TypeError, match=r"^reset: expected an array of NumPy.*, got list"):
        scan(a, a, reset=[True] * 4)
