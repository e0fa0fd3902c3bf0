# SPDX-License-Identifier: Apache-2.0
"""How the tests run: Hypothesis without deadlines, and no profile of this machine's user.

SCANRNN_REQUIRE_GPU=1 says that a GPU and every library of the tests are here, and
SCANRNN_REQUIRE_ORIGINALS=1 that those libraries are that some tests compare with: a skip for want
of them is then a failure.
"""

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

import hypothesis
import pytest
from scanrnn.tools import layer_bench, sizes

sys.path.insert(0, str(Path(__file__).parent))  # for support and reference

# XLA's programs run once or twice each, and optimising them took half of the tests' time. The older
# way to make loops of fused operations takes a quarter less.
if os.environ.get("SCANRNN_TEST_DEVICE", "cpu") == "cpu":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
else:
    # What is collected while a graph is captured, such as another graph or an array of JAX, ends
    # the capture, and torch's own random numbers with it: torch collects garbage before.
    os.environ.setdefault("TORCH_CUDAGRAPH_GC", "1")
    # Layers of torch.nn's cells follow this switch, and results are held to float32's bounds.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch").backends.cudnn.allow_tf32 = False

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=40,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


# The reasons of tests that are for other machines, and of a library that not every torch can load.
MAY_SKIP = ("there is a CUDA device", "GPUs, there are", "could not import 'torchaudio'")
ORIGINALS = (
    "equinox",
    "flax",
    "keras",
    "onnx",
    "optax",
    "safetensors",
    "tensorflow",
    "transformers",
)


def required_by(reason):
    """The variable by which this skip is a failure; empty: it never is."""
    if any(words in reason for words in MAY_SKIP):
        return ""
    original = any(f"could not import '{name}" in reason for name in ORIGINALS)
    return "SCANRNN_REQUIRE_ORIGINALS" if original else "SCANRNN_REQUIRE_GPU"


def required(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2])
        variable = required_by(reason)
        if os.environ.get(variable) == "1":
            report.outcome = "failed"
            report.longrepr = f"{variable} is 1. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return required((yield))


@pytest.fixture(autouse=True)
def no_profile_of_the_user(tmp_path, monkeypatch):
    """Tests see the built-in profile, whatever this machine's user has tuned."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def few_objects():
    """A test that collects garbage does not look through what others have made, which took seconds
    each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def small_grid(monkeypatch):
    """Benches of the CPU measure a few small problems."""
    monkeypatch.setitem(sizes.GRIDS["cpu"], "small", ({8: (1, 2)}, (1, 40)))
    monkeypatch.setattr(layer_bench, "SHAPES", ((2, 12, 8),))
    monkeypatch.setattr(layer_bench, "STEP", (1, 1, 8))
    monkeypatch.setattr(layer_bench, "PAUSE", 0)
