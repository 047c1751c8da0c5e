r"""Epsilon and delta of composed Gaussian steps, from above, for any delta that a float can hold.

The steps are dominating pairs (`dominating_pairs`), composed by a tilted FFT (`tilted_composition`). What is
chosen here affects how tight the bound is, never whether it holds:

* **The grid.** Sharing the mass of a cell between its ends adds at most :math:`h^2/4` to the variance of a
  step. At the tilt :math:`\lambda` the cumulant of the composition rises by about
  :math:`\frac12\lambda(1+\lambda)` times that sum and its epsilon by the same over :math:`\lambda`. This is
  evaluated, and :math:`h` halved until it is below `GRID_TOLERANCE` of epsilon (or of what moves delta by
  `DELTA_TOLERANCE`), or this no longer helps. Powers of two: runs that differ little share a grid.
* **The tilt.** The saddle point's, or a smaller one where that makes the window much shorter and the FFT's
  error stays far below delta.
* **The tail** beyond which a loss counts as infinite: :math:`10^{-9}` of delta, over all steps.

Steps on the full data need none of this. They compose to :math:`\mu`-GDP with
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
_FIRST_WINDOW = 2**16  # where the grid that the spread suggests would make it too long
_QUARTERINGS = 5
_RESOLVED = 12.0  # ln of how far delta may lie below what the tilted law is scaled with
_TAIL_SHARE = 1e-9
_PROFILE_DELTAS = (0.3, 1e-2, 1e-4, 1e-7, 1e-10, 1e-14, 1e-19, 1e-25, 1e-32, 1e-40)
_START = 0.125  # of the standard deviation of a step, for a first look


class LossPair(Hashable, Protocol):
    """A dominating pair, as a law on a grid."""

    @property
    def directions(self) -> tuple[bool, ...]:
        """The values of `reverse` that matter."""

    def spread(self) -> float:
        """Return about the standard deviation of the loss."""

    def range(self, tail: float) -> tuple[float, float]:
        """Return the least and the greatest loss but for a probability of `tail`."""

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the loss on the grid."""


Parts = Sequence[tuple[LossPair, int]]


def _power(number: float) -> int:
    """Return the exponent of the power of two at or above `number`."""
    return math.ceil(math.log2(number))


@functools.lru_cache(maxsize=12)
def _law(pair: LossPair, power: int, log2_tail: int, reverse: bool) -> LossLaw:
    """Return a law; a search asks for the same one again and again."""
    return pair.law(2.0**power, tail=2.0**log2_tail, reverse=reverse and True in pair.directions)


class _Direction:
    """The composition of one direction of all pairs, refined on demand."""

    def __init__(self, parts: Parts, reverse: bool, tail: float) -> None:
        self._parts, self._reverse = parts, reverse
        self._tail = 8 * math.floor(math.log2(max(tail, MIN_DELTA)) / 8.0)
        width = max(high - low for low, high in (pair.range(2.0**self._tail) for pair, _ in parts))
        self._finest = _power(width * 2.0**-45)  # a place is a whole number that a float can hold
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
        """Return a smaller tilt if its window is much shorter, and the FFT still resolves delta.

        The moment generating function of a sampled Gaussian takes off at some tilt, and the window with it.
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
        """Halve the grid until it adds no more to epsilon at `tilt` than is tolerated, or cannot be halved.

        Where the FFT would be too long it is made much coarser first. Returns the tilt to be used.
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
            # The error goes with the square of the step once cells are narrow, else with the step
            self._on_grid(max(self._at - max(1, _power(math.sqrt(excess))), self._finest))

    def epsilon(self, tilt: float, delta: float, about: float, tolerated: float) -> tuple[float, float]:
        """Return epsilon at `delta`, of any sign, and the scale of the curve there, given about what it is.

        The grid adds no more than is tolerated.
        """
        used = self.refine(tilt, math.log(delta), about, tolerated)
        curve = self.composition.curve(used, math.log(delta))
        found = curve.epsilon(delta)
        return found, curve.scale(found)

    def delta(self, tilt: float, log_delta: float, epsilon: float) -> tuple[float, bool]:
        """Return delta at `epsilon`, given the log of about what it is, and whether that was so."""
        used = self.refine(tilt, log_delta, epsilon, DELTA_TOLERANCE / tilt)
        curve = self.composition.curve(used, log_delta)
        found = curve.delta(epsilon)
        return found, found > 1e-2 * math.exp(log_delta) and curve.scale(epsilon) * tilt > 0.5


def _directions(parts: Parts) -> tuple[bool, ...]:
    return (False, True) if any(True in pair.directions for pair, _ in parts) else (False,)


def composed_epsilon(parts: Parts, delta: float) -> float:
    """Return an upper bound of epsilon at `delta`.

    Parameters
    ----------
    parts : sequence of (LossPair, int)
        The pairs of the steps, and how many of each.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        0 or more; may be infinite.
    """
    if delta < MIN_DELTA:
        return math.inf
    tail = delta * _TAIL_SHARE / sum(count for _, count in parts)
    found = 0.0
    for reverse in _directions(parts):
        one = _Direction(parts, reverse, tail)
        tilt, about = one.composition.tilt_for_delta(delta)
        if found > 0.0 and about * (1.0 + 1e-9) < found:
            continue  # already the Chernoff bound is below what the other direction needs
        tolerated = max(GRID_TOLERANCE * about, DELTA_TOLERANCE / tilt) if about > 0.0 else 0.0
        own, scale = one.epsilon(tilt, delta, about, tolerated)
        again = max(GRID_TOLERANCE * own, DELTA_TOLERANCE * scale)
        if own > 0.0 and again < 0.5 * tolerated:  # where few steps lose nearly all, the bound is far off
            own, _ = one.epsilon(tilt, delta, own, again)
        found = max(found, own)
    return found


def composed_delta(parts: Parts, epsilon: float) -> float:
    """Return an upper bound of delta at `epsilon`.

    Parameters
    ----------
    parts : sequence of (LossPair, int)
        The pairs of the steps, and how many of each.
    epsilon : float
        0 or more.

    Returns
    -------
    float
        In [`MIN_DELTA`, 1].
    """
    n_steps = sum(count for _, count in parts)
    found, sure = MIN_DELTA, True
    for reverse in _directions(parts):
        # First the order of magnitude, which says how much of the tail is needed
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
    # Where few steps lose nearly all, Chernoff's bound is far off, and with it the tilt, the grid and what is
    # neglected. Epsilon is evaluated around the delta itself: the least delta whose epsilon is no larger.
    ask = functools.partial(composed_epsilon, parts)
    return least_number(ask, epsilon, start=found, low=MIN_DELTA, high=found) or found


def composed_profile(parts: Parts, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return upper bounds of delta at many epsilons: the least of some curves, each tight around one delta.

    Parameters
    ----------
    parts : sequence of (LossPair, int)
        The pairs of the steps, and how many of each.
    epsilons : numpy.ndarray
        0 or more, of any shape.

    Returns
    -------
    numpy.ndarray
        Of the same shape, in [`MIN_DELTA`, 1].
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
