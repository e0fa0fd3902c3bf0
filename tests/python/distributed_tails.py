# SPDX-License-Identifier: Apache-2.0
"""Ranks that work at once where gates forget, beside the whole sequence on one device."""

import contextlib
import functools

import pytest
import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from distributed_compare import SHARE, compare, part_of, refused, span
from distributed_order import backward_of_parts, in_one_order
from scanrnn.torch.distributed import tails
from scanrnn.torch.distributed.exchange import Link
from support import INFO
from torch_support import WIDE, module, same, st, tensor

PARTS = {2: [330, 250], 3: [250, 300, 260]}
LINEAR = sorted(name for name, cell in INFO.items() if cell.recurrence == "linear")


@contextlib.contextmanager
def changed(**constants):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(tails, name, value)
        yield


def short():
    """Tails of small shards, whatever sizes say."""
    return changed(FIRST=16, LEAST=1, SHARE=1, PAYS=1e9)


def forgets(name, *sizes, **options):
    rnn = module(name, *sizes, **options)
    with torch.no_grad():
        for own, value in rnn.named_parameters():
            if own.startswith("weight_a"):  # of RGLRU, which keeps as it begins
                value.fill_(0.5)
    return rnn


def keep(rnn, layer=0):
    """With hardly a gate that forgets; MinGRU's."""
    with torch.no_grad():
        getattr(rnn, f"bias_ih_l{layer}")[: rnn.hidden_size] = -9
    return rnn


def at_once(world, rnn, way="tails", taken="tails", **told):
    """Results, and the way that was taken; tails make no turn of the pipeline's."""
    parts = told.setdefault("parts", PARTS[world.size])
    model, turns = sd.TimeSharded(rnn, way=way), []
    walk = Link.walk

    def walked(link, *args, **options):
        turns.append(args)
        walk(link, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "walk", walked)
        got = compare(world, rnn, model, steps=sum(parts), **told)
    assert model.taken == taken
    assert len(turns) == (0 if taken == "tails" else 2)
    if taken == "tails":
        assert len(model.cut) == 1
    return got


def cell_of(world, name):
    for size, layers, both in ((8, 1, False), (8, 2, True), (6, 3, False)):
        if INFO[name].square:
            size = 8
        for batch_first in (False, True):
            rnn = forgets(name, size, 8, layers, bidirectional=both, batch_first=batch_first)
            at_once(world, rnn)
            at_once(world, rnn, initial=False)
    at_once(world, rnn, batch=None)
    with short():
        at_once(world, rnn, way="auto")
    at_once(world, rnn, way="pipeline", taken="pipeline")
    for variant in INFO[name].variants if INFO[name].variant_option else ():
        at_once(world, forgets(name, 8, 8, variant=variant, domain="linear"))


def precisions(world):
    for name in LINEAR:
        rnn = forgets(name, 8, 8, 2, dtype=torch.float32, bidirectional=True)
        with short():
            at_once(world, rnn, way="auto", share=1e-5)
        half = forgets(name, 8, 8, 1, dtype=torch.bfloat16)
        at_once(world, half, share=0.05)
        parts = PARTS[world.size]
        x, here = tensor(sum(parts), 3, 8, dtype=torch.float32), span(world, parts)
        with torch.autocast(world.device.type, torch.bfloat16):
            want, model = rnn(x)[0], sd.TimeSharded(rnn, way="tails")
            got = model(x[here])[0]
        assert model.taken == "tails"
        assert got.dtype == want.dtype == torch.bfloat16
        same([got], [want[here]], share=0.05)
    half = forgets("SRU", 8, 8, dtype=torch.float16)
    at_once(world, half, share=0.01)


def gates_that_keep(world):
    for layers, layer, both in ((1, 0, False), (2, 1, False), (2, 0, True)):
        rnn = keep(module("MinGRU", 8, 8, layers, bidirectional=both), layer)
        with short():
            at_once(world, rnn, way="auto", taken="pipeline")
        x = tensor(100, 2, 8)
        words = r"way: expected 'auto' or 'pipeline' where gates keep a state, got 'tails': .* 100 "
        refused(ValueError, words, lambda: sd.TimeSharded(rnn, way="tails")(x))  # noqa: B023
    rnn, x = module("MinGRU", 8, 8), tensor(100, 2, 8)
    x[-1] = torch.nan
    with short():
        model = sd.TimeSharded(rnn)
        model(x)
    assert model.taken == "pipeline"


def lengths_of_tails(world):
    """Gates that forget slowly get the steps that they need, if there are so many."""
    rnn, found = module("MinGRU", 8, 8, 2, dtype=torch.float32), []
    settled = tails.Tails.settled

    def seen(self, *args):
        every = settled(self, *args)
        found.append(list(self.lengths))
        return every

    with torch.no_grad():
        rnn.bias_ih_l0[:8] = 2.0  # which forgets faster than the second layer does
    with short(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails.Tails, "settled", seen)
        at_once(world, rnn, way="auto", share=1e-5)
    first, second = found[-1]
    assert first < second < min(PARTS[world.size])
    assert first % 16 == second % 16 == 0
    with changed(FIRST=16, LEAST=1, SHARE=8, PAYS=1e9):  # an eighth of a shard is too little
        at_once(world, rnn, way="auto", taken="pipeline", share=1e-5)


def ragged(world):
    """What a tail has of resets and lengths is a part of what a shard has."""
    for batch_first in (False, True):
        rnn = module("SRU", 8, 8, 2, bidirectional=True, batch_first=batch_first)
        steps = sum(PARTS[world.size])
        lengths = torch.full((3,), steps, device=world.device)
        reset = torch.arange(steps * 3, device=world.device).reshape(steps, 3) % 50 == 3
        reset = reset.T.contiguous() if batch_first else reset
        at_once(world, rnn, told={"lengths": lengths, "reset": reset})
        lengths[1] -= PARTS[world.size][-1] + 5
        with short():
            at_once(world, rnn, "auto", "pipeline", told={"lengths": lengths, "reset": reset})
    rnn = keep(module("MinGRU", 8, 8, bidirectional=False))
    reset = torch.arange(steps, device=world.device).expand(3, -1).T % 10 == 3
    with short():  # nothing passes a reset
        at_once(world, rnn, way="auto", told={"reset": reset.contiguous()})


def drops(world):
    """The same bits as one device, where the recurrence itself draws nothing."""
    for name in ("MinGRU", "SRU"):
        rnn = module(name, 6, 8, 2, dropout=0.3, input_dropout=0.4, bidirectional=True)
        at_once(world, rnn)
    x = tensor(100, 2, 8)
    for name, option in (("MinGRU", "zoneout"), ("QRNN", "state_dropout")):
        rnn = module(name, 8, 8, **{option: 0.4})
        words = f"way: expected 'auto' or 'pipeline' where training draws {option} inside"
        refused(ValueError, words, functools.partial(sd.TimeSharded(rnn, way="tails"), x))
        with short():
            at_once(world, rnn, way="auto", taken="pipeline")
        at_once(world, rnn.eval())


def ways(world):
    """What cannot be, and what sizes decide."""
    x = tensor(100, 2, 8)
    words = "way: expected one of 'auto', 'pipeline', 'tails', 'rows', got 'tail'"
    refused(ValueError, words, lambda: sd.TimeSharded(module("SRU", 8, 8), way="tail"))
    words = words.replace(", 'rows'", "")
    refused(ValueError, words, lambda: sd.scan(x, x, way="tail"))
    words = "groups: expected None beside way='tails'"
    refused(ValueError, words, lambda: sd.TimeSharded(module("SRU", 8, 8), groups=2, way="tails"))
    for name, options, what in (
        ("GRU", {}, "GRU, whose recurrence is dense"),
        ("SRU", {"peephole": True}, "SRU with peephole=True, whose recurrence is diagonal"),
    ):
        model = sd.TimeSharded(module(name, 8, 8, **options), way="tails")
        refused(ValueError, f"way: expected 'auto' or 'pipeline' for {what}", lambda: model(x))  # noqa: B023
    model = sd.TimeSharded(module("SRU", 8, 8), way=["auto", "pipeline"][world.rank % 2])
    refused(ValueError, "way: expected the same on every rank", lambda: model(x))
    empty = [50] + [0] * (world.size - 1)
    words = "way: expected 'auto' or 'pipeline' where a rank has no steps, got 'tails'"
    here = span(world, empty)
    refused(ValueError, words, lambda: sd.TimeSharded(module("SRU", 8, 8), way="tails")(x[here]))
    with short():
        at_once(world, module("SRU", 8, 8), "auto", "pipeline", parts=empty)
    at_once(world, module("SRU", 8, 8), "auto", "pipeline")  # such shards are too small


def some_gradients(world):
    """None at all; of h_n alone; of one rank's x alone."""
    rnn, parts = module("SRU", 8, 8, 2, bidirectional=True), PARTS[world.size]
    x, here = tensor(sum(parts), 3, 8), span(world, parts)
    model = sd.TimeSharded(rnn, way="tails")
    with torch.no_grad():
        y, h_n = model(x[here])
        same([y, h_n], [rnn(x)[0][here], rnn(x)[1]])
    assert not y.requires_grad
    rnn(x)[1].sum().backward()
    want = [p.grad for p in rnn.parameters()]
    rnn.zero_grad()
    (model(x[here])[1].sum() * (world.rank == 0)).backward()
    same([p.grad for p in rnn.parameters()], want, SHARE)
    for parameter in rnn.parameters():
        parameter.requires_grad_(False)
    whole, mine = x.clone().requires_grad_(), x[here].clone().requires_grad_(world.rank == 0)
    rnn(whole)[0].sum().backward()
    model(mine)[0].sum().backward()
    assert model.taken == "tails"
    if world.rank == 0:
        same([mine.grad], [part_of(whole.grad, here)], SHARE)


def bits(world):
    """Twice the same, and on every rank the same gradients of parameters; also when activations
    are made again."""
    rnn = module("MinGRU", 8, 16, 2, dtype=torch.float32, dropout=0.2)
    parts, found = PARTS[world.size], []
    model = sd.TimeSharded(rnn, way="tails")
    x = tensor(sum(parts), 4, 8, dtype=torch.float32)[span(world, parts)].requires_grad_()
    again = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
    for call in (model, model, again):
        torch.manual_seed(1)
        rnn.zero_grad()
        call(x)[0].square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in rnn.parameters()]))
    assert all(torch.equal(one, found[0]) for one in found)
    every = [torch.empty_like(found[0]) for _ in range(world.size)]
    dist.all_gather(every, found[0])
    assert all(torch.equal(one, every[0]) for one in every)


def order(world):
    """A rank has one exchange for each layer in each pass; a scan's backward has a batch."""
    parts = PARTS[world.size]
    here, layers = span(world, parts), 3

    def work():
        for both in (False, True):
            rnn = module("SRU", 8, 8, layers, bidirectional=both)
            x = tensor(sum(parts), 3, 8)[here]
            backward_of_parts(world, *sd.TimeSharded(rnn, way="tails")(x))
        a = tensor(sum(parts), 64)[here].sigmoid().requires_grad_()
        sd.scan(a, a, way="tails").sum().backward()
        with short():  # of gates that keep
            keep(rnn := module("MinGRU", 8, 8, 2), 1)
            backward_of_parts(world, *sd.TimeSharded(rnn)(x))

    batches, collectives = in_one_order(world, work)
    assert batches >= 1
    assert collectives >= 2 * 2 * layers + 1


def scans(world):
    parts = PARTS[world.size]
    steps, here = sum(parts), span(world, parts)
    for shape in ((steps, 2, 3), (steps,), (steps, 40)):
        for dtype, initial in ((WIDE, False), (WIDE, True), (torch.complex128, True)):
            turn = torch.tensor(0.6 + 0.8j, device=world.device) if dtype.is_complex else 1
            a, b = (tensor(*shape, seed=i) for i in range(2))
            operands = [a.sigmoid() * 0.9 * turn, b * turn]
            operands += [tensor(*shape[1:], seed=7) * turn] if initial else []
            weight, found = tensor(*shape, seed=9), []
            for scan, at in (
                (st.scan, slice(0, steps)),
                (functools.partial(sd.scan, way="tails"), here),
            ):
                a, b, *h_0 = operands
                leaves = [v.clone().requires_grad_() for v in (a[at], b[at], *h_0)]
                h = scan(*leaves)
                (h * weight[at]).real.sum().backward()
                found.append([h, *(leaf.grad for leaf in leaves)])
            (h, da, db, *dh_0), got = found
            for one, other in zip(got, (h[here], da[here], db[here], *dh_0), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    a = torch.full((steps, 4), 0.999, device=world.device, dtype=WIDE)
    words = "way: expected 'auto' or 'pipeline' where gates keep a state, got 'tails'"
    refused(ValueError, words, lambda: sd.scan(a[here], a[here], way="tails"))
    with torch.no_grad(), short():
        same([sd.scan(a[here], a[here])], [st.scan(a, a)[here]])  # by the pipeline
        got, calls = [], []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "walk", lambda *_: calls.append(0))
            got.append(sd.scan(a[here] / 2, a[here]))
        same(got, [st.scan(a / 2, a)[here]])
        assert not calls
    half = tensor(steps, 33).sigmoid().bfloat16()
    same([sd.scan(half[here], half[here], way="tails")], [st.scan(half, half)[here]], share=0.01)


CASES = {f"cell-{name}": functools.partial(cell_of, name=name) for name in LINEAR} | {
    case.__name__: case
    for case in (
        precisions, gates_that_keep, lengths_of_tails, ragged, drops, ways, some_gradients, bits,
        order, scans,
    )
}  # fmt: skip
