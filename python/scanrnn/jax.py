# SPDX-License-Identifier: Apache-2.0
"""scanrnn in JAX: layers as functions of their parameters, and the bare recurrence.

Calls are custom calls of XLA (jax.ffi) with derivatives of their own, so jit, grad, value_and_grad,
vmap and scan go through them, on the CPU and on CUDA. Shapes: T steps, B batch, C input size, H
hidden size, L layers, D directions.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    raise ImportError("scanrnn.jax needs jax: pip install 'scanrnn[jax]'") from None
import numpy as np

from . import _core, arguments, profile
from .registry import CellInfo, cells, cuda_available

for _name, (_cpu, _cuda) in _core.jax_targets().items():
    jax.ffi.register_ffi_target(_name, _cpu, platform="cpu")
    if cuda_available():
        jax.ffi.register_ffi_target(_name, _cuda, platform="CUDA")


class Description(NamedTuple):
    """What a layer is, as an argument that jit can compare; the custom calls get it by name."""

    cell: str
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    variant: str
    domain: str
    strategy: str

    def attributes(self) -> dict[str, Any]:
        return {
            name: value if isinstance(value, str) else np.int64(value)
            for name, value in self._asdict().items()
        }


def _call(target: str, results: list[jax.ShapeDtypeStruct], *args: Any, **attributes: Any) -> Any:
    # One call after the other under vmap: a mapped parameter has a gradient of its own.
    return jax.ffi.ffi_call(target, results, vmap_method="sequential")(*args, **attributes)


@functools.lru_cache(maxsize=1024)
def _core_layer(description: Description, input_size: int, dtype: str) -> _core.Layer:
    profile.load_users()
    d = description
    return _core.Layer(
        d.cell, input_size, d.hidden_size, d.num_layers, d.bias, d.batch_first, 0.0,
        d.bidirectional, d.variant, d.domain, dtype,
    )  # fmt: skip


def _bytes(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.uint8)


class _Sizes(NamedTuple):
    reserve: jax.ShapeDtypeStruct
    workspace: jax.ShapeDtypeStruct


def _devices() -> list[str]:
    """One of each kind that a compiled function may run on."""
    return ["cpu", "cuda"] if cuda_available() else ["cpu"]


def _sizes(description: Description, x: Any, training: bool) -> _Sizes:
    """Enough on any device of this process: a function is traced before its device is known."""
    layer = _core_layer(description, x.shape[2], str(x.dtype))
    batch, steps = x.shape[:2] if description.batch_first else x.shape[1::-1]
    plans = []
    for device in _devices():
        try:
            plans.append(
                layer.plan(
                    _core.Device(device), steps, batch, training, description.strategy or None
                )
            )
        except ValueError:  # a strategy that is not for this kind of device
            if device == _devices()[-1] and not plans:
                raise
    reserve = max(plan.reserve_bytes for plan in plans) if training else 0
    return _Sizes(_bytes(reserve), _bytes(max(plan.workspace_bytes for plan in plans)))


def _run(description: Description, x: Any, h_0: Any, params: Any, training: bool) -> Any:
    """(y, states, reserve); h_0 and the states are tuples, h_0 () for zeros."""
    d, sizes = description, _sizes(description, x, training)
    directions = 2 if d.bidirectional else 1
    batch = x.shape[0 if d.batch_first else 1]
    count = _states_of(d.cell)
    state = jax.ShapeDtypeStruct((d.num_layers * directions, batch, d.hidden_size), x.dtype)
    y = jax.ShapeDtypeStruct((*x.shape[:2], directions * d.hidden_size), x.dtype)
    y, *rest = _call(
        "scanrnn_forward", [y, *[state] * count, sizes.reserve, sizes.workspace], x, *h_0, *params,
        training=np.int64(training), initial=np.int64(len(h_0)), states=np.int64(count),
        **d.attributes(),
    )  # fmt: skip
    return y, tuple(rest[:count]), rest[count]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layer(description: Description, x: Any, h_0: Any, params: Any) -> Any:
    return _run(description, x, h_0, params, False)[:2]


def _layer_forward(description: Description, x: Any, h_0: Any, params: Any) -> Any:
    y, states, reserve = _run(description, x, h_0, params, True)
    return (y, states), (x, h_0, params, y, reserve)


def _layer_backward(description: Description, saved: Any, cotangents: Any) -> Any:
    x, h_0, params, y, reserve = saved
    dy, dstates = cotangents
    like = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (x, *h_0, *params)]
    workspace = _sizes(description, x, True).workspace
    dx, *rest, _ = _call(
        "scanrnn_backward", [*like, workspace], dy, *dstates, x, y, reserve, *h_0, *params,
        initial=np.int64(len(h_0)), states=np.int64(len(dstates)), **description.attributes(),
    )  # fmt: skip
    return dx, tuple(rest[: len(h_0)]), tuple(rest[len(h_0) :])


_layer.defvjp(_layer_forward, _layer_backward)


def _states_of(cell: str) -> int:
    return _STATES[cell]


_STATES = {cell.name: cell.states for cell in cells()}


# ---- for scanrnn's own layers, which take JAX's arrays as they take others'


def describe(layer: Any, plan: _core.Plan) -> Description:
    return Description(
        layer._cell.name, layer.hidden_size, layer.num_layers, layer.bias, layer.batch_first,
        layer.bidirectional, layer._options.get(layer._cell.variant_option, ""),
        layer._options.get("domain", "log"), plan.strategy,
    )  # fmt: skip


def zeros(shape: tuple[int, ...], dtype: Any, count: int) -> tuple[Any, ...]:
    return tuple(jnp.zeros(shape, dtype) for _ in range(count))


def whole_state(values: list[Any], shape: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    """Without gaps: () where nothing is given."""
    given = any(value is not None for value in values)
    return tuple(jnp.zeros(shape, dtype) if v is None else v for v in values) if given else ()


def placed(arrays: list[Any], device: str) -> tuple[Any, ...]:
    """NumPy's arrays on "cpu" or "cuda:N"."""
    kind, _, index = device.partition(":")
    target = next(
        d for d in jax.devices(kind) if kind == "cpu" or d.local_hardware_id == int(index)
    )
    with jax.ensure_compile_time_eval():
        return tuple(jax.device_put(value, target) for value in arrays)


class Layer:
    """A stack of recurrent layers without parameters; each cell has a subclass of its name.

    `params = rnn.init(key)` is a dict by torch's names; `y, h_n = rnn(params, x, h_0)`: x [T,B,C],
    or [B,T,C] with batch_first, or [T,C]; y likewise with D*H; h_0 and h_n [L*D,B,H], or [L*D,H],
    and for LSTM the pair (h, c). There is no dropout: put it between layers of your own.
    """

    _cell: CellInfo

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        *,
        domain: str = "log",
        dtype: Any = "float32",
        strategy: str | None = None,
        **variant: str,
    ) -> None:
        cell = self._cell
        chosen = variant.pop(cell.variant_option, cell.variants[0])
        if variant:
            raise TypeError(f"{type(self).__name__}: unexpected argument {next(iter(variant))!r}")
        self.input_size, self.dtype = arguments.integer("input_size", input_size), jnp.dtype(dtype)
        self.description = Description(
            cell.name,
            arguments.integer("hidden_size", hidden_size),
            arguments.integer("num_layers", num_layers),
            arguments.flag("bias", bias),
            arguments.flag("batch_first", batch_first),
            arguments.flag("bidirectional", bidirectional),
            chosen,
            domain,
            strategy or "",
        )
        layer = _core_layer(self.description, self.input_size, str(self.dtype))
        self.shapes: dict[str, tuple[int, ...]] = dict(layer.parameters())

    def init(self, key: Any) -> dict[str, Any]:
        """U(-1/sqrt(H), 1/sqrt(H)), as torch does."""
        bound = 1 / math.sqrt(self.description.hidden_size)
        keys = jax.random.split(key, len(self.shapes))
        return {
            name: jax.random.uniform(k, shape, self.dtype, -bound, bound)
            for k, (name, shape) in zip(keys, self.shapes.items(), strict=True)
        }

    def __call__(self, params: dict[str, Any], x: Any, h_0: Any = None) -> tuple[Any, Any]:
        d = self.description
        missing = [name for name in self.shapes if name not in params]
        unexpected = [name for name in params if name not in self.shapes]
        if missing or unexpected:
            raise ValueError(f"params: missing {missing}, unexpected {unexpected}")
        for name, shape in self.shapes.items():
            _check(name, params[name], shape, self.dtype)
        if getattr(x, "ndim", 0) not in (2, 3) or x.shape[-1] != self.input_size:
            axes = "(B, T, C)" if d.batch_first else "(T, B, C)"
            raise ValueError(
                f"x: expected {axes}, or (T, C) for one sequence, with C = {self.input_size}, got "
                f"{_shape(x)}"
            )
        _check("x", x, x.shape, self.dtype)
        single, axis = x.ndim == 2, 0 if d.batch_first else 1
        x = jnp.expand_dims(x, axis) if single else x
        states = self._states(x, h_0, single)
        y, finals = _layer(d, x, states, tuple(params[name] for name in self.shapes))
        if single:
            y, finals = jnp.squeeze(y, axis), tuple(final[:, 0] for final in finals)
        return y, finals[0] if len(finals) == 1 else finals

    def _states(self, x: Any, h_0: Any, single: bool) -> tuple[Any, ...]:
        if h_0 is None:
            return ()
        d, count = self.description, _states_of(self._cell.name)
        states = tuple(h_0) if isinstance(h_0, (tuple, list)) else (h_0,)
        if len(states) != count:
            wanted = "an array" if count == 1 else "a pair (h_0, c_0)"
            raise TypeError(f"h_0: expected {wanted}, got {len(states)} arrays")
        rows = d.num_layers * (2 if d.bidirectional else 1)
        batch = () if single else (x.shape[0 if d.batch_first else 1],)
        for name, state in zip(("h_0", "c_0"), states, strict=False):
            _check(name, state, (rows, *batch, d.hidden_size), self.dtype)
        return tuple(state[:, None] for state in states) if single else states


def _shape(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return arguments.type_name(value)


def _check(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not hasattr(value, "shape") or tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {_shape(value)}")
    if value.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, got {value.dtype}; nothing is cast")


# ---- the bare recurrence


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _scan(a: Any, b: Any, sign_b: Any, h_0: Any, log_form: bool, reverse: bool) -> Any:
    """a, b, sign_b [T,N] and h_0 [N]; sign_b and h_0 may be None."""
    steps, rows = a.shape
    plans = [
        _core.scan_plan(_core.Device(device), steps, rows, str(a.dtype), log_form, None)
        for device in _devices()
    ]
    h, _ = _call(
        "scanrnn_scan",
        [
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            _bytes(max(plan.workspace_bytes for plan in plans)),
        ],
        *(value for value in (a, b, sign_b, h_0) if value is not None),
        log_form=np.int64(log_form), reverse=np.int64(reverse),
        signed=np.int64(sign_b is not None), initial=np.int64(h_0 is not None),
    )  # fmt: skip
    return h


def _scan_forward(a: Any, b: Any, sign_b: Any, h_0: Any, log_form: bool, reverse: bool) -> Any:
    h = _scan(a, b, sign_b, h_0, log_form, reverse)
    return h, (a, b, sign_b, h_0, h)


def _scan_backward(log_form: bool, reverse: bool, saved: Any, dh: Any) -> Any:
    """lambda_t = dh_t + a_{t+1} lambda_{t+1}; da_t = lambda_t h_{t-1}, db_t = lambda_t, dh_0 = a_1
    lambda_1: the same recurrence against time."""
    a, b, sign_b, h_0, h = saved
    decay = jnp.exp(a) if log_form else a
    nothing = jnp.zeros_like(decay[:1])
    first = nothing if h_0 is None else h_0[None]
    later = [nothing, decay[:-1]] if reverse else [decay[1:], nothing]
    before = [h[1:], first] if reverse else [first, h[:-1]]
    adjoint = _scan(jnp.concatenate(later), dh, None, None, False, not reverse)
    da, db = adjoint * jnp.concatenate(before), adjoint
    if log_form:
        da, db = da * decay, db * jnp.exp(b) * (1 if sign_b is None else sign_b)
    edge = -1 if reverse else 0
    dsign = None if sign_b is None else jnp.zeros_like(sign_b)
    return da, db, dsign, None if h_0 is None else decay[edge] * adjoint[edge]


_scan.defvjp(_scan_forward, _scan_backward)


def scan(a: Any, b: Any, h_0: Any = None, reverse: bool = False) -> Any:
    """All states h_t = a_t h_{t-1} + b_t: a, b [T, ...], h_0 [...] or None for zeros -> [T, ...].

    With `reverse` time runs from T-1 down to 0 and h_0 enters at T-1.
    """
    return _scan_of({"a": a, "b": b}, h_0, False, arguments.flag("reverse", reverse))


def scan_log(log_a: Any, log_b: Any, sign_b: Any = None, h_0: Any = None) -> Any:
    """The same states (not their logarithms) from log a and log |b|; sign_b is +-1, None for +1.

    -inf stands for zero. h_0 is a plain value of any sign.
    """
    operands = {"log_a": log_a, "log_b": log_b, "sign_b": sign_b}
    return _scan_of(operands, h_0, True, False)


def _scan_of(operands: dict[str, Any], h_0: Any, log_form: bool, reverse: bool) -> Any:
    first, decay = next(iter(operands.items()))
    if getattr(decay, "ndim", 0) == 0:
        raise ValueError(f"{first}: expected at least one axis, time, got {_shape(decay)}")
    shape, dtype = decay.shape, decay.dtype
    if str(dtype) not in arguments.DTYPES:
        raise TypeError(f"{first}: expected dtype one of {arguments.DTYPES}, got {dtype}")
    for name, value in operands.items():
        if value is not None:
            _check(name, value, shape, dtype)
    if h_0 is not None:
        _check("h_0", h_0, shape[1:], dtype)
    if decay.size == 0:
        return decay
    a, b, sign_b = (
        None if value is None else value.reshape(shape[0], -1)
        for value in (*operands.values(), *[None] * (3 - len(operands)))
    )
    h_0 = None if h_0 is None else h_0.reshape(-1)
    return _scan(a, b, sign_b, h_0, log_form, reverse).reshape(shape)


def make_layer(cell: CellInfo) -> type[Layer]:
    rows = ", ".join(cell.row_order)
    doc = f"{cell.name}, row blocks of the weights: {rows}.\n\n{Layer.__doc__}"
    return type(cell.name, (Layer,), {"__module__": "scanrnn.jax", "__doc__": doc, "_cell": cell})


_layers = {cell.name: make_layer(cell) for cell in cells()}
globals().update(_layers)

__all__ = ["Layer", "scan", "scan_log", *_layers]
