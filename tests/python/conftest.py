# SPDX-License-Identifier: Apache-2.0
"""How the tests run: Hypothesis without deadlines, and no profile of this machine's user.

SCANRNN_REQUIRE_GPU=1 says that a GPU and every library are here: a skip is then a failure.
"""

import os
import sys
from pathlib import Path

import hypothesis
import pytest
from scanrnn.tools import layer_bench, sizes

sys.path.insert(0, str(Path(__file__).parent))  # for support and reference

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=40,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


REQUIRED = os.environ.get("SCANRNN_REQUIRE_GPU") == "1"
# The reasons of tests that are for other machines, and of libraries that some of them compare with.
MAY_SKIP = (
    "there is a CUDA device",
    "GPUs, there are",
    "could not import 'keras'",
    "could not import 'flax",
    "could not import 'equinox'",
    "could not import 'optax'",
    "could not import 'transformers'",
    "could not import 'torchaudio'",
    "could not import 'onnx",
)


def required(report):
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2])
        if not any(words in reason for words in MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"SCANRNN_REQUIRE_GPU is 1. {reason}"
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
def small_grid(monkeypatch):
    """Benches of the CPU measure a few small problems."""
    monkeypatch.setitem(sizes.GRIDS["cpu"], "small", ({8: (1, 2)}, (1, 40)))
    monkeypatch.setattr(layer_bench, "SHAPES", ((2, 12, 8),))
    monkeypatch.setattr(layer_bench, "STEP", (1, 1, 8))
    monkeypatch.setattr(layer_bench, "PAUSE", 0)
