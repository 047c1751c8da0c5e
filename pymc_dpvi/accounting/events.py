r"""From a sampler, a relation and an accountant to the `DpEvent` of one step.

This is the one place that knows the conventions of all accountants. Let :math:`z` be the
``noise_multiplier``: the noise standard deviation divided by the largest norm of all that one record adds to
a step.

=====================================  =================  =============================  ===============
mechanism                              relation           event                          with PLD
=====================================  =================  =============================  ===============
full batch                             both               Gaussian(z)                    exact
Poisson                                both               Poisson(q, Gaussian(z))        tight
fixed size B of N                      replace one        WithoutReplacement(N, B,       10-20 % above a
                                                          Gaussian(z))                   lower bound
=====================================  =================  =============================  ===============

Everything else is refused. This package's accountants take :math:`z` like this and apply the sensitivity's
factor (:mod:`pymc_dpvi.accounting.contract`). Under replace-one a user's own accountant gets another event:

* a subclass of `PLDAccountant` gets :math:`z`, because `PLDAccountant` doubles the sensitivity; a canary
  checks that class, not the subclass, at run time. It has no event for batches of fixed size: these are
  Poisson(q, Gaussian(z/2)), proven and about 2x loose (docs/accounting.md, section 4);
* a subclass of `RdpAccountant` gets :math:`z/2`, because in dp-accounting 0.6 `RdpAccountant` does not double
  (google/differential-privacy issue 378), or :math:`z` once a canary finds that it does;
* any other accountant gets :math:`z/2`, which can only over-report.

**The papers' noise.** Jälkö et al. (2017) add :math:`N(0, 4 C^2 \sigma^2)`: their :math:`\sigma` is a
``noise_multiplier`` of :math:`2\sigma` here, under either relation.

**One coin, one event.** Two releases on the *same* sampled batch (the sum, and a count of clipped records)
are one Poisson(q, Gaussian) with the two noises combined. Two Poisson events would stand for two independent
batches, and under-report.
"""

from __future__ import annotations

from typing import Protocol

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.accounting.contract import (
    CountingAccountant,
    UnsupportedEventError,
    doubles_sensitivity,
    gaussian_step,
    refuse_unsupported,
)
from pymc_dpvi.accounting.papers.rdp import GuardedRdpAccountant
from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.errors import PrivacyError

__all__ = ["EventSampler", "UnsupportedEventError", "replace_one_scale", "step_event"]

_OURS = (CountingAccountant, GuardedRdpAccountant)


class EventSampler(Protocol):
    """What the accounting needs of a sampler (see `pymc_dpvi.sampling`)."""

    @property
    def name(self) -> str:
        """Name of the sampling scheme."""

    @property
    def sampling_prob(self) -> float:
        """Probability that a given record is in a given batch."""

    def dp_event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return the event of one step that releases `noise_event` on a batch."""


def replace_one_scale(accountant: PrivacyAccountant, *, without_replacement: bool = False) -> float:
    """Return the factor on the noise multiplier that `accountant` needs in its events under replace-one.

    It is 1 if the accountant doubles the sensitivity itself, else 1/2. Raises a PrivacyError if the installed
    PLD accountant does not double it.
    """
    if isinstance(accountant, PLDAccountant):
        if not doubles_sensitivity(PLDAccountant):
            raise PrivacyError(
                "the installed dp-accounting reports too small an epsilon under replace_one "
                "(its PLD accountant no longer doubles the sensitivity). Install "
                "dp-accounting 0.6, or use neighboring_relation='add_or_remove_one'."
            )
        return 1.0
    if isinstance(accountant, _OURS):
        return 1.0
    if isinstance(accountant, RdpAccountant):
        if doubles_sensitivity(RdpAccountant, without_replacement=without_replacement):
            return 1.0
    return 1.0 / sensitivity_factor(NeighboringRelation.REPLACE_ONE)


def step_event(
    *,
    sampler: EventSampler,
    noise_multiplier: float,
    neighboring_relation: NeighboringRelation,
    accountant: PrivacyAccountant,
) -> dp_accounting.DpEvent:
    """Return the event of one step, in the convention of `accountant`.

    Parameters
    ----------
    sampler : EventSampler
        The sampler that the run uses.
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds.
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    accountant : dp_accounting.PrivacyAccountant
        The accountant that will compose the event; it is not changed.

    Returns
    -------
    dp_accounting.DpEvent

    Raises
    ------
    UnsupportedEventError
        If no proven bound is available for the combination. The message says what to use.

    Notes
    -----
    Privacy: the accountant's cost of the event is an upper bound of what one step spends if the run uses this
    sampler and noise of standard deviation ``noise_multiplier`` times that norm, and the accountant's
    bound is proven.
    """
    event = sampler.dp_event(dp_accounting.GaussianDpEvent(noise_multiplier))
    replace_one = neighboring_relation is NeighboringRelation.REPLACE_ONE
    step = gaussian_step(event)
    if step is None:
        raise UnsupportedEventError(
            f"sampler {sampler.name!r} describes a step as {type(event).__name__}, which is not a "
            "GaussianDpEvent on the full data or on a sampled batch. Use sampler='poisson'."
        )
    if not replace_one and (step.scheme == "fixed_size" or sampler.name == "fixed_size"):
        raise UnsupportedEventError(
            "fixed-size batches fix the number of records, so that adding or removing one "
            "has no meaning for them. Use neighboring_relation='replace_one', or "
            "sampler='poisson' (which is also tighter)."
        )

    scale = 1.0
    if replace_one:
        scale = replace_one_scale(accountant, without_replacement=step.scheme == "fixed_size")
    noise = dp_accounting.GaussianDpEvent(step.noise_multiplier * scale)
    mapped: dp_accounting.DpEvent
    if step.scheme == "full_batch":
        mapped = noise
    elif step.scheme == "poisson":
        mapped = dp_accounting.PoissonSampledDpEvent(step.sampling_prob, noise)
    elif isinstance(accountant, PLDAccountant):  # a user's own, which has no event for a fixed size
        less = dp_accounting.GaussianDpEvent(
            noise.noise_multiplier / sensitivity_factor(neighboring_relation)
        )
        mapped = dp_accounting.PoissonSampledDpEvent(step.sampling_prob, less)
    else:
        mapped = dp_accounting.SampledWithoutReplacementDpEvent(
            event.source_dataset_size, event.sample_size, noise
        )
    refuse_unsupported(accountant, mapped)
    return mapped
