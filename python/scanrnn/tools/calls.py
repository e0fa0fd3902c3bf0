# SPDX-License-Identifier: Apache-2.0
"""`bench calls`: what a call on a small layer costs the host, beside torch.nn in the same run.

A GPU also has sizes of everyday layers, for the modules alone: there a call costs what the device
works, or what the host does, whichever is more. `device_us` is what the device works by itself.
All runs of a size take turns; a turn is so many calls in a row as take `SECONDS`, with a GPU's work
in flight and waited for at its end. Every run gives the same y, or is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scanrnn

from .. import _core
from . import measure, optional


class Size(NamedTuple):
    B: int
    T: int
    H: int  # and C


SMALL = Size(1, 16, 64)
LARGER = {"cpu": (), "cuda": (Size(16, 128, 128), Size(64, 256, 512))}
CELLS = ("GRU", "LSTM", "RNN", "MinGRU")
SECONDS, TURNS = 0.02, 15
TOLERANCE = 1e-4  # a product in TF32 is further off


class Run(NamedTuple):
    size: Size
    cell: str
    direction: str  # "step", "forward", "forward_backward"
    name: str
    call: Callable[[], Any]  # gives y


def numpy_runs(cell: str, size: Size, rnn: scanrnn.Layer, x: Any) -> Iterator[Run]:
    state = np.zeros((1, size.B, size.H), np.float32)
    count = rnn._cell.states
    h: Any = (state,) * count if count > 1 else state

    def both() -> Any:
        (y, _), pullback = rnn.vjp(x, h)
        pullback(y)
        return y

    yield Run(size, cell, "step", "scanrnn, NumPy", lambda: rnn.step(x[0], h)[0])
    yield Run(size, cell, "forward", "scanrnn, NumPy", lambda: rnn(x, h)[0])
    yield Run(size, cell, "forward_backward", "scanrnn, NumPy", both)


def step_runs(cell: str, size: Size, rnn: scanrnn.Layer, x: Any, torch: Any) -> Iterator[Run]:
    import scanrnn.torch

    h = state_of(rnn, size, x)
    yield Run(size, cell, "step", "scanrnn, torch tensors", lambda: rnn.step(x[0], h)[0])
    if not hasattr(torch.nn, cell):
        return
    params = {n.removesuffix("_l0"): torch.as_tensor(v) for n, v in rnn.state_dict().items()}
    pair = isinstance(h, tuple)
    before = tuple(state[0] for state in h) if pair else h[0]
    for name, library in {"scanrnn.torch": scanrnn.torch, "torch.nn": torch.nn}.items():
        one = getattr(library, f"{cell}Cell")(size.H, size.H, device=x.device)
        one.load_state_dict(params)

        @torch.no_grad()
        def step(one: Any = one) -> Any:
            after = one(x[0], before)
            return after[0] if pair else after

        yield Run(size, cell, "step", name, step)


def module_runs(cell: str, size: Size, rnn: scanrnn.Layer, x: Any, torch: Any) -> Iterator[Run]:
    import scanrnn.torch

    h = state_of(rnn, size, x)
    params = {name: torch.as_tensor(value) for name, value in rnn.state_dict().items()}
    modules = {"scanrnn.torch": getattr(scanrnn.torch, cell)}
    if hasattr(torch.nn, cell):
        modules["torch.nn"] = getattr(torch.nn, cell)
    for name, kind in modules.items():
        module = kind(size.H, size.H, device=x.device)
        module.load_state_dict(params)
        forward = torch.no_grad()(lambda module=module: module(x, h)[0])

        def both(module: Any = module) -> Any:
            y, _ = module(x, h)
            y.sum().backward()
            return y.detach()

        yield Run(size, cell, "forward", name, forward)
        yield Run(size, cell, "forward_backward", name, both)


def state_of(rnn: scanrnn.Layer, size: Size, x: Any) -> Any:
    """Zeros as torch.nn takes them."""
    state, count = x.new_zeros((1, size.B, size.H)), rnn._cell.states
    return (state,) * count if count > 1 else state


def runs(size: Size, device: str, torch: Any) -> Iterator[Run]:
    B, T, H = size
    x = np.random.default_rng(0).standard_normal((T, B, H)).astype(np.float32)
    for cell in CELLS:
        rnn = getattr(scanrnn, cell)(H, H, device=device, seed=0)
        found = list(numpy_runs(cell, size, rnn, x)) if size == SMALL else []
        if torch is not None:
            tensor = torch.as_tensor(x, device=device)
            if size == SMALL:
                found += step_runs(cell, size, rnn, tensor, torch)
            found += module_runs(cell, size, rnn, tensor, torch)
        whole = rnn(x)[0]
        for run in found:
            y, wanted = run.call(), whole[0] if run.direction == "step" else whole
            y = y if isinstance(y, np.ndarray) else y.cpu().numpy()
            error = float(np.abs(y - wanted).max()) if y.shape == wanted.shape else float("inf")
            if not error <= TOLERANCE:
                raise AssertionError(f"{run.name}, {cell}, {run.direction}: off by {error:.2g}")
        yield from found


def device_us(call: Callable[[], Any], torch: Any, calls: int = 20, replays: int = 5) -> float:
    """What a GPU works for a call: in a CUDA graph of some in a row the host takes no part."""
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(replays):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return min(times)


def run(device: str, out: Path) -> None:
    torch = optional.found("torch")
    wait = torch.cuda.synchronize if torch is not None and device != "cpu" else lambda: None
    if torch is not None:  # in float32 as ours: cuDNN takes TF32 unless it is told otherwise
        torch.backends.cudnn.allow_tf32 = False
    larger = LARGER[device.partition(":")[0]] if torch is not None else ()
    taken: dict[Run, measure.Timing] = {}
    for size in (SMALL, *larger):
        calls = {run: run.call for run in runs(size, device, torch)}
        taken |= measure.timed(calls, seconds=0, least=TURNS, turn=SECONDS, wait=wait)
    rows, table = [], []
    for run, timing in taken.items():
        us, least, (B, T, H) = 1e3 * timing.ms, 1e3 * timing.least, run.size
        rows.append(
            {"bench": "calls", "cell": run.cell, "pass": run.direction, "impl": run.name}
            | {"B": B, "T": 1 if run.direction == "step" else T, "C": H, "H": H}
            | {"dtype": "float32", "us": round(us, 2), "least_us": round(least, 2)}
        )  # fmt: skip
        line = [f"B{B} T{T} H{H}", run.cell, run.direction, run.name]
        table.append([*line, f"{us:.1f}", f"{least:.1f}"])
        if device != "cpu" and run.direction == "forward" and "torch" in run.name:
            with contextlib.suppress(RuntimeError):  # what cannot be captured has none
                rows[-1]["device_us"] = round(device_us(run.call, torch), 2)
    head = measure.provenance(_core.Device(device))
    head |= {"torch": torch.__version__} if torch is not None else {}
    measure.save(out, head | {"rows": rows})
    print(measure.table(["size", "cell", "pass", "through", "us", "least"], table))
