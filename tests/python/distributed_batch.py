# SPDX-License-Identifier: Apache-2.0
"""The batch split over ranks by torch's own DDP and FSDP2 around plain modules."""

import functools

import torch
from support import ALL_CELLS
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_support import WIDE, module, same, tensor

SHARE = 1e-9  # of the largest value: sums over the batch have another order
EPS = 1e-4  # Adam's, far above what rounding makes of a gradient that is 0
SIZES = 9, 4, 6  # T, B, C
LENGTHS = [9, 4, 1, 6]


class Model(torch.nn.Module):
    """A recurrent layer of 8 units between two others."""

    def __init__(self, rnn, width=8):
        super().__init__()
        torch.manual_seed(5)
        self.read = torch.nn.Linear(6, 8)
        self.rnn = rnn
        self.head = torch.nn.Linear(width, 3)

    def forward(self, x, **told):
        return self.head(self.rnn(self.read(x), **told)[0])


class Packed(Model):
    """The same with a PackedSequence around the recurrent layer."""

    def forward(self, x, lengths):
        given = pack_padded_sequence(self.read(x), lengths.cpu(), enforce_sorted=False)
        y, h_n = self.rnn(given)
        y, _ = pad_packed_sequence(y, total_length=x.shape[0])
        return self.head(y) + h_n[-1, :, :3]


def loss_of(y):
    """A sum over time and a mean over the batch, of which ranks' means make that of the whole."""
    return y.square().sum(0).mean(0).sum()


def replicated(world, model, **options):
    return DistributedDataParallel(model, **options)


def sharded(world, model, **options):
    """The layer by itself, and the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    fully_shard(model.rnn, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(value):
    """All of a DTensor, or the value itself."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def rows_of(world):
    count = SIZES[1] // world.size
    return slice(world.rank * count, (world.rank + 1) * count)


def compare(world, make, wrap, call=None, lengths=False):
    """Losses, gradients and parameters of two steps, beside those of one process that has all of
    the batch; and the two models."""
    one, model, mine = make(), wrap(world, make()), rows_of(world)
    call = call or model
    optimisers = [torch.optim.Adam(found.parameters(), 0.05, eps=EPS) for found in (one, model)]
    for step in range(2):
        x, told, own = tensor(*SIZES, seed=step), {}, {}
        if lengths:
            told["lengths"] = torch.tensor(LENGTHS)
            own["lengths"] = told["lengths"][mine]
        losses = loss_of(one(x, **told)), loss_of(call(x[:, mine], **own))
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
        found = losses[1].detach().clone()
        torch.distributed.all_reduce(found)
        same([found / world.size], [losses[0]], SHARE)
        pairs = list(zip(model.parameters(), one.parameters(), strict=True))
        same([whole(p.grad) for p, _ in pairs], [p.grad for _, p in pairs], SHARE)
        for optimiser in optimisers:
            optimiser.step()
        same([whole(p) for p, _ in pairs], [p for _, p in pairs], SHARE)
    return one, model


def made(world, cell, kind=Model, **options):
    return kind(module(cell, 8, 8, 2, **options)).to(world.device, WIDE)


def cell_of(world, cell, wrap):
    make = functools.partial(made, world, cell)
    compare(world, make, wrap)
    compare(world, make, wrap, lengths=True)


def packed_of(world, wrap):
    compare(world, functools.partial(made, world, "GRU", Packed), wrap, lengths=True)


def gathered_twice(world):
    """Gradients of two calls are added up, and go over the ranks once."""
    make = functools.partial(made, world, "MinGRU")
    one, model, mine = make(), replicated(world, make()), rows_of(world)
    parts = [tensor(*SIZES, seed=seed) for seed in range(2)]
    with model.no_sync():
        loss_of(model(parts[0][:, mine])).backward()
    loss_of(model(parts[1][:, mine])).backward()
    for x in parts:
        loss_of(one(x)).backward()
    same([p.grad for p in model.parameters()], [p.grad for p in one.parameters()], SHARE)


def compiled(world):
    """torch.compile around DDP, which cuts the graph where buckets of gradients end."""
    make = functools.partial(made, world, "LSTM")
    calls = []

    def wrap(world, model):
        model = replicated(world, model)
        calls.append(torch.compile(model, backend="aot_eager"))
        return model

    compare(world, make, wrap, lambda x: calls[0](x))
    torch.compiler.reset()


def in_bfloat16(world):
    """FSDP2's mixed precision: the layer computes in bfloat16, parameters and their gradients are
    of float32; beside a layer in bfloat16 with the whole batch."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half, mine = torch.bfloat16, rows_of(world)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    make = functools.partial(made, world, "LSTM")
    model = sharded(world, make().to(torch.float32), mp_policy=policy)
    one, x = make().to(half), tensor(*SIZES, dtype=half)
    y = model(x[:, mine])
    assert y.dtype == half
    same([y], [one(x)[:, mine]], 0.02)
    loss_of(y.float()).backward()
    loss_of(one(x).float()).backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    pairs = zip(model.parameters(), one.parameters(), strict=True)
    for got, want in pairs:
        same([whole(got.grad)], [want.grad], 0.05)


def goes_to_torchs_own(world):
    """What FSDP2 has trained, as a state_dict of torch.nn."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    one, model = compare(world, functools.partial(made, world, "LSTM"), sharded)
    found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    theirs = torch.nn.LSTM(8, 8, 2, device=world.device, dtype=WIDE)
    theirs.load_state_dict({k[4:]: v for k, v in found.items() if k.startswith("rnn.")})
    x = tensor(9, 4, 8)
    same([theirs(x)[0]], [one.rnn(x)[0]], SHARE)


WAYS = replicated, sharded
CALLS = gathered_twice, compiled, in_bfloat16, goes_to_torchs_own
CASES = {
    f"{wrap.__name__}-{cell}": functools.partial(cell_of, cell=cell, wrap=wrap)
    for wrap in WAYS
    for cell in ALL_CELLS
}
CASES |= {f"{wrap.__name__}-packed": functools.partial(packed_of, wrap=wrap) for wrap in WAYS}
CASES |= {case.__name__: case for case in CALLS}
