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
from .agree import PLACE, Ranks
from .exchange import Link, refuse_graph, refuse_transforms
from .groups import Groups, Work
from .schedule import Shape, Unit, following

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
) -> Tensor:
    """This rank's states h_t = a_t h_{t-1} + b_t: a_local, b_local [T_local,...] -> [T_local,...].

    Time runs through the ranks of `group` in their order; T_local may differ from rank to rank and
    be 0. Every rank gives the same h_0 [...], or None for zeros. Every rank calls backward() by
    itself: the gradients of a_local, b_local and h_0 are those of the sum of the ranks' losses,
    that of h_0 the same on all ranks. There are no second derivatives. `groups` and errors are
    those of TimeSharded.
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
            "shape of a_local but for time": list(a_local.shape[1:]),
            "h_0": h_0 is not None,
            "groups": None if groups is None else arguments.integer("groups", groups),
            "grad mode": grads,
            "requires_grad of h_0": h_0 is not None and h_0.requires_grad,
            "steps": a_local.shape[0],
            PLACE: place,
            "wanted": grads and any(v is not None and v.requires_grad for v in call[3:]),
        }

    every = ranks.agree(prepared, ("steps", "wanted", PLACE))
    steps = max(one["steps"] for one in every)
    lines = math.prod(a_local.shape[1:])
    wanted = any(one["wanted"] for one in every)
    cut = _cut(ranks.size, steps, lines, a_local, wanted, groups)
    shape = Shape(ranks.size, 1, 1, len(cut))
    spread = wanted and every[0]["requires_grad of h_0"]
    sharded = _Sharded(cut, Link(ranks, a_local.device, a_local.dtype), shape, spread)
    a, b = (_plain(value).reshape(len(value), lines) for value in (found[0].a, found[0].b))
    initial = None if h_0 is None else _plain(h_0).reshape(lines)
    if wanted:
        anchor = torch.zeros((), device=a.device, requires_grad=True)
        h: Tensor = _Function.apply(sharded, anchor, a, b, initial)
    else:
        h = _forward(sharded, a, b, initial)[0]
    return h.view(a_local.shape)


def _plain(value: Tensor) -> Tensor:
    """Without bits that say how its numbers are to be read."""
    return value.resolve_conj().resolve_neg()


class _Sharded(NamedTuple):
    groups: Groups
    link: Link
    shape: Shape
    spreads_h_0: bool  # its gradient to all ranks

    def walk(self, work: Any, back: bool = False) -> None:
        def size_of(unit: Unit) -> int:
            return self.lines(unit)[1]

        self.link.walk(self.shape, size_of, work, back)

    def lines(self, unit: Unit) -> tuple[int, int]:
        """First and number."""
        start, stop = self.groups.bounds[unit.group]
        return start, stop - start


def _cut(
    ranks: int, steps: int, lines: int, like: Tensor, training: bool, wanted: int | None
) -> Groups:
    if wanted is not None:
        most = max(1, lines // 2)  # a line by itself would have to have its steps side by side
        if not 1 <= wanted <= most:
            raise ValueError(f"groups: expected 1 to {most} for {lines} lines, got {wanted}")
        return cutting.cut(lines, wanted)
    # Forward reads a and b and writes h; backward reads a, h and dh, of which it makes a copy, and
    # writes da and db.
    moved = float((10 if training else 3) * steps * lines * like.element_size())
    work = Work(0.0, moved, False, "linear", 1, steps, 1 + training, Shape(ranks, 1, 1, 1))
    count = work.best(like.device.type, lines // LEAST_LINES) if ranks > 1 else 1
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
) -> tuple[Tensor, Tensor | None]:
    """The states, and those that this rank began with."""
    h = a.new_empty(a.shape)
    begins = following(Unit(0, 0, 0), sharded.link.rank, sharded.link.size, back=True) is None
    initial = h_0 if begins else a.new_empty(a.shape[1])

    def work(unit: Unit, message: Tensor | None) -> Tensor:
        lines = sharded.lines(unit)
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
    return h, initial


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sharded: _Sharded, anchor: Tensor, a: Tensor, b: Tensor, h_0: Tensor | None
    ) -> Tensor:
        h, initial = _forward(sharded, a, b, h_0)
        ctx.sharded = sharded
        ctx.save_for_backward(a, h, initial)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> Any:
        refuse_graph("scan")
        (a, h, initial), sharded, dh = ctx.saved_tensors, ctx.sharded, _plain(dh)
        da, db = (torch.empty_like(h) if need else None for need in ctx.needs_input_grad[2:4])
        dh_0 = torch.zeros(a.shape[1], device=a.device, dtype=a.dtype)

        def work(unit: Unit, message: Tensor | None) -> Tensor:
            lines = sharded.lines(unit)
            before = None if initial is None else initial.narrow(0, *lines)
            given = dh.narrow(1, *lines)
            if message is not None and len(a):  # the last state goes on to the next rank
                given = given.clone(memory_format=torch.contiguous_format)
                given[-1] += message
            if len(a):
                call = ScanCall(LINEAR, False, 0, a.narrow(1, *lines), None, h_0=before)
                out = [None if value is None else value.narrow(1, *lines) for value in (da, db)]
                out.append(None if before is None else dh_0.narrow(0, *lines))
                into = _Into(a.device, *(value for value in out if value is not None))
                wanted = [value is not None for value in out]
                into.scan_backward(call, h.narrow(1, *lines), None, given, wanted)
            elif message is not None:
                dh_0.narrow(0, *lines).copy_(message)
            return dh_0.narrow(0, *lines)

        sharded.walk(work, back=True)
        if not sharded.spreads_h_0:
            return None, None, da, db, None
        sharded.link.spread(dh_0, 0)
        return None, None, da, db, dh_0
