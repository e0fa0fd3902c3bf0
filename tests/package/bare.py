# SPDX-License-Identifier: Apache-2.0
"""Runs an installed wheel where there is as little as can be: in an environment without variables,
and in the root of a fresh Debian that has no compiler and no library of one but the C++ runtime.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ("tests/package/installed.py", "tests/python/reference.py")
COMMANDS = (["installed.py"], ["-m", "scanrnn", "info"])


class Skip(Exception):
    """Why an environment cannot be made here."""


def install(interpreter, wheel, folder):
    """A fresh virtual environment with the wheel and what it asks for, and not even pip."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [interpreter.executable, "-m", "venv", "--without-pip", folder]
    subprocess.run(command, check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
            "--disable-pip-version-check", "--only-binary=:all:", wheel,
        ],
        check=True,
    )  # fmt: skip
    for file in FILES:
        shutil.copy(ROOT / file, folder)
    return python


def run(command, environment, where):
    """What the program says; a failure ends everything, with what it said."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise SystemExit(f"{where}: {command} gave {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def programs(folder):
    for command in COMMANDS:
        own = [str(folder / word) if word.endswith(".py") else word for word in command]
        yield [str(folder / "bin" / "python"), "-I", *own]


def summary(outputs):
    tried, info = outputs
    if "device cpu: " not in info or "cell MinGRU: " not in info:
        raise SystemExit(f"`info` does not name the processor and the cells:\n{info}")
    return json.loads(tried)


def without_variables(folder):
    """As `env -i` with a PATH that leads nowhere."""
    environment = {"PATH": str(folder / "nothing"), "HOME": str(folder)}
    return summary([run(c, environment, "without variables") for c in programs(folder)])


def debian():
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise Skip("/etc/os-release names no release of Debian")


def make_root(folder):
    """A fresh Debian, made once: its Python brings the C libraries that any Python needs."""
    ready = folder.with_suffix(".ready")
    if os.geteuid() != 0:
        raise Skip("only root can make and enter a root")
    for tool in ("debootstrap", "unshare", "chroot", "mount"):
        if not shutil.which(tool):
            raise Skip(f"there is no {tool}")
    may = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if may.returncode != 0:
        raise Skip(may.stderr.strip())
    if ready.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", "--include=python3", debian(), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise Skip(f"debootstrap gave {done.returncode}: {''.join(last)}")
    ready.touch()


def in_root(root, interpreter, folder):
    """The same in the root: of this machine it sees the environment and the interpreter alone."""
    found = sorted(root.glob("usr/lib/*/libgomp.so*")) + sorted(root.glob("usr/bin/*g++*"))
    if found:
        raise SystemExit(f"{root} is not bare: {found}")
    seen = [folder]
    if not (root / interpreter.executable.relative_to("/")).exists():
        if interpreter.prefix == Path("/usr"):
            raise Skip(f"its Debian has no {interpreter.executable}")
        seen.append(interpreter.prefix)
    script = []
    for path in seen:
        target = root / path.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        script.append(f"mount --bind '{path}' '{target}'")
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    script.append(f"exec chroot '{root}' \"$@\"")
    outputs = [
        run(["unshare", "--mount", "sh", "-ec", "\n".join(script), "sh", *command],
            environment, f"in {root}")
        for command in programs(folder)
    ]  # fmt: skip
    return summary(outputs)
