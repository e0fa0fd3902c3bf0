# SPDX-License-Identifier: Apache-2.0
"""Models of Flax and Equinox around scanrnn.jax's layers: those of docs/examples learn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("optax")
EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_models_learn(library, example):
    pytest.importorskip(library)
    *losses, held_out = example(f"{library}_model").main(["--steps", "120", "--hidden", "16"])
    assert len(losses) == 120
    assert abs(losses[0] - np.log(2)) < 0.15  # it knows nothing yet
    assert np.mean(losses[-10:]) < 0.4
    assert held_out < 0.4


def test_flax_draws_in_training_alone(example):
    nnx = pytest.importorskip("flax.nnx")
    module = example("flax_model")
    model = module.Model(8, rngs=nnx.Rngs(params=0, dropout=1))
    x, _ = module.batch(jax.random.key(0))
    run = nnx.jit(
        lambda model, deterministic: model(x, deterministic=deterministic), static_argnums=1
    )
    one, other = run(model, False), run(model, False)
    assert not np.array_equal(one, other)  # the stream of keys has moved on
    np.testing.assert_array_equal(run(model, True), run(model, True))


def test_equinox_draws_by_its_key(example):
    eqx = pytest.importorskip("equinox")
    module = example("equinox_model")
    model = module.Model(8, key=jax.random.key(0))
    x, _ = module.batch(jax.random.key(0))
    run = eqx.filter_jit(lambda model, key: model(x, key=key))
    keys = jax.random.split(jax.random.key(1))
    np.testing.assert_array_equal(run(model, keys[0]), run(model, keys[0]))
    assert not np.array_equal(run(model, keys[0]), run(model, keys[1]))
    leaves = jax.tree.leaves(
        eqx.filter_grad(module.loss_of)(model, *module.batch(keys[0]), keys[1])
    )
    assert all(np.isfinite(leaf).all() and (leaf != 0).any() for leaf in leaves)
