# SPDX-License-Identifier: Apache-2.0
"""A layer of minGRU beside its peers, and one step of each cell.

Forward + backward is checked by its gradients. Every layer has a floor: its matrix products alone
and the fewest bytes of its recurrence at the speed of a copy, both measured between the others.
"""

from __future__ import annotations

from collections.abc import Callable

import our_ways
import peer_models as models
import scanrnn.torch
import torch
from checks import check, numbers, shift_of
from gpu_timing import GPU, Bench, Contest, Run, run_of
from peer_dense import PASSES, Dense, Size, enter_cudnn
from peer_scans import DTYPES, optional, turned
from rows import OURS, Row
from scanrnn import _core
from scanrnn.registry import cells
from scanrnn.tools import crossover, sizes
from torch import Tensor

LAYERS = [  # B, T, C = H, dtype
    (8, 4096, 1024, "bfloat16"),
    (16, 1024, 768, "bfloat16"),
    (1, 65536, 1024, "bfloat16"),
    (8, 4096, 1024, "float32"),
    (32, 128, 512, "bfloat16"),
]
GROWTH = [(16, 2**k, 768, "bfloat16") for k in range(4, 16)]
LONGEST_GRU = 4096
STEP_BATCHES, STEP_H, STEP_DTYPE = (1, 8), 1024, "bfloat16"


class Layer:
    """One problem: operands, and in float64 what comes out and the gradients."""

    def __init__(self, B: int, T: int, H: int, dtype: str) -> None:
        self.B, self.T, self.H, self.dtype = B, T, H, dtype
        kind, shift = DTYPES[dtype], shift_of(H)
        self.x, self.dy = (numbers(T, B, H).to(kind) for _ in range(2))
        self.weight = numbers(2 * H, H, shift=shift).to(kind)
        self.bias = numbers(2 * H, shift=shift).to(kind)
        self.want, *gradients = models.exact_gradients(
            self.x.transpose(0, 1), self.weight, self.bias, self.dy
        )
        gradients[0] = gradients[0].transpose(0, 1)
        self.wanted = dict(zip(("x", "weight", "bias"), gradients, strict=True))

    def leaves(self, layout: str) -> list[Tensor]:
        tensors = [turned(self.x, "TBH", layout), self.weight, self.bias]
        return [value.clone().requires_grad_() for value in tensors]

    def make(
        self, call: Callable[..., Tensor], made_for: str, layout: str, training: bool
    ) -> tuple[Run, Row]:
        """`call` takes x, weight and bias, x in the layout that it is made for."""
        leaves, dy = self.leaves(layout), turned(self.dy, "TBH", layout)

        def forward(x: Tensor, *params: Tensor) -> Tensor:
            return turned(call(turned(x, layout, made_for), *params), made_for, layout)

        run = run_of(forward, leaves, dy, training)
        with torch.no_grad():
            y = turned(forward(*leaves), layout, "TBH")
        got, wanted = {}, {}
        if training:
            dx, *others = run()
            got = dict(zip(self.wanted, [turned(dx, layout, "TBH"), *others], strict=True))
            wanted = self.wanted
        return run, check(y, self.want, got, wanted)

    def ours(self, layout: str) -> Callable[..., Tensor]:
        rnn = scanrnn.torch.MinGRU(
            self.H, self.H, batch_first=layout == "BTH", device="cuda", dtype=DTYPES[self.dtype]
        )

        def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            params = {"weight_ih_l0": weight, "bias_ih_l0": bias}
            return torch.func.functional_call(rnn, params, (x,))[0]

        return call

    def products(self, training: bool) -> Run:
        flat = self.x.reshape(-1, self.H)
        pre = flat @ self.weight.T

        def run() -> None:
            flat @ self.weight.T
            if training:
                pre @ self.weight
                pre.T @ flat

        return run

    def moved(self, training: bool) -> int:
        """The fewest bytes: two gates in, a state out; and back."""
        return (9 if training else 3) * self.x.numel() * self.x.element_size()


def peers(reset: bool) -> dict[str, Callable[..., Tensor]]:
    if reset:
        torch.compiler.reset()
    found = {"torch, log space": models.log_mingru}
    if reset:  # else it would be compiled again and again
        found["torch, log space, compiled"] = torch.compile(models.log_mingru, dynamic=False)
    if (hgrn := optional("fla.ops.hgrn")) is not None:
        gates = torch.compile(models.gates, dynamic=not reset)

        def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            b, log_a = gates(x, weight, bias)
            return hgrn.chunk_hgrn(b, log_a)[0]

        found["fla chunk_hgrn, gates compiled"] = call
    return found


def layers(bench: Bench) -> None:
    for shape in LAYERS:
        one_shape(bench, "layer", shape, peers(True), ("BTH", "TBH"))


def growth(bench: Bench) -> None:
    others = peers(False)
    torch.compiler.reset()
    for shape in GROWTH:
        one_shape(bench, "growth", shape, others, ("BTH",))


def one_shape(
    bench: Bench,
    name: str,
    shape: tuple[int, int, int, str],
    others: dict[str, Callable[..., Tensor]],
    layouts: tuple[str, ...],
) -> None:
    B, T, H, dtype = shape
    row: Row = {"bench": name, "cell": "MinGRU", "domain": "log", "B": B, "T": T, "C": H, "H": H}
    row["dtype"] = dtype
    if not bench.only.search(" ".join(map(str, row.values())) + " scanrnn"):
        return
    layer = Layer(*shape)
    gru = Dense("GRU", Size(B, T, H)) if T <= LONGEST_GRU else None
    for direction in PASSES:
        one_pass(bench, row | {"pass": direction}, layer, others, layouts, gru)


def one_pass(
    bench: Bench,
    row: Row,
    layer: Layer,
    others: dict[str, Callable[..., Tensor]],
    layouts: tuple[str, ...],
    gru: Dense | None,
) -> None:
    contest, training = Contest(bench, row), row["pass"] != "forward"
    B, T, H, dtype = (row[name] for name in ("B", "T", "H", "dtype"))

    def add(impl: str, call: Callable[..., Tensor], made_for: str, layout: str) -> None:
        make = lambda: layer.make(call, made_for, layout, training)  # noqa: E731
        contest.enter({"impl": impl, "layout": layout}, make)

    add(OURS, layer.ours("TBH"), "TBH", "TBH")
    if row["bench"] == "layer":
        workload = _core.Workload(crossover.layer_of("MinGRU", H, dtype), GPU, T, B, training)
        exact = lambda: our_ways.exact_layer("MinGRU", B, T, H, training)  # noqa: E731
        our_ways.enter_better(contest, workload, exact, crossover.tolerances(dtype, T, H))
        if B > 1:
            add(OURS, layer.ours("BTH"), "BTH", "BTH")
    for impl, call in others.items():
        for layout in layouts[: 1 if B == 1 else None]:
            add(impl, call, "BTH", layout)
    if gru is not None:  # what minGRU is meant to replace
        enter_cudnn(contest, gru, dtype, training)
    contest.yardstick("products", layer.products(training))

    def finish(row: Row, sticks: dict[str, float]) -> Row:
        if row["cell"] != "MinGRU":
            return row
        floor = sticks["products"] + layer.moved(training) / row["copy_gbps"] / 1e6
        found = {"gemm_ms": round(sticks["products"], 5), "floor_ms": round(floor, 5)}
        return row | found | {"floor_ratio": round(row["ms"] / floor, 3)}

    contest.measure(finish)


# ---- one step


def steps(bench: Bench) -> None:
    for batch in STEP_BATCHES:
        for cell in cells():
            one_step(bench, cell.name, batch)


def one_step(bench: Bench, cell: str, B: int) -> None:
    """One step from a state to the next, the same work for all: ours, torch's cell where it has
    one, and minGRU as one writes it."""
    H, kind = STEP_H, DTYPES[STEP_DTYPE]
    row: Row = {"bench": "step", "cell": cell, "pass": "step", "layout": "TBH", "B": B, "T": 1}
    row |= {"C": H, "H": H, "dtype": STEP_DTYPE}
    contest = Contest(bench, row)
    rnn = sizes.made(scanrnn.torch, cell, H, device="cuda", dtype=kind)
    for parameter in rnn.parameters():
        parameter.data.copy_(numbers(*parameter.shape, shift=5))
    count = sizes.cell_of(cell).states
    pair = count == 2
    x, h, c = (numbers(B, H).to(kind) for _ in range(3))
    states = (h[None], *[c[None]] * (count - 1)) if count > 1 else h[None]
    wide = sizes.made(scanrnn.torch, cell, H, device="cuda", dtype=torch.float64)
    for parameter, same in zip(wide.parameters(), rnn.parameters(), strict=True):
        parameter.data.copy_(same)
    with torch.no_grad():
        exact = tuple(s.double() for s in states) if count > 1 else h[None].double()
        want = wide(x[None].double(), exact)[0][0]

    def add(impl: str, call: Callable[[], Tensor], said: Row | None = None) -> None:
        run = torch.no_grad()(call)
        contest.enter({"impl": impl}, lambda: (run, (said or {}) | check(run(), want, {}, {})))

    plan = our_ways.layer(cell, H, H, STEP_DTYPE).plan(GPU, 1, B, False, None)
    ours = lambda: rnn(x[None], states)[0][0]  # noqa: E731
    add(OURS, ours, {"strategy": plan.strategy})
    if hasattr(torch.nn, f"{cell}Cell"):
        one = getattr(torch.nn, f"{cell}Cell")(H, H, device="cuda", dtype=kind)
        for name, parameter in rnn.named_parameters():
            getattr(one, name.removesuffix("_l0")).data.copy_(parameter)
        add(f"torch {cell}Cell", lambda: one(x, (h, c))[0] if pair else one(x, h))
    if cell == "MinGRU":
        params = [parameter.detach() for parameter in rnn.parameters()]
        add("torch", lambda: models.step(x, h, *params))
        compiled = torch.compile(models.step)
        add("torch, compiled", lambda: compiled(x, h, *params))
    weights = [p.detach() for n, p in rnn.named_parameters() if n.startswith("weight")]
    matrices = [weight for weight in weights if weight.ndim == 2]
    products = lambda: [torch.nn.functional.linear(x, matrix) for matrix in matrices]  # noqa: E731
    contest.yardstick("products", products)
    contest.measure(lambda row, sticks: row | {"gemm_ms": round(sticks["products"], 6)})
