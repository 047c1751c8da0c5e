r"""Epsilon and delta of composed Gaussian steps, from above, for any delta from 1e-100.

The steps are dominating pairs (`dominating_pairs`), composed by a tilted FFT (`tilted_composition`). This
module chooses the grid step, the tilt, and the tail beyond which a loss counts as infinite (:math:`10^{-9}`
of delta, over all steps). The choices affect how tight the bound is, never whether it holds
(docs/accounting.md, section 3).

Steps on the full data alone need none of this: they compose to :math:`\mu`-GDP with
:math:`\mu^2 = \sum_t s^2/\sigma_t^2`, whose curve is explicit (`gaussian`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.accounting.pld.dominating_pairs import LossLaw
from pymc_dpvi.accounting.pld.tilted_composition import MAX_WINDOW, Composition
from pymc_dpvi.accounting.search import least_number

__all__ = ["LossPair", "Parts", "composed_delta", "composed_epsilon", "composed_profile"]

GRID_TOLERANCE = 5e-4
"""What the grid may add to epsilon, relatively."""

DELTA_TOLERANCE = 2e-3
"""What the grid may add to delta, relatively, where delta is asked for."""

MIN_DELTA = 1e-100
"""Smallest delta that is reported."""

_SHORT_WINDOW = 2**14
_FIRST_WINDOW = 2**16  # aimed at where the first grid makes the window too long
_QUARTERINGS = 5
_RESOLVED = 12.0  # ln of the largest factor from delta to the scale of the tilted law
_TAIL_SHARE = 1e-9
_PROFILE_DELTAS = (0.3, 1e-2, 1e-4, 1e-7, 1e-10, 1e-14, 1e-19, 1e-25, 1e-32, 1e-40)
_START = 0.125  # the first grid step, in standard deviations of a step


class LossPair(Hashable, Protocol):
    """A dominating pair, as a law on a grid."""

    @property
    def directions(self) -> tuple[bool, ...]:
        """The values of `reverse` that matter."""

    def spread(self) -> float:
        """Return about the standard deviation of the loss."""

    def range(self, tail: float) -> tuple[float, float]:
        """Return the least and the greatest loss, but for a probability of `tail` at each end."""

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the loss on the grid."""


Parts = Sequence[tuple[LossPair, int]]


def _power(number: float) -> int:
    """Return the exponent of the power of two at or above `number`."""
    return math.ceil(math.log2(number))


@functools.lru_cache(maxsize=12)
def _law(pair: LossPair, power: int, log2_tail: int, reverse: bool) -> LossLaw:
    """Return a law; a search asks for the same one many times."""
    return pair.law(2.0**power, tail=2.0**log2_tail, reverse=reverse and True in pair.directions)


class _Direction:
    """The composition of one direction of all pairs, refined on demand."""

    def __init__(self, parts: Parts, reverse: bool, tail: float) -> None:
        self._parts, self._reverse = parts, reverse
        self._tail = 8 * math.floor(math.log2(max(tail, MIN_DELTA)) / 8.0)
        width = max(high - low for low, high in (pair.range(2.0**self._tail) for pair, _ in parts))
        self._finest = _power(width * 2.0**-45)  # places must be whole numbers that a float holds
        start = _power(_START * min(pair.spread() for pair, _ in parts))
        self._on_grid(max(start, self._finest))

    def _on_grid(self, power: int) -> None:
        self._at = power
        self.composition = Composition(
            [(_law(pair, power, self._tail, self._reverse), count) for pair, count in self._parts]
        )

    def _length(self, tilt: float, log_delta: float) -> int:
        first, last = self.composition.window(tilt, log_delta)
        return last - first

    def _settled(self, tilt: float, log_delta: float, epsilon: float) -> float:
        """Return a smaller tilt if its window is much shorter and the FFT still resolves delta.

        Above some tilt the moment generating function of a sampled Gaussian rises steeply, and the window is
        long.
        """
        best, shortest = tilt, self._length(tilt, log_delta)
        trial = tilt
        for _ in range(_QUARTERINGS):
            trial *= 0.25
            if shortest <= _SHORT_WINDOW:
                break
            if self.composition.cumulant(trial) - trial * epsilon > log_delta + _RESOLVED:
                break
            length = self._length(trial, log_delta)
            if length < 0.7 * shortest:
                best, shortest = trial, length
        return best

    def refine(self, tilt: float, log_delta: float, epsilon: float, tolerated: float) -> float:
        """Refine the grid until what it adds to epsilon at `tilt` is tolerated, or refining helps no more.

        If the FFT would be too long, the grid is first made much coarser. Returns the tilt to be used.
        """
        before = math.inf
        while True:
            used = self._settled(tilt, log_delta, epsilon)
            length = self._length(used, log_delta)
            if length > MAX_WINDOW:
                self._finest = self._at + _power(length / MAX_WINDOW)
                self._on_grid(self._at + _power(length / _FIRST_WINDOW))
                before = math.inf
                continue
            excess = self.composition.added_epsilon(tilt) / tolerated if tolerated > 0.0 else 0.0
            if excess <= 1.0 or self._at <= self._finest or excess > 0.8 * before:
                return used
            before = excess
            # The error is proportional to the step, and to its square once cells are narrow
            self._on_grid(max(self._at - max(1, _power(math.sqrt(excess))), self._finest))

    def epsilon(self, tilt: float, delta: float, about: float, tolerated: float) -> tuple[float, float]:
        """Return epsilon at `delta`, of any sign, and the scale of the curve there.

        `about` is about this epsilon. The grid adds no more than `tolerated`, if it can be made so fine.
        """
        used = self.refine(tilt, math.log(delta), about, tolerated)
        curve = self.composition.curve(used, math.log(delta))
        found = curve.epsilon(delta)
        return found, curve.scale(found)

    def delta(self, tilt: float, log_delta: float, epsilon: float) -> tuple[float, bool]:
        """Return delta at `epsilon`, and whether `log_delta`, a guess of its log, was near enough."""
        used = self.refine(tilt, log_delta, epsilon, DELTA_TOLERANCE / tilt)
        curve = self.composition.curve(used, log_delta)
        found = curve.delta(epsilon)
        return found, found > 1e-2 * math.exp(log_delta) and curve.scale(epsilon) * tilt > 0.5


def _directions(parts: Parts) -> tuple[bool, ...]:
    return (False, True) if any(True in pair.directions for pair, _ in parts) else (False,)


def composed_epsilon(parts: Parts, delta: float) -> float:
    """Return an upper bound of epsilon at `delta`, 0 or more; may be infinite."""
    if delta < MIN_DELTA:
        return math.inf
    tail = delta * _TAIL_SHARE / sum(count for _, count in parts)
    found = 0.0
    for reverse in _directions(parts):
        one = _Direction(parts, reverse, tail)
        tilt, about = one.composition.tilt_for_delta(delta)
        if found > 0.0 and about * (1.0 + 1e-9) < found:
            continue  # the Chernoff bound is already below the other direction's epsilon
        tolerated = max(GRID_TOLERANCE * about, DELTA_TOLERANCE / tilt) if about > 0.0 else 0.0
        own, scale = one.epsilon(tilt, delta, about, tolerated)
        again = max(GRID_TOLERANCE * own, DELTA_TOLERANCE * scale)
        if own > 0.0 and again < 0.5 * tolerated:  # a few steps lose nearly all: Chernoff is far off
            own, _ = one.epsilon(tilt, delta, own, again)
        found = max(found, own)
    return found


def composed_delta(parts: Parts, epsilon: float) -> float:
    """Return an upper bound of delta at `epsilon`, 0 or more: in [`MIN_DELTA`, 1]."""
    n_steps = sum(count for _, count in parts)
    found, sure = MIN_DELTA, True
    for reverse in _directions(parts):
        # First the order of magnitude, which says where to cut the tail
        one = _Direction(parts, reverse, 1e-30 / n_steps)
        tilt, log_delta = one.composition.tilt_for_epsilon(epsilon)
        log_delta = max(log_delta, math.log(MIN_DELTA))
        if log_delta < math.log(1e-15):
            one = _Direction(parts, reverse, math.exp(log_delta) * _TAIL_SHARE / n_steps)
            tilt, log_delta = one.composition.tilt_for_epsilon(epsilon)
            log_delta = max(log_delta, math.log(MIN_DELTA))
        own, near = one.delta(tilt, log_delta, epsilon)
        if own > found:
            found, sure = own, near
    found = min(found, 1.0)
    if sure or epsilon == 0.0:
        return found
    # Where a few steps lose nearly all, Chernoff's bound is far off, and the bound from it is loose. Then the
    # result is the least delta whose epsilon, evaluated around that delta itself, is at most `epsilon`.
    ask = functools.partial(composed_epsilon, parts)
    return least_number(ask, epsilon, start=found, low=MIN_DELTA, high=found) or found


def composed_profile(parts: Parts, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return upper bounds of delta at many epsilons, 0 or more and of any shape, in [`MIN_DELTA`, 1].

    In each direction a bound is the least of several curves, each tight around one delta.
    """
    n_steps = sum(count for _, count in parts)
    worst = np.full(epsilons.shape, MIN_DELTA)
    for reverse in _directions(parts):
        least = np.ones(epsilons.shape)
        for delta in _PROFILE_DELTAS:
            one = _Direction(parts, reverse, delta * _TAIL_SHARE / n_steps)
            tilt, about = one.composition.tilt_for_delta(delta)
            tolerated = min(GRID_TOLERANCE * about, DELTA_TOLERANCE / tilt)
            used = one.refine(tilt, math.log(delta), about, tolerated)
            least = np.minimum(least, one.composition.curve(used, math.log(delta)).deltas_at(epsilons))
        worst = np.maximum(worst, least)
    return worst
