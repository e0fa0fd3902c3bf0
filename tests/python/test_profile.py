# SPDX-License-Identifier: Apache-2.0
"""Profiles: the user's own is found, a broken one is ignored, a fit finds the crossover."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scanrnn import _core, profile
from scanrnn.registry import version
from scanrnn.tools import crossover, fit, regret, sizes
from support import CPU_PROFILE, make

GOOD = {
    "name": "mine",
    "version": version(),
    "rules": [
        {
            "strategy": "direct",
            "runner_up": "fused_sequential",
            "across_blocks": False,
            "margin": 1.5,
            "at_most": {"tokens": 7, "training": 0},
            "points": 12,
        },
        {
            "strategy": "parallel_scan",
            "runner_up": "fused_sequential",
            "across_blocks": True,
            "margin": 2,
            "above": {"steps": 10},
            "at_most": {"rows_per_unit": 1e9, "training": 0},
        },
        {
            "strategy": "fused_sequential",
            "runner_up": "direct",
            "across_blocks": False,
            "margin": 0,
        },
    ],
    "date": "whatever else is in the file is provenance",
}


COST = {"kind": "linear", "bytes": 4, "alignment": 16, "training": False, "log_form": False}
COST |= {"tf32": False, "strategy": "direct", "across_blocks": False, "us": {"call": 1.0}}


def changed(**values):
    """The good one with another second rule."""
    first, second, last = GOOD["rules"]
    return json.dumps(GOOD | {"rules": [first, second | values, last]})


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
    name, _, warned = plan_in_a_new_process(tmp_path).split()
    assert (name, warned) == (CPU_PROFILE, "0")


def test_the_users_own(tmp_path):
    (tmp_path / "scanrnn").mkdir()
    (tmp_path / "scanrnn" / "profile-cpu.json").write_text(json.dumps(GOOD))
    assert plan_in_a_new_process(tmp_path) == "mine parallel_scan 0"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{not json", "Expecting property name"),
        ("[]", "it is not a JSON object"),
        ("{}", "'rules' or 'costs' must be a list of at least one"),
        (json.dumps(GOOD | {"rules": []}), "'rules' or 'costs' must be a list of at least one"),
        (json.dumps(GOOD | {"rules": [1]}), "rules[0] must be an object, not 1"),
        (json.dumps(GOOD | {"rules": GOOD["rules"] * 33}), "rules: expected 1 to 96, got 99"),
        (changed(strategy="magic"), "rules[1].strategy must be one of"),
        (changed(strategy="auto"), "rules[1].strategy must be one of"),
        (changed(runner_up=None), "rules[1].runner_up must be one of"),
        (changed(across_blocks=1), "rules[1].across_blocks must be true or false"),
        (changed(margin="much"), "rules[1].margin must be a number >= 0, not 'much'"),
        (changed(above={"steps": -1}), "rules[1].above.steps must be a number >= 0, not -1"),
        (changed(at_most={"steps": True}), "rules[1].at_most.steps must be a number >= 0"),
        (changed(at_most={"stops": 1}), "rules[1].at_most must hold bounds of steps, tokens"),
        (changed(above=[1]), "rules[1].above must hold bounds of steps, tokens"),
        (changed(margin=10**400), "rules[1].margin must be a number >= 0, not 1000000"),
        (changed(above={"steps": 10**400}), "rules[1].above.steps must be a number >= 0, not 1000"),
        (
            json.dumps({"costs": [COST | {"bytes": 2**31}]}),
            "costs[0].bytes must be in [1, 2^31), not",
        ),
        (
            json.dumps({"costs": [COST | {"us": {"call": 1e300}}]}),
            "costs[0].us.call must be a number >= 0, not 1e+300",
        ),
        ("[" * 100000, "while decoding a JSON array"),
        (json.dumps(GOOD | {"version": "0.0.1"}), "it was measured with scanrnn 0.0.1, this is"),
        (
            json.dumps({"name": "old", "inference": {"direct_max_tokens": 1}, "training": {}}),
            "'rules' or 'costs' must be a list",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, content, said):
    """It is named once, and the built-in profile decides."""
    path = tmp_path / "scanrnn" / "profile-cpu.json"
    path.parent.mkdir()
    path.write_text(content)
    out = plan_in_a_new_process(tmp_path)
    assert out.split()[0::2][:2] == [CPU_PROFILE, "1"]
    assert f"the profile {path} is ignored: " in out
    assert said in out


def test_a_user_without_a_home(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert profile.load_users.__wrapped__() == {}


@pytest.mark.parametrize("name", ["\u00fc" * 100, "a" + "\u00fc" * 100, "\ud800"])
def test_names_are_cut_between_characters(name):
    found = profile.parse(GOOD | {"name": name}, name)
    whole = name.replace("\ud800", "?")
    assert found.name
    assert whole.startswith(found.name)
    assert whole.startswith(found.origin)
    assert len(found.origin) >= min(len(name), 47)


def test_round_trip():
    found = profile.parse(GOOD, "somewhere")
    assert (found.name, found.origin) == ("mine", "somewhere")
    bare = [{k: v for k, v in rule.items() if k != "points"} for rule in GOOD["rules"]]
    assert profile.as_json(found) == {"name": "mine", "rules": bare}
    assert profile.parse(profile.as_json(found), "somewhere").rules == found.rules
    assert "parallel_scan over blocks: steps > 10, rows_per_unit <= 1000000000" in (
        profile.words(found)
    )


def test_the_profiles_that_are_built_in_become_cpp(tmp_path):
    """By dispatch/profiles.py, which the build runs; a file that lacks a field is named."""
    dispatch = Path(__file__).parents[2] / "dispatch"

    def write(**changed):
        files = [tmp_path / f"{name}.json" for name in ("cpu-generic", "cuda-generic")]
        for file in files:
            content = GOOD | {"name": file.stem, "device": "cpu", "commit": "1", "command": "mine"}
            content |= changed
            file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
        out = tmp_path / "profiles.cpp"
        command = [sys.executable, dispatch / "profiles.py", out, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr or out.read_text()

    without_margin = {k: v for k, v in GOOD["rules"][2].items() if k != "margin"}
    text = write()
    assert '{"cpu-generic", "built in", 3, {{' in text
    assert "{Strategy::direct, Strategy::fused_sequential, false, 1.5," in text
    assert "bounds(-1, {{Feature::steps, 10}})" in text
    assert "generic_cuda_profile() { return profiles()[1]; }" in text
    assert 'cpu-generic.json: no "commit"' in write(commit=None)
    assert "cpu-generic.json: no 'margin'" in write(rules=[without_margin])
    assert "no profile is named cpu-generic; there are: mine, mine" in write(name="mine")


def test_plans_follow_the_profile():
    device = _core.Device("cpu")
    before, rnn = _core.profile(device), make("MinGRU", 4, 8, device="cpu")
    try:
        _core.set_profile(device, profile.parse(GOOD, "the test"))
        assert rnn.plan(12, 1).strategy == "parallel_scan"
        assert rnn.plan(7, 1).strategy == "direct"
        assert rnn.plan(12, 1, training=True).strategy == "fused_sequential"
        assert rnn.plan(12, 1).profile == "mine"
        said = str(rnn.plan(12, 1))
        assert "measured as the fastest where T = 12 > 10" in said
        assert "runner-up fused_sequential (2 x the time) [profile mine, the test]" in said
    finally:
        _core.set_profile(device, before)


def test_the_planner_for_a_device_that_is_not_here():
    layer = crossover.layer_of("MinGRU", 8, "bfloat16")
    found = profile.parse(GOOD, "test")
    inference, training = (_core.layer_problem(layer, 12, 1, mode) for mode in (False, True))
    assert _core.pick(found, True, 132, 0, inference)[:2] == ("parallel_scan", True)
    strategy, across_blocks, said, _ = _core.pick(found, True, 132, 0, training)
    assert (strategy, across_blocks) == ("fused_sequential", False)
    assert said.startswith("fused_sequential for T=12 B=1 H=8 (training)")
    assert _core.built_in_profile("sm_90").origin == "built in"
    assert _core.built_in_profile("sm_1") is None


# ---- the fit


GRID = {64: (1, 16), 256: (1, 8, 32), 1024: (1, 4, 16, 32, 64, 128, 256), 2048: (512,)}
HELD_OUT = {96: (1,), 320: (3,), 512: (24,), 640: (96,), 768: (6, 40), 1536: (192,)}


def shapes():
    for held_out, rows, lengths in (
        (False, GRID, sizes.POWERS),
        (True, HELD_OUT, (1, 7, 23, 100, 600, 3000, 20000, 150000)),
    ):
        for H, batches in rows.items():
            for B, T in itertools.product(batches, lengths):
                if B * T * H <= 2**24:
                    yield sizes.Shape(B, T, H, held_out)


def sweep(best_of):
    """Rows in which the way that best_of(row) names is half as slow again as nothing else."""
    rows = []
    for shape in shapes():
        for direction in crossover.PASSES:
            row = {"bench": "crossover", "cell": "MinGRU", "pass": direction}
            row |= shape._asdict() | {"dtype": "bfloat16"}
            best = best_of(row)
            for way in crossover.WAYS["cuda"]:
                rows.append(row | {"strategy": way, "ms": 1.0 if way == best else 2.0})
    return {"device": "cuda", "units": 100, "rows": rows}


def judged(content):
    """A profile fitted to the sweep, and its regret on and off the grid."""
    rules = fit.fit(fit.problems(content), fit.units_of(content))
    pick = regret.picker(content, profile.parse({"rules": rules}, "fitted"))
    found = fit.problems(content)
    return rules, *(
        [p.regret(pick(p)) for p in found if p.held_out == held_out] for held_out in (False, True)
    )


def test_the_fit_finds_crossovers_that_are_there():
    def best(row):
        rows, training = row["B"] * row["H"], row["pass"] != "forward"
        if row["B"] * row["T"] <= 8 and not training:
            return "direct"
        if row["T"] < 64 or rows > 20000:
            return "fused_sequential"
        return "parallel_scan, device" if rows <= 3000 else "parallel_scan, block"

    rules, on_grid, held_out = judged(sweep(best))
    assert max(on_grid) == 0
    assert sum(value > 0 for value in held_out) < 0.1 * len(held_out)
    assert len(rules) <= 10
    for rule in rules:
        assert rule["strategy"] != rule["runner_up"]
        assert rule["margin"] == 2
    deep = [rule for rule in rules if rule["strategy"] == "parallel_scan"]
    assert {rule["across_blocks"] for rule in deep} == {True, False}


def test_the_fit_needs_one_rule_where_one_way_is_best():
    rules, on_grid, held_out = judged(sweep(lambda row: "fused_sequential"))
    assert max(on_grid + held_out) == 0
    assert [rule["strategy"] for rule in rules] == ["fused_sequential"]
    assert not {"above", "at_most"} & set(rules[0])


def test_bare_scans_have_rules_of_their_own():
    """One way is best for all layers and another for all scans, at the same sizes."""
    content = sweep(lambda row: "fused_sequential")
    # Those of up to 8 steps are walked, whatever a profile says.
    for shape in {s._replace(B=1, H=s.B * s.H) for s in shapes() if s.T > 8}:
        row = {"bench": "crossover", "cell": "scan", "pass": "forward"}
        row |= {**shape._asdict(), "domain": "linear", "dtype": "bfloat16"}
        for way in ("fused_sequential", "parallel_scan, block", "parallel_scan, device"):
            best = way == "parallel_scan, device"
            content["rows"].append(row | {"strategy": way, "ms": 1.0 if best else 2.0})
    rules, on_grid, held_out = judged(content)
    assert max(on_grid + held_out) == 0
    assert [rule["strategy"] for rule in rules] == ["parallel_scan", "fused_sequential"]
    assert rules[0]["at_most"] == {"gates": 0}
    assert not {"above", "at_most"} & set(rules[1])


def test_what_is_held_out_is_not_fitted():
    """Held-out points with another best way do not move a rule, but are in the report."""
    content = sweep(lambda row: "direct" if row["held_out"] else "fused_sequential")
    rules, on_grid, held_out = judged(content)
    assert len(rules) == 1
    assert max(on_grid) == 0
    assert min(held_out) == 1


def test_a_way_that_was_hopeless_is_never_cheap():
    at = "TBH", 1, 64, 8, False
    found = fit.Problem("MinGRU", "forward", "float32", "log", *at, {"direct": 2.0})
    assert found.regret("direct") == 0
    assert found.regret("parallel_scan, block") == crossover.HOPELESS - 1


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("steps", 1, 2),
        ("tokens", 64, 65),
        ("steps", 100, 1000),
        ("rows_per_unit", 0.4848, 0.4849),
        ("rows_per_unit", 0, 0.5),
        ("rows_per_unit", 7.75, 15.5),
        ("bytes", 2, 4),
        ("training", 0, 1),
    ],
)
def test_thresholds_tell_neighbours_apart(name, low, high):
    assert low <= fit.between(name, low, high) < high
