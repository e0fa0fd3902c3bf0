# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence as custom calls of XLA, forward and backward.

In reverse mode it can be differentiated as often as one likes: the first derivative is one call,
further ones go through adjoint.py. A custom_jvp would have to leave the transposition to JAX, which
cannot transpose a custom call, so there is no forward mode.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core, profile
from ..adjoint import scan_vjp
from ..scan_call import LINEAR, LOG_OUTPUT, ScanCall, checked
from .calls import Operands, call, kinds_of_device, work_memory

# Arrays of a call here are [B,T,N], states [B,N], a reset [B,T,N] or [B,T,1]; absent ones are None.
_ARRAYS = ScanCall._fields[3:]


class _How(NamedTuple):
    form: str
    reverse: bool


def _workspace(how: _How, like: Any, training: bool) -> jax.ShapeDtypeStruct:
    """Enough on any device of this process: a function is traced before its device is known."""
    lines, steps, rows = like.shape
    contiguous = rows == 1
    shape = (steps, 1, lines) if contiguous else (steps, lines, rows)
    profile.load_users()
    plans = [
        _core.scan_plan(
            _core.Device(kind), *shape, str(like.dtype), how.form, training, contiguous, None
        )
        for kind in kinds_of_device()
    ]
    return work_memory(max(plan.workspace_bytes for plan in plans))


def _like(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _call(
    target: str, how: _How, results: list[Any], arrays: dict[str, Any], training: bool
) -> list[Any]:
    given = {name: value for name, value in arrays.items() if value is not None}
    *out, _ = call(
        target, [*results, _workspace(how, given["a"], training)], *given.values(),
        form=how.form, reverse=np.int64(how.reverse), given=" ".join(given),
    )  # fmt: skip
    return out


def _batched(function: Callable[..., Any]) -> Callable[[_How], Callable[..., Any]]:
    """`function` of how and arrays, in which a mapped axis is more of the first axis."""

    @functools.cache
    def made(how: _How) -> Callable[..., Any]:
        @jax.custom_batching.custom_vmap
        def run(*arrays: Any) -> Any:
            return function(how, *arrays)

        @run.def_vmap
        def mapped(size: int, in_batched: Any, *arrays: Any) -> Any:
            def folded(value: Any, has_axis: bool) -> Any:
                if not has_axis:
                    value = jnp.broadcast_to(value, (size, *value.shape))
                return value.reshape(-1, *value.shape[2:])

            out = run(*jax.tree.map(folded, arrays, tuple(in_batched)))
            out = jax.tree.map(lambda value: value.reshape(size, -1, *value.shape[1:]), out)
            return out, jax.tree.map(lambda _: True, out)

        return run

    return made


@_batched
def _forward(how: _How, *arrays: Any) -> Any:
    named = dict(zip(_ARRAYS, arrays, strict=True))
    results = [_like(named["a"])] * (2 if how.form == LOG_OUTPUT else 1)
    return tuple(_call("scanrnn_scan", how, results, named, False))


@_batched
def _backward(how: _How, *arrays: Any) -> Any:
    """(da, db) and, where there is an h_0, dh_0."""
    named = dict(zip((*_ARRAYS, "h", "sign_h", "dh"), arrays, strict=True))
    results = [_like(named["a"])] * 2
    if named["h_0"] is not None:
        results.append(_like(named["h_0"]))
    return tuple(_call("scanrnn_scan_backward", how, results, named, True))


# ---- derivatives


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _states(how: _How, arrays: tuple[Any, ...]) -> Any:
    """(h,), or (h, sign_h) where they are logarithms."""
    return _forward(how)(*arrays)


def _states_forward(how: _How, arrays: tuple[Any, ...]) -> Any:
    out = _states(how, arrays)
    return out, (arrays, out)


def _states_backward(how: _How, saved: Any, cotangents: Any) -> Any:
    arrays, (h, *sign_h) = saved
    named = dict(zip(_ARRAYS, arrays, strict=True))
    reals = (named["a"], None if how.form == LINEAR else named["b"], named["h_0"], h, cotangents[0])
    others = (named["sign_b"], named["reset"], named["sign_h_0"], sign_h[0] if sign_h else None)
    da, db, *dh_0 = _pulled_back(how, reals, others)
    found = {"a": da, "b": db, "h_0": dh_0[0] if dh_0 else None}
    return (tuple(found.get(name) for name in _ARRAYS),)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pulled_back(how: _How, reals: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
    """JAX's cotangents of complex numbers are the conjugates of the library's, torch's."""
    a, b, h_0, h, dh = reals
    sign_b, reset, sign_h_0, sign_h = others
    arrays = (a, b, sign_b, reset, h_0, sign_h_0, h, sign_h, _conj(dh))
    return jax.tree.map(_conj, _backward(how)(*arrays))


def _pulled_back_forward(how: _How, reals: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
    return _pulled_back(how, reals, others), (reals, others)


def _pulled_back_backward(how: _How, saved: Any, cotangents: Any) -> Any:
    reals, others = saved
    sign_b, reset, sign_h_0, sign_h = others

    def composed(reals: Any) -> Any:
        a, b, h_0, h, dh = reals
        told = ScanCall(how.form, how.reverse, 1, a, b, sign_b, reset, h_0, sign_h_0)
        found = scan_vjp(jnp, _again, told, h, sign_h, dh)
        return found if h_0 is not None else found[:2]

    _, pull = jax.vjp(composed, reals)
    return *pull(cotangents), None


def _again(told: ScanCall) -> Any:
    return _states(_How(told.form, told.reverse), tuple(told[3:]))[0]


def _conj(value: Any) -> Any:
    return jnp.conj(value) if jnp.iscomplexobj(value) else value


_states.defvjp(_states_forward, _states_backward)
_pulled_back.defvjp(_pulled_back_forward, _pulled_back_backward)


def run(told: ScanCall) -> tuple[Any, Any]:
    """The states, and their signs where they are logarithms; results are in C order, as in XLA."""
    shape, axis = tuple(told.a.shape), told.axis
    signed = told.form == LOG_OUTPUT
    if 0 in shape:
        return jnp.zeros_like(told.a), jnp.zeros_like(told.a) if signed else None
    lines, steps, rows = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def folded(value: Any) -> Any:
        if value is None:
            return None
        return value.reshape((lines, steps, rows) if value.ndim == len(shape) else (lines, rows))

    reset = told.reset
    if reset is not None:
        same = all(size == 1 for size in reset.shape[axis + 1 :])
        whole = (*shape[: axis + 1], *(reset.shape[axis + 1 :] if same else shape[axis + 1 :]))
        reset = jnp.broadcast_to(reset, whole).reshape(lines, steps, 1 if same else rows)
    arrays = (*map(folded, (told.a, told.b, told.sign_b)), reset, *map(folded, told[7:]))
    out = _states(_How(told.form, told.reverse), arrays)
    return out[0].reshape(shape), out[1].reshape(shape) if signed else None


def scan(
    a: Any,
    b: Any,
    h_0: Any = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Any = None,
) -> Any:
    """All states h_t = a_t h_{t-1} + b_t along `axis`: a, b [..., T, ...] -> [..., T, ...].

    As scanrnn.scan, and it can be differentiated in reverse mode, as often as one likes.
    """
    return run(checked(Operands(), {"a": a, "b": b}, h_0, reverse, axis, reset))[0]


def scan_log(
    log_a: Any,
    log_b: Any,
    sign_b: Any = None,
    h_0: Any = None,
    reverse: bool = False,
    *,
    axis: int = 0,
    reset: Any = None,
    log_output: bool = False,
) -> Any:
    """The same states from log a and log |b|; with `log_output` the pair (log|h|, sign h).

    As scanrnn.scan_log, and it can be differentiated in reverse mode, as often as one likes; signs
    have no gradient.
    """
    operands = {"log_a": log_a, "log_b": log_b, "sign_b": sign_b}
    h, sign_h = run(checked(Operands(), operands, h_0, reverse, axis, reset, log_output))
    return h if sign_h is None else (h, sign_h)
