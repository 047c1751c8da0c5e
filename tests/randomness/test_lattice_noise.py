"""The noise of the mechanism, and what a release betrays by its last bits."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pymc_dpvi.engine import clipping
from pymc_dpvi.engine.generated_code import write_add_clipped
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.blocks import Form
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.randomness.lattice_noise import LatticeNoise
from pymc_dpvi.randomness.rounded_normal import rounded_normals


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
    assert stats.kstest(noise.ravel() * (lattice.spacing / stddev), "norm").pvalue > 1e-3
    assert p_scale(noise * lattice.spacing, stddev) > 1e-3
    assert p_scale(noise * lattice.spacing, 1.02 * stddev) < 1e-9  # planted: two per cent too little noise
    assert p_scale(noise * lattice.spacing * np.sqrt(1.02), stddev) < 1e-3


def test_unit_is_exactly_two_to_the_minus_forty_standard_deviations() -> None:
    for stddev in (1e-200, 0.1, 1.0, 3.7, 1e200):
        assert Fraction(LatticeNoise(stddev).spacing) * 2**40 == Fraction(stddev)


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


# ------------------------------------------------------------------------------------------------
# The precision attack
# ------------------------------------------------------------------------------------------------


def release(clipped_sum: float, noise: np.ndarray, lattice: LatticeNoise) -> np.ndarray:
    """What the kernel releases of one record with this gradient, again and again."""
    add_clipped, one = write_add_clipped([Form("dense")]), np.full((1, 1), clipped_sum)
    # One coordinate per release, each clipped by itself: the outer norm must not bind.
    out = np.empty(noise.size)
    for k in range(noise.size):
        bound, units, *sums = clipping.start_of_sum(1, 4.0, 0.0, lattice.spacing)
        add_clipped(one, 1, bound, units, *sums)
        out[k] = clipping.round_and_add(*sums, noise[k : k + 1], lattice.spacing)[0]
    return out


def certain(released: np.ndarray) -> np.ndarray:
    """Where a release proves that the sum was 0 and not 1 (Mironov 2012; Haney et al. 2022).

    For -3/2 <= n < -1/2 the number n is a multiple of 2^-53, and so is 1 + n; for larger n, 1 + n is at least
    1/2 and a multiple of 2^-53 too. So below 1/2, any other number can only be noise alone.
    """
    return np.rint(released * 2.0**53) != released * 2.0**53


def test_one_release_identifies_nothing() -> None:
    n = 20_000
    rng = np.random.default_rng(26)
    # Plain float64 noise: about a quarter of the releases give the sum away for certain.
    assert 0.24 < np.mean(certain(0.0 + rng.standard_normal(n))) < 0.28
    assert not certain(1.0 + rng.standard_normal(n)).any()
    lattice = LatticeNoise(1.0)
    for clipped_sum in (0.0, 1.0, 0.7, 1 / 3):
        released = release(clipped_sum, lattice.draw(stream(f"attack {clipped_sum}"), n), lattice)
        assert not certain(released).any()
        # Every release is a multiple of the unit, whatever the sum: no value speaks for one sum alone.
        np.testing.assert_array_equal(np.rint(released / lattice.spacing) * lattice.spacing, released)


@pytest.mark.parametrize("stddev", [1.0, 0.3, 7.7])
def test_last_bits_of_a_release_carry_nothing(stddev: float) -> None:
    lattice, n = LatticeNoise(stddev), 20_000
    digits = []
    for k, clipped_sum in enumerate((0.0, 1.0, 0.7)):
        released = release(clipped_sum, lattice.draw(stream(f"bits {stddev} {k}"), n), lattice)
        steps = np.rint(released / lattice.spacing).astype(np.int64)
        digits.append(np.bincount(steps & 63, minlength=64))
    assert all(stats.chisquare(counts).pvalue > 1e-3 for counts in digits)
    assert stats.chi2_contingency(np.array(digits)).pvalue > 1e-3
    # Planted: float noise on the same sums, seen in steps of its own last bits.
    rng = np.random.default_rng(3)
    planted = [
        np.bincount(np.rint((s + rng.standard_normal(n)) * 2.0**54).astype(np.int64) & 63, minlength=64)
        for s in (0.0, 1.0)
    ]
    assert stats.chi2_contingency(np.array(planted) + 1).pvalue < 1e-9
