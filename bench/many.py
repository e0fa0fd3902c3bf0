# SPDX-License-Identifier: Apache-2.0
"""Sequences split over the GPUs of a host, beside the whole sequence on one of them.

    python bench/many.py --out bench/results/h200x8-many.json [--ranks 1 2 4 8] [--only REGEX]
    python bench/many.py --device cpu --ranks 1 2 --steps 1024 --hidden 64 --out /tmp/many.json

The same problem runs on one device, without ranks, and on each number of ranks, in turns (strong
scaling). A run counts from a barrier to the end of its last rank. What the ranks find is compared
with what the one device found, first: the state at the end and, with backward, the gradients of
parameters or, of a scan, of h_0. A problem for which one device has no memory is measured on more
of them, and not compared.

Progress goes to stderr. Where a rank waits for another one longer than --timeout seconds, every
rank writes where it stands, and all of them end.

A row says into how many groups the ranks cut their work, and the share of its slots that a rank of
such a pipeline works in. `efficiency` is what was measured: one device's time over that of the
ranks times their number.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import scanrnn.torch
import torch
import torch.distributed as dist
from rows import Row
from scanrnn import _core
from scanrnn.registry import cells
from scanrnn.tools import measure
from scanrnn.torch import distributed as sd
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
PASSES = ("forward", "forward_backward")


class Problem(NamedTuple):
    kind: str  # a cell, or "scan"
    B: int
    T: int
    H: int
    dtype: str


PROBLEMS = [
    Problem("MinGRU", 1, 2**14, 1024, "bfloat16"),  # small: what slots cost
    Problem("LSTM", 64, 256, 1024, "bfloat16"),
    Problem("MinGRU", 1, 2**20, 1024, "bfloat16"),
    Problem("MinLSTM", 1, 2**20, 1024, "bfloat16"),
    Problem("SRU", 1, 2**20, 1024, "bfloat16"),
    Problem("scan", 1, 2**22, 1024, "float32"),
    Problem("LSTM", 64, 4096, 1024, "bfloat16"),
]
BOUNDS = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}  # of the largest value


class World(NamedTuple):
    """This process among the others; `groups` of the first so many ranks."""

    rank: int
    device: torch.device
    blocks: int  # of steps: each has random numbers of its own, so that parts are parts of one
    groups: dict[int, Any]
    start: float  # by time.time(), that of the command
    timeout: float

    def says(self, stage: str) -> None:
        """What is done next, and by when it has to be."""
        faulthandler.dump_traceback_later(0.9 * self.timeout)
        if self.rank == 0:
            print(f"{time.time() - self.start:7.1f} s  {stage}", file=sys.stderr, flush=True)

    def numbers(self, problem: Problem, seed: int, rank: int, ranks: int) -> Tensor:
        """[T_local,B,H] of normal numbers."""
        own, steps = self.blocks // ranks, problem.T // self.blocks
        parts = []
        for block in range(rank * own, (rank + 1) * own):
            generator = torch.Generator(self.device).manual_seed(1000 * seed + block)
            shape = steps, problem.B, problem.H
            values = torch.randn(shape, generator=generator, device=self.device)
            parts.append(values.to(DTYPES[problem.dtype]))
        return torch.cat(parts)


class Run:
    """One way to work on a problem: `call` once, and what is compared after it."""

    def __init__(self, world: World, problem: Problem, training: bool, ranks: int) -> None:
        self.training, self.ranks, self.count = training, ranks, 0
        torch.manual_seed(0)
        make = self._scan if problem.kind == "scan" else self._layer
        make(world, problem)
        for leaf in self.leaves:
            leaf.requires_grad_(training)

    def _layer(self, world: World, problem: Problem) -> None:
        options = {"device": world.device, "dtype": DTYPES[problem.dtype]}
        rnn = getattr(scanrnn.torch, problem.kind)(problem.H, problem.H, **options)
        x = world.numbers(problem, 1, world.rank, self.ranks)
        model = rnn if self.ranks == 1 else sd.TimeSharded(rnn, world.groups[self.ranks])
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
            scan = functools.partial(sd.scan, group=world.groups[self.ranks])
        self.call = lambda: (scan(a, b, h_0), [])
        self.model = None

    def once(self) -> list[Tensor]:
        """What is compared: the last states of the last rank, and gradients."""
        with torch.set_grad_enabled(self.training):
            y, finals = self.call()
            if not self.training:
                return [y[-1], *finals]
            for leaf in self.leaves:
                leaf.grad = None
            y.backward(torch.ones_like(y))
        return [y[-1].detach(), *(f.detach() for f in finals), *(v.grad for v in self.compared)]


def seconds(world: World, run: Run | None) -> float:
    """From a barrier to the end of the last rank; None of a rank that has no part in it."""

    def wait() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)

    wait()
    dist.barrier()
    start = time.perf_counter()
    if run is not None:
        kept = run.once()
        wait()
        del kept
    took = torch.tensor(time.perf_counter() - start, device=world.device, dtype=torch.float64)
    took *= run is not None
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def compared(world: World, ranks: int, found: list[Tensor] | None, wanted: list[Tensor]) -> float:
    """The largest error over the largest value, of what the last of the ranks has found."""
    worst = torch.zeros((), device=world.device, dtype=torch.float64)
    for want in wanted:
        got = found.pop(0) if found is not None else torch.empty_like(want)
        got = got.contiguous()
        dist.broadcast(got, ranks - 1)
        error = (got.double() - want.double()).abs().max() / want.double().abs().max()
        worst = torch.maximum(worst, error.nan_to_num(nan=torch.inf))
    dist.broadcast(worst, 0)  # which has what one device found
    return float(worst)


def attempt(world: World, make: Callable[[], Any]) -> tuple[Any, str]:
    """What `make` gives here, or why there is none on some rank: all ranks learn the same."""
    made, why = None, ""
    try:
        made = make()
    except (RuntimeError, MemoryError) as problem:
        why = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, why)
    return made, next((one for one in said if one), "")


def problem_rows(world: World, problem: Problem, training: bool, args: Any) -> list[Row]:
    """A row for each number of ranks; they take turns."""
    head: Row = {"bench": "many", "cell": problem.kind, "pass": PASSES[training], "layout": "TBH"}
    head |= {"B": problem.B, "T": problem.T, "C": problem.H, "H": problem.H, "dtype": problem.dtype}
    runs: dict[int, Run | None] = {}
    rows: dict[int, Row] = {}
    wanted: list[Tensor] = []
    name = " ".join(map(str, (*problem, PASSES[training])))
    for ranks in args.ranks:
        world.says(f"{name}: once on {ranks}")

        def first(ranks: int = ranks) -> tuple[Run, list[Tensor]] | None:
            if world.rank >= ranks:
                return None
            run = Run(world, problem, training, ranks)
            return run, [value.clone() for value in run.once()]

        made, why = attempt(world, first)
        rows[ranks] = head | {"ranks": ranks}
        if why:
            rows[ranks] |= {"failed": why}
            continue
        run, found = made if made is not None else (None, None)
        runs[ranks] = run
        if ranks == 1:
            wanted = found or shapes_from(world, problem, training)
            for value in wanted:
                dist.broadcast(value, 0)
        elif wanted:
            error = compared(world, ranks, found, wanted)
            if error > BOUNDS[problem.dtype]:
                raise AssertionError(f"wrong result: {rows[ranks]}: {error:.2g}")
            rows[ranks]["max_error"] = float(f"{error:.2g}")
        if run is not None and run.model is not None:
            rows[ranks]["groups"] = len(run.model.cut)
    times: dict[int, list[float]] = {ranks: [] for ranks in runs}
    for turn in range(args.turns):
        world.says(f"{name}: turn {turn + 1} of {args.turns}")
        for ranks, run in runs.items():
            times[ranks].append(1e3 * seconds(world, run))
    for ranks, values in times.items():
        rows[ranks] |= measure.Timing.of(values).row()
    for ranks, row in rows.items():
        if "ms" in row and "ms" in rows.get(1, {}):
            speedup = rows[1]["ms"] / row["ms"]
            row |= {"speedup": round(speedup, 3), "efficiency": round(speedup / ranks, 3)}
        if "groups" in row:
            row["pipeline"] = round(row["groups"] / (row["groups"] + ranks - 1), 3)
    return list(rows.values())


def shapes_from(world: World, problem: Problem, training: bool) -> list[Tensor]:
    """Room for what rank 0 found alone."""
    kind, size = DTYPES[problem.dtype], (problem.B, problem.H)
    options = {"device": world.device, "dtype": kind}
    found = [torch.zeros(size, **options)]
    if problem.kind == "scan":
        return found + [torch.zeros(size, **options)] * training
    rnn = getattr(scanrnn.torch, problem.kind)(problem.H, problem.H, **options)
    states = next(cell.states for cell in cells() if cell.name == problem.kind)
    found += [torch.zeros(1, *size, **options) for _ in range(states)]
    return found + [torch.zeros_like(p) for p in rnn.parameters() if training]


def problems(args: Any) -> list[tuple[Problem, bool]]:
    """Those that are asked for, and whether with backward."""
    changed = {"T": args.steps, "H": args.hidden, "B": args.batch, "dtype": args.dtype}
    changed = {key: value for key, value in changed.items() if value}
    every = dict.fromkeys(problem._replace(**changed) for problem in PROBLEMS)
    return [
        (problem, training)
        for problem in every
        for training in (False, True)
        if args.only.search(" ".join(map(str, (*problem, PASSES[training]))))
    ]


def joined(rank: int, args: Any, store: str, start: float) -> World:
    device = torch.device(args.device, rank) if args.device == "cuda" else torch.device("cpu")
    size, backend = max(args.ranks), "nccl" if args.device == "cuda" else "gloo"
    world = World(rank, device, size, {}, start, args.timeout)
    world.says(f"{size} processes, {backend}")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    limit = datetime.timedelta(seconds=args.timeout)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
    )
    for ranks in args.ranks[args.ranks[0] == 1 :]:
        world.groups[ranks] = dist.new_group(list(range(ranks)), timeout=limit)
    world.says("the first exchange")
    dist.all_reduce(torch.zeros(1, device=device))
    return world


def work(rank: int, args: Any, store: str, start: float) -> None:
    faulthandler.enable()
    world = joined(rank, args, store, start)
    content = measure.provenance(_core.Device(args.device)) if rank == 0 else {}
    content |= {"torch": torch.__version__, "command": args.command, "rows": []}
    for problem, training in problems(args):
        rows = problem_rows(world, problem, training, args)
        if rank == 0:
            for row in rows:
                print({k: v for k, v in row.items() if k not in ("bench", "layout")}, flush=True)
            content["rows"] += rows
            measure.save(args.out, content, quiet=True)
    world.says("the end")
    dist.barrier()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def main(command: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if cuda else "cpu")
    parser.add_argument("--ranks", type=int, nargs="+", help="1 is one device without ranks")
    parser.add_argument("--only", type=re.compile, default="", help="an expression on a problem")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=60, help="seconds, of a stage")
    for name in ("batch", "steps", "hidden"):
        parser.add_argument(f"--{name}", type=int, help="instead of the problems' own")
    parser.add_argument("--dtype", choices=DTYPES, help="instead of the problems' own")
    args = parser.parse_args(command)
    there = torch.cuda.device_count() if args.device == "cuda" else 2
    args.ranks = sorted(args.ranks or [n for n in (1, 2, 4, 8) if n <= there])
    if any(max(args.ranks) % n for n in args.ranks):
        parser.error(f"--ranks: expected divisors of the largest, got {args.ranks}")
    if any((args.steps or p.T) % max(args.ranks) for p in PROBLEMS):
        parser.error(f"--steps: expected a multiple of {max(args.ranks)}, got {args.steps}")
    args.only, args.command = re.compile(args.only), measure.command()
    measure.ready(args.out)
    # gloo would ask a name server for this host, which may have none.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        torch.multiprocessing.spawn(work, (args, store, start), nprocs=max(args.ranks))


if __name__ == "__main__":
    main()
