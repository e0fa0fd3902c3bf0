# SPDX-License-Identifier: Apache-2.0
"""A library whose arrays the library itself reads and writes: the calls, for all of them alike."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .. import _core, profile
from ..arguments import dtype_name, state_names
from ..call import Call, Placed, log
from ..ragged import Ragged
from ..scan_call import LOG_OUTPUT, Lines, ScanCall, lines_of
from .base import ArrayLibrary


class Memory(ArrayLibrary):
    """An adapter says how arrays are placed where a call runs, and how results come back."""

    # ---- what an adapter says

    def for_call(self) -> Memory:
        """Itself, or what has the state of one call: a pullback may be called by many threads."""
        return self

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """An array for results: of this library and device, with the dtype of `like`."""
        raise NotImplementedError

    # What the core takes for an array that a call reads, or for None, and for one that it writes:
    # the array itself, unless an adapter says otherwise; and the same for all of a list.
    def given(self, name: str, value: Any) -> Any:
        return value

    def all_given(self, name: str, values: list[Any]) -> list[Any]:
        return values

    def result(self, name: str, value: Any) -> Any:
        return value

    def all_results(self, name: str, values: list[Any]) -> list[Any]:
        return values

    def stream(self) -> int:
        """On which a call runs; 0 is the default stream."""
        return 0

    def workspace(self, count: int) -> Any:
        """Memory for one call; None is what the call takes for itself."""
        return None

    def reserve(self, call: Call, count: int) -> Any:
        """Memory from forward to backward."""
        return _core.Buffer(call.stack.device, count)

    def params(self, placed: Placed) -> _core.Tensors:
        raise NotImplementedError

    def finish(self) -> None:
        """After a call: sees to it that results get to their arrays."""

    def in_place(self, name: str, value: Any) -> Any:
        """The same for an array that a call reads and writes."""
        return self.result(name, value)

    # ---- calls

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        on, stack, planned, x = self.for_call(), call.stack, call.planned, call.x
        name, h = call.names
        y = on.empty(planned.y_of_step if call.one_step else planned.y, x)
        if call.pooled:
            names = state_names(h, len(call.h_0))
            h_n, h_0, results = call.h_0, list(map(on.in_place, names, call.h_0)), []
        else:
            h_n = [on.empty(shape, x) for shape in planned.states]
            h_0, results = on.all_given(h, call.h_0), on.all_results("h_n", h_n)
        reserve = on.reserve(call, planned.reserve) if call.training else None
        _core.forward(
            stack.core, planned.plan, on.stream(), on.params(stack.placed),
            on.given(name, x), h_0, on.result("y", y), results,
            on.workspace(planned.workspace), reserve, call.seed, call.one_step,
            None if call.ragged is None else on.given_ragged(call.ragged),
        )  # fmt: skip
        on.finish()
        return y, h_n, reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        on, stack, planned, x = self.for_call(), call.stack, call.planned, call.x
        dx = on.empty(x.shape, x)
        dh_0 = [on.empty(shape, x) for shape in planned.states]
        dparams = [on.empty(shape, x) for shape in stack.shapes.values()]
        _core.backward(
            stack.core, planned.plan, on.stream(), on.params(stack.placed),
            on.given("x", x), on.all_given("h_0", call.h_0),
            on.given("y", y), on.given("dy", dy),
            on.all_given("dh_n", dh_n),
            on.result("dx", dx), on.all_results("dh_0", dh_0),
            on.all_results("dparams", dparams),
            on.workspace(planned.workspace), reserve, call.seed, call.one_step,
            None if call.ragged is None else on.given_ragged(call.ragged),
        )  # fmt: skip
        on.finish()
        return dx, dh_0, dparams

    def given_ragged(self, ragged: Ragged) -> list[Any]:
        return [self.given(name, value) for name, value in zip(ragged._fields, ragged, strict=True)]

    # ---- scans

    def spread(self, value: Any, shape: Sequence[int]) -> Any:
        """With axes of size 1 as large as `shape`, without a copy."""
        raise NotImplementedError

    def strides(self, value: Any) -> Sequence[int]:
        """In elements."""
        raise NotImplementedError

    def turned(self, value: Any, order: Sequence[int]) -> Any:
        """With its axes in this order, without a copy."""
        return value.transpose(order)

    def given_lines(self, name: str, value: Any, lines: Lines) -> Any:
        """[T,B,N] of an array that a scan reads, a copy where its strides cannot be those of it."""
        return None if value is None else self.given(name, self.as_lines(value, lines))

    def result_lines(self, name: str, value: Any, lines: Lines) -> Any:
        """The same of one in C order that it writes, which is none."""
        return None if value is None else self.result(name, self.as_lines(value, lines))

    def as_lines(self, value: Any, lines: Lines) -> Any:
        """A state, which has no time, as [B,N]."""
        if value.ndim < lines.axes:
            return value.reshape(lines.shape[1:])
        return (self.turned(value, lines.order) if lines.order else value).reshape(lines.shape)

    def scan(self, call: ScanCall) -> tuple[Any, Any]:
        on, a = self.for_call(), call.a
        h = on.empty(a.shape, a)
        sign_h = on.empty(a.shape, a) if call.form == LOG_OUTPUT else None
        if 0 in a.shape:
            return h, sign_h
        call = on.reset_spread(call)
        lines = on.lines(call)
        plan = _scan_plan(on.device, call, lines, training=False)
        _core.scan(
            plan, on.stream(), call.form, call.reverse,
            *(on.given_lines(name, value, lines) for name, value in read(call)),
            on.result_lines("h", h, lines), on.result_lines("sign_h", sign_h, lines),
            on.workspace(plan.workspace_bytes),
        )  # fmt: skip
        on.finish()
        return h, sign_h

    def scan_backward(
        self, call: ScanCall, h: Any, sign_h: Any, dh: Any, wanted: Sequence[bool]
    ) -> tuple[Any, Any, Any]:
        """(da, db, dh_0), each where it is wanted; by the logarithms da and db are those of them.

        dh may have any strides; h and sign_h are scan's.
        """
        on, a = self.for_call(), call.a
        of_state = (*a.shape[: call.axis], *a.shape[call.axis + 1 :])
        shapes = (a.shape, a.shape, of_state)
        out = [on.empty(s, a) if want else None for s, want in zip(shapes, wanted, strict=True)]
        da, db, dh_0 = out
        if 0 in a.shape:
            if dh_0 is not None:
                dh_0[...] = 0
            return da, db, dh_0
        call = on.reset_spread(call)
        lines = on.lines(call, dh)
        plan = _scan_plan(on.device, call, lines, training=True)
        reads = (*read(call), ("h", h), ("sign_h", sign_h), ("dh", dh))
        _core.scan_backward(
            plan, on.stream(), call.form, call.reverse,
            *(on.given_lines(name, value, lines) for name, value in reads),
            *(
                on.result_lines(name, value, lines)
                for name, value in (("da", da), ("db", db), ("dh_0", dh_0))
            ),
            on.workspace(plan.workspace_bytes),
        )  # fmt: skip
        on.finish()
        return da, db, dh_0

    def reset_spread(self, call: ScanCall) -> ScanCall:
        if call.reset is None:
            return call
        return call._replace(reset=self.spread(call.reset, call.a.shape))

    def lines(self, call: ScanCall, *others: Any) -> Lines:
        axis, axes, strides = call.axis, call.a.ndim, []
        if axes > 2:
            for value in (*call[3:], *others):
                if value is not None:
                    steps = tuple(self.strides(value))
                    strides.append(steps if len(steps) < axes else steps[:axis] + steps[axis + 1 :])
        return lines_of(tuple(call.a.shape), axis, tuple(strides))


def read(call: ScanCall) -> Sequence[tuple[str, Any]]:
    """What a scan reads, in the order of the core's arguments."""
    return list(zip(call._fields[3:], call[3:], strict=True))


def _scan_plan(device: str, call: ScanCall, lines: Lines, training: bool) -> _core.Plan:
    profile.load_users()
    on = _device(device)
    plan = _planned_scan(
        on, _core.settings(on), lines.shape, dtype_name(call.a), call.form, training,
        lines.time_contiguous,
    )  # fmt: skip
    if _core.wants_plans():
        log(plan)
    return plan


_device = functools.cache(_core.Device)


@functools.lru_cache(maxsize=1024)
def _planned_scan(
    device: _core.Device, settings: int, shape: tuple[int, int, int], dtype: str, form: str,
    training: bool, time_contiguous: bool,
) -> _core.Plan:  # fmt: skip
    """`settings` are what else plans depend on."""
    return _core.scan_plan(device, *shape, dtype, form, training, time_contiguous, None)


class Placing(Memory):
    """An adapter whose arrays are not what the core takes."""

    def all_given(self, name: str, values: list[Any]) -> list[Any]:
        return [self.given(name, value) for value in values]

    def all_results(self, name: str, values: list[Any]) -> list[Any]:
        return [self.result(name, value) for value in values]
