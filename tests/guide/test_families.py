"""Each family of a guide says the truth about its draws; a new one is added to `FAMILIES`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from guide_families import FAMILIES
from scipy.integrate import quad
from scipy.stats import norm

from pymc_dpvi import ArgumentError, Dropout, FullRank, GuideFamily, LowRank, MeanField

SIZE = 4
DRAWS = 40_000
NORMAL = ("MeanField", "FullRank", "LowRank")
pytestmark = pytest.mark.usefixtures("without_compiling")


def moved(family: GuideFamily) -> dict[str, Any]:
    """Parameters away from where they start."""
    rng = np.random.default_rng(3)
    start = family.parameters(np.full(SIZE, 0.5))
    return {
        name: pytensor.shared(value + rng.normal(scale=0.4, size=value.shape), name, shape=value.shape)
        for name, value in start.items()
    }


def at(graph: Any) -> np.ndarray:
    return np.asarray(pytensor.function([], graph, mode="FAST_COMPILE")())


MEAN = pt.as_tensor(np.array([0.3, -1.0, 0.0, 2.0]))


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_have_the_mean_and_the_covariance_that_the_family_says(name: str) -> None:
    family = FAMILIES[name]
    params = moved(family)
    base = np.random.default_rng(1).standard_normal((DRAWS, family.num_base_draws(SIZE)))
    draws = at(family.deviation(params, MEAN, pt.as_tensor(base)))
    assert draws.shape == (DRAWS, SIZE)
    sigma, cov = at(family.stddev(params, MEAN)), at(family.covariance(params, MEAN))
    np.testing.assert_allclose(np.diag(cov), sigma**2, rtol=1e-10)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=6 * sigma.max() / np.sqrt(DRAWS))
    tolerance = 0.1 if name == "HeavyTails" else 0.03
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=tolerance * max(1e-12, (sigma**2).max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_there_is_no_deviation_where_the_base_draws_are_zero(name: str) -> None:
    family = FAMILIES[name]
    zeros = pt.zeros((2, family.num_base_draws(SIZE)))
    np.testing.assert_array_equal(at(family.deviation(moved(family), MEAN, zeros)), 0)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "Point"])
def test_a_family_starts_with_the_deviations_it_is_given(name: str) -> None:
    family = FAMILIES[name]
    sigma = np.array([0.1, 0.5, 1.0, 2.0])
    params = {k: pytensor.shared(v, k, shape=v.shape) for k, v in family.parameters(sigma).items()}
    ratio = at(family.stddev(params, MEAN)) / sigma
    # Low rank has short directions beside, and the sine makes its deviation larger.
    np.testing.assert_allclose(ratio, ratio[0] if name == "HeavyTails" else 1, rtol=0.03)


@pytest.mark.parametrize("name", NORMAL)
def test_entropy_is_half_the_logarithm_of_the_determinant(name: str) -> None:
    family = FAMILIES[name]
    params = moved(family)
    expected = 0.5 * np.linalg.slogdet(at(family.covariance(params, MEAN)))[1]
    np.testing.assert_allclose(at(family.entropy(params, MEAN)), expected, rtol=1e-10)


@pytest.mark.parametrize("log_alpha", [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
def test_dropout_has_the_divergence_from_the_log_uniform_prior(log_alpha: float) -> None:
    """By quadrature: minus KL is log(alpha)/2 minus the mean of log |1 + root(alpha) x|, up to a constant."""
    root = np.exp(log_alpha / 2)
    pole = -1 / root
    ends = [-12, 12] if abs(pole) > 12 else [-12, pole, 12]

    def integrand(x: float) -> float:
        return float(np.log(abs(1 + root * x)) * norm.pdf(x))

    mean_log = sum(quad(integrand, a, b, limit=200)[0] for a, b in pairwise(ends))
    constant = -(np.euler_gamma + np.log(2)) / 2  # so that it ends at zero for a dropped weight
    exact = 0.5 * log_alpha - mean_log + constant
    sigma = 0.5
    rho = np.log(np.expm1(sigma))
    found = at(Dropout().entropy({"rho": pt.as_tensor([rho])}, pt.as_tensor([sigma / root])))
    assert abs(found - exact) < 0.02  # the accuracy of the published approximation


def test_dropout_is_smooth_where_a_weight_is_zero() -> None:
    mean = pt.vector("mean", shape=(2,))
    entropy = Dropout().entropy({"rho": pt.as_tensor([0.1, 0.1])}, mean)
    slope = pytensor.function([mean], [entropy, pytensor.grad(entropy, mean)], mode="FAST_COMPILE")
    value, by_mean = slope(np.zeros(2, dtype=mean.dtype))
    np.testing.assert_allclose(value, 0, atol=1e-12)
    np.testing.assert_array_equal(by_mean, 0)


@pytest.mark.parametrize("rank", [0, -1, 1.5, "2", None, True])
def test_a_rank_is_a_positive_integer(rank: Any) -> None:
    with pytest.raises(ArgumentError, match="rank"):
        LowRank(rank)


def test_families_are_shown_as_they_are_typed() -> None:
    assert [repr(f) for f in (MeanField(), FullRank(), LowRank(3))] == [
        "MeanField()",
        "FullRank()",
        "LowRank(3)",
    ]
