# SPDX-License-Identifier: Apache-2.0
"""Plans of layers' calls, found again by what a tensor says of itself."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import _core
from ..arguments import short_name
from ..call import log
from ..description import Description, Planned
from ..ragged import Ragged
from .tensors import device_of


def plan_of(
    x: Tensor, ragged: Ragged | None, training: bool, description: Description,
    before: Planned | None = None,
) -> Planned:  # fmt: skip
    """`before` is that of the same call's forward, which holds for as long as nothing is set."""
    device = device_of(x.device) if before is None else before.device
    settings = _core.settings(device)
    if before is not None and before.settings == settings:
        planned = before
    elif ragged is None:
        planned = _rectangular(description, x.shape, x.dtype, device, training, settings)
    else:
        batch = description.batch(x.shape, ragged)
        dtype = short_name(x.dtype)
        planned = description.plan(x.shape[-1], dtype, device, batch, training)
    if _core.wants_plans():
        log(planned.plan)
    return planned


@functools.lru_cache(maxsize=1024)
def _rectangular(
    description: Description, shape: torch.Size, dtype: torch.dtype, device: _core.Device,
    training: bool, settings: int,
) -> Planned:  # fmt: skip
    """By what a tensor says of itself, so that one look finds the plan; `settings` are what else it
    depends on."""
    planner = description.planner(shape[-1], short_name(dtype), device)
    steps, sequences, _ = description.batch(shape)
    return planner(settings, steps, sequences, training, description.strategy)
