# SPDX-License-Identifier: Apache-2.0
"""The tables of what stands beside torch.nn in the same run, on a CPU or a GPU."""

from __future__ import annotations

from rows import OURS, Row, by, number, shape_of, source
from scanrnn.tools import measure
from scanrnn.tools.regret import PASSES


def calls(content: Row) -> str:
    """Microseconds of a call by what it goes through, and those that a GPU works by itself."""

    def shown(row: Row) -> str:
        alone = f" ({row['device_us']:.0f})" if "device_us" in row else ""
        return f"{row['us']:.0f}{alone}"

    impls = list(dict.fromkeys(row["impl"] for row in content["rows"]))
    lines = []
    for (size, cell, name), group in by(
        content["rows"], lambda r: (shape_of(r), r["cell"], r["pass"])
    ).items():
        us = {row["impl"]: shown(row) for row in group}
        line = [size, cell, name.replace("_", " + ")]
        lines.append([*line, *(us.get(impl, "") for impl in impls)])
    return source(content) + measure.markdown(["size", "cell", "pass", *impls], lines)


def memory(content: Row) -> str:
    """MiB that autograd keeps, and on a GPU the peak."""
    named = {"kept_bytes": "kept", "peak_bytes": "peak"}
    keys = [key for key in named if key in content["rows"][0]]
    libraries = list(dict.fromkeys(row["impl"] for row in content["rows"]))
    lines = []
    for (cell, layers, dtype), group in by(
        content["rows"], lambda r: (r["cell"], r["layers"], r["dtype"])
    ).items():
        found = {row["impl"]: row for row in group}
        sizes = (found[name][key] / 2**20 for key in keys for name in libraries)
        lines.append([cell, str(layers), dtype, *(f"{size:.1f}" for size in sizes)])
    titles = [f"{named[key]}, {name}" for key in keys for name in libraries]
    return source(content) + measure.markdown(["cell", "layers", "dtype", *titles], lines)


def replaced(content: Row) -> str:
    """Models of others before and after scanrnn.torch.replace, and on a GPU the peaks."""
    names, before, after = MODELS, "torch.nn", "scanrnn.torch"
    lines = []
    for (model, direction), group in by(content["rows"], lambda r: (r["model"], r["pass"])).items():
        found = {row["impl"]: row for row in group}
        pair = [found[before], found[after]]
        line = [names.get(model, model), PASSES[direction], *(number(row["ms"]) for row in pair)]
        line.append(f"{pair[0]['ms'] / pair[1]['ms']:.2f} x")
        if "peak_bytes" in pair[0]:
            line += [f"{row['peak_bytes'] / 2**20:.0f}" for row in pair]
        lines.append(line)
    titles = ["model", "pass", f"{before}, ms", f"{after}, ms", "as fast"]
    titles += [f"peak, {before}, MiB", f"peak, {after}, MiB"]
    return source(content) + measure.markdown(titles[: len(lines[0])], lines)


MODELS = {
    "encodec": "EnCodec of transformers",
    "hdemucs": "HDemucs of torchaudio",
    "words": "word language model",
}


# ---- docs/examples/language_model.py


def language_models(content: Row) -> str:
    lines = []
    for row in content["rows"]:
        library = "scanrnn.torch" if row["impl"] == OURS else "torch.nn"
        speed = f"{row['tokens_per_second'] / 1e6:.2f}"
        bits = (f"{row[key]:.2f}" for key in ("training_bits", "held_out_bits"))
        lines.append([f"{library}.{row['cell']}", str(row["H"]), speed, *bits])
    titles = ["recurrence", "H", "million tokens a second", "bits, training", "bits, held out"]
    return source(content) + measure.markdown(titles, lines)
