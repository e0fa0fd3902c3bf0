# SPDX-License-Identifier: Apache-2.0
"""Lets this virtual environment see the packages of another Python, after its own.

For a machine whose Python has torch, JAX and CuPy with CUDA, and which cannot install them anew.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ASKED = "import sys, sysconfig; print(*sys.version_info[:2]); print(sysconfig.get_path('purelib'))"


def main():
    lender = sys.argv[1]
    said = subprocess.run([lender, "-c", ASKED], check=True, capture_output=True, text=True).stdout
    version, folder = said.splitlines()
    ours = "{} {}".format(*sys.version_info[:2])
    if sys.prefix == sys.base_prefix:
        raise SystemExit("this Python is no virtual environment")
    if version != ours:
        raise SystemExit(f"{lender} is Python {version}, and this is {ours}: packages do not fit")
    Path(sysconfig.get_path("purelib"), "borrowed.pth").write_text(f"{folder}\n", encoding="utf-8")
    print(f"borrowed: {folder}")


if __name__ == "__main__":
    main()
