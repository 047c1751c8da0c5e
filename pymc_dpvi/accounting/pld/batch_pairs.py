"""The dominating pair of a batch of fixed size, made of that of a Poisson batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_dpvi.accounting.pld.dominating_pairs import MASS_ERROR, GaussianPair, LossLaw

__all__ = ["FixedSizePair"]


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
