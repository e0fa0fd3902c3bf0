# SPDX-License-Identifier: Apache-2.0
"""What type checkers read of the package: it is installed, and it says what the classes are."""

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest
import scanrnn

GENERATOR = Path(__file__).parents[2] / "python" / "src" / "stubs.py"
NO_DEFAULT = inspect.Parameter.empty
PACKAGES = ("scanrnn", "scanrnn.torch", "scanrnn.jax")


def package(name):
    return pytest.importorskip(name, exc_type=ImportError)


def stub_of(module):
    """The stub beside the code that runs."""
    return Path(module.__file__).with_name("layer_classes.pyi").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("stubs", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PACKAGES)
def test_the_stub_is_what_the_generator_writes(generator, name):
    assert stub_of(package(name)) == generator.text(name), "make stubs"


@pytest.mark.parametrize("name", PACKAGES)
def test_the_stub_says_what_the_classes_are(name):
    module = package(name)
    found = [node for node in ast.parse(stub_of(module)).body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in found] == [c.name for c in scanrnn.cells() if not c.base]
    for node in found:
        kind = getattr(module, node.name)
        *attributes, init = [item for item in node.body if not isinstance(item, ast.Expr)]
        assert [base.id for base in node.bases] == [kind.__base__.__name__]
        assert " ".join(ast.get_docstring(node).split()) == kind.__doc__.splitlines()[0].strip()
        declared = {item.target.id for item in attributes}
        assert declared == set(kind._cell.own_options())
        assert all(hasattr(kind(3, 3), attribute) for attribute in declared)
        assert constructor(init) == [
            (p.name, p.kind == p.KEYWORD_ONLY, p.default)
            for p in inspect.signature(kind).parameters.values()
        ]


def constructor(init):
    """Name, whether it is by keyword alone, and default of each parameter."""
    given, own = init.args, init.args.args[1:]
    defaults = [None] * (len(own) - len(given.defaults)) + given.defaults + given.kw_defaults
    return [
        (arg.arg, arg in given.kwonlyargs, ast.literal_eval(value) if value else NO_DEFAULT)
        for arg, value in zip(own + given.kwonlyargs, defaults, strict=True)
    ]


def test_type_checkers_are_told_to_look():
    assert Path(scanrnn.__file__).with_name("py.typed").exists()
