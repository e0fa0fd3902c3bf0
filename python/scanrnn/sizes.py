# SPDX-License-Identifier: Apache-2.0
"""The problems of a sweep: sizes of layers and of bare scans, on a grid and held out from it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .registry import CellInfo, cells

SCAN = (
    "scan"  # stands where a cell's name does: the bare recurrence, of B*H rows and one batch entry
)
# Larger problems cost much and tell nothing: on a CPU (multiply-adds of a forward pass) all is the
# GEMM, on a GPU (elements of B*T*H) the best way is that of half as many steps.
MAX_GEMM, MAX_ELEMENTS = 1.5e9, 2**24
LONGEST = (1, 2**20, 64)  # is measured all the same
DENSE_STEPS = 1024  # of cells that can only walk: twice as many take twice as long

POWERS = tuple(2**k for k in range(21))
ODD = tuple(3 * power // 2 + 1 for power in POWERS[2:])  # between the powers, not even by alignment
# Of each grid the batches by hidden size, and T; held out: measured to judge a fit, and not shown
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
        "full": (
            {64: (1, 16), 256: (1, 8, 32), 1024: (1, 4, 16, 32, 64, 128, 256), 2048: (512,)},
            (*POWERS, *ODD[::2]),
        ),
        "held out": (
            {96: (1,), 320: (3,), 512: (24,), 640: (96,), 768: (6, 40), 1536: (192,)},
            (1, 7, 23, 100, 600, 3000, 20000, 150000),
        ),
    },
}


class Shape(NamedTuple):
    B: int
    T: int
    H: int
    held_out: bool = False

    def row(self) -> dict[str, Any]:
        out = {"B": self.B, "T": self.T, "H": self.H}
        return out | ({"held_out": True} if self.held_out else {})


def shapes(grid: str, device: str) -> list[Shape]:
    """By B and H, and then from short to long; the full grid comes with what is held out."""
    out = []
    for name in (grid, "held out") if grid == "full" else (grid,):
        rows, lengths = GRIDS[device][name]
        for H, batches in rows.items():
            for B, T in itertools.product(batches, sorted(lengths)):
                shape = Shape(B, T, H, name == "held out")
                out += [shape] if _is_worth(shape, device) else []
    return out


def _is_worth(shape: Shape, device: str) -> bool:
    elements = shape.B * shape.T * shape.H
    if device == "cpu":
        return 2 * elements * shape.H <= MAX_GEMM
    return elements <= MAX_ELEMENTS or shape[:3] == LONGEST


def scan_shapes(grid: str, device: str) -> list[Shape]:
    """The same for the bare scan: each number of rows once."""
    return sorted({Shape(1, s.T, s.B * s.H, s.held_out) for s in shapes(grid, device)})


@functools.cache
def cell_of(name: str) -> CellInfo:
    return next(known for known in cells() if known.name == name)


def is_linear(cell: str) -> bool:
    return cell == SCAN or cell_of(cell).recurrence == "linear"


def wanted(grid: str, names: Iterable[str], device: str) -> Iterator[tuple[str, Shape]]:
    """All shapes for the first cell. The others share its kernels and differ in bytes alone, so on
    a GPU they take half of the shapes, in turns, and those held out.
    """
    for turn, cell in enumerate(names):
        if cell == SCAN:
            yield from ((cell, shape) for shape in scan_shapes(grid, device))
            continue
        for index, shape in enumerate(shapes(grid, device)):
            if not is_linear(cell) and shape.T > DENSE_STEPS:
                continue
            if device == "cpu" and not is_linear(cell):
                continue  # there is no choice
            if turn == 0 or device == "cpu" or shape.held_out or (index + turn) % 2:
                yield cell, shape
