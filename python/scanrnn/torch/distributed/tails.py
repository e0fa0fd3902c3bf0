# SPDX-License-Identifier: Apache-2.0
"""Where gates forget, all ranks work at once: a shard's last steps say how it ends.

A linear state that enters the last K steps of a shard leaves them multiplied by the product of
their decays. Where that product is nothing beside rounding, the last K steps alone, from zero, give
the state at the shard's end: they are its tail. So each rank reads its tail, all ranks exchange
what came out, and then all of them run their shards at the same time. Backward does the same with
the first K steps and the cotangent that leaves them. docs/many_gpus.md has the arithmetic.

Every rank hears of every product, so all ranks decide alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...description import Description
from .exchange import Link, Messages
from .groups import Groups, Work
from .parts import Call, drawn_inside, info, message_of
from .schedule import Unit, following

WAYS = ("auto", "pipeline", "tails")
FIRST = 512  # steps of a tail at first: few beside a shard, and fewer would not be faster
LEAST = 16  # fewer are not worth an exchange
SHARE = 16  # a tail has one part in so many of the smallest shard at most
TRIES = 3
PAYS = 0.95  # of the pipeline's time
_LENGTHS = "lengths of tails"  # by layer, of what is kept
_GRAIN = 16  # longer tails have a multiple of so many steps

_layer = torch.ops.scanrnn.layer
_layer_backward = torch.ops.scanrnn.layer_backward


class Forward(Protocol):
    """What is used here of a stack's way forward."""

    call: Call
    sharded: Any
    params: Sequence[Tensor]

    def read(self, unit: Unit) -> Tensor: ...
    def work(self, unit: Unit, message: Tensor | None, x: Tensor | None = None) -> Tensor: ...


class Backward(Protocol):
    """The same of its way back."""

    call: Call
    sharded: Any
    params: Sequence[Tensor]
    kept: dict[Any, Tensor]

    def read(self, unit: Unit) -> Tensor: ...
    def of_output(self, unit: Unit) -> Tensor | None: ...
    def work(
        self, unit: Unit, message: Tensor | None, x: Tensor | None = None, dy: Tensor | None = None
    ) -> Tensor: ...


def bound_of(dtype: torch.dtype) -> float:
    """The largest product of decays that is nothing: a quarter of what rounding is in the type that
    cells compute in. What is left out is the product times a state of the same sequence, so at most
    this share of the largest state."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 8


class Reading(NamedTuple):
    """How a tail is read, and what all ranks' say."""

    message: Callable[[int], Tensor]  # [n], of what so many steps end with, for all ranks
    product: Callable[[Tensor], Tensor]  # the largest that matters, by every rank's message


class Tails:
    """One call's: of how many steps they are. `lengths`, by layer, is empty until gates were found
    to forget, and where they do not. `kept` is what the call before like it has left."""

    def __init__(
        self, first: int, most: int, pays: Callable[[int], bool] | None,
        kept: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`pays` of a length is None where they are forced."""
        self.first, self.most, self._pays = first, most, pays
        self.lengths: list[int] = []
        self._kept = {} if kept is None else kept
        self._trusted: list[int] = []
        self._products = Later()

    def attempts(self) -> Iterator[None]:
        """Twice where a call like this one went before: first all is queued behind tails that are
        as long as they were then, and looked at afterwards."""
        known = self._kept.get(_LENGTHS, [])
        if known and max(known) <= self.most:
            self._trusted = known
            yield
        self._trusted, self._products = [], Later()
        self.lengths.clear()
        yield

    def settled(self, link: Link, reading: Reading) -> Tensor | None:
        """Every rank's message, [ranks, n], when products over the length are nothing, or were so
        before; None where gates keep.

        But for the latter this waits for the device, once for each length that is tried.
        """
        if self._trusted:
            length = self._trusted[len(self.lengths)]
            every = link.tails(reading.message(length))
            self._products.add(reading.product(every))
            self.lengths.append(length)
            return every
        longer, bound = self.first, bound_of(link.dtype)
        for _ in range(TRIES):
            length, every = longer, link.tails(reading.message(longer))
            product = float(reading.product(every))
            if product <= bound:
                self.lengths.append(length)
                return every
            longer = self._longer(length, product, bound)
            if longer == length:
                break
        self.lengths.clear()
        if self._pays is None:
            raise ValueError(
                f"way: expected 'auto' or 'pipeline' where gates keep a state, got 'tails': the "
                f"largest product of decays over {length} steps is {product:.3g}, where "
                f"{bound:.3g} would be nothing"
            )
        return None

    def hold(self, link: Link) -> bool:
        """Behind all layers: whether each of them forgets, which the next call goes by."""
        link.hear()  # so that what is kept changes on all ranks or on none
        if not self._trusted:
            self._kept[_LENGTHS] = list(self.lengths)
            return True
        products, bound = self._products.read(), bound_of(link.dtype)
        if all(product <= bound for product in products):
            told = zip(self.lengths, products, strict=True)
            self._kept[_LENGTHS] = [self._shorter(*one, bound) for one in told]
            return True
        del self._kept[_LENGTHS]
        return False

    def _shorter(self, length: int, product: float, bound: float) -> int:
        """Half of it where a quarter would do, if gates went on forgetting as they did."""
        if product > bound**4 or length < 2 * self.first:
            return length
        return max(self.first, length // 2 // _GRAIN * _GRAIN)

    def _longer(self, length: int, product: float, bound: float) -> int:
        """What gates need that go on forgetting as they did, and a quarter more; `length` itself
        where there are not so many steps, or where that takes too long. The largest product over a
        few steps promises less than more steps will have, so that half of it may do."""
        if not 0 < product < 1:
            return length
        wanted = 1.25 * length * math.log(bound) / math.log(product)
        longer = min(self.most, -(-math.ceil(min(wanted, self.most)) // _GRAIN) * _GRAIN)
        if self._pays is None or (wanted <= 2 * self.most and self._pays(longer)):
            return longer
        return length


class Later:
    """Numbers of the device that the host reads without waiting for what is queued behind them."""

    def __init__(self) -> None:
        self._values: list[Tensor] = []
        self._there: torch.cuda.Event | None = None

    def add(self, value: Tensor) -> None:
        if value.is_cuda:
            value, source = torch.empty_like(value, device="cpu", pin_memory=True), value
            value.copy_(source, non_blocking=True)
            self._there = torch.cuda.current_stream(source.device).record_event()
        self._values.append(value)

    def read(self) -> list[float]:
        if self._there is not None:
            self._there.synchronize()
        return [float(value) for value in self._values]


# ---- whether


def checked_way(way: str, groups: int | None) -> str:
    """What a user asks for."""
    if way not in WAYS:
        raise ValueError(f"way: expected one of {', '.join(map(repr, WAYS))}, got {way!r}")
    if way == "tails" and groups is not None:
        raise ValueError(
            f"groups: expected None beside way='tails', which has no pipeline, got {groups}"
        )
    return "pipeline" if groups is not None else way


def refuse_forced(way: str, told: Description, input_size: int) -> None:
    """Raises where tails are asked for by name and cannot be read."""
    why = _why_not(told, input_size)
    if way == "tails" and why:
        raise ValueError(f"way: expected 'auto' or 'pipeline' {why}, got 'tails'")


@functools.lru_cache(maxsize=256)
def _why_not(told: Description, input_size: int) -> str:
    cell = info(told)
    if cell.recurrence != "linear":
        return f"for {cell.as_made()}, whose recurrence is {cell.recurrence}"
    inside = drawn_inside(told, input_size)
    return f"where training draws {inside[0]} inside the recurrence" if inside else ""


def planned_layer(
    way: str, told: Description, input_size: int, work: Work, device: str, grouped: Groups,
    least: int, kept: dict[str, Any],
) -> Tails | None:  # fmt: skip
    """For `grouped`, which the pipeline would have; None: the pipeline."""
    possible = not _why_not(told, input_size)
    return planned(way, work, device, grouped, least, kept) if possible else None


def planned(
    way: str, work: Work, device: str, grouped: Groups, least: int,
    kept: dict[str, Any] | None = None,
) -> Tails | None:  # fmt: skip
    """By sizes that all ranks know; `least` are the steps of the smallest shard."""
    if way == "pipeline" or work.shape.ranks == 1:
        return None
    if way == "tails":
        if least == 0:
            raise ValueError(
                "way: expected 'auto' or 'pipeline' where a rank has no steps, got 'tails'"
            )
        return Tails(min(FIRST, least), least, None, kept)
    pipeline = work.seconds(device, len(grouped), grouped.by_units)

    def pays(length: int) -> bool:
        return work.tail_seconds(device, length) < PAYS * pipeline

    most = least // SHARE
    first = min(FIRST, most)
    return Tails(first, most, pays, kept) if first >= LEAST and pays(first) else None


# ---- a stack


def forward(run: Forward, tails: Tails) -> bool:
    """All layers, one after the other; False where gates keep, of whatever layer."""
    call, link = run.call, run.sharded.link
    for layer in range(call.description.num_layers):
        units = [Unit(layer, direction, 0) for direction in range(call.description.directions)]
        sources = [run.read(unit) for unit in units]
        every = tails.settled(link, _reading(run, units, sources))
        if every is None:
            return False
        for unit, x in zip(units, sources, strict=True):
            before = following(unit, link.rank, link.size, back=True)
            message = None
            if before is not None:
                ends = every[before].view(_starts(run), 2, len(units), -1)
                message = _aligned(ends[0, 0, unit.direction])
            run.work(unit, message, x)
    return tails.hold(link)


def _starts(run: Forward) -> int:
    """Ends of a shard that are read: the last steps are for the rank behind and, with backward, the
    first ones for what the rank before is to hear."""
    return 1 + run.sharded.wanted.any


def _aligned(state: Tensor) -> Tensor:
    """As memory of its own begins."""
    return state if state.data_ptr() % 16 == 0 else state.clone()


HUGE = {torch.float16: 2.0**15}  # a state in whose place the product is seen beside any other


def _huge(dtype: torch.dtype) -> float:
    return HUGE.get(dtype, 2.0**100)


def _reading(run: Forward, units: list[Unit], sources: list[Tensor]) -> Reading:
    """One call for each direction reads all that is read, from zero and from a huge state: a
    product of decays is the share of it that is left. Messages are [starts, 2, units, state]; what
    they end with goes to all ranks as it is, since what takes time here is launches."""
    starts, dtype = _starts(run), run.call.dtype

    def message(length: int) -> Tensor:
        rows = [
            end.view(2 * starts, -1)
            for unit, x in zip(units, sources, strict=True)
            for end in _ends(run, unit, x, length)
        ]
        return (rows[0] if len(rows) == 1 else torch.cat(rows, 1)).view(-1)

    def product(every: Tensor) -> Tensor:
        ends = every.view(len(every), starts, 2, -1)
        return torch.dist(ends[:, :, 1], ends[:, :, 0], math.inf) / _huge(dtype)

    return Reading(message, product)


def _ends(run: Forward, unit: Unit, x: Tensor, length: int) -> list[Tensor]:
    """[1, starts * 2 * B, H] of each tensor of a state. Where no other rank is to hear of it, the
    state begins with zero in both of two."""
    call, link, starts = run.call, run.sharded.link, _starts(run)
    back = (False, True)[:starts]
    heard = tuple(following(unit, link.rank, link.size, b) is not None for b in back)
    initial = _initial(heard, tuple(call.state_shapes(unit)), x.dtype, x.device)
    if not any(heard):
        return list(initial)
    parts = [
        part
        for start in (call.steps - length, 0)[:starts]
        for part in 2 * [_part(call, unit, x, start, length)]
    ]
    _, *finals = _layer(
        _side_by_side([part.x for part in parts], call.batch_axis), list(initial),
        call.of_layer(unit, run.params), _side_by_side([part.lengths for part in parts], 0), None,
        _side_by_side([part.reset for part in parts], call.batch_axis), None, False,
        *_described(call, unit),
    )  # fmt: skip
    return finals[: len(initial)]


@functools.lru_cache(maxsize=32)
def _initial(
    heard: tuple[bool, ...], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The states that tails begin with; nobody writes there."""
    with torch.inference_mode(False):
        out = []
        for _, batch, size in shapes:
            state = torch.zeros(len(heard), 2, batch, size, dtype=dtype, device=device)
            for start, wanted in enumerate(heard):
                state[start, 1].fill_(_huge(dtype) if wanted else 0)
            out.append(state.view(1, -1, size))
        return tuple(out)


class _Part(NamedTuple):
    """Some of the steps that a unit's call reads, in the order in which it walks."""

    x: Tensor
    lengths: Tensor | None
    reset: Tensor | None


def _part(call: Call, unit: Unit, x: Tensor, start: int, length: int) -> _Part:
    axis = 1 - call.batch_axis
    lengths, _, reset = call.steps_of(unit)
    if lengths is not None:
        lengths = (lengths - start).clamp(0, length)
    if reset is not None:
        reset = reset.narrow(axis, start, length)
    return _Part(x.narrow(axis, start, length), lengths, reset)


def _side_by_side(values: Sequence[Tensor | None], axis: int) -> Tensor | None:
    there = [value for value in values if value is not None]
    return torch.cat(there, axis) if there else None


def _described(call: Call, unit: Unit) -> Description:
    """A strategy that is asked of the whole may not do for a few steps."""
    return call.layer_of(unit)._replace(strategy=None)


def backward(run: Backward, tails: Tails) -> None:
    """The way back through what `forward` has done."""
    call, link = run.call, run.sharded.link
    for layer in reversed(range(call.description.num_layers)):
        units = [Unit(layer, direction, 0) for direction in range(call.description.directions)]
        given = [(run.read(unit), run.of_output(unit)) for unit in units]
        sent: Messages = []
        received: Messages = []
        for unit, (x, dy) in zip(units, given, strict=True):
            target = following(unit, link.rank, link.size, back=True)
            source = following(unit, link.rank, link.size)
            if target is not None:
                sent.append((target, _begin(run, unit, x, dy, tails.lengths[layer])))
            if source is not None:
                size = sum(map(math.prod, call.state_shapes(unit)))
                received.append((source, x.new_empty(size)))
        sources = [source for source, _ in received]
        came = dict(zip(sources, link.swap(sent, received), strict=True))
        for unit, (x, dy) in zip(units, given, strict=True):
            run.work(unit, came.get(following(unit, link.rank, link.size)), x, dy)


def _begin(run: Backward, unit: Unit, x: Tensor, dy: Tensor | None, length: int) -> Tensor:
    """The cotangent that leaves the shard at its beginning, by its first steps alone."""
    call, states = run.call, range(run.call.description.states)
    h_0 = [run.kept["h_0", unit, i] for i in states]
    if dy is None:
        return torch.zeros_like(message_of(h_0))
    params, described = call.of_layer(unit, run.params), _described(call, unit)
    x, *ragged = _part(call, unit, x, 0, length)
    steps = ragged[0], None, ragged[1]
    y, *_, reserve = _layer(x, h_0, params, *steps, None, True, *described)
    dy = dy.narrow(1 - call.batch_axis, 0, length)
    _, *dh_0 = _layer_backward(
        dy, [], x, h_0, y, params, *steps, reserve, None, False, False, *described
    )
    return message_of(dh_0)
