# SPDX-License-Identifier: Apache-2.0
"""This project beside its peers on one GPU, in one run.

    python bench/peers.py --out bench/results/h200-peers.json [--only REGEX] [--minutes 3]

PyTorch is needed. accelerated-scan (whose warp kernel nvcc compiles when it is first imported),
flash-linear-attention (fla-core) and JAX take part when they are installed. Every result is
compared with a float64 one before it is timed; what fails, or has no kernel for a size, stands in
the file with its error. Times are the GPU's: replays of a CUDA graph, or, where a peer cannot be
captured, events around calls in a row.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
import scanrnn

try:
    import torch
except ImportError:
    raise SystemExit("bench/peers.py compares with PyTorch: pip install torch") from None
import peer_models as models
from gpu_timing import GPU, Bench, Run, error_of, failure, timed
from scanrnn import crossover, measure
from scanrnn.registry import cells
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCANS = [  # B, T, C, dtype
    (8, 4096, 1536, "float32"),
    (16, 1024, 768, "float32"),
    (1, 65536, 1024, "float32"),
    (1, 1048576, 64, "float32"),
    (8, 4096, 1536, "bfloat16"),
]
LAYERS = [  # B, T, C = H, dtype
    (8, 4096, 1024, "bfloat16"),
    (16, 1024, 768, "bfloat16"),
    (1, 65536, 1024, "bfloat16"),
    (8, 4096, 1024, "float32"),
    (32, 128, 512, "bfloat16"),
]
DENSE = [(16, 1024, 768), (8, 4096, 1024), (64, 1024, 1024), (16, 1024, 128), (32, 128, 512)]
GROWTH = [(16, 2**k, 768, "bfloat16") for k in range(4, 16)]
PASSES = ("forward", "forward_backward")


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as problem:
        print(f"{name} does not take part: {problem!r}"[:300], flush=True)
        return None


def scans(bench: Bench) -> None:
    for shape in SCANS:
        first = len(bench.rows)
        one_scan(bench, *shape)
        B, T, C, dtype = shape
        for found in bench.rows[first:]:
            if "ms" in found:
                gbps = 3 * B * T * C * DTYPES[dtype].itemsize / found["ms"] / 1e6
                found |= {"gbps": round(gbps), "copy_share": round(gbps / bench.copy_gbps, 3)}


def one_scan(bench: Bench, B: int, T: int, C: int, dtype: str) -> None:
    kind = DTYPES[dtype]
    a = torch.sigmoid(3 * torch.rand(T, B, C, device="cuda") - 1).to(kind)
    b = torch.rand(T, B, C, device="cuda").to(kind) + 0.01
    want = models.exact_scan(a, b)
    row = {"bench": "scan", "domain": "linear", "pass": "forward"}
    row |= {"B": B, "T": T, "C": C, "H": C, "dtype": dtype}

    def add(impl: str, layout: str, run: Run, axes: tuple[int, int, int]) -> None:
        def make() -> tuple[Run, float]:
            return run, error_of(run().permute(axes), want)

        bench.add(row | {"impl": impl, "layout": layout}, make)

    flat = [value.view(T, B * C) for value in (a, b)]
    add("scanrnn", "TBH", lambda: scanrnn.scan(*flat).view(T, B, C), (0, 1, 2))
    if (warp := optional("accelerated_scan.warp")) is not None:
        last = [value.permute(1, 2, 0).contiguous() for value in (a, b)]
        add("accelerated-scan warp", "BHT", lambda: warp.scan(*last), (2, 0, 1))
    a, b = (value.transpose(0, 1).contiguous() for value in (a, b))
    log_a, log_b = a.float().log(), b.float().log()
    if (hgrn := optional("fla.ops.hgrn")) is not None:
        g = log_a.to(kind)
        add("fla chunk_hgrn", "BTH", lambda: hgrn.chunk_hgrn(b, g)[0], (1, 0, 2))
    add("torch, log space", "BTH", lambda: models.log_scan(log_a, log_b), (1, 0, 2))
    torch.compiler.reset()
    compiled = torch.compile(models.torch_associative_scan)
    add("torch associative_scan, compiled", "BTH", lambda: compiled(a, b), (1, 0, 2))
    if T <= 4096 and (jax := optional("jax")) is not None:
        jax_scan(bench, jax, row | {"layout": "BTH"}, (a, b), want)


def jax_scan(
    bench: Bench, jax: Any, row: dict[str, Any], pair: tuple[Tensor, Tensor], want: Tensor
) -> None:
    run = jax.jit(lambda a, b: jax.lax.associative_scan(models.combine, (a, b), axis=1)[1])
    row = row | {"impl": f"jax {jax.__version__} associative_scan"}
    try:
        a, b = (jax.dlpack.from_dlpack(value) for value in pair)
        h = run(a, b)
        error = error_of(torch.from_dlpack(h).transpose(0, 1), want)
        times = []
        for _ in range(8):  # JAX launches on a stream of its own, so this is the host's clock
            start = time.perf_counter()
            for _ in range(10):
                h = run(a, b)
            h.block_until_ready()
            times.append(100 * (time.perf_counter() - start))
        found: dict[str, Any] = {**measure.Timing.of(times).row(), "timing": "clock"}
        found["max_error"] = float(f"{error:.2g}")
    except Exception as problem:
        found = failure(problem)
    bench.keep(row | found)


# ---- layers of minGRU


def floor_ms(bench: Bench, x: Tensor, weight: Tensor, direction: str) -> float:
    """The layer's matrix products alone, and the fewest bytes of its recurrence."""
    flat = x.reshape(-1, x.shape[-1])
    pre = flat @ weight.T

    def products() -> None:
        flat @ weight.T
        if direction != "forward":
            pre @ weight
            pre.T @ flat

    moved = 3 if direction == "forward" else 9  # of B*T*H: two gates in, a state out, and back
    gigabytes = moved * pre.numel() / 2 * x.element_size() / 1e9
    return timed(products)[0].ms + 1e3 * gigabytes / bench.copy_gbps


def layers(bench: Bench, shapes: list[tuple[int, int, int, str]], name: str) -> None:
    growth = name == "growth"
    compiled = torch.compile(models.gates, dynamic=True) if growth else None
    for B, T, H, dtype in shapes:
        if compiled is None:
            torch.compiler.reset()
        gates = compiled or torch.compile(models.gates, dynamic=False)
        peers = {"torch, log space": models.log_mingru}
        if not growth:  # it would be compiled again and again
            whole = torch.compile(models.log_mingru, dynamic=False)
            peers["torch, log space, compiled"] = whole
        if (hgrn := optional("fla.ops.hgrn")) is not None:
            peers["fla chunk_hgrn, gates compiled"] = through_fla(hgrn, gates)
        one_layer(bench, name, B, T, H, dtype, peers)


def through_fla(hgrn: Any, gates: Callable[..., Any]) -> Callable[..., Tensor]:
    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        b, log_a = gates(x, weight, bias)
        return hgrn.chunk_hgrn(b, log_a)[0]

    return call


def one_layer(
    bench: Bench,
    name: str,
    B: int,
    T: int,
    H: int,
    dtype: str,
    peers: dict[str, Callable[..., Tensor]],
) -> None:
    kind = DTYPES[dtype]
    x, dy = (torch.randn(B, T, H, device="cuda").to(kind) for _ in range(2))
    weight, bias = (
        ((2 * torch.rand(*shape, device="cuda") - 1) / math.sqrt(H)).to(kind)
        for shape in ((2 * H, H), (2 * H,))
    )
    want = models.exact_mingru(x, weight, bias)
    for direction in PASSES:
        row = {"bench": name, "cell": "MinGRU", "domain": "log", "pass": direction}
        row |= {"layout": "BTH", "B": B, "T": T, "C": H, "H": H, "dtype": dtype}
        first = len(bench.rows)
        bench.recorded(
            row | {"impl": "scanrnn", "layout": "TBH"},
            crossover.layer_of("MinGRU", H, dtype),
            lambda: our_error(
                "MinGRU", {"weight_ih_l0": weight, "bias_ih_l0": bias}, x.transpose(0, 1), want
            ),
        )
        for impl, call in peers.items():
            make = peer_layer(call, [x, weight, bias], dy if direction != "forward" else None, want)
            bench.add(row | {"impl": impl}, make)
        floor = floor_ms(bench, x, weight, direction)
        for found in bench.rows[first:]:
            if "ms" in found:
                found["floor_ms"] = round(floor, 5)
                found["floor_ratio"] = round(found["ms"] / floor, 3)
        if T <= 4096:  # beyond it a second and more
            cudnn(bench, row | {"cell": "GRU"}, None)


def peer_layer(
    call: Callable[..., Tensor], tensors: list[Tensor], dy: Tensor | None, want: Tensor
) -> Callable[[], tuple[Run, float]]:
    def make() -> tuple[Run, float]:
        with torch.no_grad():
            error = error_of(call(*tensors).transpose(0, 1), want)
        if dy is None:
            return torch.no_grad()(lambda: call(*tensors)), error
        leaves = [value.clone().requires_grad_() for value in tensors]
        return (lambda: torch.autograd.grad(call(*leaves), leaves, dy)), error

    return make


def our_error(cell: str, params: dict[str, Tensor], x: Tensor, want: Tensor) -> float:
    """On the tensors that the peers have, [T,B,C]."""
    dtype = next(name for name, kind in DTYPES.items() if kind == x.dtype)
    rnn = getattr(scanrnn, cell)(x.shape[-1], want.shape[-1], dtype=dtype, device="cuda")
    rnn.load_state_dict({name: to_numpy(value) for name, value in params.items()})
    y = rnn(to_numpy(x))[0]
    return error_of(torch.from_numpy(y.astype(np.float32)).cuda(), want)


def to_numpy(value: Tensor) -> Any:
    value = value.detach().contiguous().cpu()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    import ml_dtypes

    return value.float().numpy().astype(ml_dtypes.bfloat16)


# ---- LSTM and GRU


def cudnn(bench: Bench, row: dict[str, Any], known: set[str] | None) -> None:
    """cuDNN's, and ours if the cell is known."""
    cell, B, T, C, H = (row[name] for name in ("cell", "B", "T", "C", "H"))
    kind = DTYPES[row["dtype"]]
    rnn = getattr(torch.nn, cell)(C, H, device="cuda", dtype=kind)
    wide = getattr(torch.nn, cell)(C, H, device="cuda", dtype=torch.float64)
    wide.load_state_dict(rnn.state_dict())
    x, dy = (torch.randn(T, B, width, device="cuda").to(kind) for width in (C, H))
    steps = min(T, 256)  # of the float64 run
    with torch.no_grad():
        want = wide(x[:steps].double())[0]
    leaves = [x.clone().requires_grad_(), *rnn.parameters()]

    def make() -> tuple[Run, float]:
        with torch.no_grad():
            error = error_of(rnn(x)[0][:steps], want)
        if row["pass"] == "forward":
            return torch.no_grad()(lambda: rnn(x)[0]), error
        return (lambda: torch.autograd.grad(rnn(leaves[0])[0], leaves, dy)), error

    row = row | {"layout": "TBH"}
    if row["dtype"] == "float32":
        row["products"] = "tf32"
    bench.add(row | {"impl": f"cuDNN {torch.backends.cudnn.version()} {cell}"}, make)
    if known and cell in known:
        params = dict(rnn.named_parameters())
        layer = crossover.layer_of(cell, H, row["dtype"])
        scanrnn.set_float32_matmul_precision("high")  # as cuDNN's is by default
        bench.recorded(
            row | {"impl": "scanrnn"}, layer, lambda: our_error(cell, params, x[:steps], want)
        )
        scanrnn.set_float32_matmul_precision("highest")


def dense(bench: Bench) -> None:
    known = {cell.name for cell in cells()}
    for dtype, cell, (B, T, H), direction in itertools.product(
        ("bfloat16", "float16", "float32"), ("LSTM", "GRU"), DENSE, PASSES
    ):
        row = {"bench": "layer", "cell": cell, "pass": direction, "B": B, "T": T}
        cudnn(bench, row | {"C": H, "H": H, "dtype": dtype}, known)


# ---- one step


def steps(bench: Bench) -> None:
    H, dtype = 1024, "bfloat16"
    kind = DTYPES[dtype]
    x, h = (torch.randn(1, H, device="cuda").to(kind) for _ in range(2))
    weight, bias = (torch.randn(*s, device="cuda").to(kind) / 32 for s in ((2 * H, H), (2 * H,)))
    row = {"bench": "step", "pass": "step", "layout": "TBH", "B": 1, "T": 1, "C": H, "H": H}
    row["dtype"] = dtype
    want = models.step(x.double(), h.double(), weight.double(), bias.double())

    def add(
        cell: str, impl: str, call: Callable[..., Any], *args: Any, check: bool = False
    ) -> None:
        def make() -> tuple[Run, float]:
            run = torch.no_grad()(lambda: call(*args))
            return run, error_of(run(), want) if check else 0.0

        bench.add(row | {"cell": cell, "impl": impl}, make)

    add("MinGRU", "torch", models.step, x, h, weight, bias, check=True)
    compiled = torch.compile(models.step)
    add("MinGRU", "torch, compiled", compiled, x, h, weight, bias, check=True)
    add("MinGRU", "its matrix product alone", torch.nn.functional.linear, x, weight)
    for cell in ("GRU", "LSTM"):
        one = getattr(torch.nn, f"{cell}Cell")(H, H, device="cuda", dtype=kind)
        add(cell, f"torch {cell}Cell", one, x)

    def our_step() -> float:
        rnn = scanrnn.MinGRU(H, H, dtype=dtype, device="cuda")
        rnn.load_state_dict({"weight_ih_l0": to_numpy(weight), "bias_ih_l0": to_numpy(bias)})
        y = rnn.step(to_numpy(x), to_numpy(h)[None])[0]
        return error_of(torch.from_numpy(y.astype(np.float32)).cuda(), want)

    for cell in cells():
        error = our_step if cell.name == "MinGRU" else None
        layer = crossover.layer_of(cell.name, H, dtype)
        bench.recorded(row | {"cell": cell.name, "impl": "scanrnn"}, layer, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--only", default="", help="a regular expression on a row's values")
    parser.add_argument("--minutes", type=float, default=6, help="start nothing after so many")
    parser.add_argument("--parts", nargs="+", default=["step", "scan", "layer", "growth", "dense"])
    args = parser.parse_args()
    bench = Bench(args.only, args.minutes)
    head = measure.provenance(GPU)
    head |= {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    head["copy_gbps"] = round(bench.copy_gbps)
    parts: dict[str, Callable[[], None]] = {
        "step": lambda: steps(bench),
        "scan": lambda: scans(bench),
        "layer": lambda: layers(bench, LAYERS, "layer"),
        "growth": lambda: layers(bench, GROWTH, "growth"),
        "dense": lambda: dense(bench),
    }
    for part in args.parts:
        start = time.monotonic()
        parts[part]()
        print(f"{part}: {time.monotonic() - start:.0f} s", flush=True)
        measure.save(args.out, head | {"rows": bench.rows})


if __name__ == "__main__":
    main()
