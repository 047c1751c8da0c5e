r"""Dominating pairs of batches that are not Poisson, made of those that are.

*Fixed size*: the larger of two curves, as one symmetric law. *Truncated Poisson*: a mixture of two laws.
Both are made on the grid, where :math:`\delta(\varepsilon)` is linear in the probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from pymc_dpvi.accounting.pld.dominating_pairs import MASS_ERROR, GaussianPair, LossLaw

__all__ = ["FixedSizePair", "TruncatedPair"]

_BINOMIAL_ERROR = 1e-10
"""Relative error of a binomial probability of scipy's; checked against 50 digits in the tests."""


@dataclass(frozen=True)
class FixedSizePair:
    """Dominating curve of a Gaussian step on a batch of fixed size, under replace-one.

    By Proposition 30 of Zhu, Dong and Wang (2022) it is, for all real epsilon, the larger one of the curves
    of the Poisson pair (P, Q) and of (Q, P), with q = B/N and the noise relative to the sensitivity 2C.
    That is the first for epsilon >= 0; the second one, below, is its mirror image. On the grid: the
    probabilities of positive losses are those of (P, Q), a loss of -l has exp(-l) times the probability of
    l, and zero has the rest.

    Parameters
    ----------
    sampling_prob : float
        Share of the records that are in a batch.
    noise_multiplier : float
        Standard deviation of the noise, in units of the bound on one record.
    """

    sampling_prob: float
    noise_multiplier: float

    @property
    def _pair(self) -> GaussianPair:
        return GaussianPair(self.sampling_prob, 0.5 * self.noise_multiplier)

    @property
    def directions(self) -> tuple[bool, ...]:
        """Only one: the curve is symmetric."""
        return (False,)

    def spread(self) -> float:
        """Return about the standard deviation of the loss."""
        return self._pair.spread()

    def range(self, tail: float) -> tuple[float, float]:
        """Return the losses that leave out less than `tail`."""
        high = self._pair.range(tail)[1]
        return -high, high

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the privacy loss on the grid; see `GaussianPair.law`."""
        one = self._pair.law(interval, tail=tail, reverse=False)
        positive = one.places > 0
        places, right, splits = one.places[positive], one.probs[positive], one.split[positive]
        shrink = np.exp(-interval * places)
        left = right * shrink
        # The sum is known to be one, up to the error of the others
        zero = max(1.0 - float(left.sum()) - float(right.sum()) - one.infinite, 0.0) + MASS_ERROR
        split = np.concatenate([(splits * shrink)[::-1], one.split[one.places == 0], splits])
        probs = np.concatenate([left[::-1], [zero], right])
        both = np.concatenate([-places[::-1], [0], places])
        return LossLaw(interval, both, probs, one.infinite, split, one.loss_error)


@dataclass(frozen=True)
class TruncatedPair:
    """Dominating mixture of a Poisson-sampled Gaussian step whose batch is cut down to a cap.

    If the other records alone reach the cap, the batch is a uniform subset of them, in which the record in
    question takes somebody's place with the probability of `cut`: a replace-one pair of twice the sensitivity
    (Ganesh 2025, arXiv 2508.15089, as in dp-accounting 0.6). If not, nobody is cut, with the record or
    without, and the step is an ordinary one. Whether they do does not depend on the record.

    Parameters
    ----------
    ordinary : GaussianPair
        The step without the cap.
    cut : GaussianPair
        The step whose cap is reached.
    ordinary_prob, cut_prob : float
        The probability of each, rounded up.
    """

    ordinary: GaussianPair
    cut: GaussianPair
    ordinary_prob: float
    cut_prob: float

    @classmethod
    def make(
        cls,
        num_records: int,
        sampling_prob: float,
        max_batch_size: int,
        noise_multiplier: float,
        replace_one: bool,
    ) -> GaussianPair | TruncatedPair:
        """Return the pair of a batch of `num_records`, the record in question included, and its cap."""
        others, cap, q = num_records - 1, max_batch_size, sampling_prob
        ordinary = GaussianPair(q, noise_multiplier, replace_one)
        reached = float(stats.binom.sf(cap - 1, others, q))
        if reached < 1e-300:
            return ordinary
        # Rounded up: a record that takes part more often loses more
        takes_part = float(stats.binom.sf(cap, num_records, q)) * (cap / num_records) / reached
        takes_part = min(max(takes_part * (1.0 + 2.0 * _BINOMIAL_ERROR), 1e-12), 1.0)
        cut = GaussianPair(takes_part, 0.5 * noise_multiplier, True)
        below = float(stats.binom.cdf(cap - 1, others, q))
        return cls(ordinary, cut, *(p * (1.0 + _BINOMIAL_ERROR) for p in (below, reached)))

    @property
    def directions(self) -> tuple[bool, ...]:
        """Whether the pair is to be reversed."""
        return self.ordinary.directions

    def spread(self) -> float:
        """Return about the standard deviation of the loss."""
        return self.ordinary.spread()

    def range(self, tail: float) -> tuple[float, float]:
        """Return the losses that leave out less than `tail`."""
        ranges = [self.ordinary.range(tail), self.cut.range(self._cut_tail(tail))]
        return min(r[0] for r in ranges), max(r[1] for r in ranges)

    def _cut_tail(self, tail: float) -> float:
        return min(tail / self.cut_prob, 0.25)

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the privacy loss on the grid; see `GaussianPair.law`."""
        laws = (
            (self.ordinary_prob, self.ordinary.law(interval, tail=tail, reverse=reverse)),
            (self.cut_prob, self.cut.law(interval, tail=self._cut_tail(tail), reverse=reverse)),
        )
        places = np.union1d(laws[0][1].places, laws[1][1].places)
        probs, split = np.zeros(len(places)), np.zeros(len(places))
        for weight, law in laws:
            at = np.searchsorted(places, law.places)
            probs[at] += weight * law.probs
            split[at] += weight * law.split
        infinite = sum(weight * law.infinite for weight, law in laws)
        return LossLaw(interval, places, probs, infinite, split, max(law.loss_error for _, law in laws))
