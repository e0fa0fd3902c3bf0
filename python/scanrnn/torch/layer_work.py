# SPDX-License-Identifier: Apache-2.0
"""What a layer's forward and backward do with torch's memory, for its operators and for eager mode.

All memory is torch's, all work is on the current stream, and nothing is waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..arguments import short_name
from ..description import Batch, Description, Planned
from ..ragged import PACKED, of_sequence
from .plans import plan_of
from .switches import followed
from .tensors import device_of, ready_tokens, stream_of, workspace

# lengths, cu_seqlens and reset of a batch that is rectangular.
RECTANGULAR: tuple[Any, Any, Any] = (None, None, None)


def forward(
    description: Description, x: Tensor, h_0: Sequence[Tensor], params: Sequence[Tensor],
    steps: Sequence[Any], seed: Tensor | None, training: bool, reserve_shape: Any = None,
    shared: bool = False,
) -> tuple[Tensor, list[Tensor], Tensor | None, Planned]:  # fmt: skip
    """y, the states at the end, the reserve, which inference has not and whose shape is the least,
    and the plan. `shared`: y of one step is its h, too, which is right where nobody keeps y."""
    ragged, reserve = of_sequence(*steps), None
    with followed(description, x):
        planned = plan_of(x, ragged, training, description)
        y = x.new_empty(planned.y)
        states = [x.new_empty(shape) for shape in planned.states[shared:]]
        if training:
            size = planned.reserve if reserve_shape is None else reserve_shape
            reserve = x.new_empty(size, dtype=torch.uint8)
        _core.forward(
            planned.core, planned.plan, stream_of(x), params, ready_tokens(x), h_0, y,
            (None, *states) if shared else states,
            workspace(x, planned.workspace), reserve,
            0 if seed is None else seed.item(), description.one_step, ragged,
        )  # fmt: skip
    return y, [y, *states] if shared else states, reserve, planned


def backward(
    description: Description, x: Tensor, h_0: Sequence[Tensor], params: Sequence[Tensor],
    steps: Sequence[Any], seed: Tensor | None, y: Tensor, reserve: Tensor, dy: Tensor | None,
    dh_n: Sequence[Tensor], needs: Sequence[bool], planned: Planned | None = None,
) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:  # fmt: skip
    """dx, dh_0 and dparams, of which `needs` says for each whether it is wanted; `planned` may be
    the plan of forward."""
    ragged = of_sequence(*steps)
    need_x, need_h_0, need_params = needs
    dx = _like([x])[0] if need_x else None
    dh_0 = _like(h_0) if need_h_0 else []
    dparams = _like(params) if need_params else []
    alignment = 128 if x.is_cuda else 64
    if reserve.data_ptr() % alignment or not reserve.is_contiguous():
        reserve = reserve.clone(memory_format=torch.contiguous_format)  # somebody has moved it
    with followed(description, x):
        planned = plan_of(x, ragged, True, description, planned)
        _core.backward(
            planned.core, planned.plan, stream_of(x), params, ready_tokens(x), h_0, y, dy, dh_n,
            dx, dh_0, dparams, workspace(x, planned.workspace), reserve,
            0 if seed is None else seed.item(), description.one_step, ragged,
        )  # fmt: skip
    return dx, dh_0, dparams


def _like(values: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous memory of these shapes; empty_like takes half as long as new_empty."""
    return [
        torch.empty_like(value) if value.is_contiguous() else value.new_empty(value.shape)
        for value in values
    ]


def whole(
    description: Description, x: Tensor, steps: Sequence[Any], dh_n: Sequence[Tensor | None]
) -> list[Tensor]:
    """Cotangents of all tensors of the state where there is one of any, else none."""
    if all(d is None for d in dh_n):
        return []
    batch = description.batch(x.shape, of_sequence(*steps))
    shapes = description.state_shapes(batch.sequences)
    pairs = zip(dh_n, shapes, strict=True)
    return [x.new_zeros(shape) if d is None else d for d, shape in pairs]


# ---- the reserve where its size is to be known without a plan


def layer_of(x: Tensor, description: Description) -> _core.Layer:
    return description.layer(int(x.shape[-1]), short_name(x.dtype))


@functools.lru_cache(maxsize=1024)
def _reserve_width(layer: _core.Layer, device: _core.Device, layout: str) -> int:
    # 256 tokens of one step make every part of the reserve a whole number of its alignment.
    sizes = (256, 1) if layout == PACKED else (1, 256)
    return layer.plan(device, *sizes, True, None, layout).reserve_bytes // 256


def reserve_shape(layer: _core.Layer, device: torch.device, batch: Batch) -> tuple[Any, Any]:
    """At least what forward leaves for backward, as an expression that may hold symbolic sizes.

    Every part of it is so many bytes a token, rounded up to 256; so are these rows of tokens.
    """
    steps, sequences, layout = batch
    tokens = steps if layout == PACKED else (steps if steps > 0 else 1) * sequences
    return (tokens + 255) // 256 * 256, _reserve_width(layer, device_of(device), layout)
