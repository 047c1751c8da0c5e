r"""Clipped sums over persons: a person's rows are added up first, and their sum is clipped.

For the rows :math:`r \in R_p` of person p with gradients :math:`g_r`, the share of the person is

.. math:: v_p = \operatorname{clip}_{C'}\Big(\sum_{r \in R_p} g_r\Big),

and the sum over the persons of the batch is rounded and noised as in `clipping`. A batch is a list of rows,
person by person, as *marked* places: twice the row's number, plus one for the last row of a person. So no
array is padded to the longest person, and a person may go on from one microbatch to the next: the sum so
far is kept.

**A person's share is the same in every batch.** A row's gradient is (`microbatch`), and the rows of a
person are added one after the other in the order of the data, in float64.

**Any row, any number of them.** The sum is formed in full, one float64 for each entry of the gradient,
whatever form the rows have. Its norm is that of the numbers that are then added. So rounding errors in the
sum over rows are part of the person's share, and the proof (``docs/noise.md``, 3.7) does not speak of them.
A sum that is not finite counts as zero.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.engine.clipping import add_tally, clip_factors
from pymc_dpvi.numba_cache import kernel

__all__ = ["add_row", "add_row_outer", "add_row_products", "add_row_sparse", "add_unit", "marked_rows"]

_kernel = kernel(fastmath=False)


@_kernel
def add_row(rows: np.ndarray, i: int, person: np.ndarray, at: int) -> None:  # pragma: no cover
    """Add row i of a dense block to the person's sum, from entry `at` on."""
    for j in range(rows.shape[1]):
        person[at + j] += np.float64(rows[i, j])


@_kernel
def add_row_outer(
    left: np.ndarray, right: np.ndarray, i: int, person: np.ndarray, at: int
) -> None:  # pragma: no cover
    """Add ``left[i] ⊗ right[i]``."""
    width = right.shape[1]
    for j in range(left.shape[1]):
        factor = np.float64(left[i, j])
        for k in range(width):
            person[at + j * width + k] += factor * np.float64(right[i, k])


@_kernel
def add_row_products(
    left: np.ndarray, right: np.ndarray, i: int, person: np.ndarray, at: int
) -> None:  # pragma: no cover
    """Add ``left[i, r] ⊗ right[i, r]`` for each r."""
    for r in range(left.shape[1]):
        add_row_outer(left[i], right[i], r, person, at)


@_kernel
def add_row_sparse(
    entries: np.ndarray, positions: np.ndarray, i: int, person: np.ndarray, at: int, size: int
) -> None:  # pragma: no cover
    """Add entries at their positions; one outside of the block makes the sum NaN."""
    for e in range(entries.shape[1]):
        p = positions[i, e]
        if 0 <= p < size:
            person[at + p] += np.float64(entries[i, e])
        else:
            person[at] = np.nan


@_kernel
def add_unit(
    person: np.ndarray, bound: float, units: int, high: np.ndarray, low: np.ndarray, tally: np.ndarray
) -> None:  # pragma: no cover
    """Clip the person's sum, count it, add it to ``high + low`` (Knuth's TwoSum), and make it zero again."""
    norms = np.zeros(1)
    for j in range(person.size):
        norms[0] += person[j] * person[j]
    weight = clip_factors(norms, bound)[0]
    if tally.size:
        add_tally(norms, bound, units, tally)
    for j in range(person.size):
        if weight != 0.0:  # what is not finite is not multiplied
            entry = weight * person[j]
            total = high[j] + entry
            part = total - high[j]
            low[j] += (high[j] - (total - part)) + (entry - part)
            high[j] = total
        person[j] = 0.0


@_kernel
def marked_rows(
    persons: np.ndarray, rows: np.ndarray, starts: np.ndarray, out: np.ndarray
) -> None:  # pragma: no cover
    """Fill `out` with the marked places of all rows of the persons, in their order."""
    k = 0
    for p in persons:
        for at in range(starts[p], starts[p + 1]):
            out[k] = 2 * rows[at]
            k += 1
        out[k - 1] += 1
