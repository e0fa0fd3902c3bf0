# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch.replace: torch.nn's modules inside a model become ours, and all goes on."""

import copy
import io
import warnings

import pytest
from test_errors import raises
from torch_support import COMPILES, DEVICE, WIDE, same, st, tensor, torch

nn = torch.nn


class Encoder(nn.Module):
    def __init__(self, kind, *args, **options):
        super().__init__()
        self.rnn = kind(*args, **options, device=DEVICE, dtype=WIDE)
        self.norm = nn.LayerNorm(6 * (1 + self.rnn.bidirectional), device=DEVICE, dtype=WIDE)

    def forward(self, x):
        return self.norm(self.rnn(x)[0])


class Model(nn.Module):
    """Each kind, in modules within modules; one of them twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder(nn.LSTM, 4, 6, 2, bidirectional=True, dropout=0.0)
        shared = Encoder(nn.RNN, 6, 6, nonlinearity="relu")
        blocks = [Encoder(nn.GRU, 12, 6, bias=False), shared, shared]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(6, 2, device=DEVICE, dtype=WIDE)

    def forward(self, x):
        return self.head(self.blocks(self.encoder(x)))


NAMES = ["encoder.rnn", "blocks.0.rnn", "blocks.1.rnn"]


def train(model, optimiser, steps):
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        loss = model(tensor(5, 3, 4, seed=step)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss)
    return losses


def test_training_goes_on():
    """With the optimiser and its state, and as it would have without a replacement."""
    results = []
    for replacing in (False, True):
        model = Model()
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        losses = train(model, optimiser, 3)
        if replacing:
            before = dict(model.named_parameters())
            assert st.replace(model) == NAMES
            assert {type(model.get_submodule(name)) for name in NAMES} == {st.LSTM, st.GRU, st.RNN}
            assert all(before[name] is value for name, value in model.named_parameters())
            assert model.blocks[1] is model.blocks[2]
        losses += train(model, optimiser, 3)
        results.append([*losses, *model.parameters()])
    same(*results, share=1e-8)
    assert st.replace(model) == []


def test_checkpoints_go_both_ways():
    ours, theirs = Model(), Model()
    st.replace(ours)
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file))
    theirs.load_state_dict(ours.state_dict())
    x = tensor(5, 3, 4)
    same([ours(x), copy.deepcopy(ours)(x)], [theirs(x)] * 2, 1e-10)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    same([torch.load(file, weights_only=False)(x)], [ours(x)], 0)


def test_mode_hooks_and_what_else_there_is_stay():
    model, called = Model(), []
    rnn = model.encoder.rnn
    held = [rnn]
    rnn.register_forward_hook(lambda *_: called.append("forward"))
    rnn.register_forward_pre_hook(lambda *_: called.append("pre"))
    rnn.register_full_backward_hook(lambda *_: called.append("backward"))
    rnn.weight_hh_l0.requires_grad_(False)
    rnn.weight_ih_l0.register_hook(lambda _: called.append("gradient"))
    rnn.note = "mine"
    rnn.register_buffer("scale", tensor(1))
    model.blocks[0].eval()
    assert st.replace(model) == NAMES
    assert held[0] is model.encoder.rnn
    assert isinstance(held[0], st.LSTM)
    assert (rnn.note, [name for name, _ in rnn.named_buffers()]) == ("mine", ["scale"])
    assert [model.blocks[i].rnn.training for i in (0, 1)] == [False, True]
    assert not rnn.weight_hh_l0.requires_grad
    model(tensor(5, 3, 4, grad=True)).sum().backward()
    assert sorted(set(called)) == ["backward", "forward", "gradient", "pre"]
    assert rnn.weight_hh_l0.grad is None
    assert rnn.weight_hh_l1.grad is not None


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_module_itself(kind):
    theirs = getattr(nn, kind)(4, 6, device=DEVICE, dtype=WIDE)
    rnn, x = copy.deepcopy(theirs), tensor(5, 3, 4)
    assert st.replace(rnn) == [""]
    assert type(rnn) is getattr(st, kind)
    assert repr(rnn) == repr(theirs)
    assert vars(rnn).keys() == vars(getattr(st, kind)(4, 6)).keys()
    same([rnn(x)[0]], [theirs(x)[0]], 1e-10)


def test_weights_that_a_hook_makes():
    """torch's old weight_norm: a pre-hook sets the weight before each call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rnn = nn.utils.weight_norm(nn.GRU(4, 6, device=DEVICE, dtype=WIDE), "weight_hh_l0")
    x = tensor(5, 3, 4)
    wanted = rnn(x)[0]
    assert st.replace(rnn) == [""]
    same([rnn(x)[0]], [wanted], 1e-10)
    rnn(x)[0].sum().backward()
    assert rnn.weight_hh_l0_g.grad is not None


@pytest.mark.parametrize("proj_size", [0, 3])
def test_projections_stay(proj_size):
    theirs = nn.LSTM(4, 6, 2, proj_size=proj_size, device=DEVICE, dtype=WIDE)
    rnn, x = copy.deepcopy(theirs), tensor(5, 3, 4)
    assert st.replace(rnn) == [""]
    assert rnn.proj_size == proj_size
    same([rnn(x)[0]], [theirs(x)[0]], 1e-10)


class Other(nn.LSTM):
    def forward(self, *args):
        y, states = super().forward(*args)
        return y * 2, states


def test_what_cannot_be_is_left_and_named():
    model = nn.ModuleDict(
        {
            "other": Other(4, 6),
            "normed": nn.utils.parametrizations.weight_norm(nn.GRU(4, 6), "weight_hh_l0"),
            "complex": nn.RNN(4, 6, dtype=torch.complex64),
            "named": nn.LSTM(4, 6),
            "method": nn.LSTM(4, 6),
            "patched": nn.RNN(4, 6),
            "bare": nn.GRU(4, 6),
            "shaped": nn.RNN(4, 6),
            "unbiased": nn.GRUCell(4, 6),
            "fine": nn.GRU(4, 6),
        }
    )
    model["named"].domain = "speech"
    model["method"]._description = "encoder"
    model["patched"].forward = model["fine"].forward
    del model["bare"].bias_hh_l0
    model["shaped"].weight_hh_l0 = nn.Parameter(torch.zeros(5, 5))
    model["unbiased"].bias = False
    kinds = {name: type(value) for name, value in model.items()}
    with pytest.warns(UserWarning, match="left as they are") as said:
        assert st.replace(model) == ["fine"]
    (words,) = [str(warning.message) for warning in said]
    for part in (
        "'other' (Other): a subclass may do something else than its base",
        "'normed' (ParametrizedGRU): a subclass",
        "'complex' (RNN): dtype: expected one of",
        "'named' (LSTM): domain: expected no attribute of this name, which LSTM has",
        "'method' (LSTM): _description: expected no attribute of this name, which LSTM has",
        "'patched' (RNN): forward: expected no attribute of this name, which RNN has",
        "'bare' (GRU): bias_hh_l0: expected shape (18,), got None",
        "'shaped' (RNN): weight_hh_l0: expected shape (6, 6), got (5, 5)",
        "'unbiased' (GRUCell): bias_ih: expected shape None, got (18,)",
    ):
        assert part in words
    assert "fine" not in words
    kinds["fine"] = st.GRU
    assert {name: type(value) for name, value in model.items()} == kinds
    with raises(TypeError, "module: expected a torch.nn.Module, got list"):
        st.replace([nn.GRU(4, 6)])


def test_torch_goes_by_the_mode():
    """Which the nonlinearity of a layer that is made does not change."""
    rnn, x = nn.RNN(4, 6, device=DEVICE, dtype=WIDE), tensor(9, 3, 4)
    rnn.nonlinearity = "relu"
    rnn.flatten_parameters = lambda: None  # which programs do that never call it
    wanted = rnn(x)[0]
    assert st.replace(rnn) == [""]
    assert rnn.nonlinearity == "tanh"
    same([rnn(x)[0]], [wanted])


def test_nothing_is_drawn():
    rnn = nn.LSTM(4, 6, 2, dropout=0.5)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    st.replace(rnn)
    same([torch.rand(3)], [wanted], 0)
    assert rnn.dropout == 0.5


@COMPILES
def test_a_replaced_model_compiles():
    model, x = Model(), tensor(5, 3, 4)
    wanted = torch.compile(model, backend="aot_eager")(x)
    st.replace(model)
    torch.compiler.reset()
    got = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    same([got], [wanted], 1e-10)
    torch.compiler.reset()
