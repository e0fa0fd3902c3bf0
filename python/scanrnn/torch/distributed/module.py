# SPDX-License-Identifier: Apache-2.0
"""TimeSharded: a layer whose sequences lie on several ranks, one after the other in time."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ... import arguments
from ..modules import Recurrent
from .agree import Ranks
from .asked import DIFFERING, Asked
from .groups import Groups
from .tails import checked_way

_ENDED = "_scanrnn_ended"  # of a state that a call has given, the name of its group


class _CountedOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, counts: bool) -> Tensor:
        ctx.counts = counts
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, None]:
        return dh if ctx.counts else torch.zeros_like(dh), None


def counted_once(h: Tensor, group: Any = None) -> Tensor:
    """h, whose gradient is the first rank's alone, and zeros on all others.

    For what is made of one `TimeSharded`'s h_n and becomes another one's h_0: each rank has the
    total's gradient of h_0, and those of h_n are added over the ranks. An h_n that becomes h_0 as
    it is needs none of it.
    """
    return _CountedOnce.apply(h, dist.get_rank(group) == 0)


class TimeSharded(nn.Module):
    """`module` with time split over the ranks of `group`, in the order of ranks.

    `y, h_n = model(x_local, h_0)`: x_local [T_local,B,C] is this rank's part of the sequence, or
    [B,T_local,C], or [T_local,C]; T_local may differ from rank to rank and be 0. y is this rank's
    part of the output; h_n, the state at the end of the whole sequence, comes to every rank. Every
    rank gives the same h_0, and `lengths` [B] of the whole sequences; `reset` is this rank's part.
    There are no `cu_seqlens` and no PackedSequence: rows of one length, or resets, do the same.

    The loss is the sum of the ranks' losses, h_n counting as often as it is given. Every rank calls
    backward() by itself, on something that depends on its y or h_n. Then the gradients of x_local,
    h_0 and the parameters are the total's; those of h_0 and the parameters are the same on all
    ranks. An h_n may be another call's h_0; with something between them `counted_once` is needed.
    There are no second derivatives.

    `module` is a layer of scanrnn.torch, of one or more layers and directions. `group` is that of
    torch.distributed, None for the default one: NCCL for CUDA, gloo for the CPU. `groups` says into
    how many parts a rank cuts its work, where None lets sizes decide: see docs/many_gpus.md. `way`
    is "pipeline", whose ranks wait for the states of one another; "tails", by which all ranks work
    at once where gates forget, an error where they do not; "rows", by which each rank has a part of
    the rows for the whole time, between two exchanges; or "auto", which takes tails or rows where
    sizes say that it pays, unless `groups` are given. `cut` and `taken` are the
    groups, or each rank's rows, and the way of the last call.

    Ranks compare what they were called with before anything passes between them or comes out, and
    where it differs all of them raise ValueError; where one refuses its arguments, all others raise
    RuntimeError.
    """

    def __init__(
        self, module: Recurrent, group: Any = None, *, groups: int | None = None, way: str = "auto"
    ) -> None:
        super().__init__()
        if not isinstance(module, Recurrent):
            raise TypeError(
                f"module: expected a layer of scanrnn.torch, got {type(module).__name__}"
            )
        self.module, self.group = module, group
        self.groups = None if groups is None else arguments.integer("groups", groups)
        if self.groups is not None and self.groups < 1:
            raise ValueError(f"groups: expected a number >= 1, got {groups}")
        self.way = checked_way(way, self.groups)
        self.cut: Groups | None = None
        self.taken: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> TimeSharded:
        """The group is the same one."""
        module = copy.deepcopy(self.module, memo)
        copied = TimeSharded(module, self.group, groups=self.groups, way=self.way)
        copied.training = self.training
        return copied

    def __getstate__(self) -> dict[str, Any]:
        if self.group is not None:
            raise TypeError("group: a process group belongs to its processes: save state_dict()")
        return super().__getstate__()

    @torch.compiler.disable
    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
    ) -> tuple[Tensor, Any]:
        ranks = Ranks(self.group)
        if isinstance(hx, (tuple, list)):
            begun = [_begun(h, ranks) for h in hx]
            hx = begun if isinstance(hx, list) else tuple(begun)
        else:
            hx = _begun(hx, ranks)
        asked = Asked(
            self.module, self.groups, self.way, ranks, input, hx, lengths, cu_seqlens, reset
        )
        y, *finals = ranks.run(asked.prepared, asked.run, DIFFERING)
        self.cut, self.taken = asked.grouped, asked.taken
        if asked.single:
            y, finals = y.squeeze(asked.batch_axis), [final.squeeze(1) for final in finals]
        for final in finals:
            setattr(final, _ENDED, ranks.group.group_name)
        return y, finals[0] if len(finals) == 1 else tuple(finals)


def _begun(h: Any, ranks: Ranks) -> Any:
    """A state that a call begins with; that of another call's end counts once."""
    ended = getattr(h, _ENDED, None) == ranks.group.group_name
    return counted_once(h, ranks.group) if ended else h
