# SPDX-License-Identifier: Apache-2.0
"""scanrnn in torch: modules that train, and the bare recurrence as a differentiable function.

Everything is an operator of torch (`torch.ops.scanrnn`), so autograd, autocast, torch.compile, vmap
and CUDA graphs go through it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

try:
    import torch
except ImportError:
    raise ImportError("scanrnn.torch needs torch: pip install 'scanrnn[torch]'") from None
from torch import Tensor

from ..registry import CellInfo, classes, signature
from ..scan_call import checked
from . import replacing, scan_op, tensors
from .cells import GRUCell, LSTMCell, RNNCell
from .modules import Base, Recurrent
from .options import fixed_of
from .switches import TORCHS_OWN
from .torchs_own import Elman, TorchsOwn


def scan(
    a: Tensor,
    b: Tensor,
    h_0: Tensor | None = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Tensor | None = None,
) -> Tensor:
    """All states h_t = a_t h_{t-1} + b_t along `axis`: a, b [..., T, ...] -> [..., T, ...].

    As scanrnn.scan, and it can be differentiated as often as one likes. Gradients of complex
    tensors are torch's, those of the conjugates.
    """
    return _scan({"a": a, "b": b}, h_0, reverse, axis, reset)[0]


def scan_log(
    log_a: Tensor,
    log_b: Tensor,
    sign_b: Tensor | None = None,
    h_0: Tensor | tuple[Tensor, Tensor | None] | None = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Tensor | None = None,
    log_output: bool = False,
) -> Any:
    """The same states from log a and log |b|; with `log_output` the pair (log|h|, sign h).

    As scanrnn.scan_log, and it can be differentiated as often as one likes; signs have no gradient.
    """
    operands = {"log_a": log_a, "log_b": log_b, "sign_b": sign_b}
    h, sign_h = _scan(operands, h_0, reverse, axis, reset, log_output)
    return h if sign_h is None else (h, sign_h)


def _scan(
    operands: dict[str, Any], h_0: Any, reverse: Any, axis: Any, reset: Any, log_output: Any = False
) -> tuple[Tensor, Tensor | None]:
    like = tensors.Operands(*next(iter(operands.items())))
    call = checked(like, operands, h_0, reverse, axis, reset, log_output)
    tensors.refuse_compiled_forward_mode("scan", *call[3:])
    return scan_op.scan(call)


def replace(module: torch.nn.Module) -> list[str]:
    """Every LSTM, GRU, RNN, LSTMCell, GRUCell and RNNCell of torch.nn's inside becomes ours; gives
    the names of those that did.

    They change where they stand: the objects, their Parameters, hooks, mode and whatever a program
    has put there stay, so that optimisers, checkpoints and who holds a module go on. So does the
    module itself, whose name is "". One that cannot be is left and named in one warning, with the
    reason: a subclass, a parametrised module, an option or a dtype that ours has not.
    """
    kinds: list[type[Base]] = [RNNCell, LSTMCell, GRUCell]
    return replacing.replace(module, {**_modules, **{kind.__name__: kind for kind in kinds}})


def _make_module(cell: CellInfo) -> type[Recurrent]:
    doc = f"{cell.name}, {cell.words()}\n\n{Recurrent.__doc__}"
    own = TorchsOwn if cell.name in TORCHS_OWN else Recurrent
    base = Elman if cell.name == "RNN" else own
    members = {"__module__": "scanrnn.torch", "__doc__": doc, "_cell": cell}
    members["_fixed"] = fixed_of(cell)
    found = signature(Recurrent, cell.own_options())
    if base is Elman:
        named = dict(found.parameters)
        first = named.pop("nonlinearity").replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        *rest, last = named.values()
        found = found.replace(parameters=[*rest[:3], first, *rest[3:], last])
    members["__signature__"] = found
    return type(cell.name, (base,), members)


_modules = classes(_make_module)
globals().update(_modules)

if TYPE_CHECKING:
    from .layer_classes import *  # noqa: F403


__all__ = [
    "GRUCell", "LSTMCell", "RNNCell", "Recurrent", "replace", "scan", "scan_log", *_modules,
]  # fmt: skip
