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

**Large parameters stay factored.** The gradient of a weight matrix is :math:`\sum_{r \in R_p} a_r \otimes
\delta_r`, which is a block of the form ``products`` (`blocks`) with the person's rows for terms. So a person
of few rows has the norm that `kernels.squared_norm_of_products` gives such a block, and the rows of all such
persons are added up by one matrix product, each row with the factor of its person. A person is taken so if
the double sum of the norm takes no more work than to form the sum (`most_rows`), and if the rows fit into a
microbatch, which then begins and ends with a person (`whole_persons`): the person's own number of rows
decides, and nothing else in the batch.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.engine.clipping import add_tally, clip_factors
from pymc_dpvi.graph.blocks import MOST_PRODUCTS
from pymc_dpvi.numba_cache import kernel

__all__ = [
    "add_row",
    "add_row_outer",
    "add_row_products",
    "add_row_sparse",
    "add_share",
    "add_squares",
    "add_unit",
    "end_of_person",
    "flat",
    "marked_rows",
    "most_rows",
    "whole_persons",
]

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
    if width == 1:  # a loop that is vectorised
        factor = np.float64(right[i, 0])
        for j in range(left.shape[1]):
            person[at + j] += np.float64(left[i, j]) * factor
        return
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
def add_squares(person: np.ndarray, norms: np.ndarray) -> None:  # pragma: no cover
    """Add the squared norm of a part of a person's sum to the first entry of `norms`."""
    for j in range(person.size):
        norms[0] += person[j] * person[j]


@_kernel
def add_share(
    person: np.ndarray, weight: float, high: np.ndarray, low: np.ndarray
) -> None:  # pragma: no cover
    """Add `weight` times a part of a person's sum to ``high + low`` (Knuth's TwoSum); make it zero again."""
    for j in range(person.size):
        if weight != 0.0:  # what is not finite is not multiplied
            entry = weight * person[j]
            total = high[j] + entry
            part = total - high[j]
            low[j] += (high[j] - (total - part)) + (entry - part)
            high[j] = total
        person[j] = 0.0


@_kernel
def add_unit(
    person: np.ndarray, bound: float, units: int, high: np.ndarray, low: np.ndarray, tally: np.ndarray
) -> None:  # pragma: no cover
    """Clip the person's sum, count it, add it to ``high + low``, and make it zero again."""
    norms = np.zeros(1)
    add_squares(person, norms)
    weight = clip_factors(norms, bound)[0]
    if tally.size:
        add_tally(norms, bound, units, tally)
    add_share(person, weight, high, low)


@_kernel
def most_rows(entries: int, numbers: int, products: int) -> int:  # pragma: no cover
    """Most rows of a person whose factored blocks are not formed.

    All these blocks together have so many `entries`, and their products so many `numbers` in the factors;
    `products` is the largest number of products in a row. The norm of m products takes about m²/2 times
    `numbers` operations, and to form their sum m + 4 passes over the `entries`.
    """
    return max(1, min(4 * entries // max(1, numbers), MOST_PRODUCTS) // max(1, products))


@_kernel
def flat(factors: np.ndarray) -> np.ndarray:  # pragma: no cover
    """Return the factors of some rows, (rows, products, size), as one matrix with a row for each product."""
    return factors.reshape(factors.shape[0] * factors.shape[1], factors.shape[2])


@_kernel
def end_of_person(
    marked: np.ndarray, begin: int, first: int, count: int
) -> tuple[int, bool]:  # pragma: no cover
    """Return where the rows of a person end among `count` rows, and whether some of them are elsewhere.

    The rows are those from ``marked[begin]`` on, and the person's begin at row `first` of them.
    """
    last = first
    while last < count and not marked[begin + last] & 1:
        last += 1
    cut = last == count or (first == 0 and begin > 0 and not marked[begin - 1] & 1)
    return min(last + 1, count), cut


@_kernel
def whole_persons(marked: np.ndarray, first: int, most: int) -> int:  # pragma: no cover
    """Return how many rows from `first` on, at most `most`, are of whole persons; `most` if none is whole."""
    for rows in range(most, 0, -1):
        if marked[first + rows - 1] & 1:
            return rows
    return most


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
