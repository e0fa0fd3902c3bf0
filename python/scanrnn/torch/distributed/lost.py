# SPDX-License-Identifier: Apache-2.0
"""Which rank is gone, where an exchange came to no end.

A rank whose exchange fails writes down whom it waited for, in the store by which the processes have
met. The ranks that waited for it follow that from rank to rank, to one that has written nothing: it
has ended, or does not take part.
"""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

PATIENCE = 3.0  # seconds for others to write: their timeouts end at about the same time
_ALL = "all"  # whom a rank waits for in an exchange of all


class named:
    """Around an exchange with `peer`, or with all ranks: its error says who did not take part."""

    def __init__(self, group: Any, what: str, peer: int | None = None) -> None:
        self.group, self.what, self.peer = group, what, peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: BaseException | None, where: Any) -> None:
        if not isinstance(problem, RuntimeError):
            return
        gone = _gone(self.group, self.peer)
        whose = " and ".join(f"rank {rank}" for rank in gone) or "some rank"
        ends = "have ended or take no part" if len(gone) > 1 else "has ended or takes no part"
        between = "between all ranks" if self.peer is None else f"with rank {self.peer}"
        raise RuntimeError(
            f"{self.what} {between} of the group came to no end: {whose} {ends} "
            f"({str(problem).splitlines()[0]})"
        ) from problem


def _gone(group: Any, peer: int | None) -> list[int]:
    """The ranks that say nothing: the one that a chain of waiting ends at, or all of them."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    reports = _Reports(group)
    reports.write(rank, peer)
    end = time.monotonic() + PATIENCE
    while True:
        told = reports.read(size) | {rank: peer}
        at, seen = peer, {rank}
        while at in told and at not in seen:
            seen.add(at)
            at = told[at]
        silent = [other for other in range(size) if other not in told]
        if len(silent) <= 1 or time.monotonic() > end or not reports.there:
            if at is None:
                return silent
            return [at] if at not in told else [peer]
        time.sleep(0.1)


class _Reports:
    def __init__(self, group: Any) -> None:
        self.store, self.prefix = _get_default_store(), f"scanrnn/waits/{group.group_name}"
        self.there = True  # the store may have been in the process that has ended

    def write(self, rank: int, peer: int | None) -> None:
        try:
            self.store.set(f"{self.prefix}/{rank}", _ALL if peer is None else str(peer))
        except RuntimeError:
            self.there = False

    def read(self, size: int) -> dict[int, int | None]:
        """What each rank has written, by rank; those that have not are left out."""
        found: dict[int, int | None] = {}
        try:
            for rank in range(size):
                key = f"{self.prefix}/{rank}"
                if self.store.check([key]):
                    told = self.store.get(key).decode()
                    found[rank] = None if told == _ALL else int(told)
        except RuntimeError:
            self.there = False
        return found
