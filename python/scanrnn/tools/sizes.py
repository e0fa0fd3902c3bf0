# SPDX-License-Identifier: Apache-2.0
"""The problems of a sweep: sizes on a grid, those that people quote, and sizes drawn at random."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..registry import CellInfo, cells

SCAN = (
    "scan"  # stands where a cell's name does: the bare recurrence, of B*H rows and one batch entry
)
PASSES = ("forward", "forward_backward")
# Larger problems take too long: multiply-adds of a forward pass on a CPU; on a GPU elements of
# B*T*H, and steps of a cell that can only walk.
MAX_GEMM, MAX_ELEMENTS = 1.5e9, 2**28
MAX_SCAN = {"cpu": 2**24, "cuda": 2**30}
MAX_DENSE_STEPS = 1024
# Where sizes are drawn, uniformly by their logarithms.
RANGES = {"B": (1, 256), "T": (1, 8192), "H": (8, 2048)}
SHORT = 24  # steps of every fourth one that is drawn to fit to: short sequences have most choices

POWERS = tuple(2**k for k in range(21))
# Each grid has batches by hidden size, and T. "held out" is measured to judge a fit, and not shown
# to it.
GRIDS: dict[str, dict[str, tuple[dict[int, tuple[int, ...]], tuple[int, ...]]]] = {
    "cpu": {
        "small": ({64: (1, 8), 512: (1, 8)}, (1, 8, 64, 512, 4096)),
        "full": (
            {
                **dict.fromkeys((8, 32, 128, 512), (1, 4, 32)),
                **dict.fromkeys((20, 56, 96, 256), (1, 6)),  # and what fills no whole vectors
            },
            (*POWERS[:13:2], 32, 512, 2048, 16384, 65536, 3, 91, 701),
        ),
        "held out": ({24: (3,), 40: (1,), 72: (2,), 200: (12,)}, (1, 5, 33, 333, 3000, 9000)),
    },
    "cuda": {
        "small": ({64: (1,), 1024: (1, 16, 128)}, POWERS[::3]),
        "full": ({256: (1,), 1024: (1, 16, 128)}, POWERS),
    },
}
# Rows and T of a CPU's bare scans that are larger than its layers, as far as they fit; and of those
# that are held out.
CPU_SCANS = (
    ((1, 8, 64, 512, 4096, 32768), (2**6, 2**9, 2**12, 2**15, 2**18, 2**21, 2**24)),
    ((3, 20, 100, 3000), (300, 7000, 150000, 5000000)),
)
CPU_SCANS_FROM = 2**16  # elements
# What people quote, of layers (B, T, H) and of bare scans (rows, T), with the largest of each.
QUOTED = (
    (8, 4096, 1024), (16, 1024, 768), (1, 65536, 1024), (2, 16384, 512), (32, 512, 384),
    (128, 256, 512), (32, 128, 512), (16, 1024, 128), (64, 4096, 1024), (1, 2**18, 1024),
)  # fmt: skip
QUOTED_SCANS = (
    *((12288, 4096), (12288, 1024), (1024, 65536), (64, 2**20), (98304, 4096), (1, 2**20)),
    *((8, 2**20), (32, 2**20), (1, 2**24), (16, 2**24), (1024, 2**18), (2**16, 2**12)),
    *((2**20, 2**8), (1024, 2**20), (2**16, 2**14), (2**20, 2**10)),
)
DRAWN = 1000  # shapes of a GPU's full grid beside those
DTYPES = ("float32", "bfloat16", "float16")  # of problems that are drawn
TF32 = "tf32"  # float32 of a layer whose products may round their operands to TF32


class Shape(NamedTuple):
    """Sizes, and of a problem that was drawn by itself what else it is."""

    B: int
    T: int
    H: int
    held_out: bool = False
    layout: str = "TBH"
    dtype: str | None = None  # None: all of them, and both passes
    direction: str | None = None

    def row(self) -> dict[str, Any]:
        out = {"layout": self.layout, "B": self.B, "T": self.T, "H": self.H}
        return out | ({"held_out": True} if self.held_out else {})


def shapes(grid: str, device: str) -> list[Shape]:
    """By B and H, and then from short to long; a CPU's full grid comes with what is held out."""
    out = []
    for name in (grid, "held out") if grid == "full" else (grid,):
        rows, lengths = GRIDS[device].get(name, ({}, ()))
        for H, batches in rows.items():
            for B, T in itertools.product(batches, sorted(lengths)):
                shape = Shape(B, T, H, name == "held out")
                out += [shape] if _is_worth(shape, device) else []
    return out


def _is_worth(shape: Shape, device: str, cell: str = "") -> bool:
    elements = shape.B * shape.T * shape.H
    if cell == SCAN:
        return elements <= MAX_SCAN[device]
    if device == "cpu":
        return 2 * elements * shape.H <= MAX_GEMM
    if cell and is_dense(cell) and shape.T > MAX_DENSE_STEPS:
        return False
    return elements <= MAX_ELEMENTS


def scan_shapes(grid: str, device: str) -> list[Shape]:
    """The same for the bare scan: each number of rows once; a CPU's full grid has larger ones."""
    found = {Shape(1, s.T, s.B * s.H, s.held_out) for s in shapes(grid, device)}
    for held_out, larger in enumerate(CPU_SCANS if (device, grid) == ("cpu", "full") else ()):
        scans = (Shape(1, T, rows, bool(held_out)) for rows, T in itertools.product(*larger))
        found.update(scan for scan in scans if scan.T * scan.H >= CPU_SCANS_FROM)
    return sorted(found)


@functools.cache
def cell_of(name: str) -> CellInfo:
    return next(known for known in cells() if known.name == name)


def made(module: Any, cell: str, size: int, **options: Any) -> Any:
    """A layer of the cell with C = H, by the class of scanrnn or scanrnn.torch that makes it."""
    name, own = cell_of(cell).made_by()
    return getattr(module, name)(size, size, **own, **options)


def is_linear(cell: str) -> bool:
    return cell == SCAN or cell_of(cell).recurrence == "linear"


def is_dense(cell: str) -> bool:
    return cell != SCAN and cell_of(cell).recurrence == "dense"


def has_choice(cell: str, device: str) -> bool:
    return device != "cpu" or not is_dense(cell)


def wanted(grid: str, names: Iterable[str], device: str) -> Iterator[tuple[str, Shape]]:
    """What a sweep measures. A GPU's full grid is one for pictures, of the first cell and of scans,
    and what is quoted; what fits best is learnt from sizes that are drawn.
    """
    names = [name for name in names if has_choice(name, device)]
    learnt = grid == "full" and device != "cpu"
    for cell in names if not learnt else [name for name in names if name in (names[0], SCAN)]:
        found = scan_shapes(grid, device) if cell == SCAN else shapes(grid, device)
        yield from ((cell, shape) for shape in found if _is_worth(shape, device, cell))
    if not learnt:
        return
    for cell in names:
        quoted = [(1, T, rows) for rows, T in QUOTED_SCANS] if cell == SCAN else QUOTED
        found = [Shape(*sizes) for sizes in quoted]
        yield from ((cell, shape) for shape in found if _is_worth(shape, device, cell))
    for index, (cell, shape) in enumerate(drawn(DRAWN, 0, names, device)):
        held_out = index % 5 == 0
        T = 1 + shape.T % SHORT if index % 4 == 0 else shape.T
        yield cell, shape._replace(T=T, held_out=held_out, dtype=None, direction=None)


def drawn(
    count: int,
    seed: int,
    names: Iterable[str],
    device: str,
    only: str | None = None,
    steps: int | None = None,
) -> Iterator[tuple[str, Shape]]:
    """Problems of one pass, dtype (or `only` this one) and layout each, of at most so many `steps`;
    one seed gives the same ones everywhere.
    """
    source, rounds = random.Random(seed), random.Random(~seed)  # sizes are a seed's in any case
    names = [name for name in names if has_choice(name, device)]
    ranges = RANGES | ({"T": (1, steps)} if steps else {})
    while names and count > 0:
        cell = source.choice(names)
        sizes = {
            name: round(math.exp(source.uniform(math.log(low), math.log(high))))
            for name, (low, high) in ranges.items()
        }
        layout, dtype = source.choice(("TBH", "BTH")), source.choice(DTYPES)
        direction = source.choice(PASSES)
        if device != "cpu" and cell != SCAN and dtype == "float32" and rounds.random() < 0.5:
            dtype = TF32
        dtype = only or dtype
        shape = Shape(**sizes, layout=layout, dtype=dtype, direction=direction)
        if cell == SCAN:
            shape = Shape(1, shape.T, shape.B * shape.H, dtype=dtype, direction="forward")
        if _is_worth(shape, device, cell):
            count -= 1
            yield cell, shape
