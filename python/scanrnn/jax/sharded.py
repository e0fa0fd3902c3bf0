# SPDX-License-Identifier: Apache-2.0
"""Layers whose sequences are split over the devices of a mesh, one part of time after the other.

What passes between devices is the state. All devices run one program, so that they work on groups
of rows by a slot's number: in slot s the device at place r of time works on group s - r, and hands
its state on by a ppermute. JAX derives the way back, whose states go from the last device to the
first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from .. import arguments
from ..description import Description
from .calls import layer as call_layer
from .calls import shape_of
from .layers import Layer


def time_sharded(
    rnn: Layer, mesh: Mesh, axis: str = "time", *, groups: int = 1
) -> Callable[..., tuple[Any, Any]]:
    """`y, h_n = time_sharded(rnn, mesh)(params, x, h_0)`: as rnn, with time over a mesh's axis.

    x [T,B,C], or [B,T,C] with batch_first, is the whole sequence, whose T is a multiple of the
    number of devices on the axis; each has a part of it and of y. params, h_0 and h_n are on all of
    them, and other axes of the mesh see the same. B is a multiple of `groups`: each device works on
    one group of rows after the other, so that of P devices with G groups each is busy for
    G / (G + P - 1) of the time. Nothing is drawn, as in a call without a key. jit and grad go
    through it; what does not fit is a ValueError.
    """
    if not isinstance(rnn, Layer):
        raise TypeError(f"rnn: expected a layer of scanrnn.jax, got {arguments.type_name(rnn)}")
    if axis not in mesh.shape:
        raise ValueError(f"axis: expected one of {tuple(mesh.shape)}, got {axis!r}")
    groups, devices = arguments.integer("groups", groups), mesh.shape[axis]
    if groups < 1:
        raise ValueError(f"groups: expected at least 1, got {groups}")
    batch_axis = rnn.description.batch_axis
    time = PartitionSpec(*(None, axis) if batch_axis == 0 else (axis,))
    everywhere = PartitionSpec()

    def run(params: dict[str, Any], x: Any, h_0: Any = None) -> tuple[Any, Any]:
        rnn.check_call(params, x)
        if x.ndim != 3:
            raise ValueError(f"x: expected a batch of three axes, got {shape_of(x)}")
        steps, rows = x.shape[1 - batch_axis], x.shape[batch_axis]
        if steps % devices:
            raise ValueError(f"x: expected a multiple of {devices} steps, got {steps}")
        if rows % groups:
            raise ValueError(f"groups: expected a divisor of the batch, {rows}, got {groups}")
        d = rnn.description
        states = rnn._states(d.batch(x.shape), h_0, single=False)
        if not states:
            states = tuple(jnp.zeros(shape, x.dtype) for shape in d.state_shapes(rows))
        ordered = tuple(params[name] for name in rnn.shapes)
        body = functools.partial(_on_device, rnn, axis, devices, groups)
        # The library's calls say nothing of the axes over which their results vary.
        y, finals = jax.shard_map(
            body, mesh=mesh, in_specs=(everywhere, time, everywhere), out_specs=(time, everywhere),
            check_vma=False,
        )(ordered, x, states)  # fmt: skip
        return y, finals[0] if len(finals) == 1 else finals

    return run


def _on_device(
    rnn: Layer, axis: str, devices: int, groups: int, params: Any, x: Any, states: Any
) -> Any:
    """One layer and direction after the other, on this device's part of time."""
    d, finals = rnn.description, []
    named = dict(zip(rnn.shapes, params, strict=True))
    one = d._replace(num_layers=1, bidirectional=False)
    time = 1 - d.batch_axis
    for number in range(d.num_layers):
        outputs = []
        for direction in range(d.directions):
            suffix = f"_l{number}" + "_reverse" * direction
            own = tuple(value for name, value in named.items() if name.endswith(suffix))
            row = len(finals)
            h_0 = tuple(state[row : row + 1] for state in states)
            source = jnp.flip(x, time) if direction else x
            place, step = lax.axis_index(axis), -1 if direction else 1
            place = devices - 1 - place if direction else place
            ways = [(i, i + step) for i in range(devices) if 0 <= i + step < devices]
            y, final = _through(one, groups, devices, axis, ways, place, own, source, h_0)
            outputs.append(jnp.flip(y, time) if direction else y)
            finals.append(final)
        x = jnp.concatenate(outputs, -1)
    return x, tuple(jnp.concatenate(parts) for parts in zip(*finals, strict=True))


def _through(
    one: Description, groups: int, devices: int, axis: str, ways: Any, place: Any, params: Any,
    x: Any, h_0: Any,
) -> Any:  # fmt: skip
    """The groups of one layer's direction through the devices: y, and the last one's states."""
    batch_axis = one.batch_axis
    rows = x.shape[batch_axis] // groups

    def slot(arriving: Any, number: Any) -> Any:
        group = number - place
        at = jnp.clip(group, 0, groups - 1) * rows
        part = lax.dynamic_slice_in_dim(x, at, rows, batch_axis)
        own = [lax.dynamic_slice_in_dim(value, at, rows, 1) for value in h_0]
        begin = tuple(jnp.where(place == 0, o, a) for o, a in zip(own, arriving, strict=True))

        def work() -> Any:
            return call_layer(one, part, begin, params, None, None)

        def idle() -> Any:
            return jnp.zeros(one.output_shape(part.shape), x.dtype), begin

        y, final = lax.cond((group >= 0) & (group < groups), work, idle)
        leaving = tuple(lax.ppermute(value, axis, ways) for value in final)
        return leaving, (y, final)

    begin = tuple(jnp.zeros_like(value[:, :rows]) for value in h_0)
    _, found = lax.scan(slot, begin, jnp.arange(groups + devices - 1))
    # Each [slots,...,rows,...]: this device's own slots, their groups side by side.
    y, final = jax.tree.map(lambda value: lax.dynamic_slice_in_dim(value, place, groups), found)
    y = jnp.moveaxis(y, 0, batch_axis).reshape(one.output_shape(x.shape))
    final = (jnp.moveaxis(v, 0, 1).reshape(h.shape) for v, h in zip(final, h_0, strict=True))
    last = place == devices - 1
    return y, tuple(lax.psum(jnp.where(last, value, 0), axis) for value in final)
