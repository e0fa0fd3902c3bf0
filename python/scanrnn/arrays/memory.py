# SPDX-License-Identifier: Apache-2.0
"""A library whose arrays the library itself reads and writes: the calls, for all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from ..call import Call, Placed, log
from .base import ArrayLibrary
from .identify import dtype_name


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

    # ---- calls

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        on, stack, planned, x = self.for_call(), call.stack, call.planned, call.x
        name, h, _ = call.names
        y = on.empty(planned.y_of_step if call.one_step else planned.y, x)
        h_n = [on.empty(planned.state, x)]
        if stack.states == 2:
            h_n.append(on.empty(planned.state, x))
        reserve = on.reserve(call, planned.reserve) if call.training else None
        _core.forward(
            stack.core, planned.plan, on.stream(), on.params(stack.placed),
            on.given(name, x), on.all_given(h, call.h_0),
            on.result("y", y), on.all_results("h_n", h_n),
            on.workspace(planned.workspace), reserve, call.seed, call.one_step,
        )  # fmt: skip
        on.finish()
        return y, h_n, reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        on, stack, planned, x = self.for_call(), call.stack, call.planned, call.x
        dx = on.empty(x.shape, x)
        dh_0 = [on.empty(planned.state, x) for _ in range(stack.states)]
        dparams = [on.empty(shape, x) for shape in stack.shapes.values()]
        _core.backward(
            stack.core, planned.plan, on.stream(), on.params(stack.placed),
            on.given("x", x), on.all_given("h_0", call.h_0),
            on.given("y", y), on.given("dy", dy),
            on.all_given("dh_n", dh_n),
            on.result("dx", dx), on.all_results("dh_0", dh_0),
            on.all_results("dparams", dparams),
            on.workspace(planned.workspace), reserve, call.seed,
        )  # fmt: skip
        on.finish()
        return dx, dh_0, dparams

    def scan(
        self, operands: Sequence[Any], h_0: Any, shape: tuple[int, int], log_form: bool,
        reverse: bool,
    ) -> Any:  # fmt: skip
        on = self.for_call()
        out = on.empty(shape, operands[0])
        dtype = dtype_name(operands[0])
        plan = _core.scan_plan(_core.Device(on.device), *shape, dtype, log_form, None)
        log(plan)
        a, b, sign = (on.given("a, b or sign_b", value) for value in (*operands, None)[:3])
        _core.scan(
            plan, on.stream(), a, b, sign, on.given("h_0", h_0), on.result("h", out),
            on.workspace(plan.workspace_bytes), log_form, reverse,
        )  # fmt: skip
        on.finish()
        return out


class Placing(Memory):
    """An adapter whose arrays are not what the core takes."""

    def all_given(self, name: str, values: list[Any]) -> list[Any]:
        return [self.given(name, value) for value in values]

    def all_results(self, name: str, values: list[Any]) -> list[Any]:
        return [self.result(name, value) for value in values]
