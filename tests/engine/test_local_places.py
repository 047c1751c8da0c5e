"""Where persons' integrands are evaluated: along principal axes, in any units."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from pymc_dpvi.engine import local_sums
from pymc_dpvi.graph.local_rules import Quadrature, places_of

NO_VALUES = np.zeros((1, 0))


def root_of(precision: np.ndarray, turned: bool = True) -> np.ndarray:
    """Return S of the places m + S x."""
    size = len(precision)
    placed = local_sums.place_nodes(np.zeros((1, size)), precision[None], np.eye(size), NO_VALUES, turned)
    return placed[0].T


def some_precision(size: int, rng: np.random.Generator) -> np.ndarray:
    a = rng.normal(size=(size, size)) + 2 * rng.normal(size=(size, 1))
    return np.linalg.inv(a @ a.T + 0.1 * np.eye(size))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_places_are_as_wide_as_the_posterior(size: int, turned: bool):
    for seed in range(20):
        precision = some_precision(size, np.random.default_rng(seed))
        root = root_of(precision, turned)
        np.testing.assert_allclose(root @ root.T @ precision, np.eye(size), atol=1e-8)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_axes_are_orthogonal_in_the_units_of_the_precision(size: int):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        precision = some_precision(size, rng)
        scaled = np.sqrt(np.diag(precision))[:, None] * root_of(precision)
        scaled /= np.linalg.norm(scaled, axis=0)
        assert np.abs(scaled.T @ scaled - np.eye(size)).max() < 1.1e-3
        # In other units of the variables, they are the same axes.
        units = 10.0 ** rng.integers(-6, 7, size=size)
        other = root_of(precision * np.outer(units, units))
        np.testing.assert_allclose(other * units[:, None], root_of(precision), rtol=1e-6, atol=1e-9)


def test_rounding_does_not_choose_the_axes_of_independent_values():
    for noise in (0.0, 1e-15, -1e-9):
        precision = np.full((3, 3), noise) + np.diag([4.0, 1.0, 1.0])
        np.testing.assert_allclose(root_of(precision), np.diag([0.5, 1.0, 1.0]), atol=1e-8)


def log_density(z: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Of a drift, a boundary and a delay of one person, (K, 3), given reaction times (shifted Wald)."""
    drift, boundary, delay = np.exp(np.array([1.0, 0.2, -1.5]) + 0.3 * z).T
    after = times[:, None] - delay
    t = np.where(after > 0, after, 1.0)
    terms = np.log(boundary) - 1.5 * np.log(t) - (boundary - drift * t) ** 2 / (2 * t)
    return np.where(after > 0, terms, -np.inf).sum(axis=0) - 0.5 * (z**2).sum(axis=1)


def moments(
    times: np.ndarray, mode: np.ndarray, precision: np.ndarray, nodes: int, turned: bool
) -> np.ndarray:
    rule = places_of(3, Quadrature(nodes))
    placed = local_sums.place_nodes(mode[None], precision[None], rule.at, NO_VALUES, turned)[0]
    log = log_density(placed, times) + rule.log_weights
    weights = np.exp(log - log.max())
    return np.concatenate([weights @ placed, weights @ placed**2]) / weights.sum()


def test_skewed_densities_of_correlated_values_are_integrated_better_along_principal_axes():
    """The first and second moments of 30 persons' values, against 17 nodes in each dimension."""
    rng = np.random.default_rng(0)
    errors = {True: 0.0, False: 0.0}
    for _ in range(30):
        drift, boundary, delay = np.exp(np.array([1.0, 0.2, -1.5]) + 0.3 * rng.normal(size=3))
        times = delay + rng.wald(boundary / drift, boundary**2, size=20)

        def cost(z: np.ndarray, times: np.ndarray = times) -> float:
            return -float(log_density(z[None], times)[0])

        start = min((np.array([0.0, 0.0, k]) for k in (0, -1, -2, -4, -8)), key=cost)
        mode = optimize.minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).x
        steps = 1e-4 * np.eye(3)
        precision = np.array(
            [
                [sum(i * j * cost(mode + i * a + j * b) for i in (-1, 1) for j in (-1, 1)) for b in steps]
                for a in steps
            ]
        )
        precision /= 4e-8

        exact = moments(times, mode, precision, 17, True)
        for turned in errors:
            errors[turned] += ((moments(times, mode, precision, 5, turned) - exact) ** 2).mean() / 30
    assert errors[True] < 0.7 * errors[False] and errors[True] < 0.03**2, errors
