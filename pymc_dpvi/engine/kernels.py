r"""Norms and weighted sums of per-record gradients in the forms of `blocks`, compiled.

**Norms are upper bounds.** The norm that is computed may be below the true norm by no more than the slack of
the clip bound, whatever a record holds. Sums of squares are precise enough. The double sum of ``products`` is
not where its terms cancel: its result may be as small as its rounding errors. So with
:math:`T = \sum_r \lVert a_r\rVert \lVert\delta_r\rVert`, the norm if nothing cancelled, its square counts as

.. math:: \max\big(\textstyle\sum_{r,s} (a_r\cdot a_s)(\delta_r\cdot\delta_s),\ (T/32)^2\big) + \gamma\,T^2 ,

where :math:`\gamma` bounds the rounding of the double sum. The second term of the maximum matters where 31/32
of a record's own rows cancel; it is part of the definition of this clipping. ``docs/noise.md`` has the
proof.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.numba_cache import kernel

__all__ = [
    "CANCELLATION",
    "add_block",
    "add_squared_norms",
    "add_squared_norms_outer",
    "add_squared_norms_products",
    "add_weighted_rows",
    "merged",
    "scatter",
    "squared_norm_of_products",
    "weighted_outer",
    "weighted_products",
]

#: T over the least norm that a sum of products counts with.
CANCELLATION = 32.0
#: Twice the unit roundoff: bounds of rounding errors are multiples of it, with room.
_ROUNDOFF = 2.0**-52
#: Squared norms below this may have lost digits to underflow.
_SMALL = 1e-280

# Loops, not operations on rows: numba takes seconds to compile the messages of their errors.
_kernel = kernel(fastmath=False)


# ------------------------------------------------------------------------------------------------
# Squared norms, added to `total`, shape (count,)
# ------------------------------------------------------------------------------------------------


@kernel(fastmath={"reassoc"})
def _squared_norm(row: np.ndarray) -> float:  # pragma: no cover
    # The squares may be added in any order, so that the loop is vectorised. NaN and infinity are kept: only
    # LLVM's flags `nnan` and `ninf` would say that they do not occur.
    total = 0.0
    for j in range(row.size):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


@_kernel
def _largest(row: np.ndarray) -> float:  # pragma: no cover
    top = 0.0
    for j in range(row.size):
        top = max(top, abs(np.float64(row[j])))
    return top


@kernel(fastmath={"reassoc"})
def _squared_norms(rows: np.ndarray, count: int) -> np.ndarray:  # pragma: no cover
    # `_squared_norm` of the first rows; a call or a view for each row would count references.
    totals = np.empty(count)
    for i in range(count):
        total = 0.0
        for j in range(rows.shape[1]):
            total += np.float64(rows[i, j]) * np.float64(rows[i, j])
        totals[i] = total
    return totals


@_kernel
def _rescaled_squared_norm(left: np.ndarray, right: np.ndarray) -> float:  # pragma: no cover
    """Squared norm of ``left ⊗ right`` where the square of one factor may have underflowed."""
    p, q = _largest(left), _largest(right)
    if p == 0.0 or q == 0.0:
        return 0.0
    return (p * q) * (p * q) * _squared_norm(left / p) * _squared_norm(right / q)


@_kernel
def _outer_squared_norms(left: np.ndarray, right: np.ndarray, count: int) -> np.ndarray:  # pragma: no cover
    a, b = _squared_norms(left, count), _squared_norms(right, count)
    for i in range(count):
        if not (a[i] < np.inf and b[i] < np.inf):  # also for NaN
            a[i] = np.nan
        elif a[i] < _SMALL or b[i] < _SMALL:
            a[i] = _rescaled_squared_norm(left[i], right[i])
        else:
            a[i] *= b[i]
    return a


@_kernel
def add_squared_norms(rows: np.ndarray, total: np.ndarray) -> None:  # pragma: no cover
    """Add the squared norms of the first rows of a dense block."""
    norms = _squared_norms(rows, total.size)
    for i in range(total.size):
        total[i] += norms[i]


@_kernel
def add_squared_norms_outer(
    left: np.ndarray, right: np.ndarray, total: np.ndarray
) -> None:  # pragma: no cover
    """Add the squared norms of the first ``left[i] ⊗ right[i]``."""
    norms = _outer_squared_norms(left, right, total.size)
    for i in range(total.size):
        total[i] += norms[i]


@kernel(fastmath={"reassoc"})
def _dot(a: np.ndarray, b: np.ndarray) -> float:  # pragma: no cover
    total = 0.0
    for j in range(a.size):
        total += np.float64(a[j]) * np.float64(b[j])
    return total


@_kernel
def squared_norm_of_products(left: np.ndarray, right: np.ndarray) -> float:  # pragma: no cover
    """Upper bound of the squared norm of ``sum(left[r] ⊗ right[r])``; see the module."""
    terms = left.shape[0]
    rounding = (left.shape[1] + right.shape[1] + terms * terms + 8) * _ROUNDOFF
    square, length, least = 0.0, 0.0, np.inf
    own = _outer_squared_norms(left, right, terms)
    for r in range(terms):
        if own[r] > 0.0:
            least = min(least, _squared_norm(left[r]), _squared_norm(right[r]))
        square += own[r]
        length += np.sqrt(own[r])
        for s in range(r):
            square += 2.0 * (_dot(left[r], left[s]) * _dot(right[r], right[s]))
    uncancelled = length * length
    if not (uncancelled < np.inf):  # also for NaN
        return np.nan
    # If parts of a dot product overflow, the sum may be NaN or infinite: the record then counts as 0.
    if not (abs(square) < np.inf):
        return np.nan
    if least < _SMALL:  # parts of a dot product may have underflowed: take T², the upper bound
        square = uncancelled
    elif square < uncancelled / CANCELLATION**2:
        square = uncancelled / CANCELLATION**2
    return square + rounding * uncancelled


@_kernel
def add_squared_norms_products(
    left: np.ndarray, right: np.ndarray, total: np.ndarray
) -> None:  # pragma: no cover
    """Add upper bounds of the squared norms of ``sum(left[i, r] ⊗ right[i, r])``; see the module."""
    for i in range(total.size):
        total[i] += squared_norm_of_products(left[i], right[i])


@_kernel
def merged(
    entries: np.ndarray, positions: np.ndarray, count: int, size: int, distinct: bool
) -> np.ndarray:  # pragma: no cover
    """Entries of the first records in float64; those of one record at one position are added up.

    The sum stands at the first of them, and zeros at the others. If a position is outside the block, the
    record's entries are NaN, and the record counts as zero.
    """
    out = np.empty((count, entries.shape[1]))
    at = np.zeros(0 if distinct else size)
    for i in range(count):
        inside = True
        for e in range(entries.shape[1]):
            inside &= 0 <= positions[i, e] < size
        for e in range(entries.shape[1]):
            out[i, e] = np.float64(entries[i, e]) if inside else np.nan
        if distinct or not inside:
            continue
        for e in range(entries.shape[1]):
            at[positions[i, e]] += out[i, e]
        for e in range(entries.shape[1]):
            out[i, e] = at[positions[i, e]]
            at[positions[i, e]] = 0.0
    return out


# ------------------------------------------------------------------------------------------------
# Clipped sums
# ------------------------------------------------------------------------------------------------


@_kernel
def add_weighted_rows(rows: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover
    """Add ``factors @ rows[:count]`` to `out`, without rows of factor zero, which may hold NaN."""
    for i in range(factors.size):
        weight = factors[i]
        if weight != 0.0:
            for j in range(rows.shape[1]):
                out[j] += weight * np.float64(rows[i, j])


@_kernel
def weighted_outer(
    left: np.ndarray, right: np.ndarray, factors: np.ndarray
) -> np.ndarray:  # pragma: no cover
    """Sum of ``factors[i] * left[i] ⊗ right[i]``, shape ``(a * b,)``, without records of factor zero."""
    if right.shape[1] == 1:
        weights = np.zeros(factors.size)
        for i in range(factors.size):
            if factors[i] != 0.0:
                weights[i] = factors[i] * np.float64(right[i, 0])
        out = np.zeros(left.shape[1])
        add_weighted_rows(left, weights, out)
        return out
    a = np.zeros((factors.size, left.shape[1]))
    b = np.zeros((factors.size, right.shape[1]))
    for i in range(factors.size):
        if factors[i] != 0.0:
            for j in range(left.shape[1]):
                a[i, j] = np.float64(left[i, j])
            for j in range(right.shape[1]):
                b[i, j] = factors[i] * np.float64(right[i, j])
    return np.dot(a.T, b).ravel()


@_kernel
def weighted_products(
    left: np.ndarray, right: np.ndarray, factors: np.ndarray
) -> np.ndarray:  # pragma: no cover
    """Sum of ``factors[i] * left[i, r] ⊗ right[i, r]``, shape ``(a * b,)``."""
    terms = left.shape[1]
    a = np.zeros((factors.size * terms, left.shape[2]))
    b = np.zeros((factors.size * terms, right.shape[2]))
    for i in range(factors.size):
        if factors[i] != 0.0:
            for r in range(terms):
                for j in range(left.shape[2]):
                    a[i * terms + r, j] = np.float64(left[i, r, j])
                for j in range(right.shape[2]):
                    b[i * terms + r, j] = factors[i] * np.float64(right[i, r, j])
    return np.dot(a.T, b).ravel()


@_kernel
def add_block(block: np.ndarray, high: np.ndarray, low: np.ndarray) -> None:  # pragma: no cover
    """Add the sum of some records to ``high + low``; `low` collects the rounding errors of `high`.

    Knuth's TwoSum: ``total + error`` is exactly ``high + block``, whichever of them is larger.
    """
    for j in range(block.size):
        total = high[j] + block[j]
        part = total - high[j]
        error = (high[j] - (total - part)) + (block[j] - part)
        high[j] = total
        low[j] += error


@_kernel
def scatter(
    entries: np.ndarray, positions: np.ndarray, factors: np.ndarray, high: np.ndarray, low: np.ndarray
) -> None:  # pragma: no cover
    """Add ``factors[i] * entries[i]`` at the positions, each as `add_block` does."""
    for i in range(factors.size):
        weight = factors[i]
        if weight != 0.0:
            for e in range(entries.shape[1]):
                p = positions[i, e]
                entry = weight * entries[i, e]
                total = high[p] + entry
                part = total - high[p]
                low[p] += (high[p] - (total - part)) + (entry - part)
                high[p] = total
