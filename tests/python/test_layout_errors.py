# SPDX-License-Identifier: Apache-2.0
"""What `scanrnn.load` and `Layer.export` refuse, and what the error says."""

import re

import numpy as np
import pytest
import scanrnn
from support import DEVICE, make

C, H = 3, 4


def zeros(**shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


LSTM = zeros(kernel=(C, 4 * H), recurrent_kernel=(H, 4 * H), bias=(4 * H,))
GRU = zeros(kernel=(C, 3 * H), recurrent_kernel=(H, 3 * H), bias=(2, 3 * H))
TF = zeros(kernel=(C + H, 4 * H), bias=(4 * H,))
TF_GRU = zeros(**{"gates/kernel": (C + H, 2 * H), "gates/bias": (2 * H,)})
TF_GRU |= zeros(**{"candidate/kernel": (C + H, H), "candidate/bias": (H,)})
NODE = zeros(W=(1, 4 * H, C), R=(1, 4 * H, H), B=(1, 8 * H))
GRU_NODE = zeros(W=(1, 3 * H, C), R=(1, 3 * H, H), B=(1, 6 * H))
SRU = zeros(weight=(C, 4 * H), weight_c=(2 * H,), bias=(2 * H,))
SRU |= {"scale_x": np.ones(1, np.float32)}
TORCH = zeros(weight_ih_l0=(H, C), weight_hh_l0=(H, H))
ONES = np.ones((1, 3 * H), np.float32)


def refused(kind, message, weights, layout, cell="LSTM", **options):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        scanrnn.load(weights, layout, getattr(scanrnn, cell), **{"device": DEVICE} | options)


@pytest.mark.parametrize(
    ("message", "weights", "layout", "cell"),
    [
        ("layout: expected one of 'torch', 'haste', 'flashrnn', 'asapp-sru', 'tensorflow', "
         "'keras', 'onnx', got 'caffe'", LSTM, "caffe", "LSTM"),
        ("layout: 'haste' has LSTM, GRU, IndRNN, got SRU", LSTM, "haste", "SRU"),
        ("layout: 'tensorflow' has LSTM, PeepholeLSTM, GRU, RNN, got SRU", TF, "tensorflow", "SRU"),
        ("weights: missing ['candidate/bias'], unexpected ['rnn/kernel']",
         {f"rnn/{n}": v for n, v in (TF_GRU | zeros(kernel=(C + H, H))).items()
          if n != "candidate/bias"}, "tensorflow", "GRU"),
        ("cell/candidate/kernel: expected shape (7, 4), as GRU of input_size 3 and hidden_size 4",
         {f"cell/{n}": v for n, v in (TF_GRU | {"candidate/kernel": TF["kernel"]}).items()},
         "tensorflow", "GRU"),
        ("weights: missing ['bias'], unexpected []",
         zeros(kernel=(C, 16), recurrent_kernel=(H, 16)), "haste", "LSTM"),
        ("weights: missing [], unexpected ['beta']", LSTM | zeros(beta=(2,)), "haste", "LSTM"),
        ("weights: missing ['gamma_h', 'beta_h'], unexpected []",
         LSTM | zeros(gamma=(2, 4 * H)), "haste", "LSTM"),
        ("gamma: expected shape (2, 16), as LSTM of input_size 3 and hidden_size 4 has it, got (1",
         LSTM | zeros(gamma=(16,), gamma_h=(H,), beta_h=(H,)), "haste", "LSTM"),
        ("gamma: expected shape (4,), as IndRNN",
         zeros(kernel=(C, H), recurrent_scale=(H,), bias=(H,), gamma=(3, H)), "haste", "IndRNN"),
        ("weights: missing [], unexpected ['gamma']", LSTM | zeros(gamma=(2,)), "keras", "LSTM"),
        ("weights: missing ['recurrent_bias'], unexpected []", LSTM, "haste", "GRU"),
        ("weights: missing ['bias_hh_l0'], unexpected ['bias_ho_l0']",
         TORCH | zeros(bias_ih_l0=(H,), bias_ho_l0=(H,)), "torch", "RNN"),
        ("weights: missing ['weight_ih_l1', 'weight_hh_l1'], unexpected ['weight_ih_l2', "
         "'weight_hh_l2']",
         TORCH | zeros(weight_ih_l2=(H, H), weight_hh_l2=(H, H)), "torch", "RNN"),
        ("weights: missing [], unexpected ['fc']", TORCH | zeros(fc=(H, H)), "torch", "RNN"),
        ("recurrent_kernel: expected shape (4, 16), as LSTM of input_size 3 and hidden_size 4 has "
         "it, got (5, 16)", LSTM | zeros(recurrent_kernel=(5, 16)), "haste", "LSTM"),
        ("kernel: expected shape (3, 16), as LSTM", LSTM | zeros(kernel=(3, 18)), "keras", "LSTM"),
        ("kernel: expected 2 axes, got shape (3,)", LSTM | zeros(kernel=(3,)), "keras", "LSTM"),
        ("W: expected 3 axes, got shape (16, 3)", NODE | zeros(W=(16, 3)), "onnx", "LSTM"),
        ("W: expected 3 axes, got shape (16, 3)", NODE | zeros(W=(16, 3)), "onnx peephole", "LSTM"),
        ("weights: missing ['W']", {n: v for n, v in NODE.items() if n != "W"}, "onnx peephole",
         "LSTM"),
        ("linear_before_reset: expected 0 or 1, got [1, 0]",
         GRU_NODE | {"linear_before_reset": np.array([1, 0])}, "onnx", "GRU"),
        ("linear_before_reset: expected 0 or 1, got 'yes'",
         GRU_NODE | {"linear_before_reset": "yes"}, "onnx", "GRU"),
        ("bias: expected shape (2, 12), as GRU of input_size 3 and hidden_size 4 has it, got (2, ",
         GRU | zeros(bias=(11,)), "keras", "GRU"),
        ("reset_after: expected True, since one layer says so, got False",
         {f"{i}.{n}": v for i in (0, 1) for n, v in
          (GRU_NODE | {"linear_before_reset": i}).items()}, "onnx", "GRU"),
        ("P: its values are not 0, so the gates read c: expected scanrnn.LSTM with peephole=True",
         NODE | {"P": ONES}, "onnx", "LSTM"),
        ("rnn/w_f_diag: expected scanrnn.LSTM with peephole=True",
         {f"rnn/{name}": v for name, v in (TF | zeros(w_f_diag=(H,))).items()}, "tensorflow",
         "LSTM"),
        ("weight_c: its values are not 0, so the gates read the state: expected scanrnn.SRU with "
         "peephole=True", SRU | {"weight_c": np.ones(2 * H, np.float32)}, "asapp-sru", "SRU"),
        ("weight: expected shape (2, 16), as SRU", SRU | zeros(weight_proj=(C, 2)), "asapp-sru",
         "SRU"),
        ("R: expected shape (4, 1, 4, 4), as LSTM of input_size 3 and hidden_size 4 has it, got (",
         zeros(W=(4 * H, C), R=(4, 2, 3, 3), b=(4, 1, H)), "flashrnn", "LSTM"),
        ("weight: expected four blocks where C is not D*H, got three: a cell with "
         "has_skip_term=False is not here", SRU | zeros(weight=(C, 3 * H)), "asapp-sru", "SRU"),
        ("weight: expected shape (3, 16), as SRU", SRU | zeros(weight=(C, 13)), "asapp-sru", "SRU"),
        ("bias: expected shape (8,), as SRU", SRU | zeros(bias=(9,)), "asapp-sru", "SRU"),
        ("rnn_lst.0.weight: expected the unit matrix as fourth block",
         {f"rnn_lst.0.{n}": v for n, v in
          (SRU | zeros(weight=(H, 8 * H), weight_c=(4 * H,), bias=(4 * H,))).items()},
         "asapp-sru bidirectional", "SRU"),
        ("bidirectional: 'haste' has one direction, got 2",
         {f"{way}_{n}": v for way in ("forward", "backward") for n, v in LSTM.items()}, "haste",
         "LSTM"),
        ("weights: expected names of one stack of layers, got 'a.kernel' and 'b.bias': prefix=",
         {"a.kernel": LSTM["kernel"], "b.bias": LSTM["bias"]}, "haste", "LSTM"),
        ("weights: 'fw/kernel' and 'forward_kernel' stand for the same array",
         {"fw/kernel": LSTM["kernel"], "forward_kernel": LSTM["kernel"]}, "keras", "LSTM"),
        ("weights: expected arrays of one dtype, got float16, float32: dtype= says what they are",
         LSTM | {"bias": np.zeros(16, np.float16)}, "haste", "LSTM"),
        ("weights: expected arrays, got none whose name begins with ''", {}, "haste", "LSTM"),
        ("weights: expected 3 arrays for each layer (kernel, recurrent_kernel, bias), got 1",
         [LSTM["kernel"]] * 1, "keras biased", "LSTM"),
        ("weights: expected a file of .npz, .safetensors, .pt, .pth, .onnx, got 'weights.h5'",
         "weights.h5", "keras", "LSTM"),
    ],
)  # fmt: skip
def test_values(message, weights, layout, cell):
    layout, _, more = layout.partition(" ")
    option = {"biased": "bias"}.get(more, more)
    options = {option: True} if option else {}
    refused(ValueError, message, weights, layout, cell, **options)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("input_size: expected 3, since the arrays say so, got 4", {"input_size": 4}),
        ("hidden_size: expected 4, since the arrays say so, got 5", {"hidden_size": 5}),
        ("num_layers: expected 1, since the arrays say so, got 2", {"num_layers": 2}),
        ("bias: expected True, since the arrays say so, got False", {"bias": False}),
        ("bidirectional: expected False, since the arrays say so, got True",
         {"bidirectional": True}),
        ("dtype: expected one of", {"dtype": "int8"}),
        ("forget_bias: expected None, since LSTM of 'haste' adds none, got 1.0",
         {"forget_bias": 1.0}),
        ("weights: expected arrays, got none whose name begins with 'b.'", {"prefix": "b."}),
    ],
)  # fmt: skip
def test_options(message, options):
    refused(ValueError, message, LSTM, "haste", **options)
    assert scanrnn.load(
        LSTM, "haste", scanrnn.LSTM, input_size=3, hidden_size=4, num_layers=1, bias=np.True_,
        bidirectional=False, device=DEVICE,
    ).hidden_size == H  # fmt: skip


@pytest.mark.parametrize(
    ("message", "weights", "layout", "cell", "options"),
    [
        ("reset_after: expected False, since the arrays say so, got True",
         GRU | zeros(bias=(12,)), "keras", "GRU", {"reset_after": True}),
        ("reset_after: expected True, since the arrays say so, got False", GRU, "keras", "GRU",
         {"reset_after": False}),
        ("reset_after: expected False, since the arrays say so, got True", GRU_NODE, "onnx", "GRU",
         {"reset_after": True}),
        ("reset_after: expected False, since the arrays say so, got True", TF_GRU, "tensorflow",
         "GRU", {"reset_after": True}),
        ("forget_bias: expected None, since GRU of 'tensorflow' adds none, got 1.0", TF_GRU,
         "tensorflow", "GRU", {"forget_bias": 1.0}),
        ("reset_after: 'haste' has no layers of it, got False", GRU, "haste", "GRU",
         {"reset_after": False}),
        ("layer_norm: expected False, since the arrays say so, got True", LSTM, "haste", "LSTM",
         {"layer_norm": True}),
        ("layer_norm: 'keras' has no layers of it, got True", LSTM, "keras", "LSTM",
         {"layer_norm": True}),
    ],
)  # fmt: skip
def test_options_of_a_step(message, weights, layout, cell, options):
    refused(ValueError, message, weights, layout, cell, **options)


def of_another(cell, other, size, had):
    """(weights of `cell` with 3 inputs and so many units, the class that they come to, the weight
    that does not fit, and what its shape would have to be)."""
    return pytest.param(make(cell, 3, size).state_dict(), other, *had, id=f"{cell} {other}")


def changed(cell, name, change, *had, **options):
    state = make(cell, 3, 6, **options).state_dict()
    return pytest.param(state | {name: change(state[name])}, cell, *had, id=f"{cell} {name}")


@pytest.mark.parametrize(
    ("weights", "cell", "name", "wanted"),
    [
        of_another("GRU", "LSTM", 8, ("weight_hh_l0", "(24, 6)")),
        of_another("GRU", "SLSTM", 8, ("weight_hh_l0", "(24, 6)")),
        of_another("GRU", "LSTM", 6, ("weight_ih_l0", "(16, 3)")),
        of_another("RNN", "LSTM", 8, ("weight_hh_l0", "(8, 2)")),
        of_another("RNN", "GRU", 8, ("weight_ih_l0", "(6, 3)")),
        of_another("RNN", "SLSTM", 6, ("weight_ih_l0", "(4, 3)")),
        of_another("LSTM", "GRU", 6, ("weight_hh_l0", "(24, 8)")),
        changed("LSTM", "weight_ih_l0", lambda v: v[:-1], "weight_ih_l0", "(20, 3)"),
        changed("LSTM", "weight_ih_l0", lambda v: v[:-4], "weight_hh_l0", "(20, 5)"),
        changed("LSTM", "weight_ih_l0", lambda v: v.T, "weight_ih_l0", "(4, 24)"),
        changed("GRU", "weight_hh_l0", lambda v: v.T, "weight_hh_l0", "(18, 6)"),
        changed("LSTM", "weight_ih_l0", lambda v: v[:-4], "weight_hh_l0", "(20, 5)", num_heads=2),
        changed("LSTM", "weight_hr_l0", lambda v: v.T, "weight_hr_l0", "(P, 6) with P in [1, 6)",
                proj_size=2),
        changed("IndRNN", "weight_hh_l0", lambda v: v[:, None], "weight_hh_l0", "(6,)"),
    ],
)  # fmt: skip
def test_a_weight_that_does_not_fit_is_named(weights, cell, name, wanted):
    wanted, got = re.escape(f"{wanted}, as {cell} "), re.escape(str(weights[name].shape))
    with pytest.raises(ValueError, match=rf"^{name}: expected shape {wanted}.* has it, got {got}$"):
        scanrnn.load(weights, "torch", getattr(scanrnn, cell), device=DEVICE)


def test_a_projection_that_a_cell_has_not():
    message = "weights: missing [], unexpected ['weight_hr_l0']"
    refused(ValueError, message, make("LSTM", 3, 6, proj_size=2).state_dict(), "torch", "SLSTM")
    weights = make("RGLRU", 6, 6).state_dict() | zeros(weight_ih_l0=(12, 5))
    refused(ValueError, "weight_ih_l0: expected shape (10, 5), as", weights, "torch", "RGLRU")


def test_types():
    message = "weights: expected a path or a mapping of names to arrays, got"
    refused(TypeError, f"{message} int", 3, "haste")
    refused(TypeError, f"{message} list", [LSTM["bias"]], "haste")
    refused(TypeError, "layout: expected a string, got 3", LSTM, 3)
    refused(TypeError, "kernel: expected an array", LSTM | {"kernel": [[1.0]]}, "haste")
    message = "forget_bias: expected a number, got 'one'"
    refused(TypeError, message, TF, "tensorflow", forget_bias="one")
    message = "forget_bias: expected a finite number, got inf"
    refused(ValueError, message, TF, "tensorflow", forget_bias=float("inf"))
    message = "weights: expected names of arrays that are strings, got 0"
    refused(TypeError, message, {0: LSTM["bias"]}, "haste")
    refused(TypeError, "prefix: expected a string, got 0", LSTM, "haste", prefix=0)
    for cls in (scanrnn.Layer, "LSTM", np.ndarray, make("LSTM", C, H)):
        with pytest.raises(
            TypeError, match=r"^cls: expected a class of scanrnn, such as scanrnn\."
        ):
            scanrnn.load(LSTM, "haste", cls)
    with pytest.raises(TypeError, match=r"^LSTM: unexpected argument 'heads': expected one of"):
        scanrnn.load(LSTM, "haste", scanrnn.LSTM, heads=2)


def test_variants():
    """A library that has one nonlinearity is told so, and takes no other."""
    arrays = zeros(kernel=(C, H), recurrent_scale=(H,), bias=(H,))
    assert scanrnn.load(arrays, "haste", scanrnn.IndRNN, device=DEVICE).nonlinearity == "tanh"
    message = "nonlinearity: 'haste' has 'tanh', got 'relu'"
    refused(ValueError, message, arrays, "haste", "IndRNN", nonlinearity="relu")
    with pytest.raises(ValueError, match=f"^{message}$"):
        make("IndRNN", C, H).export("haste")
    with pytest.raises(ValueError, match=r"^activation: 'asapp-sru' has 'identity' or 'tanh', got"):
        make("SRU", C, H, "relu").export("asapp-sru")


def test_export():
    rnn = make("LSTM", C, H, bidirectional=True)
    with pytest.raises(ValueError, match=r"^layout: expected one of 'torch', .*, got 'caffe'$"):
        rnn.export("caffe")
    with pytest.raises(ValueError, match=r"^layout: 'asapp-sru' has SRU, PeepholeSRU, got LSTM$"):
        rnn.export("asapp-sru")
    with pytest.raises(ValueError, match=r"^bidirectional: 'flashrnn' has one direction, got 2$"):
        rnn.export("flashrnn")
    with pytest.raises(ValueError, match=r"^forget_bias: expected None, since LSTM of 'keras'"):
        rnn.export("keras", forget_bias=0.5)
    with pytest.raises(ValueError, match=r"^reset_after: 'tensorflow' has GRU with False alone, g"):
        make("GRU", C, H).export("tensorflow")


def test_prefix_picks_of_a_whole_model():
    model = {f"encoder.lstm.{name}": value for name, value in LSTM.items()}
    model |= {"head.weight": np.zeros((2, H), np.float32), "head.counts": np.zeros(3, np.int64)}
    rnn = scanrnn.load(model, "haste", scanrnn.LSTM, prefix="encoder.", device=DEVICE)
    assert rnn.hidden_size == H
    message = "weights: expected names of one stack of layers, got"
    refused(ValueError, message, model, "haste")
