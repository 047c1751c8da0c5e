r"""From a sampler, a relation and an accountant to the `DpEvent` of one step.

This is the one place where the conventions of the accountants meet. Let
:math:`z` = ``noise_multiplier`` = noise standard deviation / `l2_clip_norm` = :math:`s / C`.
Removing a record moves the clipped sum by at most :math:`C`, replacing it by at most :math:`2C`.

==============================  =================  =============================  ==========
mechanism                       relation           event                          tightness
==============================  =================  =============================  ==========
full batch                      add or remove one  Gaussian(z)                    tight
full batch, PLD                 replace one        Gaussian(z)                    tight
full batch, other accountants   replace one        Gaussian(z/2)                  as they are
Poisson                         add or remove one  Poisson(q, Gaussian(z))        tight (PLD)
Poisson, PLD                    replace one        Poisson(q, Gaussian(z))        tight
fixed size B of N, PLD          replace one        Poisson(B/N, Gaussian(z/2))    about 2x
fixed size B of N, others       replace one        WithoutReplacement(N, B,       about 2x
                                                   Gaussian(z/2))
==============================  =================  =============================  ==========

``PLDAccountant`` doubles the sensitivity under replace-one itself; dp-accounting 0.6's
``RdpAccountant`` does not (google/differential-privacy issue 378), so that it must be given
:math:`z/2`. Both facts are checked at run time by a canary: ten full-batch steps, whose exact
epsilon is known (Balle and Wang 2018). An accountant that we do not know gets :math:`z/2`, which
can only over-report.

**Fixed size under PLD.** A batch of fixed size that loses the record in question takes another one
in its place, so that the sum moves by :math:`2C` against the batch *without* it: with all other
records at :math:`+C` and the one at :math:`-C` against :math:`+C`, the outputs are
:math:`(1-q) N(0) + q N(2C)` against :math:`N(0)`. By Proposition 30 of Zhu, Dong and Wang (2022)
this pair and its reverse are the worst, with :math:`q = B/N`. They are neighbours, under
replace-one, of a Poisson-sampled mechanism whose records contribute up to :math:`2C` (replace
:math:`2C` by zero), which is what Poisson(q, Gaussian(z/2)) stands for; PLD then doubles once more.
Gaussian(z) in its place is *not* a bound: at q=0.01, z=8, T=1e4, delta=1e-5 it gives 0.926, below
the 0.947 of the pair above.

Everything else is refused. In particular Poisson sampling under replace-one has, outside of PLD,
no accountant here whose bound is proven, and halving :math:`z` in an add-or-remove bound does not
prove one.
"""

from __future__ import annotations

import functools
from typing import Protocol

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.errors import ArgumentError, PrivacyError

__all__ = ["EventSampler", "UnsupportedEventError", "replace_one_scale", "step_event"]

_CANARY_STEPS = 10
_CANARY_NOISE = 20.0  # a small loss is quick to evaluate
_CANARY_DELTA = 1e-5


class UnsupportedEventError(ArgumentError, dp_accounting.UnsupportedEventError):
    """No proven account exists for this sampler, relation and accountant together."""


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


@functools.cache
def _passes_doubling_canary(kind: type[PrivacyAccountant], without_replacement: bool) -> bool:
    """Whether `kind` reports at least the exact epsilon of sensitivity 2C under replace-one."""
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(_CANARY_NOISE)
    if without_replacement:  # everybody is in the batch: the same mechanism on another path
        event = dp_accounting.SampledWithoutReplacementDpEvent(1, 1, event)
    # PLD and RDP alike take the relation by keyword.
    accountant = kind(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    found = accountant.compose(event, _CANARY_STEPS).get_epsilon(_CANARY_DELTA)
    exact = dp_accounting.get_epsilon_gaussian(_CANARY_NOISE / (2.0 * _CANARY_STEPS**0.5), _CANARY_DELTA)
    return bool(found >= exact * (1.0 - 1e-9))


def replace_one_scale(accountant: PrivacyAccountant, *, without_replacement: bool = False) -> float:
    """Return the factor on the noise multiplier that makes replace-one come out right.

    Parameters
    ----------
    accountant : dp_accounting.PrivacyAccountant
        The accountant that will be given the event.
    without_replacement : bool
        Whether the event is a `SampledWithoutReplacementDpEvent`.

    Returns
    -------
    float
        1.0 if the accountant doubles the sensitivity itself, 0.5 if we must.

    Raises
    ------
    PrivacyError
        If the installed PLD accountant stopped doubling the sensitivity.
    """
    if isinstance(accountant, PLDAccountant):
        if not _passes_doubling_canary(PLDAccountant, False):
            raise PrivacyError(
                "the installed dp-accounting reports too small an epsilon under replace_one "
                "(its PLD accountant no longer doubles the sensitivity). Install "
                "dp-accounting 0.6, or use neighboring_relation='add_or_remove_one'."
            )
        return 1.0
    if isinstance(accountant, RdpAccountant):
        return 1.0 if _passes_doubling_canary(RdpAccountant, without_replacement) else 0.5
    return 0.5


def _scaled(event: dp_accounting.DpEvent, scale: float) -> dp_accounting.GaussianDpEvent:
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise UnsupportedEventError(
            f"the noise of a step must be a GaussianDpEvent; found {type(event).__name__}."
        )
    return dp_accounting.GaussianDpEvent(event.noise_multiplier * scale)


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
        Noise standard deviation divided by `l2_clip_norm`.
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

    Privacy
    -------
    The event is an upper bound of what one step of the mechanism spends, given that the run uses
    this very sampler and noise of standard deviation ``noise_multiplier * l2_clip_norm``.
    """
    event = sampler.dp_event(dp_accounting.GaussianDpEvent(noise_multiplier))
    replace_one = neighboring_relation is NeighboringRelation.REPLACE_ONE
    is_pld = isinstance(accountant, PLDAccountant)

    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent) or (sampler.name == "fixed_size"):
        if not replace_one:
            raise UnsupportedEventError(
                "fixed-size batches fix the number of records, so that adding or removing one "
                "has no meaning for them. Use neighboring_relation='replace_one', or "
                "sampler='poisson' (which is also tighter)."
            )

    if isinstance(event, dp_accounting.GaussianDpEvent):
        scale = replace_one_scale(accountant) if replace_one else 1.0
        mapped: dp_accounting.DpEvent = _scaled(event, scale)
    elif isinstance(event, dp_accounting.PoissonSampledDpEvent):
        if replace_one and not is_pld:
            raise UnsupportedEventError(
                "Poisson sampling under neighboring_relation='replace_one' can be accounted "
                "for with accountant='pld' only. Use accountant='pld', or "
                "neighboring_relation='add_or_remove_one'."
            )
        scale = replace_one_scale(accountant) if replace_one else 1.0
        mapped = dp_accounting.PoissonSampledDpEvent(event.sampling_probability, _scaled(event.event, scale))
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        if is_pld:
            # Proven, though loose: PLD has no event for sampling without replacement. The half is
            # not the accountant's doubling, which is checked here too; see the module docstring.
            mapped = dp_accounting.PoissonSampledDpEvent(
                event.sample_size / event.source_dataset_size,
                _scaled(event.event, 0.5 * replace_one_scale(accountant)),
            )
        else:
            scale = replace_one_scale(accountant, without_replacement=True)
            mapped = dp_accounting.SampledWithoutReplacementDpEvent(
                event.source_dataset_size, event.sample_size, _scaled(event.event, scale)
            )
    else:
        raise UnsupportedEventError(
            f"sampler {sampler.name!r} describes a step as {type(event).__name__}, for which "
            "there is no account here. Use sampler='poisson'."
        )

    if not accountant.supports(mapped):
        raise UnsupportedEventError(
            f"{type(accountant).__name__} does not support {type(mapped).__name__} under "
            f"{neighboring_relation.name}. Use accountant='pld'."
        )
    return mapped
