# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn: what there is, the demo, the benchmarks and the tuning of this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from . import CudaError, _core, profile
from .registry import build_info, cells, devices
from .tools import measure, sizes
from .tools.sizes import SCAN


def info(rules: bool) -> None:
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
        made_by = f", made by {cell.base}({cell.option}=True)" if cell.base else ""
        print(f"cell {cell.name}: {cell.recurrence}{options}{made_by}")
    loaded = profile.load_users()
    for kind in sorted({found.device.partition(":")[0] for found in devices()}):
        active = _core.profile(_core.Device(kind))
        print(f"profile {kind}: {active.name}, {active.origin}; {profile.counts(active)}")
        if rules:
            print(profile.words(active))
        print(f"  your own: {loaded.get(kind) or no_profile(kind)}")


def no_profile(kind: str) -> str:
    try:
        file = profile.user_file(kind)
    except RuntimeError as problem:
        return f"none ({problem})"
    how = f"python -m scanrnn tune --device {kind}"
    return f"{file} is ignored" if file.exists() else f"none at {file} ({how})"


def device(text: str) -> str:
    """A device that is there: "cpu" or "cuda:N"."""
    try:
        return str(_core.Device(text))
    except (ValueError, CudaError) as problem:
        raise argparse.ArgumentTypeError(str(problem).removeprefix("device: ")) from None


def positive(kind: type, or_zero: bool = False) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 <= value < float("inf") or (value == 0 and not or_zero):
            sign = ">=" if or_zero else ">"
            raise argparse.ArgumentTypeError(f"expected a number {sign} 0, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid float value"
    return parse


def parser() -> argparse.ArgumentParser:
    names = [cell.name for cell in cells()]
    root = argparse.ArgumentParser(
        prog="python -m scanrnn", description="Minimal RNNs by parallel scan."
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(to: Any, name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = to.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {more}".strip()
        )
        return added

    shown = add(commands, "info", "build, devices, cells and the profiles in use")
    shown.add_argument("--rules", action="store_true", help="with the rules of each profile")

    demo = add(
        commands, "demo", "time to the same error, beside a NumPy loop; then this machine's ways",
        "One layer learns to hold a number over hundreds of steps.",
    )  # fmt: skip
    demo.add_argument(
        "--seconds", type=positive(float), default=75, help="for all of it, at most (75)"
    )
    demo.add_argument("--hidden", type=positive(int), default=32, help="units of the layer (32)")
    demo.add_argument(
        "--steps", type=positive(int), default=4096, help="of a sequence in training (4096)"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("scanrnn-demo.png"), help="the plot (scanrnn-demo.png)"
    )
    demo.add_argument(
        "--seed", type=positive(int, or_zero=True), default=0, help="of values and sequences (0)"
    )
    demo.add_argument("--device", type=device, default="cpu", help="cpu (default), cuda, cuda:N")

    bench = add(commands, "bench", "measure: ways to run, what is picked, or whole layers")
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="BENCH")
    crossover = add(
        kinds, "crossover", "every way to run a layer or a scan, over a grid of sizes",
        "Each is checked, then timed. Ctrl-C ends it, and what was measured is kept.",
    )  # fmt: skip
    regret = add(
        kinds, "regret", "what the planner picks against the best, in a sweep or at random",
        "A sweep is one that bench crossover wrote. --random draws problems and measures them: "
        "log-uniform sizes over all cells, dtypes, passes and layouts.",
    )  # fmt: skip
    layer = add(
        kinds, "layer", "layers on the CPU beside their matrix products alone and beside NumPy"
    )
    calls = add(
        kinds, "calls", "what a call on a small layer costs, beside torch.nn where it is installed"
    )
    memory = add(
        kinds, "memory", "what training keeps and takes by LSTM, GRU and RNN, beside torch.nn"
    )
    ragged = add(
        kinds, "ragged", "sequences of different lengths on the CPU: padded, with lengths, packed"
    )
    stacks = add(
        kinds, "stacks", "both directions and four layers of dense cells on the CPU, beside one"
    )
    tune = add(
        commands, "tune", "fit the planner's rules to this machine",
        "It measures as bench crossover does, or takes such a sweep, and writes your own profile.",
    )  # fmt: skip

    for sub in (crossover, tune, regret):
        sub.add_argument("--device", type=device, default="cpu", help="cpu (default) or cuda")
        sub.add_argument(
            "--minutes", type=positive(float), help="stop after so many, between two points"
        )
    for sub in (crossover, tune):
        sub.add_argument(
            "--grid", choices=("small", "full"), default="small", help="minutes (small), or more"
        )
    crossover.add_argument("--out", type=Path, help="JSON (bench/results/DEVICE-crossover.json)")
    crossover.add_argument("--resume", action="store_true", help="go on where --out ends")
    tune.add_argument("--out", type=Path, help="the profile's file (your own)")
    tune.add_argument(
        "--from", dest="measured", type=Path, nargs="+", metavar="SWEEP",
        help="JSON of bench crossover to fit to, on whatever device: nothing is measured; of "
        "several machines with as many threads each, rules that are good on all",
    )  # fmt: skip

    source = regret.add_mutually_exclusive_group(required=True)
    source.add_argument("sweep", type=Path, nargs="?", help="JSON of bench crossover")
    source.add_argument(
        "--random", type=positive(int), metavar="N", help="draw so many problems, and measure them"
    )
    regret.add_argument(
        "--seed", type=positive(int, or_zero=True), default=0, help="of --random (0)"
    )
    regret.add_argument(
        "--dtype", choices=(*sizes.DTYPES, sizes.TF32), help="of all that --random draws"
    )
    regret.add_argument(
        "--steps", type=positive(int), metavar="T", help="at most, of all that --random draws"
    )
    regret.add_argument("--save", type=Path, metavar="JSON", help="keep what --random measures")
    regret.add_argument(
        "--profile", help="a profile's file or a built-in one's name (that of the sweep's device)"
    )
    regret.add_argument("--out", type=Path, help="Markdown file; pictures go beside it")

    for name, sub in (("calls", calls), ("memory", memory)):
        sub.add_argument("--device", type=device, default="cpu", help="cpu (default) or cuda")
        sub.add_argument("--out", type=Path, help=f"JSON (bench/results/DEVICE-{name}.json)")
    layer.add_argument("--device", choices=("cpu",), default="cpu", help="of NumPy's arrays")
    layer.add_argument(
        "--out", type=Path, default=Path("bench/results/cpu-layer.json"),
        help="JSON (bench/results/cpu-layer.json)",
    )  # fmt: skip
    ragged.add_argument(
        "--out", type=Path, default=Path("bench/results/cpu-ragged.json"),
        help="JSON (bench/results/cpu-ragged.json)",
    )  # fmt: skip
    stacks.add_argument(
        "--out", type=Path, default=Path("bench/results/cpu-stacks.json"),
        help="JSON (bench/results/cpu-stacks.json)",
    )  # fmt: skip
    swept, layers = [*names, SCAN], (layer, ragged, stacks)
    for sub in (crossover, tune, regret, *layers):
        known = names if sub in layers else swept
        sub.add_argument(
            "--cells", nargs="+", choices=known, default=known, metavar="CELL",
            help=f"some of {', '.join(known)} (all)",
        )  # fmt: skip
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


def sweep_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """The measured sweep, or random problems that are measured now."""
    from .tools import crossover

    if chosen.sweep is not None:
        return measure.load_sweep(chosen.sweep)
    kind = chosen.device.partition(":")[0]
    points = list(
        sizes.drawn(chosen.random, chosen.seed, chosen.cells, kind, chosen.dtype, chosen.steps)
    )
    name = f"{chosen.random} random, seed {chosen.seed}"
    if chosen.steps:
        name += f", up to {chosen.steps} steps"
    return crossover.run(name, points, chosen.device, chosen.save, chosen.minutes)


def main(arguments: list[str] | None = None) -> None:
    try:
        try:
            run(parser().parse_args(arguments))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None  # as a shell says it
    except BrokenPipeError:  # whoever read us has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush at the end of the process
        raise SystemExit(141) from None


def run(chosen: argparse.Namespace) -> None:
    if chosen.command == "info":
        info(chosen.rules)
    elif chosen.command == "demo":
        from .tools import demo

        try:
            demo.run(
                chosen.seconds, chosen.hidden, chosen.steps, chosen.out, chosen.seed, chosen.device
            )
        except (MemoryError, ValueError) as problem:  # of sizes that the caller chose
            raise SystemExit(str(problem) or "there is not enough memory") from None
    elif chosen.command == "tune":
        from .tools import tune

        tune.run(
            chosen.grid, chosen.cells, chosen.device, chosen.out, chosen.minutes, chosen.measured,
        )  # fmt: skip
    elif chosen.kind == "crossover":
        from .tools import crossover

        kind = chosen.device.partition(":")[0]
        out = chosen.out or Path("bench/results", f"{kind}-crossover.json")
        points = list(sizes.wanted(chosen.grid, chosen.cells, kind))
        crossover.run(chosen.grid, points, chosen.device, out, chosen.minutes, chosen.resume)
    elif chosen.kind == "regret":
        from .tools import optional, regret

        if chosen.out is not None:
            measure.ready(chosen.out)
            optional.need("matplotlib")
        # One that is told is found, or not, before anything is measured.
        rules = None if chosen.profile is None else chosen_profile(chosen.profile, {})
        content = sweep_of(chosen)
        regret.run(content, rules or chosen_profile(None, content), chosen.out)
    elif chosen.kind in ("calls", "memory"):
        from .tools import calls, memory

        kind, tool = chosen.device.partition(":")[0], calls if chosen.kind == "calls" else memory
        tool.run(chosen.device, chosen.out or Path(f"bench/results/{kind}-{chosen.kind}.json"))
    elif chosen.kind == "ragged":
        from .tools import ragged_bench

        ragged_bench.run(chosen.out, chosen.cells)
    elif chosen.kind == "stacks":
        from .tools import stack_bench

        stack_bench.run(chosen.out, chosen.cells)
    else:
        from .tools import layer_bench

        layer_bench.run(chosen.out, chosen.cells)


if __name__ == "__main__":
    main()
