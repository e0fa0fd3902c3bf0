# SPDX-License-Identifier: Apache-2.0
"""What is refused, on every rank, and what becomes of a rank whose neighbour dies."""

import copy
import functools
import os
import time

import pytest
import scanrnn.torch.distributed as sd
import torch
from distributed_compare import refused
from scanrnn.torch.distributed import agree
from scanrnn.torch.distributed.exchange import Link
from torch_support import module, same, state, tensor


def errors(world):
    last = world.rank == world.size - 1
    rnn, x = module("MinLSTM", 4, 8, 2), tensor(3, 3, 4)
    model, hx = sd.TimeSharded(rnn), state(rnn, 3)

    def differ(words, here, there):
        """The last rank's call is another one."""
        refused(ValueError, f"{words}: expected the same on every rank", here if last else there)

    plain = functools.partial(model, x)
    differ("batch size of input", lambda: model(x[:, :2]), plain)
    differ("h_0", lambda: model(x, hx), plain)
    differ("lengths", lambda: model(x, lengths=torch.tensor([3, 2, 1])), plain)
    lengths = torch.tensor([3, 2, 1])
    differ(
        "lengths",
        lambda: model(x, lengths=lengths - 1),
        lambda: model(x, lengths=lengths),
    )
    marks = torch.zeros(3, 3, dtype=torch.bool, device=x.device)
    differ("reset", lambda: model(x, reset=marks), plain)
    differ("groups", lambda: sd.TimeSharded(rnn, groups=2)(x), plain)
    differ("grad mode", lambda: torch.no_grad()(model)(x), plain)
    differ("module", lambda: sd.TimeSharded(module("MinLSTM", 4, 8, 1))(x), plain)
    differ("module", lambda: sd.TimeSharded(module("QRNN", 4, 8, 2))(x), plain)
    single = module("MinLSTM", 4, 8, 2, dtype=torch.float32)
    differ("dtype", lambda: sd.TimeSharded(single)(x.float()), plain)
    frozen = module("MinLSTM", 4, 8, 2)
    frozen.bias_ih_l0.requires_grad_(False)
    differ("requires_grad of parameters", lambda: sd.TimeSharded(frozen)(x), plain)
    differ("call", lambda: sd.scan(x, x), plain)
    differ("shape of a_local but for time", lambda: sd.scan(x[0], x[0]), lambda: sd.scan(x, x))

    def refuses(kind, words, call):
        """What the last rank refuses, the others learn."""
        told = rf"rank {world.size - 1} of the group refused the call: {words}"
        refused(kind if last else RuntimeError, words if last else told, call if last else plain)

    refuses(ValueError, "input: expected .* C = 4", lambda: model(tensor(3, 3, 5)))
    refuses(TypeError, "input: expected dtype torch.float64", lambda: model(x.float()))
    refuses(
        ValueError, "input: expected a device that the group serves", lambda: model(x.to("meta"))
    )
    elsewhere, spread = (module("MinLSTM", 4, 8, 2) for _ in range(2))
    elsewhere.to("meta")
    theirs = f"{x.device.type}:{world.size - 1}" if x.device.type == "cuda" else x.device
    words = f"input: expected device meta, where the parameters are, got {theirs}: move one of"
    refuses(TypeError, words, lambda: sd.TimeSharded(elsewhere)(x))
    # The device is named before anything that is to be beside it.
    refuses(TypeError, words, lambda: sd.TimeSharded(elsewhere)(x, reset=marks.to("meta")))
    spread.bias_ih_l1 = torch.nn.Parameter(spread.bias_ih_l1.to("meta"))
    words = f"bias_ih_l1: expected device {theirs}, where the other parameters are, got meta"
    refuses(TypeError, words, lambda: sd.TimeSharded(spread)(x))
    refuses(TypeError, f"h_0: expected device {theirs}, where the parameters are, got meta",
            lambda: model(x, hx.to("meta")))  # fmt: skip
    refuses(TypeError, "h_0: expected a tensor, got tuple", lambda: model(x, (hx, hx)))
    refuses(ValueError, "cu_seqlens: expected None where time is split",
            lambda: model(x[0], cu_seqlens=torch.tensor([0, 3])))  # fmt: skip
    refuses(ValueError, r"lengths: expected shape \(3,\)", lambda: model(x, lengths=lengths[:2]))
    refuses(ValueError, r"lengths: expected None for one", lambda: model(x[:, 0], lengths=lengths))
    refuses(ValueError, "reset: expected shape", lambda: model(x, reset=marks[:2]))
    sequences = torch.nn.utils.rnn.pack_sequence([x[:, 0]])
    refuses(TypeError, "input: expected a tensor, got a PackedSequence", lambda: model(sequences))
    words = "TimeSharded: there are no transformations of torch.func"
    refuses(NotImplementedError, words, lambda: torch.vmap(model)(x[None]))
    steps = 3 * world.size
    beyond = torch.tensor([3, steps + 1, 0])
    refused(
        ValueError,
        rf"lengths: expected integers in \[0, {steps}\]",
        lambda: model(x, lengths=beyond),
    )
    refused(ValueError, "groups: expected 1 to 3 .*got 9", lambda: sd.TimeSharded(rnn, groups=9)(x))
    refused(
        ValueError, "groups: expected 1 to 6 for 12 lines, got 13", lambda: sd.scan(x, x, groups=13)
    )
    y, _ = model(x.requires_grad_())
    refused(
        NotImplementedError,
        "TimeSharded: there are no second derivatives",
        lambda: torch.autograd.grad(y.sum(), x, create_graph=True),
    )
    same([model(x)[0].sum() * 0], [torch.zeros(())])  # and all ranks are still together


def places(world):
    """Two ranks on one GPU, and a rank that alone goes on to another one; without GPUs ranks say so
    of the CPU."""
    rnn, x = module("MinLSTM", 4, 8, 2), tensor(3, 3, 4)
    model = sd.TimeSharded(rnn)
    model(x)
    last = world.size - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agree, "place_of", lambda device: (str(device), "GPU-5"))
        words = rf"device: expected a GPU of its own .*{x.device.type}\S* on rank {last}"
        refused(ValueError, words, lambda: model(x))
        refused(ValueError, words, lambda: sd.scan(x, x))
        other = "cuda:99" if world.rank == last else str(x.device)
        patch.setattr(agree, "place_of", lambda device: (other, ""))
        words = rf"device: expected the ranks .* to stay .*cuda:99 after {x.device.type}\S* on rank"
        refused(ValueError, words, lambda: model(x))
    if x.device.type == "cuda":  # all of them on the first GPU
        there = copy.deepcopy(rnn).to("cuda:0"), x.to("cuda:0")
        words = "device: expected a GPU of its own .*cuda:0 on rank 0 and cuda:0 on rank 1"
        refused(ValueError, words, lambda: sd.TimeSharded(there[0])(there[1]))
    same([model(x)[0].sum() * 0], [torch.zeros(())])


def dies(world):
    """Before backward. With gloo the others wait for its messages, with NCCL for its host."""
    rnn, last = module("LSTM", 4, 8, 2), world.size - 1
    y, _ = sd.TimeSharded(rnn, way="pipeline")(tensor(5, 3, 4))
    if world.rank == last:
        os._exit(3)
    start = time.monotonic()
    words = rf"of the group came to no end: rank {last} has ended"
    refused(RuntimeError, words, lambda: y.sum().backward())
    assert time.monotonic() - start < 2 * world.timeout.total_seconds()


def dies_unseen(world):
    """The same where hosts only queue the work: they meet in a group beside the messages'."""
    with pytest.MonkeyPatch.context() as patch:
        unseen(world, patch)
        ranks = agree.Ranks(None)
        ranks.agree(lambda: {agree.PLACE: ranks.place("message", world.device)}, [agree.PLACE])
        link, last = Link(ranks, world.device, torch.float32), world.size - 1

        def meet():
            with link.meeting():
                pass

        meet()
        if world.rank == last:
            os._exit(3)
        words = rf"the meeting beside backward between all .* no end: rank {last} has ended"
        refused(RuntimeError, words, meet)


def unseen(world, patch):
    """Messages go, as far as anybody knows, by what does not let the host wait."""
    patch.setattr(agree.Ranks, "_backends", lambda ranks: {world.device.type: "another"})
    patch.setattr(agree, "_SERVED", {"another": world.device.type})
