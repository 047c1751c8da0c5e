"""Bounds under which the proof of the noise holds (``docs/noise.md``).

The clip norm loses `SLACK` of its length for rounding errors; sums of up to `MAX_RECORDS` records and
`MAX_PARAMS` columns are covered; the rounded sum is held at `LARGEST_SUM` units of the lattice.
"""

from __future__ import annotations

__all__ = ["LARGEST_SUM", "MAX_PARAMS", "MAX_RECORDS", "SLACK", "TALLY_COLUMNS"]

#: Share of the clip norm that covers the rounding of norms, of the scaling and of the float64 sum.
SLACK = 2.0**-12
#: Records of a batch, and columns of a gradient, up to which the slack is proven to suffice.
MAX_RECORDS = 2**24
MAX_PARAMS = 2**26
#: Bound of the rounded sum, in units of the lattice: with the noise, it stays inside int64.
LARGEST_SUM = 2.0**62
#: Columns of the clip counts: records within the clip norm, and beyond it.
TALLY_COLUMNS = 2
