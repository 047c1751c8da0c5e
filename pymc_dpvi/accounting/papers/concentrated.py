r"""Full-batch Gaussian steps: Gaussian DP, which is exact, and zero-concentrated DP.

:math:`T` full-batch steps are together one Gaussian release at :math:`\mu^2 = \sum_t 1/z_t^2`, where
:math:`z_t` is the noise of a step over the sensitivity.

``gdp``
    The exact curve of that release (Dong, Roth and Su 2022, Corollary 3.3; Balle and Wang 2018, Theorem 8),

    .. math::
       \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu)
       - e^\varepsilon\,\Phi(-\mu/2 - \varepsilon/\mu).

``zcdp``
    It is :math:`\rho`-zCDP with :math:`\rho = \mu^2/2`, and
    :math:`\varepsilon = \rho + 2\sqrt{\rho \ln(1/\delta)}` (Bun and Steinke 2016, Propositions 1.3 and 1.6).

Both are proven for full batches and take nothing else. A subsampled Gaussian is not :math:`\rho`-zCDP with a
useful :math:`\rho`, and the central limit theorem for subsampled steps (Bu et al. 2020) is an approximation
that falls below the truth. The recipe of the DPVD paper (Ermis and Cemgil 2017, equations 13-14: calibrate a
step to :math:`(\varepsilon', \delta')`, then amplify) is not valid: approximate DP at one :math:`\delta'`
does not imply zCDP, and :math:`\delta'` is never charged.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pymc_dpvi.accounting.contract import BOTH, CountingAccountant, Guarantee, Schemes
from pymc_dpvi.accounting.gaussian import gaussian_epsilon

__all__ = ["GdpAccountant", "ZCdpAccountant"]


class _FullBatchAccountant(CountingAccountant):
    """Full-batch Gaussian steps, which are together one Gaussian release."""

    schemes: ClassVar[Schemes] = {"full_batch": BOTH}

    @property
    def _mu(self) -> float:
        return math.sqrt(math.fsum(count / self._noise(step) ** 2 for step, count in self._counts.items()))


class ZCdpAccountant(_FullBatchAccountant):
    """Zero-concentrated differential privacy of full-batch steps.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    """

    name: ClassVar[str] = "zcdp"
    guarantee: ClassVar[Guarantee] = "proven"
    source: ClassVar[str] = "zero-concentrated DP of full batches (Bun and Steinke 2016)"

    def _epsilon(self, delta: float) -> float:
        rho = 0.5 * self._mu**2
        return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


class GdpAccountant(_FullBatchAccountant):
    """Gaussian differential privacy of full-batch steps, which is exact.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    """

    name: ClassVar[str] = "gdp"
    guarantee: ClassVar[Guarantee] = "proven"
    source: ClassVar[str] = "Gaussian DP of full batches, exact (Dong, Roth and Su 2022; Balle and Wang 2018)"

    def _epsilon(self, delta: float) -> float:
        return gaussian_epsilon(self._mu, delta)
