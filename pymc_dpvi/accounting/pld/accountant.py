r"""The default accountant: privacy loss distributions, composed by a tilted FFT.

It gives :mod:`pymc_dpvi.accounting.pld.gaussian_steps` dp-accounting's interface. In: events, which are only
counted. Out: upper bounds of epsilon, of delta and of the whole curve :math:`\delta(\varepsilon)`.

A privacy loss distribution (PLD) holds the curve :math:`\delta(\varepsilon)` of a step. Connecting the dots
puts it on a grid and only raises the curve (Doroshenko et al. 2022; `dominating_pairs`). dp-accounting
composes by a plain FFT, whose delta fell short of the exact Gaussian curve by up to :math:`7\cdot10^{-17}\,T`
(at :math:`T = 10^7`, :math:`\delta = 10^{-10}` its epsilon is 4 % too small). The tilted FFT
(`tilted_composition`) has a bounded error, relative to delta, and so answers at :math:`\delta = 10^{-12}` and
:math:`T = 10^7` alike.

The tests compare it with dp-accounting's class and with the inverted moment generating function, which needs
neither grid nor FFT. Epsilon is never below that of the dominating pairs. It is within 1e-3 of it, except
where a few steps lose nearly everything, with a small probability.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from dp_accounting import NeighboringRelation
from numpy.typing import ArrayLike, NDArray

from pymc_dpvi.accounting.contract import BOTH, REPLACE, CountingAccountant, Guarantee, Schemes
from pymc_dpvi.accounting.gaussian import gaussian_epsilon, log_gaussian_delta
from pymc_dpvi.accounting.pld.dominating_pairs import FixedSizePair, GaussianPair
from pymc_dpvi.accounting.pld.gaussian_steps import (
    LossPair,
    Parts,
    composed_delta,
    composed_epsilon,
    composed_profile,
)
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["TiltedPLDAccountant"]


class TiltedPLDAccountant(CountingAccountant):
    """Privacy loss distributions of Gaussian steps, composed by a tilted FFT with a bounded error.

    The grid of the privacy loss is chosen for each answer.
    """

    name: ClassVar[str] = "pld"
    guarantee: ClassVar[Guarantee] = "proven"
    source: ClassVar[str] = (
        "privacy loss distributions, connect-the-dots (Doroshenko et al. 2022; fixed-size batches: "
        "Zhu, Dong and Wang 2022), tilted FFT with an error bound"
    )
    schemes: ClassVar[Schemes] = {"full_batch": BOTH, "poisson": BOTH, "fixed_size": REPLACE}

    def _composed(self) -> tuple[Parts, float]:
        """Return the sampled steps as pairs with counts, and mu of the full-data steps, rounded up.

        If both kinds occur, the steps on the full data are one more pair; if all are on the full data, there
        are no pairs, and mu is that of their one Gaussian release.
        """
        pairs: dict[LossPair, int] = {}
        full: dict[float, int] = {}  # by the noise over the sensitivity
        replace_one = self.neighboring_relation is NeighboringRelation.REPLACE_ONE
        for step, count in self._counts.items():
            if step.sampling_prob == 1.0:
                full[self._noise(step)] = full.get(self._noise(step), 0) + count
            elif step.scheme == "fixed_size":
                pairs[FixedSizePair(step.sampling_prob, step.noise_multiplier)] = count
            elif step.scheme != "poisson":
                raise NotImplementedError(f"no dominating pair of scheme {step.scheme!r}")
            else:
                pairs[GaussianPair(step.sampling_prob, step.noise_multiplier, replace_one)] = count
        mu = math.sqrt(math.fsum(n / noise**2 for noise, n in full.items())) * (1.0 + 1e-14)
        mu = max(mu, 1e-100)
        if pairs and full:
            pairs[GaussianPair(1.0, 1.0 / mu)] = 1
        return list(pairs.items()), mu

    def _epsilon(self, delta: float) -> float:
        parts, mu = self._composed()
        return composed_epsilon(parts, delta) if parts else gaussian_epsilon(mu, delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound of delta at `target_epsilon`, 0 or more."""
        epsilon = check_number("target_epsilon", target_epsilon, closed_low=True)
        if not self._counts:
            return 0.0
        parts, mu = self._composed()
        if parts:
            return composed_delta(parts, epsilon)
        return min(1.0, math.exp(log_gaussian_delta(mu, epsilon)))

    def delta_curve(self, epsilons: ArrayLike) -> NDArray[np.float64]:
        """Return upper bounds of delta at many epsilons, 0 or more, in about the time that ten take.

        The result has the same shape; it is tight, relative to delta, from 1 down to 1e-40.
        """
        points = np.asarray(epsilons, dtype=np.float64)
        if not (np.isfinite(points) & (points >= 0.0)).all():
            raise ArgumentError("epsilons must be finite, and 0 or more.")
        parts, _ = self._composed()
        if parts:
            return composed_profile(parts, points)
        flat = [self.get_delta(float(x)) for x in points.ravel()]
        return np.array(flat).reshape(points.shape)
