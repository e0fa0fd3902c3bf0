# SPDX-License-Identifier: Apache-2.0
"""Random bare recurrences for test_fuzz.py: every form, axis, direction, reset, dtype, library."""

from typing import Any, NamedTuple

import fuzz
import numpy as np
import reference
import scanrnn
from fuzz_arrays import Arrays
from support import DEVICE, WIDE, assert_close, tolerance

FORMS = ("linear", "linear", "complex", "log", "log_output")


class Drawn(NamedTuple):
    form: str
    shape: tuple[int, ...]
    axis: int
    how: dict[str, Any]
    whole: Any  # the reset, as large as a


def draw(seed, case):
    random = np.random.default_rng([3, seed])
    form = FORMS[random.integers(len(FORMS))]
    if case.options["dtype"] not in WIDE:
        form = "linear"  # others are rounded on the way to the reference
    shape = [case.steps, *random.integers(1, 12, random.integers(4))]
    if random.random() < 0.2:
        shape[random.integers(len(shape))] = 0
    axis = int(random.integers(len(shape)))
    shape.insert(axis, shape.pop(0))
    reset, whole = drawn_reset(random, tuple(shape), axis)
    given_axis = axis - len(shape) if random.random() < 0.5 else axis
    how = {"axis": given_axis, "reverse": bool(random.random() < 0.5), "reset": reset}
    return Drawn(form, tuple(shape), axis, how, whole)


def drawn_reset(random, shape, axis):
    """None, or one of [T], of a part of the shape, or with axes of size 1; and the same spread."""
    if random.random() < 0.4:
        return None, None
    if random.random() < 0.3:
        given = random.random(shape[axis]) < 0.2
        whole = given.reshape(*(-1 if i == axis else 1 for i in range(len(shape))))
    else:
        end = int(random.integers(axis + 1, len(shape) + 1))
        kept = [i == axis or random.random() < 0.8 for i in range(end)]
        sizes = [n if keep else 1 for n, keep in zip(shape, kept, strict=False)]
        given = random.random(sizes) < 0.2
        whole = given.reshape(*sizes, *(1,) * (len(shape) - end))
    return given, np.broadcast_to(whole, shape)


def run(seed):
    case = fuzz.draw(seed)
    drawn = draw(seed, case)
    complexes = {"float64": "complex128", "float32": "complex64"}
    name = case.options["dtype"]
    arrays = Arrays(case, complexes[name] if drawn.form == "complex" else None)
    how = dict(drawn.how)
    if how["reset"] is not None and arrays.random.random() < 0.7:
        how["reset"] = arrays.give(how["reset"])  # else NumPy's
    how["device"] = DEVICE if case.library == "numpy" else None
    beside = (*drawn.shape[: drawn.axis], *drawn.shape[drawn.axis + 1 :])
    a, b = arrays.values(*drawn.shape), arrays.values(*drawn.shape)
    h_0 = np.asarray(arrays.values(*beside)) if case.state else None
    if drawn.form in ("linear", "complex"):
        run_values(drawn, name, arrays, how, a, b, h_0)
    else:
        run_logarithms(drawn, name, arrays, how, a, b, h_0)
    arrays.left_alone()


def exact(drawn, a, b, h_0):
    return reference.scan(a, b, h_0, drawn.how["reverse"], drawn.axis, drawn.whole)


def run_values(drawn, name, arrays, how, a, b, h_0):
    a = arrays.rounded(a / np.maximum(1, np.abs(a)) * np.exp(-np.abs(b)))
    given = None if h_0 is None else arrays.give(h_0)
    got = scanrnn.scan(arrays.give(a), arrays.give(b), given, **how)
    share = (2 if drawn.form == "complex" else 1) * tolerance(name, drawn.shape[drawn.axis])
    check(arrays.take(got), exact(drawn, a, b, h_0), share, drawn, b, h_0)


def run_logarithms(drawn, name, arrays, how, a, b, h_0):
    """With log_output signs are told where they can be: the values that come of both must agree."""
    log_a, log_b = arrays.rounded(-np.exp(a)), arrays.rounded(np.log(np.abs(b) + 1e-3))
    sign = np.copysign(1, b)
    operands = [arrays.give(v) for v in (log_a, log_b, sign)]
    a, b = np.exp(log_a), sign * np.exp(log_b)
    if drawn.form == "log":
        given = None if h_0 is None else arrays.give(h_0)
        got = arrays.take(scanrnn.scan_log(*operands, given, **how))
    else:
        pair = None
        if h_0 is not None:
            log_h = arrays.rounded(np.log(np.abs(h_0) + 1e-3))
            pair = arrays.give(log_h), arrays.give(np.copysign(1, h_0))
            h_0 = np.copysign(np.exp(log_h), h_0)
        log_h, sign_h = scanrnn.scan_log(*operands, pair, log_output=True, **how)
        got = arrays.take(sign_h) * np.exp(arrays.take(log_h))
    share = 8 * tolerance(name, drawn.shape[drawn.axis])
    check(got, exact(drawn, a, b, h_0), share, drawn, b, h_0)


def check(got, wanted, share, drawn, *added):
    sizes = [float(np.abs(v).max()) for v in added if v is not None and v.size]
    assert_close(got, wanted, share, str(drawn[:4]), largest=max(sizes, default=0))
