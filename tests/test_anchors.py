"""`benchmarks/anchor_posterior.py`: no record adds more than the sensitivity, and the sampler is right."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import anchor_posterior as anchor
from calibration_problems import Problem, reference

N, D = 1500, 3
#: Prior standard deviation of the coefficients.
PRIOR = 0.7


def problem_of(family: str, n: int = N) -> Problem:
    """Return an intercept and correlated normal predictors."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, D)) @ np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.8]])
    x[:, 0] = 1.0
    beta = np.array([0.4, -0.5, 0.3])
    truth = {"beta": beta}
    if family == "linear":
        truth["sigma"] = np.asarray(0.6)
        y = x @ beta + 0.6 * rng.standard_normal(n)
    else:
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(float)
    none = np.zeros(n, dtype=np.int64)
    return Problem(family, "prior", x, y, none, x[:9], y[:9], none[:9], 0, PRIOR, truth)


def unclipped(monkeypatch: pytest.MonkeyPatch, bound: float = 10.0) -> None:
    monkeypatch.setattr(anchor, "bounds_of", lambda problem: (bound, 1.0 if _binary(problem) else bound))


def _binary(problem: Problem) -> bool:
    return problem.family == "logistic"


def fitted(problem: Problem, noise: float, polynomial: bool = False, draws: int = 1000) -> Any:
    seen = anchor.release(problem, noise, np.random.default_rng(1))
    target = anchor.Posterior(seen, problem.num_records, problem.prior_stddev, polynomial)
    return anchor.sample(target, draws, np.random.default_rng(2))[0]


def summary(draws: Any) -> tuple[np.ndarray, np.ndarray]:
    flat = np.column_stack([np.reshape(draws[name], (len(draws[name]), -1)) for name in sorted(draws)])
    return flat.mean(axis=0), flat.std(axis=0)


ANY = st.floats(width=64) | st.sampled_from([1e308, -1e308, 1e-308, 5e-324, 0.0])


@given(
    x=arrays.arrays(float, st.tuples(st.just(4), st.integers(1, 6)), elements=ANY),
    y=arrays.arrays(float, 4, elements=ANY),
    r=st.floats(1e-3, 1e3),
    b=st.floats(1e-3, 1e3),
    binary=st.booleans(),
)
@settings(max_examples=300)
def test_no_record_adds_more_than_the_sensitivity(
    x: np.ndarray, y: np.ndarray, r: float, b: float, binary: bool
) -> None:
    added = anchor.statistics_of(x, y, r, 1.0 if binary else b, binary)
    limit = anchor.sensitivity(binary)
    assert np.isfinite(added).all()
    assert np.linalg.norm(added, axis=1).max() <= limit * (1.0 + 1e-12)


@pytest.mark.parametrize("binary", [True, False])
def test_the_sensitivity_is_reached(binary: bool) -> None:
    """So that the bound above would fail for any smaller one."""
    x, y = np.full((1, 4), 1.5), np.array([1e30])
    added = anchor.statistics_of(x, y, 3.0, 1.0 if binary else 2.0, binary)
    np.testing.assert_allclose(np.linalg.norm(added), anchor.sensitivity(binary), rtol=1e-12)


@pytest.mark.turns
@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_a_release_is_the_sums_with_noise_as_told(family: str) -> None:
    problem, rng = problem_of(family, 50), np.random.default_rng(3)
    r, b = anchor.bounds_of(problem)
    c = np.minimum(1.0, r / np.linalg.norm(problem.x, axis=1)) ** 2
    assert np.mean(c < 1.0) > 0.02
    y = 2.0 * problem.y - 1.0 if family == "logistic" else problem.y
    many = [anchor.release(problem, 2.0, rng) for _ in range(4000)]
    noise = many[0].noise
    stddev = 2.0 * anchor.sensitivity(family == "logistic")
    np.testing.assert_allclose(noise, [stddev * r**2, stddev * r * b / np.sqrt(2.0), stddev * b**2])
    shares = np.where(np.eye(D) > 0, 1.0, np.sqrt(0.5))  # of S's noise
    apart = (np.array([one.xx for one in many]) - (problem.x * c[:, None]).T @ problem.x) / noise[0] / shares
    others = [(np.array([one.xy for one in many]) - problem.x.T @ (c * y)) / noise[1]]
    if family == "linear":
        others.append((np.array([one.yy for one in many])[:, None] - np.sum(c * y**2)) / noise[2])
    for standard in (apart.reshape(4000, -1), *others):
        assert np.abs(standard.mean(axis=0)).max() < 4.0 / np.sqrt(4000)
        assert np.abs(standard.std(axis=0) - 1.0).max() < 4.0 / np.sqrt(8000)


@pytest.mark.parametrize(
    ("family", "polynomial"), [("linear", False), ("logistic", False), ("logistic", True)]
)
@pytest.mark.parametrize("noise", [0.01, 5.0])
def test_gradients(family: str, polynomial: bool, noise: float) -> None:
    problem, rng = problem_of(family), np.random.default_rng(4)
    seen = anchor.release(problem, noise, rng)
    target = anchor.Posterior(seen, problem.num_records, PRIOR, polynomial)
    for _ in range(3):
        u = 0.1 * rng.standard_normal(target.size)
        slopes = [(target(u + e)[0] - target(u - e)[0]) / 2e-6 for e in 1e-6 * np.eye(target.size)]
        gradient = target(u)[1]
        np.testing.assert_allclose(slopes, gradient, rtol=1e-5, atol=1e-6 * np.abs(gradient).max() + 1e-4)


@pytest.mark.turns
@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_with_hardly_any_noise_it_is_the_posterior_without_privacy(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclipped(monkeypatch)
    problem = problem_of(family)
    mean, stddev = summary(fitted(problem, 1e-3))
    exact, width = summary(reference(problem, 4000, np.random.default_rng(5))[0])
    np.testing.assert_allclose(mean, exact, rtol=0, atol=0.2 * width.min())
    np.testing.assert_allclose(stddev, width, rtol=0.12)


@pytest.mark.turns
@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_with_nothing_but_noise_it_is_the_prior(family: str) -> None:
    mean, stddev = summary(fitted(problem_of(family, 300), 1e6))
    assert np.abs(mean[:D]).max() < 0.15 * PRIOR
    np.testing.assert_allclose(stddev[:D], PRIOR, rtol=0.12)
    if family == "linear":  # half-normal
        np.testing.assert_allclose(mean[D], np.sqrt(2.0 / np.pi), rtol=0.12)
        np.testing.assert_allclose(stddev[D], np.sqrt(1.0 - 2.0 / np.pi), rtol=0.15)


def ranks_of_truths(family: str, problems: int, told: float = 1.0) -> np.ndarray:
    """Ranks of true coefficients in posteriors that are told `told` times the noise."""
    rng, ranks = np.random.default_rng(6), []
    for _ in range(problems):
        n, beta = 400, PRIOR * rng.standard_normal(2)
        x = np.column_stack([np.ones(n), rng.standard_normal(n)])
        sigma = abs(rng.standard_normal())
        y = x @ beta + sigma * rng.standard_normal(n)
        if family == "logistic":
            y = (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(float)
        none = np.zeros(n, dtype=np.int64)
        problem = Problem(family, "prior", x, y, none, x, y, none, 0, PRIOR, {"beta": beta})
        seen = anchor.release(problem, 20.0, rng)
        seen = replace(seen, noise=tuple(told * stddev for stddev in seen.noise))
        draws, _ = anchor.sample(anchor.Posterior(seen, n, PRIOR), 150, rng)
        ranks.append(np.mean(draws["beta"] < beta, axis=0))
    return np.array(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_ranks_of_the_truth_are_uniform(family: str) -> None:
    """Simulation-based calibration: three and a half standard errors of 25 independent problems."""
    ranks = ranks_of_truths(family, 25)
    assert abs(np.mean(np.abs(ranks - 0.5) <= 0.25) - 0.5) < 3.5 * np.sqrt(0.25 / 25)
    assert abs(np.mean(ranks) - 0.5) < 3.5 * np.sqrt(1.0 / 12.0 / 25)


@pytest.mark.slow
def test_ranks_show_a_posterior_that_does_not_know_of_the_noise() -> None:
    ranks = ranks_of_truths("logistic", 18, told=0.05)
    assert np.mean(np.abs(ranks - 0.5) <= 0.25) < 0.5 - 3.5 * np.sqrt(0.25 / 36)
