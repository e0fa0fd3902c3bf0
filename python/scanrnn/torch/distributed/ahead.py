# SPDX-License-Identifier: Apache-2.0
"""The one exchange that ranks post before they have heard one another.

What a rank has heard before it comes to an exchange cannot stand still: all ranks post the same.
This one is of one size, whatever the call is. A rank says in its head that it posts it, and whoever
hears that posts it too, with nothing in it, also where it refuses the call or makes another one. So
it always comes to its end, and who hears of another call throws away what came.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .lost import named
from .places import place_alone
from .told import gather

AHEAD = "ahead"  # what a call keeps: its first exchange was of tails, and not too large
SIZE = 2**15  # bytes of a rank
_NO_NUMBER = 0xFF  # such bytes are NaN in every type, so that nobody takes them for a state


def possible(group: Any) -> bool:
    """Whether each rank knows on which device the others want it: all have been on one alone."""
    return place_alone(group) is not None


def fits(message: Tensor) -> bool:
    return message.nbytes <= SIZE


def exchanged(group: Any, ranks: int, message: Tensor | None) -> Tensor | None:
    """Every rank's, [ranks, elements]; None where this rank has none, and waits for nobody."""
    device = place_alone(group) if message is None else message.device
    mine = torch.empty(SIZE, dtype=torch.uint8, device=device)
    every = torch.empty(ranks * SIZE, dtype=torch.uint8, device=device)
    if message is None:
        mine.fill_(_NO_NUMBER)
    else:
        mine[: message.nbytes].view(message.dtype).copy_(message.view(-1))
    with named(group, "the exchange of tails"):
        way = gather(every, mine, group)
        way.wait()
    if message is None:
        return None
    return every.view(ranks, SIZE)[:, : message.nbytes].view(message.dtype)
