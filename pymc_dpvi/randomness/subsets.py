"""Random subsets, exactly: the successes of a Bernoulli sequence, and uniform subsets of a fixed size.

**Bernoulli sequences.** The number of failures before the next success is geometric, and with
``l = -log(1 - q)``

    P[gap >= k] = (1 - q)^k = P[U <= exp(-k l)],    so that    gap = floor(log(U) / (-l))

by inversion (Devroye 1986, chapter X.2): the time is that of the successes, not of the trials. With
``K = max(1, floor(8 / l))``, a draw of ``K`` or more stands for ``K`` failures, after which a new gap is
drawn (the geometric law has no memory).

**Exactness.** ``log(U) / (-l)`` in float64 differs from the truth by less than ``2^-45 / l``. Where no
integer is that near, its floor is the gap. Where one is, decimal arithmetic decides, with more words of the
stream as further bits of U until it can. So the sequence is that of exact coins. Proof: docs/accounting.md,
section 9. It needs ``2^-30 <= q <= 1 - 2^-16``.

**Uniform subsets.** Of independent uniform integers, the first *B* distinct values, in order of appearance,
are a uniform subset of size *B*, exactly. Beyond half of the population the complement is drawn instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.numba_cache import kernel
from pymc_dpvi.randomness.keystream import KeyStream, words_to_uniforms

__all__ = ["LARGEST_PROB", "SMALLEST_PROB", "bernoulli_successes", "cut_into_runs", "uniform_subsets"]

SMALLEST_PROB = 2.0**-30
LARGEST_PROB = 1.0 - 2.0**-16

_BLOCK_LOG = 8.0
#: Where ``l`` times the distance to an integer is below this, float64 does not decide.
_UNDECIDED = 2.0**-45
_DIGITS = 80
#: Largest population for which a table with an entry for each is kept, of 32 MB. Beyond, draws are sorted.
_LARGEST_TABLE = 1 << 22
# Draws are made in pieces that stay in the processor's cache.
_PIECE = 1 << 13

_kernel = kernel(fastmath=False)


def bernoulli_successes(stream: KeyStream, prob: float, n_trials: int) -> NDArray[np.int64]:
    """Return the positions of the successes among `n_trials` Bernoulli trials, ascending: int64.

    `prob` is from `SMALLEST_PROB` to `LARGEST_PROB`, and `n_trials` at most 2^61.
    """
    block = max(1, int(_BLOCK_LOG / -math.log1p(-prob)))
    pieces = []
    tested = 0  # trials whose outcome is known
    while tested < n_trials:
        expected = (n_trials - tested) * prob
        n_draws = min(_PIECE, int(expected + 4.0 * math.sqrt(expected)) + 8)
        positions = np.empty(n_draws + 1, dtype=np.int64)
        count, tested = _add_up(_gaps(stream, prob, block, n_draws), block, tested, positions)
        pieces.append(positions[:count])
    if not pieces:
        return np.empty(0, dtype=np.int64)
    # What was drawn beyond the last trial is dropped.
    pieces[-1] = pieces[-1][: np.searchsorted(pieces[-1], n_trials)]
    return np.concatenate(pieces)


def cut_into_runs(positions: NDArray[np.int64], length: int, n_runs: int) -> NDArray[np.int64]:
    """Turn ascending positions in ``range(n_runs * length)`` into positions in runs of `length`, in place.

    Returns where in `positions` each run starts, and where the last one ends: (n_runs + 1,).
    """
    offsets = np.empty(n_runs + 1, dtype=np.int64)
    _cut(positions, length, offsets)
    return offsets


@_kernel
def _cut(positions: np.ndarray, length: int, offsets: np.ndarray) -> None:  # pragma: no cover
    run, first = 0, 0
    offsets[0] = 0
    for i in range(positions.size):
        while positions[i] >= first + length:
            run, first = run + 1, first + length
            offsets[run] = i
        positions[i] -= first
    offsets[run + 1 :] = positions.size


def _gaps(stream: KeyStream, prob: float, block: int, n: int) -> NDArray[np.float64]:
    """Return `n` numbers of failures before a success; numbers of `block` or more are not exact."""
    words = stream.words(n)
    gaps, places = np.empty(n), np.empty(n + 1, dtype=np.int64)
    log_fail = math.log1p(-prob)
    logs = np.log(words_to_uniforms(words))
    open_questions = _decide_gaps(logs, log_fail, _UNDECIDED, gaps, places)
    for i in places[:open_questions]:
        k = round(math.log(words_to_uniforms(words[i : i + 1])[0]) / log_fail)
        if k <= block:
            gaps[i] = k if _at_most_power(stream, int(words[i]), prob, k) else k - 1
    return gaps


@_kernel
def _decide_gaps(
    logs: np.ndarray, log_fail: float, undecided: float, gaps: np.ndarray, places: np.ndarray
) -> int:  # pragma: no cover
    """Fill `gaps` by float64; list where that does not decide, and count those places."""
    count = 0
    for i in range(logs.size):
        v = logs[i] / log_fail
        gaps[i] = np.floor(v)
        places[count] = i
        count += abs(v - np.rint(v)) * -log_fail < undecided
    return count


@_kernel
def _add_up(
    gaps: np.ndarray, block: int, tested: int, positions: np.ndarray
) -> tuple[int, int]:  # pragma: no cover
    """Fill `positions` of the successes after `tested` trials; count them, and the trials known then."""
    count = 0
    for i in range(gaps.size):
        # A draw settles the failures of its gap and, unless the block ended first, one success.
        success = gaps[i] < block
        tested += int(gaps[i]) + 1 if success else block
        positions[count] = tested - 1
        count += success
    return count, tested


def _at_most_power(stream: KeyStream, word: int, prob: float, k: int) -> bool:
    """Return whether ``U <= (1 - prob)^k`` for the uniform U whose first 64 bits are `word`."""
    with localcontext() as context:
        context.prec = _DIGITS
        threshold = (1 - Decimal(prob)) ** k
        doubt = Decimal(10) ** (10 - _DIGITS)  # far more than the roundings here
        known = 64  # bits of U, which is between `word` and `word + 1` in units of the last of them
        while True:
            scaled = threshold * Decimal(2) ** known
            if word + 1 <= scaled * (1 - doubt):
                return True
            if word >= scaled * (1 + doubt):
                return False
            if k == 0:
                return True  # U <= 1
            word = (word << 64) + int(stream.words(1)[0])
            known += 64


def uniform_subsets(
    stream: KeyStream, population: int, size: int, n_steps: int
) -> Iterator[NDArray[np.int64]]:
    """Yield `n_steps` independent uniform subsets, (size,), of ``range(population)``, in no order."""
    if size <= population // 2:
        yield from _Subsets(stream, population, size).iterate(n_steps)
        return
    for left_out in _Subsets(stream, population, population - size).iterate(n_steps):
        kept = np.ones(population, dtype=np.bool_)
        kept[left_out] = False
        yield np.flatnonzero(kept)


class _Subsets:
    """Uniform subsets of ``range(population)``, whose size is at most half of it."""

    def __init__(self, stream: KeyStream, population: int, size: int) -> None:
        self.stream = stream
        self.population = population
        self.size = size
        # Never cleared: only entries that were just written are read. Untouched pages take no memory.
        self.last_place = np.empty(population if population <= _LARGEST_TABLE else 0, dtype=np.int64)

    def iterate(self, n_steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield independent subsets for `n_steps` steps."""
        # Expected number of repeated values before the last new one; a few are added. Too few draws only
        # take more time.
        repeats = max(0.0, -self.population * math.log1p(-self.size / self.population) - self.size)
        n_draws = self.size + int(repeats + 4.0 * math.sqrt(repeats)) + 2
        rows = max(1, _PIECE // n_draws)
        for start in range(0, n_steps, rows):
            n_rows = min(rows, n_steps - start)
            draws = self.stream.integers(self.population, n_rows * n_draws)
            for row in draws.reshape(n_rows, n_draws):
                yield self.first_distinct(row)

    def first_distinct(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first ``size`` distinct values of `draws`; if there are too few, more are drawn."""
        while True:
            distinct = self._distinct(draws)
            if len(distinct) >= self.size:
                return distinct[: self.size]
            more = self.stream.integers(self.population, self.size - len(distinct) + 8)
            draws = np.concatenate([draws, more])

    def _distinct(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distinct values of `draws`, in order of appearance."""
        if not self.last_place.size:
            return draws[np.sort(np.unique(draws, return_index=True)[1])]
        places = np.arange(len(draws))
        # Backwards: the last assignment to an entry stays, which is the first place of the value.
        self.last_place[draws[::-1]] = places[::-1]
        return draws[self.last_place[draws] == places]
