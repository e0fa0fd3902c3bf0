# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries on a GPU: kinds, devices, streams. SCANRNN_TEST_DEVICE=cuda runs it."""

import gc

import numpy as np
import pytest
import scanrnn
from support import DEVICE, assert_close, make, normal, tolerance
from test_errors import raises

pytestmark = pytest.mark.skipif(DEVICE == "cpu", reason="wants SCANRNN_TEST_DEVICE=cuda")
CELL, SIZES = "MinLSTM", (64, 96)


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


BOUND = {"complex64": "float32", "complex128": "float64"}


def arrays(steps=200, dtype=np.float32):
    return normal(steps, 8, 64).astype(dtype), normal(1, 8, 96).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_cupy_in_cupy_out(cupy, dtype):
    rnn = make(CELL, *SIZES, dtype=dtype)
    x, h_0 = arrays(dtype=rnn.dtype)
    results = []
    for kind in (cupy.asarray, np.asarray):
        (y, h_n), pullback = rnn.vjp(kind(x), kind(h_0))
        out = [*rnn(kind(x), kind(h_0)), y, h_n]
        ones = kind(np.ones(y.shape, rnn.dtype)), kind(np.ones(h_n.shape, rnn.dtype))
        dx, dh_0, dparams = pullback(*ones)
        results.append([*out, dx, dh_0, *dparams.values(), *rnn.step(kind(x)[0], kind(h_0))])
    for got, wanted in zip(*results, strict=True):
        assert isinstance(got, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(got), wanted)
    a, b = cupy.asarray(abs(x[:, 0])) / 4, cupy.asarray(x[:, 1])
    wanted = scanrnn.scan(cupy.asnumpy(a), cupy.asnumpy(b)).astype(np.float64)
    got = scanrnn.scan(a, b)
    assert_close(cupy.asnumpy(got).astype(np.float64), wanted, tolerance(dtype, 200))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "complex128"])
def test_scans_of_cupy(cupy, dtype, axis):
    """In any memory, with resets of CuPy's and of NumPy's."""
    shape = (5, 40, 6)
    wide = [(normal(10, 40, 12, seed=seed) / 4).astype(dtype) for seed in (1, 2)]
    state = tuple(n for i, n in enumerate(shape) if i != axis % 3)
    h_0, reset = normal(*state).astype(dtype), normal(*shape, seed=3) > 1
    wanted = scanrnn.scan(*(v[::2, :, ::2] for v in wide), h_0, axis=axis, reset=reset)
    a, b = (cupy.asarray(v)[::2, :, ::2] for v in wide)
    for given in (reset, cupy.asarray(reset)):
        got = scanrnn.scan(a, b, cupy.asarray(h_0), axis=axis, reset=given)
        assert isinstance(got, cupy.ndarray)
        assert_close(cupy.asnumpy(got), wanted, 2 * tolerance(BOUND.get(dtype, dtype), 40))
    if dtype == "float32":
        logs = -abs(a), -abs(b)
        log_h, sign = scanrnn.scan_log(*logs, axis=axis, log_output=True)
        wanted = scanrnn.scan_log(*map(cupy.asnumpy, logs), axis=axis, log_output=True)
        assert_close(cupy.asnumpy(log_h), wanted[0], 8 * tolerance(dtype, 40))
        np.testing.assert_array_equal(cupy.asnumpy(sign), wanted[1])


def test_cupy_errors(cupy):
    rnn = make(CELL, *SIZES)
    x = cupy.asarray(arrays()[0])
    with raises(ValueError, "x: expected strides of at least 0.*pass cupy.ascontiguousarray"):
        rnn(x[::-1])
    with raises(TypeError, "x: expected dtype float32, got complex64; pass its real and"):
        rnn(x.astype(cupy.complex64))
    with raises(TypeError, "h_0: expected a CuPy array on cuda:0, as x is one, got a NumPy array"):
        rnn(x, arrays()[1])
    with raises(TypeError, "x: expected an array on cpu.*got a CuPy array on cuda:0.*device='cuda"):
        make(CELL, *SIZES, device="cpu")(x)
    wide = cupy.zeros((200, 8, 80), np.float32)
    wide[..., 7:71] = x
    np.testing.assert_array_equal(cupy.asnumpy(rnn(wide[..., 7:71])[0]), cupy.asnumpy(rnn(x)[0]))


def test_torch_of_the_other_device(torch):
    rnn, x = make(CELL, *SIZES), torch.tensor(arrays()[0])
    with raises(
        TypeError, r"x: expected an array on cuda:0.*torch tensor on cpu.*\.to\('cuda:0'\)"
    ):
        rnn(x)
    with raises(TypeError, "x: expected an array on cpu.*torch tensor on cuda:0"):
        make(CELL, *SIZES, device="cpu")(x.cuda())
    with raises(TypeError, "h_0: expected a torch tensor on cuda:0.*got a torch tensor on cpu"):
        rnn(x.cuda(), torch.zeros(1, 8, 96))


def test_jax_in_jax_out(jax):
    if jax.default_backend() == "cpu":
        pytest.skip("this JAX has no GPU")
    rnn = make(CELL, *SIZES)
    x, h_0 = arrays()
    y, h_n = rnn(jax.numpy.asarray(x), jax.numpy.asarray(h_0))
    assert isinstance(y, jax.Array)
    assert {d.platform for d in y.devices()} == {"gpu"}
    for got, wanted in zip((y, h_n), rnn(x, h_0), strict=True):
        np.testing.assert_array_equal(np.asarray(got), wanted)
    with raises(TypeError, "x: expected an array on cpu.*got a JAX array on cuda:0"):
        make(CELL, *SIZES, device="cpu")(jax.numpy.asarray(x))


def test_the_producers_work_is_waited_for(torch):
    """The input is written by a slow stream; the call is on it, and the host does not wait."""
    rnn, x = make(CELL, *SIZES), torch.tensor(arrays()[0]).cuda()
    wanted = rnn(x)[0].clone()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = torch.full_like(x, float("nan"))
        torch.cuda._sleep(2_000_000_000)  # cycles, a second: the host is far from that slow
        late.copy_(x)
        y, _ = rnn(late)
        waited = side.query()  # before a collection, which takes long where much is loaded
        del late
        gc.collect()
        after = y * 1
    side.synchronize()
    assert not waited, "the host has waited"
    assert torch.equal(after, wanted)


def test_cupys_current_stream(cupy):
    rnn, x = make(CELL, *SIZES), cupy.asarray(arrays()[0])
    wanted = cupy.asnumpy(rnn(x)[0])
    side = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with side:
        y, _ = rnn(x * 1)
        got = cupy.asnumpy(y, stream=side)
    side.synchronize()
    np.testing.assert_array_equal(got, wanted)


class Interface:
    """Has __cuda_array_interface__ and nothing else."""

    def __init__(self, array, stream):
        self.array = array
        self.__cuda_array_interface__ = dict(array.__cuda_array_interface__, stream=stream)


def test_cuda_array_interface(cupy):
    """Its stream is waited for, and waits for us: the producer overwrites its memory at once."""
    rnn, x = make(CELL, *SIZES), arrays()[0]
    wanted = rnn(x)[0]
    side = cupy.cuda.Stream(non_blocking=True)
    slow = cupy.RawKernel(
        'extern "C" __global__ void slow() { long long t = clock64();'
        " while (clock64() - t < 200000000) {} }",
        "slow",
    )
    good = cupy.asarray(x)
    slow((1,), (1,), ())
    cupy.cuda.Device().synchronize()
    with side:
        late = cupy.full_like(good, cupy.nan)
        slow((1,), (1,), ())
        late[...] = good
    y, _ = rnn(Interface(late, side.ptr))
    assert isinstance(y, cupy.ndarray)
    with side:
        late[...] = cupy.nan
    np.testing.assert_array_equal(cupy.asnumpy(y), wanted)
    strided = cupy.zeros((200, 8, 80), np.float32)
    strided[..., 3:67] = good
    got, _ = rnn(Interface(strided[..., 3:67], None))
    np.testing.assert_array_equal(cupy.asnumpy(got), wanted)
    with raises(TypeError, "x: .*got int64.*nothing is cast"):
        rnn(Interface(cupy.zeros((2, 8, 64), np.int64), None))
    host = Interface(good, None)
    host.__cuda_array_interface__["data"] = (x.ctypes.data, False)
    with raises(TypeError, "x: expected memory of a CUDA device"):
        rnn(host)


def test_what_torch_has_goes_into_a_graph(torch):
    rnn, x = make(CELL, *SIZES), torch.tensor(arrays()[0]).cuda()
    wanted = rnn(x)[0].clone()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rnn(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = rnn(x)
    y.zero_()
    graph.replay()
    assert torch.equal(y, wanted)
