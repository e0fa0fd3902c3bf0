# SPDX-License-Identifier: Apache-2.0
"""Packages that only the command line needs: imported late, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise SystemExit(
            f"This command needs {package}: pip install 'scanrnn[plot]' (or {package} alone)"
        ) from None


def progress(total: float, title: str, **options: Any) -> Any:
    """A progress bar on stderr, silent where nobody looks at one."""
    return need("tqdm").tqdm(total=total, desc=title, disable=None, leave=False, **options)


def plots() -> Any:
    """matplotlib.pyplot, drawing to files."""
    need("matplotlib").use("Agg")
    return need("matplotlib.pyplot")
