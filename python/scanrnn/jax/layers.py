# SPDX-License-Identifier: Apache-2.0
"""Layers as functions of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .. import arguments, initial
from ..description import Batch, Description, options_text
from ..ragged import checked, longest_told, of_sequence
from ..registry import CellInfo, signature
from .calls import layer
from .keys import seed_of
from .operands import Operands, check, check_sizes, shape_of


def state_axes(description: Description, name: str) -> str:
    """The axes of the tensor of a state that errors call by this name."""
    projected = description.output_size != description.hidden_size and "h" in name
    size = "proj_size" if projected else "hidden_size"
    return f"(num_layers * num_directions, batch, {size})"


class Layer:
    """A stack of recurrent layers without parameters; each cell has a subclass of its name.

    `params = rnn.init(key)` is a dict by torch's names; `y, h_n = rnn(params, x, h_0)`: x [T,B,C],
    or [B,T,C] with batch_first, or [T,C]; y likewise with D*H; h_0 and h_n [L*D,B,H], or [L*D,H],
    for LSTM the pair (h, c), for SLSTM (h, c, n, m). A call with a key trains: `dropout` and the
    cell's own draws go by the bits of the key. Without one nothing is drawn.
    """

    _cell: CellInfo

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        domain: str = "log",
        dtype: Any = "float32",
        strategy: str | None = None,
        **own: Any,
    ) -> None:
        options = arguments.own_options(self._cell.own_options(), type(self), own)
        cell = self._cell.chosen(options)
        self.__dict__.update(options, _cell=cell, _own=options)
        arguments.domain(cell, domain)
        self.input_size, self.dtype = arguments.integer("input_size", input_size), _dtype(dtype)
        self.description = Description(
            cell.name,
            arguments.integer("hidden_size", hidden_size),
            arguments.integer("num_layers", num_layers),
            arguments.flag("bias", bias),
            arguments.flag("batch_first", batch_first),
            arguments.real("dropout", dropout),
            bidirectional=arguments.flag("bidirectional", bidirectional),
            variant=options.get(cell.variant_option, ""),
            domain=domain,
            options=options_text(cell, options),
            strategy=arguments.strategy_name(strategy),
        )
        core = self.description.layer(self.input_size, str(self.dtype))
        initial.check(options, str(self.dtype))
        self.shapes: dict[str, tuple[int, ...]] = dict(core.parameters())

    def __getattr__(self, name: str) -> Any:
        if name in Description._fields and "description" in self.__dict__:
            return getattr(self.description, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if "shapes" in self.__dict__ and hasattr(self, name):
            raise AttributeError(
                f"{name}: a layer is fixed once it is made, got {value!r}: make another "
                f"{type(self).__name__} with it, parameters are no part of it"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        told = self.description._asdict() | self._own
        out = f"{type(self).__name__}({self.input_size}, {self.description.hidden_size}"
        for name, default in (
            ("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0.0),
            ("bidirectional", False), ("domain", "log"), ("strategy", None),
            *type(self)._cell.own_options().items(),
        ):  # fmt: skip
            if told[name] != default:
                out += f", {name}={told[name]!r}"
        return f"{out}, dtype={str(self.dtype)!r})"

    def init(self, key: Any) -> dict[str, Any]:
        """U(-1/sqrt(H), 1/sqrt(H)), as torch does; RG-LRU's decays begin in [0.9, 0.999]."""
        keys, values = jax.random.split(key, len(self.shapes)), {}
        for k, (name, shape) in zip(keys, self.shapes.items(), strict=True):
            low, high, made = initial.of(name, self.description.hidden_size, self._own)
            dtype = jnp.promote_types(self.dtype, "float32") if made else self.dtype
            drawn = jax.random.uniform(k, shape, dtype, low, high)
            values[name] = made(jnp, drawn).astype(self.dtype) if made else drawn
        return values

    def __call__(
        self,
        params: Mapping[str, Any],
        x: Any,
        h_0: Any = None,
        *,
        key: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
        longest: int | None = None,
    ) -> tuple[Any, Any]:
        """`key`, of jax.random, is what training draws by; None: the call draws nothing.

        Calls with the same key draw the same. lengths, cu_seqlens and reset are those of
        `scanrnn`'s layers. jit may trace all of them, but longest, which is a number.
        """
        d, ragged = self.description, of_sequence(lengths, cu_seqlens, reset)
        d = d._replace(longest=longest_told(longest, cu_seqlens, x))
        seed = None if key is None else seed_of(key)
        packed = cu_seqlens is not None
        self.check_call(params, x, packed)
        single, axis = x.ndim == 2 and not packed, d.batch_axis
        if ragged is not None:
            ragged = checked(Operands(), ragged, x.shape, axis, d.longest)
        if single:
            x = jnp.expand_dims(x, axis)
            if ragged is not None:
                ragged = ragged._replace(reset=jnp.expand_dims(ragged.reset, axis))
        states = self._states(d.batch(x.shape, ragged), h_0, single)
        ordered = tuple(params[name] for name in self.shapes)
        y, finals = layer(d, x, states, ordered, ragged, seed if d.drops else None)
        if single:
            y, finals = jnp.squeeze(y, axis), tuple(final[:, 0] for final in finals)
        return y, finals[0] if len(finals) == 1 else finals

    def check_call(self, params: Any, x: Any, packed: bool = False) -> None:
        """Raises where parameters or x are not those of a call."""
        d = self.description
        if not isinstance(params, Mapping):
            raise TypeError(f"params: expected a dict, got {arguments.type_name(params)}")
        missing = [name for name in self.shapes if name not in params]
        unexpected = [name for name in params if name not in self.shapes]
        if missing or unexpected:
            raise ValueError(f"params: missing {missing}, unexpected {unexpected}")
        for name, shape in self.shapes.items():
            check(name, params[name], shape, self.dtype)
        ranks = (2,) if packed else (2, 3)
        if getattr(x, "ndim", 0) not in ranks or x.shape[-1] != self.input_size:
            axes = "(B, T, C)" if d.batch_first else "(T, B, C)"
            wanted = "(tokens, C)" if packed else f"{axes}, or (T, C) for one sequence,"
            raise ValueError(f"x: expected {wanted} with C = {self.input_size}, got {shape_of(x)}")
        check("x", x, x.shape, self.dtype)
        check_sizes("x", x)

    def _states(self, batch: Batch, h_0: Any, single: bool) -> tuple[Any, ...]:
        if h_0 is None:
            return ()
        d, count = self.description, self.description.states
        states = tuple(h_0) if isinstance(h_0, (tuple, list)) else (h_0,)
        if len(states) != count:
            wanted = arguments.state_words("h_0", count, "an array")
            many = isinstance(h_0, (tuple, list))
            got = f"{len(states)} of them" if many else arguments.type_name(h_0)
            raise TypeError(f"h_0: expected {wanted}, got {got}")
        shapes, names = d.state_shapes(batch.sequences), arguments.state_names("h_0", count)
        for name, state, shape in zip(names, states, shapes, strict=True):
            axes = state_axes(d, name)
            if single:
                shape, axes = (shape[0], shape[2]), axes.replace(" batch,", "")
            check(name, state, shape, self.dtype, axes)
        return tuple(state[:, None] for state in states) if single else states


def _dtype(value: Any) -> Any:
    found = jnp.dtype(arguments.dtype(value))
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise ValueError(f"dtype: {found} arrays want jax.config.update('jax_enable_x64', True)")
    return found


def make_layer(cell: CellInfo) -> type[Layer]:
    doc = f"{cell.name}, {cell.words()}\n\n{Layer.__doc__}"
    members = {"__module__": "scanrnn.jax", "__doc__": doc, "_cell": cell}
    members["__signature__"] = signature(Layer, cell.own_options())
    return type(cell.name, (Layer,), members)
