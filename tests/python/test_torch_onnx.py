# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: modules in torch.onnx.export, run by onnxruntime; and what needs neither."""

import logging

import numpy as np
import pytest
from scanrnn.ragged import Ragged
from support import make
from test_errors import raises
from torch_support import DEVICE, flat, module, numpy, operands, same, st, state, tensor, torch

QUIET = pytest.mark.filterwarnings("ignore")  # the exporter's own, of torch and of itself
DIMENSIONS = torch.export.Dim("T", min=2, max=64), torch.export.Dim("B", min=2, max=64)


class Model(torch.nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, h_0=None, lengths=None, reset=None):
        y, states = self.rnn(x * 2, h_0, lengths=lengths, reset=reset)
        return y.tanh(), states


def exported(model, x, options):
    """A session, for any T and B; and the operators of the graph."""
    ort = pytest.importorskip("onnxruntime")
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    steps, batch = DIMENSIONS
    tokens = {0: batch, 1: steps} if model.rnn.batch_first else {0: steps, 1: batch}
    shapes = {"x": tokens, "lengths": {0: batch}, "reset": tokens}
    of_state = {1: batch}
    shapes["h_0"] = (of_state, of_state) if model.rnn._cell.states == 2 else of_state
    shapes = {name: shapes[name] for name in ("x", *options)}
    logging.disable(logging.WARNING)  # what the exporter has no packages for
    try:
        program = torch.onnx.export(
            model, (x,), kwargs=options, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    finally:
        logging.disable(logging.NOTSET)
    session = ort.InferenceSession(program.model_proto.SerializeToString())
    return session, {node.op_type for node in program.model.graph}


def check(cell, operator, given=(), dtype=torch.float32, **more):
    """Exported at one size, run there and at another; `given` names what comes beside x."""
    rnn = module(cell, 4, 6, 2, dtype=dtype, **more).cpu().eval()
    model, first = Model(rnn), None
    for steps, batch in ((5, 3), (9, 4)):
        x = tensor(steps, batch, rnn.input_size, dtype=dtype).cpu()
        reset = torch.arange(steps * batch).reshape(steps, batch) % 4 == 2
        h_0 = tuple(part.cpu() for part in flat([state(rnn, batch, dtype)]))
        options = {
            "h_0": h_0 if len(h_0) > 1 else h_0[0],
            "lengths": torch.tensor([steps, 2, 3, 1][:batch]),
            "reset": reset.T if rnn.batch_first else reset,
        }
        options = {name: options[name] for name in given}
        x = x.transpose(0, 1).contiguous() if rnn.batch_first else x
        if first is None:
            first, operators = exported(model, x, options)
        values = [x, *flat(options.values())]
        feed = {i.name: v.numpy() for i, v in zip(first.get_inputs(), values, strict=True)}
        wanted = flat(model(x, **options))
        for got, want in zip(first.run(None, feed), wanted, strict=True):
            bound = 1e-12 if dtype == torch.float64 else 1e-5
            np.testing.assert_allclose(got, numpy(want), rtol=0, atol=bound)
    assert operators & {"LSTM", "GRU", "RNN", "Scan", "Loop"} == {operator}


@QUIET
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_torchs_cells_are_onnxs(cell):
    check(cell, cell, ("h_0", "lengths"), bidirectional=True)


@QUIET
def test_onnxs_operator_in_another_form():
    check("RNN", "RNN", variant="relu", batch_first=True, bias=False)


@QUIET
def test_another_cell_is_a_scan():
    check("MinGRU", "Scan", ("h_0",), batch_first=True, dtype=torch.float64)


@QUIET
def test_a_reset_before_the_product_is_onnxs():
    check("GRU", "GRU", ("h_0", "lengths"), bidirectional=True, reset_after=False)


BEYOND = [("LSTM", {"layer_norm": True}), ("GRU", {"num_heads": 3}), ("LSTM", {"zoneout": 0.2})]


@QUIET
@pytest.mark.parametrize(("cell", "options"), BEYOND, ids=str)
def test_options_that_the_operators_have_not_are_a_scan(cell, options):
    check(cell, "Scan", ("h_0",), **options)


@QUIET
@pytest.mark.parametrize("cell", ["PeepholeSRU", "LSTM"])
def test_a_ragged_batch_is_a_scan(cell):
    check(cell, "Scan", ("lengths", "reset"), bidirectional=True)


# ---- without the packages


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_weights_are_those_of_the_layout(cell):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    plain = make(cell, 4, 6, num_layers=2, bidirectional=True, dtype="float64")
    plain.load_state_dict({name: numpy(value) for name, value in rnn.state_dict().items()})
    wanted, named = plain.export("onnx"), dict(rnn.named_parameters())
    for layer in range(2):
        found = st.onnx_form._weights(named, layer, rnn._description())
        for kind, value in zip("WRB", found, strict=True):
            np.testing.assert_array_equal(numpy(value), wanted[f"{layer}.{kind}"])


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_gru_says_where_its_reset_is(monkeypatch, reset_after):
    rnn = module("GRU", 4, 6, reset_after=reset_after)
    said = []

    def operator(name, inputs, attributes, *, dtypes, shapes):
        said.append((name, attributes["linear_before_reset"]))
        return [torch.zeros(shape, dtype=d) for shape, d in zip(shapes, dtypes, strict=True)]

    monkeypatch.setattr(torch.onnx.ops, "symbolic_multi_out", operator)
    x, h_0, params = operands(rnn, 5, 3)
    st.onnx_form.run(x, h_0, params, Ragged(), rnn._description())
    assert said == [("GRU", int(reset_after))]


@pytest.mark.parametrize("form", ["cu_seqlens", "dropout"])
def test_what_onnx_cannot_say_is_named(form):
    rnn = module("LSTM", 4, 6, 2, dropout=0.5 if form == "dropout" else 0.0)
    x, h_0, params = operands(rnn, 5, 3)
    ends = torch.tensor([0, 3, 5], device=DEVICE)
    ragged = Ragged(cu_seqlens=ends) if form == "cu_seqlens" else Ragged()
    words = {"cu_seqlens": "cu_seqlens: expected None", "dropout": "expected a module in eval"}
    with raises(NotImplementedError, words[form]):
        st.onnx_form.run(x, h_0, params, ragged, rnn._description())


@QUIET
@pytest.mark.parametrize(("cell", "options"), BEYOND, ids=str)
def test_a_scan_knows_options(cell, options):
    rnn = module(cell, 3, 6, bidirectional=True, **options).eval()
    x, h_0, params = operands(rnn, 4, 2)
    told = rnn._description().without_drops()
    with torch.no_grad():
        got = st.onnx_form.run(x, h_0, params, Ragged(), told)
        same(got, rnn(x, tuple(h_0) if len(h_0) > 1 else h_0[0]))
    torch.compiler.reset()


@QUIET
def test_a_scan_is_the_walk():
    """The operator that torch exports as Scan, run by torch."""
    rnn = module("MinGRU", 3, 3, bidirectional=True)
    x, h_0, params = operands(rnn, 4, 2)
    reset = torch.arange(8, device=DEVICE).reshape(4, 2) % 3 == 1
    with torch.no_grad():
        got = st.onnx_form.run(x, h_0, params, Ragged(reset=reset), rnn._description())
        same(got, rnn(x, h_0[0], reset=reset))
    torch.compiler.reset()
