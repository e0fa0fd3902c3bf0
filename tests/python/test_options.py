# SPDX-License-Identifier: Apache-2.0
"""Options that make other weights of a layer: heads, projections, SRU's rescaled highway."""

import itertools

import numpy as np
import pytest
from derivative import KINDS, check_derivative, example
from ragged_support import as_state, flat
from support import DEVICE, assert_close, construct, make, normal

# (cell, options, hidden size)
MADE = [
    ("LSTM", {"proj_size": 3}, 6),
    ("LSTM", {"num_heads": 3}, 6),
    ("GRU", {"num_heads": 2}, 6),
    ("RNN", {"num_heads": 6}, 6),
    ("SRU", {"projection_size": 3}, 6),
    ("SRU", {"rescale": True, "highway_bias": -1.5}, 6),
    ("SRU", {"rescale": True, "projection_size": 2}, 5),
    ("PeepholeSRU", {"rescale": True, "projection_size": 4}, 6),
    ("GRU", {"reset_after": False}, 5),
    ("GRU", {"reset_after": False, "num_heads": 3}, 6),
    ("RNN", {"layer_norm": True}, 5),
    ("LSTM", {"layer_norm": True}, 5),
    ("GRU", {"layer_norm": True, "num_heads": 2}, 6),
    ("LSTM", {"layer_norm": True, "proj_size": 3}, 6),
    ("IndRNN", {"layer_norm": True}, 6),
]
NAMES = [f"{cell}-{'-'.join(options)}-{hidden}" for cell, options, hidden in MADE]
# And what training draws of them.
DRAWN = [(0, {"dropconnect": 0.3, "zoneout": (0.0, 0.2)}), (1, {"dropconnect": 0.3}),
         (6, {"input_dropout": 0.3, "state_dropout": 0.2, "zoneout": 0.2}),
         (9, {"dropconnect": 0.3, "input_dropout": 0.2, "zoneout": 0.2}),
         (11, {"dropconnect": 0.3, "zoneout": (0.3, 0.2)}),
         (14, {"input_dropout": 0.2, "zoneout": 0.2})]  # fmt: skip


def every_one(test):
    return pytest.mark.parametrize(("cell", "options", "hidden"), MADE, ids=NAMES)(test)


def layer(cell, options, hidden, size=5, **more):
    return make(cell, size, hidden, **({"dtype": "float64", "seed": 3} | options | more))


@every_one
@pytest.mark.parametrize("kind", KINDS)
def test_pullback_is_the_derivative(cell, options, hidden, kind):
    more = {"num_layers": 2, "bidirectional": True, "batch_first": kind == "reset"}
    if cell == "RNN":
        more["variant"] = "tanh"
    check_derivative(lambda: layer(cell, options, hidden, **more), kind)


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: NAMES[drawn[0]])
@pytest.mark.parametrize("kind", ["", "cu_seqlens"])
def test_pullback_knows_what_is_drawn_of_them(drawn, kind):
    cell, options, hidden = MADE[drawn[0]]
    check_derivative(lambda: layer(cell, options | drawn[1], hidden, num_layers=2), kind)


@every_one
def test_steps_are_the_sequence(cell, options, hidden):
    rnn = layer(cell, options, hidden, num_layers=2)
    x, h_0, _ = example(rnn, "")
    y, h_n = rnn(x, h_0)
    state = h_0
    for t, step in enumerate(x):
        y_t, state = rnn.step(step, state)
        np.testing.assert_allclose(y_t, y[t], rtol=0, atol=1e-13)
    for got, want in zip(flat(state), flat(h_n), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


@every_one
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_are_calls_of_their_own(cell, options, hidden, bidirectional):
    rnn = layer(cell, options, hidden, num_layers=2, bidirectional=bidirectional)
    x, h_0, told = example(rnn, "cu_seqlens")
    ends = told["cu_seqlens"]
    (y, h_n), pullback = rnn.vjp(x, h_0, **told)
    random = np.random.default_rng(1)
    dy, dh_n = random.normal(size=y.shape), [random.normal(size=h.shape) for h in flat(h_n)]
    dx, dh_0, dparams = pullback(dy, as_state(dh_n))
    sums = dict.fromkeys(dparams, 0.0)
    for n, (first, last) in enumerate(itertools.pairwise(ends)):
        own = as_state([h[:, n : n + 1] for h in flat(h_0)])
        (y_n, final), pull = rnn.vjp(x[first:last, None], own)
        np.testing.assert_allclose(y[first:last], y_n[:, 0], rtol=0, atol=1e-13)
        given = as_state([h[:, n : n + 1] for h in dh_n])
        dx_n, d_own, dparams_n = pull(dy[first:last, None], given)
        np.testing.assert_allclose(dx[first:last], dx_n[:, 0], rtol=0, atol=1e-12)
        for name in sums:
            sums[name] = sums[name] + dparams_n[name]
        for got, want in ((h_n, final), (dh_0, d_own)):
            for all_of_them, one in zip(flat(got), flat(want), strict=True):
                np.testing.assert_allclose(all_of_them[:, n], one[:, 0], rtol=0, atol=1e-12)
    for name, want in sums.items():
        np.testing.assert_allclose(dparams[name], want, rtol=0, atol=1e-11)


@every_one
@pytest.mark.parametrize("kind", KINDS)
def test_no_cotangent_of_y_is_zeros(cell, options, hidden, kind):
    rnn = layer(cell, options, hidden, num_layers=2)
    x, h_0, told = example(rnn, kind)
    (y, h_n), pullback = rnn.vjp(x, h_0, **told)
    dh_n = as_state([np.ones_like(part) for part in flat(h_n)])
    got, want = (pullback(dy, dh_n) for dy in (None, np.zeros_like(y)))
    for a, b in zip([got[0], *flat(got[1])], [want[0], *flat(want[1])], strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in got[2].items():
        np.testing.assert_array_equal(value, want[2][name], name)


@every_one
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_gives_what_float64_gives(cell, options, hidden, dtype):
    wide = layer(cell, options, hidden, num_layers=2)
    rnn = layer(cell, options, hidden, num_layers=2, dtype=dtype)
    # A norm makes small products large, so a step's rounding would grow from step to step.
    tamed = {k: v * (0.2 if "norm_hh" in k else 1) for k, v in wide.state_dict().items()}
    values = {k: v.astype(rnn.dtype) for k, v in tamed.items()}
    rnn.load_state_dict(values)
    wide.load_state_dict({k: v.astype("float64") for k, v in values.items()})
    x, h_0, _ = example(rnn, "", steps=20)
    (y, _), pullback = rnn.vjp(x, h_0)
    dy = normal(*y.shape, dtype=np.float64, seed=2).astype(rnn.dtype)
    got = [y, *pullback(dy)[2].values()]
    as_wide = as_state([h.astype("float64") for h in flat(h_0)])
    (want_y, _), pull = wide.vjp(x.astype("float64"), as_wide)
    want = [want_y, *pull(dy.astype("float64"))[2].values()]
    share = {"float32": 1e-5, "bfloat16": 0.06, "float16": 0.01}[dtype]
    if DEVICE != "cpu" and "layer_norm" in options:
        share *= 4  # what a norm leaves is kept in the tensors' dtype there
    for a, b in zip(got, want, strict=True):
        error = np.abs(a.astype("float64") - b).max()
        assert error <= share * np.abs(b).max(), (error, np.abs(b).max())


@every_one
def test_an_empty_sequence_passes_its_state(cell, options, hidden):
    rnn = layer(cell, options, hidden, num_layers=2)
    x, h_0, _ = example(rnn, "")
    (y, h_n), pullback = rnn.vjp(x[:0], h_0)
    assert y.shape[0] == 0
    dh_n = [np.ones_like(h) for h in flat(h_n)]
    _dx, dh_0, dparams = pullback(None, as_state(dh_n))
    for got, want in zip(flat(h_n) + flat(dh_0), flat(h_0) + dh_n, strict=True):
        np.testing.assert_array_equal(got, want)
    assert all((d == 0).all() for d in dparams.values())
    none = rnn(x[:, :0])
    assert none[0].shape[1] == 0


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU", "SLSTM"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_heads_are_cells_of_their_own(cell, bidirectional):
    heads, units, C = 3, 4, 5
    rnn = layer(cell, {"num_heads": heads}, heads * units, bidirectional=bidirectional)
    values, x = rnn.state_dict(), normal(6, 2, C, dtype=np.float64)
    (y, h_n), pullback = rnn.vjp(x)
    dy = normal(*y.shape, dtype=np.float64, seed=1)
    dx, _, dparams = pullback(dy)
    gates, total = values["weight_ih_l0"].shape[0] // (heads * units), 0.0
    for head in range(heads):
        one = layer(cell, {}, units, bidirectional=bidirectional)

        def own(value, head=head):
            parts = value.reshape(gates, heads, units, *value.shape[1:])[:, head]
            return parts.reshape(gates * units, *value.shape[1:])

        one.load_state_dict({name: own(value) for name, value in values.items()})
        columns = np.concatenate(
            [np.arange(units) + d * heads * units + head * units for d in range(1 + bidirectional)]
        )
        (y_own, h_own), pull = one.vjp(x)
        np.testing.assert_allclose(y[..., columns], y_own, rtol=0, atol=1e-14)
        rows = slice(head * units, (head + 1) * units)
        for got, want in zip(flat(h_n), flat(h_own), strict=True):
            np.testing.assert_allclose(got[..., rows], want, rtol=0, atol=1e-14)
        dx_own, _, dparams_own = pull(dy[..., columns])
        total = total + dx_own
        for name, want in dparams_own.items():
            np.testing.assert_allclose(own(dparams[name]), want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(dx, total, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_projections_are_torchs(bidirectional, given):
    torch = pytest.importorskip("torch")
    options = {"proj_size": 3, "num_layers": 2, "bidirectional": bidirectional}
    rnn = layer("LSTM", options, 7)
    theirs = torch.nn.LSTM(5, 7, dtype=torch.float64, **options)
    assert [name for name, _ in theirs.named_parameters()] == list(rnn.state_dict())
    theirs.load_state_dict({k: torch.tensor(v) for k, v in rnn.state_dict().items()})
    x, h_0, _ = example(rnn, "")
    (y, h_n), pullback = rnn.vjp(x, h_0 if given else None)
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, *h_0)]
    want, finals = theirs(leaves[0], tuple(leaves[1:]) if given else None)
    for got, wanted in zip((y, *h_n), (want, *finals), strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=0, atol=1e-13)
    cotangents = [normal(*v.shape, dtype=np.float64, seed=7) for v in (y, *h_n)]
    dx, dh_0, dparams = pullback(cotangents[0], tuple(cotangents[1:]))
    torch.autograd.backward([want, *finals], [torch.tensor(d) for d in cotangents])
    pairs = [(dx, leaves[0].grad), *((dparams[k], p.grad) for k, p in theirs.named_parameters())]
    if given:
        pairs += zip(dh_0, (leaf.grad for leaf in leaves[1:]), strict=True)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-12)


def test_projection_of_sru_is_a_product_of_weights():
    for hidden in (5, 6):
        rnn, whole = layer("SRU", {"projection_size": 2}, hidden), layer("SRU", {}, hidden)
        values = rnn.state_dict()
        product = values["weight_ih_l0"] @ values.pop("weight_pr_l0")
        whole.load_state_dict({**values, "weight_ih_l0": product})
        x = normal(7, 3, 5, dtype=np.float64)
        np.testing.assert_allclose(rnn(x)[0], whole(x)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("hidden", [5, 6])
def test_rescale_multiplies_what_the_highway_carries(hidden):
    rnn = layer("SRU", {"rescale": True, "highway_bias": -2.0}, hidden)
    plain = layer("SRU", {}, hidden)
    plain.load_state_dict(rnn.state_dict())
    shut = {k: v.copy() for k, v in rnn.state_dict().items()}
    shut["bias_ih_l0"][-hidden:] = -50  # the highway alone
    for module in (rnn, plain):
        module.load_state_dict(shut)
    x = normal(7, 3, 5, dtype=np.float64)
    alpha = np.sqrt(1 + 2 * np.exp(-2.0))
    np.testing.assert_allclose(rnn(x)[0], alpha * plain(x)[0], rtol=1e-12)
    assert (layer("SRU", {"highway_bias": -2.0}, hidden).bias_ih_l0[-hidden:] == -2).all()


@every_one
def test_torch_and_jax_give_the_same(cell, options, hidden):
    rnn = layer(cell, options, hidden, num_layers=2, bidirectional=True, dtype="float32")
    x, h_0, _ = example(rnn, "")
    want, finals = rnn(x, h_0)
    torch = pytest.importorskip("torch")
    import scanrnn.torch

    module = construct(
        scanrnn.torch, cell, 5, hidden, 2, bidirectional=True, device=DEVICE, **options
    )
    module.load_state_dict({k: torch.tensor(v) for k, v in rnn.state_dict().items()})
    given = [torch.tensor(h, device=DEVICE) for h in flat(h_0)]
    leaf = torch.tensor(x, device=DEVICE, requires_grad=True)
    y, states = module(leaf, as_state(given))
    y.sum().backward()
    assert_close(y.detach().cpu().numpy(), want, 1e-5)
    for got, final in zip(flat(states), flat(finals), strict=True):
        assert_close(got.detach().cpu().numpy(), final, 1e-5)
    jax = pytest.importorskip("jax")
    import scanrnn.jax

    function = construct(scanrnn.jax, cell, 5, hidden, 2, bidirectional=True, **options)
    params = {k: jax.numpy.asarray(v) for k, v in rnn.state_dict().items()}
    y, states = jax.jit(function)(params, x, as_state([jax.numpy.asarray(h) for h in flat(h_0)]))
    assert_close(np.asarray(y), want, 1e-5)
    gradient = jax.grad(lambda x: function(params, x, h_0)[0].sum())(jax.numpy.asarray(x))
    assert_close(np.asarray(gradient), leaf.grad.cpu().numpy(), 1e-4)


# ---- steps of whole lines: GRU's reset before the product, layer_norm


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def test_reset_before_the_product_is_its_equation():
    rnn = layer("GRU", {"reset_after": False}, 6)
    x, h, _ = example(rnn, "")
    y, _ = rnn(x, h)
    values = rnn.state_dict()
    W, R, b, c = (
        np.split(values[f"{name}_l0"], 3)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = h[0]
    for t, x_t in enumerate(x):
        r, z = (sigmoid(x_t @ W[i].T + b[i] + h @ R[i].T + c[i]) for i in (0, 1))
        n = np.tanh(x_t @ W[2].T + b[2] + (r * h) @ R[2].T + c[2])
        h = (1 - z) * n + z * h
        np.testing.assert_allclose(y[t], h, rtol=0, atol=1e-14)


def norm(v, scale):
    apart = v - v.mean(-1, keepdims=True)
    return scale * apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU", "IndRNN"])
def test_layer_norm_is_its_equation(cell):
    rnn = layer(cell, {"layer_norm": True}, 6)
    values = rnn.state_dict()
    assert [k for k in values if "norm" in k] == {
        "LSTM": ["norm_ih_l0", "norm_hh_l0", "norm_c_l0", "norm_c_bias_l0"],
        "IndRNN": ["norm_ih_l0"],
    }.get(cell, ["norm_ih_l0", "norm_hh_l0"])
    for name in [k for k in values if "norm" in k]:
        assert (values[name] == (0 if "bias" in name else 1)).all()
        values[name] = normal(*values[name].shape, dtype=np.float64, seed=len(name))
    rnn.load_state_dict(values)
    own = {name.removesuffix("_l0"): value for name, value in values.items()}
    x, given, _ = example(rnn, "")
    y, _ = rnn(x, given)
    h, *c = flat(given)
    h, c = h[0], [part[0] for part in c]
    for t, x_t in enumerate(x):
        u = norm(x_t @ own["weight_ih"].T, own["norm_ih"]) + own["bias_ih"]
        if cell == "IndRNN":
            h = np.maximum(u + own["weight_hh"] * h, 0)
        else:
            m = norm(h @ own["weight_hh"].T, own["norm_hh"]) + own["bias_hh"]
        if cell == "RNN":
            h = np.tanh(u + m)
        if cell == "GRU":
            (r, z, n), (mr, mz, mn) = np.split(u, 3, -1), np.split(m, 3, -1)
            z, n = sigmoid(z + mz), np.tanh(n + sigmoid(r + mr) * mn)
            h = (1 - z) * n + z * h
        if cell == "LSTM":
            i, f, g, o = np.split(u + m, 4, -1)
            c = [sigmoid(f) * c[0] + sigmoid(i) * np.tanh(g)]
            h = sigmoid(o) * np.tanh(norm(c[0], own["norm_c"]) + own["norm_c_bias"])
        np.testing.assert_allclose(y[t], h, rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [{"reset_after": False}, {"layer_norm": True}])
def test_a_plan_of_whole_lines_says_why(options):
    rnn = layer("GRU", options, 64, dtype="float32", device="cpu")
    plan = rnn.plan(512, 8, training=True)
    assert (plan.strategy, plan.reason) == ("step_loop", "whole_lines")
    normed = "layer_norm" in options
    assert ("layer_norm needs all sums" if normed else "each step has two products") in str(plan)
    with pytest.raises(ValueError, match=r"^strategy: 'persistent' cannot run: "):
        rnn.plan(512, 8, "persistent")


def test_a_normed_diagonal_cell_does_not_project_as_it_walks():
    rnn = layer("IndRNN", {"layer_norm": True}, 64)
    for T, B in ((1, 1), (1, 0), (300, 4)):
        plan = rnn.plan(T, B)
        assert (plan.strategy, plan.runner_up) == ("fused_sequential", "fused_sequential")
    with pytest.raises(ValueError, match=r"^strategy: 'direct' cannot run: .*layer_norm stands"):
        rnn.plan(9, 2, "direct")


@pytest.mark.parametrize("options", [{"reset_after": False}, {"layer_norm": True}])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_same_call_gives_the_same_bits(options, dtype):
    rnn = layer("GRU", options, 33, num_layers=2, bidirectional=True, dtype=dtype)
    x, h_0, told = example(rnn, "reset", steps=20)
    results = []
    for _ in range(2):
        (y, h_n), pullback = rnn.vjp(x, h_0, **told)
        results.append([y, h_n, *flat(pullback(np.ones_like(y))[:2])])
        results[-1] += list(pullback(np.ones_like(y))[2].values())
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
