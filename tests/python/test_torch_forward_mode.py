# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: derivatives in forward mode, against those in reverse mode."""

import pytest
from support import ALL_CELLS
from test_torch_second import call_of, shares
from torch.autograd import forward_ad
from torch_support import (
    COMPILES,
    FORMS,
    flat,
    input_of,
    integers,
    module,
    options_of,
    same,
    st,
    tensor,
    torch,
)

pytestmark = COMPILES  # torch compiles what it has for forward mode


def along(inputs):
    return tuple(torch.randn_like(value) for value in inputs)


def wanted_of(call, inputs, tangents):
    """The same from pullbacks, each of one output's cotangent."""
    _, pull = torch.func.vjp(call, *inputs)
    outputs = call(*inputs)
    found = []
    for at, out in enumerate(outputs):
        basis = torch.eye(out.numel(), dtype=out.dtype, device=out.device)
        rows = []
        for one in basis.reshape(-1, *out.shape):
            pulled = pull(
                tuple(one if i == at else torch.zeros_like(o) for i, o in enumerate(outputs))
            )
            rows.append(sum((d * t).sum() for d, t in zip(pulled, tangents, strict=True)))
        found.append(torch.stack(rows).reshape(out.shape))
    return found


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_of_layers(cell):
    """x, the state and parameters have tangents, and something is dropped; also without a graph."""
    rnn = module(cell, 2, 3, 2, bidirectional=True, batch_first=True, **shares(cell))
    call, rest = call_of(rnn, 2)
    inputs = tensor(2, 3, rnn.input_size), *(value.detach() for value in rest)
    tangents = along(inputs)
    wanted = wanted_of(call, inputs, tangents)
    same(torch.func.jvp(call, inputs, tangents)[1], wanted, 1e-10)
    with torch.no_grad(), forward_ad.dual_level():
        out = call(*map(forward_ad.make_dual, inputs, tangents))
        same([forward_ad.unpack_dual(value).tangent for value in out], wanted, 1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["SRU", "LSTM"])
def test_of_ragged_batches(cell, form):
    rnn = module(cell, 2, 2, bidirectional=True)
    call, rest = call_of(rnn, 4, **options_of(form))
    inputs = input_of(rnn, form), *(value.detach() for value in rest)
    tangents = along(inputs)
    same(torch.func.jvp(call, inputs, tangents)[1], wanted_of(call, inputs, tangents), 1e-10)


@pytest.mark.parametrize("cell", ["MinGRU", "SRU", "GRU"])
def test_hessians(cell):
    """By one mode over the other, in any order, of x and of parameters."""
    rnn, x = module(cell, 2, 2, bidirectional=True), tensor(3, 2, 2)
    params = {name: value.detach() for name, value in rnn.named_parameters()}
    func = torch.func

    def of_x(x):
        y, h_n = rnn(x)
        return y.sin().sum() + h_n.cos().sum()

    def of_params(params):
        return func.functional_call(rnn, params, (x,))[0].sin().sum()

    wanted = torch.autograd.functional.hessian(of_x, x)
    for outer, inner in (
        (func.jacfwd, func.jacrev), (func.jacrev, func.jacfwd), (func.jacfwd, func.jacfwd),
    ):  # fmt: skip
        same([outer(inner(of_x))(x)], [wanted], 1e-10)
    got, wanted = func.hessian(of_params)(params), func.jacrev(func.jacrev(of_params))(params)
    for name in params:
        same(got[name].values(), wanted[name].values(), 1e-10)


SCANS = {
    "linear": lambda a, b, h: st.scan(a, b, h),
    "reverse": lambda a, b, h: st.scan(a, b, h, True, reset=integers(range(4)) % 3 == 1),
    "log": lambda a, b, h: st.scan_log(a.log(), b, h_0=h),
    "log_output": lambda a, b, h: st.scan_log(a.log(), b, h_0=(h, None), log_output=True)[0],
}


@pytest.mark.parametrize("form", SCANS)
def test_of_scans(form):
    call = SCANS[form]
    inputs = tensor(4, 3).sigmoid(), tensor(4, 3, seed=1), tensor(3, seed=2)
    tangents = along(inputs)

    def total(*inputs):
        return call(*inputs).sin().sum()

    (wanted,) = wanted_of(lambda *v: (call(*v),), inputs, tangents)
    same([torch.func.jvp(call, inputs, tangents)[1]], [wanted])
    with forward_ad.dual_level():
        leaves = [value.clone().requires_grad_() for value in inputs]
        out = call(*map(forward_ad.make_dual, leaves, tangents))
        same([forward_ad.unpack_dual(out).tangent], [wanted])
    got = torch.func.hessian(total, (0, 1, 2))(*inputs)
    wanted = torch.autograd.functional.hessian(total, inputs)
    same(flat(got), flat(wanted), 1e-10)


def test_of_complex_scans():
    a, b = (torch.complex(tensor(4, 3, seed=s), tensor(4, 3, seed=s + 1)) / 2 for s in (0, 2))
    tangents = along((a, b))

    def walked(a, b):
        h, out = torch.zeros_like(a[0]), []
        for of_a, of_b in zip(a, b, strict=True):
            h = of_a * h + of_b
            out.append(h)
        return torch.stack(out)

    got, wanted = (torch.func.jvp(f, (a, b), tangents)[1] for f in (st.scan, walked))
    same([torch.view_as_real(got)], [torch.view_as_real(wanted)])


def test_for_each_of_several():
    rnn, x = module("MinGRU", 4, 6), tensor(5, 2, 4)
    several = tensor(3, *x.shape, seed=1)

    def tangent(t):
        return torch.func.jvp(lambda v: rnn(v)[0], (x,), (t,))[1]

    same([torch.vmap(tangent)(several)], [torch.stack([tangent(t) for t in several])])


def test_what_has_no_tangent_has_none():
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4)
    same([torch.func.jvp(lambda v: v * rnn(x)[0].sum(), (x,), (x,))[1]], [x * rnn(x)[0].sum()])


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_it_is_an_error(fullgraph):
    """Where a compiler takes operators as they are, tangents would be lost without a word."""
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4)
    for call, name in ((lambda v: rnn(v)[0], "MinGRU"), (lambda v: st.scan(v, x), "scan")):
        torch.compiler.reset()
        compiled = torch.compile(
            lambda v, call=call: torch.func.jvp(call, (v,), (torch.ones_like(v),))[1],
            backend="eager",
            fullgraph=fullgraph,
        )
        said = f"{name}: there are no derivatives in forward mode .* inside torch.compile"
        if fullgraph:
            with pytest.raises(Exception, match=said):
                compiled(x)
            continue
        wanted = torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
        if torch.__version__ < "2.13":  # it leaves the call to eager mode
            same([compiled(x)], [wanted])
            continue
        with pytest.raises(Exception, match="fake tensor"):  # torch's own words
            compiled(x)
    torch.compiler.reset()
