# SPDX-License-Identifier: Apache-2.0
"""What measures, fits and shows: `python -m scanrnn` runs it, and no call of a user imports it."""
