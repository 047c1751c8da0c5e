"""Families under test: those of the package, and one as a user writes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi import Dropout, FullRank, GuideFamily, LowRank, MeanField, Point

__all__ = ["FAMILIES", "HeavyTails"]


class HeavyTails(GuideFamily):
    """The hyperbolic sine of a normal number, as in the docstring of `GuideFamily`."""

    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        return {"log_scale": np.log(sigma)}

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        return pt.exp(params["log_scale"]) * pt.sinh(base_draws)

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        return params["log_scale"].sum()

    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        return pt.exp(params["log_scale"]) * np.sqrt(np.expm1(2.0) / 2)


FAMILIES = {
    "MeanField": MeanField(),
    "FullRank": FullRank(),
    "LowRank": LowRank(2),
    "Point": Point(),
    "Dropout": Dropout(),
    "HeavyTails": HeavyTails(),
}
