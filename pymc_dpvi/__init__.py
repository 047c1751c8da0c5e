"""Differentially private variational inference for PyMC.

Write an ordinary PyMC model on the full data, and fit it with

``approx = pm.fit(2000, method=DPADVI(epsilon=1.0, delta=1e-6))``

``approx.sample()`` returns ArviZ data that is safe to publish. ``approx.privacy`` says what the fit cost, and
on which assumptions.
"""

from __future__ import annotations

from pymc_dpvi.accounting import PrivacyBudget
from pymc_dpvi.auditing import AuditReport, audit
from pymc_dpvi.errors import (
    ArgumentError,
    BudgetExceededError,
    CalibrationError,
    InsecureNoiseWarning,
    LedgerError,
    ModelEvaluationError,
    NotSeparableError,
    PrivacyError,
    PrivacyWarning,
    RecordSourceError,
    UnsupportedModelError,
    WorkersError,
)
from pymc_dpvi.graph.local_rules import Quadrature, Variational
from pymc_dpvi.guide import Amortized, Dropout, FullRank, GuideFamily, LowRank, MeanField, Point
from pymc_dpvi.inference import DPADVI, DPFullRankADVI, fit_dpadvi
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.planning import Plan, plan
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField
from pymc_dpvi.posterior.guided import DPGuided
from pymc_dpvi.release.check_release import check_release
from pymc_dpvi.release.interpretation import interpret
from pymc_dpvi.release.meaning import Interpretation
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun

__version__ = "0.1.0"

__all__ = [
    "DPADVI",
    "AdaptiveClip",
    "Amortized",
    "ArgumentError",
    "AuditReport",
    "BudgetExceededError",
    "CalibrationError",
    "DPApproximation",
    "DPFullRank",
    "DPFullRankADVI",
    "DPGuided",
    "DPMeanField",
    "Dropout",
    "FullRank",
    "GuideFamily",
    "InsecureNoiseWarning",
    "Interpretation",
    "LedgerError",
    "LowRank",
    "MeanField",
    "ModelEvaluationError",
    "NotSeparableError",
    "Plan",
    "Point",
    "PrivacyBudget",
    "PrivacyError",
    "PrivacyReport",
    "PrivacyRun",
    "PrivacyWarning",
    "Quadrature",
    "RecordSourceError",
    "UnsupportedModelError",
    "Variational",
    "WorkersError",
    "audit",
    "check_release",
    "fit_dpadvi",
    "interpret",
    "plan",
]
