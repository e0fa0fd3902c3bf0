# SPDX-License-Identifier: Apache-2.0
"""What ranks tell one another of a call, and what they keep of it.

A head of a few bytes goes first: it stands for a text, which says what the rank was called with.
Texts follow where the ranks have not heard these heads together before. All ranks of a group hear
the same in the same order, so all of them know alike whether they have.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .places import check_apart

ERROR = "error"  # the only key of a rank that refuses
PLACE = "place"  # of the rank's tensors; differs from rank to rank
SEED = (
    "seed"  # what a rank draws by, 0 where nothing is drawn: of the head, as each call has another
)
Told = dict[str, Any]
_NAMES = "all_gather_single", "all_gather_into_tensor"  # of which torch has given up the second
GATHER = next(name for name in _NAMES if hasattr(dist, name))
_BETWEEN = b"\n"  # what JSON has nowhere
_MOST_HEARD = 256
_DIGEST = 16
_HEAD = struct.Struct(f"<{_DIGEST}sqqQ")


class Head(NamedTuple):
    digest: bytes  # of the text
    length: int  # of the text, in bytes
    seed: int
    ahead: int  # the name of what it guesses, where it posts the exchange of ahead.py; else 0

    def packed(self) -> Tensor:
        return torch.frombuffer(bytearray(_HEAD.pack(*self)), dtype=torch.uint8)

    @staticmethod
    def room(ranks: int) -> Tensor:
        """For every rank's."""
        return torch.empty(ranks * _HEAD.size, dtype=torch.uint8, device="cpu")

    @staticmethod
    def every(came: Tensor) -> list[Head]:
        return [Head(*one) for one in _HEAD.iter_unpack(came.numpy().tobytes())]


class Agreed:
    """What all ranks said, in the order of time. `kept` is what a call leaves for the next one that
    they say the same of: alike on every rank. `name` is that of what is remembered, and not 0."""

    def __init__(self, every: list[Told]) -> None:
        self.every, self.name = every, 0
        self.kept: dict[str, Any] = {}


class Memory:
    """What the ranks of a group have agreed on: by every rank's digest, and by this one's the last
    that came with it."""

    def __init__(self) -> None:
        self._agreed: dict[bytes, Agreed] = {}
        self._last: dict[bytes, Agreed] = {}

    def guess(self, digest: bytes) -> Agreed | None:
        return self._last.get(digest)

    def agreed(self, heads: Sequence[Head]) -> Agreed | None:
        return self._agreed.get(_digests(heads))

    def keep(self, heads: Sequence[Head], own: bytes, agreed: Agreed) -> None:
        """All ranks begin anew at the same time."""
        if len(self._agreed) >= _MOST_HEARD and _digests(heads) not in self._agreed:
            self._agreed.clear()
            self._last.clear()
        self._agreed[_digests(heads)] = self._last[own] = agreed
        if not agreed.name:
            short = hashlib.blake2b(_digests(heads), digest_size=8).digest()
            agreed.name = int.from_bytes(short, "little") | 1


_memories: weakref.WeakKeyDictionary[Any, Memory] = weakref.WeakKeyDictionary()


def memory_of(group: Any) -> Memory:
    return _memories.setdefault(group, Memory())


def _digests(heads: Sequence[Head]) -> bytes:
    return b"".join(head.digest for head in heads)


def said(told: Told, own: Told) -> tuple[bytes, bytes]:
    """The text and its digest, of values that have hashes; `own` is what differs."""
    return _said(tuple(told.items()), tuple(own.items()))


@functools.lru_cache(maxsize=256)
def _said(told: tuple[Any, ...], own: tuple[Any, ...]) -> tuple[bytes, bytes]:
    text = _BETWEEN.join(json.dumps(dict(items)).encode() for items in (told, own))
    return text, hashlib.blake2b(text, digest_size=_DIGEST).digest()


def exchanged(text: bytes, heads: Sequence[Head], control: Any) -> list[bytes]:
    """Every rank's text; the heads have said how long they are."""
    size = max(head.length for head in heads)
    mine = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)
    came = torch.empty(len(heads) * size, dtype=torch.uint8, device="cpu")
    gather(came, mine, control).wait()
    whole = came.numpy().tobytes()
    return [whole[rank * size :][: head.length] for rank, head in enumerate(heads)]


def agreed_on(texts: Sequence[bytes]) -> Agreed:
    """Raises where a rank refuses, or where they differ: the same error on every rank but for one
    that refuses. What is the same to the letter is read once, and is one object."""
    read: dict[bytes, Told] = {}
    every: list[tuple[Told, Told]] = []
    for text in texts:
        same, _, other = text.partition(_BETWEEN)
        if same not in read:
            read[same] = json.loads(same)
        every.append((read[same], json.loads(other)))
    for rank, (same, _) in enumerate(every):
        if ERROR in same:
            raise RuntimeError(f"rank {rank} of the group refused the call: {same[ERROR]}")
    keys = dict.fromkeys(key for told in read.values() for key in told) if len(read) > 1 else ()
    for key in keys:
        _check_same(key, [same.get(key) for same, _ in every])
    check_apart([other[PLACE] for _, other in every if PLACE in other])
    return Agreed([told | other for told, other in every])


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


def gather(every: Tensor, own: Tensor, group: Any) -> Any:
    """Every rank's, one behind the other, into one tensor: begins it. `group` may be a backend."""
    if not isinstance(group, dist.ProcessGroup):
        return group._allgather_base(every, own)
    return getattr(dist, GATHER)(every, own, group, async_op=True)
