# SPDX-License-Identifier: Apache-2.0
"""scanrnn in JAX: layers and the bare recurrence for jit, grad and vmap.

A layer is a description and holds no arrays: `params = rnn.init(key)` is a dict by torch's names,
and `y, h_n = rnn(params, x, h_0)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import jax  # noqa: F401
except ImportError:
    raise ImportError("scanrnn.jax needs jax: pip install 'scanrnn[jax]'") from None

from ..registry import classes
from .layers import Layer, make_layer
from .scans import scan, scan_log
from .sharded import scan_sharded, time_sharded

_layers = classes(make_layer)
globals().update(_layers)

if TYPE_CHECKING:
    from .layer_classes import *  # noqa: F403


__all__ = ["Layer", "scan", "scan_log", "scan_sharded", "time_sharded", *_layers]
