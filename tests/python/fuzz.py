# SPDX-License-Identifier: Apache-2.0
"""Random cases for test_fuzz.py: a seed is a layer, a call and its arrays, all drawn from it.

Layers run in every strategy, layout, dtype and array library that there is; forward, steps, also
from a pool of states, and gradients are held to the float64 oracle. One case in five is empty, in
steps or in sequences. More than half are ragged: of many lengths, padded or packed, or with resets;
torch's are packed as torch does it, too.
"""

import functools
import importlib.util
import math
from typing import Any, NamedTuple

import fuzz_packed
import fuzz_pools
import gradients
import numpy as np
from fuzz_arrays import Arrays
from ragged_support import as_state, flat
from scanrnn import arguments
from support import (
    ALL_CELLS,
    DEVICE,
    INFO,
    WIDE,
    assert_close,
    assert_close_rms,
    gradient_tolerance,
    make,
    rows,
    strategies,
    tolerance,
)

FLOOR = {"float16": 2.0**-25}  # half of the least number; of others what float32 flushes to zero


class Case(NamedTuple):
    """A layer and a call, before any array is there."""

    seed: int
    cell: str
    sizes: tuple[int, int]  # input_size, hidden_size
    options: dict[str, Any]
    steps: int
    batch: int | None  # None: x without a batch axis
    strategy: str | None
    library: str
    state: bool
    training: bool
    scale: float  # of x
    ragged: str  # "", "lengths" or "packed"
    resets: bool

    def __str__(self):
        return f"{self.cell}{self.sizes} {self._asdict()}"


def draw(seed):
    random = np.random.default_rng([1, seed])

    def chosen(*values):
        return values[random.integers(len(values))]

    def size(most):
        """Log-uniform from 1 on: small sizes are where tails and edges are."""
        return int(math.exp(random.uniform(0, math.log(most + 1))))

    cell = chosen(*ALL_CELLS)
    dense = cell not in gradients.reference.STEP
    info = INFO[cell]
    dtype, layers = chosen(*arguments.DTYPES), chosen(1, 1, 1, 2, 3)
    rounds = DEVICE != "cpu" or info.recurrence == "diagonal"  # what a slope is taken at
    variants = smooth(info.variants) if dtype not in WIDE and rounds else info.variants
    library = chosen(*libraries(dtype))
    hidden = size(chosen(9, 40, 80))
    options = {
        "num_layers": layers,
        "bias": bool(random.random() < 0.8),
        "batch_first": bool(random.random() < 0.4),
        "bidirectional": bool(random.random() < 0.3),
        "dropout": chosen(0.25, 0.5) if random.random() < 0.2 and library != "jax" else 0.0,
        "dtype": dtype,
    }
    if info.variant_option:
        options[info.variant_option] = chosen(*variants)
    if info.recurrence == "linear":
        options["domain"] = chosen("log", "linear")
    inputs = hidden if random.random() < 0.25 else size(40)  # SRU's skip needs no projection there
    if library != "jax":  # whose calls with draws are others'
        draw_options(cell, options, hidden, seed)
    if by_lines(options) and dtype not in WIDE and info.variant_option:  # sums are kept in 16 bits
        options[info.variant_option] = chosen(*smooth(info.variants))
    if info.square:
        inputs, options["num_layers"] = hidden, 1 if options["bidirectional"] else layers
    steps, batch = size(chosen(4, 20, 40 if dense else 130)), size(chosen(3, 9))
    if random.random() < 0.01 and not dense:
        steps *= 12
    if random.random() < 0.2:
        steps, batch = chosen((0, batch), (steps, 0), (0, 0), (0, batch), (steps, 0))
    forced = dense_strategies(options) if dense else strategies(cell)
    if by_lines(options) and not dense:
        forced = ["fused_sequential"]
    strategy = chosen(None, None, *forced)
    batch = None if random.random() < 0.1 else batch
    state, training = bool(random.random() < 0.6), bool(random.random() < 0.6)
    ragged, resets = chosen("", "", "lengths", "packed"), bool(random.random() < 0.25)
    return Case(
        seed, cell, (inputs, hidden), options, steps, batch, strategy, library, state, training,
        min(1.0, math.sqrt(2 * hidden / inputs)),
        "" if batch is None else ragged, resets,
    )  # fmt: skip


DRAWN_OPTIONS = ("proj_size", "num_heads", "reset_after", "layer_norm", "zoneout")


def draw_options(cell, options, hidden, seed):
    """Adds options that make other sums of a step, to two cases in five."""
    random, info = np.random.default_rng([6, seed]), INFO[cell]
    names = [name for name, _ in info.options]
    if random.random() < 0.6 or not (info.recurrence == "dense" or "layer_norm" in names):
        return

    def chosen(share):
        return random.random() < share

    own = {}
    if "proj_size" in names and hidden > 1 and chosen(0.4):
        own["proj_size"] = int(random.integers(1, hidden))
    elif "num_heads" in names and chosen(0.5):
        divisors = [n for n in range(1, hidden + 1) if hidden % n == 0]
        own["num_heads"] = int(random.choice(divisors))
    if "reset_after" in names and chosen(0.5):
        own["reset_after"] = False
    elif "layer_norm" in names and cell != "PeepholeLSTM" and chosen(0.6):
        own["layer_norm"] = True
    if chosen(0.4):
        of_h = 0.0 if "proj_size" in own else 0.3
        own["zoneout"] = (of_h, 0.2) if "zoneout_cell" in names else of_h
    options |= own


def by_lines(options):
    return options.get("layer_norm", False) or not options.get("reset_after", True)


def smooth(variants):
    """Those whose slope has no jump: a logit that is stored in 16 bits, or made again from a state
    that is, may be on its other side."""
    return [name for name in variants if name not in ("g", "relu")]


def dense_strategies(options):
    """A persistent kernel walks each head by itself, but a whole line is that of all heads."""
    loops = by_lines(options) and options.get("num_heads", 1) > 1
    if DEVICE == "cpu" or options["dtype"] == "float64" or loops:
        return ["step_loop"]
    return ["step_loop", "persistent"]


def libraries(dtype):
    """NumPy's arrays most of the time; JAX compiles each shape anew, so seldom its."""
    out = ["numpy"] * 36
    out += ["torch"] * 10 if there("torch") else []
    out += ["cupy"] * 10 if DEVICE != "cpu" and there("cupy") else []
    out += ["jax"] if dtype != "float64" and there("jax") else []
    return out


@functools.cache
def there(name):
    """Whether the library is here, and can use the tests' device."""
    if importlib.util.find_spec(name) is None:
        return False
    library = importlib.import_module(name)
    if DEVICE == "cpu" or name == "cupy":
        return True
    return library.cuda.is_available() if name == "torch" else library.default_backend() != "cpu"


def draw_norms(rnn, random):
    """Parameters of norms are 1 and 0 at first. A norm makes small sums large, so scales of h's are
    small: rounding would grow from step to step."""
    values = rnn.state_dict()
    for name in [name for name in values if "norm" in name]:
        largest = 0.4 if "norm_hh" in name else 1.5
        drawn = random.uniform(0.2, 1, values[name].shape) * random.choice([-1, 1])
        values[name] = (largest * drawn).astype(rnn.dtype)
    rnn.load_state_dict(values)


# ---- a case, run and held to the oracle


class Running:
    """One case: its layer, its arrays in both worlds, and what must come out."""

    def __init__(self, case):
        self.case, self.arrays = case, Arrays(case)
        self.rnn = make(case.cell, *case.sizes, seed=case.seed, **case.options)
        draw_norms(self.rnn, np.random.default_rng([7, case.seed]))
        self.told = gradients.Description.of(self.rnn)
        self.states = self.rnn._cell.states
        self.batch = 1 if case.batch is None else case.batch
        inputs = case.sizes[0]
        self.rows = rows(self.rnn)
        self.x = self.arrays.values(case.steps, self.batch, inputs, scale=case.scale)
        self.initial = self.initial_states(self.batch)
        if not case.state:
            fresh = self.told.fresh
            self.initial = [np.full_like(p, v) for p, v in zip(self.initial, fresh, strict=True)]
        self.draw_steps()
        self.given_x = self.give(self.x, hidden=np.nan)
        self.given_state = self.give_state(self.initial) if case.state else None
        self.dtype = case.options["dtype"]

    def draw_steps(self):
        """Which steps there are, [T,B], where states are reset, and how the call is told."""
        case, random = self.case, np.random.default_rng([4, self.case.seed])
        shape, self.told_steps = (case.steps, self.batch), {}
        self.there, self.reset = np.ones(shape, bool), np.zeros(shape, bool)
        if case.ragged:
            ends = random.choice([0, case.steps, case.steps // 2, 1], self.batch)
            anywhere = random.integers(0, case.steps + 1, self.batch)
            lengths = np.where(random.random(self.batch) < 0.3, ends, anywhere)
            lengths = np.minimum(lengths, case.steps)
            self.there = np.arange(case.steps)[:, None] < lengths
            integers = random.choice([np.int64, np.int32])
            name = "lengths" if case.ragged == "lengths" else "cu_seqlens"
            values = lengths if name == "lengths" else np.concatenate([[0], np.cumsum(lengths)])
            self.told_steps[name] = self.arrays.of_library(values.astype(integers))
            if name == "cu_seqlens" and random.random() < 0.5:
                most = max(lengths, default=0)
                self.told_steps["longest"] = int(random.integers(most, values[-1] + 1))
        if case.resets:
            self.reset = random.random(shape) < random.choice([0.05, 0.3, 1.0])
            self.told_steps["reset"] = self.give(self.reset, hidden=True)

    def oracle(self, masks=None, moves=None):
        steps = {"there": self.there, "reset": self.reset, "moves": moves}
        return gradients.Oracle(self.told, self.x, self.initial, masks, **steps)

    def of_states(self, batch):
        sizes = [self.told.features, *[self.told.hidden] * (self.states - 1)]
        return [self.arrays.values(self.rows, batch, size, scale=2 / 3) for size in sizes]

    def initial_states(self, batch):
        out = self.of_states(batch)
        if self.states == 4:  # n is a sum of weights
            out[2] = self.arrays.rounded(1 + np.abs(out[2]))
        return out

    def give(self, time_first, hidden=1.0):
        """[T,B,.] in the layout of the call, with `hidden` where there is no step."""
        if self.case.ragged == "packed":
            return self.arrays.give(time_first.swapaxes(0, 1)[self.there.T])
        if self.case.ragged:
            there = self.there if time_first.ndim == 2 else self.there[..., None]
            time_first = np.where(there, time_first, hidden)
        if self.case.batch is None:
            return self.arrays.give(time_first[:, 0])
        first = self.case.options["batch_first"]
        return self.arrays.give(time_first.swapaxes(0, 1) if first else time_first)

    def take(self, array):
        values = self.arrays.take(array)
        if self.case.ragged == "packed":
            return self.unpacked(values)
        if self.case.batch is None:
            return values[:, None]
        return values.swapaxes(0, 1) if self.case.options["batch_first"] else values

    def unpacked(self, tokens):
        out = np.zeros((self.batch, self.case.steps, *tokens.shape[1:]))
        out[self.there.T] = tokens
        return out.swapaxes(0, 1)

    def give_state(self, parts):
        single = self.case.batch is None
        given = [self.arrays.give(part[:, 0] if single else part) for part in parts]
        return as_state(given)

    def take_state(self, state):
        parts = [self.arrays.take(part) for part in flat(state)]
        return [part[:, None] for part in parts] if self.case.batch is None else parts

    def share(self, oracle):
        """Norms hand on more than they are given."""
        share = tolerance(self.dtype, self.case.steps)
        return self.told.num_layers * share * (1 + oracle.growth)

    def check_forward(self, y, state, oracle, what):
        for name, got, wanted in [
            (f"{what}: y", self.take(y), oracle.y),
            *self.paired(f"{what}: state", self.take_state(state), oracle.finals),
        ]:
            assert_close(got, wanted, self.share(oracle), name, largest=oracle.largest)
        if self.case.steps == 0:
            for name, got, wanted in self.paired(what, self.take_state(state), self.initial):
                np.testing.assert_array_equal(got, wanted, f"{name}: no step, another state")

    @staticmethod
    def paired(name, got, wanted):
        return [(f"{name} {i}", g, w) for i, (g, w) in enumerate(zip(got, wanted, strict=True))]

    def run(self):
        case = self.case
        oracle = self.oracle()
        y, state = self.rnn(
            self.given_x, self.given_state, strategy=case.strategy, **self.told_steps
        )
        self.check_forward(y, state, oracle, "call")
        if case.training:
            self.run_vjp()
        if case.steps and not case.options["bidirectional"] and not self.told_steps:
            self.run_step()
        if fuzz_pools.takes(case):
            fuzz_pools.run(self)
        if fuzz_packed.takes(case):
            fuzz_packed.run(self)
        self.arrays.left_alone()

    def run_step(self):
        oracle = gradients.Oracle(self.told, self.x[:1], self.initial)
        axis = 1 if self.case.options["batch_first"] and self.case.batch is not None else 0
        x_t = self.given_x[:, 0] if axis else self.given_x[0]
        y, state = self.rnn.step(x_t, self.given_state)
        values = self.arrays.take(y)
        values = values[None, None] if self.case.batch is None else values[None]
        assert_close(values, oracle.y, self.share(oracle), "step: y", largest=oracle.largest)
        for name, got, wanted in self.paired("step", self.take_state(state), oracle.finals):
            assert_close(got, wanted, self.share(oracle), name, largest=oracle.largest)

    def run_vjp(self):
        case, random = self.case, self.arrays.random
        seed = int(random.integers(1 << 31))
        drawn = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
        masks, packed = {}, case.ragged == "packed"
        tokens = (int(self.there.sum()), 1) if packed else (case.steps, self.batch)
        if case.options["dropout"]:
            shape = *tokens, self.told.directions * self.told.features
            masks = gradients.drop_masks(self.told, shape, case.options["dropout"], drawn)
            if packed:
                masks = {layer: self.unpacked(mask[:, 0]) for layer, mask in masks.items()}
        moves = gradients.zoneout_moves(self.told, tokens, drawn)
        for at, pair in moves.items() if packed else ():
            moves[at] = [None if part is None else self.unpacked(part[:, 0]) for part in pair]
        oracle = self.oracle(masks, moves)
        (y, state), pullback = self.rnn.vjp(
            self.given_x, self.given_state, strategy=case.strategy, seed=seed, **self.told_steps
        )
        self.check_forward(y, state, oracle, "vjp")
        dy = np.zeros(oracle.y.shape)
        dfinals = [np.zeros(part.shape) for part in self.initial]
        which = random.integers(4)
        given_dy = given_dfinals = None
        if which != 0:
            dy = self.arrays.values(*dy.shape)
            given_dy = self.give(dy, hidden=np.nan)
            dy = dy * self.there[..., None]
        if which != 1:
            dfinals = self.of_states(self.batch)
            given_dfinals = self.give_state(dfinals)
        dx, dstate, dparams = pullback(given_dy, given_dfinals)
        wanted, scales = oracle.vjp(dy, dfinals)
        assert list(dparams) == list(self.told.params)
        named = [("dx", self.take(dx), wanted[0], scales[0])]
        for index, got in enumerate(self.take_state(dstate)):
            named.append((f"dstate {index}", got, wanted[1][index], scales[1][index]))
        for name, got in dparams.items():
            named.append((f"d{name}", self.arrays.take(got), wanted[2][name], scales[2][name]))
        self.check_gradients(named, 1 + oracle.growth)
        if 0 in (case.steps, self.batch):
            self.check_empty(named, dfinals)

    def check_gradients(self, named, growth):
        inputs, hidden = self.case.sizes
        tokens = self.case.steps * self.batch
        terms = max(1, tokens, self.rnn._cell.gates * hidden, inputs)
        floor = FLOOR.get(self.dtype, 2.0**-126) * (1 + 3 * math.sqrt(terms))
        share = self.told.num_layers * gradient_tolerance(self.dtype) * growth  # each hands its on
        for name, got, wanted, scale in named:
            few = 1 + 1 / math.sqrt(max(1, got.size))  # whose root mean square is no mean
            assert_close_rms(got, wanted, few * share, name, scale, floor)

    def check_empty(self, named, dfinals):
        """Nothing ran: dh_0 is dh_n to the bit, and all else is zero."""
        states = iter(dfinals)
        for name, got, _, _ in named:
            wanted = next(states) if name.startswith("dstate") else np.zeros(got.shape)
            np.testing.assert_array_equal(got, wanted, f"{name} of an empty call")


def run_layer(seed):
    Running(draw(seed)).run()
