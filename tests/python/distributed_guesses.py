# SPDX-License-Identifier: Apache-2.0
"""Work that a rank begins before it has heard the others, by what they said before."""

import functools

import pytest
import scanrnn.torch.distributed as sd
import torch
from distributed_compare import noting, refused
from scanrnn.torch import tensors
from scanrnn.torch.distributed import agree, stack
from torch_support import module, same, tensor


def guesses(world):
    """Calls one after the other, in which at last one rank alone does something else."""
    last = world.rank == world.size - 1
    rnn, parts = module("MinGRU", 4, 8), [tensor(3, 2, 4, seed=r) for r in range(world.size)]
    longer, model = tensor(5, 2, 4, seed=9), sd.TimeSharded(rnn, groups=1)
    x = parts[world.rank]

    def right(x, *others):
        whole = rnn(torch.cat(others))[0]
        start = sum(map(len, others[: world.rank]))
        same([model(x)[0]], [whole[start : start + len(x)]])

    usual = functools.partial(right, x, *parts)
    assert _happened(usual)[0] == "heard"
    # The first rank waits for no state, and works before it hears; others are sent one.
    again = _happened(usual)
    assert again[:2] == (["work", "heard"] if world.rank == 0 else ["heard", "work"])
    assert again.count("heard") == 1
    anew = _happened(functools.partial(right, longer if last else x, *parts[:-1], longer))
    assert anew.count("work") == (2 if world.rank == 0 else 1)
    usual()
    for _ in range(2):  # whoever guesses learns of it, and nobody works with anybody else's
        refused(
            ValueError if last else RuntimeError,
            "input: expected .* C = 4",
            lambda: model(x[..., :3] if last else x),
        )
    beyond = torch.tensor([99, 0])
    for _ in range(2):  # an error of all ranks, first by agreement and then by a guess
        refused(ValueError, "lengths: expected integers in", lambda: model(x, lengths=beyond))
    wanted = [tensor(3, 2, 4, seed=r, grad=True) for r in range(world.size)]
    for part in (x, x, wanted[world.rank] if last else x):  # a gradient that one rank alone wants
        gradients = torch.autograd.grad(model(part)[0].square().sum(), list(rnn.parameters()))
        whole = rnn(torch.cat(parts))[0].square().sum()
        same(gradients, torch.autograd.grad(whole, list(rnn.parameters())))
    usual()


def guesses_of_scans(world):
    last = world.rank == world.size - 1
    parts = [tensor(4, 3, seed=r) for r in range(world.size)]
    longer, own = tensor(6, 3, seed=9), parts[world.rank]
    for part, whole in (
        (own, parts), (own, parts), (longer if last else own, [*parts[:-1], longer]), (own, parts),
    ):  # fmt: skip
        h = scan_whole(torch.cat(whole))
        start = sum(map(len, whole[: world.rank]))
        same([sd.scan(part.sigmoid(), part)], [h[start : start + len(part)]])


def scan_whole(value):
    states, h = [], torch.zeros_like(value[0])
    for step in value:
        h = step.sigmoid() * h + step
        states.append(h)
    return torch.stack(states)


def _happened(call):
    """In which order a rank hears the others and works."""
    watched = {"heard": (agree._Asked, "_heard"), "work": (stack, "_layer")}
    with noting(**watched) as seen, torch.no_grad():
        call()
    return seen


def rows_lie_evenly(world):
    """What a group of rows reads is copied once: of [T,B,C] it would take a product for each step.
    In [B,T,C] it lies as it is."""
    for batch_first in (False, True):
        rnn, forward, backward = module("LSTM", 4, 8, batch_first=batch_first), [], []
        shape = (4, 12, 4) if batch_first else (12, 4, 4)
        x = tensor(*shape, grad=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stack, "_layer", _reading(forward, stack._layer, 0))
            patch.setattr(stack, "_layer_backward", _reading(backward, stack._layer_backward, 2))
            y, _ = sd.TimeSharded(rnn, groups=2)(x)
            y.sum().backward()
        assert len(forward) == len(backward) == 2
        assert all(tensors.evenly_spaced(v) is v for v in forward)
        kept = {v.data_ptr() for v in forward}
        assert {v.data_ptr() for v in backward} == kept
        assert (x.data_ptr() in kept) == batch_first


def _reading(seen, own, place):
    """`own`, whose argument at this place is seen."""

    def reading(*args):
        seen.append(args[place])
        return own(*args)

    return reading


CALLS = guesses, guesses_of_scans, rows_lie_evenly
