# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: torch.nn's cells inside a model become ours, and all goes on, to ONNX, too."""

import copy
import logging

import pytest
from support import DEVICE, assert_close
from test_torch_cells import EVERY_CELL
from torch_support import WIDE, flat, numpy, same, st, tensor, torch

nn = torch.nn


class Decoder(nn.Module):
    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.cell = getattr(nn, name)(4, 6, device=DEVICE, dtype=WIDE)
        self.head = nn.Linear(6, 4, device=DEVICE, dtype=WIDE)

    def forward(self, x, steps=4):
        hx = None
        for _ in range(steps):
            hx = self.cell(x, hx)
            x = self.head(flat([hx])[0])
        return x


@EVERY_CELL
def test_a_replaced_model_goes_on(name):
    results = []
    for replacing in (False, True):
        model = Decoder(name)
        before = dict(model.named_parameters())
        if replacing:
            held = model.cell
            assert st.replace(model) == ["cell"]
            assert model.cell is held
            assert type(held) is getattr(st, name)
            assert all(before[key] is value for key, value in model.named_parameters())
            copy.deepcopy(model).load_state_dict(Decoder(name).state_dict())
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        for step in range(3):
            optimiser.zero_grad()
            model(tensor(3, 4, seed=step)).square().mean().backward()
            optimiser.step()
        results.append(list(model.parameters()))
    same(*results, share=1e-8)
    assert st.replace(model) == []


class Other(nn.GRUCell):
    pass


def test_what_cannot_be_is_left_and_named():
    model = nn.ModuleDict(
        {"other": Other(4, 6), "complex": nn.RNNCell(4, 6, dtype=torch.complex64)}
    )
    with pytest.warns(UserWarning, match="left as they are") as found:
        assert st.replace(model) == []
    words = str(found[0].message)
    assert "'other' (Other): a subclass" in words
    assert "'complex' (RNNCell): dtype: expected one of" in words


@pytest.mark.filterwarnings("ignore")  # the exporter's own, of torch and of itself
@EVERY_CELL
def test_exported(name):
    """Each step as the ONNX operator of its layer."""
    ort = pytest.importorskip("onnxruntime")
    for needed in ("onnx", "onnxscript"):
        pytest.importorskip(needed)
    model = Decoder(name)
    st.replace(model)
    model, x = model.to("cpu", torch.float32).eval(), tensor(3, 4, dtype=torch.float32).cpu()
    logging.disable(logging.WARNING)  # what the exporter has no packages for
    try:
        shapes = ({0: torch.export.Dim("B", min=2, max=64)},)
        program = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    finally:
        logging.disable(logging.NOTSET)
    session = ort.InferenceSession(program.model_proto.SerializeToString())
    steps = [node.op_type for node in program.model.graph if node.op_type in name]
    assert steps == [name.removesuffix("Cell")] * 4
    x = tensor(5, 4, dtype=torch.float32).cpu()
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_close(got, numpy(model(x)), 1e-5)
