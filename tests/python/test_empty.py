# SPDX-License-Identifier: Apache-2.0
"""No steps, no sequences, or neither: states pass through and gradients are zeros, of every dtype,
from every library. Odd sizes: memory of the wrong width would be misaligned as well."""

import ml_dtypes
import numpy as np
import pytest
from support import ALL_CELLS, DEVICE, INFO, construct, make, rows

DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
SIZES = [(0, 13), (5, 0), (0, 0)]
C, H = 9, 15


def states_of(cell):
    return INFO[cell].states


def as_list(state):
    return list(state) if isinstance(state, tuple) else [state]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_numpy(cell, dtype, num_layers, bidirectional):
    options = {"num_layers": num_layers, "bidirectional": bidirectional, "dtype": dtype}
    layer = make(cell, C, H, **options)
    kind = DTYPES[dtype]
    for T, B in SIZES:
        for given in (False, True):
            shape = (rows(layer), B, H)
            state = tuple(np.full(shape, 0.5 + i, kind) for i in range(states_of(cell)))
            state = state if len(state) > 1 else state[0]
            x = np.zeros((T, B, layer.input_size), kind)
            (y, h_n), pullback = layer.vjp(x, state if given else None)
            assert y.shape == (T, B, H * (1 + bidirectional))
            parts = zip(as_list(h_n), as_list(state), INFO[cell].fresh, strict=True)
            for got, wanted, fresh in parts:
                np.testing.assert_array_equal(got, wanted if given else np.full_like(wanted, fresh))
            dx, dh_0, dparams = pullback(np.zeros_like(y), state)
            assert dx.shape == x.shape
            for got, wanted in zip(as_list(dh_0), as_list(state), strict=True):
                np.testing.assert_array_equal(got, wanted)
            assert set(dparams) == set(layer.state_dict())
            for name, gradient in dparams.items():
                assert not gradient.astype(np.float64).any(), (T, B, name)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_wrong_shape_is_named(cell):
    layer = make(cell, C, H)
    with pytest.raises(ValueError, match="x: expected"):
        layer(np.zeros((0, 2, layer.input_size - 1), np.float32))
    state = np.zeros((1, 0, H - 1), np.float32)
    x = np.zeros((3, 0, layer.input_size), np.float32)
    with pytest.raises(ValueError, match="h_0: expected"):
        layer(x, (state,) * states_of(cell) if states_of(cell) > 1 else state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_torch(cell, dtype):
    torch = pytest.importorskip("torch")
    import scanrnn.torch

    kind = {"dtype": getattr(torch, dtype), "device": DEVICE}
    layer = construct(scanrnn.torch, cell, C, H, num_layers=2, bidirectional=True, **kind)
    for T, B in SIZES:
        state = tuple(
            torch.full((rows(layer), B, H), 0.5 + i, requires_grad=True, **kind)
            for i in range(states_of(cell))
        )
        x = torch.zeros(T, B, layer.input_size, requires_grad=True, **kind)
        layer.zero_grad()
        y, h_n = layer(x, state if len(state) > 1 else state[0])
        weights = [torch.full_like(h, 3.0) for h in state]
        loss = sum((h * w).sum() for h, w in zip(as_list(h_n), weights, strict=True)) + y.sum()
        loss.backward()
        for got, before, wanted in zip(as_list(h_n), state, weights, strict=True):
            assert torch.equal(got, before)
            assert torch.equal(before.grad, wanted)
        assert x.grad.shape == x.shape
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None, (T, B, name)
            assert not parameter.grad.any(), (T, B, name)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_jax(cell):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    import scanrnn.jax

    layer = construct(scanrnn.jax, cell, C, H, num_layers=2)
    params = layer.init(jax.random.key(0))
    for T, B in SIZES:

        def loss(params, x, state):
            y, h_n = layer(params, x, state)
            return y.sum() + 3 * sum(h.sum() for h in as_list(h_n))

        state = tuple(jnp.full((2, B, H), 0.5 + i) for i in range(states_of(cell)))
        state = state if len(state) > 1 else state[0]
        x = jnp.zeros((T, B, layer.input_size))
        dparams, dx, dstate = jax.grad(loss, (0, 1, 2))(params, x, state)
        assert dx.shape == x.shape
        for gradient in as_list(dstate):
            np.testing.assert_array_equal(gradient, np.full((2, B, H), 3.0))
        for name, gradient in dparams.items():
            assert not np.asarray(gradient).any(), (T, B, name)
