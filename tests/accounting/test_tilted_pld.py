"""The default accountant's numerics: from above, relative to delta, against 50 digits and closed forms."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inversion import Step, delta_of, log_moment

from pymc_dpvi.accounting import make_accountant
from pymc_dpvi.accounting.gaussian import gaussian_epsilon, log_gaussian_delta
from pymc_dpvi.accounting.pld import dominating_pairs, gaussian_steps, tilted_composition
from pymc_dpvi.accounting.pld.accountant import TiltedPLDAccountant
from pymc_dpvi.accounting.pld.dominating_pairs import MASS_ERROR, FixedSizePair, GaussianPair
from pymc_dpvi.accounting.pld.gaussian_steps import LossPair, composed_delta, composed_epsilon
from pymc_dpvi.accounting.pld.tilted_composition import Composition
from pymc_dpvi.errors import ArgumentError

AR = NeighboringRelation.ADD_OR_REMOVE_ONE
RO = NeighboringRelation.REPLACE_ONE
PROPERTY = settings(max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: 10.0**x)


# ------------------------------------------------------------------- one step, against 50 digits


def exact_delta(pair: GaussianPair, epsilon: float, reverse: bool) -> mpmath.mpf:
    """Delta of one step in 50 digits: the pair's curve at the x where the loss is epsilon."""
    q, sigma = mpmath.mpf(pair.sampling_prob), mpmath.mpf(pair.noise_multiplier)
    shift = mpmath.mpf(1 if pair.replace_one else 0)

    def loss(x: Any) -> Any:
        up = mpmath.log(1 - q + q * mpmath.exp((2 * x - 1) / (2 * sigma**2)))
        down = mpmath.log(1 - q + q * mpmath.exp((-2 * x - 1) / (2 * sigma**2)))
        return up - (down if pair.replace_one else 0)

    target = mpmath.mpf(-epsilon if reverse else epsilon)
    if not pair.replace_one and target <= mpmath.log1p(-q):
        return mpmath.mpf(0) if reverse else 1 - mpmath.exp(target)
    low, high = mpmath.mpf(-100) * (1 + sigma), mpmath.mpf(100) * (1 + sigma)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < target else (low, middle)

    def above(centre: Any, sign: int) -> Any:  # mass above x, or below
        return mpmath.ncdf(sign * (centre - low) / sigma)

    def mass(law: str, sign: int) -> Any:
        if law == "Q" and not pair.replace_one:
            return above(mpmath.mpf(0), sign)
        centre = mpmath.mpf(1) if law == "P" else -shift
        return (1 - q) * above(mpmath.mpf(0), sign) + q * above(centre, sign)

    if reverse:
        return mass("Q", -1) - mpmath.exp(mpmath.mpf(epsilon)) * mass("P", -1)
    return mass("P", 1) - mpmath.exp(mpmath.mpf(epsilon)) * mass("Q", 1)


@pytest.mark.turns
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("q", "noise", "replace_one"),
    [
        (0.01, 4.0, False),
        (1e-6, 0.3, False),
        (1e-6, 30.0, False),
        (0.3, 0.05, False),
        (0.999, 1.0, False),
        (0.2, 1e5, False),
        (1.0, 0.7, False),
        (0.01, 4.0, True),
        (1e-6, 0.3, True),
        (0.3, 0.05, True),
        (0.2, 1e5, True),
    ],
)
def test_one_step_is_the_truth_on_its_grid_from_above(
    q: float, noise: float, replace_one: bool, reverse: bool
) -> None:
    """Connect-the-dots is exact on the grid, in the far tail as well; but for the error that it adds."""
    pair = GaussianPair(q, noise, replace_one)
    interval = max(0.05 * pair.spread(), (pair.range(1e-40)[1] - pair.range(1e-40)[0]) / 3000)
    law = pair.law(interval, tail=1e-40, reverse=reverse)
    one = Composition([(law, 1)])
    curve = one.curve(1.0, 0.0)
    found = curve.deltas
    checked = 0
    with mpmath.workdps(50):
        for i in range(0, len(found), max(1, len(found) // 23)):
            exact = exact_delta(pair, law.losses[i], reverse)
            if exact < 1e-36:  # the tail that is cut off
                continue
            checked += 1
            # up to the shift by the rounding of the edges, which moves the curve to the right
            slack = 1e-8 * exact + mpmath.mpf(4e-12 + 20.0 * law.loss_error)
            assert found[i] >= exact * (1 - mpmath.mpf(4) * MASS_ERROR)
            assert found[i] <= exact + slack or found[i] <= exact * (1 + mpmath.mpf("1e-6"))
    assert checked >= 3
    assert law.probs.min() >= 0.0
    assert law.probs.sum() + law.infinite == pytest.approx(1.0, abs=1e-11)


@pytest.mark.turns
@pytest.mark.parametrize(
    "pair",
    [
        GaussianPair(0.01, 4.0),
        GaussianPair(1e-6, 0.3),
        GaussianPair(0.3, 0.05),
        GaussianPair(0.999, 1.0),
        GaussianPair(0.2, 1e5),
        GaussianPair(0.01, 4.0, True),
        GaussianPair(1e-6, 0.3, True),
        GaussianPair(0.3, 0.05, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("fine", [0.02, 1e-4])
def test_edges_and_masses_of_cells_against_50_digits(pair: GaussianPair, fine: float) -> None:
    """The losses at the edges, and the masses between them, far out as well, are as exact as is claimed."""
    law = pair.law(fine * pair.spread(), tail=1e-100, reverse=False)
    grid = law.losses
    x = pair.inverse_loss(grid)
    chosen = np.unique(np.linspace(0, len(grid) - 2, 25).round().astype(int))
    chosen = np.union1d(chosen, np.flatnonzero(law.places == 0)[:1])
    mass_p, mass_q, excess, error = pair._cells(x)
    q, sigma = mpmath.mpf(pair.sampling_prob), mpmath.mpf(pair.noise_multiplier)
    with mpmath.workdps(50):

        def between(low: Any, high: Any, centre: int) -> Any:
            low, high = (low - centre) / sigma, (high - centre) / sigma
            return mpmath.ncdf(-low) - mpmath.ncdf(-high) if low > 0 else mpmath.ncdf(high) - mpmath.ncdf(low)

        for i in chosen:
            if not np.isfinite(x[i]):
                continue
            # the edges at which masses are taken, in units of the noise
            low, high = (sigma * mpmath.mpf(float(edge / pair.noise_multiplier)) for edge in x[i : i + 2])
            up = mpmath.log1p(q * mpmath.expm1((2 * low - 1) / (2 * sigma**2)))
            down = mpmath.log1p(q * mpmath.expm1((-2 * low - 1) / (2 * sigma**2))) if pair.replace_one else 0
            assert abs(up - down - mpmath.mpf(float(grid[i]))) <= law.loss_error
            rest = (1 - q) * between(low, high, 0)
            p = rest + q * between(low, high, 1)
            other = rest + q * between(low, high, -1) if pair.replace_one else between(low, high, 0)
            if min(p, other) < 1e-290:  # as good as nothing, and counted as going up
                continue
            assert abs(mass_p[i] / p - 1) <= MASS_ERROR
            assert abs(mass_q[i] / other - 1) <= MASS_ERROR
            assert abs(excess[i] - (p - other)) <= error[i] + law.loss_error * p


def test_wide_cells_far_out_change_next_to_nothing() -> None:
    """Cells that widen with the loss: few, from above, and as good as even ones."""
    pair = GaussianPair(1e-4, 0.6)
    law = pair.law(2.0**-16, tail=1e-30, reverse=False)
    assert len(law.places) < (law.places[-1] - law.places[0]) / 20
    widths = np.diff(law.places)
    distances = np.abs(law.places[:-1])
    assert (widths[distances < 1024] == 1).all()
    assert (widths <= np.maximum(2 * distances / 1024, 1)).all()
    losses, probs = law.losses, law.probs
    even = pair.law(2.0**-8, tail=1e-30, reverse=False)  # all of one width, which is large beside the spread
    for tilt in (1.0, 4.0):
        weights = np.exp(tilt * losses) * probs
        assert weights @ losses**2 <= (np.exp(tilt * even.losses) * even.probs) @ even.losses**2
        exact = log_moment(Step(1e-4, 0.6), np.array([tilt + 0j]))[0].real
        assert exact <= Composition([(law, 1)]).cumulant(tilt) <= exact * 1.001


def test_more_steps_than_the_arithmetic_can_count_are_refused_an_answer() -> None:
    """The relative errors of a step count once for each: from 1e12 steps on nothing is known."""
    accountant = make_accountant("pld")
    step = dp_accounting.PoissonSampledDpEvent(1e-9, dp_accounting.GaussianDpEvent(1e3))
    accountant.compose(step, 10**13)
    assert accountant.get_epsilon(1e-6) == math.inf
    assert accountant.get_delta(1.0) == 1.0


def test_the_mass_below_is_not_lost() -> None:
    """Planted bug: without the mass that is beyond the lowest edge, delta would be too small at once."""
    pair = GaussianPair(0.3, 1.0, True)
    law = pair.law(0.01, tail=1e-3, reverse=False)  # a tail that shows
    assert law.infinite > 1e-4
    assert law.probs.sum() + law.infinite == pytest.approx(1.0, abs=1e-12)
    fine = pair.law(0.01, tail=1e-30, reverse=False)
    for epsilon in (0.0, 0.5, 1.5):
        rough = Composition([(law, 1)]).curve(1.0, 0.0).delta(epsilon)
        assert rough >= Composition([(fine, 1)]).curve(1.0, 0.0).delta(epsilon)


# ------------------------------------------------------------------------ many steps, by FFT


@PROPERTY
@given(mu=log_uniform(1e-3, 15.0), steps=log_uniform(1.0, 1e7).map(round), delta=log_uniform(1e-50, 0.1))
def test_composition_against_the_exact_gaussian_curve(mu: float, steps: int, delta: float) -> None:
    """Composed by FFT although there is a closed form: never below it, within 1e-3 of it."""
    parts = [(GaussianPair(1.0, math.sqrt(steps) / mu), steps)]
    exact = gaussian_epsilon(mu, delta)
    found = composed_epsilon(parts, delta)
    assert found >= exact * (1.0 - 1e-9)
    assert found <= exact * (1.0 + 1e-3) or found <= 1e-6
    if exact > 1e-6:
        back = composed_delta(parts, exact)
        assert back >= delta * (1.0 - 1e-6)
        assert gaussian_epsilon(mu, back) >= exact * (1.0 - 1e-3)


Case = tuple[LossPair, list[list[tuple[float, Step]]], int, float]


def sampled(q: float, noise: float, replace_one: bool, steps: int, epsilon: float) -> Case:
    """The package's pair; the same for the inversion, in each direction; number of steps; epsilon."""
    ways = (False,) if replace_one else (False, True)
    truth = [[(1.0, Step(q, noise, replace_one, reverse))] for reverse in ways]
    return GaussianPair(q, noise, replace_one), truth, steps, epsilon


def fixed(q: float, noise: float, steps: int, epsilon: float) -> Case:
    return FixedSizePair(q, noise), [[(1.0, Step(q, noise / 2.0, fixed_size=True))]], steps, epsilon


CASES = {
    "abadi": sampled(0.01, 4.0, False, 10_000, 0.9468674254140242),
    "abadi, replace": sampled(0.01, 4.0, True, 10_000, 2.0),
    "short": sampled(0.2, 1.0, False, 30, 8.0),
    "little noise": sampled(0.3, 0.5, True, 10, 40.0),
    "rare records": sampled(1e-6, 20.0, False, 10**7, 1e-3),
    "rare records, replace": sampled(1e-6, 20.0, True, 10**7, 1e-3),
    "nearly everybody": sampled(0.97, 30.0, False, 300, 2.5),
    "far tail": sampled(0.02, 2.0, False, 3000, 7.0),
    "rare large losses": sampled(1e-4, 0.6, False, 10**6, 1.6),
    "most steps": sampled(0.001, 3.0, True, 10**7, 20.0),
    "fixed": fixed(0.01, 8.0, 10_000, 1.039),
    "fixed, short": fixed(0.3, 3.0, 10, 2.0),
}


def against_inversion(case: Case) -> None:
    pair, truth, steps, epsilon = case
    each = [delta_of([(mixture, steps)], epsilon) for mixture in truth]
    exact = np.nanmax(each)  # none for a loss that cannot reach epsilon
    assert exact <= composed_delta([(pair, steps)], epsilon) <= exact * 1.03
    assert epsilon <= composed_epsilon([(pair, steps)], exact) <= epsilon * 1.001
    for reverse in pair.directions:  # the Chernoff bound, by which a direction may be passed over
        law = pair.law(0.25 * pair.spread(), tail=1e-40, reverse=reverse)
        if each[reverse] > 0.0:
            assert Composition([(law, steps)]).tilt_for_delta(each[reverse])[1] >= epsilon


@pytest.mark.turns
@pytest.mark.parametrize("name", CASES)
def test_composition_against_the_inverted_moment_generating_function(name: str) -> None:
    """No grid and no FFT of losses: epsilon is never below it, and within 1e-3 of it."""
    against_inversion(CASES[name])


UPPER_MASS = dominating_pairs._upper_mass
CUMULANT = Composition.cumulant
LAW = gaussian_steps._law


@pytest.mark.parametrize(
    ("name", "where", "planted"),
    [
        # the upper end of a cell gets too little
        ("short", "dominating_pairs._upper_mass", lambda *a: [0.99 * x for x in UPPER_MASS(*a)]),
        # a replaced record moves the sum by its bound once
        (
            "fixed, short",
            "dominating_pairs.FixedSizePair._pair",
            property(lambda s: GaussianPair(s.sampling_prob, s.noise_multiplier)),
        ),
        # the tilt is not undone to the last per cent
        (
            "far tail",
            "tilted_composition.Composition.cumulant",
            lambda self, tilt: CUMULANT(self, tilt) - 0.01,
        ),
    ],
)
def test_a_planted_bug_is_below_the_truth(
    name: str, where: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAW.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(f"pymc_dpvi.accounting.pld.{where}", planted)
        with pytest.raises(AssertionError, match="<="):
            against_inversion(CASES[name])
    LAW.cache_clear()
    against_inversion(CASES[name])


def test_what_the_tilt_is_for() -> None:
    """Planted bug: an untilted FFT. It knows its error: it does not answer, in place of answering wrongly."""
    mu, steps, delta = 1.0, 1000, 1e-25
    exact = gaussian_epsilon(mu, delta)
    law = GaussianPair(1.0, math.sqrt(steps) / mu).law(1e-3, tail=1e-40, reverse=False)
    one = Composition([(law, steps)])
    tilt, _ = one.tilt_for_delta(delta)
    assert exact <= one.curve(tilt, math.log(delta)).epsilon(delta) <= 1.001 * exact
    assert one.curve(1e-6, math.log(delta)).epsilon(delta) > 1.1 * exact


@pytest.mark.parametrize("tilt", [1e-6, 1.0, 3.0])
def test_the_error_bound_covers_the_error(tilt: float) -> None:
    """Against direct convolution, whose terms are positive, so that it is exact in relative terms."""
    law = GaussianPair(0.3, 1.0).law(0.05, tail=1e-30, reverse=False)
    direct = law.probs
    for _ in range(7):
        direct = np.convolve(direct, law.probs)
    one = Composition([(law, 8)])
    found = one._convolve(tilt, 8 * law.places[0], len(direct))
    losses = one.interval * (8 * law.places[0] + np.arange(len(direct)))
    tilted = direct * np.exp(tilt * losses - one.cumulant(tilt))
    assert (found >= tilted * (1.0 - 1e-11)).all()
    floor = found.min()  # where there is nothing else
    assert 0.0 < floor < 1e-13
    assert (found <= tilted * (1.0 + 1e-11) + 2.0 * floor).all()
    # Planted bug: had the error been left out, some would be too small
    assert (found - floor < tilted * (1.0 - 1e-11)).any()


def test_a_short_window_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mass that wraps around is missed above; the bound on it is added."""
    parts = [(GaussianPair(0.1, 1.0), 50)]
    right = composed_epsilon(parts, 1e-8)
    monkeypatch.setattr(tilted_composition, "WINDOW_SHARE", 0.2)
    monkeypatch.setattr(tilted_composition, "_WRAPPED", 3.0)
    short = composed_epsilon(parts, 1e-8)
    assert right <= short <= 1.1 * right


@pytest.mark.turns
@pytest.mark.parametrize(
    ("relation", "event"),
    [
        (AR, dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0))),
        (RO, dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0))),
        (
            AR,
            dp_accounting.ComposedDpEvent(
                [
                    dp_accounting.GaussianDpEvent(40.0),
                    dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0)),
                    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)),
                ]
            ),
        ),
    ],
)
def test_every_event_against_googles_accountant(relation: Any, event: Any) -> None:
    """The same pairs on another path: dp-accounting's grid and its plain FFT."""
    ours = TiltedPLDAccountant(relation).compose(event, 50)
    theirs = PLDAccountant(relation, 2e-4).compose(event, 50)
    for delta in (1e-3, 1e-6, 1e-9):
        expected = theirs.get_epsilon(delta)
        assert ours.get_epsilon(delta) == pytest.approx(expected, rel=1e-3)
        assert ours.get_delta(expected) == pytest.approx(theirs.get_delta(expected), rel=1e-2)


def test_fixed_size_on_googles_grid() -> None:
    """Proposition 30 of Zhu, Dong and Wang (2022), by dp-accounting's dots and its plain FFT."""
    q, noise, interval, steps = 0.05, 4.0, 2e-4, 50
    losses = [
        privacy_loss_mechanism.GaussianPrivacyLoss(noise / 2.0, sampling_prob=q, adjacency_type=adjacency)
        for adjacency in privacy_loss_mechanism.AdjacencyType
        if adjacency.name in ("ADD", "REMOVE")
    ]
    bounds = [loss.connect_dots_bounds() for loss in losses]
    upper = math.ceil(max(bound.epsilon_upper for bound in bounds) / interval)
    lower = math.floor(min(bound.epsilon_lower for bound in bounds) / interval)
    deltas = np.maximum(
        *(loss.get_delta_for_epsilon(np.arange(lower, upper + 1) * interval) for loss in losses)
    )
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)
    theirs = privacy_loss_distribution.PrivacyLossDistribution(pmf).self_compose(steps)
    event = dp_accounting.SampledWithoutReplacementDpEvent(100, 5, dp_accounting.GaussianDpEvent(noise))
    ours = TiltedPLDAccountant(RO).compose(event, steps)
    for delta in (1e-3, 1e-6, 1e-9):
        expected = theirs.get_epsilon_for_delta(delta)
        assert ours.get_epsilon(delta) == pytest.approx(expected, rel=1e-3)
        found = ours.get_delta(expected)
        assert found == pytest.approx(theirs.get_delta_for_epsilon(expected), rel=1e-2)


def test_full_batches_have_a_closed_form_whatever_they_are_called() -> None:
    noise = dp_accounting.GaussianDpEvent(30.0)
    events = [
        (AR, noise, 1.0),
        (RO, noise, 2.0),
        (AR, dp_accounting.PoissonSampledDpEvent(1.0, noise), 1.0),
        (RO, dp_accounting.SampledWithoutReplacementDpEvent(9, 9, noise), 2.0),
    ]
    for relation, event, sensitivity in events:
        accountant = TiltedPLDAccountant(relation).compose(event, 100)
        mu = 10.0 * sensitivity / 30.0
        assert accountant.get_epsilon(1e-12) == pytest.approx(gaussian_epsilon(mu, 1e-12), rel=1e-9)
        assert accountant.get_delta(1.0) == pytest.approx(math.exp(log_gaussian_delta(mu, 1.0)), rel=1e-9)
        assert accountant.delta_curve([1.0])[0] == accountant.get_delta(1.0)
    nothing = TiltedPLDAccountant().compose(dp_accounting.PoissonSampledDpEvent(0.0, noise))
    assert (nothing.get_epsilon(1e-5), nothing.get_delta(0.0)) == (0.0, 0.0)


@pytest.mark.turns
@pytest.mark.parametrize("relation", [AR, RO])
def test_a_whole_curve(relation: Any) -> None:
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(2.0))
    accountant = TiltedPLDAccountant(relation).compose(event, 1000)
    epsilons = np.linspace(0.0, 6.0, 13)
    curve = accountant.delta_curve(epsilons)
    assert curve.shape == (13,)
    assert (np.diff(curve)[curve[:-1] > 1e-40] < 0.0).all()
    assert (np.diff(curve) <= 0.0).all()
    for i in (0, 1, 3, 7, 12):
        assert curve[i] == pytest.approx(accountant.get_delta(epsilons[i]), rel=0.01)
    assert curve[-1] < 1e-20
    for bad in ([-1.0], [math.nan], [math.inf]):
        with pytest.raises(ArgumentError, match="epsilons"):
            accountant.delta_curve(bad)


def test_fixed_size_is_symmetric_and_above_both_orders() -> None:
    law = FixedSizePair(0.05, 4.0).law(0.01, tail=1e-20, reverse=False)
    np.testing.assert_array_equal(law.places, -law.places[::-1])
    losses = law.losses
    np.testing.assert_allclose(law.probs * np.exp(-losses), law.probs[::-1], rtol=1e-9)
    assert law.probs.sum() + law.infinite == pytest.approx(1.0, abs=1e-11)
    both = composed_epsilon([(FixedSizePair(0.05, 4.0), 100)], 1e-6)
    assert both >= composed_epsilon([(GaussianPair(0.05, 2.0), 100)], 1e-6)


def test_questions_outside_of_reason() -> None:
    accountant = make_accountant("pld")
    assert isinstance(accountant, TiltedPLDAccountant)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(0.001)))
    assert accountant.get_epsilon(1e-6) == math.inf  # above 600
    assert accountant.get_epsilon(0.2) < 600.0
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="target_delta"):
            accountant.get_epsilon(bad)
    for bad in (-1.0, math.inf):
        with pytest.raises(ArgumentError, match="target_epsilon"):
            accountant.get_delta(bad)
    tiny = make_accountant("pld").compose(
        dp_accounting.PoissonSampledDpEvent(1e-9, dp_accounting.GaussianDpEvent(1e9)), 3
    )
    assert 0.0 <= tiny.get_epsilon(1e-12) < 1e-9
