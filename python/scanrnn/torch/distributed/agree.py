# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on a call before anything of it is seen, so that all of them raise, or none.

Each rank says what it was called with, and whether it refuses that; told.py has what passes. The
messages go between the hosts' processes, never through a GPU: nothing waits for its work.

A rank that says what it has said before guesses that all others do, too. By the guess it begins
with its own part of the work while the messages are on their way. It hears them before it sends or
receives anything else but what is ahead of them (ahead.py), and before it gives a result: where the
guess was wrong, that work is thrown away, and the call begins anew by what all ranks have said.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from . import ahead
from .lost import named
from .places import Place, check_moves, place_of
from .told import (
    ERROR,
    PLACE,
    SEED,
    Agreed,
    Head,
    Told,
    agreed_on,
    exchanged,
    gather,
    memory_of,
    said,
)  # fmt: skip

Found = TypeVar("Found")
_AGREEMENT = "the agreement on a call"
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
        self.seed = 0  # the first rank's, when they have agreed
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
        """What the hosts' processes exchange by: the group, or gloo beside it, with messages in
        their memory. It is no group of torch's: the name of one that some processes make among
        themselves has in it how many each of them has, and those of nested groups never meet."""
        if self._backends().get("cpu") == "gloo":
            return self.group
        if self.group not in _controls:
            device = torch.device(next(iter(self._backends())))
            _controls[self.group] = dist.ProcessGroupGloo(
                dist.PrefixStore(f"scanrnn/{self.group.group_name}", _get_default_store()),
                self.rank, self.size, timeout=self.group._get_backend(device).options._timeout,
            )  # fmt: skip
        return _controls[self.group]

    def meeting(self, device: torch.device) -> Any:
        """All hosts' processes are to meet, where exchanges on the device do not let the host wait.
        Whoever waits for it learns whether all of them came; None where nobody needs it."""
        if self.size == 1 or self._backends().get(device.type) == "gloo":
            return None
        # No barrier: a group that is bound to a GPU would make it there.
        here = torch.zeros(1, device="cpu")
        return self._control().allreduce([here])

    def agree(self, prepare: Callable[[], Told], differing: Sequence[str] = ()) -> list[Told]:
        """What every rank's `prepare` gives, in the order of time. A rank whose `prepare` raises
        raises the same, all others a RuntimeError that names it. Values that are not the same on
        all ranks, but for those of the keys `differing`, are a ValueError that names the key; so
        are places where the ranks cannot meet."""
        return _Asked(self, prepare, differing).agreed().every

    def run(
        self, prepare: Callable[[], Told], work: Callable[[Agreed], Found],
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
                if asked.holds():
                    raise
            else:
                if asked.holds():
                    return found
            asked.guess = None  # nothing goes by it any more
        return work(asked.agreed())

    def hear(self) -> None:
        """Before a message of a call's work: what the other ranks were called with."""
        asked = self._asked
        if asked is not None and asked.guess is not None and not asked.holds():
            raise _WrongGuess

    def ahead(self, message: Tensor) -> Tensor | None:
        """Every rank's message, [ranks, elements], without having heard them; None where ranks have
        not said that they would."""
        asked = self._asked
        if asked is None or not asked.ahead or asked.posted:
            return None
        asked.say()
        asked.posted = True
        return ahead.exchanged(self.group, self.size, message)


class _WrongGuess(Exception):
    """Ends the work that was begun by it."""


class _Asked:
    """What ranks were called with, on its way between them; `guess`: what they will have said, and
    `ahead`: the name of the guess, where this rank posts something before it knows."""

    def __init__(self, ranks: Ranks, prepare: Callable[[], Told], differing: Sequence[str]) -> None:
        self.ranks, self.guess, self.ahead, self.posted = ranks, None, 0, False
        self._agreed: Agreed | None = None
        self._done = ranks.size == 1
        self._problem: Exception | None = None  # which every wait for the others ends with
        try:
            told = prepare()
        except Exception as raised:
            self._problem, told = raised, {ERROR: str(raised)}
        own = {key: told.pop(key) for key in differing if key in told}
        seed = own.pop(SEED, 0)
        if ranks.size == 1:
            if self._problem is not None:
                raise self._problem
            self._agreed, ranks.seed = Agreed([told | own]), seed
            return
        self._memory = memory_of(ranks.group)
        self._text, self._digest = said(told, own)
        if not seed:
            self.guess = self._memory.guess(self._digest)
        if self.guess is not None:
            goes = ahead.possible(ranks.group) and self.guess.kept.get(ahead.AHEAD, False)
            self.ahead = self.guess.name if goes else 0
        self._head = Head(self._digest, len(self._text), seed, self.ahead)
        self._way: Any = None
        if self.guess is None:
            self.say()

    def say(self) -> None:
        """Once. By a guess it is behind the first work that is queued, which goes on meanwhile."""
        if self._way is not None:
            return
        self._came = Head.room(self.ranks.size)
        with named(self.ranks.group, _AGREEMENT):
            self._control = self.ranks._control()
            self._way = gather(self._came, self._head.packed(), self._control)

    def holds(self) -> bool:
        """Whether the guess was right; where ranks went ahead, on all of them."""
        return self.agreed() is self.guess and self._alike

    def agreed(self) -> Agreed:
        """Waits for it, once; what all ranks have agreed on, or the error of one of them."""
        if not self._done:
            self._done = True
            try:
                self.say()
                with named(self.ranks.group, _AGREEMENT):
                    self._way.wait()
                self._agreed = self._heard(Head.every(self._came))
            except Exception as raised:
                self._problem = self._problem or raised
        if self._problem is not None:
            raise self._problem
        assert self._agreed is not None
        return self._agreed

    def _heard(self, heads: list[Head]) -> Agreed:
        ranks, group = self.ranks, self.ranks.group
        ranks.seed = heads[0].seed  # as it would be one device's
        self._alike = len({head.ahead for head in heads}) == 1
        unused = False
        if any(head.ahead for head in heads) and not self.posted:
            self.posted = True  # for those who wait for it
            ahead.exchanged(group, ranks.size, None)
            unused = True
        agreed = self._memory.agreed(heads)
        if agreed is None:
            with named(group, _AGREEMENT):
                texts = exchanged(self._text, heads, self._control)
            agreed = agreed_on(texts)
        ranks.places = [one[PLACE] for one in agreed.every if PLACE in one]
        check_moves(group, ranks.places)
        self._memory.keep(heads, self._digest, agreed)
        if unused and agreed is self.guess and self._alike:
            del agreed.kept[ahead.AHEAD]  # which nobody had a use for
        return agreed
