# SPDX-License-Identifier: Apache-2.0
"""The demo: a character language model of Python's own source text, trained in NumPy.

Two layers of MinGRU by this library's forward and vjp, a softmax and Adam; then the same model,
from the same start and for the same time, with the recurrence in plain NumPy.
"""

from __future__ import annotations

import math
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scanrnn

from ..arguments import Array
from . import measure
from .baseline import Stack
from .optional import plots, progress

BATCH, STEPS = 16, 64
PEAK_RATE = 1e-2
HELD_OUT = 40_000
PROMPT = b"class Reader:\n    def "


class Text(NamedTuple):
    """Characters as indices into `symbols`; the last HELD_OUT are for testing only."""

    symbols: bytes
    train: Array
    test: Array

    def unigram_bits(self) -> float:
        """Bits a character of the test text, to one who knows how often each occurs in training."""
        counts = np.bincount(self.train, minlength=len(self.symbols)) + 1.0
        return float(-np.log2(counts / counts.sum())[self.test].mean())


def load_text(limit: int = 1_500_000) -> Text:
    """The top-level modules of the standard library, in the order of a fixed shuffle."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.is_file())
    if not files:
        raise SystemExit(f"demo: there is no Python source in {folder}")
    np.random.default_rng(0).shuffle(files)
    raw = b"\n".join(path.read_bytes() for path in files)
    ascii_only = bytes(byte for byte in raw[: 2 * limit] if 32 <= byte < 127 or byte == 10)[:limit]
    data = np.frombuffer(ascii_only, np.uint8)
    symbols, indices = np.unique(data, return_inverse=True)
    return Text(symbols.tobytes(), indices[:-HELD_OUT], indices[-HELD_OUT:])


def batches(text: Array, seed: int) -> Iterator[Array]:
    """BATCH windows from anywhere in the text, STEPS characters and the next one: [STEPS+1,B]."""
    random = np.random.default_rng(seed)
    offsets = np.arange(STEPS + 1)[:, None]
    while True:
        yield text[random.integers(0, len(text) - STEPS, BATCH) + offsets]


def one_hot(text: Text) -> Array:
    """A row for each symbol, of the unit variance that layers' initial values are meant for."""
    size = len(text.symbols)
    return np.eye(size, dtype=np.float32) * np.float32(math.sqrt(size))


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """Mean bits a character and the cotangent of the logits (of the mean in nats)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    odds = np.exp(shifted)
    odds /= odds.sum(axis=-1, keepdims=True)
    rows = np.arange(len(odds))
    bits = float(-np.log2(odds[rows, targets] + 1e-30).mean())
    odds[rows, targets] -= 1
    return bits, odds / np.float32(len(odds))


class Adam:
    def __init__(self, params: dict[str, Array]) -> None:
        self.params, self.count = params, 0
        self.first = {name: np.zeros_like(value) for name, value in params.items()}
        self.second = {name: np.zeros_like(value) for name, value in params.items()}

    def update(self, grads: dict[str, Array], rate: float) -> None:
        self.count += 1
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        clip = min(1.0, 1.0 / (norm + 1e-12))
        scale = rate * math.sqrt(1 - 0.99**self.count) / (1 - 0.9**self.count)
        for name, grad in grads.items():
            first, second = self.first[name], self.second[name]
            first += 0.1 * (clip * grad - first)
            second += 0.01 * ((clip * grad) ** 2 - second)
            self.params[name] -= scale * first / (np.sqrt(second) + 1e-8)


class Curve(NamedTuple):
    seconds: list[float]
    bits: list[float]
    characters: int

    def smooth(self) -> Array:
        bits, width = np.array(self.bits), max(1, len(self.bits) // 40)
        padded = np.concatenate([np.full(width - 1, bits[0]), bits])
        return np.convolve(padded, np.ones(width) / width, mode="valid")


def train(
    title: str, recurrent: Any, params: dict[str, Array], text: Text, seconds: float, seed: int
) -> Curve:
    """Trains in place for a time. `recurrent` has vjp and load_state_dict; the rest is shared."""
    symbols = one_hot(text)
    weights = [name for name in params if not name.startswith("out_")]
    layers = sum(name.startswith("weight_ih") for name in weights)
    h_0 = np.zeros((layers, BATCH, params["out_weight"].shape[1]), np.float32)
    adam, curve, start = Adam(params), Curve([], [], 0), time.perf_counter()
    with progress(seconds, title, bar_format="{desc} {bar} {n:.0f}/{total:.0f} s{postfix}") as bar:
        for window in batches(text.train, seed):
            (y, _), pullback = recurrent.vjp(symbols[window[:-1]], h_0)
            flat = y.reshape(-1, y.shape[-1])
            bits, dlogits = cross_entropy(
                flat @ params["out_weight"].T + params["out_bias"], window[1:].ravel()
            )
            grads = {"out_weight": dlogits.T @ flat, "out_bias": dlogits.sum(axis=0)}
            grads |= pullback((dlogits @ params["out_weight"]).reshape(y.shape))[2]
            spent = time.perf_counter() - start
            adam.update(grads, PEAK_RATE * min(1, 0.02 + max(0, 1 - spent / seconds)))
            recurrent.load_state_dict({name: params[name] for name in weights})
            curve.seconds.append(time.perf_counter() - start)
            curve.bits.append(bits)
            bar.set_postfix_str(
                f"{np.mean(curve.bits[-20:]):.2f} bits/char, "
                f"{len(curve.bits) * BATCH * STEPS / curve.seconds[-1]:,.0f} chars/s"
            )
            bar.update(min(curve.seconds[-1], seconds) - bar.n)
            if curve.seconds[-1] >= seconds:
                break
    return curve._replace(characters=len(curve.bits) * BATCH * STEPS)


def test_bits(rnn: scanrnn.Layer, params: dict[str, Array], text: Text) -> float:
    """The test text in one call, as a single sequence."""
    rnn.load_state_dict({name: params[name] for name in rnn.state_dict()})
    y, _ = rnn(one_hot(text)[text.test[:-1]])
    return cross_entropy(y @ params["out_weight"].T + params["out_bias"], text.test[1:])[0]


def sample(
    rnn: scanrnn.Layer, params: dict[str, Array], text: Text, seed: int, length: int = 400
) -> str:
    """The model reads PROMPT in one call and goes on from its state, one step() a character."""
    random, temperature = np.random.default_rng(seed), 0.6
    symbols = one_hot(text)
    read, h = rnn(symbols[[text.symbols.index(character) for character in PROMPT]])
    y, out = read[-1], []
    for _ in range(length):
        logits = (params["out_weight"] @ y + params["out_bias"]) / temperature
        # The largest of Gumbel-perturbed logits is a draw from their softmax.
        current = int(np.argmax(logits + random.gumbel(size=len(logits))))
        out.append(text.symbols[current])
        y, h = rnn.step(symbols[current], h)
    return (PROMPT + bytes(out)).decode("ascii")


def draw(curves: dict[str, Curve], unigram: float, path: Path) -> None:
    plt = plots()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for title, curve in curves.items():
        rate = curve.characters / curve.seconds[-1]
        axes.plot(curve.seconds, curve.smooth(), label=f"{title} ({rate:,.0f} characters/s)")
    axes.axhline(unigram, color="grey", linestyle="--", label="character frequencies alone")
    axes.set(xlabel="wall time, s", ylabel="training loss, bits a character", ylim=(0, None))
    axes.set_title("Two-layer MinGRU on the text of Python's standard library")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(seconds: float, hidden: int, out: Path, seed: int, device: str = "cpu") -> dict[str, float]:
    measure.ready(out)
    text = load_text()
    unigram, size = text.unigram_bits(), len(text.symbols)
    rnn = scanrnn.MinGRU(size, hidden, num_layers=2, device=device, seed=seed)
    head = np.random.default_rng(seed).uniform(-1, 1, (size, hidden)) / math.sqrt(hidden)
    start = rnn.state_dict() | {
        "out_weight": head.astype(np.float32),
        "out_bias": np.zeros(size, np.float32),
    }
    print(f"{len(text.train):,} characters of the standard library, {size} different ones;")
    print(f"their frequencies alone need {unigram:.2f} bits a character.\n{rnn!r}")
    print(rnn.plan(STEPS, BATCH, training=True))
    makers: dict[str, Callable[[], Any]] = {
        "scanrnn": lambda: rnn,
        "NumPy loop": lambda: Stack("MinGRU", start),
    }
    curves, results = {}, {"unigram": unigram}
    for title, make in makers.items():  # the same start, batches, rate and wall time for both
        params = {name: value.copy() for name, value in start.items()}
        curves[title] = train(title, make(), params, text, seconds, seed)
        results[title] = test_bits(rnn, params, text)
        print(
            f"{title:10}: {results[title]:.2f} bits a character on held-out text after "
            f"{curves[title].seconds[-1]:.0f} s and {curves[title].characters:,} characters"
        )
        if title == "scanrnn":
            written = sample(rnn, params, text, seed)
    print("\nWritten by the model, one step() a character:\n")
    print("\n".join("    " + line for line in written.splitlines()))
    draw(curves, unigram, out)
    print(f"\nLearning curves: {out}", file=sys.stderr)
    return results
