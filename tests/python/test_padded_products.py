# SPDX-License-Identifier: Apache-2.0
"""Large products of rows that are no whole vectors, which are copied to some that are, part by
part: as many small calls, whose products are not. SCANRNN_TEST_DEVICE=cuda runs it."""

import numpy as np
import pytest
import scanrnn
from support import DEVICE, ROUNDOFF, make, normal

pytestmark = pytest.mark.skipif(DEVICE == "cpu", reason="wants SCANRNN_TEST_DEVICE=cuda")


@pytest.fixture
def tf32():
    scanrnn.set_float32_matmul_precision("high")
    yield
    scanrnn.set_float32_matmul_precision("highest")


def training(rnn, x, dy):
    """y, the gradients, and what they are called; arrays of float64."""
    (y, _), pullback = rnn.vjp(x)
    dx, _, dparams = pullback(dy, None)
    found = {"y": y, "dx": dx, **dparams}
    return {name: np.asarray(value, "float64") for name, value in found.items()}


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("cell", "steps", "batch", "inputs", "hidden"),
    [
        ("MinGRU", 100, 96, 314, 252),  # the results of the forward product lie where they are
        ("MinGRU", 64, 800, 651, 325),  # all is copied, in parts
        ("LSTM", 40, 320, 650, 203),
    ],
)
def test_like_small_ones(cell, steps, batch, inputs, hidden, dtype):
    rnn = make(cell, inputs, hidden, "linear" if cell == "MinGRU" else None, dtype=dtype)
    x = normal(steps, batch, inputs, dtype=rnn.dtype)
    dy = normal(steps, batch, hidden, dtype=rnn.dtype, seed=1)
    got = training(rnn, x, dy)
    few = 8  # sequences of a small call
    parts = [training(rnn, x[:, i : i + few], dy[:, i : i + few]) for i in range(0, batch, few)]
    # Both round what each product gives, and TF32 its factors.
    unit = max(ROUNDOFF[dtype], 2.0**-11)
    for name, value in got.items():
        if name in ("y", "dx"):
            wanted = np.concatenate([part[name] for part in parts], axis=1)
        else:
            wanted = sum(part[name] for part in parts)
        error = np.abs(value - wanted)
        assert np.sqrt(np.mean(error**2)) <= 2 * unit * np.sqrt(np.mean(wanted**2)), name
        assert error.max() <= 8 * unit * np.abs(wanted).max(), name
