# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn: every command runs on a small case and leaves what it promises."""

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scanrnn
from scanrnn import __main__, _core, profile
from scanrnn.tools import calls, layer_bench, measure, memory, ragged_bench, stack_bench
from support import ALL_CELLS, CPU_PROFILE, DEVICE, INFO

PROVENANCE = {"device", "processor", "threads", "commit", "dirty", "command", "date"}
ROW = {"bench", "cell", "impl", "domain", "pass", "layout", "B", "T", "C", "H", "dtype", "ms"}

pytestmark = pytest.mark.usefixtures("small_grid")


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_info(capsys):
    __main__.main(["info"])
    out = capsys.readouterr().out
    assert "version: " in out
    assert "device cpu: " in out
    assert all(f"cell {name}: {cell.recurrence}" in out for name, cell in INFO.items())
    assert "cell RGLRU: linear\ncell PeepholeSRU: diagonal, activation=identity|tanh|relu, " in out
    assert "|relu, made by SRU(peephole=True)\n" in out
    assert "cell IndRNN: diagonal, nonlinearity=relu|tanh\ncell RNN: dense, nonlin" in out
    rules = len(_core.profile(_core.Device("cpu")).rules)
    assert f"profile cpu: {CPU_PROFILE}, built in; {rules} rules\n" in out
    assert "fused_sequential: " not in out
    __main__.main(["info", "--rules"])
    assert capsys.readouterr().out.count("fused_sequential: ") > 1


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


@pytest.mark.parametrize(
    "command", [["info"], ["--help"], ["bench", "--help"], ["bench", "regret", "sweep.json"]]
)
def test_a_reader_may_go(command):
    """As `| head -1` does: no traceback, and the status of a broken pipe where we write."""
    ours, theirs = os.pipe()
    os.close(ours)
    results = Path(__file__).parents[2] / "bench/results/cpu-crossover.json"
    words = [str(results) if word == "sweep.json" else word for word in command]
    program = [sys.executable, "-m", "scanrnn", *words]
    try:
        done = subprocess.run(program, stdout=theirs, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(theirs)
    assert done.stderr == ""
    assert done.returncode == 141 or ("--help" in command and done.returncode == 0)  # argparse's


def test_bench_regret_of_random_problems(tmp_path, capsys):
    pytest.importorskip("tqdm")
    saved = tmp_path / "random.json"
    regret = ["bench", "regret", "--cells", "MinGRU", "--random", "2", "--seed", "5"]
    __main__.main([*regret, "--save", str(saved)])
    content = json.loads(saved.read_text())
    assert content["grid"] == "2 random, seed 5"
    assert len({(r["B"], r["T"], r["H"]) for r in content["rows"]}) == 2
    assert "on the grid: 2 points" in capsys.readouterr().out
    __main__.main([*regret, "--steps", "3", "--save", str(saved)])
    content = json.loads(saved.read_text())
    assert content["grid"] == "2 random, seed 5, up to 3 steps"
    assert {r["T"] for r in content["rows"]} <= {1, 2, 3}
    for wrong in (["bench", "regret"], [*regret, "a.json"]):
        with pytest.raises(SystemExit):
            __main__.main(wrong)
    capsys.readouterr()
    for wrong in (["demo", "--seed", "-3"], [*regret, "--seed", "-1"]):
        with pytest.raises(SystemExit):
            __main__.main(wrong)
        assert f"--seed: expected a number >= 0, got {wrong[-1]}" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "crossover", "--device", "tpu"], "--device: expected 'auto', 'cpu', 'cuda'"),
        (["bench", "crossover", "--minutes", "-1"], "--minutes: expected a number > 0, got -1"),
        (["tune", "--minutes", "nan"], "--minutes: expected a number > 0, got nan"),
        (["demo", "--seconds", "soon"], "--seconds: invalid float value: 'soon'"),
        (["demo", "--hidden", "0"], "--hidden: expected a number > 0, got 0"),
        (["demo", "--steps", "1.5"], "--steps: invalid int value: '1.5'"),
        (["bench"], "the following arguments are required: BENCH"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        __main__.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["bench", "crossover"],
        ["bench", "layer"],
        ["bench", "regret", "--random", "9"],
        ["tune"],
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, command):
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(SystemExit, match=str(out)):
            __main__.main([*command, "--out", str(out)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--out", "x.foo"], r"x\.foo: expected a picture, \..*\.png"),
        (["demo", "--hidden", "99999999999999999999"], "hidden_size: expected an integer"),
        (["bench", "regret", "--random", "9", "--profile", "mine"], "no built-in profile 'mine'"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=words):
        __main__.main(arguments)


@pytest.mark.skipif(scanrnn.cuda_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["tune", "--device", "cuda"])
    assert "argument --device: cuda:0 was asked for" in capsys.readouterr().err


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
    assert len(rows) == len(ALL_CELLS) * 3 * len(impls)  # passes and step
    for row in rows:
        absent = set() if INFO[row["cell"]].recurrence == "linear" else {"domain"}
        assert set(row) >= (ROW | {"floor_ms", "floor_ratio"}) - absent
    assert {row["impl"] for row in rows} == set(impls)
    torchs = [row for row in content["rows"] if row not in rows]
    assert {row["cell"] for row in torchs} == (
        {"RNN", "LSTM", "GRU"} if find_spec("torch") else set()
    )


def test_bench_calls(tmp_path, capsys, monkeypatch):
    out = tmp_path / "calls.json"
    monkeypatch.setattr(calls, "SECONDS", 1e-4)
    monkeypatch.setattr(calls, "TURNS", 2)
    __main__.main(["bench", "calls", "--out", str(out)])
    assert "scanrnn, NumPy" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE
    by_numpy = [row for row in content["rows"] if row["impl"] == "scanrnn, NumPy"]
    assert len(by_numpy) == 3 * len(calls.CELLS)
    assert all(0 < row["least_us"] <= row["us"] for row in content["rows"])
    impls = {"scanrnn, torch tensors", "scanrnn.torch", "torch.nn"} if find_spec("torch") else set()
    assert {row["impl"] for row in content["rows"]} == {"scanrnn, NumPy"} | impls


def test_bench_calls_has_larger_layers_of_torch(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    out, larger = tmp_path / "calls.json", calls.Size(3, 5, 8)
    monkeypatch.setattr(calls, "SECONDS", 1e-4)
    monkeypatch.setattr(calls, "TURNS", 2)
    monkeypatch.setitem(calls.LARGER, "cpu", (larger,))
    calls.run("cpu", out)
    rows = [row for row in json.loads(out.read_text())["rows"] if row["B"] == larger.B]
    ways = {(row["cell"], row["pass"], row["impl"]) for row in rows}
    assert len(ways) == len(rows) == 2 * (2 * len(calls.CELLS) - 1)  # MinGRU is ours alone
    assert {row["impl"] for row in rows} == {"scanrnn.torch", "torch.nn"}


@pytest.mark.filterwarnings("ignore:RNN module weights are not part")  # torch.nn's, of 8 units
def test_bench_memory(tmp_path, capsys, monkeypatch):
    torch, out = pytest.importorskip("torch"), tmp_path / "memory.json"
    kind = DEVICE.partition(":")[0]
    B, T, H = 2, 9, 8
    monkeypatch.setitem(memory.SIZES, kind, (B, T, H))
    __main__.main(["bench", "memory", "--device", DEVICE, "--out", str(out)])
    assert "kept, MiB" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert set(content) >= {"device", "commit", "command", "torch"}
    rows = content["rows"]
    assert len(rows) == len(memory.DTYPES[kind]) * 3 * 2 * 2  # cells, layers, libraries
    for row in rows:
        y_bytes = B * T * H * getattr(torch, row["dtype"]).itemsize
        assert row["kept_bytes"] >= y_bytes * row["layers"]
        if kind == "cuda":
            assert row["peak_bytes"] >= row["kept_bytes"]


def test_kept_bytes_count_memory_once():
    torch = pytest.importorskip("torch")
    x, w = (torch.ones(100, requires_grad=True) for _ in range(2))
    assert memory.kept_bytes(lambda: x * w, [x, w]) == 0
    assert memory.kept_bytes(lambda: x * w, [x]) == 400
    assert memory.kept_bytes(lambda: x.exp() * w, [x, w]) == 400  # exp keeps it, and the product
    assert memory.kept_bytes(lambda: x.exp().cos(), [x]) == 400
    assert memory.kept_bytes(lambda: x.exp().exp(), [x]) == 800


def test_bench_ragged(tmp_path, capsys, monkeypatch):
    out = tmp_path / "ragged.json"
    for name, size in (("B", 3), ("T", 9), ("H", 8), ("SECONDS", 0.01)):
        monkeypatch.setattr(ragged_bench, name, size)
    __main__.main(["bench", "ragged", "--cells", "MinGRU", "GRU", "--out", str(out)])
    assert "of the padded tokens are there" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE | {"tokens"}
    ways = ["padded", "padded, resets", "lengths", "cu_seqlens"]
    assert [row["way"] for row in content["rows"]] == 4 * ways  # cells, passes
    assert all(row["ms"] > 0 for row in content["rows"])


def test_bench_stacks(tmp_path, capsys, monkeypatch):
    out = tmp_path / "stacks.json"
    for name, size in (("T", 9), ("HIDDEN", (8,)), ("SECONDS", 0.01)):
        monkeypatch.setattr(stack_bench, name, size)
    __main__.main(["bench", "stacks", "--cells", "MinGRU", "GRU", "--out", str(out)])
    assert "four layers" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert set(content) >= PROVENANCE
    assert [row["stack"] for row in content["rows"]] == 2 * list(stack_bench.STACKS)  # passes
    assert all(row["ms"] > 0 and row["cell"] == "GRU" for row in content["rows"])


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
    assert f"now [profile {CPU_PROFILE}]:\non the grid: 8 points" in shown
    assert f"tuned, on {content['processor']}:\non the grid: 8 points" in shown


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
    content = json.loads(sweep.read_text())
    other = tmp_path / "other.json"
    measure.save(other, content | {"processor": "another"})
    __main__.main(["tune", "--from", str(other), str(sweep), "--out", str(out)])
    assert json.loads(out.read_text())["and"] == [f"another, commit {content['commit']}"]
    shown = capsys.readouterr().out
    for name in ("another", content["processor"]):
        assert f"tuned, on {name}:\non the grid: 8 points" in shown
    measure.save(other, content | {"threads": content["threads"] + 1})
    with pytest.raises(SystemExit, match=r"^--from: expected sweeps of one kind of device"):
        __main__.main(["tune", "--from", str(other), str(sweep), "--out", str(out)])
    content |= {"device": "cuda", "units": 132}
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
    row = {"bench": "crossover", "cell": "MinGRU", "pass": "forward", "dtype": "float32"}
    row |= {"layout": "TBH", "B": 1, "T": 1, "H": 1, "strategy": "direct", "ms": 1.0}
    for rows, threads, words in (
        ({}, 2, "rows: expected a list, got {}"),
        ([3], 2, "rows[0]: expected what a bench has measured, got 3"),
        ([row, row | {"T": "9"}], 2, "rows[1]: T: expected int, got '9'"),
        ([row | {"ms": None}], 2, "rows[0]: ms: expected float, got None"),
        ([row], None, "threads: expected int, got None"),
    ):
        content = {"device": "cpu", "architecture": "none", "threads": threads, "rows": rows}
        (tmp_path / "sweep.json").write_text(json.dumps(content))
        with pytest.raises(SystemExit, match=re.escape(f"sweep.json: {words}")):
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
