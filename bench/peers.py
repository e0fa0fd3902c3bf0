# SPDX-License-Identifier: Apache-2.0
"""This project beside its peers on one GPU: what a user of scanrnn.torch gets, and what of theirs.

    python bench/peers.py --out bench/results/h200-peers.json [--parts PART ...] [--only REGEX]

Each part has a process of its own: none meets the memory that another's libraries keep, or ends
with it. The file is written after each problem. A later run of some parts replaces their rows
alone, and the file says at which commit each part was measured.

PyTorch is needed, and its cuDNN is called by its C API. accelerated-scan (whose warp kernel nvcc
compiles when it is first imported), mamba-ssm, flash-linear-attention (fla-core) and JAX take part
when they are installed, FlashRNN in its own part. Every result, with backward every gradient, is
compared with a float64 one before it is timed; what fails, or has no kernel for a size, stands in
the file with its error. All runs of a problem then take turns, with its matrix products and a copy
between them. Times are the GPU's: replays of a CUDA graph, or, where a run cannot be captured or
`eager` says so, events around calls in a row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import torch
except ImportError:
    raise SystemExit("bench/peers.py compares with PyTorch: pip install torch") from None
import cudnn
import peer_dense
import peer_flashrnn
import peer_layers
import peer_options
import peer_ragged
import peer_scans
from gpu_timing import GPU, Bench, clock_mhz
from rows import Row
from scanrnn.tools import measure

PARTS: dict[str, Callable[[Bench], None]] = {
    "step": peer_layers.steps,
    "scan": peer_scans.scans,
    "layer": peer_layers.layers,
    "growth": peer_layers.growth,
    "dense": peer_dense.dense,
    "large": peer_dense.large,
    "everyday": peer_dense.everyday,
    "deepbench": peer_dense.deepbench,
    "uneven": peer_dense.uneven,
    "ragged": peer_ragged.layers,
    "episodes": peer_ragged.episodes,
    "packed": peer_ragged.scans,
    "options": peer_options.options,
    "served": peer_dense.served,
    **peer_flashrnn.PARTS,
}
LONG = ("served", *peer_flashrnn.PARTS)  # a minute and more each: only when they are asked for


def provenance() -> Row:
    head = measure.provenance(GPU)
    return head | {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}


def resumed(out: Path, head: Row, part: str) -> list[Row]:
    """Rows of other parts that are there of such a GPU; and of which commit each part is."""
    before = measure.load(out) if out.exists() else {}
    head["commits"] = {part: head["commit"]}
    if any(before.get(key) != head[key] for key in ("gpu", "cudnn")):
        return []
    # "PART, some of its problems" is a part of PART.
    kept = [row for row in before["rows"] if row["part"].partition(",")[0] != part]
    first = {row["part"]: before["commit"] for row in kept}
    head["commits"] |= {one: before.get("commits", first)[one] for one in first}
    commands = before["command"].split("; ")
    head["command"] = "; ".join(dict.fromkeys([*commands, head["command"]]))
    head["copy_gbps"] = before["copy_gbps"]
    return kept


def run(args: argparse.Namespace, part: str, end: float) -> None:
    for algorithm in args.without or ():
        del cudnn.ALGORITHMS[algorithm]
    head, start = provenance(), time.monotonic()
    minutes = (end - start) / 60
    bench = Bench(args.out, head, resumed(args.out, head, part), args.only, minutes)
    bench.part = part
    head["copy_gbps"] = max(bench.copy_gbps(), head.get("copy_gbps", 0))
    try:
        PARTS[part](bench)
    finally:
        bench.save()
    late = f", {bench.late} not begun for want of time" if bench.late else ""
    print(f"{part}: {time.monotonic() - start:.0f} s{late}, clock {clock_mhz()} MHz", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--only", default="", help="a regular expression on a row's values")
    parser.add_argument("--minutes", type=float, default=6, help="start nothing after so many")
    usual = [part for part in PARTS if part not in LONG]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=usual)
    help_of = "of cuDNN's algorithms (persist_dynamic compiles its kernels for each batch size)"
    parser.add_argument("--without", nargs="+", choices=list(cudnn.ALGORITHMS), help=help_of)
    args = parser.parse_args()
    measure.ready(args.out)
    end = time.monotonic() + 60 * args.minutes  # the clock of all processes
    for part in args.parts:
        worker = multiprocessing.get_context("spawn").Process(target=run, args=(args, part, end))
        worker.start()
        worker.join()
        if worker.exitcode:
            print(f"{part} ended with status {worker.exitcode}", flush=True)


if __name__ == "__main__":
    main()
