# SPDX-License-Identifier: Apache-2.0
"""Packages that only the command line needs: imported late, and named when they are missing."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any


def need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = package if package == "torch" else "plot"
        raise SystemExit(
            f"This command needs {package}: pip install 'scanrnn[{extra}]' (or {package} alone)"
        ) from None


def found(module: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy's products on one thread, where threadpoolctl is installed.

    Threads that wait for one another cost small products more than they save, and on a busy machine
    many times as much. This library has its own threads, which this leaves alone.
    """
    control = found("threadpoolctl")
    return control.threadpool_limits(1, "blas") if control else nullcontext()


def progress(total: float, title: str, **options: Any) -> Any:
    """A progress bar on stderr, silent where nobody looks at one."""
    return need("tqdm").tqdm(total=total, desc=title, disable=None, leave=False, **options)


def plots() -> Any:
    """matplotlib.pyplot, drawing to files, in greys and colours that show on white and on black."""
    need("matplotlib").use("Agg")
    plt = need("matplotlib.pyplot")
    grey = "#7f868d"
    named = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys(named, grey))
    plt.rcParams.update({"grid.color": grey, "grid.alpha": 0.3, "axes.facecolor": "none"})
    plt.rcParams.update({"legend.labelcolor": grey})
    plt.rcParams.update({"svg.hashsalt": "scanrnn", "svg.fonttype": "none"})
    plt.rcParams.update({"figure.constrained_layout.use": True, "legend.framealpha": 0.0})
    return plt


def save_figure(figure: Any, path: Path) -> None:
    """With nothing behind it, so that the page's own colour is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=120, transparent=True, **plain)
    plots().close(figure)
