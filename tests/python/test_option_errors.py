# SPDX-License-Identifier: Apache-2.0
"""Options that a cell has not, and values that an option has not."""

import importlib
import re

import pytest
import scanrnn
from support import make

LIBRARIES = ["scanrnn", "scanrnn.torch", "scanrnn.jax"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("cell", "option", "words"),
    [
        ("MinGRU", "num_heads", "it is an option of RNN, LSTM, GRU, SLSTM"),
        ("MinLSTM", "dropconnect", "it is an option of RNN, LSTM, GRU, SLSTM"),
        ("LSTM", "reset_after", "it is an option of GRU"),
        ("QRNN", "peephole", "it is an option of SRU, LSTM"),
        ("GRU", "candidate", "it is an option of MinGRU, MinLSTM"),
        ("SLSTM", "heads", "expected one of 'num_layers', 'bias', .*, 'zoneout', 'num_heads'"),
        ("MinGRU", "_cell", "expected one of 'num_layers', 'bias', .*'candidate'"),
    ],
)
def test_an_option_that_a_cell_has_not(library, cell, option, words):
    """Whatever is given for it, the error says whose option it is, or which ones there are."""
    if library != "scanrnn":
        pytest.importorskip(library.partition(".")[2])
    kind = getattr(importlib.import_module(library), cell)
    with pytest.raises(TypeError, match=rf"^{cell}: unexpected argument '{option}': {words}"):
        kind(6, 6, **{option: None})
    heir = type("Heir", (kind,), {})
    with pytest.raises(TypeError, match=rf"^Heir: unexpected argument '{option}': {words}"):
        heir(6, 6, **{option: None})


def test_options_that_not_all_libraries_have():
    words = "it is an option of MinGRU, MinLSTM, SRU, QRNN, RGLRU$"
    with pytest.raises(TypeError, match=rf"^IndRNN: unexpected argument 'domain': {words}"):
        scanrnn.IndRNN(6, 6, domain="log")
    words = "expected one of 'num_layers', .*'device', 'seed'$"
    with pytest.raises(TypeError, match=rf"^LSTM: unexpected argument 'strategy': {words}"):
        scanrnn.LSTM(6, 6, strategy="step_loop")
    pytest.importorskip("torch")
    st = importlib.import_module("scanrnn.torch")
    words = "^proj_size: expected 0, MinGRU has no projections, got 2: it is an option of LSTM$"
    with pytest.raises(ValueError, match=words):
        st.MinGRU(6, 6, proj_size=2)


@pytest.mark.parametrize(
    ("cell", "options", "words"),
    [
        ("LSTM", {"num_heads": 4}, r"num_heads: expected a divisor of hidden_size, 6, got 4"),
        ("LSTM", {"num_heads": 0}, r"num_heads: expected a divisor of hidden_size, 6, got 0"),
        ("LSTM", {"num_heads": 10**12}, r"num_heads: expected an integer below 2\^31, got 10"),
        ("LSTM", {"proj_size": 6}, r"proj_size: expected a number in \[0, hidden_size\).*got 6"),
        ("LSTM", {"proj_size": -1}, r"proj_size: expected a number in \[0, hidden_size\).*got -1"),
        ("LSTM", {"proj_size": 2, "num_heads": 2}, r"num_heads: expected 1 with proj_size"),
        (
            "LSTM",
            {"proj_size": 2, "zoneout": 0.1},
            r"zoneout: expected 0 for h .*zoneout=\(0, p\), got 0.1",
        ),
        ("LSTM", {"zoneout": (0.1, 1.0)},
         r"^zoneout: expected probabilities in \[0, 1\), got \(0.1, 1.0\)"),
        ("SRU", {"projection_size": -1}, r"projection_size: expected a number >= 0, got -1"),
        ("SRU", {"rescale": 1}, r"rescale: expected True or False, got 1"),
        ("SRU", {"highway_bias": float("inf")}, r"highway_bias: expected a finite number"),
        ("SRU", {"rescale": True, "highway_bias": 1000.0},
         r"highway_bias: expected a number up to 176, or 709 in float64, .*got 1000"),
        ("GRU", {"proj_size": 2}, r"proj_size"),
        ("MinGRU", {"num_heads": 2}, r"num_heads"),
        ("LSTM", {"reset_after": False}, r"reset_after"),
        ("SLSTM", {"layer_norm": True}, r"layer_norm"),
        ("GRU", {"reset_after": 0}, r"reset_after: expected True or False, got 0"),
        ("GRU", {"reset_after": False, "layer_norm": True},
         r"layer_norm: expected False with reset_after=False, .*got True"),
        ("PeepholeLSTM", {"layer_norm": True}, r"layer_norm: expected False with peephole, "),
    ],
)  # fmt: skip
def test_bad_options_are_named(cell, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(cell, 5, 6, **options)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("dtype", "fits", "most"),
    [("float16", 65504, "65504"), ("bfloat16", 3.38e38, "3.38953e+38"),
     ("float32", 3.4e38, "3.40282e+38")],
)  # fmt: skip
def test_a_bias_that_its_dtype_does_not_hold(library, dtype, fits, most):
    if library != "scanrnn":
        pytest.importorskip(library.partition(".")[2])
    elif dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    kind = importlib.import_module(library).SRU
    if library == "scanrnn.torch":
        dtype = getattr(importlib.import_module("torch"), dtype)
    kind(3, 4, highway_bias=-fits, dtype=dtype)
    most = re.escape(most)
    for value in (1.01 * fits, -1.01 * fits):
        got = re.escape(str(value))
        words = rf"^highway_bias: expected a number in \[-{most}, {most}\], which .*got {got}$"
        with pytest.raises(ValueError, match=words):
            kind(3, 4, highway_bias=value, dtype=dtype)
