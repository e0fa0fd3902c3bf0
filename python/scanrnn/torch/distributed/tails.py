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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...description import Description
from .exchange import Link
from .groups import PAYS, Groups, Work
from .parts import drawn_inside, info

SCAN_WAYS = ("auto", "pipeline", "tails")
WAYS = (*SCAN_WAYS, "rows")
FIRST = 512  # steps of a tail at first: few beside a shard, and fewer would not be faster
LEAST = 16  # fewer are not worth an exchange
SHARE = 16  # a tail has one part in so many of the smallest shard at most
TRIES = 3
_LENGTHS = "lengths of tails"  # by layer, of what is kept
_GRAIN = 16  # longer tails have a multiple of so many steps


def bound_of(dtype: torch.dtype) -> float:
    """The largest product of decays that is nothing: a quarter of what rounding is in the type that
    cells compute in. What is left out is the product times a state of the same sequence, so at most
    this share of the largest state."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 8


class Reading(NamedTuple):
    """How a tail is read, and what all ranks' say."""

    message: Callable[[int], Tensor]  # [n], of what so many steps end with, for all ranks
    product: Callable[[Tensor], Tensor]  # the largest that matters, by every rank's message,
    unit: float  # times this


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
            self._products.add(reading.product(every), reading.unit)
            self.lengths.append(length)
            return every
        longer, bound = self.first, bound_of(link.dtype)
        for _ in range(TRIES):
            length, every = longer, link.tails(reading.message(longer))
            product = float(reading.product(every)) / reading.unit
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
        self._values: list[tuple[Tensor, float]] = []
        self._there: torch.cuda.Event | None = None

    def add(self, value: Tensor, unit: float) -> None:
        if value.is_cuda:
            source, value = value, torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
            value.copy_(source, non_blocking=True)
            self._there = torch.cuda.current_stream(source.device).record_event()
        self._values.append((value, unit))

    def read(self) -> list[float]:
        if self._there is not None:
            self._there.synchronize()
        return [float(value) / unit for value, unit in self._values]


# ---- whether


def checked_way(way: str, groups: int | None, ways: Sequence[str] = WAYS) -> str:
    """What a user asks for."""
    if way not in ways:
        raise ValueError(f"way: expected one of {', '.join(map(repr, ways))}, got {way!r}")
    if way in ("tails", "rows") and groups is not None:
        raise ValueError(
            f"groups: expected None beside way={way!r}, which has no pipeline, got {groups}"
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
    if way in ("pipeline", "rows") or work.shape.ranks == 1:
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
