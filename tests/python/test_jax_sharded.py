# SPDX-License-Identifier: Apache-2.0
"""Sequences over several devices of JAX: those of the CPU, which a process of its own has four of,
or two to four GPUs where SCANRNN_TEST_DEVICE=cuda."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEVICE

pytest.importorskip("jax")
DEVICES = 2, 4  # at least, at most
HERE = Path(__file__).parent
CASES = [
    "kinds", "both_directions", "steps_that_are_not_there", "scans", "no_state", "over_the_batch",
    "errors",
]  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What became of each case: JAX has its devices when it is imported."""
    environment = dict(os.environ)
    if DEVICE == "cpu":
        environment["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={DEVICES[1]}"
    environment |= {"PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    return subprocess.run(
        [sys.executable, HERE / "jax_sharded_cases.py", *map(str, DEVICES)],
        capture_output=True, text=True, timeout=600, check=False, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_devices_have_what_one_has(told, case):
    if "GPUs, there are" in told.stdout:
        pytest.skip(told.stdout.strip())
    assert f"{case}: right" in told.stdout.splitlines(), told.stdout + told.stderr
