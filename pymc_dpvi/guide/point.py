r"""A number: :math:`z = \mu`. The lower bound is the log-posterior at it, and its maximum the mode.

So it is penalised maximum likelihood, with the prior's density in the unconstrained space as the penalty, or
none with a ``pm.Flat`` prior; what NumPyro and d3p call a ``param``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import GuideFamily

__all__ = ["Point"]


class Point(GuideFamily):
    """A number without uncertainty, such as a weight of a network; all its draws are equal.

    Its prior is a penalty, in the unconstrained space; with ``pm.Flat`` there is none.

    Notes
    -----
    Weights of a network must not all start at zero, where hidden units are equal: start them at draws,
    ``start={"W": "prior"}`` or numbers of your own.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, guide={"W": Point()}, start={"W": "prior"})
    """

    start_sigma: ClassVar[float | None] = None
    noise_aware: ClassVar[bool] = False

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def num_base_draws(self, size: int) -> int:
        """None."""
        return 0

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Zeros."""
        return pt.zeros((base_draws.shape[0], mean.shape[0]), dtype=mean.type.dtype)

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Nothing."""
        return pt.zeros((), dtype=mean.type.dtype)

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Zeros."""
        return pt.zeros_like(mean)
