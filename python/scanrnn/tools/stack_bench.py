# SPDX-License-Identifier: Apache-2.0
"""`bench stacks`: both directions and four layers of small dense cells, beside one layer of them.

`share` is a time over that of the one layer: 2 and 4 where layer calls run one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import scanrnn

from .. import _core
from . import layer_bench, measure, sizes

B, T = 1, 512
HIDDEN = (32, 64, 128, 256)  # and C
SECONDS = 0.5
STACKS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "both directions": {"bidirectional": True},
    "four layers": {"num_layers": 4},
}


def run(out: Path, cells: list[str]) -> None:
    rows, table = [], []
    random = np.random.default_rng(0)
    for cell in filter(sizes.is_dense, cells):
        for hidden in HIDDEN:
            x = random.standard_normal((T, B, hidden)).astype(np.float32)
            layers = {
                stack: sizes.made(scanrnn, cell, hidden, device="cpu", seed=0, **options)
                for stack, options in STACKS.items()
            }
            for name in ("forward", "forward_backward"):
                calls = {
                    stack: layer_bench.by_us(rnn, x, rnn(x)[0], name)
                    for stack, rnn in layers.items()
                }
                taken = measure.timed(calls, seconds=SECONDS)
                for stack, timing in taken.items():
                    share = round(timing.ms / taken["one layer"].ms, 3)
                    rows.append(
                        {"bench": "stacks", "cell": cell, "pass": name, "stack": stack, "B": B}
                        | {"T": T, "C": hidden, "H": hidden, "dtype": "float32"}
                        | {**timing.row(), "share": share}
                    )  # fmt: skip
                    table.append([cell, str(hidden), name, stack, f"{timing.ms:.2f}", f"{share}"])
    measure.save(out, measure.provenance(_core.Device("cpu")) | {"rows": rows})
    print(measure.table(["cell", "H", "pass", "stack", "ms", "share"], table))
