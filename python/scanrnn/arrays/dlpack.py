# SPDX-License-Identifier: Apache-2.0
"""Taking another library's memory by DLPack."""

from __future__ import annotations

from typing import Any

from .. import _core
from .identify import described, library_of

LEGACY_DEFAULT = 1  # the default stream, as DLPack and CUDA number it
REFUSALS = (BufferError, RuntimeError, ValueError)


def take(name: str, value: Any, stream: int | None, writable: bool) -> _core.Tensor:
    """By the versioned protocol, or by what came before it where a producer knows no better."""
    options = {} if stream is None else {"stream": stream or LEGACY_DEFAULT}
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 0), **options)
        except TypeError:
            capsule = value.__dlpack__(**options)
    except REFUSALS as problem:
        raise refused(name, value, problem) from problem
    return _core.from_dlpack(name, capsule, writable)


def refused(name: str, value: Any, problem: Exception) -> TypeError:
    """What a library raises when it cannot give its memory does not name our argument."""
    torch = library_of(value) == "torch"
    advice = "; inside torch's transformations use scanrnn.torch" if torch else ""
    words = str(problem).partition("\nException raised from")[0]  # what follows is torch's stack
    return TypeError(
        f"{name}: {described(name, value)} does not give its memory by DLPack: {words}{advice}"
    )
