# SPDX-License-Identifier: Apache-2.0
"""python -m scanrnn demo: a task that is what it says, a fair race, and an end in time."""

import re
import sys

import numpy as np
import pytest
import scanrnn
from scanrnn import __main__
from scanrnn.tools import demo, optional, recall, ways
from scanrnn.tools.baseline import Stack


@pytest.fixture(autouse=True)
def packages():
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")


def two_trainings(hidden=8, steps=128, seed=0):
    rnn = scanrnn.MinGRU(2, hidden, device="cpu", seed=seed)
    start = recall.start(rnn, seed)
    ways_to_run = (rnn, Stack("MinGRU", start))
    return [recall.Training(recurrent, start, steps, seed) for recurrent in ways_to_run]


def test_sequence_wants_what_was_marked_last():
    x, wanted = recall.sequence(np.random.default_rng(3), 500, 20)
    assert x.shape == (500, 1, 2)
    assert x[0, 0, 1] == 1
    last = None
    for number, (shown, mark) in zip(wanted, x[:, 0], strict=True):
        last = shown if mark else last
        assert number == last
    assert 10 < x[:, 0, 1].sum() < 50
    again, _ = recall.sequence(np.random.default_rng(3), 500, 20)
    np.testing.assert_array_equal(again, x)


def test_error_without_a_memory_is_all():
    """The mean of the numbers is 0; and the cotangent is the derivative."""
    random = np.random.default_rng(0)
    _, wanted = recall.sequence(random, 200_000, 2)
    silent = {"out_weight": np.zeros(3), "out_bias": np.zeros(1)}
    error, _ = recall.error_of(np.zeros((len(wanted), 1, 3)), silent, wanted)
    assert error == pytest.approx(1, abs=0.02)
    params = {"out_weight": random.standard_normal(3), "out_bias": random.standard_normal(1)}
    states = random.standard_normal((7, 1, 3))
    _, dout = recall.error_of(states, params, wanted[:7])
    above, below = (
        recall.error_of(states, params | {"out_bias": params["out_bias"] + step}, wanted[:7])[0]
        for step in (1e-6, -1e-6)
    )
    assert (above - below) / 2e-6 == pytest.approx(dout.sum(), rel=1e-4)


def test_both_are_the_same_training():
    """From one start both have the same errors, so only their speed differs."""
    ours, loop = two_trainings()
    for training in (ours, loop):
        for _ in range(40):
            training.update()
    np.testing.assert_allclose(ours.errors, loop.errors, rtol=1e-3)
    assert np.mean(ours.errors[-5:]) < 0.9 * np.mean(ours.errors[:5])
    for name, value in ours.params.items():
        np.testing.assert_allclose(loop.params[name], value, atol=1e-3, err_msg=name)


def test_smooth_is_a_mean_of_the_last():
    training = two_trainings()[0]
    training.errors = list(np.random.default_rng(1).random(31))
    wanted = [np.mean(training.errors[max(0, k - recall.WINDOW) : k]) for k in range(1, 32)]
    np.testing.assert_allclose(training.smooth(), wanted)
    assert training.recent() == pytest.approx(wanted[-1])
    assert training.updates_to(min(wanted) + 1e-12) == 1 + int(np.argmin(wanted))
    assert training.updates_to(min(wanted) / 2) is None


def test_turns_end_at_the_goal():
    trainings = two_trainings()
    reached = recall.take_turns(trainings, 0.8, 60)
    assert reached == 0.8
    for training in trainings:
        assert training.recent() <= 0.8
        assert training.updates_to(0.8) == len(training.errors)


def test_turns_end_with_the_budget():
    """Both have had a go, and the error that is compared is one that both have reached."""
    trainings = two_trainings()
    reached = recall.take_turns(trainings, 0.0, 0.3)
    assert all(training.updates_to(reached) for training in trainings)
    assert reached > 0
    short = two_trainings(steps=2000)
    recall.take_turns(short, 0.0, 1e-9)
    assert [len(training.errors) for training in short] == [1, 1]


def test_ways_are_measured_until_the_budget_ends(monkeypatch):
    monkeypatch.setattr(ways, "LENGTHS", (1, 30, 700))
    monkeypatch.setattr(ways, "EACH", 1e-3)
    found = ways.Ways("cpu", 8)
    found.measure(60)
    assert not found.wrong
    assert [p.T for p in found.found] == list(found.loop) == list(found.call) == [1, 30, 700]
    rnn = scanrnn.MinGRU(8, 8, device="cpu")
    assert found.picked == {T: rnn.plan(T, 1).strategy for T in found.loop}
    lines = found.table().splitlines()
    assert len(lines) == 2 + 3
    assert found.loop[700] > found.loop[1]
    for line, T in zip(lines[2:], found.loop, strict=True):
        assert line.split()[0] == str(T)
        assert float(line.split()[-1]) == pytest.approx(found.loop[T] / found.call[T], abs=0.06)
    nothing = ways.Ways("cpu", 8)
    nothing.measure(-1.0)
    assert nothing.found == []


def test_demo(tmp_path, capsys, monkeypatch):
    """The task is learnt, and the ratio that is printed is that of the times."""
    monkeypatch.setattr(demo, "TEST", 5000)
    monkeypatch.setattr(ways, "LENGTHS", (1, 64))
    out = tmp_path / "new" / "demo.png"
    found = demo.run(40, 16, 256, out, seed=0)
    assert found.goal < 0.2
    assert found.ratio == found.seconds(demo.LOOP) / found.seconds(demo.OURS)
    shown = capsys.readouterr().out
    assert f"takes {found.ratio:.1f} times as long" in shown
    assert f"seconds to an error of {100 * found.goal:.3g} %" in shown
    assert re.search(r"new sequence of 5,000 steps: error [\d.]+% by both", shown)
    assert "Every way to run one layer" in shown
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert out.stat().st_size > 5000


def test_demo_of_no_time(tmp_path, capsys, monkeypatch):
    """It compares what there is, and says what is missing."""
    monkeypatch.setattr(demo, "TEST", 100)
    out = tmp_path / "demo.png"
    words = ["--seconds", "0.01", "--steps", "64", "--hidden", "4", "--out", str(out)]
    __main__.main(["demo", *words])
    shown = capsys.readouterr().out
    assert "times as long to the same error" in shown
    assert "No time was left" in shown
    assert out.exists()


def test_the_test_refuses_what_disagrees():
    ours, _ = two_trainings()
    rnn = ours.recurrent
    assert "by both" in demo.test(rnn, ours, 300, seed=0)
    rnn.load_state_dict({name: value + 1 for name, value in ours.own().items()})
    with pytest.raises(AssertionError, match="disagree"):
        demo.test(rnn, ours, 300, seed=0)


def test_one_blas_thread(monkeypatch):
    control = pytest.importorskip("threadpoolctl")

    def threads():
        return [
            one["num_threads"] for one in control.threadpool_info() if one["user_api"] == "blas"
        ]

    before = threads()
    with optional.one_blas_thread():
        assert threads() == [1] * len(before)
    assert threads() == before
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with optional.one_blas_thread():  # it is not needed
        assert threads() == before
