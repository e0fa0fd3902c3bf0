# SPDX-License-Identifier: Apache-2.0
"""Layers as objects: attributes, state_dict, pickle, threads; what the module says of itself."""

import ast
import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scanrnn
from support import (
    ALL_CELLS,
    CELLS,
    CPU_PROFILE,
    DENSE,
    DEVICE,
    DIAGONAL,
    FORCED,
    INFO,
    OPTION,
    make,
    normal,
    strategies,
)


@pytest.mark.parametrize("cell", CELLS)
def test_attributes(cell):
    kind, own = INFO[cell].made_by()
    both = not INFO[cell].square
    options = {"num_layers": 2, "bidirectional": both, "dropout": 0.25, "batch_first": True}
    rnn = make(cell, 3, 5, **options)
    sizes = rnn.input_size, 5
    assert (rnn.input_size, rnn.hidden_size) == ((3, 5) if both else (5, 5))
    assert (rnn.bias, rnn.dtype) == (True, np.float32)
    for name, value in (options | own).items():
        assert getattr(rnn, name) == value, name
    assert rnn.device == str(scanrnn._core.Device(DEVICE))
    assert getattr(rnn, "domain", None) == (
        "log" if kind == "SRU" or cell not in DIAGONAL else None
    )
    assert cell not in OPTION or getattr(rnn, OPTION[cell]) in ("g", "identity", "relu")
    assert repr(rnn).startswith(
        f"{kind}{sizes}"[:-1] + ", num_layers=2, batch_first=True, dropout="
    )
    assert ("peephole=True" in repr(rnn)) == bool(own)
    again = eval(repr(rnn), vars(scanrnn).copy())
    assert repr(again) == repr(rnn)
    assert again.weight_ih_l1.shape == rnn.weight_ih_l1.shape
    assert isinstance(rnn, scanrnn.Layer)


@pytest.mark.parametrize("cell", CELLS)
def test_parameters_have_torchs_names(cell):
    info, both = INFO[cell], cell != "RGLRU"
    rnn = make(cell, 3, 5, num_layers=2, bidirectional=both)
    gates, rows, bias = {
        "MinGRU": (2, 10, 10), "MinLSTM": (3, 15, 15), "SRU": (3, 20, 10), "QRNN": (3, 15, 15),
        "RGLRU": (2, 10, 10), "PeepholeSRU": (3, 20, 10), "IndRNN": (1, 5, 5),
    }[cell]  # fmt: skip
    vectors = {"RGLRU": {"weight_a": (5,)}, "IndRNN": {"weight_hh": (5,)}}
    vectors["PeepholeSRU"] = {"weight_ch": (10,)}
    assert [(name, value.shape) for name, value in rnn.state_dict().items()] == [
        (f"{kind}_l{layer}{direction}", shape)
        for layer, width in enumerate((3, 10) if both else (5, 5))
        for direction in (("", "_reverse") if both else ("",))
        for kind, shape in [
            ("weight_ih", (rows, width)),
            *vectors.get(cell, {}).items(),
            ("bias_ih", (bias,)),
        ]
    ]
    assert info.gates == gates
    assert info.readout == (cell in ("SRU", "PeepholeSRU", "QRNN"))
    assert info.highway == (cell in ("SRU", "PeepholeSRU", "RGLRU"))
    assert info.square == (cell == "RGLRU")
    assert make(cell, 5, 5).weight_ih_l0.shape == (info.gates * 5, 5)  # no highway block
    named = [f"{kind}_l0" for kind in ("weight_ih", *vectors.get(cell, {}))]
    assert list(make(cell, bias=False).state_dict()) == named
    for name, value in rnn.state_dict().items():
        np.testing.assert_array_equal(getattr(rnn, name), value)
        assert name in dir(rnn)


def test_state_dict_round_trip(tmp_path):
    one, other = make("MinLSTM", seed=1), make("MinLSTM", seed=2)
    x = normal(6, 2, 3)
    assert not np.array_equal(one(x)[0], other(x)[0])
    np.savez(tmp_path / "weights.npz", **one.state_dict())
    other.load_state_dict(np.load(tmp_path / "weights.npz"))
    np.testing.assert_array_equal(one(x)[0], other(x)[0])
    state = one.state_dict()
    state["weight_ih_l0"][:] = 0  # a copy, on both ways
    np.testing.assert_array_equal(one(x)[0], other(x)[0])
    one.load_state_dict(state)
    state["weight_ih_l0"][:] = 1
    assert not one.weight_ih_l0.any()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_state_dict_of_torch(dtype):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LSTM(3, 5, 2, dtype=getattr(torch, dtype)).state_dict()
    ours = make("LSTM", num_layers=2, dtype=dtype)
    ours.load_state_dict(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(getattr(ours, name).astype("f8"), value.double().numpy())
    with pytest.raises(TypeError, match=r"^weight_hh_l1: .*requires grad: use scanrnn.torch"):
        ours.load_state_dict(theirs | {"weight_hh_l1": theirs["weight_hh_l1"].requires_grad_()})
    with pytest.raises(TypeError, match=r"^bias_ih_l0: expected an array on cpu, got a torch"):
        ours.load_state_dict(theirs | {"bias_ih_l0": theirs["bias_ih_l0"].to("meta")})
    with pytest.raises(ValueError, match=r"^bias_ih_l0: expected shape \(20,\).*, got \(\)"):
        ours.load_state_dict(theirs | {"bias_ih_l0": theirs["bias_ih_l0"][0]})


def test_state_dict_of_jax():
    jax = pytest.importorskip("jax")
    ours, other = make("LSTM", seed=1), make("LSTM", seed=2)
    with jax.default_device(jax.devices("cpu")[0]):
        theirs = {name: jax.numpy.asarray(v) for name, v in ours.state_dict().items()}
    other.load_state_dict(theirs)
    np.testing.assert_array_equal(other.weight_hh_l0, ours.weight_hh_l0)


def test_load_state_dict_is_all_or_nothing():
    rnn = make("MinGRU", num_layers=2)
    before, good = rnn.state_dict(), {k: v + 1 for k, v in rnn.state_dict().items()}
    for change, kind, message in [
        (
            {"bias_ih_l1": np.zeros(3, np.float32)},
            ValueError,
            r"^bias_ih_l1: expected shape \(10,\), got",
        ),
        (
            {"bias_ih_l1": np.zeros(10)},
            TypeError,
            "^bias_ih_l1: expected dtype float32, got float64",
        ),
        (
            {"bias_ih_l1": [0.0] * 10},
            TypeError,
            "^bias_ih_l1: expected an array of NumPy.* got list",
        ),
        (
            {"bias_hh_l0": good["bias_ih_l0"]},
            ValueError,
            r"missing \[\], unexpected \['bias_hh_l0'\]",
        ),
    ]:
        with pytest.raises(kind, match=message):
            rnn.load_state_dict(good | change)
    with pytest.raises(ValueError, match=r"missing \['weight_ih_l1', 'bias_ih_l1'\]"):
        rnn.load_state_dict({k: v for k, v in good.items() if "l0" in k})
    for nothing in (None, 3, list(good)):
        with pytest.raises(TypeError, match=r"^state_dict: expected a mapping of names to arrays"):
            rnn.load_state_dict(nothing)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(rnn, name), value)


def test_parameters_and_description_cannot_be_written():
    rnn = make("SRU")
    with pytest.raises(ValueError, match="read-only"):
        rnn.weight_ih_l0[0] = 1
    for name in ("weight_ih_l0", "hidden_size", "dtype", "anything"):
        with pytest.raises(AttributeError, match=f"^{name}: .*load_state_dict"):
            setattr(rnn, name, 1)
        with pytest.raises(AttributeError, match=f"^{name}: .*load_state_dict"):
            delattr(rnn, name)
    assert rnn.dtype == np.float32
    with pytest.raises(AttributeError, match="'SRU' has no attribute 'weight_hh_l0'"):
        _ = rnn.weight_hh_l0


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_pickle_and_deepcopy(cell, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = make(cell, num_layers=2, dtype=dtype, batch_first=True, seed=5)
    x = normal(2, 6, rnn.input_size).astype(rnn.dtype)
    for other in (pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn), copy.copy(rnn)):
        assert type(other) is type(rnn)
        assert repr(other) == repr(rnn)
        np.testing.assert_array_equal(other(x)[0], rnn(x)[0])
        other.load_state_dict({k: v * 0 for k, v in rnn.state_dict().items()})
        assert rnn.weight_ih_l0.any()


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float64"), "float32", float])
def test_dtype_as_numpy_knows_it(dtype):
    assert make("MinGRU", dtype=dtype).dtype == np.dtype(dtype)


def test_dtype_as_ml_dtypes_knows_it():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for dtype in ("bfloat16", bfloat16, np.dtype(bfloat16)):
        assert make("MinGRU", dtype=dtype).dtype == bfloat16


@pytest.mark.parametrize("cell", CELLS)
def test_one_object_in_several_threads(cell):
    rnn = make(cell, 16, 64, num_layers=2)
    inputs = [normal(120, 2, rnn.input_size, seed=seed) for seed in range(6)]

    def work(x, strategy):
        (y, _), pullback = rnn.vjp(x, strategy=strategy)
        return [y, pullback(np.ones_like(y))[0], rnn.step(x[0])[0]]

    for strategy in strategies(cell):
        alone = [work(x, strategy) for x in inputs]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(work, inputs * 4, [strategy] * 24))
        for index, results in enumerate(together):
            for got, wanted in zip(results, alone[index % 6], strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_new_parameters_while_running():
    """A call sees the old parameters or the new ones, never some of each."""
    rnn = make("MinGRU", 4, 8, num_layers=2, dtype="float64")
    x = normal(20, 1, 4, dtype=np.float64)
    states = [
        make("MinGRU", 4, 8, num_layers=2, dtype="float64", seed=s).state_dict() for s in (1, 2)
    ]
    results = []
    for state in states:
        rnn.load_state_dict(state)
        results.append(rnn(x)[0])
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for state in states:
                rnn.load_state_dict(state)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            y = rnn(x)[0]
            assert any(np.array_equal(y, result) for result in results)
    finally:
        stop.set()
        thread.join()


def test_other_threads_run_meanwhile():
    """The interpreter's lock is released: a counter in another thread moves during one call."""
    rnn, x = make("MinLSTM", 256, 256, device="cpu"), normal(4000, 4, 256)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.wait(1e-4):
            ticks[0] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody takes the lock from a thread that does not give it
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks[0]
        rnn(x)
        moved = ticks[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert moved > 3


FORKED = """
import multiprocessing, warnings
import numpy as np
import scanrnn
rnns = [kind(64, 64, device="cpu", seed=0) for kind in (scanrnn.MinGRU, scanrnn.LSTM)]
x = np.ones((500, 8, 64), np.float32)
pulls = [rnn.vjp(x)[1] for rnn in rnns]  # with plans for the threads that are here
def work(_):
    called = [float(rnn(x)[0].sum()) for rnn in rnns]
    return called + [float(abs(pull(x)[0]).sum()) for pull in pulls]
here = work(0)
warnings.simplefilter("ignore")  # Python's, of any thread
with multiprocessing.get_context("fork").Pool(2) as pool:
    for there in pool.map_async(work, range(4)).get(timeout=60):
        np.testing.assert_allclose(there, here, rtol=1e-5)
"""


def test_children_of_a_fork_can_call_too():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_plan_says_what_and_why(capfd, monkeypatch):
    rnn = make("MinGRU", 8, 16, device="cpu")
    plan = rnn.plan(5000, 1)
    assert isinstance(plan, scanrnn.Plan)
    assert plan.reason == "measured"
    assert plan.strategy != plan.runner_up
    assert plan.workspace_bytes > 0
    assert plan.reserve_bytes == 0
    assert rnn.plan(5000, 1, training=True).reserve_bytes >= 0
    assert plan.profile == CPU_PROFILE
    words = (
        plan.strategy,
        "T=5000",
        f"{CPU_PROFILE}, built in",
        "bytes",
        f"runner-up {plan.runner_up}",
    )
    assert all(word in str(plan) for word in words)
    assert rnn.plan(5000, 1, strategy="parallel_scan").chunk_steps > 0
    forced = rnn.plan(T=5000, B=1, strategy="fused_sequential")
    assert (forced.strategy, forced.reason) == ("fused_sequential", "forced")
    assert forced.chunk_steps == 0
    assert forced.tile_steps > 0

    rnn(normal(3, 1, 8))
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("SCANRNN_LOG", "plan")
    rnn(normal(3, 1, 8), strategy="parallel_scan")
    rnn.vjp(normal(3, 1, 8))
    rnn.step(normal(1, 8))
    scanrnn.scan(normal(3, 2), normal(3, 2))
    lines = capfd.readouterr().err.splitlines()
    own = [rnn.plan(3, 1, training=True).strategy, rnn.plan(1, 1).strategy]
    picked = ["parallel_scan", *own, lines[3].split()[1]]
    assert [line.split()[:2] for line in lines] == [["scanrnn:", pick] for pick in picked]
    assert picked[3] in strategies("MinGRU")
    assert "training" in lines[1]


@pytest.mark.parametrize(("cell", "strategy"), FORCED)
def test_a_forced_strategy_is_the_one_that_runs(cell, strategy, capfd, monkeypatch):
    monkeypatch.setenv("SCANRNN_LOG", "plan")
    rnn = make(cell)
    rnn(normal(40, 2, rnn.input_size), strategy=strategy)
    assert f"scanrnn: {strategy} for T=40 B=2 H=5" in capfd.readouterr().err


def test_a_layer_is_one_of_a_cell():
    with pytest.raises(TypeError, match=r"^Layer: expected the class of a cell, such as"):
        scanrnn.Layer(3, 4)


def test_registry():
    linear = ["MinGRU", "MinLSTM", "SRU", "QRNN", "RGLRU"]
    assert DIAGONAL == ["PeepholeSRU", "IndRNN"]
    assert DENSE == ["RNN", "LSTM", "GRU", "PeepholeLSTM", "SLSTM"]
    assert [cell.name for cell in scanrnn.cells()] == [*linear, *DIAGONAL, *DENSE]
    assert {*ALL_CELLS} - {"PeepholeSRU", "PeepholeLSTM"} < set(scanrnn.__all__)
    for cell in scanrnn.cells():
        assert (cell.recurrence == "linear") == (cell.name in linear)
        assert (cell.base, cell.option) == (
            (cell.name.removeprefix("Peephole"), "peephole")
            if cell.name.startswith("Peephole")
            else ("", "")
        )
        pairs = "LSTM", "PeepholeLSTM"
        assert cell.states == (2 if cell.name in pairs else 4 if cell.name == "SLSTM" else 1)
        assert cell.fresh == ((0, 0, 0, -np.inf) if cell.states == 4 else (0,) * cell.states)
        assert cell.variants
        assert len(cell.row_order) == cell.gates
        doc = getattr(scanrnn, cell.base or cell.name).__doc__ or ""
        assert f"{cell.option}=True: " in doc if cell.base else doc.startswith(cell.name)
        assert not cell.vectors or f"{cell.vectors_name} [" in doc
    first = scanrnn.devices()[0]
    assert first.device == "cpu"
    assert first.units >= 1
    assert first.memory > 2**20
    assert len(scanrnn.devices()) == 1 or scanrnn.cuda_available()
    assert "version:" in scanrnn.build_info()


def test_the_stub_and_the_extension_have_the_same_names():
    stub = Path(scanrnn.__file__).with_name("_core.pyi")
    declared = {
        node.name: {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef)
        else set()
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    extension = scanrnn._core
    assert set(declared) == {name for name in dir(extension) if not name.startswith("__")}
    for name, methods in declared.items():
        found = (
            {m for m in vars(getattr(extension, name)) if not m.startswith("_")}
            if methods
            else set()
        )
        assert {m for m in methods if not m.startswith("_")} == found, name
