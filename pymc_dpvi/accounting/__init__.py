"""Privacy accounting: what a run costs, and which run a target pays for.

In: how batches are drawn, the noise, the number of steps. Out: ε, δ, or the noise for a target. A run is a
sequence of `dp_accounting.DpEvent`, one for each step, which a `dp_accounting.PrivacyAccountant` composes.
The epsilon of an accountant whose guarantee is "proven" is an upper bound.

==========================================================  ==================================================
what you want to know                                       ask
==========================================================  ==================================================
what a run costs                                            `epsilon`, `delta`
which run a target pays for                                 `noise_multiplier`, `max_steps`
what all fits on the same data may cost                     `PrivacyBudget`
everything that the cost says about attacks                 `privacy_profile`, :func:`pymc_dpvi.interpret`
who computes it, and what that proves                       `ACCOUNTANT_NAMES`, `accountant_info`
==========================================================  ==================================================

``noise_multiplier`` is the standard deviation of the noise divided by the largest norm of all that one record
adds to a step: ``l2_clip_norm``, or ``l2_clip_norm * sqrt(1 + tally_weight**2)`` with an adaptive one. The
sensitivity is once that norm under add-or-remove-one, twice under replace-one (`relations`), so the same
noise costs more under replace-one. Longer proofs are in ``docs/accounting.md``.

What it may never do: say less than a run costs, or depend on a record. (``generic`` may do the first,
``bayesian`` both; their guarantees say so.)
"""

from __future__ import annotations

from pymc_dpvi.accounting.accountants import (
    ACCOUNTANT_NAMES,
    AccountantInfo,
    accountant_info,
    make_accountant,
    require_proven,
)
from pymc_dpvi.accounting.budget.budget import PrivacyBudget
from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.accounting.calibration import (
    default_sampling_prob,
    delta,
    epsilon,
    max_steps,
    noise_multiplier,
)
from pymc_dpvi.accounting.curves.profiles import privacy_profile
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.events import UnsupportedEventError, step_event
from pymc_dpvi.accounting.papers.advanced_composition import AdvancedCompositionAccountant
from pymc_dpvi.accounting.papers.bayesian import BayesianAccountant, GenericAccountant
from pymc_dpvi.accounting.papers.concentrated import GdpAccountant, ZCdpAccountant
from pymc_dpvi.accounting.papers.moments import MomentsAccountant
from pymc_dpvi.accounting.papers.rdp import rdp_curve

__all__ = [
    "ACCOUNTANT_NAMES",
    "AccountantInfo",
    "AdvancedCompositionAccountant",
    "BayesianAccountant",
    "Charge",
    "GdpAccountant",
    "GenericAccountant",
    "MomentsAccountant",
    "PrivacyBudget",
    "PrivacyProfile",
    "UnsupportedEventError",
    "ZCdpAccountant",
    "accountant_info",
    "default_sampling_prob",
    "delta",
    "epsilon",
    "make_accountant",
    "max_steps",
    "noise_multiplier",
    "privacy_profile",
    "rdp_curve",
    "require_proven",
    "step_event",
]
