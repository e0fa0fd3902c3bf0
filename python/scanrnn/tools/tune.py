# SPDX-License-Identifier: Apache-2.0
"""`tune`: measures this machine, or takes a sweep that was measured, and writes its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import _core, profile
from . import costs, crossover, fit, measure, regret, sizes


def fitted(sweeps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """A profile's file: rules or on a GPU costs, whichever loses less time at the points that were
    held out, and where the sweeps that they are from were measured, the last one first.

    Sweeps of several machines, of as many threads each, make rules that are good on all of them.
    """
    content = sweeps[-1]
    found, units = [p for sweep in sweeps for p in fit.problems(sweep)], fit.units_of(content)
    if any((s["device"], fit.units_of(s)) != (content["device"], units) for s in sweeps):
        raise SystemExit("--from: expected sweeps of one kind of device and as many threads each")
    choices: dict[str, list[dict[str, Any]]] = {"rules": fit.fit(found, units)}
    if content["device"] == "cuda":
        choices["costs"] = costs.fit(found, units, content.get("shared_bytes", 0))
    judges = [p for p in found if p.held_out] or found
    lost = {}
    for kind, fits in choices.items():
        tried = profile.parse({kind: fits}, kind)
        pick = regret.picker(content, tried)
        lost[kind] = sum(p.regret(pick(p)) for p in judges) / len(judges)
        print(f"{kind}, {len(fits)}:\n{regret.summary(found, pick)}")
    kept = min(lost, key=lambda kind: lost[kind])
    head = {key: value for key, value in content.items() if key != "rows"}
    out = {"name": name, **head, "fitted": measure.command()}
    if others := [f"{s['processor']}, commit {s['commit']}" for s in sweeps[:-1]]:
        out["and"] = others
    out[kept] = choices[kept]
    if kept == "costs":
        pick = regret.picker(content, profile.parse(out, "costs"))
        quoted = costs.rules(found, units, pick)
        out |= {"rules": quoted} if quoted else {}
    return out


def run(
    grid: str,
    names: list[str],
    device: str,
    out: Path | None,
    minutes: float | None = None,
    measured: list[Path] | None = None,
) -> None:
    now = None
    if measured is not None:
        last = measure.load_sweep(measured[-1])
        sweeps = [*(measure.load_sweep(path, last) for path in measured[:-1]), last]
    else:
        now = _core.profile(_core.Device(device))
        measure.ready(out or _own_file(device.partition(":")[0]))
        points = list(sizes.wanted(grid, names, device.partition(":")[0]))
        sweeps = [crossover.run(grid, points, device, minutes=minutes)]
        if not sweeps[0]["rows"]:
            raise SystemExit("nothing was measured, so there is nothing to fit")
        print(f"now [profile {now.name}]:\n{_summary(sweeps[0], now)}")
    path = out or _own_file(sweeps[0]["device"])
    name = out.stem if out else "tuned"
    described = fitted(sweeps, name)
    found = profile.parse(described, str(path))
    for sweep in sweeps:
        print(f"tuned, on {sweep['processor']}:\n{_summary(sweep, found)}")
    print(profile.words(found))
    if now is not None:
        _core.set_profile(_core.Device(device), found)
    measure.save(path, described)


def _own_file(device: str) -> Path:
    try:
        return profile.user_file(device)
    except RuntimeError as problem:
        raise SystemExit(f"--out: expected a file, as there is no own one: {problem}") from None


def _summary(content: dict[str, Any], found: _core.Profile) -> str:
    return regret.summary(fit.problems(content), regret.picker(content, found))
