"""Calibration in both directions: one-sided everywhere, against evaluations that it did not make itself."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymc_dpvi.accounting import (
    ACCOUNTANT_NAMES,
    UnsupportedEventError,
    accountant_info,
    calibration,
    default_sampling_prob,
    delta,
    epsilon,
    evaluation,
    max_steps,
    noise_multiplier,
)
from pymc_dpvi.accounting.gdp_limit import clt_noise, clt_steps, gdp_mu
from pymc_dpvi.accounting.search import largest_integer, least_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.randomness.subsets import LARGEST_PROB
from pymc_dpvi.sampling import FixedSizeSampler, PoissonSampler

PROPERTY = settings(max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)
DEEP = settings(PROPERTY, max_examples=150)


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    """The whole range, its ends included."""
    logs = st.floats(math.log10(low), math.log10(high))
    return logs.map(lambda x: min(max(10.0**x, low), high))


EPSILONS, DELTAS, PROBS = log_uniform(0.01, 100.0), log_uniform(1e-12, 0.1), log_uniform(1e-6, 1.0)
STEPS = log_uniform(1.0, 1e7).map(round)
RELATIONS = st.sampled_from(["add_or_remove_one", "replace_one"])


@st.composite
def mechanisms(draw: st.DrawFn) -> dict[str, Any]:
    """Any sampler under any relation that it has a meaning for."""
    kind = draw(st.sampled_from(["poisson", "full_batch", "fixed_size"]))
    if kind == "poisson":
        prob = draw(PROBS)  # between the two no batches are drawn: an error says to use 1
        return dict(sampling_prob=prob if prob <= LARGEST_PROB else 1.0, neighboring_relation=draw(RELATIONS))
    if kind == "full_batch":
        return dict(sampler="full_batch", neighboring_relation=draw(RELATIONS))
    num_records = draw(st.integers(2, 1_000_000))
    sampler = FixedSizeSampler(max(1, round(draw(PROBS) * num_records)), num_records)
    return dict(sampler=sampler, neighboring_relation="replace_one")


# -------------------------------------------------------------------------------- the arguments

FUNCTIONS: dict[Any, dict[str, Any]] = {
    epsilon: dict(delta=1e-5, noise_multiplier=1.0, n_steps=10, sampling_prob=0.1),
    delta: dict(epsilon=1.0, noise_multiplier=1.0, n_steps=10, sampling_prob=0.1),
    noise_multiplier: dict(epsilon=1.0, delta=1e-5, n_steps=10, sampling_prob=0.1),
    max_steps: dict(epsilon=1.0, delta=1e-5, noise_multiplier=2.0, sampling_prob=0.1),
}
NOT_NUMBERS = (math.nan, math.inf, True, "1e-5", None, 1j)
BAD = [
    *[("delta", v) for v in (0, 1, -1e-5, 1.5, 0.9e-12, 0.11, *NOT_NUMBERS)],
    *[("epsilon", v) for v in (-1.0, 100.1, *NOT_NUMBERS)],
    *[("n_steps", v) for v in (0, -3, 10.0, 10_000_001, 10**9, *NOT_NUMBERS)],
    *[("sampling_prob", v) for v in (0, -0.1, 1.1, 0.9e-6, *NOT_NUMBERS)],
    *[("noise_multiplier", v) for v in (0, -1.0, 1e-3, 1e9, *NOT_NUMBERS)],
    *[("neighboring_relation", v) for v in ("add", None, 1, NeighboringRelation(3))],
    *[("sampler", v) for v in ("Poisson", None, 3, "fixed_size")],
    ("accountant", "prv"),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_arguments(function: Any, name: str, value: Any) -> None:
    if name in FUNCTIONS[function] or name in ("neighboring_relation", "sampler", "accountant"):
        with pytest.raises(ArgumentError, match=name):
            function(**{**FUNCTIONS[function], name: value})


@pytest.mark.parametrize("value", [0.0, 0.0099])
def test_a_target_has_a_least_epsilon(value: float) -> None:
    for function in (noise_multiplier, max_steps):
        with pytest.raises(ArgumentError, match=r"epsilon must be .* in \[0\.01, 100\]"):
            function(**{**FUNCTIONS[function], "epsilon": value})
    with pytest.raises(ArgumentError, match="epsilon"):
        default_sampling_prob(epsilon=value, delta=1e-5, n_steps=10)
    assert 0.0 < delta(**{**FUNCTIONS[delta], "epsilon": value}) < 1.0  # delta at 0 is the advantage


def test_sampling_prob_must_not_contradict_the_sampler() -> None:
    arguments = dict(delta=1e-5, noise_multiplier=2.0, n_steps=3)
    with pytest.raises(ArgumentError, match="contradicts"):
        epsilon(**arguments, sampling_prob=0.1, sampler=PoissonSampler(0.2))
    with pytest.raises(ArgumentError, match="full_batch"):
        epsilon(**arguments, sampling_prob=0.1, sampler="full_batch")
    assert epsilon(**arguments, sampling_prob=0.2, sampler=PoissonSampler(0.2)) == epsilon(
        **arguments, sampling_prob=0.2
    )


def test_numpy_scalars_are_numbers() -> None:
    assert epsilon(
        delta=np.float64(1e-5),
        noise_multiplier=np.float32(4.0),
        n_steps=np.int64(100),
        sampling_prob=np.float64(0.01),
    ) == epsilon(delta=1e-5, noise_multiplier=4.0, n_steps=100, sampling_prob=0.01)


def test_what_is_not_proven_calibrates_only_on_demand() -> None:
    def mine() -> RdpAccountant:
        return RdpAccountant()

    for function in (noise_multiplier, max_steps):
        with pytest.raises(ArgumentError, match="allow_unproven=True"):
            function(**FUNCTIONS[function], accountant=mine)
        found = function(**FUNCTIONS[function], accountant=mine, allow_unproven=True)
        assert found == pytest.approx(function(**FUNCTIONS[function], accountant="rdp"), rel=3e-3)
    assert epsilon(**FUNCTIONS[epsilon], accountant=mine) > 0.0  # to look at


@pytest.mark.parametrize("name", [name for name in ACCOUNTANT_NAMES if name not in ("pld", "bayesian")])
@pytest.mark.parametrize(
    "mechanism",
    [
        dict(sampling_prob=0.05),
        dict(sampling_prob=0.05, neighboring_relation="replace_one"),
        dict(sampler="full_batch", neighboring_relation="replace_one"),
        dict(sampler=FixedSizeSampler(50, 1000), neighboring_relation="replace_one"),
    ],
    ids=str,
)
def test_every_accountant_calibrates_one_sided(name: str, mechanism: dict[str, Any]) -> None:
    run = dict(delta=1e-5, **mechanism, accountant=name)
    unproven = accountant_info(name).guarantee != "proven"
    if unproven:
        with pytest.raises(ArgumentError, match="allow_unproven=True"):
            noise_multiplier(epsilon=1.0, n_steps=100, **run)
    try:
        noise = noise_multiplier(epsilon=1.0, n_steps=100, **run, allow_unproven=unproven)
    except UnsupportedEventError:
        with pytest.raises(UnsupportedEventError):
            max_steps(epsilon=1.0, noise_multiplier=3.0, **run, allow_unproven=unproven)
        return
    assert 0.999 <= epsilon(noise_multiplier=noise, n_steps=100, **run) <= 1.0
    assert 100 <= max_steps(epsilon=1.0, noise_multiplier=noise, **run, allow_unproven=unproven) <= 102
    if not unproven:  # proven: never below what the tight account asks for
        tight = noise_multiplier(epsilon=1.0, n_steps=100, **{**run, "accountant": "pld"})
        assert noise >= tight * (1.0 - 2e-3)


# --------------------------------------------------------------------- the noise, and the steps


def check_one_sided(target: float, **arguments: Any) -> float:
    noise = noise_multiplier(epsilon=target, **arguments)
    found = epsilon(noise_multiplier=noise, **arguments)
    assert found <= target
    assert found >= target * (1.0 - 1e-3) or noise == calibration.MIN_NOISE_MULTIPLIER
    return noise


def check_steps(target: float, **arguments: Any) -> int:
    steps = max_steps(epsilon=target, **arguments)
    assert epsilon(n_steps=steps, **arguments) <= target
    assert steps == calibration.MAX_STEPS or epsilon(n_steps=steps + 1, **arguments) > target
    return steps


@pytest.mark.parametrize("target", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("q", "steps"), [(0.05, 1000), (0.01, 10_000), (0.005, 1000)])
def test_usual_settings(target: float, q: float, steps: int) -> None:
    evaluation._epsilon_cached.cache_clear()
    noise = check_one_sided(target, delta=1e-5, n_steps=steps, sampling_prob=q)
    assert evaluation._epsilon_cached.cache_info().misses <= 9  # a search that wanders needs many more
    found = check_steps(target, delta=1e-5, noise_multiplier=noise, sampling_prob=q)
    assert steps <= found <= 1.005 * steps


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    ("q", "steps", "target", "interval"),
    [(0.3, 20, 2.0, 1e-4), (0.02, 500, 1.0, 1e-4), (0.004, 2000, 0.5, 5e-5)],
)
def test_against_distributions_that_err_on_either_side(
    relation: str, q: float, steps: int, target: float, interval: float
) -> None:
    """dp-accounting's own PLD, rounded up and rounded down, on a fine grid: the truth is between them."""
    noise = noise_multiplier(
        epsilon=target, delta=1e-6, n_steps=steps, sampling_prob=q, neighboring_relation=relation
    )
    kind = NeighboringRelation[relation.upper()]

    def bound(pessimistic: bool) -> float:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            sampling_prob=q,
            use_connect_dots=pessimistic,
            neighboring_relation=kind,
        )
        return float(one.self_compose(steps).get_epsilon_for_delta(1e-6))

    assert bound(False) <= target
    assert target * (1.0 - 1.5e-3) <= bound(True) <= target * (1.0 + 1e-3)


@PROPERTY
@given(target=EPSILONS, at=DELTAS, mechanism=mechanisms(), steps=STEPS)
def test_pld_anywhere(target: float, at: float, mechanism: dict[str, Any], steps: int) -> None:
    noise = check_one_sided(target, delta=at, n_steps=steps, **mechanism)
    assert check_steps(target, delta=at, noise_multiplier=noise, **mechanism) >= steps


@PROPERTY
@given(target=EPSILONS, at=DELTAS, mechanism=mechanisms(), steps=STEPS)
def test_rdp_anywhere(target: float, at: float, mechanism: dict[str, Any], steps: int) -> None:
    check_rdp(target, at, mechanism, steps)


@settings(PROPERTY, max_examples=40)
@given(
    name=st.sampled_from([n for n in ACCOUNTANT_NAMES if n not in ("pld", "rdp", "bayesian")]),
    target=EPSILONS,
    at=DELTAS,
    mechanism=mechanisms(),
    steps=STEPS,
)
def test_the_others_anywhere(
    name: str, target: float, at: float, mechanism: dict[str, Any], steps: int
) -> None:
    """One-sided, or an error: no hang, no NaN, nothing that is silently wrong."""
    run = dict(delta=at, **mechanism, accountant=name)
    unproven = dict(epsilon=target, allow_unproven=True)
    try:
        noise = noise_multiplier(n_steps=steps, **run, **unproven)
    except UnsupportedEventError as error:
        assert "accountant='pld'" in str(error)
        return
    except CalibrationError as error:
        assert "Try " in str(error) and "nan" not in str(error)
        return
    assert 0.0 <= epsilon(n_steps=steps, noise_multiplier=noise, **run) <= target
    found = max_steps(noise_multiplier=noise, **run, **unproven)
    assert epsilon(n_steps=found, noise_multiplier=noise, **run) <= target
    assert found == calibration.MAX_STEPS or (
        found >= steps and epsilon(n_steps=found + 1, noise_multiplier=noise, **run) > target
    )
    spent = delta(
        n_steps=steps,
        noise_multiplier=noise,
        epsilon=target,
        **{k: v for k, v in run.items() if k != "delta"},
    )
    assert 0.0 <= spent <= at * (1.0 + 1e-6)


def check_rdp(target: float, at: float, mechanism: dict[str, Any], steps: int) -> None:
    """As above, but that epsilon may jump to zero, and that its orders may not reach the target."""
    arguments = dict(delta=at, **mechanism, accountant="rdp")
    poisson = mechanism.get("sampling_prob", 1.0) < 1.0
    if poisson and mechanism["neighboring_relation"] == "replace_one":
        with pytest.raises((ArgumentError, UnsupportedEventError), match="accountant='pld'"):
            noise_multiplier(epsilon=target, n_steps=steps, **arguments)
        return
    try:
        noise = noise_multiplier(epsilon=target, n_steps=steps, **arguments)
    except CalibrationError as caught:
        assert "Try epsilon >=" in str(caught)
        assert epsilon(noise_multiplier=1e8, n_steps=steps, **arguments) > target
        return
    found = epsilon(noise_multiplier=noise, n_steps=steps, **arguments)
    assert found <= target
    # the tight accountant agrees that this is enough
    assert epsilon(noise_multiplier=noise, n_steps=steps, delta=at, **mechanism) <= target
    if found < target * (1.0 - 1e-3) and noise > calibration.MIN_NOISE_MULTIPLIER:
        assert epsilon(noise_multiplier=noise * (1.0 - 1e-5), n_steps=steps, **arguments) > target
    assert check_steps(target, noise_multiplier=noise, **arguments) >= steps


@pytest.mark.slow
@DEEP
@given(target=EPSILONS, at=DELTAS, mechanism=mechanisms(), steps=STEPS)
def test_pld_anywhere_deep(target: float, at: float, mechanism: dict[str, Any], steps: int) -> None:
    noise = check_one_sided(target, delta=at, n_steps=steps, **mechanism)
    assert check_steps(target, delta=at, noise_multiplier=noise, **mechanism) >= steps


@pytest.mark.slow
@DEEP
@given(target=EPSILONS, at=DELTAS, mechanism=mechanisms(), steps=STEPS)
def test_rdp_anywhere_deep(target: float, at: float, mechanism: dict[str, Any], steps: int) -> None:
    check_rdp(target, at, mechanism, steps)


def test_full_batch_calibration_is_balle_and_wangs() -> None:
    exact = dp_accounting.get_sigma_gaussian(0.7, 1e-6) * math.sqrt(500)
    arguments = dict(epsilon=0.7, delta=1e-6, n_steps=500, sampler="full_batch")
    assert exact <= noise_multiplier(**arguments) <= 1.002 * exact
    both = noise_multiplier(**arguments, neighboring_relation="replace_one")
    assert 2 * exact <= both <= 2 * 1.002 * exact
    # mu is proportional to the root of the number of steps
    assert max_steps(epsilon=0.7, delta=1e-6, noise_multiplier=exact, sampler="full_batch") in (499, 500)


@pytest.mark.turns
@pytest.mark.parametrize("mechanism", [dict(sampling_prob=1e-6), dict(sampling_prob=0.5)], ids=str)
@pytest.mark.parametrize("steps", [1, 10_000_000])
@pytest.mark.parametrize("at", [1e-12, pytest.param(0.1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", [0.01, pytest.param(100.0, marks=pytest.mark.slow)])
def test_corners(target: float, at: float, steps: int, mechanism: dict[str, Any]) -> None:
    check_one_sided(target, delta=at, n_steps=steps, **mechanism)


# ------------------------------------------------------------------------ what a run costs


@pytest.mark.turns
@PROPERTY
@given(at=DELTAS, mechanism=mechanisms(), steps=STEPS, noise=log_uniform(0.5, 1e4))
def test_epsilon_and_delta_invert_each_other(
    at: float, mechanism: dict[str, Any], steps: int, noise: float
) -> None:
    arguments = dict(noise_multiplier=noise, n_steps=steps, **mechanism)
    spent = epsilon(delta=at, **arguments)
    if 0.01 <= spent <= 100.0:
        back = delta(epsilon=spent, **arguments)
        assert back <= 1.03 * at
        if 1e-12 <= back <= 0.1:  # as epsilons: these hardly depend on delta where few steps lose nearly all
            assert epsilon(delta=back, **arguments) == pytest.approx(spent, rel=2e-3)
    elif spent == 0.0:
        assert delta(epsilon=0.0, **arguments) <= at * 1.1


@pytest.mark.turns
@PROPERTY
@given(
    q=st.floats(0.001, 0.2),
    noise=st.floats(1.5, 20.0),
    steps=st.integers(10, 3000),
    factor=st.floats(1.1, 2.0),
)
def test_monotone(q: float, noise: float, steps: int, factor: float) -> None:
    base = dict(delta=1e-6, noise_multiplier=noise, n_steps=steps, sampling_prob=q)
    at = epsilon(**base) * (1.0 + 1e-3)  # two grids may differ
    assert epsilon(**{**base, "noise_multiplier": noise * factor}) <= at
    assert epsilon(**{**base, "delta": 1e-6 * factor}) <= at
    assert epsilon(**{**base, "sampling_prob": q / factor}) <= at
    assert epsilon(**{**base, "n_steps": max(1, int(steps / factor))}) <= at
    replaced = epsilon(**base, neighboring_relation="replace_one")
    assert replaced >= epsilon(**base) * (1.0 - 1e-3)


def test_impossible_targets_say_what_is_possible() -> None:
    arguments = dict(delta=1e-12, n_steps=1_000_000, sampler="full_batch", accountant="rdp")
    with pytest.raises(CalibrationError, match=r"epsilon >= .* or") as caught:
        noise_multiplier(epsilon=0.01, **arguments)
    possible = float(str(caught.value).split("epsilon >= ")[1].split()[0])
    assert 0.0 < noise_multiplier(epsilon=possible, **arguments) <= 1e8
    with pytest.raises(CalibrationError, match=r"one step .* costs epsilon=4\.38 .* larger noise_multiplier"):
        max_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, sampler="full_batch")


def test_free_targets_get_the_least_noise() -> None:
    """q below delta: even the bare record is (0, delta)-private; the noise has a floor anyway."""
    arguments = dict(epsilon=50.0, delta=1e-3, sampling_prob=1e-4)
    assert noise_multiplier(**arguments, n_steps=1) == calibration.MIN_NOISE_MULTIPLIER
    assert max_steps(**arguments, noise_multiplier=1e6) == calibration.MAX_STEPS


# ---------------------------------------------------------------------------------- the search


def test_the_search_returns_only_what_it_has_seen() -> None:
    seen: dict[float, float] = {}

    def staircase(noise: float) -> float:
        seen[noise] = 1.5 if noise < 3.3 else 0.5  # no noise gives an epsilon close to 1
        return seen[noise]

    bounds = dict(start=20.0, low=0.05, high=1e8)
    found = least_number(staircase, 1.0, **bounds)
    assert found is not None
    assert seen[found] <= 1.0
    assert 3.3 <= found <= 3.3 * (1.0 + 1e-5)
    assert least_number(lambda _: 2.0, 1.0, **bounds) is None
    assert least_number(lambda _: math.inf, 1.0, **bounds) is None
    assert least_number(lambda _: 0.0, 1.0, **bounds) == 0.05


@pytest.mark.turns
@given(
    largest=st.integers(1, 10_000_000),
    start=log_uniform(1e-3, 1e12),
    power=st.floats(0.3, 3.0),
    wobble=st.floats(0.0, 2e-4),
)
@settings(max_examples=200, derandomize=True)
def test_the_search_for_steps(largest: int, start: float, power: float, wobble: float) -> None:
    calls = 0

    def curve(n: int) -> float:
        nonlocal calls
        calls += 1
        return (n / largest) ** power * (1.0 + wobble * math.sin(n))

    found = largest_integer(curve, 1.0, start=start, high=10_000_000)
    assert calls <= 60
    if found is None:
        assert curve(1) > 1.0
    else:
        assert curve(found) <= 1.0
        assert found == 10_000_000 or curve(found + 1) > 1.0
        assert wobble or found in (largest, largest - 1)


@pytest.mark.parametrize("beyond", [math.inf, 150.0])
def test_the_search_for_steps_of_a_step(beyond: float) -> None:
    """Epsilon is 0 and then far above the target, as with a noise that hides nothing: it halves."""
    for last in (1, 7, 1000, 105_334, 9_999_999, 10_000_000):
        for start in (1.0, 30.0, 1e9):
            calls: list[int] = []

            def step(n: int, last: int = last, calls: list[int] = calls) -> float:
                calls.append(n)
                return 0.0 if n <= last else beyond

            assert largest_integer(step, 1.0, start=start, high=10_000_000) == last
            assert len(calls) <= 32
    assert largest_integer(lambda n: 2.0, 1.0, start=5.0, high=10) is None


# --------------------------------------------------------- Gaussian curve, the default batch size


@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0])
def test_gdp_curve(eps: float) -> None:
    mu = gdp_mu(eps, 1e-6)
    assert dp_accounting.get_epsilon_gaussian(1.0 / mu, 1e-6) == pytest.approx(eps, rel=1e-6)
    for q in (0.01, 1.0):
        run = dict(sampling_prob=q, sensitivity=2.0)
        noise = clt_noise(mu, n_steps=700, **run)
        assert clt_steps(mu, noise_multiplier=noise, **run) == pytest.approx(700.0)


def test_default_sampling_prob_costs_little() -> None:
    arguments = dict(epsilon=1.0, delta=1e-6, n_steps=2000)
    q = default_sampling_prob(**arguments)
    at = noise_multiplier(**arguments, sampling_prob=q) / q
    limit = noise_multiplier(**arguments, sampler="full_batch")
    assert at <= 1.03 * limit
    # half the batch would cost visibly more: the default is not simply generous
    assert noise_multiplier(**arguments, sampling_prob=q / 4) / (q / 4) > 1.08 * limit


def test_default_sampling_prob_is_always_usable() -> None:
    for eps in (0.01, 1.0, 3.0, 100.0):
        for steps in (1, 18, 20, 25, 1000, 10_000_000):
            PoissonSampler(default_sampling_prob(epsilon=eps, delta=1e-5, n_steps=steps))
