# SPDX-License-Identifier: Apache-2.0
"""What test_keras.py tries in a process whose Keras has one backend."""

import itertools
import os
import re
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import scanrnn.keras
from keras import layers, ops

NAMES = ("LSTM", "GRU", "SimpleRNN")
B, T, C, H = 4, 7, 3, 5


def number(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def both(name, **options):
    """Keras' layer and ours with its weights."""
    pair = [getattr(module, name)(H, **options) for module in (layers, scanrnn.keras)]
    for layer in pair:
        layer.build((B, T, C))
    weights = [number(*w.shape, seed=i) * 0.5 for i, w in enumerate(pair[0].weights)]
    for layer in pair:
        layer.set_weights(weights)
    paths = [[w.path.partition("/")[2] for w in layer.weights] for layer in pair]
    assert paths[0] == paths[1]
    return pair


def same(got, wanted, tolerance=2e-6):
    got, wanted = ([ops.convert_to_numpy(v) for v in keras.tree.flatten(o)] for o in (got, wanted))
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g.astype("float64"), w.astype("float64"), atol=tolerance, rtol=0)


def masks():
    ends = np.arange(T) < np.array([T, 3, 1, 0])[:, None]
    return {
        "none": None,
        "right": ends,
        "left": ends[:, ::-1],
        "holes": np.random.default_rng(1).random((B, T)) < 0.6,
    }


def values():
    kinds = [(name, {}) for name in NAMES] + [("GRU", {"reset_after": False})]
    for (name, kind), whole, backwards in itertools.product(kinds, (True, False), (True, False)):
        options = {"return_sequences": whole, "go_backwards": backwards, "return_state": True}
        options |= kind
        for zeros, (side, mask) in itertools.product((True, False), masks().items()):
            theirs, ours = both(
                name, zero_output_for_mask=zeros, use_bias=side != "left", **options
            )
            x = number(B, T, C)
            mask = None if mask is None else ops.convert_to_tensor(mask)
            h_0 = [number(B, H, seed=7 + i) for i in range(2 if name == "LSTM" else 1)]
            same(ours(x, mask=mask), theirs(x, mask=mask))
            got, wanted = (
                layer(x, mask=mask, initial_state=list(map(ops.convert_to_tensor, h_0)))
                for layer in (ours, theirs)
            )
            same(got, wanted)


def dtypes():
    for name in NAMES:
        theirs, ours = both(name, dtype="mixed_bfloat16", return_sequences=True)
        same(ours(number(B, T, C)), theirs(number(B, T, C)), 0.05)


def stateful():
    for name in NAMES:
        theirs, ours = both(name, stateful=True)
        for seed in range(3):
            x = number(B, T, C, seed=seed)
            same(ours(x), theirs(x))


def stateful_training():
    """Keras' own LSTM and GRU train so on JAX, and on torch where there is a mask."""
    x, wanted = number(8, T, C), number(8, 1, seed=3)
    x[2, 4:] = 0  # masked
    for name, masked in itertools.product(NAMES, (True, False)):
        losses = []
        for module in (layers, scanrnn.keras):
            if module is layers and keras.backend.backend() == "torch" and not masked:
                continue
            keras.utils.set_random_seed(1)
            mask = [layers.Masking()] if masked else []
            rnn = getattr(module, name)(H, stateful=True)
            model = keras.Sequential(
                [keras.Input((T, C), batch_size=4), *mask, rnn, layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.1), "mse")
            fitted = model.fit(x, wanted, epochs=3, batch_size=4, shuffle=False, verbose=0)
            losses.append(fitted.history["loss"])
        np.testing.assert_allclose(losses[-1], losses[0], rtol=1e-4)
        assert losses[-1][-1] < losses[-1][0]


def models(module):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((T, C)),
            layers.Masking(),
            layers.Bidirectional(module.LSTM(H, return_sequences=True)),
            module.GRU(H, return_sequences=True),
            module.SimpleRNN(H, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def training():
    """fit, jitted where the backend does it, goes the same way: so the gradients are the same."""
    x, wanted = number(32, T, C), number(32, 1, seed=3)
    x[3, 4:] = 0  # masked
    theirs, ours = models(layers), models(scanrnn.keras)
    same(ours.get_weights(), theirs.get_weights(), 0)
    losses = [
        model.fit(x, wanted, epochs=4, batch_size=8, shuffle=False, verbose=0).history["loss"]
        for model in (theirs, ours)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    same(ours.get_weights(), theirs.get_weights(), 1e-4)
    same(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), 1e-4)


def dropout():
    """Keras' own, by its seeds: one mask for all steps."""
    for name in NAMES:
        theirs, ours = both(name, dropout=0.5, seed=3, return_sequences=True)
        x = number(B, T, C)
        same(ours(x, training=True), theirs(x, training=True))
        same(ours(x), theirs(x))


def files():
    x, model = number(8, T, C), models(scanrnn.keras)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        again = keras.saving.load_model(path)
        kinds = [type(layer) for layer in again.layers]
        assert scanrnn.keras.GRU in kinds
        assert scanrnn.keras.SimpleRNN in kinds
        same(again.predict(x, verbose=0), model.predict(x, verbose=0), 0)
        weights = Path(folder) / "model.weights.h5"
        model.save_weights(weights)
        theirs = models(layers)
        theirs.load_weights(weights)
        same(theirs.predict(x, verbose=0), model.predict(x, verbose=0))


def masks_of_other_shapes():
    theirs, ours = both("LSTM", return_sequences=True)
    x = number(B, T, C)
    for shape in ((1, T), (B, T, 1)):
        mask = ops.convert_to_tensor(np.random.default_rng(2).random(shape) < 0.6)
        same(ours(x, mask=mask), theirs(x, mask=mask))
    for shape in ((B, T - 1), (B, T + 2), (B, 1), (B - 1, T), (T,)):
        with pytest.raises(ValueError, match=re.escape(f"mask: expected shape {(B, T)} = (batch")):
            ours(x, mask=ops.ones(shape, "bool"))


def errors():
    for name, options, words in (
        ("LSTM", {"activation": "relu"}, "activation: expected keras.activations.tanh, got"),
        (
            "LSTM",
            {"recurrent_activation": "tanh"},
            "recurrent_activation: expected keras.activations.sig",
        ),
        ("GRU", {"recurrent_dropout": 0.5}, "recurrent_dropout: expected 0, got 0.5"),
        ("SimpleRNN", {"activation": "elu"}, "activation: expected keras.activations.tanh or"),
        ("SimpleRNN", {"unroll": True}, "unroll: expected False, got True"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            getattr(scanrnn.keras, name)(H, **options)
        layer = getattr(scanrnn.keras, name)(H)
        layer.build((B, T, C))
        for option, value in options.items():
            at = layer if option == "unroll" else layer.cell
            setattr(at, option, keras.activations.get(value) if "activ" in option else value)
        with pytest.raises(ValueError, match=re.escape(words)):
            layer(number(B, T, C))


if __name__ == "__main__":
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    for case in sys.argv[1:]:
        globals()[case]()
        print(f"{case}: right", flush=True)
