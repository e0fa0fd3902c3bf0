# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence over ranks: its lines, which know nothing of one another, are the groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import arguments
from ...arrays.identify import of_torch
from ...arrays.torch import Torch
from ...scan_call import LINEAR, ScanCall, checked
from .. import tensors
from . import groups as cutting
from . import tails
from .agree import Ranks
from .exchange import Link, Messages, refuse_graph, refuse_transforms
from .groups import Groups, Work
from .schedule import Shape, Unit, following
from .tails import SCAN_WAYS, Reading, Tails, checked_way
from .told import PLACE, Agreed

LEAST_LINES = 32  # in a group: a cache line or two of one step
_GRAIN = 16  # lines in a group are a multiple


@torch.compiler.disable
def scan(
    a_local: Tensor,
    b_local: Tensor,
    h_0: Tensor | None = None,
    group: Any = None,
    *,
    groups: int | None = None,
    way: str = "auto",
) -> Tensor:
    """This rank's states h_t = a_t h_{t-1} + b_t: a_local, b_local [T_local,...] -> [T_local,...].

    Time runs through the ranks of `group` in their order; T_local may differ from rank to rank and
    be 0. Every rank gives the same h_0 [...], or None for zeros. Every rank calls backward() by
    itself: the gradients of a_local, b_local and h_0 are those of the sum of the ranks' losses,
    that of h_0 the same on all ranks. There are no second derivatives. `groups`, `way` and errors
    are those of TimeSharded.
    """
    ranks = Ranks(group)
    found: list[ScanCall] = []

    def prepared() -> dict[str, Any]:
        like = tensors.Operands("a_local", a_local)
        place = ranks.place("a_local", a_local.device)
        call = checked(like, {"a_local": a_local, "b_local": b_local}, h_0, False, 0, None)
        refuse_transforms("scan", *call[3:])
        found.append(call)
        grads = torch.is_grad_enabled()
        return {
            "call": "scan",
            "device": a_local.device.type,
            "dtype": str(a_local.dtype),
            "shape of a_local but for time": tuple(a_local.shape[1:]),
            "h_0": h_0 is not None,
            "groups": None if groups is None else arguments.integer("groups", groups),
            "way": checked_way(way, groups, SCAN_WAYS),
            "grad mode": grads,
            "requires_grad of h_0": h_0 is not None and h_0.requires_grad,
            "steps": a_local.shape[0],
            PLACE: place,
            "wanted": grads and any(v is not None and v.requires_grad for v in call[3:]),
        }

    def run(agreed: Agreed) -> Tensor:
        return _run(ranks, agreed, found[0], groups)

    return ranks.run(prepared, run, ("steps", "wanted", PLACE)).view(a_local.shape)


def _run(ranks: Ranks, agreed: Agreed, call: ScanCall, groups: int | None) -> Tensor:
    """[T_local,lines], when all ranks have agreed or by a guess."""
    like, every = call.a, agreed.every
    steps, lines = max(one["steps"] for one in every), math.prod(like.shape[1:])
    wanted = any(one["wanted"] for one in every)
    work = _work(ranks.size, steps, lines, like, wanted)
    cut = _cut(work, lines, like.device.type, groups)
    forget = None
    if lines:
        least = min(one["steps"] for one in every)
        forget = tails.planned(every[0]["way"], work, like.device.type, cut, least, agreed.kept)
    shape = Shape(ranks.size, 1, 1, len(cut))
    spread = wanted and every[0]["requires_grad of h_0"]
    link = Link(ranks, like.device, like.dtype, agreed.kept)
    sharded = _Sharded(cut, link, shape, wanted, spread, forget)
    a, b = (_plain(value).reshape(len(value), lines) for value in (call.a, call.b))
    initial = None if call.h_0 is None else _plain(call.h_0).reshape(lines)
    if wanted:
        anchor = torch.empty((), device=a.device, requires_grad=True)
        h: Tensor = _Function.apply(sharded, anchor, a, b, initial)
        return h
    return _forward(sharded, a, b, initial)[1]


def _plain(value: Tensor) -> Tensor:
    """Without bits that say how its numbers are to be read."""
    return value.resolve_conj().resolve_neg()


class _Sharded(NamedTuple):
    groups: Groups
    link: Link
    shape: Shape
    training: bool
    spreads_h_0: bool  # its gradient to all ranks
    tails: Tails | None  # None: the pipeline

    def before(self) -> int | None:
        """The rank whose last state this one begins with."""
        return following(Unit(0, 0, 0), self.link.rank, self.link.size, back=True)

    def behind(self) -> int | None:
        return following(Unit(0, 0, 0), self.link.rank, self.link.size)

    def walk(self, work: Any, back: bool = False) -> None:
        """`work` of lines: the first and their number."""

        def size_of(unit: Unit) -> int:
            return self._lines(unit)[1]

        def of_unit(unit: Unit, message: Tensor | None) -> Tensor:
            return work(self._lines(unit), message)

        self.link.walk(self.shape, size_of, of_unit, back)

    def _lines(self, unit: Unit) -> tuple[int, int]:
        start, stop = self.groups.bounds[unit.group]
        return start, stop - start


def _work(ranks: int, steps: int, lines: int, like: Tensor, training: bool) -> Work:
    # Forward reads a and b and writes h; backward reads a, h and dh, of which it makes a copy, and
    # writes da and db.
    moved = float((10 if training else 3) * steps * lines * like.element_size())
    return Work(0.0, moved, False, "linear", 1, steps, 1 + training, Shape(ranks, 1, 1, 1))


def _cut(work: Work, lines: int, device: str, wanted: int | None) -> Groups:
    if wanted is not None:
        most = max(1, lines // 2)  # a line by itself would have to have its steps side by side
        if not 1 <= wanted <= most:
            raise ValueError(f"groups: expected 1 to {most} for {lines} lines, got {wanted}")
        return cutting.cut(lines, wanted)
    count = work.best(device, lines // LEAST_LINES) if work.shape.ranks > 1 else 1
    return cutting.cut(lines, count, _GRAIN)


class _Into(Torch):
    """Calls whose results go to these tensors, which may be parts of larger ones."""

    def __init__(self, device: torch.device, *results: Tensor) -> None:
        super().__init__(of_torch(device))
        self._results = list(results)

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self._results.pop(0)


def _forward(
    sharded: _Sharded, a: Tensor, b: Tensor, h_0: Tensor | None
) -> tuple[_Sharded, Tensor, Tensor | None]:
    """By which way it was, the states, and those that this rank began with."""
    if sharded.tails is not None:
        for _ in sharded.tails.attempts():
            ends = sharded.tails.settled(sharded.link, _reading(sharded, a, b))
            if ends is None:
                break
            before = sharded.before()
            initial = h_0 if before is None else ends.view(len(ends), -1, a.shape[1])[before, 0]
            initial = None if initial is None else initial.to(a.dtype)
            h = a.new_empty(a.shape)
            if len(a):
                _Into(a.device, h).scan(ScanCall(LINEAR, False, 0, a, b, h_0=initial))
            if sharded.tails.hold(sharded.link):
                return sharded, h, initial
        sharded = sharded._replace(tails=None)
    h = a.new_empty(a.shape)
    initial = h_0 if sharded.before() is None else a.new_empty(a.shape[1])

    def work(lines: tuple[int, int], message: Tensor | None) -> Tensor:
        if message is not None:
            initial.narrow(0, *lines).copy_(message)
        before = None if initial is None else initial.narrow(0, *lines)
        states = h.narrow(1, *lines)
        if len(a):
            parts = a.narrow(1, *lines), b.narrow(1, *lines)
            _Into(a.device, states).scan(ScanCall(LINEAR, False, 0, *parts, h_0=before))
            before = states[-1]
        return a.new_zeros(lines[1]) if before is None else before.contiguous()

    sharded.walk(work)
    return sharded, h, initial


def _reading(sharded: _Sharded, a: Tensor, b: Tensor) -> Reading:
    """Messages have the state that the last steps end with, from zero, and the products of decays:
    of the last steps for the rank behind and, with backward, of the first ones for the rank
    before. Where nobody is to hear of one, it is zero."""
    wide = torch.promote_types(a.dtype, torch.float32)

    def message(length: int) -> Tensor:
        none = torch.zeros(a.shape[1], device=a.device, dtype=wide)
        state, products = none, [none] * (1 + sharded.training)
        if sharded.behind() is not None:
            call = ScanCall(LINEAR, False, 0, a[-length:], b[-length:])
            state = Torch(of_torch(a.device)).scan(call)[0][-1]
            products[0] = call.a.prod(0, dtype=wide)
        if sharded.training and sharded.before() is not None:
            products[1] = a[:length].prod(0, dtype=wide)
        return torch.cat([state, *products])

    def product(every: Tensor) -> Tensor:
        return torch.linalg.vector_norm(every[:, a.shape[1] :], math.inf)

    return Reading(message, product, 1.0)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sharded: _Sharded, anchor: Tensor, a: Tensor, b: Tensor, h_0: Tensor | None
    ) -> Tensor:
        ctx.sharded, h, initial = _forward(sharded, a, b, h_0)
        ctx.save_for_backward(a, h, initial)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> Any:
        refuse_graph("scan")
        (a, h, initial), sharded = ctx.saved_tensors, ctx.sharded
        da, db = (torch.empty_like(h) if need else None for need in ctx.needs_input_grad[2:4])
        dh_0 = torch.zeros(a.shape[1], device=a.device, dtype=a.dtype)
        run = _Backward(a, h, initial, _plain(dh), da, db, dh_0)
        with sharded.link.meeting():
            if sharded.tails is None:
                sharded.walk(run.work, back=True)
            else:
                run.at_once(sharded, sharded.tails.lengths[0])
            if not sharded.spreads_h_0:
                return None, None, da, db, None
            sharded.link.spread(dh_0, 0)
        return None, None, da, db, dh_0


class _Backward(NamedTuple):
    a: Tensor
    h: Tensor
    initial: Tensor | None
    dh: Tensor
    da: Tensor | None  # what it writes
    db: Tensor | None
    dh_0: Tensor

    def work(self, lines: tuple[int, int], message: Tensor | None) -> Tensor:
        given, dh_0 = self.dh.narrow(1, *lines), self.dh_0.narrow(0, *lines)
        if len(self.a):
            before = None if self.initial is None else self.initial.narrow(0, *lines)
            parts = [self.a, self.h, self.da, self.db]
            a, h, da, db = (None if v is None else v.narrow(1, *lines) for v in parts)
            if message is not None:
                given = _with_last(given, message)
            _pull(a, h, before, given, da, db, None if before is None else dh_0)
        elif message is not None:
            dh_0.copy_(message)
        return dh_0

    def at_once(self, sharded: _Sharded, length: int) -> None:
        """All lines. What comes from the rank behind has been forgotten before the last steps, so
        that they alone are done again with it, and nobody copies the whole of dh."""
        before, behind = sharded.before(), sharded.behind()
        sent: Messages = []
        if before is not None:
            left = torch.empty_like(self.dh_0)
            some = (value[:length] for value in (self.a, self.h))
            _pull(*some, self.initial, self.dh[:length], None, None, left)
            sent.append((before, left))
        received = [] if behind is None else [(behind, torch.empty_like(self.dh_0))]
        came = sharded.link.swap(sent, received)
        self.work((0, self.a.shape[1]), None)
        start = len(self.a) - length
        for message in came:
            initial = self.h[start - 1] if start else self.initial
            parts = [self.a, self.h, self.da, self.db]
            a, h, da, db = (None if value is None else value[start:] for value in parts)
            _pull(a, h, initial, _with_last(self.dh[start:], message), da, db, None)


def _with_last(dh: Tensor, message: Tensor) -> Tensor:
    """The last state goes on to the next rank."""
    dh = dh.clone(memory_format=torch.contiguous_format)
    dh[-1] += message
    return dh


def _pull(
    a: Tensor, h: Tensor, h_0: Tensor | None, dh: Tensor, da: Tensor | None, db: Tensor | None,
    dh_0: Tensor | None,
) -> None:  # fmt: skip
    """Writes those of da, db and dh_0 that are there."""
    results = da, db, dh_0
    into = _Into(a.device, *(value for value in results if value is not None))
    call = ScanCall(LINEAR, False, 0, a, None, h_0=h_0)
    into.scan_backward(call, h, None, dh, [value is not None for value in results])
