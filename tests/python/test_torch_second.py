# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: derivatives of derivatives, and torch.func's transformations."""

import pytest
from scanrnn import formulas
from scanrnn.grid import Ways
from scanrnn.ragged import Ragged
from scanrnn.torch import functions
from support import ALL_CELLS, ALL_VARIANTS, DEVICE, INFO
from test_errors import raises
from torch_support import (
    COMPILES,
    FORMS,
    flat,
    input_of,
    module,
    options_of,
    same,
    st,
    state,
    tensor,
    torch,
)

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode


def shares(cell):
    """All that training drops of it."""
    info = INFO[cell]
    return {n: 0.25 for n, _ in info.options if info.is_drawn(n) and n != "zoneout_cell"} | {
        "dropout": 0.25
    }


def call_of(rnn, batch, **options):
    """A function of x, the initial state and the parameters; and what it is called with but x."""
    names = [name for name, _ in rnn.named_parameters()]
    states = flat([state(rnn, batch, grad=True)])
    scaled = len(states) == 4  # SLSTM's m is constant for gradients, and c and n are by its measure
    if scaled:
        states[3] = states[3].detach()

    def call(x, *rest):
        h_0, params = rest[: len(states)], rest[len(states) :]
        torch.manual_seed(3)  # of what is dropped
        given = x, h_0 if len(h_0) > 1 else h_0[0]
        params = dict(zip(names, params, strict=True))
        out = tuple(flat(torch.func.functional_call(rnn, params, given, options)))
        return out[:2] if scaled else out

    params = [value.detach().clone().requires_grad_() for value in rnn.parameters()]
    return call, [*states, *params]


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids="-".join)
def test_gradgradcheck(variant):
    cell, variant = variant
    rnn = module(cell, 2, 3, variant=variant)
    call, rest = call_of(rnn, 2)
    assert torch.autograd.gradgradcheck(call, (tensor(4, 2, rnn.input_size, grad=True), *rest))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradgradcheck_of_stacks(cell):
    rnn = module(cell, 2, 3, 2, bidirectional=True, batch_first=True, bias=False, **shares(cell))
    call, rest = call_of(rnn, 2)
    x = tensor(2, 3, rnn.input_size, grad=True)
    assert torch.autograd.gradgradcheck(call, (x, *rest), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: rnn.eval()(x)[0], x)  # h_0 None


# Options that a step of a whole line is for.
BY_LINES = [
    ("GRU", {"reset_after": False}), ("GRU", {"layer_norm": True}), ("RNN", {"layer_norm": True}),
    ("LSTM", {"layer_norm": True}), ("LSTM", {"layer_norm": True, "proj_size": 2}),
    ("IndRNN", {"layer_norm": True}), ("GRU", {"reset_after": False, "num_heads": 3}),
]  # fmt: skip
by_lines = pytest.mark.parametrize(("cell", "own"), BY_LINES, ids=str)


@by_lines
def test_gradients_of_whole_lines(cell, own):
    variant = "tanh" if cell in ("RNN", "IndRNN") else None
    rnn = module(cell, 3, 3, 2, bidirectional=True, variant=variant, **own)
    params, names = list(rnn.parameters()), [name for name, _ in rnn.named_parameters()]

    def call(x, *params):
        named = dict(zip(names, params, strict=True))
        return tuple(flat(torch.func.functional_call(rnn, named, (x,))))

    x = tensor(4, 2, 3, grad=True)
    assert torch.autograd.gradcheck(call, (x, *params), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (x, *params), fast_mode=True)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize(
    ("cell", "own"), [case for case in BY_LINES if "proj_size" not in case[1]], ids=str
)
def test_formulas_know_whole_lines(cell, own, form):
    order = {"batch_first": form is None or "packed" not in form}
    agree(module(cell, 3, 3, 2, bidirectional=True, **order, **shares(cell), **own), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["SRU", "LSTM"])
def test_gradgradcheck_of_ragged_batches(cell, form):
    rnn = module(cell, 2, 2, bidirectional=True, **shares(cell) | {"dropout": 0.0})
    call, rest = call_of(rnn, 4, **options_of(form))
    x = input_of(rnn, form, grad=True)
    assert torch.autograd.gradgradcheck(call, (x, *rest), fast_mode=True)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_formulas_are_the_layer(cell, form):
    """What second derivatives are those of: the operator, what it drops too, in one order or the
    other."""
    packed = form is not None and "packed" in form
    agree(module(cell, 3, 5, 2, bidirectional=True, batch_first=not packed, **shares(cell)), form)


def agree(rnn, form):
    """A module and the formulas, for a batch of this form."""
    packed = not rnn.batch_first
    options = options_of(form) if form else {}
    x = input_of(rnn, form or "lengths")
    if not packed:
        x = x.transpose(0, 1)
        options = {k: v.T if k == "reset" else v for k, v in options.items()}
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, ()))
    torch.manual_seed(3)
    h_0, params = state(rnn, 4), list(rnn.parameters())
    wanted = rnn(x, h_0, **options)
    told = rnn._description()
    for ways in (functions.WAYS, Ways(functions.one_by_one)):
        given = Ragged(**options), seed, told, ways
        same(formulas.run(functions, x, flat([h_0]), params, *given), wanted, 1e-10)


def test_no_nan_comes_from_behind_an_end():
    rnn = module("LSTM", 2, 3, 2)
    lengths = torch.tensor([2, 0, 5])
    results = []
    for behind in (0.0, float("nan")):
        x = tensor(5, 3, 2)
        for row, length in enumerate(lengths):
            x[length:, row] = behind
        x.requires_grad_()
        y, _ = rnn(x, lengths=lengths)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), [x, *rnn.parameters()]))
    same(*results, share=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_derivatives_in_other_dtypes(dtype):
    results = []
    for kind in (dtype, torch.float64):
        rnn = module("GRU", 3, 5, dtype=dtype).to(kind)
        x = tensor(6, 2, 3, dtype=dtype).to(kind).requires_grad_()
        (dx,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), [x, *rnn.parameters()]))
    assert {value.dtype for value in results[0]} == {dtype}
    same(*results, share=2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_only_what_is_wanted_has_second_derivatives():
    rnn, x = module("GRU", 3, 5), tensor(6, 2, 3, grad=True)
    rnn.requires_grad_(False)
    (dx,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(dx.square().sum(), x)
    rnn.requires_grad_(True)
    found = torch.autograd.grad(rnn(x)[1].sum(), [*rnn.parameters()], create_graph=True)
    assert all(value.grad_fn is not None for value in found)
    (dx,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
    same(torch.autograd.grad(dx.square().sum(), x), [wanted])


def test_what_formulas_do_not_know_is_named(monkeypatch):
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4, grad=True)
    (dx,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
    monkeypatch.delitem(formulas.STEPS, "MinGRU")
    with raises(NotImplementedError, "MinGRU: a second derivative is not there for this cell"):
        dx.sum().backward()


# ---- torch.func


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_functional_gradients(cell):
    """Those of backward(), at first, at second, and for each sample by itself."""
    rnn = module(cell, 2, 3)
    x = tensor(4, 2, rnn.input_size)
    params = {name: value.detach() for name, value in rnn.named_parameters()}
    along = {n: tensor(*v.shape, seed=i) for i, (n, v) in enumerate(params.items())}

    def loss(params, x):
        return torch.func.functional_call(rnn, params, (x,))[0].sin().sum()

    def slope(params):
        found = torch.func.grad(loss)(params, x)
        return sum((found[name] * along[name]).sum() for name in params)

    leaves = list(rnn.parameters())
    first = torch.autograd.grad(loss(dict(rnn.named_parameters()), x), leaves, create_graph=True)
    got = torch.func.grad(loss)(params, x)
    same(got.values(), first)
    total = sum((d * a).sum() for d, a in zip(first, along.values(), strict=True))
    same(torch.func.grad(slope)(params).values(), torch.autograd.grad(total, leaves))
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 1))(params, x.unsqueeze(2))
    same([value.sum(0) for value in each.values()], got.values())


def test_jacobians_and_hessians():
    rnn, x = module("GRU", 2, 3), tensor(3, 2, 2)
    a, b = tensor(4, 3).sigmoid(), tensor(4, 3, seed=1)
    for call, at in (
        (lambda v: rnn(v)[0].sin().sum(), x),
        (lambda v: st.scan(v, b).sin().sum(), a),
        (lambda v: st.scan_log(a.log(), v, log_output=True)[0].sin().sum(), b),
    ):
        wanted = torch.autograd.functional.hessian(call, at)
        same([torch.func.jacrev(torch.func.jacrev(call))(at)], [wanted])
    _, pull = torch.func.vjp(lambda v: rnn(v)[0], x)
    y = rnn(x)[0]
    jacobian = torch.autograd.functional.jacobian(lambda v: rnn(v)[0], x)
    same(pull(torch.ones_like(y)), [jacobian.sum((0, 1, 2))])
    same([torch.func.jacrev(lambda v: rnn(v)[0])(x)], [jacobian])


def test_third_derivatives():
    rnn = module("MinGRU", 2, 3, variant="tanh")

    def slopes(x):
        leaf = x.requires_grad_() if x.is_leaf else x
        (dx,) = torch.autograd.grad(rnn(leaf)[0].sin().sum(), leaf, create_graph=True)
        (of_dx,) = torch.autograd.grad(dx.square().sum(), leaf, create_graph=True)
        return of_dx

    assert torch.autograd.gradcheck(slopes, tensor(3, 1, 2, grad=True))


def test_what_needs_no_gradient_is_a_constant():
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4)

    def constant(v):
        with torch.no_grad():
            y = rnn(v)[0]
        return (v.sum() * y).sum()

    same([torch.func.grad(constant)(x)], [torch.ones_like(x) * rnn(x)[0].sum()])


def test_tensors_without_values_have_second_derivatives():
    """Nobody can look at a seed there, nor at lengths."""
    packed = {"cu_seqlens": torch.tensor([0, 3, 7], device=DEVICE)}
    for cell, options, told in (("MinGRU", {"dropout": 0.3}, {}), ("LSTM", {}, packed)):
        with FakeTensorMode(allow_non_fake_inputs=True):
            rnn, x = module(cell, 3, 4, 2, **options), tensor(7, 3)
            x.requires_grad_()
            (dx,) = torch.autograd.grad(rnn(x, **told)[0].sum(), x, create_graph=True)
            dx.square().sum().backward()
            assert x.grad.shape == x.shape


@COMPILES
@pytest.mark.parametrize("cell", ALL_CELLS)
@pytest.mark.parametrize("bias", [False, True])
def test_under_autocast_derivatives_are_those_of_what_was_cast(cell, bias):
    """The formulas are wide; autocast would make their products narrow again."""
    rnn, half = module(cell, 4, 6, bias=bias, dtype=torch.float32), torch.bfloat16
    cast = module(cell, 4, 6, bias=bias, dtype=half)

    def second(called, x):
        first = torch.autograd.grad(called(x)[0].float().square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.float().square().sum(), x)[0]

    x = tensor(5, 2, rnn.input_size, dtype=half, grad=True)
    with torch.autocast(DEVICE.partition(":")[0], half):
        found = second(rnn, x)
        _, moved = torch.func.jvp(lambda x: rnn(x)[0], (x.detach(),), (torch.ones_like(x),))
    _, wanted = torch.func.jvp(lambda x: cast(x)[0], (x.detach(),), (torch.ones_like(x),))
    same([found, moved], [second(cast, x), wanted], 1e-6)


@pytest.mark.parametrize("form", ["scan", "scan_log"])
def test_under_autocast_a_scan_has_second_derivatives(form):
    a, b = (tensor(6, 3, dtype=torch.float32, grad=True, seed=seed) for seed in (0, 1))

    def second():
        first = torch.autograd.grad(getattr(st, form)(a, b).square().sum(), a, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), (a, b))

    with torch.autocast(DEVICE.partition(":")[0], torch.bfloat16):
        found = second()
    same(found, second(), 1e-6)
