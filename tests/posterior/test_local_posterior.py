"""Local values of new persons: against the exact posterior, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import DPADVI, DPApproximation
from pymc_dpvi.errors import ArgumentError, PrivacyError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(4)
WHO = np.repeat(np.arange(12), 4)
ARGUMENTS: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-6, "sampling_prob": 0.5, "random_seed": 1}


def fitted(hidden: bool = False) -> DPApproximation:
    with pm.Model(coords={"who": np.arange(12)}) as model:
        person, x = pm.Data("person", WHO), pm.Data("x", RNG.normal(size=WHO.size))
        b, tau = pm.Normal("b"), pm.HalfNormal("tau")
        if hidden:
            kind = pm.Bernoulli("kind", 0.3, dims="who")
            mean = b * x + 2.0 * kind[person]
        else:
            mean = b * x + pm.Normal("u", 0, tau, dims="who")[person]
        pm.Normal("y", mean, 0.5 + 0 * tau, observed=pm.Data("outcome", RNG.normal(size=WHO.size)))
    method = DPADVI(**ARGUMENTS, insecure_noise_seed=1, unit="person", model=model)
    approx = method.fit(5, progressbar=False, backend="python")
    for name, value in (("mu", [0.4, np.log(1.3)]), ("rho", [-30.0, -30.0])):  # a posterior that is known
        approx.params[[p.name for p in approx.params].index(name)].set_value(np.array(value))
    return approx


NEW = {
    "person": ["ann", "bob", "ann", "ann", "bob"],
    "x": np.array([0.5, -1.0, 0.0, 1.0, 0.3]),
    "outcome": np.array([1.9, -0.4, 1.0, 2.2, 0.9]),
}


@pytest.mark.turns
def test_draws_are_those_of_the_exact_posterior():
    draws = fitted().local_posterior(NEW, 4000, noise_aware=False, random_seed=1)["posterior"]["u"]
    assert draws.dims == ("chain", "draw", "person")
    assert draws["person"].to_numpy().tolist() == ["ann", "bob"]
    for name in ("ann", "bob"):
        own = np.array([p == name for p in NEW["person"]])
        precision = own.sum() / 0.25 + 1 / 1.3**2
        mean = np.sum(NEW["outcome"][own] - 0.4 * NEW["x"][own]) / 0.25 / precision
        found = draws.sel(person=name).to_numpy().ravel()
        assert found.mean() == pytest.approx(mean, abs=0.05)
        assert found.std() == pytest.approx(precision**-0.5, rel=0.06)


def test_hidden_values_are_drawn_by_their_probabilities():
    draws = fitted(hidden=True).local_posterior(NEW, 3000, noise_aware=False, random_seed=1)["posterior"][
        "kind"
    ]
    for name in ("ann", "bob"):
        own = np.array([p == name for p in NEW["person"]])
        rest = NEW["outcome"][own] - 0.4 * NEW["x"][own]
        odds = 0.3 / 0.7 * np.exp(-0.5 * np.sum((rest - 2) ** 2 - rest**2) / 0.25)
        found = draws.sel(person=name).to_numpy().ravel()
        assert set(np.unique(found)) <= {0, 1}
        assert found.mean() == pytest.approx(odds / (1 + odds), abs=0.04)


def test_one_new_person_is_enough():
    one = {name: np.asarray(values)[1:2] for name, values in NEW.items()}
    found = fitted().local_posterior(one, 3, noise_aware=False)["posterior"]["u"]
    assert found.shape == (1, 3, 1)


BAD: dict[str, tuple[Any, str]] = {
    "no dict": ([1, 2], "must be a dict"),
    "a name is missing": ({"person": [1], "x": [0.5]}, "missing ['outcome']"),
    "a name too many": ({**NEW, "z": [1]}, "not known ['z']"),
    "another length": ({**NEW, "x": np.zeros(4)}, "data['x']"),
    "text": ({**NEW, "x": ["a"] * 5}, "data['x'] must be numbers"),
    "no number": ({**NEW, "outcome": np.array([1.9, np.nan, 1.0, 2.2, 0.9])}, "finite"),
    "masked": ({**NEW, "outcome": np.ma.array(NEW["outcome"], mask=[0, 0, 1, 0, 0])}, "masked"),
    "nobody": ({"person": [], "x": np.zeros(0), "outcome": np.zeros(0)}, "found none"),
    "bad ids": ({**NEW, "person": [0.5] * 5}, "strings or integers"),
}


@pytest.mark.turns
@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused_by_name(name: str):
    data, text = BAD[name]
    with pytest.raises(ArgumentError) as caught:
        fitted().local_posterior(data, 3, noise_aware=False)
    assert text in str(caught.value), str(caught.value)


def test_a_model_without_local_variables_has_none():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b"), 1, observed=np.zeros(48))
    approx = DPADVI(**ARGUMENTS, model=model).fit(5, progressbar=False, backend="python")
    with pytest.raises(UnsupportedModelError, match="no local variables"):
        approx.local_posterior({}, 3, noise_aware=False)


def test_nothing_is_there_before_the_fit():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b"), 1, observed=np.zeros(48))
    with pytest.raises(PrivacyError, match="call fit first"):
        DPADVI(**ARGUMENTS, model=model).approx.local_posterior({}, 3)


def test_a_person_has_one_entry_of_what_is_known_of_persons():
    with pm.Model(coords={"who": np.arange(12)}) as model:
        age, b = pm.Data("age", RNG.normal(size=12)), pm.Normal("b", 0, 1)
        u = pm.Normal("u", b * age, pm.HalfNormal("tau"), dims="who")
        pm.Normal("y", u[pm.Data("person", WHO)], 1, observed=pm.Data("outcome", RNG.normal(size=WHO.size)))
    approx = DPADVI(**ARGUMENTS, unit="person", model=model).fit(5, progressbar=False, backend="python")
    data = {"person": ["ann", "bob", "ann", "cy"], "outcome": [0.1, 0.2, 0.3, 0.4]}
    for age in [0.5, 1.5, 0.5, -1.0], [0.5, 1.5, 0.5, 0.5]:
        found = approx.local_posterior({**data, "age": age}, 3, noise_aware=False)
        assert found.posterior["u"].shape == (1, 3, 3)
    with pytest.raises(ArgumentError, match=r"'age'. has different entries in rows of one person"):
        approx.local_posterior({**data, "age": [0.5, 1.5, 0.6, 0.5]}, 3, noise_aware=False)


def test_rows_without_a_density_have_no_answer_and_are_not_quoted():
    with pm.Model(coords={"who": np.arange(12)}) as model:
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who")
        counts = pm.Data("count", RNG.poisson(2.0, size=WHO.size))
        pm.Poisson("y", pm.math.exp(u[pm.Data("person", WHO)]), observed=counts)
    approx = DPADVI(**ARGUMENTS, unit="person", model=model).fit(5, progressbar=False, backend="python")
    data = {"person": ["ann", "bob"], "count": [3, -1]}
    with pytest.raises(ArgumentError, match="of 1 of the persons have no density") as caught:
        approx.local_posterior(data, 3, noise_aware=False)
    assert "bob" not in str(caught.value)
