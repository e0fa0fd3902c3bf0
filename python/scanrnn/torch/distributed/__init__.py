# SPDX-License-Identifier: Apache-2.0
"""Sequences that are split over GPUs, or over hosts: time over the ranks of torch.distributed.

A shard is a recurrence with an initial state, and what passes between ranks is that state.
docs/many_gpus.md is the guide.
"""

from .module import TimeSharded, counted_once
from .scan import scan

__all__ = ["TimeSharded", "counted_once", "scan"]
