# SPDX-License-Identifier: Apache-2.0
"""Writes what a type checker reads of the classes that the registry makes: `make stubs`.

A class has in its stub what it has when the package runs: its signature, its own options as
attributes, and the first line of its docstring.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import scanrnn
from scanrnn.registry import CellInfo

PACKAGES = ("scanrnn", "scanrnn.torch", "scanrnn.jax")
NAME = "layer_classes.pyi"
WIDTH = 100
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The classes of layers, from the registry of cells. `make stubs` writes this file."""

'''
# What NumPy's classes take where neither an annotation nor the default says it.
TYPES = {"dtype": "Any", "device": "str", "seed": "int | None"}
DOMAINS = ("log", "linear")


def text(package: str) -> str:
    """The stub of one package's classes."""
    module = importlib.import_module(package)
    kinds = {c.name: getattr(module, c.name) for c in scanrnn.cells() if not c.base}
    bases = sorted({(kind.__base__.__module__, kind.__base__.__name__) for kind in kinds.values()})
    body = "\n".join(_class_text(kind) for kind in kinds.values())
    imports = ["from typing import Any, Literal\n"]
    if "torch.dtype" in body:
        imports.append("import torch\n")
    found: dict[str, list[str]] = {}
    for where, name in bases:
        found.setdefault(f".{where.removeprefix(package).lstrip('.')}", []).append(name)
    imports.append(
        "".join(f"from {where} import {', '.join(names)}\n" for where, names in found.items())
    )
    return HEAD + "\n".join(imports) + "\n" + body


def _class_text(kind: Any) -> str:
    cell: CellInfo = kind._cell
    types = {name: _own_type(cell, name, value) for name, value in cell.own_options().items()}
    lines = [f"class {kind.__name__}({kind.__base__.__name__}):", *_doc(kind)]
    attributes = [f"    {name}: {type_}" for name, type_ in types.items()]
    lines += ["", *attributes] if attributes else [""]
    lines += ["    def __init__(", "        self,"]
    keywords = False
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and not keywords:
            lines.append("        *,")
            keywords = True
        lines.append(f"        {_parameter(kind, parameter, types)},")
    return "\n".join([*lines, "    ) -> None: ...", ""])


def _doc(kind: Any) -> list[str]:
    first = f'"""{kind.__doc__.splitlines()[0]}'
    if len(first) + len('    """') <= WIDTH:
        return [f'    {first}"""']
    indent = {"initial_indent": "    ", "subsequent_indent": "    "}
    return [*textwrap.wrap(first, WIDTH, **indent), '    """']


def _own_type(cell: CellInfo, name: str, default: Any) -> str:
    """The type of an option that not every class has."""
    if name == cell.variant_option:
        return f"Literal[{', '.join(_literal(v) for v in cell.variants)}]"
    if name == "zoneout" and "zoneout_cell" in dict(cell.options):
        return "float | tuple[float, float]"
    return type(default).__name__


def _parameter(kind: Any, parameter: inspect.Parameter, types: dict[str, str]) -> str:
    name, default = parameter.name, parameter.default
    known = types | {"domain": f"Literal[{', '.join(map(_literal, DOMAINS))}]"} | TYPES
    type_ = known.get(name, "Any")
    if parameter.annotation is not parameter.empty:
        type_ = known["domain"] if name == "domain" else str(parameter.annotation)
    elif name not in known:
        type_ = kind.__base__.__annotations__[name]
    return (
        f"{name}: {type_}" if default is parameter.empty else f"{name}: {type_} = {_value(default)}"
    )


def _literal(value: Any) -> str:
    return f'"{value}"'


def _value(default: Any) -> str:
    return _literal(default) if isinstance(default, str) else repr(default)


def main() -> None:
    root = Path(__file__).parents[1]
    for package in sys.argv[1:] or PACKAGES:
        path = root.joinpath(*package.split("."), NAME)
        path.write_text(text(package), encoding="utf-8")
        print(f"{path.relative_to(root.parent)}: written")


if __name__ == "__main__":
    main()
