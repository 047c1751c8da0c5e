"""From a model to draws of its private posterior in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymc_dpvi.compat import PosteriorData
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.inference import DPADVI
from pymc_dpvi.redaction import sealed

__all__ = ["fit_dpadvi"]


@sealed
def fit_dpadvi(
    n: int = 10000,
    *,
    draws: int = 1000,
    method: type[DPADVI] = DPADVI,
    fit_kwargs: Mapping[str, Any] | None = None,
    progressbar: bool = True,
    **kwargs: Any,
) -> PosteriorData:
    """Fit privately and return the posterior draws.

    Parameters
    ----------
    n : int
        Number of steps.
    draws : int
        Number of draws from the private posterior.
    method : type
        :class:`DPADVI` or :class:`DPFullRankADVI`.
    fit_kwargs : dict, optional
        For :meth:`DPADVI.fit`.
    progressbar : bool
        Show steps, speed and ε.
    **kwargs
        For the method: ``epsilon``, ``delta``, ...

    Returns
    -------
    arviz.InferenceData (PyMC 5) or xarray.DataTree (PyMC 6)
        Safe to publish; the privacy report is in its attributes.

    Raises
    ------
    ArgumentError, UnsupportedModelError, CalibrationError
        Before anything is spent.

    Notes
    -----
    Privacy: costs the (ε, δ) that is given; the draws cost nothing more.

    Examples
    --------
    >>> with model:
    ...     idata = fit_dpadvi(2000, epsilon=1.0, delta=1e-6)
    """
    if not (isinstance(method, type) and issubclass(method, DPADVI)):
        raise ArgumentError("method must be DPADVI or DPFullRankADVI (the class, not an instance).")
    if not isinstance(fit_kwargs, Mapping | None):
        raise ArgumentError(f"fit_kwargs must be a dict; found a {type(fit_kwargs).__name__}.")
    options: dict[str, Any] = {"n": n, "progressbar": progressbar}
    if twice := sorted({str(name) for name in fit_kwargs or ()} & options.keys()):
        raise ArgumentError(f"fit_kwargs has {twice}, which are arguments of fit_dpadvi: give them once.")
    inference = method(**kwargs)
    draws = inference.approx.check_draws(draws)  # before anything is spent
    return inference.fit(**options, **dict(fit_kwargs or {})).sample(draws)
