"""Pictures of what a release means; they need matplotlib.

Every function takes what :func:`pymc_dpvi.interpret` takes or returns, draws on one set of axes (a new one
unless `ax` is given), and returns these axes, so that titles and limits can be changed afterwards.

:func:`plot_iterates` and :func:`plot_gradients` take what ``approx.diagnostics()`` returns.

Privacy: pictures show the mechanism's settings and what follows from them, or iterates that are private. They
use no data.

`plot_posteriors` shows what it is given, and is as private as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from pymc_dpvi.accounting.accountants import ACCOUNTANT_NAMES, accountant_info
from pymc_dpvi.accounting.curves.comparison import epsilon_by_steps
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.pages import percent, shown
from pymc_dpvi.release.interpretation import interpret
from pymc_dpvi.release.meaning import Interpretation
from pymc_dpvi.release.risk_words import FALSE_POSITIVE_RATES

__all__ = [
    "plot_epsilon",
    "plot_gradients",
    "plot_iterates",
    "plot_posteriors",
    "plot_privacy_profile",
    "plot_trade_off",
]

_LOWEST_DELTA = 1e-12
_MOST_CURVES = 8
_WIDTH_90 = 1.645  # half the 90 % interval of a standard normal


def new_axes(ax: Any) -> Any:
    """Return `ax`, or the axes of a new figure.

    Raises
    ------
    ArgumentError
        If `ax` is something else.
    ImportError
        If matplotlib is not installed.
    """
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise ArgumentError(f"ax must be a matplotlib Axes; found a {type(ax).__name__}.")
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "plots need matplotlib, which is not installed with this package: pip install matplotlib."
        ) from None
    return plt.subplots(layout="constrained")[1]


def _label(name: str) -> str:
    """Write a name as Matplotlib takes it: ``a$b^$c`` is no formula, and a legend leaves out ``_x``."""
    from matplotlib.mathtext import MathTextParser

    if "$" in name:
        try:
            MathTextParser("path").parse(name)
        except ValueError:
            name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


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
        With the mechanism's curve, what (epsilon, delta) alone would give (dashed), a coin (dotted),
        and the membership bounds at false positive rates 0.001 and 0.01.

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
        Where to evaluate; by default eight numbers up to those of the run, evenly spaced in logarithms.
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
    Privacy: uses no data. A point speaks of a run that was *planned* for so many steps.
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


def plot_iterates(
    source: Any,
    *,
    names: Sequence[str] | None = None,
    ax: Any = None,
    plot_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Plot where the private iterates went, seen from the posterior mean, and which are averaged.

    Parameters
    ----------
    source : FitDiagnostics
        What ``approx.diagnostics()`` returns.
    names : sequence of str, optional
        Latent values, as in ``source.names``; by default the eight that ended farthest from it.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curves.

    Returns
    -------
    matplotlib.axes.Axes
        Means of the latent draws over a few steps each, in posterior standard deviations from the mean of the
        noise-aware posterior; the band is as wide as 90 % of it, its inner part as it would be without noise.
        The dotted line is where the average begins, the last half of the last run.

    Raises
    ------
    ArgumentError
        If `source` is something else, or a name is not among its names.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: shows private iterates; uses no data.
    """
    _check_diagnostics(source)
    if names is None:
        chosen = np.argsort(-source.distance)[:_MOST_CURVES].tolist()
    else:
        if unknown := [name for name in names if name not in source.names]:
            raise ArgumentError(f"names has {unknown}; the latent values are in source.names.")
        chosen = [source.names.index(name) for name in names]
    ax = new_axes(ax)
    steps = [point.step for point in source.path]
    path = np.array([point.mean for point in source.path])
    inner = _WIDTH_90 * float(np.median(source.family_stddev / source.stddev))
    ax.axhspan(-_WIDTH_90, _WIDTH_90, color="0.93", label="90 %, with the noise")
    ax.axhspan(-inner, inner, color="0.85", label="without the noise (median)")
    for k in chosen:
        style = {"label": _label(source.names[k]), **(plot_kwargs or {})}
        ax.plot(steps, (path[:, k] - source.mean[k]) / source.stddev[k], **style)
    ax.axvline(steps[-1] - source.n_steps_late, color="0.5", linestyle=":", label="averaged from here on")
    ax.set(
        xlabel="step",
        ylabel="distance from the posterior mean\n(posterior standard deviations)",
        title=f"Private iterates, ε = {shown(source.epsilon, up=True, digits=3)}",
    )
    ax.set_yscale("symlog", linthresh=5.0)
    ax.legend()
    return ax


def plot_gradients(source: Any, *, ax: Any = None, plot_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Plot the norm of the private gradients, beside what it is if noise is all that is left of them.

    It takes the place of PyMC's ``plt.plot(approx.hist)``: a fit has arrived when the line is in the band
    or below it. Further steps then change nothing that could be told from noise.

    Parameters
    ----------
    source : FitDiagnostics
        What ``approx.diagnostics()`` returns.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curve.

    Returns
    -------
    matplotlib.axes.Axes
        Norms of gradients that are averaged over some steps each, as in ``approx.hist``. The band holds 90 %
        of such norms at the optimum, where gradients are noise: that of the mechanism, of the batches and of
        the latent draws. The dotted line is where the average of the iterates begins.

    Raises
    ------
    ArgumentError
        If `source` is something else.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: shows private gradients; uses no data.
    """
    _check_diagnostics(source)
    ax = new_axes(ax)
    steps = [point.step for point in source.path]
    # Noise of a step: the mechanism's and the batches', and what the draw adds by the slope.
    slope = np.divide(
        1.0, source.family_stddev**2, out=np.zeros(len(source.names)), where=source.family_stddev > 0
    )
    variances = [(p.noise_variance / source.noise_share + p.variance * slope**2) / p.n for p in source.path]
    low, high = np.array([_norms_of_noise(v) for v in variances]).T
    ax.fill_between(steps, low, high, color="0.85", label="noise alone: 90 % of the norms")
    curve = {"label": "norm of the mean gradient", "color": "C0", **(plot_kwargs or {})}
    ax.plot(steps, [float(np.linalg.norm(p.gradient)) for p in source.path], **curve)
    ax.axvline(steps[-1] - source.n_steps_late, color="0.5", linestyle=":", label="averaged from here on")
    ax.set(
        xlabel="step",
        ylabel="norm of the gradient, averaged over some steps",
        title=f"Private gradients, ε = {shown(source.epsilon, up=True, digits=3)}",
        yscale="log",
    )
    ax.legend()
    return ax


def _check_diagnostics(source: Any) -> None:
    if not hasattr(source, "path") or not hasattr(source, "prior_stddev"):
        raise ArgumentError(
            f"source must be what approx.diagnostics() returns; found a {type(source).__name__}."
        )


def _norms_of_noise(variances: np.ndarray) -> tuple[float, float]:
    """5 % and 95 % of the norm of independent normals, by the chi-square of the same mean and variance."""
    unit = np.sum(variances**2) / np.sum(variances)
    low, high = np.sqrt(unit * stats.chi2.ppf([0.05, 0.95], np.sum(variances) / unit))
    return float(low), float(high)


def plot_posteriors(
    posteriors: Mapping[str, Any],
    *,
    var_names: Iterable[str] | None = None,
    ax: Any = None,
    plot_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Plot the intervals of several posteriors of one model side by side.

    Meant for whoever has both a private posterior and another one: a private one at another epsilon, or
    the one that the curator may see and nobody else.

    Parameters
    ----------
    posteriors : mapping of str to arviz.InferenceData, xarray.DataTree or xarray.Dataset
        What to draw, by the name that the legend gives it; groups ``posterior`` are taken.
    var_names : iterable of str, optional
        Variables, in order; by default all that every posterior has.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the medians.

    Returns
    -------
    matplotlib.axes.Axes
        With a line for each entry of each variable: the median, the central half of the draws (thick)
        and the central 90 % (thin).

    Raises
    ------
    ArgumentError
        If there is nothing to draw, or the posteriors differ in a variable's shape.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: a picture is as private as what it shows. One that shows a posterior that was fitted
    without privacy must not be published.
    """
    tables = _entries(posteriors, var_names)
    (first, *others) = tables.values()
    if any(list(entries) != list(first) for entries in others):
        raise ArgumentError(
            "posteriors must be of one model: their variables differ in shape or coordinates."
        )
    ax = new_axes(ax)
    rows = np.arange(len(first))
    step = 0.8 / len(tables)
    for k, (name, entries) in enumerate(tables.items()):
        heights = rows + (k - (len(tables) - 1) / 2) * step
        low, lower, middle, upper, high = np.quantile(
            list(entries.values()), [0.05, 0.25, 0.5, 0.75, 0.95], axis=1
        )
        style = {"marker": "o", "markersize": 4, "linestyle": "none", "color": f"C{k}", **(plot_kwargs or {})}
        ax.plot(middle, heights, label=_label(name), **style)
        ax.hlines(heights, low, high, color=style["color"], linewidth=1)
        ax.hlines(heights, lower, upper, color=style["color"], linewidth=2.5)
    ax.set_yticks(rows, [_label(entry) for entry in first])
    ax.invert_yaxis()
    ax.set(xlabel="value: median, central 50 % and 90 % of the draws")
    ax.legend()
    return ax


def _entries(posteriors: Any, var_names: Iterable[str] | None) -> dict[str, dict[str, np.ndarray]]:
    """Return the draws of every entry of every variable, by posterior and then by the entry's name."""
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise ArgumentError(
            "posteriors must be a dict of names and results, such as {'epsilon = 1': approx.sample(1000)}."
        )
    datasets = {str(name): _dataset(found) for name, found in posteriors.items()}
    if var_names is None:
        first, *others = datasets.values()
        chosen = [name for name in first.data_vars if all(name in other.data_vars for other in others)]
    else:
        chosen = [var_names] if isinstance(var_names, str) else list(var_names)
    missing = [name for name in chosen if any(name not in d.data_vars for d in datasets.values())]
    if not chosen or missing:
        raise ArgumentError(
            f"var_names: {missing[0]!r} is not in every posterior."
            if missing
            else "the posteriors have no variable in common."
        )
    tables = {}
    for label, dataset in datasets.items():
        entries: dict[str, np.ndarray] = {}
        for name in chosen:
            draws = dataset[name].stack(draws=("chain", "draw"))
            own = [dim for dim in draws.dims if dim != "draws"]
            for index in np.ndindex(*(draws.sizes[dim] for dim in own)):
                at = dict(zip(own, index, strict=True))
                labels = [
                    str(draws[dim].values[i]) if dim in draws.coords else str(i) for dim, i in at.items()
                ]
                entries[f"{name}[{', '.join(labels)}]" if own else str(name)] = draws.isel(at).values
        tables[label] = entries
    return tables


def _dataset(source: Any) -> Any:
    """Return the data set of the posterior group, or `source` if it is one."""
    found = getattr(source, "posterior", source)
    found = found.to_dataset() if hasattr(found, "to_dataset") and not hasattr(found, "data_vars") else found
    if not hasattr(found, "data_vars") or not {"chain", "draw"} <= set(found.sizes):
        raise ArgumentError(
            "posteriors must be results of sample(), with a group 'posterior'; found a "
            f"{type(source).__name__}."
        )
    return found
