"""Plots of a fit and of what a release means; they need matplotlib.

In: what :func:`pymc_dpvi.interpret` takes or returns; for :func:`plot_iterates` and :func:`plot_gradients`
what ``approx.diagnostics()`` returns; for `plot_posteriors` draws. Out: the axes that were drawn on (new ones
unless `ax` is given), so that titles and limits can be changed afterwards.

What it may never do: use data. Plots show settings and what follows from them, or what a fit released. Only
`plot_posteriors` may show more: the draws that it is given.
"""

from __future__ import annotations

from pymc_dpvi.plots.fit import plot_gradients, plot_iterates
from pymc_dpvi.plots.meaning import plot_epsilon, plot_privacy_profile, plot_trade_off
from pymc_dpvi.plots.posteriors import plot_posteriors

__all__ = [
    "plot_epsilon",
    "plot_gradients",
    "plot_iterates",
    "plot_posteriors",
    "plot_privacy_profile",
    "plot_trade_off",
]
