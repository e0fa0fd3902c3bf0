# SPDX-License-Identifier: Apache-2.0
"""On which device each rank of a group is: what NCCL allows, seen before any of it begins.

NCCL hangs where two ranks share a GPU, and where one rank of a group alone goes on to another one:
that rank would set up a communicator that nobody else joins.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Place = tuple[str, str]  # the device as the rank calls it, and what it is called by everybody
_met: weakref.WeakKeyDictionary[Any, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=64)
def place_of(device: torch.device) -> Place:
    """A GPU has one name for all processes of all hosts; memory of a host needs none."""
    if device.type != "cuda":
        return str(device), ""
    return str(device), str(torch.cuda.get_device_properties(device).uuid)


def check_apart(places: Sequence[Place]) -> None:
    """Raises where two ranks have the same GPU."""
    ranks: dict[str, list[int]] = {}
    for rank, (_, name) in enumerate(places):
        ranks.setdefault(name, []).append(rank)
    for name, which in ranks.items():
        if name and len(which) > 1:
            found = " and ".join(f"{places[rank][0]} on rank {rank}" for rank in which)
            raise ValueError(
                f"device: expected a GPU of its own for each rank of the group, got {found}, which "
                f"are the same one, {name}: call torch.cuda.set_device and move the tensors there"
            )


def check_moves(group: Any, places: Sequence[Place]) -> None:
    """Raises where only some of the ranks have moved to other devices. All ranks know the same, as
    they have agreed on each call before."""
    met, now = _met.get(group, set()), _devices(places)
    if now in met:
        return
    before = [{earlier[rank] for earlier in met} for rank in range(len(now))]
    stayed = [str(rank) for rank, device in enumerate(now) if device in before[rank]]
    moved = [
        f"{device} after {' and '.join(sorted(before[rank]))} on rank {rank}"
        for rank, device in enumerate(now)
        if before[rank] and device not in before[rank]
    ]
    if stayed:
        what = ", ".join(moved) or "devices that have not met before"
        raise ValueError(
            f"device: expected the ranks of a group to stay where they are or to move all at once, "
            f"got {what}, and a device of before on rank {', '.join(stayed)}"
        )


def meet(group: Any, places: Sequence[Place]) -> bool:
    """Whether it is the first time on these devices."""
    met, now = _met.setdefault(group, set()), _devices(places)
    first = now not in met
    met.add(now)
    return first


def place_alone(group: Any) -> torch.device | None:
    """Where this rank's tensors were in all calls; None where it was in several places, or in
    none."""
    met = _met.get(group, ())
    return torch.device(next(iter(met))[dist.get_rank(group)]) if len(met) == 1 else None


def _devices(places: Sequence[Place]) -> tuple[str, ...]:
    return tuple(device for device, _ in places)
