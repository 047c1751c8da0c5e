"""Plots of what a release means for one person: settings and what follows from them; no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dpvi.accounting.accountants import ACCOUNTANT_NAMES, accountant_info
from pymc_dpvi.accounting.curves.comparison import epsilon_by_steps
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.arguments import check_integer
from pymc_dpvi.pages import percent, shown
from pymc_dpvi.plots.axes import new_axes
from pymc_dpvi.release.interpretation import interpret
from pymc_dpvi.release.meaning import Interpretation
from pymc_dpvi.release.risk_words import FALSE_POSITIVE_RATES

__all__ = ["plot_epsilon", "plot_privacy_profile", "plot_trade_off"]

_LOWEST_DELTA = 1e-12


def _meaning(source: Any) -> Interpretation:
    return source if isinstance(source, Interpretation) else interpret(source, group_sizes=())


def plot_trade_off(source: Any, *, ax: Any = None, plot_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Plot the trade-off function: what an attack misses against its false alarms.

    Parameters
    ----------
    source : Interpretation, or what `interpret` takes
        What to draw.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curve.

    Returns
    -------
    matplotlib.axes.Axes
        With the mechanism's curve, that of (epsilon, delta) alone (dashed), that of a coin (dotted), and the
        membership bounds at false positive rates of 0.001 and 0.01.

    Raises
    ------
    ArgumentError
        If `source` carries no report.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: uses no data.
    """
    meaning, ax = _meaning(source), new_axes(ax)
    rates = np.unique(np.concatenate([[0.0], np.geomspace(1e-6, 0.1, 200), np.linspace(0.1, 1.0, 200)]))
    curve = {"label": "this mechanism", "color": "C0", **(plot_kwargs or {})}
    ax.plot(rates, meaning.trade_off(rates), **curve)
    alone = f"from ε = {shown(meaning.epsilon, up=True, digits=3)}, δ = {shown(meaning.delta)} alone"
    ax.plot(rates, meaning.from_epsilon_alone.false_negative_rate(rates), "--", color="C1", label=alone)
    ax.plot(rates, 1.0 - rates, ":", color="0.5", label="no information")
    points = np.array(FALSE_POSITIVE_RATES)
    found = ", ".join(
        f"{percent(meaning.true_positive_rate(a))} at {percent(a)}" for a in FALSE_POSITIVE_RATES
    )
    ax.plot(points, meaning.trade_off(points), "o", color="C0", label=f"finds at most {found}")
    ax.set(
        xlabel="false positive rate",
        ylabel="smallest false negative rate",
        title=f"Membership: advantage at most {shown(meaning.advantage, up=True, digits=3)}",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.legend()
    return ax


def plot_privacy_profile(source: Any, *, ax: Any = None, plot_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Plot delta against epsilon.

    Parameters
    ----------
    source : Interpretation, PrivacyProfile, or what `interpret` takes
        What to draw.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curve.

    Returns
    -------
    matplotlib.axes.Axes
        With the stated (epsilon, delta) as a point, where there is one.

    Raises
    ------
    ArgumentError
        If `source` carries no report.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: uses no data.
    """
    meaning = None if isinstance(source, PrivacyProfile) else _meaning(source)
    profile = source if meaning is None else meaning.profile
    ax = new_axes(ax)
    seen = profile.deltas >= min(_LOWEST_DELTA, float(profile.deltas[0]))
    curve = {"label": "upper bound of δ(ε)", "color": "C0", **(plot_kwargs or {})}
    ax.semilogy(profile.epsilons[seen], profile.deltas[seen], **curve)
    if meaning is not None and np.isfinite(meaning.epsilon):
        stated = f"ε = {shown(meaning.epsilon, up=True, digits=3)} at δ = {shown(meaning.delta)}"
        ax.plot([meaning.epsilon], [meaning.delta], "o", color="C1", label=stated)
    ax.set(xlabel="ε", ylabel="δ", title="Privacy profile")
    ax.legend()
    return ax


def plot_epsilon(
    source: Any,
    *,
    run: int = 0,
    n_steps: Sequence[int] | None = None,
    accountants: Iterable[str] = ACCOUNTANT_NAMES,
    ax: Any = None,
    plot_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Plot epsilon against the number of steps, by accountant.

    Parameters
    ----------
    source : Interpretation, or what `interpret` takes
        What to draw.
    run : int
        Which of its runs, from 0.
    n_steps : sequence of int, optional
        Where to evaluate; by default eight numbers up to that of the run, evenly spaced in logarithms.
    accountants : iterable of str
        Names; by default all. Those that do not support the run are left out.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curves.

    Returns
    -------
    matplotlib.axes.Axes
        Proven bounds are solid, others dashed and named as no bounds.

    Raises
    ------
    ArgumentError
        If `source` carries no report, or a number is out of range.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: uses no data. A point is for a run that was *planned* for so many steps.
    """
    meaning, ax = _meaning(source), new_axes(ax)
    part = meaning.runs[check_integer("run", run, low=0, high=len(meaning.runs) - 1)]
    if n_steps is None:
        counts = np.unique(np.geomspace(1, part.run.n_steps, 8).round().astype(int)).tolist()
    else:
        counts = [check_integer("n_steps", n) for n in n_steps]
    found = epsilon_by_steps(
        part.run,
        delta=part.delta,
        n_steps=counts,
        neighboring_relation=meaning.neighboring_relation,
        accountants=accountants,
    )
    for k, (name, epsilons) in enumerate(found.items()):
        guarantee = accountant_info(name).guarantee
        proven = guarantee == "proven"
        style = {
            "label": name if proven else f"{name} ({guarantee}, not a bound)",
            "linestyle": "-" if proven else "--",
            "marker": ".",
            "color": f"C{k}",
            **(plot_kwargs or {}),
        }
        ax.plot(counts, epsilons, **style)
    ax.set(
        xlabel="number of steps",
        ylabel=f"ε at δ = {shown(part.delta)}",
        title="Planned cost by accountant",
        xscale="log",
        yscale="log",
    )
    ax.legend()
    return ax
