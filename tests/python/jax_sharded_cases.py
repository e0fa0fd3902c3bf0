# SPDX-License-Identifier: Apache-2.0
"""What test_jax_sharded.py tries in a process with several devices."""

import faulthandler
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scanrnn.jax
from support import construct

jax.config.update("jax_enable_x64", True)
LEAST, MOST = map(int, sys.argv[1:3])
SIZE = min(MOST, len(jax.devices()))


def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:SIZE]), ("time",))


def number(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape, "float64")


def state(rnn, batch):
    shapes = rnn.description.state_shapes(batch)
    states = tuple(number(*shape, seed=9 + i) for i, shape in enumerate(shapes))
    return states if len(states) > 1 else states[0]


def ragged(batch, steps, batch_first=False):
    marks = np.arange(steps * batch).reshape(steps, batch) % 3 == 2
    return {
        "lengths": np.array([steps, 3, 0, 5][:batch]),
        "reset": jnp.asarray(marks.T if batch_first else marks),
    }


def compare(rnn, groups, batch=4, steps=8, initial=True, told=None):
    """y, states, and the gradients of a loss of all of them."""
    params = rnn.init(jax.random.key(1))
    shape = (batch, steps) if rnn.description.batch_first else (steps, batch)
    x, h_0 = number(*shape, rnn.input_size), state(rnn, batch) if initial else None

    def loss(call, params, x, h_0):
        out = call(params, x, h_0, **(told or {}))
        parts = [(v * number(*v.shape, seed=i)).sum() for i, v in enumerate(jax.tree.leaves(out))]
        return sum(parts), out

    found = []
    for call in (rnn, scanrnn.jax.time_sharded(rnn, mesh(), groups=groups)):
        print(f"  {rnn}, {steps} steps: {call}", file=sys.stderr, flush=True)
        given = (0, 1, 2) if initial else (0, 1)

        def own(*args, call=call):
            return loss(call, *args)

        gradient = jax.grad(own, argnums=given, has_aux=True)
        gradient = gradient if call is rnn else jax.jit(gradient)  # to compile takes long
        found.append(gradient(params, x, h_0))
    for want, got in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=1e-11 * max(1, np.abs(want).max(initial=0))
        )


def kinds():
    """One cell of each: with a readout and a highway, diagonal."""
    for name in ("SRU", "IndRNN"):
        compare(construct(scanrnn.jax, name, 3, 5, dtype="float64"), groups=2)


def both_directions():
    rnn = scanrnn.jax.LSTM(3, 5, 2, bidirectional=True, batch_first=True, dtype="float64")
    compare(rnn, groups=4)


def steps_that_are_not_there():
    """Sequences end, and devices have padding."""
    for batch_first in (False, True):
        rnn = scanrnn.jax.LSTM(
            3, 5, 2, bidirectional=True, batch_first=batch_first, dtype="float64"
        )
        compare(rnn, groups=2, steps=7, told=ragged(4, 7, batch_first))
    told = ragged(4, 8)
    compare(scanrnn.jax.MinGRU(3, 5, dtype="float64"), 1, told={"lengths": told["lengths"]})
    compare(scanrnn.jax.SRU(3, 5, dtype="float64"), 4, steps=3)
    both = scanrnn.jax.MinLSTM(3, 5, bidirectional=True, dtype="float64")
    compare(both, 2, steps=9, told={"reset": ragged(4, 9)["reset"]})


def scans():
    for shape, groups, kind in (
        ((9, 2, 3), 3, "float64"),
        ((8,), 1, "complex128"),
        ((2, 4), 2, "float64"),
    ):
        unit = 1 + 0.5j if kind == "complex128" else 1
        a, b, weight = (unit * number(*shape, seed=seed) for seed in range(3))
        h_0, marks = unit * number(*shape[1:], seed=3), np.arange(shape[0]) % 4 == 3
        marks = jnp.asarray(marks.reshape(-1, *(1,) * (len(shape) - 1)))
        for reset, initial in ((None, h_0), (marks, h_0), (None, None)):
            found = []
            for scan in (scanrnn.jax.scan, scanrnn.jax.scan_sharded(mesh(), groups=groups)):

                def loss(a, b, h_0, scan=scan, reset=reset, weight=weight):
                    h = scan(a, b, h_0, reset=reset)
                    return (h * weight).real.sum(), h

                given = (0, 1) if initial is None else (0, 1, 2)
                found.append(jax.jit(jax.grad(loss, given, has_aux=True))(a, b, initial))
            for want, got in zip(*map(jax.tree.leaves, found), strict=True):
                np.testing.assert_allclose(
                    got, want, rtol=0, atol=1e-11 * max(1, np.abs(want).max())
                )
    empty = jnp.zeros((0, 4))
    assert scanrnn.jax.scan_sharded(mesh())(empty, empty).shape == (0, 4)


def no_state():
    compare(scanrnn.jax.MinGRU(3, 5, bias=False, dtype="float64"), 1, batch=1, initial=False)
    compare(scanrnn.jax.GRU(3, 5, dtype="float64"), groups=2, steps=0)


def over_the_batch():
    """Not time but rows split by shard_map: each device calls the layer on its own ones, and draws
    by a key of its own. Gradients of what all of them have are added up by JAX."""
    rnn = scanrnn.jax.LSTM(3, 5, 2, dropout=0.25, zoneout=0.25, dtype="float64")
    params, x, h_0 = rnn.init(jax.random.key(1)), number(6, 2 * SIZE, 3), state(rnn, 2 * SIZE)
    keys, devices = jax.random.split(jax.random.key(2), SIZE), mesh()
    time, everywhere = jax.sharding.PartitionSpec(None, "time"), jax.sharding.PartitionSpec()

    def own(params, x, h_0, keys):
        return rnn(params, x, h_0, key=keys[0])[0]

    split = jax.shard_map(
        own, mesh=devices, in_specs=(everywhere, time, time, jax.sharding.PartitionSpec("time")),
        out_specs=time, check_vma=False,
    )  # fmt: skip

    def one_by_one(params, x, h_0, keys):
        parts = [
            own(
                params, x[:, b : b + 2], jax.tree.map(lambda h, b=b: h[:, b : b + 2], h_0), keys[i:]
            )
            for i, b in enumerate(range(0, 2 * SIZE, 2))
        ]
        return jnp.concatenate(parts, 1)

    def gradients(call):
        def loss(params, x, h_0):
            return (call(params, x, h_0, keys) ** 2).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(params, x, h_0)

    for want, got in zip(
        *(jax.tree.leaves(gradients(call)) for call in (one_by_one, split)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * max(1, np.abs(want).max()))


def errors():
    rnn = scanrnn.jax.GRU(3, 5, dtype="float64")
    params, x = rnn.init(jax.random.key(0)), jnp.zeros((8, 4, 3))
    sharded = scanrnn.jax.time_sharded
    for words, call in (
        (r"rnn: expected a layer of scanrnn\.jax, got", lambda: sharded(None, mesh())),
        (r"axis: expected one of \('time',\), got 'x'", lambda: sharded(rnn, mesh(), "x")),
        ("groups: expected at least 1, got 0", lambda: sharded(rnn, mesh(), groups=0)),
        (
            "lengths: expected integers in",
            lambda: sharded(rnn, mesh())(params, x, lengths=np.array([8, 9, 1, 1])),
        ),
        ("reset: expected shape", lambda: sharded(rnn, mesh())(params, x, reset=x[0, :, 0] > 0)),
        (
            "divisor of the lines, 12, got 5",
            lambda: scanrnn.jax.scan_sharded(mesh(), groups=5)(x, x),
        ),
        ("x: expected a batch of three axes", lambda: sharded(rnn, mesh())(params, x[:, 0])),
        ("divisor of the batch, 4, got 3", lambda: sharded(rnn, mesh(), groups=3)(params, x)),
        ("params: missing", lambda: sharded(rnn, mesh())({}, x)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


CASES = (
    kinds, both_directions, steps_that_are_not_there, scans, no_state, over_the_batch, errors,
)  # fmt: skip

if __name__ == "__main__":
    if SIZE < LEAST:
        print(f"wants {LEAST} GPUs, there are {SIZE}")
        sys.exit()
    faulthandler.enable()
    for case in CASES:
        print(f"{case.__name__}: begins", file=sys.stderr, flush=True)
        case()
        print(f"{case.__name__}: right", flush=True)
