# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn: what there is, the demo, the benchmarks and the tuning of this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import _core, profile
from .registry import build_info, cells, devices


def info() -> None:
    print(build_info().strip())
    for found in devices():
        print(
            f"device {found.device}: {found.name}, {found.units} units, {found.architecture}, "
            f"{found.memory / 2**30:.1f} GiB"
        )
    for cell in cells():
        options = (
            f", {cell.variant_option}={'|'.join(cell.variants)}" if cell.variant_option else ""
        )
        print(f"cell {cell.name}: {cell.recurrence}{options}")
    loaded = profile.load_users()
    for kind in sorted({found.device.partition(":")[0] for found in devices()}):
        active = _core.profile(_core.Device(kind))
        print(f"profile {kind}: {json.dumps(profile.as_json(active))}")
        own = loaded.get(kind, f"none at {profile.user_file(kind)} (python -m scanrnn tune)")
        print(f"  your own: {own}")


def parser() -> argparse.ArgumentParser:
    names = [cell.name for cell in cells()]
    linear = [cell.name for cell in cells() if cell.recurrence == "linear"]  # with a choice to make
    root = argparse.ArgumentParser(prog="python -m scanrnn", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="build, devices, cells and the profile in use")

    demo = commands.add_parser("demo", help="train a character model on Python's own source text")
    demo.add_argument("--seconds", type=float, default=45, help="of training, for each of the two")
    demo.add_argument("--hidden", type=int, default=256)
    demo.add_argument("--out", type=Path, default=Path("scanrnn-demo.png"))
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--device", default="cpu")

    bench = commands.add_parser("bench", help="measure: strategies, or whole layers")
    kinds = bench.add_subparsers(dest="kind", required=True)
    crossover = kinds.add_parser("crossover", help="every strategy over a grid of sizes")
    layer = kinds.add_parser("layer", help="layers beside their GEMMs alone and beside NumPy")
    tune = commands.add_parser("tune", help="fit the thresholds to this machine")
    for sub in (crossover, tune):
        sub.add_argument("--grid", choices=("small", "full"), default="small")
    for sub, out in ((crossover, "crossover-cpu.json"), (layer, "layer-cpu.json"), (tune, None)):
        known = names if sub is layer else linear
        sub.add_argument("--cells", nargs="+", choices=known, default=known, metavar="CELL")
        sub.add_argument("--device", choices=("cpu",), default="cpu", help="of host arrays")
        where = "your own profile" if out is None else f"bench/results/{out}"
        default = None if out is None else Path("bench/results", out)
        sub.add_argument("--out", type=Path, default=default, help=f"JSON file ({where})")
    return root


def main(arguments: list[str] | None = None) -> None:
    chosen = parser().parse_args(arguments)
    if chosen.command == "info":
        info()
    elif chosen.command == "demo":
        from . import demo

        demo.run(chosen.seconds, chosen.hidden, chosen.out, chosen.seed, chosen.device)
    elif chosen.command == "tune":
        from . import tune

        tune.run(chosen.grid, chosen.cells, chosen.device, chosen.out)
    elif chosen.kind == "crossover":
        from . import crossover

        crossover.run(chosen.grid, chosen.cells, chosen.device, chosen.out)
    else:
        from . import layer_bench

        layer_bench.run(chosen.device, chosen.out, chosen.cells)


if __name__ == "__main__":
    main()
