# SPDX-License-Identifier: Apache-2.0
"""Builds the wheels that are shipped, from nothing, and runs each where there is no compiler.

A variant (cpu, cuda) is compiled once, as a static library; for each CPython from 3.10 on that is
here the extension is linked with it, made a manylinux wheel by auditwheel, installed into a fresh
environment and run. An interpreter or an environment that is not here is named as skipped.

The device code must be for exactly the architectures that lib/cuda.cmake says, or this fails.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import bare
import device_code
import interpreters

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"  # folders right below it: ccache may see paths relative to a build's own
MIB = 2**20
BLAS = "libscipy_openblas*"  # a wheel of its own, which ours depends on: decision 1
SYMBOL = re.compile(r"\b(GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP)_(\d[\d.]*)\b")


def say(text):
    print(text, flush=True)


def call(command, log, **variables):
    """Runs a step of the build; its output is shown if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CUDAARCHS", "PYTHONPATH")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        command = [str(word) for word in command]
        done = subprocess.run(
            command, env=environment | variables, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT
        )
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{' '.join(command)} gave {done.returncode}; {log} ends so:\n"
                         + "\n".join(text.splitlines()[-60:]))  # fmt: skip


def variants_here(chosen):
    """What is to be built; what is not is named."""
    reasons = {"cpu": "--no-cpu"} if chosen.no_cpu else {}
    nvcc = os.environ.get("CUDACXX", "nvcc")
    if chosen.no_cuda:
        reasons["cuda"] = "--no-cuda"
    elif not shutil.which(nvcc):
        reasons["cuda"] = f"there is no {nvcc}"
    for variant, reason in reasons.items():
        say(f"SKIPPED: the variant {variant}: {reason}")
    if len(reasons) == 2:
        raise SystemExit("nothing is left to build")
    return [variant for variant in ("cpu", "cuda") if variant not in reasons]


def label(variant):
    """The local version label: "cpu", or "cu13" of the nvcc that compiles."""
    if variant == "cpu":
        return "cpu"
    nvcc = os.environ.get("CUDACXX", "nvcc")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return "cu" + re.search(r"release (\d+)\.", said)[1]


def compiled(folder, stats):
    """Objects below a folder, and how many a compiler's cache has spared."""
    # A line "# source" for each call of the compiler, then what the cache has to say of it. What
    # CMake compiles to try the compiler lies elsewhere.
    calls = stats.read_text().split("# ") if stats.exists() else []
    hits = ("direct_cache_hit", "preprocessed_cache_hit")
    ours = [call.split() for call in calls if "/src/" in call.partition("\n")[0]]
    spared = sum(any(hit in words for hit in hits) for words in ours)
    return {"objects": len(list(folder.rglob("*.o"))), "from_cache": spared}


def build_library(folder, variant):
    """The static library with its CMake package in folder/prefix."""
    stats, log, start = folder / "ccache.log", folder / "library.log", time.monotonic()
    call(
        [
            "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DSCANRNN_BUILD_TESTS=OFF",
            f"-DSCANRNN_CUDA={'ON' if variant == 'cuda' else 'OFF'}", "-DSCANRNN_CUDA_COMPRESS=ON",
            f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_INSTALL_PREFIX={folder / 'prefix'}",
        ],
        log,
    )  # fmt: skip
    call(["cmake", "--build", folder, "--target", "install"], log,
         CCACHE_STATSLOG=str(stats))  # fmt: skip
    seconds = round(time.monotonic() - start, 1)
    return {"seconds": seconds, **compiled(folder, stats)}


def build_wheel(own, interpreter, prefix, name, out):
    """The manylinux wheel of one interpreter, in `out`, and how long its extension took."""
    shutil.rmtree(own, ignore_errors=True)
    log, stats = own / "build.log", own / "ccache.log"
    environment = own / "build-environment"
    call([interpreter.executable, "-m", "venv", "--without-pip", environment], log)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    call([*pip, "install", "--group", "build"], log)
    start = time.monotonic()
    call(
        [
            *pip, "wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", own / "raw",
            "-C", f"build-dir={own}",
            "-C", f"cmake.define.SCANRNN_PREBUILT={prefix}",
        ],
        log, SCANRNN_WHEEL_LABEL=name, CCACHE_STATSLOG=str(stats),
    )  # fmt: skip
    seconds = round(time.monotonic() - start, 1)
    (raw,) = (own / "raw").glob("scanrnn-*.whl")
    if f"+{name}-{interpreter.tag}-" not in raw.name:
        raise SystemExit(f"{raw.name}: pyproject.toml has no version label {name}")
    call(
        [sys.executable, "-m", "auditwheel", "repair", "--exclude", BLAS, "-w", own / "repaired",
         raw], log,
    )  # fmt: skip
    (repaired,) = (own / "repaired").glob("scanrnn-*.whl")
    if "-manylinux_" not in repaired.name:
        raise SystemExit(f"auditwheel grants no manylinux tag: {repaired.name}")
    wheel = Path(shutil.copy(repaired, out))
    return wheel, {"seconds": seconds, **compiled(own, stats)}


def newest(needs):
    """By prefix the newest version of a symbol, of what `readelf --version-info` says."""
    out = {}
    for prefix, text in SYMBOL.findall(needs[needs.find("Version needs section") :]):
        version = tuple(map(int, text.split(".")))
        out[prefix] = max(out.get(prefix, version), version)
    return {prefix: ".".join(map(str, out[prefix])) for prefix in sorted(out)}


def newest_symbols(library):
    """What a library wants of the system's."""
    command = ["readelf", "--version-info", "--wide", library]
    return newest(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def contents(wheel, folder):
    """Sizes and needs of the parts, largest first, and what device code there is."""
    found = collections.Counter()
    shutil.rmtree(folder, ignore_errors=True)
    say(f"{wheel.name}: {wheel.stat().st_size / MIB:.1f} MiB")
    parts = []
    with zipfile.ZipFile(wheel) as archive:
        files = sorted(archive.infolist(), key=lambda info: -info.file_size)
        libraries = [info for info in files if ".so" in info.filename]
        for info in libraries:
            say(f"  {info.filename}: {info.file_size / MIB:.1f} MiB")
            code = device_code.device_code(archive.read(info))
            for (kind, architecture), size in sorted(code.items()):
                say(f"    {device_code.KINDS[kind]}{architecture}: {size / MIB:.1f} MiB")
            rest = info.file_size - sum(code.values())
            say(f"    code of the host and the rest: {rest / MIB:.1f} MiB")
            needs = newest_symbols(archive.extract(info, folder))
            say(f"    newest symbols wanted: {', '.join(f'{k} {v}' for k, v in needs.items())}")
            found += code
            parts.append({"file": info.filename, "bytes": info.file_size, "symbols": needs})
        installed = sum(info.file_size for info in files)
        others = installed - sum(info.file_size for info in libraries)
        say(f"  {len(files) - len(libraries)} other files: {others / MIB:.1f} MiB")
    shutil.rmtree(folder, ignore_errors=True)
    bytes_of = {device_code.KINDS[k] + str(a): size for (k, a), size in sorted(found.items())}
    return {
        "file": wheel.name,
        "bytes": wheel.stat().st_size,
        "installed_bytes": installed,
        "libraries": parts,
        "device_code": bytes_of,
    }, set(found)


def check_code(found, wanted):
    if found != wanted:
        words = [sorted(device_code.KINDS[k] + str(a) for k, a in codes)
                 for codes in (found, wanted)]  # fmt: skip
        raise SystemExit(f"device code: found {words[0]}, wanted {words[1]}")


def try_out(own, interpreter, wheel, root):
    """Where the wheel has run, and where it could not be tried."""
    environment = own / "user"
    bare.install(interpreter, wheel, environment)
    runs = {"without variables": bare.without_variables(environment)}
    try:
        if root is None:
            raise bare.Skip("--no-root")
        bare.make_root(root)
        runs["in a bare Debian"] = bare.in_root(root, interpreter, environment)
    except bare.Skip as reason:
        runs["in a bare Debian"] = f"skipped: {reason}"
    for where, said in runs.items():
        ran = said if isinstance(said, str) else f"ran, {len(said['errors'])} cases"
        say(f"  {where}: {ran}")
    return runs


def build_variant(variant, chosen, root):
    folder, name = BUILD / f"wheel-{variant}", label(variant)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = device_code.wanted() if variant == "cuda" else set()
    library = build_library(folder, variant)
    say(f"library +{name}: {library['seconds']} s on {os.cpu_count()} processors, "
        f"{library['objects']} objects, {library['from_cache']} from a cache")  # fmt: skip
    out = {"variant": variant, "label": name, "library": library, "wheels": [], "skipped": {}}
    for minor in chosen.minors:
        interpreter = interpreters.find(minor)
        if isinstance(interpreter, str):
            say(f"SKIPPED: CPython 3.{minor}: {interpreter}")
            out["skipped"][f"3.{minor}"] = interpreter
            continue
        own = BUILD / f"wheel-{variant}-{interpreter.tag}"
        wheel, built = build_wheel(own, interpreter, folder / "prefix", name, chosen.out)
        row, found = contents(wheel, folder / "contents")
        say(f"  extension: {built['seconds']} s, {built['objects']} objects, "
            f"{built['from_cache']} from a cache")  # fmt: skip
        check_code(found, wanted)
        runs = try_out(own, interpreter, wheel, root)
        out["wheels"].append(
            {"python": interpreter.version, **row, "extension": built, "ran": runs}
        )
    if not out["wheels"]:
        raise SystemExit("there is no interpreter to build a wheel for")
    return out


def provenance():
    def said(*command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    told = os.environ.get("BENCH_COMMIT")
    dirty = bool(said("git", "status", "--porcelain", "--untracked-files=no"))
    return {
        "host": platform.platform(),
        "processors": os.cpu_count(),
        "compiler": (said(os.environ.get("CXX", "c++"), "--version") or "").partition("\n")[0],
        "auditwheel": importlib.metadata.version("auditwheel"),
        "commit": told or said("git", "rev-parse", "HEAD"),
        "dirty": False if told else dirty,
        "command": " ".join(["python", "tests/package/wheel.py", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--json", type=Path, help="keep what was found")
    parser.add_argument("--wheel", type=Path, help="only look at this one")
    parser.add_argument("--no-cuda", action="store_true", help="of the variants cpu alone")
    parser.add_argument("--no-cpu", action="store_true", help="of the variants cuda alone")
    parser.add_argument("--no-root", action="store_true", help="do not make a bare Debian")
    parser.add_argument(
        "--minors", type=int, nargs="+", default=interpreters.MINORS, help="N of CPython 3.N"
    )
    chosen = parser.parse_args()
    if chosen.wheel:
        _, found = contents(chosen.wheel, BUILD / "wheel-contents")
        check_code(found, set() if chosen.no_cuda else device_code.wanted())
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    variants = variants_here(chosen)
    root = None if chosen.no_root else BUILD / "wheel-root"
    content = provenance() | {"variants": [build_variant(v, chosen, root) for v in variants]}
    if chosen.json:
        chosen.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
