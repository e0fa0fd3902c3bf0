# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: float32 products on CUDA follow torch's own switches."""

import contextlib
import os
import threading

import pytest
from scanrnn import _core
from scanrnn.precision import Used
from support import ALL_CELLS, DEVICE, INFO
from torch_support import GPU, TORCHS_OWN, flat, module, numpy, same, st, tensor, torch


@pytest.fixture(autouse=True)
def switches_as_they_were():
    backends = torch.backends
    held = backends.cudnn.rnn, backends.cuda.matmul
    before = [switch.fp32_precision for switch in held]
    yield
    for switch, value in zip(held, before, strict=True):
        switch.fp32_precision = value


def as_torchs(cell):
    """Whether its class is one of torch.nn's, also with an option that torch.nn has not."""
    return INFO[cell].made_by()[0] in TORCHS_OWN


def followed_by(cell):
    return torch.backends.cudnn.rnn if as_torchs(cell) else torch.backends.cuda.matmul


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_which_switch_a_cell_follows(cell):
    its, others = followed_by(cell), followed_by("MinGRU" if as_torchs(cell) else "GRU")
    for name, wanted in (("tf32", "high"), ("ieee", "highest"), ("none", "highest")):
        for other in ("tf32", "ieee"):
            its.fp32_precision, others.fp32_precision = name, other
            assert st.switches.matmul_precision(cell) == wanted


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_torchs_cells_follow_products(name, monkeypatch):
    """As torch.nn's do, whatever cuDNN's switch says; forward and backward."""
    told = []

    def followed(description, x):
        told.append(st.switches.matmul_precision(description.cell, description.one_step))
        return contextlib.nullcontext()

    monkeypatch.setattr(st.layer_work, "followed", followed)
    cell = getattr(st, name)(4, 4).to(DEVICE)
    for other, its, wanted in (("tf32", "ieee", "highest"), ("ieee", "tf32", "high")):
        torch.backends.cudnn.rnn.fp32_precision = other
        torch.backends.cuda.matmul.fp32_precision = its
        flat([cell(tensor(2, 4, dtype=torch.float32))])[0].sum().backward()
        assert told == [wanted, wanted]
        told.clear()


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_what_torchs_other_names_set(cell):
    """allow_tf32 and the switch of all of cuDNN say it, too."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert st.switches.matmul_precision(cell) == "high"
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert st.switches.matmul_precision(cell) == "highest"


def test_what_torchs_other_names_set_of_products():
    before = torch.get_float32_matmul_precision()
    try:
        for name, wanted in (("high", "high"), ("medium", "high"), ("highest", "highest")):
            torch.set_float32_matmul_precision(name)  # torch's CUDA knows no "medium"
            assert st.switches.matmul_precision("MinGRU") == wanted
            assert st.switches.matmul_precision("IndRNN") == wanted
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_plans_and_calls_have_it(cell, monkeypatch):
    """As on CUDA: the core is told before it plans and works, and then told to forget."""
    told = []
    monkeypatch.setattr(_core, "use_matmul_precision", told.append, raising=False)
    precision = st.switches.matmul_precision
    monkeypatch.setattr(st.layer_work, "followed", lambda t, x: Used(precision(t.cell, t.one_step)))
    forward, backward = _core.forward, _core.backward
    monkeypatch.setattr(_core, "forward", lambda *a: (told.append("forward"), forward(*a)))
    monkeypatch.setattr(_core, "backward", lambda *a: (told.append("backward"), backward(*a)))
    followed_by(cell).fp32_precision = "tf32"
    rnn = module(cell, 4, 4, dtype=torch.float32)
    y, _ = rnn(tensor(5, 2, 4, dtype=torch.float32))
    followed_by(cell).fp32_precision = "ieee"
    y.sum().backward()
    assert told == ["high", "forward", "", "highest", "backward", ""]


def test_elsewhere_nothing_is_told(monkeypatch):
    def fail(_):
        raise AssertionError

    monkeypatch.setattr(_core, "use_matmul_precision", fail, raising=False)
    rnn, x = module("GRU", 4, 4, dtype=torch.float32), tensor(5, 2, 4, dtype=torch.float32)
    rnn.cpu()(x.cpu())[0].sum().backward()
    rnn.double()(x.to(rnn.weight_ih_l0.device).double())[0].sum().backward()


@GPU
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM", "GRU", "RNN"])
def test_errors_are_those_of_the_switch(cell):
    rnn, x = module(cell, 256, 64, dtype=torch.float32), tensor(200, 8, 256, dtype=torch.float32)
    wide = module(cell, 256, 64)
    wide.load_state_dict(rnn.state_dict())
    exact = numpy(wide(x.double())[0])
    errors = {}
    for name in ("ieee", "tf32"):
        followed_by(cell).fp32_precision = name
        errors[name] = abs(numpy(rnn(x)[0]) - exact).max() / abs(exact).max()
    assert errors["ieee"] < 1e-5 < errors["tf32"] < 2.0**-6


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_backward_reads_what_forward_kept_whatever_is_set_then(cell, batch_first):
    """Another precision on a GPU, other threads on a CPU: plans of the two passes differ, by which
    layers of a stack go on by parts in one of them alone."""
    sizes = (8, 16, 2) if DEVICE == "cpu" else (32, 32, 4)
    rnn = module(cell, *sizes, batch_first=batch_first, dtype=torch.float32)
    shape = (4, 100, 8) if DEVICE == "cpu" else (1, 256, 32)
    x = tensor(*shape, dtype=torch.float32, grad=True)

    def gradients(y):
        return torch.autograd.grad(y, [x, *rnn.parameters()], torch.ones_like(y))

    wanted, y = gradients(rnn(x)[0]), rnn(x)[0]
    if DEVICE == "cpu":
        found = on_one_processor(lambda: gradients(y))
    else:
        followed_by(cell).fp32_precision = "tf32"
        found = gradients(y)
    same(found, wanted, 1e-5 if DEVICE == "cpu" else 0.02)


def on_one_processor(work):
    """Its result in a thread that has one of this process's processors."""
    found = []

    def run():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]
