# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: values and gradients of layers."""

import gc
import weakref

import numpy as np
import pytest
from support import ALL_CELLS, ALL_VARIANTS, DEVICE, make
from torch_support import (
    TORCHS_OWN,
    WHOLE,
    WIDE,
    flat,
    module,
    numpy,
    operands,
    same,
    state,
    tensor,
    torch,
)

# ---- values


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_values_are_those_of_the_plain_layers(cell, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rnn = module(cell, 4, 6, 2, dtype=getattr(torch, dtype))
    plain = make(cell, 4, 6, num_layers=2, dtype=dtype)
    plain.load_state_dict({n: numpy(v).astype(plain.dtype) for n, v in rnn.state_dict().items()})
    kind = rnn.weight_ih_l0.dtype
    x, h_0 = tensor(9, 3, rnn.input_size, dtype=kind), state(rnn, 3, kind)
    with torch.no_grad():
        inferred = rnn(x, h_0)
    trained, (wanted, pullback) = rnn(x, h_0), plain.vjp(x, h_0)
    assert trained[0].dtype == x.dtype
    for got, want in ((inferred, plain(x, h_0)), (trained, wanted)):
        for one, other in zip(flat(got), flat(want), strict=True):
            np.testing.assert_array_equal(numpy(one), numpy(other))
    sum(v.sum() for v in flat(trained)).backward()
    y, h_n = wanted
    ones = [torch.ones_like(v) for v in flat([h_n])]
    _, _, dparams = pullback(torch.ones_like(y), tuple(ones) if len(ones) > 1 else ones[0])
    for name, value in rnn.named_parameters():
        np.testing.assert_array_equal(numpy(value.grad), numpy(dparams[name]), name)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_one_sequence_is_a_batch_of_one(cell, bidirectional, batch_first):
    rnn = module(cell, 4, 6, 2, batch_first=batch_first, bidirectional=bidirectional)
    x, h_0 = tensor(9, rnn.input_size), state(rnn, None)
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
    description = rnn._description()

    def call(x, *rest):
        count = rnn._cell.states
        h_0, params = list(rest[:count]), list(rest[count:])
        out = torch.ops.scanrnn.layer(x, h_0, params, *WHOLE, None, True, *description)
        return out[: 2 if count == 4 else 1 + count]  # c and n of four have a constant scale

    x, h_0, params = operands(rnn, 5, 2, grad=True)
    assert torch.autograd.gradcheck(call, (x, *h_0, *params))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradcheck_of_stacks(cell):
    rnn = module(cell, 2, 3, 2, bidirectional=True, batch_first=True, bias=False)
    x, h_0 = tensor(2, 4, rnn.input_size, grad=True), state(rnn, 2, grad=True)
    assert torch.autograd.gradcheck(lambda x: rnn(x)[0], x)  # h_0 None
    assert torch.autograd.gradcheck(lambda *h: rnn(x.detach(), h if len(h) > 1 else h[0])[0], h_0)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_only_what_is_wanted(cell):
    rnn = module(cell, 4, 6)
    x = tensor(9, 3, rnn.input_size, grad=True)
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


@pytest.mark.usefixtures("few_objects")
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
