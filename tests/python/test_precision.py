# SPDX-License-Identifier: Apache-2.0
"""The precision of float32 products: torch's names, for the whole process, on CUDA alone."""

import threading

import numpy as np
import pytest
import scanrnn
from scanrnn import _core
from scanrnn.precision import Used
from support import DEVICE, make, normal


@pytest.fixture(autouse=True)
def highest_again():
    yield
    scanrnn.set_float32_matmul_precision("highest")


def test_names():
    assert scanrnn.get_float32_matmul_precision() == "highest"
    for name in ("high", "medium", "highest"):
        scanrnn.set_float32_matmul_precision(name)
        assert scanrnn.get_float32_matmul_precision() == name
    with pytest.raises(ValueError, match=r"^precision: expected one of 'highest', 'high', 'med"):
        scanrnn.set_float32_matmul_precision("low")
    with pytest.raises(TypeError, match=r"^precision: expected a string, got None"):
        scanrnn.set_float32_matmul_precision(None)
    assert scanrnn.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_error(dtype):
    """On CUDA a float32 product's error is that of its factors; nothing else changes at all."""
    rnn = make("MinGRU", 256, 64, "linear", dtype=dtype)
    x = normal(500, 2, 256, dtype=rnn.dtype)
    exact = rnn(x, strategy="fused_sequential")[0]
    errors = {}
    for name in ("highest", "high", "medium"):
        scanrnn.set_float32_matmul_precision(name)
        error = np.abs(rnn(x, strategy="fused_sequential")[0] - exact)
        errors[name] = error.max() / np.abs(exact).max()
    assert errors["highest"] == 0
    if DEVICE == "cpu" or dtype == "float64":
        assert errors["high"] == errors["medium"] == 0
    else:  # factors of 11 bits, and of 8 where cuBLAS finds that faster
        assert 1e-6 < errors["high"] < 2.0**-10
        assert errors["high"] <= errors["medium"] < 2.0**-7


def test_a_thread_may_use_another():
    """Plans are kept for each precision, and the process's choice stays what it is."""
    device, found = _core.Device(DEVICE), []
    scanrnn.set_float32_matmul_precision("medium")
    chosen = _core.settings(device)
    with Used("high"):
        used = _core.settings(device)
        other = threading.Thread(target=lambda: found.append(_core.settings(device)))
        other.start()
        other.join()
        assert scanrnn.get_float32_matmul_precision() == "medium"
    assert found == [chosen]
    assert used != chosen
    assert _core.settings(device) == chosen
    with Used("medium"):
        assert _core.settings(device) == chosen
    with (
        pytest.raises(ValueError, match=r"^precision: expected one of 'highest', 'high', 'med"),
        Used("low"),
    ):
        pass
    assert _core.settings(device) == chosen
