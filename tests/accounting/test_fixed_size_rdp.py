"""Rényi divergences of batches of fixed size, against many digits and against dp-accounting."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.accounting.papers.fixed_size_rdp import fixed_size_divergence
from pymc_dpvi.accounting.papers.rdp import GuardedRdpAccountant

NOISES = (0.025, 0.1, 0.5, 1.0, 3.04, 26.0, 132.0, 1e3, 1e5, 5e7)


def log_moment(sampling_prob: float, noise: float, order: int) -> mpmath.mpf:
    """Theorem 27 as it is written, the differences from alternating sums with digits to spare."""
    with mpmath.workdps(80 + 2 * order * max(1, round(math.log10(noise)) + 1)):
        variance = mpmath.mpf(noise) ** 2
        ratio = [mpmath.exp(k * (k - 1) / (2 * variance)) for k in range(order + 2)]

        def difference(j: int) -> mpmath.mpf:
            return mpmath.fsum((-1) ** (j - k) * math.comb(j, k) * ratio[k] for k in range(j + 1))

        even = {j: difference(j) for j in range(2, order + 2, 2)}
        total = mpmath.mpf(0)
        for j in range(2, order + 1):
            ternary = 4 * mpmath.sqrt(even[j // 2 * 2] * even[(j + 1) // 2 * 2])
            total += math.comb(order, j) * mpmath.mpf(sampling_prob) ** j * min(ternary, 2 * ratio[j])
        return mpmath.log1p(total)


@pytest.mark.turns
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("order", [2, 3, 7, 32, 65])
def test_the_theorem_from_above_to_nine_digits(noise: float, order: int):
    for sampling_prob in (1e-6, 1e-3, 0.3):
        exact = log_moment(sampling_prob, noise, order) / (order - 1)
        found = fixed_size_divergence(sampling_prob, noise, order)
        assert exact < found < exact * (1.0 + 2e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "order"), [(0.5, 256), (26.0, 256), (1e5, 256), (26.0, 1024)])
def test_the_theorem_at_high_orders(noise: float, order: int):
    exact = log_moment(0.01, noise, order) / (order - 1)
    assert exact < fixed_size_divergence(0.01, noise, order) < exact * (1.0 + 2e-10)


@pytest.mark.parametrize("order", [1.25, 2.0, 2.5, 10.1, 63.0])
@pytest.mark.parametrize(("batch_size", "noise"), [(1, 1.0), (30, 2.0), (700, 2.5)])
def test_dp_accounting_agrees_where_it_loses_no_digits(order: float, batch_size: int, noise: float):
    event = SampledWithoutReplacementDpEvent(1000, batch_size, GaussianDpEvent(noise))
    theirs = RdpAccountant([order], NeighboringRelation.REPLACE_ONE).compose(event).rdp[0]
    found = fixed_size_divergence(batch_size / 1000, noise, order)
    assert theirs * (1.0 - 1e-9) < found < theirs * (1.0 + 1e-7)


def test_everybody_in_the_batch_is_the_gaussian_mechanism():
    assert fixed_size_divergence(1.0, 2.0, 3.0) == pytest.approx(3.0 / 8.0)


def test_between_whole_orders_the_moments_are_interpolated():
    moments = [fixed_size_divergence(0.1, 1.5, order) * (order - 1) for order in (4, 4.25, 5)]
    assert moments[1] == pytest.approx(0.75 * moments[0] + 0.25 * moments[2], rel=1e-12)
    first = fixed_size_divergence(0.1, 1.5, 2)  # at order 1 the moment is zero: a constant divergence
    assert fixed_size_divergence(0.1, 1.5, 1.5) == pytest.approx(first, rel=1e-12)


def test_replacing_a_record_moves_the_sum_by_twice_its_bound():
    event = SampledWithoutReplacementDpEvent(100, 7, GaussianDpEvent(4.0))
    accountant = GuardedRdpAccountant(NeighboringRelation.REPLACE_ONE, [8.0]).compose(event, 3)
    assert accountant.rdp[0] == pytest.approx(3 * fixed_size_divergence(float(Fraction(7, 100)), 2.0, 8.0))
