# SPDX-License-Identifier: Apache-2.0
"""What ranks do before they have heard one another, and what they keep of calls."""

import distributed_compare
import pytest
import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from distributed_compare import refused, span
from distributed_tails import PARTS, keep, short
from scanrnn.torch.distributed import agree, ahead, at_once, stack, told
from torch_support import module, same, tensor


def noting():
    """In which order a rank reads tails, exchanges them ahead, works, and hears the others."""
    return distributed_compare.noting(
        tail=(at_once, "_layer"),
        work=(stack, "_layer"),
        ahead=(ahead, "exchanged"),
        heard=(agree._Asked, "_heard"),
    )


class Usual:
    """A call that ranks make again and again, beside the whole sequence on one device."""

    def __init__(self, world, rnn, way="tails"):
        self.rnn, self.model = rnn, sd.TimeSharded(rnn, way=way)
        self.parts = PARTS[world.size]
        self.here, self.x = span(world, self.parts), tensor(sum(self.parts), 2, rnn.input_size)

    def __call__(self, here=None, x=None):
        here, x = here or self.here, self.x if x is None else x
        y, h_n = self.model(x[here])
        whole, last = self.rnn(x)
        same([y, h_n], [whole[here], last])
        assert self.model.taken == "tails" or self.model.way == "auto"
        return self.model.taken


def work_ahead(world):
    """The second call of two alike has queued its work when it hears the others, and each rank
    posts the exchange ahead once, whatever the others do."""
    last = world.rank == world.size - 1
    rnn = module("MinGRU", 8, 8)
    usual = Usual(world, rnn)
    for grads in (False, True):
        with torch.set_grad_enabled(grads):
            usual()
            with noting() as seen:
                usual()
            first = ["ahead"] if last and not grads else ["tail", "ahead"]
            assert seen == [*first, "work", "heard"]
    longer = tensor(sum(usual.parts) + 3, 2, 8)
    start = usual.here.start
    for _ in range(2):  # one rank has more steps: first new, then a right guess on it alone
        with noting() as seen:
            usual(slice(start, None) if last else None, longer)
        assert seen.count("ahead") == 1
        assert seen.count("heard") == 1
        usual()
    x = usual.x[usual.here]
    for _ in range(2):
        with noting() as seen:
            refused(
                ValueError if last else RuntimeError,
                "input: expected .* C = 8",
                lambda: usual.model(x[..., :3] if last else x),
            )
        assert seen.count("ahead") == 1
        usual()
    words = "call: expected the same on every rank"
    refused(ValueError, words, lambda: sd.scan(x, x) if last else usual.model(x))
    usual()
    deep = Usual(world, module("SRU", 8, 8, 3, bidirectional=True))
    for _ in range(3):
        deep()


def work_ahead_of_scans(world):
    last, parts = world.rank == world.size - 1, PARTS[world.size]
    here, b = span(world, parts), tensor(sum(parts), 6)
    a = b.sigmoid()
    want = torch.zeros_like(b[0])
    states = []
    for one, other in zip(a, b, strict=True):
        want = one * want + other
        states.append(want)
    whole = torch.stack(states)

    def usual():
        same([sd.scan(a[here], b[here], way="tails")], [whole[here]])

    for _ in range(3):
        with noting() as seen:
            usual()
    assert seen == ["ahead", "heard"]
    words = "shape of a_local but for time: expected the same on every rank"
    few = slice(0, 4 if last else None)
    refused(ValueError, words, lambda: sd.scan(a[here][:, few], b[here][:, few], way="tails"))
    usual()
    with torch.no_grad():
        a[:] = 0.9999
        words = "way: expected 'auto' or 'pipeline' where gates keep a state, got 'tails'"
        refused(ValueError, words, lambda: sd.scan(a[here], b[here], way="tails"))


def gates_that_change(world):
    """What a call trusts in is looked at before it gives anything."""
    rnn = module("MinGRU", 8, 8, 2)
    usual, own = Usual(world, rnn, way="auto"), rnn.bias_ih_l1[:8].detach().clone()

    def tails_of(bias):
        """How many are read, by the call with which the second layer's gates change."""
        with torch.no_grad():
            rnn.bias_ih_l1[:8] = bias
        with noting() as seen:
            assert usual() == "tails"
        return seen.count("tail")

    with short():
        tails_of(2.0)  # which forgets fast
        assert tails_of(2.0) == 2  # one for each layer
        assert tails_of(own) > 3  # those were too short
        assert tails_of(own) == 2
        keep(rnn, 1)
        assert usual() == usual() == "pipeline"
        tails_of(2.0)
        assert tails_of(2.0) == 2


# ---- what is kept, and what passes


def drawing_calls(world):
    """Each has another seed, and nothing more is kept of it."""
    rnn = module("MinGRU", 4, 8, 2, dropout=0.5)
    model, x = sd.TimeSharded(rnn), tensor(3, 2, 4)
    memory = told.memory_of(dist.group.WORLD)
    model(x)
    before = len(memory._agreed), len(memory._last)
    found = [model(x)[0] for _ in range(4)]
    assert (len(memory._agreed), len(memory._last)) == before
    assert not torch.equal(found[0], found[1])


def memories_have_an_end(world):
    ranks = agree.Ranks(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(told, "_MOST_HEARD", 4)
        memory = told.memory_of(dist.group.WORLD)
        for number in (*range(10), 9, 3, 0):
            every = ranks.agree(lambda: {"number": number, "own": world.rank}, ["own"])  # noqa: B023
            assert [one["own"] for one in every] == list(range(world.size))
            assert all(one["number"] == number for one in every)
        assert len(memory._agreed) <= 5


def long_messages(world):
    """There is no size that a message may not have, be it one rank's alone."""
    ranks, last = agree.Ranks(None), world.size - 1
    words = "word " * (2000 if world.rank == last else 1)
    every = ranks.agree(lambda: {"same": "s" * 3000, "own": words}, ["own"])
    assert [len(one["own"]) for one in every] == [5] * last + [10000]
    assert all(one["same"] == "s" * 3000 for one in every)
    refused(
        ValueError,
        "same: expected the same on every rank of the group",
        lambda: ranks.agree(lambda: {"same": words}),
    )

    def refuses():
        if world.rank == last:
            raise ValueError("x" * 9000 + " is the end")
        return {}

    kind = ValueError if world.rank == last else RuntimeError
    refused(kind, "x{9000} is the end", lambda: ranks.agree(refuses))


CASES = {
    case.__name__: case
    for case in (
        work_ahead, work_ahead_of_scans, gates_that_change, drawing_calls, memories_have_an_end,
        long_messages,
    )
}  # fmt: skip
