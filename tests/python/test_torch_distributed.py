# SPDX-License-Identifier: Apache-2.0
"""Sequences and batches over several ranks. Each world of processes starts once and runs all its
cases, which distributed_cases.py has: with gloo on the CPU, with NCCL where
SCANRNN_TEST_DEVICE=cuda."""

import copy
import itertools
import math
import re
import sys
from pathlib import Path

import pytest
from distributed_world import LIMIT, launched, processes, results, waited
from support import DEVICE
from torch_support import WIDE, module, same, tensor, torch

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
import scanrnn.torch.distributed as sd
from distributed_cases import SUITES
from scanrnn.torch.distributed import groups, masks, places, rows, tails
from scanrnn.torch.distributed.schedule import Shape, Unit, following, slots_of, turns_of

WORLDS = {
    2: ["all", "batch", "thin mesh", "tails", "rows"],
    3: ["most", "tails", "rows"],
    4: ["mesh"],
}


def run(size, suites, folder):
    """Exit statuses, and by rank what became of each case and what the process said."""
    there = torch.cuda.device_count()
    if DEVICE != "cpu" and there < size:
        pytest.skip(f"wants {size} GPUs, there are {there}")
    statuses = waited(processes(size, folder, suites), LIMIT * len(suites))
    return statuses, results(size, folder)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Started when a test first asks for one."""
    found = {}

    def world(size):
        if size not in found:
            found[size] = run(size, WORLDS[size], tmp_path_factory.mktemp(f"world-{size}"))
        return found[size]

    return world


@pytest.mark.parametrize(
    ("size", "suite", "case"),
    [(size, s, case) for size, suites in WORLDS.items() for s in suites for case in SUITES[s]],
)
def test_ranks_have_what_one_device_has(worlds, size, suite, case):
    statuses, ranks = worlds(size)
    for rank, (found, said) in enumerate(ranks):
        status = f"rank {rank} ended with status {statuses[rank]} and said:\n{said}"
        own = found.get(f"{suite}: {case}")
        assert own == "", own or status


@pytest.mark.parametrize(("size", "suite"), [(2, "dies"), (3, "dies"), (2, "dies unseen")])
def test_a_rank_that_dies_takes_nobody_along(tmp_path, size, suite):
    """The others have an error that names it. How their process group ends is torch's: with NCCL
    its watchdog ends them, as their streams wait for a rank that is gone."""
    (*living, dead), ranks = run(size, [suite], tmp_path)
    assert dead == 3
    for status, (found, said) in zip(living, ranks[:-1], strict=True):
        assert status is not None, f"it waited for ever: {said}"
        assert found == {f"{suite}: dies": ""}, said


def test_ranks_have_gpus_of_their_own():
    places.check_apart([["cpu", ""], ["cpu", ""]])
    places.check_apart([["cuda:0", "GPU-1"], ["cuda:0", "GPU-2"]])  # of two hosts, or as hidden
    words = "got cuda:0 on rank 0 and cuda:1 on rank 2, which are the same one, GPU-1"
    with pytest.raises(ValueError, match=words):
        places.check_apart([["cuda:0", "GPU-1"], ["cuda:0", "GPU-2"], ["cuda:1", "GPU-1"]])


def test_ranks_move_all_at_once():
    class Group:
        pass

    def at(*devices):
        return [[device, ""] for device in devices]

    group, first, moved = Group(), at("cuda:0", "cuda:1"), at("cuda:2", "cuda:3")
    for now in (first, moved):
        places.check_moves(group, now)
        assert places.meet(group, now)
        assert not places.meet(group, now)
    places.check_moves(group, first)
    words = "got cuda:4 after cuda:1 and cuda:3 on rank 1, and a device of before on rank 0"
    with pytest.raises(ValueError, match=words):
        places.check_moves(group, at("cuda:0", "cuda:4"))
    with pytest.raises(ValueError, match=r"got devices that have not met before, .*rank 0, 1"):
        places.check_moves(group, at("cuda:0", "cuda:3"))


# ---- who works when


SHAPES = [
    Shape(ranks, layers, directions, count, mixed)
    for ranks, layers, directions, count in itertools.product((1, 2, 3, 8), (1, 3), (1, 2), (1, 5))
    for mixed in (False, True)
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_unit_has_a_slot_behind_what_it_reads(shape):
    ranks, layers, directions, count, mixed = shape
    at = {}
    for number, slot in enumerate(slots_of(shape)):
        for rank, unit in enumerate(slot):
            if unit is not None:
                assert (rank, unit) not in at
                at[rank, unit] = number
    assert len(at) == ranks * layers * directions * count
    for (rank, unit), number in at.items():
        before = following(unit, rank, ranks, back=True)
        assert before is None or at[before, unit] < number
        for direction in range(directions if unit.layer else 0):
            for group in range(count) if mixed else [unit.group]:
                assert at[rank, Unit(unit.layer - 1, direction, group)] < number
    if directions == 1:
        assert len(slots_of(shape)) == layers * count + ranks - 1


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_messages_meet_in_the_order_of_one_stream(shape, back):
    """As NCCL works: what a rank posts goes one after the other, a slot's messages come to an end
    together, and a message comes to an end when both of its ranks are at it."""
    ranks = range(shape.ranks)
    left = [list(turns_of(shape, rank, back)) for rank in ranks]
    posted = [False] * shape.ranks  # the first that is left: its unit is done
    over, came = set(), [set() for _ in ranks]
    done = [[] for _ in ranks]

    def messages(rank):
        """What the first turn that is left says: (from, to, unit)."""
        unit, behind, arriving = left[rank][0]
        sent = [] if behind is None else [(rank, behind, unit)]
        return sent + [(peer, rank, other) for peer, other in arriving]

    def post(rank):
        if posted[rank] or not left[rank]:
            return False
        unit = left[rank][0].unit
        if unit is not None:
            before = following(unit, rank, shape.ranks, back=not back)
            if before is not None and unit not in came[rank]:
                return False  # on the one stream nothing else goes on meanwhile
            done[rank].append(unit)
        posted[rank] = True
        return True

    while any(left):
        moved = [post(rank) for rank in ranks]
        heads = [message for rank in ranks if posted[rank] for message in messages(rank)]
        over |= {message for message in heads if heads.count(message) == 2}
        ready = [rank for rank in ranks if posted[rank] and over.issuperset(messages(rank))]
        assert any(moved) or ready, [turns[:1] for turns in left]
        for rank in ready:
            came[rank] |= {unit for _, to, unit in messages(rank) if to == rank}
            left[rank].pop(0)
            posted[rank] = False
    for rank in ranks:
        assert len(done[rank]) == shape.layers * shape.directions * shape.groups


def test_both_directions_fill_one_anothers_gaps():
    for layers in (1, 3):
        slots = slots_of(Shape(8, layers, 2, 8))
        assert len(slots) == layers * (2 * 8 + 8 - 2)


def test_many_ranks_are_planned_in_no_time():
    assert len(slots_of(Shape(64, 4, 1, 64))) == 4 * 64 + 63
    assert len(slots_of(Shape(64, 24, 2, 8))) >= 24 * 2 * 8


# ---- groups


@pytest.mark.parametrize(("size", "count", "grain"), [(7, 3, 1), (64, 3, 8), (60, 7, 8), (5, 1, 8)])
def test_parts_are_nearly_equal(size, count, grain):
    bounds = groups.cut(size, count, grain).bounds
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 2 * grain
    assert all(part % grain == 0 for part in sizes[:-1])


def chosen(batch, ranks=8, splits=True, recurrence="linear", seconds=0.1, moved=0.0):
    """Work whose products and memory take about so long."""
    rates = groups.RATES["cuda"]
    sizes = seconds * rates.half_products, moved * rates.memory
    work = groups.Work(*sizes, True, recurrence, 3, 4096, 1, Shape(ranks, 1, 1, 1))
    return groups.choose(work, "cuda", batch, max(1, batch), 1024, lambda _: splits)


def test_groups_follow_the_sizes():
    slot = groups.RATES["cuda"].slot
    ideal = math.sqrt(7 * 0.1 / slot)
    assert len(chosen(64, splits=False)) == 64 < ideal  # more would be better, and are not there
    assert ideal / 1.5 < len(chosen(10_000, splits=False)) < ideal * 1.5
    assert len(chosen(10_000, seconds=1e-5)) == 1
    few = chosen(1, seconds=1e-9, moved=0.01)
    assert few.by_units
    assert few.bounds[-1][1] == 1024
    ideal = math.sqrt(7 * 0.02 / slot)
    assert ideal / 1.5 < len(few) < ideal * 1.5
    assert chosen(1).by_units
    assert not chosen(1, seconds=1e-5).by_units
    assert chosen(1, splits=False) == groups.cut(1, 1)
    assert chosen(64, ranks=1) == groups.cut(64, 1)
    assert len(chosen(64, recurrence="dense", splits=False)) < 64  # steps take their time anyway


# ---- tails


def planned(way="auto", ranks=4, layers=1, steps=2**18, seconds=0.015, least=None, passes=2):
    """For a rank's work that takes about so long, of which the pipeline has 24 groups."""
    products = seconds * groups.RATES["cuda"].half_products
    shape = Shape(ranks, layers, 1, 1)
    work = groups.Work(products, 0.0, True, "linear", 2, steps, passes, shape)
    least = steps if least is None else least
    return tails.planned(way, work, "cuda", groups.cut(24, 24), least)


def test_tails_are_read_where_they_pay():
    found = planned()
    assert (found.first, found.most) == (512, 2**14)
    assert planned(least=4096).first == 256
    for least in (0, 16 * 15):  # such tails are no shorter than what an exchange takes
        assert planned(least=least) is None
    assert planned(ranks=1) is None
    assert planned("pipeline") is None
    assert planned(ranks=2, layers=16, seconds=1) is None  # which fill the pipeline
    assert planned("tails", ranks=2, layers=16, seconds=1).first == 512
    assert planned("tails", least=40).first == 40
    with pytest.raises(ValueError, match=r"way: .* where a rank has no steps, got 'tails'"):
        planned("tails", least=0)


def test_tails_are_as_long_as_gates_need():
    bound = tails.bound_of(torch.bfloat16)
    assert bound == tails.bound_of(torch.float32) == 2.0**-26
    assert tails.bound_of(WIDE) == 2.0**-55
    found = planned()
    longer = found._longer(512, 2.0**-13, bound)
    assert longer == 1280 == 1.25 * 2 * 512
    assert found._longer(512, 2.0**-0.6, bound) == 2**14  # 27734 are wanted, half of it may do
    for keeps in (2.0**-0.4, 1.0, 3.0, math.inf, math.nan):
        assert found._longer(512, keeps, bound) == 512
    assert (
        planned(ranks=2, seconds=0.1)._longer(512, 2.0**-0.6, bound) == 512
    )  # so many would not pay
    assert planned("tails", least=600)._longer(512, 0.9, bound) == 600


def test_tails_become_shorter_again():
    bound = tails.bound_of(torch.bfloat16)
    assert planned()._shorter(2048, bound**4, bound) == 1024
    assert planned()._shorter(2048, 0.0, bound) == 1024
    assert planned()._shorter(2048, bound**3, bound) == 2048
    assert planned()._shorter(1000, 0.0, bound) == 1000  # half of it is less than the first


def test_work_behind_tails_takes_as_long_as_both():
    work = groups.Work(3e13, 0.0, True, "linear", 2, 2**18, 2, Shape(4, 1, 1, 1))
    ideal, slot = 3e13 / groups.RATES["cuda"].half_products, groups.RATES["cuda"].slot
    share = 1 + 2 * 512 / 2**18
    assert work.tail_seconds("cuda", 512) == pytest.approx(ideal * share + 6 * slot)


# ---- rows


def rows_of(batch=64, ranks=4, way="auto", count=4, operations=3.3e12, moved=4e8):
    """LSTM H1024 in bfloat16, 4096 steps of 64 rows and both passes, or about that."""
    shape, steps = Shape(ranks, 1, 1, 1), 4096 // ranks
    sizes = operations / ranks, 0.0, True, "dense", 4, steps, 2, shape, 4096, moved
    work, told = groups.Work(*sizes), module("LSTM", 8, 8)._description().without_drops()
    return rows.planned(way, told, 8, work, "cuda", groups.cut(batch, count), batch)


def test_ranks_have_rows_where_that_takes_less_time():
    assert rows_of() == groups.cut(64, 4)
    assert rows_of(way="pipeline") is rows_of(way="tails") is None
    assert rows_of(batch=3, count=1) is None  # a rank would have none
    assert rows_of(batch=3, count=1, way="rows") == groups.cut(3, 4)
    assert rows_of(ranks=1) is rows_of(ranks=1, way="rows") is None
    assert rows_of(moved=1e11) is None  # the exchanges take longer than the work
    assert rows_of(moved=1e11, way="rows") == groups.cut(64, 4)


def test_rows_take_their_steps_and_two_exchanges():
    rates, shape = groups.RATES["cuda"], Shape(4, 2, 1, 1)
    work = groups.Work(3e13, 0.0, True, "dense", 4, 1024, 2, shape, 4096, 8e9)
    steps = 2 * 2 * 4096 * rates.step["dense"] + 2 * 4 * rates.slot
    own = 3e13 / rates.half_products * 4 / 4  # a quarter of the rows, four times the steps
    sent = 0.75 * 8e9 / rates.exchange
    assert work.rows_seconds("cuda", 0.25) == pytest.approx(steps + own + sent)
    nothing = work._replace(operations=0.0, steps=0, all_steps=0, exchanged=0.0)
    assert nothing.rows_seconds("cuda", 0.25) == pytest.approx(2 * 4 * rates.slot)


# ---- what is dropped


def test_seeds_of_one_layer_drop_what_the_stack_does():
    for seed, layer in ((0, 0), (1, 3), (2**62 - 1, 7)):
        own = masks.for_part(seed, "input_dropout", layer)
        assert 0 <= own < 2**64
        assert masks.of_input(own, 0).bits == masks.of_input(seed, layer).bits


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_a_part_of_the_tokens_drops_what_the_whole_does(batch_axis, monkeypatch):
    monkeypatch.setattr(masks, "_AT_ONCE", 50)
    shape = (6, 9, 8) if batch_axis == 0 else (9, 6, 8)
    whole = masks.drop_tokens(torch.ones(shape, device=DEVICE), 0.3, 5, batch_axis, (0, 6), 0)
    part = torch.ones(shape, device=DEVICE).movedim(batch_axis, 1)[4:, 2:5].movedim(1, batch_axis)
    got = masks.drop_tokens(part, 0.3, 5, batch_axis, (2, 6), 4)
    assert torch.equal(got.movedim(batch_axis, 1), whole.movedim(batch_axis, 1)[4:, 2:5])
    assert 0.55 < (whole > 0).double().mean() < 0.85
    rows = torch.ones(5, 8, device=DEVICE)
    assert torch.equal(masks.drop_rows(rows[2:], 0.3, 5, 2), masks.drop_rows(rows, 0.3, 5)[2:])


# ---- without ranks


def test_what_needs_a_process_group_says_so():
    model, x = sd.TimeSharded(module("GRU", 3, 4)), tensor(5, 2, 3)
    for call in (lambda: model(x), lambda: sd.scan(x, x)):
        with pytest.raises(RuntimeError, match="group: there is no process group, call torch"):
            call()


def test_what_can_be_sharded():
    for wrong in (torch.nn.LSTM(3, 4), None, sd.TimeSharded(module("GRU", 3, 4))):
        with pytest.raises(TypeError, match=r"module: expected a layer of scanrnn\.torch, got"):
            sd.TimeSharded(wrong)
    with pytest.raises(TypeError, match=r"groups: expected an integer, got 1\.5"):
        sd.TimeSharded(module("GRU", 3, 4), groups=1.5)
    with pytest.raises(ValueError, match=r"groups: expected a number >= 1, got 0"):
        sd.TimeSharded(module("GRU", 3, 4), groups=0)


def test_it_is_a_module_as_others():
    model = sd.TimeSharded(module("LSTM", 3, 4))
    again = copy.deepcopy(model)
    names = list(model.module.state_dict())
    assert list(again.state_dict()) == [f"module.{name}" for name in names]
    assert repr(model).startswith("TimeSharded(")
    same(list(again.parameters()), list(model.parameters()))
    assert model.to(WIDE).module.weight_ih_l0.dtype == WIDE


# ---- the program of the documentation


def test_the_language_model_learns_over_ranks(tmp_path):
    if torch.cuda.device_count() < 2 and DEVICE != "cpu":
        pytest.skip(f"wants 2 GPUs, there are {torch.cuda.device_count()}")
    program = Path(__file__).parents[2] / "docs/examples/many_gpus.py"
    command = [
        *(sys.executable, "-u", "-X", "faulthandler", program, "--device", DEVICE),
        *("--steps", "20", "--parameters", "40000", "--batch", "4", "--length", "64"),
        *("--layers", "1", "--characters", "100000", "--rate", "0.01", "--model", "scanrnn.SRU"),
    ]
    worlds = {size: tmp_path / str(size) for size in (1, 2)}
    for folder in worlds.values():
        folder.mkdir()
    found = {size: launched(size, folder, command) for size, folder in worlds.items()}
    bits = {}
    for size, (_, started) in found.items():  # the stores are there until here
        statuses = waited(started, 180)
        said = [(worlds[size] / f"said-{rank}.txt").read_text() for rank in range(size)]
        assert statuses == [0] * size, "\n".join(said)
        bits[size] = [float(found) for found in re.findall(r"([\d.]+) bits a character", said[0])]
        assert re.search(rf"tokens/s on {size} ranks", said[0])
        assert ("GiB at most, by rank" in said[0]) == (DEVICE != "cpu")
    assert len(bits[1]) == 10
    assert bits[1][-1] < 6 < bits[1][0], bits
    # The same but for rounding, which training makes larger; autocast is on a GPU alone.
    assert bits[2] == pytest.approx(bits[1], rel=1e-3 if DEVICE == "cpu" else 1e-2)
