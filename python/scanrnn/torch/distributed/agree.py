# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on a call before any of them works on it, so that all of them raise, or none.

Each rank says in one message of SIZE bytes what it was called with, and whether it refuses that.
The messages go between the hosts' processes, never through a GPU: nothing waits for its work.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .lost import named
from .places import Place, check_apart, check_moves, place_of

SIZE = 2048
ERROR = "error"  # the only key of a rank that refuses
PLACE = "place"  # of the rank's tensors; differs from rank to rank
Told = dict[str, Any]
_BETWEEN = b"\n"  # what JSON has nowhere
_SERVED = {"nccl": "cuda", "gloo": "cpu"}
_controls: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Ranks:
    """The processes of a group; `rank` is this one's place in time."""

    def __init__(self, group: Any) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "group: there is no process group, call torch.distributed.init_process_group first"
            )
        self.group = dist.group.WORLD if group is None else group
        if not isinstance(self.group, dist.ProcessGroup):
            raise TypeError(
                f"group: expected a process group of torch.distributed, or None for the default "
                f"one, got {type(self.group).__name__}"
            )
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.places: list[Place] = []  # of all ranks, when they have agreed
        if self.rank < 0:
            raise ValueError("group: expected a group that this process is in")

    def place(self, name: str, device: torch.device) -> Place:
        """Where the tensors are; `name` is one of them."""
        backends = self._backends()
        served = [kind for kind, own in backends.items() if _SERVED.get(own) == kind]
        if device.type not in served:
            raise ValueError(
                f"{name}: expected a device that the group serves, {' or '.join(served)} with "
                f"backend {' and '.join(sorted(set(backends.values())))}, got {device}"
            )
        return place_of(device)

    def _backends(self) -> dict[str, str]:
        """Their names by the kind of device."""
        pairs = dist.get_backend_config(self.group).split(",")
        return dict(pair.split(":") for pair in pairs)

    def _control(self) -> Any:
        """A group of the same ranks whose messages are in the hosts' memory."""
        if self._backends().get("cpu") == "gloo":
            return self.group
        if self.group not in _controls:
            device = torch.device(next(iter(self._backends())))
            _controls[self.group] = dist.new_group(
                dist.get_process_group_ranks(self.group),
                timeout=self.group._get_backend(device).options._timeout,
                backend="gloo",
                use_local_synchronization=True,
            )
        return _controls[self.group]

    def meeting(self, device: torch.device) -> Any:
        """All hosts' processes are to meet, where exchanges on the device do not let the host wait.
        Whoever waits for it learns whether all of them came; None where nobody needs it."""
        if self.size == 1 or self._backends().get(device.type) == "gloo":
            return None
        return dist.barrier(self._control(), async_op=True)

    def agree(
        self, prepare: Callable[[], dict[str, Any]], differing: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """What every rank's `prepare` gives, in the order of time. A rank whose `prepare` raises
        raises the same, all others a RuntimeError that names it. Values that are not the same on
        all ranks, but for those of the keys `differing`, are a ValueError that names the key; so
        are places where the ranks cannot meet."""
        problem: Exception | None = None
        try:
            told = prepare()
        except Exception as raised:
            problem, told = raised, {ERROR: str(raised)}
        if problem is not None and self.size == 1:
            raise problem
        own = {key: told.pop(key) for key in differing if key in told}
        every = [(told, own)] if self.size == 1 else self._gathered(told, own)
        if problem is not None:
            raise problem
        for rank, (same, _) in enumerate(every):
            if ERROR in same:
                raise RuntimeError(f"rank {rank} of the group refused the call: {same[ERROR]}")
        for key in told if any(same is not every[0][0] for same, _ in every) else ():
            _check_same(key, [same.get(key) for same, _ in every])
        if PLACE in own and self.size > 1:
            self.places = [other[PLACE] for _, other in every]
            check_apart(self.places)
            check_moves(self.group, self.places)
        return [told | other for _, other in every]

    def _gathered(self, told: Told, own: Told) -> list[tuple[Told, Told]]:
        """Every rank's. What is the same to the letter is read once, and is one object."""
        message = _message(told, own)
        while len(message) > SIZE and ERROR in told:
            told = {ERROR: told[ERROR][: len(told[ERROR]) // 2]}
            message = _message(told, own)
        if len(message) > SIZE:
            raise AssertionError(f"{len(message)} bytes say what a call is, {SIZE} are there")
        mine = torch.frombuffer(bytearray(message.ljust(SIZE)), dtype=torch.uint8)
        every = torch.empty(self.size, SIZE, dtype=torch.uint8)
        with named(self.group, "the agreement on a call"):
            dist.all_gather(list(every.unbind()), mine, self._control())
        came, read, found = every.numpy().tobytes(), {}, []
        for start in range(0, len(came), SIZE):
            same, _, other = came[start : start + SIZE].partition(_BETWEEN)
            if same not in read:
                read[same] = json.loads(same)
            found.append((read[same], json.loads(other)))
        return found


def _message(told: Told, own: Told) -> bytes:
    return json.dumps(told).encode() + _BETWEEN + json.dumps(own).encode()


def _check_same(key: str, values: list[Any]) -> None:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(json.dumps(value), []).append(rank)
    if len(ranks) > 1:
        found = " and ".join(
            f"{value} on rank{'s' if len(which) > 1 else ''} {', '.join(map(str, which))}"
            for value, which in ranks.items()
        )
        raise ValueError(f"{key}: expected the same on every rank of the group, got {found}")
