# SPDX-License-Identifier: Apache-2.0
"""Weights of other libraries: into a layer and out of it again.

`tables` says what each library's arrays hold, block by block. `blocks` puts blocks together
and takes them apart. `names` says what arrays are called, `files` reads them. `coming` takes
them in, by the shapes of what `own` would write.
"""

from .convert import export, load

__all__ = ["export", "load"]
