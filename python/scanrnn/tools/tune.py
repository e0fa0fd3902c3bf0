# SPDX-License-Identifier: Apache-2.0
"""`tune`: measures this machine, or takes a sweep that was measured, and writes its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import _core, profile
from . import costs, crossover, fit, measure, regret, sizes


def fitted(content: dict[str, Any], name: str) -> dict[str, Any]:
    """A profile's file: rules or on a GPU costs, whichever loses less time at the points that were
    held out, and where the sweep that they are from was measured.
    """
    found, units = fit.problems(content), fit.units_of(content)
    choices: dict[str, list[dict[str, Any]]] = {"rules": fit.fit(found, units)}
    if content["device"] == "cuda":
        choices["costs"] = costs.fit(found, units, content.get("shared_bytes", 0))
    judges = [p for p in found if p.held_out] or found
    lost = {}
    for kind, fits in choices.items():
        tried = profile.parse({kind: fits}, kind)
        pick = regret.picker(content, tried)
        lost[kind] = sum(p.regret(pick(p)) for p in judges) / len(judges)
        print(f"{kind}, {len(fits)}:\n{_summary(content, tried)}")
    kept = min(lost, key=lambda kind: lost[kind])
    head = {key: value for key, value in content.items() if key != "rows"}
    out = {"name": name, **head, "fitted": measure.command(), kept: choices[kept]}
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
    measured: Path | None = None,
) -> None:
    now = None
    if measured is not None:
        content = measure.load_sweep(measured)
    else:
        now = _core.profile(_core.Device(device))
        measure.ready(out or profile.user_file(device.partition(":")[0]))
        points = list(sizes.wanted(grid, names, device.partition(":")[0]))
        content = crossover.run(grid, points, device, minutes=minutes)
        if not content["rows"]:
            raise SystemExit("nothing was measured, so there is nothing to fit")
        print(f"now [profile {now.name}]:\n{_summary(content, now)}")
    path = out or profile.user_file(content["device"])
    described = fitted(content, out.stem if out else "tuned")
    found = profile.parse(described, str(path))
    print(f"tuned:\n{_summary(content, found)}\n{profile.words(found)}")
    if now is not None:
        _core.set_profile(_core.Device(device), found)
    measure.save(path, described)


def _summary(content: dict[str, Any], found: _core.Profile) -> str:
    return regret.summary(fit.problems(content), regret.picker(content, found))
