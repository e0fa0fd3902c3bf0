# SPDX-License-Identifier: Apache-2.0
"""Any strides that NumPy can make give the same result; inputs stay as they are."""

import mmap
import sys

import numpy as np
import pytest
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from scanrnn.arrays.in_place import InPlace
from support import CELLS, DEVICE, assert_close, make, normal


def strided(values, rng):
    """Arrays with the values of `values` and all kinds of memory behind them."""
    yield np.asfortranarray(values)
    for axis in range(values.ndim):
        backwards = np.flip(values, axis).copy()
        yield np.flip(backwards, axis)
        sparse = rng.standard_normal(
            [n * (2 if i == axis else 1) for i, n in enumerate(values.shape)]
        )
        sparse = sparse.astype(values.dtype)
        every_second = tuple(
            slice(None, None, 2) if i == axis else slice(None) for i in range(values.ndim)
        )
        sparse[every_second] = values
        yield sparse[every_second]
    order = rng.permutation(values.ndim)
    yield values.transpose(order).copy().transpose(np.argsort(order))
    padded = rng.standard_normal([n + 3 for n in values.shape]).astype(values.dtype)
    window = tuple(slice(1, n + 1) for n in values.shape)
    padded[window] = values
    yield padded[window]
    raw = np.zeros(values.nbytes + 1, np.uint8)  # not aligned
    unaligned = raw[1:].view(values.dtype) if values.size else values
    unaligned[:] = values.ravel()
    yield unaligned.reshape(values.shape)
    record = np.zeros(values.shape, [("tag", "u1"), ("value", values.dtype)])
    record["value"] = values
    yield record["value"]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_strides(cell, batch_first):
    rnn = make(cell, 4, 6, batch_first=batch_first)
    rng = np.random.default_rng(0)
    x, h_0 = normal(9, 3, rnn.input_size), normal(1, 9 if batch_first else 3, 6)
    wanted, pullback = rnn.vjp(x, h_0)
    dy, dh_n = normal(*wanted[0].shape), normal(*wanted[1].shape)
    gradients = pullback(dy, dh_n)
    kinds = zip(*(strided(a, rng) for a in (x, h_0, dy, dh_n)), strict=True)
    for number, (x_, h_0_, dy_, dh_n_) in enumerate(kinds):
        for got, plain, name in zip(rnn(x_, h_0_), rnn(x, h_0), ("y", "h_n"), strict=True):
            np.testing.assert_array_equal(got, plain, f"{name}, kind {number}")
        dx, dh_0, _ = rnn.vjp(x_, h_0_)[1](dy_, dh_n_)
        np.testing.assert_array_equal(dx, gradients[0], f"dx, kind {number}")
        np.testing.assert_array_equal(dh_0, gradients[1], f"dh_0, kind {number}")


@pytest.mark.parametrize("cell", CELLS)
def test_broadcast_zero_strides(cell):
    rnn = make(cell, 4, 6)
    C = rnn.input_size
    for shape in [(1, 3, C), (9, 1, C), (9, 3, 1), (1, 1, C), (1, 1, 1)]:
        x = np.broadcast_to(normal(*shape), (9, 3, C))
        h_0 = np.broadcast_to(normal(1, 1, 6), (1, 3, 6))
        for got, wanted in zip(rnn(x, h_0), rnn(x.copy(), h_0.copy()), strict=True):
            np.testing.assert_array_equal(got, wanted)
        (y, _), pullback = rnn.vjp(x, h_0)
        dx, _, _ = pullback(np.broadcast_to(np.float32(1), y.shape))  # as the gradient of a sum is
        np.testing.assert_array_equal(dx, rnn.vjp(x.copy(), h_0)[1](np.ones_like(y))[0])


def test_overlapping_windows():
    rnn = make("MinGRU", 4, 6)
    signal = normal(40)
    x = np.lib.stride_tricks.sliding_window_view(signal, 4)  # [37, 4], steps overlap
    np.testing.assert_array_equal(rnn(x)[0], rnn(x.copy())[0])


@given(
    axes=st.permutations(range(3)),
    signs=st.tuples(*[st.sampled_from([1, -1, 2, -3])] * 3),
    batch_first=st.booleans(),
)
def test_any_view(axes, signs, batch_first):
    rnn = make("MinLSTM", 3, 5, batch_first=batch_first)
    shape = [5, 2, 3]
    memory = normal(*[shape[a] * abs(signs[a]) for a in axes])
    view = memory.transpose(np.argsort(axes))[tuple(slice(None, None, s) for s in signs)]
    assert view.shape == tuple(shape)
    np.testing.assert_array_equal(rnn(view)[0], rnn(view.copy())[0])
    # A scan reads the view as it lies: adjacent steps are added up in another order.
    h, wanted = (scanrnn.scan(x, x[::-1], device=DEVICE) for x in (view, view.copy()))
    np.testing.assert_allclose(h, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_inputs_are_left_alone_and_outputs_are_fresh(cell):
    rnn = make(cell, 4, 6, num_layers=2)
    x, h_0 = normal(9, 3, rnn.input_size), normal(2, 3, 6)
    dy, dh_n, x_t = normal(9, 3, 6), normal(2, 3, 6), normal(3, rnn.input_size)
    inputs = [x, h_0, dy, dh_n, x_t]
    for value in inputs:
        value.flags.writeable = False  # a write through NumPy would raise
    copies = [value.copy() for value in inputs]
    (y, h_n), pullback = rnn.vjp(x, h_0)
    dx, dh_0, dparams = pullback(dy, dh_n)
    outputs = [y, h_n, dx, dh_0, *dparams.values(), *rnn(x, h_0), *rnn.step(x_t, h_0)]
    outputs += rnn.state_dict().values()
    for value, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(value, copy)
    held = [*inputs, *(getattr(rnn, name) for name in rnn.state_dict())]
    for index, output in enumerate(outputs):
        assert not any(np.may_share_memory(output, other) for other in held + outputs[:index])


def test_an_input_may_be_any_kind_of_memory(tmp_path):
    rnn, x = make("SRU", 4, 6), normal(5, 2, 4)
    wanted = rnn(x)[0]
    np.save(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(rnn(np.load(tmp_path / "x.npy", mmap_mode="r"))[0], wanted)
    np.testing.assert_array_equal(
        rnn(np.frombuffer(x.tobytes(), np.float32).reshape(x.shape))[0], wanted
    )


def test_tokens_that_lie_apart_are_copied_on_a_gpu():
    """One product reads tokens of one distance, and each product there is a launch."""

    class There(InPlace):
        device, packed = "cuda:0", staticmethod(np.ascontiguousarray)

        def __init__(self):
            pass

        def strides(self, value):
            return [step // value.itemsize for step in value.strides]

    there, x = There(), normal(12, 6, 4)
    for lies_evenly in (x, x[:, ::6], x[::2], x[:8, :3], x[:, :, :2]):
        assert there.tokens(lies_evenly) is lies_evenly
    for apart in (x[:, :3], normal(6, 12, 4).transpose(1, 0, 2)):
        copied = there.tokens(apart)
        assert copied.flags.c_contiguous
        assert copied is not apart
        np.testing.assert_array_equal(copied, apart)
    there.device = "cpu"
    assert there.tokens(apart) is apart


@pytest.mark.skipif(sys.platform != "linux", reason="wants memory that is not there")
@pytest.mark.parametrize("cell", ["MinGRU", "GRU"])
def test_tokens_beyond_32_bits_apart(cell):
    """BLAS has 32 bits for what lies between two rows."""
    apart = 2**31 + 64
    no_reserve = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
    memory = mmap.mmap(-1, 4 * (apart + 4096), flags=mmap.MAP_PRIVATE | no_reserve)
    flat = np.frombuffer(memory, np.float32)
    rnn, dy = make(cell, 8, 4, device="cpu"), normal(2, 3, 4)
    x, h_0 = normal(2, 3, 8), normal(1, 2, 4)
    far = np.lib.stride_tricks.as_strided(flat, (2, 3, 8), (4 * apart, 32, 4))
    far[...] = x
    far_state = np.lib.stride_tricks.as_strided(flat[1024:], (1, 2, 4), (4, 4 * apart, 4))
    far_state[...] = h_0
    turned = x.transpose(1, 0, 2).copy()
    for seen, whole, state, near, first in (
        (far, x, None, None, dy),
        (far.transpose(1, 0, 2), turned, far_state, h_0, dy.transpose(1, 0, 2)),
    ):
        (y, _), pullback = rnn.vjp(seen, state)
        (wanted, _), pull = rnn.vjp(whole, near)
        assert_close(y, wanted, 1e-6)
        (dx, _, found), (dx_of_copy, _, params) = pullback(first), pull(first)
        assert_close(dx, dx_of_copy, 1e-6)
        for name, value in params.items():
            assert_close(found[name], value, 1e-5)
