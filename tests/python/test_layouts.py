# SPDX-License-Identifier: Apache-2.0
"""Weights of other libraries: there and back, against their formulas, and what is refused."""

import itertools

import layout_formulas as formulas
import numpy as np
import pytest
from layout_support import TIGHT, C, H, agrees, draw, load, same, x_of
from scanrnn.layouts.tables import LAYOUTS
from support import ALL_CELLS, INFO, assert_close, make

PAIRS = [(layout, cell) for layout, kind in LAYOUTS.items() for cell in kind.cells or ALL_CELLS]
ALONE = {("tensorflow", "GRU"): {"reset_after": False}}  # options that all layers there have


# ---- there and back


@pytest.mark.parametrize(("layout", "cell"), PAIRS)
@pytest.mark.parametrize("input_size", [C, H, 2 * H])
def test_there_and_back(layout, cell, input_size):
    """A layer of every description computes the same after both ways."""
    kind, info = LAYOUTS[layout], INFO[cell]
    variant = kind.variants[cell][-1] if cell in kind.variants else None
    for layers, bidirectional, bias in itertools.product((1, 2), (False, True), (True, False)):
        if bidirectional and (kind.directions == 1 or (layout == "asapp-sru" and layers == 2)):
            continue
        rnn = make(
            cell, input_size, H, variant, num_layers=layers, bidirectional=bidirectional,
            bias=bias, dtype="float64", **ALONE.get((layout, cell), {}),
        )  # fmt: skip
        if layout == "asapp-sru" and bidirectional and rnn.input_size == 2 * H:
            with pytest.raises(ValueError, match="each direction of a cell reads its half of x"):
                rnn.export(layout)
            continue
        options = {"bidirectional": bidirectional} if kind.joined else {}
        options |= {info.variant_option: variant} if variant else {}
        if info.highway and not bias and layout == "torch":
            options["hidden_size"] = H  # where the number of blocks does not say it
        told = rnn.export(layout)
        back = load(told, layout, cell, **options)
        assert back.bias == (bias or kind.needs_bias), "what it was, or zeros"
        assert_close(back(x_of(rnn.input_size))[0], rnn(x_of(rnn.input_size))[0], TIGHT, str(rnn))
        same(back.export(layout), told)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_torchs_layout_is_our_own(cell):
    rnn = make(cell, C, H, num_layers=2)
    same(rnn.export("torch"), rnn.state_dict())
    assert str(load(rnn.state_dict(), "torch", cell)) == str(rnn)


def test_a_size_that_the_shapes_do_not_tell():
    """Without biases [12, 4] is three blocks and C = H = 4, or four and H = 3."""
    rnn = make("SRU", 4, 3, bias=False)
    same(load(rnn.state_dict(), "torch", "SRU", hidden_size=3).state_dict(), rnn.state_dict())
    assert load(rnn.state_dict(), "torch", "SRU").hidden_size == 4
    for options in ({}, {"bidirectional": True}, {"projection_size": 4}):
        two = make("SRU", 4, 3, bias=False, num_layers=2, **options)  # whose second layer tells it
        same(load(two.state_dict(), "torch", "SRU").state_dict(), two.state_dict())
    for cell in ("SRU", "PeepholeSRU"):
        assert load(make(cell, 4, 3).state_dict(), "torch", cell).hidden_size == 3


def test_what_is_exported_is_a_copy():
    rnn = make("LSTM", C, H)
    for layout in ("torch", "haste", "flashrnn", "keras", "tensorflow", "onnx"):
        for value in rnn.export(layout).values():
            value[...] = 0
    assert all(np.any(value != 0) for value in rnn.state_dict().values())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "cell"), PAIRS)
def test_every_dtype(layout, cell, dtype):
    variants = LAYOUTS[layout].variants.get(cell, (None,))
    rnn = make(cell, C, H, variants[0], dtype=dtype, **ALONE.get((layout, cell), {}))
    told = rnn.export(layout)
    assert {str(value.dtype) for value in told.values()} - {"int64"} == {dtype}
    assert load(told, layout, cell).dtype == rnn.dtype
    assert load(told, layout, cell, dtype="float64").dtype == np.float64


# ---- against their formulas

G = {"lstm": 4, "gru": 3, "rnn": 1}
FORMULAS = {
    "haste": {
        "lstm": {"kernel": (C, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": 4 * H},
        "gru": {
            "kernel": (C, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": 3 * H,
            "recurrent_bias": 3 * H,
        },
        "indrnn": {"kernel": (C, H), "recurrent_scale": H, "bias": H},
        "normed_lstm": {
            "kernel": (C, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": 4 * H,
            "gamma": (2, 4 * H), "gamma_h": H, "beta_h": H,
        },
        "normed_gru": {
            "kernel": (C, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": 3 * H,
            "recurrent_bias": 3 * H, "gamma": (2, 3 * H),
        },
        "normed_indrnn": {"kernel": (C, H), "recurrent_scale": H, "bias": H, "gamma": (2, H)},
    },
    "keras": {
        "gru_before": {"kernel": (C, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": 3 * H},
        "lstm": {"kernel": (C, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": 4 * H},
        "gru": {"kernel": (C, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": (2, 3 * H)},
        "rnn": {"kernel": (C, H), "recurrent_kernel": (H, H), "bias": H},
    },
    "tensorflow": {
        "lstm": {"kernel": (C + H, 4 * H), "bias": 4 * H},
        "gru_before": {
            "gates/kernel": (C + H, 2 * H), "gates/bias": 2 * H,
            "candidate/kernel": (C + H, H), "candidate/bias": H,
        },
        "rnn": {"kernel": (C + H, H), "bias": H},
    },
    "flashrnn": {
        "lstm": {"W": (4 * H, C), "R": (4, 1, H, H), "b": (4, 1, H)},
        "gru": {"W": (3 * H, C), "R": (3, 1, H, H), "b": (4, 1, H)},
        "rnn": {"W": (H, C), "R": (1, 1, H, H), "b": (1, 1, H)},
    },
    "onnx": {
        cell: {"W": (2, g * H, C), "R": (2, g * H, H), "B": (2, 2 * g * H)}
        for cell, g in (G | {"gru_before": 3}).items()
    },
}  # fmt: skip
NAMES = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN", "indrnn": "IndRNN"}


def class_of(cell):
    """And the options that a library's other forms of it have."""
    kind = NAMES[cell.removeprefix("normed_").removesuffix("_before")]
    options = {"layer_norm": True} if "normed" in cell else {}
    return kind, options | ({"reset_after": False} if "before" in cell else {})


@pytest.mark.parametrize(
    ("layout", "cell"), [(layout, cell) for layout, cells in FORMULAS.items() for cell in cells]
)
def test_computes_what_the_library_computes(layout, cell):
    arrays = draw(**FORMULAS[layout][cell])
    wanted = getattr(formulas, f"{layout}_{cell}")(x_of(), **arrays)
    kind, options = class_of(cell)
    if "normed_indrnn" in cell:
        arrays["gamma"][1] = 1  # it counts for nothing
    said = {}
    if layout == "onnx" and kind == "GRU":
        said = {"linear_before_reset": int(cell == "gru")}
    rnn = load(arrays | said, layout, kind)
    assert (rnn.input_size, rnn.hidden_size, rnn.bidirectional) == (C, H, layout == "onnx")
    assert all(getattr(rnn, name) == value for name, value in options.items())
    agrees(rnn, wanted)
    same(rnn.export(layout), arrays | said)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_heads_of_flashrnn(cell):
    shapes = FORMULAS["flashrnn"][cell]
    gates, biases = shapes["R"][0], shapes["b"][0]
    arrays = draw(W=(gates * H, C), R=(gates, 2, H // 2, H // 2), b=(biases, 2, H // 2))
    rnn = load(arrays, "flashrnn", NAMES[cell])
    assert rnn.num_heads == 2
    agrees(rnn, getattr(formulas, f"flashrnn_{cell}")(x_of(), **arrays))
    same(rnn.export("flashrnn"), arrays)


OPTIONS = {
    "LSTM": [
        {"layer_norm": True, "proj_size": 3},
        {"proj_size": 3},
        {"num_heads": 2},
        {"proj_size": 2, "bidirectional": True},
    ],
    "SLSTM": [{"num_heads": 4}],
    "GRU": [{"layer_norm": True, "num_layers": 2}],
    "RNN": [{"layer_norm": True, "num_heads": 2}],
    "IndRNN": [{"layer_norm": True}],
    "SRU": [{"projection_size": 2}, {"projection_size": 5, "num_layers": 2}],
    "PeepholeSRU": [{"projection_size": 6, "bidirectional": True}],
}


@pytest.mark.parametrize(
    ("cell", "options"), [(cell, told) for cell, all_of in OPTIONS.items() for told in all_of]
)
def test_options_in_torchs_layout(cell, options):
    rnn = make(cell, C, H, **options)
    again = load(rnn.export("torch"), "torch", cell)
    for name, value in options.items():
        assert getattr(again, name) == value
    same(again.state_dict(), rnn.state_dict())


def test_options_that_a_library_has_not_stay_here():
    for options in ({"num_heads": 2}, {"proj_size": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: 'haste' has no layers of it"):
            make("LSTM", C, H, **options).export("haste")
    with pytest.raises(ValueError, match="rescale: expected none with two directions where C is"):
        make("SRU", H, H, rescale=True, bidirectional=True).export("asapp-sru")
    with pytest.raises(ValueError, match="weight_pr: expected the same in both directions"):
        make("SRU", C, H, projection_size=2, bidirectional=True).export("asapp-sru")


def test_options_of_a_step_stay_where_they_cannot_go():
    for layout in ("haste", "flashrnn"):
        with pytest.raises(ValueError, match=f"reset_after: {layout!r} has no layers of it, got F"):
            make("GRU", C, H, reset_after=False).export(layout)
    for layout in ("keras", "onnx", "tensorflow", "flashrnn"):
        with pytest.raises(ValueError, match=f"layer_norm: {layout!r} has no layers of it, got Tr"):
            make("LSTM", C, H, layer_norm=True).export(layout)
    rnn = make("GRU", C, H, reset_after=False)
    again = load(rnn.export("torch"), "torch", "GRU", reset_after=False)
    same(again.state_dict(), rnn.state_dict())


def test_peepholes_of_onnx_and_tensorflow():
    rnn = make("PeepholeLSTM", C, H, dtype="float64")
    i, f, o = np.split(rnn.weight_ch_l0, 3)
    np.testing.assert_array_equal(rnn.export("onnx")["P"], np.concatenate([i, o, f])[None])
    told = rnn.export("tensorflow")
    wanted = formulas.tensorflow_lstm(x_of(), **told)
    agrees(rnn, wanted)
    agrees(load(told, "tensorflow", "PeepholeLSTM"), wanted)


def test_stacks():
    lower, upper = draw(**FORMULAS["haste"]["lstm"]), draw(kernel=(H, 16), recurrent_kernel=(H, 16))
    upper["bias"] = lower["bias"] - 1
    weights = {f"0.{name}": value for name, value in lower.items()}
    weights |= {f"1.{name}": value for name, value in upper.items()}
    wanted = formulas.haste_lstm(formulas.haste_lstm(x_of(), **lower), **upper)
    agrees(load(weights, "haste", "LSTM"), wanted)
    one = {name: value for name, value in weights.items() if name.startswith("1.")}
    assert load(one, "haste", "LSTM").input_size == H, "a single layer may have any number"


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("name", [
    "{way}_{field}",
    "bidirectional/{way}_lstm_1/{field}:0",
    "model/bidirectional_1/{way}_lstm/lstm_cell_{number}/{field}",
])  # fmt: skip
def test_directions_of_keras(cell, name):
    ways = [draw(**FORMULAS["keras"][cell]), draw(**FORMULAS["keras"][cell])]
    ways[1]["kernel"] = ways[1]["kernel"][::-1]
    weights = {
        name.format(way=("forward", "backward")[way], field=field, number=3 + way): value
        for way in (0, 1)
        for field, value in ways[way].items()
    }
    layer = getattr(formulas, f"keras_{cell}")
    wanted = formulas.both(lambda x, way: layer(x, **ways[way]), x_of())
    agrees(load(weights, "keras", NAMES[cell]), wanted)
    listed = [value for way in ways for value in way.values()]  # as get_weights() has them
    agrees(load(listed, "keras", NAMES[cell], bidirectional=True), wanted)


def test_directions_of_tensorflow():
    rnn = make("LSTM", C, H, bidirectional=True, dtype="float64")
    told = rnn.export("tensorflow")
    names = {
        f"bidirectional_rnn/{short}/basic_lstm_cell/{field}:0": told[f"{way}_{field}"]
        for short, way in [("fw", "forward"), ("bw", "backward")]
        for field in ("kernel", "bias")
    }
    same(load(names, "tensorflow", "LSTM").export("tensorflow"), told)


@pytest.mark.parametrize(
    "above", ["rnn/gru_cell/", "rnn/multi_rnn_cell/cell_1/gru_cell/", "gates/"]
)
def test_names_of_tensorflows_gru(above):
    """Its variables are in two scopes, whatever stands above them."""
    arrays = draw(**FORMULAS["tensorflow"]["gru_before"])
    wanted = formulas.tensorflow_gru_before(x_of(), **arrays)
    agrees(load({f"{above}{name}:0": v for name, v in arrays.items()}, "tensorflow", "GRU"), wanted)
    agrees(load([*arrays.values()], "tensorflow", "GRU"), wanted)
    both = {f"{way}/{above}{name}": v for way in ("fw", "bw") for name, v in arrays.items()}
    told = load(both, "tensorflow", "GRU").export("tensorflow")
    same({name: told[f"backward_{name}"] for name in arrays}, arrays)
    assert len(told) == 2 * len(arrays)


def test_lists_of_keras():
    for cell, layers, bias in itertools.product(("LSTM", "GRU", "RNN"), (1, 2, 3), (True, False)):
        rnn = make(cell, C, H, num_layers=layers, bias=bias, dtype="float64")
        back = load([*rnn.export("keras").values()], "keras", cell)
        assert (back.num_layers, back.bias) == (layers, bias)
        assert_close(back(x_of())[0], rnn(x_of())[0], TIGHT)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_lists_of_keras_whose_kernels_have_two_rows(cell):
    """As GRU's bias has: of two inputs, or of the layer below two units."""
    for bias, (input_size, hidden_size, both) in itertools.product(
        (True, False), ((2, 3, True), (2, 4, False), (5, 2, False))
    ):
        rnn = make(cell, input_size, hidden_size, num_layers=3, bias=bias, bidirectional=both)
        arrays, told = [*rnn.export("keras").values()], {"bidirectional": both}
        if cell == "GRU" and hidden_size == 2:
            if not bias:  # six arrays, of two layers or of three
                with pytest.raises(ValueError, match=r"^bias: expected to be told, since"):
                    load(arrays, "keras", cell)
            told["bias"] = bias
        back = load(arrays, "keras", cell, **told)
        assert (back.num_layers, back.bias) == (3, bias)
        same(back.export("keras"), rnn.export("keras"))


def test_forget_bias_of_tensorflow():
    arrays = draw(**FORMULAS["tensorflow"]["lstm"])
    rnn = load(arrays, "tensorflow", "LSTM", forget_bias=0.25)
    agrees(rnn, formulas.tensorflow_lstm(x_of(), **arrays, forget_bias=0.25))
    same(rnn.export("tensorflow", forget_bias=0.25), arrays)
    names = {"rnn/multi_rnn_cell/cell_0/lstm_cell/kernel:0": arrays["kernel"]}
    names |= {"rnn/multi_rnn_cell/cell_0/lstm_cell/bias:0": arrays["bias"]}
    agrees(load(names, "tensorflow", "LSTM"), formulas.tensorflow_lstm(x_of(), **arrays))
