#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An Equinox model around a layer of scanrnn.jax: is the sum of all inputs so far positive?

python docs/examples/equinox_model.py --steps 200
"""

from __future__ import annotations

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import scanrnn.jax


class Recurrent(eqx.Module):
    """Any layer of scanrnn.jax, of a whole batch: one call for all of its sequences."""

    layer: scanrnn.jax.Layer = eqx.field(static=True)
    params: dict[str, jax.Array]

    def __init__(self, layer: scanrnn.jax.Layer, *, key: jax.Array) -> None:
        self.layer, self.params = layer, layer.init(key)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        y, _ = self.layer(self.params, x, key=key)
        return y


class Model(eqx.Module):
    recurrent: Recurrent
    head: eqx.nn.Linear

    def __init__(self, hidden: int, *, key: jax.Array) -> None:
        own, heads = jax.random.split(key)
        layer = scanrnn.jax.GRU(1, hidden, num_layers=2, dropout=0.1, zoneout=0.1)
        self.recurrent = Recurrent(layer, key=own)
        self.head = eqx.nn.Linear(hidden, 1, key=heads)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return jax.vmap(jax.vmap(self.head))(self.recurrent(x, key=key))


def batch(key: jax.Array, length: int = 24, rows: int = 32) -> tuple[jax.Array, jax.Array]:
    """x [T,B,1], and 0 or 1 likewise."""
    x = jax.random.normal(key, (length, rows, 1))
    return x, (jnp.cumsum(x, 0) > 0).astype(x.dtype)


def loss_of(
    model: Model, x: jax.Array, wanted: jax.Array, key: jax.Array | None = None
) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(model(x, key=key), wanted).mean()


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=32)
    chosen = parser.parse_args(arguments)
    model, optimizer = Model(chosen.hidden, key=jax.random.key(0)), optax.adam(1e-2)
    memory = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def train(model: Model, memory: optax.OptState, key: jax.Array) -> tuple:
        data, drawn = jax.random.split(key)
        loss, gradients = eqx.filter_value_and_grad(loss_of)(model, *batch(data), drawn)
        updates, memory = optimizer.update(gradients, memory)
        return eqx.apply_updates(model, updates), memory, loss

    losses = []
    for step in range(chosen.steps):
        model, memory, loss = train(model, memory, jax.random.key(step))
        losses.append(float(loss))
        if step % 50 == 0 or step + 1 == chosen.steps:
            print(f"step {step}: {losses[-1]:.3f}")
    held_out = loss_of(model, *batch(jax.random.key(2**31)))
    print(f"held out: {held_out:.3f}")
    return [*losses, float(held_out)]


if __name__ == "__main__":
    main()
