# SPDX-License-Identifier: Apache-2.0
"""What ragged batches refuse: each error names the argument, what came and what was wanted."""

import numpy as np
import pytest
from scanrnn import _core
from scanrnn.arrays.numpy import Elsewhere, NumPy
from support import make, normal
from test_errors import raises

MASKED = np.ma.masked_array([0, 1, 2], [False, True, False])


@pytest.mark.parametrize(
    ("options", "kind", "parts"),
    [
        ({"lengths": [3, 2, 1]}, TypeError, ("lengths: expected an array of int", "got list")),
        ({"lengths": np.ones(3)}, TypeError, ("lengths: expected integers", "float64")),
        ({"lengths": np.ones(3, bool)}, TypeError, ("lengths: expected integers", "bool")),
        ({"lengths": np.ones(2, int)}, ValueError, (r"lengths: .* \(3,\) = \(batch,\)", r"\(2,\)")),
        ({"lengths": MASKED}, TypeError, ("lengths: expected an array without a mask",)),
        ({"lengths": np.ones((3, 1), int)}, ValueError, ("lengths: expected shape", r"\(3, 1\)")),
        ({"lengths": np.array([1, 10, 2])}, ValueError, ("lengths: .*9", "got 10 at 1")),
        ({"lengths": np.array([1, 2, -1])}, ValueError, ("lengths: expected", "got -1 at 2")),
        ({"lengths": np.array([1, 2, 2**40])}, ValueError, ("lengths:", f"got {2**40}")),
        ({"lengths": np.uint64([1, 2, 2**64 - 1])}, ValueError, ("lengths:", f"got {2**63 - 1}")),
        (
            {"lengths": np.ones(3, int), "cu_seqlens": np.array([0, 9])},
            ValueError,
            ("lengths: expected None beside cu_seqlens",),
        ),
        ({"cu_seqlens": np.array([0, 9])}, ValueError, (r"x: expected \(tokens, C\)", r"9, 3, 3")),
        ({"reset": np.ones((9, 3))}, TypeError, ("reset: expected dtype bool", "got float64")),
        ({"reset": np.ones((9, 3), int)}, TypeError, ("reset: expected dtype bool", "got int64")),
        ({"reset": np.ones((3, 9), bool)}, ValueError, (r"reset: .*\(9, 3\)", r"got \(3, 9\)")),
        ({"reset": np.ones(9, bool)}, ValueError, (r"reset: .*\(9, 3\)", r"got \(9,\)")),
        ({"reset": True}, TypeError, ("reset: expected", "got bool")),
    ],
)
@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_malformed(cell, options, kind, parts):
    rnn = make(cell)
    for call in (rnn, rnn.vjp):
        with raises(kind, *parts):
            call(normal(9, 3, 3), **options)


@pytest.mark.parametrize(
    ("ends", "kind", "parts"),
    [
        ([1, 4, 9], ValueError, ("cu_seqlens: expected 0 at first", "got 1 and 9")),
        ([0, 4, 8], ValueError, ("cu_seqlens: .* tokens, 9, at last", "got 0 and 8")),
        ([0, 5, 4, 9], ValueError, ("cu_seqlens:", "got 4 at 2")),
        ([0, 10, 9], ValueError, ("cu_seqlens:", "got 10 at 1")),
        ([-1, 9], ValueError, ("cu_seqlens:", "got -1 at 0")),
        ([], ValueError, (r"cu_seqlens: expected shape \(N \+ 1,\)", r"got \(0,\)")),
        ([[0, 9]], ValueError, ("cu_seqlens: expected shape", r"got \(1, 2\)")),
        ([0.0, 9.0], TypeError, ("cu_seqlens: expected integers", "float64")),
        (MASKED, TypeError, ("cu_seqlens: expected an array without a mask",)),
    ],
)
def test_malformed_cu_seqlens(ends, kind, parts):
    ends = ends if ends is MASKED else np.array(ends, None if ends else int)
    for batch_first in (False, True):
        rnn = make("MinGRU", batch_first=batch_first)
        with raises(kind, *parts):
            rnn(normal(9, 3), cu_seqlens=ends)


def test_malformed_calls_of_one_sequence_and_packed():
    rnn, x = make("MinGRU"), normal(9, 3)
    with raises(ValueError, "lengths: expected None for one sequence"):
        rnn(x, lengths=np.array([4]))
    with raises(ValueError, r"reset: expected shape \(9,\)", r"got \(9, 1\)"):
        rnn(x, reset=np.ones((9, 1), bool))
    ends = np.array([0, 4, 9])
    with raises(ValueError, r"h_0: expected shape \(1, 2, 5\)", r"got \(1, 3, 5\)"):
        rnn(x, np.zeros((1, 3, 5), np.float32), cu_seqlens=ends)
    with raises(ValueError, "h_0: expected 3 axes, x being packed"):
        rnn(x, np.zeros((1, 5), np.float32), cu_seqlens=ends)
    with raises(ValueError, r"reset: expected shape \(9,\)"):
        rnn(x, cu_seqlens=ends, reset=np.ones((3, 3), bool))
    _, pullback = rnn.vjp(x, cu_seqlens=ends)
    with raises(ValueError, "dy: expected 2 axes, x being packed"):
        pullback(np.zeros((1, 9, 5), np.float32))


def test_malformed_steps():
    rnn, x_t = make("LSTM"), normal(2, 3)
    rows = np.array([1, 0])

    def pool(**options):
        return tuple(np.zeros((1, 4, 5), **{"dtype": np.float32, **options}) for _ in range(2))

    def step(state, rows=rows, x_t=x_t):
        return rnn.step(x_t, state, state_indices=rows)

    with raises(TypeError, "h: expected", "got None|got NoneType"):
        step(None)
    with raises(TypeError, r"h: expected the pair \(h, c\)"):
        step(pool()[0])
    with raises(TypeError, "h: expected dtype float32", "got float64"):
        step(pool(dtype=np.float64))
    h, c = pool()
    c.flags.writeable = False
    with raises(ValueError, "c: expected memory .* can write", "read-only"):
        step((h, c))
    with raises(ValueError, "h: expected memory in C order"):
        step((np.zeros((1, 4, 10), np.float32)[..., ::2], c))
    with raises(ValueError, "c: expected shape", r"got \(1, 3, 5\)"):
        step((h, np.zeros((1, 3, 5), np.float32)))
    with raises(ValueError, r"h: expected .*3 axes|h: expected \(num_layers", r"\(4, 5\)"):
        step((h[0], h[0]))
    with raises(ValueError, "c: expected memory of its own, got that of h"):
        step((h, h))
    both = np.zeros((1, 6, 5), np.float32)
    with raises(ValueError, "c: expected memory of its own, got that of h"):
        step((both[:, :4], both[:, 2:]))
    with raises(ValueError, r"state_indices: expected integers in \[-1, 3\]", f"got {2**63 - 1}"):
        step(pool(), np.uint64([1, 2**64 - 1]))  # which is -1 to whoever drops the sign
    with raises(ValueError, "state_indices: expected shape", r"got \(3,\)"):
        step(pool(), np.array([1, 0, 2]))
    with raises(ValueError, "state_indices:", "got 4 at 1"):
        step(pool(), np.array([0, 4]))
    with raises(ValueError, "state_indices:", "got -2 at 0"):
        step(pool(), np.array([-2, 1]))
    with raises(ValueError, "state_indices: expected each state once"):
        step(pool(), np.array([1, 1]))
    with raises(TypeError, "state_indices: expected an array without a mask"):
        step(pool(), MASKED[:2])
    with raises(ValueError, "state_indices: expected None for one sequence"):
        step(pool(), np.array([1]), x_t[0])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", [1, 10, 2]),
        ("lengths", [1, 2, -1]),
        ("lengths", [1, 2, 2**40]),
        ("lengths", np.array([1, 2**64 - 1, 2], np.uint64)),
        ("cu_seqlens", [1, 4, 9]),
        ("cu_seqlens", [0, 4, 8]),
        ("cu_seqlens", [0, 5, 4, 9]),
        ("cu_seqlens", [0, 10, 9]),
        ("cu_seqlens", [-1, 9]),
        ("cu_seqlens", [0]),
        ("state_indices", [0, 4, 1]),
        ("state_indices", [0, -2, 1]),
        ("state_indices", [1, 0, 1]),
        ("state_indices", [-1, 2, 2]),
    ],
)
def test_what_goes_to_a_device_is_checked_in_the_words_of_the_core(monkeypatch, name, values):
    """Nobody else can: the core does not look at what is on a device."""
    rnn, values = make("MinGRU", device="cpu"), np.asarray(values)

    calls = {
        "lengths": lambda: rnn(normal(9, 3, 3), lengths=values),
        "cu_seqlens": lambda: rnn(normal(9, 3), cu_seqlens=values),
        "state_indices": lambda: rnn.step(
            normal(3, 3), np.zeros((1, 4, 5), np.float32), state_indices=values
        ),
    }

    def said():
        with pytest.raises(ValueError, match=f"^{name}: expected") as caught:
            calls[name]()
        return str(caught.value)

    wanted = said()
    monkeypatch.setattr(NumPy, "for_layer", lambda *_: Elsewhere("cpu"))
    monkeypatch.setattr(_core, "forward", None)
    assert said() == wanted
