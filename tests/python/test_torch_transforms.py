# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch in what torch does with operators: compile, vmap, autocast, streams."""

import pytest
from scanrnn.arguments import short_name
from support import ALL_CELLS, DEVICE, assert_close, tolerance
from test_errors import raises
from torch.utils._python_dispatch import TorchDispatchMode
from torch_support import (
    COMPILES,
    GPU,
    WHOLE,
    flat,
    module,
    numpy,
    operands,
    same,
    st,
    state,
    tensor,
    torch,
)

# ---- torch's transformations


# Whole multiples of the reserve's alignment, so that none of its bytes is undefined.
OPCHECK_SIZES = 16, 16


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_opcheck_of_a_layer(cell):
    rnn = module(cell, 4, 8, 2)
    x, h_0, params = operands(rnn, *OPCHECK_SIZES, grad=True)
    description = rnn._description()
    layer, backward = torch.ops.scanrnn.layer, torch.ops.scanrnn.layer_backward
    torch.library.opcheck(layer.default, (x, h_0, params, *WHOLE, None, True, *description))
    x, h_0, params = operands(rnn, *OPCHECK_SIZES)
    torch.library.opcheck(layer.default, (x, [], params, *WHOLE, None, False, *description))
    y, *finals, reserve = layer(x, h_0, params, *WHOLE, None, True, *description)
    dh_n = finals[: len(h_0)]
    for need_x, need_params in ((True, True), (False, True), (True, False)):
        told = need_x, need_params, *description
        arguments = (y, dh_n, x, h_0, y, params, *WHOLE, reserve, None, *told)
        torch.library.opcheck(backward.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_the_reserve_is_large_enough(cell, dtype):
    """Its symbolic size against what the library asks for."""
    for hidden, layers, steps, batch in (
        *((h, 2, t, b) for h in (1, 5, 64) for t in (0, 1, 3, 17, 300) for b in (1, 2, 33)),
        (7, 1, 1, 0), (7, 3, 0, 5), (129, 1, 1000, 1),
    ):  # fmt: skip
        rnn = module(cell, 3, hidden, layers, dtype=dtype)
        description, C = rnn._description(), rnn.input_size
        x = torch.empty(steps, batch, C, dtype=dtype, device=DEVICE)
        layer = description.layer(C, short_name(dtype))
        plan = layer.plan(st.tensors.device_of(x.device), steps, batch, True, None)
        rows, width = st.layer_work.reserve_shape(layer, x.device, description.batch(x.shape))
        assert rows * width >= plan.reserve_bytes, (hidden, layers, steps, batch)


@COMPILES
@pytest.mark.parametrize("cell", ALL_CELLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(cell, dynamic):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for steps, batch in ((9, 3), (9, 3), *([(17, 5), (300, 2)] if dynamic else [])):
        x, h_0 = tensor(steps, batch, rnn.input_size), state(rnn, batch)
        results = []
        for call in (rnn, compiled):
            leaf = x.clone().requires_grad_()
            out = flat(call(leaf, h_0))
            rnn.zero_grad()
            sum(v.square().sum() for v in out).backward()
            results.append([*out, leaf.grad, *(p.grad.clone() for p in rnn.parameters())])
        same(*results)
    torch.compiler.reset()


@COMPILES
def test_compile_by_inductor_with_what_surrounds_a_layer():
    rnn = module("MinGRU", 4, 8, 2, dropout=0.5, dtype=torch.float32)
    head = torch.nn.Linear(8, 3, device=DEVICE)

    def loss(x):
        y, h_n = rnn(x.tanh() * 2)
        a = torch.sigmoid(y)
        return head(st.scan(a, y)).square().mean() + h_n.sum()

    x = tensor(9, 3, 4, dtype=torch.float32)
    rnn.eval()
    compiled = torch.compile(loss, fullgraph=True)
    results = []
    for call in (loss, compiled):
        rnn.zero_grad()
        value = call(x)
        value.backward()
        results.append([value, *(p.grad.clone() for p in rnn.parameters())])
    same(*results, share=1e-5)
    torch.compiler.reset()


@pytest.mark.parametrize("cell", ALL_CELLS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast(cell, half):
    rnn = module(cell, 4, 6, 2, dtype=torch.float32)
    x = tensor(9, 3, rnn.input_size, dtype=torch.float32)
    h_0 = state(rnn, 3, torch.float32)
    wanted = rnn(x, h_0)[0]
    with torch.autocast(DEVICE, half):
        y, h_n = rnn(x, h_0)
        mixed, _ = rnn(x.to(half), h_0)
    assert {v.dtype for v in flat([y, h_n, mixed])} == {half}
    name = "bfloat16" if half == torch.bfloat16 else "float16"
    assert_close(numpy(y), numpy(wanted), 8 * tolerance(name, 9))
    y.float().sum().backward()
    assert {p.grad.dtype for p in rnn.parameters()} == {torch.float32}
    wide = rnn.double()
    with torch.autocast(DEVICE, half):
        assert wide(x.double())[0].dtype == torch.float64
        with pytest.raises((TypeError, ValueError), match="dtype"):  # parameters of float64 stay so
            wide(x.to(half))


@pytest.mark.parametrize("cell", ["GRU", "MinLSTM"])
def test_a_symbolic_trace_has_layers_as_leaves(cell):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module(cell, 4, 6)

        def forward(self, x, reset):
            return self.rnn(x, reset=reset)[0] + 1

    model, x = Model(), tensor(5, 3, 4)
    reset = torch.arange(15, device=x.device).reshape(5, 3) % 4 == 0
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["rnn"]
    same([traced(x, reset)], [model(x, reset)])


def test_autocast_leaves_what_is_none_of_its_numbers():
    rnn, cell, x = st.GRU(4, 6, device=DEVICE), st.GRUCell(4, 6, device=DEVICE), torch.ones(5, 2, 4)
    x = x.to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        for dtype in (torch.int64, torch.bool, torch.complex64):
            with raises(ValueError, f"RNN input dtype .{dtype}. does not match weight dtype"):
                rnn(x.to(dtype))
            with raises(RuntimeError, "mat1 and mat2 must have the same dtype"):
                cell(x[0].to(dtype))
        with raises(RuntimeError, "found input tensor with torch.bfloat16 and hidden tensor with"):
            rnn(x, torch.ones(1, 2, 6, dtype=torch.float64, device=DEVICE))
        assert rnn(x.double().float())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_vmap(cell):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    x = tensor(5, 9, 3, rnn.input_size)
    with torch.no_grad():
        wanted = [flat(rnn(v)) for v in x]
        got = flat(torch.vmap(rnn)(x))
        same(got, [torch.stack(v) for v in zip(*wanted, strict=True)])
        got = flat(torch.vmap(rnn, in_dims=2, out_dims=2)(x.movedim(0, 2)))
        same(got, [torch.stack(v, 2) for v in zip(*wanted, strict=True)])
    leaf = x.clone().requires_grad_()
    flat(torch.vmap(rnn)(leaf))[0].square().sum().backward()
    other = x.clone().requires_grad_()
    sum(rnn(v)[0].square().sum() for v in other).backward()
    same([leaf.grad], [other.grad])
    torch.vmap(st.scan)(x, x)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            none = flat(torch.vmap(rnn, in_dims=1)(x.movedim(0, 1)[:, :0]))
        assert [v.shape for v in none] == [(0, *v.shape[1:]) for v in flat(torch.vmap(rnn)(x))]


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_vmap_over_parameters_and_over_cotangents(cell):
    rnn = module(cell, 4, 6)
    x = tensor(9, 2, rnn.input_size)
    params = dict(rnn.named_parameters())

    def loss(params):
        return torch.func.functional_call(rnn, params, (x,))[0].square().sum()

    stacked = {n: torch.stack([p, p * 2]).detach().requires_grad_() for n, p in params.items()}
    got = torch.vmap(loss)(stacked)
    got.sum().backward()
    for i in range(2):
        one = {n: p[i].detach().requires_grad_() for n, p in stacked.items()}
        wanted = loss(one)
        wanted.backward()
        same([got[i]], [wanted])
        same([p.grad[i] for p in stacked.values()], [p.grad for p in one.values()])
    y, _ = rnn(x)
    several = tensor(3, *y.shape)
    params = tuple(rnn.parameters())
    got = torch.vmap(lambda d: torch.autograd.grad(y, params, d, retain_graph=True))(several)
    wanted = [torch.autograd.grad(y, params, d, retain_graph=True) for d in several]
    same(got, [torch.stack(v) for v in zip(*wanted, strict=True)])


# ---- streams


@GPU
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_work_is_on_the_current_stream(cell):
    rnn, x = module(cell, 64, 64, dtype=torch.float32), tensor(256, 8, 64, dtype=torch.float32)
    wanted = rnn(x)[0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rnn(x)  # memory of this stream
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = torch.empty_like(x)
        torch.cuda._sleep(200_000_000)  # the producer is still at work when the call is made
        late.copy_(x)
        y = rnn(late)[0]
        assert not side.query(), "the host has waited"
    side.synchronize()
    same([y], [wanted], 0)


class Seen(TorchDispatchMode):
    """The library's operators that go through torch's dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "scanrnn":
            self.names.append(operator._opname)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_eager_mode_is_the_operator(cell):
    """Bit for bit, dropout and states too; who looks on sees the operators."""
    rnn = module(cell, 3, 5, 2, dropout=0.25)
    x = tensor(7, 2, rnn.input_size, grad=True)

    def run():
        torch.manual_seed(3)
        y, state = rnn(x)
        finals = state if isinstance(state, tuple) else (state,)
        leaves = [x, *rnn.parameters()]
        return [y, *finals, *torch.autograd.grad([y.sin().sum(), *map(sum_of, finals)], leaves)]

    eager = run()
    with Seen() as seen:
        watched = run()
    assert seen.names == ["layer", "layer_backward"]
    for got, wanted in zip(eager, watched, strict=True):
        assert torch.equal(got, wanted)
    with torch.no_grad(), Seen() as seen:
        assert torch.equal(rnn.eval()(x)[0], rnn(x)[0])
    assert seen.names == ["layer", "layer"]


def sum_of(value):
    return (value * value).sum()
