r"""One multivariate normal: :math:`z = \mu + L\zeta`; the diagonal of L is the softplus of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import GuideFamily

__all__ = ["FullRank"]


class FullRank(GuideFamily):
    """One multivariate normal in the unconstrained space, with all correlations.

    Name several variables together to have their correlations.

    Notes
    -----
    It has k (k + 1) / 2 parameters for k latent values; beyond some hundred, take :class:`LowRank`.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, guide={("intercept", "slope"): FullRank()})
    """

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """Lower triangle of a diagonal matrix, row by row."""
        value = np.zeros((sigma.size, sigma.size))
        value[np.diag_indices(sigma.size)] = np.log(np.expm1(sigma))
        return {"L_tril": value[np.tril_indices(sigma.size)]}

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Product of the triangle and the base draws."""
        return base_draws @ _cholesky(params["L_tril"]).T

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Sum of the logarithms of the diagonal."""
        tril = params["L_tril"]
        return pt.log(pt.softplus(tril[_on_diagonal(_size(tril))])).sum()

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Length of the rows of the triangle."""
        return pt.sqrt((_cholesky(params["L_tril"]) ** 2).sum(axis=1))

    def covariance(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Return the triangle times its transpose."""
        chol = _cholesky(params["L_tril"])
        return chol @ chol.T


def _size(tril: TensorVariable) -> int:
    entries = tril.type.shape[0]
    assert entries is not None
    return (math.isqrt(8 * entries + 1) - 1) // 2


def _on_diagonal(size: int) -> np.ndarray:
    """Place of each diagonal entry: the last one of its row."""
    return np.cumsum(np.arange(1, size + 1)) - 1


def _cholesky(tril: TensorVariable) -> TensorVariable:
    size = _size(tril)
    rows, columns = np.tril_indices(size)
    entries = pt.switch(rows == columns, pt.softplus(tril), tril)
    empty = pt.zeros((size, size), dtype=pytensor.config.floatX)
    return pt.set_subtensor(empty[rows, columns], entries)
