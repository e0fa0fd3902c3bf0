# SPDX-License-Identifier: Apache-2.0
"""Which rank an exchange's error names, without ranks: what they write stands in a store."""

import types

import pytest
from torch_support import torch

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
import torch.distributed as dist
from scanrnn.torch.distributed import lost

GROUP = types.SimpleNamespace(group_name="5")


@pytest.fixture
def error(monkeypatch):
    """What rank 0 of a group raises where others have written whom they wait for."""
    monkeypatch.setattr(lost, "PATIENCE", 0.0)

    def found(size, waiting, peer=None, store=None):
        store = store or dist.HashStore()
        monkeypatch.setattr(lost, "_get_default_store", lambda: store)
        for rank, other in waiting.items():
            lost._Reports(GROUP).write(rank, other)
        monkeypatch.setattr(dist, "get_rank", lambda group: 0)
        monkeypatch.setattr(dist, "get_world_size", lambda group: size)
        with pytest.raises(RuntimeError) as raised, lost.named(GROUP, "it", peer):
            raise RuntimeError("closed\nby somebody")
        return str(raised.value)

    return found


def test_who_waits_for_whom_is_followed_to_the_end(error):
    words = "it with rank 1 of the group came to no end: rank 3 has ended or takes no part (closed)"
    assert error(4, {1: 2, 2: 3}, peer=1) == words
    assert "rank 1 has ended" in error(4, {3: 0}, peer=1)
    assert "rank 1 has ended" in error(2, {1: 0}, peer=1)  # each waits for the other


def test_in_an_exchange_of_all_the_silent_ones_are_named(error):
    words = "it between all ranks of the group came to no end: rank 2 and rank 3 have ended"
    assert error(4, {1: None}).startswith(words)
    assert "rank 3 has ended" in error(4, {1: 2, 2: None}, peer=1)
    assert "some rank has ended" in error(2, {1: None})


def test_a_store_that_is_gone_does_not_hide_the_error(error):
    class Gone:
        def set(self, *told):
            raise RuntimeError("refused")

        check = set

    assert "rank 1 has ended" in error(3, {}, peer=1, store=Gone())
    assert "rank 1 and rank 2 have ended" in error(3, {}, store=Gone())
