# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: the same kind out, without a copy, and errors that help."""

import gc
import warnings
import weakref

import numpy as np
import pytest
import scanrnn
from scanrnn import _core, arrays
from scanrnn.arrays import dlpack
from scanrnn.arrays.memory import Placing
from scanrnn.arrays.numpy import Elsewhere, NumPy
from scanrnn.arrays.torch import Torch
from support import ALL_CELLS, DEVICE, assert_close, make, normal, normal_states, tolerance
from test_errors import raises

torch = pytest.importorskip("torch")
if DEVICE != "cpu" and not torch.cuda.is_available():
    pytest.skip("this torch has no GPU", allow_module_level=True)
DTYPES = ["float64", "float32", "bfloat16", "float16"]


def tensor(values, dtype="float32"):
    return torch.tensor(np.asarray(values, np.float64)).to(getattr(torch, dtype)).to(DEVICE)


def numpy(value):
    return value.to("cpu", torch.float64).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_torch_in_torch_out(cell, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = make(cell, 4, 6, num_layers=2, dtype=dtype)
    x = tensor(normal(9, 3, rnn.input_size), dtype)
    h_0 = [tensor(part, dtype) for part in normal_states(cell, 2, 3, 6)]

    def state(values):
        return tuple(values) if len(values) > 1 else values[0]

    def flat(values):
        return [v for value in values for v in (value if isinstance(value, tuple) else [value])]

    def equal(got, wanted):
        for g, w in zip(flat(got), flat(wanted), strict=True):
            assert isinstance(g, torch.Tensor)
            assert (g.device, g.dtype, g.requires_grad) == (x.device, x.dtype, False)
            np.testing.assert_array_equal(numpy(g), w.astype(np.float64))

    x_np, *h_np = (numpy(value).astype(rnn.dtype) for value in (x, *h_0))
    equal(rnn(x, state(h_0)), rnn(x_np, state(h_np)))
    (y, h_n), pullback = rnn.vjp(x, state(h_0))
    (y_np, hn_np), pullback_np = rnn.vjp(x_np, state(h_np))
    dx, dh_0, dparams = pullback(
        torch.ones_like(y), state([torch.ones_like(h) for h in flat([h_n])])
    )
    wanted = pullback_np(np.ones_like(y_np), state([np.ones_like(h) for h in flat([hn_np])]))
    equal([dx, dh_0], wanted[:2])
    assert list(dparams) == list(wanted[2])
    equal(dparams.values(), wanted[2].values())
    same = rnn.step(x[0], state(h_0)), rnn(x[:1], state(h_0))
    for got, one in zip(flat(same[0]), flat([same[1][0][0], same[1][1]]), strict=True):
        assert_close(numpy(got), numpy(one), tolerance(dtype, 1))


def test_one_sequence_batch_first_and_no_steps():
    rnn = make("MinGRU", 4, 6, batch_first=True)
    x = tensor(normal(3, 9, 4))
    y, h_n = rnn(x)
    one, h_one = rnn(x[1])
    assert_close(numpy(one), numpy(y[1]), 1e-6)
    assert_close(numpy(h_one), numpy(h_n[:, 1]), 1e-6)
    empty, h = rnn(x[:, :0])
    assert empty.shape == (3, 0, 6)
    np.testing.assert_array_equal(numpy(h), np.zeros((1, 3, 6)))
    assert rnn(x[:0])[0].shape == (0, 9, 6)


def test_any_strides():
    rnn, x = make("SRU", 4, 6), tensor(normal(9, 3, 4))
    wanted = rnn(x)[0]
    wide = torch.zeros(9, 3, 11, device=DEVICE)
    wide[..., 2:6] = x
    views = [
        wide[..., 2:6],  # a byte offset and outer strides
        x.transpose(0, 2).contiguous().transpose(0, 2),
        torch.stack([x, -x], -1)[..., 0],
        x.transpose(0, 1).contiguous().transpose(0, 1),
    ]
    for number, view in enumerate(views):
        assert_close(numpy(rnn(view)[0]), numpy(wanted), tolerance("float32", 9), f"view {number}")
    np.testing.assert_array_equal(
        numpy(rnn(x[:, :1].expand(9, 3, 4))[0]), numpy(rnn(x[:, :1].expand(9, 3, 4).clone())[0])
    )


def test_scan():
    a, b, h_0 = tensor(normal(50, 3, 2)), tensor(normal(50, 3, 2)), tensor(normal(3, 2))
    arrays = [numpy(v).astype(np.float32) for v in (a, b, h_0)]
    for reverse in (False, True):
        got = scanrnn.scan(a, b, h_0, reverse=reverse)
        assert got.device == a.device
        assert_close(numpy(got), scanrnn.scan(*arrays, reverse=reverse), 1e-6)
    log_a, log_b, sign = -a.abs(), b.abs().log(), b.sign()
    got = scanrnn.scan_log(log_a, log_b, sign, h_0)
    wanted = scanrnn.scan(numpy(log_a.exp()), numpy(b), numpy(h_0))
    assert_close(numpy(got), wanted, 1e-5)


@pytest.mark.usefixtures("few_objects")
def test_owners_may_go_right_after_the_call():
    rnn = make("MinGRU", 4, 256)
    values, state = normal(300, 8, 4), normal(1, 8, 256)
    wanted = rnn(values, state)[0]
    x, h_0 = tensor(values), tensor(state)
    alive = [weakref.ref(x), weakref.ref(h_0)]
    y, _ = rnn(x, h_0)
    del x, h_0
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    noise = [torch.full((300, 8, 4), float("nan"), device=DEVICE) for _ in range(8)]  # their memory
    assert_close(numpy(y), wanted, tolerance("float32", 300))
    del noise, rnn
    gc.collect()
    assert_close(numpy(y), wanted, tolerance("float32", 300))


@pytest.mark.usefixtures("few_objects")
def test_nothing_leaks():
    rnn = make("SRU", 4, 6)
    x = tensor(normal(9, 3, 4))
    refs = []
    for _ in range(3):
        y, h_n = rnn(x)
        refs += [weakref.ref(y), weakref.ref(h_n)]
        del y, h_n
    gc.collect()
    assert all(ref() is None for ref in refs)


def test_errors():
    rnn, x = make("MinGRU", 4, 6), tensor(normal(9, 3, 4))
    grad = x.clone().requires_grad_()
    with raises(TypeError, "x: .*requires grad: use scanrnn.torch", "or detach it"):
        rnn(grad)
    with raises(TypeError, "h_0: .*requires grad: use scanrnn.torch"):
        rnn(x, torch.zeros(1, 3, 6, device=DEVICE, requires_grad=True))
    with raises(TypeError, "x: expected dtype float32, got float64; nothing is cast"):
        rnn(x.double())
    with raises(TypeError, "x: expected dtype float32, got int64; nothing is cast"):
        rnn(x.long())
    with raises(TypeError, "x: .*got complex64; pass its real and imaginary parts"):
        rnn(x.to(torch.complex64))
    with raises(TypeError, "x: expected a dense tensor, got layout torch.sparse_coo"):
        rnn(x.to_sparse())
    with raises(TypeError, "x: .*pass it by .resolve_neg"):
        rnn(torch._neg_view(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a prototype
        nested = torch.nested.nested_tensor([x[0], x[1, :2]])
    with raises(TypeError, "x: expected a dense tensor, got layout nested"):
        rnn(nested)
    with raises(
        TypeError, f"h_0: expected a torch tensor on {DEVICE}.*, got a NumPy array: make.*as_tensor"
    ):
        rnn(x, normal(1, 3, 6))
    with raises(TypeError, "h_0: expected a NumPy array, as x is one, got a torch tensor"):
        rnn(normal(9, 3, 4), tensor(normal(1, 3, 6)))
    with raises(
        TypeError, "x: expected an array on .*, got a torch tensor on meta.*\\.to\\(.*\\)$"
    ):
        rnn(x.to("meta"))
    with raises(ValueError, r"x: expected shape \(9, 3, 4\)", r"got \(9, 3, 5\)"):
        rnn(tensor(normal(9, 3, 5)))
    with raises(ValueError, r"x: expected \(T, B, C\)", r"got shape \(9,\)"):
        rnn(tensor(normal(9)))
    _, pullback = rnn.vjp(x)
    with raises(ValueError, r"dy: expected shape \(9, 3, 6\)", r"got \(9, 3, 5\)"):
        pullback(tensor(normal(9, 3, 5)))
    with raises(TypeError, "b: expected dtype float32, got float64"):
        scanrnn.scan(x, x.double())


@pytest.mark.parametrize("single", [False, True])
def test_a_pullback_notices_what_was_changed(single):
    """torch has no tensors that are read-only."""
    rnn, dy = make("GRU", 4, 6), tensor(normal(9, 6) if single else normal(9, 3, 6))

    def called():
        x = tensor(normal(9, 4) if single else normal(9, 3, 4))
        (y, _), pullback = rnn.vjp(x)
        return x, y, pullback

    for which, name in enumerate("xy"):
        *given, pullback = called()
        wanted = pullback(dy)[0].clone()
        (given[which] + 1).mul_(2)
        np.testing.assert_array_equal(numpy(pullback(dy)[0]), numpy(wanted))
        given[which][2] = 0
        with raises(RuntimeError, f"{name}: expected as it was in vjp, .* changed in place"):
            pullback(dy)
    with torch.inference_mode():  # where torch counts nothing
        _, _, pullback = called()
        np.testing.assert_array_equal(numpy(pullback(dy)[0]), numpy(wanted))
    wide = tensor(normal(4, *dy.shape[:-1])).movedim(0, -1)  # which the layer copies
    _, pullback = rnn.vjp(wide)
    wanted = pullback(dy)[0].clone()
    wide.zero_()
    np.testing.assert_array_equal(numpy(pullback(dy)[0]), numpy(wanted))


def test_errors_name_the_argument_that_came_first():
    values, steps, rnn = normal(9, 4), tensor(normal(9, 4)), make("MinGRU", 4, 6)
    with raises(TypeError, "b: expected a NumPy array, as a is one, got a torch tensor"):
        scanrnn.scan(values, steps, device=DEVICE)
    with raises(TypeError, f"b: expected a torch tensor on {DEVICE}.*, as a is one, got a NumPy"):
        scanrnn.scan(steps, values)
    with raises(TypeError, "log_b: expected a torch tensor on .*, as log_a is one, got a NumPy"):
        scanrnn.scan_log(steps, values)
    with raises(TypeError, "h: expected a NumPy array, as x_t is one, got a torch tensor"):
        rnn.step(values, steps)
    with raises(TypeError, "h: expected a torch tensor on .*, as x_t is one, got a NumPy array"):
        rnn.step(steps, values)


def test_tensors_without_memory():
    rnn, x = make("MinGRU", 4, 6), tensor(normal(9, 3, 4))
    with raises(TypeError, "x: a torch tensor on .*does not give its memory.*use scanrnn.torch"):
        torch.vmap(lambda v: rnn(v)[0])(x[None])
    with raises(ValueError, "x: expected memory of 6 elements, got a null pointer"):
        _core.from_interface("x", {"typestr": "<f4", "shape": (2, 3), "data": (0, False)})


def whole_call(rnn, x, dy):
    (y, h_n), pullback = rnn.vjp(x)
    dx, dh_0, dparams = pullback(dy)
    return [np.asarray(value) for value in (y, *h_n, dx, *dh_0, *dparams.values(), rnn(x)[0])]


def test_what_a_gpu_needs_gives_the_same_on_the_cpu(monkeypatch):
    """NumPy's arrays by copies, torch's tensors by capsules, and memory for work by address."""
    rnn, x, dy = make("LSTM", 4, 6, device="cpu"), normal(9, 3, 4), normal(9, 3, 6)
    wanted = whole_call(rnn, x, dy)

    class ByCapsule(Placing, Torch):
        def given(self, name, value):
            return None if value is None else dlpack.take(name, value, None, False)

        def result(self, name, value):
            return dlpack.take(name, value, None, True)

        def workspace(self, count):
            return self.bytes(count)

        def reserve(self, call, count):
            return self.bytes(count)

    monkeypatch.setattr(arrays, "Torch", ByCapsule)
    monkeypatch.setattr(NumPy, "for_layer", lambda *_: Elsewhere("cpu"))
    others = make("LSTM", 4, 6, device="cpu")
    for got in (whole_call(others, x, dy), whole_call(others, *map(torch.tensor, (x, dy)))):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


class Stranger:
    """An array of a library that nobody has heard of."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_stranger_on_the_cpu_is_as_numpys():
    rnn, x = make("MinGRU", 4, 6, device="cpu"), normal(9, 3, 4)
    y, h_n = rnn(Stranger(x), Stranger(normal(1, 3, 6)))
    assert type(y) is type(h_n) is np.ndarray
    np.testing.assert_array_equal(y, rnn(x, normal(1, 3, 6))[0])
    elsewhere = Stranger(x)
    elsewhere.__class__ = type("Elsewhere", (Stranger,), {"__dlpack_device__": lambda _: (8, 0)})
    with raises(
        TypeError, r"x: expected memory of the CPU or of a CUDA .*got DLPack device \(8, 0"
    ):
        rnn(elsewhere)
    with raises(TypeError, "x: .*Stranger does not give its memory by DLPack: .*require gradient"):
        rnn(Stranger(torch.zeros(9, 3, 4, requires_grad=True)))
    elsewhere.__class__ = type("Nothing", (Stranger,), {"__dlpack__": lambda *_, **__: None})
    with raises(TypeError, "x: .*Nothing does not give its memory by DLPack"):
        rnn(elsewhere)
    if DEVICE == "cpu":
        with raises(TypeError, "h_0: expected a DLPack capsule, got None"):
            rnn(torch.tensor(x), elsewhere)
        with raises(TypeError, "h_0: expected dtype float32, got float64; nothing is cast"):
            rnn(torch.tensor(x), Stranger(normal(1, 3, 6).astype(np.float64)))
