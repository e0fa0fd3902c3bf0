# SPDX-License-Identifier: Apache-2.0
"""What parameters begin with: uniform numbers, of which some parameters are made by a formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Initial(NamedTuple):
    """Uniform in [low, high); `made(library, drawn)` is the parameter, drawn in float32 or wider
    where it is given, by the functions of NumPy, torch or jax.numpy."""

    low: float
    high: float
    made: Callable[[Any, Any], Any] | None = None


def _softplus_of_decay(library: Any, a: Any) -> Any:
    """w where a = exp(-8 softplus(w)): what RG-LRU's state keeps while its gate r is open."""
    return library.log(library.expm1(-library.log(a) / 8))


def _ones(library: Any, drawn: Any) -> Any:
    return library.ones_like(drawn)


def _zeros(library: Any, drawn: Any) -> Any:
    return library.zeros_like(drawn)


# By the parameter's name without its layer; RG-LRU's as in arXiv 2402.19427, section 2.4.
_OTHERS = {
    "weight_a": Initial(0.9, 0.999, _softplus_of_decay),
    "norm_ih": Initial(0, 1, _ones),
    "norm_hh": Initial(0, 1, _ones),
    "norm_c": Initial(0, 1, _ones),
    "norm_c_bias": Initial(0, 1, _zeros),
}

_LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}
_LARGEST["float32"] = (2 - 2.0**-23) * 2.0**127


def check(options: Mapping[str, Any], dtype: str) -> None:
    """Raises ValueError where parameters of this dtype would begin with infinity."""
    value, most = options.get("highway_bias", 0.0), _LARGEST.get(dtype, math.inf)
    if abs(value) > most:
        raise ValueError(
            f"highway_bias: expected a number in [{-most:g}, {most:g}], which {dtype} holds, got "
            f"{value}"
        )


def of(parameter: str, hidden_size: int, options: Mapping[str, Any]) -> Initial:
    """U(-1/sqrt(H), 1/sqrt(H)), as torch does, for all but a few parameters; by options of SRU the
    last bias, that of its gate r, is highway_bias."""
    name, bound = parameter.partition("_l")[0], 1 / math.sqrt(hidden_size)
    out = _OTHERS.get(name, Initial(-bound, bound))
    highway_bias = options.get("highway_bias", 0.0)
    if name != "bias_ih" or not (highway_bias or options.get("rescale", False)):
        return out

    def biased(library: Any, drawn: Any) -> Any:
        rest = drawn[:-hidden_size]
        return library.concatenate([rest, library.full_like(drawn[-hidden_size:], highway_bias)])

    return out._replace(made=biased)
