"""What enters a fit beside the records' rows: refused or listed, on every graph that is evaluated.

Each way to carry numbers of the records past the rows is tried in the likelihood and in the prior. In the
likelihood it is refused; what a user wrote into a prior counts as public, and the report lists it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.transforms import Transform
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import Assert

from pymc_dpvi import DPADVI, NotSeparableError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import is_array, walk
from pymc_dpvi.graph.unrolled_loops import MOST_NUMBERS

N = 83
RNG = np.random.default_rng(23)
Y = RNG.normal(size=N)
X = RNG.normal(size=(N, 3))
#: Summaries of the records that have no axis as long as they are.
SUMMARIES: dict[str, np.ndarray] = {
    "differences": np.diff(Y),
    "sorted, some": np.sort(Y)[::3],
    "quantiles": np.quantile(Y, [0.1, 0.5, 0.8]),
    "cross products": X.T @ X,
    "counts": np.bincount((Y > 0) + 2 * (Y > 1), minlength=4),
    "few counts": np.array([41, 42, 44]),
}
SETTINGS: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.5,
    "accountant": "rdp",
}


def normal(value: Any, mu: Any) -> Any:
    return -0.5 * (value - mu) ** 2


def in_logp(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    mu = pm.Normal("mu")
    pm.CustomDist("y", mu, logp=lambda v, m: normal(v, m) + (m * held).sum(), observed=Y)


def entry_by_entry(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers.ravel())
    mu = pm.Normal("mu")
    entries = [held[k] for k in range(min(8, numbers.size))]
    pm.CustomDist("y", mu, logp=lambda v, m: normal(v, m) + sum(m * e for e in entries), observed=Y)


def in_dist(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    mu = pm.Normal("mu")
    pm.CustomDist(
        "y",
        mu,
        dist=lambda m, size: pm.Normal.dist(m + held.mean() + m * held.sum(), 1, size=size),
        observed=Y,
    )


def in_logcdf(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    latent = pm.CustomDist.dist(
        pm.Normal("mu"), logp=normal, logcdf=lambda v, m, **_: -pt.exp(-((v - m - m * held.sum()) ** 2))
    )
    pm.Censored("y", latent, lower=None, upper=2.0, observed=np.minimum(Y, 2.0))


def in_scan(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers.astype(float).ravel())
    mu = pm.Normal("mu")

    def logp(value: Any, m: Any) -> Any:
        total = pytensor.scan(
            lambda k, c: held[k] * c, sequences=[pt.arange(3)], non_sequences=[m], return_updates=False
        )
        return normal(value, m) + total.sum()

    pm.CustomDist("y", mu, logp=logp, observed=Y)


def in_inner_graph(numbers: np.ndarray) -> None:
    m = pt.dscalar()
    op = OpFromGraph([m], [(m * pt.as_tensor(numbers.astype(float))).sum()])
    mu = pm.Normal("mu")
    pm.CustomDist("y", mu, logp=lambda v, m: normal(v, m) + op(m.sum()), observed=Y)


def in_switches(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers.astype(float).ravel())
    mu = pm.Normal("mu")
    pm.CustomDist("y", mu, logp=lambda v, m: normal(v, m) + pt.switch(held > m, held, m).sum(), observed=Y)


def in_truncation(numbers: np.ndarray) -> None:
    bound = pt.as_tensor(-9 - np.abs(numbers.astype(float))).min()
    pm.Truncated("y", pm.Normal.dist(pm.Normal("mu"), 1), lower=bound, observed=Y)


def in_mixture(numbers: np.ndarray) -> None:
    held = numbers.astype(float).ravel()[:4] + np.array([0.1, 0.0, 0.7, 0.2])[: numbers.size]
    comp = pm.Normal.dist(pm.Normal("mu") + held, 1.0)
    pm.Mixture("y", w=np.full(len(held), 1 / len(held)), comp_dists=comp, observed=Y)


def in_potential(numbers: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=Y)
    pm.Potential("p", -((mu - pt.as_tensor(numbers)) ** 2).sum())


def in_record_potential(numbers: np.ndarray) -> None:
    mu = pm.Normal("mu")
    pm.Potential("p", normal(pt.as_tensor(Y), mu) + (mu * pt.as_tensor(numbers)).sum())


LIKELIHOOD: list[Callable[[np.ndarray], None]] = [
    in_logp,
    entry_by_entry,
    in_dist,
    in_logcdf,
    in_scan,
    in_inner_graph,
    in_switches,
    in_truncation,
    in_mixture,
    in_potential,
    in_record_potential,
]


@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("how", LIKELIHOOD, ids=lambda f: f.__name__)
def test_a_summary_of_the_records_is_refused(how: Callable[[np.ndarray], None], summary: str) -> None:
    with pm.Model() as model:
        how(SUMMARIES[summary])
    with pytest.raises(PrivacyError) as caught:
        build_record_model(model)
    assert not re.search(r"\d\.\d{3}", str(caught.value))


@pytest.mark.parametrize("how", [in_logp, entry_by_entry, in_switches], ids=lambda f: f.__name__)
def test_an_array_of_a_logp_function_is_named_by_its_outcome(how: Callable[[np.ndarray], None]) -> None:
    """No variable of the model has it behind it, and a model may have several outcomes."""
    with pm.Model() as model:
        pm.Normal("other", pm.Normal("nu"), 1, observed=Y)
        how(SUMMARIES["quantiles"])
    with pytest.raises(UnsupportedModelError, match="An unnamed array behind 'y' holds numbers"):
        build_record_model(model)


@pytest.mark.parametrize("how", [in_logp, in_dist, in_inner_graph], ids=lambda f: f.__name__)
def test_the_same_is_accepted_where_it_says_nothing(how: Callable[[np.ndarray], None]) -> None:
    """The refusals above are for the numbers: a grid in the same place passes."""
    with pm.Model() as model:
        how(np.linspace(-1.0, 2.0, 5))
    build_record_model(model)


def test_an_array_that_was_handed_over_and_declared_is_accepted() -> None:
    """The way out that the message names."""
    with pm.Model() as model:
        table = pm.Data("table", SUMMARIES["quantiles"])
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, table.sum(), logp=lambda v, m, t: normal(v, m + t), observed=Y)
    with pytest.raises(UnsupportedModelError, match=r"public_data=\['table'\]"):
        build_record_model(model)
    assert build_record_model(model, public_data=["table"]).public_arrays == ("table (3,)",)


def test_what_pymc_computes_of_constants_is_not_taken_for_data() -> None:
    """A kernel on a fixed grid is evaluated by PyMC, and the outcome looks like any matrix."""
    grid = np.linspace(0.0, 1.0, 5)
    with pm.Model() as model:
        weights = pm.Normal("w", shape=5)
        kernel = pt.exp(-((pt.as_tensor(grid)[:, None] - pt.as_tensor(grid)) ** 2) / 0.02)
        pm.CustomDist(
            "y", pm.math.dot(X[:, :1] * pt.as_tensor(grid), kernel @ weights), logp=normal, observed=Y
        )
        pm.Normal("z", pm.math.dot(X[:, :1] * pt.as_tensor(grid), kernel @ weights), 1, observed=Y)
    DPADVI(model=model, **SETTINGS)  # with its check of the rows


class Shifted(Transform):
    """A transform that holds numbers."""

    name = "shifted"
    ndim_supp = 0

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def forward(self, value: Any, *inputs: Any) -> Any:
        return value - pt.as_tensor(self.numbers).sum()

    def backward(self, value: Any, *inputs: Any) -> Any:
        return value + pt.as_tensor(self.numbers).sum()

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        return pt.zeros_like(value)


def prior_logp(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    pm.CustomDist("b", logp=lambda v: normal(v, held.sum()))


def prior_argument(numbers: np.ndarray) -> None:
    pm.Normal("b", pt.as_tensor(numbers).sum())


def unused_variable(numbers: np.ndarray) -> None:
    pm.Normal("unused", numbers.ravel())
    pm.Normal("b")


def transform(numbers: np.ndarray) -> None:
    pm.Normal("b", transform=Shifted(numbers))


def support_point(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    pm.CustomDist("b", logp=lambda v: normal(v, 0.0), support_point=lambda rv, size: held.sum() * 1.0)


def initial_value(numbers: np.ndarray) -> None:
    pm.Normal("b", initval=pt.as_tensor(numbers).sum())


def initial_array(numbers: np.ndarray) -> None:
    pm.Normal("b", shape=numbers.shape, initval=numbers)


def interval(numbers: np.ndarray) -> None:
    lower = -1.0 - np.abs(numbers)
    inside = pm.distributions.transforms.Interval(
        bounds_fn=lambda *_: (pt.as_tensor(lower), pt.as_tensor(9.0))
    )
    pm.Normal("b", shape=numbers.shape, transform=inside)


PRIOR = [
    prior_argument,
    unused_variable,
    transform,
    support_point,
    initial_value,
    initial_array,
    interval,
]


def with_prior(how: Callable[[np.ndarray], None], numbers: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        how(numbers)
        pm.Normal("y", model["b"].sum(), 1, observed=Y)
    return model


def prior_dist(numbers: np.ndarray) -> None:
    held = pt.as_tensor(numbers)
    pm.CustomDist("b", 1.0, dist=lambda sd, size: pm.Normal.dist(held.sum(), sd, size=size))


def prior_of_operands(numbers: np.ndarray) -> None:
    held = np.resize(numbers, 100)[RNG.permutation(100)] > np.median(numbers)
    pm.CustomDist("b", logp=lambda v: -(v**2) + sum((v if y else -v for y in held), start=pt.zeros(())))


def prior_of_single_numbers(numbers: np.ndarray) -> None:
    held = [float(v) for v in np.resize(numbers, 100) + np.arange(100) ** 1.5]
    pm.CustomDist("b", logp=lambda v: sum((normal(v, y) for y in held), start=pt.zeros(())))


BROUGHT = [prior_logp, prior_dist, prior_of_single_numbers, prior_of_operands]


@pytest.mark.parametrize("how", BROUGHT, ids=lambda f: f.__name__)
def test_what_a_function_brings_into_a_prior_is_refused(how: Callable[[np.ndarray], None]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"prior of 'b' has an array.*argument of pm.CustomDist"):
        build_record_model(with_prior(how, SUMMARIES["cross products"][0]))
    if how in (prior_logp, prior_dist):
        build_record_model(with_prior(how, np.zeros(1)))


def test_what_a_function_is_given_in_a_prior_is_listed() -> None:
    """As an argument, and as a table that was declared public."""
    with pm.Model() as model:
        table = pm.Data("table", np.array([0.3, 1.5, 0.2]))
        pm.CustomDist("a", np.array([0.5, 1.7]), logp=lambda v, m: normal(v, m), shape=2)
        pm.CustomDist("b", logp=lambda v: normal(v, table.sum()))
        pm.Normal("y", model["b"] + model["a"].sum(), 1, observed=Y)
    listed = build_record_model(model, public_data=["table"]).public_arrays
    assert any("(2,)" in name for name in listed) and any("table" in name for name in listed)


@pytest.mark.parametrize("how", PRIOR, ids=lambda f: f.__name__)
def test_arrays_of_the_prior_are_listed(how: Callable[[np.ndarray], None]) -> None:
    record = build_record_model(with_prior(how, SUMMARIES["cross products"][0]))
    assert any("(3,)" in name for name in record.public_arrays), record.public_arrays
    assert not any("(3,)" in name for name in build_record_model(with_prior(how, np.zeros(1))).public_arrays)


@pytest.mark.parametrize("how", [h for h in PRIOR if h not in (unused_variable, initial_array, interval)])
def test_an_array_as_long_as_the_records_is_refused_in_the_prior(how: Callable[[np.ndarray], None]) -> None:
    with pytest.raises(PrivacyError, match="records"):
        build_record_model(with_prior(how, Y))


def test_an_initial_value_for_as_many_groups_as_records_is_accepted() -> None:
    """The variable has a dim of its own, and a number for each of its entries."""
    with pm.Model(coords={"person": range(N), "group": range(N)}) as model:
        effect = pm.Normal("effect", dims="group", initval=Y)
        group = pm.Data("group_of", RNG.integers(0, N, N), dims="person")
        pm.Normal("y", effect[group], 1, observed=Y, dims="person")
    record = build_record_model(model, record_dim="person")
    assert record.public_arrays == (f"initial value of effect ({N},)", f"labels of group ({N},)")


@pytest.mark.parametrize("named", [True, False])
def test_a_shared_array_in_a_closure_is_refused(named: bool) -> None:
    held = pytensor.shared(np.diff(Y), name="held" if named else None)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=lambda v, m: normal(v, m) + (m * held).sum(), observed=Y)
    with pytest.raises(
        UnsupportedModelError, match=r"pm.Data 'held'" if named else r"pm.Data\('name', array\)"
    ):
        build_record_model(model)


def test_many_numbers_in_the_prior_are_listed_and_a_list_of_them_refused() -> None:
    with pm.Model() as model:
        b = [pm.Normal(f"b{k}", float(Y[k]), float(abs(Y[k + 40]))) for k in range(40)]
        pm.Normal("y", b[0], 1, observed=Y)
    assert build_record_model(model).public_arrays == (
        f"more than {MOST_NUMBERS} single numbers in the prior or the start",
    )
    with pm.Model() as model:
        b = [pm.Normal(f"b{k}", 0, 1) for k in range(N)]
        pm.Normal("y", b[0], 1, observed=Y)
    assert build_record_model(model).public_arrays == ()
    with pm.Model() as model:
        start = pt.stack([pytensor.shared(float(v)) for v in Y[:70]])
        pm.Normal("b", 0, 1, shape=70, initval=start)
        pm.Normal("y", model["b"].sum(), 1, observed=Y)
    assert f"more than {MOST_NUMBERS} single numbers" in build_record_model(model).public_arrays[0]
    with pm.Model() as model:
        b = [pm.Normal(f"b{k}", float(v)) for k, v in enumerate(Y)]
        pm.Normal("y", b[0], 1, observed=Y)
    with pytest.raises(UnsupportedModelError, match="in the prior"):
        build_record_model(model)


def test_equal_names_are_listed_with_their_number() -> None:
    with pm.Model() as model:
        for k in range(3):
            pm.Normal(f"b{k}", Y[k : k + 2] + 0.5, 1, shape=2)
        pm.Normal("y", model["b0"].sum(), 1, observed=Y)
    assert all("(2,)" in name for name in build_record_model(model).public_arrays)
    with pm.Model() as model:
        pm.Normal("b", sum(pt.as_tensor(Y[k : k + 2]) for k in range(3)), 1)
        pm.Normal("y", model["b"].sum(), 1, observed=Y)
    assert "constant of b (2,), 3 of them" in build_record_model(model).public_arrays


def test_labels_that_are_released_are_listed() -> None:
    with pm.Model(
        coords={"town": ["Aa", "Y"], "k": range(3), "person": [f"p{i}" for i in range(N)]}
    ) as model:
        a = pm.Normal("a", dims="town") + pm.Normal("c", dims="k").sum()
        pm.Normal("y", a[(X[:, 0] > 0).astype(int)], 1, observed=Y, dims="person")
    assert build_record_model(model).public_arrays == ("labels of k (3,)", "labels of town (2,)")


#: How an array that is not the records' may stand in a likelihood, of which one record's term has none of it.
FALLEN_OUT: dict[str, Callable[[Any, Any], Any]] = {
    "the condition of a check": lambda b, z: Assert("positive")(b, pt.all(z >= 0)),
    "a check in a check": lambda b, z: Assert("low")(Assert("high")(b, pt.all(z < 99)), pt.all(z >= 0)),
    "its last length": lambda b, z: b * pt.as_tensor(z.get_value()[:, None] * [1.0, 2.0]).shape[-1],
}


@pytest.mark.parametrize("how", FALLEN_OUT)
def test_what_falls_out_of_the_likelihood_is_no_record(how: str) -> None:
    """Though it be as long as the records: the release and the report are those for any other number."""
    found = []
    for n in (N - 1, N, N + 1):
        with pm.Model(coords={"place": range(N)}) as model:
            z = pm.Data("z", np.arange(N) * 1.5, dims="place")
            b = pm.Normal("b")
            mu = FALLEN_OUT[how](b, z)
            pm.Deterministic("d", b * pt.arange(N), dims="place")
            table = [v for v in walk([mu]) if is_array(v) and v.type.ndim == 2]
            pm.Deterministic("e", b * table[0].shape[1] if table else b)
            pm.Normal("y", mu, 1.0, observed=np.linspace(-1, 1, n))
        record = build_record_model(model)
        found.append(([v.name for v in record.released], record.record_dims, record.public_arrays))
    assert found[0] == found[1] == found[2]
    assert found[0][0][0] == "d"


def test_an_array_of_which_the_length_alone_is_read_is_no_record() -> None:
    for n, refused in ((N - 1, False), (N, True)):
        with pm.Model() as model:
            b = pm.Normal("b")
            pm.Normal("y", b + pt.as_tensor(np.sqrt(np.arange(N))).shape[0], 1.0, observed=np.arange(n) * 0.1)
        with pytest.raises(NotSeparableError, match="its shape alone") if refused else nullcontext():
            build_record_model(model)


def test_a_condition_that_is_read_elsewhere_too_counts() -> None:
    with pm.Model() as model:
        x = pm.Data("x", X)
        b = pm.Normal("b")
        fine = pt.all(x >= -99, axis=1)
        pm.Normal("y", Assert("low")(b, pt.all(fine)) * fine, 1.0, observed=Y)
    assert model["x"] in build_record_model(model).arrays


def test_index_tables_of_a_likelihood() -> None:
    """Pairs of columns, blocks of items and masks say nothing of the records."""
    with pm.Model() as model:
        x = pm.Data("x", RNG.normal(size=(N, 6)))
        first, second = np.triu_indices(6, 1)
        pairs = pm.Normal("pairs", shape=len(first))
        item = pm.Normal("item", shape=3)
        loading = pm.Normal("loading", shape=(6, 6))
        mu = (x[:, first] * x[:, second]) @ pairs + x @ item[np.arange(6) // 2]
        mu += x @ (loading * np.tri(6, k=-1)) @ np.repeat(np.eye(3), 2, axis=0) @ item
        pm.Normal("y", mu + (x @ np.diff(np.eye(6), axis=0).T).sum(axis=1), 1.0, observed=Y)
    DPADVI(model=model, **SETTINGS)  # with its check of the rows
    with pm.Model() as model:
        x = pm.Data("x", RNG.normal(size=(N, 6)))
        pm.Normal("y", x[:, np.array([0, 3, 2])] @ pm.Normal("b", shape=3), 1.0, observed=Y)
    with pytest.raises(UnsupportedModelError, match="public_data"):
        build_record_model(model)
