# SPDX-License-Identifier: Apache-2.0
"""Keras 3's LSTM, GRU and SimpleRNN, run by this library: on Keras' backends torch and jax.

Layers are Keras' own in all but their inner loop: arguments, weights and their names, dropout,
masks, states and files are the same, so that weights of one load into the other. What the library
has not is an error when the layer is made.
"""

from __future__ import annotations

from typing import Any

try:
    import keras
except ImportError:
    raise ImportError("scanrnn.keras needs keras: pip install keras") from None
from keras import ops

from .description import Description, options_text
from .layouts.tables import LAYOUTS
from .ragged import Ragged
from .registry import cells

_BACKEND = keras.backend.backend()
if _BACKEND not in ("torch", "jax"):
    raise ImportError(
        f"scanrnn.keras runs on Keras' backends torch and jax, got {_BACKEND!r}: set KERAS_BACKEND "
        "before keras is imported"
    )

_CELLS = {cell.name: cell for cell in cells()}
_RESETS_BEFORE = options_text(_CELLS["GRU"], {"reset_after": False})


def _run(
    told: Description, x: Any, h_0: list[Any], params: list[Any], lengths: Any
) -> tuple[Any, list[Any]]:
    """y [B,T,H] and the states [B,H], by the operators of the backend's own library."""
    # On torch a variable changes in place, which backward of what reads it would notice.
    states = [ops.copy(state[None]) if _BACKEND == "torch" else state[None] for state in h_0]
    ragged = None if lengths is None else Ragged(lengths=lengths)
    if _BACKEND == "torch":
        import torch

        from .torch import ops as operators

        wanted = torch.is_grad_enabled() and any(v.requires_grad for v in (x, *states, *params))
        y, *finals = operators.run(x, states, params, ragged, None, wanted, told)
    else:
        from .jax import calls

        y, finals = calls.layer(told, x, tuple(states), tuple(params), ragged, None)
    return y, [final[0] for final in finals]


def _whole(mask: Any, x: Any) -> Any:
    """A mask [B,T], that of one sequence for all of them."""
    batch, steps = x.shape[:2]
    sizes = tuple(mask.shape[:2] if len(mask.shape) == 3 and mask.shape[2] == 1 else mask.shape)
    if len(sizes) != 2 or sizes[1] != steps or sizes[0] not in (1, batch):
        raise ValueError(
            f"mask: expected shape {(batch, steps)} = (batch, steps), got {tuple(mask.shape)}"
        )
    return ops.broadcast_to(ops.reshape(mask, sizes), (batch, steps))


class _Compacted:
    """Steps that a mask [B,T] leaves, one after the other; and what they give in their places."""

    def __init__(self, mask: Any) -> None:
        self.mask = ops.cast(mask, "bool")
        there = ops.cast(self.mask, "int32")
        self.lengths, self.count = ops.sum(there, 1), ops.cumsum(there, 1)
        steps = ops.arange(mask.shape[1], dtype="int32")
        self.order = ops.argsort(steps + (1 - there) * mask.shape[1], 1)

    def steps(self, x: Any) -> Any:
        return ops.take_along_axis(x, self.order[:, :, None], 1)

    def outputs(self, y: Any, h_0: Any, zeros: bool) -> Any:
        """At a step that is masked zeros, or the output before it: at first what the backend of
        Keras has there."""
        given = ops.take_along_axis(y, ops.maximum(self.count - 1, 0)[:, :, None], 1)
        there = self.mask if zeros else self.count > 0
        first = ops.zeros_like(given)
        if _BACKEND == "jax" and not zeros:
            first = first + h_0[:, None]
        return ops.where(there[:, :, None], given, first)


class _Recurrent:
    """The inner loop of one of Keras' layers."""

    _name: str  # of the cell here

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_options()

    def _check_options(self) -> None:
        """Those that Keras has and the library has not; they may be set at any time."""
        layer: Any = self
        activations = {"activation": [keras.activations.tanh]}
        if self._name == "RNN":
            activations["activation"].append(keras.activations.relu)
        else:
            activations["recurrent_activation"] = [keras.activations.sigmoid]
        for name, known in activations.items():
            if getattr(layer, name) not in known:
                wanted = " or ".join(f"keras.activations.{function.__name__}" for function in known)
                raise ValueError(f"{name}: expected {wanted}, got {getattr(layer, name)!r}")
        for name, wanted in (("recurrent_dropout", 0), ("unroll", False)):
            found = getattr(layer, name)
            if found != wanted:
                raise ValueError(
                    f"{name}: expected {wanted}, got {found!r}: keras.layers.{type(self).__name__} "
                    "has it"
                )

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """The last output, all outputs, and the states, as Keras has it."""
        self._check_options()
        layer: Any = self
        states = (
            list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
        )
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        mask = None if mask is None else _whole(mask, sequences)
        if training and layer.dropout:
            sequences = sequences * layer.cell.get_dropout_mask(sequences[:, 0])[:, None]
        if layer.go_backwards:
            sequences, mask = ops.flip(sequences, 1), None if mask is None else ops.flip(mask, 1)
        compacted = None if mask is None else _Compacted(mask)
        x = sequences if compacted is None else compacted.steps(sequences)
        kind = keras.backend.standardize_dtype(x.dtype)
        states = [ops.cast(state, kind) for state in states]
        lengths = None if compacted is None else compacted.lengths
        y, finals = _run(self._told(), x, states, self._params(kind), lengths)
        if compacted is not None:
            y = compacted.outputs(y, states[0], layer.zero_output_for_mask)
        return y[:, -1], y, finals

    def _told(self) -> Description:
        layer: Any = self
        variant = layer.activation.__name__ if self._name == "RNN" else ""
        return Description(
            self._name, layer.units, bias=layer.use_bias, batch_first=True, variant=variant,
            options="" if self._resets_after() else _RESETS_BEFORE,
        )  # fmt: skip

    def _resets_after(self) -> bool:
        return getattr(self, "reset_after", True)

    def _params(self, kind: str) -> list[Any]:
        """The cell's weights with rows in the order of ours."""
        cell, blocks = self.cell, {}  # type: ignore[attr-defined]
        for field in LAYOUTS["keras"].fields(_CELLS[self._name]):
            if field.is_bias and not cell.use_bias:
                continue
            value = ops.cast(ops.convert_to_tensor(getattr(cell, field.name)), kind)
            value = ops.reshape(value, (-1,)) if field.is_bias else ops.transpose(value)
            names = field.blocks
            if field.is_bias and not self._resets_after():  # one bias, which both add
                names = names[: len(names) // 2]
            blocks |= dict(zip(names, ops.split(value, len(names), 0), strict=True))

        def rows(name: str) -> Any:
            gates = [blocks[f"{name}.{gate}"] for gate in _CELLS[self._name].row_order]
            return ops.concatenate(gates, 0)

        weights = [rows("weight_ih"), rows("weight_hh")]
        if not cell.use_bias:
            return weights
        first = _CELLS[self._name].row_order[0]
        bias = rows("bias" if f"bias.{first}" in blocks else "bias_ih")
        both = f"bias_hh.{first}" in blocks
        return [*weights, bias, rows("bias_hh") if both else ops.zeros_like(bias)]


_serializable = keras.saving.register_keras_serializable(package="scanrnn")


@_serializable
class LSTM(_Recurrent, keras.layers.LSTM):  # type: ignore[misc]
    """keras.layers.LSTM; `use_cudnn` says nothing here."""

    _name = "LSTM"


@_serializable
class GRU(_Recurrent, keras.layers.GRU):  # type: ignore[misc]
    """keras.layers.GRU; `use_cudnn` says nothing here."""

    _name = "GRU"


@_serializable
class SimpleRNN(_Recurrent, keras.layers.SimpleRNN):  # type: ignore[misc]
    """keras.layers.SimpleRNN with activation "tanh" or "relu"."""

    _name = "RNN"


__all__ = ["GRU", "LSTM", "SimpleRNN"]
