# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of scanrnn.jax's layers, in reverse mode over reverse mode."""

import numpy as np
import pytest
from support import ALL_CELLS, ALL_VARIANTS, INFO
from test_drops import shares
from test_jax import (  # noqa: F401
    array,
    float64,
    jax,
    jnp,
    layer,
    same,
    sj,
    squares,
    state,
    without_scale,
)
from test_ragged_jax import FORMS, input_of, options_of

from scanrnn import formulas  # isort: skip
from scanrnn.grid import Ways
from scanrnn.jax import calls, functions
from scanrnn.ragged import Ragged

LINEAR = [cell for cell in ALL_CELLS if INFO[cell].recurrence == "linear"]


def loss_of(rnn, scale, **options):
    def loss(params, x, h_0):
        y, h_n = rnn(params, x, (*h_0, *scale) if scale else h_0, **options)
        return (y**3).sum() + squares(h_n)

    return loss


def check(rnn, params, x, h_0, **options):
    """The product of the Hessian with a vector against differences of first derivatives, and for
    the cotangents of y: they are functions of x."""
    (h_0, scale), random = without_scale(h_0), np.random.default_rng(3)
    loss, point = loss_of(rnn, scale, **options), (params, x, h_0)
    slope = jax.jit(jax.grad(loss, (0, 1, 2)))
    along = jax.tree.map(lambda v: jnp.asarray(random.normal(size=v.shape)), point)

    def moved(by):
        return slope(*jax.tree.map(lambda v, d: v + by * d, point, along))

    def towards(point):
        found = jax.grad(loss, (0, 1, 2))(*point)
        return sum(jax.tree.leaves(jax.tree.map(lambda f, d: (f * d).sum(), found, along)))

    got = jax.jit(jax.grad(towards))(point)
    wanted = jax.tree.map(lambda a, b: (a - b) / 2e-5, moved(1e-5), moved(-1e-5))
    largest = max(np.abs(v).max(initial=0) for v in jax.tree.leaves(wanted))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-7 * max(largest, 1))


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids="-".join)
def test_of_every_variant(variant):
    cell, variant = variant
    rnn, params = layer(cell, 2, 3, variant=variant)
    check(rnn, params, array(4, 2, rnn.input_size), state(rnn, 2))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_of_stacks_that_draw(cell):
    variant = "tanh" if "tanh" in INFO[cell].variants else None  # which has no jump
    options = {"batch_first": True, "bias": False, "dropout": 0.25, **shares(INFO[cell])}
    rnn, params = layer(cell, 2, 3, 2, variant=variant, bidirectional=True, **options)
    x = array(2, 4, rnn.input_size)
    check(rnn, params, x, state(rnn, 2), key=jax.random.key(6))
    if cell in ("SRU", "LSTM"):
        check(rnn, params, x, state(rnn, 2))  # zoneout by its mean


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["SRU", "LSTM"])
def test_of_ragged_batches(cell, form):
    rnn, params = layer(cell, 2, 3, bidirectional=True, **shares(INFO[cell]))
    options = options_of(form)
    check(rnn, params, input_of(rnn, form), state(rnn, 3), key=jax.random.key(6), **options)


OPTIONS = [
    ("LSTM", {"proj_size": 2}),
    ("LSTM", {"num_heads": 2, "peephole": True}),
    ("GRU", {"num_heads": 2}),
    ("SRU", {"projection_size": 2, "rescale": True, "highway_bias": -1.0}),
]


@pytest.mark.parametrize(("cell", "options"), OPTIONS, ids=str)
def test_of_options(cell, options):
    rnn, params = layer(cell, 3, 4, 2, **options)
    check(
        rnn, params, array(4, 2, 3), jax.tree.map(lambda h: 0 * h, rnn(params, array(4, 2, 3))[1])
    )


CALLS = [(cell, form, True) for cell in ("SRU", "LSTM") for form in (None, *FORMS)]
CALLS += [(cell, form, False) for cell in ("LSTM", "QRNN") for form in (None, "packed")]


@pytest.mark.parametrize(("cell", "form", "wide"), CALLS)
def test_formulas_are_the_layer(cell, form, wide):
    """What second derivatives are those of, what is drawn too; also without integers of 64 bits."""
    dtype = "float64" if wide else "float32"
    options = {**shares(INFO[cell]), "dropout": 0.25, "dtype": dtype}
    rnn, params = layer(cell, 3, 5, 2, bidirectional=True, **options)
    told = options_of(form) if form else {}
    told = {k: v if v.dtype == bool else v.astype("int32") for k, v in told.items()}
    x = input_of(rnn, form or "lengths").astype(dtype)
    seed = jnp.asarray(np.array([2**31 + 5, 0], np.uint32))
    jax.config.update("jax_enable_x64", wide)
    try:
        key, ordered = jax.random.key(2**31 + 5), tuple(params[name] for name in rnn.shapes)
        y, h_n = rnn(params, x, key=key, **told)
        with jax.default_matmul_precision("highest"):  # a GPU's default is TF32
            got = [
                formulas.run(functions, x, (), ordered, Ragged(**told), seed, rnn.description, ways)
                for ways in (functions.WAYS, Ways(functions.scanned))
            ]
        for values in got:
            same(values, [y, *jax.tree.leaves(h_n)], 1e-12 if wide else 3e-6)
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_no_steps_of_linear_cells_are_walked(cell):
    rnn, params = layer(cell, 3, 3, bidirectional=True)

    def twice(x):
        return jax.grad(lambda x: (jax.grad(lambda x: rnn(params, x)[0].sum())(x) ** 2).sum())(x)

    told, linear = str(jax.make_jaxpr(twice)(array(9, 2, 3))), INFO[cell].recurrence == "linear"
    assert ("= scan[" in told, "scanrnn_scan_backward" in told) == (not linear, linear)


@pytest.mark.parametrize("cell", LINEAR)
def test_sequences_without_a_step(cell):
    rnn, params = layer(cell, 3, 3, bidirectional=True)
    ends = jnp.array([0, 0, 5, 5, 14, 14])
    check(rnn, params, array(14, 3), state(rnn, 5), cu_seqlens=ends)
    check(rnn, params, array(9, 4, 3), state(rnn, 4), lengths=jnp.array([0, 9, 1, 0]))


@pytest.mark.parametrize("cell", ["GRU", "MinGRU", "SRU"])
def test_third_derivatives_and_hessians(cell):
    rnn, params = layer(cell, 2, 3)
    x = array(3, 1, 2)

    def loss(x):
        return (rnn(params, x)[0] ** 2).sum()

    hessian = jax.jit(jax.jacrev(jax.jacrev(loss)))(x).reshape(6, 6)
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-12)

    @jax.jit
    def third(x):
        return jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(x).sum()

    got, step = jax.jit(jax.grad(third))(x), 1e-5
    at = jnp.zeros_like(x).at[1, 0, 1].set(step)
    np.testing.assert_allclose(
        got[1, 0, 1], (third(x + at) - third(x - at)) / (2 * step), rtol=1e-6
    )


def test_under_vmap():
    rnn, params = layer("MinLSTM", 2, 3)
    x = array(4, 3, 2, 2)

    @jax.jit
    def twice(x):
        return jax.grad(
            lambda x: (jax.grad(lambda x: (rnn(params, x)[0] ** 3).sum())(x) ** 2).sum()
        )(x)

    same(jax.vmap(twice)(x), jnp.stack([twice(v) for v in x]), 1e-11)


def test_what_has_no_formula_is_named():
    rnn, _ = layer("GRU", 2, 3)
    told = rnn.description._replace(options="draws=1 unknown=2")
    with pytest.raises(NotImplementedError, match="unknown: a second derivative is not there"):
        calls.second.backward_again(told, array(3, 1, 2), (), (), None, None, None)


@pytest.mark.parametrize("form", ["linear", "log_output"])
def test_no_derivative_of_a_scan_crosses_a_reset(form):
    """The sequence before it has no end."""
    random, reset = np.random.default_rng(5), jnp.arange(6)[:, None] == 3
    a, b = (jnp.asarray(random.normal(size=(6, 2))) for _ in range(2))

    def call(a, b):
        if form == "linear":
            return sj.scan(a, b, reset=reset)
        return sj.scan_log(a, b, log_output=True, reset=reset)[0]

    def both(b):
        _, tangents = jax.jvp(call, (a, b), (jnp.ones_like(a),) * 2)
        slope = jax.grad(lambda a: (call(a, b)[3:] ** 2).sum())
        return tangents[3:], jax.grad(lambda a: (slope(a)[3:] ** 2).sum())(a)[3:]

    for got, wanted in zip(both(b.at[1].set(jnp.inf)), both(b), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("cell", LINEAR)
def test_no_derivative_of_a_layer_crosses_a_border(cell):
    rnn, params = layer(cell, 2, 2)
    x = array(6, 2).at[1].set(jnp.inf)

    def slope(x, **options):
        def loss(x):
            return (rnn(params, x, **options)[0][-3:] ** 2).sum()

        return jax.grad(lambda x: (jax.grad(loss)(x)[-3:] ** 2).sum())(x)[-3:]

    got = slope(x, cu_seqlens=jnp.array([0, 3, 6]))
    np.testing.assert_allclose(got, slope(x[3:]), rtol=1e-6, atol=1e-12)


def test_closed_gates_of_rglru_have_derivatives():
    rnn, params = layer("RGLRU", 1, 1)
    params = jax.tree.map(jnp.zeros_like, params)
    params["weight_ih_l0"] = jnp.array([[-1.0], [1.0]])
    for scale in (95.0, 1e3, 1e4):
        x = jnp.full((3, 1, 1), scale)
        slope = jax.grad(lambda x: (jax.grad(lambda x: rnn(params, x)[0].sum())(x)).sum())
        assert jnp.isfinite(slope(x)).all()


@pytest.mark.parametrize("cell", ["RNN", "IndRNN", "SLSTM"])
def test_slopes_at_zero(cell):
    """A gate that is 0, and a unit that is: inside lax.scan as elsewhere."""
    options = {} if cell == "SLSTM" else {"nonlinearity": "relu"}
    rnn = getattr(sj, cell)(1, 1, dtype="float64", **options)
    params = jax.tree.map(jnp.zeros_like, rnn.init(jax.random.key(0)))
    params["weight_ih_l0"] = params["weight_ih_l0"] + (0.3 if cell == "SLSTM" else 0.5)
    params["weight_hh_l0"] = params["weight_hh_l0"] + 0.25
    x = jnp.asarray([0.0, 1.0, -0.5 if cell == "SLSTM" else 1.0])[:, None, None]

    def loss(bias, weight):
        told = {**params, "bias_ih_l0": bias, "weight_ih_l0": weight}
        return rnn(told, x)[0].sum()

    at = params["bias_ih_l0"], params["weight_ih_l0"]
    one = jax.jacobian(jax.grad(loss, 1), 0)(*at)
    other = jax.jacobian(jax.grad(loss, 0), 1)(*at)
    with jax.disable_jit():
        same_as = jax.jacobian(jax.grad(loss, 1), 0)(*at)
    np.testing.assert_allclose(one[:, 0], np.moveaxis(other[:, :, 0], 0, 1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one, same_as, rtol=1e-9, atol=1e-12)
