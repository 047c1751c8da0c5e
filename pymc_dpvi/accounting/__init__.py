"""Privacy accounting: what a run costs, and how much noise a target needs.

The cost of a run is a sequence of `dp_accounting.DpEvent`, one for each step, handed to a
`dp_accounting.PrivacyAccountant`. Every epsilon that leaves this package is an upper bound.

==================  =============================================================================
``events``          sampler x neighboring relation x accountant -> `DpEvent`; the one place
``accountants``     the accountants by name, what each guarantees; who may calibrate
``contract``        what every accountant here has in common; refusals
``pld``, ``rdp``    Google's accountants, guarded
``calibration``     `epsilon`, `noise_multiplier`, `default_sampling_prob`
``relations``       the neighboring relations by name
==================  =============================================================================

Throughout, ``noise_multiplier`` is the standard deviation of the noise divided by
``l2_clip_norm``, the bound on one record's contribution. The neighboring relation decides the
sensitivity (once that bound under add-or-remove-one, twice under replace-one) and the accounting
knows it: the same noise costs more under replace-one.
"""

from __future__ import annotations

from pymc_dpvi.accounting.accountants import (
    ACCOUNTANT_NAMES,
    AccountantInfo,
    accountant_info,
    make_accountant,
    require_proven,
)
from pymc_dpvi.accounting.calibration import default_sampling_prob, epsilon, noise_multiplier
from pymc_dpvi.accounting.events import UnsupportedEventError, step_event
from pymc_dpvi.accounting.rdp import rdp_curve

__all__ = [
    "ACCOUNTANT_NAMES",
    "AccountantInfo",
    "UnsupportedEventError",
    "accountant_info",
    "default_sampling_prob",
    "epsilon",
    "make_accountant",
    "noise_multiplier",
    "rdp_curve",
    "require_proven",
    "step_event",
]
