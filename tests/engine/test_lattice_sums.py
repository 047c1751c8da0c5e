"""Sums of pieces in integers: exact whatever the order, rounded once, and held like the sum of one piece."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pymc_dpvi.engine.clipping import round_and_add
from pymc_dpvi.engine.lattice_sums import add_on_lattice, no_sum, release_into, release_of
from pymc_dpvi.mechanism.limits import LARGEST_SUM, PIECE_RECORDS, TALLY_COLUMNS
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.sampling import PoissonSampler

UNIT = 0.7 * 2.0**-40
PARTS = Fraction(2) ** -20


def value(total: np.ndarray) -> list[Fraction]:
    """The sum that two integers stand for, in spacings."""
    return [int(a) * 2**19 + int(b) * PARTS for a, b in total.T]


Piece = tuple[np.ndarray, np.ndarray, np.ndarray]


def pieces(rng: np.random.Generator, number: int, size: int) -> list[Piece]:
    """Sums of pieces as the kernels make them: large, what rounding has left of it, and counts."""
    out = []
    for _ in range(number):
        high = rng.normal(size=size) * 10.0 ** rng.integers(-12, 4)
        low = high * rng.uniform(-1, 1, size=size) * 2.0**-52
        out.append((high, low, rng.integers(0, 2**45, size=TALLY_COLUMNS)))
    return out


def added(some: list[Piece], size: int) -> np.ndarray:
    total = no_sum(size + TALLY_COLUMNS)
    for high, low, tally in some:
        add_on_lattice(high, low, tally, UNIT, total)
    return total


def test_a_piece_is_rounded_by_less_than_a_millionth_of_a_spacing() -> None:
    rng = np.random.default_rng(1)
    for high, low, tally in pieces(rng, 200, 3):
        total = added([(high, low, tally)], 3)
        assert (np.abs(total[1]) <= 2**39).all()
        exact = [(Fraction(h) + Fraction(lo)) / Fraction(UNIT) for h, lo in zip(high, low, strict=True)]
        for found, wanted in zip(value(total)[:3], exact, strict=True):
            # Half of the last place of b, and the roundings of the two divisions.
            assert abs(found - wanted) <= PARTS / 2 + 3 * Fraction(2) ** -53 * abs(wanted)
        assert value(total)[3:] == [int(t) for t in tally]


def test_the_order_makes_no_difference() -> None:
    rng = np.random.default_rng(2)
    some = pieces(rng, 60, 4)
    whole = added(some, 4)
    for _ in range(5):
        rng.shuffle(some)
        cut = int(rng.integers(1, 59))
        assert np.array_equal(added(some[:cut], 4) + added(some[cut:], 4), whole)


def test_the_release_is_the_rounded_sum_and_the_noise() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        total = added(pieces(rng, 7, 3), 3)
        noise = rng.integers(-(2**43), 2**43, size=3 + TALLY_COLUMNS)
        released = [Fraction(float(r)) / Fraction(UNIT) for r in release_of(total[None], noise, UNIT)]
        for found, exact, x in zip(released, value(total), noise, strict=True):
            # An odd half is rounded up; then the sum becomes a float64.
            rounded = int((exact + Fraction(1, 2)) // 1) + int(x)
            assert abs(found - rounded) <= abs(rounded) * Fraction(2) ** -52


def test_one_piece_is_released_as_by_a_step_in_one_call() -> None:
    rng = np.random.default_rng(4)
    for high, low, tally in pieces(rng, 100, 3):
        noise = rng.integers(-(2**43), 2**43, size=3 + TALLY_COLUMNS)
        one = round_and_add(high, low, tally, noise, UNIT)
        other = release_of(added([(high, low, tally)], 3)[None], noise, UNIT)
        assert np.allclose(one, other, rtol=2**-50, atol=1.01 * UNIT)


def test_a_release_adds_up_what_several_have() -> None:
    rng = np.random.default_rng(5)
    some = pieces(rng, 9, 4)
    noise = rng.integers(-(2**43), 2**43, size=4 + TALLY_COLUMNS)
    parts = np.stack([added(some[k::3], 4) for k in range(3)])
    assert np.array_equal(release_of(parts, noise, UNIT), release_of(added(some, 4)[None], noise, UNIT))
    out = np.zeros(noise.size)
    release_into(parts, noise, UNIT, out, 2, 5)
    assert np.array_equal(out[2:5], release_of(parts, noise, UNIT)[2:5]) and not out[[0, 1, 5, 6]].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_is_held_inside_64_bits(sign: int) -> None:
    most = np.full(1, sign * LARGEST_SUM * UNIT)
    nothing, none = np.zeros(1), np.zeros(0, dtype=np.int64)
    total = no_sum(1)
    for _ in range(2**10):
        add_on_lattice(most, nothing, none, UNIT, total)
    for noise in (-(12 * 2**40), 0, 12 * 2**40):
        (released,) = release_of(total[None], np.array([noise]), UNIT)
        assert released == float(sign * 2**62 + noise) * UNIT
    # Just inside, whichever of the two integers brings it there.
    total[:, 0] = sign * 2**43, -sign * 2**39 * 2**10
    (released,) = release_of(total[None], np.zeros(1, np.int64), UNIT)
    assert released == float(sign * (2**62 - 2**29)) * UNIT


def test_the_mechanism_knows_when_pieces_fit() -> None:
    def fits(noise_multiplier: float, size: int) -> bool:
        mechanism = Mechanism(PoissonSampler(0.1), 2.0, noise_multiplier, "add_or_remove_one", "aligned")
        return mechanism.pieces_fit(size)

    assert fits(1.0, 2**26) and fits(2.0**-11, 10)
    assert not fits(2.0**-12, 10)  # a piece of records that all point the same way would be held
    assert fits(2.0**8, 2**26) and not fits(2.0**9, 2**26)  # so many roundings would not fit into the slack
    assert PIECE_RECORDS * 2.0**40 / 2.0**-11 <= LARGEST_SUM
