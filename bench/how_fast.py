# SPDX-License-Identifier: Apache-2.0
"""The paragraph of README that says how fast the project is, in numbers of the result files."""

from __future__ import annotations

import textwrap

from rows import OURS, Row, find, measured
from scanrnn import cells

CLOSE = 1.25  # times its products, which a CPU layer should cost at most


def how_fast(layers: Row, peers: Row, cpu: Row) -> str:
    text = [linear_cells(layers["rows"]), dense_cells(peers["rows"])]
    own = measured(cpu["rows"], bench="layer", impl=OURS)
    close = sum(row["floor_ratio"] <= CLOSE for row in own)
    text.append(
        f"On two threads of a CPU {close} of {len(own)} layers, forward or with backward, cost at "
        f"most {CLOSE} times their matrix products alone."
    )
    where = layers["gpu"].removeprefix("NVIDIA ")
    return textwrap.fill(f"On an {where}, bfloat16, as the planner picks: {' '.join(text)}", 100)


def linear_cells(rows: list[Row]) -> str:
    forward = measured(rows, bench="layer", dtype="bfloat16", layout="TBH", picked=True)
    forward = [row for row in forward if row["pass"] == "forward"]
    gru, sru = (need(forward, cell=cell, B=8, T=4096, H=1024) for cell in ("MinGRU", "SRU"))
    scanned = [cell.name for cell in cells() if cell.recurrence == "linear"]
    long = [row for row in measured(forward, B=1, T=65536) if row["cell"] in scanned]
    long = sorted(row["floor_ratio"] for row in long)
    step = need(rows, bench="step", cell="MinGRU", B=1)
    return (
        f"MinGRU forward at B8 T4096 H1024 takes {gru['ms']:.2f} ms, {gru['floor_ratio']:.2f} "
        f"times its floor (matrix product + bytes at the speed of a copy); SRU {sru['ms']:.2f} ms, "
        f"{sru['floor_ratio']:.2f} times; a linear cell over 65536 steps {long[0]:.2f} to "
        f"{long[-1]:.2f} times; one step of one sequence {1e3 * step['ms']:.1f} us, the launch of "
        f"its matrix product alone {1e3 * step['gemm_ms']:.1f}."
    )


def dense_cells(peers: list[Row]) -> str:
    size = {"B": 16, "T": 1024, "H": 768, "dtype": "bfloat16"}
    both = {}
    for cell in ("LSTM", "GRU"):
        here = measured(peers, bench="layer", cell=cell, impl=OURS, **size)
        times = [need(here, **{"pass": way})["ms"] for way in ("forward", "forward_backward")]
        both[cell] = " ms and with backward ".join(f"{ms:.1f}" for ms in times)
    beside = measured(peers, bench="layer", cell="LSTM", **{"pass": "forward"}, **size)
    own = need(beside, impl=OURS)
    return (
        f"LSTM at B16 T1024 H768 takes {both['LSTM']}, GRU {both['GRU']}: an LSTM's step "
        f"{1e3 * own['ms'] / 1024:.1f} us{others(beside)}."
    )


def need(rows: list[Row], **wanted: object) -> Row:
    row = find(rows, **wanted)
    if row is None:
        raise SystemExit(f"README's figures need a row of {wanted}, which no result file has")
    return row


def others(rows: list[Row]) -> str:
    """A step of the same problem by cuDNN: as torch.nn calls it, and at its best."""
    said = []
    best = [row for row in rows if row["impl"].startswith("cuDNN") and "algorithm" in row]
    eager = [row for row in rows if row["impl"] != OURS and "cell" in row and row not in best]
    eager = [row for row in eager if row["timing"] == "events"]
    if eager:
        said.append(f"torch.nn, called eagerly, takes {1e3 * eager[0]['ms'] / 1024:.1f}")
    for row in best:
        said.append(
            f"cuDNN's fastest algorithm ({row['algorithm']}), replayed as a graph, takes "
            f"{1e3 * row['ms'] / 1024:.1f}"
        )
    return f", where {' and '.join(said)}" if said else ""
