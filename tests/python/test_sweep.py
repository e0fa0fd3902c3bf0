# SPDX-License-Identifier: Apache-2.0
"""The sweep behind `bench crossover`: its rounds and interrupts, and what it refuses to time."""

import itertools
import json
import math

import pytest
from scanrnn import __main__, _core
from scanrnn.tools import crossover, layer_bench, measure

pytestmark = pytest.mark.usefixtures("small_grid")


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
        return {way: measure.Timing(float(ms), float(ms), float(ms)) for way in live}

    monkeypatch.setitem(crossover.ROUNDS, ("cpu", "small"), 2)
    monkeypatch.setattr(crossover, "HOPELESS", math.inf)  # no way is left out for a slow moment
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
