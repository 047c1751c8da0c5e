"""Plots: what is drawn is the curve, what is written says so."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from noisy_quadratics import adam_run, posterior, trace_of

from pymc_dpvi import Interpretation, accounting, interpret
from pymc_dpvi.accounting import accountants
from pymc_dpvi.compat import posterior_data
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.plots import (
    plot_epsilon,
    plot_gradients,
    plot_iterates,
    plot_posteriors,
    plot_privacy_profile,
    plot_trade_off,
)
from pymc_dpvi.posterior.diagnostics import FitDiagnostics, diagnose
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

PLOTS = [plot_trade_off, plot_privacy_profile, plot_epsilon]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def meaning() -> Interpretation:
    return interpret(noise_multiplier=4.0, n_steps=100, sampling_prob=0.05, delta=1e-5, group_sizes=())


def lines(ax: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in ax.get_lines()}


def legend(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def quadratic(noise: float, learning_rate: float = 0.005) -> FitDiagnostics:
    """A fit of a quadratic, whose gradients are known to be noise once it has arrived."""
    _, rows, average = adam_run(noise, 6400, np.random.default_rng(2), learning_rate=learning_rate)
    known = posterior(rows[:, 0])
    trace = trace_of(rows[:, 0])
    return diagnose(
        known, trace, names=["a", "b", "c"], average=average[0], epsilon=1.0, prior_stddev=np.ones(3)
    )


def in_band(source: FitDiagnostics) -> tuple[np.ndarray, np.ndarray]:
    """Whether the norms of the last half lie in the band, and how many times above it each norm is."""
    ax = plot_gradients(source)
    (polygon,) = ax.collections
    corners = polygon.get_paths()[0].vertices
    x, y = ax.get_lines()[0].get_data()
    high = np.array([corners[corners[:, 0] == step, 1].max() for step in x])
    low = np.array([corners[corners[:, 0] == step, 1].min() for step in x])
    plt.close(ax.figure)
    return ((y > low) & (y < high))[len(y) // 2 :], y / high


@pytest.mark.parametrize("noise", [1.0, 30.0, 150.0])
def test_gradients_fall_into_the_band_of_noise(noise: float) -> None:
    inside, above = in_band(quadratic(noise))
    assert 0.75 < inside.mean() < 0.99  # 90 %, of 32
    if noise < 100:  # beyond it, the way to the optimum drowns
        assert above[0] > 3 and (above[: int(0.02 * len(above))] > 1).all()


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_band_of_other_noise_would_be_noticed(factor: float) -> None:
    source = quadratic(30.0)
    other = dataclasses.replace(
        source, noise_share=source.noise_share * factor, family_stddev=np.full(3, 1e6)
    )
    assert in_band(other)[0].mean() < 0.75


def test_the_words_of_gradients_and_iterates() -> None:
    source = quadratic(30.0)
    ax = plot_gradients(source)
    assert legend(ax) == [
        "noise alone: 90 % of the norms",
        "norm of the mean gradient",
        "averaged from here on",
    ]
    assert ax.get_title() == "Private gradients, ε = 1"
    late = lines(ax)["averaged from here on"].get_xdata()
    assert late[0] == 3200
    for plot in (plot_gradients, plot_iterates):
        with pytest.raises(ArgumentError, match=r"what approx.diagnostics\(\) returns; found a list"):
            plot([1.0])


def test_the_trade_off(meaning: Interpretation) -> None:
    ax = plot_trade_off(meaning)
    mechanism, alone, nothing, points = ax.get_lines()
    x = mechanism.get_xdata()
    assert (x[0], x[-1]) == (0.0, 1.0)
    np.testing.assert_array_equal(mechanism.get_ydata(), meaning.trade_off(x))
    np.testing.assert_array_equal(alone.get_ydata(), meaning.from_epsilon_alone.false_negative_rate(x))
    np.testing.assert_array_equal(nothing.get_ydata(), 1 - x)
    assert points.get_xdata().tolist() == [1e-3, 1e-2]
    np.testing.assert_array_equal(points.get_ydata(), meaning.trade_off(points.get_xdata()))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("false positive rate", "smallest false negative rate")
    assert legend(ax)[0] == "this mechanism"
    assert "finds at most" in legend(ax)[-1] and "at 0.1 %" in legend(ax)[-1]
    assert "advantage at most" in ax.get_title()


def test_the_profile(meaning: Interpretation) -> None:
    ax = plot_privacy_profile(meaning)
    curve, point = ax.get_lines()
    x = curve.get_xdata()
    np.testing.assert_array_equal(x, meaning.profile.epsilons[: x.size])
    np.testing.assert_array_equal(curve.get_ydata(), meaning.profile.deltas[: x.size])
    assert curve.get_ydata().min() >= 1e-12
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (meaning.epsilon, meaning.delta)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("ε", "δ", "log")
    (only,) = plot_privacy_profile(meaning.profile).get_lines()
    np.testing.assert_array_equal(only.get_ydata(), curve.get_ydata())


def test_epsilon_by_steps(meaning: Interpretation) -> None:
    ax = plot_epsilon(meaning, n_steps=[10, 100], accountants=["pld", "rdp"])
    found = lines(ax)
    assert list(found) == legend(ax) == ["pld", "rdp"]
    for name, line in found.items():
        assert line.get_xdata().tolist() == [10, 100]
        for steps, value in zip((10, 100), line.get_ydata(), strict=True):
            assert value == accounting.epsilon(
                delta=1e-5, noise_multiplier=4.0, n_steps=steps, sampling_prob=0.05, accountant=name
            )
        assert line.get_linestyle() == "-"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of steps", "ε at δ = 1e-05")
    default = plot_epsilon(meaning, accountants=["rdp"]).get_lines()[0].get_xdata()
    assert (default[0], default[-1]) == (1, 100)


def test_what_is_no_bound_is_dashed(meaning: Interpretation, monkeypatch: Any) -> None:
    doubtful = dataclasses.replace(accountants._REGISTRY["rdp"], guarantee="heuristic")
    monkeypatch.setitem(accountants._REGISTRY, "rdp", doubtful)
    found = lines(plot_epsilon(meaning, n_steps=[10], accountants=["pld", "rdp"]))
    assert found["rdp (heuristic, not a bound)"].get_linestyle() == "--"
    assert found["pld"].get_linestyle() == "-"


def test_what_is_not_supported_is_left_out() -> None:
    meaning = interpret(
        noise_multiplier=4.0,
        n_steps=10,
        sampling_prob=0.05,
        delta=1e-5,
        neighboring_relation="replace_one",
        group_sizes=(),
    )
    assert list(lines(plot_epsilon(meaning, n_steps=[10], accountants=["pld", "rdp"]))) == ["pld"]


def test_one_run_of_several() -> None:
    run = PrivacyRun(1.0, 1e-5, 100, 100, 0.05, 4.0, 1.0)
    report = PrivacyReport(
        neighboring_relation="add_or_remove_one",
        unit="one row",
        sampler="poisson",
        gradient="aligned",
        accountant="pld",
        guarantee="proven",
        secure_randomness=True,
        num_records_public=False,
        noise="lattice",
    )
    both = report.with_run(run).with_run(dataclasses.replace(run, n_steps=20, steps_run=20))
    line = plot_epsilon(both, run=1, accountants=["pld"]).get_lines()[0]
    assert line.get_xdata()[-1] == 20
    with pytest.raises(ArgumentError, match="run"):
        plot_epsilon(both, run=2)
    with pytest.raises(ArgumentError, match="n_steps"):
        plot_epsilon(both, n_steps=[0])


@pytest.mark.parametrize("plot", PLOTS)
def test_axes_are_taken_and_returned(plot: Any, meaning: Interpretation) -> None:
    options = {"accountants": ["rdp"], "n_steps": [1, 10]} if plot is plot_epsilon else {}
    _, ax = plt.subplots()
    before = len(plt.get_fignums())
    assert plot(meaning, ax=ax, plot_kwargs={"color": "red"}, **options) is ax
    assert len(plt.get_fignums()) == before
    assert ax.get_lines()[0].get_color() == "red"
    assert plot(meaning, **options) is not ax
    ax.figure.canvas.draw()  # everything can be rendered
    with pytest.raises(ArgumentError, match="ax must be"):
        plot(meaning, ax=3)
    with pytest.raises(ArgumentError, match="source must be"):
        plot(3)


@pytest.mark.parametrize("plot", PLOTS)
def test_without_matplotlib_the_error_says_so(plot: Any, meaning: Interpretation, monkeypatch: Any) -> None:
    real = builtins.__import__

    def blocked(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot(meaning)


# ---------------------------------------------------------------------------- posteriors


def draws(seed: int, *, shift: float = 0.0, names: tuple[str, ...] = ("age", "hours")) -> Any:
    """Make a result with a scalar, a vector with coordinates and a matrix without."""
    rng = np.random.default_rng(seed)
    posterior = {
        "a": rng.normal(shift, 1, (1, 400)),
        "beta": rng.normal(shift, 1, (1, 400, len(names))),
        "m": rng.normal(shift, 1, (1, 400, 2, 2)),
    }
    return posterior_data(posterior, coords={"feature": list(names)}, dims={"beta": ["feature"]}, attrs={})


def test_posteriors_side_by_side() -> None:
    one, two = draws(1), draws(2, shift=3.0)
    ax = plot_posteriors({"first": one, "second": two})
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["a", "beta[age]", "beta[hours]", "m[0, 0]", "m[0, 1]", "m[1, 0]", "m[1, 1]"]
    assert legend(ax) == ["first", "second"]
    for line, source in zip(ax.get_lines(), (one, two), strict=True):
        beta = np.asarray(source.posterior["beta"])[0]
        np.testing.assert_allclose(line.get_xdata()[1:3], np.median(beta, axis=0))
    # The upper line of a row is the first posterior's, on an axis that points down.
    first, second = ax.get_lines()
    assert ax.yaxis_inverted() and (first.get_ydata() < second.get_ydata()).all()
    # thin and thick intervals of each posterior
    thin, thick, *_ = ax.collections
    beta = np.asarray(one.posterior["beta"])[0, :, 0]
    np.testing.assert_allclose(thin.get_segments()[1][:, 0], np.quantile(beta, [0.05, 0.95]))
    np.testing.assert_allclose(thick.get_segments()[1][:, 0], np.quantile(beta, [0.25, 0.75]))


def test_posteriors_of_chosen_variables_on_given_axes() -> None:
    _, ax = plt.subplots()
    assert plot_posteriors({"one": draws(1)}, var_names=["m", "a"], ax=ax) is ax
    assert [text.get_text() for text in ax.get_yticklabels()][-1] == "a"
    dataset = draws(1).posterior
    dataset = dataset.to_dataset() if hasattr(dataset, "to_dataset") else dataset
    other = plot_posteriors({"one": dataset}, var_names="a", plot_kwargs={"color": "red"})
    assert other is not ax and other.get_lines()[0].get_color() == "red"


@pytest.mark.parametrize(
    ("posteriors", "options", "said"),
    [
        ({}, {}, "must be a dict"),
        ([draws(1)], {}, "must be a dict"),
        ({"one": 3}, {}, "results of sample"),
        ({"one": draws(1)}, {"var_names": ["nothing"]}, "'nothing' is not in every posterior"),
        ({"one": draws(1), "two": draws(1, names=("age", "weight"))}, {}, "of one model"),
    ],
)
def test_posteriors_that_cannot_be_drawn(posteriors: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        plot_posteriors(posteriors, **options)
