"""Covariates of persons: arrays with an entry for each person that are looked up by the ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from test_persons_zoo import released_of_everybody

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import ArgumentError, NotSeparableError, PrivacyError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(12)
P = 14
WHO = RNG.permutation(np.repeat(np.arange(P), RNG.integers(1, 6, size=P)))
N = WHO.size
Y = RNG.normal(size=N)
AGE, GROUP = RNG.normal(size=P), RNG.integers(0, 3, size=P)

Write = Callable[[Any, Any, Any], Any]


def model(write: Write, age: np.ndarray = AGE, group: np.ndarray = GROUP, **more: Any) -> pm.Model:
    """Make a model from a function of the ids, of what is known of persons, and of groups to the mean."""
    with pm.Model(coords={"who": [f"name {p}" for p in range(P)]}) as made:
        person = pm.Data("person", more.get("ids", WHO))
        mean = write(person, pm.Data("age", age), pm.Data("group", group))
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)
    return made


def method(made: pm.Model, **more: Any) -> DPADVI:
    whole = {"noise_multiplier": 1.0, "delta": 1e-6, "random_seed": 1, "sampler": "full_batch"}
    return DPADVI(**{**whole, "l2_clip_norm": 1e6, "unit": "person", **more}, model=made)


def parameters() -> tuple[Any, ...]:
    a = pm.Normal("a", 0, 1, shape=3, initval=[0.3, -0.2, 0.5])  # where the classes differ
    return a, pm.Normal("b", initval=0.1), pm.HalfNormal("tau")


def looked_up(person: Any, age: Any, group: Any) -> Any:
    a, b, _ = parameters()
    return a[group[person]] + b * age[person]


def looked_up_together(person: Any, age: Any, group: Any) -> Any:
    a, b, _ = parameters()
    return (a[group] + b * pt.exp(age))[person]


def beside_a_value(person: Any, age: Any, group: Any) -> Any:
    a, b, tau = parameters()
    return (a[group] + b * age + tau * pm.Normal("u", 0, 1, dims="who"))[person]


def in_the_prior(person: Any, age: Any, group: Any) -> Any:
    a, b, tau = parameters()
    return pm.Normal("u", a[group] + b * age, tau, dims="who")[person]


def in_the_prior_of_a_class(person: Any, age: Any, group: Any) -> Any:
    a, b, _ = parameters()
    return a[pm.Bernoulli("k", logit_p=b * age, dims="who")[person]] + 0.0 * group[person]


def in_the_prior_of_a_prior(person: Any, age: Any, group: Any) -> Any:
    a, b, tau = parameters()
    v = pm.Normal("v", b * age, 1.0, dims="who")
    return pm.Normal("u", a[group] + v, tau, dims="who")[person]


BY_ROW: dict[Any, Write] = {
    looked_up: lambda _, age, group: (lambda a, b, tau: a[group] + b * age)(*parameters()),
    looked_up_together: lambda _, age, group: (lambda a, b, tau: a[group] + b * pt.exp(age))(*parameters()),
    beside_a_value: lambda person, age, group: (
        lambda a, b, tau: a[group] + b * age + tau * pm.Normal("u", 0, 1, dims="who")[person]
    )(*parameters()),
    in_the_prior: lambda person, age, group: (
        lambda a, b, tau: a[group] + b * age + pm.Normal("u", 0, tau, dims="who")[person]
    )(*parameters()),
}


@pytest.mark.turns
@pytest.mark.parametrize("write", BY_ROW, ids=lambda w: w.__name__)
def test_gradients_are_those_of_one_entry_for_each_row(write: Write):
    found = released_of_everybody(method(model(write)), "PYTHON")[0]
    expected = released_of_everybody(method(model(BY_ROW[write], AGE[WHO], GROUP[WHO])), "PYTHON")[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def in_a_deterministic_of_a_prior(person: Any, age: Any, group: Any) -> Any:
    a, b, tau = parameters()
    return pm.Normal("u", pm.Deterministic("m", a[group] + b * age, dims="who"), tau, dims="who")[person]


ALL = [*BY_ROW, in_the_prior_of_a_class, in_the_prior_of_a_prior, in_a_deterministic_of_a_prior]


@pytest.mark.turns
@pytest.mark.parametrize("write", ALL, ids=lambda w: w.__name__)
def test_an_entry_is_a_part_of_one_persons_gradient(write: Write):
    """Another age and group of one person move that person's gradient, and nobody else's by a bit."""
    age, group = AGE.copy(), GROUP.copy()
    age[3], group[3] = 5.0, (GROUP[3] + 1) % 3
    others = [p for p in range(P) if p != 3]
    for persons, same in ((others, True), ([3], False)):
        one, other = (
            released_of_everybody(method(model(write, *known)), "PYTHON", persons)[0]
            for known in ((AGE, GROUP), (age, group))
        )
        assert np.array_equal(one, other) == same


def minus_the_mean(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("b") * (age[person] - age.mean())


def mean_looked_up(person: Any, age: Any, group: Any) -> Any:
    return (pm.Normal("b") * (age - age.mean()))[person]


def mean_in_the_prior(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("u", pm.Normal("b") * (age - age.mean()), 1.0, dims="who")[person]


def sorted_in_the_prior(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("u", pm.Normal("b") * pt.sort(age), 1.0, dims="who")[person]


def of_the_next_person(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("b") * pt.roll(age, 1)[person]


def of_the_next_place(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("b") * age[person - 1]


def both_ways(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("b") * age[person] + pm.Normal("c") * age[group].sum()


def the_number_of_persons(person: Any, age: Any, group: Any) -> Any:
    return pm.Normal("b") * age[person] / age.shape[0]


def friends(person: Any, age: Any, group: Any) -> Any:
    """The group is the number of a person whose age is read."""
    return pm.Normal("b") * age[group][person]


MIXED = [
    minus_the_mean,
    mean_looked_up,
    mean_in_the_prior,
    sorted_in_the_prior,
    of_the_next_person,
    of_the_next_place,
    both_ways,
    the_number_of_persons,
    friends,
]


@pytest.mark.parametrize("write", MIXED, ids=lambda w: w.__name__)
def test_what_mixes_persons_is_refused(write: Write):
    with pytest.raises((NotSeparableError, UnsupportedModelError)):
        method(model(write))


def basis(age: Any) -> Any:
    """Return a Gaussian process of the ages, whose centre PyMC takes from the oldest and the youngest."""
    functions, psd = pm.gp.HSGP(m=[4], L=[4.0], cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior_linearized(
        age[:, None]
    )
    return functions @ (pm.Normal("weights", 0, 1, shape=4) * psd)


BY_ALL: dict[str, tuple[Write, str]] = {
    "a basis looked up": (lambda person, age, _: basis(age)[person], "centre"),
    "a basis beside a value": (
        lambda person, age, _: (basis(age) + pm.Normal("u", 0, 1, dims="who"))[person],
        "centre",
    ),
    "a basis in a prior": (
        lambda person, age, _: pm.Normal("u", basis(age), 1.0, dims="who")[person],
        "centre",
    ),
    "constant weights of classes": (
        lambda person, age, group: pm.Normal("level", 0, 1, shape=3)[
            pm.Categorical("k", p=np.random.default_rng(1).dirichlet(np.ones(3), size=P), dims="who")[person]
        ],
        "pm.Data",
    ),
    "a constant in a prior": (
        lambda person, age, group: pm.Normal("u", pm.Normal("b") * AGE, 1.0, dims="who")[person],
        "pm.Data",
    ),
    "a constant beside a value": (
        lambda person, age, group: (pm.Normal("b") * AGE + pm.Normal("u", 0, 1, dims="who"))[person],
        "pm.Data",
    ),
    "a constant looked up": (
        lambda person, age, group: pm.Normal("b") * pt.constant(AGE)[person],
        "pm.Data",
    ),
}


@pytest.mark.parametrize("name", BY_ALL)
def test_what_pymc_took_from_all_entries_is_refused(name: str):
    """It went by the numbers of all persons while the model was written, and no graph shows it."""
    write, text = BY_ALL[name]
    with pytest.raises(UnsupportedModelError, match=text):
        method(model(write))


@pytest.mark.parametrize("first", [pm.gp.HSGP.prior, pm.gp.HSGP.prior_linearized], ids=lambda f: f.__name__)
def test_a_basis_that_was_placed_by_persons_before_is_refused(first: Callable[..., Any]):
    """PyMC keeps the centre of the first inputs for all later ones."""

    def write(person: Any, age: Any, group: Any) -> Any:
        gp = pm.gp.HSGP(m=[4], L=[4.0], cov_func=pm.gp.cov.ExpQuad(1, 1.0))
        first(gp, *(["f"] if first is pm.gp.HSGP.prior else []), X=age[:, None])
        functions, psd = gp.prior_linearized(np.linspace(-2, 2, 9)[:, None])
        on_grid = functions @ (pm.Normal("weights", 0, 1, shape=4) * psd)
        return on_grid[pm.Data("at", RNG.integers(0, 9, N))] + pm.Normal("b") * age[person]

    with pytest.raises(UnsupportedModelError, match="centre"):
        method(model(write))


@pytest.mark.parametrize("wrong", [777, -555])
def test_no_entry_decides_whether_a_model_is_refused(wrong: int):
    """Not even one that is no place in a table: the term of its person is minus infinity."""
    group = GROUP.copy()
    group[3] = wrong
    others = [p for p in range(P) if p != 3]
    usual, found = method(model(in_the_prior)), method(model(in_the_prior, AGE, group))
    one, other = (released_of_everybody(m, "PYTHON", others)[0] for m in (usual, found))
    np.testing.assert_array_equal(one, other)


def test_priors_of_persons_are_not_drawn_from():
    drawn = []

    def random(mu: Any, rng: Any = None, size: Any = None) -> np.ndarray:
        if isinstance(mu, np.ndarray):  # PyMC tries it with a variable, too
            drawn.append(mu)
        return np.zeros(P)

    def write(person: Any, age: Any, group: Any) -> Any:
        def logp(value: Any, mu: Any) -> Any:
            return pm.logp(pm.Normal.dist(mu, 1.0), value)

        _, b, _ = parameters()
        u = pm.CustomDist("u", b * age, logp=logp, random=random, dims="who", initval="prior")
        return u[person]

    method(model(write))
    assert not drawn


def test_dims_of_persons_are_not_released_with_other_variables():
    """Persons who have no row of their own, such as receivers, are persons, too."""

    def write(person: Any, age: Any, group: Any) -> Any:
        receiver = pm.Data("receiver", RNG.integers(0, P, size=N))
        pm.modelcontext(None).named_vars_to_dims["age"] = ("who",)
        return pm.Normal("b") * age[person] + pm.Normal("received", 0, 1, dims="who")[receiver]

    for ids in (WHO, np.where(WHO == 5, 6, WHO)):
        with pytest.raises(UnsupportedModelError, match="'received' has an axis"):
            method(model(write, ids=ids))


def test_entries_of_persons_are_not_released():
    approx = method(model(in_the_prior), batch_size=None).fit(2, progressbar=False, backend="python")
    listed = " ".join(approx.privacy.public_arrays)
    assert "age" not in listed and "group" not in listed
    found = approx.sample(20)
    assert "name 3" not in str(found) and set(found.posterior.data_vars) == {"a", "b", "tau", "s"}
    with pytest.raises(PrivacyError):
        approx.sample_node(approx.model["age"] * approx.model["b"])


@pytest.mark.parametrize("ids", [WHO + 1, WHO * 3], ids=["from one", "with gaps"])
def test_ids_have_to_be_places(ids: np.ndarray):
    with pytest.raises(ArgumentError, match="'age' is looked up by the ids"):
        method(model(lambda person, age, _: pm.Normal("b") * age[person], ids=ids))


def test_an_exchanged_array_asks_for_a_new_method():
    made = model(looked_up)
    private = method(made)
    pm.set_data({"age": AGE + 1}, model=made)
    with pytest.raises(UnsupportedModelError, match=r"'age'.*was exchanged.*new DPADVI"):
        private.fit(2, progressbar=False)


def test_new_persons_have_one_entry_for_each_row():
    approx = method(model(in_the_prior)).fit(5, progressbar=False, backend="python")
    data = {"person": [1, 1, 2], "y": np.zeros(3), "age": [0.5, 0.5, 3.0], "group": [0, 0, 1]}
    assert approx.local_posterior(data).posterior["u"].sizes["person"] == 2


def test_several_tables_have_one_entry_for_each_row():
    with pm.Model() as made:
        came, once = pm.Data("came", WHO), pm.Data("once", np.arange(P))
        age, b = pm.Data("age", AGE), pm.Normal("b")
        pm.Normal("y", b * age[came], 1, observed=Y)
        pm.Normal("x", b, 1, observed=AGE)
        del once
    with pytest.raises(UnsupportedModelError, match="one entry per row"):
        method(made, unit={"y": "came", "x": "once"})


def test_a_covariate_is_no_column_of_the_rows_too():
    """With one row of each person, in another order, the array has as many entries as there are rows."""
    ids = RNG.permutation(P)
    with pm.Model() as made:
        age, b = pm.Data("age", AGE), pm.Normal("b")
        pm.Normal("y", b * age[pm.Data("person", ids)] + age, 1, observed=AGE)
    with pytest.raises((NotSeparableError, UnsupportedModelError)):
        method(made)
