# SPDX-License-Identifier: Apache-2.0
"""torch.nn's recurrent modules inside a model become ours, where they stand."""

from __future__ import annotations

import warnings

from torch import nn

from . import tensors
from .modules import Base
from .switches import TORCHS_CELLS, TORCHS_OWN
from .torchs_own import adopted

_TORCHS = TORCHS_OWN | TORCHS_CELLS


def replace(module: nn.Module, classes: dict[str, type[Base]]) -> list[str]:
    """See scanrnn.torch.replace; `classes` are ours by name."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    replaced, left = [], []
    for name, found in module.named_modules():
        if not isinstance(found, (nn.RNNBase, nn.RNNCellBase)):
            continue
        try:
            _become(found, classes)
        except (NotImplementedError, TypeError, ValueError) as error:
            left.append(f"{name!r} ({type(found).__name__}): {error}")
        else:
            replaced.append(name)
    if left:
        warnings.warn(
            "replace: modules that are left as they are: " + "; ".join(left), stacklevel=3
        )
    return replaced


def _become(module: nn.Module, classes: dict[str, type[Base]]) -> None:
    """The object stays, so that whoever holds it sees the new class."""
    name = type(module).__name__
    theirs = _TORCHS.get(name)
    if theirs is None or type(module) is not theirs:
        raise TypeError("a subclass may do something else than its base")
    for parameter, value in module.named_parameters():
        if value.device.type not in tensors.DEVICE_TYPES:
            raise ValueError(
                f"{parameter}: expected device type of {tensors.DEVICE_TYPES}, got {value.device}"
            )
    kind = classes[name]
    state = adopted(kind, theirs, vars(module))
    module.__dict__.clear()
    module.__dict__.update(state)
    module.__class__ = kind
