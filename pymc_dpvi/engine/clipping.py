r"""Clip, sum, add noise: the only way by which a function of the records is released.

For per-record gradients :math:`g_1,\dots,g_B \in \mathbb{R}^P` and integer noise X in units u,

.. math::

    \tilde s &= (K + X)\,u, \qquad C' = C\,(1 - 2^{-12}) - \sqrt P\,u , \\
    K &= \operatorname{round}\Big(\frac1u \sum_{i=1}^{B} g_i \min(1, C'/\lVert g_i\rVert_2)\Big) ,

where a record with a non-finite norm (a NaN, an infinity, or an overflow of a squared norm) counts as
:math:`g_i = 0`. Adding or removing one record moves :math:`K u` by at most :math:`C` in Euclidean norm,
replacing one by at most :math:`2C`, whatever the record holds. The term :math:`\sqrt P\,u` covers the
rounding to the lattice. The slack :math:`2^{-12}` covers the rounding of the norm, of the scaling and of the
float64 sum, in any order of its terms, for batches of up to :math:`2^{24}` records. Records are added plainly
in groups of up to 1024; the sums of groups are added with compensation (Knuth's TwoSum). P counts all
columns, with those of the tally. K is held between :math:`\pm 2^{62}`, which moves neighbours no further
apart and keeps :math:`K + X` inside 64 bits. ``docs/noise.md`` has the proof.

**Counts.** A sum may have three more columns, the *tally*: how many records lie beyond the clip norm, and the
norms of those within it. A record adds :math:`(k_i - l_i, k - k_i, l_i)`, in whole spacings u, where :math:`k
= \lfloor\kappa C (1 - 2^{-12})/u\rfloor`, :math:`r_i = \lVert g_i\rVert / C'`, and

.. math:: k_i = \operatorname{round}\big(k\, b(r_i)\big), \quad
          l_i = \operatorname{round}\big(k_i \min(1, r_i)\big), \quad
          b(r) = \min\big(1, \max(0, \tfrac12 + 2(1 - r))\big) .

:math:`b` falls from 1 to 0 with a slope, between 3/4 and 5/4, so that rounding errors of a norm move it as
little as they move the sum. Three numbers that are not negative and add up to k have a norm of at most k, so
a record's whole row has a norm of at most :math:`C\sqrt{1+\kappa^2}`. The tally is added up in integers,
exactly, and held at :math:`2^{62}`. A record with a non-finite norm adds (0, 0, 0).

This module has the formulas of one sum; `kernels` has the norms and sums of dense and factored gradients. All
are compiled without fastmath, under which a compiler may assume that NaN does not occur. The one exception is
in `kernels`: the terms of a squared norm and of a dot product may be reordered.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.mechanism.limits import LARGEST_SUM, SLACK, TALLY_COLUMNS
from pymc_dpvi.numba_cache import kernel

__all__ = [
    "PLAIN_RECORDS",
    "add_tally",
    "clip_bound",
    "clip_factors",
    "round_and_add",
    "start_of_sum",
    "tally_units",
]

#: Most records that are added up in plain float64; the sums of such groups are added with compensation.
PLAIN_RECORDS = 1024
_LARGEST_TALLY = 2**62

_kernel = kernel(fastmath=False)


@_kernel
def clip_factors(squared_norms: np.ndarray, bound: float) -> np.ndarray:  # pragma: no cover
    """Factor of each record: 1, `bound`/norm, or 0 for a non-finite norm; shape ``(count,)``."""
    factors = np.zeros(squared_norms.size)
    for i in range(squared_norms.size):
        norm = np.sqrt(squared_norms[i])
        if norm < np.inf:  # False for NaN and infinity
            factors[i] = 1.0 if norm <= bound else bound / norm
    return factors


@_kernel
def clip_bound(l2_clip_norm: float, spacing: float, num_params: int) -> float:  # pragma: no cover
    """C': if no clipped gradient is longer, one record moves the rounded sum by at most C."""
    bound = l2_clip_norm * (1.0 - SLACK) - np.sqrt(num_params) * spacing
    if not (spacing > 0.0 and bound > 0.0):  # also for NaN
        raise ValueError("the lattice is too coarse for the clip norm")
    return bound


@_kernel
def tally_units(l2_clip_norm: float, spacing: float, tally_weight: float) -> int:  # pragma: no cover
    """k: the spacings that one record adds to the tally, 0 if there is none.

    Float64 holds k exactly, so that `add_tally` computes with k itself and nothing that it adds exceeds k.
    """
    return int(np.floor(tally_weight * l2_clip_norm * (1.0 - SLACK) / spacing))


@_kernel
def add_tally(
    squared_norms: np.ndarray, bound: float, units: int, tally: np.ndarray
) -> None:  # pragma: no cover
    """Divide the `units` of each record between three columns.

    They are what a norm within the bound lacks to the bound, what is beyond the bound, and a norm within it.
    """
    for i in range(squared_norms.size):
        norm = np.sqrt(squared_norms[i])
        if norm < np.inf:  # False for NaN and infinity
            # If the bound is not positive, every norm is beyond it (and numba would raise).
            within = min(max(2.5 - 2.0 * (norm / bound), 0.0), 1.0) if bound > 0.0 else 0.0
            inside = np.int64(np.rint(within * units))
            length = np.int64(np.rint(min(norm / bound, 1.0) * inside)) if inside > 0 else 0
            # Held at the end of the range, like the sum; no record subtracts.
            tally[0] = min(tally[0] + inside - length, _LARGEST_TALLY)
            tally[1] = min(tally[1] + units - inside, _LARGEST_TALLY)
            tally[2] = min(tally[2] + length, _LARGEST_TALLY)


@_kernel
def round_and_add(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, noise: np.ndarray, spacing: float
) -> np.ndarray:  # pragma: no cover
    """Round the sum to the lattice, add the noise in integers, and return the release in float64."""
    out = np.empty(noise.size)
    for j in range(high.size):
        steps = np.rint((high[j] + low[j]) / spacing)
        out[j] = np.float64(np.int64(min(max(steps, -LARGEST_SUM), LARGEST_SUM)) + noise[j]) * spacing
    for j in range(tally.size):
        out[high.size + j] = np.float64(tally[j] + noise[high.size + j]) * spacing
    return out


def start_of_sum(
    size: int, l2_clip_norm: float, tally_weight: float, spacing: float
) -> tuple[float, int, np.ndarray, np.ndarray, np.ndarray]:
    """Return the bound C', the tally's k, and zeros to add records to: `high`, `low` and a tally."""
    bound = clip_bound(l2_clip_norm, spacing, size)
    units = tally_units(l2_clip_norm, spacing, tally_weight)
    tally = np.zeros(TALLY_COLUMNS if tally_weight > 0.0 else 0, np.int64)
    return bound, units, np.zeros(size - tally.size), np.zeros(size - tally.size), tally
