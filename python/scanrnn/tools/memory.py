# SPDX-License-Identifier: Apache-2.0
"""`bench memory`: bytes that training takes by LSTM, GRU and RNN, beside torch.nn.

What autograd keeps from forward to backward is counted on every device: the memory of saved
tensors, each once, without the input and the parameters. A GPU also has a peak: the most that
torch's allocator had given out at once during forward and backward, beyond what was there before,
with y and all gradients. A CPU has none: the library takes memory to work in there that torch's
allocator does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import _core
from . import measure, optional

CELLS = ("LSTM", "GRU", "RNN")
LAYERS = (1, 4)
# (B, T, H), C = H, and dtypes.
SIZES = {"cpu": (16, 128, 128), "cuda": (32, 512, 512)}
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # of the largest value


class Point(NamedTuple):
    cell: str
    layers: int
    dtype: str


def kept_bytes(call: Callable[[], Any], given: Sequence[Any]) -> int:
    """The bytes that autograd keeps of `call`, without the tensors `given`."""
    import torch

    saved: list[Any] = []

    def keep(value: Any) -> Any:
        saved.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        out = call()
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in saved}
    for value in given:
        storages.pop(value.untyped_storage().data_ptr(), None)
    del out
    return sum(storage.nbytes() for storage in storages.values())


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most of the GPU's memory at once, beyond what was taken before."""
    import torch

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    torch.cuda.synchronize()
    peak: int = torch.cuda.max_memory_allocated() - before
    del kept
    return peak


def pair(point: Point, device: str, torch: Any) -> tuple[dict[str, Any], Any]:
    """Modules with the same parameters by name, and x."""
    import scanrnn.torch

    torch.manual_seed(0)
    B, T, H = SIZES[device.partition(":")[0]]
    like = {"device": device, "dtype": getattr(torch, point.dtype)}
    theirs = getattr(torch.nn, point.cell)(H, H, point.layers, **like)
    ours = getattr(scanrnn.torch, point.cell)(H, H, point.layers, **like)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(T, B, H, **like).requires_grad_()
    return {"scanrnn.torch": ours, "torch.nn": theirs}, x


def rows_of(point: Point, device: str, torch: Any) -> Iterator[dict[str, Any]]:
    modules, x = pair(point, device, torch)
    dy, found = torch.randn_like(x), {}

    def run(module: Any) -> Any:
        y, _ = module(x)
        return [y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], dy)]

    for name, module in modules.items():
        found[name] = [run(module) for _ in range(2)][1]  # the first may take memory for good
    for got, wanted in zip(*found.values(), strict=True):
        off = float((got - wanted).abs().max() / wanted.abs().max())
        if not off <= TOLERANCE[point.dtype]:
            raise AssertionError(f"{point}: off by {off:.2g} of the largest value")
    found.clear()
    T, B, H = x.shape
    for name, module in modules.items():
        given = [x, *module.parameters()]
        row = {"bench": "memory", "cell": point.cell, "impl": name, "pass": "forward_backward"}
        row |= {"layers": point.layers, "B": B, "T": T, "C": H, "H": H, "dtype": point.dtype}
        row["kept_bytes"] = kept_bytes(lambda module=module: module(x), given)
        if x.is_cuda:
            row["peak_bytes"] = peak_bytes(lambda module=module: run(module))
        yield row


def run(device: str, out: Path) -> None:
    torch = optional.need("torch")
    measure.ready(out)
    torch.backends.cudnn.allow_tf32 = False  # so that results can be compared
    if device != "cpu":
        torch.cuda.set_device(torch.device(device).index or 0)
    points = [
        Point(cell, layers, dtype)
        for dtype in DTYPES[device.partition(":")[0]]
        for cell in CELLS
        for layers in LAYERS
    ]
    rows = [row for point in points for row in rows_of(point, device, torch)]
    lines = [
        [row["cell"], str(row["layers"]), row["dtype"], row["impl"]]
        + [f"{row[key] / 2**20:.2f}" for key in ("kept_bytes", "peak_bytes") if key in row]
        for row in rows
    ]
    titles = ["cell", "layers", "dtype", "through", "kept, MiB", "peak, MiB"]
    print(measure.table(titles[: len(lines[0])], lines))
    head = measure.provenance(_core.Device(device)) | {"torch": torch.__version__}
    measure.save(out, head | {"rows": rows})
