# SPDX-License-Identifier: Apache-2.0
"""The derivative of a layer's backward: the layer runs once more, in JAX's own functions,
and for linear cells by the library's scans.

What that gives has derivatives in turn, so there are third ones, too.
"""

from __future__ import annotations

from typing import Any

import jax

from .. import formulas
from ..description import Description
from ..ragged import Ragged
from . import functions as f


def backward_again(
    told: Description, x: Any, h_0: Any, params: Any, ragged: Ragged | None, seed: Any,
    cotangents: Any,
) -> Any:  # fmt: skip
    """What calls.backward gives, (dx, dh_0, dparams), from cotangents of y and the states."""
    formulas.check(told, "a second derivative")

    def outcome(x: Any, h_0: Any, params: Any) -> Any:
        y, *finals = formulas.run(
            f, x, h_0, params, Ragged() if ragged is None else ragged, seed, told, f.WAYS
        )
        return y, tuple(finals)

    _, pull = jax.vjp(outcome, x, h_0, params)
    return pull(cotangents)
