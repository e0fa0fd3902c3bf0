# SPDX-License-Identifier: Apache-2.0
"""Which options of a module may be set once it is made."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .. import arguments
from ..description import options_text
from ..registry import CellInfo

# What parameters are made for, in layers and cells.
FIXED = frozenset(("input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size"))


def fixed_of(cell: CellInfo) -> frozenset[str]:
    """Those and the cell's own, but for the shares that training draws by."""
    return FIXED | {name for name in cell.own_options() if not cell.is_drawn(name)}


def _check_layer(module: Any, **changed: Any) -> None:
    """Whatever the parameters' dtype is: float64 refuses least."""
    module._description()._replace(**changed).layer(module.input_size, "float64")


def _dropout(module: Any, value: Any) -> float:
    found = arguments.real("dropout", value)
    _check_layer(module, dropout=found)
    return found


# Options of layers that the next call goes by.
_CHECKS: dict[str, Callable[[Any, Any], Any]] = {
    "dropout": _dropout,
    "batch_first": lambda _, value: arguments.flag("batch_first", value),
    "domain": lambda module, value: arguments.domain(module._cell, value),
    "strategy": lambda _, value: arguments.strategy_name(value),
}


class WithOptions(nn.Module):
    """A module whose fixed options raise AttributeError where they are given another value."""

    _fixed: frozenset[str] = FIXED
    _last: str  # the attribute that a constructor sets after all options
    _own: Mapping[str, Any] = {}  # the cell's options
    _options: str  # the same as a description has them

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and self._last in self.__dict__:
            if name in self._fixed:
                self._check_same(name, value)
                return
            if name in self._own:
                value = self._drawn_by(name, value)
            elif name in _CHECKS:
                value = _CHECKS[name](self, value)
        super().__setattr__(name, value)

    def _check_same(self, name: str, value: Any) -> None:
        """A constructor of a subclass may set again what ours has set."""
        now = getattr(self, name)
        if not isinstance(value, (numbers.Number, str, tuple)) or value != now:
            kind = type(self).__name__
            raise AttributeError(
                f"{name}: expected {now!r}, which is fixed once a module is made, got {value!r}: "
                f"make another {kind} with it, and load_state_dict what parameters it shares"
            )

    def _drawn_by(self, name: str, value: Any) -> Any:
        """A share, checked, by which the next call in training draws."""
        kind: Any = type(self)
        own = arguments.own_options(kind._cell.own_options(), kind, {**self._own, name: value})
        told: Any = self
        options = options_text(told._cell, own)
        _check_layer(told, options=options)
        self._own, self._options = own, options
        return own[name]
