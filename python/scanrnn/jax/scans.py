# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence as custom calls of XLA, forward and backward.

It can be differentiated in both modes, as often as one likes. The tangent of the states is a
primitive, linear in the tangents of a, b and h_0: JAX transposes it into the library's backward,
which is one call, and forward mode runs it as a scan by adjoint.py, where further derivatives come
from, too. jax.custom_derivatives.linear_call would be such a thing, but it has no vmap, and no
derivative by what it is not linear in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _core, profile
from ..adjoint import scan_jvp, scan_vjp
from ..scan_call import LINEAR, LOG_OUTPUT, ScanCall, checked
from .operands import Operands
from .targets import call, kinds_of_device, work_memory

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


def _folded(size: int, value: Any, axis: int | None) -> Any:
    """A mapped axis of so many elements as more of the first axis."""
    whole = (
        jnp.broadcast_to(value, (size, *value.shape))
        if axis is None
        else jnp.moveaxis(value, axis, 0)
    )
    return whole.reshape(size * whole.shape[1], *whole.shape[2:])


def _lines(value: Any, axis: int | None) -> int:
    """Its first axis but the mapped one."""
    return int(value.shape[int(axis == 0)])


def _unfolded(size: int, lines: int, value: Any) -> Any:
    return value.reshape(size, lines, *value.shape[1:])


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
                return _folded(size, value, 0 if has_axis else None)

            lines = _lines(arrays[0], 0 if in_batched[0] else None)
            out = run(*jax.tree.map(folded, arrays, tuple(in_batched)))
            out = jax.tree.map(functools.partial(_unfolded, size, lines), out)
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _states(how: _How, arrays: tuple[Any, ...]) -> Any:
    """(h,), or (h, sign_h) where they are logarithms."""
    return _forward(how)(*arrays)


@_states.defjvp
def _states_jvp(how: _How, primals: Any, tangents: Any) -> Any:
    """Signs have no tangent."""
    (arrays,), (moved,) = primals, tangents
    out = _states(how, arrays)
    named = dict(zip(_ARRAYS, arrays, strict=True)) | dict(zip(("h", "sign_h"), out, strict=False))
    named |= {f"d{k}": v for k, v in zip(_ARRAYS, moved, strict=True) if k in _MOVED}
    if how.form == LINEAR:
        named["b"] = None  # which nothing depends on
    given = {name: value for name, value in named.items() if value is not None}
    dh = _tangent.bind(*given.values(), how=how, names=tuple(given))
    return out, (dh, *map(jnp.zeros_like, out[1:]))


# What the tangent of h is linear in, as named there with a d before them.
_MOVED = ("a", "b", "h_0")
_tangent = Primitive("scanrnn_scan_tangent")


def _told(how: _How, named: dict[str, Any]) -> ScanCall:
    return ScanCall(how.form, how.reverse, 1, *map(named.get, _ARRAYS))


@_tangent.def_impl
def _moved(*values: Any, how: _How, names: tuple[str, ...]) -> Any:
    """dh, by the values of `names`, which are a scan's arrays, its states and their tangents."""
    named = dict(zip(names, values, strict=True))
    moved = (named.get(f"d{name}") for name in _MOVED)
    return scan_jvp(jnp, _again, _told(how, named), named["h"], named.get("sign_h"), *moved)


@_tangent.def_abstract_eval
def _like_h(*values: Any, how: _How, names: tuple[str, ...]) -> Any:
    return values[names.index("h")]


def _moved_again(values: Any, moved: Any, *, how: _How, names: tuple[str, ...]) -> Any:
    """Its own tangent, whichever of the values move."""
    which = [i for i, tangent in enumerate(moved) if type(tangent) is not ad.Zero]

    def function(*some: Any) -> Any:
        return _moved(*_with(values, which, some), how=how, names=names)

    return jax.jvp(function, [values[i] for i in which], [moved[i] for i in which])


def _with(values: Any, which: list[int], others: Any) -> list[Any]:
    out = list(values)
    for i, value in zip(which, others, strict=True):
        out[i] = value
    return out


def _transposed(dh: Any, *values: Any, how: _How, names: tuple[str, ...]) -> Any:
    named = dict(zip(names, values, strict=True))
    told, h, sign_h = _told(how, named), named["h"], named.get("sign_h")
    reals, others = (
        (told.a, told.b, told.h_0, h, ad.instantiate_zeros(dh)),
        (told.sign_b, told.reset, told.sign_h_0, sign_h),
    )
    found = dict(
        zip((f"d{name}" for name in _MOVED), _pulled_back(how, reals, others), strict=False)
    )
    return [found[name] if ad.is_undefined_primal(named[name]) else None for name in names]


def _mapped(values: Any, axes: Any, *, how: _How, names: tuple[str, ...]) -> Any:
    size = next(v.shape[a] for v, a in zip(values, axes, strict=True) if a is not None)
    whole = [_folded(size, value, axis) for value, axis in zip(values, axes, strict=True)]
    dh = _tangent.bind(*whole, how=how, names=names)
    return _unfolded(size, _lines(values[0], axes[0]), dh), 0


ad.primitive_jvps[_tangent] = _moved_again
ad.primitive_transposes[_tangent] = _transposed
batching.primitive_batchers[_tangent] = _mapped
mlir.register_lowering(_tangent, mlir.lower_fun(_moved, multiple_results=False))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _pulled_back(how: _How, reals: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
    """JAX's cotangents of complex numbers are the conjugates of the library's, torch's."""
    a, b, h_0, h, dh = reals
    sign_b, reset, sign_h_0, sign_h = others
    arrays = (a, b, sign_b, reset, h_0, sign_h_0, h, sign_h, _conj(dh))
    return jax.tree.map(_conj, _backward(how)(*arrays))


@_pulled_back.defjvp
def _pulled_back_jvp(how: _How, primals: Any, tangents: Any) -> Any:
    (reals, others), (moved, _) = primals, tangents
    sign_b, reset, sign_h_0, sign_h = others

    def composed(reals: Any) -> Any:
        a, b, h_0, h, dh = reals
        told = ScanCall(how.form, how.reverse, 1, a, b, sign_b, reset, h_0, sign_h_0)
        found = scan_vjp(jnp, _again, told, h, sign_h, dh)
        return found if h_0 is not None else found[:2]

    return _pulled_back(how, reals, others), jax.jvp(composed, (reals,), (moved,))[1]


def _again(told: ScanCall) -> Any:
    return _states(_How(told.form, told.reverse), tuple(told[3:]))[0]


def _conj(value: Any) -> Any:
    return jnp.conj(value) if jnp.iscomplexobj(value) else value


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

    As scanrnn.scan, and it can be differentiated in both modes, as often as one likes.
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

    As scanrnn.scan_log, and it can be differentiated in both modes, as often as one likes; signs
    have no gradient.
    """
    operands = {"log_a": log_a, "log_b": log_b, "sign_b": sign_b}
    h, sign_h = run(checked(Operands(), operands, h_0, reverse, axis, reset, log_output))
    return h if sign_h is None else (h, sign_h)
