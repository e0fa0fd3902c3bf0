# SPDX-License-Identifier: Apache-2.0
"""An operator of torch with its formulas: torch's dispatcher asks for them, and so does torch.func.

torch.func takes no part in formulas that torch.library registers, but in those of an autograd
Function it does: under its transformations, and in forward mode, an operator is called as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .batched import by_vmap, of_batches

library = torch.library.Library("scanrnn", "DEF")


class Operator:
    """`torch.ops.scanrnn.<name>`; its arguments are passed by position."""

    def __init__(self, name: str, schema: str) -> None:
        self._name = name
        library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        self._operator = getattr(torch.ops.scanrnn, name)

    def register(
        self,
        *,
        work: Callable[..., Any],
        fake: Callable[..., Any],
        mapped: Callable[..., Any],
        gradient: Callable[..., Any],
        setup: Callable[..., None],
    ) -> None:
        """What it does, and what torch.library has for shapes, vmap and derivatives."""
        name = f"scanrnn::{self._name}"
        for device_type in ("CPU", "CUDA"):
            library.impl(self._name, work, device_type)
        library.impl(self._name, lambda *args: by_vmap(self, args), "Batched")
        gradient = of_batches(gradient)
        torch.library.register_fake(name, fake, lib=library)
        torch.library.register_autograd(name, gradient, setup_context=setup, lib=library)
        torch.library.register_vmap(name, mapped, lib=library)
        self._function = _function(self._operator, mapped, gradient, setup)

    def __call__(self, *args: Any) -> Any:
        transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        if not transformed or torch.compiler.is_compiling():
            return self._operator(*args)
        lists = Lists(args)
        out = self._function.apply(lists, *lists.flat(args))
        return out if isinstance(out, Tensor) else list(out)


class Lists:
    """Which arguments are lists: a Function sees the tensors of none. To torch this is no tree."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._sizes = [len(a) if isinstance(a, (list, tuple)) else None for a in args]

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """A list may be one None, for as many as it has."""
        out: list[Any] = []
        for size, value in zip(self._sizes, args, strict=True):
            out += [value] if size is None else [None] * size if value is None else value
        return out

    def nested(self, flat: Sequence[Any]) -> list[Any]:
        values = iter(flat)
        return [
            next(values) if size is None else [next(values) for _ in range(size)]
            for size in self._sizes
        ]


class _Context:
    """A Function's context, as torch.library's formulas have it."""

    def __init__(self, ctx: Any, lists: Lists) -> None:
        self.__dict__.update(_ctx=ctx, _lists=lists)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        if name == "saved_tensors":
            # What an ended transformation wrapped, and another one wraps again, torch cannot read.
            return tuple(v if v is None else torch._C._functorch.unwrap_if_dead(v) for v in found)
        return self._lists.nested(found[1:]) if name == "needs_input_grad" else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)


def _function(
    operator: Any, mapped: Callable[..., Any], gradient: Callable[..., Any],
    setup: Callable[..., None],
) -> type[torch.autograd.Function]:  # fmt: skip
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(lists: Lists, *flat: Any) -> Any:
            out = operator(*lists.nested(flat))
            return tuple(out) if isinstance(out, list) else out

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            lists, *flat = inputs
            ctx.lists, ctx.others = lists, [None if isinstance(v, Tensor) else v for v in flat]
            outputs = [output] if isinstance(output, Tensor) else output
            ctx.save_for_forward(
                *(value if isinstance(value, Tensor) else None for value in (*flat, *outputs))
            )
            setup(_Context(ctx, lists), lists.nested(flat), output)
            constant = [id(value) for value in ctx.non_differentiable or ()]
            ctx.moving = [at for at, out in enumerate(outputs) if id(out) not in constant]

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            several = (cotangents,) if _gives_a_list(operator) else cotangents
            found = gradient(_Context(ctx, ctx.lists), *several)
            return None, *ctx.lists.flat(found)

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> Any:
            count = len(ctx.others)
            saved = [
                v if v is None else forward_ad.unpack_dual(v).primal for v in ctx.saved_tensors
            ]
            pairs = zip(ctx.others, saved[:count], strict=True)
            given = [other if value is None else value for other, value in pairs]

            def called(*flat: Any) -> Any:
                out = Function.apply(ctx.lists, *flat)
                return [out] if isinstance(out, Tensor) else out

            # torch has switched it off, by which an outer transformation's tangents would be lost.
            with forward_ad._set_fwd_grad_enabled(True):
                out = _along(called, given, tangents, saved[count:], ctx.moving)
            return out[0] if len(out) == 1 and not _gives_a_list(operator) else tuple(out)

        @staticmethod
        def vmap(info: Any, in_dims: Any, lists: Lists, *flat: Any) -> Any:
            out, dims = mapped(info, lists.nested(in_dims[1:]), *lists.nested(flat))
            return (tuple(out), tuple(dims)) if isinstance(out, list) else (out, dims)

    return Function


def _along(
    called: Callable[..., Any], given: Sequence[Any], tangents: Sequence[Tensor | None],
    outputs: Sequence[Tensor], moving: Sequence[int],
) -> list[Tensor | None]:  # fmt: skip
    """Tangents of the outputs, but of those that are constants.

    A pullback is linear in the cotangents, so that its own pullback, by them, takes tangents the
    way of the function.
    """
    moved = [at for at, tangent in enumerate(tangents) if tangent is not None]

    def of_moved(*values: Tensor) -> tuple[Tensor, ...]:
        flat = list(given)
        for at, value in zip(moved, values, strict=True):
            flat[at] = value
        out = called(*flat)
        return tuple(out[at] for at in moving)

    def pulled(*cotangents: Tensor) -> tuple[Tensor, ...]:
        _, pull = torch.func.vjp(of_moved, *(given[at] for at in moved))
        found: tuple[Tensor, ...] = pull(cotangents)
        return found

    _, push = torch.func.vjp(pulled, *(torch.zeros_like(outputs[at]) for at in moving))
    found: list[Tensor | None] = [None] * len(outputs)
    for at, value in zip(moving, push(tuple(tangents[at] for at in moved)), strict=True):
        found[at] = value
    return found


def _gives_a_list(operator: Any) -> bool:
    """Whether what it gives is one list of tensors."""
    (first, *_) = operator.default._schema.returns
    return str(first.type) == "List[Tensor]"
