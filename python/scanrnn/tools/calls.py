# SPDX-License-Identifier: Apache-2.0
"""`bench calls`: what a call on a small layer costs the host, beside torch.nn in the same run.

All runs take turns; a turn is so many calls in a row as take `SECONDS`, with a GPU's work in flight
and waited for at its end. Every run gives the same y, or is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scanrnn

from .. import _core
from . import measure, optional

B, T, H = 1, 16, 64  # and C = H
CELLS = ("GRU", "LSTM", "MinGRU")
SECONDS, TURNS = 0.02, 15
TOLERANCE = 1e-5


class Run(NamedTuple):
    cell: str
    direction: str  # "step", "forward", "forward_backward"
    name: str
    call: Callable[[], Any]  # gives y


def numpy_runs(cell: str, rnn: scanrnn.Layer, x: Any) -> Iterator[Run]:
    state = np.zeros((1, B, H), np.float32)
    count = rnn._cell.states
    h: Any = (state,) * count if count > 1 else state

    def both() -> Any:
        (y, _), pullback = rnn.vjp(x, h)
        pullback(y)
        return y

    yield Run(cell, "step", "scanrnn, NumPy", lambda: rnn.step(x[0], h)[0])
    yield Run(cell, "forward", "scanrnn, NumPy", lambda: rnn(x, h)[0])
    yield Run(cell, "forward_backward", "scanrnn, NumPy", both)


def torch_runs(cell: str, rnn: scanrnn.Layer, x: Any, torch: Any, device: str) -> Iterator[Run]:
    import scanrnn.torch

    x = torch.as_tensor(x, device=device)
    state = torch.zeros((1, B, H), device=device)
    count = rnn._cell.states
    pair = count == 2
    h = (state,) * count if count > 1 else state
    params = {name: torch.as_tensor(value) for name, value in rnn.state_dict().items()}
    yield Run(cell, "step", "scanrnn, torch tensors", lambda: rnn.step(x[0], h)[0])
    modules = {"scanrnn.torch": getattr(scanrnn.torch, cell)}
    if hasattr(torch.nn, cell):
        modules["torch.nn"] = getattr(torch.nn, cell)
        one = getattr(torch.nn, f"{cell}Cell")(H, H, device=device)
        one.load_state_dict({name.removesuffix("_l0"): value for name, value in params.items()})
        before = (state[0], state[0]) if pair else state[0]

        @torch.no_grad()
        def step() -> Any:
            after = one(x[0], before)
            return after[0] if pair else after

        yield Run(cell, "step", "torch.nn", step)
    for name, kind in modules.items():
        module = kind(H, H, device=device)
        module.load_state_dict(params)
        forward = torch.no_grad()(lambda module=module: module(x, h)[0])

        def both(module: Any = module) -> Any:
            y, _ = module(x, h)
            y.sum().backward()
            return y.detach()

        yield Run(cell, "forward", name, forward)
        yield Run(cell, "forward_backward", name, both)


def runs(device: str, torch: Any) -> Iterator[Run]:
    x = np.random.default_rng(0).standard_normal((T, B, H)).astype(np.float32)
    for cell in CELLS:
        rnn = getattr(scanrnn, cell)(H, H, device=device, seed=0)
        found = list(numpy_runs(cell, rnn, x))
        found += torch_runs(cell, rnn, x, torch, device) if torch is not None else ()
        whole = rnn(x)[0]
        for run in found:
            y, wanted = run.call(), whole[0] if run.direction == "step" else whole
            y = y if isinstance(y, np.ndarray) else y.cpu().numpy()
            error = float(np.abs(y - wanted).max()) if y.shape == wanted.shape else float("inf")
            if not error <= TOLERANCE:
                raise AssertionError(f"{run.name}, {cell}, {run.direction}: off by {error:.2g}")
        yield from found


def run(device: str, out: Path) -> None:
    torch = optional.found("torch")
    wait = torch.cuda.synchronize if torch is not None and device != "cpu" else lambda: None
    if torch is not None:  # in float32 as ours: cuDNN takes TF32 unless it is told otherwise
        torch.backends.cudnn.allow_tf32 = False
    found = list(runs(device, torch))
    taken = measure.timed(
        {run: run.call for run in found}, seconds=0, least=TURNS, turn=SECONDS, wait=wait
    )
    rows, table = [], []
    for run, timing in taken.items():
        us, least = 1e3 * timing.ms, 1e3 * timing.least
        rows.append(
            {"bench": "calls", "cell": run.cell, "pass": run.direction, "impl": run.name}
            | {"B": B, "T": 1 if run.direction == "step" else T, "C": H, "H": H}
            | {"dtype": "float32", "us": round(us, 2), "least_us": round(least, 2)}
        )  # fmt: skip
        table.append([run.cell, run.direction, run.name, f"{us:.1f}", f"{least:.1f}"])
    head = measure.provenance(_core.Device(device))
    head |= {"torch": torch.__version__} if torch is not None else {}
    measure.save(out, head | {"rows": rows})
    print(measure.table(["cell", "pass", "through", "us", "least"], table))
