# SPDX-License-Identifier: Apache-2.0
"""What was asked for of the tables' rows before the work began, and why some have less."""

from __future__ import annotations

from rows import Row, find, measured, shape_of
from scanrnn import cells
from scanrnn.tools.regret import PASSES

BELOW, UNKNOWN = "†", "not explained yet"
CUDNN_RATIO = 1.3  # times ours, at least, by cuDNN at its best


def marked(text: str, less: bool) -> str:
    return f"{text} {BELOW}" if less else text


def explained(asked: str, reasons: dict[str, str]) -> str:
    """What the marks of a table mean, and why."""
    if not reasons:
        return ""
    why = "\n".join(f"- {what}: {reason}." for what, reason in reasons.items())
    return f"\n\n{BELOW} less than was asked for, {asked}:\n\n{why}"


# ---- linear and diagonal layers

FLOOR_RATIO = {"forward": 1.15, "forward_backward": 1.25}
MID_FORWARD = 1.2  # below 1024 steps, and where x is not as wide as h
LAYERS_ASKED = (
    f"forward at most {FLOOR_RATIO['forward']} times the floor, or {MID_FORWARD} below 1024 steps "
    f"or with C other than H, and with backward {FLOOR_RATIO['forward_backward']}"
)
BY_INSTRUCTIONS = "bound by the instructions of the gates"
REASONS = {
    "RGLRU": "three exponentials, two reciprocals and a root for each element",
    "B8 T4096 H1024": f"{BY_INSTRUCTIONS}: with twice the bytes, in float32, the recurrence takes "
    "only 1.2 to 1.3 times as long",
    "B1 T65536 H1024": f"{BY_INSTRUCTIONS}, some 60 an element forward. At four a clock that is "
    "0.12 ms (2^26 elements, 132 multiprocessors of 128 lanes, 1.98 GHz), where MinGRU's bytes "
    "take 0.10",
    "B8 T4096 C512 H1024": "the recurrence of C1024 beside little more than half the products",
    "B2 T16384 H512": f"{BY_INSTRUCTIONS}, as B1 T65536 H1024, and by its beginning and end",
    "B16 T1024 H768": f"{BY_INSTRUCTIONS}, as B8 T4096 H1024, and by its beginning and end",
    "B32 T512 H384": f"{BY_INSTRUCTIONS}, as B8 T4096 H1024, and by its beginning and end",
    "B32 T128 H512": "beginning and end of its kernels: its share of B8 T4096 H1024 is a sixteenth",
    "B128 T256 H512": "the recurrence of B64 T1024 H1024 beside products that are half as long "
    "an element",
}
# Cells whose steps do not compose.
WALKED = [cell.name for cell in cells() if cell.recurrence == "diagonal"]
REASONS |= dict.fromkeys(WALKED, "each step waits for the one before it, whatever the bandwidth")
# The same recurrence of more elements, of whose time a size has its share.
LONGER = {
    "B2 T16384 H512": (1, 65536, 1024),
    "B16 T1024 H768": (8, 4096, 1024),
    "B32 T512 H384": (8, 4096, 1024),
    "B32 T128 H512": (8, 4096, 1024),
    "B128 T256 H512": (64, 1024, 1024),
}


def is_slow(row: Row) -> bool:
    return bool(row["floor_ratio"] > floor_ratio_asked(row))


def floor_ratio_asked(row: Row) -> float:
    if row["pass"] == "forward" and (row["T"] < 1024 or row["C"] != row["H"]):
        return MID_FORWARD
    return FLOOR_RATIO[row["pass"]]


def layer_reasons(below: list[Row], every: list[Row]) -> dict[str, str]:
    """For the rows that have less, by cell or else by size."""
    groups: dict[str, list[Row]] = {}
    for row in below:
        what = row["cell"] if row["cell"] in REASONS else shape_of(row)
        groups.setdefault(what, []).append(row)
    return {what: reason_of(what, rows, every) for what, rows in groups.items()}


def reason_of(what: str, rows: list[Row], every: list[Row]) -> str:
    text = REASONS.get(what, UNKNOWN)
    if what in WALKED:
        return text
    times = [recurrence_ms(row) / (row["floor_ms"] - row["gemm_ms"]) for row in rows]
    text += f". The recurrence takes {span(times, '.1f')} times its bytes' time"
    for direction, title in PASSES.items():
        here = measured(rows, **{"pass": direction})
        beyond = [us for row in here if (us := beyond_longer(what, row, every)) > 0]
        text += f"; {title} {span(beyond, '.0f')} us more than its share of that" if beyond else ""
    return text


def recurrence_ms(row: Row) -> float:
    return float(row["ms"] - row["gemm_ms"])


def beyond_longer(what: str, row: Row, every: list[Row]) -> float:
    """Microseconds that a recurrence takes beyond its share of a longer one's time: 0 where there
    is none, less where the longer one does worse."""
    if what not in LONGER:
        return 0
    B, T, H = LONGER[what]
    same = {key: row[key] for key in ("cell", "pass", "layout", "dtype", "picked")}
    longer = find(every, B=B, T=T, H=H, C=H, **same)
    if longer is None:
        return 0
    share = row["B"] * row["T"] * row["H"] / (B * T * H)
    return 1e3 * (recurrence_ms(row) - share * recurrence_ms(longer))


def span(values: list[float], form: str) -> str:
    low, high = (format(value, form) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# ---- bare scans

FEW_ROWS = 8
SCANS_ASKED = (
    "from 2^24 elements and 32 rows on 93% of a copy in float32, of scan_log 90%, 85% in 16 bits, "
    "of scan_log 75%, 85% with backward and of complex numbers; of up to 8 rows and 2^23 elements "
    "on 65% in float32, from 2^28 steps on 80%, by logarithms at most 1.1 times the time"
)
PAIRS_FROM = 256 * 132  # rows, inside a block on an H100 or H200 (dispatch/tiles.h)
LINE_BYTES = 128
IN_LINES = (
    "rows begin inside lines of memory, which two columns share; in 16 bits every other one begins "
    "inside a sector of 32 bytes, too, of which neighbours write the halves"
)
UNITS_ALONE = (
    "inside a block so few rows go by units of 2 bytes, and not by pairs; over blocks, where they "
    "go by pairs, was not measured with backward"
)
SHORT_RUNS = (
    "a copy runs for more than 1 ms and these for 0.2 to 0.3, of which the smallest scan takes 2 "
    "us: that is 1 point, and the rest is not explained"
)
FEW_STEPS = 8
A_THREAD_A_ROW = (
    "a thread walks a row: the instructions of where it is and of its ends, for few bytes; where "
    "steps are adjacent each result is a request of its own besides"
)


def share_asked(row: Row) -> float:
    """What share of the bandwidth of a copy; 0 where nothing was asked for."""
    rows, wide, log = row["B"] * row["H"], row["dtype"] == "float32", row["domain"] == "log"
    if rows <= FEW_ROWS:
        wide = wide and rows * row["T"] >= 1 << 23
        return (0.8 if row["T"] >= 1 << 28 else 0.65) / (1.1 if log else 1) if wide else 0
    if rows < 32 or rows * row["T"] < 1 << 24:
        return 0
    if row["pass"] == "forward_backward" or row["dtype"].startswith("complex"):
        return 0.85
    return {(True, False): 0.93, (True, True): 0.9, (False, True): 0.75}.get((wide, log), 0.85)


def has_less(row: Row) -> bool:
    return round(row["copy_share"], 2) < share_asked(row)


def why_less(row: Row, ways: list[Row]) -> tuple[str, str]:
    """Which scans have less than was asked for, and why. `ways` are those that were measured."""
    size, half = shape_of(row), row["dtype"] in ("bfloat16", "float16")
    if row["B"] * row["H"] <= FEW_ROWS:
        return f"up to {FEW_ROWS} rows", "a tile's turn with its waits for others, not memory"
    if size in ("B1 T1048576 H64", "B1 T524288 H32"):
        return "H64 and H32", "tiles of so few columns wait for one another's carry, by the L2"
    if row["T"] <= FEW_STEPS:
        return f"T up to {FEW_STEPS}", A_THREAD_A_ROW
    enough = [way for way in measured(ways) if not has_less(way)]
    if enough:
        name, share = enough[0]["strategy"], enough[0]["copy_share"]
        return f"{size} {row['layout']}", f"{name} has {share:.0%}, and is not picked"
    if row["domain"] == "log":
        return "scan_log", "44 to 48 instructions an element"
    if row["layout"] == "BHT" and half:
        return "BHT in 16 bits", "bound by instructions, 2.7 a clock of at most 4"
    row_bytes = row["B"] * row["H"] * (2 if half else 4)
    if row["layout"] == "TBH" and row_bytes % LINE_BYTES:
        return size, IN_LINES
    if half and row["strategy"] == "parallel_scan, block" and row["B"] * row["H"] < PAIRS_FROM:
        return f"{size} in 16 bits", UNITS_ALONE
    if row["layout"] == "BHT" and row["dtype"] == "float32":
        return "BHT in float32", SHORT_RUNS
    return size, UNKNOWN
