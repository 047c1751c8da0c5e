r"""One family for all variables: PyMC's own groups, and all that differs between them.

PyMC's group has the transform of base draws, :math:`z = T(\xi, \zeta)`, and the density at the draws, hence
the entropy. `Family` adds how it starts, how draws are made, and the chain rule from z to :math:`\xi` for
vanilla gradients, which are clipped after it. With aligned gradients, automatic differentiation takes the
noisy sum from z to :math:`\xi` (`engine.step`).

What a family may never do: read a record. It sees latent values and parameters alone.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import pytensor.tensor as pt
from pymc.variational.approximations import FullRankGroup, MeanFieldGroup
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import START_SIGMA

__all__ = ["Family", "WholeFullRank", "WholeMeanField"]


class Family(Protocol):
    """What is used of a group: first of PyMC's `Group`, then what the classes here and `joint` add."""

    #: Shared variables; among them is ``mu``, the mean of z, shape ``(D,)``.
    params: list[SharedVariable]
    #: Base draws, shape ``(draws, num_base_draws)``; z at them, ``(draws, D)``.
    symbolic_initial: TensorVariable
    symbolic_random: TensorVariable
    #: What the lower bound has beside the densities, a scalar: the entropy.
    symbolic_entropy: TensorVariable
    #: Latent values, D.
    ddim: int

    #: How many numbers a base draw has.
    num_base_draws: int
    #: Whether it takes ``start_sigma``, standard deviations by variable; otherwise `narrow` sets them.
    takes_start_sigma: ClassVar[bool]

    def narrow(self) -> None:
        """Set the standard deviation of every unconstrained value to `START_SIGMA`, if it is not yet set."""

    def chain(self, param: SharedVariable, base_draws: TensorVariable) -> tuple[np.ndarray, TensorVariable]:
        """Return which entry of z each entry of a parameter moves, and by how much, at one base draw."""

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``, with the parameters as they stand."""


class WholeMeanField(MeanFieldGroup):
    r""":math:`z = \mu + \operatorname{softplus}(\rho)\,\zeta`."""

    takes_start_sigma: ClassVar[bool] = True

    @property
    def num_base_draws(self) -> int:
        """One for each latent value."""
        return int(self.ddim)

    @property
    def symbolic_entropy(self) -> TensorVariable:
        """Minus the mean log-density at the draws."""
        return -self.symbolic_logq_not_scaled.mean()

    def narrow(self) -> None:
        """Do nothing: ``start_sigma`` has set the standard deviations."""

    def chain(self, param: SharedVariable, base_draws: TensorVariable) -> tuple[np.ndarray, TensorVariable]:
        """By mu: 1; by rho: the base draw times the logistic function of rho."""
        slope = base_draws * pt.sigmoid(param) if param.name == "rho" else pt.ones(self.ddim)
        return np.arange(self.ddim), slope

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``."""
        mu, rho = (self.params_dict[name].get_value() for name in ("mu", "rho"))
        return np.asarray(mu + np.logaddexp(0, rho) * rng.standard_normal((draws, mu.size)).astype(mu.dtype))


class WholeFullRank(FullRankGroup):
    r""":math:`z = \mu + L\zeta`, where the diagonal of L is the softplus of its parameters."""

    takes_start_sigma: ClassVar[bool] = False

    @property
    def num_base_draws(self) -> int:
        """One for each latent value."""
        return int(self.ddim)

    @property
    def symbolic_entropy(self) -> TensorVariable:
        """Minus the mean log-density at the draws."""
        return -self.symbolic_logq_not_scaled.mean()

    def narrow(self) -> None:
        """Set all standard deviations to `START_SIGMA`, and all correlations to zero."""
        tril = self.params_dict["L_tril"]
        value = np.zeros_like(tril.get_value())
        # Entry (k, k) is the last one of row k.
        value[np.cumsum(np.arange(1, self.ddim + 1)) - 1] = np.log(np.expm1(START_SIGMA))
        tril.set_value(value)

    def chain(self, param: SharedVariable, base_draws: TensorVariable) -> tuple[np.ndarray, TensorVariable]:
        """By mu: 1; by an entry of L: its column's base draw, on the diagonal times the logistic function."""
        if param.name == "mu":
            return np.arange(self.ddim), pt.ones(self.ddim)
        rows, columns = np.tril_indices(self.ddim)
        return rows, base_draws[columns] * pt.switch(rows == columns, pt.sigmoid(param), 1.0)

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``."""
        mu = self.params_dict["mu"].get_value()
        return np.asarray(mu + rng.standard_normal((draws, mu.size)).astype(mu.dtype) @ self.cholesky().T)

    def cholesky(self) -> np.ndarray:
        """L, shape ``(D, D)``, with the parameters as they stand."""
        tril = self.params_dict["L_tril"].get_value()
        chol = np.zeros((self.ddim, self.ddim), dtype=tril.dtype)
        chol[np.tril_indices(self.ddim)] = tril
        diagonal = np.diag_indices(self.ddim)
        chol[diagonal] = np.logaddexp(0, chol[diagonal])
        return chol
