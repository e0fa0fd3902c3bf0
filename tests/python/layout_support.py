# SPDX-License-Identifier: Apache-2.0
"""What the tests of other libraries' weights have in common: sizes, arrays, and what must agree."""

import numpy as np
import scanrnn
from support import DEVICE, INFO, assert_close, normal

T, B, C, H = 7, 2, 3, 4
TIGHT = 1e-13


def load(weights, layout, cell, **options):
    name, own = INFO[cell].made_by()
    options = {"device": DEVICE} | own | options
    return scanrnn.load(weights, layout, getattr(scanrnn, name), **options)


def draw(**shapes):
    """Arrays of these shapes, float64, small enough that no gate is shut."""
    return {
        name: normal(*np.atleast_1d(shape), dtype=np.float64, seed=seed, scale=0.5)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def x_of(width=C):
    return normal(T, B, width, dtype=np.float64, seed=99)


def agrees(rnn, wanted, width=C):
    y, _ = rnn(x_of(width))
    assert_close(y, wanted, TIGHT, f"y of {rnn}")


def same(got, wanted):
    assert list(got) == list(wanted)
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=0, atol=1e-15, err_msg=name)
        assert got[name].flags.c_contiguous
