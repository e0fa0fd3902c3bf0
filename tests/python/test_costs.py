# SPDX-License-Identifier: Apache-2.0
"""Costs: what a file must hold, and a fit that finds the times that a sweep was made of."""

import copy
from pathlib import Path

import numpy as np
import pytest
from scanrnn import _core, profile
from scanrnn.tools import costs, crossover, fit, measure, regret, sizes, tune

RESULTS = Path(__file__).parents[2] / "bench" / "results"
UNITS, SHARED = 132, 232448
MACHINE = {"architecture": "sm_90", "processor": "a GPU", "commit": "first"}
OF = {"kind": "linear", "bytes": 4, "alignment": 16, "training": False}
OF |= {"log_form": False, "tf32": False}
WAYS = {"direct": {"walk": 1.0}, "fused_sequential": {"call": 50.0}}
GOOD = {
    "name": "priced",
    "costs": [
        {**OF, "strategy": strategy, "across_blocks": False, "us": us}
        for strategy, us in WAYS.items()
    ],
}


def changed(**values):
    out = copy.deepcopy(GOOD)
    out["costs"][1].update(values)
    return out


def test_round_trip():
    found = profile.parse(GOOD, "somewhere")
    assert profile.as_json(found) == GOOD
    trend = {"trend": [round(0.1 - 0.01 * index, 2) for index in range(36)]}
    assert profile.as_json(profile.parse(changed(**trend), "somewhere")) == changed(**trend)
    assert "direct 1, fused_sequential 1" in profile.words(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"costs": [1]}, r"costs\[0\] must be an object, not 1"),
        (changed(kind=1), r"costs\[1\].kind must be a str, not 1"),
        (changed(kind="wide"), "kind: expected one of 'scan', 'linear', 'dense', got 'wide'"),
        (changed(bytes=True), r"costs\[1\].bytes must be a int, not True"),
        (changed(strategy="magic"), r"costs\[1\].strategy must be one of"),
        (changed(across_blocks=1), r"costs\[1\].across_blocks must be true or false"),
        (changed(us={}), r"costs\[1\].us must hold microseconds of call, byte"),
        (changed(us={"stop": 1}), r"costs\[1\].us must hold microseconds of call, byte"),
        (changed(us={"walk": -1}), r"costs\[1\].us.walk must be a number >= 0, not -1"),
        (changed(trend=[0.1]), r"costs\[1\].trend must be a list of 36 numbers"),
        (changed(trend=["a"] * 36), r"costs\[1\].trend must be a finite number, not 'a'"),
    ],
)
def test_a_file_that_cannot_be_used(content, said):
    with pytest.raises(ValueError, match=said):
        profile.parse(content, "test")


def picked(found, T, H=64):
    problem = _core.layer_problem(crossover.layer_of("MinGRU", H, "float32"), T, 1, False)
    return _core.pick(found, True, UNITS, SHARED, problem)


def test_the_least_predicted_time_is_picked():
    found = profile.parse(GOOD, "test")
    for T, strategy, us in ((40, "direct", 40), (60, "fused_sequential", 50)):
        got, _, said, expected = picked(found, T)
        assert (got, expected) == (strategy, us)
        assert f"predicted as the fastest, {us} us; runner-up" in said


def test_tf32_has_costs_of_its_own_where_they_were_measured():
    layer = crossover.layer_of("LSTM", 64, "float32")
    exact, rounded = (_core.layer_problem(layer, 60, 4, True, tf32) for tf32 in (False, True))
    classes = [_core.counted(UNITS, SHARED, p, "step_loop", False)[0] for p in (exact, rounded)]
    assert [dict(zip(profile.CLASS, of, strict=True))["tf32"] for of in classes] == [False, True]
    of = {**OF, "kind": "dense", "training": True, "across_blocks": False}
    dear, cheap = {"strategy": "persistent", "us": {"call": 9.0}}, {"strategy": "step_loop"}
    priced = [{**of, **dear}, {**of, **cheap, "us": {"call": 5.0}}]

    def best(costs_of, problem):
        found = profile.parse({"costs": costs_of}, "test")
        return _core.pick(found, True, UNITS, SHARED, problem)[0]

    assert [best(priced, p) for p in (exact, rounded)] == ["step_loop"] * 2  # the nearest class
    priced.append({**of, **dear, "tf32": True, "us": {"call": 1.0}})
    assert [best(priced, p) for p in (exact, rounded)] == ["step_loop", "persistent"]


def drawn_sweep(seed=1, count=300):
    """Times that are sums of terms: a sweep that costs can explain to the last digit."""
    us = {
        "direct": {"call": 2.0, "direct_load": 2e-4, "four_read": 0.02},
        "fused_sequential": {"call": 4.0, "walk": 0.05, "walk_load_4": 0.001},
        "parallel_scan, block": {"call": 6.0, "round": 0.2, "round_load_4": 0.002},
        "parallel_scan, device": {"call": 12.0, "tile_share": 0.1},
    }
    of_product = {"multiply_add": 1e-8, "depth": 0.002}
    rows = []
    for index, (cell, shape) in enumerate(sizes.drawn(count, seed, ["MinGRU"], "cuda")):
        layer = crossover.layer_of(cell, shape.H, "float32")
        problem = _core.layer_problem(layer, shape.T, shape.B, False)
        for way, each in us.items():
            how = fit.strategy_of(way), way == costs.OVER_BLOCKS
            _, counted, _ = _core.counted(UNITS, SHARED, problem, *how)
            counts = dict(zip(profile.TERMS, counted, strict=True))
            terms = each | of_product
            time = sum(counts[name] * value for name, value in terms.items())
            row = {"bench": "crossover", "cell": cell, "pass": "forward", **shape.row()}
            row |= {"dtype": "float32", "strategy": way, "ms": time / 1e3}
            rows.append(row | {"held_out": index % 5 == 0})
    return {"device": "cuda", "units": UNITS, "shared_bytes": SHARED, "rows": rows}


def test_the_fit_finds_what_a_sweep_is_made_of():
    pytest.importorskip("scipy")
    content = drawn_sweep()
    found = fit.problems(content)
    priced = profile.parse({"costs": costs.fit(found, UNITS, SHARED)}, "fitted")
    pick = regret.picker(content, priced)
    assert max(p.regret(pick(p)) for p in found) < 1e-3
    for p in found[::10]:
        *_, expected = _core.pick(priced, True, UNITS, SHARED, fit.core_problem(p))
        assert expected == pytest.approx(1e3 * p.ms[p.best], rel=2e-3)


def test_the_better_of_rules_and_costs_is_kept(capsys, monkeypatch):
    pytest.importorskip("scipy")
    content = drawn_sweep(count=80)
    kept = tune.fitted([content], "mine")
    assert "costs" in kept
    assert "rules" not in kept
    assert "rules, " in capsys.readouterr().out
    one_way = [cost for cost in kept["costs"] if cost["strategy"] == "direct"]
    monkeypatch.setattr(costs, "fit", lambda *_: one_way)
    assert "costs" not in tune.fitted([content], "mine")


def test_drawn_problems_are_the_seeds():
    names = ["MinGRU", "LSTM", "scan"]
    first = list(sizes.drawn(200, 3, names, "cuda"))
    assert first == list(sizes.drawn(200, 3, names, "cuda"))
    assert first[:50] == list(sizes.drawn(50, 3, names, "cuda"))
    assert first != list(sizes.drawn(200, 4, names, "cuda"))
    assert {cell for cell, _ in first} == set(names)
    layers = [shape for cell, shape in first if cell != "scan"]
    for name, (low, high) in sizes.RANGES.items():
        values = np.array([getattr(shape, name) for shape in layers])
        assert low <= values.min() < 2 * low + 1
        assert values.max() <= high
    kinds = {(shape.dtype, shape.direction, shape.layout) for shape in layers}
    assert kinds >= {("float16", "forward", "TBH"), ("bfloat16", "forward_backward", "BTH")}
    assert {cell for cell, _ in sizes.drawn(50, 3, names, "cpu")} == {"MinGRU", "scan"}
    rounded = list(sizes.drawn(200, 3, names, "cuda", sizes.TF32))
    assert {shape.dtype for _, shape in rounded} == {sizes.TF32}
    assert [shape._replace(dtype=None) for _, shape in rounded] == [
        shape._replace(dtype=None) for _, shape in first
    ]
    both = [sum(shape.dtype == dtype for _, shape in first) for dtype in ("float32", sizes.TF32)]
    assert min(both) > 10


def test_sizes_that_people_quote_are_picked_as_measured():
    """Costs that would take direct everywhere are overruled there, and nowhere else."""
    B, T, H = sizes.QUOTED[1]
    ms = {"direct": 2.0, "fused_sequential": 1.0, "parallel_scan, device": 3.0}
    at = ("forward", "float32", "log", "TBH")
    sizes_of = (T, H), (7 * T, H), (T, H + 1)
    found = [fit.Problem("MinLSTM", *at, B, t, h, False, ms) for t, h in sizes_of]
    dense = fit.Problem("GRU", *at, B, T, H, False, {"persistent": 1.0, "step_loop": 5.0})
    direct = {"costs": [cost for cost in GOOD["costs"] if cost["strategy"] == "direct"]}
    content = {"device": "cuda", "units": UNITS, "shared_bytes": SHARED}
    pick = regret.picker(content, profile.parse(direct, "test"))
    rules = costs.rules([*found, dense], UNITS, pick)
    assert [(rule["strategy"], rule["runner_up"]) for rule in rules] == [
        ("fused_sequential", "direct")
    ]
    pick = regret.picker(content, profile.parse(direct | {"rules": rules}, "test"))
    assert [pick(p) for p in found] == ["fused_sequential", "direct", "direct"]
    assert costs.rules(found, UNITS, pick) == []


def test_the_built_in_costs_where_products_round_to_tf32():
    content = measure.load_sweep(RESULTS / "h200-random-tf32.json")
    found = [p for p in fit.problems(content) if p.dtype == sizes.TF32]
    pick = regret.picker(content, _core.built_in_profile("sm_90"))
    regrets = np.array([p.regret(pick(p)) for p in found])
    assert len(found) > 500
    assert np.mean(regrets <= regret.CLOSE) >= 0.96
    assert np.mean(regrets <= regret.FAR) >= 0.99


def quoted(name):
    """What a program in C++ has measured, beside a sweep of such a device."""
    return measure.load_sweep(
        RESULTS / f"{name}.json", measure.load_sweep(RESULTS / "h200-random.json")
    )


# How many there are at least, of which passes, the share within 5 % of the best, and the most that
# one loses.
QUOTED = {
    "h200-layer": (250, sizes.PASSES, 0.985, 0.06),
    "h100-layer": (250, sizes.PASSES, 0.99, 0.055),
    "h200-scan": (40, ("forward",), 0.99, 0.03),
    "h100-scan": (40, ("forward",), 0.955, 0.072),
}


@pytest.mark.parametrize("name", QUOTED)
def test_the_built_in_picks_of_what_is_quoted(name):
    """As layer_cuda and scan_cuda measure them: a sweep's beside one of such a device."""
    count, passes, close, worst = QUOTED[name]
    content = quoted(name)
    assert content["units"] == UNITS
    assert content["processor"] == content["gpu"]
    found = fit.problems(content)
    assert {p.direction for p in found} == set(passes)
    pick = regret.picker(content, _core.built_in_profile("sm_90"))
    regrets = np.array([p.regret(pick(p)) for p in found])
    assert len(found) > count
    assert np.mean(regrets <= regret.CLOSE) >= close
    assert regrets.max() <= worst
    with pytest.raises(SystemExit, match="not what bench crossover writes"):
        measure.load_sweep(RESULTS / f"{name}.json")


def test_quoted_scans_are_problems_of_a_sweep():
    """As scan_cuda measures them: those that a sweep has, forward and of rows side by side."""
    found = fit.problems(quoted("h200-scan"))
    assert {(p.cell, p.direction, p.layout, p.B) for p in found} == {("scan", "forward", "TBH", 1)}
    assert {p.domain for p in found} == {"linear", "log"}
    at = {(p.dtype, p.domain, p.T, p.H): p.ms for p in found}
    assert set(at["float32", "log", 4096, 8 * 1536]) == {
        "fused_sequential", "parallel_scan, block", "parallel_scan, device"
    }  # fmt: skip


# The share of picks within 5 % of the best, the most that one loses, and the median error of the
# microseconds.
PROMISED = {
    "h200-random": (0.955, 0.28, 0.07),
    "h200-random-35": (0.95, 0.22, 0.1),
    "h200-random-36": (0.97, 0.17, 0.09),
    "h200-random-37": (0.97, 0.16, 0.09),
    "h200-random-99": (0.955, 0.18, 0.077),
    "h200-random-scans": (0.985, 0.15, 0.04),
    "h100-random-scans": (0.94, 0.22, 0.063),
}


COMPLETE = ("h200-random-35", "h200-random-36", "h200-random-37")


@pytest.mark.parametrize("name", PROMISED)
def test_the_built_in_costs_at_random_problems(name):
    """What docs/decisions/0010 promises of the planner's picks, and of its microseconds. The second
    to the fifth file were shown to no fit. Others than 35 to 37 lack times of ways whose kernels
    are others by now: there only problems count whose pick has a time, and another way.
    """
    close, worst, error = PROMISED[name]
    content = measure.load_sweep(RESULTS / f"{name}.json")
    built_in = _core.built_in_profile("sm_90")
    pick = regret.picker(content, built_in)
    found = fit.problems(content)
    if name not in COMPLETE:
        found = [p for p in found if pick(p) in p.ms and len(p.ms) > 1]
    regrets = np.array([p.regret(pick(p)) for p in found])
    assert len(found) > 150
    assert np.mean(regrets <= regret.CLOSE) >= close
    assert np.mean(regrets <= regret.FAR) >= 0.98
    assert regrets.max() <= worst
    limits = content["units"], content["shared_bytes"]
    errors = []
    for p in found:
        *_, expected = _core.pick(built_in, True, *limits, fit.core_problem(p))
        if expected > 0 and pick(p) in p.ms:
            errors.append(abs(expected / (1e3 * p.ms[pick(p)]) - 1))
    assert len(errors) > 0.9 * len(found)
    assert np.median(errors) < error
