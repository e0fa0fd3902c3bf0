# SPDX-License-Identifier: Apache-2.0
"""What worlds of processes try of scanrnn.torch.distributed; see distributed_world.py."""

import copy
import functools
import math
import pickle

import pytest
import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from distributed_ahead import CASES as AHEAD
from distributed_batch import CASES as BATCH
from distributed_compare import SHARE, compare, ragged, refused, span
from distributed_errors import dies, dies_unseen, errors, places, unseen
from distributed_guesses import CALLS as GUESSES
from distributed_mesh import CASES as MESH
from distributed_mesh import THIN
from distributed_order import backward_of_parts, in_one_order
from distributed_rows import CASES as ROWS
from distributed_tails import CASES as TAILS
from scanrnn.torch.distributed import agree
from support import ALL_CELLS, DENSE, INFO
from torch_support import WIDE, module, same, st, tensor

# ---- cells


def cell_of(world, name):
    """Stacks, both directions, groups of rows and of units, ragged and not."""
    for layers, both, groups in ((2, False, 2), (2, True, 3), (1, True, None)):
        rnn = module(name, 8, 8, layers, bidirectional=both)
        model = sd.TimeSharded(rnn, groups=groups, way="pipeline")
        compare(world, rnn, model)
        compare(world, rnn, model, told=ragged(rnn, 3, 9))
    rnn = module(name, 5, 8, 2, batch_first=True)
    model = sd.TimeSharded(rnn, way="pipeline")
    compare(world, rnn, model, initial=False, told=ragged(rnn, 3, 9, lengths=False))
    compare(world, rnn, model, told=ragged(rnn, 3, 9, reset=False))
    compare(world, rnn, model, batch=None, initial=True)
    if name in DENSE or INFO[name].square:
        return
    for size, both in ((24, False), (40, True)):
        rnn = module(name, size, 24, 2, bidirectional=both, bias=not both)
        model = sd.TimeSharded(rnn, groups=3)
        compare(world, rnn, model, batch=1)
        compare(world, rnn, model, batch=2, told=ragged(rnn, 2, 9))


def drops_of(world, name):
    """The same bits as one device; of what ranks cannot draw alike an error says the name."""
    outside = ("input_dropout", "dropconnect")  # of the recurrence
    drawn = [option for option, _ in INFO[name].options if INFO[name].is_drawn(option)]
    shares = {option: 0.4 for option in drawn if option in outside}
    for both, batch_first in ((False, False), (True, True)):
        for size, own in ((6, {}), (8, shares), (8, {})):
            rnn = module(
                name, size, 8, 2, dropout=0.3, bidirectional=both, batch_first=batch_first, **own
            )
            compare(world, rnn, sd.TimeSharded(rnn))
            if not own:
                compare(world, rnn, sd.TimeSharded(rnn, groups=2))
    rnn = module(name, 6, 8, 2, dropout=0.3, **dict.fromkeys(drawn, 0.4)).eval()
    compare(world, rnn, sd.TimeSharded(rnn, groups=2))
    for option in sorted(set(drawn) - set(outside)):
        for batch_first in (False, True):
            rnn = module(name, 6, 8, 2, dropout=0.3, batch_first=batch_first, **{option: 0.4})
            compare(world, rnn, sd.TimeSharded(rnn))
            compare(world, rnn, sd.TimeSharded(rnn), told=ragged(rnn, 3, 9))
        rnn = module(name, 6, 8, 2, bidirectional=True, **{option: 0.4})
        if option == "state_dropout":
            compare(world, rnn, sd.TimeSharded(rnn, groups=3))
            both = module(name, 6, 8, 2, **{option: 0.4, "zoneout": 0.2})
            apart(both, "zoneout", "beside state_dropout")
        else:
            apart(rnn, option, "in both directions")


def apart(rnn, option, words):
    words = f"{option}: expected 0 in training where time is split over ranks {words}"
    model = functools.partial(sd.TimeSharded(rnn), tensor(3, 3, rnn.input_size))
    refused(NotImplementedError, words, model)


def options_of_cells(world):
    """Sizes and weights beside the usual ones."""
    for options in ({"zoneout": (0.0, 0.4)}, {"zoneout": (0.0, 0.4), "proj_size": 3}):
        rnn = module("LSTM", 24, 24, 2, **options)
        compare(world, rnn, sd.TimeSharded(rnn), initial="proj_size" not in options)
    apart(module("LSTM", 24, 24, zoneout=(0.2, 0.4)), "zoneout_cell", "beside zoneout")
    for cell, options in (
        ("LSTM", {"proj_size": 3, "bidirectional": True}),
        ("GRU", {"num_heads": 2}),
        ("GRU", {"reset_after": False}),
        ("LSTM", {"layer_norm": True}),
        ("IndRNN", {"layer_norm": True}),
        ("SRU", {"rescale": True, "highway_bias": -1.0}),
        ("SRU", {"projection_size": 4}),
    ):
        rnn = module(cell, 24, 24, 2, **options)
        compare(world, rnn, sd.TimeSharded(rnn, groups=2), initial="proj_size" not in options)
        if "rescale" in options:
            compare(world, rnn, sd.TimeSharded(rnn, groups=3), batch=1)


# ---- what else a call may be


def shapes(world):
    """Where there is nothing, and where one rank has all."""
    for parts in ([0] * world.size, [9] + [0] * (world.size - 1), [0] * (world.size - 1) + [9]):
        for name in ("MinGRU", "LSTM"):
            rnn = module(name, 4, 8, 2, bidirectional=True)
            model = sd.TimeSharded(rnn, way="pipeline")
            compare(world, rnn, model, steps=sum(parts), parts=parts)
    rnn = module("SRU", 4, 8)
    compare(world, rnn, sd.TimeSharded(rnn), batch=0)


def precisions(world):
    """Shards hand on states of the tensors' own type; autocast and torch.compile as for a layer."""
    for name in ("MinLSTM", "GRU"):
        rnn = module(name, 8, 16, 2, dtype=torch.float32)
        compare(world, rnn, sd.TimeSharded(rnn), share=1e-5)
        x, here = tensor(9, 3, 8, dtype=torch.float32), span(world)
        with torch.autocast(world.device.type, torch.bfloat16):
            want, got = rnn(x)[0], sd.TimeSharded(rnn)(x[here])[0]
        assert got.dtype == want.dtype == torch.bfloat16
        same([got], [want[here]], share=0.05)
        half = module(name, 8, 16, 1, dtype=torch.bfloat16)
        compare(world, half, sd.TimeSharded(half), share=0.05)
        model = sd.TimeSharded(rnn)
        compiled = torch.compile(torch.nn.Sequential(model), backend="eager")
        same([compiled(x[here])[0]], [model(x[here])[0]])


def what_is_not_there(world):
    """Steps behind a sequence's end may hold anything, and nothing of it reaches anything."""
    lengths = torch.tensor([7, 2])
    for size, count in ((24, 3), (5, 2)):
        rnn, found = module("SRU", size, 24, 2, bidirectional=True), []
        for value in (0.0, math.nan):
            x = tensor(9, 2, size)
            for row, length in enumerate(lengths):
                x[length:, row] = value
            given = x[span(world)].clone().requires_grad_()
            rnn.zero_grad()
            y, h_n = sd.TimeSharded(rnn, groups=count)(given, lengths=lengths)
            (y.sum() + h_n.sum()).backward()
            found.append([y, h_n, given.grad, *(p.grad for p in rnn.parameters())])
        assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def another_control_group(world):
    """Where the group's own messages go through a GPU, ranks agree in a group beside it, and meet
    there in backward."""
    with pytest.MonkeyPatch.context() as patch:
        if world.backend == "gloo":  # all cases of others have such a group
            unseen(world, patch)
        ranks = agree.Ranks(None)
        told = ranks.agree(lambda: {"rank": world.rank}, ["rank"])
        assert [one["rank"] for one in told] == list(range(world.size))
        assert ranks._control() is ranks._control() is not ranks.group
        rnn, met = module("SRU", 4, 8, 2), []
        meeting = agree.Ranks.meeting

        def counted(ranks, device):
            met.append(meeting(ranks, device))
            return met[-1]

        patch.setattr(agree.Ranks, "meeting", counted)
        compare(world, rnn, sd.TimeSharded(rnn))
        a = tensor(3, 4, grad=True)
        sd.scan(a, a).sum().backward()
        assert len(met) == 2
        assert None not in met


def nested_groups(world):
    """The first ranks are in a group more than the last one, and agree there before all do."""
    with pytest.MonkeyPatch.context() as patch:
        if world.backend == "gloo":
            unseen(world, patch)
        for size in (world.size - 1, world.size):
            group = dist.new_group(list(range(size)))
            if world.rank < size:
                told = agree.Ranks(group).agree(lambda: {"rank": world.rank}, ["rank"])
                assert [one["rank"] for one in told] == list(range(size))


def order(world):
    """With NCCL's stream in mind; see in_one_order."""

    def work():
        for name, both, layers in (("LSTM", False, 3), ("SRU", True, 2), ("MinGRU", False, 2)):
            rnn = module(name, 8, 24, layers, bidirectional=both)
            backward_of_parts(world, *sd.TimeSharded(rnn, groups=3)(tensor(9, 3, 8)[span(world)]))
        a, b = (tensor(9, 64)[span(world)] for _ in range(2))
        sd.scan(a.requires_grad_(), b).sum().backward()

    assert in_one_order(world, work)[0] > 20


def without_gradients(world):
    rnn = module("LSTM", 4, 8, 2, bidirectional=True)
    x, here, model = tensor(9, 3, 4), span(world), sd.TimeSharded(rnn, way="pipeline")
    with torch.no_grad():
        y, h_n = model(x[here])
        same([y, h_n], [rnn(x)[0][here], rnn(x)[1]])
    assert not y.requires_grad
    for parameter in rnn.parameters():
        parameter.requires_grad_(False)
    y, _ = model(x[here])
    assert not y.requires_grad


def gradients_of_some(world):
    """Only one rank's x wants a gradient, or only h_n has a cotangent: nobody waits for ever."""
    rnn, here = module("GRU", 4, 8, 2), span(world)
    for parameter in rnn.parameters():
        parameter.requires_grad_(False)
    x, model = tensor(9, 3, 4), sd.TimeSharded(rnn, way="pipeline")
    whole = x.clone().requires_grad_()
    rnn(whole)[1].sum().backward()
    mine = x[here].clone().requires_grad_(world.rank == 0)
    y, h_n = model(mine)
    assert y.requires_grad
    (h_n.sum() * (world.rank == world.size - 1)).backward()
    if world.rank == 0:
        same([mine.grad], [whole.grad[here]], SHARE)
    else:
        assert mine.grad is None
    rnn = module("SRU", 4, 8)
    rnn.bias_ih_l0.requires_grad_(False)
    rnn(x)[0].sum().backward()
    want, rnn.weight_ih_l0.grad = rnn.weight_ih_l0.grad, None
    sd.TimeSharded(rnn)(x[here])[0].sum().backward()
    same([rnn.weight_ih_l0.grad], [want], SHARE)
    assert rnn.bias_ih_l0.grad is None


def bits(world):
    """Twice the same, and on every rank the same gradients of parameters."""
    rnn = module("MinGRU", 8, 16, 2, dtype=torch.float32, dropout=0.2, bidirectional=True)
    model = sd.TimeSharded(rnn, groups=2)
    x, found = tensor(9, 4, 8, dtype=torch.float32)[span(world)], []
    for _ in range(2):
        torch.manual_seed(1)
        rnn.zero_grad()
        model(x)[0].square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in rnn.parameters()]))
    assert torch.equal(*found)
    every = [torch.empty_like(found[0]) for _ in range(world.size)]
    dist.all_gather(every, found[0])
    assert all(torch.equal(one, every[0]) for one in every)


def states_handed_on(world):
    """The state at the end of one call begins another: as it is, or behind something else."""
    x, weight = tensor(9, 3, 8), tensor(9, 3, 8, seed=1)
    here = span(world)

    def gradients(first, second, own, between):
        rnns = [getattr(model, "module", model) for model in (first, second)]
        for rnn in rnns:
            rnn.zero_grad()
        _, h = first(x[own])
        y, h = second(x[own], between(h))
        y_again, _ = second(x[own], h)
        ((y + y_again) * weight[own]).sum().backward()
        return [p.grad for rnn in rnns for p in rnn.parameters()]

    def of_each(change, h):
        return tuple(map(change, h)) if isinstance(h, tuple) else change(h)

    for name in ("MinGRU", "LSTM"):
        rnns = module(name, 8, 8), module(name, 8, 8)
        sharded = [sd.TimeSharded(rnn) for rnn in rnns]
        as_it_is = functools.partial(of_each, lambda h: h)
        want = gradients(*rnns, slice(0, 9), as_it_is)
        same(gradients(*sharded, here, as_it_is), want, SHARE)
        squashed = functools.partial(of_each, torch.tanh)
        want = gradients(*rnns, slice(0, 9), squashed)
        behind = functools.partial(of_each, lambda h: sd.counted_once(torch.tanh(h)))
        same(gradients(*sharded, here, behind), want, SHARE)


def checkpoints(world):
    """Parameters have the same names on any number of ranks; activations may be made again."""
    alone = dist.new_group([world.rank], use_local_synchronization=True)
    one = sd.TimeSharded(module("SRU", 4, 8, 2), alone)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.mul_(0.5)
    many = sd.TimeSharded(module("SRU", 4, 8, 2))
    many.load_state_dict(one.state_dict())
    assert copy.deepcopy(one).group is one.group
    refused(TypeError, "group: a process group belongs to its processes", lambda: pickle.dumps(one))
    x, here = tensor(9, 3, 4), span(world)
    same([many(x[here])[0]], [one(x)[0][here]])
    given, again = (x[here].clone().requires_grad_() for _ in range(2))
    many(given)[0].square().sum().backward()
    y = torch.utils.checkpoint.checkpoint(lambda v: many(v)[0], again, use_reentrant=False)
    y.square().sum().backward()
    same([again.grad], [given.grad])


# ---- the bare recurrence


def scans(world):
    here, wide = span(world), torch.complex128
    for shape, groups in (
        ((9, 2, 3), 2),
        ((9,), None),
        ((9, 5), 2),
        ((9, 130), None),
        ((9, 0), None),
    ):
        for dtype, initial in ((WIDE, False), (WIDE, True), (wide, True)):
            unit = 1 + 0.5j if dtype.is_complex else 1
            operands = [tensor(*size, seed=i) * unit for i, size in enumerate((shape, shape))]
            operands += [tensor(*shape[1:], seed=7) * unit] if initial else []
            weight, found = tensor(*shape, seed=9), []
            for scan, at in (
                (st.scan, slice(0, 9)),
                (functools.partial(sd.scan, groups=groups), here),
            ):
                a, b, *h_0 = operands
                leaves = [v.clone().requires_grad_() for v in (a[at], b[at], *h_0)]
                h = scan(*leaves)
                (h * weight[at]).real.sum().backward()
                found.append([h, *(leaf.grad for leaf in leaves)])
            (h, da, db, *dh_0), got = found
            for one, other in zip(got, (h[here], da[here], db[here], *dh_0), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    a = tensor(9, 4)
    with torch.no_grad():
        torch.testing.assert_close(sd.scan(a[here], a[here]), st.scan(a, a)[here])
    a.requires_grad_(world.rank == 0)
    sd.scan(a.detach()[here], a[here]).sum().backward()  # others have nothing to give it to


CELLS = {f"cell-{name}": functools.partial(cell_of, name=name) for name in ALL_CELLS}
DROPPED = {f"drops-{name}": functools.partial(drops_of, name=name) for name in ALL_CELLS}
CALLS = (
    options_of_cells, shapes, precisions, what_is_not_there, another_control_group,
    order, without_gradients, gradients_of_some, bits, states_handed_on, checkpoints, scans, errors,
    places, *GUESSES,
)  # fmt: skip
MOST = nested_groups, shapes, gradients_of_some, bits, states_handed_on, order, scans, *GUESSES
SUITES = {
    "all": CELLS | DROPPED | {case.__name__: case for case in CALLS},
    "most": CELLS | {case.__name__: case for case in MOST},
    "batch": BATCH,
    "tails": TAILS | AHEAD,
    "rows": ROWS,
    "mesh": MESH,
    "thin mesh": THIN,
    "dies": {"dies": dies},
    "dies unseen": {"dies": dies_unseen},
}
