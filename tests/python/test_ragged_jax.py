# SPDX-License-Identifier: Apache-2.0
"""Ragged batches in scanrnn.jax, and JAX's arrays in scanrnn's own layers."""

import numpy as np
import pytest
from support import ALL_CELLS, DEVICE, make, normal
from test_errors import raises
from test_jax import (  # noqa: F401
    array,
    float64,
    jax,
    jnp,
    layer,
    same,
    squares,
    state,
    without_scale,
)

LENGTHS = [5, 9, 1]
FORMS = ["lengths", "reset", "lengths_reset", "packed", "packed_reset"]


def options_of(form):
    """Arguments beside x, which is packed where its name says so."""
    reset, ends = np.arange(27).reshape(9, 3) % 5 == 3, np.array([0, 5, 14, 15])
    return {
        "lengths": {"lengths": jnp.array(LENGTHS)},
        "reset": {"reset": jnp.array(reset)},
        "lengths_reset": {"lengths": jnp.array(LENGTHS, np.int32), "reset": jnp.array(reset)},
        "packed": {"cu_seqlens": jnp.array(ends)},
        "packed_reset": {"cu_seqlens": jnp.array(ends), "reset": jnp.arange(15) % 6 == 2},
    }[form]


def input_of(rnn, form):
    return array(*((15,) if "packed" in form else (9, 3)), rnn.input_size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_values_are_those_of_the_plain_layers(cell, form):
    rnn, params = layer(cell, 4, 6, 2, bidirectional=True)
    plain = make(cell, 4, 6, num_layers=2, bidirectional=True, dtype="float64")
    plain.load_state_dict({name: np.asarray(value) for name, value in params.items()})
    x, h_0, options = input_of(rnn, form), state(rnn, 3), options_of(form)
    numpys = {name: np.asarray(value) for name, value in options.items()}
    wanted = plain(np.asarray(x), jax.tree.map(np.asarray, h_0), **numpys)
    same(rnn(params, x, h_0, **options), wanted, 1e-12)
    same(rnn(params, x, h_0, **numpys), wanted, 1e-12)

    @jax.jit
    def traced(params, x, h_0, options):
        return rnn(params, x, h_0, **options)

    same(traced(params, x, h_0, options), wanted, 1e-12)
    same(plain(x, h_0, **options), wanted, 1e-12)
    same(plain(x, h_0, **numpys), wanted, 1e-12)
    (y, h_n), pullback = plain.vjp(x, h_0, **options)
    _, host_pullback = plain.vjp(np.asarray(x), jax.tree.map(np.asarray, h_0), **numpys)
    given = jnp.ones_like(y), jax.tree.map(jnp.ones_like, h_n)
    same(pullback(*given), host_pullback(*jax.tree.map(np.asarray, given)), 1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradients(cell, form):
    rnn, params = layer(cell, 4, 5, bidirectional=True)
    x, (h_0, scale), options = input_of(rnn, form), without_scale(state(rnn, 3)), options_of(form)

    def loss(params, x, h_0, options):
        y, h_n = rnn(params, x, (*h_0, *scale) if scale else h_0, **options)
        return (y**2).sum() + squares(h_n)

    arguments, close = (params, x, h_0), {"modes": ["rev"], "rtol": 1e-6, "eps": 1e-6}
    jax.test_util.check_grads(lambda *args: loss(*args, options), arguments, 1, **close)
    gradients = jax.grad(loss)
    same(jax.jit(gradients)(params, x, h_0, options), gradients(params, x, h_0, options))


@pytest.mark.parametrize("cell", ["MinGRU", "LSTM"])
def test_vmap(cell):
    rnn, params = layer(cell, 4, 6)
    x, lengths = array(2, 9, 3, 4), jnp.array([LENGTHS, LENGTHS[::-1]])

    def call(x, lengths):
        return rnn(params, x, lengths=lengths)[0]

    same(jax.vmap(call)(x, lengths), jnp.stack([call(*v) for v in zip(x, lengths, strict=True)]))
    shared = jax.vmap(call, (0, None))(x, lengths[0])
    same(shared, jnp.stack([call(v, lengths[0]) for v in x]))


def test_of_one_sequence_and_batch_first():
    rnn, params = layer("MinGRU", 4, 6)
    other, _ = layer("MinGRU", 4, 6, batch_first=True)
    x, reset = array(9, 4), jnp.arange(9) % 4 == 1
    wanted = rnn(params, x[:, None], reset=reset[:, None])[0][:, 0]
    same(rnn(params, x, reset=reset)[0], wanted)
    same(other(params, x, reset=reset)[0], wanted)
    x, lengths = array(9, 3, 4), jnp.array(LENGTHS)
    wanted = rnn(params, x, lengths=lengths)[0]
    same(other(params, x.swapaxes(0, 1), lengths=lengths)[0].swapaxes(0, 1), wanted)


def test_malformed():
    rnn, params = layer("GRU", 4, 6)
    x = array(9, 3, 4)
    with raises(TypeError, "lengths: expected dtype one of 'int64', 'int32'", "got float64"):
        rnn(params, x, lengths=jnp.ones(3))
    with raises(ValueError, r"lengths: expected shape \(3,\)", r"got \(2,\)"):
        rnn(params, x, lengths=jnp.ones(2, np.int64))
    with raises(ValueError, "lengths: expected an array", "got list"):
        rnn(params, x, lengths=LENGTHS)
    for name, given in [("lengths", np.array(LENGTHS)), ("reset", np.ones((9, 3), bool))]:
        with raises(TypeError, f"{name}: expected an array without a mask, got a masked array"):
            rnn(params, x, **{name: np.ma.masked_array(given)})
    with raises(TypeError, "x: expected an array without a mask, got a masked array"):
        rnn(params, np.ma.masked_array(x))
    with raises(ValueError, r"x: expected \(tokens, C\) with C = 4"):
        rnn(params, x, cu_seqlens=jnp.array([0, 9]))
    with raises(ValueError, "lengths: expected None beside cu_seqlens"):
        rnn(params, x, lengths=jnp.array(LENGTHS), cu_seqlens=jnp.array([0, 9]))
    with raises(ValueError, r"reset: expected shape \(9, 3\)"):
        rnn(params, x, reset=jnp.ones((3, 9), bool))

    def too_long(params, x):
        return rnn(params, x, lengths=np.array([1, 2, 10]))

    for call in (too_long, jax.jit(too_long)):
        with raises(ValueError, r"lengths: expected integers in \[0, 9\], got 10 at 2"):
            call(params, x)
    if DEVICE == "cpu":  # on CUDA nobody looks at what is there
        with raises(Exception, "lengths: expected integers in .* got 10 at 2"):
            jax.block_until_ready(rnn(params, x, lengths=jnp.array([1, 2, 10])))
    plain = make("GRU", 4, 6)
    pool = jnp.zeros((1, 7, 6), np.float32)
    with raises(TypeError, "h: expected memory that the call can write", "JAX array"):
        plain.step(jnp.asarray(normal(2, 4)), pool, state_indices=jnp.array([1, 0]))
