"""Quadratics fitted by noisy gradients, where the truth is known, and their noise-aware posterior."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dpvi.engine.gradient_moments import GradientTrace
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior

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


def posterior(
    rows: np.ndarray, *, prior: Any = None, scale: CurvatureScale | None = None, seed: int = 0
) -> NoiseAwarePosterior:
    return NoiseAwarePosterior(trace_of(rows), np.random.default_rng(seed), prior, scale)
