# SPDX-License-Identifier: Apache-2.0
"""Profiles: the user's own is found, a broken one is ignored, a fit finds the crossover."""

import json
import os
import subprocess
import sys

import pytest
from scanrnn import _core, crossover, measure, profile, tune
from support import make

GOOD = {
    "name": "mine",
    "origin": "a test",
    "inference": {
        "direct_max_tokens": 7,
        "parallel_min_steps": 11,
        "parallel_max_rows_per_unit": 2**40,
        "blocks_max_rows_per_unit": 0,
    },
    "training": {
        "direct_max_tokens": 0,
        "parallel_min_steps": 100,
        "parallel_max_rows_per_unit": 0,
        "blocks_max_rows_per_unit": 5,
    },
    "date": "whatever else is in the file is provenance",
}


def plan_in_a_new_process(folder):
    """What a process that starts with this configuration plans, and what it warns of."""
    code = (
        "import warnings, scanrnn\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    plan = scanrnn.MinGRU(4, 8, device='cpu').plan(12, 1)\n"
        "    scanrnn.SRU(4, 8, device='cpu')\n"
        "print(plan.profile, plan.strategy, len(caught), *(str(w.message) for w in caught))\n"
    )
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_without_a_file(tmp_path):
    assert plan_in_a_new_process(tmp_path) == "cpu-generic direct 0"


def test_the_users_own(tmp_path):
    (tmp_path / "scanrnn").mkdir()
    (tmp_path / "scanrnn" / "profile-cpu.json").write_text(json.dumps(GOOD))
    assert plan_in_a_new_process(tmp_path) == "mine parallel_scan 0"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{not json", "Expecting property name"),
        ("[]", "it is not a JSON object"),
        ("{}", "'inference' must hold exactly direct_max_tokens"),
        (
            json.dumps({**GOOD, "training": {"direct_max_tokens": 1}}),
            "'training' must hold exactly",
        ),
        (
            json.dumps({**GOOD, "training": {**GOOD["training"], "direct_max_tokens": -1}}),
            "training.direct_max_tokens must be an integer >= 0, not -1",
        ),
        (
            json.dumps({**GOOD, "inference": {**GOOD["inference"], "parallel_min_steps": 1.5}}),
            "inference.parallel_min_steps must be an integer >= 0, not 1.5",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, content, said):
    """It is named once, and the built-in profile decides."""
    path = tmp_path / "scanrnn" / "profile-cpu.json"
    path.parent.mkdir()
    path.write_text(content)
    out = plan_in_a_new_process(tmp_path)
    assert out.startswith("cpu-generic direct 1 ")
    assert f"the profile {path} is ignored: " in out
    assert said in out


def test_round_trip():
    found = profile.parse(GOOD, "somewhere")
    assert profile.as_json(found) == {
        key: value for key, value in (GOOD | {"origin": "somewhere"}).items() if key != "date"
    }
    assert profile.parse(profile.as_json(found), "somewhere").inference == found.inference


def measured(strategy_of):
    """Times in which the strategy that strategy_of(point) names is twice as fast as the others."""
    out = []
    for point in crossover.points("small", ["MinGRU"]):
        times = {name: measure.Timing(2.0, 0.0) for name in crossover.STRATEGIES}
        times[strategy_of(point)] = measure.Timing(1.0, 0.0)
        out.append(crossover.Measured(point, "direct", times, {}))
    return out


def test_the_fit_finds_a_crossover_that_is_there():
    device = _core.Device("cpu")
    before = profile.as_json(_core.profile(device))

    def best(p):
        if p.B * p.T <= 8:
            return "direct"
        few_rows = p.B * p.H <= 512
        return "parallel_scan" if p.T >= 512 and few_rows else "fused_sequential"

    results = measured(best)
    for direction in crossover.PASSES:
        part = [found for found in results if found.point.direction == direction]
        fit = tune.Fit(part, device)
        thresholds = fit.best()
        assert fit.cost(thresholds) == 0
        assert thresholds == (8, 512, -(-512 // device.units), 0)
    assert profile.as_json(_core.profile(device)) == before


def test_the_fit_takes_the_simplest_of_equals():
    device = _core.Device("cpu")
    fit = tune.Fit(measured(lambda p: "fused_sequential"), device)
    assert fit.best() == (0, tune.NEVER, 0, 0)
    assert {found.pick for found in fit.picks(fit.best())} == {"fused_sequential"}


def test_plans_follow_the_profile():
    device = _core.Device("cpu")
    before, rnn = _core.profile(device), make("MinGRU", 4, 8, device="cpu")
    try:
        _core.set_profile(device, profile.parse(GOOD, "test"))
        assert rnn.plan(12, 1).strategy == "parallel_scan"
        assert rnn.plan(7, 1).strategy == "direct"
        assert rnn.plan(12, 1, training=True).strategy == "fused_sequential"
        assert rnn.plan(12, 1).profile == "mine"
    finally:
        _core.set_profile(device, before)
