"""Rules by which local values are integrated out: nodes and weights, and fits of a normal distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import optimize, stats
from test_persons_zoo import released_of_everybody

from pymc_dpvi import DPADVI, Quadrature, Variational
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.local_rules import Places, places_of

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(31)
P = 12
WHO = RNG.permutation(np.repeat(np.arange(P), RNG.integers(1, 9, size=P)))
N = WHO.size
Y = RNG.normal(size=N)
COUNT = RNG.poisson(2.0, size=N)


def moments(places: Places, degree: int) -> None:
    """Each monomial up to a degree has the mean that it has under a normal distribution."""
    size = places.at.shape[1]
    assert (places.weights > 0).all() and places.weights.sum() == pytest.approx(1.0)
    for powers in itertools.product(range(degree + 1), repeat=min(size, 3)):
        if sum(powers) > degree:
            continue
        for axes in itertools.combinations(range(size), len(powers)):
            found = places.weights @ np.prod(places.at[:, axes] ** powers, axis=1)
            expected = np.prod([0.0 if k % 2 else np.prod(np.arange(k - 1, 0, -2.0)) for k in powers])
            assert found == pytest.approx(expected, abs=1e-9), (powers, axes)


@pytest.mark.parametrize("size", range(1, 8))
def test_default_nodes_are_exact_up_to_the_fifth_degree(size: int):
    moments(places_of(size), 5)
    assert len(places_of(size).at) == [15, 81, 125, 31, 43, 57, 57][size - 1]


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_a_fit_has_nodes_of_the_fifth_degree_for_few_values(size: int):
    moments(places_of(size, Variational()), 5)


@pytest.mark.parametrize("size", [8, 20])
def test_and_of_the_third_for_many(size: int):
    places = places_of(size)
    moments(places, 3)
    assert len(places.at) == 2 * size and places.steps == 10


def test_nodes_of_a_product():
    places = places_of(2, Quadrature(5))
    assert places.at.shape == (25, 2) and not places.steps
    moments(places, 9)


def test_more_nodes_are_named_if_there_may_be_so_many():
    assert [places_of(d).more_nodes for d in range(1, 8)] == [31, 15, 9, 5, 5, None, None]
    for d, nodes in ((1, 31), (2, 15), (3, 9), (4, 5), (5, 5)):
        assert places_of(d, Quadrature(nodes)).more_nodes is None
    assert places_of(2, None, [range(40)]).more_nodes is None


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_what_four_values_and_more_are_compared_with_is_finer(size: int):
    fine = places_of(size).fine
    assert fine is not None and fine.count > 10 * places_of(size).count
    if size < 6:
        moments(fine, 7)
    assert places_of(3).fine is None and places_of(size, None, [range(50)]).fine is None


def test_too_many_nodes_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"9 local values.*5000 places.*Variational\(\)"):
        places_of(9, Quadrature(3))
    with pytest.raises(UnsupportedModelError, match="Name at most 17 nodes, fit a normal distribution"):
        places_of(3, Quadrature(31))
    assert places_of(3, Quadrature(17)).count == 17**3


def test_too_many_values_are_refused():
    assert len(places_of(64).at) == 128
    with pytest.raises(UnsupportedModelError, match="65 local values; at most 64"):
        places_of(65)


@pytest.mark.parametrize("steps", [0, 51, 2.5, "many"])
def test_bad_steps_are_refused(steps: Any):
    with pytest.raises(ArgumentError, match="steps"):
        Variational(steps)


def made_of(model: pm.Model, **more: Any) -> DPADVI:
    whole = {"noise_multiplier": 1.0, "delta": 1e-6, "random_seed": 1, "sampler": "full_batch"}
    return DPADVI(**{**whole, "l2_clip_norm": 1e6, **more}, unit="person", model=model)


@pytest.mark.turns
@pytest.mark.parametrize("mode", ["PYTHON", pytest.param("NUMBA", marks=pytest.mark.zoo)])
@pytest.mark.parametrize(
    ("size", "rule"), [(1, None), (1, Variational(1)), (2, Variational()), (5, None), (9, None)]
)
def test_the_gradient_of_a_normal_model_is_that_of_its_marginal_density(size: int, rule: Any, mode: str):
    """A person's values have a normal density then, so nothing is lost, whatever the number of places."""
    design = RNG.normal(size=(N, size))
    with pm.Model(coords={"who": np.arange(P)}) as model:
        tau, s, b = pm.HalfNormal("tau"), pm.HalfNormal("s"), pm.Normal("b")
        u = pm.Normal("u", pm.Normal("mu"), tau, shape=(P, size))
        mean = (pm.Data("design", design) * u[pm.Data("person", WHO)]).sum(axis=1)
        pm.Normal("y", b + mean, s, observed=Y)
    made = made_of(model, guide=None if rule is None else {"u": rule})
    found, z = released_of_everybody(made, mode)
    names = [v.name for v in made._approx.latents.value_vars]

    def density(point: np.ndarray) -> float:
        at = dict(zip(names, point, strict=True))
        tau, s, total = np.exp(at["tau_log__"]), np.exp(at["s_log__"]), 0.0
        for p in range(P):
            own = p == WHO
            covariance = s**2 * np.eye(own.sum()) + tau**2 * design[own] @ design[own].T
            mean = at["b"] + at["mu"] * design[own].sum(axis=1)
            total += stats.multivariate_normal(mean, covariance).logpdf(Y[own])
        return total

    step = 1e-5
    expected = [(density(z + step * e) - density(z - step * e)) / (2 * step) for e in np.eye(z.size)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.turns
@pytest.mark.parametrize("mode", ["PYTHON", pytest.param("NUMBA", marks=pytest.mark.zoo)])
def test_the_gradient_of_normal_classes_is_that_of_their_marginal_density(mode: str):
    """A class of each person decides on the mean and on the spread of a normal value."""
    with pm.Model(coords={"who": np.arange(P)}) as model:
        kind = pm.Bernoulli("kind", pm.Beta("share", 1, 1), dims="who")
        tau, mu = pm.HalfNormal("tau", shape=2), pm.Normal("mu", [-2.0, 2.0], 1.0)
        u = pm.Normal("u", mu[kind], tau[kind], dims="who")
        pm.Normal("y", pm.Normal("b") + u[pm.Data("person", WHO)], pm.HalfNormal("s"), observed=Y)
    made = made_of(model)
    found, z = released_of_everybody(made, mode)
    latents = made._approx.latents
    at = {v.name: s for v, s in zip(latents.value_vars, latents.slices, strict=True)}

    def density(point: np.ndarray) -> float:
        share = 1 / (1 + np.exp(-point[at["share_logodds__"]].item()))
        tau, mu = np.exp(point[at["tau_log__"]]), point[at["mu"]]
        b, s, total = point[at["b"]].item(), np.exp(point[at["s_log__"]].item()), 0.0
        for p in range(P):
            own = Y[p == WHO]
            laws = [
                stats.multivariate_normal(np.full(own.size, b + mu[k]), s**2 * np.eye(own.size) + tau[k] ** 2)
                for k in (0, 1)
            ]
            total += np.log((1 - share) * laws[0].pdf(own) + share * laws[1].pdf(own))
        return total

    step = 1e-5
    expected = [(density(z + step * e) - density(z - step * e)) / (2 * step) for e in np.eye(z.size)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.turns
def test_a_look_up_within_many_values_is_that_of_a_mask():
    """PyTensor cannot vectorise its second derivatives but with the indices of all directions."""
    which = RNG.integers(0, 5, size=N)

    def model(own: Any) -> pm.Model:
        with pm.Model() as model:
            u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 5))
            effect = own(u[pm.Data("person", WHO)], pm.Data("which", which))
            pm.Bernoulli("y", logit_p=pm.Normal("b") + effect, observed=(Y > 0).astype(int))
        return model

    masked = model(lambda own, k: (own * pt.eq(k[:, None], np.arange(5))).sum(axis=1))
    looked_up = model(lambda own, k: pt.take_along_axis(own, k[:, None], axis=1)[:, 0])
    expected, found = (released_of_everybody(made_of(m), "PYTHON")[0] for m in (masked, looked_up))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def poisson(times: float = 1.0, count: np.ndarray = COUNT) -> pm.Model:
    with pm.Model(coords={"who": np.arange(P)}) as model:
        u = pm.Normal("u", 0, times * pm.HalfNormal("tau"), dims="who")
        pm.Poisson("y", pm.math.exp(pm.Normal("b") + u[pm.Data("person", WHO)]), observed=count)
    return model


@pytest.mark.turns
@pytest.mark.parametrize(("times", "count"), [(1.0, COUNT), (3.0, COUNT), (3.0, 0 * COUNT)])
def test_a_fit_finds_the_best_normal_distribution(times: float, count: np.ndarray):
    """Of counts: SciPy maximises the bound person by person."""
    nodes, weights = places_of(1, Variational()).at[:, 0], places_of(1, Variational()).weights

    def gradient(at: dict[str, float]) -> np.ndarray:
        tau, total = times * np.exp(at["tau_log__"]), np.zeros(2)
        for p in range(P):
            y = count[p == WHO]

            def cost(v: np.ndarray, y: np.ndarray = y) -> float:
                mean = y.size * (weights @ np.exp(at["b"] + v[0] + np.exp(v[1]) * nodes))
                return float(mean - y.sum() * v[0] + (v[0] ** 2 + np.exp(2 * v[1])) / (2 * tau**2) - v[1])

            m, log_s = optimize.minimize(cost, np.zeros(2), tol=1e-10).x
            variance = np.exp(2 * log_s)
            of_b = y.sum() - y.size * (weights @ np.exp(at["b"] + m + np.exp(log_s) * nodes))
            total += of_b, (m**2 + variance) / tau**2 - 1
        return total

    apart = []
    for steps in (1, None, 50):
        made = made_of(poisson(times, count), guide={"u": Variational(steps)})
        found, z = released_of_everybody(made, "PYTHON")
        names = [v.name for v in made._approx.latents.value_vars]
        at = dict(zip(names, z, strict=True))
        expected = dict(zip(("b", "tau_log__"), gradient(at), strict=True))
        of = [found[names.index(name)] for name in expected]
        apart.append(np.abs(np.subtract(of, list(expected.values()))).max() / np.linalg.norm(of))
    assert apart[0] > apart[1] and apart[1] < 0.03 and apart[2] < 1e-4, apart


@pytest.mark.turns
def test_a_bound_is_below_the_integral_and_close_to_it():
    """The gradient by the spread is too small, by some per cent where people have a few rows."""
    by = {}
    for name, rule in {"fit": Variational(), "quadrature": Quadrature(31)}.items():
        made = made_of(poisson(), guide={"u": rule})
        found, _ = released_of_everybody(made, "PYTHON")
        names = [v.name for v in made._approx.latents.value_vars]
        by[name] = found[names.index("tau_log__")]
    assert abs(by["fit"] - by["quadrature"]) < 0.05 * abs(by["quadrature"]) + 0.5
    assert by["fit"] != by["quadrature"]


@pytest.mark.turns
def test_people_without_a_normal_distribution_count_all_the_same():
    """A density without a mode, and values that overflow: no error, and the others count."""
    count = COUNT.copy()
    count[WHO == 3] = 2**31 - 1
    shares = []
    for values in (COUNT, count):
        with pm.Model(coords={"who": np.arange(P)}) as model:
            u = pm.StudentT("u", nu=1.1, sigma=pm.HalfNormal("tau"), dims="who")
            own = pm.math.exp(pm.Normal("b") + u[pm.Data("person", WHO)])
            pm.Poisson("y", own, observed=values)
        made = made_of(model, guide={"u": Variational()})
        others = [p for p in range(P) if p != 3]
        everybody = released_of_everybody(made, "PYTHON")[0]
        shares.append(released_of_everybody(made, "PYTHON", persons=others)[0])
        assert np.isfinite(everybody).all()
    np.testing.assert_array_equal(*shares)
