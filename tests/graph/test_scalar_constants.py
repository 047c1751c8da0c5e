"""Many single numbers, or what a loop over records leaves in a formula, are refused as an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dpvi import UnsupportedModelError
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.scalar_constants import holds_table
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.graph.unrolled_loops import MOST_NUMBERS

N = 83
RNG = np.random.default_rng(23)
Y = RNG.normal(size=N)


def normal(value: Any, mu: Any) -> Any:
    return -0.5 * (value - mu) ** 2


def potentials(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    for k, v in enumerate(values):
        pm.Potential(f"p{k}", -((mu - float(v)) ** 2))


def one_potential(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Potential("p", sum((-((mu - float(v)) ** 2) for v in values), start=pt.zeros(())))


def densities(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    for k, v in enumerate(values):
        pm.Potential(f"p{k}", pm.logp(pm.Normal.dist(mu, 1), float(v)))


def yes_and_no(values: np.ndarray) -> None:
    a = pm.Normal("a")
    for k, v in enumerate(values):
        pm.Potential(f"p{k}", pm.logp(pm.Bernoulli.dist(logit_p=a), int(v > 0)))


def stacked(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Potential("p", -((mu - pt.stack([pt.constant(float(v)) for v in values])) ** 2).sum())


def in_a_logp(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.CustomDist(
        "z", mu, logp=lambda x, m: normal(x, m) - sum((m - float(v)) ** 2 for v in values), observed=Y
    )


def in_a_vector_logp(values: np.ndarray) -> None:
    mu = pm.Normal("mu", shape=2)
    pm.Normal("z", sum(((mu - float(v)) ** 2 for v in values), start=pt.zeros(2)).sum(), 1, observed=Y)


def operands(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    p = pm.math.sigmoid(mu)
    yes, no = pt.log(p), pt.log1p(-p)
    pm.Potential("p", sum((yes if v > 0 else no for v in values), start=pt.zeros(())))


def wide_sum(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Potential("p", pt.add(*[pt.log1p(mu**2) if v > 0 else -mu for v in values]))


def positions(values: np.ndarray) -> None:
    mu = pm.Normal("mu", shape=4)
    pm.Potential("p", pt.stack([mu[int(abs(v) * 9) % 4] for v in values]).sum())


def written_at_positions(values: np.ndarray) -> None:
    mu = pm.Normal("mu", shape=4)
    table = pt.zeros(len(values))
    for k, v in enumerate(values):
        table = table[k].set(mu[int(abs(v) * 9) % 4])
    pm.Potential("p", table.sum())


def turn_by_turn(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    level = mu
    for v in values:
        level = level + 0.1 * (float(v > 0) - level)
    pm.Potential("p", level)


def other_operations(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    level = mu
    for v in values:
        level = pt.tanh(level) if v > 0 else pt.sin(level)
    pm.Potential("p", level)


def list_of_potentials(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    for k, v in enumerate(values):
        pm.Potential(f"p{k}", pt.log1p(mu**2) if v > 0 else -mu)


def spelled_prior(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Normal("s", 0, pt.exp(sum((mu if v > 0 else -mu for v in values), start=pt.zeros(()))))


def list_of_priors(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    for k, v in enumerate(values):
        pm.Normal(f"b{k}", mu if v > 0 else -mu)


def operands_in_a_logp(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.CustomDist(
        "z", mu, logp=lambda x, m: normal(x, m) + sum(m if v > 0 else pt.sin(m) for v in values), observed=Y
    )


MANY = [potentials, one_potential, densities, yes_and_no, stacked, in_a_logp, in_a_vector_logp]


def ranks(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Potential("p", sum((mu * (mu - int(k)) for k in np.argsort(values)), start=pt.zeros(())))


def shared_numbers(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    t = mu - pt.stack([pytensor.shared(float(v)) for v in values])
    pm.Potential("p", -(t**2).sum())


def named_numbers(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    t = mu - pt.stack([pm.Data(f"v{k}", float(v)) for k, v in enumerate(values)])
    pm.Potential("p", -(t**2).sum())


def complex_numbers(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    t = mu - pt.stack([pt.real(pt.as_tensor(complex(v, 0.0))) for v in values])
    pm.Potential("p", -(t**2).sum())


def pairs(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    t = pt.concatenate([mu - pt.as_tensor(np.full(2, v)) for v in values])
    pm.Potential("p", -(t**2).sum())


def pairs_in_the_likelihood(values: np.ndarray) -> None:
    mu = pm.Normal("mu", shape=2)
    t = pt.concatenate([mu - pt.as_tensor(np.array([v, v**2])) for v in values])
    pm.Normal("z", pt.dot(t, t), 1, observed=Y)


def lengths(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    ages = np.abs(10 * values).astype(int) + 1
    pm.Potential("p", pt.stack([(mu * pt.ones(int(k))).sum() for k in ages]).sum())


def slices(values: np.ndarray) -> None:
    mu = pm.Normal("mu")
    ages = np.abs(10 * values).astype(int) + 1
    pm.Potential("p", sum(((mu * pt.arange(100))[: int(k)].sum() for k in ages), start=pt.zeros(())))


MANY += [lengths, slices, shared_numbers, named_numbers, complex_numbers, pairs, pairs_in_the_likelihood]


MANY += [ranks, operands, wide_sum, positions, written_at_positions, turn_by_turn, other_operations]


MANY += [list_of_potentials, spelled_prior, list_of_priors, operands_in_a_logp]


@pytest.mark.parametrize("how", MANY, ids=lambda f: f.__name__)
def test_many_single_numbers_are_an_array(how: Callable[[np.ndarray], None]) -> None:
    with pm.Model() as model:
        how(Y)
        pm.Normal("y", model["mu"].sum() if "mu" in model.named_vars else model["a"], 1, observed=Y)
    with pytest.raises(UnsupportedModelError, match=f"more than {MOST_NUMBERS} different single numbers"):
        build_record_model(model)


@pytest.mark.parametrize("how", MANY, ids=lambda f: f.__name__)
def test_some_single_numbers_are_none(how: Callable[[np.ndarray], None]) -> None:
    with pm.Model() as model:
        how(Y[:20])
        pm.Normal("y", model["mu"].sum() if "mu" in model.named_vars else model["a"], 1, observed=Y)
    build_record_model(model)


@pytest.mark.turns
def test_ordinary_code_has_few_numbers() -> None:
    """Loops over columns, unrolled recursions, many like priors and pieces of a curve are no table."""
    with pm.Model() as model:
        x = pm.Data("x", RNG.normal(size=(N, 90)))
        b = [pm.Normal(f"b{k}", 0, 1) for k in range(90)]
        eta = sum((x[:, k] * b[k] for k in range(90)), start=pt.zeros(()))
        state = x[:, 0]
        for _ in range(100):
            state = state + 0.1 * b[0] * (1.0 - state) - 0.05 * state
        bent = sum((pt.switch(x[:, 1] > 0.1 * k, 0.5 * b[k], 0.0) for k in range(30)), start=pt.zeros(()))
        powers = sum((x[:, 2] ** k * b[k] for k in range(80)), start=pt.zeros(()))
        knots = sum((pt.maximum(x[:, 3] - k, 0.0) * b[0] for k in np.linspace(-1, 1, 70)), start=pt.zeros(()))
        pm.Normal("y", eta + state + bent + powers + knots, 1.0, observed=Y)
    build_record_model(model)


def test_a_table_counts_by_either_measure() -> None:
    mu, nu = pt.dscalar("mu"), pt.dscalar("nu")
    same = sum(((mu - 0.5) * k for k in [nu] * 90), start=pt.zeros(()))
    other = sum(((mu - k) for k in [0.0, 1.0] * 45), start=pt.zeros(()))
    each = sum(((mu ** np.sqrt(k + 0.5)) * nu for k in range(70)), start=pt.zeros(()))
    steps = sum((mu**k * (nu - k) for k in range(90)), start=pt.zeros(()))
    assert [holds_table(walk([g])) for g in (same, other, each, steps)] == [False, True, True, False]


def test_shared_numbers_are_many_wherever_they_stand_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [pytensor.shared(float(v)) for v in Y[:70]]
    address = {v: 1000 + 64 * k for k, v in enumerate(numbers)}  # as they are if nothing else was made
    monkeypatch.setattr("pymc_dpvi.graph.scalar_constants.id", lambda v: address.get(v, id(v)), raising=False)
    assert holds_table(walk([pt.stack(numbers)], into_size=True))
    assert not holds_table(walk([pt.stack(numbers[:40])], into_size=True))
