r"""What a family is: the distribution of some latent values about their mean.

A guide has one mean for all latent values, :math:`\mu`, and a family for each group of them. With base draws
:math:`\zeta`, standard normal and public, and parameters :math:`\xi` of its own,

.. math:: z = \mu + d(\zeta; \xi, \mu), \qquad
          \nabla_{(\mu,\xi)} \text{ELBO} = \Big(\frac{\partial z}{\partial(\mu,\xi)}\Big)^{\!\top} \nabla_z
          + \nabla_{(\mu,\xi)} H(\xi, \mu) .

A family says what d and H are. H is its entropy or, where the family brings its own prior, minus its
divergence from that prior. :math:`\nabla_z` is the noisy sum over records plus the prior's gradient, the same
for every family, so the choice of one costs no privacy and changes no proof.

What a family may never do: read a record. Of one that is not ours, `graph.guide_checks` looks at d and H.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["START_SIGMA", "GuideFamily", "is_ours", "shown"]

#: Standard deviation of every unconstrained value at the start.
START_SIGMA = 0.1


class GuideFamily(ABC):
    """How the posterior of some variables is represented; the base class of a family of your own.

    A family is for k latent values, those of the variables that `guide` gives to it, in the unconstrained
    space. Write `parameters`, `deviation`, `entropy` and `stddev`, with PyTensor's operations.

    Attributes
    ----------
    start_sigma : float or None
        Standard deviation at the start, if the user names none. None if the family has no such thing;
        ``start_sigma=`` is then refused for its variables.
    noise_aware : bool
        Whether the noise-aware posterior may stand in for this family's. It is inferred from how gradients
        change with the latent draws, and from the model's prior.

    Notes
    -----
    Privacy: a family works on the release; it costs nothing. One that holds an array is refused. What
    `parameters` returns is released, like ``start=``: it must not be computed from the records.

    Examples
    --------
    Heavy tails, by the hyperbolic sine of a normal number:

    >>> class HeavyTails(GuideFamily):
    ...     def parameters(self, sigma):
    ...         return {"log_scale": np.log(sigma)}
    ...     def deviation(self, params, mean, base_draws):
    ...         return pt.exp(params["log_scale"]) * pt.sinh(base_draws)
    ...     def entropy(self, params, mean):
    ...         return params["log_scale"].sum()
    ...     def stddev(self, params, mean):
    ...         return pt.exp(params["log_scale"]) * np.sqrt(np.expm1(2.0) / 2)
    """

    start_sigma: ClassVar[float | None] = START_SIGMA
    noise_aware: ClassVar[bool] = True

    @abstractmethod
    def parameters(self, sigma: np.ndarray) -> dict[str, np.ndarray]:
        """Return the starting values of the family's own parameters.

        Parameters
        ----------
        sigma : ndarray, shape (k,)
            Standard deviations at the start; NaN if `start_sigma` is None.

        Returns
        -------
        dict of str to ndarray
            They become shared variables; an optimiser moves them.
        """

    def num_base_draws(self, size: int) -> int:
        """Return how many base draws a draw of `size` latent values takes; by default `size`."""
        return size

    @abstractmethod
    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        """Return how far draws are from the mean.

        Parameters
        ----------
        params : dict of str to TensorVariable
            The family's own parameters.
        mean : TensorVariable, shape (k,)
        base_draws : TensorVariable, shape (draws, num_base_draws(k))
            Standard normal.

        Returns
        -------
        TensorVariable, shape (draws, k)
            It must be zero where the base draws are.
        """

    @abstractmethod
    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Return the entropy, a scalar, up to a constant: what the lower bound has beside the densities."""

    @abstractmethod
    def stddev(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Return the standard deviations, shape (k,)."""

    def covariance(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Return the covariance, shape (k, k); diagonal if not said."""
        return pt.diag(self.stddev(params, mean) ** 2)

    def __repr__(self) -> str:
        """Return the name of the family as one types it."""
        return f"{type(self).__name__}()"


def is_ours(family: GuideFamily) -> bool:
    """Whether a family is of this package, as it stands there."""
    kind = type(family)
    own = set(vars(family)) <= set(getattr(kind, "__dataclass_fields__", ()))
    return own and kind.__module__.startswith("pymc_dpvi.guide.")


def shown(family: GuideFamily) -> str:
    """Name a family, without what a user's own one keeps."""
    return repr(family) if is_ours(family) else f"{type(family).__name__}()"
