r"""A normal with r directions of correlation: :math:`z = \mu + s\,\zeta_1 + F\zeta_2`, F of shape (k, r).

Its covariance is :math:`\Sigma = \operatorname{diag}(s^2) + FF^\top` (Ong, Nott and Smith, "Gaussian
variational approximation with a factor covariance structure", 2018), and by the matrix determinant lemma

.. math:: \log\det\Sigma = 2\sum_j \log s_j + \log\det\big(I_r + F^\top \operatorname{diag}(s^{-2}) F\big).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.guide.family import GuideFamily

__all__ = ["LowRank"]

#: Length of the directions at the start, in standard deviations: at zero they would have no gradient.
_START = 0.1


@dataclass(frozen=True, repr=False)
class LowRank(GuideFamily):
    """A multivariate normal in the unconstrained space, with few directions of correlation.

    Parameters
    ----------
    rank : int
        Number of directions.

    Raises
    ------
    ArgumentError
        If `rank` is no positive integer.

    Notes
    -----
    It has k (rank + 1) parameters for k latent values, where :class:`FullRank` has k (k + 1) / 2.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, guide={("alpha", "beta"): LowRank(3)})
    """

    rank: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_integer("rank", self.rank))

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """Return standard deviations as of independent normals, and short directions, always the same."""
        directions = np.random.default_rng(0).standard_normal((sigma.size, self.rank))
        factor = _START * sigma[:, None] * directions / np.sqrt(self.rank)
        return {"rho": np.log(np.expm1(sigma)), "factor": factor}

    def num_base_draws(self, size: int) -> int:
        """One for each value and each direction."""
        return size + self.rank

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Own part and common part."""
        own, common = base_draws[:, : -self.rank], base_draws[:, -self.rank :]
        return pt.softplus(params["rho"]) * own + common @ params["factor"].T

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Half the logarithm of the covariance's determinant."""
        own = pt.softplus(params["rho"])
        scaled = params["factor"] / own[:, None]
        inner = pt.linalg.cholesky(pt.eye(self.rank) + scaled.T @ scaled)
        return pt.log(own).sum() + pt.log(pt.diagonal(inner)).sum()

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Root of the covariance's diagonal."""
        return pt.sqrt(pt.softplus(params["rho"]) ** 2 + (params["factor"] ** 2).sum(axis=1))

    def covariance(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Diagonal plus product of the directions."""
        factor = params["factor"]
        return pt.diag(pt.softplus(params["rho"]) ** 2) + factor @ factor.T

    def __repr__(self) -> str:
        """Return the family as one types it."""
        return f"LowRank({self.rank})"
