"""What the reader of a release can check: :func:`check_release`, without data, model or process.

A release is draws with a report in their attributes. From these alone it can be checked that

1. the report can be read, and its totals are the sums of its runs;
2. each run's ε is at least what its accountant charges, computed anew, for its sampler, noise, steps and δ;
3. the accountant's guarantee is the one that is stated, and there are no `obstacles` to a release;
4. the file holds draws and nothing else: every variable is one that `sample` put there, by the names that
   it noted, has axes for chain and draw, and is not withheld by the report, every coordinate is the index of
   such a variable's axis, there are only the attributes that `sample` and ArviZ write, of the form that they
   give them, and their ε and δ are the report's. Of a file, all groups and variables are looked at, also
   those that ArviZ does not read;
5. if the ledger of its `PrivacyBudget` is at hand: each run was charged to it, with the cost that is stated.

It cannot be checked that the draws and indices are those of that fit, that no run was left out, or that
nothing else was spent on the same data, since anybody can write a file. For the first, compare the file's
hash with one that the curator has signed; for the others, compare the ledger, which has all runs, with what
was agreed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import xarray as xr

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
_YES_OR_NO = {"noise_aware", "bounded_by_prior"}
_VERSION = r"\d[\w.+!]{0,39}"
#: The form of what `sample` and ArviZ write; any, where what it says is checked.
_FORMS = {
    **dict.fromkeys(("privacy_report", "privacy_epsilon", "privacy_delta", "released_variables"), ".*"),
    **dict.fromkeys(_YES_OR_NO, ".*"),
    "inference_library": "pymc_dpvi",
    "inference_library_version": _VERSION,
    "created_at": r"\d{4}-\d\d-\d\dT[\d:.+-]{1,30}",
    "arviz_version": _VERSION,
    "sample_dims": r"\W*chain\W*draw\W*",
    "creation_library": "ArviZ",
    "creation_library_version": _VERSION,
    "creation_library_language": "Python",
}
#: How xarray writes floats and truth values, and labels that are dates or times.
_OF_VARIABLES = {"_FillValue": "nan", "dtype": "bool"}
_OF_LABELS = {
    **_OF_VARIABLES,
    "units": r"[a-z]{3,12}( since [\d:. +-]{10,40})?",
    "calendar": "proleptic_gregorian|standard|gregorian",
    "dtype": r"bool|(datetime|timedelta)64\[[a-z]{1,2}\]",
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
    signed. What else was spent on the same data is in the budget's ledger, if all was charged to it. Bytes
    of a file that belong to no group or variable, as after one was deleted, are not seen: write a new file.

    Examples
    --------
    >>> report = check_release("posterior.nc")  # doctest: +SKIP
    """
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise ArgumentError(
            f"budget must be a PrivacyBudget; found a {type(budget).__name__}. Use PrivacyBudget.open(path)."
        )
    with ExitStack() as files:
        places = _places(source, files)
        if places is None:
            report = report_of(source)
        else:
            root, posterior = places[""], places.get("posterior")
            report = report_of(root if posterior is None or "privacy_report" in root.attrs else posterior)
        found = [*_in_report(report), *(() if places is None else _in_file(places, report))]
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


def _places(source: Any, files: ExitStack) -> dict[str, Any] | None:
    """Return the groups of a release by path, the root as ""; None of what has none. `files` closes them."""
    if isinstance(source, str | os.PathLike):
        return opened(source, partial(_groups_of_file, files=files))
    if not hasattr(source, "attrs"):
        return None
    if hasattr(source, "subtree") and source.parent is None:
        return {node.path.strip("/"): node for node in source.subtree}
    if hasattr(source, "groups") and not hasattr(source, "subtree"):
        return {"": source, **{name: source[name] for name in source.groups()}}
    raise ArgumentError(
        f"source must be all of a release, a file or what sample() returned; found a part of one (a "
        f"{type(source).__name__}), and what stands beside it cannot be checked."
    )


def _groups_of_file(path: str, files: ExitStack) -> dict[str, Any]:
    """Open all groups of a file. ArviZ leaves out what is in no group, and groups in groups."""
    names = []
    for name, place in xr.open_groups(path).items():
        names.append(name)
        place.close()
    # Decoding would take away attributes such as units.
    return {
        name.strip("/"): files.enter_context(xr.open_dataset(path, group=name, decode_cf=False))
        for name in names
    }


def _unknown_attributes(attrs: Mapping[Any, Any], forms: Mapping[str, str]) -> set[str]:
    """Name the attributes that nobody writes, or not in this form."""
    return {str(k) for k, v in attrs.items() if not re.fullmatch(forms.get(k, "(?!)"), str(v), re.DOTALL)}


def _in_file(places: Mapping[str, Any], report: PrivacyReport) -> Iterator[str]:
    """Name what is wrong with what stands beside a report."""
    source, groups = places[""], {*places} - {""}
    if "posterior" not in groups:
        yield "There are no draws: the group 'posterior' is missing."
    more = {f"the attribute {name!r}" for name in _unknown_attributes(source.attrs, _FORMS)}
    released = _released(source)
    if released is None:
        yield "The attribute released_variables is no list of the variables that sample() gave."
    more |= groups - _GROUPS | {str(name) for name in getattr(source, "variables", ())}
    for group in sorted(groups & _GROUPS):
        inside = places[group]
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
        more |= {f"the attribute {name!r} of {group}" for name in _unknown_attributes(inside.attrs, _FORMS)}
        for name, values in inside.variables.items():
            forms = _OF_LABELS if name in indices else _OF_VARIABLES
            strange = _unknown_attributes(values.attrs, forms)
            more |= {f"the attribute {key!r} of {group}/{name}" for key in strange}
    if more:
        yield f"There is more than draws, which nobody has accounted for: {', '.join(sorted(more))}."
    for place in (source, places.get("posterior", source)):
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
