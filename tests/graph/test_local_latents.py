"""Local variables: which are found, what is refused, and how they are integrated out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from test_persons_zoo import released_of_everybody

from pymc_dpvi import DPADVI, Quadrature
from pymc_dpvi.errors import ArgumentError, NotSeparableError, PrivacyWarning, UnsupportedModelError
from pymc_dpvi.graph.guards import guard_records
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.synthetic_records import python_function

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(3)
P = 17
WHO = RNG.permutation(np.repeat(np.arange(P), RNG.integers(1, 6, size=P)))
N = WHO.size
X, Y = RNG.normal(size=N), RNG.normal(size=N)
ARGUMENTS: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-6, "sampling_prob": 0.3, "random_seed": 1}


def model_of(write: Callable[[Any], None]) -> pm.Model:
    with pm.Model(coords={"who": np.arange(P)}) as model:
        write(pm.Data("person", WHO))
    return model


def method(write: Callable[[Any], None], **more: Any) -> DPADVI:
    return DPADVI(**{**ARGUMENTS, **more}, unit="person", model=model_of(write))


# ------------------------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------------------------


def observe(mean: Any) -> None:
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)


def its_mean(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe((u - u.mean())[person])


def its_sum_elsewhere(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(u[person] + 0.1 * u.sum())


def running_sum(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(pt.cumsum(u)[person])


def sorted_values(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(pt.sort(u)[person])


def random_walk(person: Any) -> None:
    u = pm.GaussianRandomWalk("u", sigma=pm.HalfNormal("tau"), init_dist=pm.Normal.dist(0, 1), steps=P - 1)
    observe(u[person])


def joint_normal(person: Any) -> None:
    u = pm.MvNormal("u", np.zeros(P), np.eye(P))
    observe(u[person])


def sum_to_zero(person: Any) -> None:
    u = pm.ZeroSumNormal("u", pm.HalfNormal("tau"), dims="who")
    observe(u[person])


def soft_sum_to_zero(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    pm.Potential("centre", -(u.sum() ** 2))
    observe(u[person])


def global_about_local(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(u[person] + pm.Normal("b", u.mean(), 1))


def prior_on_rows(person: Any) -> None:
    u = pm.Normal("u", pm.Data("x", X)[:P], 1, dims="who")
    observe(u[person])


def prior_on_the_number_of_rows(person: Any) -> None:
    u = pm.Normal("u", 0, 1.0 / person.shape[0], dims="who")
    observe(u[person])


def prior_on_the_number_of_persons(person: Any) -> None:
    u = pm.Normal("u", 0, 1.0 / pm.modelcontext(None).dim_lengths["who"], dims="who")
    observe(u[person])


def prior_on_a_table(person: Any) -> None:
    u = pm.Normal("u", pm.Normal("b") * np.linspace(0, 1, P) ** 1.7, 1, dims="who")
    observe(u[person])


def two_lengths(person: Any) -> None:
    u, v = pm.Normal("u", 0, 1, shape=P), pm.Normal("v", 0, 1, shape=P + 2)
    observe(u[person] + v[person])


def ordered_over_persons(person: Any) -> None:
    u = pm.Normal("u", np.arange(P), 1, transform=pm.distributions.transforms.ordered, shape=P)
    observe(u[person])


def many_beside_a_class(person: Any) -> None:
    u = pm.Normal("u", 0, 1, shape=(P, 8))
    k = pm.Bernoulli("k", 0.5, dims="who")
    observe(u[person].sum(axis=1) * k[person] + pm.Normal("b"))


def many_classes_beside_an_effect(person: Any) -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 2))
    k = pm.Categorical("k", np.ones(70) / 70, dims="who")
    observe(u[person].sum(axis=1) * k[person])


def as_many_classes_as_persons(person: Any) -> None:
    k = pm.Categorical("k", pt.ones(P) / P, shape=P)
    observe(pm.Normal("level", 0, 1, shape=P + 1)[k[person]])


def no_trials(person: Any) -> None:
    observe(pm.Binomial("k", -1, pm.Beta("p", 1, 1), dims="who")[person])


def a_billion_trials(person: Any) -> None:
    observe(pm.Binomial("k", 10**9, pm.Beta("p", 1, 1), dims="who")[person])


def with_an_end_of_another_kind(person: Any) -> None:
    k = pm.Truncated("k", pm.Geometric.dist(pm.Beta("p", 1, 1)), upper=9, dims="who")
    observe(k[person])


def without_an_end(person: Any) -> None:
    k = pm.Poisson("k", 2.0, dims="who")
    observe(k[person])


def two_indices(person: Any) -> None:
    u = pm.Normal("u", 0, 1, shape=(P, 3))
    observe(u[person, pm.Data("item", np.arange(N) % 3)])


def a_column_by_a_record(person: Any) -> None:
    """One record's item would choose everybody's column."""
    items = pt.constant(np.arange(N) % 2)
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 2))
    observe(pm.Normal("b", shape=2)[items] + u[person, items[3]])


def a_column_by_equal_entries(person: Any) -> None:
    items = pt.constant(np.ones(N, dtype="int64"))
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 2))
    observe(pm.Normal("b", shape=2)[items] + u[person, items])


def a_column_by_the_number_of_rows(person: Any) -> None:
    x = pt.constant(X)
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 2))
    observe(pm.Normal("b") * x + u[person, x.shape[0] % 2])


def places_in_a_density(person: Any) -> None:
    def density(v: Any, tau: Any) -> Any:
        return -0.5 * (v / tau) ** 2 - pt.log(tau) - pt.switch(pt.arange(v.shape[0]) >= 300, 2.0, 1.0)

    u = pm.CustomDist("u", pm.HalfNormal("tau"), logp=density, shape=P)
    observe(u[person])


def without_a_second_derivative(person: Any) -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who")
    pm.Potential("y", pt.log(pt.gammainc(pt.exp(u[person]), pt.abs(pm.Data("x", X)))))


def nothing_else(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    pm.Normal("y", u[person], 1, observed=Y)


def a_hundred_values(person: Any) -> None:
    u = pm.Normal("u", 0, 1, shape=(P, 100))
    observe(u[person].sum(axis=1))


def its_square_by_rows(person: Any) -> None:
    """Rows enter each other's terms through a mean over the rows of all persons."""
    u = pm.Normal("u", 0, 1, dims="who")
    own = u[person]
    observe(own - own.mean())


def another_by_person(person: Any) -> None:
    """A second variable, by a copy of the ids: with more entries than persons, and labels of theirs."""
    u = pm.Normal("u", 0, 1, dims="who")
    v = pm.Normal("v", 0, 1, dims="who")
    observe(u[person] + X * v[pm.Data("copy", WHO)])


def another_by_shifted_ids(person: Any) -> None:
    u, v = pm.Normal("u", 0, 1, shape=P), pm.Normal("v", 0, 1, shape=P + 3)
    observe(u[person] + v[person + 1])


def its_number(person: Any) -> None:
    u = pm.Normal("u", 0, 1, shape=P)
    observe(u[person] + pm.Normal("b") / u.shape[0])


def parts_of_persons(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(pt.concatenate([u[:300], 2 * u[300:]])[person])


def rolled(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe(pt.roll(u, 300)[person])


def running_number(person: Any) -> None:
    u = pm.Normal("u", 0, 1, dims="who")
    observe((u + pt.switch(pt.arange(u.shape[0]) < 300, 0.0, pm.Normal("b")))[person])


def running_number_in_the_prior(person: Any) -> None:
    n = pm.modelcontext(None).dim_lengths["who"]
    u = pm.Normal("u", pt.switch(pt.arange(n) < 300, 0.0, pm.Normal("b")), 1, dims="who")
    observe(u[person])


def reference_person(person: Any) -> None:
    u = pm.Normal("u", 0, 1, shape=P - 1)
    observe(pt.concatenate([[0.0], u])[person])


def our_name(person: Any) -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("s"), dims="who")
    pm.Normal("prior of local variables", u[person], 1, observed=Y)


def censored(person: Any) -> None:
    u = pm.Censored("u", pm.Normal.dist(0, 1), lower=-1, upper=1, shape=P)
    observe(u[person])


def short_ids(person: Any) -> None:
    observe(pm.Normal("u", 0, pm.HalfNormal("tau"), shape=P)[pt.cast(person, "int8")])


REFUSED: dict[str, tuple[Callable[[Any], None], type[Exception], str]] = {
    "its mean": (its_mean, NotSeparableError, "'u'"),
    "its sum elsewhere": (its_sum_elsewhere, NotSeparableError, "'u' otherwise than by person"),
    "a running sum": (running_sum, NotSeparableError, "go by their place"),
    "sorted": (sorted_values, NotSeparableError, "'y'"),
    "a random walk": (random_walk, NotSeparableError, "'u' is one draw for all persons"),
    "a joint normal": (joint_normal, NotSeparableError, "'u' is one draw for all persons"),
    "sum to zero": (sum_to_zero, NotSeparableError, "'u' is one draw for all persons"),
    "sum to zero, softly": (soft_sum_to_zero, NotSeparableError, "'centre'"),
    "a global variable about it": (global_about_local, NotSeparableError, "'b' depends on 'u'"),
    "a prior on rows": (prior_on_rows, UnsupportedModelError, "'u' depends on data"),
    "a prior on the number of rows": (
        prior_on_the_number_of_rows,
        UnsupportedModelError,
        "'u' depends on data",
    ),
    "a prior on the number of persons": (prior_on_the_number_of_persons, NotSeparableError, "prior of local"),
    "a prior on a table": (prior_on_a_table, UnsupportedModelError, "an array over persons"),
    "two lengths": (two_lengths, UnsupportedModelError, "different lengths"),
    "ordered over persons": (ordered_over_persons, UnsupportedModelError, "an array over persons"),
    "as many classes as persons": (as_many_classes_as_persons, UnsupportedModelError, "as many classes"),
    "no trials": (no_trials, UnsupportedModelError, "'k' is discrete"),
    "a billion trials": (a_billion_trials, UnsupportedModelError, "too many combinations"),
    "many beside a class": (many_beside_a_class, UnsupportedModelError, "8 continuous local values beside"),
    "many classes": (many_classes_beside_an_effect, UnsupportedModelError, "70 combinations"),
    "a truncated Geometric": (with_an_end_of_another_kind, UnsupportedModelError, "pm.Truncated('k'"),
    "no end of values": (without_an_end, UnsupportedModelError, "'k' is discrete"),
    "a column by a record": (a_column_by_a_record, UnsupportedModelError, "u[person]"),
    "a column by equal entries": (a_column_by_equal_entries, UnsupportedModelError, "u[person]"),
    "a column by the number of rows": (a_column_by_the_number_of_rows, UnsupportedModelError, "u[person]"),
    "places in a density": (places_in_a_density, NotSeparableError, "go by their place"),
    "no second derivative": (without_a_second_derivative, UnsupportedModelError, "no gradient"),
    "two indices": (two_indices, UnsupportedModelError, "u[person]"),
    "nothing else": (nothing_else, UnsupportedModelError, "nothing is left to release"),
    "a hundred values": (a_hundred_values, UnsupportedModelError, "100 local values"),
    "another by person": (another_by_person, UnsupportedModelError, "'v' has an axis"),
    "another by shifted ids": (another_by_shifted_ids, UnsupportedModelError, "'y' reads 'person'"),
    "its number": (its_number, NotSeparableError, "'u' otherwise than by person"),
    "parts of persons": (parts_of_persons, NotSeparableError, "go by their place"),
    "rolled": (rolled, NotSeparableError, "go by their place"),
    "a running number": (running_number, NotSeparableError, "go by their place"),
    "a running number in the prior": (running_number_in_the_prior, NotSeparableError, "go by their place"),
    "a reference person": (reference_person, UnsupportedModelError, "one entry for each person"),
    "our own name": (our_name, UnsupportedModelError, "package's own"),
    "short ids": (short_ids, UnsupportedModelError, "'u' has an axis"),
    "censored": (censored, UnsupportedModelError, "censored"),
    "means over all rows": (its_square_by_rows, NotSeparableError, "'y'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ties_persons_together_is_refused(name: str):
    write, error, text = REFUSED[name]
    with pytest.raises((NotSeparableError, UnsupportedModelError)) as caught:
        method(write)
    assert isinstance(caught.value, error), caught.value
    assert text in str(caught.value), str(caught.value)


def test_a_column_by_a_number_is_fine():
    def write(person: Any) -> None:
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 2))
        observe(u[person, 1] + X * u[person, np.int64(0)])

    assert method(write)._record.local.names == ("u",)  # type: ignore[union-attr]


def test_the_start_of_a_local_variable_is_not_listed():
    """Its length may be the number of persons."""

    def write(person: Any) -> None:
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who", initval=np.zeros(P))
        observe(u[person])

    record = method(write)._record
    assert not any("initial value" in entry for entry in record.public_arrays)
    assert "length" not in repr(record.local)


@pytest.mark.parametrize("special", [pt.gammaln, pt.gamma])
def test_arguments_that_a_second_derivative_iterates_on_are_bounded(special: Any):
    """A trigamma takes as many steps as its argument is below zero."""
    row, z = pt.vector("row", shape=(1,)), pt.vector("z", shape=(1,))
    far = np.array([-1e5 + 0.5])
    for twice, ends in ((False, False), (True, True)):
        (term,), _ = guard_records([special(row) + z], [row], [z], [], str, twice=twice)
        found = python_function([row, z], [term])(far, np.zeros(1))[0]
        assert (found == -np.inf) == ends


def intercepts(person: Any) -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who")
    observe(u[person])


def hidden(person: Any) -> None:
    k = pm.Bernoulli("k", pm.Beta("w", 2, 2), dims="who")
    observe(k[person])


GUIDES: dict[str, tuple[Any, Any, str]] = {
    "no dict": (intercepts, Quadrature(5), "must be a dict"),
    "a global variable": (intercepts, {"tau": Quadrature(5)}, "'tau' is none: local are ['u']"),
    "nobody": (intercepts, {"v": Quadrature(5)}, "no free variable"),
    "no rule": (intercepts, {"u": 7}, "Quadrature(7)"),
    "a discrete variable": (hidden, {"k": Quadrature(5)}, "continuous values"),
}


@pytest.mark.parametrize("name", GUIDES)
def test_a_bad_guide_is_refused_by_name(name: str):
    write, guide, text = GUIDES[name]
    with pytest.raises(ArgumentError) as caught:
        method(write, guide=guide)
    assert text in str(caught.value), str(caught.value)


def test_a_guide_without_local_variables_is_refused():
    with pytest.raises(ArgumentError, match="local are none"):
        DPADVI(
            **ARGUMENTS, guide={"s": Quadrature(5)}, model=model_of(lambda person: observe(pm.Normal("b")))
        )


@pytest.mark.parametrize("nodes", [0, 66, 2.5, True])
def test_a_bad_number_of_nodes_is_refused(nodes: Any):
    with pytest.raises(ArgumentError, match="nodes"):
        Quadrature(nodes)


@pytest.mark.turns
def test_several_latent_draws_are_refused_before_anything_is_spent():
    made = method(intercepts)
    with pytest.raises(ArgumentError, match=r"obj_n_mc=2.*\(u\)"):
        made.fit(5, obj_n_mc=2, progressbar=False)


def test_what_depends_on_local_variables_is_not_released():
    def write(person: Any) -> None:
        tau = pm.HalfNormal("tau")
        u = pm.Normal("u", 0, tau, dims="who")
        pm.Deterministic("largest", u.max())
        pm.Deterministic("spread", 2 * tau)
        observe(u[person])

    made = method(write)
    assert tuple(made.approx.withheld) == ("u", "largest")
    model = made._record.whole_model
    with pytest.raises(UnsupportedModelError):
        made.approx.sample_node(model["u"].max())
    approx = made.fit(5, progressbar=False, backend="python")
    assert set(approx.sample(2, noise_aware=False)["posterior"].data_vars) == {"tau", "spread", "s"}
    assert approx.privacy.withheld == ("u", "largest")


def test_a_variable_more_in_the_model_is_seen():
    made = method(intercepts)
    with made._record.whole_model:
        pm.Normal("late", 0, 1)
    with pytest.raises(UnsupportedModelError, match="other variables now"):
        made.fit(5, progressbar=False)


# ------------------------------------------------------------------------------------------------
# Integrals
# ------------------------------------------------------------------------------------------------


def squares(person: Any) -> None:
    observe((pm.Normal("u", 0, pm.HalfNormal("tau"), shape=(P, 4))[person] ** 2).sum(axis=1))


ROUGH: dict[str, tuple[Callable[[Any], None], int]] = {
    "a square": (lambda p: observe(pm.Normal("u", 0, pm.HalfNormal("tau"), shape=P)[p] ** 2), 31),
    "Laplace": (lambda p: observe(pm.Laplace("u", 0, pm.HalfNormal("tau"), shape=P)[p]), 31),
    "four squares": (squares, 5),
}


@pytest.mark.parametrize("name", ROUGH)
def test_a_rough_integral_is_warned_of(name: str):
    write, nodes = ROUGH[name]
    with pytest.warns(PrivacyWarning, match=rf"integral over 'u' is rough.*Quadrature\({nodes}\)"):
        method(write)


@pytest.mark.turns
def test_hidden_classes_are_a_mixture_over_persons():
    """Where everybody has one row, it is pm.NormalMixture, to the last digits."""
    one = np.arange(N)
    mean = [-0.7, 0.4]

    with pm.Model(coords={"who": one}) as by_person:
        w, s = pm.Dirichlet("w", np.ones(2)), pm.HalfNormal("s")
        k = pm.Categorical("k", w, dims="who")
        mu = pm.Normal("mu", mean, 1)
        pm.Normal("y", mu[k[pm.Data("person", one)]], s, observed=Y)
    with pm.Model() as mixture:
        w, s = pm.Dirichlet("w", np.ones(2)), pm.HalfNormal("s")
        pm.NormalMixture("y", w, pm.Normal("mu", mean, 1), s, observed=Y)
    options = {**ARGUMENTS, "insecure_noise_seed": 1, "l2_clip_norm": 1.0}
    fits = [
        DPADVI(**options, **more, model=model).fit(30, progressbar=False, backend="python")
        for model, more in ((by_person, {"unit": "person"}), (mixture, {}))
    ]
    for a, b in zip(*(fit.params for fit in fits), strict=True):
        np.testing.assert_allclose(a.get_value(), b.get_value(), rtol=1e-7)


@pytest.mark.turns
def test_a_person_is_the_same_beside_others():
    """Whatever the others are: hostile rows, many of them, none."""

    def shares(who: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with pm.Model() as model:
            person = pm.Data("person", who)
            u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=int(who.max()) + 1)
            label = (y > 0).astype("int64")
            pm.Bernoulli("y", logit_p=pm.Normal("b") * pm.Data("x", x) + u[person], observed=label)
        made = DPADVI(
            **{**ARGUMENTS, "sampling_prob": None}, sampler="full_batch", unit="person", model=model
        )
        return released_of_everybody(made, "PYTHON", persons=[0])[0]

    first = np.flatnonzero(WHO == 0)
    alone = shares(np.append(np.zeros(first.size, int), 1), np.append(X[first], 0.5), np.append(Y[first], 1))
    hostile = np.where(np.arange(60) % 3 == 0, np.inf, 1e300)
    beside = shares(
        np.concatenate([np.repeat([2, 1], 30), np.zeros(first.size, int)]),
        np.concatenate([hostile, X[first]]),
        np.concatenate([np.ones(60), Y[first]]),
    )
    np.testing.assert_array_equal(alone, beside)
    assert np.linalg.norm(alone[:2]) > 0


@pytest.mark.zoo
@pytest.mark.parametrize("backend", ["numba", pytest.param("c", marks=pytest.mark.slow), "jax"])
def test_backends_agree(backend: str):
    found = []
    for way in ("python", backend):
        made = method(intercepts, insecure_noise_seed=1)
        approx = made.fit(20, progressbar=False, backend=way)
        found.append(np.concatenate([p.get_value() for p in approx.params]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-7)


def test_a_record_model_knows_its_local_variables():
    record = build_record_model(model_of(intercepts), unit="person")
    assert record.local is not None
    assert [v.name for v in record.value_vars] == ["tau_log__", "s_log__"]
    assert len(record.rows) == len(record.arrays) + 2


def test_it_is_fitted_by_pm_fit_in_the_context():
    with model_of(intercepts):
        approx = pm.fit(3, method=DPADVI(**ARGUMENTS, unit="person"), progressbar=False, backend="python")
    assert tuple(approx.withheld) == ("u",)
    other = method(hidden)
    with model_of(intercepts), pytest.raises(ArgumentError, match="another model"):
        pm.fit(3, method=other, progressbar=False)
