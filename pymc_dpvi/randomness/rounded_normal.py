r"""Exact draws of the rounded normal distribution, in integers and from a key stream alone.

The distribution is that of :math:`X = \operatorname{round}(2^{40} Z)` with :math:`Z \sim N(0, 1)`,

.. math:: P(X = k) = \Phi\big((k+\tfrac12)\,2^{-40}\big) - \Phi\big((k-\tfrac12)\,2^{-40}\big).

**Magnitude and sign.** Let :math:`M = \lfloor 2^{41} |Z| \rfloor`. Then
:math:`|X| = \lfloor (M+1)/2 \rfloor`, and the sign is an independent fair bit.

**Rejection.** :math:`|Z|` has a density proportional to :math:`y(t) = e^{-t^2/2}`: it is the abscissa of a
point that is uniform on the area A under the curve :math:`N y`, for any :math:`N > 0`. Cut :math:`[0, 12)`
into 768 strips, :math:`[x_j, x_{j+1})` with :math:`x_j = j\,2^{-6}`. On strip j stands a lower rectangle of
height :math:`n_j`, and on it an upper one of height :math:`h_j`, where

.. math:: n_j \le N\,y(x_{j+1}), \qquad n_j + h_j \ge N\,y(x_j), \qquad \sum_j (n_j + h_j) = 2^{14}.

As y falls, the lower rectangles lie in A, and both together cover A. One *round* draws a point that is
uniform on the rectangles and accepts it if it lies in A; rounds are repeated until one accepts. The
:math:`n_j` are integers: a table of :math:`2^{14}` entries, of which :math:`n_j` name strip j, draws the
lower rectangles with the right probabilities. For 97.5 % of the rounds that is a look-up, with no comparison.
The other entries lead to the upper rectangles: a cumulative table of 64-bit integers chooses one, and the
point's height is compared with the curve.

**Exactness.** The abscissa and the height are real numbers of which only the first bits are drawn. The
comparison uses bounds in 64-bit integers that hold whatever the other bits are. Where they do not decide
(less than once in a million draws), more bits are drawn and the bounds made sharper until they do. So the
result is exact but for the tail beyond 12, which is left out: the total variation distance from the rounded
normal is :math:`P(|Z| \ge 12) < 2^{-107}`.

**No loop depends on the magnitude.** The rounds of a deviate are independent and alike, so their number is
geometric, and independent of the deviate. (Whether the accepted point lay in an upper rectangle is not.)

``docs/noise.md`` has the proof step by step, with the constants of the bounds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.numba_cache import kernel
from pymc_dpvi.randomness.keystream import KeyStream

__all__ = ["LATTICE_BITS", "Tables", "rounded_normals"]

#: X counts steps of 2^-40 standard deviations.
LATTICE_BITS = 40
#: M counts half steps.
_HALF_BITS = LATTICE_BITS + 1
_STRIP_BITS = 6
_STRIPS = 12 << _STRIP_BITS
#: Bits of M that say where in its strip it lies.
_INNER_BITS = _HALF_BITS - _STRIP_BITS
_INNER_MASK = (1 << _INNER_BITS) - 1
#: A word is 14 bits of table index, 35 of position, 14 unused, 1 of sign.
_TABLE_BITS = 14
_INDEX_SHIFT = 64 - _TABLE_BITS
_INNER_SHIFT = _INDEX_SHIFT - _INNER_BITS
#: Entry of the table that leads to the upper rectangles.
_UPPER = _STRIPS
#: Words drawn in one go, so that they are still in the processor's cache when they are used.
_PIECE = 1 << 14

_REJECT, _ACCEPT, _UNDECIDED = 0, 1, 2

_kernel = kernel(fastmath=False, nogil=True)


def exp_bounds(numerator: int, shift: int, bits: int) -> tuple[int, int]:
    """Return integers ``low <= 2^bits exp(-numerator / 2^shift) <= high``, for a numerator of 0 or more.

    The argument is halved until it is below 1/2. There the partial sums of the series, which are exact
    rationals, lie below the exponential after an odd power and above it after an even one (Lagrange's
    remainder). The result is squared as often as the argument was halved, `low` rounded down and `high` up.
    """
    halvings = max(0, numerator.bit_length() - shift + 1)
    work = bits + 2 * halvings + 8
    shift += halvings
    power = 2
    while math.factorial(power) << power < 1 << work:
        power += 2
    top, bottom = _partial_sum(numerator, shift, power - 1)
    low = (top << work) // bottom
    top, bottom = _partial_sum(numerator, shift, power)
    high = -((-top << work) // bottom)
    for _ in range(halvings):
        low, high = low * low >> work, -(-high * high >> work)
    return low >> (work - bits), -(-high >> (work - bits))


def _partial_sum(numerator: int, shift: int, power: int) -> tuple[int, int]:
    """Sum the series of ``exp(-numerator / 2^shift)`` up to `power`, as a fraction (Horner's rule)."""
    top, bottom = 1, 1
    for k in range(power, 0, -1):
        top, bottom = (bottom * k << shift) - numerator * top, bottom * k << shift
    return top, bottom


@dataclass(frozen=True)
class Tables:
    """The rectangles, all in integers; the module's page has the inequalities that they fulfil.

    `height` is N, and `lower` are the n_j. `upper` are the b_j, which sum to 2^64; the upper rectangles have
    the heights h_j = m b_j / 2^64, where m, `num_upper`, is how many entries of the table lead to them.
    `strip_of_entry`, (16384,), is the table: it has strip j at n_j places, and 768 at m places. `upper_from`
    is b_0 + ... + b_(j-1); `curve` is 2^30 y(x_j) and `upper_height` is 2^24 h_j, both rounded down. Arrays
    other than the table have the shape (768,).
    """

    height: int
    lower: NDArray[np.int64]
    upper: NDArray[np.uint64]
    num_upper: int
    strip_of_entry: NDArray[np.uint16]
    upper_from: NDArray[np.uint64]
    curve: NDArray[np.int64]
    upper_height: NDArray[np.int64]

    @classmethod
    def make(cls, height: int, *, with_lower: bool = True) -> Tables:
        """Build the rectangles under N = `height`; without the lower ones, every draw takes the slow way."""
        bits = 128
        # x_j^2 / 2 = j^2 2^-(2 * _STRIP_BITS + 1)
        curve = [exp_bounds(j * j, 2 * _STRIP_BITS + 1, bits) for j in range(_STRIPS + 1)]
        lower = [height * low >> bits if with_lower else 0 for low, _ in curve[1:]]
        num_upper = (1 << _TABLE_BITS) - sum(lower)
        needed = [(height * high) - (n << bits) for (_, high), n in zip(curve[:-1], lower, strict=True)]
        upper = [-((-need << 64) // (num_upper << bits)) for need in needed]
        total = sum(upper)
        if num_upper <= 0 or total > 1 << 64:
            raise ValueError("height is too large for the table")
        upper = [(b << 64) // total for b in upper]  # none becomes smaller: they are made to sum to 2^64
        upper[0] += (1 << 64) - sum(upper)
        upper_height = [num_upper * b >> 40 for b in upper]
        starts = [sum(upper[:j]) for j in range(_STRIPS)]
        entries = np.repeat(np.arange(_STRIPS + 1), [*lower, num_upper])
        return cls(
            height=height,
            lower=np.array(lower, dtype=np.int64),
            upper=np.array(upper, dtype=np.uint64),
            num_upper=num_upper,
            strip_of_entry=entries.astype(np.uint16),
            upper_from=np.array(starts, dtype=np.uint64),
            curve=np.array([low >> (bits - 30) for low, _ in curve[:-1]], dtype=np.int64),
            upper_height=np.array(upper_height, dtype=np.int64),
        )


@functools.cache
def default_tables() -> Tables:
    """Return the tables of all draws, made once."""
    return Tables.make(202)


@_kernel
def _magnitude_and_sign(strip: int, word: int) -> np.int64:  # pragma: no cover
    """Return X from its strip, and the position and the sign in a word."""
    half_steps = (strip << _INNER_BITS) | (np.int64(word >> np.uint64(_INNER_SHIFT)) & _INNER_MASK)
    negative = -np.int64(word & np.uint64(1))
    return (((half_steps + 1) >> 1) ^ negative) - negative


@_kernel
def _draw_lower(
    words: np.ndarray, strip_of_entry: np.ndarray, out: np.ndarray, upper: np.ndarray
) -> int:  # pragma: no cover
    """Fill `out` as if every point lay in a lower rectangle; list where it does not, and count those."""
    count = 0
    for i in range(words.size):
        strip = np.int64(strip_of_entry[words[i] >> np.uint64(_INDEX_SHIFT)])
        out[i] = _magnitude_and_sign(strip, words[i])
        upper[count] = i
        count += strip == _UPPER
    return count


@_kernel
def _compare(
    strip: int, inner: int, height_bits: int, tables_height: int, lower: int, curve: int, upper_height: int
) -> int:  # pragma: no cover
    """Compare a point in an upper rectangle with the curve; steps and bounds are those of docs/noise.md.

    ``height_bits`` is 31 bits of the point's height in the rectangle.
    """
    # s = t^2/2 - x_j^2/2 in units of 2^-32, from d = t - x_j in units of 2^-37; 0 <= s - true < 3.
    d = inner >> 4
    s = ((strip * d) >> 11) + ((d * d) >> 43)
    # exp(-s) in units of 2^-32: Taylor's series up to the eighth power; 2^32 exp(-s) is within 3.
    e = np.int64(1) << 32
    for k in range(8, 0, -1):
        e = (np.int64(1) << 32) - ((s * e) >> 32) // k
    # N y(t) in units of 2^-32.
    curve_low = tables_height * ((curve * (e - 6)) >> 30)
    curve_high = tables_height * ((((curve + 1) * (e + 3)) >> 30) + 1)
    # The point's height in units of 2^-32.
    point_low = (lower << 32) + ((upper_height * height_bits) >> 23)
    point_high = (lower << 32) + (((upper_height + 1) * (height_bits + 1)) >> 23) + 1
    if point_high <= curve_low:
        return _ACCEPT
    if point_low >= curve_high:
        return _REJECT
    return _UNDECIDED


@_kernel
def _draw_upper(
    words: np.ndarray,
    extra: np.ndarray,
    at: np.ndarray,
    height: int,
    lower: np.ndarray,
    upper_from: np.ndarray,
    curve: np.ndarray,
    upper_height: np.ndarray,
    out: np.ndarray,
    verdict: np.ndarray,
    strips: np.ndarray,
) -> None:  # pragma: no cover
    """For the draws listed in `at`, choose an upper rectangle and compare, with two more words each."""
    for k in range(at.size):
        word, choice = words[at[k]], extra[2 * k]
        first, last = 0, upper_from.size  # upper_from[first] <= choice < upper_from[last]
        while last - first > 1:
            middle = (first + last) >> 1
            if upper_from[middle] <= choice:
                first = middle
            else:
                last = middle
        inner = np.int64(word >> np.uint64(_INNER_SHIFT)) & _INNER_MASK
        height_bits = np.int64(extra[2 * k + 1] >> np.uint64(33))
        strips[k] = first
        verdict[k] = _compare(
            first, inner, height_bits, height, lower[first], curve[first], upper_height[first]
        )
        out[at[k]] = _magnitude_and_sign(first, word)


def _decide(tables: Tables, strip: int, inner: int, height_word: int, stream: KeyStream) -> int:
    """Compare exactly: draw more bits until the answer does not depend on the rest."""
    place, place_bits = (strip << _INNER_BITS) | inner, _HALF_BITS
    bits = 128
    height, height_bits = height_word, 64
    lower, upper = int(tables.lower[strip]), tables.num_upper * int(tables.upper[strip])
    while True:
        # All in units of 2^-(bits + 64 + height_bits); t and the height lie in half-open intervals.
        scale = 64 + height_bits
        _, curve_high = exp_bounds(place**2, 2 * place_bits + 1, bits)
        curve_low, _ = exp_bounds((place + 1) ** 2, 2 * place_bits + 1, bits)
        point_low = (lower << scale) + upper * height
        point_high = point_low + upper
        if point_high << bits <= tables.height * curve_low << scale:
            return _ACCEPT
        if point_low << bits >= tables.height * curve_high << scale:
            return _REJECT
        more = stream.words(2)
        place, place_bits = (place << 64) | int(more[0]), place_bits + 64
        height, height_bits = (height << 64) | int(more[1]), height_bits + 64
        bits += 128


def _round(stream: KeyStream, out: NDArray[np.int64], tables: Tables) -> NDArray[np.int64]:
    """Fill `out` by one round each; return the places of the rejected points."""
    rejected = []
    for start in range(0, out.size, _PIECE):
        piece = out[start : start + _PIECE]
        words = stream.words(piece.size)
        places = np.empty(piece.size + 1, dtype=np.int64)
        at = places[: _draw_lower(words, tables.strip_of_entry, piece, places)]
        extra = stream.words(2 * at.size)
        verdict, strips = np.empty_like(at), np.empty_like(at)
        _draw_upper(
            words,
            extra,
            at,
            tables.height,
            tables.lower,
            tables.upper_from,
            tables.curve,
            tables.upper_height,
            piece,
            verdict,
            strips,
        )
        for k in np.flatnonzero(verdict == _UNDECIDED):
            inner = (int(words[at[k]]) >> _INNER_SHIFT) & _INNER_MASK
            verdict[k] = _decide(tables, int(strips[k]), inner, int(extra[2 * k + 1]), stream)
        rejected.append(at[verdict == _REJECT] + start)
    return np.concatenate(rejected) if rejected else np.empty(0, dtype=np.int64)


def rounded_normals(stream: KeyStream, n: int) -> NDArray[np.int64]:
    """Draw `n` independent values of ``round(2^40 Z)``, of magnitude at most ``12 * 2^40``: (n,) int64.

    Privacy: each is within total variation distance ``2^-107`` of the exact distribution, given that the
    stream's words are uniform.
    """
    return _draw(stream, check_integer("n", n, low=0), default_tables())


def _draw(stream: KeyStream, n: int, tables: Tables) -> NDArray[np.int64]:
    out = np.empty(n, dtype=np.int64)
    rejected = _round(stream, out, tables)
    while rejected.size:
        again = np.empty_like(rejected)
        still = _round(stream, again, tables)
        out[rejected] = again
        rejected = rejected[still]
    return out
