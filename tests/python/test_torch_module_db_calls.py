# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch: torch's own samples of its recurrent modules in float32, on another stream, on
either device, and what a call leaves behind."""

import copy
import gc
import time

import pytest
from support import DEVICE, assert_close, gradient_tolerance, tolerance
from torch.multiprocessing.reductions import StorageWeakRef
from torch_module_db import CELLS, INFOS, SAMPLES, Packed, both, sample_of
from torch_support import GPU, WIDE, numpy, same, torch

pytree = torch.utils._pytree
EVERY_SAMPLE = pytest.mark.parametrize(("name", "at"), SAMPLES)


def leaves(value):
    """Tensors of inputs or outputs that numbers are in."""
    found = pytree.tree_leaves(
        pytree.tree_map(lambda v: list(v) if isinstance(v, Packed) else v, value)
    )
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def mapped(of_leaf, args):
    """The arguments of a call with other numbers in the same places."""
    return [
        arg._replace(data=of_leaf(arg.data))
        if isinstance(arg, Packed)
        else pytree.tree_map_only(torch.Tensor, of_leaf, arg)
        for arg in args
    ]


def trained(rnn, args):
    """Outputs, and the gradients of inputs and parameters; no graph is left."""
    out = leaves(rnn(*args))
    given = [*leaves(args), *rnn.parameters()]
    found = torch.autograd.grad([value.sin().sum() for value in out], given)
    return [*(value.detach() for value in out), *found]


# ---- float32


def largest_sum(rnn, args):
    """The most that a first layer's sum with the input can be, term by term."""
    first = next(value for name, value in rnn.named_parameters() if name.startswith("weight_ih"))
    x = leaves(args)[0].detach().abs().max()
    return float(first.detach().abs().sum(1).max() * x)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@EVERY_SAMPLE
def test_float32(name, at):
    """Ours and torch's beside what torch computes of the same numbers in float64. The bound is that
    of the table, for each layer, as a share of the largest that was added up."""
    sample = sample_of(name, at, torch.float32)
    ours, theirs = both(name, sample, torch.float32)
    args = sample.forward_input.args
    exact = copy.deepcopy(theirs).to(WIDE)
    wanted = leaves(exact(*mapped(lambda value: value.detach().to(WIDE), args)))
    steps = 1 if name in CELLS else leaves(args)[0].shape[0]  # of what is packed, more
    share = getattr(ours, "num_layers", 1) * tolerance("float32", steps)
    largest = largest_sum(ours, args)
    for module in (ours, theirs):
        got = leaves(module(*args))
        assert {value.dtype for value in got} == {torch.float32}
        for g, w in zip(got, wanted, strict=True):
            assert_close(numpy(g), numpy(w), share, largest=largest)


# ---- what a call leaves behind


def storages_of_a_call(rnn, args):
    """References that keep nothing, to all memory that a call with its way back has made."""
    seen = []

    def pack(value):
        seen.append(StorageWeakRef(value.untyped_storage()))
        return value

    fresh = mapped(lambda value: value.detach().clone().requires_grad_(), args)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        results = trained(rnn, fresh)
    kept = {StorageWeakRef(p.untyped_storage()).cdata for p in rnn.parameters()}
    seen += [StorageWeakRef(v.untyped_storage()) for v in (*results, *leaves(fresh))]
    return [ref for ref in seen if ref.cdata not in kept]


@pytest.fixture
def without_gc():
    """No cycle may hold a tensor until somebody looks for it."""
    gc.disable()
    yield
    gc.enable()


def check_tensors(rnn, args):
    """That none of a call is alive, nor, on a GPU, anything more that torch has given out."""

    def given_out():
        return 0 if DEVICE == "cpu" else torch.cuda.memory_allocated()

    def alive(refs):
        """A GPU's backward is another thread's, which lets go of its tensors a moment later."""
        end = time.monotonic() + (0 if DEVICE == "cpu" else 5)
        while (left := [ref for ref in refs if not ref.expired()]) and time.monotonic() < end:
            time.sleep(0.001)
        return left

    before = None
    for _ in range(4):
        refs = storages_of_a_call(rnn, args)
        left = alive(refs)
        assert len(refs) > len(leaves(args))
        assert not left, f"{len(left)} of {len(refs)} tensors are alive"
        before = given_out() if before is None else before  # with what is made once
    after = given_out()
    assert after <= before, f"{before} bytes before, {after} after"


def check_objects(rnn, args, calls=20):
    """That calls add none of Python's, not one each, that somebody else can reach. Half of that
    is what other tests' objects may add, or take away, meanwhile."""

    def counted():
        for _ in range(calls):
            trained(rnn, args)
        gc.collect()
        return len(gc.get_objects())

    counted()
    before, after = counted(), counted()
    assert after - before < calls / 2, f"{before} objects before, {after} after"


@EVERY_SAMPLE
def test_no_tensor_of_a_call_stays(name, at, without_gc):
    sample = sample_of(name, at)
    check_tensors(both(name, sample)[0], list(sample.forward_input.args))


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("name", INFOS)
def test_no_object_of_a_call_stays(name):
    sample = sample_of(name, 0)
    check_objects(both(name, sample)[0], list(sample.forward_input.args))


KEPT = []
# What a module could do with its output, and the check that finds it.
LEAKS = {
    "a list": (lambda output: KEPT.append(output), check_tensors),
    "a cycle": (lambda output: (ring := [output]).append(ring), check_tensors),
    "an object": (lambda output: KEPT.append([None]), check_objects),
}


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("leak", LEAKS)
def test_what_stays_is_found(leak, without_gc):
    sample, (keep, check) = sample_of("LSTM", 0), LEAKS[leak]
    rnn = both("LSTM", sample)[0]
    rnn.register_forward_hook(lambda module, args, output: keep(output))
    with pytest.raises(AssertionError, match="alive" if check is check_tensors else "objects"):
        check(rnn, list(sample.forward_input.args))
    KEPT.clear()


# ---- devices and streams


@GPU
@EVERY_SAMPLE
def test_either_device_gives_the_same(name, at):
    sample = sample_of(name, at)
    rnn = both(name, sample)[0]
    args = list(sample.forward_input.args)
    wanted = [value.cpu() for value in trained(rnn, args)]

    def moved(value):
        return value.detach().cpu().requires_grad_()

    same(trained(rnn.cpu(), mapped(moved, args)), wanted, gradient_tolerance("float64"))


@GPU
@EVERY_SAMPLE
def test_another_stream(name, at):
    """The default stream is at work all the while, and so is what makes the input."""
    sample = sample_of(name, at)
    rnn, side = both(name, sample)[0], torch.cuda.Stream()
    args = list(sample.forward_input.args)
    wanted = trained(rnn, args)
    late = mapped(lambda value: torch.full_like(value, torch.nan).requires_grad_(), args)
    with torch.cuda.stream(side):
        trained(rnn, late)  # memory of this stream, and kernels that are loaded once
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        with torch.no_grad():
            for value, source in zip(leaves(late), leaves(args), strict=True):
                value.copy_(source)
        got = trained(rnn, late)
        waited = side.query()
    side.synchronize()
    assert not torch.cuda.default_stream().query(), "the side stream has waited for the default one"
    assert not waited, "the host has waited"
    torch.cuda.synchronize()
    same(got, wanted, 0)
