# SPDX-License-Identifier: Apache-2.0
"""In which order ranks post their messages, as a stream of NCCL needs it."""

import functools

import pytest
import torch.distributed as dist
from scanrnn.torch.distributed.told import GATHER
from torch_support import flat

COLLECTIVES = ("all_reduce", "broadcast", "reduce", GATHER)


def in_one_order(world, work):
    """What a rank posts: with each other rank it has the same messages in the same batches, and the
    same collectives between them. How many batches this rank has, and how many collectives."""
    posted = []

    def batch(operations):
        posted.append(
            [
                (op.op is dist.isend, (world.rank, op.group_peer), op.tensor.numel())
                for op in operations
            ]
        )
        return own_batch(operations)

    def collective(name, value, *args, **options):
        size = sum(one.numel() for one in flat([value]))
        posted.append((name, size, options.get("group_src")))
        return own[name](value, *args, **options)

    own_batch, own = dist.batch_isend_irecv, {name: getattr(dist, name) for name in COLLECTIVES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", batch)
        for name in COLLECTIVES:
            patch.setattr(dist, name, functools.partial(collective, name))
        work()
    every = [None] * world.size
    dist.all_gather_object(every, posted)
    for rank in range(world.size):
        for other in range(rank):
            assert _between(every, rank, other) == _between(every, other, rank)
    batches = sum(isinstance(one, list) for one in posted)
    return batches, len(posted) - batches


def _between(every, rank, other):
    """All collectives, and of each batch what the two have in it."""
    found = []
    for one in every[rank]:
        if isinstance(one, list):
            one = sorted(
                (sends == (rank < other), size) for sends, (_, to), size in one if to == other
            )
        if one:
            found.append(one)
    return found


def backward_of_parts(world, y, h_n):
    """Independent parts of a graph, met in another order on each rank."""
    if world.rank:
        (y.sum() + flat([h_n])[0].sum()).backward()
    else:
        (flat([h_n])[0].sum() + y.sum()).backward()
