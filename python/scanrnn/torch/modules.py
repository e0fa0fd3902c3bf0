# SPDX-License-Identifier: Apache-2.0
"""Modules that train, with constructor, parameters and return values as torch.nn has them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import arguments, initial
from ..arguments import short_name, state_names, state_words
from ..arrays.eager import is_eager
from ..description import Description, options_text
from ..ragged import Ragged, checked, longest_told, of_sequence
from ..registry import CellInfo
from . import ops, packed, tensors
from .options import WithOptions

Shapes = Sequence[tuple[Any, ...]]
_STATES = state_names("h_0", 4)


class Base(WithOptions):
    """What layers and cells do with a call whose shapes have been looked at."""

    hidden_size: int

    def reset_parameters(self) -> None:
        """U(-1/sqrt(H), 1/sqrt(H)), as torch does; RG-LRU's decays begin in [0.9, 0.999]."""
        for name, parameter in self.named_parameters():
            low, high, made = initial.of(name, self.hidden_size, self._own)
            if made is None:
                nn.init.uniform_(parameter, low, high)
                continue
            wide = torch.promote_types(parameter.dtype, torch.float32)
            drawn = torch.empty_like(parameter, dtype=wide, requires_grad=False)
            with torch.no_grad():
                parameter.copy_(made(torch, nn.init.uniform_(drawn, low, high)))

    def _run(
        self, x: Tensor, states: list[Tensor], params: list[Tensor], ragged: Ragged | None,
        drops: bool, told: Description,
    ) -> list[Tensor]:  # fmt: skip
        """y and the states at the end, of one step those alone."""
        tensors.refuse_compiled_forward_mode(type(self).__name__, x, *states, *params)
        target = _autocast_dtype(x, params[0])
        if target is not None:
            x, *states = (_cast(value, target) for value in (x, *states))
            params = [_cast(parameter, target) for parameter in params]
        self._check_like("input", x, params[0])
        device = params[0].device
        for parameter in params:  # an operator on one without data would give none, either
            if parameter.device != device:
                raise self._other_device(self._name_of(parameter), parameter, params[0])
            if parameter.layout != torch.strided:
                tensors.check_dense(self._name_of(parameter), parameter)
        for name, value in zip(_STATES, states, strict=False):
            self._check_like(name, value, params[0])
        given = x, *states, *params
        wanted = torch.is_grad_enabled() and any(map(_may_want_grad, given))
        wanted = wanted or tensors.have_tangents(*given)
        # A number of torch's own generator, so that manual_seed and checkpointing govern it.
        seed = torch.randint(2**62, (), device="cpu") if drops else None
        return ops.run(x, states, params, ragged, seed, wanted, told)

    def _name_of(self, parameter: Tensor) -> str:
        known = {id(value): name for name, value in self.named_parameters()}
        return known.get(id(parameter), "parameters")

    def _check_like(self, name: str, value: Tensor, parameter: Tensor) -> None:
        if value.dtype != parameter.dtype:
            raise self._other_dtype(name, value, parameter)
        if value.device != parameter.device:
            raise self._other_device(name, value, parameter)

    def _other_dtype(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        return TypeError(
            f"{name}: expected dtype {parameter.dtype}, that of the parameters, got "
            f"{value.dtype}: cast one of them, or use torch.autocast"
        )

    def _other_device(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        return TypeError(
            f"{name}: expected device {parameter.device}, where the parameters are, got "
            f"{value.device}: move one of them with .to()"
        )


class Recurrent(Base):
    """A stack of recurrent layers; each cell of the registry has a subclass of its name.

    `y, h_n = rnn(input, h_0)`: input [T,B,C], or [B,T,C] with batch_first, or [T,C]; y likewise
    with D*H; h_0 and h_n [L*D,B,H], or [L*D,H]. For LSTM both are pairs, (h, c). Everything is of
    one dtype and on one device, as the parameters are; under autocast it is cast to autocast's.
    `lengths`, `cu_seqlens` and `reset` are those of `scanrnn`'s layers. A PackedSequence is taken
    and given as torch.nn's modules do.
    """

    _cell: CellInfo
    _last = "_names"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        domain: str = "log",
        strategy: str | None = None,
        **own: Any,
    ) -> None:
        """As torch.nn.LSTM's, and `domain`, `strategy` and the cell's own options as scanrnn's."""
        super().__init__()
        known = self._cell.own_options()
        if "proj_size" in known:
            own["proj_size"] = proj_size
        elif proj_size != 0:
            raise ValueError(
                f"proj_size: expected 0, {self._cell.name} has no projections, got {proj_size}: "
                f"it is an option of {arguments.owners_of('proj_size')}"
            )
        self._own = arguments.own_options(known, type(self), own)
        self._cell = cell = self._cell.chosen(self._own)
        self._options = options_text(cell, self._own)
        self.input_size = arguments.integer("input_size", input_size)
        self.hidden_size = arguments.integer("hidden_size", hidden_size)
        self.num_layers = arguments.integer("num_layers", num_layers)
        self.bias = arguments.flag("bias", bias)
        self.batch_first = arguments.flag("batch_first", batch_first)
        self.dropout = arguments.real("dropout", dropout)
        self.bidirectional = arguments.flag("bidirectional", bidirectional)
        self.domain = arguments.domain(cell, domain)
        self.strategy = arguments.strategy_name(strategy)
        for name, value in ({"proj_size": 0} | self._own).items():
            setattr(self, name, value)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in tensors.DTYPES:
            raise ValueError(f"dtype: expected one of {tensors.DTYPES}, got {dtype!r}")
        described = self._description()
        layer = described.layer(self.input_size, short_name(dtype))
        initial.check(self._own, short_name(dtype))
        self._names = [name for name, _ in layer.parameters()]
        for name, shape in layer.parameters():
            value = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(value))
        self.reset_parameters()

    def _description(self) -> Description:
        return Description(
            self._cell.name, self.hidden_size, self.num_layers, self.bias, self.batch_first,
            self.dropout, self.bidirectional, self._own.get(self._cell.variant_option, ""),
            self.domain, self._options, self.strategy,
        )  # fmt: skip

    def flatten_parameters(self) -> None:
        """Nothing: for programs that call it on torch.nn's."""

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """Parameters by layer and direction, as torch.nn's has them."""
        groups: dict[str, list[nn.Parameter]] = {}
        for name in self._names:
            groups.setdefault(name[name.index("_l") :], []).append(getattr(self, name))
        return list(groups.values())

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
        longest: int | None = None,
    ) -> tuple[Any, Any]:
        if lengths is None and cu_seqlens is None and reset is None and longest is None:
            usual = self._usual(input, hx)
            if usual is not None:
                return usual
        told_of = {"lengths": lengths, "cu_seqlens": cu_seqlens, "reset": reset, "longest": longest}
        if (proxy := first_proxy((input, hx, *told_of.values()))) is not None:
            return traced(proxy, self, (input, hx), told_of)
        ragged = of_sequence(lengths, cu_seqlens, reset)
        is_packed = isinstance(input, nn.utils.rnn.PackedSequence)
        most = longest_told(longest, cu_seqlens, None if is_packed else input)
        if is_packed:
            # Not a subclass' own forward, which is under way.
            return packed.run(functools.partial(Recurrent.forward, self), input, hx, ragged)
        own = self._parameters  # a parametrized one is elsewhere
        params = [own[name] if name in own else getattr(self, name) for name in self._names]
        for name, value in zip(self._names, params, strict=True):
            if value is None:
                raise TypeError(f"{name}: expected a parameter, got None")
        self._check_input(input, cu_seqlens is not None)
        single, batch_axis = input.dim() == 2 and cu_seqlens is None, 0 if self.batch_first else 1
        x, told = input, self._description()
        drops = self.training and told.drops
        told = told if drops else told.without_drops()
        told = told._replace(longest=most) if most else told
        if ragged is not None:
            ragged = checked(tensors.Operands("input", x), ragged, x.shape, batch_axis, most)
        if single:
            x = x.unsqueeze(batch_axis)
            if ragged is not None:
                ragged = ragged._replace(reset=ragged.reset.unsqueeze(batch_axis))
        states = []
        if hx is not None:
            shapes = told.state_shapes(told.batch(x.shape, ragged).sequences)
            states = self._states(shapes, hx, single)
        y, *finals = self._run(x, states, params, ragged, drops, told)
        if single:
            y, finals = y.squeeze(batch_axis), [final.squeeze(1) for final in finals]
        return y, finals[0] if len(finals) == 1 else tuple(finals)

    def _usual(self, input: Any, hx: Any) -> tuple[Any, Any] | None:
        """A call as nearly all are: a batch of plain tensors that fit, in eager mode. None is any
        other, which `forward` looks at in full: that takes longer than a small layer's work."""
        if hx is None:
            states = []
        else:  # what is no tensor is not plain
            several = self._cell.states > 1 and isinstance(hx, (tuple, list))
            states = [*hx] if several else [hx]
        own = self._parameters
        try:
            params: list[Any] = [own[name] for name in self._names]
        except KeyError:
            return None
        given = [*params, input, *states]
        if not is_eager(given) or torch._C._is_any_autocast_enabled():
            return None
        if not alike([input, *states], params[0]):
            return None
        told, shape = self._description(), input.shape
        if told.drops:
            if self.training:
                return None
            told = told.without_drops()
        if len(shape) != 3 or shape[2] != self.input_size:
            return None
        if hx is not None:
            shapes = _state_shapes(told, shape[told.batch_axis])
            if len(states) != len(shapes):
                return None
            for state, wanted in zip(states, shapes, strict=True):
                if state.shape != wanted:
                    return None
        wants = torch.is_grad_enabled() and any_requires_grad(given)
        y, *finals = ops.run_eager(input, states, params, wants, told)
        return y, finals[0] if len(finals) == 1 else tuple(finals)

    def _check_input(self, input: Any, packed: bool) -> None:
        if not isinstance(input, Tensor):
            raise TypeError(f"input: expected a tensor, got {type(input).__name__}")
        tensors.check_dense("input", input)
        ranks = (2,) if packed else (2, 3)
        if input.dim() not in ranks or input.shape[-1] != self.input_size:
            axes = "(B, T, C)" if self.batch_first else "(T, B, C)"
            wanted = "(tokens, C)" if packed else f"{axes}, or (T, C) for one sequence,"
            raise ValueError(
                f"input: expected {wanted} with C = {self.input_size}, got shape "
                f"{tuple(input.shape)}"
            )

    def _states(self, shapes: Shapes, hx: Any, single: bool) -> list[Tensor]:
        """Each [L*D,B,H], as the shapes say."""
        count = self._cell.states
        if hx is None:
            return []
        several = count > 1 and isinstance(hx, (tuple, list))
        states = list(hx) if several else [hx]
        if len(states) != count:
            got = f"{len(states)} of them" if several else type(hx).__name__
            raise TypeError(f"h_0: expected {state_words('h_0', count)}, got {got}")
        for index, (state, shape) in enumerate(zip(states, shapes, strict=True)):
            if not isinstance(state, Tensor):
                name = state_names("h_0", count)[index]
                raise TypeError(f"{name}: expected a tensor, got {type(state).__name__}")
            tensors.check_dense(_STATES[index], state)
            self._check_state(index, state, (shape[0], shape[2]) if single else shape)
        return [state.unsqueeze(1) for state in states] if single else states

    def _check_state(self, index: int, state: Tensor, shape: tuple[Any, ...]) -> None:
        if tuple(state.shape) != shape:
            batch = "batch, " if len(shape) == 3 else ""
            size = "proj_size" if self.proj_size and index == 0 else "hidden_size"
            raise ValueError(
                f"{state_names('h_0', index + 1)[index]}: expected shape {shape} = "
                f"(num_layers * num_directions, {batch}{size}), got {tuple(state.shape)}"
            )

    def extra_repr(self) -> str:
        out = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("proj_size", 0), ("num_layers", 1), ("bias", True), ("batch_first", False),
            ("dropout", 0.0), ("bidirectional", False), ("domain", "log"), ("strategy", None),
            *type(self)._cell.own_options().items(),
        ):  # fmt: skip
            if getattr(self, name) != default and f", {name}=" not in out:
                out += f", {name}={getattr(self, name)!r}"
        return out


@functools.lru_cache(maxsize=1024)
def _state_shapes(told: Description, sequences: int) -> list[tuple[int, ...]]:
    return told.state_shapes(sequences)


def any_requires_grad(values: Sequence[Tensor]) -> bool:
    for value in values:  # noqa: SIM110 a loop, since it runs in every call
        if value.requires_grad:
            return True
    return False


def alike(values: Sequence[Tensor], parameter: Tensor) -> bool:
    """Whether those, which are eager, are dense, and of the parameter's dtype and device."""
    dtype, device = parameter.dtype, parameter.device
    for value in values:
        if value.dtype is not dtype or value.device != device:
            return False
        if value.is_nested:  # whose layout says nothing
            return False
    return True


def _autocast_dtype(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """What autocast would have; it leaves float64 alone."""
    kind = x.device.type
    if kind not in ("cpu", "cuda") or torch.float64 in (x.dtype, parameter.dtype):
        return None
    if not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _cast(value: Tensor, target: torch.dtype) -> Tensor:
    """What autocast casts; the rest is no number of its, and an error."""
    takes = value.is_floating_point() and value.dtype != torch.float64
    return value.to(target) if takes else value


def first_proxy(given: Sequence[Any]) -> Any:
    """The first value that torch.fx traces, alone or in a pair; or None."""
    for value in given:
        if isinstance(value, torch.fx.Proxy):
            return value
        if isinstance(value, (tuple, list)) and (found := first_proxy(value)) is not None:
            return found
    return None


def traced(proxy: Any, module: nn.Module, given: tuple[Any, ...], told: Mapping[str, Any]) -> Any:
    """A node of torch.fx's symbolic trace, whose leaves torch.nn's layers are, too."""
    tracer = proxy.tracer
    named = {name: value for name, value in told.items() if value is not None}
    return tracer.create_proxy("call_module", tracer.path_of_module(module), given, named)


def _may_want_grad(value: Tensor) -> bool:
    """Inside torch.func's transformations a tensor does not say whether the one that it stands for
    requires grad."""
    if value.requires_grad or torch.compiler.is_compiling():
        return value.requires_grad
    return torch._C._functorch.is_functorch_wrapped_tensor(value)
