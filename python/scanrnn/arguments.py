# SPDX-License-Identifier: Apache-2.0
"""What callers pass, as what the core takes. Every error names the argument, what came and what
was wanted; nothing is ever cast."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core, registry

Array = npt.NDArray[Any]

DTYPES = ("float64", "float32", "bfloat16", "float16")
INTEGERS = ("int64", "int32")
SCAN_DTYPES = (*DTYPES, "complex128", "complex64")
_NAMELESS = np.dtype("V2")


@functools.cache
def state_names(first: str, count: int) -> tuple[str, ...]:
    """What errors call the arrays of a state, given the name of h: "dh_n"."""
    return tuple(first.replace("h", letter) for letter in "hcnm"[:count])


def state_words(first: str, count: int, one: str = "one array") -> str:
    """A state in words; `one`: where it is h alone."""
    if count == 1:
        return one
    return ("the pair " if count == 2 else "") + f"({', '.join(state_names(first, count))})"


def _whole(value: Any) -> int:
    """What is an integer, which True and False are not: else a TypeError without words."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return operator.index(value)


def integer(name: str, value: Any) -> int:
    """A whole number that fits 32 bits, so that no size can wrap on its way down."""
    try:
        number = _whole(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if abs(number) >= 2**31:
        raise ValueError(f"{name}: expected an integer below 2^31, got {number}")
    return number


def count(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name}: expected a number >= 0, got {number}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def real(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: expected a number of 64 bits, got a larger one") from None


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a string, got {value!r}")
    return value


def strategy_name(value: Any) -> str | None:
    """None (the dispatcher chooses) or a strategy that there is; it may not fit the cell."""
    if value is None:
        return None
    known = _core.strategies()
    if text("strategy", value) not in known:
        raise ValueError(f"strategy: expected one of {_listed(known)}, got {value!r}")
    return str(value)


def domain(cell: registry.CellInfo, value: Any) -> str:
    """Cells that are no scan have none, but a class may be one for cells of both kinds."""
    if text("domain", value) != "log" and cell.recurrence != "linear":
        raise ValueError(f"domain: {cell.as_made()} is no scan and has no choice, got {value!r}")
    return str(value)


def refuse_others(owner: type, known: Container[str], given: Iterable[str]) -> None:
    """Raises where a layer's class was given by keyword what it does not take."""
    other = next((name for name in given if name not in known), None)
    if other is None:
        return
    cells = owners_of(other)
    sizes = ("input_size", "hidden_size")
    taken = (name for name in inspect.signature(owner).parameters if name not in sizes)
    advice = f"it is an option of {cells}" if cells else f"expected one of {_listed(taken)}"
    raise TypeError(f"{owner.__name__}: unexpected argument {other!r}: {advice}")


def owners_of(option: str) -> str:
    """The classes of the cells that have this option, in words; "" where none or every one has."""
    has = registry.classes(lambda cell: cell.takes(option))
    return "" if all(has.values()) else ", ".join(name for name in has if has[name])


def own_options(known: Mapping[str, Any], owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that only this cell's class has, of all that was given beyond the others."""
    as_the_default: dict[type, Any] = {bool: flag, int: integer, float: real, str: text}
    refuse_others(owner, known, given)
    out = {}
    for name, default in known.items():
        value = given.get(name, default)
        if name == "zoneout" and isinstance(value, (tuple, list)) and len(value) == 2:
            out[name] = (real(name, value[0]), real(name, value[1]))
            if not all(0 <= share < 1 for share in out[name]):
                raise ValueError(f"{name}: expected probabilities in [0, 1), got {out[name]}")
        else:
            out[name] = as_the_default[type(default)](name, value)
            if out[name] == "":  # which a description has for the default
                raise ValueError(f"{name}: expected a name such as {default!r}, got ''")
    return out


def seed_value(value: Any) -> int | None:
    """None (fresh entropy) or an integer >= 0 of any size."""
    if value is None:
        return None
    try:
        number = _whole(value)
    except TypeError:
        raise TypeError(f"seed: expected an integer >= 0 or None, got {value!r}") from None
    if number < 0:
        raise ValueError(f"seed: expected an integer >= 0 or None, got {number}")
    return number


def dtype(value: Any) -> Any:
    """The np.dtype of one of DTYPES by name, or of what NumPy takes for one of them."""
    wrong = ValueError(f"dtype: expected one of {_listed(DTYPES)}, got {value!r}")
    if value is None or (isinstance(value, str) and value not in DTYPES):
        raise wrong
    if isinstance(value, str) and value == "bfloat16":
        return _bfloat16()
    try:
        found = np.dtype(value)
    except TypeError:
        raise wrong from None
    if str(found) not in DTYPES:
        raise wrong
    return found


def _bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            "dtype: bfloat16 arrays are those of ml_dtypes, which is not installed "
            "(pip install ml_dtypes)"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def array(name: str, value: Any, wanted: np.dtype[Any] | None) -> Any:
    """`value` as a layer can walk it: as it is, or a copy where its strides are out of the common.

    `wanted` None stands for any of DTYPES.
    """
    value = checked(name, value, DTYPES if wanted is None else (str(wanted),))
    flags = value.flags
    if (flags.c_contiguous and flags.aligned) or _walkable(value):
        return value
    return np.array(value, order="C")


def integers(name: str, value: Any) -> Any:
    """An array of NumPy's with integers of any dtype, in C order, aligned, in 64 bits or 32."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected an array of integers, got {type_name(value)}")
    refuse_mask(name, value)
    if value.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got dtype {short_name(value.dtype)}")
    if value.dtype == np.uint64:  # what is too large for 64 bits with a sign stays too large
        value = np.minimum(value, np.uint64(2**63 - 1))
    as_it_is = value.dtype in (np.int64, np.int32)
    return np.require(value, value.dtype if as_it_is else np.int64, ["C", "A", "E"])


def checked(name: str, value: Any, dtypes: Sequence[str]) -> Any:
    """`value` if it is an array of NumPy's of one of these dtypes."""
    if not isinstance(value, np.ndarray):
        if not isinstance(value, np.generic):  # what NumPy gives for one element of a 1-d array
            raise TypeError(
                f"{name}: expected an array of NumPy, torch, CuPy or JAX, got {type_name(value)}"
            )
        value = np.asarray(value)
    refuse_mask(name, value)
    check_dtype(name, short_name(value.dtype), dtypes)
    return value


def refuse_mask(name: str, value: Any) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without a mask, got a masked array: fill it")


def named_again(value: Any, dtype: Any) -> Any:
    """Weights of NumPy's files, which keep the two bytes of a bfloat16 and not its name."""
    nameless = isinstance(value, np.ndarray) and value.dtype == _NAMELESS
    return value.view(dtype) if nameless and str(dtype) == "bfloat16" else value


def check_dtype(name: str, found: str, dtypes: Sequence[str], advice: str = "") -> None:
    if found not in dtypes:
        wanted = dtypes[0] if len(dtypes) == 1 else "one of " + _listed(dtypes)
        if found == str(_NAMELESS):
            advice = (
                "NumPy's files have bfloat16 as two bytes without a name: pass "
                "value.view(ml_dtypes.bfloat16), or dtype='bfloat16' to scanrnn.load"
            )
        advice = advice or "nothing is cast"
        raise TypeError(f"{name}: expected dtype {wanted}, got {found}; {advice}")


def forwards(value: Array) -> Array:
    """With strides of at least 0, in whole aligned elements: copied where it has not."""
    flags, size = value.flags, value.itemsize
    if flags.aligned and flags.c_contiguous:
        return value
    if flags.aligned and all(step >= 0 and step % size == 0 for step in value.strides):
        return value
    return np.array(value, order="C")


def _walkable(value: Array) -> bool:
    """The last axis is contiguous, rows do not overlap, and all is in whole aligned elements."""
    size, row = value.itemsize, value.itemsize * (value.shape or (1,))[-1]
    return (
        value.flags.aligned
        and value.strides[-1] == size
        and all(
            n == 1 or (step >= row and step % size == 0)
            for n, step in zip(value.shape[:-1], value.strides[:-1], strict=True)
        )
    )


@functools.lru_cache(maxsize=256)
def short_name(dtype: Any) -> str:
    """The name that all libraries have for it: float32."""
    return str(dtype).rpartition(".")[2]


def dtype_name(value: Any) -> str:
    return short_name(value.dtype)


def type_name(value: Any) -> str:
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
