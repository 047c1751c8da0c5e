"""The noise of the mechanism, and what a release betrays by its last bits."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.noise import LatticeNoise
from pymc_dpvi.randomness import KeyStream
from pymc_dpvi.rounded_normal import rounded_normals


def stream(label: str = "noise") -> KeyStream:
    return KeyStream.from_insecure_seed(20250102, label)


def p_scale(noise: np.ndarray, stddev: float) -> float:
    """Chi-squared test of the second moment about zero, two-sided."""
    lower = stats.chi2(noise.size).cdf(float(np.sum((noise / stddev) ** 2)))
    return float(2 * min(lower, 1 - lower))


@pytest.mark.parametrize("stddev", [1e-200, 0.003, 1.0, 75.0, 1e200])
def test_noise_has_the_declared_law_with_power(stddev: float) -> None:
    lattice = LatticeNoise(stddev)
    noise = lattice.draw(stream(str(stddev)), (2000, 100))
    assert noise.shape == (2000, 100) and noise.dtype == np.int64
    assert stats.kstest(noise.ravel() * (lattice.unit / stddev), "norm").pvalue > 1e-3
    assert p_scale(noise * lattice.unit, stddev) > 1e-3
    assert p_scale(noise * lattice.unit, 1.02 * stddev) < 1e-9  # planted: two per cent too little noise
    assert p_scale(noise * lattice.unit * np.sqrt(1.02), stddev) < 1e-3


def test_unit_is_exactly_two_to_the_minus_forty_standard_deviations() -> None:
    for stddev in (1e-200, 0.1, 1.0, 3.7, 1e200):
        assert Fraction(LatticeNoise(stddev).unit) * 2**40 == Fraction(stddev)


def test_noise_is_that_of_the_stream_and_knows_no_scale() -> None:
    noise = LatticeNoise(3.5).draw(stream(), (4, 5))
    np.testing.assert_array_equal(noise, rounded_normals(stream(), 20).reshape(4, 5))
    np.testing.assert_array_equal(noise, LatticeNoise(7e10).draw(stream(), (4, 5)))


@pytest.mark.parametrize("shape", [0, 1, 7, (), (0, 4), (3,), (5, 3), (2, 3, 4), np.int64(4)])
def test_shapes(shape: object) -> None:
    noise = LatticeNoise(1.0).draw(stream(), shape)  # type: ignore[arg-type]
    assert noise.shape == np.zeros(shape).shape  # type: ignore[arg-type]
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("shape", [-1, 1.0, True, "2", None, (2, -1), (2, 1.5)])
def test_bad_shapes_are_refused(shape: object) -> None:
    with pytest.raises(ArgumentError, match="shape must be an integer"):
        LatticeNoise(1.0).draw(stream(), shape)  # type: ignore[arg-type]


def test_entries_and_draws_are_independent() -> None:
    source = stream("independence")
    noise = LatticeNoise(2.0)
    a, b = noise.draw(source, (5000, 12)), noise.draw(source, (5000, 12))
    correlations = np.corrcoef(np.concatenate([a, b], axis=1).T)[np.triu_indices(24, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(5000)
    assert not np.intersect1d(a, b).size


def test_stddev_is_a_frozen_float() -> None:
    noise = LatticeNoise(np.float32(2.0))  # type: ignore[arg-type]
    assert type(noise.stddev) is float and noise == LatticeNoise(2) == LatticeNoise(stddev=2.0)
    assert LatticeNoise(Fraction(1, 2)).stddev == 0.5  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        noise.stddev = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("stddev", [0.0, -0.0, -1.0, float("nan"), float("inf"), 5e-324, 1e300, 10**400, 0])
def test_stddev_must_be_finite_and_positive(stddev: float) -> None:
    with pytest.raises(ArgumentError, match="stddev must be a finite number in"):
        LatticeNoise(stddev)


@pytest.mark.parametrize("stddev", [True, np.True_, "1.0", None, 1j, [1.0], np.array([1.0])])
def test_stddev_must_be_a_number(stddev: object) -> None:
    with pytest.raises(ArgumentError, match=r"stddev must be a finite number"):
        LatticeNoise(stddev)  # type: ignore[arg-type]
