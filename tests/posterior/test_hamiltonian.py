"""Many short chains against densities whose moments are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from pymc_dpvi.posterior import hamiltonian
from pymc_dpvi.posterior.hamiltonian import hamiltonian_draws

CHAINS = 2000
SHAPES = np.array([0.7, 3.0])

Value = tuple[np.ndarray, np.ndarray]


def banana(z: np.ndarray) -> Value:
    apart = z[:, 1] - 0.5 * z[:, 0] ** 2
    return -0.5 * (z[:, 0] ** 2 + apart**2), np.stack([z[:, 0] * (apart - 1.0), -apart], axis=1)


def log_gamma(z: np.ndarray) -> Value:
    return np.sum(SHAPES * z - np.exp(z), axis=1), SHAPES - np.exp(z)


def funnel(z: np.ndarray) -> Value:
    """A hierarchy: a log scale, and two values of that scale."""
    precision = np.exp(-2.0 * z[:, :1])
    square = np.sum(z[:, 1:] ** 2 * precision, axis=1)
    slope = np.concatenate([(square - 2.0 - z[:, 0] / 0.25)[:, None], -z[:, 1:] * precision], axis=1)
    return -0.5 * square - 2.0 * z[:, 0] - 0.5 * z[:, 0] ** 2 / 0.25, slope


#: Density, number of values, and a function to independent uniform numbers.
DENSITIES: dict[str, tuple[Callable[[np.ndarray], Value], int, Callable[[np.ndarray], np.ndarray]]] = {
    "banana": (
        banana,
        2,
        lambda z: stats.norm.cdf(np.stack([z[:, 0], z[:, 1] - 0.5 * z[:, 0] ** 2])),
    ),
    "log-gamma": (log_gamma, 2, lambda z: stats.gamma(SHAPES[:, None]).cdf(np.exp(z.T))),
    "funnel": (
        funnel,
        3,
        lambda z: stats.norm.cdf(np.stack([2.0 * z[:, 0], *(z[:, 1:] * np.exp(-z[:, :1])).T])),
    ),
}


def drawn(name: str, scale: float, off: float = 0.0, seed: int = 0) -> np.ndarray:
    """Uniform numbers, if the chains have arrived, from starts that are off by so much."""
    density, size, uniform = DENSITIES[name]
    rng = np.random.default_rng(seed)
    root = np.repeat(scale * np.eye(size)[None], CHAINS, axis=0)
    return uniform(hamiltonian_draws(density, off + scale * rng.standard_normal((CHAINS, size)), root, rng))


def check_uniform(found: np.ndarray) -> None:
    for values in found:
        assert stats.kstest(values, "uniform").pvalue > 1e-3
        np.testing.assert_allclose(np.quantile(values, [0.05, 0.5, 0.95]), [0.05, 0.5, 0.95], atol=0.04)
    between = np.corrcoef(found) - np.eye(len(found))
    assert np.abs(between).max() < 4.0 / np.sqrt(CHAINS)


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize(("scale", "off"), [(1.0, 0.0), (0.2, 0.5), (0.5, -1.0)])
def test_draws_are_of_the_density(name: str, scale: float, off: float) -> None:
    check_uniform(drawn(name, scale, off))


def test_chains_that_do_not_move_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hamiltonian, "_STEPS", 1)
    for name in DENSITIES:
        with pytest.raises(AssertionError):
            check_uniform(drawn(name, 0.2, 0.5))


def test_a_step_that_is_always_taken_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    density, size, uniform = DENSITIES["banana"]
    flat = hamiltonian_draws(
        lambda z: (np.zeros(len(z)), density(z)[1]),
        np.zeros((CHAINS, size)),
        np.repeat(np.eye(size)[None], CHAINS, axis=0),
        np.random.default_rng(0),
    )
    with pytest.raises(AssertionError):
        check_uniform(uniform(flat))


def test_each_chain_has_its_own_density_and_scale() -> None:
    """Correlated normals, by exact roots."""
    rng = np.random.default_rng(1)
    root = np.tril(rng.normal(size=(CHAINS, 3, 3))) + 2.0 * np.eye(3)
    root[:, :, 0] *= 1e4
    precision = np.linalg.inv(root @ np.swapaxes(root, 1, 2))
    mean = rng.normal(size=(CHAINS, 3)) * 1e3

    def density(z: np.ndarray) -> Value:
        slope = -np.einsum("mij,mj->mi", precision, z - mean)
        return 0.5 * np.sum(slope * (z - mean), axis=1), slope

    found = hamiltonian_draws(density, mean, root, rng)
    whitened = np.linalg.solve(root, (found - mean)[..., None])[..., 0]
    check_uniform(stats.norm.cdf(whitened.T))


def test_where_the_density_is_nowhere_finite_the_start_stays() -> None:
    start = np.array([[0.5, -1.0], [2.0, 3.0]])
    root = np.repeat(np.eye(2)[None], 2, axis=0)
    for bad in (np.nan, np.inf, -np.inf):

        def density(z: np.ndarray, bad: float = bad) -> Value:
            value, slope = -0.5 * np.sum(z**2, axis=1), -z.copy()
            value[0], slope[0] = bad, np.nan
            return value, slope

        found = hamiltonian_draws(density, start, root, np.random.default_rng(0))
        np.testing.assert_array_equal(found[0], start[0])
        assert np.isfinite(found[1]).all() and (found[1] != start[1]).any()


def test_a_start_beyond_the_density_is_left() -> None:
    """No density where it begins, and a slope that leads on: a half-line."""

    def density(z: np.ndarray) -> Value:
        return np.where(z[:, 0] > 0.0, -z[:, 0], -np.inf), np.where(z > 0.0, -1.0, 1.0)

    start, root = np.full((CHAINS, 1), -0.5), np.ones((CHAINS, 1, 1))
    found = hamiltonian_draws(density, start, root, np.random.default_rng(0))[:, 0]
    assert (found > 0.0).all()
    assert stats.kstest(found, "expon").pvalue > 1e-3
