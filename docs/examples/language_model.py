#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A byte-level language model in torch, with every cell of scanrnn and torch's own beside them.

Each model is an embedding, a stack of recurrent layers and a linear head, as wide as the same
number of parameters allows. All train on the same windows of real text, the source of Python's
standard library or a file of yours, with AdamW and autocast. What comes out: tokens a second, bits
a character on text that was held out, curves as a PNG, and JSON.

    python docs/examples/language_model.py                       # minutes, on a GPU
    python docs/examples/language_model.py --device cpu --steps 100 --parameters 100000 \\
        --batch 8 --length 64
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import scanrnn
import scanrnn.torch
import torch
from scanrnn import _core  # where a result comes from, and how it is kept
from scanrnn.tools import measure
from torch import Tensor, nn
from torch.nn import functional

SYMBOLS = 128  # bytes above ASCII are left out
BORDER = 0  # between two documents
Recurrent = Callable[..., nn.Module]


class LanguageModel(nn.Module):
    """p(next symbol | symbols so far). The state goes from one window of a text to the next.

    A document knows nothing of the one before it: where scanrnn's modules read a border, no state
    comes into the step. torch's have no such argument, and read on.
    """

    def __init__(self, recurrent: Recurrent, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.recurrent = recurrent(width, width, num_layers=layers)  # [T,B,C], as torch.nn.LSTM
        self.head = nn.Linear(width, SYMBOLS)
        self.resets = not isinstance(self.recurrent, nn.RNNBase)

    def forward(self, symbols: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """symbols [T,B] -> logits [T,B,SYMBOLS], state."""
        told = {"reset": symbols == BORDER} if self.resets else {}
        hidden, state = self.recurrent(self.embedding(symbols), state, **told)
        return self.head(hidden), state


def recurrences() -> dict[str, Recurrent]:
    """By the name in the table: scanrnn's cells, then torch's."""
    ours: dict[str, Recurrent] = {}
    for cell in scanrnn.cells():
        name, options = cell.made_by()  # one cell may be an option of another's class
        module = getattr(scanrnn.torch, name)
        ours[f"scanrnn.{cell.name}"] = functools.partial(module, **options)
    return ours | {"torch.GRU": nn.GRU, "torch.LSTM": nn.LSTM}


def widest(recurrent: Recurrent, layers: int, parameters: int) -> int:
    """The largest width, a multiple of 8, whose model has at most that many parameters."""

    def count(width: int) -> int:
        with torch.device("meta"):
            model = LanguageModel(recurrent, width, layers)
        return sum(value.numel() for value in model.parameters())

    low, high = 1, 1
    while count(8 * high) <= parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(8 * middle) <= parameters else (low, middle)
    return 8 * low


# ---- text


def load_text(path: Path | None, limit: int) -> Tensor:
    """Symbols of a file, or of the standard library's source files in the order of their names,
    with borders between them."""
    files = [path] if path else sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    raw, size = [], 0
    for file in files:
        if "site-packages" in file.parts or "dist-packages" in file.parts or size > limit:
            continue
        raw.append(file.read_bytes().translate(None, bytes(range(SYMBOLS, 256))))
        size += len(raw[-1])
    text = torch.frombuffer(bytearray(bytes([BORDER]).join(raw)[:limit]), dtype=torch.uint8)
    if len(text) < 1000:
        raise SystemExit(f"too little text: {len(text)} characters in {files[:3]}")
    return text


def windows(text: Tensor, batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """[length+1, batch] from anywhere in the text."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(length + 1)[:, None]
    while True:
        yield text[torch.randint(len(text) - length, (batch,), generator=generator) + offsets]


def loss_of(model: nn.Module, window: Tensor, half: torch.dtype | None) -> Tensor:
    """Nats a character."""
    window = window.long()
    with torch.autocast(window.device.type, half, enabled=half is not None):
        logits, _ = model(window[:-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), window[1:].flatten())


@torch.no_grad()
def bits_of(model: nn.Module, text: Tensor, length: int, half: torch.dtype | None) -> float:
    """Bits a character of a text in rows of `length` that are read at once."""
    rows = text[: len(text) // (length + 1) * (length + 1)].view(-1, length + 1).T
    return loss_of(model.eval(), rows, half).item() / math.log(2)


# ---- training


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(name: str, model: nn.Module, text: Tensor, held: Tensor, args: Any) -> dict[str, Any]:
    """Trains in place; a row of the table and the model's curve."""
    device, half = held.device, getattr(torch, args.autocast) if args.autocast else None
    optimiser = torch.optim.AdamW(model.parameters(), args.rate, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.rate, total_steps=args.steps)
    curve: list[tuple[float, float]] = []
    losses: list[Tensor] = []
    seconds, started, every = 0.0, time.perf_counter(), max(1, args.steps // 40)
    batches = windows(text, args.batch, args.length, args.seed)
    for step in range(args.steps):
        if step == args.warmup:  # allocators, libraries and algorithms are ready: the clock starts
            wait(device)
            started = time.perf_counter()
        window = next(batches)
        loss = loss_of(model.train(), window.to(device, non_blocking=True), half)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        if (step + 1) % every == 0:
            bits = torch.stack(losses).mean().item() / math.log(2)  # waits for the device
            losses.clear()
            seconds = time.perf_counter() - started
            curve.append(((step + 1) * args.batch * args.length, bits))
            if sys.stderr.isatty():
                done = f"{step + 1}/{args.steps}"
                print(f"\r{name:16} {done:>10} steps  {bits:6.3f} bits", end="", file=sys.stderr)
    wait(device)
    seconds = time.perf_counter() - started
    tokens = (args.steps - args.warmup) * args.batch * args.length
    row = {
        "bench": "language_model",
        "impl": f"torch {torch.__version__}" if name.startswith("torch") else "scanrnn",
        "cell": name.partition(".")[2],
        "pass": "training_step",
        "T": args.length,
        "B": args.batch,
        "H": model.head.in_features,
        "layers": args.layers,
        "dtype": args.autocast or "float32",
        "parameters": sum(value.numel() for value in model.parameters()),
        "tokens_per_second": round(tokens / seconds),
        "ms": round(1e3 * seconds / (args.steps - args.warmup), 3),
        "training_bits": round(curve[-1][1], 4),
        "held_out_bits": round(bits_of(model, held, args.length, half), 4),
        "curve": [[int(tokens), round(bits, 4)] for tokens, bits in curve],
    }
    print(
        f"\r{name:16} {row['parameters']:>10,} parameters  {row['tokens_per_second']:>10,} tokens/s"
        f"  {row['held_out_bits']:.3f} bits a character"
    )
    return row


# ---- what is left behind


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for row in rows:
        tokens, bits = zip(*row["curve"], strict=True)
        label = f"{row['impl'].partition(' ')[0]} {row['cell']}"
        dash = "--" if row["impl"].startswith("torch") else "-"
        axes[0].plot([t / 1e6 for t in tokens], bits, dash, label=label)
        axes[1].plot([t / row["tokens_per_second"] for t in tokens], bits, dash, label=label)
    axes[0].set(xlabel="million characters read", ylabel="training loss, bits a character")
    axes[1].set(xlabel="seconds", xscale="log")
    axes[0].set_title(f"{rows[0]['parameters'] / 1e6:.2g} M parameters each")
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[1].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"curves: {path}", file=sys.stderr)


def main(command: list[str]) -> list[dict[str, Any]]:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = recurrences()
    parser.add_argument("--models", nargs="+", choices=models, default=list(models), metavar="NAME")
    parser.add_argument("--text", type=Path, help="a file; else Python's standard library")
    parser.add_argument("--characters", type=int, default=20_000_000, help="of the text, at most")
    parser.add_argument("--parameters", type=int, default=4_000_000, help="of each model, at most")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--autocast", choices=["bfloat16", "float16", ""], default=None)
    parser.add_argument("--plot", type=Path, default=Path("language-model.png"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(command)
    device = torch.device(args.device)
    if args.autocast is None:
        args.autocast = "bfloat16" if device.type == "cuda" else ""
    args.warmup = min(args.warmup, args.steps - 1)

    text = load_text(args.text, args.characters)
    share = min(len(text) // 20, 64 * (args.length + 1))
    text, held = text[:-share], text[-share:].to(device)
    print(f"{len(text):,} characters to train on, {len(held):,} held out; {device}")
    content = measure.provenance(_core.Device(args.device)) | {
        "torch": torch.__version__,
        "command": " ".join(["python docs/examples/language_model.py", *command]),
        "characters": len(text),
        "rows": [],
    }
    for name in args.models:
        torch.manual_seed(args.seed)
        width = widest(models[name], args.layers, args.parameters)
        model = LanguageModel(models[name], width, args.layers).to(device)
        content["rows"].append(train(name, model, text, held, args))
        if args.json:
            measure.save(args.json, content)
    draw(content["rows"], args.plot)
    return content["rows"]


if __name__ == "__main__":
    main(sys.argv[1:])
