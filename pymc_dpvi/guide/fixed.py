r"""Standard normal draws that no fit moves: public randomness of a step, :math:`z = \zeta`.

`graph.amortized` uses it. It is not for users: whatever the likelihood says, the posterior stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import GuideFamily

__all__ = ["Fixed"]


class Fixed(GuideFamily):
    """A standard normal distribution without parameters, whatever the mean."""

    start_sigma: ClassVar[float | None] = None
    noise_aware: ClassVar[bool] = False

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Take the mean away again, so that it has no gradient."""
        return base_draws - mean

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Nothing."""
        return pt.zeros((), dtype=mean.type.dtype)

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Ones."""
        return pt.ones_like(mean)
