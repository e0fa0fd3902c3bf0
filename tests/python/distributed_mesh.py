# SPDX-License-Identifier: Apache-2.0
"""Time split over one dimension of a mesh, the batch over the other: DDP and FSDP2. Where
there are two ranks, one dimension has both."""

import functools

import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from distributed_batch import Model, loss_of
from distributed_compare import refused
from torch_support import WIDE, module, same, tensor

STEPS = {1: [slice(0, 10)], 2: [slice(0, 3), slice(3, 10)]}  # by ranks in time


def mesh_of(world, shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(world.device.type, shape, mesh_dim_names=("batch", "time"))


def made(group=None):
    rnn = module("LSTM", 8, 8, 2, bidirectional=True)
    return Model(rnn if group is None else sd.TimeSharded(rnn, group), width=16)


def whole_and_part(world, mesh):
    """The gradients of a mean over the batch and a sum over time on one device; and this rank's
    model and loss."""
    one = made().to(world.device, WIDE)
    x = tensor(10, 4, 6)
    loss_of(one(x)).backward()
    row, column = mesh["batch"].get_local_rank(), mesh["time"].get_local_rank()
    rows = 4 // mesh["batch"].size()
    mine = x[STEPS[mesh["time"].size()][column], rows * row : rows * (row + 1)]
    return one, mine


def summed_over_time(model, group):
    """The layers beside TimeSharded saw this rank's part alone."""
    for name, parameter in model.named_parameters():
        if ".rnn." not in f".{name}":
            grad = parameter.grad
            grad = grad.to_local() if hasattr(grad, "to_local") else grad
            dist.all_reduce(grad, group=group)


def data_parallel(world, shape):
    mesh = mesh_of(world, shape)
    one, mine = whole_and_part(world, mesh)
    model = made(mesh["time"].get_group()).to(world.device, WIDE)
    model = torch.nn.parallel.DistributedDataParallel(
        model, process_group=mesh["batch"].get_group()
    )
    for _ in range(2):
        model.zero_grad()
        loss_of(model(mine)).backward()
    summed_over_time(model, mesh["time"].get_group())
    for got, want in zip(model.parameters(), one.parameters(), strict=True):
        same([got.grad], [want.grad], 1e-10)


def fully_sharded(world, shape):
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(world, shape)
    one, mine = whole_and_part(world, mesh)
    model = made(mesh["time"].get_group()).to(world.device, WIDE)
    fully_shard(model.rnn, mesh=mesh["batch"])
    fully_shard(model, mesh=mesh["batch"])
    loss_of(model(mine)).backward()
    summed_over_time(model, mesh["time"].get_group())
    for got, want in zip(model.parameters(), one.parameters(), strict=True):
        same([got.grad.full_tensor()], [want.grad], 1e-10)
    inner = made(mesh["time"].get_group()).to(world.device, WIDE)
    fully_shard(inner.rnn.module, mesh=mesh["batch"])
    refused(TypeError, "expected a plain parameter, got DTensor: apply", lambda: inner(mine))


def _cases(*shapes):
    return {
        f"{case.__name__} {shape[0]} x {shape[1]}": functools.partial(case, shape=shape)
        for case in (data_parallel, fully_sharded)
        for shape in shapes
    }


CASES, THIN = _cases((2, 2)), _cases((1, 2), (2, 1))
