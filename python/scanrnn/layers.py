# SPDX-License-Identifier: Apache-2.0
"""Layers as torch has them, made from the registry. An object holds parameters and a description.

Shapes: B batch, T steps, C input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core, arguments, initial
from .arguments import Array
from .arrays import on_host
from .call import Placed, Stack
from .description import Description, options_text
from .layouts import export
from .ragged import PACKED, RECTANGULAR, Ragged, longest_told, of_sequence
from .registry import CellInfo
from .run import Pullback, Run, State

# What every layer's constructor begins with, as torch's do.
_TORCHS: dict[str, Any] = {
    "input_size": inspect.Parameter.empty,
    "hidden_size": inspect.Parameter.empty,
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
}


class Layer:
    """A stack of recurrent layers; each cell of the registry has a subclass of its name.

    `rnn(x, h_0)` gives `(y, h_n)`: x [T,B,C], or [B,T,C] with batch_first, or [T,C]; y likewise
    with D*H; h_0 and h_n [L*D,B,H], or [L*D,H], and of LSTM the pairs (h_0, c_0) and (h_n, c_n), of
    SLSTM the tuples (h_0, c_0, n_0, m_0) and (h_n, c_n, n_n, m_n).
    Parameters are read-only arrays under torch's names (`rnn.weight_ih_l0`); `load_state_dict`
    replaces them all at once, so one object can be used from several threads.

    Training (`vjp`) sets shares of values to zero and scales the rest up: `dropout` outputs between
    layers; `input_dropout` what a layer reads, drawn once for all steps of a sequence, but a
    highway reads x itself; `state_dropout` likewise what a state gives to the output;
    `dropconnect` elements of weight_hh, drawn once a call. `zoneout` leaves units' states as they
    were, drawn for each step, and moves all of them by the mean in inference; of LSTM a pair
    (of h, of c) is taken.
    """

    _cell: CellInfo
    _options: dict[str, Any]  # what the constructor was given, but for the seed
    _params: dict[str, Array]
    _stack: Stack
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    domain: str
    dtype: np.dtype[Any]
    device: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if type(self) is Layer:
            raise TypeError("Layer: expected the class of a cell, such as scanrnn.MinGRU")
        signature = inspect.signature(type(self))
        arguments.refuse_others(type(self), signature.parameters, kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options: dict[str, Any] = bound.arguments
        seed = arguments.seed_value(options.pop("seed"))
        for name in ("input_size", "hidden_size", "num_layers"):
            options[name] = arguments.integer(name, options[name])
        for name in ("bias", "batch_first", "bidirectional"):
            options[name] = arguments.flag(name, options[name])
        options["dropout"] = arguments.real("dropout", options["dropout"])
        known = self._cell.own_options()
        own = {name: options[name] for name in known}
        options |= arguments.own_options(known, type(self), own)
        if "domain" in options:
            options["domain"] = arguments.domain(self._cell.chosen(options), options["domain"])
        options["device"] = arguments.text("device", options["device"])
        options["dtype"] = arguments.dtype(options["dtype"])
        self._build(options)
        initial.check(options, str(options["dtype"]))
        self._initialise(seed)

    def _build(self, options: dict[str, Any]) -> None:
        device = _core.Device(options["device"])
        told = {name: options[name] for name in Description._fields if name in options}
        cell = self._cell.chosen(options)
        told["options"] = options_text(cell, options)
        variant = options.get(cell.variant_option, "")
        description = Description(cell.name, variant=variant, **told)
        size, dtype = options["input_size"], options["dtype"]
        core = description.layer(size, str(dtype))
        stack = Stack(
            description, size, core, device, str(device), dtype, description.batch_axis,
            description.states, dict(core.parameters()),
            description.planner(size, str(dtype), device), Placed([]),
        )  # fmt: skip
        # The one place that writes: __setattr__ refuses everything else.
        self.__dict__.update(options, _options=options, device=stack.where)
        self.__dict__.update(_cell=cell, _stack=stack)

    def _initialise(self, seed: int | None) -> None:
        random, values = np.random.default_rng(seed), {}
        for name, shape in self._stack.shapes.items():
            low, high, made = initial.of(name, self.hidden_size, self._options)
            drawn = random.uniform(low, high, shape)
            values[name] = made(np, drawn) if made else drawn
        self._adopt(values)

    def _adopt(self, values: Mapping[str, Array]) -> None:
        stack = self._stack
        params = {name: np.array(values[name], stack.dtype, order="C") for name in stack.shapes}
        for value in params.values():
            value.flags.writeable = False
        # One assignment each: a running call keeps what it began with.
        self.__dict__["_params"] = params
        placed = Placed(list(params.values()))
        self.__dict__["_stack"] = stack._replace(placed=placed)

    # ---- running

    def __call__(
        self,
        x: Any,
        h_0: State | None = None,
        strategy: str | None = None,
        *,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
        longest: int | None = None,
    ) -> tuple[Any, State]:
        """The whole sequence; h_0 None is zeros.

        Integers `lengths` [B] say how many steps each sequence has: y is 0 behind them. With
        integers `cu_seqlens` [N+1] sequences lie one after the other in x [tokens,C], whatever
        batch_first says, and sequence n is tokens cu_seqlens[n] to cu_seqlens[n+1]-1. Where the
        bools `reset`, shaped as x without its last axis, are true, no state comes into the step.
        `longest` beside cu_seqlens says that no sequence has more steps, which a device does not
        tell the host.
        """
        return self._run(x, h_0, strategy, lengths, cu_seqlens, reset, longest).forward()

    def vjp(
        self,
        x: Any,
        h_0: State | None = None,
        strategy: str | None = None,
        seed: int | None = None,
        *,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
        longest: int | None = None,
    ) -> tuple[tuple[Any, State], Pullback]:
        """The sequence in training mode, and what carries cotangents back through it.

        The pullback reads x and y, neither of which is copied: leave both as they are while it is
        in use. NumPy's y comes back read-only. The pullback of torch's tensors raises RuntimeError
        where x or y was changed in place since; nobody can tell that of CuPy's arrays. `seed` is
        that of what is dropped; None is fresh entropy. lengths, cu_seqlens, reset and longest are
        those of a call; arrays are copied.
        """
        seed, drawn = arguments.seed_value(seed), 0
        if self._stack.description.drops:
            drawn = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
        run = self._run(x, h_0, strategy, lengths, cu_seqlens, reset, longest, True, drawn)
        return run.forward(), Pullback(run)

    def _run(
        self, x: Any, h_0: State | None, strategy: str | None, lengths: Any, cu_seqlens: Any,
        reset: Any, longest: int | None, training: bool = False, seed: int = 0,
    ) -> Run:  # fmt: skip
        ragged, most = None, 0
        if not (lengths is cu_seqlens is reset is longest is None):
            ragged = of_sequence(lengths, cu_seqlens, reset)
            most = longest_told(longest, cu_seqlens, x)
        return Run(
            self._stack, x, h_0, strategy, training=training, seed=seed, ragged=ragged, longest=most
        )

    def step(
        self, x_t: Any, h: State | None = None, *, state_indices: Any = None
    ) -> tuple[Any, State]:
        """One step, equal to running the sequence: x_t [B,C], h [L*D,B,H] -> y_t [B,H], state.

        With integers `state_indices` [B] h is a pool [L*D,S,H]: row b of x_t continues the state in
        row state_indices[b] of the pool, no two of them the same, which is updated in place and
        handed back. Where the index is -1 the row is skipped, and its y is 0.
        """
        ragged = None if state_indices is None else Ragged(state_indices=state_indices)
        return Run(self._stack, x_t, h, one_step=True, ragged=ragged).forward()

    def plan(
        self,
        T: int,
        B: int,
        strategy: str | None = None,
        training: bool = False,
        *,
        packed: bool = False,
    ) -> _core.Plan:
        """What would run for T steps of a batch of B, and why; print it.

        With `packed`, as for cu_seqlens, T is the number of tokens of all B sequences.
        """
        steps, batch = arguments.count("T", T), arguments.count("B", B)
        return self._stack.core.plan(
            self._stack.device, steps, batch, arguments.flag("training", training),
            arguments.strategy_name(strategy),
            PACKED if arguments.flag("packed", packed) else RECTANGULAR,
        )  # fmt: skip

    # ---- parameters

    def state_dict(self) -> dict[str, Array]:
        """Copies of the parameters, by torch's names."""
        return {name: value.copy() for name, value in self._params.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copies all parameters in, or raises and changes none; any library's arrays on the CPU."""
        if not isinstance(state_dict, Mapping):
            got = arguments.type_name(state_dict)
            raise TypeError(f"state_dict: expected a mapping of names to arrays, got {got}")
        missing = [name for name in self._stack.shapes if name not in state_dict]
        unexpected = [name for name in state_dict if name not in self._stack.shapes]
        if missing or unexpected:
            raise ValueError(f"state_dict: missing {missing}, unexpected {unexpected}")
        values = {}
        for name, shape in self._stack.shapes.items():
            value = arguments.named_again(state_dict[name], self.dtype)
            values[name] = on_host(name, value, self.dtype)
            if values[name].shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {values[name].shape}")
        self._adopt(values)

    def export(self, layout: str, *, forget_bias: float | None = None) -> dict[str, Array]:
        """Copies of the parameters by another library's names and orders; see `scanrnn.load`."""
        return export(self, layout, forget_bias)

    # ---- being an object

    def __getattr__(self, name: str) -> Array:
        params: dict[str, Array] = self.__dict__.get("_params", {})
        if name in params:
            return params[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise self._is_fixed(name)

    def __delattr__(self, name: str) -> None:
        raise self._is_fixed(name)

    def _is_fixed(self, name: str) -> AttributeError:
        return AttributeError(
            f"{name}: a layer's description is fixed, and its parameters are set by load_state_dict"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._params]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._options, dict(self._params))

    def __repr__(self) -> str:
        sizes = f"{self.input_size}, {self.hidden_size}"
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self._options.items()
            if name not in ("input_size", "hidden_size", "dtype", "device")
            and value != defaults[name].default
        ]
        shown = [sizes, *changed, f"dtype={str(self.dtype)!r}", f"device={self.device!r}"]
        return f"{type(self).__name__}({', '.join(shown)})"


def _restore(kind: type[Layer], options: dict[str, Any], params: dict[str, Array]) -> Layer:
    layer = kind.__new__(kind)
    layer._build(dict(options))
    layer._adopt(params)
    return layer


def make_class(cell: CellInfo) -> type[Layer]:
    """The class of a cell: its constructor is torch's, plus the cell's own options and ours."""
    options = _TORCHS | cell.own_options()
    if cell.takes("domain"):
        options["domain"] = "log"
    options |= {"dtype": "float32", "device": "auto", "seed": None}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=options[name]) for name in options]
    doc = f"{cell.name} ({cell.recurrence} recurrence), {cell.words()}\n\n{Layer.__doc__}"
    return type(
        cell.name,
        (Layer,),
        {
            "__module__": "scanrnn",
            "__doc__": doc,
            "__signature__": inspect.Signature(parameters),
            "_cell": cell,
        },
    )
