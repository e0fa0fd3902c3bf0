# SPDX-License-Identifier: Apache-2.0
"""A world's part of a call beside the whole on one device, which every rank computes by itself from
the same seeds."""

import contextlib

import pytest
import torch
from torch_support import flat, same, state, tensor

SHARE = 1e-11  # of the largest value: sums over groups and ranks have another order
PARTS = {1: [9], 2: [4, 5], 3: [4, 0, 5], 4: [3, 2, 0, 4]}  # steps by rank


@contextlib.contextmanager
def noting(**watched):
    """In which order functions are called, by a word for each, `word=(owner, name)`."""
    seen = []

    def noted(word, own):
        def noting(*args):
            seen.append(word)
            return own(*args)

        return noting

    with pytest.MonkeyPatch.context() as patch:
        for word, (owner, name) in watched.items():
            patch.setattr(owner, name, noted(word, getattr(owner, name)))
        yield seen


def span(world, parts=None):
    """This rank's steps as a slice, of how many."""
    parts = parts or PARTS[world.size]
    start = sum(parts[: world.rank])
    return slice(start, start + parts[world.rank])


def along(rnn):
    return 1 if rnn.batch_first else 0


def part_of(value, here, axis=0):
    return value[here] if axis == 0 else value[:, here]


def losses(y, finals, here, axis, ranks):
    """What the ranks add to the loss: each its part of y, and the states by a factor of its own."""
    weight = part_of(tensor(*y[1], dtype=y[0].dtype, seed=3), here, axis)
    total = (y[0] * weight).sum()
    for rank in ranks:
        for i, final in enumerate(finals):
            total = (
                total + (final * tensor(*final.shape, dtype=final.dtype, seed=10 * rank + i)).sum()
            )
    return total


def results(rnn, model, x, hx, told, here, ranks):
    """y, states, and gradients, of the whole or of this rank's part."""
    axis, sharded = along(rnn) if x.dim() == 3 else 0, model is not rnn
    whole_y = (*x.shape[:-1], (rnn.proj_size or rnn.hidden_size) * (1 + rnn.bidirectional))
    given = part_of(x, here, axis).clone().requires_grad_()
    initial = [] if hx is None else [h.clone().requires_grad_() for h in flat([hx])]
    hx = None if hx is None else tuple(initial) if len(initial) > 1 else initial[0]
    if sharded and "reset" in told:
        told = told | {"reset": part_of(told["reset"], here, axis)}
    rnn.zero_grad()
    y, h_n = model(given, hx, **told)
    finals = flat([h_n])
    losses((y, whole_y), finals, here, axis, ranks).backward()
    return (
        [y, *finals],
        [given.grad, *(h.grad for h in initial)],
        [p.grad for p in rnn.parameters()],
    )


def compare(world, rnn, model, steps=9, batch=3, initial=True, told=None, share=SHARE, parts=None):
    shape = (batch, steps) if rnn.batch_first else (steps, batch)
    shape = shape if batch is not None else (steps,)
    dtype = next(rnn.parameters()).dtype
    x, hx = tensor(*shape, rnn.input_size, dtype=dtype), None
    if initial:
        hx = state(rnn, batch, dtype=dtype)
    whole, here = slice(0, steps), span(world, parts)
    axis = 0 if batch is None else along(rnn)
    torch.manual_seed(100)  # of what is dropped: the first rank's
    want = results(rnn, rnn, x, hx, told or {}, whole, range(world.size))
    torch.manual_seed(100 + world.rank)
    got = results(rnn, model, x, hx, told or {}, here, [world.rank])
    (y, *finals), (dx, *others), params = want
    same(got[0], [part_of(y, here, axis), *finals], share)
    same(got[1], [part_of(dx, here, axis), *others], share)
    same(got[2], params, share)
    return got


def ragged(rnn, batch, steps, *, lengths=True, reset=True):
    told = {}
    if lengths:
        told["lengths"] = torch.tensor([steps, 4, 0, 6][:batch])
    if reset:
        step = torch.arange(steps * batch, device=next(rnn.parameters()).device)
        marks = step.reshape(steps, batch) % 4 == 3
        told["reset"] = marks.T.contiguous() if rnn.batch_first else marks
    return told


def refused(kind, words, call):
    with pytest.raises(kind, match=words):
        call()
