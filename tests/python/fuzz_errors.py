# SPDX-License-Identifier: Apache-2.0
"""Random malformed calls for test_fuzz.py: one argument of a good call is made wrong."""

import fuzz
import numpy as np
import pytest
import scanrnn
from ragged_support import as_state, flat
from support import DEVICE, INFO


def other_size(shape, random):
    """The shape with one size changed, often to or from 0."""
    shape, axis = list(shape), int(random.integers(len(shape)))
    shape[axis] = int(random.choice([n for n in (0, 1, 2, shape[axis] + 1) if n != shape[axis]]))
    return tuple(shape)


def other_rank(shape, random):
    """One axis less, or one or two more."""
    shape = list(shape)
    if shape and random.random() < 0.5:
        shape.pop(int(random.integers(len(shape))))
        return tuple(shape)
    return tuple([1] * int(random.integers(1, 3)) + shape)


class Malformed:
    """A good call of a random case, whose methods make it wrong; each raises for a name."""

    def __init__(self, seed):
        case = fuzz.draw(seed)
        layers = {**case.options, "dropout": 0.0}
        self.case = case._replace(library="numpy", options=layers)
        self.running = fuzz.Running(self.case)
        self.rnn, self.x = self.running.rnn, self.running.given_x
        self.state = self.running.give_state(self.running.initial)
        self.steps = self.running.told_steps
        self.random = np.random.default_rng([4, seed])

    def zeros(self, shape, dtype=None):
        return np.zeros(shape, self.rnn.dtype if dtype is None else dtype)

    def other_dtype(self):
        names = ["float64", "float32", "float16", "int32", "complex64", "bool"]
        return str(self.random.choice([n for n in names if n != self.case.options["dtype"]]))

    def wrong(self, array):
        """One in its place with another dtype, another rank or another size."""
        which = self.random.integers(3)
        if which == 0:
            return self.zeros(array.shape, self.other_dtype())
        if which == 1:
            return self.zeros(other_rank(array.shape, self.random))
        return self.zeros(other_size(array.shape, self.random))

    def x_of_another_dtype(self):
        self.rnn(self.zeros(self.x.shape, self.other_dtype()), self.state, **self.steps)

    def x_of_another_rank(self):
        shape = (1, 1, *self.x.shape) if self.random.random() < 0.5 else self.x.shape[-1:]
        self.rnn(self.zeros(shape), self.state, **self.steps)

    def x_of_another_width(self):
        width = self.random.choice([n for n in (0, 1, 50) if n != self.case.sizes[0]])
        call = self.rnn.vjp if self.random.random() < 0.5 else self.rnn
        call(self.zeros((*self.x.shape[:-1], width)), **self.steps)

    def state_that_is_wrong(self):
        parts = flat(self.state)
        index = int(self.random.integers(len(parts)))
        parts = [self.wrong(p) if i == index else p for i, p in enumerate(parts)]
        state = as_state(parts)
        call = self.rnn.vjp if self.random.random() < 0.5 else self.rnn
        call(self.x, state, **self.steps)

    def state_that_is_no_array(self):
        self.rnn(self.x, self.random.choice([1, "h", 2.5]), **self.steps)

    def cotangent_of_y_that_is_wrong(self):
        (y, _), pullback = self.rnn.vjp(self.x, self.state, **self.steps)
        pullback(self.wrong(y))

    def cotangent_of_the_state_that_is_wrong(self):
        (y, state), pullback = self.rnn.vjp(self.x, self.state, **self.steps)
        *others, last = flat(state)
        pullback(y, as_state([*others, self.wrong(last)]))

    def steps_that_are_wrong(self):
        if not self.steps:
            raise ValueError("lengths: not a call")
        name = str(self.random.choice([name for name in self.steps if name != "longest"]))
        value = self.steps[name]
        kinds = [value.astype(np.float32), value[None], value[..., None]]
        if value.dtype != bool and value.size:
            kinds += [value + self.case.steps + 1, value - self.case.steps - 1]
        wrong = kinds[int(self.random.integers(len(kinds)))]
        self.rnn(self.x, self.state, **{**self.steps, name: wrong})

    def step_of_another_width(self):
        if self.case.options["bidirectional"]:
            raise ValueError("x_t: not a call")
        self.rnn.step(self.zeros((self.running.batch, self.case.sizes[0] + 1)))

    def strategy_that_is_none(self):
        self.rnn(
            self.x,
            **self.steps,
            strategy=str(self.random.choice(["", "fastest", "Direct", "scan"])),
        )

    def strategy_of_the_other_kind(self):
        linear = INFO[self.case.cell].recurrence == "linear"
        self.rnn(self.x, **self.steps, strategy="step_loop" if linear else "parallel_scan")

    def option_that_is_wrong(self):
        name, value = [
            ("num_layers", 0), ("num_layers", 1.5), ("bias", 1), ("batch_first", "no"),
            ("bidirectional", None), ("dropout", 1.0), ("dropout", -0.1), ("dtype", "int8"),
            ("device", "gpu"), ("hidden_size", 0), ("hidden_size", 2**31), ("seed", -1),
        ][self.random.integers(12)]  # fmt: skip
        kind, own = INFO[self.case.cell].made_by()
        sizes = {"input_size": self.case.sizes[0], "hidden_size": self.case.sizes[1]}
        options = {"device": DEVICE} | own | sizes | self.case.options | {name: value}
        getattr(scanrnn, kind)(**options)


# By the argument that the error must name.
KINDS = (
    ("x", Malformed.x_of_another_dtype),
    ("x", Malformed.x_of_another_rank),
    ("x", Malformed.x_of_another_width),
    ("[hcnm]_0", Malformed.state_that_is_wrong),
    ("h_0", Malformed.state_that_is_no_array),
    ("dy", Malformed.cotangent_of_y_that_is_wrong),
    ("d[hcnm]_n", Malformed.cotangent_of_the_state_that_is_wrong),
    ("lengths|cu_seqlens|reset", Malformed.steps_that_are_wrong),
    ("x_t", Malformed.step_of_another_width),
    ("strategy", Malformed.strategy_that_is_none),
    ("strategy", Malformed.strategy_of_the_other_kind),
    (
        "num_layers|bias|batch_first|bidirectional|dropout|dtype|device|hidden_size|seed",
        Malformed.option_that_is_wrong,
    ),
)


def chosen(random):
    return KINDS[int(random.integers(len(KINDS)))]


def run(seed):
    """The error names the argument, nothing is written, and the next good call is right."""
    malformed = Malformed(seed)
    name, call = chosen(malformed.random)
    with pytest.raises((ValueError, TypeError), match=rf"^({name}): "):
        call(malformed)
    malformed.running.arrays.left_alone()
    if seed % 50 == 3:
        malformed.running.run()
