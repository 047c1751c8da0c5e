"""The privacy profile of planned steps: the whole curve of the default accountant (`pld.accountant`).

Its error is relative to delta: the curve is tight, up to its grid, from 1 down to 1e-40. Groups of records
need so small a delta, because they multiply it by :math:`e^a`. For full batches it is the exact curve of one
Gaussian release (`gaussian`). All statements about attacks follow from this curve (`tradeoff`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from pymc_dpvi.accounting.accountants import accountant_info
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.accounting.pld.accountant import TiltedPLDAccountant
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.errors import ArgumentError

__all__ = ["composed_profile", "privacy_profile"]

_N_POINTS = 4001
_MAX_EPSILON = 600.0
_DEEPEST_DELTA = 1e-40


def privacy_profile(
    *,
    noise_multiplier: float,
    n_steps: int,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
) -> PrivacyProfile:
    """Return upper bounds of delta at every epsilon, for one run.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds.
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch.
    sampler : {"poisson", "fixed_size", "full_batch"} or Sampler
        How batches are drawn.
    neighboring_relation : {"add_or_remove_one", "replace_one"}
        Which data sets are neighbours.

    Returns
    -------
    PrivacyProfile

    Raises
    ------
    ArgumentError
        If an argument is out of range, or there is no proven account for the combination.

    Notes
    -----
    Privacy: uses no data.

    Examples
    --------
    >>> profile = privacy_profile(noise_multiplier=4.0, n_steps=10_000, sampling_prob=0.01)
    >>> round(profile.epsilon(1e-5), 2), round(profile.advantage, 3)
    (0.95, 0.101)
    """
    run = Run.from_names(
        sampler=sampler, sampling_prob=sampling_prob, noise_multiplier=noise_multiplier, n_steps=n_steps
    )
    return composed_profile([run], neighboring_relation=neighboring_relation)


def composed_profile(
    runs: Sequence[Run], *, neighboring_relation: Any = "add_or_remove_one"
) -> PrivacyProfile:
    """Return upper bounds of delta at every epsilon, for several runs on the same records.

    All settings must have been fixed before the first run, or limited then to what they are here; results of
    one run may enter the next. Tight composition of dominating pairs (Zhu, Dong and Wang 2022, Theorem 10)
    does not hold for settings that are chosen freely after seeing results; for these see
    :meth:`PrivacyProfile.then`.
    """
    if not runs:
        raise ArgumentError("runs must hold at least one run.")
    return _composed(tuple(runs), check_relation(neighboring_relation))


@functools.lru_cache(maxsize=64)
def _composed(runs: tuple[Run, ...], relation: NeighboringRelation) -> PrivacyProfile:
    accountant = accountant_info("pld").make(relation)
    assert isinstance(accountant, TiltedPLDAccountant)
    for run in runs:
        accountant.compose(run.step_event(accountant, relation), run.n_steps)
    end = min(max(accountant.get_epsilon(_DEEPEST_DELTA), 1e-6), _MAX_EPSILON)
    epsilons = np.linspace(0.0, end, _N_POINTS)
    return PrivacyProfile(epsilons, accountant.delta_curve(epsilons))
