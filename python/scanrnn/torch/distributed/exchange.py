# SPDX-License-Identifier: Apache-2.0
"""What passes between ranks: states from one to the next while both work, and sums at the end.

A rank posts the messages of a slot together, behind the slot's own work, and its slots in their
order: so do both ranks of a pair, and what one sends the other receives in the same slot. NCCL
works on what a group posted in that order. A slot's work waits only for messages of earlier slots,
so no circle of ranks can wait for one another. Nothing is posted before a slot's work: a kernel
that waits for a message would hold multiprocessors, and a persistent kernel wants all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..tensors import refuse_forward_mode
from .agree import Ranks
from .ahead import AHEAD, fits
from .lost import named
from .places import meet
from .schedule import Shape, Unit, turns_of
from .told import gather

Messages = list[tuple[int, Tensor]]  # whom they go to, or come from
_MEETING = "the meeting beside backward"


class Posted(NamedTuple):
    """A message on its way. It is kept until the way is done."""

    message: Tensor
    work: Any  # None of an empty one
    group: Any
    peer: int
    what: str

    def wait(self) -> Tensor:
        """With gloo the host waits, with NCCL the stream does."""
        if self.work is not None:
            with named(self.group, f"the exchange of {self.what}", self.peer):
                self.work.wait()
        return self.message


class Link:
    """One call's exchanges; tensors are on `device`, of `dtype`."""

    def __init__(
        self, ranks: Ranks, device: torch.device, dtype: torch.dtype,
        kept: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.kept = {} if kept is None else kept  # by calls that say the same
        self.ranks, self.group, self.rank, self.size = ranks, ranks.group, ranks.rank, ranks.size
        self.device, self.dtype, self._open = device, dtype, self.size == 1
        self._meets, self._met = False, None

    def hear(self) -> None:
        """The other ranks agree, or what is done by a guess ends here."""
        self.ranks.hear()

    def _begin(self) -> None:
        """Before any exchange."""
        self._meet()
        if self._open:
            return
        self.hear()
        self._open = True
        if meet(self.group, self.ranks.places):  # P2P alone cannot be the first
            self.add(torch.zeros(1, device=self.device))

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Around a backward, whose ranks have agreed before forward alone. Hosts that only queue
        the work meet beside it, so that a rank that is gone is an error, and not a stream that
        stands still."""
        self._meets, self._met = True, None
        yield
        self._meet()
        if self._met is not None:
            with named(self.group, _MEETING):
                self._met.wait()

    def _meet(self) -> None:
        """Begins it, once: behind the first work that is queued, which goes on meanwhile."""
        if self._meets:
            self._meets = False
            with named(self.group, _MEETING):
                self._met = self.ranks.meeting(self.device)

    def walk(
        self,
        shape: Shape,
        size_of: Callable[[Unit], int],
        work: Callable[[Unit, Tensor | None], Tensor | None],
        back: bool = False,
    ) -> None:
        """Calls `work` for this rank's units with what the rank before has sent, and sends what
        comes out to the rank behind. Messages have size_of(unit) elements."""
        inbox: dict[Unit, Posted] = {}
        leaving: list[Posted] = []
        for mine, behind, arriving in turns_of(shape, self.rank, back):
            sent: list[tuple[int, Tensor]] = []
            if mine is not None:
                came = inbox.pop(mine, None)
                message = work(mine, None if came is None else came.wait())
                if behind is not None:
                    sent.append((behind, message))
            received = []
            for peer, unit in arriving:
                size = size_of(unit)
                received.append((peer, torch.empty(size, device=self.device, dtype=self.dtype)))
            posted = self._post(sent, received)
            leaving += posted[: len(sent)]
            units = (unit for _, unit in arriving)
            inbox |= zip(units, posted[len(sent) :], strict=True)
        for one in leaving:
            one.wait()

    def _post(self, sent: Messages, received: Messages, what: str = "a state") -> list[Posted]:
        """A slot's messages at once; empty ones need no way. `what` they are is for errors."""
        self._begin()
        operations = [
            dist.P2POp(way, _raw(message), group=self.group, group_peer=peer)
            for way, messages in ((dist.isend, sent), (dist.irecv, received))
            for peer, message in messages
            if message.numel()
        ]
        peers = {operation.group_peer for operation in operations}
        peer = peers.pop() if len(peers) == 1 else None
        with named(self.group, f"the exchange of {what}", peer):
            works = dist.batch_isend_irecv(operations) if operations else []
        # gloo has a work for each, to be waited for once; NCCL has one for all.
        own = iter(works if len(works) == len(operations) else works * len(operations))
        return [
            Posted(message, next(own) if message.numel() else None, self.group, peer, what)
            for peer, message in (*sent, *received)
        ]

    def swap(self, sent: Messages, received: Messages, what: str = "a state") -> list[Tensor]:
        """Messages that all ranks post at one time: those that came, when all are through."""
        return [one.wait() for one in self._post(sent, received, what)][len(sent) :]

    # ---- what all ranks have

    def spread(self, value: Tensor, rank: int) -> None:
        """In place: that of `rank`; contiguous."""
        self._begin()
        if self.size > 1 and value.numel():
            with named(self.group, "the broadcast of the last states"):
                dist.broadcast(_raw(value), group=self.group, group_src=rank)

    def add(self, value: Tensor) -> None:
        """In place: the sum of all ranks', with the same bits on each of them."""
        self._begin()
        if self.size > 1 and value.numel():
            with named(self.group, "the sum"):
                dist.all_reduce(value, group=self.group)

    def every(self, rows: Tensor, what: str) -> Tensor:
        """Every rank's, [ranks, ...], of contiguous rows; `what` they are is for errors."""
        self._begin()
        every = rows.new_empty(self.size, *rows.shape)
        if self.size == 1:
            every.copy_(rows)
        elif rows.numel():
            with named(self.group, f"the exchange of {what}"):
                gather(_raw(every.view(-1)), _raw(rows.view(-1)), self.group).wait()
        return every

    def tails(self, rows: Tensor) -> Tensor:
        """The same of [n] of what a tail ends with. Where that is the first exchange of a call as
        one before, it is ahead of what the other ranks say."""
        first = not self._open and fits(rows)
        came = self.ranks.ahead(rows) if first else None
        if came is None:
            came = self.every(rows, "tails")
            if first:
                self.kept[AHEAD] = True
        return came


def _raw(value: Tensor) -> Tensor:
    """Its bytes: backends do not know every dtype."""
    return value.view(torch.uint8)


def refuse_graph(what: str) -> None:
    """In a backward: raises where its own derivative is asked for."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"{what}: there are no second derivatives over ranks: call backward() or "
            "torch.autograd.grad without create_graph"
        )


def refuse_transforms(what: str, *values: Tensor | None) -> None:
    """Raises inside torch.func's transformations, and in forward mode."""
    refuse_forward_mode(what, "over ranks", *values)
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{what}: there are no transformations of torch.func over ranks: use backward()"
        )
