# SPDX-License-Identifier: Apache-2.0
"""The recurrence and minGRU as one writes them in PyTorch, and in float64 to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# ---- the recurrence


class Scan(torch.autograd.Function):
    """`scan` of a and b over axis 0 and its derivative, which is the same against time."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, scan: Callable[..., Tensor]) -> Tensor:
        a = a.detach()
        h = scan(a, b.detach())
        ctx.save_for_backward(a, h)
        ctx.scan = scan
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, None]:
        a, h = ctx.saved_tensors
        zero = torch.zeros_like(a[:1])
        db = ctx.scan(torch.cat([a[1:], zero]).flip(0), dh.flip(0)).flip(0)
        return db * torch.cat([zero, h[:-1]]), db, None


def exact_scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t over axis 0 in float64."""
    return Scan.apply(a.double(), b.double(), doubling)


def doubling(a: Tensor, b: Tensor) -> Tensor:
    apart = 1
    while apart < len(a):
        b = torch.cat([b[:apart], b[apart:] + a[apart:] * b[:-apart]])
        a = torch.cat([a[:apart], a[apart:] * a[:-apart]])
        apart *= 2
    return b


def log_scan(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Two prefix sums over axis 1, as the published minGRU does."""
    sums = log_a.cumsum(1)
    return (sums + (log_b - sums).logcumsumexp(1)).exp()


def combine(f: tuple[Any, Any], g: tuple[Any, Any]) -> tuple[Any, Any]:
    return g[0] * f[0], g[0] * f[1] + g[1]


def torch_associative_scan(a: Tensor, b: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(combine, (a, b), dim=1)[1]


# ---- a layer of minGRU, [B,T,C] -> [B,T,H]


def log_mingru(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    k, v = F.linear(x, weight, bias).float().chunk(2, dim=-1)
    log_g = torch.where(v >= 0, (F.relu(v) + 0.5).log(), -F.softplus(-v))
    return log_scan(-F.softplus(k), -F.softplus(-k) + log_g).to(x.dtype)


def gates(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    k, v = F.linear(x, weight, bias).float().chunk(2, dim=-1)
    g = torch.where(v >= 0, v + 0.5, torch.sigmoid(v))
    return (torch.sigmoid(k) * g).to(x.dtype), (-F.softplus(k)).to(x.dtype)


def exact_mingru(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B,T,C] -> [B,T,H] in float64."""
    k, v = F.linear(x.double(), weight.double(), bias.double()).chunk(2, dim=-1)
    g = torch.where(v >= 0, v + 0.5, torch.sigmoid(v))
    return exact_scan(torch.sigmoid(-k).transpose(0, 1), (torch.sigmoid(k) * g).transpose(0, 1))


def exact_gradients(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """y, as exact_mingru's, and what dy [T,B,H] makes of x, weight and bias."""
    leaves = [value.double().requires_grad_() for value in (x, weight, bias)]
    y = exact_mingru(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, dy.double())


# ---- one step


def step(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    k, v = F.linear(x, weight, bias).chunk(2, dim=-1)
    return h + torch.sigmoid(k) * (torch.where(v >= 0, v + 0.5, torch.sigmoid(v)) - h)
