# SPDX-License-Identifier: Apache-2.0
"""Ragged batches whose integers are on a GPU: nobody waits for them, a graph may capture them, and
values that make no sense reach nothing. SCANRNN_TEST_DEVICE=cuda runs it."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
from support import ALL_CELLS, DEVICE, make, normal, normal_states
from test_errors import raises
from torch_support import (
    FORMS,
    LENGTHS,
    flat,
    input_of,
    integers,
    module,
    options_of,
    packed,
    same,
    state,
    tensor,
    torch,
)

pytestmark = [
    pytest.mark.skipif(DEVICE == "cpu", reason="wants SCANRNN_TEST_DEVICE=cuda"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),  # torch's, that it is new
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),  # torch's, of a warm-up
]
FLOAT = torch.float32
OTHERS = {"lengths": [0, 2, 9, 9], "ends": [0, 7, 8, 8, 19], "shift": 2}


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def pulled_back(rnn, x, h_0, options):
    """y, the states, and the gradients of all that there is."""
    out = flat(rnn(x, h_0, **options))
    leaves = [leaf for leaf in (x, *flat([h_0]), *rnn.parameters()) if leaf.requires_grad]
    return [*out, *torch.autograd.grad([v.square().sum() for v in out], leaves)]


# ---- graphs


def graph_of(run):
    """A graph of run(), and what it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_a_replay_reads_what_is_there_then(cell, form):
    rnn = module(cell, 4, 64, 2, bidirectional=True, dtype=FLOAT)
    x = input_of(rnn, form, dtype=FLOAT, grad=True)
    h_0, options = state(rnn, 4, FLOAT, grad=True), options_of(form)
    first, other = options_of(form), options_of(form, **OTHERS)
    graph, out = graph_of(lambda: pulled_back(rnn, x, h_0, options))
    found = []
    for told in (other, first):
        for name, value in told.items():
            options[name].copy_(value)
        graph.replay()
        found.append([value.clone() for value in out])
        same(found[-1], pulled_back(rnn, x, h_0, told), 1e-6)
    for one, two in zip(*found, strict=True):
        assert not torch.equal(one, two)


@pytest.mark.parametrize("hidden", [128, 256])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_graph_of_episodes(cell, hidden):
    """Training of a batch as reinforcement learning has it, and again with other resets."""
    rnn = module(cell, hidden, hidden, dtype=torch.bfloat16)
    x = tensor(128, 256, hidden, dtype=torch.bfloat16, grad=True)
    reset = torch.rand(128, 256, device="cuda") < 0.03
    leaves = [x, *rnn.parameters()]

    def run():
        y = rnn(x, reset=reset)[0]
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    graph, out = graph_of(run)
    for _ in range(2):
        graph.replay()
        same([value.clone() for value in out], run(), 0)
        reset.copy_(torch.rand(128, 256, device="cuda") < 0.03)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_a_graph_of_steps_from_a_pool(cell):
    rnn = make(cell, 16, 64, num_layers=2)
    pools = [
        torch.as_tensor(part, device="cuda", dtype=FLOAT) for part in normal_states(cell, 2, 7, 64)
    ]
    before = [pool.clone() for pool in pools]
    x_t, rows = tensor(4, rnn.input_size, dtype=FLOAT), integers([3, -1, 0, 6], torch.int32)
    h = tuple(pools) if len(pools) > 1 else pools[0]

    def run():
        return rnn.step(x_t, h, state_indices=rows)[0]

    def put_back():
        for pool, was in zip(pools, before, strict=True):
            pool.copy_(was)

    graph, y = graph_of(run)
    for indices in ([3, -1, 0, 6], [5, 2, -1, 1]):
        rows.copy_(integers(indices))
        put_back()
        graph.replay()
        got = [y.clone(), *(pool.clone() for pool in pools)]
        put_back()
        same(got, [run(), *pools], 0)
        for pool, was in zip(pools, before, strict=True):
            left = [row for row in range(7) if row not in indices]
            assert torch.equal(pool[:, left], was[:, left])


# ---- nobody waits


@contextlib.contextmanager
def busy():
    """The device has a second's work, and is at it when the calls inside have returned."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # of torch's own ways to wait
    try:
        torch.cuda._sleep(2_000_000_000)
        yield
        waited = torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not waited, "the host has waited"


def never_waits(*calls):
    for call in calls:  # memory, parameters and kernels get there
        call()
    with busy():
        for call in calls:
            call()


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_forward_and_backward_do_not_wait(cell):
    rnn = module(cell, 4, 64, dtype=FLOAT)
    h_0 = state(rnn, 4, FLOAT, grad=True)
    calls = []
    for form in FORMS:
        x, options = input_of(rnn, form, dtype=FLOAT, grad=True), options_of(form)
        calls.append(lambda x=x, options=options: pulled_back(rnn, x, h_0, options))
    never_waits(*calls)


@pytest.mark.parametrize("form", ["lengths_reset", "packed_reset"])
@pytest.mark.parametrize("where", ["device", "host"])
def test_layers_of_parameters_of_their_own_do_not_wait(where, form):
    rnn, options = make("GRU", 4, 64), options_of(form)
    x = input_of(rnn, form, dtype=FLOAT)
    if where == "host":
        options = {name: value.cpu().numpy() for name, value in options.items()}

    def call():
        (y, _), pullback = rnn.vjp(x, **options)
        pullback(y)

    never_waits(call, lambda: rnn(x, **options))


def test_integers_of_the_host_do_not_wait():
    rnn, x = module("GRU", 4, 64, dtype=FLOAT), tensor(9, 4, 4, dtype=FLOAT, grad=True)
    reset = np.arange(36).reshape(9, 4) % 5 == 3
    never_waits(
        lambda: pulled_back(rnn, x, state_of(rnn), {"lengths": torch.tensor(LENGTHS)}),
        lambda: pulled_back(rnn, x, state_of(rnn), {"lengths": np.array(LENGTHS), "reset": reset}),
    )


def state_of(rnn):
    return torch.zeros(1, 4, rnn.hidden_size, device=DEVICE, requires_grad=True)


def test_a_packed_sequence_does_not_wait():
    rnn = module("LSTM", 4, 64, bidirectional=True, dtype=FLOAT)
    x = tensor(9, 4, 4, dtype=FLOAT, grad=True)
    sequence = packed(x, LENGTHS)

    def call():
        y, states = rnn(sequence)
        parts = [y.data, *states]
        torch.autograd.grad([v.sum() for v in parts], list(rnn.parameters()))

    never_waits(call)


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_steps_from_a_pool_do_not_wait(cell):
    rnn = make(cell, 16, 64, num_layers=2)
    pools = tuple(tensor(2, 7, 64, dtype=FLOAT) for _ in range(rnn._cell.states))
    h = pools if len(pools) > 1 else pools[0]
    x_t, rows = tensor(3, rnn.input_size, dtype=FLOAT), integers([3, -1, 0])
    never_waits(
        lambda: rnn.step(x_t, h, state_indices=rows),
        lambda: rnn.step(x_t, h, state_indices=np.array([3, -1, 0])),
    )


# ---- arrays of every kind


def test_integers_and_bools_of_every_stride():
    rnn, x = make("GRU", 4, 6), tensor(9, 4, 4, dtype=FLOAT)
    wanted, _ = rnn(x, lengths=np.array(LENGTHS))
    for dtype in (torch.int32, torch.int64):
        for lengths in (
            integers(LENGTHS, dtype),
            integers(LENGTHS, dtype).repeat_interleave(3)[::3],
        ):
            same([rnn(x, lengths=lengths)[0]], [wanted], 0)
    wanted, _ = rnn(x, lengths=np.full(4, 5))
    same([rnn(x, lengths=integers([5]).expand(4))[0]], [wanted], 0)
    reset = np.arange(36).reshape(4, 9) % 5 == 3
    given = torch.tensor(reset, device=DEVICE)
    same([rnn(x, reset=given.T)[0]], [rnn(x, reset=reset.T)[0]], 0)
    row = np.broadcast_to(reset[1, :, None], (9, 4))
    same([rnn(x, reset=given[1, :, None].expand(9, 4))[0]], [rnn(x, reset=row)[0]], 0)
    with raises(TypeError, "lengths: expected a torch tensor on cuda:0.*got a torch tensor on cpu"):
        rnn(x, lengths=torch.tensor(LENGTHS))


def test_cupys_arrays(cupy):
    rnn, x = make("GRU", 4, 6), normal(9, 4, 4)
    lengths, reset = np.array(LENGTHS), np.arange(36).reshape(9, 4) % 5 == 3
    (wanted, _), pullback = rnn.vjp(x, lengths=lengths, reset=reset)
    dx = pullback(wanted)[0]
    wide = cupy.asarray(np.repeat(lengths, 2))[::2]
    for kind in (np.asarray, cupy.asarray, lambda v: wide if v is lengths else cupy.asarray(v)):
        (y, _), pullback = rnn.vjp(cupy.asarray(x), lengths=kind(lengths), reset=kind(reset))
        np.testing.assert_array_equal(cupy.asnumpy(y), wanted)
        np.testing.assert_array_equal(cupy.asnumpy(pullback(y)[0]), dx)
    tokens, ends = x.reshape(36, 4), np.array([0, 9, 9, 30, 36])
    wanted, _ = rnn(tokens, cu_seqlens=ends)
    for kind in (np.asarray, cupy.asarray):
        y, _ = rnn(cupy.asarray(tokens), cu_seqlens=kind(ends))
        np.testing.assert_array_equal(cupy.asnumpy(y), wanted)


class Interface:
    """Has __cuda_array_interface__ and nothing else."""

    def __init__(self, array, read_only=False):
        self.array, fields = array, array.__cuda_array_interface__
        self.__cuda_array_interface__ = dict(fields, data=(fields["data"][0], read_only))


def test_pools_of_cupys_and_of_strangers(cupy):
    """They are written where they are."""
    rnn, x_t, rows = make("GRU", 4, 6), normal(3, 4), np.array([3, -1, 0])
    wanted = normal(1, 5, 6)
    pools = [cupy.asarray(wanted) for _ in range(3)]
    y, same_pool = rnn.step(x_t, wanted, state_indices=rows)
    assert same_pool is wanted
    got, back = rnn.step(cupy.asarray(x_t), pools[0], state_indices=cupy.asarray(rows))
    assert back is pools[0]
    strangers = Interface(cupy.asarray(x_t)), Interface(pools[1])
    rnn.step(*strangers, state_indices=Interface(cupy.asarray(rows)))
    rnn.step(cupy.asarray(x_t), pools[2], state_indices=rows)
    np.testing.assert_array_equal(cupy.asnumpy(got), y)
    for pool in pools:
        np.testing.assert_array_equal(cupy.asnumpy(pool), wanted)
    with raises(ValueError, "h: expected memory to write, got read-only"):
        rnn.step(cupy.asarray(x_t), Interface(pools[1], True), state_indices=rows)
    with raises(ValueError, "h: expected memory in C order"):
        rnn.step(
            cupy.asarray(x_t), cupy.zeros((1, 5, 12), np.float32)[..., ::2], state_indices=rows
        )


# ---- values that make no sense


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_what_is_out_of_range_is_clamped(cell):
    rnn = module(cell, 4, 6, 2, bidirectional=True)
    C = rnn.input_size
    x, h_0 = tensor(9, 4, C, grad=True), state(rnn, 4, grad=True)
    for given, meant in (
        ([12, -3, 4, 2**31 - 1], [9, 0, 4, 9]),
        ([2**40, -(2**40), 1, 9], [9, 0, 1, 9]),
    ):
        found = (
            pulled_back(rnn, x, h_0, {"lengths": integers(values)}) for values in (given, meant)
        )
        same(*found, share=0)
    x = tensor(19, C, grad=True)
    found = (
        pulled_back(rnn, x, h_0, {"cu_seqlens": integers(ends)})
        for ends in ([3, 5, 5, 14, 11], [0, 5, 5, 14, 19])
    )
    same(*found, share=0)
    for ends in ([0, 25, -4, 7, 19], [19, 14, 5, 5, 0], [2**40, -(2**40), 0, 2**31, -1]):
        pulled_back(rnn, x, h_0, {"cu_seqlens": integers(ends)})
        torch.cuda.synchronize()


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_rows_beyond_the_pool_are_skipped(cell):
    rnn = make(cell, 4, 6, num_layers=2)
    count = rnn._cell.states
    found = []
    for rows in ([7, 2, 2**40, 8], [-1, 2, -1, -1]):
        pools = [
            torch.as_tensor(part, device="cuda", dtype=FLOAT)
            for part in normal_states(cell, 2, 7, 6)
        ]
        h = tuple(pools) if count > 1 else pools[0]
        y, _ = rnn.step(tensor(4, rnn.input_size, dtype=FLOAT), h, state_indices=integers(rows))
        found.append([y, *pools])
    same(*found, share=0)


CHECKED = """
import torch, scanrnn

rnn = scanrnn.MinGRU(3, 5, device="cuda")
x, pool = torch.zeros(9, 3, 3, device="cuda"), torch.zeros(1, 4, 5, device="cuda")

def said(call, name, *values):
    try:
        call(**{name: torch.tensor(values, device="cuda")})
        print(name, "is right")
    except ValueError as problem:
        print(problem)

def step(**options):
    rnn.step(x[0], pool, **options)

said(lambda **told: rnn(x, **told), "lengths", 9, 0, 4)
said(lambda **told: rnn(x, **told), "lengths", 1, 10, 2)
said(lambda **told: rnn.vjp(x, **told), "lengths", 1, 2, -1)
said(lambda **told: rnn(x[:, 0], **told), "cu_seqlens", 0, 5, 4, 9)
said(lambda **told: rnn(x[:, 0], **told), "cu_seqlens", 0, 8)
said(step, "state_indices", 0, 4, 1)
said(step, "state_indices", 1, 0, 1)
said(step, "state_indices", 3, -1, 0)
"""


def test_on_request_they_are_checked():
    """SCANRNN_CHECK=1, in the words of the CPU."""
    found = subprocess.run(
        [sys.executable, "-c", CHECKED],
        env=os.environ | {"SCANRNN_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "lengths is right",
        "lengths: expected integers in [0, 9], got 10 at 1",
        "lengths: expected integers in [0, 9], got -1 at 2",
        "cu_seqlens: expected integers in [5, 9], got 4 at 2",
        "cu_seqlens: expected 0 at first and the number of tokens, 9, at last, got 0 and 8",
        "state_indices: expected integers in [-1, 3], got 4 at 1",
        "state_indices: expected each state once, got 1 again at 2",
        "state_indices is right",
    ]
