r"""The privacy profile of planned steps: the whole curve of the default accountant (`pld.accountant`).

Its error is relative to delta, so that the curve is tight up to its grid from 1 down to 1e-40: groups of
records need the far tail, because :math:`e^a` multiplies it there. For full batches it is the exact curve of
one Gaussian release (`gaussian`). Whatever is said about attacks follows from this curve (`tradeoff`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from pymc_dpvi.accounting.accountants import accountant_info
from pymc_dpvi.accounting.calibration import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    MIN_NOISE_MULTIPLIER,
)
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.events import EventSampler, step_event
from pymc_dpvi.accounting.pld.accountant import TiltedPLDAccountant
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.arguments import check_choice, check_integer, check_number
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler

__all__ = ["PlannedRun", "composed_profile", "privacy_profile"]

_N_POINTS = 4001
_MAX_EPSILON = 600.0
_DEEPEST_DELTA = 1e-40
_LARGEST_DENOMINATOR = 10**9


@dataclass(frozen=True)
class PlannedRun:
    """Steps whose number, noise and sampler are fixed.

    Parameters
    ----------
    sampler : EventSampler
        How batches are drawn.
    noise_multiplier : float
        Noise standard deviation divided by `l2_clip_norm`.
    n_steps : int
        Number of steps.

    Raises
    ------
    ArgumentError
        If a number is out of range.
    """

    sampler: EventSampler
    noise_multiplier: float
    n_steps: int

    def __post_init__(self) -> None:
        low = math.nextafter(MIN_NOISE_MULTIPLIER, 0.0)
        noise = check_number(
            "noise_multiplier", self.noise_multiplier, low=low, high=MAX_NOISE_MULTIPLIER, closed_high=True
        )
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "n_steps", check_integer("n_steps", self.n_steps, high=MAX_STEPS))

    @classmethod
    def from_names(
        cls, *, sampler: Any, sampling_prob: Any, noise_multiplier: float, n_steps: int
    ) -> PlannedRun:
        """Return a run from the words of a report, where the number of records is not known.

        Parameters
        ----------
        sampler : {"poisson", "fixed_size", "full_batch"} or Sampler
            How batches are drawn.
        sampling_prob : float or None
            Probability that a record is in a batch; B/N for ``"fixed_size"``.
        noise_multiplier : float
            Noise standard deviation divided by `l2_clip_norm`.
        n_steps : int
            Number of steps.

        Returns
        -------
        PlannedRun

        Raises
        ------
        ArgumentError
            If an argument is out of range, or `sampling_prob` does not fit the sampler.
        """
        return cls(_sampler(sampler, sampling_prob), noise_multiplier, n_steps)


def _sampler(sampler: Any, sampling_prob: Any) -> EventSampler:
    named = isinstance(sampler, str)
    if named or not (hasattr(sampler, "dp_event") and hasattr(sampler, "sampling_prob")):
        check_choice("sampler", sampler, ("poisson", "fixed_size", "full_batch"))
    own = 1.0 if named and sampler == "full_batch" else None if named else float(sampler.sampling_prob)
    if sampling_prob is None:
        if own is None:
            raise ArgumentError(f"sampler={sampler!r} needs sampling_prob, in (0, 1].")
        prob = own
    else:
        prob = check_number("sampling_prob", sampling_prob, low=0.0, high=1.0, closed_high=True)
        if own is not None and prob != own:
            raise ArgumentError(f"sampling_prob={prob:g} contradicts the sampler's own; leave it out.")
    if not named:
        return sampler  # type: ignore[no-any-return]
    if sampler == "full_batch":
        return FullBatchSampler()
    if sampler == "poisson":
        return PoissonSampler(prob)
    # What a fixed-size batch costs depends on B/N alone, so any two numbers with this ratio will do.
    ratio = Fraction(prob).limit_denominator(_LARGEST_DENOMINATOR)
    if float(ratio) != prob:  # no such numbers: the next larger ratio
        ratio = Fraction(math.ceil(Fraction(prob) * _LARGEST_DENOMINATOR), _LARGEST_DENOMINATOR)
    return FixedSizeSampler(ratio.numerator, ratio.denominator)


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
        Noise standard deviation divided by `l2_clip_norm`.
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
    run = PlannedRun.from_names(
        sampler=sampler, sampling_prob=sampling_prob, noise_multiplier=noise_multiplier, n_steps=n_steps
    )
    return composed_profile([run], neighboring_relation=neighboring_relation)


def composed_profile(
    runs: Sequence[PlannedRun], *, neighboring_relation: Any = "add_or_remove_one"
) -> PrivacyProfile:
    """Return upper bounds of delta at every epsilon, for several runs on the same records.

    Parameters
    ----------
    runs : sequence of PlannedRun
        At least one. All their settings must have been fixed before the first one, or have been
        limited beforehand to what they are here. (The results of one may enter the next.)
    neighboring_relation : {"add_or_remove_one", "replace_one"}
        Which data sets are neighbours.

    Returns
    -------
    PrivacyProfile

    Raises
    ------
    ArgumentError
        If there is no run, or no proven account for the combination.

    Notes
    -----
    Privacy: uses no data. Tight composition of dominating pairs (Zhu, Dong and Wang 2022, Theorem 10)
    is not valid for settings that were chosen freely after seeing results; for these see
    :meth:`PrivacyProfile.then`.
    """
    if not runs:
        raise ArgumentError("runs must hold at least one run.")
    return _composed(tuple(runs), check_relation(neighboring_relation))


@functools.lru_cache(maxsize=64)
def _composed(runs: tuple[PlannedRun, ...], relation: NeighboringRelation) -> PrivacyProfile:
    accountant = accountant_info("pld").make(relation)
    assert isinstance(accountant, TiltedPLDAccountant)
    for run in runs:
        event = step_event(
            sampler=run.sampler,
            noise_multiplier=run.noise_multiplier,
            neighboring_relation=relation,
            accountant=accountant,
        )
        accountant.compose(event, run.n_steps)
    end = min(max(accountant.get_epsilon(_DEEPEST_DELTA), 1e-6), _MAX_EPSILON)
    epsilons = np.linspace(0.0, end, _N_POINTS)
    return PrivacyProfile(epsilons, accountant.delta_curve(epsilons))
