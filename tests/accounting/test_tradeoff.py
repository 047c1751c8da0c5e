"""Privacy profiles and trade-off functions: exact curves, attacks that must not beat them, rounding up."""

from __future__ import annotations

import doctest
import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.stats import norm

from pymc_dpvi import accounting
from pymc_dpvi.accounting import epsilon as run_epsilon
from pymc_dpvi.accounting.curves import profiles
from pymc_dpvi.accounting.curves.profiles import composed_profile, privacy_profile
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.release import interpretation
from pymc_dpvi.sampling import FixedSizeSampler, PoissonSampler

RATES = np.array([1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5, 0.9, 0.999])


def gaussian_delta(mu: float, eps: Any) -> Any:
    """Balle and Wang (2018, Theorem 8)."""
    eps = np.asarray(eps, dtype=float)
    first = special.log_ndtr(mu / 2 - eps / mu)
    return np.exp(first) * -np.expm1(eps + special.log_ndtr(-mu / 2 - eps / mu) - first)


def gaussian_tpr(mu: float, rate: Any) -> Any:
    """Dong, Roth and Su (2022): 1 - G_mu(a), with G_mu(a) = Phi(Phi^-1(1 - a) - mu)."""
    return norm.sf(norm.isf(rate) - mu)


def gaussian(mu: float) -> PrivacyProfile:
    return privacy_profile(noise_multiplier=1 / mu, n_steps=1, sampler="full_batch")


# ------------------------------------------------------------------------ the full batch is exact


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(("noise", "steps"), [(20.0, 3), (20.0, 100), (2.0, 4), (1e4, 7)])
def test_full_batches_give_the_gaussian_trade_off(relation: str, noise: float, steps: int) -> None:
    profile = privacy_profile(
        noise_multiplier=noise, n_steps=steps, sampler="full_batch", neighboring_relation=relation
    )
    mu = math.sqrt(steps) / noise * (2 if relation == "replace_one" else 1)
    exact = gaussian_tpr(mu, RATES)
    found = profile.true_positive_rate(RATES)
    assert (found >= exact).all()
    np.testing.assert_allclose(found, exact, rtol=3e-5)
    np.testing.assert_allclose(profile.false_negative_rate(RATES), 1 - found)
    advantage = 2 * norm.cdf(mu / 2) - 1
    assert advantage <= profile.advantage <= advantage * (1 + 1e-8)


def normal_cdf(x: Decimal) -> Decimal:
    """Phi by its Taylor series, to the precision of the context."""
    term, total, k = x, x, 0
    while abs(term) > Decimal(10) ** -70:
        k += 1
        term *= -x * x / (2 * k)
        total += term / (2 * k + 1)
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
    return Decimal("0.5") + total / (2 * pi).sqrt()


@pytest.mark.parametrize("mu", [1e-6, 1e-4, 1e-2, 0.3, 2.0, 6.0])
def test_full_batches_against_eighty_digits(mu: float) -> None:
    profile = privacy_profile(noise_multiplier=1 / mu, n_steps=1, sampler="full_batch")
    with localcontext() as context:
        context.prec = 80
        m = 1 / Decimal(1 / mu)
        for index in range(0, 2000, 37):  # down to a delta of about 1e-13
            eps, found = (Decimal(float(x[index])) for x in (profile.epsilons, profile.deltas))
            first = normal_cdf(m / 2 - eps / m)
            second = eps.exp() * normal_cdf(-m / 2 - eps / m)
            exact = first - second
            assert exact < found <= exact * (1 + Decimal("1e-6"))


def test_several_full_batch_runs_are_one_gaussian() -> None:
    runs = [
        Run.from_names(sampler="full_batch", sampling_prob=None, noise_multiplier=z, n_steps=n)
        for z, n in ((10.0, 4), (3.0, 1))
    ]
    mu = math.sqrt(4 / 100 + 1 / 9)
    np.testing.assert_allclose(
        composed_profile(runs).true_positive_rate(RATES), gaussian_tpr(mu, RATES), rtol=3e-5
    )


@pytest.mark.parametrize(("noise", "steps"), [(30.0, 100), (30.0, 3000)])
def test_the_composed_curve_is_above_the_exact_one(noise: float, steps: int) -> None:
    # Everybody is drawn: a Gaussian again, but composed step by step, by FFT.
    profile = composed_profile([Run(PoissonSampler(1.0), noise, steps)])
    mu = math.sqrt(steps) / noise
    exact = gaussian_delta(mu, profile.epsilons)
    assert (profile.deltas >= exact).all()
    tight = exact > 1e-9
    np.testing.assert_allclose(profile.deltas[tight], exact[tight], rtol=2e-2)
    found = profile.true_positive_rate(RATES)
    assert (found >= gaussian_tpr(mu, RATES)).all()
    np.testing.assert_allclose(found, gaussian_tpr(mu, RATES), rtol=2e-3)


# ------------------------------------------------------------------------ golden values


def test_the_reference_figures() -> None:
    """Figures of shared/ACCOUNTING.md, "What epsilon means" (q = 0.01, z = 1, T = 1e4, delta = 1e-5)."""
    profile = privacy_profile(noise_multiplier=1.0, n_steps=10_000, sampling_prob=0.01)
    assert profile.epsilon(1e-5) == pytest.approx(6.19, abs=0.005)
    assert profile.advantage == pytest.approx(0.48, abs=0.005)
    assert profile.true_positive_rate(1e-3) == pytest.approx(0.038, abs=5e-4)
    alone = PrivacyProfile.from_epsilon_delta(6.19, 1e-5)
    assert alone.advantage == pytest.approx(0.996, abs=5e-4)
    assert alone.true_positive_rate(1e-3) == pytest.approx(0.487, abs=1e-3)


@pytest.mark.parametrize(
    "run",
    [
        dict(noise_multiplier=4.0, n_steps=1000, sampling_prob=0.01),
        dict(noise_multiplier=1.0, n_steps=100, sampling_prob=0.02, neighboring_relation="replace_one"),
        dict(
            noise_multiplier=8.0,
            n_steps=1000,
            sampling_prob=0.01,
            sampler="fixed_size",
            neighboring_relation="replace_one",
        ),
        dict(noise_multiplier=30.0, n_steps=500, sampler="full_batch"),
    ],
)
def test_epsilon_is_the_accountants(run: dict[str, Any]) -> None:
    found = privacy_profile(**run).epsilon(1e-5)
    stated = dict(run)
    if run.get("sampler") == "fixed_size":
        stated = {**run, "sampler": FixedSizeSampler(100, 10_000), "sampling_prob": None}
    assert found == pytest.approx(run_epsilon(delta=1e-5, **stated), rel=2e-3)


def test_the_curve_reaches_far_below_the_resolution_of_a_plain_fft() -> None:
    profile = privacy_profile(noise_multiplier=4.0, n_steps=1000, sampling_prob=0.01)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0))
    rdp = accounting.make_accountant("rdp").compose(event, 1000).get_epsilon(1e-20)
    assert 0.9 * rdp < profile.epsilon(1e-20) <= rdp
    other = privacy_profile(
        noise_multiplier=4.0, n_steps=1000, sampling_prob=0.01, neighboring_relation="replace_one"
    )
    assert 1.5 * rdp < other.epsilon(1e-20) < 2.5 * rdp


# ------------------------------------------------------------------------ attacks


def losses(
    rng: np.random.Generator, *, q: float, z: float, steps: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw log-likelihood ratios (record in against out) of all noisy sums, without it and with it.

    The attacker has subtracted what it knows: a sum is N(0, z^2), plus 1 where the record was drawn.
    """
    found = []
    for member in (False, True):
        total = np.zeros(size)
        for _ in range(steps):
            x = z * rng.standard_normal(size)
            if member:
                x += rng.random(size) < q
            total += np.log1p(q * np.expm1((x - 0.5) / z**2))
        found.append(total)
    return found[0], found[1]


@pytest.fixture(scope="module")
def attack() -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    setting: dict[str, Any] = dict(q=0.1, z=1.0, steps=40)
    return setting, *losses(np.random.default_rng(3), **setting, size=200_000)


def beats(profile: PrivacyProfile, out: np.ndarray, member: np.ndarray) -> tuple[float, float]:
    """Return by how many standard errors the best test beats the curve, and how close it comes to it.

    The test is that of Neyman and Pearson, in both directions: "in", and "not in".
    """
    excess, share = -math.inf, 0.0
    for null, alternative in ((out, member), (-member, -out)):
        for rate in (1e-3, 1e-2, 0.1, 0.3):
            limit = np.quantile(null, 1 - rate)
            power, level = np.mean(alternative > limit), np.mean(null > limit)
            # of the power, and of the level through the slope of the curve
            slope = profile.true_positive_rate(rate) / rate
            error = math.sqrt((power * (1 - power) + slope**2 * rate) / null.size)
            excess = max(excess, (power - profile.true_positive_rate(level)) / error)
            share = max(share, power / profile.true_positive_rate(level))
    return excess, share


@pytest.mark.turns
def test_the_best_attack_does_not_beat_the_curve(attack: Any) -> None:
    setting, out, member = attack
    profile = privacy_profile(
        noise_multiplier=setting["z"], n_steps=setting["steps"], sampling_prob=setting["q"]
    )
    excess, share = beats(profile, out, member)
    assert excess < 4
    assert share > 0.98  # and it comes close
    advantage = np.mean(member > 0) - np.mean(out > 0)
    assert 0.98 * profile.advantage < advantage < profile.advantage + 0.005


def test_it_does_beat_the_curve_of_less_noisy_accounting(attack: Any) -> None:
    setting, out, member = attack
    wrong = privacy_profile(
        noise_multiplier=1.05 * setting["z"], n_steps=setting["steps"], sampling_prob=setting["q"]
    )
    assert beats(wrong, out, member)[0] > 4


def test_odds_of_the_attack_stay_within_their_bounds(attack: Any) -> None:
    setting, out, member = attack
    profile = privacy_profile(
        noise_multiplier=setting["z"], n_steps=setting["steps"], sampling_prob=setting["q"]
    )
    for loss in (member, -out):  # odds for the truth, where the record is in and where it is not
        for probability in (0.1, 0.01, 0.001):
            factor = profile.odds_factor(probability)
            error = math.sqrt(probability / loss.size)
            assert np.mean(loss > math.log(factor)) < probability + 4 * error
            assert profile.odds_probability(factor) == pytest.approx(probability, rel=0.02)


# ------------------------------------------------------------------------ odds


def test_odds_of_the_gaussian() -> None:
    mu = 1.0  # the loss is N(mu^2 / 2, mu^2)
    profile = gaussian(mu)
    for factor in (2.0, 10.0, 100.0):
        exact = norm.sf(math.log(factor), mu**2 / 2, mu)
        assert exact <= profile.odds_probability(factor) <= 3.5 * exact
    # "e^epsilon bounds the factor but with probability delta" is false:
    epsilon = profile.epsilon(1e-5)
    assert norm.sf(epsilon, mu**2 / 2, mu) > 2e-5
    assert profile.odds_factor(1e-5) > math.exp(epsilon)


def test_posterior() -> None:
    profile = gaussian(0.5)
    factor = profile.odds_factor(1e-3)
    assert profile.posterior(0.5, 1e-3) == pytest.approx(factor / (1 + factor))
    assert profile.posterior(0.1, 1e-3) == pytest.approx(factor / (factor + 9))
    nothing = PrivacyProfile(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    assert nothing.odds_factor(0.5) == math.inf
    assert nothing.posterior(0.1, 0.5) == 1.0
    assert nothing.true_positive_rate(0.0) == 1.0


# ------------------------------------------------------------------------ one pair only


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (0.1, 1e-6), (3.0, 0.01), (900.0, 0.0), (1.0, 1.0)]
)
def test_one_pair_alone(epsilon: float, delta: float) -> None:
    profile = PrivacyProfile.from_epsilon_delta(epsilon, delta)
    closed = 1 - 2 * (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    assert profile.advantage == pytest.approx(closed, abs=1e-12)
    if epsilon < 700:
        line = np.minimum(delta + np.exp(epsilon) * RATES, 1 - np.exp(-epsilon) * (1 - delta - RATES))
        np.testing.assert_allclose(profile.true_positive_rate(RATES), np.clip(line, RATES, 1), atol=1e-9)
    assert profile.epsilon(delta) <= max(epsilon, 1e-9)


# ------------------------------------------------------------------------ groups


@pytest.mark.turns
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_groups_of_the_gaussian_are_exact(mu: float, k: int) -> None:
    group = gaussian(mu).group(k)
    exact = gaussian_tpr(k * mu, RATES)
    found = group.true_positive_rate(RATES)
    assert (found >= exact * (1 - 1e-12)).all()
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    assert (group.deltas >= gaussian_delta(k * mu, group.epsilons) * (1 - 1e-9) - 1e-300).all()


def hockey_stick(density_p: Any, density_q: Any, eps: float) -> float:
    x = np.linspace(-12, 15, 200_001)
    return float(np.maximum(density_p(x) - math.exp(eps) * density_q(x), 0.0).sum() * (x[1] - x[0]))


@pytest.mark.turns
@pytest.mark.parametrize("k", [2, 3])
def test_groups_under_sampling_are_above_the_exact_curve(k: int) -> None:
    """One step, k records that all pull by 1: a mixture of Gaussians over Binomial(k, q) (Ganesh 2024)."""
    q, z = 0.2, 1.0
    weights = [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]

    def mixture(x: Any) -> Any:
        return sum(w * norm.pdf(x, j, z) for j, w in enumerate(weights))

    def without(x: Any) -> Any:
        return norm.pdf(x, 0, z)

    group = privacy_profile(noise_multiplier=z, n_steps=1, sampling_prob=q).group(k)
    for eps in (0.0, 0.3, 1.0):
        exact = max(hockey_stick(mixture, without, eps), hockey_stick(without, mixture, eps))
        assert exact <= group.delta(eps) <= 3 * exact + 0.02


@pytest.mark.parametrize("k", [2, 3, 4])
def test_groups_are_within_the_textbooks_bound(k: int) -> None:
    profile = privacy_profile(noise_multiplier=4.0, n_steps=1000, sampling_prob=0.01)
    group = profile.group(k)
    assert group.advantage >= profile.advantage
    for eps in (0.05, 0.2, 0.5, 0.8):
        textbook = profile.delta(eps) * math.expm1(k * eps) / math.expm1(eps)
        assert profile.delta(k * eps) < group.delta(k * eps) <= min(textbook, 1.0) * 1.01


def test_groups_by_brute_force() -> None:
    step, size = 0.2, 12
    profile = PrivacyProfile(np.arange(size) * step, gaussian_delta(0.6, np.arange(size) * step))

    def delta(index: int) -> float:
        if index < 0:
            return float(1 - math.exp(index * step) * (1 - delta(-index)))
        return float(profile.deltas[min(index, size - 1)])

    def after(indices: tuple[int, ...]) -> float:
        total, weight = 0.0, 1.0
        for index in indices:
            total += weight * delta(index)
            weight *= math.exp(index * step)
        return total

    reach = range(-2 * size, 2 * size)
    group = profile.group(3)
    for end in (0, 1, 3, 8):
        best = min(
            after((a, b, end - a - b))
            for a, b in itertools.product(reach, reach)
            if abs(end - a - b) < 2 * size
        )
        assert group.deltas[end] == pytest.approx(best, rel=1e-9)


def test_a_group_of_one() -> None:
    profile = gaussian(1.0)
    assert profile.group(1) is profile
    with pytest.raises(ArgumentError, match="records"):
        profile.group(0)


# ------------------------------------------------------------------------ what follows


def test_what_follows_is_composed_exactly() -> None:
    mu, eps, delta = 0.7, 0.4, 1e-3
    found = gaussian(mu).then(eps, delta)
    up = math.exp(eps) / (1 + math.exp(eps))
    # randomised response: two outcomes of probabilities (up, 1 - up) and (1 - up, up), and a leak
    for at in (0.0, 0.2, 1.0, 2.5):
        exact = delta + (1 - delta) * sum(
            hockey_stick(lambda x, p=p: p * norm.pdf(x, mu), lambda x, q=q: q * norm.pdf(x), at)
            for p, q in ((up, 1 - up), (1 - up, up))
        )
        assert exact <= found.delta(at) + 1e-8
        assert found.delta(at) == pytest.approx(exact, rel=1e-4)


def test_what_follows_covers_a_second_gaussian() -> None:
    first, second = 0.6, 0.3
    exact = gaussian_tpr(math.hypot(first, second), RATES)
    for delta in (1e-2, 1e-4, 1e-6):
        then = gaussian(first).then(gaussian(second).epsilon(delta), delta)
        assert (then.true_positive_rate(RATES) >= exact).all()
    nothing = gaussian(first).then(0.0, 0.0)
    np.testing.assert_allclose(nothing.deltas, gaussian(first).deltas)


# ------------------------------------------------------------------------ the curve as a function


@settings(max_examples=100)
@given(
    st.floats(0.05, 3.0), st.floats(-4.0, 8.0), st.floats(1e-9, 0.9), st.integers(5, 300), st.floats(0.0, 1.0)
)
def test_a_coarse_grid_only_makes_bounds_larger(
    mu: float, eps: float, delta: float, n_points: int, rate: float
) -> None:
    grid = np.linspace(0.0, 10.0 * mu + mu**2, n_points)
    profile = PrivacyProfile(grid, gaussian_delta(mu, grid))
    slack = 1e-12
    assert profile.delta(eps) >= gaussian_delta(mu, eps) - slack
    assert profile.true_positive_rate(rate) >= gaussian_tpr(mu, rate) - slack
    at = profile.epsilon(delta)
    if math.isfinite(at):
        assert gaussian_delta(mu, at) <= delta * (1 + 1e-9) + slack
    assert profile.odds_probability(2.0) >= norm.sf(math.log(2.0), mu**2 / 2, mu) - slack


@pytest.mark.turns
@settings(max_examples=100)
@given(st.floats(0.05, 3.0), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20))
def test_the_trade_off_is_one(mu: float, rates: list[float]) -> None:
    profile = gaussian(mu)
    x = np.sort(rates)
    y = profile.true_positive_rate(x)
    assert y.shape == x.shape
    assert (y >= x).all() and (y <= 1).all() and (np.diff(y) >= -1e-12).all()
    assert (y - x <= profile.advantage + 1e-12).all()
    middle = profile.true_positive_rate((x[0] + x[-1]) / 2)
    assert middle >= (y[0] + y[-1]) / 2 - 1e-9  # concave


def test_delta_and_epsilon_are_inverse() -> None:
    profile = gaussian(1.0)
    for delta in (1e-8, 1e-3, 0.2):
        assert profile.delta(profile.epsilon(delta)) == pytest.approx(delta, rel=1e-6)
    assert profile.epsilon(0.5) == 0.0
    assert profile.epsilon(0.0) == math.inf
    assert profile.delta(-1.0) == pytest.approx(1 - math.exp(-1) * (1 - profile.delta(1.0)))
    assert profile.delta([0.0, 1.0]).shape == (2,)
    assert isinstance(profile.delta(0.5), float)


# ------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [
        ([0.0], [0.5]),
        ([0.1, 0.2], [0.5, 0.4]),
        ([0.0, 0.1, 0.3], [0.5, 0.4, 0.3]),
        ([0.0, 0.1], [0.5, 0.4, 0.3]),
        ([0.0, 0.1], [1.5, 0.4]),
        ([0.0, 0.1], [math.nan, 0.4]),
        ([0.0, -0.1], [0.5, 0.4]),
        ([0.0, math.nan], [0.5, 0.4]),
    ],
)
def test_bad_curves(epsilons: list[float], deltas: list[float]) -> None:
    with pytest.raises(ArgumentError):
        PrivacyProfile(np.array(epsilons), np.array(deltas))


def test_curves_cannot_be_changed() -> None:
    source = np.array([0.5, 0.6, 0.1])
    profile = PrivacyProfile(np.array([0.0, 1.0, 2.0]), source)
    np.testing.assert_array_equal(profile.deltas, [0.5, 0.5, 0.1])  # a smaller one is valid later on
    source[0] = 0.0
    assert profile.deltas[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        profile.deltas[0] = 0.0


@pytest.mark.parametrize(
    "change",
    [
        dict(noise_multiplier=0.0),
        dict(noise_multiplier=math.nan),
        dict(n_steps=0),
        dict(n_steps=1.5),
        dict(sampling_prob=None),
        dict(sampling_prob=0.0),
        dict(sampling_prob=1.5),
        dict(sampler="other"),
        dict(sampler=3),
        dict(sampler="full_batch"),
        dict(sampler="fixed_size"),  # has no meaning under add-or-remove-one
        dict(sampler=PoissonSampler(0.2)),
        dict(neighboring_relation="other"),
    ],
)
def test_bad_runs(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        privacy_profile(**{"noise_multiplier": 1.0, "n_steps": 10, "sampling_prob": 0.1, **change})


def test_no_runs() -> None:
    with pytest.raises(ArgumentError, match="at least one"):
        composed_profile([])
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="false_positive_rate"):
            gaussian(1.0).true_positive_rate(rate)


def test_a_fixed_size_run_needs_no_number_of_records() -> None:
    run = Run.from_names(sampler="fixed_size", sampling_prob=100 / 3341, noise_multiplier=1, n_steps=1)
    assert run.sampler == FixedSizeSampler(100, 3341)
    odd = Run.from_names(sampler="fixed_size", sampling_prob=1 / math.pi, noise_multiplier=1, n_steps=1)
    assert 1 / math.pi <= odd.sampler.sampling_prob <= 1 / math.pi + 1e-9


@pytest.mark.parametrize("module", [profiles, interpretation])
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed
