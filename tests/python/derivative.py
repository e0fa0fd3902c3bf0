# SPDX-License-Identifier: Apache-2.0
"""That a pullback is the derivative of the function that ran, along one direction of everything."""

import numpy as np
from ragged_support import as_state, flat


def random_like(value, random):
    return random.normal(size=value.shape)


def steps_of(kind, steps=7, batch=3):
    """Arguments that say which steps there are, by what kind of batch it is."""
    if kind == "lengths":
        return {"lengths": np.array([steps, steps // 2, 0][:batch])}
    if kind == "cu_seqlens":
        return {"cu_seqlens": np.array([0, steps, steps, 2 * steps, 3 * steps])}
    if kind == "reset":
        reset = np.random.default_rng(3).random((steps, batch)) < 0.3
        reset[0, 0] = True
        return {"reset": reset}
    return {}


KINDS = ("", "lengths", "cu_seqlens", "reset")


def example(rnn, kind, steps=7, batch=3, seed=5):
    """x, h_0 and the steps of a batch of this kind; packed, it has one more sequence."""
    random, told = np.random.default_rng(seed), steps_of(kind, steps, batch)
    packed = kind == "cu_seqlens"
    shape = (steps * batch,) if packed else (batch, steps) if rnn.batch_first else (steps, batch)
    if rnn.batch_first and "reset" in told:
        told["reset"] = told["reset"].T.copy()
    x = random.normal(size=(*shape, rnn.input_size)).astype(rnn.dtype)
    _, h_n = rnn(x[:0] if packed else x, cu_seqlens=np.zeros(5, int)) if packed else rnn(x)
    h_0 = [(0.5 * random_like(part, random)).astype(rnn.dtype) for part in flat(h_n)]
    return x, as_state(h_0), told


def check_derivative(build, kind="", seed=4, rtol=1e-6):
    """`build()` makes the same float64 layer each time."""
    rnn, random = build(), np.random.default_rng(8)
    x, h_0, told = example(rnn, kind)
    (y, h_n), pullback = rnn.vjp(x, h_0, seed=seed, **told)
    dy, dh_n = random_like(y, random), [random_like(part, random) for part in flat(h_n)]
    scaled = len(dh_n) == 4  # SLSTM's c and n are what they are for the m that is given
    if scaled:
        dh_n[1:] = map(np.zeros_like, dh_n[1:])
    dx, dh_0, dparams = pullback(dy, as_state(dh_n))
    along = random_like(x, random)
    of_h = [random_like(part, random) for part in flat(h_0)]
    if scaled:
        of_h[3][:] = 0
    values = rnn.state_dict()
    moves = {name: random_like(value, random) for name, value in values.items()}

    def loss(by):
        moved = build()
        moved.load_state_dict({k: v + by * moves[k] for k, v in values.items()})
        initial = as_state([h + by * move for h, move in zip(flat(h_0), of_h, strict=True)])
        y, h_n = moved.vjp(x + by * along, initial, seed=seed, **told)[0]
        parts = zip(flat(h_n), dh_n, strict=True)
        return float((y * dy).sum()) + sum(float((h * d).sum()) for h, d in parts)

    step = 1e-6
    want = (loss(step) - loss(-step)) / (2 * step)
    got = (dx * along).sum() + sum((dparams[name] * moves[name]).sum() for name in moves)
    got += sum((d * move).sum() for d, move in zip(flat(dh_0), of_h, strict=True))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)
