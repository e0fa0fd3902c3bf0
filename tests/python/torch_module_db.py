# SPDX-License-Identifier: Apache-2.0
"""torch's own samples of its recurrent modules, as torch's tests of them have them."""

import contextlib
import sys
import types
import unittest
import warnings

from torch_support import DEVICE, WIDE, st, torch

Packed = torch.nn.utils.rnn.PackedSequence


@contextlib.contextmanager
def _as_it_was():
    """torch's test modules forbid this process to set torch.backends, and want a package of which
    they use one class, unittest's but for a method that is not called here."""
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    absent = "expecttest" not in sys.modules
    flag, backends = "__allow_nonbracketed_mutation_flag", vars(torch.backends.m)
    allowed = backends[flag]
    try:
        import expecttest  # noqa: F401
    except ImportError:
        sys.modules["expecttest"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        backends[flag] = allowed
        if absent and sys.modules.get("expecttest") is stand_in:
            del sys.modules["expecttest"]


with _as_it_was():
    from torch.testing._internal.common_modules import (
        FunctionInput,
        ModuleErrorEnum,
        ModuleInput,
        module_db,
    )

CONSTRUCTION = ModuleErrorEnum.CONSTRUCTION_ERROR
INFOS = {
    info.module_cls.__name__: info
    for info in module_db
    if info.module_cls.__module__ == "torch.nn.modules.rnn"
}
LAYERS = [name for name in INFOS if not name.endswith("Cell")]
CELLS = [name for name in INFOS if name not in LAYERS]


def samples(name, device=DEVICE, dtype=WIDE):
    """The samples of a class; tensors require grad."""
    info = INFOS[name]
    more = {"with_packed_sequence": True} if name in ("RNN", "GRU") else {}
    found = info.module_inputs_func(
        info, device=device, dtype=dtype, requires_grad=True, training=True, **more
    )
    return [*found, *(_batches(name, device, dtype) if name in CELLS else [])]


def _batches(name, device, dtype):
    """Torch's samples of cells are one sequence each, all with a state and biases."""

    def made(*shape):
        value = torch.testing.make_tensor(shape, device=device, dtype=dtype)
        return value.requires_grad_()

    def state():
        return (made(3, 10), made(3, 10)) if name == "LSTMCell" else made(3, 10)

    calls = [(made(3, 5), state()), (made(3, 5),), (made(5),)]
    return [
        ModuleInput(FunctionInput(5, 10, bias=bias), FunctionInput(*args))
        for bias in (True, False)
        for args in calls
    ]


# (class, the sample's number)
SAMPLES, RECTANGULAR = [], []
for _name in INFOS:
    for _at, _sample in enumerate(samples(_name, "cpu")):
        SAMPLES.append((_name, _at))
        if not isinstance(_sample.forward_input.args[0], Packed):
            RECTANGULAR.append((_name, _at))


def sample_of(name, at, dtype=WIDE):
    torch.manual_seed(at)
    return samples(name, dtype=dtype)[at]


def error_samples(name):
    info = INFOS[name]
    return info.module_error_inputs_func(
        info, device=DEVICE, dtype=torch.float32, requires_grad=False, training=True
    )


def construct(kind, given, **factory):
    torch.manual_seed(0)
    return kind(*given.args, **{**given.kwargs, **factory})


def both(name, sample, dtype=WIDE):
    """Ours and torch's, with the same parameters."""
    kinds = getattr(st, name), getattr(torch.nn, name)
    given = sample.constructor_input
    ours, theirs = (construct(kind, given, device=DEVICE, dtype=dtype) for kind in kinds)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs
