# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: options of a module that are set when it is made."""

import copy
import pickle

import pytest
from support import ALL_CELLS, DEVICE, INFO
from test_errors import raises
from torch_support import COMPILES, module, same, st, tensor, torch

FIXED = ["input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size"]


def fixed(rnn, name):
    """No other value can be set, and nothing changes."""
    before, now = copy.copy(vars(rnn)), getattr(rnn, name)
    other = not now if isinstance(now, bool) else "other" if isinstance(now, str) else now + 1
    advice = f"make another {type(rnn).__name__} with it, and load_state_dict"
    with raises(AttributeError, f"{name}: expected {now!r}, which .*, got {other!r}: {advice}"):
        setattr(rnn, name, other)
    setattr(rnn, name, now)
    assert vars(rnn) == before


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_what_parameters_are_made_for_is_fixed(cell):
    kind, _ = INFO[cell].made_by()
    own, rnn = INFO[kind].own_options(), module(cell, 4, 4, 2)
    copies = copy.deepcopy(rnn), copy.copy(rnn), pickle.loads(pickle.dumps(rnn)), rnn.float()
    for each in (rnn, *copies):
        for name in {*FIXED, *own}:
            if not INFO[kind].is_drawn(name):
                fixed(each, name)


@pytest.mark.parametrize("cell", [cell for cell in ALL_CELLS if not INFO[cell].base])
def test_shares_that_are_set_later_are_drawn_by(cell):
    for name in [name for name, _ in INFO[cell].options if INFO[cell].is_drawn(name)]:
        if name == "zoneout_cell":
            continue
        rnn, wanted = module(cell, 4, 4), module(cell, 4, 4, **{name: 0.5})
        x, eager = tensor(9, 3, 4), rnn(tensor(9, 3, 4))[0]
        setattr(rnn, name, 0.5)
        assert repr(rnn) == repr(wanted)
        for mode in (True, False):
            torch.manual_seed(3)
            got = rnn.train(mode)(x)[0]
            torch.manual_seed(3)
            same([got], [wanted.train(mode)(x)[0]], 0)
            assert (got != eager).any() == (mode or name == "zoneout")
        setattr(rnn, name, 0)
        same([rnn.train()(x)[0]], [eager], 0)
        with raises(TypeError, f"{name}: expected a number, got 'half'"):
            setattr(rnn, name, "half")
        with raises(ValueError, rf"{name}: expected a probability in \[0, 1\), got 1"):
            setattr(rnn, name, 1.0)
        same([rnn(x)[0]], [eager], 0)
        assert getattr(rnn, name) == 0


def test_what_calls_ask_for_may_be_set():
    x, rnn = tensor(9, 3, 4), module("MinGRU", 4, 6, 2)
    turned = rnn(x.transpose(0, 1))[0]
    rnn.batch_first = True
    same([rnn(x)[0].transpose(0, 1)], [turned])
    rnn.domain, rnn.strategy, rnn.dropout = "linear", "direct", 0.5
    assert (rnn(x)[0] != rnn(x)[0]).any()
    assert "domain='linear', strategy='direct'" in repr(rnn)


def test_what_the_next_call_goes_by_is_checked():
    rnn, scan = module("LSTM", 4, 6, 2), module("MinGRU", 4, 6)
    for each, name, value, kind, words in (
        (rnn, "dropout", None, TypeError, "dropout: expected a number, got None"),
        (rnn, "dropout", 1.5, ValueError, r"dropout: expected a probability in \[0, 1\), got 1.5"),
        (rnn, "batch_first", "yes", TypeError, "batch_first: expected True or False, got 'yes'"),
        (rnn, "strategy", 3, TypeError, "strategy: expected a string, got 3"),
        (rnn, "strategy", "fast", ValueError, "strategy: expected one of 'direct'"),
        (rnn, "domain", "linear", ValueError, "domain: LSTM is no scan"),
        (scan, "domain", None, TypeError, "domain: expected a string, got None"),
    ):
        before = getattr(each, name)
        with raises(kind, words):
            setattr(each, name, value)
        assert getattr(each, name) == before
    rnn.dropout, rnn.batch_first, scan.strategy = 0.5, True, "direct"
    assert repr(rnn) == repr(module("LSTM", 4, 6, 2, dropout=0.5, batch_first=True))
    assert repr(scan) == repr(module("MinGRU", 4, 6, strategy="direct"))


def test_a_warning_is_of_who_makes_the_module():
    for name in ("LSTM", "RNN"):
        with pytest.warns(UserWarning, match="dropout option adds dropout") as said:
            getattr(st, name)(4, 6, dropout=0.5)
        assert said[0].filename == __file__


def test_a_pair_of_shares_is_set():
    rnn = module("LSTM", 4, 6)
    rnn.zoneout = [0.25, 0.5]
    assert rnn.zoneout == (0.25, 0.5)
    assert repr(rnn) == repr(module("LSTM", 4, 6, zoneout=(0.25, 0.5)))
    with raises(ValueError, "zoneout: expected a number, as GRU has one tensor"):
        module("GRU", 4, 6).zoneout = (0.25, 0.5)


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_what_is_fixed_of_a_cell(name):
    cell, theirs = getattr(st, name)(4, 6), getattr(torch.nn, name)(4, 6)
    st.replace(theirs)
    for each in (cell, theirs, pickle.loads(pickle.dumps(cell))):
        for option in ("input_size", "hidden_size", "bias"):
            fixed(each, option)


def test_what_is_fixed_of_what_was_torchs():
    rnn, x = torch.nn.RNN(4, 6, device=DEVICE), tensor(9, 3, 4, dtype=torch.float32)
    st.replace(rnn)
    fixed(rnn, "nonlinearity")
    fixed(pickle.loads(pickle.dumps(rnn)), "nonlinearity")
    wanted = rnn(x)[0]
    torch.nn.utils.parametrizations.weight_norm(rnn, "weight_ih_l0")
    pytest.importorskip("torch.nn.utils.prune").identity(rnn, "weight_hh_l0")
    fixed(rnn, "nonlinearity")
    same([rnn(x)[0]], [wanted], 1e-6)


@pytest.mark.parametrize("kind", [st.GRU, st.GRUCell])
def test_an_heir_has_attributes_of_its_own(kind):
    class Heir(kind):
        def __init__(self, size):
            self.hidden_size = None
            super().__init__(4, size)
            self.hidden_size = size
            self.head, self.ours = torch.nn.Linear(size, 2), 2

    heir = Heir(6)
    fixed(heir, "hidden_size")
    heir.ours = heir.num_units = 3
    names = kind(4, 6).state_dict().keys()
    assert heir.state_dict().keys() == names | {"head.weight", "head.bias"}


@COMPILES
def test_a_compiled_module_follows_a_share_that_is_set():
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4)
    torch.compiler.reset()
    compiled = torch.compile(rnn, backend="aot_eager", fullgraph=True)
    plain = compiled(x)[0]
    same([plain], [rnn(x)[0]])
    rnn.zoneout = 0.5
    assert (compiled(x)[0] != plain).any()
    rnn.eval()
    same([compiled(x)[0]], [rnn(x)[0]])
    rnn.zoneout = 0.0
    same([compiled(x)[0]], [plain])
    torch.compiler.reset()
