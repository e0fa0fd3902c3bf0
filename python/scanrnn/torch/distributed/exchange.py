# SPDX-License-Identifier: Apache-2.0
"""What passes between ranks: states from one to the next while both work, and sums at the end.

The operations of a slot are posted by both of their ranks in the order of slots, and a slot's work
waits only for messages of earlier slots. So no circle of ranks can wait for one another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..tensors import refuse_forward_mode
from .agree import Ranks
from .schedule import Slot, Unit, following

_met: weakref.WeakKeyDictionary[Any, set[torch.device]] = weakref.WeakKeyDictionary()


class Posted(NamedTuple):
    """A message on its way. It is kept until the way is done."""

    message: Tensor
    work: Any  # None of an empty one

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.message


class Link:
    """One call's exchanges; tensors are on `device`, of `dtype`."""

    def __init__(self, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> None:
        self.group, self.rank, self.size = ranks.group, ranks.rank, ranks.size
        self.device, self.dtype = device, dtype
        met = _met.setdefault(self.group, set())
        if self.size > 1 and device not in met:  # some ranks alone cannot be the first to meet
            met.add(device)
            dist.all_reduce(torch.zeros(1, device=device), group=self.group)

    def walk(
        self,
        slots: Sequence[Slot],
        size_of: Callable[[Unit], int],
        work: Callable[[Unit, Tensor | None], Tensor | None],
        one_way: bool,
        back: bool = False,
    ) -> None:
        """Calls `work` for this rank's units with what the rank before has sent, and sends what
        comes out to the rank behind. Messages have size_of(unit) elements.

        `one_way`: all messages of the walk go in one direction. Then a slot's message is asked for
        before the slot's work, so that it travels meanwhile. With two directions two neighbours
        may each wait for the other's message, so that they have to be posted together.
        """
        inbox: dict[Unit, Posted] = {}
        leaving: list[Posted] = []
        for slot in reversed(slots) if back else slots:
            receipts = {}
            for peer in (self.rank - 1, self.rank + 1):
                unit = slot[peer] if 0 <= peer < self.size else None
                if unit is not None and following(unit, peer, self.size, back) == self.rank:
                    size = size_of(unit)
                    receipts[unit] = peer, torch.empty(size, device=self.device, dtype=self.dtype)
            if one_way:
                inbox |= self._post([], receipts)[1]
            mine = slot[self.rank]
            sent: list[tuple[int, Tensor]] = []
            if mine is not None:
                came = inbox.pop(mine, None)
                message = work(mine, None if came is None else came.wait())
                peer_behind = following(mine, self.rank, self.size, back)
                if peer_behind is not None:
                    sent.append((peer_behind, message))
            if one_way:
                leaving += self._post(sent, {})[0]
            else:
                posted, received = self._post(sent, receipts)
                leaving += posted
                inbox |= received
        for one in leaving:
            one.wait()

    def _post(self, sent: Any, receipts: Any) -> tuple[list[Posted], dict[Unit, Posted]]:
        """A slot's messages; empty ones need no way."""
        operations = [
            dist.P2POp(dist.isend, _raw(message), group=self.group, group_peer=peer)
            for peer, message in sent
            if message.numel()
        ] + [
            dist.P2POp(dist.irecv, _raw(buffer), group=self.group, group_peer=peer)
            for peer, buffer in receipts.values()
            if buffer.numel()
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
        # gloo has a work for each, to be waited for once; NCCL has one for all.
        own = iter(works if len(works) == len(operations) else works * len(operations))

        def posted(message: Tensor) -> Posted:
            return Posted(message, next(own) if message.numel() else None)

        leaving = [posted(message) for _, message in sent]
        return leaving, {unit: posted(buffer) for unit, (_, buffer) in receipts.items()}

    # ---- what all ranks have

    def spread(self, value: Tensor, rank: int) -> None:
        """In place: that of `rank`; contiguous."""
        if self.size > 1 and value.numel():
            dist.broadcast(_raw(value), group=self.group, group_src=rank)

    def add(self, value: Tensor) -> None:
        """In place: the sum of all ranks', with the same bits on each of them."""
        if self.size > 1 and value.numel():
            dist.all_reduce(value, group=self.group)

    def firsts(self, rows: Tensor) -> list[Tensor]:
        """Every rank's."""
        every = [torch.empty_like(rows) for _ in range(self.size)]
        if self.size > 1 and rows.numel():
            dist.all_gather(every, rows, self.group)
        return every if self.size > 1 else [rows]


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
    refuse_forward_mode(what, *values)
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{what}: there are no transformations of torch.func over ranks: use backward()"
        )
