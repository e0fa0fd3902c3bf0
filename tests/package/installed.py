# SPDX-License-Identifier: Apache-2.0
"""Runs in the environment of a user who has installed a wheel and nothing else: no compiler, no
pytest. Every cell goes forward and backward on the CPU; prints what there was, as JSON.

Beside this file lies tests/python/reference.py, which is the oracle.
"""

import json
import os
import shutil
import sys
from pathlib import Path

FORCED = {"linear": "parallel_scan", "diagonal": "direct", "dense": "step_loop"}
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "ld", "as")


def close(name, got, wanted, tolerance):
    """NaN is not close to anything."""
    import numpy as np

    error = np.max(np.abs(got - wanted) / (1 + np.abs(wanted)))
    if not error <= tolerance:
        raise SystemExit(f"{name}: off by {error:.3g}, and {tolerance:.3g} is allowed")
    return float(error)


def along(rnn, x, weights, towards, size):
    """sum(weights * y) at x and the parameters, moved by `size` along a direction."""
    moved_x, moved = towards
    before = rnn.state_dict()
    rnn.load_state_dict({name: value + size * moved[name] for name, value in before.items()})
    y, _ = rnn(x + size * moved_x)
    rnn.load_state_dict(before)
    return float((weights * y).sum())


def check(scanrnn, oracle, cell, strategy, random):
    """The largest errors of a layer forward (beside the oracle) and backward (beside quotients)."""
    name = cell.name
    where = f"{name}, {strategy or 'as planned'}"
    options = {"num_layers": 2, "dtype": "float64", "device": "cpu"}
    options["bidirectional"] = not cell.square  # such a cell's stack has one direction
    if cell.variant_option:
        options[cell.variant_option] = "tanh"  # others have a kink, which quotients step over
    kind, own = cell.made_by()
    rnn = getattr(scanrnn, kind)(24 if cell.square else 8, 24, seed=1, **own, **options)
    x = random.standard_normal((300, 4, rnn.input_size))
    dense = cell.recurrence == "dense"
    wanted = (oracle.run_dense if dense else oracle.run)(rnn, x)[0]
    (y, _), pullback = rnn.vjp(x, strategy=strategy)
    forward = close(f"{where}: y", y, wanted, 1e-11)

    weights = random.standard_normal(y.shape)
    dx, _, dparams = pullback(weights)
    towards = (
        random.standard_normal(x.shape),
        {key: random.standard_normal(value.shape) for key, value in dparams.items()},
    )
    slope = float((dx * towards[0]).sum())
    slope += sum(float((value * towards[1][key]).sum()) for key, value in dparams.items())
    size = 1e-6  # a central quotient is off by its square, and by a rounding over it
    up, down = (along(rnn, x, weights, towards, step) for step in (size, -size))
    backward = close(f"{where}: gradient", slope, (up - down) / (2 * size), 1e-5)
    return {"forward": forward, "backward": backward}


def main():
    there = [name for name in COMPILERS if shutil.which(name)]
    if there:
        raise SystemExit(f"this environment has {there} on its PATH {os.environ.get('PATH')}")
    import numpy as np
    import scanrnn

    sys.path.insert(0, str(Path(__file__).parent))
    import reference

    folder = Path(scanrnn.__file__).resolve()
    if Path(sys.prefix).resolve() not in folder.parents:
        raise SystemExit(f"{folder} is not what was installed below {sys.prefix}")
    random = np.random.default_rng(0)
    errors = {}
    for cell in scanrnn.cells():
        for strategy in (None, FORCED[cell.recurrence]):
            errors[f"{cell.name} {strategy or 'as planned'}"] = check(
                scanrnn, reference, cell, strategy, random
            )
    a, b = random.uniform(0.5, 1, (999, 3)), random.standard_normal((999, 3))
    errors["scan"] = {"forward": close("scan", scanrnn.scan(a, b), reference.scan(a, b), 1e-11)}
    half = random.standard_normal((40, 2, 8)).astype(np.float16)
    y, _ = scanrnn.MinGRU(8, 8, dtype="float16", device="cpu", seed=1)(half)
    if y.dtype != np.float16 or not np.isfinite(y).all():
        raise SystemExit(f"float16 gives {y.dtype}, {y}")
    said = dict(line.split(": ", 1) for line in scanrnn.build_info().strip().splitlines())
    print(json.dumps({"numpy": np.__version__, **said, "errors": errors}))


main()
