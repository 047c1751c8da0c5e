r"""From a sampler, a relation and an accountant to the `DpEvent` of one step.

This is the one place where the conventions of the accountants meet. Let :math:`z` = ``noise_multiplier`` =
:math:`s / C`: noise standard deviation over the bound on the norm of what one record adds to a step
(`l2_clip_norm`, with the counts of an adaptive one).

=====================================  =================  =============================  ===============
mechanism                              relation           event                          with PLD
=====================================  =================  =============================  ===============
full batch                             both               Gaussian(z)                    exact
Poisson                                both               Poisson(q, Gaussian(z))        tight
fixed size B of N                      replace one        WithoutReplacement(N, B,       10 % above a
                                                          Gaussian(z))                   lower bound
=====================================  =================  =============================  ===============

Everything else is refused. The accountants of this package all take :math:`z` so and know the relation
(:mod:`pymc_dpvi.accounting.contract`). For a user's own accountant, under replace-one:

* a `PLDAccountant` (a subclass, since Google's own is replaced by ours) doubles the sensitivity itself and
  gets :math:`z`, which a canary checks at run time. It has no event for batches of fixed size: these are
  Poisson(q, Gaussian(z/2)), proven and about 2x loose (docs/accounting.md, section 4);
* an `RdpAccountant` does not, in dp-accounting 0.6 (google/differential-privacy issue 378), and gets
  :math:`z/2` unless the canary says that it does;
* an accountant that we do not know gets :math:`z/2`, which can only over-report.

**The papers' noise.** Jälkö et al. (2017) add :math:`N(0, 4 C^2 \sigma^2)`: their :math:`\sigma` is a
``noise_multiplier`` of :math:`2\sigma` here, under either relation.

**One coin, one event.** Two releases on the *same* sampled batch (the sum, and a count of clipped records)
are one Poisson(q, Gaussian) with the two noises combined. They must never be two Poisson events: these would
stand for two independent batches, and under-report.
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
    """Return the factor on the noise multiplier that makes replace-one come out right for `accountant`.

    It is 1.0 if the accountant knows the relation's sensitivity, else one over its factor. Raises a
    PrivacyError if the installed PLD accountant stopped doubling the sensitivity.
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
    Privacy: the event is an upper bound of what one step of the mechanism spends, given that the run uses
    this very sampler and noise of standard deviation ``noise_multiplier`` times that norm, and that
    the accountant's bound is proven.
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
    elif isinstance(accountant, PLDAccountant):  # a user's own
        # see the module docstring: contributions of up to 2C
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
