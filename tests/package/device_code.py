# SPDX-License-Identifier: Apache-2.0
"""What nvcc has put into a shared library, by architecture, and what lib/cuda.cmake asks for."""

import collections
import re
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
