from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.noise import GaussianNoise
from pymc_dpvi.randomness import KeyStream


def stream(label: str = "noise") -> KeyStream:
    return KeyStream.from_insecure_seed(20250102, label)


def p_scale(noise: np.ndarray, stddev: float) -> float:
    """Chi-squared test of the second moment about zero, two-sided."""
    lower = stats.chi2(noise.size).cdf(float(np.sum((noise / stddev) ** 2)))
    return float(2 * min(lower, 1 - lower))


@pytest.mark.parametrize("stddev", [1e-200, 0.003, 1.0, 75.0, 1e200])
def test_noise_has_the_declared_law_with_power(stddev: float) -> None:
    noise = GaussianNoise(stddev).draw(stream(str(stddev)), (2000, 100))
    assert noise.shape == (2000, 100) and noise.dtype == np.float64
    assert stats.kstest(noise.ravel() / stddev, "norm").pvalue > 1e-3
    assert p_scale(noise, stddev) > 1e-3
    assert p_scale(noise, 1.02 * stddev) < 1e-9  # planted: two per cent too little noise
    assert p_scale(noise * np.sqrt(1.02), stddev) < 1e-3


def test_noise_is_the_scaled_normal_of_the_stream() -> None:
    np.testing.assert_array_equal(
        GaussianNoise(3.5).draw(stream(), (4, 5)), 3.5 * stream().standard_normal((4, 5))
    )


def test_entries_and_draws_are_independent() -> None:
    source = stream("independence")
    noise = GaussianNoise(2.0)
    a, b = noise.draw(source, (5000, 12)), noise.draw(source, (5000, 12))
    correlations = np.corrcoef(np.concatenate([a, b], axis=1).T)[np.triu_indices(24, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(5000)
    assert not np.intersect1d(a, b).size


def test_stddev_is_a_frozen_float() -> None:
    noise = GaussianNoise(np.float32(2.0))  # type: ignore[arg-type]
    assert type(noise.stddev) is float and noise == GaussianNoise(2) == GaussianNoise(stddev=2.0)
    assert GaussianNoise(Fraction(1, 2)).stddev == 0.5  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        noise.stddev = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("stddev", [0.0, -0.0, -1.0, float("nan"), float("inf"), 5e-324, 1e300, 10**400, 0])
def test_stddev_must_be_finite_and_positive(stddev: float) -> None:
    with pytest.raises(ArgumentError, match="stddev must be a finite number in"):
        GaussianNoise(stddev)


@pytest.mark.parametrize("stddev", [True, np.True_, "1.0", None, 1j, [1.0], np.array([1.0])])
def test_stddev_must_be_a_number(stddev: object) -> None:
    with pytest.raises(ArgumentError, match=r"stddev must be a finite number"):
        GaussianNoise(stddev)  # type: ignore[arg-type]
