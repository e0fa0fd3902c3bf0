# SPDX-License-Identifier: Apache-2.0
"""Steps of fuzz.py's layers from a pool of states, in every library that fuzz_arrays.py draws.

A pool has more states than the step has rows. Rows of index -1 are nobody's, and the states that
no row asks for stay as they are to the bit. A state that is asked for twice or is not there is
refused, where the host has the integers, before the pool is touched.
"""

import gradients
import numpy as np
import pytest
from ragged_support import as_state
from support import assert_close


def takes(case):
    """Whether a case has a step that a pool can be for."""
    return case.steps > 0 and case.batch is not None and not case.options["bidirectional"]


def run(running):
    random = np.random.default_rng([8, running.case.seed])
    count = running.batch + int(random.integers(1, 5))
    before = running.initial_states(count)
    indices = random.permutation(count)[: running.batch]
    indices[random.random(running.batch) < 0.3] = -1
    if running.case.library == "jax":
        _by_hand(running, before, indices)
        return
    pool = [_memory(running, part) for part in before]
    _refused(running, pool, indices, random)
    for got, part in zip(pool, before, strict=True):
        np.testing.assert_array_equal(running.arrays.take(got), part, "pool of a refused step")

    x_t = running.arrays.give(running.x[0])
    y, h = running.rnn.step(x_t, as_state(pool), state_indices=_told(running, indices, random))
    for given, back in zip(pool, h if len(pool) > 1 else [h], strict=True):
        assert back is given, "the pool is another array"
    after = [running.arrays.take(part) for part in pool]
    _check(running, running.arrays.take(y), before, after, indices)
    running.arrays.left_alone()


def _memory(running, values):
    """In C order, to be written: no view of an array that repeats itself."""
    return running.arrays.of_library(np.array(values, running.arrays.dtype, order="C"))


def _told(running, indices, random):
    """The integers in one of the ways in which they may come."""
    values = indices.astype(random.choice([np.int64, np.int32]))
    if random.random() < 0.3:
        return np.repeat(values, 2)[::2]  # NumPy's, whatever the library of the others
    return running.arrays.of_library(values)


def _check(running, y, before, after, indices):
    taken = indices >= 0
    own = indices[taken]
    others = np.setdiff1d(np.arange(before[0].shape[1]), own)
    assert not y[~taken].any(), "y of a row that is nobody's"
    oracle = gradients.Oracle(running.told, running.x[:1, taken], [part[:, own] for part in before])
    share = running.share(oracle)
    assert_close(y[taken], oracle.y[0], share, "pool: y", largest=oracle.largest)
    for was, now, wanted in zip(before, after, oracle.finals, strict=True):
        assert_close(now[:, own], wanted, share, "pool: state", largest=oracle.largest)
        np.testing.assert_array_equal(now[:, others], was[:, others], "a state that nobody asked")


def _refused(running, pool, indices, random):
    """Integers on the host that make no sense, and no state twice."""
    if not running.batch:
        return
    count, at = pool[0].shape[1], int(random.integers(running.batch))
    wrong = [(-2, "expected integers in"), (count, "expected integers in")]
    if running.batch > 1:
        other = (at + 1) % running.batch
        wrong.append((max(0, indices[other]), "expected each state once"))
        indices = indices.copy()
        indices[other] = max(0, indices[other])
    x_t = running.arrays.give(running.x[0])
    for value, words in wrong:
        told = indices.copy()
        told[at] = value
        with pytest.raises(ValueError, match=f"^state_indices: {words}"):
            running.rnn.step(x_t, as_state(pool), state_indices=told)


def _by_hand(running, before, indices):
    """JAX's arrays are no pool, and the error says what to do instead."""
    pool = [_memory(running, part) for part in before]
    x_t = running.arrays.give(running.x[0])
    with pytest.raises(TypeError, match="a JAX array, which nobody can write"):
        running.rnn.step(x_t, as_state(pool), state_indices=indices)
    taken = indices >= 0
    own = indices[taken]
    y_taken, h = running.rnn.step(x_t[taken], as_state([part[:, own] for part in pool]))
    parts = h if len(pool) > 1 else [h]
    after = [part.at[:, own].set(new) for part, new in zip(pool, parts, strict=True)]
    y = np.zeros((running.batch, running.told.features))
    y[taken] = running.arrays.take(y_taken)
    _check(running, y, before, [running.arrays.take(part) for part in after], indices)
