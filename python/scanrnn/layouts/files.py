# SPDX-License-Identifier: Apache-2.0
"""Weights from a file, as a mapping of names to arrays. What reads a file is imported only then."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Read = tuple[Mapping[str, Any], dict[str, Any]]  # and options of the layer that the file says


def read(path: str | os.PathLike[str], cell: str) -> Read:
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise ValueError(
            f"weights: expected a file of {', '.join(_READERS)}, got {os.fspath(path)!r}"
        )
    if not os.path.isfile(path):
        raise FileNotFoundError(f"weights: there is no file {os.fspath(path)!r}")
    return _READERS[suffix](os.fspath(path), cell)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """What readers raise of a file that is not as it was written has no class in common."""
    try:
        yield
    except Exception as problem:
        words = str(problem)
        if isinstance(problem, pickle.UnpicklingError):  # torch's words ask to trust the file
            words = (
                "expected names and tensors alone, as torch.save(module.state_dict(), path) writes"
            )
        raise ValueError(f"weights: {path!r} cannot be read: {words}") from problem


def _npz(path: str, cell: str) -> Read:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"weights: {path!r} is not what numpy.savez writes")
    with _reading(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        return dict(found), {}


def _safetensors(path: str, cell: str) -> Read:
    safetensors = _needed("safetensors.numpy", path)
    with _reading(path):
        return safetensors.load_file(path), {}


def _torch(path: str, cell: str) -> Read:
    torch = _needed("torch", path)
    with _reading(path):
        return torch.load(path, map_location="cpu", weights_only=True), {}


def _needed(module: str, path: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ImportError(
            f"weights: {path!r} is read by {package}, which is not installed "
            f"(pip install {package})"
        ) from None


# ---- ONNX: a layer for each node of the cell

# What a node may say; of the others only the default will do.
_ATTRIBUTES = ("hidden_size", "direction", "layout", "linear_before_reset", "activations")
_DEFAULTS = {"clip": None, "activation_alpha": [], "activation_beta": [], "input_forget": 0}
_ACTIVATIONS = {
    "LSTM": {("sigmoid", "tanh", "tanh"): {}},
    "GRU": {("sigmoid", "tanh"): {}},
    "RNN": {("tanh",): {"nonlinearity": "tanh"}, ("relu",): {"nonlinearity": "relu"}},
}
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def _onnx(path: str, cell: str) -> Read:
    cell = cell.removeprefix("Peephole")  # an input more of the same operator
    onnx = _needed("onnx", path)
    with _reading(path):
        graph = onnx.load(path).graph
        values = {value.name: onnx.numpy_helper.to_array(value) for value in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                values[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    nodes = [node for node in graph.node if node.op_type == cell]
    if not nodes:
        raise ValueError(f"weights: expected {path!r} to have a node {cell}, and it has none")
    weights: dict[str, Any] = {}
    options: list[dict[str, Any]] = []
    for layer, node in enumerate(nodes):
        told = {attribute.name: attribute for attribute in node.attribute}
        said = {name: onnx.helper.get_attribute_value(told[name]) for name in told}
        options.append(_options_of(said, node.name, cell))
        if cell == "GRU":
            weights[f"{layer}.linear_before_reset"] = said.get("linear_before_reset", 0)
        for name, value in zip(_INPUTS, node.input, strict=False):
            if name not in ("W", "R", "B", "P") or not value:
                continue
            if value not in values:
                raise ValueError(
                    f"weights: expected {name} of node {node.name!r} to be a constant of the "
                    f"file, and {value!r} is computed"
                )
            weights[f"{layer}.{name}"] = values[value]
    if any(found != options[0] for found in options):
        directions = {found["bidirectional"] for found in options}
        what = "activation" if len(directions) == 1 else "direction"
        raise ValueError(f"weights: expected one {what} in all nodes {cell}, got several")
    return weights, options[0]


def _options_of(said: dict[str, Any], node: str, cell: str) -> dict[str, Any]:
    for name, value in said.items():
        if name not in _ATTRIBUTES and value != _DEFAULTS.get(name):
            raise ValueError(f"weights: {name} of node {node!r} is not here, got {value!r}")
    way = said.get("direction", b"forward").decode()
    if way == "reverse":
        raise ValueError(f"weights: direction 'reverse' of node {node!r} alone is not here")
    known = _ACTIVATIONS[cell]
    directions = 2 if way == "bidirectional" else 1
    found = tuple(text.decode().lower() for text in said.get("activations", []))
    for activations, options in known.items():
        if found in ((), activations * directions):
            return {"bidirectional": directions == 2, **options}
    raise ValueError(
        f"weights: activations of node {node!r}: expected {' or '.join(map(str, known))} for each "
        f"direction, got {found}"
    )


_READERS: dict[str, Callable[[str, str], Read]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pt": _torch,
    ".pth": _torch,
    ".onnx": _onnx,
}
