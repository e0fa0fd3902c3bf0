# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays in scanrnn's own layers and scans. XLA alone writes them, so the calls are XLA's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import arguments
from ..arguments import Array, dtype_name, short_name
from ..call import Call
from ..description import FRESH, Description
from ..jax import calls, keys, operands, scans
from ..jax.layers import state_axes
from ..scan_call import ScanCall
from .base import ArrayLibrary
from .identify import TITLES, TRACED, described, device_of, library_of

# Under `jax.grad`, as of a torch tensor that requires grad.
_forward = calls.underivable(
    calls.forward,
    2,
    "scanrnn's own layers have vjp: use scanrnn.jax, whose functions jax.grad takes",
)


class Jax(operands.Operands, ArrayLibrary):
    library = "jax"

    def array(self, name: str, value: Any, dtype: Any) -> Any:
        return self.operand(
            name, value, arguments.DTYPES if dtype is None else (short_name(dtype),)
        )

    def operand(self, name: str, value: Any, dtypes: Sequence[str]) -> Any:
        if library_of(value) != "jax":
            raise TypeError(
                f"{name}: expected a JAX array, as {self.first} is one, got "
                f"{described(name, value)}"
            )
        device = device_of(name, value)
        if TRACED not in (device, self.device) and device != self.device:
            raise TypeError(
                f"{name}: expected a JAX array on {self.device}, where {self.first} is, got "
                f"one on {device}: move it with jax.device_put"
            )
        arguments.check_dtype(name, dtype_name(value), dtypes)
        operands.check_sizes(name, value)
        return value

    def bools(self, name: str, value: Any) -> Any:
        if type(value) is np.ndarray:
            return jnp.asarray(arguments.checked(name, value, ("bool",)))
        return self.operand(name, value, ("bool",))

    def writable(self, name: str, value: Any, dtype: Any) -> Any:
        raise TypeError(
            f"{name}: expected memory that the call can write with state_indices, got a JAX "
            "array, which nobody can write: pass h[:, state_indices], and put the result back by "
            "h.at[:, state_indices].set"
        )

    def for_layer(self, name: str, device: str) -> ArrayLibrary:
        if self.device not in (device, TRACED):
            raise TypeError(
                f"{name}: expected an array on {device}, where the layer is, got a JAX array on "
                f"{self.device}: move it with jax.device_put, or make the layer with "
                f"device={self.device!r}"
            )
        return self

    def copy(self, value: Any) -> Any:
        return value  # nobody can write to it

    def host(self, value: Any) -> Array:
        return np.asarray(value)

    # The library itself checks when a compiled function runs, which is too late for ValueError.
    def checked(self, call: Call, first: str, values: Sequence[Any]) -> Any:
        """States, without gaps; () where nothing is given. `first` names h."""
        shapes, dtype = call.planned.states, call.x.dtype
        names = arguments.state_names(first, len(values))
        for name, value, shape in zip(names, values, shapes, strict=False):
            if value is not None:
                operands.check(name, value, shape, dtype, state_axes(call.stack.description, name))
        if all(value is None for value in values):
            return ()
        pairs = zip(values, shapes, strict=True)
        return tuple(jnp.zeros(shape, dtype) if v is None else v for v, shape in pairs)

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        told, x = call.stack.description, call.x
        if call.one_step and told.bidirectional:
            raise ValueError(
                "step: a bidirectional layer needs the whole sequence, so it cannot step"
            )
        axes = "(batch, input_size)" if call.one_step else "(..., input_size)"
        name, h = call.names
        operands.check(name, x, (*x.shape[:-1], call.stack.input_size), x.dtype, axes)
        names = arguments.state_names(h, len(call.h_0))
        given = [name for name, value in zip(names, call.h_0, strict=True) if value is not None]
        if 0 < len(given) < len(names):
            missing = next(name for name in names if name not in given)
            words = arguments.state_words(h, len(names))
            alone = " alone" if len(given) == 1 else ""
            raise ValueError(
                f"{missing}: the state of {told.cell} is {words}, got {', '.join(given)}{alone}"
            )
        h_0 = self.checked(call, h, call.h_0)
        axis = 1 - told.batch_axis
        x = x.reshape(*x.shape[:axis], 1, *x.shape[axis:]) if call.one_step else x
        y, h_n, reserve = _forward(
            _describe(call), call.training, x, h_0, self.params(call), call.ragged, _seed(call)
        )
        return y.squeeze(axis) if call.one_step else y, list(h_n), reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        x = call.x

        def states(values: Iterable[float]) -> tuple[Any, ...]:
            pairs = zip(call.planned.states, values, strict=True)
            return tuple(jnp.full(shape, value, x.dtype) for shape, value in pairs)

        fresh = FRESH[call.stack.description.cell]
        given = self.checked(call, "h_0", call.h_0) or states(fresh)
        dfinals = self.checked(call, "dh_n", dh_n) or states(0.0 for _ in fresh)
        if dy is not None:
            operands.check("dy", dy, y.shape, x.dtype, "(..., num_directions * hidden_size)")
        dx, dh_0, dparams = calls.backward(
            _describe(call),
            (x, given, self.params(call), call.ragged, _seed(call), y, reserve),
            (jnp.zeros(y.shape, y.dtype) if dy is None else dy, dfinals),
        )
        return dx, list(dh_0), list(dparams)

    def scan(self, call: ScanCall) -> tuple[Any, Any]:
        return scans.run(call)

    def params(self, call: Call) -> tuple[Any, ...]:
        device = call.stack.where if self.device == TRACED else self.device
        where = f"{TITLES[self.library]} on {device}"
        held: tuple[Any, ...] = call.stack.placed.kept(
            where, lambda arrays: _placed(arrays, device)
        )
        return held


def _describe(call: Call) -> Description:
    return call.stack.description._replace(strategy=call.planned.plan.strategy)


def _seed(call: Call) -> Any:
    draws = call.training and call.stack.description.drops
    return keys.seed_of_number(call.seed) if draws else None


def _placed(arrays: list[Any], device: str) -> tuple[Any, ...]:
    """NumPy's arrays on "cpu" or "cuda:N"."""
    kind, _, index = device.partition(":")
    target = next(
        d for d in jax.devices(kind) if kind == "cpu" or d.local_hardware_id == int(index)
    )
    with jax.ensure_compile_time_eval():
        return tuple(jax.device_put(value, target) for value in arrays)
