# SPDX-License-Identifier: Apache-2.0
"""What arrays are called: which layer, direction and field a name stands for, and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

_OWN = re.compile(r"(.+)_l(\d+)(_reverse)?")
_LAYER = re.compile(r"(?:cell_)?(\d+)")
_DIRECTION = re.compile(r"(forward|backward)(?:_.*)?|(fw|bw)")
_DIRECTED = re.compile(r"^(?:forward|backward)_")
_CELL = re.compile(r"(?:basic_)?(?:lstm|gru|rnn|simple_rnn)_cell(?:_\d+)?")  # it says nothing


class Place(NamedTuple):
    layer: int
    direction: int  # 1 is the reverse one
    field: str


def parsed(names: Iterable[str], own: bool, fields: Collection[str] = ()) -> dict[Place, str]:
    """The names by what they stand for; `own` as torch has them, with the layer at the end.

    All of them may begin with the same words. One layer may have any number. A field of `fields`
    may be two words, such as gates/kernel.
    """
    places: dict[Place, str] = {}
    prefixes: dict[str, str] = {}
    for name in names:
        place, prefix = _own(name) if own else _dotted(name, fields)
        if place in places:
            raise ValueError(f"weights: {places[place]!r} and {name!r} stand for the same array")
        places[place] = name
        prefixes.setdefault(prefix, name)
    if len(prefixes) > 1:
        first, second, *_ = prefixes.values()
        raise ValueError(
            f"weights: expected names of one stack of layers, got {first!r} and {second!r}: "
            "prefix= picks those that begin alike"
        )
    if not own and len({place.layer for place in places}) == 1:
        return {place._replace(layer=0): name for place, name in places.items()}
    return places


def named(place: Place, template: str, layers: int, directions: int) -> str:
    """What a library calls it. `directions` is 1 where one array has both."""
    layer, direction, field = place
    way = ("forward_", "backward_")[direction] if directions == 2 else ""
    return template.format(
        field=field,
        layer=layer,
        reverse="_reverse" if direction else "",
        way=way,
        stack=f"{layer}." if layers > 1 else "",
    )


def _own(name: str) -> tuple[Place, str]:
    prefix, _, last = name.rpartition(".")
    found = _OWN.fullmatch(last)
    if not found:
        return Place(0, 0, last), prefix
    return Place(int(found[2]), int(bool(found[3])), found[1]), prefix


def _dotted(name: str, fields: Collection[str]) -> tuple[Place, str]:
    """Such as 0.forward_kernel, rnn_lst.1.weight, rnn/backward_lstm/lstm_cell/kernel:0."""
    *above, last = re.split(r"[./]", name.removesuffix(":0"))
    two = "/".join([*above[-1:], last])
    if "/" in two and _DIRECTED.sub("", two) in fields:
        above, last = above[:-1], two
    layer, direction = 0, 0
    kept: list[str] = []
    numbers = [index for index, word in enumerate(above) if _LAYER.fullmatch(word)]
    for index, word in enumerate(above):
        number, way = _LAYER.fullmatch(word), _DIRECTION.fullmatch(word)
        if number and index == numbers[-1]:
            layer = int(number[1])
        elif way:
            direction = int((way[1] or way[2]) in ("backward", "bw"))
        elif not _CELL.fullmatch(word):
            kept.append(word)
    if _DIRECTED.match(last):
        direction, last = int(last.startswith("backward")), _DIRECTED.sub("", last)
    return Place(layer, direction, last), ".".join(kept)
