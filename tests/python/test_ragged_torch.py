# SPDX-License-Identifier: Apache-2.0
"""Ragged batches in scanrnn.torch: torch's PackedSequence beside torch.nn, and lengths, cu_seqlens
and resets under autograd and torch's transformations."""

import numpy as np
import pytest
from scanrnn import ragged
from scanrnn.ragged import Ragged
from support import ALL_CELLS, DEVICE, make
from test_errors import raises
from torch_support import (
    COMPILES,
    FORMS,
    LENGTHS,
    TORCHS_OWN,
    WIDE,
    flat,
    input_of,
    integers,
    module,
    numpy,
    operands,
    options_of,
    packed,
    same,
    st,
    state,
    tensor,
    torch,
)

rnn_utils = torch.nn.utils.rnn


@pytest.fixture
def compiled_anew():
    """torch compiles one function, here `forward`, only so many times."""
    torch.compiler.reset()


# ---- torch's PackedSequence


def pulled_back(rnn, sequence, x, hx):
    """y and the states, and gradients of a loss of all of them."""
    y, h_n = rnn(sequence, hx)
    out = [y.data, *flat([h_n])]
    rnn.zero_grad()
    sum((v * tensor(*v.shape, seed=i)).sum() for i, v in enumerate(out)).backward()
    given = [] if hx is None else flat([hx])
    return y, [*out, x.grad, *(h.grad for h in given), *(p.grad for p in rnn.parameters())]


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "num_layers": 2}],
)
@pytest.mark.parametrize("cell", TORCHS_OWN)
def test_packed_sequences_are_those_of_torch(cell, options, enforce_sorted, initial):
    ours, theirs = module(cell, 4, 6, **options), getattr(torch.nn, cell)(4, 6, **options)
    theirs = theirs.to(DEVICE, WIDE)
    ours.load_state_dict(theirs.state_dict())
    lengths = sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS
    results = []
    for rnn in (ours, theirs):
        x = tensor(9, 4, 4, grad=True)
        hx = state(ours, 4, grad=True) if initial else None
        given = x.transpose(0, 1) if ours.batch_first else x
        sequence = packed(given, lengths, ours.batch_first, enforce_sorted)
        y, found = pulled_back(rnn, sequence, x, hx)
        results.append((y, found))
        for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            one, other = getattr(y, name), getattr(sequence, name)
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
    (one, ours), (other, theirs) = results
    same(ours, theirs, share=1e-10)
    padded = [rnn_utils.pad_packed_sequence(y, total_length=11) for y in (one, other)]
    same([padded[0][0]], [padded[1][0]], share=1e-10)
    assert torch.equal(padded[0][1], padded[1][1])


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_packed_sequences_and_lengths_are_one(cell):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    x, h_0 = tensor(9, 4, rnn.input_size), state(rnn, 4)
    y, h_n = rnn(packed(x, LENGTHS), h_0)
    wanted, last = rnn(x, h_0, lengths=integers(LENGTHS))
    same([rnn_utils.pad_packed_sequence(y)[0]], [wanted])
    same([h_n], [last])


def test_one_packed_sequence_and_equal_ones():
    rnn = module("GRU", 4, 6)
    for batch, lengths in ((1, [7]), (3, [9, 9, 9]), (3, [1, 1, 1])):
        x = tensor(max(lengths), batch, 4)
        y, h_n = rnn(packed(x, lengths))
        wanted, last = rnn(x)
        same([rnn_utils.pad_packed_sequence(y)[0], h_n], [wanted, last])


def test_a_packed_sequence_enters_forward_once():
    """As in torch.nn: of a subclass, and of a module whose forward was wrapped."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 4), torch.ones(1, 4)]).to(DEVICE)
    found = []
    for kind in (torch.nn.GRU, st.GRU):

        class Heir(kind):
            def forward(self, input, hx=None):
                return super().forward(input._replace(data=2 * input.data), hx)

        torch.manual_seed(0)
        heir, wrapped, calls = Heir(4, 6).to(DEVICE), kind(4, 6).to(DEVICE), []
        wrapped.load_state_dict(heir.state_dict())
        forward = wrapped.forward
        wrapped.forward = lambda *args, of=forward, to=calls: to.append(args) or of(*args)
        found.append([heir(packed)[0].data, wrapped(packed)[0].data])
        assert len(calls) == 1
    for ours, theirs in zip(*found[::-1], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([6, -1], r"none below 1, 5 in all as input\.data has tokens, got \[6, -1\]"),
        ([3, 0, 2], r"got \[3, 0, 2\]"),
        ([2, 1, 2], r"expected numbers that do not rise, .* got \[2, 1, 2\]"),
        ([1] * 11, r"5 in all as input\.data has tokens, got 11 in all"),
        ([], r"expected a number for each step, got shape \(0,\)"),
    ],
)
def test_a_packed_sequence_of_other_sizes(sizes, words):
    sizes = torch.tensor(sizes, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"^input\.batch_sizes: .*{words}$"):
        module("GRU", 4, 6)(rnn_utils.PackedSequence(tensor(5, 4), sizes))
    with raises(TypeError, "input.batch_sizes: expected int64 on cpu, got torch.float32 on cpu"):
        module("GRU", 4, 6)(rnn_utils.PackedSequence(tensor(5, 4), torch.tensor([5.0])))


def test_what_a_packed_sequence_cannot_have():
    rnn, given = module("LSTM", 4, 6), packed(tensor(9, 4, 4), LENGTHS)
    with raises(ValueError, "lengths: expected None with a PackedSequence"):
        rnn(given, lengths=torch.tensor(LENGTHS))
    with raises(ValueError, "reset: expected None with a PackedSequence"):
        rnn(given, reset=torch.ones(9, 4, dtype=torch.bool))
    with raises(TypeError, r"h_0: expected the pair \(h_0, c_0\), got Tensor"):
        rnn(given, tensor(1, 4, 6))
    with raises(RuntimeError, r"Expected hidden\[0\] size \(1, 4, 6\), got \[1, 3, 6\]"):
        rnn(given, (tensor(1, 3, 6), tensor(1, 4, 6)))
    with raises(RuntimeError, "must be equal to input_size. Expected 4, got 5"):
        rnn(packed(tensor(9, 4, 5), LENGTHS))


# ---- lengths, cu_seqlens, reset


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_values_are_those_of_the_plain_layers(cell, form):
    rnn = module(cell, 4, 6, 2, bidirectional=True, dtype=WIDE)
    plain = make(cell, 4, 6, num_layers=2, bidirectional=True, dtype="float64")
    plain.load_state_dict({name: numpy(value) for name, value in rnn.state_dict().items()})
    x, h_0, options = input_of(rnn, form), state(rnn, 4), options_of(form)
    numpys = {name: value.cpu().numpy() for name, value in options.items()}
    (wanted, last), pullback = plain.vjp(x, h_0, **numpys)
    with torch.no_grad():
        inferred = rnn(x, h_0, **options)
    leaf = x.clone().requires_grad_()
    y, h_n = rnn(leaf, h_0, **options)
    same([y, h_n], [wanted, last], share=0.0)
    same(inferred, [wanted, last])
    y.sum().backward()
    dx, _, dparams = pullback(torch.ones_like(wanted))
    same([leaf.grad], [dx], share=0.0)
    same([p.grad for p in rnn.parameters()], list(dparams.values()), share=0.0)
    same([rnn(x, h_0, **numpys)[0]], [y], share=0.0)
    same([plain(x, h_0, **options)[0]], [inferred[0]], share=0.0)
    moved = {n: v if v.dtype == torch.bool else v.cpu() for n, v in options.items()}
    same([rnn(x, h_0, **moved)[0]], [y], share=0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradcheck(cell, form):
    rnn = module(cell, 4, 3, bidirectional=True)
    x, h_0, params = input_of(rnn, form), flat([state(rnn, 4)]), list(rnn.parameters())
    names = [name for name, _ in rnn.named_parameters()]

    def call(x, *rest):
        h_0, params = rest[: -len(names)], rest[-len(names) :]
        hx = h_0 if len(h_0) > 1 else h_0[0]
        y, h_n = torch.func.functional_call(
            rnn, dict(zip(names, params, strict=True)), (x, hx), options_of(form)
        )
        return y, *flat([h_n])[:kept]

    # The scale m of c and n is a constant to the gradients.
    kept = 1 if len(h_0) == 4 else len(h_0)
    leaves = [v.detach().requires_grad_() for v in (x, *h_0, *params)]
    if len(h_0) == 4:
        leaves[4].requires_grad_(False)
    assert torch.autograd.gradcheck(call, leaves)


def test_of_one_sequence_and_batch_first():
    rnn, other = module("MinGRU", 4, 6), module("MinGRU", 4, 6, batch_first=True)
    other.load_state_dict(rnn.state_dict())
    x, reset = tensor(9, 4), torch.arange(9, device=DEVICE) % 4 == 1
    same([rnn(x, reset=reset)[0]], [rnn(x[:, None], reset=reset[:, None])[0][:, 0]], 0.0)
    same([other(x, reset=reset)[0]], [rnn(x, reset=reset)[0]], 0.0)
    x, lengths = tensor(9, 4, 4), integers(LENGTHS)
    same(
        [other(x.transpose(0, 1), lengths=lengths)[0].transpose(0, 1)], [rnn(x, lengths=lengths)[0]]
    )


def test_numpys_integers_of_no_sequences():
    """Whose strides torch takes for those of no bytes."""
    rnn = make("GRU")
    none = np.zeros(0, np.int64)
    y, _ = rnn(torch.zeros(4, 0, rnn.input_size, device=DEVICE), lengths=none)
    assert y.shape == (4, 0, rnn.hidden_size)
    pool = torch.ones(1, 3, rnn.hidden_size, device=DEVICE)
    y, same_pool = rnn.step(torch.zeros(0, rnn.input_size, device=DEVICE), pool, state_indices=none)
    assert y.shape == (0, rnn.hidden_size)
    assert same_pool is pool
    assert (pool == 1).all()


def test_changed_lengths_are_noticed():
    rnn, lengths = module("GRU", 4, 6), integers(LENGTHS)
    y, _ = rnn(tensor(9, 4, 4), lengths=lengths)
    lengths.zero_()
    with raises(RuntimeError, "one of the variables needed .* modified by an inplace operation"):
        y.sum().backward()


def test_malformed():
    rnn, x = module("GRU", 4, 6), tensor(9, 4, 4)
    with raises(TypeError, "lengths: expected dtype one of 'int64', 'int32'", "got float64"):
        rnn(x, lengths=torch.ones(4, dtype=WIDE))
    with raises(TypeError, "lengths: expected an array without a mask, got a masked array"):
        rnn(x, lengths=np.ma.masked_array(LENGTHS))
    with raises(TypeError, "lengths: expected a tensor", "got list"):
        rnn(x, lengths=LENGTHS)
    with raises(ValueError, r"lengths: expected shape \(4,\)", r"got \(3,\)"):
        rnn(x, lengths=torch.ones(3, dtype=torch.int64))
    for host in (torch.tensor, np.array):
        with raises(ValueError, r"lengths: expected integers in \[0, 9\], got 10 at 2"):
            rnn(x, lengths=host([1, 2, 10, 3]))
    with raises(TypeError, "reset: expected dtype bool", "got int64"):
        rnn(x, reset=torch.ones(9, 4, dtype=torch.int64))
    with raises(ValueError, r"reset: expected shape \(9, 4\)", r"got \(4, 9\)"):
        rnn(x, reset=torch.ones(4, 9, dtype=torch.bool, device=DEVICE))
    with raises(ValueError, r"input: expected \(tokens, C\) with C = 4", r"\(9, 4, 4\)"):
        rnn(x, cu_seqlens=torch.tensor([0, 9]))
    with raises(ValueError, "lengths: expected None beside cu_seqlens"):
        rnn(x, lengths=torch.ones(4), cu_seqlens=torch.tensor([0, 9]))
    with raises(ValueError, "lengths: expected None for one sequence"):
        rnn(x[:, 0], lengths=torch.tensor([4]))


@pytest.mark.parametrize("host", [torch.tensor, np.array])
def test_integers_that_are_moved_are_checked_before(host):
    """x has no memory here, so that nobody else can look at them on the way."""
    x = torch.empty(9, 4, 4, device="meta")
    library = st.tensors.Operands("input", x)
    told = ragged.checked(library, Ragged(lengths=host(LENGTHS)), x.shape, 1)
    assert told.lengths.device == x.device
    with raises(ValueError, r"lengths: expected integers in \[0, 9\], got 10 at 1"):
        ragged.checked(library, Ragged(lengths=host([1, 10, 2, 3])), x.shape, 1)
    with raises(ValueError, "cu_seqlens: expected 0 at first and .* tokens, 9, .* got 0 and 8"):
        ragged.checked(library, Ragged(cu_seqlens=host([0, 8])), x[:, 0].shape, 1)
    with raises(ValueError, "state_indices: expected each state once, got 3 again at 2"):
        ragged.check_rows(library, host([3, -1, 3]), 4)


# ---- torch's transformations


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_opcheck(cell, form):
    rnn = module(cell, 4, 8, 2)
    big = {"packed": (256, 4), "packed_reset": (256, 4)}.get(form, (64, 4, 4))
    x, (_, h_0, params) = tensor(*big, grad=True), operands(rnn, 1, 4, grad=True)
    given = options_of(form, 64)
    if "lengths" in given:  # all of them: what the reserve holds of other steps is undefined
        given["lengths"] = integers([64] * 4)
    if "packed" in form:
        given["cu_seqlens"] = integers([0, 5, 5, 100, 256])
    if form == "packed_reset":
        given["reset"] = torch.arange(256, device=DEVICE) % 7 == 3
    steps = [given.get(name) for name in ("lengths", "cu_seqlens", "reset")]
    description = rnn._description()
    layer, backward = torch.ops.scanrnn.layer, torch.ops.scanrnn.layer_backward
    torch.library.opcheck(layer.default, (x, h_0, params, *steps, None, True, *description))
    x, h_0, params = (
        torch.utils._pytree.tree_map(torch.Tensor.detach, v) for v in (x, h_0, params)
    )
    y, *finals, reserve = layer(x, h_0, params, *steps, None, True, *description)
    dh_n = finals[: len(h_0)]
    arguments = (y, dh_n, x, h_0, y, params, *steps, reserve, None, True, True, *description)
    torch.library.opcheck(backward.default, arguments)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_the_reserve_is_large_enough(cell):
    """Its symbolic size against what the library asks for."""
    for hidden, layers, steps, batch in (
        (h, 2, t, b) for h in (1, 5, 64) for t in (0, 1, 3, 17, 300) for b in (1, 2, 33, 400)
    ):
        rnn = module(cell, 3, hidden, layers, bidirectional=True)
        layer = rnn._description().layer(rnn.input_size, "float64")
        device = torch.device(DEVICE)
        for layout in ("ragged", "packed"):
            sizes = st.layer_work.Batch(steps, batch, layout)
            plan = layer.plan(st.tensors.device_of(device), steps, batch, True, None, layout)
            rows, width = st.layer_work.reserve_shape(layer, device, sizes)
            assert rows * width >= plan.reserve_bytes, (hidden, layers, *sizes)


@COMPILES
@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_compile(cell, form, dynamic):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    results = []
    for call in (rnn, compiled):
        leaf = input_of(rnn, form, grad=True)
        out = flat(call(leaf, state(rnn, 4), **options_of(form)))
        rnn.zero_grad()
        sum(v.square().sum() for v in out).backward()
        results.append([*out, leaf.grad, *(p.grad.clone() for p in rnn.parameters())])
    same(*results)


@COMPILES
@pytest.mark.usefixtures("compiled_anew")
def test_compile_of_a_packed_sequence():
    """What pack_padded_sequence sorts has its number of sequences in a shape."""
    rnn = module("GRU", 4, 6)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager")
    given = packed(tensor(9, 4, 4), LENGTHS)
    (y, h_n), (wanted, last) = compiled(given), rnn(given)
    same([y.data, h_n], [wanted.data, last])


@COMPILES
def test_export():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module("MinLSTM", 4, 6)

        def forward(self, x, lengths):
            return self.rnn(x, lengths=lengths)[0]

    net, x, lengths = Net(), tensor(9, 4, 4), integers(LENGTHS)
    program = torch.export.export(net, (x, lengths))
    same([program.module()(x, lengths)], [net(x, lengths)])


@pytest.mark.parametrize("form", FORMS)
def test_autocast(form):
    rnn = module("GRU", 4, 6, dtype=torch.float32)
    x, options = input_of(rnn, form, grad=True), options_of(form)
    with torch.autocast(DEVICE, torch.bfloat16):
        y, _ = rnn(x.float(), **options)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    wanted, _ = rnn(x.float(), **options)
    np.testing.assert_allclose(numpy(y), numpy(wanted), rtol=0, atol=0.05)
    assert x.grad.abs().sum() > 0


def test_autocast_of_a_packed_sequence():
    rnn, x = module("LSTM", 4, 6, dtype=torch.float32), tensor(9, 4, 4, dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        y, (h_n, _) = rnn(packed(x, LENGTHS))
    assert y.data.dtype == h_n.dtype == torch.bfloat16


@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_vmap(cell):
    rnn, x = module(cell, 4, 6), tensor(3, 9, 4, 4)
    lengths = integers([LENGTHS, LENGTHS[::-1], [9, 9, 0, 9]])
    with torch.no_grad():
        found = torch.vmap(lambda x, n: rnn(x, lengths=n)[0])(x, lengths)
        same(
            [found], [torch.stack([rnn(v, lengths=n)[0] for v, n in zip(x, lengths, strict=True)])]
        )
        shared = torch.vmap(lambda x: rnn(x, lengths=lengths[0])[0])(x)
        same([shared], [torch.stack([rnn(v, lengths=lengths[0])[0] for v in x])])
