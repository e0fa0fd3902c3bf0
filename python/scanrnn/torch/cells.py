# SPDX-License-Identifier: Apache-2.0
"""RNNCell, LSTMCell and GRUCell, which stand in for torch.nn's: one step of one layer, by the
operator of a layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import short_name, type_name
from ..arrays.eager import is_eager
from ..description import Description
from . import ops, tensors
from .modules import Base, alike, any_requires_grad, first_proxy, traced
from .torchs_own import check_sizes

_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Cell(Base):
    """One step of one layer: input [B,C] or [C], and h_0, h_1 [B,H] or [H]; of LSTMCell both are
    pairs, (h_0, c_0) and (h_1, c_1). Zeros where no state is given.

    Arguments, parameters, values and errors are those of torch.nn's cell of this name.
    """

    _cell: str
    _last = "bias"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes({"input_size": input_size, "hidden_size": hidden_size})
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in tensors.DTYPES:
            raise ValueError(f"dtype: expected one of {tensors.DTYPES}, got {dtype!r}")
        self.input_size, self.hidden_size, self.bias = int(input_size), int(hidden_size), bias
        layer = self._described("").layer(self.input_size, short_name(dtype))
        shapes = {name.removesuffix("_l0"): shape for name, shape in layer.parameters()}
        for name in _PARAMETERS:  # in torch's order, and None where there is none
            value = None
            if name in shapes:
                value = nn.Parameter(torch.empty(shapes[name], device=device, dtype=dtype))
            self.register_parameter(name, value)
        self.reset_parameters()

    def _described(self, variant: str) -> Description:
        return _described(self._cell, self.hidden_size, bool(self.bias), variant)

    def _variant(self) -> str:
        """That of the cell; its first one, or the only one."""
        return ""

    def _one(self, input: Any, states: list[Any]) -> Sequence[Tensor]:
        """The states after the step, from none or all of those before it."""
        usual = self._usual(input, states)
        if usual is not None:
            return usual
        if (proxy := first_proxy((input, *states))) is not None:
            return self._traced(proxy, input, states)
        single = self._check(input, states)
        x = input.unsqueeze(0) if single else input
        if single:
            states = [state.unsqueeze(0) for state in states]
        own = self._parameters  # a parametrized one is elsewhere
        params = [own[name] if name in own else getattr(self, name) for name in _PARAMETERS]
        params = [value for value in params if value is not None]
        after = self._run(x, states, params, None, False, self._described(self._variant()))
        return [state.squeeze(0) for state in after] if single else after

    def _usual(self, input: Any, states: list[Any]) -> Sequence[Tensor] | None:
        """As that of layers: None is a call that `_one` looks at in full."""
        own, names = self._parameters, _PARAMETERS if self.bias else _PARAMETERS[:2]
        try:
            params: list[Any] = [own[name] for name in names]
        except KeyError:
            return None
        given = [*params, input, *states]
        if not is_eager(given) or torch._C._is_any_autocast_enabled():
            return None
        if not alike([input, *states], params[0]):
            return None
        shape, size = input.shape, self.hidden_size
        if len(shape) != 2 or shape[1] != self.input_size:
            return None
        for state in states:
            if state.shape != (shape[0], size):
                return None
        wants = torch.is_grad_enabled() and any_requires_grad(given)
        told = _described(self._cell, size, bool(self.bias), self._variant())
        return ops.run_eager(input, states, params, wants, told)

    def _traced(self, proxy: Any, input: Any, states: list[Any]) -> Sequence[Any]:
        count = len(self._state_words())
        hx = (states[0] if count == 1 else tuple(states)) if states else None
        node = traced(proxy, self, (input, hx), {})
        return [node] if count == 1 else [node[index] for index in range(count)]

    # ---- what torch says of a wrong call

    def _check(self, input: Any, states: list[Any]) -> bool:
        """Whether it is one sequence's."""
        name = type(self).__name__
        for which, value in zip(("input", *self._state_words()), (input, *states), strict=False):
            called = "hx" if which == "hidden" else which
            if not isinstance(value, Tensor):
                raise TypeError(f"{called}: expected a tensor, got {type_name(value)}")
            tensors.check_dense(called, value)
            if value.dim() not in (1, 2):
                raise ValueError(
                    f"{name}: Expected {which} to be 1D or 2D, got {value.dim()}D instead"
                )
        single, size = input.dim() == 1, input.shape[-1]
        if size != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {size} expected {self.input_size}"
            )
        batch = 1 if single else input.shape[0]
        for index, state in enumerate(states):
            shape = (1, *state.shape) if single else state.shape
            if shape[0] != batch:
                raise RuntimeError(
                    f"Input batch size {batch} doesn't match hidden{index} batch size {shape[0]}"
                )
            if len(shape) != 2 or shape[1] != self.hidden_size:
                got = shape[1] if len(shape) > 1 else "none"
                raise RuntimeError(
                    f"hidden{index} has inconsistent hidden_size: got {got}, expected "
                    f"{self.hidden_size}"
                )
        return single

    def _state_words(self) -> tuple[str, ...]:
        """What torch calls the tensors of a state."""
        return ("hidden",)

    def _other_dtype(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        got, wanted = (_TORCHS_NAMES.get(v.dtype, str(v.dtype)) for v in (value, parameter))
        said = super()._other_dtype(name, value, parameter)
        return RuntimeError(
            f"mat1 and mat2 must have the same dtype, but got {got} and {wanted}: {said}"
        )

    def _other_device(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        said = super()._other_device(name, value, parameter)
        return RuntimeError(f"Expected all tensors to be on the same device: {said}")

    def extra_repr(self) -> str:
        out = f"{self.input_size}, {self.hidden_size}"
        return out if self.bias is True else f"{out}, bias={self.bias}"


@functools.lru_cache(maxsize=1024)
def _described(cell: str, hidden_size: int, bias: bool, variant: str) -> Description:
    return Description(cell, hidden_size, bias=bias, variant=variant, one_step=True)


_TORCHS_NAMES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
}


class RNNCell(Cell):
    __doc__ = f"Cell RNN, with `nonlinearity` one of 'tanh', 'relu'.\n\n{Cell.__doc__}"
    _cell = "RNN"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def _variant(self) -> str:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self.nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._one(input, [] if hx is None else [hx])[0]

    def extra_repr(self) -> str:
        out = super().extra_repr()
        return out if self.nonlinearity == "tanh" else f"{out}, nonlinearity={self.nonlinearity}"


class LSTMCell(Cell):
    __doc__ = f"Cell LSTM.\n\n{Cell.__doc__}"
    _cell = "LSTM"

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        if hx is not None and not isinstance(hx, (tuple, list)):
            if isinstance(hx, torch.fx.Proxy):
                return traced(hx, self, (input, hx), {})
            raise TypeError(f"hx: expected the pair (h_0, c_0), got {type_name(hx)}")
        if hx is not None and len(hx) != 2:
            raise RuntimeError(
                f"lstm_cell expects two hidden states: the pair (h_0, c_0), got {len(hx)}"
            )
        h, c = self._one(input, [] if hx is None else list(hx))
        return h, c

    def _state_words(self) -> tuple[str, ...]:
        return ("hx[0]", "hx[1]")


class GRUCell(Cell):
    __doc__ = f"Cell GRU.\n\n{Cell.__doc__}"
    _cell = "GRU"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._one(input, [] if hx is None else [hx])[0]
