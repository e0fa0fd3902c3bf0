# SPDX-License-Identifier: Apache-2.0
"""`bench ragged`: sequences of different lengths, padded, told by their lengths, and packed.

Lengths are uniform in [1, T]. `share` is a time over that of the padded batch, `tokens` what share
of the padded batch's tokens there is. All runs of a cell take turns, and agree where they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scanrnn

from .. import _core
from ..arguments import Array
from . import measure, sizes

B, T, H = 32, 512, 256  # and C = H
RESETS = 0.03  # of the steps
SECONDS = 1.0
TOLERANCE = 1e-4


def calls_of(rnn: scanrnn.Layer, backward: bool, lengths: Array) -> dict[str, Callable[[], Any]]:
    """Each gives y."""
    random = np.random.default_rng(0)
    x = random.standard_normal((T, B, H)).astype(np.float32)
    rows = [x[:length, row] for row, length in enumerate(lengths)]
    packed, ends = np.concatenate(rows), np.concatenate([[0], np.cumsum(lengths)])
    reset = random.random((T, B)) < RESETS

    def run(x: Any, **told: Any) -> Any:
        if not backward:
            return rnn(x, **told)[0]
        (y, _), pullback = rnn.vjp(x, **told)
        pullback(y)
        return y

    found = {
        "padded": lambda: run(x),
        "padded, resets": lambda: run(x, reset=reset),
        "lengths": lambda: run(x, lengths=lengths),
        "cu_seqlens": lambda: run(packed, cu_seqlens=ends),
    }
    whole, told, tokens = (found[name]() for name in ("padded", "lengths", "cu_seqlens"))
    for row, length in enumerate(lengths):
        here = tokens[ends[row] : ends[row + 1]]
        for other in (whole[:length, row], told[:length, row]):
            if not measure.max_error(here, other) <= TOLERANCE:
                raise AssertionError(f"{rnn!r}: packed tokens and row {row} differ")
    return found


def run(out: Path, cells: list[str]) -> None:
    rows, table = [], []
    lengths = np.random.default_rng(1).integers(1, T + 1, B)
    tokens = float(lengths.mean() / T)
    for cell in cells:
        rnn = sizes.made(scanrnn, cell, H, device="cpu", seed=0)
        for backward in (False, True):
            taken = measure.timed(calls_of(rnn, backward, lengths), seconds=SECONDS)
            name = "forward_backward" if backward else "forward"
            for way, timing in taken.items():
                share = timing.ms / taken["padded"].ms
                rows.append(
                    {"bench": "ragged", "cell": cell, "pass": name, "way": way, "B": B, "T": T}
                    | {"C": H, "H": H, "dtype": "float32", **timing.row(), "share": round(share, 3)}
                )  # fmt: skip
                table.append([cell, name, way, f"{timing.ms:.2f}", f"{share:.2f}"])
    head = measure.provenance(_core.Device("cpu")) | {"tokens": round(tokens, 3)}
    measure.save(out, head | {"rows": rows})
    print(measure.table(["cell", "pass", "way", "ms", "share"], table))
    print(f"{tokens:.2f} of the padded tokens are there")
