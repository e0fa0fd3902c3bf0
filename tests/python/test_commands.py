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
from scanrnn import __main__, _core, crossover, demo, layer_bench, measure, profile, sizes
from support import CELLS, DENSE

PROVENANCE = {"device", "processor", "threads", "commit", "dirty", "command", "date"}
ROW = {"bench", "cell", "impl", "domain", "pass", "layout", "B", "T", "C", "H", "dtype", "ms"}


@pytest.fixture(autouse=True)
def small_grid(monkeypatch):
    monkeypatch.setitem(sizes.GRIDS["cpu"], "small", ({8: (1, 2)}, (1, 40)))
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
    assert "profile cpu: cpu-generic, built in\n" in out


def test_info_says_what_is_ignored(capsys):
    file = profile.user_file()
    file.parent.mkdir(parents=True)
    file.write_text("{")
    profile.load_users.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"profile-cpu\.json is ignored: "):
            __main__.main(["info"])
    finally:
        profile.load_users.cache_clear()
    assert f"your own: {file} is ignored\n" in capsys.readouterr().out


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


def test_bench_crossover_and_regret(tmp_path, capsys):
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "crossover.json"
    __main__.main(["bench", "crossover", "--cells", "MinGRU", "SRU", "scan", "--out", str(out)])
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE | {"version", "grid"}
    assert content["device"] == "cpu"
    assert content["command"].startswith("python ")
    rows = content["rows"]
    layers, scans = ([r for r in rows if (r["cell"] == "scan") == bare] for bare in (False, True))
    assert len(layers) == 2 * 2 * 4 * 3  # cells, passes, (B, T), strategies
    assert len(scans) == 2 * 4 * 2  # domains, (B * H, T), strategies
    assert {(r["B"], r["H"], r["pass"], r["domain"]) for r in scans} == {
        (1, rows, "forward", domain) for rows in (8, 16) for domain in ("log", "linear")
    }
    for row in rows:
        assert set(row) >= ROW - {"domain"} | {"strategy", "ms_spread", "max_error", "peak_bytes"}
        assert row["ms"] > 0
        assert row["max_error"] < 1e-5

    report = tmp_path / "reports" / "regret.md"
    __main__.main(["bench", "regret", str(out), "--out", str(report)])
    shown = capsys.readouterr().out
    assert "on the grid: 24 points, the pick within 5 % of the best at" in shown
    assert report.read_text() in shown
    assert "| MinGRU | forward + backward | float32 | log | grid | 4 |" in shown
    assert "| scan | forward | float32 | linear | grid | 4 |" in shown
    for cell in ("mingru", "sru", "scan"):
        assert is_png(report.parent / f"regret-{cell}.png")


def test_a_sweep_goes_on_where_it_ended(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    out = tmp_path / "crossover.json"
    sweep = ["bench", "crossover", "--cells", "MinGRU", "--out", str(out)]
    __main__.main([*sweep, "--minutes", "1e-9"])
    assert "0 of 4 points were measured; --resume goes on" in capsys.readouterr().out
    measured = []
    honest = crossover.Sweep.measure

    def counted(self, cell, shape, turn):
        measured.append((cell, shape))
        honest(self, cell, shape, turn)

    monkeypatch.setattr(crossover.Sweep, "measure", counted)
    __main__.main([*sweep, "--resume"])
    assert len(measured) == 4
    first = json.loads(out.read_text())["rows"]
    content = json.loads(out.read_text())
    content["rows"] = [row for row in first if row["T"] == 1]
    out.write_text(json.dumps(content))
    __main__.main([*sweep, "--resume"])
    assert [(cell, shape.T) for cell, shape in measured[4:]] == [("MinGRU", 40)] * 2
    assert len(json.loads(out.read_text())["rows"]) == len(first)
    out.write_text(json.dumps(content | {"commit": "another"}))
    with pytest.raises(SystemExit, match="cannot be resumed: its commit is another"):
        __main__.main([*sweep, "--resume"])


def test_of_two_rounds_the_faster_counts(tmp_path, monkeypatch):
    pytest.importorskip("tqdm")
    out = tmp_path / "crossover.json"
    sweep = ["bench", "crossover", "--cells", "MinGRU", "--out", str(out)]
    clock = itertools.count()

    def timed(live, *_):
        """Shapes take 8, 7, 6, 5 ms and then, once more, 1, 2, 3, 4; so both passes of each."""
        ms = (8, 7, 6, 5, 1, 2, 3, 4)[next(clock) // 2]
        return {way: measure.Timing(float(ms), float(ms)) for way in live}

    monkeypatch.setitem(crossover.ROUNDS, ("cpu", "small"), 2)
    monkeypatch.setattr(measure, "replayed", timed)
    __main__.main(sweep)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 4 * 2 * 3
    assert [row["ms"] for row in rows[::6]] == [1, 2, 3, 4]
    assert all(row["rounds"] == 2 and row["ms_spread"] == row["ms"] for row in rows)
    content = json.loads(out.read_text())
    for row in content["rows"][6:]:
        row["rounds"] = 1
    out.write_text(json.dumps(content))
    clock = itertools.count(8)  # three shapes are left, at 1, 2 and 3 ms
    __main__.main([*sweep, "--resume"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["ms"] for row in rows[::6]] == [1, 1, 2, 3]


def test_an_interrupt_in_the_second_round(tmp_path, monkeypatch):
    pytest.importorskip("tqdm")
    out = tmp_path / "crossover.json"
    sweep = ["bench", "crossover", "--cells", "MinGRU", "--out", str(out)]
    monkeypatch.setitem(crossover.ROUNDS, ("cpu", "small"), 2)
    honest, calls = crossover.Sweep._measure, itertools.count(1)

    def interrupted(*arguments):
        if next(calls) == 4 * 2 + 4:  # in the middle of the second point
            raise KeyboardInterrupt
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(crossover.Sweep, "_measure", interrupted)
        with pytest.raises(SystemExit):
            __main__.main(sweep)
    rounds = [row["rounds"] for row in json.loads(out.read_text())["rows"]]
    assert rounds == [2] * 6 + [1] * 18
    __main__.main([*sweep, "--resume"])
    assert {row["rounds"] for row in json.loads(out.read_text())["rows"]} == {2}


@pytest.mark.parametrize("command", ["crossover", "layer"])
def test_what_was_measured_outlives_an_interrupt(tmp_path, capsys, monkeypatch, command):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(layer_bench.run, "__defaults__", (0.01,))
    out = tmp_path / "measured.json"
    module, name, last = {
        "crossover": (crossover.Sweep, "_measure", 4),  # in the middle of the second point
        "layer": (layer_bench, "measure_one", 3),
    }[command]
    honest, calls = getattr(module, name), itertools.count(1)

    def interrupted(*arguments):
        if next(calls) == last:
            raise KeyboardInterrupt
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(SystemExit) as end:
            __main__.main(["bench", command, "--cells", "MinGRU", "--out", str(out)])
    assert end.value.code == 130
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "interrupted"
    if command == "layer":
        assert len(shown.out.splitlines()) == 2 + 2 * 3  # points, implementations
        return
    assert "1 of 4 points were measured; --resume goes on" in shown.out
    assert len(json.loads(out.read_text())["rows"]) == 2 * 3  # passes, strategies
    __main__.main(["bench", command, "--cells", "MinGRU", "--out", str(out), "--resume"])
    assert len(json.loads(out.read_text())["rows"]) == 4 * 2 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "crossover", "--device", "tpu"], "--device: expected 'auto', 'cpu', 'cuda'"),
        (["bench", "crossover", "--minutes", "-1"], "--minutes: expected a number > 0, got -1"),
        (["tune", "--minutes", "nan"], "--minutes: expected a number > 0, got nan"),
        (["demo", "--seconds", "soon"], "--seconds: invalid float value: 'soon'"),
        (["demo", "--hidden", "0"], "--hidden: expected a number > 0, got 0"),
        (["bench"], "the following arguments are required: BENCH"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        __main__.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["demo"], ["bench", "crossover"], ["bench", "layer"], ["tune"]]
)
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, command):
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(SystemExit, match=str(out)):
            __main__.main([*command, "--out", str(out)])


@pytest.mark.skipif(scanrnn.cuda_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["tune", "--device", "cuda"])
    assert "argument --device: cuda:0 was asked for" in capsys.readouterr().err


def test_a_cell_with_one_way_to_run(tmp_path):
    with pytest.raises(SystemExit, match="on cpu these cells have one way to run"):
        __main__.main(["bench", "crossover", "--cells", "LSTM", "--out", str(tmp_path / "x")])


def test_a_wrong_result_is_never_timed(tmp_path, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(crossover, "tolerances", lambda dtype, T, H: (0.0, 1.0))
    out = tmp_path / "crossover.json"
    with pytest.raises(SystemExit, match=r"wrong results, which were not timed:\n.*MinGRU"):
        __main__.main(["bench", "crossover", "--cells", "MinGRU", "--out", str(out)])
    assert not out.exists() or all(r["max_error"] == 0 for r in json.loads(out.read_text())["rows"])


def test_workloads_agree_and_errors_show():
    """Two ways give the same numbers; other parameters do not, nor does what was never run."""
    device = _core.Device("cpu")

    def ran(dtype, strategy, cell="MinGRU"):
        layer = crossover.layer_of(cell, 16, dtype)
        workload = _core.Workload(layer, device, 50, 3, True)
        recorded = workload.record(strategy, None)
        assert recorded.milliseconds() > 0
        assert recorded.again(3).milliseconds() > 0
        assert recorded.nbytes > 0
        return workload

    exact = ran("float64", "fused_sequential")
    for strategy in ("direct", "parallel_scan"):
        assert max(ran("float64", strategy).errors(exact)) < 1e-13
        assert 1e-9 < max(ran("float32", strategy).errors(exact)) < 1e-5
    for dtype in ("bfloat16", "float16"):
        assert 1e-5 < max(ran(dtype, "fused_sequential").errors(exact)) < 0.03
    other = _core.Workload(crossover.layer_of("MinLSTM", 16, "float64"), device, 50, 3, False)
    other.record("direct", None)
    assert max(other.errors(exact)) > 1e-2
    for exact_of_another_size in (ran("float64", "direct", "MinLSTM"), ran("float32", "direct")):
        with pytest.raises(ValueError, match="exact: expected a float64 workload of the same"):
            ran("float32", "direct").errors(exact_of_another_size)


def test_bare_scans_agree_and_errors_show():
    device = _core.Device("cpu")

    def ran(dtype, log_form, strategy="fused_sequential", steps=50):
        workload = _core.Workload(dtype, device, steps, 3, log_form)
        assert workload.record(strategy, None).strategy == strategy
        return workload

    for log_form in (False, True):
        exact = ran("float64", log_form)
        assert max(ran("float64", log_form, "parallel_scan").errors(exact)) < 1e-13
        assert 0 < max(ran("float32", log_form, "parallel_scan").errors(exact)) < 1e-6
        assert 1e-5 < max(ran("bfloat16", log_form).errors(exact)) < 0.03
        assert max(ran("float64", not log_form).errors(exact)) > 1e-2
        with pytest.raises(ValueError, match="exact: expected a float64 workload of the same"):
            ran("float32", log_form, steps=49).errors(exact)


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
    device = _core.Device("cpu")
    before = _core.profile(device)
    try:
        __main__.main(["tune", "--cells", "MinLSTM", *(["--out", str(path)] if to_file else [])])
        active = _core.profile(device)
    finally:
        _core.set_profile(device, before)
    name = "cpu-generic" if to_file else "tuned"
    assert (active.name, active.origin) == (name, str(path)[:95])
    content = json.loads(path.read_text())
    assert set(content) >= PROVENANCE | {"name", "version", "rules"}
    assert content["name"] == name
    assert profile.parse(content, "test").rules == active.rules
    shown = capsys.readouterr().out
    assert "now [profile cpu-generic]:\non the grid: 8 points" in shown
    assert "tuned:\non the grid: 8 points" in shown


def test_tune_from_a_sweep(tmp_path, capsys):
    """No device is needed, and the profile in use stays."""
    pytest.importorskip("tqdm")
    sweep, out = tmp_path / "sweep.json", tmp_path / "sm_1.json"
    __main__.main(["bench", "crossover", "--cells", "MinGRU", "--out", str(sweep)])
    before = _core.profile(_core.Device("cpu")).rules
    __main__.main(["tune", "--from", str(sweep), "--out", str(out)])
    assert _core.profile(_core.Device("cpu")).rules == before
    content = json.loads(out.read_text())
    assert content["command"] == json.loads(sweep.read_text())["command"]
    assert content["name"] == "sm_1"
    __main__.main(["bench", "regret", str(sweep), "--profile", str(out)])
    assert f"Profile: sm_1, {out}"[:100] in capsys.readouterr().out
    content = json.loads(sweep.read_text()) | {"device": "cuda", "units": 132}
    for row in content["rows"]:
        row["strategy"] = row["strategy"].replace("parallel_scan", "parallel_scan, block")
    measure.save(sweep, content)
    __main__.main(["tune", "--from", str(sweep)])
    assert profile.user_file("cuda").exists()  # by where the sweep is from
    assert not profile.user_file("cpu").exists()


def test_a_profile_that_is_not_there(tmp_path):
    sweep = tmp_path / "sweep.json"
    sweep.write_text('{"device": "cpu", "architecture": "none", "rows": []}')
    with pytest.raises(SystemExit, match="no file and no built-in profile 'mine'"):
        __main__.main(["bench", "regret", str(sweep), "--profile", "mine"])
    with pytest.raises(SystemExit, match="not_here"):
        __main__.main(["bench", "regret", str(tmp_path / "not_here.json")])


@pytest.mark.parametrize("command", [["bench", "regret"], ["tune", "--from"]])
def test_what_is_no_sweep(tmp_path, command):
    for text in ("{", "[]", '{"device": "cpu", "rules": []}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(SystemExit, match=r"sweep\.json: "):
            __main__.main([*command, str(tmp_path / "sweep.json")])


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
