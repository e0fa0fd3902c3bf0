# SPDX-License-Identifier: Apache-2.0
"""The library's calls on a layer as custom calls of XLA (jax.ffi), with a derivative of their own.

So jit, grad, value_and_grad, vmap and scan go through them, on the CPU and on CUDA. Shapes: T
steps, B batch, C input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _core
from ..description import Batch, Description, Planned
from ..ragged import Ragged
from . import second
from .targets import call, kinds_of_device, work_memory


def attributes(description: Description) -> dict[str, Any]:
    """A description as what a custom call may have: texts and numbers."""
    told = description._replace(strategy=description.strategy or "")._asdict()
    del told["one_step"]  # which JAX's layers have not
    as_numbers = {float: np.float64, int: np.int64, bool: np.int64}
    return {k: v if isinstance(v, str) else as_numbers[type(v)](v) for k, v in told.items()}


_device = functools.cache(_core.Device)


class _Sizes(NamedTuple):
    reserve: jax.ShapeDtypeStruct
    workspace: jax.ShapeDtypeStruct


def _sizes(description: Description, x: Any, batch: Batch, training: bool) -> _Sizes:
    """Enough on any device of this process: a function is traced before its device is known."""
    plans: list[Planned] = []
    for kind in kinds_of_device():
        try:
            plans.append(
                description.plan(x.shape[-1], str(x.dtype), _device(kind), batch, training)
            )
        except ValueError:  # a strategy that is not for this kind of device
            if kind == kinds_of_device()[-1] and not plans:
                raise
    reserve = max(plan.reserve for plan in plans) if training else 0
    return _Sizes(work_memory(reserve), work_memory(max(plan.workspace for plan in plans)))


def _steps(ragged: Ragged | None) -> dict[str, Any]:
    """The arrays that say which steps there are, by name."""
    told = {} if ragged is None else ragged._asdict()
    return {name: value for name, value in told.items() if value is not None}


def forward(
    description: Description, training: bool, x: Any, h_0: Any, params: Any,
    ragged: Ragged | None = None, seed: Any = None,
) -> Any:  # fmt: skip
    """(y, states, reserve); h_0 and the states are tuples, h_0 () for zeros; a description that
    draws in training has a seed there, of keys.py."""
    d, batch, steps = description, description.batch(x.shape, ragged), _steps(ragged)
    count, sizes = d.states, _sizes(d, x, batch, training)
    states = [jax.ShapeDtypeStruct(s, x.dtype) for s in d.state_shapes(batch.sequences)]
    y = jax.ShapeDtypeStruct(d.output_shape(x.shape), x.dtype)
    y, *rest = call(
        "scanrnn_forward", [y, *states, sizes.reserve, sizes.workspace],
        x, *h_0, *steps.values(), *_drawn(seed), *params,
        training=np.int64(training), initial=np.int64(len(h_0)), states=np.int64(count),
        ragged=" ".join(steps), drawn=np.int64(seed is not None), **attributes(d),
    )  # fmt: skip
    return y, tuple(rest[:count]), rest[count]


def _drawn(seed: Any) -> list[Any]:
    return [] if seed is None else [seed]


def underivable(function: Callable[..., Any], static: int, message: str) -> Callable[..., Any]:
    """`function`, of whose results no derivative can be had, and who asks for one learns why."""
    wrapped = jax.custom_vjp(function, nondiff_argnums=tuple(range(static)))

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(message)

    wrapped.defvjp(refuse, refuse)
    return wrapped


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def backward(description: Description, saved: Any, cotangents: Any) -> Any:
    """(dx, dh_0, dparams) from what forward had and left, and cotangents of y and the states."""
    x, h_0, params, ragged, seed, y, reserve = saved
    dy, dstates = cotangents
    batch, steps = description.batch(x.shape, ragged), _steps(ragged)
    like = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (x, *h_0, *params)]
    workspace = _sizes(description, x, batch, True).workspace
    dx, *rest, _ = call(
        "scanrnn_backward", [*like, workspace],
        dy, *dstates, x, y, reserve, *h_0, *steps.values(), *_drawn(seed), *params,
        initial=np.int64(len(h_0)), states=np.int64(len(dstates)), ragged=" ".join(steps),
        drawn=np.int64(seed is not None), **attributes(description),
    )  # fmt: skip
    return dx, tuple(rest[: len(h_0)]), tuple(rest[len(h_0) :])


def _backward_forward(description: Description, saved: Any, cotangents: Any) -> Any:
    return backward(description, saved, cotangents), (saved[:5], cotangents)


def _backward_backward(description: Description, kept: Any, cotangents: Any) -> Any:
    (x, h_0, params, ragged, seed), of_outputs = kept

    def again(x: Any, h_0: Any, params: Any, of_outputs: Any) -> Any:
        return second.backward_again(description, x, h_0, params, ragged, seed, of_outputs)

    _, pull = jax.vjp(again, x, h_0, params, of_outputs)
    *of_inputs, of_cotangents = pull(cotangents)
    # y is a function of the others, and so has no derivative of its own here.
    return (*of_inputs, None, None, None, None), of_cotangents


backward.defvjp(_backward_forward, _backward_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _training(description: Description, *inputs: Any) -> Any:
    """(y, states, reserve) of x, h_0, params, ragged and seed, to be differentiated again."""
    x, h_0, params, ragged, seed = inputs
    return forward(description, True, x, h_0, params, ragged, seed)


def _training_forward(description: Description, *inputs: Any) -> Any:
    y, states, reserve = _training(description, *inputs)
    return (y, states, reserve), (*inputs, y, reserve)


def _training_backward(description: Description, saved: Any, cotangents: Any) -> Any:
    return *backward(description, saved, cotangents[:2]), None, None


_training.defvjp(_training_forward, _training_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def layer(description: Description, x: Any, h_0: Any, params: Any, ragged: Any, seed: Any) -> Any:
    """Without a seed in the way of inference, whatever the description says."""
    training, told = seed is not None, _told(description, seed)
    return forward(told, training, x, h_0, params, ragged, seed)[:2]


def _layer_forward(
    description: Description, x: Any, h_0: Any, params: Any, ragged: Any, seed: Any
) -> Any:
    y, states, reserve = _training(_told(description, seed), x, h_0, params, ragged, seed)
    return (y, states), (x, h_0, params, ragged, seed, y, reserve)


def _layer_backward(description: Description, saved: Any, cotangents: Any) -> Any:
    return *backward(_told(description, saved[4]), saved, cotangents), None, None


def _told(description: Description, seed: Any) -> Description:
    return description.without_drops() if seed is None else description


layer.defvjp(_layer_forward, _layer_backward)
