# SPDX-License-Identifier: Apache-2.0
"""NumPy's arrays, which go to a CUDA device and back in each call; lists and numbers, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, arguments
from ..arguments import Array
from ..call import Call, log
from . import dlpack
from .base import ArrayLibrary
from .identify import described, library_of


class NumPy(ArrayLibrary):
    def array(self, name: str, value: Any, dtype: Any) -> Any:
        """`value` as the core can walk it, or an error that says what would do."""
        library = library_of(value)
        if library == "other":
            try:
                value = np.from_dlpack(value)
            except dlpack.REFUSALS as problem:
                raise dlpack.refused(name, value, problem) from problem
        elif library:
            raise TypeError(
                f"{name}: expected a NumPy array, as x is one, got {described(name, value)}"
            )
        return arguments.array(name, value, dtype)

    def check_device(self, name: str, device: str) -> None:
        pass  # they go to whichever it is, and back

    def check_scan_device(self, device: str | None) -> None:
        pass

    def copy(self, value: Any) -> Any:
        return value.copy()

    def host(self, value: Any) -> Array:
        array: Array = value
        return array

    def freeze(self, *values: Any) -> None:
        for value in values:
            value.flags.writeable = False

    # ---- calls

    def forward(self, call: Call) -> tuple[Any, list[Any], Any]:
        stack, y = call.stack, np.empty(call.shape_of_y(), call.stack.dtype)
        h_n = [np.empty(call.shape_of_state(), stack.dtype) for _ in range(call.states())]
        reserve = _core.Buffer(stack.device, call.plan.reserve_bytes) if call.training else None
        core = stack.core.step if call.one_step else stack.core.forward
        core(call.plan, stack.placed.core, call.x, call.h_0, y, h_n, reserve, call.seed)
        return y, h_n, reserve

    def backward(
        self, call: Call, y: Any, reserve: Any, dy: Any, dh_n: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        stack, dx = call.stack, np.empty(call.x.shape, call.stack.dtype)
        dh_0 = [np.empty(call.shape_of_state(), stack.dtype) for _ in range(call.states())]
        dparams = [np.empty(shape, stack.dtype) for shape in stack.shapes.values()]
        stack.core.backward(
            call.plan, stack.placed.core, call.x, call.h_0, y, dy, dh_n, dx, dh_0, dparams, reserve,
            call.seed,
        )  # fmt: skip
        return dx, dh_0, dparams

    def scan(
        self, dtype: str, operands: Sequence[Any], h_0: Any, shape: tuple[int, int],
        log_form: bool, reverse: bool, device: str,
    ) -> Any:  # fmt: skip
        a, b, *sign = operands
        out = np.empty(shape, a.dtype)
        plan = _core.scan_plan(_core.Device(device), *shape, dtype, log_form, None)
        log(plan)
        _core.scan(plan, a, b, sign[0] if sign else None, h_0, out, log_form, reverse)
        return out
