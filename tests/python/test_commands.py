# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn: every command runs on a small case and leaves what it promises."""

import itertools
import json
import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import scanrnn
from scanrnn import __main__, crossover, demo, layer_bench, measure, profile
from support import CELLS, DENSE

PROVENANCE = {"device", "processor", "threads", "commit", "dirty", "command", "date"}
ROW = {"bench", "cell", "impl", "domain", "pass", "layout", "B", "T", "C", "H", "dtype", "ms"}


@pytest.fixture(autouse=True)
def small_grid(monkeypatch):
    monkeypatch.setitem(crossover.GRIDS, "small", {"T": (1, 40), "B": (1, 2), "H": (8,)})
    monkeypatch.setattr(layer_bench, "SHAPES", ((2, 12, 8),))
    monkeypatch.setattr(layer_bench, "STEP", (1, 1, 8))
    monkeypatch.setattr(layer_bench, "PAUSE", 0)


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_info(capsys):
    __main__.main(["info"])
    out = capsys.readouterr().out
    assert "version: " in out
    assert "device cpu: " in out
    assert all(f"cell {cell}: linear, " in out for cell in CELLS)
    assert all(f"cell {cell}: dense\n" in out for cell in DENSE)
    assert '"name": "cpu-generic"' in out


def test_demo_learns(tmp_path, capsys):
    """A few seconds are enough to do better than knowing how often each character occurs."""
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "demo.png"
    __main__.main(["demo", "--seconds", "4", "--hidden", "48", "--out", str(out)])
    shown = capsys.readouterr().out
    assert is_png(out)
    assert "bits a character on held-out text" in shown
    assert "Written by the model" in shown


def test_demo_is_the_same_training_twice(monkeypatch):
    """From one start both implementations have the same losses, so only their speed differs."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(demo.time, "perf_counter", itertools.count(0, 0.1).__next__)
    text = demo.load_text(limit=60_000)
    rnn = scanrnn.MinGRU(len(text.symbols), 24, num_layers=2, device="cpu", seed=0)
    head = np.zeros((len(text.symbols), 24), np.float32)
    start = rnn.state_dict() | {"out_weight": head, "out_bias": head[:, 0].copy()}
    curves = []
    for recurrent in (rnn, demo.Stack("MinGRU", start)):
        params = {name: value.copy() for name, value in start.items()}
        curves.append(demo.train("test", recurrent, params, text, 1.5, seed=0))
    assert len(curves[0].bits) == len(curves[1].bits) == 8  # two looks at the clock an update
    np.testing.assert_allclose(curves[0].bits, curves[1].bits, rtol=1e-4)
    assert curves[0].bits[0] == pytest.approx(math.log2(len(text.symbols)), rel=1e-5)
    assert curves[0].bits[-1] < curves[0].bits[0]


def test_demo_text():
    text = demo.load_text(limit=80_000)
    assert len(text.train) == 40_000
    assert len(text.test) == 40_000
    assert 3 < text.unigram_bits() < 6
    np.testing.assert_array_equal(demo.load_text(limit=80_000).train, text.train)


def test_cross_entropy_against_differences():
    logits, targets = np.random.default_rng(0).standard_normal((5, 7)), np.arange(5)
    gradient = demo.cross_entropy(logits, targets)[1]
    step = 1e-6 * np.random.default_rng(1).standard_normal((5, 7))
    moved = (
        demo.cross_entropy(logits + step, targets)[0]
        - demo.cross_entropy(logits - step, targets)[0]
    )
    assert moved / 2 * math.log(2) == pytest.approx(np.vdot(gradient, step), rel=1e-6)


def test_bench_crossover(tmp_path, capsys):
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    out = tmp_path / "crossover.json"
    __main__.main(["bench", "crossover", "--cells", "MinGRU", "SRU", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "regret" in shown
    assert "the dispatcher's pick is within 5 % of the best at" in shown
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE
    assert content["device"] == "cpu"
    assert content["command"].startswith("python -m scanrnn")
    rows = content["rows"]
    assert len(rows) == 2 * 2 * 4 * 3  # cells, passes, (B, T), strategies
    for row in rows:
        assert set(row) >= ROW | {"strategy", "picked", "ms_spread", "max_error"}
        assert row["ms"] > 0
        assert row["max_error"] < 1e-5
    assert sum(row["picked"] for row in rows) == len(rows) // 3
    assert is_png(out.with_suffix(".png"))


def test_a_wrong_result_is_never_timed(monkeypatch):
    point = crossover.Point("MinGRU", "forward", 1, 16, 8)
    honest = crossover.call_of

    def off_in_one(rnn, x, dy, direction, strategy):
        call = honest(rnn, x, dy, direction, strategy)
        wrong = strategy == "parallel_scan" and rnn.dtype == np.float32
        return lambda: [value + (0.01 if wrong else 0) for value in call()]

    monkeypatch.setattr(crossover, "call_of", off_in_one)
    with pytest.raises(AssertionError, match="parallel_scan: y is off by"):
        crossover.measure_point(point, "cpu", 0.001)


def test_bench_layer(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    out = tmp_path / "layer.json"
    monkeypatch.setattr(layer_bench.run, "__defaults__", (0.01,))
    __main__.main(["bench", "layer", "--out", str(out)])
    assert "x floor" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE | {"copy_gbps"}
    impls = ["scanrnn", f"numpy {np.__version__}", "GEMM alone"]
    rows = [row for row in content["rows"] if not row["impl"].startswith("torch ")]
    assert len(rows) == (len(CELLS) + len(DENSE)) * 3 * len(impls)  # passes and step
    for row in rows:
        absent = {"domain"} if row["cell"] in DENSE else set()
        assert set(row) >= (ROW | {"floor_ms", "floor_ratio"}) - absent
    assert {row["impl"] for row in rows} == set(impls)
    torchs = [row for row in content["rows"] if row not in rows]
    assert {row["cell"] for row in torchs} == (set(DENSE) if find_spec("torch") else set())


@pytest.mark.parametrize("to_file", [False, True])
def test_tune(tmp_path, capsys, to_file):
    pytest.importorskip("tqdm")
    path = tmp_path / "cpu-generic.json" if to_file else profile.user_file()
    device = scanrnn._core.Device("cpu")
    before = scanrnn._core.profile(device)
    try:
        __main__.main(["tune", "--cells", "MinLSTM", *(["--out", str(path)] if to_file else [])])
        active = scanrnn._core.profile(device)
    finally:
        scanrnn._core.set_profile(device, before)
    assert active.name == ("cpu-generic" if to_file else "tuned")
    content = json.loads(path.read_text())
    assert set(content) >= PROVENANCE | {"name", "origin", "inference", "training"}
    assert content["name"] == ("cpu-generic" if to_file else "tuned")
    assert profile.parse(content, "test").inference == active.inference
    assert "tuned: the dispatcher's pick" in capsys.readouterr().out


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(SystemExit, match=r"needs tqdm: pip install 'scanrnn\[plot\]'"):
        __main__.main(["bench", "crossover"])


def test_unknown_cells_are_refused(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["bench", "layer", "--cells", "LSTM9"])
    assert "invalid choice: 'LSTM9'" in capsys.readouterr().err


def test_timing_counts_what_is_called():
    calls = {"a": 0, "b": 0}

    def count(name):
        calls[name] += 1

    times = measure.timed({name: lambda name=name: count(name) for name in calls}, seconds=0.01)
    assert all(timing.ms > 0 and timing.spread >= 0 for timing in times.values())
    assert min(calls.values()) > 100
    assert math.isnan(measure.max_error(np.array([np.nan, 1.0]), np.array([1.0, 1.0])))
