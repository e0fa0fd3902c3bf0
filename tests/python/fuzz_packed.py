# SPDX-License-Identifier: Apache-2.0
"""Ragged cases of fuzz.py's layers as torch has them: a module of scanrnn.torch and PackedSequence.

The module computes inference, so that nothing is drawn, and gradients of that by autograd. A
PackedSequence has no sequence without a step, and no resets: the sequences that are left are one
more batch, held to the oracle as the others are.
"""

import importlib

import gradients
import numpy as np
from ragged_support import as_state, flat
from support import DEVICE, assert_close, construct

CONSTANT = 3  # the number of the state that is one to the gradients: m of SLSTM


def takes(case):
    """Whether a case has sequences that torch can pack."""
    return case.library == "torch" and case.ragged != "" and case.steps > 0 and case.batch > 0


def run(running):
    lengths = running.there.sum(0)
    taken = lengths > 0
    if taken.any():
        Packed(running, taken, lengths[taken]).run()


class Packed:
    """Sequences of these lengths, `taken` from all of a case."""

    def __init__(self, running, taken, lengths):
        self.running, self.case, self.lengths = running, running.case, lengths
        self.torch, self.there = importlib.import_module("torch"), running.there[:, taken]
        self.x = running.x[:, taken] * self.there[..., None]
        self.initial = [part[:, taken] for part in running.initial]
        self.module = self.made()
        self.oracle = gradients.Oracle(running.told, self.x, self.initial, there=self.there)

    def made(self):
        modules = importlib.import_module("scanrnn.torch")
        options = self.case.options | {"dropout": 0.0}  # of which torch warns where L is 1
        options["dtype"] = getattr(self.torch, options["dtype"])
        module = construct(
            modules, self.case.cell, *self.case.sizes, strategy=self.case.strategy, device=DEVICE,
            **options,
        )  # fmt: skip
        of_library = self.running.arrays.of_library
        values = self.running.rnn.state_dict().items()
        module.load_state_dict({name: of_library(value) for name, value in values})
        return module.eval()

    def given(self, values, hidden):
        """[T,B,.] in the layout of the module, with `hidden` where there is no step."""
        values = np.where(self.there[..., None], values, hidden)
        first = self.case.options["batch_first"]
        return self.running.arrays.give(values.swapaxes(0, 1) if first else values)

    def taken(self, array):
        values = self.running.arrays.take(array)
        return values.swapaxes(0, 1) if self.case.options["batch_first"] else values

    def run(self):
        case, utils = self.case, self.torch.nn.utils.rnn
        first = case.options["batch_first"]
        x = self.given(self.x, np.nan).requires_grad_(case.training)
        states = [self.running.arrays.give(part) for part in self.initial if case.state]
        for part in states[:CONSTANT]:
            part.requires_grad_(case.training)
        sequence = utils.pack_padded_sequence(
            x, self.torch.from_numpy(self.lengths), first, enforce_sorted=False
        )
        packed, final = self.module(sequence, as_state(states) if case.state else None)
        finals = flat(final)
        assert self.torch.equal(packed.batch_sizes, sequence.batch_sizes)
        y, lengths = utils.pad_packed_sequence(packed, first, total_length=case.steps)
        np.testing.assert_array_equal(lengths, self.lengths)
        share, largest = self.running.share(self.oracle), self.oracle.largest
        assert_close(self.taken(y), self.oracle.y, share, "PackedSequence: y", largest=largest)
        for got, wanted in zip(finals, self.oracle.finals, strict=True):
            values = self.running.arrays.take(got)
            assert_close(values, wanted, share, "PackedSequence: state", largest=largest)
        if case.training:
            self.run_backward(x, states[:CONSTANT], [y, *finals[:CONSTANT]])

    def run_backward(self, x, states, outputs):
        arrays = self.running.arrays
        dy = arrays.values(*self.oracle.y.shape) * self.there[..., None]
        dfinals = [arrays.values(*part.shape) for part in self.initial]
        dfinals[CONSTANT:] = [np.zeros(part.shape) for part in dfinals[CONSTANT:]]
        cotangents = [self.given(dy, 1), *map(arrays.give, dfinals[:CONSTANT])]
        found = self.torch.autograd.grad(
            outputs, [x, *states, *self.module.parameters()], cotangents
        )
        (dx, dstates, dparams), scales = self.oracle.vjp(dy, dfinals)
        named = [("dx", self.taken(found[0]), dx, scales[0])]
        own = [(f"dstate {i}", dstates[i], scales[1][i]) for i in range(len(states))]
        names = [name for name, _ in self.module.named_parameters()]
        own += [(f"d{name}", dparams[name], scales[2][name]) for name in names]
        for got, (name, *wanted) in zip(found[1:], own, strict=True):
            named.append((name, arrays.take(got), *wanted))
        named = [(f"PackedSequence: {name}", *values) for name, *values in named]
        self.running.check_gradients(named, 1 + self.oracle.growth)
