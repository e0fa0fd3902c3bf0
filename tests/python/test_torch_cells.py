# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: RNNCell, LSTMCell and GRUCell beyond torch's own samples of them, which
test_torch_module_db.py has."""

import pickle

import pytest
from support import DEVICE, assert_close, tolerance
from test_errors import raises
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from torch_module_db import CELLS
from torch_support import COMPILES, WIDE, flat, numpy, same, st, tensor, torch

nn = torch.nn
EVERY_CELL = pytest.mark.parametrize("name", CELLS)


def both(name, *args, dtype=WIDE, **options):
    """Ours and torch's, with the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(nn, name)(*(args or (4, 6)), device=DEVICE, dtype=dtype, **options)
    ours = getattr(st, name)(*(args or (4, 6)), device=DEVICE, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def state(name, *shape, dtype=WIDE, grad=False):
    parts = [tensor(*shape, 6, dtype=dtype, grad=grad, seed=i) for i in (7, 8)]
    return tuple(parts) if name == "LSTMCell" else parts[0]


# ---- what a program may ask of a module


@EVERY_CELL
def test_arguments_and_what_they_leave(name):
    calls = [((4, 6), {}), ((4, 6, False), {}), ((4, 6), {"bias": False, "dtype": WIDE})]
    calls += {
        "RNNCell": [((4, 6, True, "relu", "cpu", WIDE), {}), ((4, 6), {"nonlinearity": "relu"})]
    }.get(name, [((4, 6, True, "cpu", WIDE), {})])
    for args, options in calls:
        theirs, ours = (
            torch.manual_seed(3) and getattr(module, name)(*args, **options) for module in (nn, st)
        )
        assert repr(ours) == repr(theirs)
        assert vars(ours).keys() == vars(theirs).keys()
        for mine, other in ((vars(m)[k] for m in (ours, theirs)) for k in ("bias", "hidden_size")):
            assert mine == other
        assert list(ours.state_dict()) == list(theirs.state_dict())
        assert (ours.bias_ih is None) == (theirs.bias_ih is None)
        same(list(ours.parameters()), list(theirs.parameters()), 0)  # drawn alike


@EVERY_CELL
def test_pickles_go_both_ways(name):
    ours, theirs = both(name)
    x, hx = tensor(3, 4), state(name, 3)
    wanted = flat([theirs(x, hx)])
    for source, kind in ((theirs, type(ours)), (ours, type(theirs)), (ours, type(ours))):
        read = kind.__new__(kind)
        read.__setstate__(pickle.loads(pickle.dumps(source.__getstate__())))
        same(flat([read(x, hx)]), wanted, 1e-10)


@pytest.mark.parametrize("batch", [0, 1, 5])
@EVERY_CELL
def test_steps_are_a_layer(name, batch):
    """Values and gradients of a walk, cell by cell; what a step gives may be changed in place."""
    cell, _ = both(name)
    layer = getattr(st, name.removesuffix("Cell"))(4, 6, device=DEVICE, dtype=WIDE)
    layer.load_state_dict({f"{key}_l0": value for key, value in cell.state_dict().items()})
    x, first = tensor(7, batch, 4, grad=True), flat([state(name, batch, grad=True)])
    results = []
    for rnn in (layer, cell):
        if rnn is layer:
            h = [part[None] for part in first]
            y, last = rnn(x, tuple(h) if len(h) > 1 else h[0])
            last = [part[0] for part in flat([last])]
        else:
            h, ys = tuple(first) if len(first) > 1 else first[0], []
            for x_t in x:
                h = rnn(x_t, h)
                ys.append(flat([h])[0])
            y, last = torch.stack(ys), flat([h])
        out = [y, *last]
        leaves = [x, *first, *rnn.parameters()]
        loss = sum(value.sin().sum() for value in out)
        results.append([*out, *torch.autograd.grad(loss, leaves)])
    same(*results, share=1e-12)
    h = flat([cell(x[0])])[0]
    h.mul_(2).sum().backward()


# ---- wrong calls

OTHER_DEVICE = "cpu" if DEVICE == "cuda" else "meta"
# By what is wrong: a call of the cell, x [3,4] and a function from h to a state of such tensors;
# "type": of the error alone, whose text is one of a device, or of nobody.
WRONG_CALLS = {
    "input's rank": lambda cell, x, h, hx: cell(x[None], hx(h)),
    "no rank": lambda cell, x, h, hx: cell(x[0, 0]),
    "input's size": lambda cell, x, h, hx: cell(x[:, :3], hx(h)),
    "state's rank": lambda cell, x, h, hx: cell(x, hx(h[None])),
    "state's batch": lambda cell, x, h, hx: cell(x, hx(h[:2])),
    "state's size": lambda cell, x, h, hx: cell(x, hx(h[:, :5])),
    "state of one": lambda cell, x, h, hx: cell(x, hx(h[0])),
    "state of a batch": lambda cell, x, h, hx: cell(x[0], hx(h)),
    "input's dtype": lambda cell, x, h, hx: cell(x.float()),
    "state's dtype": lambda cell, x, h, hx: cell(x, hx(h.float())),
    "type: input's device": lambda cell, x, h, hx: cell(x.to(OTHER_DEVICE)),
    "type: state's device": lambda cell, x, h, hx: cell(x, hx(h.to(OTHER_DEVICE))),
}


def said(call, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(*args)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("wrong", WRONG_CALLS)
@EVERY_CELL
def test_wrong_calls_are_torchs_errors(name, wrong):
    def hx(h):
        return (h, h) if name == "LSTMCell" else h

    x, h = tensor(3, 4), tensor(3, 6)
    (got, words), (wanted, torchs) = (
        said(WRONG_CALLS[wrong], cell, x, h, hx) for cell in both(name)
    )
    assert got is wanted
    # On a GPU torch's cells are other operators, which say the same of dtypes in other words.
    others = wrong.startswith("type") or ("dtype" in wrong and DEVICE != "cpu")
    assert others or words.startswith(torchs)


def test_wrong_states_of_an_lstm():
    for cell in both("LSTMCell"):
        x, h = tensor(3, 4), tensor(3, 6)
        with pytest.raises(RuntimeError, match="hidden1 has inconsistent hidden_size: got 5, exp"):
            cell(x, (h, h[:, :5]))
        with pytest.raises(RuntimeError, match="lstm_cell expects two hidden states"):
            cell(x, (h, h, h))
        with pytest.raises(ValueError, match=r"Expected hx\[1\] to be 1D or 2D, got 3D instead"):
            cell(x, (h, h[None]))
    ours, _ = both("LSTMCell")
    with raises(TypeError, r"hx: expected the pair \(h_0, c_0\), got torch.Tensor"):
        ours(x, h)
    with raises(TypeError, r"hx\[1\]: expected a tensor, got NoneType"):
        ours(x, (h, None))


def test_errors_of_ours():
    with raises(ValueError, "hidden_size must be greater than zero, got 0"):
        st.GRUCell(4, 0)
    with raises(TypeError, "input_size should be of type int, got: str"):
        st.GRUCell("4", 6)
    with raises(ValueError, "dtype: expected one of"):
        st.GRUCell(4, 6, dtype=torch.complex64)
    with raises(TypeError, "input: expected a tensor, got int"):
        st.GRUCell(4, 6)(3)
    with raises(TypeError, "hx: expected a tensor, got tuple"):
        st.GRUCell(4, 6)(torch.randn(4), (torch.randn(6),))
    for module in (nn, st):
        with raises(RuntimeError, "Unknown nonlinearity: gelu"):
            module.RNNCell(4, 6, nonlinearity="gelu")(torch.randn(3, 4))


# ---- torch's transformations


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@EVERY_CELL
def test_autocast(name, half):
    cell, _ = both(name, dtype=torch.float32)
    x, hx = tensor(3, 4, dtype=torch.float32), state(name, 3, dtype=torch.float32)
    wanted = flat([cell(x, hx)])
    with torch.autocast(DEVICE, half):
        got, mixed = flat([cell(x, hx)]), flat([cell(x.to(half), hx)])
    assert {value.dtype for value in (*got, *mixed)} == {half}
    short = "bfloat16" if half == torch.bfloat16 else "float16"
    for value, want in zip(got, wanted, strict=True):
        assert_close(numpy(value), numpy(want), 8 * tolerance(short, 1))
    sum(value.float().sum() for value in got).backward()
    assert {value.grad.dtype for value in cell.parameters()} == {torch.float32}


@COMPILES
@EVERY_CELL
def test_compiled(name):
    """Without a break, for any batch, in a loop of steps."""
    cell, _ = both(name)

    def walk(x, hx):
        for x_t in x:
            hx = cell(x_t, hx)
        return hx

    compiled = torch.compile(walk, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (3, 5):
        results = []
        for call in (compiled, walk):
            x, hx = tensor(2, batch, 4, grad=True), state(name, batch)
            out = flat([call(x, hx)])
            leaves = [x, *cell.parameters()]
            results.append([*out, *torch.autograd.grad([v.sin().sum() for v in out], leaves)])
        same(*results)
    torch.compiler.reset()


@EVERY_CELL
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch.func's own, of itself
def test_vmap_and_func(name):
    cell, _ = both(name)
    x, hx = tensor(2, 3, 4), state(name, 2, 3)
    pairs = list(zip(x, zip(*hx, strict=True) if isinstance(hx, tuple) else hx, strict=True))
    wanted = [torch.stack(parts) for parts in zip(*(flat([cell(*p)]) for p in pairs), strict=True)]
    with torch.no_grad():
        same(flat([torch.vmap(cell)(x, hx)]), wanted, 1e-12)
        same(flat([torch.vmap(torch.vmap(cell))(x, hx)]), wanted, 1e-12)

    def loss(x, hx):
        return sum(value.sin().sum() for value in flat([cell(x, hx)]))

    each = []
    for x_one, of_one in pairs:
        leaf = x_one.clone().requires_grad_()
        each += torch.autograd.grad(loss(leaf, of_one), leaf)
    same([torch.vmap(torch.func.grad(loss))(x, hx)], [torch.stack(each)], 1e-12)


@COMPILES  # torch compiles what it has for forward mode
@EVERY_CELL
def test_forward_mode(name):
    """Tangents of the input, the state and parameters, and Hessians, as torch.nn's cell has, which
    has them on the CPU alone."""
    ours, theirs = both(name)
    given = [tensor(3, 4), state(name, 3), dict(ours.named_parameters())]
    given[2] = {name: value.detach() for name, value in given[2].items()}
    found = []
    for cell in (ours, theirs.cpu()):
        if cell is theirs:
            given = pytree.tree_map(lambda value: value.cpu(), given)
        tangents = pytree.tree_map(torch.ones_like, given)

        def call(x, hx, params, cell=cell):
            return torch.func.functional_call(cell, params, (x, hx))

        def loss(x, cell=cell):
            return sum(value.sin().sum() for value in flat([cell(x)]))

        moved = torch.func.jvp(call, tuple(given), tuple(tangents))[1]
        with torch.no_grad(), forward_ad.dual_level():
            out = call(*pytree.tree_map(forward_ad.make_dual, given, tangents))
            dual = [forward_ad.unpack_dual(value).tangent for value in flat([out])]
        found.append([*flat([moved]), *dual, torch.func.hessian(loss)(given[0])])
    same([value.cpu() for value in found[0]], found[1], 1e-10)
