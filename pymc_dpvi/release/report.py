r"""What a fit has spent, on which assumptions: a frozen record for people and machines.

A report holds one :class:`PrivacyRun` for each call of `fit` or `refine`. Its totals are sums,

.. math:: \varepsilon = \sum_r \varepsilon_r, \qquad \delta = \sum_r \delta_r,

which is basic composition (Dwork and Roth 2014, Theorem 3.16). It is loose. But it holds if a later run, its
size, or whether it happens at all is chosen after looking at the results of earlier ones, provided that the
totals were limited in advance (Rogers, Roth, Ullman and Vadhan 2016), as by a `PrivacyBudget`. Tighter
composition theorems need more than that.

The report is published. It holds names, settings and versions; nothing in it depends on the records, or on
their number if that is not public, but for the number of steps run (`released_draws`). ε and δ are rounded up
where people read them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.pages import Page, Section, shown
from pymc_dpvi.release import report_json, report_words
from pymc_dpvi.release.meaning import Interpretation, interpret_runs
from pymc_dpvi.release.privacy_run import PrivacyRun
from pymc_dpvi.release.report_json import to_number
from pymc_dpvi.release.report_words import PROTECTS_AGAINST, run_words

__all__ = ["PrivacyReport", "PrivacyRun", "planned_run"]

_NOISES = ("gaussian_float64", "lattice")


@dataclass(frozen=True)
class PrivacyReport:
    """What was spent, and what the guarantee rests on.

    Parameters
    ----------
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    unit : str
        What one record is, such as "one row along the leading axis of 'income'".
    sampler : str
        ``"poisson"``, ``"fixed_size"`` or ``"full_batch"``.
    gradient : str
        ``"aligned"`` or ``"vanilla"``.
    accountant : str
        Name of the accountant.
    guarantee : str
        ``"proven"``, or what is known about the accountant's bound.
    secure_randomness : bool
        Whether noise and batches came from the operating system's cryptographic randomness.
    num_records_public : bool
        Whether the number of records is treated as public. If so, the sampling probability may tell it.
    public_arrays : tuple of str
        Names of arrays in the model that were declared public.
    withheld : tuple of str
        Names of variables that are left out of the release (`DPApproximation.withheld` says why).
    versions : tuple of (str, str)
        Names and versions of the packages that ran.
    runs : tuple of PrivacyRun
        One for each `fit` or `refine`, in order.
    noise : str
        How the noise was drawn: ``"gaussian_float64"`` (in floating point, whose rounding is not accounted
        for) or ``"lattice"`` (in whole multiples of a spacing, whose rounding is accounted for).
    budget : str, optional
        Name of the `PrivacyBudget` that the runs were charged to, if there was one.
    by_unit : bool
        Whether a record is all rows of one id (``DPADVI(unit=...)``), and not one row.
    on_workers : bool
        Whether workers of a cluster held the records (``DPADVI(client=...)``).

    Raises
    ------
    ArgumentError
        If a field does not have its type.

    Notes
    -----
    Privacy: may be published with the release. Only the number of steps run can depend on the records: a
    callback may end the fit by what it sees, which is post-processing, or a person after some time, and run
    times are not covered by the guarantee.
    """

    neighboring_relation: str
    unit: str
    sampler: str
    gradient: str
    accountant: str
    guarantee: str
    secure_randomness: bool
    num_records_public: bool
    public_arrays: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    runs: tuple[PrivacyRun, ...] = ()
    noise: str = "gaussian_float64"
    budget: str | None = None
    by_unit: bool = False
    on_workers: bool = False

    def __post_init__(self) -> None:
        for name in ("neighboring_relation", "unit", "sampler", "gradient", "accountant", "guarantee"):
            if not isinstance(getattr(self, name), str):
                raise ArgumentError(f"PrivacyReport: {name} must be a string.")
        if self.neighboring_relation not in PROTECTS_AGAINST:
            raise ArgumentError(
                "PrivacyReport: neighboring_relation must be 'add_or_remove_one' or 'replace_one'."
            )
        if self.noise not in _NOISES:
            raise ArgumentError(f"PrivacyReport: noise must be one of {list(_NOISES)}.")
        if self.budget is not None and not isinstance(self.budget, str):
            raise ArgumentError("PrivacyReport: budget must be a string or None.")
        for name in ("secure_randomness", "num_records_public", "by_unit", "on_workers"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"PrivacyReport: {name} must be True or False.")
        for name in ("public_arrays", "withheld"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(item, str) for item in value):
                raise ArgumentError(f"PrivacyReport: {name} must be a sequence of names.")
            object.__setattr__(self, name, tuple(value))
        pairs = self.versions.items() if isinstance(self.versions, Mapping) else self.versions
        object.__setattr__(self, "versions", tuple((str(a), str(b)) for a, b in pairs))
        object.__setattr__(self, "runs", tuple(self.runs))
        if not all(isinstance(run, PrivacyRun) for run in self.runs):
            raise ArgumentError("PrivacyReport: runs must be PrivacyRun objects.")

    # ---------------------------------------------------------------------------- totals

    @property
    def epsilon(self) -> float:
        """Total epsilon over all runs."""
        return math.fsum(run.epsilon for run in self.runs)

    @property
    def delta(self) -> float:
        """Total delta over all runs, at most 1."""
        return min(1.0, math.fsum(run.delta for run in self.runs))

    def _last(self) -> PrivacyRun:
        if not self.runs:
            raise AttributeError("nothing has been run yet")
        return self.runs[-1]

    @property
    def n_steps(self) -> int:
        """Planned steps of the last run."""
        return self._last().n_steps

    @property
    def sampling_prob(self) -> float:
        """Sampling probability of the last run."""
        return self._last().sampling_prob

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the last run."""
        return self._last().noise_multiplier

    @property
    def l2_clip_norm(self) -> float:
        """Clip norm of the last run; if it is adaptive, its start value."""
        return self._last().l2_clip_norm

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why the result must not be released as private, in sentences; empty if none is known."""
        return report_words.obstacles(
            secure_randomness=self.secure_randomness,
            noise=self.noise,
            guarantee=self.guarantee,
            accountant=self.accountant,
        )

    @property
    def releasable(self) -> bool:
        """Whether the guarantee holds against somebody who knows the code: there are no `obstacles`."""
        return not self.obstacles

    # ---------------------------------------------------------------------------- changes

    def with_run(self, run: PrivacyRun) -> PrivacyReport:
        """Return the report with `run` added.

        Parameters
        ----------
        run : PrivacyRun
            What was charged.

        Returns
        -------
        PrivacyReport
        """
        return dataclasses.replace(self, runs=(*self.runs, run))

    def with_steps_run(self, steps_run: int) -> PrivacyReport:
        """Return the report with the number of steps of the last run that were run.

        Parameters
        ----------
        steps_run : int
            Number of steps; the planned cost stays.

        Returns
        -------
        PrivacyReport
        """
        last = dataclasses.replace(self._last(), steps_run=steps_run)
        return dataclasses.replace(self, runs=(*self.runs[:-1], last))

    # ---------------------------------------------------------------------------- words

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on, in sentences."""
        if len(self.runs) < 2 or self.budget is not None:
            return self._assumptions_of_a_run()
        return (
            *self._assumptions_of_a_run(),
            "The runs' costs add up to a guarantee if their total was limited in advance. There was no "
            "PrivacyBudget to see to that.",
        )

    def _assumptions_of_a_run(self) -> tuple[str, ...]:
        return report_words.assumptions(
            was_run=bool(self.runs),
            noise=self.noise,
            num_records_public=self.num_records_public,
            public_arrays=self.public_arrays,
            by_unit=self.by_unit,
            on_workers=self.on_workers,
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee does not cover, in sentences."""
        return report_words.not_covered(self.num_records_public)

    def _lines(self) -> list[tuple[str, str]]:
        """Return the settings as (label, text)."""
        bound = "upper bound" if self.guarantee == "proven" else "NOT a proven bound"
        if len(self.runs) > 1 and self.budget is None:
            bound += ", if the total was limited in advance"
        lines = [
            ("epsilon", f"{shown(self.epsilon, up=True)} ({bound})"),
            ("delta", shown(self.delta, up=True)),
            ("releasable", "yes: no obstacle is known" if self.releasable else "NO"),
            ("protects against", PROTECTS_AGAINST[self.neighboring_relation]),
            ("record", self.unit),
            ("accountant", f"{self.accountant} (guarantee: {self.guarantee})"),
            ("gradients", self.gradient),
            ("sampler", self.sampler),
            (
                "randomness",
                "cryptographic, from the operating system"
                if self.secure_randomness
                else "INSECURE (from a seed)",
            ),
            ("number of records", "public" if self.num_records_public else "not public"),
        ]
        if self.budget is not None:
            lines.append(("budget", self.budget))
        lines.append(("public arrays", ", ".join(self.public_arrays) or "none"))
        if self.withheld:
            lines.append(("withheld", ", ".join(self.withheld)))
        lines += [(f"run {number}", run_words(run)) for number, run in enumerate(self.runs, start=1)]
        if self.versions:
            lines.append(("versions", ", ".join(f"{a} {b}" for a, b in self.versions)))
        return lines

    def _page(self) -> Page:
        warning = f"NOT FOR RELEASE: {' '.join(self.obstacles)}" if self.obstacles else None
        sections = (Section("Rests on", self.assumptions), Section("Does not cover", self.not_covered))
        return Page("Differential privacy report", self._lines(), sections, warning)

    def __str__(self) -> str:
        return self._page().text()

    def _repr_html_(self) -> str:
        """Return the report for a notebook; every text is escaped."""
        return self._page().html()

    def interpret(
        self, *, runs_fixed_in_advance: bool = False, group_sizes: Iterable[int] = (2, 5)
    ) -> Interpretation:
        """Return what the cost means for one person.

        Parameters
        ----------
        runs_fixed_in_advance : bool
            Whether the settings of all runs were fixed, or limited to what they are, before the first one.
        group_sizes : iterable of int
            Numbers of records that one person may have contributed.

        Returns
        -------
        Interpretation
            Trade-off curve, membership bounds, odds, groups, other accountants.

        Raises
        ------
        ArgumentError
            If nothing has been run.

        Notes
        -----
        Privacy: uses no data. The figures are those of the mechanism that the report describes. They are
        proven, even if the accountant's are not.
        """
        return interpret_runs(
            [planned_run(self, run) for run in self.runs],
            deltas=[run.delta for run in self.runs],
            stated_epsilons=[run.epsilon for run in self.runs],
            guarantee=self.guarantee,
            neighboring_relation=self.neighboring_relation,
            unit=self.unit,
            assumptions=self._assumptions_of_a_run(),  # the interpretation adds its own for several runs
            not_covered=self.not_covered,
            obstacles=self.obstacles,
            runs_fixed_in_advance=runs_fixed_in_advance,
            group_sizes=group_sizes,
        )

    # ---------------------------------------------------------------------------- machines

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, strings and numbers.

        Returns
        -------
        dict
        """
        return {
            **report_json.header(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighboring_relation": self.neighboring_relation,
            "unit": self.unit,
            "by_unit": self.by_unit,
            "on_workers": self.on_workers,
            "sampler": self.sampler,
            "gradient": self.gradient,
            "accountant": self.accountant,
            "guarantee": self.guarantee,
            "secure_randomness": self.secure_randomness,
            "num_records_public": self.num_records_public,
            "public_arrays": list(self.public_arrays),
            "withheld": list(self.withheld),
            "noise": self.noise,
            "budget": self.budget,
            "runs": [dataclasses.asdict(run) for run in self.runs],
            "releasable": self.releasable,
            "obstacles": list(self.obstacles),
            "assumptions": list(self.assumptions),
            "not_covered": list(self.not_covered),
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """Return the report as JSON. An infinite epsilon is written as ``"inf"``.

        Returns
        -------
        str
        """
        return report_json.write(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> PrivacyReport:
        """Return the report that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.

        Returns
        -------
        PrivacyReport

        Raises
        ------
        ArgumentError
            If `text` is not such a report, or its totals do not follow from its runs.
        """
        found = report_json.read(text)
        computed = ("runs", "versions")
        names = [f.name for f in dataclasses.fields(cls) if f.name not in computed]
        try:
            runs = tuple(
                PrivacyRun(**{key: to_number(value) for key, value in run.items()}) for run in found["runs"]
            )
            report = cls(
                **{name: found[name] for name in names},
                runs=runs,
                versions=tuple(found["versions"].items()),
            )
            totals = (to_number(found["epsilon"]), to_number(found["delta"]))
        except (KeyError, TypeError, AttributeError):
            raise ArgumentError("text is a privacy report with missing or wrong fields.") from None
        if totals != (report.epsilon, report.delta):
            raise ArgumentError("the report's totals do not follow from its runs.")
        return report


def planned_run(report: PrivacyReport, run: PrivacyRun) -> Run:
    """Return a run of a report for the accountants; an ArgumentError if its settings are impossible."""
    return Run.from_names(
        sampler=report.sampler,
        sampling_prob=run.sampling_prob,
        noise_multiplier=run.noise_multiplier,
        n_steps=run.n_steps,
    )
