# SPDX-License-Identifier: Apache-2.0
"""Who imports whom in the package: no circle, neither inside functions nor for type checkers; and
nothing that a call does not need."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scanrnn

ROOT = Path(__file__).parents[2]


def modules(folder):
    """Paths by the modules' dotted names, of a package and all within it; stubs stand for what is
    compiled."""
    found = {}
    for path in sorted(folder.rglob("*.py*")):
        if path.suffix not in (".py", ".pyi"):
            continue
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name, path):
    """(module, name in it) of every import of a file, wherever it stands."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            yield from ((base, alias.name) for alias in node.names)


def graph(folder):
    """What each module imports. A package comes with a module in it, but for one that contains the
    importer, too, since it runs already."""
    every = modules(folder)
    edges = {}
    for name, path in every.items():
        edges[name] = set()
        for base, what in imported(name, path):
            target = f"{base}.{what}" if f"{base}.{what}" in every else base
            if target not in every:
                continue
            parts = target.split(".")
            packages = (".".join(parts[:length]) for length in range(1, len(parts)))
            edges[name].add(target)
            edges[name].update(p for p in packages if not f"{name}.".startswith(f"{p}."))
    return {name: sorted(targets) for name, targets in edges.items()}


def circle(edges):
    """The first one that is found, or nothing."""
    done, way = set(), []

    def walk(name):
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return None
        way.append(name)
        found = next(filter(None, map(walk, edges[name])), None)
        way.pop()
        done.add(name)
        return found

    return next(filter(None, map(walk, edges)), None)


def test_no_module_imports_one_that_imports_it():
    edges = graph(Path(scanrnn.__file__).parent)
    assert "scanrnn.registry" in edges["scanrnn.description"]
    assert "scanrnn.arrays.jax" in edges["scanrnn.arrays"], "an import within a function counts"
    assert len(edges) > 20
    found = circle(edges)
    assert found is None, " -> ".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from . import one",
        "from .one import NAME",
        "import package.one",
        "from package import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import Name",
        "def later():\n    from .one import name",
        "from . import NAME",
    ],
)
def test_a_circle_is_found(tmp_path, line):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .one import NAME\n")
    (package / "one.py").write_text("import os\nfrom . import two\n")
    (package / "two.py").write_text("from __future__ import annotations\n")
    assert circle(graph(package)) is None
    (package / "two.py").write_text(f"{line}\n")
    assert circle(graph(package)) is not None


def test_import_brings_in_nothing_heavy():
    code = (
        "import sys, scanrnn; heavy = {'torch', 'matplotlib', 'tqdm', 'ml_dtypes', 'jax', 'cupy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


def test_a_call_imports_no_tool():
    code = (
        "import sys, numpy, scanrnn; scanrnn.MinGRU(2, 3)(numpy.zeros((4, 1, 2), 'float32')); "
        "print([name for name in sys.modules if name.startswith('scanrnn.tools')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def entered(run):
    """Modules of the package that a call of `run` enters, as paths in its folder."""
    folder, found = Path(scanrnn.__file__).parent, set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and folder in path.parents:
            found.add(path.relative_to(folder).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def test_a_call_goes_through_the_files_that_the_documentation_lists():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \d+ \| `(.*?)` \|", text, re.M)
    assert [path for path in listed if not (ROOT / path).is_file()] == []
    assert len(set(listed)) == len(listed) <= 10
    library = listed[listed.index("lib/src/api/layer.cpp") :]
    assert len(library) <= 6
    rnn, x = scanrnn.MinGRU(2, 3, device="cpu"), np.zeros((4, 1, 2), np.float32)
    rnn(x)  # which makes the plan
    package = "python/scanrnn/"
    wanted = {path.removeprefix(package) for path in listed if path.startswith(package)}
    assert entered(lambda: rnn(x)) == wanted
