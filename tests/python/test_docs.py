# SPDX-License-Identifier: Apache-2.0
"""The documentation: its Python runs, its C++ is that of tests, its links lead somewhere."""

import importlib
import json
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*FRONT, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def region(path, mark):
    """What stands between the two lines `// [mark]` of a source file."""
    parts = re.split(rf"^ *// \[{mark}\]\n", (ROOT / path).read_text(encoding="utf-8"), flags=re.M)
    assert len(parts) == 3, f"{path} has {len(parts) - 1} lines // [{mark}]"
    return textwrap.dedent(parts[1])


@pytest.mark.parametrize(
    "page", ["README.md", "docs/python_api.md", "docs/ragged.md", "docs/coming_from.md"]
)
def test_python_runs(page):
    """The blocks of a page are one program."""
    found = blocks(page, "python")
    assert found, f"{page} has no Python"
    namespace = {}
    for number, block in enumerate(found):
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)


def test_python_of_many_gpus_runs():
    pytest.importorskip("torch")
    test_python_runs("docs/many_gpus.md")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_python_of_frameworks_runs():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    test_python_runs("docs/frameworks.md")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of forward mode
def test_python_of_torch_runs():
    torch = pytest.importorskip("torch")
    before = torch.backends.cudnn.allow_tf32
    try:
        test_python_runs("docs/torch.md")
    finally:
        torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("page", "source", "mark"),
    [
        ("README.md", "docs/examples/readme.cpp", "readme"),
        ("docs/adding_a_cell.md", "tests/cells/adding_a_cell_test.cpp", "cell"),
    ],
)
def test_cpp_is_compiled(page, source, mark):
    wanted = region(source, mark)
    found = blocks(page, "cpp")
    assert wanted in found, f"no block of {page} is the region [{mark}] of {source}:\n{wanted}"


def test_tables_are_those_of_the_results(tmp_path, monkeypatch):
    """What `make figures` would write is what stands there."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    tables = importlib.import_module("tables")
    tabled = 0
    for name in tables.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        tabled += text.count("<!-- end -->")
        page = tmp_path / Path(name).name
        page.write_text(text, encoding="utf-8")
        tables.fill(page, ROOT / "bench/results")
        assert page.read_text(encoding="utf-8") == text
    assert tabled == len(tables.TABLES)


def prose(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def anchors(page):
    """Those that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT), f"{target} leads out of the repository"
        assert there.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def test_every_page_can_be_reached():
    """But for pages of the reference, which the site alone shows: see test_site.py."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for page in PAGES[1:]:
        if page.parent.name == "reference":
            continue
        assert f"{page.name})" in text or f"{page.name}#" in text, f"nothing links to {page}"


def test_the_readme_says_how_large_the_wheels_are():
    found = json.loads((ROOT / "bench/results/cpu-wheels.json").read_text(encoding="utf-8"))
    wheels = {variant["variant"]: variant["wheels"] for variant in found["variants"]}
    text = " ".join(PAGES[0].read_text("utf-8").split())
    number = r"([\d.]+)"
    told = re.search(rf"Without CUDA it takes {number} MB \({number} MB installed\)", text).groups()
    with_code = rf"{number} MB of code for 8.0, {number} for 9.0, {number} of PTX"
    told_cuda = re.search(
        rf"a wheel with CUDA takes {number} MB \({number} MB installed: {with_code}\)", text
    ).groups()
    kinds = ("machine code for sm_80", "machine code for sm_90", "PTX for compute_90")
    for wheel in wheels["cpu"]:
        assert told == tuple(f"{wheel[key] / 1e6:.1f}" for key in ("bytes", "installed_bytes"))
    for wheel in wheels["cuda"]:
        sizes = wheel["bytes"], wheel["installed_bytes"], *(wheel["device_code"][k] for k in kinds)
        assert told_cuda == tuple(f"{size / 1e6:.0f}" for size in sizes)


def test_the_readme_lists_every_decision():
    text = PAGES[0].read_text(encoding="utf-8")
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert len(decisions) > 10
    assert [page.name for page in decisions if page.name not in text] == []
