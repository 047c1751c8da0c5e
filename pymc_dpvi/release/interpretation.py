r"""What ε means: :func:`interpret`, for a fit, a result, a report, or a plan.

An (ε, δ) pair says little to somebody who has to decide about a release. This module says what an attacker
can do: how often one can find out whether a record was among the data, how far a belief about somebody can
change, what is guaranteed to a person with several records. It also has the figures of the other accountants.
The mathematics is in `accounting.tradeoff`, the treatment of several runs in `meaning`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import arviz as az

from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.release.meaning import Interpretation, interpret_runs
from pymc_dpvi.release.report import PrivacyReport
from pymc_dpvi.release.report_words import assumptions, not_covered

__all__ = ["interpret", "opened", "report_of"]

_CARRIERS = (
    "source must be an approximation, a PrivacyReport, the data that sample() returned, or the path of the "
    "file that to_netcdf wrote"
)
_SOURCES = f"{_CARRIERS}; or leave it out and give noise_multiplier=, n_steps=, delta= and sampling_prob="


def interpret(
    source: Any = None,
    *,
    noise_multiplier: float | None = None,
    sampling_prob: float | None = None,
    n_steps: int | None = None,
    delta: float | None = None,
    sampler: Any = None,
    neighboring_relation: Any = None,
    runs_fixed_in_advance: bool = False,
    group_sizes: Iterable[int] = (2, 5),
) -> Interpretation:
    r"""Say what a fit, or a plan, means for one person.

    Parameters
    ----------
    source : DPApproximation, PrivacyReport, arviz.InferenceData, xarray.DataTree or path, optional
        The approximation, its ``privacy``, what its ``sample()`` returned, or the file that ``to_netcdf``
        wrote. Without it, the keywords describe a plan.
    noise_multiplier : float, optional
        Of a plan: noise standard deviation divided by `l2_clip_norm`.
    sampling_prob : float, optional
        Of a plan: probability that a record is in a batch; B/N for ``"fixed_size"``.
    n_steps : int, optional
        Of a plan: number of steps.
    delta : float, optional
        Of a plan: the δ at which ε is stated.
    sampler : {"poisson", "fixed_size", "full_batch"} or Sampler, optional
        Of a plan; ``"poisson"`` by default.
    neighboring_relation : {"add_or_remove_one", "replace_one"}, optional
        Of a plan; ``"add_or_remove_one"`` by default.
    runs_fixed_in_advance : bool
        For a report with several runs: whether the settings of all of them were fixed, or limited to what
        they are, before the first one. True gives smaller figures; see `pymc_dpvi.release.meaning`.
    group_sizes : iterable of int
        Numbers of records that one person may have contributed.

    Returns
    -------
    Interpretation
        Print it, or show it in a notebook.

    Raises
    ------
    ArgumentError
        If `source` carries no report, an argument is missing or out of range, or there is no proven account
        for the combination.
    PrivacyError
        If `source` is an approximation that was not fitted yet.

    Notes
    -----
    Privacy: uses no data, and costs nothing. The figures are for the planned number of steps, even if fewer
    were run.

    The trade-off curve is

    .. math:: f(a) = 1 - \min_{\varepsilon \ge 0} \min\{\delta(\varepsilon) + e^\varepsilon a,\;
              1 - e^{-\varepsilon}(1 - \delta(\varepsilon) - a)\}

    (Dong, Roth and Su 2022) with the mechanism's own :math:`\delta(\varepsilon)`; the advantage is
    :math:`\delta(0)`.

    Examples
    --------
    >>> meaning = interpret(noise_multiplier=4.0, sampling_prob=0.01, n_steps=10_000, delta=1e-5)
    >>> round(meaning.epsilon, 2), round(meaning.advantage, 2), round(meaning.true_positive_rate(1e-3), 4)
    (0.95, 0.1, 0.0023)
    """
    plan = {
        "noise_multiplier": noise_multiplier,
        "sampling_prob": sampling_prob,
        "n_steps": n_steps,
        "delta": delta,
        "sampler": sampler,
        "neighboring_relation": neighboring_relation,
    }
    if source is not None:
        given = [name for name, value in plan.items() if value is not None]
        if given:
            raise ArgumentError(
                f"{given[0]}= describes a plan, and source is something that was run: give one of the two."
            )
        return report_of(opened(source)).interpret(
            runs_fixed_in_advance=runs_fixed_in_advance, group_sizes=group_sizes
        )
    missing = [name for name in ("noise_multiplier", "n_steps", "delta") if plan[name] is None]
    if missing:
        raise ArgumentError(f"{missing[0]} is missing. {_SOURCES[0].upper()}{_SOURCES[1:]}.")
    assert noise_multiplier is not None and n_steps is not None
    run = Run.from_names(
        sampler="poisson" if sampler is None else sampler,
        sampling_prob=sampling_prob,
        noise_multiplier=noise_multiplier,
        n_steps=n_steps,
    )
    relation = check_relation(neighboring_relation or "add_or_remove_one").name.lower()
    public = relation == "replace_one"
    return interpret_runs(
        [run],
        deltas=[check_number("delta", delta, low=0.0, high=1.0)],
        stated_epsilons=[None],
        guarantee="proven",
        neighboring_relation=relation,
        unit="one record, as the model will have them",
        assumptions=(
            "This is a plan: nothing has been run.",
            *assumptions(was_run=False, noise="lattice", num_records_public=public),
        ),
        not_covered=not_covered(public),
        runs_fixed_in_advance=runs_fixed_in_advance,
        group_sizes=group_sizes,
    )


def opened(source: Any, read: Callable[[str], Any] = az.from_netcdf) -> Any:
    """Return what the file at a path holds, and anything else as it is.

    A FileNotFoundError if nothing is there, an ArgumentError if ``to_netcdf`` did not write it.
    """
    if not isinstance(source, str | os.PathLike):
        return source
    if not os.path.isfile(source):
        raise FileNotFoundError(f"source: there is no file {os.fspath(source)!r}.")
    try:
        return read(os.fspath(source))
    except Exception as error:  # of many kinds, by the library that tried
        raise ArgumentError(
            f"source: {os.fspath(source)!r} is no netCDF file as sample(...).to_netcdf(path) writes it "
            f"(reading it raised {type(error).__name__})."
        ) from None


def report_of(source: Any) -> PrivacyReport:
    """Return the report that `source` is, has, or carries."""
    if isinstance(source, PrivacyReport):
        return source
    attrs = getattr(source, "attrs", None)
    if attrs is not None:
        text = attrs.get("privacy_report") or getattr(getattr(source, "posterior", None), "attrs", {}).get(
            "privacy_report"
        )
        if text is None:
            raise ArgumentError(f"source has no attribute 'privacy_report': {_CARRIERS}.")
        return PrivacyReport.from_json(text)
    report = getattr(source, "privacy", None)
    if not isinstance(report, PrivacyReport):
        raise ArgumentError(f"{_CARRIERS}; found a {type(source).__name__}.")
    return report
