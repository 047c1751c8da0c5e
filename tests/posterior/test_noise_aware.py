"""The noise-aware posterior where the truth is known: quadratics seen through noise, and other priors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytest
from noisy_quadratics import LAMBDA, PRIOR, D, adam_run, posterior, trace_of
from scipy import special, stats

from pymc_dpvi import DPADVI, PrivacyError
from pymc_dpvi.engine import gradient_moments
from pymc_dpvi.engine.gradient_moments import MOST_LATENTS, GradientTrace
from pymc_dpvi.graph.gradients import informed
from pymc_dpvi.pages import shown
from pymc_dpvi.posterior import gradient_regression, noise_aware
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale
from pymc_dpvi.posterior.diagnostics import FitDiagnostics, diagnose
from pymc_dpvi.posterior.gradient_regression import Regression, choose_steps, regress
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior


@pytest.fixture
def known_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no draw of the curvature were off."""
    real = noise_aware.draw_curvature

    def planted(estimate: np.ndarray, variance: np.ndarray, root: np.ndarray, *args: Any) -> np.ndarray:
        return np.repeat((root.T @ LAMBDA @ root)[None], len(real(estimate, variance, root, *args)), axis=0)

    monkeypatch.setattr(noise_aware, "draw_curvature", planted)


def covered(noise: float, *, runs: int, seed: int) -> dict[float, float]:
    """Share of the parameters that nominal intervals hold."""
    rng = np.random.default_rng(seed)
    theta, rows, _ = adam_run(noise, 800, rng, runs=runs)
    rank = np.array([np.mean(posterior(rows[:, r]).draw(400, rng) < theta[r], axis=0) for r in range(runs)])
    return {level: float(np.mean(np.abs(rank - 0.5) < level / 2)) for level in (0.5, 0.9)}


def check_coverage(found: dict[float, float], intervals: int) -> None:
    """Intervals of one fit are not independent: as if there were half as many, at four sigma."""
    for level, share in found.items():
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / (intervals / 2)), (level, share)


def noise_stddev(found: NoiseAwarePosterior) -> np.ndarray:
    """What the noise adds to the standard deviations."""
    return np.sqrt(np.maximum(found.stddevs**2 - found.family_stddev**2, 0.0))


# From noise that is nothing beside the width of the posterior to noise that is several times as wide.
@pytest.mark.turns
@pytest.mark.parametrize("noise", [1.0, 150.0, 600.0])
def test_intervals_cover(noise: float) -> None:
    check_coverage(covered(noise, runs=60, seed=3), 60 * D)


def test_half_the_noise_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = regress

    def planted(*args: object) -> Regression | None:
        fit = real(*args)  # type: ignore[arg-type]
        return fit and dataclasses.replace(fit, noise=fit.noise / 4, variance=fit.variance / 4)

    monkeypatch.setattr(gradient_regression, "regress", planted)
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
    found = posterior(rows[:, 0])
    h = LAMBDA + PRIOR
    np.testing.assert_allclose(found.mean, np.linalg.solve(h, data), rtol=1e-5)
    np.testing.assert_allclose(found.family_stddev, np.sqrt(np.diag(np.linalg.inv(h))), rtol=1e-5)
    np.testing.assert_allclose(found.stddevs, found.family_stddev, rtol=1e-5)
    draws = found.draw(20_000, np.random.default_rng(3))
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(h), atol=6e-4)
    assert noise_stddev(found).max() < 1e-3 * found.stddevs.min()


@pytest.mark.parametrize("noise", [30.0, 600.0])
@pytest.mark.usefixtures("known_curvature")
def test_with_a_known_curvature_it_is_the_prior_conditioned_on_the_mean_gradient(noise: float) -> None:
    """By the gain of a linear observation, where the module adds precisions."""
    _, rows, _ = adam_run(noise, 800, np.random.default_rng(5))
    found = posterior(rows[:, 0])
    used = rows[-found.n_rows :, 0]
    wide, error = np.linalg.inv(PRIOR), noise**2 / len(used) * np.eye(D)
    seen = used[:, D : 2 * D].mean(axis=0) + LAMBDA @ used[:, :D].mean(axis=0)  # N(Λ z, Λ + S / n)
    gain = wide @ LAMBDA @ np.linalg.inv(LAMBDA @ wide @ LAMBDA + LAMBDA + error)
    stddev = np.sqrt(np.diag(wide - gain @ LAMBDA @ wide))
    np.testing.assert_allclose(found.stddevs, stddev, rtol=0.05)
    np.testing.assert_allclose(found.mean, gain @ seen, atol=0.03 * stddev.max())
    np.testing.assert_allclose(
        found.family_stddev, np.sqrt(np.diag(np.linalg.inv(LAMBDA + PRIOR))), rtol=1e-6
    )


@pytest.mark.usefixtures("known_curvature")
def test_what_the_noise_adds_is_the_sandwich_variance_of_the_average() -> None:
    # Polyak and Juditsky: H^-1 S H^-1 / n, whatever the optimiser. Both the scatter of the average over
    # runs and the posterior's own figure, from the gradients that the average is of.
    noise, n = 20.0, 1200
    rng = np.random.default_rng(7)
    _, rows, average = adam_run(noise, n, rng, runs=300, learning_rate=0.05, sigma=0.2)
    h = LAMBDA + PRIOR
    data = (rows[..., D : 2 * D] + rows[..., :D] @ LAMBDA).mean(axis=0)  # the noise averages out, nearly
    formula = np.sqrt(np.diag(np.linalg.inv(h) @ np.linalg.inv(h)) * noise**2 / n)
    figure = np.mean([noise_stddev(posterior(rows[:, r])) for r in range(20)], axis=0)
    np.testing.assert_allclose(figure, formula, rtol=0.15)
    # The average of the iterates is no farther from the true optimum than that, or hardly.
    assert np.sqrt(np.mean((average - data @ np.linalg.inv(h)) ** 2)) < 2 * formula.max()


def test_scales_of_the_latent_values_do_not_matter_where_slopes_are_seen() -> None:
    _, rows, _ = adam_run(5.0, 600, np.random.default_rng(4))
    rows = rows[:, 0]
    rows[:, -1] = 0.0
    scale = np.array([1e-3, 1.0, 50.0])
    other = rows * np.concatenate([scale, 1 / scale, 1 / scale, [1.0]])
    a, b = posterior(rows), posterior(other)
    np.testing.assert_allclose(b.mean, scale * a.mean, rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(b.stddevs, scale * a.stddevs, rtol=0.02)
    np.testing.assert_allclose(b.family_stddev, scale * a.family_stddev, rtol=0.02)


def test_an_indefinite_prior_is_a_wide_one() -> None:
    precision, noise = np.diag([1.0, 4.0, -5.0]), 5.0
    rng = np.random.default_rng(8)
    z = 0.15 * rng.standard_normal((4000, D))
    gradients = -z @ LAMBDA + noise * rng.standard_normal(z.shape)
    found = posterior(np.concatenate([z, gradients, -z @ precision, np.full((4000, 1), noise)], axis=1))
    h = np.linalg.inv(LAMBDA + np.diag([1.0, 4.0, 0.0]))
    np.testing.assert_allclose(found.family_stddev, np.sqrt(np.diag(h)), rtol=0.025)  # with -5: 0.03 more
    np.testing.assert_allclose(found.mean, 0.0, atol=0.03)


def still_rows(
    curvature: np.ndarray, gradient: np.ndarray, noise: float, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Rows of a fit that stands at 0, with prior N(0, I) and this mean gradient of the likelihood."""
    size = len(gradient)
    z = 0.15 * rng.standard_normal((n, size))
    likelihood = gradient - z @ curvature + noise * rng.standard_normal(z.shape)
    return np.concatenate([z, likelihood, -z, np.full((n, 1), noise)], axis=1)


def moved(rows: np.ndarray, by: float) -> np.ndarray:
    """Rows of a fit that stands elsewhere."""
    size = (rows.shape[1] - 1) // 3
    rows[:, :size] += by
    rows[:, 2 * size : 3 * size] -= by
    return rows


def test_where_noise_is_everything_it_is_the_prior() -> None:
    """Wherever the fit ended; a clip norm that tells the curvature's scale leaves no doubt of it."""
    for seed, scale in ((0, CurvatureScale(90.0, 0.7)), (1, None)):
        rng = np.random.default_rng(seed)
        rows = moved(still_rows(30.0 * np.eye(D), np.zeros(D), 1e5, 800, rng), 0.7)
        found = posterior(rows, scale=scale)
        assert not found.stayed
        np.testing.assert_allclose(found.stddevs, 1.0, atol=0.02 if scale else 0.3)
        np.testing.assert_allclose(found.mean, 0.0, atol=0.05 if scale else 0.8)
        assert found.family_stddev.max() < 0.6
        assert np.abs(posterior(rows, scale=scale, seed=5).mean - found.mean).max() < 0.3


def test_the_scale_of_the_curvature_is_heeded() -> None:
    """Slopes are noise alone; how narrow the posterior would be without noise follows the scale."""
    rng = np.random.default_rng(2)
    rows = still_rows(30.0 * np.eye(D), np.zeros(D), 1e5, 800, rng)
    small, large = (posterior(rows, scale=CurvatureScale(t, 0.3)).family_stddev for t in (1.0, 1e4))
    assert (small > 0.7).all() and (large < 0.05).all()


def test_a_step_that_is_not_noise_is_taken() -> None:
    """The optimum is a fifth of the prior's width away from where the fit stands."""
    size, rng = 12, np.random.default_rng(12)
    away, curvature = 0.2 * rng.standard_normal(size), 30.0 * np.eye(size)
    found = posterior(still_rows(curvature, curvature @ away, 10.0, 2000, rng))
    np.testing.assert_allclose(found.mean, away * 30 / 31, atol=0.08)
    np.testing.assert_allclose(found.stddevs, 31**-0.5, rtol=0.1)
    assert not found.stayed


def test_gradients_that_no_prior_lets_expect_are_not_followed() -> None:
    """A slope without curvature, held by the prior alone: not a normal likelihood's, but a network's."""
    rng = np.random.default_rng(14)
    curvature, gradient = np.diag([40.0, 40.0, 40.0, 1e-3]), np.array([0.0, 0.0, 0.0, 25.0])
    found = posterior(still_rows(curvature, gradient, 5.0, 2000, rng))
    assert found.stayed
    np.testing.assert_allclose(found.mean, 0.0, atol=0.02)
    assert not posterior(still_rows(curvature, 0.04 * gradient, 5.0, 2000, rng)).stayed


@pytest.mark.turns
def test_a_steep_direction_is_not_taken_for_a_flat_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier steps have led the draws to its optimum, where gradients are small: that is no flatness."""
    along = np.full(D, D**-0.5)
    curvature = 300.0 * np.outer(along, along) + 5.0 * np.eye(D)
    theta, rows, average = adam_run(
        600.0, 800, np.random.default_rng(1), runs=40, curvature=curvature, precision=np.eye(D)
    )

    def error() -> float:
        scale = CurvatureScale(300.0, 1.0)
        means = np.array([posterior(rows[:, r], scale=scale).mean for r in range(len(theta))])
        return float(np.std((means - theta) @ along) / np.std((average - theta) @ along))

    assert error() < 1.95
    real = noise_aware._weigh
    with monkeypatch.context() as planted:
        planted.setattr(noise_aware, "_weigh", lambda *args: real(*args[:-1], 0))  # as if there were none
        assert error() > 2.2
        planted.setattr(gradient_regression, "_LEVEL", 2.0)  # the last half alone
        assert error() > 4.0
    monkeypatch.setattr(gradient_regression, "_LEVEL", 2.0)
    assert error() < 4.0
    monkeypatch.setattr(
        noise_aware, "choose_steps", lambda blocks, late, c: (0, gradient_regression._fits(blocks, c))
    )
    assert error() < 1.2


@pytest.mark.usefixtures("known_curvature")
def test_what_has_gone_far_stays_at_the_late_draws_and_the_others_move_given_that() -> None:
    """It is still on its way: over all steps it is not far from its prior, over the last half it is."""
    rng, n = np.random.default_rng(8), 1200
    prior = LogGamma(np.full(D, 50.0))
    at = np.stack([np.zeros(n), np.linspace(1.0, 4.6, n), np.zeros(n)]).T * prior.stddev + prior.centre
    z = at + 0.03 * rng.standard_normal((n, D))
    optimum = prior.centre + np.array([0.3, 3.6, -0.3]) * prior.stddev
    likelihood = (optimum - z) @ LAMBDA + 1e-3 * rng.standard_normal(z.shape)
    normal = -(z - prior.centre) / prior.stddev**2
    rows = np.concatenate([z, likelihood, normal, np.full((n, 1), 1e-3)], axis=1)
    found = posterior(rows, prior=prior)
    assert found.far.tolist() == [False, True, False] and not found.stayed
    late = z[n // 2 :, 1].mean()
    assert np.abs(z[-found.n_rows :, 1].mean() - late) > 0.1 * prior.stddev[1]
    np.testing.assert_allclose(found.mean[1], late, rtol=1e-9)
    near = [0, 2]
    h = LAMBDA[np.ix_(near, near)] + np.diag(prior.stddev[near] ** -2)
    pull = (optimum - prior.centre)[near] @ LAMBDA[np.ix_(near, near)]
    pull += LAMBDA[near, 1] * (optimum[1] - late)
    np.testing.assert_allclose(found.mean[near], prior.centre[near] + np.linalg.solve(h, pull), atol=1e-3)


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


def test_beyond_a_group_correlations_are_those_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_moments, "GROUP", 3)
    rng, size, n = np.random.default_rng(10), 6, 600
    chain = 50.0 * np.eye(size) + 20.0 * (np.eye(size, k=1) + np.eye(size, k=-1))
    chain[2, 3] = chain[3, 2] = 0.0
    z = 0.28 + 0.1 * rng.standard_normal((n, size))
    gradients = (0.3 - z) @ chain + rng.standard_normal(z.shape)
    rows = np.concatenate([z, gradients, -z, np.ones((n, 1))], axis=1)
    h, everywhere = np.eye(size) + chain, np.full(size, 0.3)
    found = posterior(rows)
    np.testing.assert_allclose(found.mean, np.linalg.solve(h, chain @ everywhere), atol=0.02)
    draws = found.draw(20_000, rng)
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(h), atol=1.5e-3)
    assert found.stddevs.shape == found.family_stddev.shape == found.noise_share.shape == (size,)


@dataclass(frozen=True)
class LogGamma:
    """Prior of independent logarithms of gamma variables: skewed, and normal nowhere."""

    shapes: np.ndarray

    @property
    def centre(self) -> np.ndarray:
        return np.asarray(np.log(stats.gamma(self.shapes).median()))

    @property
    def stddev(self) -> np.ndarray:
        return np.sqrt(special.polygamma(1, self.shapes))

    @property
    def reach(self) -> np.ndarray:
        return self.stddev

    def density(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            return np.sum(self.shapes * z - np.exp(z), axis=1), self.shapes - np.exp(z)


SKEWED = LogGamma(np.array([0.7, 2.0, 5.0]))
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def rows_under(prior: LogGamma, curvature: np.ndarray, optimum: np.ndarray, noise: float) -> np.ndarray:
    rng = np.random.default_rng(15)
    z = prior.centre + 0.15 * rng.standard_normal((1200, D))
    likelihood = (optimum - z) @ curvature + noise * rng.standard_normal(z.shape)
    return np.concatenate([z, likelihood, prior.density(z)[1], np.full((len(z), 1), noise)], axis=1)


class Effects:
    """Prior of (log tau, effect, effect): tau is half-normal, effects are normal with that spread.

    With `heavy`, what is known of the tails is known.
    """

    centre, stddev = np.array([-0.4, 0.0, 0.0]), np.array([0.9, 0.7, 0.7])

    def __init__(self, heavy: bool) -> None:
        self.reach = np.array([1.6, 1.7, 1.7]) if heavy else self.stddev

    def density(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tau, effect = np.exp(z[:, :1]), z[:, 1:]
        square = np.sum(effect**2, axis=1) / tau[:, 0] ** 2
        value = -0.5 * tau[:, 0] ** 2 - z[:, 0] - 0.5 * square
        by_tau = -(tau[:, 0] ** 2) - 1.0 + square
        return value, np.column_stack([by_tau, -effect / tau**2])


def rows_of_effects(prior: Effects, at: float) -> np.ndarray:
    """Gradients that tell two large effects, and nothing of tau, about a mean draw that is at them."""
    rng, n = np.random.default_rng(4), 1500
    z = np.array([0.5, at, -at]) + 0.15 * rng.standard_normal((n, 3))
    told = np.array([0.0, 400.0, 400.0])
    likelihood = (np.array([0.0, at, -at]) - z) * told + (told > 0) * 5.0 * rng.standard_normal(z.shape)
    return np.concatenate([z, likelihood, prior.density(z)[1], np.full((n, 1), 5.0)], axis=1)


def test_effects_that_are_large_together_refute_no_prior() -> None:
    """Three times as far as most draws of their prior: as far as its tails go."""
    for at, heavy, believed in ((3.0, True, True), (3.0, False, False), (12.0, True, False)):
        prior: Any = Effects(heavy)
        found = posterior(rows_of_effects(prior, at), prior=prior, scale=CurvatureScale(800.0, 0.7))
        np.testing.assert_array_equal(found.far, [False, not believed, not believed])
        np.testing.assert_allclose(found.mean[1:], [at, -at], atol=0.2)
        if believed:  # p(tau | effects) by sums on a grid
            assert not found.stayed
            tau = np.exp(found.draw(2000, np.random.default_rng(1))[:, 0])
            grid = np.linspace(0.01, 8.0, 4000)
            weight = np.exp(-0.5 * grid**2 - 2.0 * np.log(grid) - at**2 / grid**2)
            below = np.cumsum(weight / weight.sum())
            wanted = grid[np.searchsorted(below, [0.05, 0.5, 0.95])]
            np.testing.assert_allclose(np.quantile(tau, [0.05, 0.5, 0.95]), wanted, rtol=0.15)


def test_where_noise_is_everything_it_is_the_prior_also_if_that_is_not_normal() -> None:
    rows = rows_under(SKEWED, 30.0 * np.eye(D), SKEWED.centre, 1e6)
    found = posterior(rows, prior=SKEWED, scale=CurvatureScale(90.0, 0.7))
    draws = found.draw(4000, np.random.default_rng(3))
    share = np.array([stats.gamma(a).cdf(np.exp(x)) for a, x in zip(SKEWED.shapes, draws.T, strict=True)])
    np.testing.assert_allclose(np.quantile(share, LEVELS, axis=1).T, np.tile(LEVELS, (D, 1)), atol=0.04)
    mean = special.digamma(SKEWED.shapes)
    assert (np.abs(found.mean - mean) < 0.25 * SKEWED.stddev).all()  # of 512 draws
    np.testing.assert_allclose(found.stddevs, SKEWED.stddev, rtol=0.2)
    # The normal approximation alone would not do.
    plain = NoiseAwarePosterior(trace_of(rows), np.random.default_rng(0), None, CurvatureScale(90.0, 0.7))
    below = np.exp(plain.draw(4000, np.random.default_rng(3))[:, 0])
    assert np.abs(np.quantile(stats.gamma(SKEWED.shapes[0]).cdf(below), LEVELS) - LEVELS).max() > 0.08


def test_without_noise_it_is_the_posterior_also_if_the_prior_is_not_normal() -> None:
    """Information as weak as the prior's, from far off its centre; quantiles by sums on a grid."""
    weak, optimum = np.diag([0.5, 1.0, 2.0]), SKEWED.centre + np.array([1.5, -1.0, 1.0])
    found = posterior(rows_under(SKEWED, weak, optimum, 1e-6), prior=SKEWED)
    draws = found.draw(4000, np.random.default_rng(4))
    grid = np.linspace(-12.0, 6.0, 4001)
    for j in range(D):
        log = SKEWED.shapes[j] * grid - np.exp(grid) - 0.5 * weak[j, j] * (grid - optimum[j]) ** 2
        below = np.cumsum(np.exp(log - log.max()))
        share = np.interp(draws[:, j], grid, below / below[-1])
        np.testing.assert_allclose(np.quantile(share, LEVELS), LEVELS, atol=0.04)


def test_a_latent_value_that_no_record_tells_of_keeps_its_conditional_prior() -> None:
    precision = np.array([[2.0, 0.5, 1.2], [0.5, 1.0, -0.8], [1.2, -0.8, 3.0]])
    _, rows, _ = adam_run(5.0, 800, np.random.default_rng(16), precision=precision)
    rows = rows[:, 0]
    rows[:, D + 2] = 0.0
    own = LAMBDA[:2, :2]
    data = rows[:, D : D + 2] + rows[:, :3] @ LAMBDA[:, :2]
    rows[:, D : D + 2] = data - rows[:, :2] @ own
    trace = trace_of(rows)
    (fit,) = choose_steps(trace.blocks, trace.late_blocks, trace.columns)[1]
    assert fit.informed.tolist() == [0, 1]
    found = posterior(rows)
    draws = found.draw(20_000, np.random.default_rng(5))
    slope = np.linalg.lstsq(np.c_[np.ones(len(draws)), draws[:, :2]], draws[:, 2], rcond=None)[0]
    np.testing.assert_allclose(slope, [0.0, *(-precision[2, :2] / 3.0)], atol=0.1)
    rest = draws[:, 2] - np.c_[np.ones(len(draws)), draws[:, :2]] @ slope
    np.testing.assert_allclose(rest.std(), 3.0**-0.5, rtol=0.02)
    # The others are as they would be without it.
    wide = np.linalg.inv(precision)[:2, :2]
    h = np.linalg.inv(own + np.linalg.inv(wide))
    np.testing.assert_allclose(found.family_stddev[:2], np.sqrt(np.diag(h)), rtol=0.1)
    np.testing.assert_array_equal(found.noise_share[2], 1.0)


@pytest.mark.turns
def test_a_step_leaves_no_noise_in_what_no_record_tells_of() -> None:
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        effect = pm.Normal("effect", 0, tau, shape=3)
        group = pm.Data("group", np.arange(30) % 3)
        pm.Normal("y", effect[group], 1.0, observed=pm.Data("y_data", np.ones(30)))
    method = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp", random_seed=1, model=model)
    approx = method.fit(40, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
    names = np.repeat(
        [v.name for v in approx.latents.value_vars], [np.prod(s, dtype=int) for s in approx.latents.shapes]
    )
    told = informed(approx._record, approx.latents)
    np.testing.assert_array_equal(told, names == "effect")
    assert sorted(set(names)) == ["effect", "tau_log__"] and len(told) == 4
    for block in approx._trace.blocks:
        likelihood, spread = block.mean[4:8], np.diag(block.spread[0])
        np.testing.assert_array_equal(likelihood != 0.0, told)
        np.testing.assert_array_equal(spread > 0.0, told)
    found = approx._noise_aware()
    assert found is not None and found._parts[0].fit.informed.tolist() == np.flatnonzero(told).tolist()


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
    found = posterior(rows[:, 0], scale=CurvatureScale(float(np.trace(LAMBDA)), 0.7))
    wide = np.diag(PRIOR) ** -0.5
    return diagnose(found, trace, names="abc", average=edit(average[0]), epsilon=1.0, prior_stddev=wide)


def test_diagnostics_say_what_was_measured() -> None:
    good = report(20.0)
    assert "not known" in repr(good)
    shares = [100 * float(np.median(found.share_of_prior)) for found in (good, report(1e5))]
    assert shares[0] < 50 < 90 < shares[1]
    assert f"{shown(shares[0], digits=2)} % as wide as the prior" in repr(good)
    away = report(20.0, lambda mean: mean + 0.5)
    assert f"at most {shown(float(away.distance.max()), digits=2)} standard deviations" in repr(away)
    assert away.distance.max() > 2 * good.distance.max()
    np.testing.assert_allclose(good.noise_share, 1.0, atol=0.15)
    counted = dataclasses.replace(good, share_to_clip=0.1, clipped_share=0.9, clipped_share_stddev=0.1)
    assert "steered to clip about 10 %" in repr(counted) and "90.0 ± 10.0 %" in repr(counted)
    few = dataclasses.replace(counted, clipped_share=-0.02)
    assert "0.0 ± 10.0 %" in repr(few)
    assert "see no record" in repr(dataclasses.replace(counted, clipped_share=None))
    assert not good.stayed and "is centred on the mean of the fit's own draws" not in repr(good)
    assert "is centred on the mean of the fit's own draws" in repr(dataclasses.replace(good, stayed=True))


def test_diagnostics_name_what_is_as_wide_as_the_prior() -> None:
    nothing = report(1e5)
    assert nothing.bounded.all() and nothing.attrs == {"bounded_by_prior": 1}
    assert "As wide as the prior: a, b, c." in repr(nothing)
    assert "divide it by a public number" in repr(nothing)
    one = dataclasses.replace(nothing, prior_stddev=np.array([10.0, 0.5, np.inf]))
    assert one.bounded.tolist() == [False, True, False] and "As wide as the prior: b." in repr(one)
    good = report(20.0)
    assert not good.bounded.any() and "As wide" not in repr(good) and not good.attrs["bounded_by_prior"]
    # What follows from the fields.
    np.testing.assert_allclose(good.share_of_prior, good.stddev * np.sqrt(np.diag(PRIOR)))
    total = np.maximum(good.stddev, good.family_stddev)
    np.testing.assert_allclose(np.hypot(good.noise_stddev, good.family_stddev), total)
    np.testing.assert_allclose(good.noise_ratio, good.noise_stddev / good.family_stddev)
    np.testing.assert_allclose(good.distance, np.abs(good.average - good.mean) / good.stddev)


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
    np.testing.assert_allclose(line.get_ydata(), (means - good.mean[1]) / good.stddev[1])
    assert line.get_xdata()[-1] == 800
    assert len(good.plot().get_lines()) == D + 1
    with pytest.raises(ValueError, match="names has"):
        good.plot(names=["d"])
    plt.close("all")
