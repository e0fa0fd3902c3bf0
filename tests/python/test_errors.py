# SPDX-License-Identifier: Apache-2.0
"""Malformed calls: the error names the argument, what came and what was wanted."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import scanrnn
from hypothesis import given
from hypothesis import strategies as st
from support import CELLS, DEVICE, INFO, PICKED_AND_FORCED, make, normal


def raises(kind, *parts):
    """The message starts with the first part and holds the others."""
    return pytest.raises(kind, match="".join(rf"(?=^.*?{part})" for part in parts))


@pytest.mark.parametrize(
    ("changed", "kind", "parts"),
    [
        ({"input_size": 0}, ValueError, ("input_size: expected a positive", "got 0")),
        ({"input_size": 3.5}, TypeError, ("input_size: expected an integer", "got 3.5")),
        ({"input_size": True}, TypeError, ("input_size: expected an integer", "got True")),
        ({"hidden_size": -1}, ValueError, ("hidden_size: expected a positive", "got -1")),
        ({"hidden_size": 2**31}, ValueError, ("hidden_size: expected .* below", "2147483648")),
        ({"hidden_size": "8"}, TypeError, ("hidden_size: expected an integer", "got '8'")),
        ({"num_layers": 0}, ValueError, ("num_layers: expected a positive", "got 0")),
        ({"num_layers": 2**32 + 1}, ValueError, ("num_layers: expected", "got 4294967297")),
        ({"bias": 1}, TypeError, ("bias: expected True or False", "got 1")),
        ({"batch_first": None}, TypeError, ("batch_first: expected True or False", "got None")),
        ({"bidirectional": "no"}, TypeError, ("bidirectional: expected", "got 'no'")),
        ({"dropout": 1.0}, ValueError, (r"dropout: expected a probability in \[0, 1\)", "got 1")),
        ({"dropout": float("nan")}, ValueError, ("dropout: expected", "got nan")),
        ({"dropout": "0.5"}, TypeError, ("dropout: expected a number", "got '0.5'")),
        ({"dtype": "float"}, ValueError, ("dtype: expected one of 'float64'", "got 'float'")),
        ({"dtype": "int64"}, ValueError, ("dtype: expected one of 'float64'", "got 'int64'")),
        ({"dtype": "nonsense"}, ValueError, ("dtype: expected one of", "got 'nonsense'")),
        ({"dtype": None}, ValueError, ("dtype: expected one of", "got None")),
        ({"dtype": ">f4"}, ValueError, ("dtype: expected one of", "got '>f4'")),
        ({"device": "gpu"}, ValueError, ("device: expected 'auto', 'cpu', 'cuda'", "got 'gpu'")),
        ({"device": "cuda:-1"}, ValueError, ("device: expected", "got 'cuda:-1'")),
        ({"device": "cuda:99999999999"}, ValueError, ("device: expected", "got 'cuda:9999")),
        ({"device": 0}, TypeError, ("device: expected a string", "got 0")),
        ({"seed": -1}, ValueError, ("seed: expected an integer >= 0 or None", "got -1")),
        ({"seed": True}, TypeError, ("seed: expected an integer >= 0 or None", "got True")),
        ({"seed": 0.5}, TypeError, ("seed: expected an integer >= 0 or None", "got 0.5")),
        (
            {"proj_size": 0},
            TypeError,
            ("unexpected argument 'proj_size': it is an option of LSTM",),
        ),
    ],
)
@pytest.mark.parametrize("cell", CELLS)
def test_constructor(cell, changed, kind, parts):
    name, own = INFO[cell].made_by()
    options = {"input_size": 5, "hidden_size": 5, "device": "cpu"} | changed
    with raises(kind, *parts):
        getattr(scanrnn, name)(**own, **options)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if INFO[cell].recurrence == "linear"])
def test_domain(cell):
    with raises(ValueError, "domain: expected one of 'log', 'linear'", "got 'Log'"):
        make(cell, domain="Log")
    with raises(TypeError, "domain: expected a string", "got 1"):
        make(cell, domain=1)


def test_options_that_make_another_cell():
    for wrong in (1, None, "yes"):
        with raises(TypeError, f"peephole: expected True or False, got {wrong!r}"):
            scanrnn.SRU(3, 5, peephole=wrong)
    with raises(TypeError, "QRNN: unexpected argument 'peephole': it is an option of SRU, LSTM"):
        scanrnn.QRNN(3, 5, peephole=True)
    with raises(
        ValueError, "domain: SRU with peephole=True is no scan and has no choice, got 'linear'"
    ):
        scanrnn.SRU(3, 5, peephole=True, domain="linear")
    with raises(TypeError, "IndRNN: unexpected argument 'domain': it is an option of MinGRU, "):
        scanrnn.IndRNN(3, 5, domain="log")
    with raises(ValueError, "activation: expected one of 'identity', 'tanh', 'relu'", "got 'g'"):
        scanrnn.SRU(3, 5, peephole=True, activation="g")
    assert not hasattr(scanrnn, "PeepholeSRU")


def test_square_cells():
    with raises(ValueError, "hidden_size: RGLRU reads x of its own unit.* input_size, 3, got 5"):
        scanrnn.RGLRU(3, 5)
    with raises(ValueError, "bidirectional: RGLRU reads x of its own unit", "got num_layers=2"):
        scanrnn.RGLRU(5, 5, num_layers=2, bidirectional=True)


def test_constructor_variants():
    with raises(ValueError, "candidate: expected one of 'g', 'linear', 'tanh'", "got 'relu'"):
        scanrnn.MinGRU(3, 5, candidate="relu")
    with raises(ValueError, "candidate: expected a name such as 'g', got ''"):
        scanrnn.MinGRU(3, 5, candidate="")
    with raises(ValueError, "activation: expected one of 'identity', 'tanh', 'relu'", "got 'g'"):
        scanrnn.SRU(3, 5, activation="g")
    with raises(TypeError, "MinLSTM: unexpected argument 'activation': it is an option of SRU"):
        scanrnn.MinLSTM(3, 5, activation="tanh")
    with raises(TypeError, "QRNN: unexpected argument 'activation': it is an option of SRU"):
        scanrnn.QRNN(3, 5, activation="tanh")
    with raises(ValueError, "nonlinearity: expected one of 'tanh', 'relu'", "got 'gelu'"):
        scanrnn.RNN(3, 5, nonlinearity="gelu")
    with raises(ValueError, "nonlinearity: expected one of 'relu', 'tanh'", "got 'gelu'"):
        scanrnn.IndRNN(3, 5, nonlinearity="gelu")
    with raises(TypeError, "nonlinearity: expected a string, got True"):
        scanrnn.RNN(3, 5, nonlinearity=True)
    with raises(TypeError, "missing a required argument: 'hidden_size'"):
        scanrnn.MinGRU(3)


@pytest.mark.skipif(scanrnn.cuda_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none():
    for device in ("cuda", "cuda:1"):
        with raises(scanrnn.CudaError, "device: cuda:[01] was asked for"):
            scanrnn.MinGRU(3, 5, device=device)
    assert scanrnn.MinGRU(3, 5, device="auto").device == "cpu"
    assert scanrnn.MinGRU(3, 5).device == "cpu"


X_ERRORS = [
    (normal(6, 2, 4), ValueError, (r"x: expected shape \(6, 2, 3\)", r"got \(6, 2, 4\)")),
    (normal(6, 4), ValueError, ("x: expected shape", r"got \(6, 1, 4\)")),
    (normal(3), ValueError, (r"x: expected \(T, B, C\), or \(T, C\)", r"got shape \(3,\)")),
    (normal(6, 2, 1, 3), ValueError, (r"x: expected \(T, B, C\)", r"got shape \(6, 2, 1, 3\)")),
    (np.float32(1), ValueError, (r"x: expected \(T, B, C\)", r"got shape \(\)")),
    (normal(6, 2, 3, dtype=np.float64), TypeError, ("x: expected dtype float32", "got float64")),
    (np.ones((6, 2, 3), np.int64), TypeError, ("x: expected dtype float32", "got int64")),
    (np.ones((6, 2, 3), ">f4"), TypeError, ("x: expected dtype float32", "got >f4")),
    (np.ones((6, 2, 3), object), TypeError, ("x: expected dtype float32", "got object")),
    ([[1.0, 2.0, 3.0]], TypeError, ("x: expected an array of NumPy", "got list")),
    (None, TypeError, ("x: expected an array of NumPy", "got NoneType")),
    (np.ma.masked_array(normal(6, 2, 3)), TypeError, ("x: expected an array without a mask",)),
    (memoryview(b"123"), TypeError, ("x: expected an array of NumPy", "got memoryview")),
]


@pytest.mark.parametrize(("x", "kind", "parts"), X_ERRORS)
@pytest.mark.parametrize("cell", CELLS)
def test_x(cell, x, kind, parts):
    rnn = make(cell, 3, 3)
    with raises(kind, *parts):
        rnn(x)
    with raises(kind, *parts):
        rnn.vjp(x)


@pytest.mark.parametrize("cell", CELLS)
def test_h_0(cell):
    rnn = make(cell, 3, 256, num_layers=2)
    x = normal(6, 8, rnn.input_size)
    wanted = "(2, 8, 256) = (num_layers * num_directions, batch, hidden_size)"
    whole_text = re.escape(f"h_0: expected shape {wanted}, got (1, 8, 256)")
    with pytest.raises(ValueError, match=f"^{whole_text}$"):
        rnn(x, normal(1, 8, 256))
    with raises(ValueError, "h_0: expected 3 axes, x being a batch", r"got shape \(2, 256\)"):
        rnn(x, normal(2, 256))
    with raises(
        ValueError, "h_0: expected 2 axes, x being one sequence", r"got shape \(2, 1, 256\)"
    ):
        rnn(x[:, 0], normal(2, 1, 256))
    with raises(TypeError, "h_0: expected dtype float32", "got float64"):
        rnn(x, normal(2, 8, 256, dtype=np.float64))
    with raises(TypeError, "h_0: expected an array of NumPy", "got tuple"):
        rnn(x, (normal(2, 8, 256), normal(2, 8, 256)))


@pytest.mark.parametrize("cell", CELLS)
def test_cotangents(cell):
    rnn = make(cell)
    _, pullback = rnn.vjp(normal(6, 2, rnn.input_size))
    with raises(ValueError, r"dy: expected shape \(6, 2, 5\)", r"got \(6, 2, 4\)"):
        pullback(normal(6, 2, 4))
    with raises(ValueError, r"dh_n: expected shape \(1, 2, 5\)", r"got \(2, 2, 5\)"):
        pullback(None, normal(2, 2, 5))
    with raises(TypeError, "dy: expected dtype float32", "got float64"):
        pullback(normal(6, 2, 5, dtype=np.float64))
    with raises(ValueError, "dy: expected 3 axes", r"got shape \(6, 5\)"):
        pullback(normal(6, 5))
    with raises(TypeError, "dy: expected an array of NumPy", "got int"):
        pullback(1)


@pytest.mark.parametrize("cell", CELLS)
def test_step(cell):
    rnn = make(cell, 3, 3)
    with raises(ValueError, r"x_t: expected shape \(2, 3\) = \(batch, input_size\)", r"got .*4\)"):
        rnn.step(normal(2, 4))
    with raises(ValueError, r"h: expected shape \(1, 2, 3\) = ", r"got \(1, 3, 3\)"):
        rnn.step(normal(2, 3), normal(1, 3, 3))
    with raises(ValueError, r"x_t: expected \(B, C\), or \(C,\)", r"got shape \(1, 2, 3\)"):
        rnn.step(normal(1, 2, 3))
    with raises(ValueError, "h: expected 3 axes", r"got shape \(2, 3\)"):
        rnn.step(normal(2, 3), normal(2, 3))
    with raises(TypeError, "h: expected dtype float32", "got float64"):
        rnn.step(normal(2, 3), normal(1, 2, 3, dtype=np.float64))
    with raises(ValueError, "step: a bidirectional layer"):
        make(cell, 3, 3, bidirectional=True).step(normal(2, 3))


@pytest.mark.parametrize("cell", CELLS)
def test_strategy_and_plan(cell):
    rnn = make(cell)
    x = normal(6, 2, rnn.input_size)
    for unknown in ("fastest", "step loop", ""):
        with raises(ValueError, "strategy: expected one of 'direct'", f"got '{unknown}'"):
            rnn(x, strategy=unknown)
    with raises(TypeError, "strategy: expected a string", "got 3"):
        rnn(x, strategy=3)
    if (cell, "parallel_scan") not in PICKED_AND_FORCED:
        with raises(ValueError, "strategy: 'parallel_scan' cannot run: .*do not compose"):
            rnn(x, strategy="parallel_scan")
    with raises(ValueError, "strategy: 'step_loop' cannot run: .*no matrix product"):
        rnn(x, strategy="step_loop")
    with raises(ValueError, "T: expected a number >= 0", "got -1"):
        rnn.plan(-1, 2)
    with raises(ValueError, "B: expected a number >= 0", "got -2"):
        rnn.plan(1, -2)
    with raises(TypeError, "B: expected an integer", "got 2.0"):
        rnn.plan(1, 2.0)


def test_no_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="bfloat16 arrays are those of ml_dtypes"):
        make("MinGRU", dtype="bfloat16")


@given(
    way=st.sampled_from(PICKED_AND_FORCED),
    shape=st.lists(st.integers(0, 6), max_size=5),
    state=st.none() | st.lists(st.integers(0, 3), max_size=4),
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "complex64", "bool"]),
    batch_first=st.booleans(),
)
def test_any_call_works_or_names_its_argument(way, shape, state, dtype, batch_first):
    cell, strategy = way
    rnn = make(cell, 3, 2, num_layers=2, batch_first=batch_first)
    x = np.ones(shape, dtype)
    h_0 = None if state is None else np.ones(state, np.float32)
    batch = shape[0 if batch_first else 1] if len(shape) == 3 else 1
    state_wanted = [2, batch, 2] if len(shape) == 3 else [2, 2]
    valid = dtype == "float32" and len(shape) in (2, 3) and shape[-1] == rnn.input_size
    valid = valid and state in (None, state_wanted)
    if valid:
        y, _ = rnn(x, h_0, strategy=strategy)
        assert y.shape == (*shape[:-1], 2)
    else:
        with pytest.raises((ValueError, TypeError), match=r"^(x|h_0): expected .* got "):
            rnn(x, h_0, strategy=strategy)


def test_too_large_is_a_memory_error():
    rnn = make("MinGRU", 1, 2**22)
    x = np.zeros((2**24, 1), np.float32)
    with pytest.raises(MemoryError):
        rnn(x)


@pytest.mark.skipif(DEVICE == "cpu", reason="SCANRNN_TEST_DEVICE is cpu")
def test_too_large_for_the_device_is_a_memory_error():
    with pytest.raises(MemoryError, match=rf"^cuda:0: there is no memory left for {2**50} bytes"):
        scanrnn._core.Buffer(scanrnn._core.Device(DEVICE), 2**50)
    assert make("MinGRU")(normal(4, 3))[0].shape == (4, 5)  # and all goes on


def said_with(code="print(scanrnn.devices()[0].architecture)", **isa):
    """What a process says that has this SCANRNN_ISA, or none."""
    code = "import numpy as np, scanrnn; " + code
    rest = {name: value for name, value in os.environ.items() if name != "SCANRNN_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=rest | isa, capture_output=True, text=True, check=False
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_instruction_sets():
    told = dict(line.split(": ", 1) for line in scanrnn.build_info().strip().splitlines())
    sets = told["instruction sets"]
    by_threads = "scanrnn.scan(*2 * [np.ones((100_000, 8), 'f')])"
    for said in (said_with(SCANRNN_ISA="mmx"), said_with(by_threads, SCANRNN_ISA="mmx")):
        assert said.endswith(
            f"Error: SCANRNN_ISA: expected a set of this build ({sets}) that this processor runs, "
            "got mmx"
        )
    assert said_with(SCANRNN_ISA="") == said_with()
