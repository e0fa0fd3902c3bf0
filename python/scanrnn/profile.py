# SPDX-License-Identifier: Apache-2.0
"""Profiles in JSON files: rules that say what is fastest where, or costs that predict times.

A user's own profile, written by `python -m scanrnn tune`, is read at first use. A file that cannot
be used is named in a warning and left alone: the built-in profile decides then.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from . import _core
from .registry import version

FEATURES, TERMS = _core.features(), _core.terms()
CLASS = {  # of problems whose time is predicted alike
    "kind": str, "bytes": int, "alignment": int, "training": bool, "log_form": bool,
    "tf32": bool,
}  # fmt: skip
NO_TREND = [0.0] * _core.trends()
MOST, MOST_OF_COSTS = sys.float_info.max, float.fromhex("0x1.fffffep127")  # which are float32
OPEN = {"above": -1.0, "at_most": math.inf}  # what a bound is where a rule has none


def user_file(device: str = "cpu") -> Path:
    """Where the user's own profile lies (the XDG rule); RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return root / "scanrnn" / f"profile-{device}.json"


def parse(content: Any, origin: str) -> _core.Profile:
    """A profile from what its file holds; ValueError says what is wrong with it."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    rules, costs = content.get("rules", []), content.get("costs", [])
    if not isinstance(rules, list) or not isinstance(costs, list) or not rules + costs:
        raise ValueError("'rules' or 'costs' must be a list of at least one")
    parsed = [_rule(f"rules[{index}]", rule) for index, rule in enumerate(rules)]
    priced = [_cost(f"costs[{index}]", cost) for index, cost in enumerate(costs)]
    names = content.get("name", "unnamed"), origin  # a path may have bytes that are no text
    sound = (str(name).encode("utf-8", "replace").decode() for name in names)
    return _core.Profile(*sound, parsed, priced)


def shortened(value: Any) -> str:
    """As it reads, or as much of it as an error has room for."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _cost(where: str, cost: Any) -> Any:
    if not isinstance(cost, dict):
        raise ValueError(f"{where} must be an object, not {cost!r}")
    of = {name: cost.get(name) for name in CLASS}
    for name, kind in CLASS.items():
        if type(of[name]) is not kind:
            raise ValueError(f"{where}.{name} must be a {kind.__name__}, not {shortened(of[name])}")
        if kind is int and not 0 < of[name] < 2**31:
            raise ValueError(f"{where}.{name} must be in [1, 2^31), not {shortened(of[name])}")
    known = _core.strategies()
    if cost.get("strategy") not in known:
        raise ValueError(f"{where}.strategy must be one of {known}, not {cost.get('strategy')!r}")
    if not isinstance(cost.get("across_blocks"), bool):
        raise ValueError(f"{where}.across_blocks must be true or false")
    us = cost.get("us")
    if not isinstance(us, dict) or not us or not set(us) <= set(TERMS):
        raise ValueError(f"{where}.us must hold microseconds of {', '.join(TERMS)}")
    each = {n: _number(f"{where}.us.{n}", value, 0, MOST_OF_COSTS) for n, value in us.items()}
    terms = [each.get(name, 0.0) for name in TERMS]
    trend = cost.get("trend", NO_TREND)
    if not isinstance(trend, list) or len(trend) != len(NO_TREND):
        raise ValueError(f"{where}.trend must be a list of {len(NO_TREND)} numbers")
    slopes = [_number(f"{where}.trend", value, -MOST_OF_COSTS, MOST_OF_COSTS) for value in trend]
    return tuple(of.values()), cost["strategy"], cost["across_blocks"], terms, slopes


def _rule(where: str, rule: Any) -> _core.Rule:
    if not isinstance(rule, dict):
        raise ValueError(f"{where} must be an object, not {rule!r}")
    known = _core.strategies()
    for key in ("strategy", "runner_up"):
        if rule.get(key) not in known:
            raise ValueError(f"{where}.{key} must be one of {known}, not {rule.get(key)!r}")
    if not isinstance(rule.get("across_blocks"), bool):
        raise ValueError(f"{where}.across_blocks must be true or false")
    margin = _number(f"{where}.margin", rule.get("margin"))
    bounds = []
    for side, open_bound in OPEN.items():
        given = rule.get(side, {})
        if not isinstance(given, dict) or not set(given) <= set(FEATURES):
            raise ValueError(f"{where}.{side} must hold bounds of {', '.join(FEATURES)}")
        values = {name: _number(f"{where}.{side}.{name}", value) for name, value in given.items()}
        bounds.append([values.get(name, open_bound) for name in FEATURES])
    return rule["strategy"], rule["runner_up"], rule["across_blocks"], margin, bounds[0], bounds[1]


def _number(where: str, value: Any, least: float = 0, most: float = MOST) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        wanted = "a finite number" if least < 0 else f"a number >= {least:g}"
        raise ValueError(f"{where} must be {wanted}, not {shortened(value)}")
    return float(value)


def as_json(profile: _core.Profile) -> dict[str, Any]:
    """What parse() reads."""
    rules = []
    for strategy, runner_up, across_blocks, margin, *sides in profile.rules:
        rule: dict[str, Any] = {"strategy": strategy, "runner_up": runner_up}
        rule |= {"across_blocks": across_blocks, "margin": margin}
        for (side, open_bound), values in zip(OPEN.items(), sides, strict=True):
            given = {n: v for n, v in zip(FEATURES, values, strict=True) if v != open_bound}
            if given:
                rule[side] = {n: int(v) if v == int(v) else v for n, v in given.items()}
        rules.append(rule)
    costs = []
    for of, strategy, across_blocks, us, trend in profile.costs:
        cost = dict(zip(CLASS, of, strict=True)) | {"strategy": strategy}
        each = {name: _short(value) for name, value in zip(TERMS, us, strict=True) if value}
        cost |= {"across_blocks": across_blocks, "us": each}
        costs.append(cost | ({"trend": [_short(value) for value in trend]} if any(trend) else {}))
    lists = {"rules": rules, "costs": costs}
    return {"name": profile.name} | {key: value for key, value in lists.items() if value}


def _short(value: float) -> float:
    """As it was read, before it was a float32."""
    return float(f"{value:.7g}")


def counts(profile: _core.Profile) -> str:
    """How many rules and classes of costs a profile has: "42 rules"."""
    found = {"rules": len(profile.rules), "classes of costs": len(profile.costs)}
    return ", ".join(f"{count} {what}" for what, count in found.items() if count)


def words(profile: _core.Profile) -> str:
    """One line for each rule, and one that counts the costs, as a person reads them."""
    lines = []
    described = as_json(profile)
    if "costs" in described:
        ways = [cost["strategy"] for cost in described["costs"]]
        found = ", ".join(f"{way} {ways.count(way)}" for way in dict.fromkeys(ways))
        lines.append(f"    predicted times, classes of problems by strategy: {found}")
    for rule in described.get("rules", []):
        bounds = [f"{name} > {value}" for name, value in rule.get("above", {}).items()]
        bounds += [f"{name} <= {value}" for name, value in rule.get("at_most", {}).items()]
        over = " over blocks" if rule["across_blocks"] and "scan" in rule["strategy"] else ""
        lines.append(f"    {rule['strategy']}{over}: {', '.join(bounds) or 'everywhere else'}")
    return "\n".join(lines)


@functools.cache
def load_users() -> dict[str, Path]:
    """Puts the user's profiles to use, once; the files that could be used, by kind of device."""
    loaded = {}
    for device in ("cpu", "cuda") if _core.cuda_available() else ("cpu",):
        try:
            path = user_file(device)
        except RuntimeError:  # a user without a home
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = parse(content, str(path))
            if content.get("version") != version():
                raise ValueError(
                    f"it was measured with scanrnn {content.get('version')}, this is {version()}"
                )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as problem:
            warnings.warn(
                f"scanrnn: the profile {path} is ignored: {problem} "
                f"(`python -m scanrnn tune --device {device}` writes a new one)",
                RuntimeWarning,
                stacklevel=2,
            )
            continue
        _core.set_profile(_core.Device(device), found)
        loaded[device] = path
    return loaded
