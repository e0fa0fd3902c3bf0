# SPDX-License-Identifier: Apache-2.0
"""What `make docs` shows is complete: every page, public name and header. No Sphinx is needed."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import scanrnn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDES = [ROOT / layer / "include" / "scanrnn" for layer in ("lib", "scan", "dispatch")]


def listed():
    """The pages of the index's lists, as often as they are named."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```{toctree}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                base = ROOT if line.startswith("/") else DOCS
                path = (base / line.lstrip("/")).resolve()
                found = sorted(path.parent.glob(f"{path.name}.md"))
                assert found, f"docs/index.md: {line} is no page"
                yield from found


def test_every_page_is_on_the_site_once():
    pages = list(listed())
    assert len(pages) == len(set(pages)), "a page is listed twice"
    results = (ROOT / "bench" / "results").glob("*.md")
    wanted = {*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *results} - {DOCS / "index.md"}
    assert set(pages) == wanted


def documented(page):
    """Names that the directives of a page of the reference show."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    return re.findall(r"^\.\. auto(?:class|function|exception):: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "module", ["scanrnn", "scanrnn.torch", "scanrnn.torch.distributed", "scanrnn.jax"]
)
def test_every_public_name_is_in_the_reference(module):
    page = "python.md" if module == "scanrnn" else f"{module.rpartition('.')[2]}.md"
    if module != "scanrnn":
        pytest.importorskip(module.split(".")[1])
    public = importlib.import_module(module).__all__
    assert sorted(documented(page)) == sorted(f"{module}.{name}" for name in public)
    if module != "scanrnn.torch.distributed":
        assert {cell.base or cell.name for cell in scanrnn.cells()} <= set(public)


def test_every_public_header_is_in_the_reference():
    text = (DOCS / "reference" / "cpp.md").read_text(encoding="utf-8")
    titles = re.findall(r"^### (\S+)$", text, re.MULTILINE)
    headers = {str(p.relative_to(include)) for include in INCLUDES for p in include.rglob("*.h")}
    assert sorted(titles) == sorted(headers - {"scanrnn.h"})  # which includes the others
    for name in re.findall(r"^\.\. doxygenfile:: (\S+)$", text, re.MULTILINE):
        found = [header for header in headers if f"/scanrnn/{header}".endswith(f"/{name}")]
        assert len(found) == 1, f"{name} stands for {found}"
        assert found[0] in titles


@pytest.fixture(scope="module")
def filtered():
    place = importlib.util.spec_from_file_location("doxygen_filter", DOCS / "doxygen_filter.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module.filtered


HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// What the file is.
//   a  table
#pragma once  // not of anything
namespace n {

// What it is.
struct Thing {
  int size = 0;  // of it
  const char* address = "http://somewhere";
  // Gives twice the size.
  int twice() const {
    // Not for the reader of a reference.
    return 2 * size;  // nor this
  }
  int after;  // the function
};
enum class Kind { one, /* two */ two };  // which
inline int f() {
  const int a[] = {1, 2};  // inside
  return a[0];
}
// The last.
int g(int x);

}  // namespace n
"""
WANTED = """\
/// @file
/// What the file is.
/// @code{.unparsed}
///   a  table
/// @endcode
#pragma once  // not of anything
namespace n {

/// What it is.
struct Thing {
  int size = 0;  ///< of it
  const char* address = "http://somewhere";
  /// Gives twice the size.
  int twice() const {
    // Not for the reader of a reference.
    return 2 * size;  // nor this
  }
  int after;  ///< the function
};
enum class Kind { one, /* two */ two };  ///< which
inline int f() {
  const int a[] = {1, 2};  // inside
  return a[0];
}
/// The last.
int g(int x);

}  // namespace n
"""


def test_comments_before_and_behind_declarations_are_marked(filtered):
    assert filtered(HEADER) == WANTED


def test_every_header_comes_through_the_filter(filtered):
    """Its code is the same, its first comment is the file's, and what it declares is marked."""
    for include in INCLUDES:
        for path in include.rglob("*.h"):
            text = path.read_text(encoding="utf-8")
            shown = filtered(text)
            code, kept = (
                [line.partition("//")[0].rstrip() for line in source.splitlines()]
                for source in (text, shown)
            )
            assert [line for line in kept if line] == [line for line in code if line], path
            assert shown.startswith("/// @file\n/// "), path
