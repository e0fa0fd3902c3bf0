# SPDX-License-Identifier: Apache-2.0
"""Sequences that are split over the devices of a mesh, one part of time after the other.

What passes between devices is the state. All devices run one program, so that they work on groups
by a slot's number: in slot s the device at place r of time works on group s - r, and hands its
state on by a ppermute. Groups are rows of a batch, or lines of a scan. JAX derives the way back,
whose states go from the last device to the first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from .. import arguments
from ..description import Description
from ..ragged import Ragged, checked, of_sequence
from ..scan_call import checked as checked_scan
from .calls import layer as call_layer
from .layers import Layer
from .operands import Operands, shape_of
from .scans import scan


class _Over(NamedTuple):
    """The devices that time lies over, and into how many groups each cuts its work."""

    mesh: Mesh
    axis: str
    devices: int
    groups: int

    @staticmethod
    def of(mesh: Mesh, axis: str, groups: int) -> _Over:
        if axis not in mesh.shape:
            raise ValueError(f"axis: expected one of {tuple(mesh.shape)}, got {axis!r}")
        groups = arguments.integer("groups", groups)
        if groups < 1:
            raise ValueError(f"groups: expected at least 1, got {groups}")
        return _Over(mesh, axis, mesh.shape[axis], groups)

    def check_groups(self, what: str, count: int) -> None:
        if count % self.groups:
            raise ValueError(f"groups: expected a divisor of {what}, {count}, got {self.groups}")

    def padded(self, value: Any, time: int, fill: Any = 0) -> Any:
        """With as many more steps at the end as make it a multiple of the devices."""
        more = -value.shape[time] % self.devices
        widths = [(0, more if axis == time else 0) for axis in range(value.ndim)]
        return jnp.pad(value, widths, constant_values=fill) if more else value

    def along(self, time: int) -> PartitionSpec:
        return PartitionSpec(*(None,) * time, self.axis)

    def run(self, body: Any, inputs: Any, outputs: Any, *args: Any) -> Any:
        # The library's calls say nothing of the axes over which their results vary.
        return jax.shard_map(
            body, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )(*args)

    def through(self, work: Any, against: bool, states: Any, axis: int) -> Any:
        """A direction's groups through the devices: what they make, side by side along `axis`, and
        the states behind the last device. `work(cut, begin)` makes a group's, of what `cut` takes
        of a whole and its axis. States are cut along axis -2."""
        place, step = lax.axis_index(self.axis), -1 if against else 1
        place = self.devices - 1 - place if against else place
        ways = [(i, i + step) for i in range(self.devices) if 0 <= i + step < self.devices]

        def cut(value: Any, at: int, group: Any) -> Any:
            size = value.shape[at] // self.groups
            return lax.dynamic_slice_in_dim(value, group * size, size, at)

        def slot(arriving: Any, number: Any) -> Any:
            group = number - place
            there = functools.partial(cut, group=jnp.clip(group, 0, self.groups - 1))
            own = tuple(there(value, value.ndim - 2) for value in states)
            begin = jax.tree.map(lambda o, a: jnp.where(place == 0, o, a), own, arriving)
            made = functools.partial(work, there, begin)
            like = jax.eval_shape(made)[0]

            def idle() -> Any:
                return jnp.zeros(like.shape, like.dtype), begin

            y, final = lax.cond((group >= 0) & (group < self.groups), made, idle)
            return tuple(lax.ppermute(value, self.axis, ways) for value in final), (y, final)

        begin = tuple(jnp.zeros_like(cut(value, value.ndim - 2, 0)) for value in states)
        _, found = lax.scan(slot, begin, jnp.arange(self.groups + self.devices - 1))
        # Each [slots,...]: this device's own slots, their groups side by side.
        own = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, place, self.groups), found)
        last = place == self.devices - 1
        final = (_side_by_side(value, value.ndim - 3) for value in own[1])
        final = (lax.psum(jnp.where(last, value, 0), self.axis) for value in final)
        return _side_by_side(own[0], axis), tuple(final)


def _side_by_side(groups: Any, axis: int) -> Any:
    """[G,...] -> [...], whose axis is G times as long."""
    shape = list(groups.shape[1:])
    shape[axis] *= groups.shape[0]
    return jnp.moveaxis(groups, 0, axis).reshape(shape)


# ---- layers


def time_sharded(
    rnn: Layer, mesh: Mesh, axis: str = "time", *, groups: int = 1
) -> Callable[..., tuple[Any, Any]]:
    """`y, h_n = time_sharded(rnn, mesh)(params, x, h_0)`: as rnn, with time over a mesh's axis.

    x [T,B,C], or [B,T,C] with batch_first, is the whole sequence, and so are `lengths` and `reset`,
    which the function takes as rnn does; each device on the axis has a part of time. Where T is no
    multiple of their number, the last ones have padding. params, h_0 and h_n are on all devices,
    and other axes of the mesh see the same. B is a multiple of `groups`: each device works on one
    group of rows after the other, so that of P devices with G groups each is busy for
    G / (G + P - 1) of the time. Nothing is drawn, as in a call without a key. jit and grad go
    through it; what does not fit is a ValueError.
    """
    if not isinstance(rnn, Layer):
        raise TypeError(f"rnn: expected a layer of scanrnn.jax, got {arguments.type_name(rnn)}")
    over, d = _Over.of(mesh, axis, groups), rnn.description
    time, everywhere = 1 - d.batch_axis, PartitionSpec()

    def run(
        params: dict[str, Any], x: Any, h_0: Any = None, *, lengths: Any = None, reset: Any = None
    ) -> tuple[Any, Any]:
        rnn.check_call(params, x)
        if x.ndim != 3:
            raise ValueError(f"x: expected a batch of three axes, got {shape_of(x)}")
        steps, rows = x.shape[time], x.shape[d.batch_axis]
        told = of_sequence(lengths, None, reset) or Ragged()
        told = checked(Operands(), told, x.shape, d.batch_axis)
        over.check_groups("the batch", rows)
        states = rnn._states(d.batch(x.shape), h_0, single=False)
        if not states:
            states = tuple(jnp.zeros(shape, x.dtype) for shape in d.state_shapes(rows))
        if 0 in x.shape:  # nothing for devices to do
            y = jnp.zeros(d.output_shape(x.shape), x.dtype)
            return y, states[0] if len(states) == 1 else states
        lengths, reset = told.lengths, told.reset
        if steps % over.devices and lengths is None:
            lengths = jnp.full(rows, steps, "int32")
        resets = None
        if reset is not None:
            both = (reset, _reset_back(reset, lengths, time))[: d.directions]
            resets = tuple(over.padded(value, time, False) for value in both)
        ordered = tuple(params[name] for name in rnn.shapes)
        body = functools.partial(_on_device, rnn, over)
        specs = everywhere, over.along(time), everywhere, everywhere, over.along(time)
        padded = over.padded(x, time)
        y, finals = over.run(
            body, specs, (over.along(time), everywhere), ordered, padded, states, lengths, resets
        )
        y = lax.slice_in_dim(y, 0, steps, axis=time)
        return y, finals[0] if len(finals) == 1 else finals

    return run


def _reset_back(reset: Any, lengths: Any, time: int) -> Any:
    """A step's reset stands between it and the step before, to which no state comes back; behind a
    sequence's end nothing stands."""
    steps = reset.shape[time]
    first, others = jnp.split(reset, [min(1, steps)], time)
    back = jnp.concatenate([others, jnp.zeros_like(first)], time)
    if lengths is None:
        return back
    step = jnp.expand_dims(jnp.arange(1, steps + 1), 1 - time)
    return back & (step < jnp.expand_dims(lengths, time))


def _on_device(
    rnn: Layer, over: _Over, params: Any, x: Any, states: Any, lengths: Any, resets: Any
) -> Any:
    """One layer and direction after the other, on this device's part of time."""
    d, finals = rnn.description, []
    named = dict(zip(rnn.shapes, params, strict=True))
    one = d._replace(num_layers=1, bidirectional=False)
    if lengths is not None:
        steps = x.shape[1 - d.batch_axis]
        lengths = jnp.clip(lengths - lax.axis_index(over.axis) * steps, 0, steps)
    for number in range(d.num_layers):
        outputs = []
        for direction in range(d.directions):
            suffix = f"_l{number}" + "_reverse" * direction
            own = tuple(value for name, value in named.items() if name.endswith(suffix))
            row = len(finals)
            h_0 = tuple(state[row : row + 1] for state in states)
            walked = functools.partial(_walked, d.batch_axis, lengths, direction == 1)
            reset = None if resets is None else walked(resets[direction])
            part = functools.partial(_layer, one, own, walked(x), lengths, reset)
            y, final = over.through(part, direction == 1, h_0, d.batch_axis)
            outputs.append(walked(y))
            finals.append(final)
        x = jnp.concatenate(outputs, -1)
    return x, tuple(jnp.concatenate(parts) for parts in zip(*finals, strict=True))


def _layer(
    one: Description, params: Any, x: Any, lengths: Any, reset: Any, cut: Any, begin: Any
) -> Any:
    """A group of rows."""
    axis, ragged = one.batch_axis, None
    if lengths is not None or reset is not None:
        lengths = None if lengths is None else cut(lengths, 0)
        ragged = Ragged(lengths, None, None if reset is None else cut(reset, axis))
    return call_layer(one, cut(x, axis), begin, params, ragged, None)


def _walked(batch_axis: int, lengths: Any, against: bool, tokens: Any) -> Any:
    """The last step first where a direction walks against time, and again the way back. Steps that
    are not there stay where they are."""
    if not against:
        return tokens
    time = 1 - batch_axis
    if lengths is None:
        return jnp.flip(tokens, time)
    step = jnp.expand_dims(jnp.arange(tokens.shape[time]), batch_axis)
    length = jnp.expand_dims(lengths, time)
    index = jnp.where(step < length, length - 1 - step, step)
    return jnp.take_along_axis(tokens, index.reshape(index.shape + (1,) * (tokens.ndim - 2)), time)


# ---- the bare recurrence


def scan_sharded(mesh: Mesh, axis: str = "time", *, groups: int = 1) -> Callable[..., Any]:
    """`h = scan_sharded(mesh)(a, b, h_0)`: as scan along the first axis, over a mesh's axis.

    a, b [T,...] are whole, and so is `reset`, which the function takes as scan does; h_0 [...] is
    on all devices. T need not be a multiple of their number; the lines beside time are one of
    `groups`. jit and grad go through it.
    """
    over = _Over.of(mesh, axis, groups)
    time, everywhere = over.along(0), PartitionSpec()

    def run(a: Any, b: Any, h_0: Any = None, *, reset: Any = None) -> Any:
        told = checked_scan(Operands(), {"a": a, "b": b}, h_0, False, 0, reset)
        steps, shape = a.shape[0], a.shape[1:]
        lines, marks = math.prod(shape), told.reset
        over.check_groups("the lines", lines)
        if 0 in a.shape:
            return jnp.zeros_like(told.a)
        initial = jnp.zeros(shape, a.dtype) if h_0 is None else told.h_0
        if marks is not None:
            marks = jnp.broadcast_to(marks, told.a.shape).reshape(steps, lines)
            marks = over.padded(marks, 0, False)
        a, b = (value.reshape(steps, lines) for value in (told.a, told.b))
        h = over.run(
            functools.partial(_scan_on_device, over), (time, time, time, everywhere), time,
            over.padded(a, 0, 1), over.padded(b, 0), marks, initial.reshape(lines, 1),
        )  # fmt: skip
        return h[:steps].reshape(steps, *shape)

    return run


def _scan_on_device(over: _Over, a: Any, b: Any, reset: Any, h_0: Any) -> Any:
    def work(cut: Any, begin: Any) -> Any:
        marks = None if reset is None else cut(reset, 1)
        h = scan(cut(a, 1), cut(b, 1), begin[0][:, 0], reset=marks)
        return h, (h[-1, :, None],)

    return over.through(work, False, (h_0,), 1)[0]
