# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: the values of scanrnn's layers, and everything that torch does with operators."""

import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
import scanrnn
from support import ALL_CELLS, ALL_VARIANTS, DEVICE, OPTION, assert_close, make, normal, tolerance
from test_errors import raises

torch = pytest.importorskip("torch")
if DEVICE != "cpu" and not torch.cuda.is_available():
    pytest.skip("this torch has no GPU", allow_module_level=True)
import scanrnn.torch as st  # noqa: E402

WIDE = torch.float64
TORCHS_OWN = [cell for cell in ALL_CELLS if hasattr(torch.nn, cell)]
# What torch says of itself when it compiles, and of float32 where TF32 could be.
COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
GPU = pytest.mark.skipif(DEVICE == "cpu", reason="wants SCANRNN_TEST_DEVICE=cuda")


def module(cell, *sizes, variant=None, dtype=WIDE, **options):
    if variant:
        options[OPTION[cell]] = variant
    torch.manual_seed(0)
    return getattr(st, cell)(*sizes, device=DEVICE, dtype=dtype, **options)


def tensor(*shape, dtype=WIDE, grad=False, seed=0):
    values = torch.tensor(normal(*shape, dtype=np.float64, seed=seed))
    return values.to(DEVICE, dtype).requires_grad_(grad)


def state(rnn, batch, dtype=WIDE, grad=False):
    """h_0 for a module: a tensor or a pair."""
    rows = rnn.num_layers * (2 if rnn.bidirectional else 1)
    shape = (rows, rnn.hidden_size) if batch is None else (rows, batch, rnn.hidden_size)
    count = st.ops.states_of(type(rnn).__name__)
    states = tuple(tensor(*shape, dtype=dtype, grad=grad, seed=7 + i) for i in range(count))
    return states if count > 1 else states[0]


def flat(values):
    return [v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])]


def numpy(value):
    return value.detach().to("cpu", WIDE).numpy()


def same(got, wanted, share=1e-12):
    for g, w in zip(flat(got), flat(wanted), strict=True):
        assert_close(numpy(g), numpy(w), share)


def operands(rnn, steps, batch, grad=False):
    """Arguments of the operator for a module's call."""
    x = tensor(steps, batch, rnn.input_size, grad=grad)
    params = [p.detach().clone().requires_grad_(grad) for p in rnn.parameters()]
    return x, flat([state(rnn, batch, grad=grad)]), params


# ---- values


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_values_are_those_of_the_plain_layers(cell, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = module(cell, 4, 6, 2, dtype=getattr(torch, dtype))
    plain = make(cell, 4, 6, num_layers=2, dtype=dtype)
    plain.load_state_dict({n: numpy(v).astype(plain.dtype) for n, v in rnn.state_dict().items()})
    x, h_0 = tensor(9, 3, 4, dtype=rnn.weight_ih_l0.dtype), state(rnn, 3, rnn.weight_ih_l0.dtype)
    y, h_n = rnn(x, h_0)
    assert y.dtype == x.dtype
    for got, wanted in zip(flat([y, h_n]), flat(plain(x, h_0)), strict=True):
        np.testing.assert_array_equal(numpy(got), numpy(wanted))
    sum(v.sum() for v in flat([y, h_n])).backward()
    (y, h_n), pullback = plain.vjp(x, h_0)
    ones = [torch.ones_like(v) for v in flat([h_n])]
    _, _, dparams = pullback(torch.ones_like(y), tuple(ones) if len(ones) > 1 else ones[0])
    for name, value in rnn.named_parameters():
        np.testing.assert_array_equal(numpy(value.grad), numpy(dparams[name]), name)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_one_sequence_is_a_batch_of_one(cell, bidirectional, batch_first):
    rnn = module(cell, 4, 6, 2, batch_first=batch_first, bidirectional=bidirectional)
    x, h_0 = tensor(9, 4), state(rnn, None)
    one = [s[:, None] for s in flat([h_0])]
    y, h_n = rnn(x, h_0)
    y_2, h_2 = rnn(x[None] if batch_first else x[:, None], tuple(one) if len(one) > 1 else one[0])
    same([y, h_n], [y_2.squeeze(0 if batch_first else 1), *(h[:, 0] for h in flat([h_2]))])
    same([rnn(x)[0]], [rnn(x, h_0)[0] * 0 + rnn(x)[0]])


@pytest.mark.parametrize("cell", TORCHS_OWN)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "num_layers": 3},
    ],
)
def test_torchs_own_state_dicts_and_values(cell, options):
    ours, theirs = module(cell, 4, 6, **options), getattr(torch.nn, cell)(4, 6, **options)
    theirs = theirs.to(DEVICE, WIDE)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x, h_0 = tensor(9, 3, 4), state(ours, 9 if ours.batch_first else 3)
    results = []
    for rnn in (ours, theirs):
        leaf = x.clone().requires_grad_()
        out = flat(rnn(leaf, h_0))
        rnn.zero_grad()
        sum((v * tensor(*v.shape, seed=i)).sum() for i, v in enumerate(out)).backward()
        results.append([*out, leaf.grad, *(p.grad for p in rnn.parameters())])
    same(*results, share=1e-10)
    assert [len(g) for g in ours.all_weights] == [len(g) for g in theirs.all_weights]


# ---- gradients


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids="-".join)
def test_gradcheck(variant):
    cell, variant = variant
    rnn = module(cell, 3, 3, variant=variant)
    description = rnn._description(0.0)

    def call(x, *rest):
        count = st.ops.states_of(cell)
        h_0, params = list(rest[:count]), list(rest[count:])
        return torch.ops.scanrnn.layer(x, h_0, params, None, True, *description)[: 1 + count]

    x, h_0, params = operands(rnn, 5, 2, grad=True)
    assert torch.autograd.gradcheck(call, (x, *h_0, *params))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradcheck_of_stacks(cell):
    rnn = module(cell, 2, 3, 2, bidirectional=True, batch_first=True, bias=False)
    x, h_0 = tensor(2, 4, 2, grad=True), state(rnn, 2, grad=True)
    assert torch.autograd.gradcheck(lambda x: rnn(x)[0], x)  # h_0 None
    assert torch.autograd.gradcheck(lambda *h: rnn(x.detach(), h if len(h) > 1 else h[0])[0], h_0)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_only_what_is_wanted(cell):
    rnn = module(cell, 4, 6)
    x = tensor(9, 3, 4, grad=True)
    rnn.requires_grad_(False)
    rnn(x)[0].sum().backward()
    wanted = x.grad
    rnn.requires_grad_(True)
    x.grad = None
    y, h_n = rnn(x)
    y.sum().backward()
    same([x.grad], [wanted])
    assert all(p.grad is not None for p in rnn.parameters())
    rnn(x.detach())[0].sum().backward()
    _, h_n = rnn(x)
    flat([h_n])[-1].sum().backward()  # the last state alone, and of a pair the second alone
    with torch.no_grad():
        assert rnn(x)[0].grad_fn is None
    with torch.inference_mode():
        same([rnn(x)[0]], [y])


def test_second_derivatives_are_an_error():
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4, grad=True)
    (dx,) = torch.autograd.grad(rnn(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives of a layer are not there"):
        dx.sum().backward()


def test_what_is_saved_may_not_be_written_to():
    rnn, x = module("MinGRU", 4, 6), tensor(9, 3, 4)
    y, _ = rnn(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("move", ["to the cpu and back", "to an odd address"])
def test_saved_tensors_may_be_moved(move):
    rnn, x = module("SRU", 4, 6, 2), tensor(9, 3, 4, grad=True)
    (wanted,) = torch.autograd.grad(rnn(x)[0].sum(), x)

    def odd(value):
        raw = torch.empty(value.nbytes + 1, dtype=torch.uint8, device=value.device)
        raw[1:] = value.contiguous().view(-1).view(torch.uint8)
        return raw[1:].view(value.shape) if value.dtype == torch.uint8 else value

    hooks = (
        torch.autograd.graph.save_on_cpu()
        if move == "to the cpu and back"
        else torch.autograd.graph.saved_tensors_hooks(odd, lambda value: value)
    )
    with hooks:
        out = rnn(x)[0].sum()
    (got,) = torch.autograd.grad(out, x)
    same([got], [wanted])


def test_owners_may_go_right_after_the_call():
    rnn = module("MinLSTM", 4, 256, dtype=torch.float32)
    x = tensor(200, 8, 4, dtype=torch.float32)
    wanted = numpy(rnn(x)[0])
    gone = weakref.ref(x)
    with torch.no_grad():
        y, _ = rnn(x)
    del x
    gc.collect()
    assert gone() is None
    noise = [torch.full((200, 8, 4), float("nan"), device=DEVICE) for _ in range(8)]
    np.testing.assert_array_equal(numpy(y), wanted)
    del noise


# ---- the bare recurrence


def test_scan():
    for reverse in (False, True):
        a, b, h_0 = tensor(20, 3, 2), tensor(20, 3, 2, seed=1), tensor(3, 2)
        arrays = [numpy(v) for v in (a, b, h_0)]
        same([st.scan(a, b, h_0, reverse)], [torch.tensor(scanrnn.scan(*arrays, reverse=reverse))])
        same([st.scan(a, b)], [torch.tensor(scanrnn.scan(*arrays[:2]))])
    log_a, log_b, sign = -a.abs(), b.abs().log(), b.sign()
    same([st.scan_log(log_a, log_b, sign, h_0)], [st.scan(log_a.exp(), b, h_0)], 1e-11)
    assert st.scan(a[:0], b[:0]).shape == (0, 3, 2)
    same([st.scan(a.mT, b.mT).mT], [st.scan(a, b)])


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_gradients(reverse):
    a, b, h_0 = (tensor(*s, grad=True) for s in ((6, 2), (6, 2), (2,)))
    assert torch.autograd.gradcheck(lambda *v: st.scan(*v, reverse=reverse), (a, b, h_0))
    assert torch.autograd.gradgradcheck(lambda *v: st.scan(*v, reverse=reverse), (a, b, h_0))
    assert torch.autograd.gradcheck(lambda *v: st.scan(*v, reverse=reverse), (a, b))


def test_scan_log_gradients():
    log_a, log_b = (-tensor(6, 2, seed=s).abs().detach() for s in (1, 2))
    sign, h_0 = tensor(6, 2).sign(), tensor(2, grad=True)
    leaves = [v.requires_grad_() for v in (log_a, log_b)]
    assert torch.autograd.gradcheck(lambda a, b, h: st.scan_log(a, b, sign, h), (*leaves, h_0))
    assert torch.autograd.gradcheck(lambda a, b: st.scan_log(a, b), leaves)


# ---- torch's transformations

OPCHECK_SIZES = (
    16,
    16,
)  # whole multiples of the reserve's alignment: none of its bytes is undefined


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_opcheck_of_a_layer(cell):
    rnn = module(cell, 4, 8, 2)
    x, h_0, params = operands(rnn, *OPCHECK_SIZES, grad=True)
    description = rnn._description(0.0)
    layer, backward = torch.ops.scanrnn.layer, torch.ops.scanrnn.layer_backward
    torch.library.opcheck(layer.default, (x, h_0, params, None, True, *description))
    x, h_0, params = operands(rnn, *OPCHECK_SIZES)
    torch.library.opcheck(layer.default, (x, [], params, None, False, *description))
    y, h_n, c_n, reserve = layer(x, h_0, params, None, True, *description)
    dh_n = [h_n, c_n][: len(h_0)]
    for need_x, need_params in ((True, True), (False, True), (True, False)):
        arguments = (y, dh_n, x, h_0, y, params, reserve, None, need_x, need_params, *description)
        torch.library.opcheck(backward.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_the_reserve_is_large_enough(cell, dtype):
    """Its symbolic size against what the library asks for."""
    for hidden, layers, steps, batch in (
        *((h, 2, t, b) for h in (1, 5, 64) for t in (0, 1, 3, 17, 300) for b in (1, 2, 33)),
        (7, 1, 1, 0), (7, 3, 0, 5), (129, 1, 1000, 1),
    ):  # fmt: skip
        description = module(cell, 3, hidden, layers, dtype=dtype)._description(0.0)
        x = torch.empty(steps, batch, 3, dtype=dtype, device=DEVICE)
        layer = st.ops._core_layer(dtype, 3, description)
        plan = layer.plan(st.ops._device(x.device), steps, batch, True, None)
        rows, width = st.ops._reserve_shape(layer, x, False)
        assert rows * width >= plan.reserve_bytes, (hidden, layers, steps, batch)


def test_opcheck_of_a_scan():
    a, b, h_0 = (tensor(*s, grad=True) for s in ((6, 2), (6, 2), (2,)))
    torch.library.opcheck(torch.ops.scanrnn.scan.default, (a, b, None, h_0, False, True))
    torch.library.opcheck(
        torch.ops.scanrnn.scan.default, (a, b, b.detach().sign(), h_0, True, False)
    )


@COMPILES
@pytest.mark.parametrize("cell", ALL_CELLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(cell, dynamic):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for steps, batch in ((9, 3), (9, 3), *([(17, 5), (300, 2)] if dynamic else [])):
        x, h_0 = tensor(steps, batch, 4), state(rnn, batch)
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
    rnn, x = module(cell, 4, 6, 2, dtype=torch.float32), tensor(9, 3, 4, dtype=torch.float32)
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


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_vmap(cell):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    x = tensor(5, 9, 3, 4)
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


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_vmap_over_parameters_and_over_cotangents(cell):
    rnn, x = module(cell, 4, 6), tensor(9, 2, 4)
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


def test_vmap_of_scan():
    a, b, h_0 = tensor(5, 9, 3), tensor(9, 3, seed=1), tensor(3)
    got = torch.vmap(st.scan, (0, None, None))(a, b, h_0)
    same([got], [torch.stack([st.scan(v, b, h_0) for v in a])])


# ---- being a module


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_pickle_copy_and_move(cell):
    rnn = module(cell, 4, 6, 2, variant=scanrnn.cells()[ALL_CELLS.index(cell)].variants[-1])
    x = tensor(9, 3, 4)
    wanted = rnn(x)[0]
    file = io.BytesIO()
    torch.save(rnn.state_dict(), file)
    file.seek(0)
    fresh = module(cell, 4, 6, 2, variant=rnn.variant)
    torch.nn.init.zeros_(fresh.weight_ih_l0)
    fresh.load_state_dict(torch.load(file))
    for other in (pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn), fresh):
        np.testing.assert_array_equal(numpy(other(x)[0]), numpy(wanted))
    single = copy.deepcopy(rnn).to(torch.float32)
    assert single(x.float())[0].dtype == torch.float32
    assert_close(numpy(single(x.float())[0]), numpy(wanted), 1e-5)
    assert copy.deepcopy(rnn).to("meta").weight_ih_l0.is_meta
    assert repr(rnn).startswith(f"{cell}(4, 6, num_layers=2")


def test_shapes_on_the_meta_device():
    rnn = st.MinGRU(4, 6, device="meta")
    y, h_n = rnn(torch.empty(9, 3, 4, device="meta"))
    assert (y.shape, h_n.shape, y.is_meta) == ((9, 3, 6), (1, 3, 6), True)


def test_dropout_is_governed_by_torchs_generator():
    rnn, x = module("MinGRU", 4, 32, 3, dropout=0.5), tensor(9, 3, 4, grad=True)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(numpy(rnn(x)[0]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.abs(draws[0] - draws[2]).max() > 0.01
    with torch.no_grad():
        torch.manual_seed(1)
        np.testing.assert_array_equal(numpy(rnn(x)[0]), draws[0])  # with or without a gradient
    torch.manual_seed(1)
    (wanted,) = torch.autograd.grad(rnn(x)[0].sum(), x)
    torch.manual_seed(1)
    saved = torch.utils.checkpoint.checkpoint(lambda x: rnn(x)[0], x, use_reentrant=False)
    (got,) = torch.autograd.grad(saved.sum(), x)
    same([got], [wanted])
    rnn.eval()
    same([rnn(x)[0]], [rnn(x)[0]], 0)


def test_training_finds_what_to_remember():
    torch.manual_seed(0)
    rnn = st.MinLSTM(2, 16, device=DEVICE)
    head = torch.nn.Linear(16, 2, device=DEVICE)
    params = [*rnn.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(params, 0.05)
    for _ in range(100):  # which of two symbols came first, 6 steps ago
        first = torch.randint(0, 2, (32,), device=DEVICE)
        x = torch.randn(6, 32, 2, device=DEVICE) * 0.1
        x[0] = torch.nn.functional.one_hot(first, 2).float()
        loss = torch.nn.functional.cross_entropy(head(rnn(x)[0][-1]), first)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


# ---- bad input


def test_errors():
    rnn, x = module("MinGRU", 4, 6, dtype=torch.float32), tensor(9, 3, 4, dtype=torch.float32)
    with raises(TypeError, "x: expected dtype torch.float32, that of the parameters, got .*64"):
        rnn(x.double())
    with raises(TypeError, "h_0: expected dtype torch.float32"):
        rnn(x, tensor(1, 3, 6))
    with raises(TypeError, "x: expected device .*, got meta: move one of them"):
        rnn(x.to("meta"))
    with raises(ValueError, "x: expected .T, B, C., or .T, C.* C = 4", r"got shape \(9, 3, 5\)"):
        rnn(tensor(9, 3, 5, dtype=torch.float32))
    with raises(ValueError, "x: expected", r"got shape \(4,\)"):
        rnn(x[0, 0])
    with raises(ValueError, r"h_0: expected shape \(1, 3, 6\) = ", r"got \(2, 3, 6\)"):
        rnn(x, tensor(2, 3, 6, dtype=torch.float32))
    with raises(TypeError, "h_0: expected a tensor, got tuple"):
        rnn(x, (x, x))
    with raises(TypeError, "x: expected a tensor, got ndarray"):
        rnn(normal(9, 3, 4))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [9, 4, 2])
    with raises(TypeError, "x: .*got PackedSequence: pad_packed_sequence makes"):
        rnn(packed)
    with raises(ValueError, "proj_size: expected 0"):
        module("MinGRU", 4, 6, proj_size=3)
    with raises(ValueError, "dtype: expected one of .*, got torch.int32"):
        module("MinGRU", 4, 6, dtype=torch.int32)
    with raises(ValueError, "hidden_size: expected a positive number, got 0"):
        module("MinGRU", 4, 0)
    with raises(ValueError, "candidate: expected one of 'g'", "got 'relu'"):
        module("MinGRU", 4, 6, candidate="relu")
    with raises(TypeError, "MinGRU: unexpected argument 'activation'"):
        module("MinGRU", 4, 6, activation="tanh")
    with raises(ValueError, "strategy: expected one of"):
        module("MinGRU", 4, 6, strategy="fastest")(tensor(9, 3, 4))
    with raises(TypeError, "b: expected dtype torch.float32, got torch.float64; nothing is cast"):
        st.scan(x, x.double())
    with raises(TypeError, "a: expected dtype one of .*, got torch.complex64"):
        st.scan(x.to(torch.complex64), x)
    with raises(TypeError, "b: expected device .*, got meta"):
        st.scan(x, x.to("meta"))
    with raises(ValueError, r"h_0: expected shape \(3, 4\) to go", r"got \(1, 4\)"):
        st.scan(x, x, x[0, :1])


def test_the_operator_checks_too():
    rnn = module("MinGRU", 4, 6)
    x, h_0, params = operands(rnn, 9, 3)
    description = rnn._description(0.0)
    with raises(TypeError, "weight_ih_l0: expected dtype float32, got float64"):
        torch.ops.scanrnn.layer(x.float(), [], params, None, False, *description)
    with raises(ValueError, "params: expected 2 tensors, got 1"):
        torch.ops.scanrnn.layer(x, [], params[:1], None, False, *description)
    with raises(RuntimeError, "backward needs what training=True leaves"):
        x.requires_grad_()
        torch.ops.scanrnn.layer(x, h_0, params, None, False, *description)[0].sum().backward()


# ---- several processes, graphs


def _replica(rank, folder):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    rnn = module("MinGRU", 4, 6, 2)
    replica = torch.nn.parallel.DistributedDataParallel(rnn)
    x = tensor(9, 4, 4)[:, 2 * rank : 2 * rank + 2]
    replica(x)[0].square().mean().backward()
    grads = [p.grad.clone() for p in rnn.parameters()]
    rnn.zero_grad()
    rnn(tensor(9, 4, 4))[0].square().mean().backward()
    same(grads, [p.grad for p in rnn.parameters()])
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_ddp_of_two_processes(tmp_path):
    torch.multiprocessing.spawn(_replica, (str(tmp_path),), nprocs=2)


@GPU
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # torch's, of any warm-up
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_cuda_graph(cell):
    rnn = module(cell, 64, 64, 2, dtype=torch.float32)
    x, h_0 = tensor(32, 8, 64, dtype=torch.float32, grad=True), state(rnn, 8, torch.float32)

    def run():
        y, h_n = rnn(x, h_0)
        sum(v.square().sum() for v in flat([y, h_n])).backward()
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
            x.grad = None
            rnn.zero_grad()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    with torch.no_grad():
        x.copy_(tensor(32, 8, 64, dtype=torch.float32, seed=3))
    graph.replay()
    got = [y.clone(), x.grad.clone(), *(p.grad.clone() for p in rnn.parameters())]
    x.grad = None
    rnn.zero_grad()
    same(got, [run(), x.grad, *(p.grad for p in rnn.parameters())], 1e-6)


@GPU
def test_work_is_on_the_current_stream():
    rnn, x = module("MinGRU", 64, 64, dtype=torch.float32), tensor(256, 8, 64, dtype=torch.float32)
    wanted = rnn(x)[0]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = torch.empty_like(x)
        torch.cuda._sleep(200_000_000)  # the producer is still at work when the call is made
        late.copy_(x)
        y = rnn(late)[0]
        assert not side.query(), "the host has waited"
    side.synchronize()
    same([y], [wanted], 0)
