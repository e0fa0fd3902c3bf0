# SPDX-License-Identifier: Apache-2.0
"""What the tests share: layers by cell, random input, and a comparison that a NaN cannot pass."""

import math
import os

import numpy as np
import pytest
import scanrnn

LINEAR = [cell for cell in scanrnn.cells() if cell.recurrence == "linear"]
CELLS = [cell.name for cell in LINEAR]  # LSTM and GRU have test_dense.py
DENSE = ["LSTM", "GRU"]
VARIANTS = [(cell.name, variant) for cell in LINEAR for variant in cell.variants]
OPTION = {cell.name: cell.variant_option for cell in LINEAR}
ALL_CELLS = [cell.name for cell in scanrnn.cells()]  # for tests of what goes round all of them
ALL_VARIANTS = [(cell.name, variant) for cell in scanrnn.cells() for variant in cell.variants]
DEVICE = os.environ.get("SCANRNN_TEST_DEVICE", "cpu")  # "cuda": the same tests there
STRATEGIES = ["direct", "fused_sequential", "parallel_scan"]

# Unit roundoff of what is stored; results are computed in float32 or wider.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

WIDE = ("float64", "float32")
# CUDA keeps pre-activations, below 8 here, in the tensors' dtype.
STORED_LOGITS = 8 if DEVICE != "cpu" else 0


def tolerance(dtype, steps, inner=16):
    """Of states, as a share of the largest: the scan, the GEMM, and rounding of the result."""
    compute = 1e-13 if dtype == "float64" else 3e-7
    bound = compute * (1 + math.log2(max(steps, 1))) + inner * (compute / 4)
    return bound + (0 if dtype in WIDE else (2 + STORED_LOGITS) * ROUNDOFF[dtype])


def gradient_tolerance(dtype, count):
    """Relative RMS of one layer's gradient of `count` values, as tests/support/tolerance.h derives
    it. A 16-bit value is stored within u / sqrt(7). The CPU stores the gradient; CUDA states and
    cotangents of pre-activations, too, and pre-activations, here of about 1, which count twice.
    Rounding changes no sign, so that the pre-activations of one layer stay on their side of a
    jump."""
    if dtype in WIDE:
        return {"float64": 1e-12, "float32": 2e-6}[dtype]
    roundings = 1 if DEVICE == "cpu" else 3 + 2
    share = 2 * ROUNDOFF[dtype] * math.sqrt(roundings / 7)
    return 2e-6 + share * (1 + 2 / math.sqrt(count))


def assert_close(got, wanted, share, what=""):
    """|got - wanted| <= share * max|wanted|, and nothing that is not a number."""
    got, wanted = np.asarray(got).astype(np.float64), np.asarray(wanted).astype(np.float64)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    if wanted.size == 0:
        return
    error = np.abs(got - wanted)
    allowed = share * np.abs(wanted).max() + 1e-300
    if not error.max() <= allowed:
        at = np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)
        pytest.fail(
            f"{what}: at {tuple(map(int, at))} got {got[at]!r}, wanted {wanted[at]!r} "
            f"(error {error[at]:.3g}, allowed {allowed:.3g})"
        )


def make(cell, input_size=3, hidden_size=5, variant=None, **options):
    if variant is not None:
        options[OPTION[cell]] = variant
    options.setdefault("seed", 0)
    options.setdefault("device", DEVICE)
    return getattr(scanrnn, cell)(input_size, hidden_size, **options)


def normal(*shape, dtype=np.float32, seed=0, scale=1.0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * scale
    return values.astype(dtype)
