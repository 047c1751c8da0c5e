r"""Sums of pieces of a batch as integers: the same in any order, whoever adds them up.

The records of a batch are added up in pieces (`pieces`), each by `clipping` and `kernels` alone. A piece's
sum, in spacings u of the lattice, becomes two integers in each column,

.. math:: x = 2^{19} a + 2^{-20} b,

with b rounded, about :math:`2^{38}` at most. Both are added up in 64 bits, without any rounding: so a sum
over pieces does not depend on their order, on threads, or on machines. In the end it is rounded to the
lattice once more, and the noise is added in integers, as in `clipping.round_and_add`.

**What the proof needs** (``docs/noise.md``, 3.8). Rounding b moves a piece's sum by at most
:math:`2^{-21}\sqrt P\,u`. No piece may reach the end of its range, because pieces that are held there would
not add up to a sum that is held: a piece has at most `PIECE_RECORDS` records, so noise multipliers from
:math:`2^{-11}` on do not reach it. `Mechanism.pieces_fit` tells whether both hold.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.mechanism.limits import LARGEST_SUM
from pymc_dpvi.numba_cache import kernel

__all__ = ["add_on_lattice", "no_sum", "release_into", "release_of"]

#: Spacings in a unit of a, and units of b in a spacing.
_WHOLE, _PARTS = 19, 20
_LARGEST = np.int64(LARGEST_SUM)
#: |a| beyond which a sum is outside of the range, whatever b is.
_FAR = np.int64(2**43 + 2**25)

_kernel = kernel(fastmath=False)


def no_sum(size: int) -> np.ndarray:
    """Return the sum of nothing: int64 zeros, (2, size), rows a and b."""
    return np.zeros((2, size), dtype=np.int64)


@_kernel
def add_on_lattice(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, spacing: float, total: np.ndarray
) -> None:  # pragma: no cover
    """Add a piece's sum ``high + low`` and its tally to `total`, (2, size), int64."""
    for j in range(high.size):
        x = min(max(high[j] / spacing, -LARGEST_SUM), LARGEST_SUM)  # NaN does not occur, nor is this reached
        a = np.rint(x * 2.0**-_WHOLE)
        rest = (x - a * 2.0**_WHOLE) + low[j] / spacing
        total[0, j] += np.int64(a)
        total[1, j] += np.int64(np.rint(rest * 2.0**_PARTS))
    for j in range(tally.size):
        a = tally[j] >> _WHOLE
        total[0, high.size + j] += a
        total[1, high.size + j] += (tally[j] - (a << _WHOLE)) << _PARTS


@_kernel
def release_into(
    sums: np.ndarray, noise: np.ndarray, spacing: float, out: np.ndarray, begin: int, end: int
) -> None:  # pragma: no cover
    """Add up some columns of sums, round them to the lattice, and add the noise in integers."""
    for j in range(begin, end):
        high, low = sums[0, 0, j], sums[0, 1, j]
        for k in range(1, len(sums)):
            high += sums[k, 0, j]
            low += sums[k, 1, j]
        rounded = (low + (1 << (_PARTS - 1))) >> _PARTS
        whole = min(max(high, -_FAR), _FAR) << _WHOLE
        out[j] = np.float64(min(max(whole + rounded, -_LARGEST), _LARGEST) + noise[j]) * spacing


@_kernel
def release_of(sums: np.ndarray, noise: np.ndarray, spacing: float) -> np.ndarray:  # pragma: no cover
    """Add up sums, (parts, 2, size), as `release_into`, and return the release in float64."""
    out = np.empty(noise.size)
    release_into(sums, noise, spacing, out, 0, noise.size)
    return out
