"""A plot of several posteriors side by side: as private as what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.plots.axes import label, new_axes

__all__ = ["plot_posteriors"]


def plot_posteriors(
    posteriors: Mapping[str, Any],
    *,
    var_names: Iterable[str] | None = None,
    ax: Any = None,
    plot_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Plot the intervals of several posteriors of one model side by side.

    It compares a released posterior with another one: one released at another epsilon, or one without
    privacy, which only the curator may see.

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
    Privacy: a plot is as private as the draws that it shows. A plot of a posterior that was fitted without
    privacy must not be published.
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
        ax.plot(middle, heights, label=label(name), **style)
        ax.hlines(heights, low, high, color=style["color"], linewidth=1)
        ax.hlines(heights, lower, upper, color=style["color"], linewidth=2.5)
    ax.set_yticks(rows, [label(entry) for entry in first])
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
    for source, dataset in datasets.items():
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
        tables[source] = entries
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
