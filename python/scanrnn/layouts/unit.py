# SPDX-License-Identifier: Apache-2.0
"""Which arrays a step of a conversion is about: those of one layer, or of one of its directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..registry import CellInfo


class Unit(NamedTuple):
    """`label` gives an array's name as the caller knows it."""

    cell: CellInfo
    directions: int
    label: Callable[[str], str]
    forget_bias: float = 0.0
    reset_after: bool = True
    scale: float = 1.0  # of SRU's highway

    def refuse(self, names: Iterable[str], reasons: Mapping[str, str]) -> None:
        """Raises for the first of these names that there is a reason against."""
        for name in names:
            if name in reasons:
                raise ValueError(f"{self.label(name)}: {reasons[name]}")
