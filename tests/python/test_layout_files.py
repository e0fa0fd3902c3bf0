# SPDX-License-Identifier: Apache-2.0
"""Weights from files and from the libraries themselves, where they are installed."""

import importlib
import os

import numpy as np
import pytest
import scanrnn
from scanrnn.layouts import files
from support import DEVICE, INFO, assert_close, make, normal

C, H, T, B = 3, 4, 7, 2
X = normal(T, B, C)
STARTS = ("weights: ", "weight_", "bias_", "dtype: ")  # of what is said of a damaged file


def load(weights, layout, cell, **options):
    return scanrnn.load(weights, layout, getattr(scanrnn, cell), device=DEVICE, **options)


def agree(rnn, y):
    assert_close(rnn(X)[0], np.asarray(y), 2e-6)


def same_layer(back, rnn):
    assert str(back) == str(rnn)
    for name, value in rnn.state_dict().items():
        np.testing.assert_array_equal(back.state_dict()[name], value)


def test_npz(tmp_path):
    rnn = make("GRU", C, H, bidirectional=True)
    np.savez(tmp_path / "weights.npz", **rnn.export("torch"))
    same_layer(load(tmp_path / "weights.npz", "torch", "GRU"), rnn)
    same_layer(load(str(tmp_path / "weights.npz"), "torch", "GRU"), rnn)
    (tmp_path / "none.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"^weights: '.*none\.npz' is not what numpy"):
        load(tmp_path / "none.npz", "torch", "GRU")


def test_bfloat16_of_npz(tmp_path):
    """NumPy keeps its bytes, and not its name."""
    pytest.importorskip("ml_dtypes")
    rnn, path = make("GRU", C, H, dtype="bfloat16"), tmp_path / "weights.npz"
    np.savez(path, **rnn.state_dict())
    same_layer(load(path, "torch", "GRU", dtype="bfloat16"), rnn)
    same_layer(load(dict(np.load(path)), "torch", "GRU", dtype="bfloat16"), rnn)
    other = make("GRU", C, H, dtype="bfloat16", seed=7)
    other.load_state_dict(np.load(path))
    same_layer(other, rnn)
    words = r"got \|V2; NumPy's files have bfloat16 as two bytes .* pass value\.view\(ml_dtypes\."
    for options in ({}, {"dtype": "float32"}):
        with pytest.raises(TypeError, match=rf"^weight_ih_l0: expected dtype one of .*{words}"):
            load(path, "torch", "GRU", **options)
    with pytest.raises(TypeError, match=rf"^weight_ih_l0: expected dtype float16, {words}"):
        make("GRU", C, H, dtype="float16").load_state_dict(np.load(path))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".pth", ".onnx"])
def test_no_file(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    for name in ("none", "folder"):
        with pytest.raises(
            FileNotFoundError, match=rf"^weights: there is no file '.*{name}\{suffix}'$"
        ):
            load(tmp_path / f"{name}{suffix}", "torch", "GRU")


def write_safetensors(path, **arrays):
    pytest.importorskip("safetensors.numpy").save_file(arrays, path)


def write_torch(path, **arrays):
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(value) for name, value in arrays.items()}, path)


def write_onnx(path, **arrays):
    onnx = pytest.importorskip("onnx")
    onnx.save(model(onnx, make("GRU", C, H), "GRU"), path)


@pytest.mark.parametrize(
    ("write", "suffix"),
    [(np.savez, ".npz"), (np.savez_compressed, ".npz"), (write_safetensors, ".safetensors"),
     (write_torch, ".pt"), (write_onnx, ".onnx")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file(tmp_path, write, suffix):
    rnn, path = make("GRU", C, H), tmp_path / f"weights{suffix}"
    write(path, **rnn.export("torch"))
    content, said = path.read_bytes(), []
    layout = "onnx" if suffix == ".onnx" else "torch"
    for at in range(0, len(content), 7):
        broken = bytearray(content)
        broken[at] ^= 0xFF
        for damaged in (broken, content[:at]):
            path.write_bytes(damaged)
            try:
                load(path, layout, "GRU")
            except ValueError as problem:  # a name, a shape or a dtype may be another
                said.append(str(problem))
    times = len(said) / (len(content) / 7)
    assert times > (1.7 if suffix == ".npz" else 1.2)  # the others have no checksums
    assert all(text.startswith(STARTS) for text in said), said


def test_a_pickle_of_more_than_tensors(tmp_path):
    torch, path = pytest.importorskip("torch"), tmp_path / "whole.pt"
    torch.save(torch.nn.GRU(C, H), path)
    message = (
        r"^weights: '.*whole\.pt' cannot be read: expected names and tensors alone, as torch\.save"
    )
    with pytest.raises(ValueError, match=message):
        load(path, "torch", "GRU")
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=message):
        load(path, "torch", "GRU")


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    rnn = make("SRU", C, H, num_layers=2)
    safetensors.save_file(rnn.export("torch"), tmp_path / "weights.safetensors")
    same_layer(load(tmp_path / "weights.safetensors", "torch", "SRU"), rnn)


def test_what_is_not_installed(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(files.importlib, "import_module", absent)
    for suffix, package in [(".safetensors", "safetensors"), (".pt", "torch"), (".onnx", "onnx")]:
        message = rf"^weights: '.*{suffix}' is read by {package}, which is not installed \(pip ins"
        (tmp_path / f"weights{suffix}").touch()
        with pytest.raises(ImportError, match=message):
            load(tmp_path / f"weights{suffix}", "torch", "LSTM")


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_torch(cell, tmp_path):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn, cell)(C, H, 2, bidirectional=True)
    weights = {f"encoder.rnn.{name}": value for name, value in theirs.state_dict().items()}
    torch.save(weights, tmp_path / "weights.pt")
    y = theirs(torch.from_numpy(X))[0].detach()
    agree(load(weights, "torch", cell), y)
    rnn = load(tmp_path / "weights.pt", "torch", cell)
    agree(rnn, y)
    theirs.load_state_dict({name: torch.from_numpy(v) for name, v in rnn.export("torch").items()})
    modules = importlib.import_module("scanrnn.torch")
    with pytest.raises(
        TypeError, match=r"^cls: expected a class of scanrnn, such as scanrnn\.LSTM"
    ):
        scanrnn.load(weights, "torch", getattr(modules, cell))
    halves = {name: value.bfloat16() for name, value in weights.items()}
    assert load(halves, "torch", cell).dtype == "bfloat16"


def test_jax():
    jax = pytest.importorskip("jax")
    rnn = make("LSTM", C, H)
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = {name: jax.numpy.asarray(value) for name, value in rnn.export("keras").items()}
    agree(load(arrays, "keras", "LSTM"), rnn(X)[0])


@pytest.mark.parametrize(
    ("cell", "options"),
    [("LSTM", {}), ("GRU", {}), ("GRU", {"reset_after": False}), ("SimpleRNN", {})],
    ids=str,
)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_keras(cell, options, bidirectional, bias, monkeypatch):
    pytest.importorskip("torch")
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    theirs = getattr(keras.layers, cell)(H, return_sequences=True, use_bias=bias, **options)
    if bidirectional:
        theirs = keras.layers.Bidirectional(theirs)
    y = theirs(X.swapaxes(0, 1))
    random = np.random.default_rng(0)
    theirs.set_weights([random.uniform(-1, 1, v.shape) for v in theirs.get_weights()])
    y = keras.ops.convert_to_numpy(theirs(X.swapaxes(0, 1))).swapaxes(0, 1)
    name = cell.removeprefix("Simple")
    told = {} if bias else options  # which a bias tells by its shape
    rnn = load(theirs.get_weights(), "keras", name, bidirectional=bidirectional, **told)
    agree(rnn, y)
    paths = {v.path: keras.ops.convert_to_numpy(v) for v in theirs.weights}
    agree(load(paths, "keras", name, **told), y)
    theirs.set_weights([*rnn.export("keras").values()])
    again = keras.ops.convert_to_numpy(theirs(X.swapaxes(0, 1))).swapaxes(0, 1)
    assert_close(again, y, 2e-6)


@pytest.mark.parametrize("cell", ["LSTM", "PeepholeLSTM"])
@pytest.mark.filterwarnings("ignore")
def test_tensorflow(cell):
    """Its operator, since its cells of version 1 are in no release of today."""
    tensorflow = pytest.importorskip("tensorflow")
    name, own = INFO[cell].made_by()
    rnn = make(cell, C, H)
    arrays, zeros = rnn.export("tensorflow"), np.zeros((B, H), np.float32)
    peepholes = {f"wc{gate}": arrays.get(f"w_{gate}_diag", zeros[0]) for gate in "ifo"}
    found = tensorflow.raw_ops.BlockLSTM(
        seq_len_max=np.int64(T), x=X, cs_prev=zeros, h_prev=zeros, w=arrays["kernel"],
        b=arrays["bias"], **peepholes, forget_bias=1.0, cell_clip=-1.0,
        use_peephole=own.get("peephole", False),
    )  # fmt: skip
    agree(rnn, found.h)
    agree(load(arrays, "tensorflow", name, **own), found.h)


@pytest.mark.filterwarnings("ignore")
def test_gru_of_tensorflow():
    """Likewise, a step at a time."""
    tensorflow = pytest.importorskip("tensorflow")
    rnn = make("GRU", C, H, reset_after=False)
    arrays, h, y = rnn.export("tensorflow"), np.zeros((B, H), np.float32), []
    for x in X:
        h = tensorflow.raw_ops.GRUBlockCell(
            x=x, h_prev=h, w_ru=arrays["gates/kernel"], b_ru=arrays["gates/bias"],
            w_c=arrays["candidate/kernel"], b_c=arrays["candidate/bias"],
        ).h  # fmt: skip
        y.append(np.asarray(h))
    agree(rnn, y)
    agree(load(arrays, "tensorflow", "GRU"), y)


# ---- ONNX


def model(onnx, rnn, cell, **attributes):
    """A model of one node for each layer of the exported arrays, states from zero."""
    helper, arrays = onnx.helper, rnn.export("onnx")
    nodes, values, last = [], [], "X"
    for layer in range(rnn.num_layers):
        stack = f"{layer}." if rnn.num_layers > 1 else ""
        inputs = [last]
        for name in ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"):
            value = arrays.get(stack + name)
            inputs.append("" if value is None else f"{name}{layer}")
            if value is not None:
                values.append(onnx.numpy_helper.from_array(value, inputs[-1]))
        while not inputs[-1]:
            inputs.pop()
        kind = {"linear_before_reset": int(rnn.reset_after)} if cell == "GRU" else {}
        kind |= {"direction": "bidirectional"} if rnn.bidirectional else {}
        told = {"hidden_size": H} | kind | attributes
        nodes.append(helper.make_node(cell, inputs, [f"Y{layer}"], name=f"n{layer}", **told))
        nodes.append(helper.make_node("Transpose", [f"Y{layer}"], [f"Z{layer}"], perm=(0, 2, 1, 3)))
        nodes.append(helper.make_node("Reshape", [f"Z{layer}", "shape"], [f"Y{layer}_"]))
        last = f"Y{layer}_"
    values.append(onnx.numpy_helper.from_array(np.array([0, 0, -1]), "shape"))
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "stack", [helper.make_tensor_value_info("X", kind, [T, B, C])],
        [helper.make_tensor_value_info(last, kind, [T, B, None])], values,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("cell", "options"),
    [("LSTM", {}), ("PeepholeLSTM", {}), ("GRU", {}), ("GRU", {"reset_after": False}), ("RNN", {})],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_onnx(cell, options, bias, layers, tmp_path):
    onnx = pytest.importorskip("onnx")
    reference = importlib.import_module("onnx.reference")
    name, own = INFO[cell].made_by()
    rnn = make(cell, C, H, num_layers=layers, bias=bias, **options)
    made = model(onnx, rnn, name)
    onnx.checker.check_model(made)
    (y,) = reference.ReferenceEvaluator(made).run(None, {"X": X})
    agree(rnn, y)
    onnx.save(made, tmp_path / "stack.onnx")
    same_layer(load(tmp_path / "stack.onnx", "onnx", name, **own), rnn)
    both = make(cell, C, H, num_layers=layers, bias=bias, bidirectional=True, **options)
    onnx.save(model(onnx, both, name), tmp_path / "both.onnx")
    same_layer(load(tmp_path / "both.onnx", "onnx", name, **own), both)


@pytest.mark.filterwarnings("ignore")
def test_onnx_nodes_that_are_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "stack.onnx"
    for cell, attributes, message in [
        ("LSTM", {"clip": 2.0}, "^weights: clip of node 'n0' is not here, got 2.0"),
        ("LSTM", {"input_forget": 1}, "^weights: input_forget of node 'n0' is not here, got 1"),
        ("LSTM", {"direction": "reverse"}, "^weights: direction 'reverse' of node 'n0' alone is"),
        (
            "LSTM",
            {"activations": ["Sigmoid", "Relu", "Tanh"]},
            "^weights: activations of node 'n0'",
        ),
    ]:
        onnx.save(model(onnx, make(cell, C, H), cell, **attributes), path)
        with pytest.raises(ValueError, match=message):
            load(path, "onnx", cell)
    with pytest.raises(ValueError, match=r"^weights: expected '.*' to have a node RNN, and it has"):
        load(path, "onnx", "RNN")
    relu = make("RNN", C, H, "relu")
    onnx.save(model(onnx, relu, "RNN", activations=["Relu"]), path)
    same_layer(load(path, "onnx", "RNN"), relu)
    with pytest.raises(ValueError, match=r"^nonlinearity: expected 'relu', since the file says so"):
        load(path, "onnx", "RNN", nonlinearity="tanh")


# ---- the cases of ONNX's own tests


def cases(monkeypatch, cell):
    """By name: a node's attributes, its inputs and its outputs, each by name."""
    onnx = pytest.importorskip("onnx")
    module = importlib.import_module(f"onnx.backend.test.case.node.{cell.lower()}")
    found = {}

    def expect(node, inputs, outputs, name):
        told = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        named = [[each for each in names if each] for names in (node.input, node.output)]
        pairs = zip(named, (inputs, outputs), strict=True)
        found[name] = told, *(dict(zip(*pair, strict=True)) for pair in pairs)

    monkeypatch.setattr(module, "expect", expect)
    made = getattr(module, cell)
    for export in [name for name in dir(made) if name.startswith("export")]:
        getattr(made, export)()
    return found


def outputs(cell, told, inputs):
    """Those that a node has, by a layer that has its arrays."""
    way, batch_first = told.get("direction", b"forward"), bool(told.get("layout", 0))
    weights = {name: inputs[name] for name in ("W", "R", "B", "P") if name in inputs}
    if cell == "GRU":
        weights["linear_before_reset"] = told.get("linear_before_reset", 0)
    own = {"peephole": "P" in inputs} if cell == "LSTM" else {}
    rnn = load(weights, "onnx", cell, batch_first=batch_first, **own)
    assert (rnn.hidden_size, rnn.bidirectional) == (told["hidden_size"], way == b"bidirectional")
    # A layer that walks backwards alone is one that walks reversed time.
    x, turned = inputs["X"], 1 if batch_first else 0
    x = np.flip(x, turned) if way == b"reverse" else x
    first = [inputs[name] for name in ("initial_h", "initial_c") if name in inputs]
    h_0 = tuple(first) if len(first) > 1 else first[0] if first else None
    y, states = rnn(x, h_0, lengths=inputs.get("sequence_lens"))
    y = np.flip(y, turned) if way == b"reverse" else y
    y = y.reshape(*y.shape[:2], -1, rnn.hidden_size)
    y = y if batch_first else y.swapaxes(1, 2)
    states = states if isinstance(states, tuple) else (states,)
    states = [part.swapaxes(0, 1) if batch_first else part for part in states]
    return dict(zip(("Y", "Y_h", "Y_c"), (y, *states), strict=False))


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_cases_of_onnx(cell, monkeypatch):
    found = cases(monkeypatch, cell)
    ways = {told.get("direction", b"forward") for told, _, _ in found.values()}
    assert len(found) >= 6
    assert ways == {b"forward", b"reverse", b"bidirectional"}
    for name, (told, inputs, wanted) in found.items():
        got = outputs(cell, told, inputs)
        for which, value in wanted.items():
            assert_close(got[which], value, 2e-6, f"{name}: {which}")
