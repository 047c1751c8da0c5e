"""No released draw is infinite or NaN, and none is wider than the prior where noise is all there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from noisy_quadratics import adam_run, posterior, trace_of
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType
from scipy import stats

from pymc_dpvi import DPADVI, DPFullRankADVI, PrivacyError
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior
from pymc_dpvi.posterior.prior_density import Prior
from pymc_dpvi.posterior.released_draws import finite_draws

SETTINGS: dict[str, Any] = {"epsilon": 0.3, "delta": 1e-5, "accountant": "rdp", "random_seed": 0}


def raw_salaries(shift: float = 0.0) -> pm.Model:
    """A regression on a salary as it is, with a standard deviation of 20,000."""
    rng = np.random.default_rng(0)
    salary, age = rng.normal(60_000, 20_000, size=1500), rng.normal(size=1500)
    latent = (salary - 60_000) / 20_000 + 0.5 * age + rng.logistic(size=1500)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        a = pm.Normal("a", 0, 10)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", a + salary * beta[0] + age * beta[1], sigma, observed=latent + shift)
    return model


@pytest.mark.parametrize("method", [DPADVI, DPFullRankADVI])
@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
def test_a_raw_salary_does_not_explode(method: Any) -> None:
    model = raw_salaries()
    made = method(**SETTINGS, insecure_noise_seed=0, model=model)
    approx = pm.fit(300, method=made, model=model, progressbar=False, compile_kwargs={"mode": "PYTHON"})
    prior = Prior(approx._record, approx.latents).stddev
    idata = approx.sample(500, random_seed=1, include_transformed=True)
    for name, values in idata["posterior"].data_vars.items():
        assert np.isfinite(values).all(), name
    np.testing.assert_array_less(idata["posterior"]["beta"].std(("chain", "draw")), 1.5)
    assert idata.attrs["noise_aware"] == 1
    told = approx.diagnostics()
    assert (told.stddev <= 1.5 * prior).all()
    again = approx.sample(500, random_seed=1)
    np.testing.assert_array_equal(again["posterior"]["sigma"], idata["posterior"]["sigma"])


def widths(build: Any, called: list[int] | None = None) -> np.ndarray:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        theta = build()
        pm.Normal("y", pt.sum(theta), 1.0, observed=rng.normal(size=50))
    method = DPADVI(**SETTINGS, model=model)
    if called is not None:
        called.clear()  # PyMC draws once to see the shape
    return Prior(method._record, method.approx.latents).stddev


def half_central(draws: np.ndarray) -> float:
    return float(np.diff(np.quantile(draws, [0.1587, 0.8413]))[0] / 2)


RNG = np.random.default_rng(0)
KNOWN = {
    "normal": (lambda: pm.Normal("t", 2.0, [3.0, 0.1]), [3.0, 0.1]),
    "log": (lambda: pm.HalfNormal("t", 5.0), [half_central(np.log(np.abs(RNG.normal(size=100_000))))]),
    "no variance": (
        lambda: pm.HalfCauchy("t", 2.0),
        [half_central(np.log(stats.halfcauchy.rvs(size=100_000, random_state=1)))],
    ),
    "hierarchy": (
        lambda: pm.Normal("t", pm.Normal("m", 0.0, 3.0), 4.0),
        [3.0, 5.0],  # the marginal width
    ),
    "interval": (
        lambda: pm.Uniform("t", 0.0, 1.0),
        [half_central(RNG.logistic(size=100_000))],
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_widths_of_priors(case: str) -> None:
    build, wanted = KNOWN[case]
    np.testing.assert_allclose(widths(build), wanted, rtol=0.2)


def test_ordered_values_are_drawn_in_order() -> None:
    cut = widths(
        lambda: pm.Normal(
            "t", 0.0, 2.0, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0]
        )
    )
    draws = np.sort(RNG.normal(0.0, 2.0, size=(50_000, 3)), axis=1)
    wanted = [half_central(draws[:, 0]), *(half_central(np.log(np.diff(draws)[:, k])) for k in (0, 1))]
    np.testing.assert_allclose(cut, wanted, rtol=0.4)


def test_what_cannot_be_drawn_safely_is_not_known() -> None:
    called: list[int] = []
    table = np.arange(3.0)

    def random(mu: Any, rng: Any = None, size: Any = None) -> Any:
        called.append(1)
        return table.sum() + np.zeros(size)

    def own() -> Any:
        return pm.CustomDist("t", 0.0, logp=lambda v, mu: -((v - mu) ** 2), random=random, initval=0.5)

    assert widths(own, called) == [np.inf]
    assert not called
    assert widths(lambda: pm.Flat("t", initval=0.0)) == [np.inf]


def test_widths_know_nothing_of_the_records() -> None:
    found = []
    for shift in (0.0, 100.0):
        model = raw_salaries(shift)
        method = DPADVI(**SETTINGS, model=model)
        generators = [v for v in graph_inputs(model.free_RVs) if isinstance(v.type, RandomType)]
        before = [v.get_value().bit_generator.state for v in generators]
        found.append(Prior(method._record, method.approx.latents).stddev)
        assert len(before) == 3 and [v.get_value().bit_generator.state for v in generators] == before
    np.testing.assert_array_equal(*found)


def test_no_width_is_beyond_the_prior() -> None:
    """Where noise is everything; a prior that says nothing is some spreads of the draws wide."""
    rng = np.random.default_rng(3)
    weak, precision = np.diag([1.0, 4000.0, 1.0]), np.diag([4.0, 1.0, 0.0])
    wide = np.diag([4.0, 1.0, 1e-4])
    _, rows, _ = adam_run(3000.0, 800, rng, curvature=weak, precision=wide)
    rows = rows[:, 0]
    rows[:, 6:9] = -rows[:, :3] @ precision
    known = posterior(rows)
    draws = known.draw(4000, np.random.default_rng(1)).std(axis=0)
    np.testing.assert_allclose(draws, known.stddevs, rtol=0.1)
    assert (draws[:2] < 1.1 * np.array([0.5, 1.0])).all()
    spread = known._parts[0].fit.spread[2]
    assert spread < draws[2] < 11 * spread


@pytest.mark.parametrize("size", [1e150, 1e300])
def test_numbers_without_digits_left_are_not_inferred_from(size: float) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 10)) * size
    assert not NoiseAwarePosterior(trace_of(rows), np.random.default_rng(0)).available


def test_finite_draws() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return rng.normal(size=(n, 2)) * [1.0, 600.0]

    def evaluate(flat: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [flat[:, :1], np.exp(flat[:, 1]), np.exp(np.exp(flat[:, 0])), np.sqrt(-(flat[:, 0] ** 2))]

    found = finite_draws(draw, evaluate, 3000, 2)
    assert found is not None
    flat, values = found
    assert len(flat) == 3000 and (flat[:, 1] < 709.8).all() and flat[:, 1].max() > 600
    for got, wanted in zip(values[:3], evaluate(flat), strict=False):
        np.testing.assert_array_equal(got, wanted)
        assert np.isfinite(got).all()
    assert np.isnan(values[3]).all()  # a formula that has no value anywhere
    assert finite_draws(lambda n: np.full((n, 1), np.inf), lambda flat: [flat], 10, 1) is None


def test_ordinary_draws_are_as_they_were() -> None:
    made = np.random.default_rng(5).normal(size=(7, 2))
    rng = np.random.default_rng(5)
    found = finite_draws(lambda n: rng.normal(size=(n, 2)), lambda flat: [flat, flat.sum(axis=1)], 7, 1)
    assert found is not None
    np.testing.assert_array_equal(found[0], made)
    assert rng.normal() == np.random.default_rng(5).normal(size=15)[-1]


def test_a_posterior_without_finite_draws_is_refused() -> None:
    model = raw_salaries()
    method = DPADVI(**SETTINGS, model=model)
    approx = pm.fit(40, method=method, model=model, progressbar=False, compile_kwargs={"mode": "PYTHON"})
    mu = next(p for p in approx.params if p.name == "mu")
    mu.set_value(np.full(mu.get_value().size, 1e4))
    with pytest.raises(PrivacyError, match=r"no finite numbers.*divide it by a public number"):
        approx.sample(10, noise_aware=False)
