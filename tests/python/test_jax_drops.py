# SPDX-License-Identifier: Apache-2.0
"""What training draws in JAX: by the bits of a key, the same numbers as every other array library,
under jit, grad and vmap."""

import numpy as np
import pytest
from derivative import KINDS, steps_of
from ragged_support import flat
from support import ALL_CELLS, DEVICE, assert_close, make, tolerance
from test_drops import shares
from test_errors import raises
from test_jax import (  # noqa: F401
    INFO,
    array,
    float64,
    jax,
    jnp,
    layer,
    numpy,
    same,
    squares,
    state,
    without_scale,
)

SEED = 3  # of NumPy's layers, which make a number of 64 bits of it
NUMBER = int(np.random.SeedSequence(SEED).generate_state(1, np.uint64)[0])


def key_of(number):
    halves = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(halves))


def drawing(cell, size=5, **more):
    """A layer that draws all that its cell can."""
    return layer(cell, size, size, 2, dropout=0.2, **shares(INFO[cell]), **more)


def plain_of(cell, params, size=5, **more):
    options = {"dtype": "float64", **shares(INFO[cell]), **more}
    plain = make(cell, size, size, num_layers=2, dropout=0.2, **options)
    plain.load_state_dict({name: np.asarray(value) for name, value in params.items()})
    return plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_a_seed_draws_what_it_draws_elsewhere(cell, kind):
    rnn, params = drawing(cell)
    plain, told = plain_of(cell, params), steps_of(kind)
    shape = (21, 5) if kind == "cu_seqlens" else (7, 3, 5)
    x, h_0 = array(*shape), state(rnn, 4 if kind == "cu_seqlens" else 3)
    (y, h_n), pullback = plain.vjp(np.asarray(x), jax.tree.map(np.asarray, h_0), seed=SEED, **told)
    wanted = y, h_n, pullback(np.asarray(y), h_n)

    @jax.jit  # whose key is traced
    def run(params, x, h_0, key, told):
        out, pull = jax.vjp(lambda *a: rnn(*a, key=key, **told), params, x, h_0)
        dparams, dx, dh_0 = pull(out)
        return *out, (dx, dh_0, dparams)

    got = run(params, x, h_0, key_of(NUMBER), told)
    same(got, wanted, 1e-11)
    if DEVICE == "cpu":
        same(got[:2], wanted[:2], 0)
    (y, h_n), pullback = plain.vjp(x, h_0, seed=SEED, **told)
    same((y, h_n, pullback(y, h_n)), wanted, 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_other_dtypes(dtype):
    rnn, params = drawing("SRU", dtype=dtype)
    plain = plain_of("SRU", params, dtype=dtype)
    x = array(7, 3, 5, dtype=dtype)
    want = plain.vjp(np.asarray(x), seed=SEED)[0][0]
    assert_close(numpy(rnn(params, x, key=key_of(NUMBER))[0]), numpy(want), tolerance(dtype, 7))


def test_a_seed_draws_what_it_draws_in_torch():
    torch = pytest.importorskip("torch")
    import scanrnn.torch
    from scanrnn.torch import ops

    rnn, params = drawing("LSTM")
    options = shares(INFO["LSTM"], dropout=0.2, dtype=torch.float64)
    module = scanrnn.torch.LSTM(5, 5, 2, **options)
    x, seed = array(7, 3, 5), 2**61 + 12345
    values = [torch.tensor(np.asarray(params[name])) for name in rnn.shapes]
    told = module._description()
    y, *_ = ops.run(torch.tensor(np.asarray(x)), [], values, None, torch.tensor(seed), False, told)
    same(rnn(params, x, key=key_of(seed))[0], y.numpy(), 0 if DEVICE == "cpu" else 1e-12)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_gradients_are_those_of_what_ran(cell):
    variant = "tanh" if "tanh" in INFO[cell].variants else None  # which has no jump
    rnn, params = drawing(cell, 4, variant=variant, batch_first=True)
    x, (h_0, scale) = array(2, 6, 4), without_scale(state(rnn, 2))
    key = jax.random.key(11)

    def loss(params, x, h_0):
        y, h_n = rnn(params, x, (*h_0, *scale) if scale else h_0, key=key)
        return (y**2).sum() + squares(h_n)

    jax.test_util.check_grads(loss, (params, x, h_0), 1, modes=["rev"], rtol=1e-6, eps=1e-6)
    same(jax.jit(jax.grad(loss))(params, x, h_0), jax.grad(loss)(params, x, h_0))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_training_has_a_key_and_evaluation_none(cell):
    rnn, params = drawing(cell)
    x = array(7, 3, 5)
    y = rnn(params, x)[0]
    same(y, plain_of(cell, params)(np.asarray(x))[0], 1e-12)  # zoneout by its mean
    one, other = (rnn(params, x, key=jax.random.key(n))[0] for n in (1, 2))
    same(rnn(params, x, key=jax.random.key(1))[0], one, 0)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, y)

    def loss(params, key):
        return (rnn(params, x, key=key)[0] ** 2).sum()

    # Gradients without a key are those of evaluation.
    value, grads = jax.value_and_grad(loss)(params, None)
    same(value, (y**2).sum(), 1e-12)
    move = {name: array(*value.shape, seed=4) for name, value in params.items()}
    up, down = (
        loss({k: v + sign * 1e-6 * move[k] for k, v in params.items()}, None) for sign in (1, -1)
    )
    found = sum((grads[k] * move[k]).sum() for k in params)
    assert_close(numpy(found), numpy((up - down) / 2e-6), 1e-6)


def test_nothing_to_draw_is_no_matter_of_the_key():
    rnn, params = layer("GRU", 4, 6, dropout=0.5)  # whose one layer has none behind it
    x = array(7, 3, 4)
    same(rnn(params, x, key=jax.random.key(1)), rnn(params, x), 0)


@pytest.mark.parametrize("cell", ["SRU", "LSTM"])
def test_vmap(cell):
    """One key for all draws the same in each; a key of each its own."""
    rnn, params = drawing(cell)
    x, keys = array(4, 7, 3, 5), jax.random.split(jax.random.key(5), 4)
    one = jax.vmap(lambda x: rnn(params, x, key=keys[0])[0])(x)
    same(one, jnp.stack([rnn(params, v, key=keys[0])[0] for v in x]), 0)
    each = jax.jit(jax.vmap(lambda x, key: rnn(params, x, key=key)[0]))(x, keys)
    same(each, jnp.stack([rnn(params, v, key=k)[0] for v, k in zip(x, keys, strict=True)]), 1e-12)

    def slope(x, key):
        return jax.grad(lambda x: (rnn(params, x, key=key)[0] ** 2).sum())(x)

    got = jax.vmap(slope)(x, keys)
    same(got, jnp.stack([slope(v, k) for v, k in zip(x, keys, strict=True)]), 1e-12)
    many = jax.vmap(lambda key: rnn(params, x[0], key=key)[0])(keys)
    assert not np.array_equal(many[0], many[1])


def test_a_loop_of_keys_is_traced_once():
    rnn, params = drawing("GRU")
    x, traced = array(7, 3, 5), []

    @jax.jit
    def run(x, key):
        traced.append(1)

        def body(carry, key):
            return carry, rnn(params, x, key=key)[0].sum()

        return jax.lax.scan(body, 0, jax.random.split(key, 3))[1]

    first, other = run(x, jax.random.key(1)), run(x, jax.random.key(2))
    assert len(traced) == 1
    assert len(np.unique(np.concatenate([first, other]))) == 6
    keys = jax.random.split(jax.random.key(1), 3)
    same(first, jnp.stack([rnn(params, x, key=k)[0].sum() for k in keys]), 1e-12)


def test_keys_of_other_kinds():
    rnn, params = drawing("GRU")
    x = array(7, 3, 5)
    typed = rnn(params, x, key=jax.random.key(9))[0]
    same(rnn(params, x, key=jax.random.PRNGKey(9))[0], typed, 0)  # of uint32
    long = [jax.random.key(n, impl="rbg") for n in (9, 10)]  # of 128 bits
    one, other = (rnn(params, x, key=key)[0] for key in long)
    same(rnn(params, x, key=long[0])[0], one, 0)
    assert not np.array_equal(one, other)


def test_the_share_that_is_dropped():
    rnn, params = layer("IndRNN", 64, 64, bias=False, input_dropout=0.25)
    params = {"weight_ih_l0": jnp.eye(64), "weight_hh_l0": jnp.zeros(64)}
    x = 0.5 + jnp.abs(array(9, 30, 64))
    y = numpy(rnn(params, x, key=jax.random.key(0))[0])
    dropped = y == 0
    assert (dropped == dropped[:1]).all()
    assert abs(dropped[0].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / dropped[0].size)
    np.testing.assert_allclose(y[~dropped], numpy(x / 0.75)[~dropped], rtol=1e-12)


def test_errors():
    rnn, params = drawing("GRU")
    x = array(7, 3, 5)
    for key, kind, parts in [
        (7, TypeError, (r"key: expected one of jax.random.key, got int",)),
        (
            jnp.zeros(2),
            TypeError,
            ("key: expected one of jax.random.key, got an array of float64",),
        ),
        (jax.random.split(jax.random.key(0), 3), ValueError, (r"key: expected one key.*\(3,\)",)),
        (jnp.zeros((3, 2), "uint32"), ValueError, (r"key: expected one key, got .*\(3,\)",)),
        (jnp.zeros(3, "uint32"), ValueError, (r"key: expected the bits of a key", r"\(3,\)")),
    ]:
        with raises(kind, *parts):
            rnn(params, x, key=key)
        with raises(kind, *parts):  # whatever the layer draws
            layer("GRU", 5, 5)[0](params, x, key=key)
    for changed, kind, words in [
        ({"zoneout": 1.0}, ValueError, r"zoneout: expected a probability in \[0, 1\)"),
        ({"dropout": -0.5}, ValueError, r"dropout: expected a probability in \[0, 1\)"),
        ({"dropout": "0.5"}, TypeError, "dropout: expected a number, got '0.5'"),
        ({"state_dropout": 0.5}, TypeError, "GRU: unexpected argument 'state_dropout'"),
        ({"zoneout": (0.1, 0.2)}, ValueError, "zoneout: expected a number"),
    ]:
        with raises(kind, words):
            layer("GRU", 5, 5, **changed)


def test_a_pair_of_shares():
    rnn, params = layer("LSTM", 5, 5, zoneout=(0.3, 0.2))
    plain = make("LSTM", 5, 5, zoneout=(0.3, 0.2), dtype="float64")
    plain.load_state_dict({name: np.asarray(value) for name, value in params.items()})
    x = array(7, 3, 5)
    want = plain.vjp(np.asarray(x), seed=SEED)[0]
    got = rnn(params, x, key=key_of(NUMBER))
    for g, w in zip(flat((got[0], *got[1])), flat((want[0], *want[1])), strict=True):
        assert_close(numpy(g), w, 1e-12)
    assert "zoneout=(0.3, 0.2)" in repr(rnn)
