"""Plots of what ``approx.diagnostics()`` has measured: iterates and noisy gradients, which are released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.pages import shown
from pymc_dpvi.plots.axes import label, new_axes

__all__ = ["plot_gradients", "plot_iterates"]

_MOST_CURVES = 8
_WIDTH_90 = 1.645  # half the 90 % interval of a standard normal


def plot_iterates(
    source: Any,
    *,
    names: Sequence[str] | None = None,
    ax: Any = None,
    plot_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Plot the path of the iterates relative to the posterior mean, and which of them are averaged.

    Parameters
    ----------
    source : FitDiagnostics
        What ``approx.diagnostics()`` returns.
    names : sequence of str, optional
        Latent values, as in ``source.names``; by default the eight whose averages are farthest from the mean.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    plot_kwargs : dict, optional
        For the ``plot`` of the curves.

    Returns
    -------
    matplotlib.axes.Axes
        With the means of the latent draws over a few steps each, in posterior standard deviations from the
        mean of the noise-aware posterior. The band is the central 90 % of that posterior; its inner part is
        how wide it would be without noise. The average of the iterates begins at the dotted line, with the
        last half of the last run.

    Raises
    ------
    ArgumentError
        If `source` is something else, or a name is not among its names.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: shows released iterates; uses no data.
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
        style = {"label": label(source.names[k]), **(plot_kwargs or {})}
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
    """Plot the norm of the noisy gradients, and what it would be if they were noise alone.

    Use it in place of PyMC's ``plt.plot(approx.hist)``. A fit has converged when the line is in the band or
    below it: further steps then change nothing that could be told from noise.

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
        With the norms of gradients that are averaged over some steps each, as in ``approx.hist``. The band
        holds 90 % of such norms at the optimum, where gradients are noise of the mechanism, the batches and
        the latent draws. The average of the iterates begins at the dotted line.

    Raises
    ------
    ArgumentError
        If `source` is something else.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    Privacy: shows released gradients; uses no data.
    """
    _check_diagnostics(source)
    ax = new_axes(ax)
    steps = [point.step for point in source.path]
    # Noise of a step: that of mechanism and batches, and that of the latent draw times the slope.
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
    """5 % and 95 % of the norm of independent normals, by a χ² with the mean and variance of its square."""
    unit = np.sum(variances**2) / np.sum(variances)
    low, high = np.sqrt(unit * stats.chi2.ppf([0.05, 0.95], np.sum(variances) / unit))
    return float(low), float(high)
