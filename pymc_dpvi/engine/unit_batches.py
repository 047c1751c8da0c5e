"""From batches of persons to batches of rows, as `unit_sums` wants them.

The sampler draws persons, and its law and its cost are those of records. Here each person drawn is replaced
by their rows. With ``max_rows_per_unit``, a person with more rows is represented by a uniform subset, drawn
from the stream of the batches anew in every step. Which rows are drawn is nobody's business but the
person's own: it changes no other person's share, and whatever is drawn, the person's share is clipped.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pymc_dpvi.engine.unit_sums import marked_rows
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Draws
from pymc_dpvi.numba_cache import kernel
from pymc_dpvi.randomness.keystream import KeyStream

__all__ = ["in_rows"]


def in_rows(draws: Draws, units: Units, stream: KeyStream) -> Draws:
    """Replace the persons in batches by marked rows; noise is left as it is."""
    persons = draws.indices
    counts = (units.starts[1:] - units.starts[:-1])[persons]
    if units.max_rows is None:
        out = np.empty(int(counts.sum()), dtype=np.int64)
        marked_rows(persons, units.rows, units.starts, out)
        taken = counts
    else:
        taken = np.minimum(counts, units.max_rows)
        out = np.empty(int(taken.sum()), dtype=np.int64)
        words = stream.words(int(counts[counts > units.max_rows].sum()))
        _some_rows(persons, units.rows, units.starts, units.max_rows, words, out)
    ends = np.concatenate([[0], np.cumsum(taken)]).astype(np.int64)
    return replace(draws, indices=out, offsets=ends[draws.offsets])


@kernel(fastmath=False)
def _some_rows(
    persons: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    most: int,
    words: np.ndarray,
    out: np.ndarray,
) -> None:  # pragma: no cover
    """Fill `out` as `marked_rows` does, with those rows of a person that have the smallest `words`."""
    k, used = 0, 0
    for p in persons:
        first, n = starts[p], starts[p + 1] - starts[p]
        if n <= most:
            for at in range(first, first + n):
                out[k] = 2 * rows[at]
                k += 1
        else:
            own = words[used : used + n]
            used += n
            last = np.sort(own)[most - 1]
            ties = most - np.count_nonzero(own < last)  # of two equal words the first row is taken
            for r in range(n):
                if own[r] < last or (own[r] == last and ties > 0):
                    ties -= own[r] == last
                    out[k] = 2 * rows[first + r]
                    k += 1
        out[k - 1] += 1
