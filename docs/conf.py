# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the pages of this repository as a site, and the reference from docstrings and headers.

`make docs` runs it with the repository's root as the source folder, so that a link from one page to
another or to a file is the same on the site, in an editor and where a repository is shown.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

project = "scanrnn"
author = "the authors of scanrnn"
release = re.findall(
    r"project\(scanrnn VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "bench/results/*.md"]
myst_heading_anchors = 3  # pages link to headings by the names that they have in a repository

html_theme = "furo"
html_title = f"scanrnn {release}"
html_show_sourcelink = False

default_role = "code"  # what docstrings put into single backticks
autodoc_member_order = "bysource"
# Without these packages the pages are made all the same, from the signatures and docstrings.
autodoc_mock_imports = [name for name in ("torch", "jax") if find_spec(name) is None]

breathe_projects = {"scanrnn": str(ROOT / "build" / "doxygen" / "xml")}
breathe_default_project = "scanrnn"
# Each header opens the same namespaces again.
suppress_warnings = ["duplicate_declaration.cpp", "duplicate_declaration.c"]

FRONT = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">scanrnn</a>\n'


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _plain)
    app.connect("build-finished", _front)


def _plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text, where |b| is a magnitude."""
    lines[:] = [line.replace("|", r"\|") for line in lines]


def _front(app: Any, problem: Exception | None) -> None:
    """The folder's own index leads to the index, which lies as deep as its page."""
    if problem is None and app.builder.name == "html":
        front = Path(app.outdir) / "index.html"
        front.write_text(FRONT.format(f"{root_doc}.html"), encoding="utf-8")
