"""What the reader of a release can check: :func:`check_release`, without data, model or process.

A release is draws with a report in their attributes. From these alone it can be checked that

1. the report can be read, and its totals are the sums of its runs;
2. each run's ε is at least what its accountant charges, computed anew, for its sampler, noise, steps and δ;
3. the accountant's guarantee is the one that is stated, and there are no `obstacles` to a release;
4. the file holds draws and nothing else: every variable is one that `sample` put there, by the names that
   it noted, has axes for chain and draw, and is not withheld by the report, every coordinate is the index of
   such a variable's axis, there are only the attributes that `sample` and ArviZ write, and their ε and δ are
   the report's;
5. if the ledger of its `PrivacyBudget` is at hand: each run was charged to it, with the cost that is stated.

It cannot be checked that the draws and indices are those of that fit, that no run was left out, or that
nothing else was spent on the same data, since anybody can write a file. For the first, compare the file's
hash with one that the curator has signed; for the others, compare the ledger, which has all runs, with what
was agreed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pymc_dpvi.accounting import PrivacyBudget
from pymc_dpvi.accounting.accountants import ACCOUNTANT_NAMES, accountant_info
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.errors import ArgumentError, PrivacyError
from pymc_dpvi.pages import shown
from pymc_dpvi.release.interpretation import opened, report_of
from pymc_dpvi.release.report import PrivacyReport, planned_run

__all__ = ["check_release"]

#: By how much two versions of an accountant may differ, relative to epsilon.
_TOLERANCE = 1e-6
_GROUPS = {"posterior", "unconstrained_posterior"}
#: What `sample` and ArviZ write.
_YES_OR_NO = {"noise_aware", "bounded_by_prior"}
_ATTRIBUTES = {
    *("privacy_report", "privacy_epsilon", "privacy_delta", "released_variables", *_YES_OR_NO),
    *("inference_library", "inference_library_version", "created_at", "arviz_version", "sample_dims"),
    *("creation_library", "creation_library_version", "creation_library_language"),
}


def check_release(source: Any, *, budget: PrivacyBudget | None = None) -> PrivacyReport:
    """Check a release as its reader can, and return its report.

    Parameters
    ----------
    source : path, arviz.InferenceData, xarray.DataTree, PrivacyReport or DPApproximation
        The file that ``to_netcdf`` wrote, what ``sample()`` returned, or a report without draws.
    budget : PrivacyBudget, optional
        The budget that the runs should have been charged to, as ``PrivacyBudget.open(path)`` gives it.

    Returns
    -------
    PrivacyReport

    Raises
    ------
    PrivacyError
        If something does not hold; the text lists all that was found.
    ArgumentError
        If `source` carries no report, or one that cannot be read.

    Notes
    -----
    Privacy: uses no data. Finds careless changes, and a report whose ε does not follow from its settings. It
    cannot tell which fit the draws are from: for that, compare a hash of the file that the curator has
    signed. What else was spent on the same data is in the budget's ledger, if all was charged to it.

    Examples
    --------
    >>> report = check_release("posterior.nc")  # doctest: +SKIP
    """
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise ArgumentError(
            f"budget must be a PrivacyBudget; found a {type(budget).__name__}. Use PrivacyBudget.open(path)."
        )
    source = opened(source)
    report = report_of(source)
    found = [*_in_report(report), *(_in_file(source, report) if hasattr(source, "attrs") else ())]
    if budget is not None:
        found += _in_ledger(report, budget)
    if found:
        raise PrivacyError("This release does not hold what it says. " + " ".join(found))
    return report


def _in_report(report: PrivacyReport) -> Iterator[str]:
    """Name what is wrong with a report."""
    yield from report.obstacles
    if not report.runs:
        yield "The report has no run."
    if report.accountant not in ACCOUNTANT_NAMES:
        yield f"Epsilon cannot be recomputed: the accountant {report.accountant!r} is not of this package."
        return
    info = accountant_info(report.accountant)
    if info.guarantee != report.guarantee:
        stated = report.guarantee
        yield f"The report calls the accountant {report.accountant!r} {stated}; it is {info.guarantee}."
    relation = check_relation(report.neighboring_relation)
    for number, run in enumerate(report.runs, start=1):
        try:
            spent = planned_run(report, run).epsilon(run.delta, info, relation)
        except ArgumentError as error:
            yield f"The cost of run {number} cannot be computed: {error}"
            continue
        if not spent <= run.epsilon * (1.0 + _TOLERANCE):
            yield (
                f"Run {number} states epsilon {shown(run.epsilon)}; its settings spend "
                f"{shown(spent, up=True)} by the accountant {report.accountant!r}."
            )


def _in_ledger(report: PrivacyReport, budget: PrivacyBudget) -> Iterator[str]:
    """Name what a budget's ledger does not bear out."""
    charges = {c.run_id: c for c in budget.ledger if c.run_id}
    for number, run in enumerate(report.runs, start=1):
        charge = charges.get(run.run_id)
        if charge is None:
            yield f"Run {number} is not in the budget's ledger: no charge there has its id."
            continue
        same = ("epsilon", "delta", "n_steps", "noise_multiplier", "sampling_prob")
        stated = (report.neighboring_relation, *(getattr(run, name) for name in same))
        if stated != (charge.neighboring_relation, *(getattr(charge, name) for name in same)):
            yield f"Run {number} is in the budget's ledger with other settings or another cost."


def _in_file(source: Any, report: PrivacyReport) -> Iterator[str]:
    """Name what is wrong with what stands beside a report."""
    # A DataTree may also have groups in groups, and variables outside of any group.
    tree = hasattr(source, "subtree")
    groups = {n.path.strip("/") for n in source.subtree} - {""} if tree else set(source.groups())
    if "posterior" not in groups:
        yield "There are no draws: the group 'posterior' is missing."
    more = {f"the attribute {name!r}" for name in set(source.attrs) - _ATTRIBUTES}
    released = _released(source)
    if released is None:
        yield "The attribute released_variables is no list of the variables that sample() gave."
    more |= groups - _GROUPS | {str(name) for name in (source.data_vars if tree else ())}
    for group in sorted(groups & _GROUPS):
        inside = source[group]
        draws = {
            k: v
            for k, v in inside.data_vars.items()
            if {"chain", "draw"} <= set(v.dims)
            and k not in report.withheld
            and (released is None or k in released)
        }
        axes = {d for v in draws.values() for d in v.dims}
        indices = {k for k, v in inside.coords.items() if v.dims == (k,) and k in axes}
        more |= {f"{group}/{name}" for name in {*inside.data_vars, *inside.coords} - {*draws} - indices}
        more |= {f"the attribute {name!r} of {group}" for name in set(inside.attrs) - _ATTRIBUTES}
        for name, values in inside.variables.items():
            more |= {f"the attribute {key!r} of {group}/{name}" for key in values.attrs}
    if more:
        yield f"There is more than draws, which nobody has accounted for: {', '.join(sorted(more))}."
    for place in (source, source["posterior"] if "posterior" in groups else source):
        attrs = place.attrs
        if attrs.get("privacy_report") != source.attrs.get("privacy_report", attrs.get("privacy_report")):
            yield "There are two different reports in it."
        if _released(place) != released:
            yield "There are two different lists of variables in it."
        for name in sorted(_YES_OR_NO & set(attrs)):
            if attrs[name] not in (0, 1):
                yield f"The attribute {name} is neither 0 nor 1."
        for name in ("epsilon", "delta"):
            if attrs.get(f"privacy_{name}") != getattr(report, name):
                yield f"The attribute privacy_{name} is not what the report says."


def _released(source: Any) -> set[str] | None:
    """Return the names of variables that `sample` noted, or None."""
    try:
        names = json.loads(source.attrs["released_variables"])
    except (KeyError, TypeError, ValueError):
        return None
    return set(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
