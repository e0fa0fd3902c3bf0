# SPDX-License-Identifier: Apache-2.0
"""A batch as [T,B] whatever it came as, for formulas.py, and the recurrence of linear cells on it.

Where steps are walked, packed sequences are padded to T steps. Where a scan runs, they stay one
line of T tokens, B = 1, at whose cuts no state goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .equations import Array, Functions
from .ragged import Ragged


class Ways(NamedTuple):
    """How a library walks a recurrence.

    `walk`: from a step, a state, inputs [T,B,.] and whether time runs backwards to the state at the
    end and all y; a step gives the state after it and y. `scan`: from a, b [T,B,H], a state or
    None, whether backwards, and bools [T,B,1] or None, at which no state comes in, to all states.
    Without a scan linear cells are walked, too.
    """

    walk: Callable[..., Any]
    scan: Callable[..., Array] | None = None


class Line(NamedTuple):
    """Packed sequences, one behind the other; pairs are by direction."""

    of: Array  # [tokens]: the number of a token's sequence
    enters: tuple[Array, Array]  # [tokens,1,1]: the initial state comes in here
    last: tuple[Array, Array]  # [N]: the token whose state is that at the end; any of an empty one
    empty: Array  # [N,1]


class Grid(NamedTuple):
    f: Functions
    ways: Ways
    sequences: int
    there: Array | None  # bools [T,B,1]: which steps exist; None: all
    resets: tuple[Array | None, Array | None]  # [T,B,1], by direction: no state comes in
    token: Array  # [T,B]: the number of a token, by which outputs between layers are dropped
    row: Array  # [B], or of a line [T,1]: the number of a sequence, by which is dropped in it
    places: tuple[Array, Array] | None = None  # of packed tokens that are padded: steps, sequences
    line: Line | None = None

    def opened(self, x: Array) -> Array:
        """x as [T,B,C], and what a step that is not there holds reaches nothing."""
        if self.line is not None:
            return x[:, None]
        if self.places is not None:
            x = _padded(self.f, x, self.token)
        return x if self.there is None else self.f.where(self.there, x, 0)

    def closed(self, y: Array) -> Array:
        """y as x came."""
        if self.line is not None:
            return y[:, 0]
        return y if self.places is None else y[self.places]

    def scanned(self, a: Array, b: Array, state: Array, direction: int) -> tuple[Array, Array]:
        """All states of h_t = a_t h_{t-1} + b_t, and those at the end."""
        assert self.ways.scan is not None
        f, reset, line, backwards = self.f, self.resets[direction], self.line, bool(direction)
        if a.shape[0] == 0:
            return b, state
        if line is not None:
            # What does not enter is taken out before the product, as in adjoint.py.
            enters = line.enters[direction]
            b = b + f.where(enters, a, 0) * f.where(enters, state[line.of][:, None], 0)
            h = self.ways.scan(a, b, None, backwards, reset)
            return h, f.where(line.empty, state, h[line.last[direction], 0])
        if self.there is not None:
            a, b = f.where(self.there, a, 1), f.where(self.there, b, 0)
        h = self.ways.scan(a, b, state, backwards, reset)
        return h, h[0 if backwards else -1]


def made(f: Functions, x: Array, ragged: Ragged, ways: Ways) -> Grid:
    """x is [T,B,C], or [tokens,C] with cu_seqlens."""
    if ragged.cu_seqlens is None:
        steps, sequences = x.shape[:2]
        token = f.counted(steps * sequences, x).reshape(steps, sequences)
        cuts = None if ragged.reset is None else ragged.reset[..., None]
        return _rectangle(f, ways, token, ragged.lengths, cuts)
    ends = f.as_indices(ragged.cu_seqlens)
    number = f.counted(x.shape[0], x)
    of = f.behind(ends[1:], number)
    if ways.scan is not None:
        return _line(f, ways, ends, number, of, ragged.reset)
    lengths = ends[1:] - ends[:-1]
    token = ends[:-1] + f.counted(f.longest(lengths, x.shape[0]), x)[:, None]
    cuts = None if ragged.reset is None else _padded(f, ragged.reset[:, None], token)
    grid = _rectangle(f, ways, token, lengths, cuts)
    return grid._replace(places=(number - ends[of], of))


def _rectangle(
    f: Functions, ways: Ways, token: Array, lengths: Array | None, cuts: Array | None
) -> Grid:
    steps, sequences = token.shape
    there = None
    if lengths is not None:
        there = (f.counted(steps, token)[:, None] < lengths)[..., None]
    resets: tuple[Array | None, Array | None] = None, None
    if cuts is not None:
        cuts = cuts if there is None else cuts & there
        resets = cuts, _later(f, cuts)
    return Grid(f, ways, sequences, there, resets, token, f.counted(sequences, token))


def _line(
    f: Functions, ways: Ways, ends: Array, number: Array, of: Array, reset: Array | None
) -> Grid:
    first = (number == ends[of])[:, None, None]
    last = (number + 1 == ends[of + 1])[:, None, None]
    enters, cuts = (first, last), (first, last)
    if reset is not None:
        reset = reset[:, None, None]
        enters = first & ~reset, last
        cuts = first | reset, last | _later(f, reset)
    firsts, lasts = ends[:-1], ends[1:] - 1
    empty = lasts < firsts
    at_end = f.where(empty, 0, lasts), f.where(empty, 0, firsts)
    line = Line(of, enters, at_end, empty[:, None])
    return Grid(f, ways, ends.shape[0] - 1, None, cuts, number[:, None], of[:, None], line=line)


def _later(f: Functions, cuts: Array) -> Array:
    """Backwards the same cuts lie behind the step that is walked next."""
    return f.concatenate([cuts[1:], f.zeros_like(cuts[:1])], 0)


def _padded(f: Functions, value: Array, token: Array) -> Array:
    """[tokens,N] as [T,B,N]; anything where no step is."""
    count = value.shape[0]
    if count == 0:
        return f.concatenate([value[:0]], 0).reshape(*token.shape, value.shape[1])
    return value[f.where(token < count, token, count - 1)]
