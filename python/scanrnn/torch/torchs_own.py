# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN, which stand in for torch.nn's: they say what those say when a call is wrong,
and go on with what those have pickled."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from . import tensors
from .modules import Base, Recurrent, Shapes
from .switches import TORCHS_OWN

_ARGUMENTS = inspect.signature(Recurrent)


class TorchsOwn(Recurrent):
    """What the classes of torch.nn's cells come from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        bound = _ARGUMENTS.bind(*args, **options)
        self._check_arguments(bound)
        super().__init__(*bound.args, **bound.kwargs)

    @classmethod
    def _check_arguments(cls, bound: inspect.BoundArguments) -> None:
        """In torch's order and with its types; what torch does not look at is the base's to say."""
        bound.apply_defaults()
        given = bound.arguments
        if cls._cell.name != "LSTM" and given["proj_size"] != 0:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        _check_dropout(given["dropout"], given["num_layers"], 4 + issubclass(cls, Elman))
        for name in ("bias", "batch_first"):
            if not isinstance(given[name], bool):
                got = type(given[name]).__name__
                raise TypeError(f"{name} should be of type bool, got: {got}")
        if isinstance(given["bidirectional"], int):  # torch takes any truth of it
            given["bidirectional"] = bool(given["bidirectional"])
        check_sizes({name: given[name] for name in ("input_size", "hidden_size", "num_layers")})

    @property
    def mode(self) -> str:
        """torch.nn's name of the cell and its nonlinearity."""
        name = type(self)._cell.name
        return f"{name}_{self.nonlinearity.upper()}" if name == "RNN" else name

    # ---- calls

    def _check_input(self, input: Any, packed: bool) -> None:
        if not isinstance(input, Tensor) or (packed and input.dim() != 2):
            return super()._check_input(input, packed)
        tensors.check_dense("input", input)
        rank = input.dim()
        if rank not in (2, 3):
            name = type(self).__name__
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {rank}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )

    def _states(self, shapes: Shapes, hx: Any, single: bool) -> list[Tensor]:
        pair = self._cell.states == 2
        states = [hx] if not pair else hx if isinstance(hx, (tuple, list)) else []
        if pair and len(states) > 2:
            raise RuntimeError(
                f"lstm expects two hidden states: the pair (h_0, c_0), got {len(states)}"
            )
        if len(states) == 1 + pair and all(isinstance(state, Tensor) for state in states):
            ranks = [state.dim() for state in states]
            wanted, kind = (2, "unbatched 2-D") if single else (3, "batched 3-D")
            if any(rank != wanted for rank in ranks):
                names = "hx and cx" if pair else "hx"
                got = ", ".join(f"{rank}-D" for rank in ranks)
                got = f"({got}) tensors" if pair else f"{got} tensor"
                raise RuntimeError(
                    f"For {kind} input, {names} should also be {wanted}-D but got {got}"
                )
        return super()._states(shapes, hx, single)

    def _check_state(self, index: int, state: Tensor, shape: tuple[Any, ...]) -> None:
        if tuple(state.shape) != shape:
            which = f"hidden[{index}]" if self._cell.states == 2 else "hidden"
            raise RuntimeError(f"Expected {which} size {shape}, got {list(state.shape)}")

    def _other_dtype(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        if name != "input":
            return RuntimeError(
                "Input and hidden tensors are not the same dtype, found input tensor with "
                f"{parameter.dtype} and hidden tensor with {value.dtype}"
            )
        return ValueError(
            f"RNN input dtype ({value.dtype}) does not match weight dtype ({parameter.dtype}). "
            f"Convert input: input.to({parameter.dtype}), or convert model: model.to({value.dtype})"
        )

    def _other_device(self, name: str, value: Tensor, parameter: Tensor) -> Exception:
        kind = "hidden" if name in ("h_0", "c_0") else "parameter"
        pair = (value, parameter) if name == "input" else (parameter, value)
        return RuntimeError(
            f"Input and {kind} tensors are not at the same device, found input tensor at "
            f"{pair[0].device} and {kind} tensor at {pair[1].device}"
        )

    # ---- pickles

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Takes a state of this class, or of torch.nn's class of this name."""
        theirs = TORCHS_OWN[type(self)._cell.name]
        own = adopted(type(self), theirs, state) if "mode" in state else dict(state)
        super().__setstate__(own)


def check_sizes(given: Mapping[str, Any]) -> None:
    """With torch's words."""
    for name, value in given.items():
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero, got {value}")


def _check_dropout(dropout: Any, num_layers: Any, calls: int) -> None:
    """`calls`: how many there are between here and who makes a module."""
    number = isinstance(dropout, numbers.Number) and not isinstance(dropout, bool)
    if not number or not 0 <= dropout <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an "
            f"element being zeroed, got {dropout!r}"
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
            f"expects num_layers greater than 1, but got dropout={dropout} and num_layers=1",
            stacklevel=calls,
        )


# What constructors of torch.nn's take and keep, of those that a class has; all have the sizes.
_OPTIONS = ("num_layers", "nonlinearity", "bias", "batch_first", "dropout", "bidirectional")


def adopted(kind: type[Base], theirs: type[nn.Module], state: Mapping[str, Any]) -> dict[str, Any]:
    """What a module of torch.nn's, of class `theirs`, has in its __dict__, as `kind` has it: the
    same Parameters, hooks and whatever a user has put there."""
    names = ("input_size", "hidden_size", *_OPTIONS)
    options = {name: state[name] for name in names if name in state}
    if state.get("proj_size"):
        options["proj_size"] = state["proj_size"]
    if "bidirectional" in options:
        options["bidirectional"] = bool(options["bidirectional"])
    if "nonlinearity" in options and "mode" in state:  # by which torch goes
        options["nonlinearity"] = state["mode"].removeprefix("RNN_").lower()
    dtypes = {value.dtype for value in state["_parameters"].values() if value is not None}
    if len(dtypes) != 1:
        raise ValueError(f"dtype: expected parameters of one dtype, got {sorted(map(str, dtypes))}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.nn has said it
        template = kind(**options, device="meta", dtype=dtypes.pop())
    _check_parameters(template, state)
    ours, inner = vars(template), vars(nn.Module())
    torchs = vars(theirs(1, 1, device="meta"))
    kept = {name: value for name, value in state.items() if name not in torchs or name in inner}
    free = inner.keys() | {"flatten_parameters"}  # which does nothing
    taken = next((name for name in kept.keys() - free if name in ours or hasattr(kind, name)), None)
    if taken is not None:
        raise ValueError(f"{taken}: expected no attribute of this name, which {kind.__name__} has")
    return {**{name: ours[name] for name in ours if name not in inner}, **kept}


def _check_parameters(template: nn.Module, state: Mapping[str, Any]) -> None:
    """That they are those of the options; a parametrized one is elsewhere."""
    given, elsewhere = state["_parameters"], "parametrizations" in state["_modules"]
    for name, wanted in template._parameters.items():
        found = given.get(name)
        if found is None and wanted is not None and (name in state or elsewhere):
            continue
        shapes = [None if value is None else tuple(value.shape) for value in (wanted, found)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{name}: expected shape {shapes[0]}, got {shapes[1]}")


class Elman(TorchsOwn):
    """What cell RNN's class comes from: torch.nn.RNN has its option before `bias`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        *args: Any,
        **options: Any,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            input_size, hidden_size, num_layers, *args, nonlinearity=nonlinearity, **options
        )
