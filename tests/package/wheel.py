# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that is shipped, from nothing: how long it takes and how large each part is.

It has machine code and PTX for exactly the architectures that lib/cuda.cmake says, or this fails.
"""

import argparse
import collections
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "wheel-default"
KINDS = {1: "PTX for compute_", 2: "machine code for sm_"}


def wanted():
    """What the default list of architectures compiles to, as (kind, architecture)."""
    text = (ROOT / "lib/cuda.cmake").read_text(encoding="utf-8")
    listed = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES (\d[^)]*)\)", text)[1].split()
    out = set()
    for name in listed:
        number, _, only = name.partition("-")
        out |= {
            (kind, int(number))
            for kind, word in ((2, "real"), (1, "virtual"))
            if only in ("", word)
        }
    return out


def section(data, name):
    """The bytes of a section of an ELF file for 64 bits, or nothing."""
    table, (size, count, names) = (
        struct.unpack_from("<Q", data, 0x28)[0],
        struct.unpack_from("<HHH", data, 0x3A),
    )
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if data[start : data.index(b"\0", start)] == name:
            return data[header[4] : header[4] + header[5]]
    return b""


def device_code(library):
    """Bytes by (kind, architecture) of the images that nvcc has put into a shared library."""
    data, out, at = section(library, b".nv_fatbin"), collections.Counter(), 0
    while (at := data.find(struct.pack("<I", 0xBA55ED50), at)) >= 0:
        _, _, header, length = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header, at + header + length
        while entry < end:
            kind, _, own, size = struct.unpack_from("<HHIQ", data, entry)
            architecture = struct.unpack_from("<I", data, entry + 28)[0]
            out[kind, architecture] += own + size
            entry += own + size
        at = end
    return out


def build(out, cuda):
    """The wheel's path, and the compilations with how many of them a cache has spared."""
    shutil.rmtree(BUILD, ignore_errors=True)
    log = BUILD.with_suffix(".log")
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if k != "CUDAARCHS"}
    environment["CCACHE_STATSLOG"] = str(log)
    command = [
        sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(out), "-C", f"build-dir={BUILD}",
        "-C", f"cmake.define.SCANRNN_CUDA={'ON' if cuda else 'OFF'}",
    ]  # fmt: skip
    subprocess.run(command, check=True, env=environment)
    # A line "# source" for each call of the compiler, then what the cache has to say of it. What
    # CMake compiles to try the compiler lies elsewhere.
    calls = log.read_text().split("# ") if log.exists() else []
    hits = ("direct_cache_hit", "preprocessed_cache_hit")
    ours = [call.split() for call in calls if "/src/" in call.partition("\n")[0]]
    spared = sum(any(hit in words for hit in hits) for words in ours)
    wheel = max(out.glob("scanrnn-*.whl"), key=lambda path: path.stat().st_mtime)
    return wheel, spared, len(list(BUILD.rglob("*.o")))


def report(wheel):
    """Prints the parts, largest first, and returns what device code there is."""
    found = collections.Counter()
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    with zipfile.ZipFile(wheel) as archive:
        files = sorted(archive.infolist(), key=lambda info: -info.file_size)
        libraries = [info for info in files if info.filename.endswith(".so")]
        others = [info for info in files if info not in libraries]
        for info in libraries:
            print(f"  {info.filename}: {info.file_size / 2**20:.1f} MiB")
            code = device_code(archive.read(info))
            for (kind, architecture), size in sorted(code.items()):
                print(f"    {KINDS[kind]}{architecture}: {size / 2**20:.1f} MiB")
            rest = info.file_size - sum(code.values())
            print(f"    code of the host and the rest: {rest / 2**20:.1f} MiB")
            found += code
        size = sum(info.file_size for info in others)
        print(f"  {len(others)} other files: {size / 2**20:.1f} MiB")
    return set(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel")
    parser.add_argument("--wheel", type=Path, help="only look at this one")
    parser.add_argument("--no-cuda", action="store_true", help="build it without CUDA")
    chosen = parser.parse_args()
    wheel = chosen.wheel
    if not wheel:
        start = time.monotonic()
        wheel, spared, objects = build(chosen.out, not chosen.no_cuda)
        minutes = (time.monotonic() - start) / 60
        print(
            f"Built in {minutes:.1f} minutes on {os.cpu_count()} processors: {objects} objects,",
            end=" ",
        )
        print(f"{spared} of them from a compiler's cache")
    architectures = set() if chosen.no_cuda else wanted()
    found = report(wheel)
    if found != architectures:
        words = [sorted(KINDS[k] + str(a) for k, a in codes) for codes in (found, architectures)]
        raise SystemExit(f"device code: found {words[0]}, wanted {words[1]}")


if __name__ == "__main__":
    main()
