r"""What a release means for one person, in words that need no definition of ε.

All figures follow from the privacy profile of the mechanism (formulas: `accounting.tradeoff`), not from one
pair (ε, δ). The difference is large: 10,000 Poisson-sampled steps with :math:`q = 0.01` and :math:`z = 1`
have :math:`\varepsilon = 6.19` at :math:`\delta = 10^{-5}`. From this pair alone a membership advantage of
0.996 would follow; the mechanism's own is 0.48.

**Several runs.** Let run :math:`i` have the profile :math:`\delta_i`. Three statements are possible.

1. All settings (noise, sampling, steps) were fixed before the first run, or limited beforehand to what they
   turned out to be. The results of one run may enter the next. Then the dominating pairs of the runs compose
   (Zhu, Dong and Wang 2022, Theorem 10) and the profile is that of all steps together.
2. Only the totals :math:`(\varepsilon_r, \delta_r)` of the runs after the first were limited beforehand, as
   by a `PrivacyBudget`, and all else was chosen after seeing results. Then what follows the first run is
   :math:`(\varepsilon_r, \delta_r)`-DP by basic composition under adaptive choice (Rogers, Roth, Ullman and
   Vadhan 2016), and the whole is the first run's curve followed by that: `PrivacyProfile.then`.
3. Nothing was limited beforehand. Then no statement about the whole is proven. The totals that were spent are
   reported, and the figures are those of 2 with these totals as the limits.

The default is 2. A minimum of :math:`\sum_i \delta_i(\varepsilon_i)` over the ways to split ε is valid under
1 only, where the composed profile is smaller. Under 2, a later run's curve may depend on the first result.

**Odds.** Bounds on odds hold in all but a share of releases. That share is not δ: see `accounting.tradeoff`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dpvi.accounting.curves.comparison import AccountantFigure, compare_accountants
from pymc_dpvi.accounting.curves.profiles import composed_profile
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.pages import Page, Section, shown
from pymc_dpvi.release.report_words import PROTECTS_AGAINST
from pymc_dpvi.release.risk_words import (
    FALSE_POSITIVE_RATES,
    SHARES,
    accountant_table,
    attack_lines,
    group_table,
    odds_lines,
)

__all__ = ["GroupMeaning", "Interpretation", "RunMeaning", "interpret_runs"]

_RECOMPUTED = "proven here from the settings; the accountant's own figure is not"
_FORMAT = "pymc_dpvi.Interpretation"
_FORMAT_VERSION = 1

_BASES = {
    "one_run": "The figures are those of the steps that were planned.",
    "fixed_in_advance": (
        "The settings of all runs were declared to have been fixed, or limited, before the first one; the "
        "figures are those of all their steps together."
    ),
    "limited_in_advance": (
        "There are several runs. The figures are the first one's, followed by anything within the others' "
        "summed epsilon and delta. They hold if these sums were limited in advance, as by a PrivacyBudget, "
        "whatever else was chosen after seeing results. If all settings were fixed before the first run, "
        "runs_fixed_in_advance=True gives smaller figures."
    ),
}


@dataclass(frozen=True, eq=False)
class RunMeaning:
    """What one run by itself means.

    Attributes
    ----------
    run : Run
        Sampler, noise and steps.
    delta : float
        The run's delta.
    epsilon : float
        The stated ε, or, if none is stated or it is not proven, the smallest proven one at `delta`.
    profile : PrivacyProfile
        Upper bounds of delta at every epsilon.
    accountants : tuple of AccountantFigure
        Epsilon at `delta` by each accountant.
    """

    run: Run
    delta: float
    epsilon: float
    profile: PrivacyProfile
    accountants: tuple[AccountantFigure, ...]


@dataclass(frozen=True, eq=False)
class GroupMeaning:
    """What is guaranteed to somebody with several records.

    Attributes
    ----------
    records : int
        How many.
    epsilon, delta : float
        The guarantee; epsilon may be infinite.
    profile : PrivacyProfile
        Upper bounds of delta at every epsilon.
    """

    records: int
    epsilon: float
    delta: float
    profile: PrivacyProfile


@dataclass(frozen=True, eq=False)
class Interpretation:
    """What a release means; made by :func:`pymc_dpvi.interpret`.

    Every figure is an upper bound for an attacker who knows all other records, the model and this program,
    and who sees every step of the fit.

    Attributes
    ----------
    epsilon, delta : float
        The totals.
    guarantee : str
        ``"proven"``, or what is known about the accountant that stated them.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    unit : str
        What one record is.
    profile : PrivacyProfile
        Upper bounds of delta at every epsilon, for all runs together.
    basis : str
        What `profile` rests on: ``"one_run"``, ``"fixed_in_advance"`` or ``"limited_in_advance"``.
    runs : tuple of RunMeaning
        Each run by itself.
    groups : tuple of GroupMeaning
        People with several records.
    assumptions, not_covered, obstacles : tuple of str
        What the guarantee rests on, what it does not cover, and the reasons, if any, why the result must not
        be released.
    """

    epsilon: float
    delta: float
    guarantee: str
    neighboring_relation: str
    unit: str
    profile: PrivacyProfile
    basis: str
    runs: tuple[RunMeaning, ...]
    groups: tuple[GroupMeaning, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    obstacles: tuple[str, ...] = ()

    # ---------------------------------------------------------------------------- figures

    @property
    def advantage(self) -> float:
        """Membership advantage: largest true positive rate minus false positive rate."""
        return self.profile.advantage

    @property
    def accuracy(self) -> float:
        """Largest share of right guesses if both answers are equally likely beforehand."""
        return 0.5 + 0.5 * self.profile.advantage

    def true_positive_rate(self, false_positive_rate: Any) -> Any:
        """Return the largest true positive rate; see `PrivacyProfile.true_positive_rate`."""
        return self.profile.true_positive_rate(false_positive_rate)

    def trade_off(self, false_positive_rate: Any) -> Any:
        """Return the smallest false negative rate; see `PrivacyProfile.false_negative_rate`."""
        return self.profile.false_negative_rate(false_positive_rate)

    @property
    def from_epsilon_alone(self) -> PrivacyProfile:
        """What would follow from (epsilon, delta) if the mechanism were not known."""
        return _of_pair(self.epsilon, self.delta)

    def group(self, records: int) -> GroupMeaning:
        r"""Return what is guaranteed to somebody who contributed several records.

        Parameters
        ----------
        records : int
            How many.

        Returns
        -------
        GroupMeaning
            At the same delta, if there is a finite epsilon. Otherwise (if a mechanism reveals a record with
            probability delta, for example) at the delta
            :math:`\delta\,(e^{k\varepsilon} - 1)/(e^\varepsilon - 1)` of basic group privacy.
        """
        profile = self.profile.group(records)
        delta, epsilon = self.delta, profile.epsilon(self.delta)
        if math.isinf(epsilon) and math.isfinite(records * self.epsilon):
            grown = math.fsum(math.exp(min(j * self.epsilon, 700.0)) for j in range(records))
            delta = min(1.0, self.delta * grown)
            epsilon = min(profile.epsilon(delta), records * self.epsilon)
        return GroupMeaning(records, epsilon, delta, profile)

    # ---------------------------------------------------------------------------- words

    def _facts(self) -> list[tuple[str, str]]:
        proven = self.guarantee == "proven"
        return [
            ("epsilon", f"{shown(self.epsilon, up=True)} ({'upper bound' if proven else _RECOMPUTED})"),
            ("delta", shown(self.delta, up=True)),
            ("protects against", PROTECTS_AGAINST[self.neighboring_relation]),
            ("record", self.unit),
        ]

    def _sections(self) -> list[Section]:
        sections = [
            Section(
                "Can somebody find out about one record?",
                attack_lines(self.profile, self.from_epsilon_alone, self.neighboring_relation),
            ),
            Section("How much can a belief change?", odds_lines(self.profile)),
        ]
        if self.groups:
            lines = ("For all records of one person together the guarantee is weaker:",)
            rows = [(g.records, g.epsilon, g.delta, g.profile) for g in self.groups]
            sections.append(Section("What if one person has several records?", lines, group_table(rows)))
        for number, run in enumerate(self.runs, start=1):
            title = "The same steps by every accountant"
            if len(self.runs) > 1:
                title = f"Run {number} by every accountant, at delta {shown(run.delta, up=True)}"
            sections.append(Section(title, (), accountant_table(run.accountants)))
        sections.append(Section("Rests on", (_BASES[self.basis], *self.assumptions)))
        sections.append(Section("Does not cover", self.not_covered))
        return sections

    def _page(self) -> Page:
        warning = f"NOT FOR RELEASE: {' '.join(self.obstacles)}" if self.obstacles else None
        return Page("What this release means for one person", self._facts(), self._sections(), warning)

    def __str__(self) -> str:
        return self._page().text()

    def _repr_html_(self) -> str:
        """Return the interpretation for a notebook; every text is escaped."""
        return self._page().html()

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain dicts, lists, strings and numbers.

        Returns
        -------
        dict
            Infinite numbers are written as ``"inf"``.
        """
        found = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "epsilon": _plain(self.epsilon),
            "delta": self.delta,
            "guarantee": self.guarantee,
            "neighboring_relation": self.neighboring_relation,
            "unit": self.unit,
            "basis": self.basis,
            **_figures(self.profile),
            "groups": [
                {"records": g.records, "epsilon": _plain(g.epsilon), "delta": g.delta, **_figures(g.profile)}
                for g in self.groups
            ],
            "runs": [
                {
                    "sampler": r.run.sampler.name,
                    "sampling_prob": r.run.sampler.sampling_prob,
                    "noise_multiplier": r.run.noise_multiplier,
                    "n_steps": r.run.n_steps,
                    "epsilon": _plain(r.epsilon),
                    "delta": r.delta,
                    **_figures(r.profile),
                    "accountants": [
                        {
                            "name": f.name,
                            "guarantee": f.guarantee,
                            "source": f.source,
                            "epsilon": None if f.epsilon is None else _plain(f.epsilon),
                            "refusal": f.refusal,
                        }
                        for f in r.accountants
                    ],
                }
                for r in self.runs
            ],
            "assumptions": [_BASES[self.basis], *self.assumptions],
            "not_covered": list(self.not_covered),
            "obstacles": list(self.obstacles),
        }
        return found


def _plain(value: float) -> float | str:
    return float(value) if math.isfinite(value) else "inf"


def _figures(profile: PrivacyProfile) -> dict[str, Any]:
    return {
        "advantage": profile.advantage,
        "true_positive_rates": [
            {"false_positive_rate": a, "true_positive_rate": profile.true_positive_rate(a)}
            for a in FALSE_POSITIVE_RATES
        ],
        "odds": [
            {"share_of_releases": share, "factor": _plain(profile.odds_factor(share))} for share in SHARES
        ],
    }


def _of_pair(epsilon: float, delta: float) -> PrivacyProfile:
    if not math.isfinite(epsilon):
        return PrivacyProfile(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    return PrivacyProfile.from_epsilon_delta(epsilon, delta)


def interpret_runs(
    runs: Sequence[Run],
    *,
    deltas: Sequence[float],
    stated_epsilons: Sequence[float | None],
    guarantee: str,
    neighboring_relation: str,
    unit: str,
    assumptions: Sequence[str],
    not_covered: Sequence[str],
    obstacles: Sequence[str] = (),
    runs_fixed_in_advance: bool = False,
    group_sizes: Iterable[int] = (2, 5),
) -> Interpretation:
    """Return what runs on the same records mean, each with its delta and its stated epsilon, if any.

    `guarantee` is that of these epsilons; sentences are copied; the other arguments are those of `interpret`.
    An ArgumentError if there is no run, or no proven account for one.
    """
    if not runs:
        raise ArgumentError("nothing has been run yet, so there is nothing to interpret: call fit first.")
    if not isinstance(runs_fixed_in_advance, bool):
        raise ArgumentError("runs_fixed_in_advance must be True or False.")
    parts = []
    for run, delta, stated in zip(runs, deltas, stated_epsilons, strict=True):
        profile = composed_profile([run], neighboring_relation=neighboring_relation)
        figures = compare_accountants(run, delta=delta, neighboring_relation=neighboring_relation)
        # Any proven figure holds; the stated one was charged, and is taken if it is proven.
        if stated is None or guarantee != "proven":
            proven = [f.epsilon for f in figures if f.guarantee == "proven" and f.epsilon is not None]
            stated = min([profile.epsilon(delta), *proven])
        parts.append(RunMeaning(run, float(delta), float(stated), profile, figures))
    if len(parts) == 1:
        basis, whole = "one_run", parts[0].profile
    elif runs_fixed_in_advance:
        basis = "fixed_in_advance"
        whole = composed_profile(runs, neighboring_relation=neighboring_relation)
    else:
        basis = "limited_in_advance"
        later = math.fsum(p.epsilon for p in parts[1:])
        later_delta = min(1.0, math.fsum(p.delta for p in parts[1:]))
        finite = math.isfinite(later)
        whole = parts[0].profile.then(later, later_delta) if finite else _of_pair(later, 1.0)
    found = Interpretation(
        epsilon=math.fsum(p.epsilon for p in parts),
        delta=min(1.0, math.fsum(p.delta for p in parts)),
        guarantee=guarantee,
        neighboring_relation=neighboring_relation,
        unit=unit,
        profile=whole,
        basis=basis,
        runs=tuple(parts),
        groups=(),
        assumptions=tuple(assumptions),
        not_covered=tuple(not_covered),
        obstacles=tuple(obstacles),
    )
    groups = tuple(found.group(records) for records in group_sizes)
    return dataclasses.replace(found, groups=groups)
