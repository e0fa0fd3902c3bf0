# SPDX-License-Identifier: Apache-2.0
"""Ranks that have rows of the batch for the whole time, between two exchanges of steps for rows.

Each rank sends every other one its rows of the steps that are here. Then it runs the whole stack on
its own rows, as one device would, and what comes out goes back the same way. It is for any cell: a
dense step of fewer rows takes less time, and no rank waits for another one's states.

Shapes: T steps of all ranks and T_local of this one, B batch and b of this rank's rows, F features.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...description import Description
from .exchange import Link
from .groups import PAYS, Groups, Work, cut
from .parts import drawn_inside, message_of


def refuse_forced(way: str, told: Description, input_size: int) -> None:
    """Raises where rows are asked for by name and cannot be split."""
    inside = whole_rows(told, input_size)
    if way == "rows" and inside:
        raise ValueError(
            f"way: expected 'auto' or 'pipeline' where training draws {inside[0]} inside the "
            "recurrence, got 'rows'"
        )


def whole_rows(told: Description, input_size: int) -> list[str]:
    """Shares by which training draws for all rows at once: numbers of a part of the rows go on as
    those of all only where there are no steps."""
    return [name for name in drawn_inside(told, input_size) if name != "state_dropout"]


@functools.lru_cache(maxsize=256)
def planned(
    way: str, told: Description, input_size: int, work: Work, device: str, grouped: Groups,
    batch: int,
) -> Groups | None:  # fmt: skip
    """The rows of each rank; None: the pipeline, which would have `grouped`. By sizes that all
    ranks know."""
    ranks = work.shape.ranks
    if ranks == 1 or way not in ("auto", "rows"):
        return None
    if way == "auto":
        if batch < ranks or whole_rows(told, input_size):
            return None
        pipeline = work.seconds(device, len(grouped), grouped.by_units)
        if work.rows_seconds(device, -(-batch // ranks) / batch) >= PAYS * pipeline:
            return None
    return cut(batch, ranks)


class Rows(NamedTuple):
    """The two ways in which ranks share a batch, as they pass from one to the other."""

    link: Link
    groups: Groups  # rows by rank
    batch_axis: int
    steps: list[int]  # by rank

    def to_rows(self, tokens: Tensor) -> Tensor:
        """[T,b,F] of [T_local,B,F]; or of [B,T_local,F] and without F alike."""
        return self._exchanged(tokens, self.batch_axis)

    def to_steps(self, tokens: Tensor) -> Tensor:
        """The way back."""
        return self._exchanged(tokens, 1 - self.batch_axis)

    def no_steps(self, features: int) -> Tensor:
        """Zeros in place of what this rank has nothing of, [T_local,B,F]."""
        shape = [self.steps[self.link.rank], sum(self._counts)]
        shape = shape if self.batch_axis else shape[::-1]
        return torch.zeros(*shape, features, device=self.link.device, dtype=self.link.dtype)

    def spread(self, states: list[Tensor]) -> list[Tensor]:
        """Each [L*D,B,H], in place: every row from the rank that has it."""
        most, rank = max(self._counts), self.link.rank
        start, count = self.groups.rows(rank, 0)
        own = [state.new_zeros(len(state), most, state.shape[2]) for state in states]
        for value, state in zip(own, states, strict=True):
            value[:, :count] = state.narrow(1, start, count)
        every = self.link.every(message_of(own), "the last states")
        sizes = [math.prod(value.shape) for value in own]
        for state, came, like in zip(states, every.split(sizes, 1), own, strict=True):
            came = came.unflatten(1, like.shape)
            rows = [came[r, :, :count] for r, count in enumerate(self._counts)]
            torch.cat(rows, 1, out=state)
        return states

    @property
    def _counts(self) -> list[int]:
        return [stop - start for start, stop in self.groups.bounds]

    def _exchanged(self, tokens: Tensor, apart: int) -> Tensor:
        """Every rank's part along the axis `apart` goes to it; what comes is one behind the other
        along the other axis."""
        rank, along = self.link.rank, 1 - apart
        sizes = {self.batch_axis: self._counts, 1 - self.batch_axis: self.steps}
        shape = list(tokens.shape)
        shape[apart], shape[along] = sizes[apart][rank], sum(sizes[along])
        out = tokens.new_empty(shape)
        leaving, places = tokens.split(sizes[apart], apart), out.split(sizes[along], along)
        rooms = [p if p.is_contiguous() else p.new_empty(p.shape) for p in places]
        places[rank].copy_(leaving[rank])
        self.link.swap(self._to_others(leaving), self._to_others(rooms), "rows")
        for other, (place, room) in enumerate(zip(places, rooms, strict=True)):
            if other != rank and room is not place:
                place.copy_(room)
        return out

    def _to_others(self, values: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """As messages, by rank."""
        ranks = (other for other in range(self.link.size) if other != self.link.rank)
        return [(other, values[other].contiguous().view(-1)) for other in ranks]
