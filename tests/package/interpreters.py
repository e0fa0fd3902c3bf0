# SPDX-License-Identifier: Apache-2.0
"""The Pythons of this machine that a wheel is built for, and why others are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

MINORS = (10, 11, 12, 13, 14)  # of CPython 3
ASK = """
import json, os, sys, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "version": sys.version.split()[0],
    "prefix": sys.base_prefix,
    "name": sys.implementation.name,
    "virtual": sys.prefix != sys.base_prefix,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
import venv
"""


class Interpreter(NamedTuple):
    minor: int
    version: str  # 3.12.1
    executable: Path
    prefix: Path  # what it needs to run lies below this one

    @property
    def tag(self) -> str:
        return f"cp3{self.minor}"


def pyenv_root() -> Path | None:
    if "PYENV_ROOT" in os.environ:
        return Path(os.environ["PYENV_ROOT"])
    if not shutil.which("pyenv"):
        return None
    done = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def candidates(minor: int) -> list[Path]:
    """Those on the PATH first, then pyenv's, the newest first."""
    name = f"python3.{minor}"
    found = [Path(folder, name) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    root = pyenv_root()
    if root:
        versions = (root / "versions").glob(f"3.{minor}.*")
        plain = [path for path in versions if path.name.rpartition(".")[2].isdigit()]
        plain.sort(key=lambda path: int(path.name.rpartition(".")[2]), reverse=True)
        found += [path / "bin" / name for path in plain]
    return [path for path in found if os.access(path, os.X_OK)]


def examine(path: Path, minor: int) -> Interpreter | str:
    """The interpreter, or why it is none that a wheel could be built for."""
    done = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["it does not run"])[-1]
    said = json.loads(done.stdout)
    if said["virtual"]:
        return "a virtual environment"
    if said["name"] != "cpython" or said["free_threaded"]:
        return "no CPython with a global interpreter lock"
    if said["version"].split(".")[:2] != ["3", str(minor)]:
        return f"it is {said['version']}"
    if not said["headers"]:
        return "its headers are missing"
    executable, prefix = Path(said["executable"]), Path(said["prefix"])
    return Interpreter(minor, said["version"], executable, prefix)


def find(minor: int) -> Interpreter | str:
    """The first that will do, or the reason to leave this version out."""
    reasons = []
    for path in candidates(minor):
        found = examine(path, minor)
        if isinstance(found, Interpreter):
            return found
        reasons.append(f"{path}: {found}")
    return "; ".join(reasons) or f"no python3.{minor} on the PATH or in pyenv"
