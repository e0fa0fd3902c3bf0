# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: derivatives at the edges of what is finite, and calls that torch.nn takes, too."""

import numpy as np
import pytest
from torch_support import COMPILES, module, same, st, tensor, torch

pytestmark = COMPILES  # torch compiles what it has for forward mode
INF = float("inf")


def both(call, *given):
    """Tangents of a call, and its second derivatives in reverse mode."""
    ones = tuple(torch.ones_like(value) for value in given)
    _, tangents = torch.func.jvp(call, given, ones)
    leaves = [value.clone().requires_grad_() for value in given]
    first = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(value.square().sum() for value in first), leaves)
    return tangents, second


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", ["linear", "log", "log_output"])
@pytest.mark.parametrize("one", [False, True])
def test_no_derivative_of_a_scan_crosses_a_reset(form, reverse, one):
    """Step 3, in the order of the walk, begins a sequence; the one before has no end."""
    reset = torch.arange(6, device=tensor(1).device) == (2 if reverse else 3)
    reset = reset[:, None] if one else reset[:, None].expand(6, 2)
    a, b = tensor(6, 2), tensor(6, 2)
    b[4 if reverse else 1] = INF

    def call(a, b):
        options = {"reset": reset, "reverse": reverse}
        if form == "linear":
            return st.scan(a, b, **options)
        if form == "log":
            return st.scan_log(a, b, **options)
        return st.scan_log(a, b, log_output=True, **options)[0]

    far = slice(0, 3) if reverse else slice(3, 6)
    tangents, second = both(call, a, b)
    clean = b.clone()
    clean[4 if reverse else 1] = 0
    wanted, wanted_second = both(call, a, clean)
    same(
        [tangents[far], *(v[far] for v in second)], [wanted[far], *(v[far] for v in wanted_second)]
    )


@pytest.mark.parametrize("form", ["cu_seqlens", "reset"])
@pytest.mark.parametrize("cell", ["MinGRU", "MinLSTM", "SRU", "QRNN", "RGLRU", "IndRNN", "GRU"])
def test_no_derivative_of_a_layer_crosses_a_border(cell, form):
    rnn = module(cell, 2, 2)
    x = tensor(6, 2)
    x[1] = INF
    ends = torch.tensor([0, 3, 6], device=x.device)
    border = torch.arange(6, device=x.device) == 3
    options = {"cu_seqlens": ends} if form == "cu_seqlens" else {"reset": border}
    got, wanted = ([t[-3:], s[0][-3:]] for t, s in (
        both(lambda x: rnn(x, **options)[0][-3:], x), both(lambda x: rnn(x)[0], x[3:]),
    ))  # fmt: skip
    same(got, wanted)


@pytest.mark.parametrize("cell", ["MinGRU", "MinLSTM", "SRU", "QRNN", "RGLRU", "IndRNN", "GRU"])
def test_no_derivative_crosses_a_reset_within_a_packed_sequence(cell):
    """Neither from a state at its beginning that has no end, nor to it."""
    rnn = module(cell, 2, 2)
    x, h_0 = tensor(6, 2), tensor(1, 2, 2)
    ends, reset = torch.tensor([0, 3, 6], device=x.device), torch.arange(6, device=x.device) == 4

    def call(x, h_0):
        return rnn(x, h_0, cu_seqlens=ends, reset=reset)[0]

    def behind(x, h_0):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(call(leaf, h_0)[4:].square().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first[4:].square().sum(), leaf)
        return [torch.func.jvp(lambda x: call(x, h_0), (x,), (x,))[1][4:], second[4:]]

    def of_states(x):
        leaf = h_0.clone().requires_grad_()
        loss = call(x, leaf)[:4].square().sum()
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)

    endless, later = h_0.clone(), x.clone()
    endless[:, 1] = later[5] = INF
    same(behind(x, endless), behind(x, h_0))
    same(of_states(later), of_states(x))


@pytest.mark.parametrize(
    "weight", [-40.0, -36.9, -30.0, -18.0, -12.0, -2.0, 0.0, 3.0, 8.0, 16.0, 30.0]
)
def test_second_derivatives_by_the_decays_of_rglru(weight):
    """Against differences of the library's own first derivatives."""
    rnn = module("RGLRU", 1, 1)
    x = tensor(3, 1, 1)

    def first(at, create_graph=False):
        at = at.clone().requires_grad_()
        y = torch.func.functional_call(rnn, {"weight_a_l0": at}, x)[0]
        return at, torch.autograd.grad(y.sum(), at, create_graph=create_graph)[0]

    at = torch.full((1,), weight, dtype=torch.float64, device=x.device)
    leaf, slope = first(at, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), leaf)
    wanted = (first(at + 1e-4)[1] - first(at - 1e-4)[1]) / 2e-4
    torch.testing.assert_close(second, wanted, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("scale", [1.0, 80.0, 95.0, 105.0, 200.0, 1e4])
def test_closed_gates_have_derivatives(scale):
    """The recurrence gate of RGLRU, whose decay is then 1."""
    rnn = module("RGLRU", 1, 1, dtype=torch.float32)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[-1.0], [1.0]]))
        rnn.bias_ih_l0.zero_()
    x = torch.full((3, 1, 1), scale, device=rnn.bias_ih_l0.device)
    tangents, second = both(lambda x: rnn(x)[0], x)
    assert tangents.isfinite().all()
    assert second[0].isfinite().all()
    if scale == 1:
        exact = rnn.to(torch.float64)
        exact_tangents, exact_second = both(lambda x: exact(x)[0], x.double())
        torch.testing.assert_close(tangents.double(), exact_tangents, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(second[0].double(), exact_second[0], rtol=1e-5, atol=1e-7)


def test_states_that_cancel_beyond_the_range_of_floats():
    log_a, log_b = torch.tensor([0.0, 100.0, -1.0, 0.0]), torch.tensor([0.0, 100.0, 0.0, 0.0])
    sign = torch.tensor([1.0, -1.0, 1.0, 1.0])
    log_a = log_a.requires_grad_()
    h, _ = st.scan_log(log_a, log_b, sign, log_output=True)
    assert h[1] == -INF
    (first,) = torch.autograd.grad(h[2:].square().sum(), log_a, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), log_a)
    assert second.isfinite().all()


def test_vmap_over_second_derivatives_of_what_is_drawn():
    from torch.func import grad, jvp, vmap

    rnn = module("LSTM", 4, 4, dropconnect=0.3)
    x = tensor(2, 5, 3, 4)
    x[1] = x[0]

    def loss(x):
        return rnn(x)[0].square().sum()

    for call in (
        lambda x: jvp(loss, (x,), (x,))[1],
        grad(lambda x: grad(loss)(x).square().sum()),
    ):
        torch.manual_seed(5)
        apart = vmap(call, randomness="different")(x)
        assert not torch.equal(apart[0], apart[1])  # each draws for itself
        torch.manual_seed(5)
        alike = vmap(call, randomness="same")(x)
        same([alike[0]], [alike[1]])


def test_vmap_over_second_derivatives_of_packed_sequences():
    from torch.func import grad, vmap

    rnn, x = module("GRU", 3, 4), tensor(5, 3)
    ends = torch.tensor([[0, 2, 5], [0, 5, 5]], device=x.device)

    def loss(x, ends):
        return rnn(x, cu_seqlens=ends)[0].square().sum()

    second = grad(lambda x, ends: grad(loss)(x, ends).square().sum())
    same([vmap(second, (None, 0))(x, ends)], [torch.stack([second(x, each) for each in ends])])


@pytest.mark.parametrize("cell", ["RNNCell", "GRUCell", "LSTMCell"])
def test_a_symbolic_trace_has_cells_as_leaves(cell):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = getattr(torch.nn, cell)(3, 4)

        def forward(self, x, h):
            return self.cell(x, (h, h) if cell == "LSTMCell" else h)

    model = Model()
    st.replace(model)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["cell"]
    x, h = torch.randn(2, 3), torch.randn(2, 4)
    got, wanted = traced(x, h), model(x, h)
    same(got if cell == "LSTMCell" else [got], wanted if cell == "LSTMCell" else [wanted])


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_a_symbolic_trace_of_a_state_alone(cell):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module(cell, 3, 4)
            self.x = tensor(5, 2, 3)

        def forward(self, h):
            return self.rnn(self.x, [h, h] if cell == "LSTM" else h)[0]

    model, h = Model(), tensor(1, 2, 4)
    same([torch.fx.symbolic_trace(model)(h)], [model(h)])


@pytest.mark.parametrize("cell", ["LSTM", "MinGRU", "RGLRU"])
def test_a_parameter_without_data_is_named(cell):
    rnn = module(cell, 4, 4, 2)
    names = [name for name, _ in rnn.named_parameters()]
    x = tensor(5, 3, 4)
    for name in names[1:]:
        own = getattr(rnn, name)
        setattr(rnn, name, torch.nn.Parameter(own.detach().to("meta")))
        said = rf"^{name}: expected device .*, got meta|^Input and parameter .* tensor at meta"
        with pytest.raises((TypeError, RuntimeError), match=said):
            rnn(x)
        setattr(rnn, name, own)
    rnn(x)


def test_a_cells_parameter_without_data_is_named():
    cell = st.LSTMCell(3, 4)
    cell.weight_hh = torch.nn.Parameter(cell.weight_hh.detach().to("meta"))
    with pytest.raises(RuntimeError, match=r"same device: weight_hh: .*, got meta"):
        cell(torch.randn(2, 3))


def test_what_numpy_brings_is_on_the_host():
    rnn, x = module("GRU", 3, 4), tensor(5, 2, 3)
    lengths, reset = np.array([3, 5]), np.arange(10).reshape(5, 2) % 4 == 0
    wanted = rnn(x, lengths=lengths, reset=reset)[0]
    with torch.device("meta"):
        same([rnn(x, lengths=lengths, reset=reset)[0]], [wanted])


def test_slopes_of_gates_keep_their_digits():
    from scanrnn.torch import functions as f

    at = [-80.0, -20.0, -9.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 9.0, 20.0, 40.0]
    x = torch.tensor(at, device=tensor(1).device, dtype=torch.float32, requires_grad=True)
    there = x.detach().double()
    up, down = torch.sigmoid(there), torch.sigmoid(-there)
    steep = 4 * torch.sigmoid(2 * there) * torch.sigmoid(-2 * there)
    wanted = {
        "sigmoid": (up, up * down, up * down * (down - up)),
        "tanh": (there.tanh(), steep, -2 * there.tanh() * steep),
        "softplus": (torch.log1p(torch.exp(there)), up, up * down),
        "logsigmoid": (-torch.log1p(torch.exp(-there)), down, -up * down),
    }
    for name, (value, slope, curve) in wanted.items():
        y = getattr(f, name)(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        for got, right in ((y, value), (first, slope), (second, curve)):
            torch.testing.assert_close(
                got.detach().double(), right, rtol=2e-6, atol=1e-37, msg=f"{name}: {got}, {right}"
            )
    (first,) = torch.autograd.grad(f.relu(x).sum(), x)
    assert first.tolist() == [float(value > 0) for value in at]
    assert f.relu(torch.tensor(float("nan"))).isnan()


def test_derivatives_by_logarithms_in_the_range_of_states():
    """The state before times its cotangent is beyond float32, and what is left of it is not."""
    a, b = (torch.tensor(v, device=tensor(1).device) for v in ([0.0, -80.0], [85.0, 0.0]))

    def loss(a):
        return 1e4 * st.scan_log(a, b)[1]

    wanted = torch.tensor([0.0, 1e4 * np.exp(5.0)], device=a.device, dtype=a.dtype)
    torch.testing.assert_close(torch.func.grad(loss)(a), wanted, rtol=1e-5, atol=0)
    curves = torch.func.hessian(loss)(a)
    torch.testing.assert_close(curves, wanted.diag(), rtol=1e-5, atol=0)
