"""The approximation whose variables have families of their own (``guide=``).

It is a `DPApproximation`; this module has what its families make different: dropout rates, and why some have
no noise-aware posterior.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.guide import Dropout
from pymc_dpvi.guide.family import shown
from pymc_dpvi.guide.fixed import Fixed
from pymc_dpvi.guide.joint import Joint
from pymc_dpvi.posterior.approximation import DPApproximation
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior

__all__ = ["DPGuided"]


class DPGuided(DPApproximation):
    """A family for each variable that ``guide=`` names, mean-field for the rest, fitted privately."""

    _group_class = Joint

    @property
    def log_alpha(self) -> dict[str, np.ndarray]:
        """Logarithms of the dropout rates of variables whose family is `Dropout`, by name.

        The rate is the variance of a weight divided by its mean squared. Weights above about 3 count as
        dropped; one whose mean is zero has an infinite rate.

        Notes
        -----
        Privacy: a function of the variational parameters, which are released; costs nothing.
        """
        names = {
            self._record.model.rvs_to_values[rv].name: str(rv.name) for rv in self._record.model.free_RVs
        }
        found = {}
        for part in self.groups[0].parts:
            if isinstance(part.family, Dropout):
                sigma = np.logaddexp(0, part.params["rho"].get_value())
                with np.errstate(divide="ignore"):
                    rates = 2 * (np.log(sigma) - np.log(np.abs(self.start[part.places])))
                first = 0
                for name, _, shape, _ in self.groups[0].ordering.values():
                    if name in part.names:
                        size = int(np.prod(shape, dtype=int))
                        found[names[name]] = rates[first : first + size].reshape(shape)
                        first += size
        return found

    def _noise_aware(self) -> NoiseAwarePosterior | None:
        """Return None if a family does not allow for it."""
        return None if self.groups[0].not_noise_aware else super()._noise_aware()

    @property
    def _too_few(self) -> str:
        """The error's message if nothing can be inferred from the trace."""
        if names := self.groups[0].not_noise_aware:
            own = [name for name in names if name not in self.latents.still]
            own += [] if self._record.encoded is None else self._record.encoded.names
            return (
                f"There is no noise-aware posterior with the guide of {own}, a point, dropout or an encoder: "
                "it is inferred from the model's prior and from how gradients change with the draws. Use "
                "sample(noise_aware=False), or MeanField() for these variables."
            )
        return super()._too_few

    def __repr__(self) -> str:
        """Return families and size; no numbers from the data."""
        own = [part for part in self.groups[0].parts if not isinstance(part.family, Fixed)]
        parts = ", ".join(f"{shown(part.family)} of {len(part.places)}" for part in own)
        return f"DPGuided({sum(len(part.places) for part in own)} latent values: {parts})"

    __str__ = __repr__
