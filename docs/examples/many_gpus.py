#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The byte-level language model of language_model.py, its windows split in time over ranks.

Each rank reads its own part of every window, so that a window may be longer than one GPU's memory
allows. The recurrent layers are a TimeSharded, which hands their state from rank to rank. The
embedding and the head see this rank's part alone, so their gradients are added over the ranks here.

    torchrun --standalone --nproc-per-node=8 docs/examples/many_gpus.py --length 65536
    torchrun --standalone --nproc-per-node=2 docs/examples/many_gpus.py --device cpu --steps 30 \\
        --parameters 100000 --batch 8 --length 256

Without torchrun it is one rank, or what RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
say. The seed gives the same parameters and the same windows on any number of ranks,
so bits a character are the same but for the order of sums, and for states that are rounded where a
part ends: a few thousandths after some steps in bfloat16, since training makes differences larger.
The last lines say tokens a second over the second half of the steps, and the most memory of a rank.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import scanrnn.torch.distributed as sd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from language_model import LanguageModel, load_text, recurrences, widest, windows


def loss_of(model: nn.Module, window: Tensor, half: torch.dtype | None) -> Tensor:
    """This rank's share of the nats a character: `window` [length + 1, batch] is the whole one."""
    steps = len(window) - 1
    rank, ranks = dist.get_rank(), dist.get_world_size()
    begin, end = rank * steps // ranks, (rank + 1) * steps // ranks
    with torch.autocast(window.device.type, half, enabled=half is not None):
        logits, _ = model(window[begin:end])
    wanted = window[begin + 1 : end + 1].flatten()
    total = functional.cross_entropy(logits.flatten(0, 1).float(), wanted, reduction="sum")
    return total / (steps * window.shape[1])


def joined(kind: str) -> torch.device:
    """This rank's device, when all ranks have met."""
    environment = os.environ
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in alone.items():
        environment.setdefault(name, value)
    on_this_host = environment["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1")
    if on_this_host or environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        # gloo would look up the name of this host, which may take long where nobody answers.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, int(environment.get("LOCAL_RANK", environment["RANK"])))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return device


def most_memory(device: torch.device) -> list[float]:
    """GiB that torch has had at most on each rank's GPU."""
    own = torch.zeros((), device=device)
    if device.type == "cuda":
        own += torch.cuda.max_memory_allocated(device) / 2**30
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return [value.item() for value in every]


def train(model: LanguageModel, text: Tensor, args: argparse.Namespace) -> list[float]:
    """Bits a character, by steps."""
    half = torch.bfloat16 if args.device == "cuda" else None
    beside = [*model.embedding.parameters(), *model.head.parameters()]
    device = beside[0].device
    optimiser = torch.optim.AdamW(model.parameters(), args.rate)
    batches = windows(text, args.batch, args.length, args.seed)  # the same on every rank
    bits: list[float] = []
    ends: list[float] = []
    for step in range(args.steps):
        start = time.perf_counter()
        loss = loss_of(model, next(batches).long().to(device), half)
        optimiser.zero_grad()
        loss.backward()
        for parameter in beside:
            dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        total = loss.detach()
        dist.all_reduce(total)
        bits.append(total.item() / math.log(2))  # waits for the device
        ends.append(time.perf_counter())
        if dist.get_rank() == 0 and (step + 1) % max(1, args.steps // 10) == 0:
            rate = args.batch * args.length / (ends[-1] - start)
            print(f"{step + 1:6} steps  {bits[-1]:.4f} bits a character  {rate:,.0f} tokens/s")
    memory, half_way = most_memory(device), len(ends) // 2
    if dist.get_rank() == 0 and half_way:
        taken = (ends[-1] - ends[half_way - 1]) / (len(ends) - half_way)
        print(f"{args.batch * args.length / taken:,.0f} tokens/s on {len(memory)} ranks")
        if any(memory):
            print("GiB at most, by rank: " + " ".join(f"{value:.2f}" for value in memory))
    return bits


def main(command: list[str]) -> list[float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = {name: made for name, made in recurrences().items() if name.startswith("scanrnn")}
    parser.add_argument("--model", choices=models, default="scanrnn.MinGRU")
    parser.add_argument("--text", type=Path, help="a file; else Python's standard library")
    parser.add_argument("--characters", type=int, default=20_000_000, help="of the text, at most")
    parser.add_argument("--parameters", type=int, default=4_000_000, help="of the model, at most")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=65536, help="of a window, over all ranks")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if cuda else "cpu")
    args = parser.parse_args(command)
    device = joined(args.device)
    text = load_text(args.text, args.characters)
    torch.manual_seed(args.seed)  # the same parameters on every rank
    width = widest(models[args.model], args.layers, args.parameters)
    model = LanguageModel(models[args.model], width, args.layers).to(device)
    model.recurrent = sd.TimeSharded(model.recurrent)
    bits = train(model, text, args)
    dist.destroy_process_group()
    return bits


if __name__ == "__main__":
    main(sys.argv[1:])
