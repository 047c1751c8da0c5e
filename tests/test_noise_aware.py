"""The noise-aware posterior where the truth is known: quadratics seen through noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_dpvi import DPADVI, PrivacyError, noise_aware
from pymc_dpvi.diagnostics import FitDiagnostics, diagnose
from pymc_dpvi.gradient_trace import MOST_LATENTS, GradientTrace
from pymc_dpvi.noise_aware import NoiseAwarePosterior, Regression, choose_steps, regress

LAMBDA = np.array([[60.0, 25.0, 0.0], [25.0, 40.0, -10.0], [0.0, -10.0, 90.0]])
PRIOR = np.diag([1.0, 4.0, 0.25])
D = 3


def adam_run(
    noise: float,
    n_steps: int,
    rng: np.random.Generator,
    *,
    runs: int = 1,
    curvature: np.ndarray = LAMBDA,
    precision: np.ndarray = PRIOR,
    learning_rate: float = 0.02,
    sigma: float = 0.15,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit quadratics with parameters from the prior by noisy gradients and Adam.

    Returns the parameters, the rows of every step, and the average of the last half of the iterates.
    """
    theta = rng.standard_normal((runs, D)) @ np.linalg.cholesky(np.linalg.inv(precision)).T
    data = theta @ curvature + rng.standard_normal((runs, D)) @ np.linalg.cholesky(curvature).T
    mu, m, v = np.zeros((runs, D)), np.zeros((runs, D)), np.zeros((runs, D))
    rows, iterates = np.empty((n_steps, runs, 3 * D + 1)), np.empty((n_steps, runs, D))
    for t in range(n_steps):
        z = mu + sigma * rng.standard_normal((runs, D))
        likelihood = data - z @ curvature + noise * rng.standard_normal((runs, D))
        prior = -z @ precision
        g = likelihood + prior
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        step = m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
        mu = mu + learning_rate * step
        rows[t] = np.concatenate([z, likelihood, prior, np.full((runs, 1), noise)], axis=1)
        iterates[t] = mu
    return theta, rows, iterates[n_steps // 2 :].mean(axis=0)


def trace_of(rows: np.ndarray) -> GradientTrace:
    trace = GradientTrace((rows.shape[1] - 1) // 3)
    trace.begin(len(rows))
    trace.take(rows)
    return trace


def posterior(rows: np.ndarray, *, full: bool = True, seed: int = 0) -> NoiseAwarePosterior:
    size = (rows.shape[1] - 1) // 3
    return NoiseAwarePosterior(trace_of(rows), np.random.default_rng(seed), np.eye(size) if full else None)


def covered(noise: float, *, runs: int, seed: int, full: bool = True) -> dict[float, float]:
    """Share of the parameters that nominal intervals hold."""
    rng = np.random.default_rng(seed)
    theta, rows, _ = adam_run(noise, 800, rng, runs=runs)
    rank = np.array(
        [np.mean(posterior(rows[:, r], full=full).draw(400, rng) < theta[r], axis=0) for r in range(runs)]
    )
    return {level: float(np.mean(np.abs(rank - 0.5) < level / 2)) for level in (0.5, 0.9)}


def check_coverage(found: dict[float, float], intervals: int) -> None:
    """Intervals of one fit are not independent: as if there were half as many, at four sigma."""
    for level, share in found.items():
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / (intervals / 2)), (level, share)


# From noise that is nothing beside the width of the posterior to noise that is several times as wide.
@pytest.mark.parametrize("noise", [1.0, 150.0, 600.0])
def test_intervals_cover(noise: float) -> None:
    check_coverage(covered(noise, runs=60, seed=3), 60 * D)


def test_half_the_noise_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = regress

    def planted(*args: object) -> Regression | None:
        fit = real(*args)  # type: ignore[arg-type]
        if fit is not None:
            object.__setattr__(fit, "noise", fit.noise / 4)
            object.__setattr__(fit, "variance", fit.variance / 4)
        return fit

    monkeypatch.setattr(noise_aware, "regress", planted)
    with pytest.raises(AssertionError):
        check_coverage(covered(600.0, runs=60, seed=3), 60 * D)


def test_the_plain_width_would_be_noticed() -> None:
    theta, _, average = adam_run(300.0, 800, np.random.default_rng(5), runs=60)
    plain = np.sqrt(np.diag(np.linalg.inv(LAMBDA + PRIOR)))
    z = np.abs(average - theta) / plain
    with pytest.raises(AssertionError):
        check_coverage({a: float(np.mean(z < stats.norm.ppf(0.5 + a / 2))) for a in (0.5, 0.9)}, 60 * D)


def test_without_noise_it_is_the_posterior() -> None:
    _, rows, _ = adam_run(1e-6, 400, np.random.default_rng(1))
    data = rows[0, 0, D : 2 * D] + rows[0, 0, :D] @ LAMBDA
    full = posterior(rows[:, 0])
    h = LAMBDA + PRIOR
    np.testing.assert_allclose(full.mean, np.linalg.solve(h, data), rtol=1e-5)
    np.testing.assert_allclose(full.family_stddev, np.sqrt(np.diag(np.linalg.inv(h))), rtol=1e-5)
    draws = full.draw(20_000, np.random.default_rng(2))
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(h), atol=6e-4)
    field = posterior(rows[:, 0], full=False)
    np.testing.assert_allclose(field.mean, full.mean, rtol=1e-5)
    np.testing.assert_allclose(field.family_stddev, np.diag(h) ** -0.5, rtol=1e-5)
    draws = field.draw(20_000, np.random.default_rng(2))
    np.testing.assert_allclose(np.cov(draws.T), np.diag(1 / np.diag(h)), atol=6e-4)
    assert full.noise_stddev.max() < 1e-5


def test_what_the_noise_adds_is_the_sandwich_variance_of_the_average() -> None:
    # Polyak and Juditsky: H^-1 S H^-1 / n, whatever the optimiser. Both the scatter of the average over
    # runs and the posterior's own figure, from the gradients that the average is of.
    noise, n = 20.0, 1200
    rng = np.random.default_rng(7)
    _, rows, average = adam_run(noise, n, rng, runs=300, learning_rate=0.05, sigma=0.2)
    h = LAMBDA + PRIOR
    data = (rows[..., D : 2 * D] + rows[..., :D] @ LAMBDA).mean(axis=0)  # the noise averages out, nearly
    formula = np.sqrt(np.diag(np.linalg.inv(h) @ np.linalg.inv(h)) * noise**2 / n)
    figure = np.mean([posterior(rows[:, r]).noise_stddev for r in range(20)], axis=0)
    np.testing.assert_allclose(figure, formula, rtol=0.15)
    # The average of the iterates is no farther from the true optimum than that, or hardly.
    assert np.sqrt(np.mean((average - data @ np.linalg.inv(h)) ** 2)) < 2 * formula.max()


def test_scales_of_the_latent_values_do_not_matter() -> None:
    _, rows, _ = adam_run(100.0, 600, np.random.default_rng(4))
    rows = rows[:, 0]
    rows[:, -1] = 0.0
    scale = np.array([1e-3, 1.0, 50.0])
    other = rows * np.concatenate([scale, 1 / scale, 1 / scale, [1.0]])
    a, b = posterior(rows), posterior(other)
    np.testing.assert_allclose(b.mean, scale * a.mean, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(b.noise_stddev, scale * a.noise_stddev, rtol=1e-5)


def test_an_indefinite_prior_has_the_sandwich_variance() -> None:
    precision = np.diag([1.0, 4.0, -5.0])
    rng = np.random.default_rng(8)
    z = 0.15 * rng.standard_normal((4000, D))
    rows = np.concatenate(
        [z, -z @ LAMBDA + 30.0 * rng.standard_normal(z.shape), -z @ precision, np.full((4000, 1), 30.0)],
        axis=1,
    )
    found = posterior(rows)
    h = np.linalg.inv(LAMBDA + precision)
    np.testing.assert_allclose(found.noise_stddev, np.sqrt(np.diag(h @ h) * 900.0 / 3500), rtol=0.25)
    np.testing.assert_allclose(found.family_stddev, np.sqrt(np.diag(h)), rtol=0.25)


def still_rows(
    curvature: np.ndarray, gradient: np.ndarray, noise: float, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Rows of a fit that stands at 0, with prior N(0, I) and this mean gradient of the likelihood."""
    size = len(gradient)
    z = 0.15 * rng.standard_normal((n, size))
    likelihood = gradient - z @ curvature + noise * rng.standard_normal(z.shape)
    return np.concatenate([z, likelihood, -z, np.full((n, 1), noise)], axis=1)


def test_a_step_that_is_noise_is_not_taken_and_one_that_is_not_is() -> None:
    """The optimum is at 0, where the fit stands, or a fifth of the prior's width away."""
    size, n, noise, rng = 12, 2000, 100.0, np.random.default_rng(12)
    curvature = 30.0 * np.eye(size)
    squared = {"mean": 0.0, "optimum": 0.0, "noise_stddev": 0.0}
    for _ in range(20):
        found = posterior(still_rows(curvature, np.zeros(size), noise, n, rng))
        for name in squared:
            squared[name] += float(np.sum(getattr(found, name) ** 2))
    # Shrinkage moves the mean and leaves the uncertainty.
    assert squared["mean"] < squared["optimum"] / 5
    np.testing.assert_allclose(squared["noise_stddev"], squared["optimum"], rtol=0.3)
    away = 0.2 * rng.standard_normal(size)
    found = posterior(still_rows(curvature, curvature @ away, 10.0, n, rng))
    np.testing.assert_allclose(found.mean, away, atol=0.05)
    np.testing.assert_allclose(found.mean, found.optimum, atol=0.01)
    assert not found.stayed


def test_shrinkage_is_james_and_steins() -> None:
    rng = np.random.default_rng(13)
    root = rng.standard_normal((5, 5))
    variance = (root @ root.T)[None].repeat(3, axis=0)
    move = rng.standard_normal((3, 5)) * np.array([[0.01], [1.0], [100.0]])
    test = np.einsum("mi,mij,mj->m", move, np.linalg.inv(variance), move)
    want = np.maximum(0.0, 1.0 - 3.0 / test)[:, None] * move
    assert want[0].any() is np.False_ and want[2].any()
    np.testing.assert_allclose(noise_aware._shrunk(move, variance), want, rtol=1e-8)
    # In coordinates that are known without noise nothing is taken for noise, nor with two that are not.
    variance[:, 2:] = variance[:, :, 2:] = 0.0
    np.testing.assert_array_equal(noise_aware._shrunk(move, variance), move)
    np.testing.assert_array_equal(noise_aware._shrunk(move, 0.0 * variance), move)


def test_gradients_that_no_prior_lets_expect_are_not_followed() -> None:
    """A slope without curvature, held by the prior alone: not a normal likelihood's, but a network's."""
    rng = np.random.default_rng(14)
    curvature, gradient = np.diag([40.0, 40.0, 40.0, 1e-3]), np.array([0.0, 0.0, 0.0, 25.0])
    found = posterior(still_rows(curvature, gradient, 5.0, 2000, rng))
    assert found.stayed and abs(found.optimum[3]) > 0.5
    np.testing.assert_allclose(found.mean, 0.0, atol=0.02)


def test_steps_that_do_not_agree_are_left_out() -> None:
    _, rows, _ = adam_run(20.0, 800, np.random.default_rng(9))
    rows = rows[:, 0]
    trace = trace_of(rows)
    first, fits = choose_steps(trace.blocks, trace.late_blocks, trace.columns)
    assert first == 1 and len(fits) == 1  # a fit never begins at its optimum
    bent = rows.copy()
    bent[:300, D : 2 * D] *= 0.3  # as if clipped
    trace = trace_of(bent)
    assert choose_steps(trace.blocks, trace.late_blocks, trace.columns)[0] == 3
    steep = rows.copy()  # another slope about the same mean
    for block in np.split(steep[:300], 3):
        z = block[:, :D]
        block[:, D : 2 * D] -= 60.0 * (z - z.mean(axis=0))
    trace = trace_of(steep)
    assert choose_steps(trace.blocks, trace.late_blocks, trace.columns)[0] == 3


def test_too_few_steps_tell_nothing() -> None:
    _, rows, _ = adam_run(20.0, 12, np.random.default_rng(9))
    assert not posterior(rows[:, 0]).available
    assert not NoiseAwarePosterior(GradientTrace(3), np.random.default_rng(0)).available
    frozen = np.repeat(rows[:1, 0], 100, axis=0)
    assert not posterior(frozen).available


@pytest.mark.parametrize("n_steps", [96, 120, 150])
def test_blocks_of_fewer_steps_than_values_are_not_judged_by_slopes(n_steps: int) -> None:
    """Their scatter is singular; that all steps agree is seen all the same."""
    rng, size = np.random.default_rng(11), 20
    z = 0.3 + 0.1 * rng.standard_normal((n_steps, size))
    gradients = 50.0 * (0.3 - z) + rng.standard_normal(z.shape)
    trace = trace_of(np.concatenate([z, gradients, -z, np.ones((n_steps, 1))], axis=1))
    first, fits = choose_steps(trace.blocks, trace.late_blocks, trace.columns)
    assert max(block.n for block in trace.blocks) <= size
    assert first == 1 and len(fits) == 1


def test_beyond_a_group_the_family_is_the_fitted_one() -> None:
    rng = np.random.default_rng(10)
    size, n = 70, 600
    z = 0.28 + 0.1 * rng.standard_normal((n, size))
    rows = np.concatenate([z, 50.0 * (0.3 - z) + rng.standard_normal(z.shape), -z, np.ones((n, 1))], axis=1)
    family = 0.2 * np.tril(np.ones((size, size))) / np.sqrt(size)
    found = NoiseAwarePosterior(trace_of(rows), rng, family)
    draws = found.draw(4000, rng)
    np.testing.assert_allclose(found.mean, 0.3 * 50 / 51, atol=0.02)
    want = family @ family.T + np.diag(found.noise_stddev**2)
    np.testing.assert_allclose(np.cov(draws.T), want, atol=6e-3)


def test_of_a_model_with_too_many_latent_values_the_plain_posterior_is_there() -> None:
    size = MOST_LATENTS + 1
    with pm.Model():
        effect = pm.Normal("effect", 0, 1, shape=size)
        group = pm.Data("group", np.arange(30))
        pm.Normal("y", effect[group], 1, observed=pm.Data("y_data", np.ones(30)))
        method = DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
    approx = method.fit(12, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
    draws = approx.sample(3)
    assert draws.posterior["effect"].shape == (1, 3, size) and draws.attrs["noise_aware"] == 0
    for refused in (lambda: approx.sample(3, noise_aware=True), approx.diagnostics):
        with pytest.raises(PrivacyError, match="of up to 4,096 latent values"):
            refused()


def report(noise: float, edit: Callable[[np.ndarray], np.ndarray] = lambda mean: mean) -> FitDiagnostics:
    _, rows, average = adam_run(noise, 800, np.random.default_rng(11), learning_rate=0.05)
    trace = trace_of(rows[:, 0])
    found = NoiseAwarePosterior(trace, np.random.default_rng(0), np.eye(D))
    return diagnose(found, trace, names="abc", average=edit(average[0]), epsilon=1.0)


def test_diagnostics_say_what_limits_a_fit() -> None:
    good = report(20.0)
    assert good.converged and not good.noise_dominated and good.clip_dominated is None
    assert "Converged: yes" in repr(good) and "not known" in repr(good)
    drowned = report(2000.0)
    assert drowned.noise_dominated and "Noise-dominated: yes" in repr(drowned)
    away = report(20.0, lambda mean: mean + 0.5)
    assert not away.converged and "Converged: no" in repr(away)
    np.testing.assert_allclose(good.noise_share, 1.0, atol=0.15)
    counted = dataclasses.replace(good, share_to_clip=0.1, clipped_share=0.9, clipped_share_stddev=0.1)
    assert counted.clip_dominated and "Clip-dominated: yes" in repr(counted)
    assert "steered to clip 10 %" in repr(counted) and "90.0 ± 10.0 %" in repr(counted)
    few = dataclasses.replace(counted, clipped_share=-0.02)
    assert few.clip_dominated is False and "0.0 ± 10.0 %" in repr(few)
    assert "see no record" in repr(dataclasses.replace(counted, clipped_share=None))
    for unsure in ({"clipped_share": 0.6}, {"clipped_share": None, "clipped_share_stddev": None}):
        hidden = dataclasses.replace(counted, **unsure)
        assert hidden.clip_dominated is None and "Clip-dominated: not known" in repr(hidden)
    assert not good.stayed and "is centred on the mean of the fit's own draws" not in repr(good)
    assert "is centred on the mean of the fit's own draws" in repr(dataclasses.replace(good, stayed=True))


def test_the_iterates_are_drawn() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    good = report(20.0)
    ax = good.plot(names=["b"])
    line, start = ax.get_lines()
    assert (line.get_label(), start.get_label()) == ("b", "averaged from here on")
    assert set(start.get_xdata()) == {400}
    means = np.array([p.mean[1] for p in good.path])
    np.testing.assert_allclose(line.get_ydata(), (means - good.optimum[1]) / good.stddev[1])
    assert line.get_xdata()[-1] == 800
    assert len(good.plot().get_lines()) == D + 1
    with pytest.raises(ValueError, match="names has"):
        good.plot(names=["d"])
    plt.close("all")
