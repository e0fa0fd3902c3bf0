#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Flax model (nnx) around a layer of scanrnn.jax: is the sum of all inputs so far positive?

python docs/examples/flax_model.py --steps 200
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import optax
import scanrnn.jax
from flax import nnx


class Recurrent(nnx.Module):
    """Any layer of scanrnn.jax, whose keys are those of the module's stream `dropout`."""

    def __init__(self, layer: scanrnn.jax.Layer, *, rngs: nnx.Rngs) -> None:
        self.layer, self.rngs = layer, rngs
        params = layer.init(rngs.params())
        self.params = nnx.Dict({name: nnx.Param(value) for name, value in params.items()})

    def __call__(self, x: jax.Array, *, deterministic: bool = False) -> jax.Array:
        params = {name: value[...] for name, value in self.params.items()}
        y, _ = self.layer(params, x, key=None if deterministic else self.rngs.dropout())
        return y


class Model(nnx.Module):
    def __init__(self, hidden: int, *, rngs: nnx.Rngs) -> None:
        layer = scanrnn.jax.LSTM(1, hidden, num_layers=2, dropout=0.1, dropconnect=0.1)
        self.recurrent = Recurrent(layer, rngs=rngs)
        self.head = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, x: jax.Array, *, deterministic: bool = False) -> jax.Array:
        return self.head(self.recurrent(x, deterministic=deterministic))


def batch(key: jax.Array, length: int = 24, rows: int = 32) -> tuple[jax.Array, jax.Array]:
    """x [T,B,1], and 0 or 1 likewise."""
    x = jax.random.normal(key, (length, rows, 1))
    return x, (jnp.cumsum(x, 0) > 0).astype(x.dtype)


def loss_of(model: Model, x: jax.Array, wanted: jax.Array, deterministic: bool) -> jax.Array:
    logits = model(x, deterministic=deterministic)
    return optax.sigmoid_binary_cross_entropy(logits, wanted).mean()


@nnx.jit
def train(model: Model, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(loss_of)(model, *batch(key), False)
    optimizer.update(model, gradients)
    return loss


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=32)
    chosen = parser.parse_args(arguments)
    model = Model(chosen.hidden, rngs=nnx.Rngs(params=0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    losses = []
    for step in range(chosen.steps):
        losses.append(float(train(model, optimizer, jax.random.key(step))))
        if step % 50 == 0 or step + 1 == chosen.steps:
            print(f"step {step}: {losses[-1]:.3f}")
    held_out = loss_of(model, *batch(jax.random.key(2**31)), True)
    print(f"held out: {held_out:.3f}")
    return [*losses, float(held_out)]


if __name__ == "__main__":
    main()
