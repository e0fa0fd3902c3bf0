# SPDX-License-Identifier: Apache-2.0
"""scanrnn.keras beside keras.layers, on each backend: Keras has one as long as a process lives."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEVICE
from test_docs import blocks

if importlib.util.find_spec("keras") is None:  # its default backend need not be here
    pytest.skip("could not import 'keras'", allow_module_level=True)
HERE = Path(__file__).parent
CASES = [
    "values", "dtypes", "stateful", "stateful_training", "dropout", "training", "files", "errors",
    "masks_of_other_shapes",
]  # fmt: skip


def run(backend, *command):
    # Precise products, since both are compared; and JAX's memory is for both processes.
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)]),
        "CUDA_VISIBLE_DEVICES": "" if DEVICE == "cpu" else "0",
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True, text=True, timeout=900, check=False, env=environment,
    )  # fmt: skip


@functools.cache
def told(backend):
    pytest.importorskip(backend)
    return run(backend, HERE / "keras_cases.py", *CASES)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_layers_are_those_of_keras(backend, case):
    found = told(backend)
    assert f"{case}: right" in found.stdout.splitlines(), found.stdout + found.stderr


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_python_of_the_page_runs(backend):
    pytest.importorskip(backend)
    found = run(backend, "-c", "\n".join(blocks("docs/keras.md", "python")))
    assert found.returncode == 0, found.stderr


def test_other_backends_are_refused():
    found = run("numpy", "-c", "import scanrnn.keras")
    assert found.returncode != 0
    assert "scanrnn.keras runs on Keras' backends torch and jax, got 'numpy'" in found.stderr
