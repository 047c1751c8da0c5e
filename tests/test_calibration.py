"""Calibration: epsilon, noise multiplier and the default batch size, one-sided everywhere."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymc_dpvi.accounting import calibration, default_sampling_prob, epsilon, noise_multiplier
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.sampling import FixedSizeSampler, PoissonSampler

PROPERTY = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


# -------------------------------------------------------------------------------- the arguments

GOOD = dict(delta=1e-5, n_steps=10, sampling_prob=0.1)


@pytest.mark.parametrize("function", [epsilon, noise_multiplier])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("delta", v) for v in (0, 1, -1e-5, 1.5, math.nan, math.inf, True, "1e-5", None, 1j)],
        *[("n_steps", v) for v in (0, -3, 10.0, True, "10", None, 10**9)],
        *[("sampling_prob", v) for v in (0, -0.1, 1.1, math.nan, True, "0.1", None)],
        *[("neighboring_relation", v) for v in ("add", None, 1, NeighboringRelation(3))],
        *[("sampler", v) for v in ("Poisson", None, 3, "fixed_size")],
    ],
)
def test_bad_arguments(function: Any, name: str, value: Any) -> None:
    given_value = {"epsilon": 1.0} if function is noise_multiplier else {"noise_multiplier": 1.0}
    with pytest.raises(ArgumentError, match=name):
        function(**{**GOOD, **given_value, name: value})


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None, 1e-3, 1e9])
def test_bad_noise_multiplier(value: Any) -> None:
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        epsilon(**GOOD, noise_multiplier=value)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_bad_epsilon(value: Any) -> None:
    with pytest.raises(ArgumentError, match="epsilon"):
        noise_multiplier(**GOOD, epsilon=value)
    with pytest.raises(ArgumentError, match="epsilon"):
        default_sampling_prob(epsilon=value, delta=1e-5, n_steps=10)


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


# ------------------------------------------------------------------------------ the calibration


def check_one_sided(target: float, **arguments: Any) -> float:
    noise = noise_multiplier(epsilon=target, **arguments)
    found = epsilon(noise_multiplier=noise, **arguments)
    assert found <= target
    assert found >= target * (1.0 - 1e-3) or noise == calibration.MIN_NOISE_MULTIPLIER
    return noise


@pytest.mark.parametrize("target", [0.1, 1.0, pytest.param(3.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("q", "steps"),
    [(0.05, 1000), (0.01, 10_000), pytest.param(0.005, 1000, marks=pytest.mark.slow)],
)
def test_calibration_in_usual_settings(target: float, q: float, steps: int) -> None:
    calibration._compose_cached.cache_clear()
    check_one_sided(target, delta=1e-5, n_steps=steps, sampling_prob=q)
    # coarse ones included; a search that wanders would need many more
    assert calibration._compose_cached.cache_info().misses <= 12


@PROPERTY
@given(
    target=st.floats(-2.0, 1.5).map(lambda x: 10.0**x),
    delta=st.floats(-9.0, -2.0).map(lambda x: 10.0**x),
    q=st.floats(-4.0, 0.0).map(lambda x: 10.0**x),
    steps=st.integers(1, 100_000),
)
def test_calibration_by_rdp_anywhere(target: float, delta: float, q: float, steps: int) -> None:
    check_one_sided(target, delta=delta, n_steps=steps, sampling_prob=min(q, 0.99), accountant="rdp")


@pytest.mark.slow
@PROPERTY
@given(
    target=st.floats(-2.0, 1.5).map(lambda x: 10.0**x),
    delta=st.floats(-9.0, -2.0).map(lambda x: 10.0**x),
    q=st.floats(-4.0, 0.0).map(lambda x: 10.0**x),
    steps=st.integers(1, 20_000),
    relation=st.sampled_from(["add_or_remove_one", "replace_one"]),
)
def test_calibration_by_pld_anywhere(
    target: float, delta: float, q: float, steps: int, relation: str
) -> None:
    check_one_sided(
        target,
        delta=delta,
        n_steps=steps,
        sampling_prob=min(q, 0.99),
        neighboring_relation=relation,
    )


@pytest.mark.parametrize(
    "extra",
    [
        dict(sampler="full_batch"),
        dict(sampler="full_batch", neighboring_relation="replace_one"),
        dict(sampling_prob=0.02, neighboring_relation="replace_one"),
        dict(sampler=FixedSizeSampler(20, 1000), neighboring_relation="replace_one"),
        dict(
            sampler=FixedSizeSampler(20, 1000),
            neighboring_relation="replace_one",
            accountant="rdp",
        ),
        dict(sampling_prob=0.02, accountant=PLDAccountant()),
    ],
)
def test_calibration_of_every_mechanism(extra: dict[str, Any]) -> None:
    check_one_sided(0.7, delta=1e-6, n_steps=500, **extra)


def test_full_batch_calibration_is_balle_and_wangs() -> None:
    exact = dp_accounting.get_sigma_gaussian(0.7, 1e-6) * math.sqrt(500)
    arguments = dict(epsilon=0.7, delta=1e-6, n_steps=500, sampler="full_batch")
    assert exact <= noise_multiplier(**arguments) <= 1.002 * exact
    both = noise_multiplier(**arguments, neighboring_relation="replace_one")
    assert 2 * exact <= both <= 2 * 1.002 * exact


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
    arguments = dict(delta=1e-8, n_steps=1_000_000, sampler="full_batch")
    with pytest.raises(CalibrationError, match=r"epsilon >= .* or") as caught:
        noise_multiplier(epsilon=1e-9, **arguments)
    possible = float(str(caught.value).split("epsilon >= ")[1].split()[0])
    assert 0.0 < noise_multiplier(epsilon=possible, **arguments) <= 1e6


def test_free_targets_get_the_least_noise() -> None:
    """q below delta: even the bare record is (0, delta)-private; the noise has a floor anyway."""
    found = noise_multiplier(epsilon=50.0, delta=1e-3, n_steps=1, sampling_prob=1e-4, accountant="rdp")
    assert found >= calibration.MIN_NOISE_MULTIPLIER


def test_the_search_returns_only_what_it_has_seen() -> None:
    seen: dict[float, float] = {}

    def staircase(noise: float) -> float:
        seen[noise] = 1.5 if noise < 3.3 else 0.5  # no noise gives an epsilon close to 1
        return seen[noise]

    found = calibration._search(staircase, 1.0, 20.0)
    assert found is not None
    assert seen[found] <= 1.0
    assert found == pytest.approx(3.3, rel=1e-9)
    assert calibration._search(lambda _: 2.0, 1.0, 20.0) is None
    assert calibration._search(lambda _: math.inf, 1.0, 20.0) is None
    assert calibration._search(lambda _: 0.0, 1.0, 20.0) == calibration.MIN_NOISE_MULTIPLIER


# ------------------------------------------------------------------------ the default batch size


@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0])
def test_gdp_curve(eps: float) -> None:
    mu = calibration._gdp_mu(eps, 1e-6)
    assert dp_accounting.get_epsilon_gaussian(1.0 / mu, 1e-6) == pytest.approx(eps, rel=1e-6)


def test_default_sampling_prob_costs_little() -> None:
    arguments = dict(epsilon=1.0, delta=1e-6, n_steps=2000)
    q = default_sampling_prob(**arguments)
    at = noise_multiplier(**arguments, sampling_prob=q) / q
    limit = noise_multiplier(**arguments, sampler="full_batch")
    assert at <= 1.03 * limit
    # half the batch would cost visibly more: the default is not simply generous
    assert noise_multiplier(**arguments, sampling_prob=q / 4) / (q / 4) > 1.08 * limit


def test_default_sampling_prob_is_always_usable() -> None:
    for eps in (1e-6, 0.01, 1.0, 3.0, 100.0):
        for steps in (1, 18, 20, 25, 1000, 10_000_000):
            PoissonSampler(default_sampling_prob(epsilon=eps, delta=1e-5, n_steps=steps))
