"""Bounds under which the proof of the noise holds (``docs/noise.md``).

Gradients are clipped to a little less than the clip norm, so that rounding errors fit in. How large these
errors are depends on the records of a batch, not on those of the data: at most `MAX_BATCH` may be added up. A
Poisson batch has no largest size. If `MAX_EXPECTED_BATCH` records are expected in it, it has more than
`MAX_BATCH` with a probability of at most exp(-2^23 / 3) < 2^-4,000,000 (Chernoff; section 3.4).
"""

from __future__ import annotations

__all__ = [
    "LARGEST_SUM",
    "MAX_BATCH",
    "MAX_EXPECTED_BATCH",
    "MAX_PARAMS",
    "MAX_RECORDS",
    "PIECE_RECORDS",
    "SLACK",
    "TALLY_COLUMNS",
]

#: Share of the clip norm that covers the rounding of norms, of the scaling and of the float64 sum.
SLACK = 2.0**-12
#: Records of a batch, and columns of a gradient, up to which the slack is proven to suffice.
MAX_BATCH = 2**24
MAX_PARAMS = 2**26
#: Expected records of a Poisson batch, and records of the data, if these are more than `MAX_BATCH`.
MAX_EXPECTED_BATCH = 2**23
MAX_RECORDS = 2**40
#: The rounded sum is held within this, in units of the lattice: with the noise, it stays inside int64.
LARGEST_SUM = 2.0**62
#: Columns of the clip counts: records within the clip norm, by what their norm lacks to it and by their norm
#: (first and third), and records beyond it (second).
TALLY_COLUMNS = 3
#: Most records in a piece of a batch whose sum becomes integers (`engine.lattice_sums`).
PIECE_RECORDS = 2048
