# SPDX-License-Identifier: Apache-2.0
"""The length of the longest packed sequence, told beside cu_seqlens."""

import importlib

import numpy as np
import pytest
from ragged_support import flat
from support import DEVICE, construct, make, normal

ENDS = np.array([0, 5, 5, 12, 13])
CASES = [("GRU", {}), ("GRU", {"layer_norm": True}), ("LSTM", {"proj_size": 3}), ("MinGRU", {}),
         ("IndRNN", {}), ("GRU", {"reset_after": False})]  # fmt: skip


@pytest.mark.parametrize(("cell", "options"), CASES)
@pytest.mark.parametrize("longest", [7, 13, np.int32(8)])
def test_results_are_the_same(cell, options, longest):
    rnn = make(cell, 3, 6, bidirectional=True, dtype="float64", **options)
    x = normal(13, 3, dtype=np.float64)
    (y, h_n), pullback = rnn.vjp(x, cu_seqlens=ENDS)
    (told, h_told), pull = rnn.vjp(x, cu_seqlens=ENDS, longest=longest)
    dy = normal(*y.shape, dtype=np.float64, seed=1)
    wanted, got = pullback(dy), pull(dy)
    pairs = [(told, y), (rnn(x, cu_seqlens=ENDS, longest=longest)[0], y), (got[0], wanted[0])]
    pairs += zip(flat(h_told), flat(h_n), strict=True)
    pairs += [(got[2][name], value) for name, value in wanted[2].items()]
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def arrays(library):
    """A function of x, cu_seqlens and options of a call, in that library."""
    if library == "numpy":
        return make("GRU", 3, 6)
    module = pytest.importorskip(library)
    ours = importlib.import_module(f"scanrnn.{library}")
    if library == "torch":
        rnn = construct(ours, "GRU", 3, 6, device=DEVICE)
        return lambda x, cu_seqlens, **told: rnn(
            module.tensor(x, device=DEVICE), cu_seqlens=module.tensor(cu_seqlens), **told
        )
    rnn = construct(ours, "GRU", 3, 6)
    params = rnn.init(module.random.key(0))
    return lambda x, cu_seqlens, **told: rnn(params, x, cu_seqlens=cu_seqlens, **told)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_libraries_take_it_and_refuse_what_is_wrong(library):
    call, x = arrays(library), normal(13, 3)
    wanted = np.asarray(call(x, cu_seqlens=ENDS)[0].tolist())
    told = np.asarray(call(x, cu_seqlens=ENDS, longest=7)[0].tolist())
    np.testing.assert_allclose(told, wanted, rtol=0, atol=1e-6)
    for longest, kind, words in [
        (-1, ValueError, "expected a number >= 0, got -1"),
        (0, ValueError, "expected at least 1 where there are tokens, got 0"),
        (14, ValueError, "expected at most the number of tokens, 13, got 14"),
        (2.5, TypeError, "expected an integer"),
        ("7", TypeError, "expected an integer"),
    ]:
        with pytest.raises(kind, match=f"^longest: {words}"):
            call(x, cu_seqlens=ENDS, longest=longest)
    with pytest.raises(ValueError, match=r"^longest: expected None without cu_seqlens, got 7"):
        call(x, cu_seqlens=None, longest=7) if library == "numpy" else arrays_alone(library)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_an_x_of_another_rank_is_named(library):
    with pytest.raises((ValueError, TypeError), match=r"^(x|input): "):
        arrays(library)(normal(1, 0, 3), cu_seqlens=np.zeros(2, np.int64), longest=0)


def arrays_alone(library):
    module, ours = importlib.import_module(library), importlib.import_module(f"scanrnn.{library}")
    if library == "torch":
        return construct(ours, "GRU", 3, 6)(module.zeros(4, 2, 3), longest=7)
    rnn = construct(ours, "GRU", 3, 6)
    return rnn(rnn.init(module.random.key(0)), module.numpy.zeros((4, 2, 3)), longest=7)


# On the CPU the core reads cu_seqlens; those of the host are read before they go to a device.
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_longer_sequence_is_an_error(library):
    words = "longest: expected at least 7, the steps of sequence 2, got 6"
    with pytest.raises((ValueError, RuntimeError), match=words):
        arrays(library)(normal(13, 3), cu_seqlens=ENDS, longest=6)


def test_a_packed_sequence_tells_it(monkeypatch):
    torch = pytest.importorskip("torch")
    ours = importlib.import_module("scanrnn.torch")
    rnn, asked = construct(ours, "GRU", 3, 6, device=DEVICE), []
    forward = ours.Recurrent.forward

    def watched(*args, **told):
        asked.append(told.get("longest"))
        return forward(*args, **told)

    monkeypatch.setattr(ours.Recurrent, "forward", watched)
    sequences = [torch.zeros(n, 3, device=DEVICE) for n in (4, 9, 2)]
    rnn(torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))
    assert asked == [None, 9]


def test_beside_a_packed_sequence():
    torch = pytest.importorskip("torch")
    import scanrnn.torch

    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    ends = torch.tensor([0, 3, 5])
    with pytest.raises(ValueError, match=r"^cu_seqlens: expected None with a PackedSequence"):
        scanrnn.torch.GRU(4, 6)(packed, cu_seqlens=ends, longest=3)
