# SPDX-License-Identifier: Apache-2.0
"""Sequences split over the GPUs of a host, beside the whole sequence on one of them.

    python bench/many.py --out bench/results/h200x8-many.json [--ranks 1 2 4 8] [--only REGEX]
    python bench/many.py --device cpu --ranks 1 2 --steps 1024 --hidden 64 --out /tmp/many.json

The same problem runs on one device, without ranks, and on each number of ranks, in turns (strong
scaling). A run counts from a barrier to the end of its last rank: one call, and calls in a row,
as a program makes them. What the ranks find is compared with what the one device found, first:
the state at the end and, with backward, the gradients of parameters or, of a scan, of h_0. A
problem for which one device has no memory is measured on more of them, and not compared. What
does not fit is known before, by an estimate: a rank that runs out of memory in the middle of a
walk would leave the others waiting.

Progress goes to stderr. Where a rank waits for another one longer than --timeout seconds, every
rank writes where it stands, and all of them end. Rows are saved as they come. After a wrong
result the command goes on, and ends with an error.

A row says which `way` a layer's ranks took (a scan has no rows to exchange, and with `--way rows`
takes its own) and, in the case of the pipeline, into how many groups they cut
their work, and the share of its slots that a rank works in. `efficiency` is what was measured:
one device's time over that of the ranks times their number; `in_a_row_ms` and
`in_a_row_efficiency` are a call's where IN_A_ROW follow one another. `peak_bytes` is that of
torch's allocator, by rank, inputs included, and `memory` the largest over one device's.
`exchange_us` is a slot of the same pipeline without its work, from launch to message.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from many_runs import BLOCKS, DTYPES, SCAN_GROUPS, Messages, Problem, Run, World, shapes_from
from rows import Row
from scanrnn import _core
from scanrnn.tools import measure
from scanrnn.torch.distributed.tails import WAYS
from torch import Tensor

PASSES = ("forward", "forward_backward")
IN_A_ROW = 5  # calls

PROBLEMS = [
    Problem("MinGRU", 1, 2**14, 1024, "bfloat16"),  # small: what slots cost
    Problem("LSTM", 64, 256, 1024, "bfloat16"),
    Problem("MinGRU", 1, 2**20, 1024, "bfloat16"),
    Problem("MinLSTM", 1, 2**20, 1024, "bfloat16"),
    Problem("SRU", 1, 2**20, 1024, "bfloat16"),
    Problem("LSTM", 64, 4096, 1024, "bfloat16"),
    Problem("MinGRU", 1, 10**7, 256, "bfloat16"),  # some 60 GiB on one device
    Problem("scan", 1, 2**22, 1024, "float32"),  # some 100 GiB on one device
]
BOUNDS = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}  # of the largest value


def seconds(world: World, run: Run | Messages | None, calls: int = 1) -> float:
    """A call's, from a barrier to the last rank's end; None of a rank that has no part in it."""
    world.wait()
    dist.barrier()
    start = time.perf_counter()
    if run is not None:
        for _ in range(calls):
            run.once()
        world.wait()
    took = (time.perf_counter() - start) / calls
    took = torch.tensor(took, device=world.device, dtype=torch.float64)
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
    return made, next((one for one in gathered(why) if one), "")


def gathered(value: Any) -> list[Any]:
    """Every rank's."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def fits(world: World, problem: Problem, training: bool, ranks: int) -> None:
    wanted, free = problem.bytes(training, ranks), world.free()
    if wanted > free and world.rank < ranks:
        raise MemoryError(f"wants about {wanted / 2**30:.0f} GiB, {free / 2**30:.0f} are free")


class Started:
    """A problem's runs by their numbers of ranks, and the rows that they begin."""

    def __init__(self, world: World, problem: Problem, training: bool) -> None:
        self.world, self.problem, self.training = world, problem, training
        self.head: Row = {"bench": "many", "cell": problem.kind, "pass": PASSES[training]}
        self.head |= {"layout": "TBH", "B": problem.B, "T": problem.T, "C": problem.H}
        self.head |= {"H": problem.H, "dtype": problem.dtype}
        self.runs: dict[int, Run | None] = {}
        self.rows: dict[int, Row] = {}
        self.wanted: list[Tensor] = []

    def first(self, ranks: int) -> None:
        """The first call: its memory, and whether what it finds is right."""
        row = self.rows[ranks] = self.head | {"ranks": ranks}
        _, why = attempt(self.world, lambda: fits(self.world, self.problem, self.training, ranks))
        made, problem = (None, "") if why else attempt(self.world, lambda: self._made(ranks))
        if why or problem:
            row["failed"] = why or problem
            return
        run, found, peak = made if made is not None else (None, None, 0)
        self.runs[ranks] = run
        peaks = gathered(peak)[:ranks]
        if any(peaks):
            row["peak_bytes"] = peaks
        if ranks == 1:
            self.wanted = found or shapes_from(self.world, self.problem, self.training)
            for value in self.wanted:
                dist.broadcast(value, 0)
        elif self.wanted:
            error = compared(self.world, ranks, found, self.wanted)
            row["max_error"] = float(f"{error:.2g}")
            if error > BOUNDS[self.problem.dtype]:
                row["failed"] = "wrong result"
        if run is not None and run.model is not None:
            row |= {"way": run.model.taken, "groups": len(run.model.cut)}

    def _made(self, ranks: int) -> tuple[Run, list[Tensor], int] | None:
        if self.world.rank >= ranks:
            return None
        if self.world.device.type != "cuda":
            run = Run(self.world, self.problem, self.training, ranks)
            return run, [value.clone() for value in run.once()], 0
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run = Run(self.world, self.problem, self.training, ranks)
        found = [value.clone() for value in run.once()]
        self.world.wait()
        return run, found, torch.cuda.max_memory_allocated() - before

    def exchange(self, ranks: int, turns: int) -> float:
        """Microseconds of a slot of messages alone."""
        groups, messages = gathered(self.rows[ranks].get("groups", SCAN_GROUPS))[0], None
        if self.world.rank < ranks:
            messages = Messages(self.world, self.problem, ranks, groups)
        slots = gathered(messages and messages.slots)[0]
        times = [1e6 * seconds(self.world, messages) / slots for _ in range(turns + 3)]
        return round(measure.Timing.of(times[3:]).ms, 2)


def problem_rows(world: World, problem: Problem, training: bool, args: Any) -> list[Row]:
    """A row for each number of ranks; they take turns."""
    name = " ".join(map(str, (*problem, PASSES[training])))
    started = Started(world, problem, training)
    for ranks in args.ranks:
        world.says(f"{name}: once on {ranks}")
        started.first(ranks)
    rows, times = started.rows, {(ranks, n): [] for ranks in started.runs for n in (1, IN_A_ROW)}
    for turn in range(args.turns):
        world.says(f"{name}: turn {turn + 1} of {args.turns}")
        for (ranks, calls), values in times.items():
            values.append(1e3 * seconds(world, started.runs[ranks], calls))
    for ranks in started.runs:
        rows[ranks] |= measure.Timing.of(times[ranks, 1]).row()
        rows[ranks]["in_a_row_ms"] = measure.Timing.of(times[ranks, IN_A_ROW]).row()["ms"]
        if ranks > 1:
            world.says(f"{name}: messages alone on {ranks}")
            rows[ranks]["exchange_us"] = started.exchange(ranks, args.turns)
    one = rows.get(1, {})
    for ranks, row in rows.items():
        for ms, efficiency in (("ms", "efficiency"), ("in_a_row_ms", "in_a_row_efficiency")):
            if ms in row and ms in one:
                row[efficiency] = round(one[ms] / row[ms] / ranks, 3)
        if "peak_bytes" in row and "peak_bytes" in one:
            row["memory"] = round(max(row["peak_bytes"]) / one["peak_bytes"][0], 3)
        if row.get("way") == "pipeline":
            row["pipeline"] = round(row["groups"] / (row["groups"] + ranks - 1), 3)
    return list(rows.values())


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
    world = World(rank, device, size, {}, start, args.timeout, args.groups, args.way)
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
    wrong = False
    for problem, training in problems(args):
        late = time.time() - start > 60 * args.minutes
        if any(gathered(late)):
            world.says("no more, after --minutes")
            break
        rows = problem_rows(world, problem, training, args)
        wrong |= any(row.get("failed") == "wrong result" for row in rows)
        if rank == 0:
            for row in rows:
                print({k: v for k, v in row.items() if k not in ("bench", "layout")}, flush=True)
            content["rows"] += rows
            measure.save(args.out, content, quiet=True)
    world.says("the end")
    dist.barrier()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    if wrong:
        sys.exit("wrong results")


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
    parser.add_argument("--minutes", type=float, default=60, help="start nothing after so many")
    parser.add_argument("--timeout", type=float, default=60, help="seconds, of a stage")
    for name in ("batch", "steps", "hidden"):
        parser.add_argument(f"--{name}", type=int, help="instead of the problems' own")
    parser.add_argument("--groups", type=int, help="of every call, instead of what it chooses")
    parser.add_argument("--way", choices=WAYS, default="auto", help="that ranks take")
    parser.add_argument("--dtype", choices=DTYPES, help="instead of the problems' own")
    args = parser.parse_args(command)
    there = torch.cuda.device_count() if args.device == "cuda" else 2
    args.ranks = sorted(args.ranks or [n for n in (1, 2, 4, 8) if n <= there])
    if any(max(args.ranks) % n for n in args.ranks):
        parser.error(f"--ranks: expected divisors of the largest, got {args.ranks}")
    blocks = BLOCKS * max(args.ranks)
    if any((args.steps or p.T) % blocks for p in PROBLEMS):
        parser.error(f"--steps: expected a multiple of {blocks}, got {args.steps}")
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
