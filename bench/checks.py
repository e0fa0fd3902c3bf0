# SPDX-License-Identifier: Apache-2.0
"""Numbers that every dtype holds, and whether a result is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from rows import Row
from torch import Tensor


def numbers(*shape: int, shift: int = 0) -> Tensor:
    """Random multiples of 2^-7 in [-1, 1) times 2^-shift, which every dtype holds."""
    whole = torch.randint(-128, 128, shape, device="cuda", dtype=torch.int16)
    return whole.float() * 2.0 ** (-7 - shift)


def fill(rnn: torch.nn.Module, hidden: int) -> None:
    """Parameters of at most 1 / sqrt(hidden), which every dtype holds."""
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.copy_(numbers(*parameter.shape, shift=shift_of(hidden)))


def shift_of(hidden: int) -> int:
    """That of numbers() of at most 1 / sqrt(hidden)."""
    return ((hidden - 1).bit_length() + 1) // 2


def gradients(
    call: Callable[..., Tensor], leaves: list[Tensor], names: list[str], dy: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """y of the leaves, and their gradients by their names."""
    y = call(*leaves)
    found = torch.autograd.grad(y, leaves, dy)
    return y.detach(), dict(zip(names, found, strict=True))


def finite(error: Tensor) -> float:
    """NaN as infinity, so that no comparison lets it pass."""
    return math.inf if math.isnan(float(error)) else float(error)


def check(
    y: Tensor,
    want: Tensor,
    gradients: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    bounds: tuple[float, float] = (0.1, 0.1),
) -> Row:
    """Errors for a row: y's largest over the largest value, and of the gradients the largest
    relative RMS. It raises where one is beyond its bound, or NaN."""
    if gradients.keys() != wanted.keys():
        raise AssertionError(f"gradients of {sorted(gradients)}, not of {sorted(wanted)}")
    off = (y.double() - want).abs().max() / want.abs().max()
    found = {"max_error": finite(off)}
    for name, gradient in gradients.items():
        off = (gradient.double().reshape(wanted[name].shape) - wanted[name]).norm()
        size = wanted[name].norm()  # 0 of a recurrent weight where there is one step
        error = finite(off / size if size > 0 else off)
        found["gradient_error"] = max(error, found.get("gradient_error", 0.0))
    for (name, error), bound in zip(found.items(), bounds, strict=False):
        if error > bound:
            raise AssertionError(f"wrong result: {name} {error:.2g}, bound {bound:.2g}")
    return {name: float(f"{error:.2g}") for name, error in found.items()}
