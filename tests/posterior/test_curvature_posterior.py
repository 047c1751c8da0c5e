"""Draws of the curvature: what the slopes say, what is known beforehand, and the mixture of both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pymc_dpvi.posterior import curvature_posterior
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale, draw_curvature

SCALE = CurvatureScale(20.0, 0.7)


def some_curvature(k: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((k, k))
    return np.asarray(root @ root.T + np.eye(k))


def draw(
    curvature: np.ndarray,
    stddev: np.ndarray | float,
    scale: CurvatureScale | None = SCALE,
    root: np.ndarray | None = None,
    draws: int = 128,
    seed: int = 0,
) -> np.ndarray:
    k = len(curvature)
    root = np.eye(k) if root is None else root
    variance = np.broadcast_to(np.square(stddev), (k, k)).copy()
    with np.errstate(all="ignore"):  # as its caller does
        return draw_curvature(curvature, variance, root, scale, draws, np.random.default_rng(seed))


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize(
    ("scale", "stddev"),
    [(None, 1e-6), (SCALE, 1e-6), (CurvatureScale(0.01, 0.7), 1e-6), (CurvatureScale(1e3, 0.7), 1e-2)],
)
def test_slopes_with_little_noise_are_believed(k: int, scale: CurvatureScale | None, stddev: float) -> None:
    """Whatever the scale says; draws have the slopes' errors."""
    curvature = some_curvature(k)
    stddev *= curvature.max()
    found = draw(curvature, stddev, scale, draws=400)
    np.testing.assert_allclose(found, np.broadcast_to(curvature, found.shape), atol=7 * stddev)
    np.testing.assert_allclose(np.std(found[:, 0, 0]), stddev, rtol=0.25)


@pytest.mark.parametrize("k", [1, 2, 6])
def test_slopes_that_are_noise_leave_the_scale(k: int) -> None:
    """Whatever they are, and in any units of the coordinates."""
    curvature, root = some_curvature(k), np.diag(np.linspace(0.5, 2.0, k))
    back = np.linalg.inv(root)
    for trace in (1e-3, 20.0, 1e5):
        found = draw(1e9 * curvature, 1e12, CurvatureScale(trace, 0.1), root, draws=400)
        traces = np.trace(back @ found @ back, axis1=1, axis2=2)
        assert 1 / 3 < np.median(traces) / trace < 2
    assert np.median(draw(curvature, 1e12, None, draws=400)) > 1e6  # no scale: as wide as the noise


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("stddev", [1e-3, 1.0, 1e3])
def test_draws_are_curvatures(k: int, stddev: float) -> None:
    """Symmetric and positive semi-definite, though the estimate is not."""
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((k, k))
    found = draw(some_curvature(k) + stddev * (noise + noise.T), stddev, draws=100)
    assert found.shape[0] >= 100 and found.shape[1:] == (k, k) and np.isfinite(found).all()
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    assert np.linalg.eigvalsh(found).min() > -1e-9 * found.max()


def test_of_no_latent_value_there_is_no_curvature() -> None:
    assert draw(np.zeros((0, 0)), 1.0, draws=7).shape == (7, 0, 0)


def from_prior(root: np.ndarray, scale: CurvatureScale, rng: np.random.Generator) -> np.ndarray:
    """Draw as the module's docstring says."""
    k, tau, columns = len(root), curvature_posterior._DIRECTIONS, curvature_posterior._COLUMNS
    share, nu = np.sum(root**2, axis=0) / k, 3 * k // 2 + 2
    log_d = np.log(scale.trace * share) - 0.5 * tau**2
    log_d = log_d + scale.log_stddev * rng.standard_normal() + tau * rng.standard_normal(k)
    log_c = columns * rng.standard_normal(nu) - 0.5 * columns**2
    b = rng.standard_normal((k, nu)) * np.exp(0.5 * (log_d[:, None] + log_c)) / math.sqrt(nu)
    return np.asarray(b @ b.T)


def ranks(stddev: float, *, replicates: int, believed: float = 1.0, trace: float = 1.0) -> np.ndarray:
    """Ranks of both diagonal entries, the covariance and the trace; shape ``(4, replicates)``."""
    rng, root = np.random.default_rng(1), np.diag([1.0, 0.3])
    stddevs = stddev * np.array([[1.0, 0.4], [0.4, 0.2]])
    scale = CurvatureScale(trace * SCALE.trace, SCALE.log_stddev)
    out = []
    for seed in range(replicates):
        curvature = from_prior(root, SCALE, rng)
        noise = np.triu(stddevs * rng.standard_normal((2, 2)))
        noise = noise + np.triu(noise, 1).T
        found = draw(curvature + noise, believed * stddevs, scale, root, draws=64, seed=seed)
        sizes = [
            (x[..., 0, 0], x[..., 1, 1], x[..., 0, 1], x.trace(axis1=-2, axis2=-1))
            for x in (found, curvature)
        ]
        out.append([np.mean(a < b) for a, b in zip(*sizes, strict=True)])
    return np.array(out).T


def check_ranks(found: np.ndarray) -> None:
    for values in found:
        assert stats.kstest(values, "uniform").pvalue > 2e-3
        assert 0.21 < np.std(values) < 0.35


@pytest.mark.turns
@pytest.mark.parametrize("stddev", [0.3, 3.0, 30.0])
def test_ranks_of_the_true_curvature_are_uniform(stddev: float) -> None:
    check_ranks(ranks(stddev, replicates=60))


@pytest.mark.parametrize(
    ("stddev", "planted"), [(3.0, {"believed": 0.4}), (0.3, {"believed": 4.0}), (30.0, {"trace": 10.0})]
)
def test_a_wrong_variance_or_scale_would_be_noticed(stddev: float, planted: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check_ranks(ranks(stddev, replicates=60, **planted))
