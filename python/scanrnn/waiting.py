# SPDX-License-Identifier: Apache-2.0
"""Loads the extension, with threads that wait asleep. It must be the first import of the package.

A thread of libgomp that waits spins for a millisecond unless told otherwise, and on a processor
that others use too that time is taken from the very thread it waits for: beside two busy compilers
a layer was ten times slower. libgomp reads the setting once, when it is loaded.
"""

import os

_SETTING = "GOMP_SPINCOUNT"
_ours = not {_SETTING, "OMP_WAIT_POLICY"} & set(os.environ)
if _ours:
    os.environ[_SETTING] = "1000"

from . import _core  # noqa: E402

if _ours:
    del os.environ[_SETTING]

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.after_fork)
