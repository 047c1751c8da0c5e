"""The plots look as they did: pictures beside those in ``tests/pictures``.

Without text, whose shapes differ between versions of matplotlib; what is written is tested with the plots.
After a change that is meant, ``PICTURES=new pytest tests/test_pictures.py`` makes the pictures anew: look at
them before you commit them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pymc_dpvi import interpret, plan
from pymc_dpvi.engine.gradient_moments import PathPoint
from pymc_dpvi.plots import (
    plot_epsilon,
    plot_gradients,
    plot_iterates,
    plot_posteriors,
    plot_privacy_profile,
    plot_trade_off,
)
from pymc_dpvi.posterior.diagnostics import FitDiagnostics

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")
compare = pytest.importorskip("matplotlib.testing.compare")
decorators = pytest.importorskip("matplotlib.testing.decorators")

PICTURES = Path(__file__).parent / "pictures"
#: Root mean square of the differences, of 255: other versions draw a line's edge a little otherwise.
TOLERANCE = 3.0


def meaning(noise_multiplier: float = 4.0) -> Any:
    return interpret(
        noise_multiplier=noise_multiplier, n_steps=100, sampling_prob=0.05, delta=1e-5, group_sizes=()
    )


def diagnostics(pull: float = 0.01) -> FitDiagnostics:
    """Three latent values that decay towards the optimum, one of them not quite."""
    steps = np.arange(25, 1001, 25)
    starts, ends = np.array([8.0, -3.0, 1.0]), np.array([0.0, 0.5, -4.0])
    one = np.ones(3)
    away = [(starts - ends) * np.exp(-pull * t) for t in steps]
    path = tuple(
        PathPoint(int(t), 25, ends + a, 0.1 * one, 20.0 * a + 5.0 * np.cos(t + ends), 900.0)
        for t, a in zip(steps, away, strict=True)
    )
    return FitDiagnostics(
        names=("intercept", "age", "hours"),
        mean=np.zeros(3),
        average=ends,
        stddev=one,
        family_stddev=0.8 * one,
        prior_stddev=10.0 * one,
        noise_share=one,
        n_steps_used=700,
        n_steps_late=500,
        stayed=False,
        clipped_share=None,
        clipped_share_stddev=None,
        share_to_clip=None,
        epsilon=1.0,
        path=path,
    )


def posterior(shift: float = 0.0) -> Any:
    grid = np.linspace(-1.0, 1.0, 101)[None]
    draws = {"a": grid + shift, "b": 2.0 * grid - shift}
    return xr.Dataset({k: (("chain", "draw"), v) for k, v in draws.items()})


#: Name of a picture: how it is drawn, and how another is that must not pass for it.
PLOTS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "epsilon": (lambda: plot_epsilon(meaning()), lambda: plot_epsilon(meaning(3.0))),
    "gradients": (lambda: plot_gradients(diagnostics()), lambda: plot_gradients(diagnostics(0.006))),
    "iterates": (lambda: plot_iterates(diagnostics()), lambda: plot_iterates(diagnostics(0.006))),
    "plan": (
        lambda: plan(10_000, 1.0, 1e-6, n_steps=1000).plot(),
        lambda: plan(30_000, 1.0, 1e-6, n_steps=1000).plot(),
    ),
    "posteriors": (
        lambda: plot_posteriors({"private": posterior(0.3), "ordinary": posterior()}),
        lambda: plot_posteriors({"private": posterior(0.5), "ordinary": posterior()}),
    ),
    "profile": (lambda: plot_privacy_profile(meaning()), lambda: plot_privacy_profile(meaning(3.0))),
    "trade_off": (lambda: plot_trade_off(meaning()), lambda: plot_trade_off(meaning(3.0))),
}


def save(ax: Any, path: Path) -> None:
    """Write a plot without words, in a style that no user's settings change."""
    figure = ax.figure
    figure.set_size_inches(4.8, 3.6)
    for axes in figure.axes:
        if axes.get_legend() is not None:
            axes.get_legend().remove()
    decorators.remove_ticks_and_titles(figure)
    for axes in figure.axes:
        axes.set(xlabel="", ylabel="")
        axes.set_position((0.02, 0.02, 0.96, 0.96))
    figure.savefig(path, dpi=60, metadata={"Software": None})


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_looks_as_it_did(name: str, tmp_path: Path) -> None:
    with matplotlib.rc_context(), matplotlib.style.context("default"):
        drawn, other = (tmp_path / f"{which}.png" for which in ("drawn", "other"))
        for draw, path in zip(PLOTS[name], (drawn, other), strict=True):
            save(draw(), path)
            plt.close("all")
    expected = tmp_path / f"{name}.png"
    if os.environ.get("PICTURES") == "new":
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / expected.name).write_bytes(drawn.read_bytes())
    expected.write_bytes((PICTURES / expected.name).read_bytes())  # differences are written beside it
    assert compare.compare_images(str(expected), str(drawn), tol=TOLERANCE) is None
    assert compare.compare_images(str(expected), str(other), tol=TOLERANCE) is not None
