# SPDX-License-Identifier: Apache-2.0
"""What the tests share: layers by cell, random input, and a comparison that a NaN cannot pass."""

import math
import os

import numpy as np
import pytest
import scanrnn
from scanrnn import _core

INFO = {cell.name: cell for cell in scanrnn.cells()}
ALL_CELLS = [*INFO]  # for tests of what goes round all of them
DENSE = [name for name, cell in INFO.items() if cell.recurrence == "dense"]
DIAGONAL = [name for name, cell in INFO.items() if cell.recurrence == "diagonal"]
CELLS = [name for name in INFO if name not in DENSE]  # the dense ones have test_dense.py
OPTION = {name: cell.variant_option for name, cell in INFO.items() if cell.variant_option}
ALL_VARIANTS = [(name, variant) for name, cell in INFO.items() for variant in cell.variants]
DENSE_VARIANTS = [(cell, variant) for cell, variant in ALL_VARIANTS if cell in DENSE]
VARIANTS = [(cell, variant) for cell, variant in ALL_VARIANTS if cell in CELLS]
DEVICE = os.environ.get("SCANRNN_TEST_DEVICE", "cpu")  # "cuda": the same tests there
# What an unknown machine's CPU is measured by, or one of its instruction set.
MEASURED = _core.built_in_profile(scanrnn.devices()[0].architecture)
CPU_PROFILE = MEASURED.name if MEASURED else "cpu-generic"
STRATEGIES = ["direct", "fused_sequential", "parallel_scan"]


def strategies(cell):
    """What a cell that is not dense can be forced to; steps of a diagonal one do not compose."""
    return STRATEGIES[:2] if cell in DIAGONAL else STRATEGIES


def domains(cell):
    """For `make`: a cell that is no scan has no choice."""
    return ["log", "linear"] if INFO[cell].recurrence == "linear" else [None]


FORCED = [(cell, strategy) for cell in CELLS for strategy in strategies(cell)]
PICKED_AND_FORCED = [*((cell, None) for cell in CELLS), *FORCED]

# Unit roundoff of what is stored; results are computed in float32 or wider.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

WIDE = ("float64", "float32")
# CUDA keeps pre-activations, below 8 here, in the tensors' dtype.
STORED_LOGITS = 8 if DEVICE != "cpu" else 0


def tolerance(dtype, steps, inner=16):
    """States' bound, as a share of the largest: the scan, the GEMM, rounding of the result."""
    compute = 1e-13 if dtype == "float64" else 3e-7
    bound = compute * (1 + math.log2(max(steps, 1))) + inner * (compute / 4)
    return bound + (0 if dtype in WIDE else (2 + STORED_LOGITS) * ROUNDOFF[dtype])


def gradient_tolerance(dtype):
    """Relative RMS of any gradient as docs/numerics.md states it, and what rounded pre-activations
    add: their own error, and a jump of a slope that it may cross in that share of the elements."""
    bound = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    if dtype in WIDE or not STORED_LOGITS:
        return bound
    return bound + STORED_LOGITS * ROUNDOFF[dtype] + math.sqrt(ROUNDOFF[dtype])


def one_layer_tolerance(dtype, count):
    """Relative RMS of one layer's gradient of `count` values, as tests/support/tolerance.h derives
    it. A 16-bit value is stored within u / sqrt(7). The CPU stores states and the gradient; CUDA
    cotangents of pre-activations, too, and pre-activations, here of about 1, which count twice.
    Rounding changes no sign, so that the pre-activations of one layer stay on their side of a
    jump."""
    if dtype in WIDE:
        return gradient_tolerance(dtype)
    roundings = 2 if DEVICE == "cpu" else 3 + 2
    share = 2 * ROUNDOFF[dtype] * math.sqrt(roundings / 7)
    return 2e-6 + share * (1 + 2 / math.sqrt(count))


def assert_close(got, wanted, share, what="", largest=0.0):
    """|got - wanted| <= share * max|wanted|, or of the largest that was added up, and no NaN."""
    got, wanted = _comparable(got, wanted, what)
    if wanted.size == 0:
        return
    same = (got == wanted) & np.isinf(wanted)  # m of a state that there is not
    got, wanted = (np.where(same, 0, v) for v in (got, wanted))
    error = np.abs(got - wanted)
    allowed = share * max(np.abs(wanted).max(), largest) + 1e-300
    if not error.max() <= allowed:
        _fail(what, got, wanted, error, f"allowed {allowed:.3g}")


def assert_close_rms(got, wanted, share, what="", scale=0.0, floor=0.0):
    """As root mean squares: error <= share * wanted, or of the scale of its terms, + floor."""
    got, wanted = _comparable(got, wanted, what)
    if wanted.size == 0:
        return
    error = np.abs(got - wanted)
    found, size, terms = (np.sqrt(np.square(v).mean()) for v in (error, wanted, scale))
    allowed = share * max(size, terms) + floor
    if not found <= allowed:
        _fail(what, got, wanted, error, f"rms {found:.3g}, allowed {allowed:.3g}")


def _comparable(got, wanted, what):
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert np.iscomplexobj(got) == np.iscomplexobj(wanted), f"{what}: dtype {got.dtype}"
    got, wanted = got.astype(wide), wanted.astype(wide)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    return got, wanted


def _fail(what, got, wanted, error, more):
    at = np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)
    pytest.fail(
        f"{what}: at {tuple(map(int, at))} got {got[at]!r}, wanted {wanted[at]!r} "
        f"(error {error[at]:.3g}, {more})"
    )


def construct(module, cell, input_size, hidden_size, num_layers=1, variant=None, **options):
    """A layer of the cell, by the class of scanrnn, scanrnn.torch or scanrnn.jax that makes it.

    A square cell has C = H, and one layer where it has two directions: tests ask the layer.
    """
    name, own = INFO[cell].made_by()
    if variant:
        own[OPTION[cell]] = variant
    if INFO[cell].square:
        input_size = hidden_size
        num_layers = 1 if options.get("bidirectional") else num_layers
    return getattr(module, name)(input_size, hidden_size, num_layers, **own, **options)


def make(cell, input_size=3, hidden_size=5, variant=None, *, domain=None, **options):
    if domain:
        options["domain"] = domain
    options = {"seed": 0, "device": DEVICE} | options
    return construct(scanrnn, cell, input_size, hidden_size, variant=variant, **options)


def rows(rnn):
    """How many states a layer has: one for each of its layers and directions."""
    return rnn.num_layers * (1 + rnn.bidirectional)


def normal(*shape, dtype=np.float32, seed=0, scale=1.0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * scale
    return values.astype(dtype)


def normal_states(cell, *shape, dtype=np.float32, seed=0):
    """The arrays of a state; the n of four is a sum of weights."""
    parts = [normal(*shape, dtype=dtype, seed=seed + i) for i in range(INFO[cell].states)]
    if len(parts) == 4:
        parts[2] = (1 + np.abs(parts[2])).astype(dtype)
    return parts


def differentiable(cell, cotangents):
    """Cotangents of a state such that gradients are what differences give: to gradients the scale
    m of c and n is a constant, to differences it is not."""
    if INFO[cell].states < 4:
        return cotangents
    return [part if i == 0 else np.zeros_like(part) for i, part in enumerate(cotangents)]
