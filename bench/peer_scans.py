# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence beside its peers, each in the layout that it is made for and in the user's.

Layouts by their axes, T time, B batch, H channels: TBH is what layers have, BTH fla's, BHT, where
time is contiguous, accelerated-scan's and mamba's. scanrnn takes each as it is, by `axis`. In
another layout than its own a peer's call has its transpositions, and logarithms if it wants them,
in its time.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

import our_ways
import peer_models as models
import scanrnn.torch
import torch
from checks import check
from gpu_timing import GPU, Bench, Contest, Run, failure
from rows import OURS, Row
from scanrnn import _core
from scanrnn.tools import crossover, measure
from torch import Tensor

Call = Callable[..., Any]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCANS = [  # B, T, C, dtype
    (8, 4096, 1536, "float32"),
    (8, 4096, 1536, "bfloat16"),
    (16, 1024, 768, "float32"),
    (1, 65536, 1024, "float32"),
    (1, 1048576, 64, "float32"),
    (1, 1048576, 8, "float32"),
    (1, 16777216, 1, "float32"),
]
ASSOCIATIVE = "torch associative_scan, compiled"
LONGEST = {"torch, log space": 65536, ASSOCIATIVE: 1048576, "jax": 4096}  # beyond it a second
FROM_TBH = {"TBH": (0, 1, 2), "BTH": (1, 0, 2), "BHT": (1, 2, 0)}
TO_TBH = {"TBH": (0, 1, 2), "BTH": (1, 0, 2), "BHT": (2, 0, 1)}


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as problem:
        print(f"{name} does not take part: {problem!r}"[:300], flush=True)
        return None


def turned(value: Tensor, of: str, to: str) -> Tensor:
    """From one layout to another, copied where they differ."""
    if of == to:
        return value
    whole = value.permute(TO_TBH[of])
    return whole.permute(FROM_TBH[to]).contiguous()


# In 16 bits its kernel gives wrong results, and writes over memory that is not its own.
WIDE_ALONE = ("accelerated-scan warp",)
# With backward it ended in an illegal access at 1024 steps, and the process with it.
LONG_ALONE = {"accelerated-scan Triton": 4096}


def scans(bench: Bench) -> None:
    for shape in SCANS:
        one_scan(bench, *shape)
        with_backward(bench, *shape)


def operands(B: int, T: int, C: int, dtype: str) -> tuple[Tensor, Tensor]:
    """a and b [T,B,C]."""
    a = torch.sigmoid(3 * torch.rand(T, B, C, device="cuda") - 1).to(DTYPES[dtype])
    return a, torch.rand(T, B, C, device="cuda").to(a.dtype) + 0.01


def ours(layout: str) -> Call:
    return functools.partial(scanrnn.torch.scan, axis=layout.index("T"))


def share_of_a_copy(streams: int, a: Tensor) -> Callable[[Row, dict[str, float]], Row]:
    """What a row says of its bytes, the fewest that will do."""

    def finish(row: Row, sticks: dict[str, float]) -> Row:
        gbps = streams * a.numel() * a.element_size() / row["ms"] / 1e6
        return row | {"gbps": round(gbps), "copy_share": round(gbps / row["copy_gbps"], 3)}

    return finish


def one_scan(bench: Bench, B: int, T: int, C: int, dtype: str) -> None:
    row: Row = {"bench": "scan", "domain": "linear", "pass": "forward", "B": B, "T": T, "C": C}
    row |= {"H": C, "dtype": dtype}
    if not bench.only.search(" ".join(map(str, row.values())) + " scanrnn"):
        return
    a, b = operands(B, T, C, dtype)
    want = models.exact_scan(a, b)
    contest = Contest(bench, row)

    def add(impl: str, made_for: str, layout: str, prepare: Call, call: Call) -> None:
        """`call` takes what `prepare` makes of a and b in the layout that it is made for."""
        given = [turned(value, "TBH", layout) for value in (a, b)]
        ready = prepare(*given) if layout == made_for else None

        def run() -> Tensor:
            operands = ready or prepare(*(turned(value, layout, made_for) for value in given))
            return turned(call(*operands), made_for, layout)

        def make() -> tuple[Run, Row]:
            return run, check(run().permute(TO_TBH[layout]), want, {}, {})

        contest.enter({"impl": impl, "layout": layout, "axis": layout.index("T")}, make)

    add(OURS, "TBH", "TBH", as_they_are, ours("TBH"))
    workload = _core.Workload(dtype, GPU, T, B * C, False)
    bounds = crossover.tolerances(dtype, T, 0)
    exact = lambda: our_ways.exact_scan(T, B * C, False)  # noqa: E731
    our_ways.enter_better(contest, workload, exact, bounds)
    for layout in ("BTH", "BHT") if B > 1 else ("BHT",):
        add(OURS, layout, layout, as_they_are, ours(layout))
    for impl, made_for, prepare, call in peers():
        if a.element_size() < 4 and impl in WIDE_ALONE:
            continue
        for layout in dict.fromkeys((made_for, "TBH")):
            if (B > 1 or layout == made_for) and LONGEST.get(impl, T) >= T:
                add(impl, made_for, layout, prepare, call)
    contest.measure(share_of_a_copy(3, a))
    if LONGEST["jax"] >= T and (jax := optional("jax")) is not None:
        through_jax(bench, jax, row | {"layout": "BTH", "axis": 1}, (a, b), want)


def with_backward(bench: Bench, B: int, T: int, C: int, dtype: str) -> None:
    """Forward and backward, beside the peers that take a and b as they are: 3 streams and 5."""
    row: Row = {"bench": "scan", "domain": "linear", "pass": "forward_backward", "B": B, "T": T}
    row |= {"C": C, "H": C, "dtype": dtype}
    if not bench.only.search(" ".join(map(str, row.values())) + " scanrnn"):
        return
    a, b = operands(B, T, C, dtype)
    dh = torch.rand(T, B, C, device="cuda").to(a.dtype)
    exact = [value.double().requires_grad_() for value in (a, b)]
    want = models.exact_scan(*exact)
    gradients = dict(zip("ab", torch.autograd.grad(want, exact, dh.double()), strict=True))
    contest = Contest(bench, row)

    def add(impl: str, layout: str, call: Call) -> None:
        leaves = [turned(value, "TBH", layout).detach().requires_grad_() for value in (a, b)]
        seed = turned(dh, "TBH", layout)

        def run() -> tuple[Tensor, ...]:
            return torch.autograd.grad(call(*leaves), leaves, seed)

        def make() -> tuple[Run, Row]:
            back = TO_TBH[layout]
            found = dict(zip("ab", (value.permute(back) for value in run()), strict=True))
            h = call(*leaves).detach().permute(back)
            return run, check(h, want.detach(), found, gradients)

        contest.enter({"impl": impl, "layout": layout, "axis": layout.index("T")}, make)

    for layout in FROM_TBH if B > 1 else ("TBH", "BHT"):
        add(OURS, layout, ours(layout))
    for impl, layout, prepare, call in peers():
        if prepare is not as_they_are or (a.element_size() < 4 and impl in WIDE_ALONE):
            continue
        if impl != ASSOCIATIVE and LONG_ALONE.get(impl, 0) <= T:  # the first has no derivative
            add(impl, layout, call)
    contest.measure(share_of_a_copy(8, a))


def as_they_are(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a, b


def peers() -> list[tuple[str, str, Call, Call]]:
    """Name, the layout that it is made for, what it wants of a and b, and the call."""
    found: list[tuple[str, str, Call, Call]] = []
    if (warp := optional("accelerated_scan.warp")) is not None:
        found.append(("accelerated-scan warp", "BHT", as_they_are, warp.scan))
    if (triton := optional("accelerated_scan.scalar")) is not None:
        found.append(("accelerated-scan Triton", "BHT", as_they_are, triton.scan))
    if (mamba := optional("mamba_ssm.ops.selective_scan_interface")) is not None:
        found.append(("mamba selective_scan", "BHT", *through_mamba(mamba.selective_scan_fn)))
    if (hgrn := optional("fla.ops.hgrn")) is not None:

        def with_log_decay(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            return b, a.float().log().to(a.dtype)

        found.append(
            ("fla chunk_hgrn", "BTH", with_log_decay, lambda b, g: hgrn.chunk_hgrn(b, g)[0])
        )

    def logarithms(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.float().log(), b.float().log()

    found.append(("torch, log space", "BTH", logarithms, models.log_scan))
    torch.compiler.reset()
    compiled = torch.compile(models.torch_associative_scan)
    found.append((ASSOCIATIVE, "BTH", as_they_are, compiled))
    return found


def through_mamba(selective_scan: Call) -> tuple[Call, Call]:
    """The recurrence as a state-space model of one state a channel: h = e^(delta A) h + delta B u.

    With A = -1 and B = C = 1 delta is -log a and u is b / delta.
    """

    def prepare(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        delta = -a.float().log()
        ones = torch.ones(a.shape[1], 1, device="cuda")
        return (b.float() / delta).to(b.dtype), delta.to(a.dtype), -ones, ones

    def call(u: Tensor, delta: Tensor, A: Tensor, ones: Tensor) -> Tensor:
        h: Tensor = selective_scan(u, delta, A, ones, ones)
        return h

    return prepare, call


def through_jax(
    bench: Bench, jax: Any, row: Row, pair: tuple[Tensor, Tensor], want: Tensor
) -> None:
    """JAX launches on a stream of its own, so it takes no turn, and the clock is the host's."""
    row = row | {"impl": f"jax {jax.__version__} associative_scan"}
    if not bench.wanted(row):
        return
    run = jax.jit(lambda a, b: jax.lax.associative_scan(models.combine, (a, b), axis=1)[1])
    try:
        a, b = (jax.dlpack.from_dlpack(turned(value, "TBH", "BTH")) for value in pair)
        h = run(a, b)
        found = check(torch.from_dlpack(h).permute(TO_TBH["BTH"]), want, {}, {})
        times = []
        for _ in range(8):
            start = time.perf_counter()
            for _ in range(10):
                h = run(a, b)
            h.block_until_ready()
            times.append(100 * (time.perf_counter() - start))
        found |= {**measure.Timing.of(times).row(), "timing": "clock"}
    except Exception as problem:
        found = failure(problem)
    bench.keep(row | found)
    bench.save()
