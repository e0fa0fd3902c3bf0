# SPDX-License-Identifier: Apache-2.0
"""What many.py measures: problems, the ways to work on one, and the messages alone."""

from __future__ import annotations

import faulthandler
import functools
import sys
import time
from typing import Any, NamedTuple

import scanrnn.torch
import torch
from scanrnn.registry import cells
from scanrnn.torch import distributed as sd
from scanrnn.torch.distributed.agree import Ranks
from scanrnn.torch.distributed.exchange import Link
from scanrnn.torch.distributed.groups import cut
from scanrnn.torch.distributed.schedule import Shape, Unit, slots_of
from scanrnn.torch.distributed.tails import SCAN_WAYS
from scanrnn.torch.distributed.told import PLACE
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
BLOCKS = 8  # of a rank's steps, where there are most ranks: each has random numbers of its own
SCAN_GROUPS = 24  # of the messages that are measured for a bare scan


class Problem(NamedTuple):
    kind: str  # a cell, or "scan"
    B: int
    T: int
    H: int
    dtype: str

    @property
    def cell(self) -> Any:
        return next((cell for cell in cells() if cell.name == self.kind), None)

    @property
    def states(self) -> int:
        return self.cell.states if self.cell else 1

    def bytes(self, training: bool, ranks: int) -> int:
        """About what a rank needs at most. Beside a tensor of values for each gate, kept for
        backward, there are x, y, a copy where one is made, and with backward their cotangents; of a
        scan a, b, h and theirs."""
        gates = self.cell.gates if self.cell else 0
        forward = (3 + gates if self.cell else 3) * self._line(ranks)
        backward = (4 + 2 * gates if self.cell else 4) * self._line(ranks)
        return forward + backward * training

    def _line(self, ranks: int) -> int:
        return self.B * self.T * self.H * DTYPES[self.dtype].itemsize // ranks


class World(NamedTuple):
    """This process among the others; `groups` of the first so many ranks."""

    rank: int
    device: torch.device
    size: int
    groups: dict[int, Any]
    start: float  # by time.time(), that of the command
    timeout: float
    cut: int | None = None  # how many groups to make; None lets the call choose
    way: str = "auto"

    def says(self, stage: str) -> None:
        """What is done next, and by when it has to be."""
        faulthandler.dump_traceback_later(0.9 * self.timeout)
        if self.rank == 0:
            print(f"{time.time() - self.start:7.1f} s  {stage}", file=sys.stderr, flush=True)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free(self) -> float:
        """Bytes of memory that nobody has; without a GPU nobody counts them."""
        if self.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(self.device)[0])

    def numbers(self, problem: Problem, seed: int, rank: int, ranks: int) -> Tensor:
        """[T_local,B,H] of normal numbers, the same whatever ranks they are on."""
        own, steps = BLOCKS * self.size // ranks, problem.T // (BLOCKS * self.size)
        shape = own, steps, problem.B, problem.H
        values = torch.empty(shape, device=self.device, dtype=DTYPES[problem.dtype])
        for at, block in enumerate(range(rank * own, (rank + 1) * own)):
            generator = torch.Generator(self.device).manual_seed(1000 * seed + block)
            values[at] = torch.randn(shape[1:], generator=generator, device=self.device)
        return values.flatten(0, 1)


class Run:
    """One way to work on a problem: `once`, and what is compared after it."""

    def __init__(self, world: World, problem: Problem, training: bool, ranks: int) -> None:
        self.training, self.ranks = training, ranks
        torch.manual_seed(0)
        make = self._scan if problem.kind == "scan" else self._layer
        make(world, problem)
        for leaf in self.leaves:
            leaf.requires_grad_(training)

    def _layer(self, world: World, problem: Problem) -> None:
        options = {"device": world.device, "dtype": DTYPES[problem.dtype]}
        rnn = getattr(scanrnn.torch, problem.kind)(problem.H, problem.H, **options)
        x = world.numbers(problem, 1, world.rank, self.ranks)
        model = (
            rnn
            if self.ranks == 1
            else sd.TimeSharded(rnn, world.groups[self.ranks], groups=world.cut, way=world.way)
        )
        self.leaves = [*rnn.parameters(), x]
        self.compared = [*rnn.parameters()]

        def call() -> tuple[Tensor, list[Tensor]]:
            y, h_n = model(x)
            return y, list(h_n) if isinstance(h_n, tuple) else [h_n]

        self.call = call
        self.model = None if self.ranks == 1 else model

    def _scan(self, world: World, problem: Problem) -> None:
        a, b = (world.numbers(problem, s, world.rank, self.ranks) for s in (1, 2))
        a.sigmoid_()
        h_0 = torch.ones(problem.B, problem.H, device=world.device, dtype=a.dtype)
        self.leaves, self.compared = [a, b, h_0], [h_0]
        scan = scanrnn.torch.scan
        if self.ranks > 1:
            way = world.way if world.way in SCAN_WAYS else "auto"
            own = {"group": world.groups[self.ranks], "groups": world.cut, "way": way}
            scan = functools.partial(sd.scan, **own)
        self.call = lambda: (scan(a, b, h_0), [])
        self.model = None

    def once(self) -> list[Tensor]:
        """What is compared: the last states of the last rank, and gradients."""
        with torch.set_grad_enabled(self.training):
            y, finals = self.call()
            if not self.training:
                return [y[-1], *finals]
            y.backward(torch.ones_like(y))
        gradients = [v.grad for v in self.compared]
        for leaf in self.leaves:  # other runs want the memory
            leaf.grad = None
        return [y[-1].detach(), *(f.detach() for f in finals), *gradients]


class Messages:
    """The exchanges of a forward pass without its work, in as many groups."""

    def __init__(self, world: World, problem: Problem, ranks: int, groups: int) -> None:
        members = Ranks(world.groups[ranks])
        members.agree(lambda: {PLACE: members.place("message", world.device)}, [PLACE])
        self.link = Link(members, world.device, DTYPES[problem.dtype])
        self.shape = Shape(ranks, 1, 1, groups)
        self.slots = len(slots_of(self.shape))
        values = problem.states * problem.B * problem.H
        bounds = cut(values, groups).bounds
        self.sizes = [stop - start for start, stop in bounds]
        self.message = torch.zeros(values, device=world.device, dtype=self.link.dtype)

    def once(self) -> list[Tensor]:
        def size_of(unit: Unit) -> int:
            return self.sizes[unit.group]

        def work(unit: Unit, came: Tensor | None) -> Tensor:
            return self.message[: size_of(unit)] if came is None else came

        self.link.walk(self.shape, size_of, work)
        return []


def shapes_from(world: World, problem: Problem, training: bool) -> list[Tensor]:
    """Room for what rank 0 found alone."""
    kind, size = DTYPES[problem.dtype], (problem.B, problem.H)
    options = {"device": world.device, "dtype": kind}
    found = [torch.zeros(size, **options)]
    if problem.kind == "scan":
        return found + [torch.zeros(size, **options)] * training
    rnn = getattr(scanrnn.torch, problem.kind)(problem.H, problem.H, **options)
    found += [torch.zeros(1, *size, **options) for _ in range(problem.states)]
    return found + [torch.zeros_like(p) for p in rnn.parameters() if training]
