# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on a call before anything of it is seen, so that all of them raise, or none.

Each rank says in one message of SIZE bytes what it was called with, and whether it refuses that.
The messages go between the hosts' processes, never through a GPU: nothing waits for its work.

A rank that says what it has said before guesses that all others do, too. By the guess it begins
with its own part of the work while the messages are on their way. It hears them before it sends or
receives anything else, and before it gives a result: where the guess was wrong, that work is thrown
away, and the call begins anew by what all ranks have said.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from .lost import named
from .places import Place, check_apart, check_moves, place_of

SIZE = 2048
ERROR = "error"  # the only key of a rank that refuses
PLACE = "place"  # of the rank's tensors; differs from rank to rank
SEED = "seed"  # what a rank draws by, 0 where nothing is drawn: a number that no call had before
Told = dict[str, Any]
Found = TypeVar("Found")
_BETWEEN = b"\n"  # what JSON has nowhere
_MOST_HEARD = 256
_AGREEMENT = "the agreement on a call"
_SERVED = {"nccl": "cuda", "gloo": "cpu"}
_controls: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Heard(NamedTuple):
    """What all ranks have said: in bytes, and what it is of each of them."""

    messages: bytes
    every: list[Told]


# By group and this rank's own message, what ranks have agreed on.
_heard: weakref.WeakKeyDictionary[Any, dict[bytes, Heard]] = weakref.WeakKeyDictionary()


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
        self._asked: _Asked | None = None
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
        # No barrier: a group that is bound to a GPU would make it there.
        here = torch.zeros(1, device="cpu")
        return dist.all_reduce(here, group=self._control(), async_op=True)

    def agree(self, prepare: Callable[[], Told], differing: Sequence[str] = ()) -> list[Told]:
        """What every rank's `prepare` gives, in the order of time. A rank whose `prepare` raises
        raises the same, all others a RuntimeError that names it. Values that are not the same on
        all ranks, but for those of the keys `differing`, are a ValueError that names the key; so
        are places where the ranks cannot meet."""
        return _Asked(self, prepare, differing).every()

    def run(
        self, prepare: Callable[[], Told], work: Callable[[list[Told]], Found],
        differing: Sequence[str],
    ) -> Found:  # fmt: skip
        """What `work` makes of what ranks agree on. It may be called twice, first by a guess; its
        exchanges `hear` before they begin."""
        self._asked = asked = _Asked(self, prepare, differing)
        guess = asked.guess
        if guess is not None:
            try:
                found = work(guess)
            except Exception:
                if asked.every() is guess:
                    raise
            else:
                if asked.every() is guess:
                    return found
            asked.guess = None  # nothing goes by it any more
        return work(asked.every())

    def hear(self) -> None:
        """Before a message of a call's work: what the other ranks were called with."""
        asked = self._asked
        if asked is not None and asked.guess is not None and asked.every() is not asked.guess:
            raise _WrongGuess


class _WrongGuess(Exception):
    """Ends the work that was begun by it."""


class _Asked:
    """What ranks were called with, on its way between them; `guess`: what they will have said."""

    def __init__(self, ranks: Ranks, prepare: Callable[[], Told], differing: Sequence[str]) -> None:
        self.ranks, self.guess = ranks, None
        self._every: list[Told] | None = None
        self._problem: Exception | None = None  # which every wait for the others ends with
        try:
            told = prepare()
        except Exception as raised:
            self._problem, told = raised, {ERROR: str(raised)}
        own = {key: told.pop(key) for key in differing if key in told}
        if ranks.size == 1:
            if self._problem is not None:
                raise self._problem
            self._every = [told | own]
            return
        self._keys, self._message = list(told), _message(told, own)
        self._known = _heard.setdefault(ranks.group, {}).get(self._message)
        if self._known is not None and not own.get(SEED):
            self.guess = self._known.every
        mine = torch.frombuffer(bytearray(self._message.ljust(SIZE)), dtype=torch.uint8)
        self._came = torch.empty(ranks.size, SIZE, dtype=torch.uint8, device="cpu")
        with named(ranks.group, _AGREEMENT):
            control = ranks._control()
            self._way = dist.all_gather(list(self._came.unbind()), mine, control, async_op=True)

    def every(self) -> list[Told]:
        """Waits for it, once; what all ranks have agreed on, or the error of one of them."""
        if self._every is None and self._way is not None:
            way, self._way = self._way, None
            try:
                with named(self.ranks.group, _AGREEMENT):
                    way.wait()
                if self._problem is None:
                    self._every = self._heard().every
            except Exception as raised:
                self._problem = self._problem or raised
        if self._every is None:
            assert self._problem is not None
            raise self._problem
        return self._every

    def _heard(self) -> Heard:
        messages, heard = self._came.numpy().tobytes(), self._known
        memory, group = _heard[self.ranks.group], self.ranks.group
        if heard is None or heard.messages != messages:
            heard = Heard(messages, self._agreed(messages))
            if len(memory) >= _MOST_HEARD:
                memory.clear()
            memory[self._message] = heard
        self.ranks.places = [one[PLACE] for one in heard.every if PLACE in one]
        check_moves(group, self.ranks.places)
        return heard

    def _agreed(self, messages: bytes) -> list[Told]:
        """What is the same to the letter is read once, and is one object."""
        read: dict[bytes, Told] = {}
        every: list[tuple[Told, Told]] = []
        for start in range(0, len(messages), SIZE):
            same, _, other = messages[start : start + SIZE].partition(_BETWEEN)
            if same not in read:
                read[same] = json.loads(same)
            every.append((read[same], json.loads(other)))
        for rank, (same, _) in enumerate(every):
            if ERROR in same:
                raise RuntimeError(f"rank {rank} of the group refused the call: {same[ERROR]}")
        for key in self._keys if len(read) > 1 else ():
            _check_same(key, [same.get(key) for same, _ in every])
        check_apart([other[PLACE] for _, other in every if PLACE in other])
        return [told | other for told, other in every]


def _message(told: Told, own: Told) -> bytes:
    message = json.dumps(told).encode() + _BETWEEN + json.dumps(own).encode()
    if len(message) <= SIZE:
        return message
    if ERROR in told:
        return _message({ERROR: told[ERROR][: len(told[ERROR]) // 2]}, own)
    raise AssertionError(f"{len(message)} bytes say what a call is, {SIZE} are there")


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
