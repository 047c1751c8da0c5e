r"""Independent normals: :math:`z = \mu + \operatorname{softplus}(\rho)\,\zeta`, as PyMC's ADVI."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import GuideFamily

__all__ = ["MeanField"]


class MeanField(GuideFamily):
    """Independent normals in the unconstrained space: what variables have that a guide does not name.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, guide={"W": Point(), "beta": MeanField()})
    """

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """One parameter a value, whose softplus is the standard deviation."""
        return {"rho": np.log(np.expm1(sigma))}

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Return standard deviation times base draw."""
        return self.stddev(params, mean) * base_draws

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Sum of the logarithms of the standard deviations."""
        return pt.log(self.stddev(params, mean)).sum()

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Softplus of the parameter."""
        return pt.softplus(params["rho"])
