# SPDX-License-Identifier: Apache-2.0
"""Cells that nobody else has kernels for, as one writes them in PyTorch, by torch.compile.

x is [T,B,C], parameters have the names of scanrnn.torch's first layer, and states are float32. A
linear cell is a product, compiled gates and a compiled associative_scan, whose derivative is the
same scan against time. The others are loops over a compiled step, which a CUDA graph replays: a
loop that is compiled whole is unrolled, and that takes minutes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import peer_models as models
import torch
import torch.nn.functional as F
from torch import Tensor

FORMULA = "torch, compiled"


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


# ---- linear cells


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Over axis 0, the others as one."""
    flat = (1, len(a), -1)
    h: Tensor = compiled(models.torch_associative_scan)(a.reshape(flat), b.reshape(flat))
    return h.reshape(a.shape)


def qrnn_gates(pre: Tensor) -> tuple[Tensor, ...]:
    z, f, o = pre.float().chunk(3, dim=-1)
    return torch.sigmoid(f), torch.sigmoid(-f) * torch.tanh(z), torch.sigmoid(o).to(pre.dtype)


def opened(o: Tensor, c: Tensor) -> Tensor:
    return (o.float() * c).to(o.dtype)


def qrnn(x: Tensor, weight_ih: Tensor, bias_ih: Tensor) -> Tensor:
    a, b, o = compiled(qrnn_gates)(F.linear(x, weight_ih, bias_ih))
    y: Tensor = compiled(opened)(o, models.Scan.apply(a, b, scan))
    return y


def rglru_gates(pre: Tensor, x: Tensor, weight_a: Tensor) -> tuple[Tensor, Tensor]:
    r, i = pre.float().chunk(2, dim=-1)
    log_a = -8 * F.softplus(weight_a.float()) * torch.sigmoid(r)
    return log_a.exp(), (-torch.expm1(2 * log_a)).sqrt() * torch.sigmoid(i) * x.float()


def rglru(x: Tensor, weight_ih: Tensor, weight_a: Tensor, bias_ih: Tensor) -> Tensor:
    a, b = compiled(rglru_gates)(F.linear(x, weight_ih, bias_ih), x, weight_a)
    return models.Scan.apply(a, b, scan).to(x.dtype)


# ---- loops over a step


def walk(
    step: Callable[..., tuple[Tensor, ...]],
    pre: Tensor,
    states: tuple[Tensor, ...],
    *params: Tensor,
) -> Tensor:
    """`step` gives y and the states. The first have a gradient as all others, lest they be compiled
    for by themselves."""
    y = torch.zeros_like(states[0], dtype=pre.dtype).requires_grad_()
    ys = []
    for sums in pre.unbind(0):
        y, *after = compiled(step)(sums, y, *states, *params)
        states = tuple(after)
        ys.append(y)
    return torch.stack(ys)


def zeros(pre: Tensor, units: int) -> Tensor:
    return torch.zeros(pre.shape[1], units, device=pre.device, requires_grad=True)


def indrnn_step(sums: Tensor, y: Tensor, h: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    h = F.relu(sums.float() + u * h)
    return h.to(sums.dtype), h


def indrnn(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor) -> Tensor:
    pre = F.linear(x, weight_ih, bias_ih)
    return walk(indrnn_step, pre, (zeros(pre, len(weight_hh)),), weight_hh.float())


def slstm_step(
    sums: Tensor, y: Tensor, c: Tensor, n: Tensor, m: Tensor, weight_hh: Tensor
) -> tuple[Tensor, ...]:
    i, f, z, o = (sums.float() + F.linear(y, weight_hh).float()).chunk(4, dim=-1)
    kept = m + F.logsigmoid(f)
    m = torch.maximum(kept, i).detach()  # y does not depend on it
    i, f = (i - m).exp(), (kept - m).exp()
    c, n = f * c + i * torch.tanh(z), f * n + i
    return (torch.sigmoid(o) * c / n).to(sums.dtype), c, n, m


def slstm(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    pre, units = F.linear(x, weight_ih, bias_ih + bias_hh), weight_hh.shape[1]
    m = torch.full((x.shape[1], units), -torch.inf, device=x.device)
    return walk(slstm_step, pre, (zeros(pre, units), zeros(pre, units), m), weight_hh)


def norm_lstm_step(
    sums: Tensor,
    y: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    norm_hh: Tensor,
    norm_c: Tensor,
    norm_c_bias: Tensor,
) -> tuple[Tensor, ...]:
    product = F.linear(y, weight_hh).float()
    gates = sums.float() + F.layer_norm(product, norm_hh.shape, norm_hh)
    i, f, g, o = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    seen = F.layer_norm(c, norm_c.shape, norm_c, norm_c_bias)
    return (torch.sigmoid(o) * torch.tanh(seen)).to(sums.dtype), c


def norm_lstm(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    norm_ih: Tensor,
    norm_hh: Tensor,
    norm_c: Tensor,
    norm_c_bias: Tensor,
) -> Tensor:
    pre = F.layer_norm(F.linear(x, weight_ih), norm_ih.shape, norm_ih, bias_ih + bias_hh)
    norms = (value.float() for value in (norm_hh, norm_c, norm_c_bias))
    return walk(norm_lstm_step, pre, (zeros(pre, len(norm_c)),), weight_hh, *norms)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "QRNN": qrnn,
    "RGLRU": rglru,
    "IndRNN": indrnn,
    "SLSTM": slstm,
    "LSTM layer_norm": norm_lstm,
}
