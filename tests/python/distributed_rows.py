# SPDX-License-Identifier: Apache-2.0
"""Ranks that have rows for the whole time, beside the whole batch on one device."""

import functools

import pytest
import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from distributed_compare import SHARE, compare, noting, part_of, ragged, refused, span
from distributed_order import backward_of_parts, in_one_order
from scanrnn.torch.distributed import asked, groups, rows
from scanrnn.torch.distributed.exchange import Link
from support import ALL_CELLS, INFO
from torch_support import flat, module, same, tensor


def by_rows(world, rnn, **told):
    """Results, which no turn of the pipeline's has a part in."""
    model, batch = sd.TimeSharded(rnn, way="rows"), told.get("batch", 3)
    with noting(walk=(Link, "walk"), swap=(Link, "swap")) as seen:
        got = compare(world, rnn, model, **told)
    # x and y; their cotangents the way back; and resets. A wrong guess ends at the first of them.
    swaps = 4 + ("reset" in (told.get("told") or {}))
    assert seen in (["swap"] * swaps, ["swap"] * (swaps + 1))
    assert model.taken == "rows"
    assert model.cut == groups.cut(1 if batch is None else batch, world.size)
    return got


def cell_of(world, name):
    for layers, both, batch_first in ((1, False, True), (2, True, False), (2, True, True)):
        size = 8 if INFO[name].square or batch_first else 5
        rnn = module(name, size, 8, layers, bidirectional=both, batch_first=batch_first)
        by_rows(world, rnn)
        by_rows(world, rnn, batch=4, told=ragged(rnn, 4, 9))
        by_rows(world, rnn, batch=5, initial=False, told=ragged(rnn, 5, 9, lengths=False))
    by_rows(world, rnn, told=ragged(rnn, 3, 9, reset=False))
    by_rows(world, rnn, batch=1)  # ranks without rows
    by_rows(world, rnn, batch=None)


def options_of_cells(world):
    for cell, options in (
        ("LSTM", {"proj_size": 3}),
        ("LSTM", {"layer_norm": True}),
        ("GRU", {"num_heads": 2}),
        ("GRU", {"reset_after": False}),
    ):
        rnn = module(cell, 24, 24, 2, bidirectional=True, **options)
        by_rows(world, rnn, initial="proj_size" not in options)


def shapes(world):
    """Where one rank has all steps, and where there are none."""
    nothing = [0] * (world.size - 1)
    for parts in ([9, *nothing], [*nothing, 9], [0, *nothing]):
        for batch_first in (False, True):
            rnn = module("LSTM", 4, 8, 2, bidirectional=True, batch_first=batch_first)
            told = ragged(rnn, 3, sum(parts), lengths=False) if sum(parts) else None
            by_rows(world, rnn, steps=sum(parts), parts=parts, told=told)
    rnn = module("GRU", 4, 8)
    model = sd.TimeSharded(rnn, way="rows")
    compare(world, rnn, model, batch=0)
    assert model.taken == "pipeline"


def precisions(world):
    for name in ("LSTM", "MinGRU"):
        rnn = module(name, 8, 16, 2, dtype=torch.float32, bidirectional=True)
        by_rows(world, rnn, share=1e-5)
        x, here = tensor(9, 3, 8, dtype=torch.float32), span(world)
        with torch.autocast(world.device.type, torch.bfloat16):
            want, model = rnn(x), sd.TimeSharded(rnn, way="rows")
            got = model(x[here])
        assert model.taken == "rows"
        assert got[0].dtype == want[0].dtype == torch.bfloat16
        same([got[0], *flat([got[1]])], [want[0][here], *flat([want[1]])], share=0.05)
        by_rows(world, module(name, 8, 16, dtype=torch.bfloat16), share=0.05)


def drops(world):
    """The same bits as one device; what a recurrence draws for all rows at once is refused."""
    for name in ("LSTM", "GRU", "MinGRU", "SRU"):
        options = INFO[name].options
        drawn = [option for option, _ in options if INFO[name].is_drawn(option)]
        shares = {o: 0.4 for o in drawn if o in ("input_dropout", "dropconnect")}
        for batch_first in (False, True):
            rnn = module(
                name, 6, 8, 2, dropout=0.3, bidirectional=True, batch_first=batch_first, **shares
            )
            by_rows(world, rnn)
            by_rows(world, rnn, batch=4, told=ragged(rnn, 4, 9))
        for option in sorted(set(drawn) - set(shares)):
            rnn = module(name, 8, 8, 2, **{option: 0.4})
            if option == "state_dropout":
                by_rows(world, rnn)
            else:
                model = sd.TimeSharded(rnn, way="rows")
                words = f"way: expected 'auto' or 'pipeline' where training draws {option} inside"
                refused(ValueError, words, functools.partial(model, tensor(3, 3, 8)))
            by_rows(world, rnn.eval())


def auto(world):
    """What sizes decide."""
    quick = groups.RATES["cpu"]._replace(slot=1e-9, exchange=1e15)
    slow = quick._replace(exchange=1.0)
    zoneout = {"zoneout": 0.4}
    for rates, name, batch, options, taken in (
        (quick, "LSTM", 4, {}, "rows"),
        (quick, "IndRNN", 4, {}, "rows"),
        (slow, "LSTM", 4, {}, "pipeline"),
        (quick, "LSTM", 1, {}, "pipeline"),
        (quick, "LSTM", 4, zoneout, "pipeline"),
    ):
        rnn = module(name, 8, 8, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(groups.RATES, world.device.type, rates)
            forget_plans()
            for count in (None, 1):
                model = sd.TimeSharded(rnn, groups=count)
                compare(world, rnn, model, batch=batch)
                assert model.taken == ("pipeline" if count else taken)
    forget_plans()


def forget_plans():
    for planned in (rows.planned, asked._grouped):
        planned.cache_clear()


def ways(world):
    """What cannot be."""
    x, rnn = tensor(9, 3, 8), module("GRU", 8, 8)
    words = "groups: expected None beside way='rows', which has no pipeline, got 2"
    refused(ValueError, words, lambda: sd.TimeSharded(rnn, groups=2, way="rows"))
    words = "way: expected one of 'auto', 'pipeline', 'tails', got 'rows'"
    refused(ValueError, words, lambda: sd.scan(x, x, way="rows"))
    model = sd.TimeSharded(rnn, way=["rows", "pipeline"][world.rank % 2])
    refused(ValueError, "way: expected the same on every rank", lambda: model(x))
    beyond = torch.tensor([1, 2, 9 * world.size + 1])
    model = sd.TimeSharded(rnn, way="rows")
    refused(ValueError, "lengths: expected integers in", lambda: model(x, lengths=beyond))


def some_gradients(world):
    """None at all; of h_n alone; of one rank's x alone."""
    rnn = module("GRU", 4, 8, 2, bidirectional=True)
    x, here, model = tensor(9, 3, 4), span(world), sd.TimeSharded(rnn, way="rows")
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
    if world.rank == 0:
        same([mine.grad], [part_of(whole.grad, here)], SHARE)


def bits(world):
    """Twice the same, and on every rank the same states and gradients of parameters; also when
    activations are made again."""
    rnn = module("LSTM", 8, 16, 2, dtype=torch.float32, dropout=0.2)
    found, model = [], sd.TimeSharded(rnn, way="rows")
    x = tensor(9, 4, 8, dtype=torch.float32)[span(world)].requires_grad_()
    again = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
    for call in (model, model, again):
        torch.manual_seed(1)
        rnn.zero_grad()
        y, h_n = call(x)
        y.square().sum().backward()
        kept = [*(p.grad for p in rnn.parameters()), *flat([h_n])]
        found.append(torch.cat([value.detach().flatten() for value in kept]))
    assert all(torch.equal(one, found[0]) for one in found)
    every = [torch.empty_like(found[0]) for _ in range(world.size)]
    dist.all_gather(every, found[0])
    assert all(torch.equal(one, every[0]) for one in every)


def order(world):
    def work():
        for both, batch in ((False, 1), (True, 4)):
            rnn = module("LSTM", 8, 8, 2, bidirectional=both)
            x = tensor(9, batch, 8)[span(world)].requires_grad_()
            reset = torch.zeros(len(x), batch, dtype=torch.bool, device=x.device)
            model = sd.TimeSharded(rnn, way="rows")
            backward_of_parts(world, *model(x, reset=reset))

    batches, collectives = in_one_order(world, work)
    assert batches >= 5
    assert collectives >= 2 * 3


CASES = {f"cell-{name}": functools.partial(cell_of, name=name) for name in ALL_CELLS} | {
    case.__name__: case
    for case in (
        options_of_cells, shapes, precisions, drops, auto, ways, some_gradients, bits, order,
    )
}  # fmt: skip
