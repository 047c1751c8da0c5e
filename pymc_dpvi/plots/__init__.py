"""Pictures of what a release means; they need matplotlib.

Every function takes what :func:`pymc_dpvi.interpret` takes or returns, draws on one set of axes (a new one
unless `ax` is given), and returns these axes, so that titles and limits can be changed afterwards.

:func:`plot_iterates` and :func:`plot_gradients` take what ``approx.diagnostics()`` returns.

Privacy: pictures show the mechanism's settings and what follows from them, or iterates that are private. They
use no data.

`plot_posteriors` shows what it is given, and is as private as that.
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
