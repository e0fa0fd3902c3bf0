# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn: what there is, the demo, the benchmarks and the tuning of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import _core, measure, profile
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
        print(f"profile {kind}: {active.name}, {active.origin}\n{profile.words(active)}")
        tune = f"python -m scanrnn tune --device {kind}"
        print(f"  your own: {loaded.get(kind, f'none at {profile.user_file(kind)} ({tune})')}")


def parser() -> argparse.ArgumentParser:
    names = [cell.name for cell in cells()]
    root = argparse.ArgumentParser(prog="python -m scanrnn", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="build, devices, cells and the profile in use")

    demo = commands.add_parser("demo", help="train a character model on Python's own source text")
    demo.add_argument("--seconds", type=float, default=45, help="of training, for each of the two")
    demo.add_argument("--hidden", type=int, default=256)
    demo.add_argument("--out", type=Path, default=Path("scanrnn-demo.png"))
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--device", default="cpu")

    bench = commands.add_parser("bench", help="measure: ways to run, or whole layers")
    kinds = bench.add_subparsers(dest="kind", required=True)
    crossover = kinds.add_parser(
        "crossover", help="every way to run a layer or a scan, over a grid"
    )
    regret = kinds.add_parser("regret", help="what the planner picks against the best of a sweep")
    layer = kinds.add_parser("layer", help="layers beside their GEMMs alone and beside NumPy")
    tune = commands.add_parser("tune", help="fit the planner's rules to this machine")

    for sub in (crossover, tune):
        sub.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        sub.add_argument("--grid", choices=("small", "full"), default="small")
        sub.add_argument("--minutes", type=float, help="stop after so many, between two points")
    crossover.add_argument("--out", type=Path, help="bench/results/DEVICE-crossover.json")
    crossover.add_argument("--resume", action="store_true", help="go on where --out ends")
    tune.add_argument("--out", type=Path, help="the profile's file (your own)")
    tune.add_argument(
        "--from", dest="measured", type=Path, help="fit to this sweep, and measure none"
    )

    regret.add_argument("sweep", type=Path, help="JSON of bench crossover")
    regret.add_argument(
        "--profile", help="a profile's file or a built-in one's name (of the sweep's)"
    )
    regret.add_argument("--out", type=Path, help="Markdown file; pictures go beside it")

    layer.add_argument("--device", choices=("cpu",), default="cpu", help="of host arrays")
    layer.add_argument("--out", type=Path, default=Path("bench/results/layer-cpu.json"))
    for sub, known in ((crossover, [*names, "scan"]), (tune, [*names, "scan"]), (layer, names)):
        sub.add_argument(
            "--cells",
            nargs="+",
            choices=known,
            default=known,
            metavar="CELL",
            help=", ".join(known),
        )
    return root


def chosen_profile(name: str | None, content: dict[str, Any]) -> _core.Profile:
    """By file, by name, or what a machine as the sweep's would take."""
    if name is not None and Path(name).exists():
        return profile.parse(measure.load(Path(name)), name)
    names = [name] if name else [content["architecture"], f"{content['device']}-generic"]
    for wanted in names:
        found = _core.built_in_profile(wanted)
        if found is not None:
            return found
    raise SystemExit(f"--profile: there is no file and no built-in profile {names[0]!r}")


def main(arguments: list[str] | None = None) -> None:
    chosen = parser().parse_args(arguments)
    if chosen.command == "info":
        info()
    elif chosen.command == "demo":
        from . import demo

        demo.run(chosen.seconds, chosen.hidden, chosen.out, chosen.seed, chosen.device)
    elif chosen.command == "tune":
        from . import tune

        tune.run(
            chosen.grid, chosen.cells, chosen.device, chosen.out, chosen.minutes, chosen.measured
        )
    elif chosen.kind == "crossover":
        from . import crossover

        out = chosen.out or Path("bench/results", f"{chosen.device}-crossover.json")
        crossover.run(chosen.grid, chosen.cells, chosen.device, out, chosen.minutes, chosen.resume)
    elif chosen.kind == "regret":
        from . import regret

        found = chosen_profile(chosen.profile, measure.load(chosen.sweep))
        regret.run(chosen.sweep, found, chosen.out)
    else:
        from . import layer_bench

        layer_bench.run(chosen.device, chosen.out, chosen.cells)


if __name__ == "__main__":
    main()
