# SPDX-License-Identifier: Apache-2.0
"""Profiles: the measured thresholds that decide between strategies, as JSON files.

A user's own profile, written by `python -m scanrnn tune`, is read at first use. A file that cannot
be used is named in a warning and left alone: the built-in profile decides then.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from pathlib import Path
from typing import Any

from . import _core

THRESHOLDS = (
    "direct_max_tokens",
    "parallel_min_steps",
    "parallel_max_rows_per_unit",
    "blocks_max_rows_per_unit",
)
MODES = ("inference", "training")


def user_file(device: str = "cpu") -> Path:
    """Where the user's own profile lies (the XDG rule)."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return root / "scanrnn" / f"profile-{device}.json"


def parse(content: Any, origin: str) -> _core.Profile:
    """A profile from what its file holds; ValueError says what is wrong with it."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    groups = []
    for mode in MODES:
        group = content.get(mode)
        if not isinstance(group, dict) or sorted(group) != sorted(THRESHOLDS):
            raise ValueError(f"{mode!r} must hold exactly {', '.join(THRESHOLDS)}")
        for key, value in group.items():
            if type(value) is not int or not 0 <= value < 2**53:
                raise ValueError(f"{mode}.{key} must be an integer >= 0, not {value!r}")
        groups.append([group[key] for key in THRESHOLDS])
    return _core.Profile(str(content.get("name", "unnamed")), origin, *groups)


def as_json(profile: _core.Profile) -> dict[str, Any]:
    modes = {mode: dict(zip(THRESHOLDS, getattr(profile, mode), strict=True)) for mode in MODES}
    return {"name": profile.name, "origin": profile.origin, **modes}


@functools.cache
def load_users() -> dict[str, Path]:
    """Puts the user's profiles to use, once; the files that could be used, by kind of device."""
    loaded = {}
    for device in ("cpu", "cuda") if _core.cuda_available() else ("cpu",):
        path = user_file(device)
        try:
            found = parse(json.loads(path.read_text(encoding="utf-8")), str(path))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as problem:
            warnings.warn(
                f"scanrnn: the profile {path} is ignored: {problem} "
                "(`python -m scanrnn tune` writes a new one)",
                RuntimeWarning,
                stacklevel=2,
            )
            continue
        _core.set_profile(_core.Device(device), found)
        loaded[device] = path
    return loaded
