"""What enters a fit beside the records' rows: refused or listed, on every graph that is evaluated.

Each way to carry numbers of the records past the rows is tried in the likelihood, in the prior and in what
is released. In the likelihood it is refused; what a user wrote into a prior counts as public, and the
report lists it.
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

from pymc_dpvi import DPADVI, NotSeparableError, PrivacyError, PrivacyWarning, UnsupportedModelError
from pymc_dpvi.graph.formula_packages import formula_mark
from pymc_dpvi.graph.records import RecordModel, build_record_model
from pymc_dpvi.graph.single_numbers import holds_table, shape_vectors, written_shapes
from pymc_dpvi.graph.traversal import array_value, is_array, walk
from pymc_dpvi.graph.written_loops import MOST_NUMBERS
from pymc_dpvi.posterior.approximation import DPMeanField

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


# -------------------------------------------------------------------------------- arrays in the likelihood


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


# -------------------------------------------------------------------------------- very many single numbers


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


def test_lengths_are_told_from_counts() -> None:
    x = pt.tensor("x", shape=(4, 3, 2))
    shape, counts, part = (pt.constant(np.array(v)) for v in ([12, 2], [5, 9], [3, 2]))
    graphs = [x.reshape(shape), x.sum() * counts[0] + counts[1], x.sum() * part[0] + part[1]]
    found = [find(walk(graphs)) for find in (shape_vectors, written_shapes)]
    assert [{tuple(array_value(v)) for v in one} for one in found] == [{(12, 2)}, {(12, 2), (3, 2)}]


# -------------------------------------------------------------------------------- priors, starts, transforms


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
    assert record.public_arrays == (f"initial value of effect ({N},)",)


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


@pytest.mark.parametrize("entry", [0.0, 1.0])
def test_no_entry_of_a_record_array_makes_a_basis(entry: float) -> None:
    """All zeros are whole numbers of half turns, as the frequencies of an HSGP are."""
    weight = np.zeros(N)
    weight[3] = entry
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        turns = pt.sqrt(pt.sqr(pt.as_tensor(weight) / (2 * 6.0)))
        pm.Normal("y", b * pt.sin(turns * (pt.as_tensor(X[:, 0]) - 0.5)), 1, observed=Y)
    build_record_model(model)


def test_shared_numbers_are_many_wherever_they_stand_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [pytensor.shared(float(v)) for v in Y[:70]]
    address = {v: 1000 + 64 * k for k, v in enumerate(numbers)}  # as they are if nothing else was made
    monkeypatch.setattr("pymc_dpvi.graph.single_numbers.id", lambda v: address.get(v, id(v)), raising=False)
    assert holds_table(walk([pt.stack(numbers)], into_size=True))
    assert not holds_table(walk([pt.stack(numbers[:40])], into_size=True))


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
    assert build_record_model(model).public_arrays == ("labels of town (2,)",)


# -------------------------------------------------------------------------------- what is released


def released(n: int, make: Callable[[Any, Any], Any], **kwargs: Any) -> tuple[bool, RecordModel]:
    with pm.Model(coords={"place": range(50), "person": [f"p{i}" for i in range(n)]}) as model:
        b = pm.Normal("b")
        grid = pm.Data("grid", np.linspace(0, 1, 50), dims="place")
        pm.Deterministic("d", make(b, grid), **kwargs)
        pm.Normal("y", b + pt.as_tensor(Y[:n]), 1.0, observed=Y[:n])
    record = build_record_model(model, public_data=["grid"])
    return record.may_be_released(model["d"]), record


CURVES: dict[str, tuple[Callable[[Any, Any], Any], dict[str, Any], bool]] = {
    "a public grid": (lambda b, g: b * g, {"dims": "place"}, True),
    "its length alone": (lambda b, g: b * pt.ones(g.shape[0]), {}, True),
    "a public grid, no dims": (lambda b, g: b * g, {}, True),
    "a length as a number": (lambda b, g: b * pt.ones(50), {}, True),
    "a count": (lambda b, g: b * pt.arange(50), {}, True),
    "a constant of zeros": (lambda b, g: b * pt.as_tensor(np.zeros(50)), {}, False),
    "a constant of counts": (lambda b, g: b * pt.as_tensor(np.arange(50)), {}, False),
    "a constant grid": (lambda b, g: b * pt.as_tensor(np.linspace(0, 2, 50)), {}, False),
    "summed": (lambda b, g: (b + pt.as_tensor(np.zeros(50))).sum(), {}, False),
    "a table of numbers": (
        lambda b, g: pt.stack([b * float(v) for v in np.sqrt(np.arange(80.0))]),
        {},
        False,
    ),
}


@pytest.mark.parametrize("curve", CURVES)
def test_a_release_does_not_tell_whether_a_length_is_the_number_of_records(curve: str) -> None:
    make, kwargs, expected = CURVES[curve]
    found = [released(n, make, **kwargs) for n in (49, 50, 51)]
    assert [may for may, _ in found] == [expected] * 3
    assert len({record.public_arrays for _, record in found}) == 1


def one_a_record(how: str, times: int = N) -> tuple[str, ...]:
    """Names of what is released of a model with a Deterministic, or a part of one, for each record."""
    groups = np.abs(9 * Y).astype(int) % 4
    with pm.Model() as model:
        b = pm.Normal("b", shape=4)
        if how == "stacked":
            pm.Deterministic("d", pt.stack([b[int(g)] for g in groups]))
        if how == "rare":
            pm.Deterministic("d", pt.stack([b[0] * float(y > 1.9) for y in Y]))
        if how == "none":
            pm.Deterministic("d", pt.stack([b[0] * float(y > 99) for y in Y]))
        for k, (y, g) in enumerate(zip(Y[:times], groups[:times], strict=True)):
            if how == "a position each":
                pm.Deterministic(f"d{k}", b[int(g)])
            if how == "a number each":
                pm.Deterministic(f"d{k}", b[0] - y)
            if how == "the same":
                pm.Deterministic(f"d{k}", b[0] + b[3])
            if how == "in turn":
                pm.Deterministic(f"d{k}", b[k % 4])
        pm.Normal("y", b[0], 1.0, observed=Y)
    return tuple(v.name for v in build_record_model(model).released)


def test_a_deterministic_for_each_record_tells_nothing_of_it() -> None:
    """Neither by its numbers, nor by positions, one by one or in a list; nor by what is withheld."""
    for how in ("stacked", "a position each", "a number each", "rare", "none", "the same", "in turn"):
        assert one_a_record(how) == ()
    for how in ("the same", "in turn", "a number each"):
        assert len(one_a_record(how, 30)) == 30


def test_a_length_of_an_array_that_is_not_the_records_counts_like_the_array() -> None:
    """It may be their number: records in the columns of an array that is not in the likelihood."""
    for n in (N - 1, N):
        with pm.Model() as model:
            across = pm.Data("across", X[:n].T)
            x = pm.Data("x", X[:n])
            mu = pm.Normal("mu", 0, 1 / pt.sqrt(x.shape[1]))
            pm.Deterministic("d", mu * across.shape[1])
            pm.Deterministic("e", mu * x.shape[1])
            pm.Normal("y", mu * x[:, 0], 1, observed=Y[:n])
        assert [v.name for v in build_record_model(model).released] == ["e"]
        with model:
            pm.Normal("b", 0, 1 / pt.sqrt(across.shape[1]))
        with pytest.raises((UnsupportedModelError, NotSeparableError), match="across"):
            build_record_model(model)


@pytest.mark.usefixtures("without_compiling")
def test_labels_of_a_dim_that_no_parameter_has_stay_back() -> None:
    """They may be names of the records, whether or not they are as many."""
    for n in (N - 1, N, N + 1):
        coords = {"person": [f"p{i}" for i in range(n)], "place": ["a", "b"]}
        with pm.Model(coords=coords) as model:
            b = pm.Normal("b", dims="place")
            pm.Normal("y", b[0] + pt.as_tensor(Y), 1.0, observed=Y)
            pm.Deterministic("named", pt.full((n,), b[0]), dims="person")
            pm.Deterministic("of places", 2 * b, dims="place")
        method = DPADVI(model=model, **SETTINGS)
        posterior = method.fit(2, progressbar=False).sample(3)["posterior"]
        assert list(posterior["of places"]["place"].values) == ["a", "b"]
        assert posterior["named"].shape == (1, 3, n)
        assert not any("p1" in str(c.values) for c in posterior.coords.values())


#: How counts may stand in a Deterministic, the counts that are tried, and whether it is released.
COUNTS: dict[str, tuple[Callable[[Any, Any], Any], list[list[int]], bool]] = {
    "entry by entry": (lambda b, c: b.sum() * c[0] + c[1], [[4, 3], [3, 4], [5, 2], [0, 1], [2, 2]], False),
    "whole": (lambda b, c: b.sum() * c, [[4, 3], [5, 2], [0, 1], [1, 1]], False),
    "as positions": (lambda b, c: b[0][c], [[0, 1], [1, 0], [2, 2]], False),
    "as a shape": (lambda b, c: b.reshape(c), [[4, 3], [3, 4], [12, 1]], True),
    "as a shape and a factor": (lambda b, c: b.reshape(c) * c[0], [[4, 3], [3, 4], [12, 1]], False),
    "as places in a matrix": (
        lambda b, c: pt.set_subtensor(pt.zeros((2, 2))[c, np.array([0, 0, 1])], b[0]),
        [[0, 1, 1], [0, 1, 0], [1, 1, 0]],
        False,
    ),
}


@pytest.mark.parametrize("use", COUNTS)
def test_what_is_withheld_turns_on_no_entry_of_a_constant(use: str) -> None:
    """Neither if it equals a length of the model, nor if it looks like an index table."""
    make, tried, expected = COUNTS[use]
    for counts in tried:
        with pm.Model() as model:
            b = pm.Normal("b", shape=(4, 3))
            pm.Deterministic("d", make(b, pt.constant(np.array(counts))))
            pm.Normal("y", b[0, 0], 1.0, observed=Y)
        record = build_record_model(model)
        assert record.may_be_released(model["d"]) is expected
        assert record.public_arrays == ()


def test_pymc_s_own_index_tables_are_released() -> None:
    with pm.Model() as model:
        chol, _corr, _stds = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", np.zeros(3), chol=chol, observed=X)
        pm.Deterministic("reshaped", chol.reshape((1, 9)))
        rows, columns = np.array([0, 1, 1]), np.array([0, 0, 1])
        pm.Deterministic("chosen", chol[rows, columns])
        # A vector of another variable may be written to the pairs that occur among the records.
        pm.Deterministic("packed", pm.math.expand_packed_triangular(2, pm.Normal("free", shape=3)))
        pm.Deterministic("of both", pm.math.expand_packed_triangular(3, model["chol"] + pt.as_tensor(Y[:6])))
    record = build_record_model(model)
    approx = DPMeanField(record, random_seed=1)
    # Read by a table, which may be anybody's; or written by one, and not of an LKJ variable alone.
    assert approx.withheld == ("chosen", "packed", "of both")
    for name in ("chol_corr", "chol_stds", "reshaped"):
        (flat,) = model.replace_rvs_by_values([model[name]])
        one = approx.symbolic_single_sample(flat)
        assert np.isfinite(approx.set_size_and_deterministic(one, 1, 1).eval()).all()
        assert len(approx.sample_node(model[name], size=2).eval()) == 2
    for name in approx.withheld:
        (flat,) = model.replace_rvs_by_values([model[name]])
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            approx.symbolic_single_sample(flat)


#: Arrays that the records make one entry long, or longer, and how a Deterministic may read them.
LEFT: dict[str, tuple[list[list[float]], Callable[[Any, np.ndarray], Any]]] = {
    "outliers": (
        [[1, 2, 3, 9], [1, 2, 9, 9], [1, 2, 3, 4]],
        lambda b, y: b[0] + pt.as_tensor(y[y > 5]).sum(),
    ),
    "outliers in pm.Data": (
        [[1, 2, 3, 9], [1, 2, 9, 9], [1, 2, 3, 4]],
        lambda b, y: b[0] + pm.Data("outliers", y[y > 5]).sum(),
    ),
    "groups that occur": ([[1, 1, 1], [1, 1, 2]], lambda b, y: b[np.unique(y.astype(int))].mean()),
    "steps": ([[1, 2], [1, 2, 3]], lambda b, y: b[0] * pt.as_tensor(np.diff(y)).sum()),
}


@pytest.mark.parametrize("case", LEFT)
def test_an_array_of_one_entry_is_an_array(case: str) -> None:
    """How long it is may turn on a record: neither a release nor an expression tells one entry from two."""
    datasets, read = LEFT[case]
    for data in datasets:
        y = np.array(data, dtype=float)
        with pm.Model() as model:
            b = pm.Normal("b", shape=5)
            pm.Deterministic("d", read(b, y))
            pm.Deterministic("number", b[0] * float(y[0]))
            pm.Normal("y", b[0], 1.0, observed=y)
        record = build_record_model(model)
        assert [v.name for v in record.released] == ["number"]
        assert record.public_arrays == ()
        approx = DPMeanField(record, random_seed=1)
        (flat,) = model.replace_rvs_by_values([model["d"]])
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            approx.symbolic_single_sample(flat)


def test_a_number_before_a_vector_is_a_number() -> None:
    """As people write it; read in any other way too, it is an array."""
    with pm.Model() as model:
        b = pm.Normal("b", shape=4)
        first = pt.constant(np.array([0.0]))
        pm.Deterministic("cutpoints", pt.concatenate([[0.0], pt.cumsum(pt.exp(b))]))
        pm.Deterministic("weights", b * pt.concatenate([[1], pt.cumprod(1 - b)[:-1]]))
        pm.Deterministic("two", pt.concatenate([[0.0, 0.0], b]))
        pm.Deterministic("shared", pt.concatenate([pm.Data("left", [0.0]), b]))
        pm.Deterministic("added", pt.concatenate([first, b]) + first)
        pm.Normal("y", b[0], 1.0, observed=Y)
    assert [v.name for v in build_record_model(model).released] == ["cutpoints", "weights"]


def test_a_shared_array_of_one_entry_has_to_be_declared() -> None:
    for outliers in ([], [2.0], [2.0, 2.0]):
        with pm.Model() as model:
            b = pm.Normal("b")
            pm.Normal("y", b + pm.Data("outliers", np.array(outliers)).sum(), 1.0, observed=Y)
        with pytest.raises(UnsupportedModelError, match="'outliers' enters the likelihood"):
            build_record_model(model)
        assert build_record_model(model, public_data=["outliers"]).public_arrays == (
            f"outliers ({len(outliers)},)",
        )


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


def test_what_follows_from_an_lkj_variable_is_not_unpacked() -> None:
    """Twice its entries may be written where records say, to their pairs: no table passes."""
    for rows, columns in (([0, 1, 1], [0, 0, 1]), ([0, 0, 1], [0, 1, 1])):
        with pm.Model() as model:
            packed = pm.LKJCholeskyCov(
                "packed", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=False
            )
            places = pt.zeros((2, 2))[np.array(rows), np.array(columns)]
            pm.Deterministic("d", pt.set_subtensor(places, 2.0 * packed))
            pm.Deterministic("own", pm.math.expand_packed_triangular(2, packed))
            pm.Normal("y", packed.sum(), 1.0, observed=Y)
        assert [v.name for v in build_record_model(model).released] == ["own"]


# -------------------------------------------------------------------------------- Gaussian processes


def hsgp(
    *,
    centre: Any = None,
    boundary: Any = None,
    periodic: bool = False,
    extreme: float = 10.0,
    columns: int = 1,
    numpy: bool = False,
    prior: bool = False,
) -> pm.Model:
    x = np.linspace(0.0, 10.0, N)
    x[-1] = extreme
    x = np.stack([x] * columns, axis=1)
    with pm.Model() as model:
        inputs = x if numpy else pm.Data("inputs", x)
        if periodic:
            cov = pm.gp.cov.Periodic(1, period=3.0, ls=pm.Exponential("ls", 1))
            gp: Any = pm.gp.HSGPPeriodic(m=4, scale=1.0, cov_func=cov)
        else:
            cov = pm.gp.cov.ExpQuad(columns, ls=pm.Exponential("ls", 1))
            gp = pm.gp.HSGP(m=[5] * columns, c=1.5, cov_func=cov)
        if centre is not None:
            gp._X_center = pm.Data("center", np.full(columns, 5.0)) if centre == "declared" else centre
        if boundary is not None:
            gp.L = pm.Data("boundary", np.full(columns, 7.0)) if boundary == "declared" else boundary
        if prior:
            f = gp.prior("f", X=inputs)
        elif periodic:
            (cosines, sines), psd = gp.prior_linearized(X=inputs)
            f = cosines @ (pm.Normal("a", shape=4) * psd) + sines @ pm.Normal("b", shape=4)
        else:
            phi, psd = gp.prior_linearized(X=inputs)
            f = phi @ (pm.Normal("a", shape=5**columns) * psd)
        pm.Normal("y", f, 1.0, observed=Y)
    return model


BAD_HSGP: dict[str, tuple[dict[str, Any], str]] = {
    "as published": ({}, "HSGP, whose centre and boundary"),
    "prior": ({"prior": True}, "HSGP, whose centre and boundary"),
    "centre of numpy": ({"centre": np.array([5.0]), "boundary": "declared"}, "HSGP, whose centre"),
    "boundary of numpy": ({"centre": "declared", "boundary": np.array([6.0])}, "HSGP, whose boundary"),
    "inputs of numpy": ({"numpy": True, "boundary": "declared"}, "HSGP, whose centre"),
    "two columns": ({"columns": 2, "boundary": "declared"}, "HSGP, whose centre"),
    "periodic": ({"periodic": True}, "HSGPPeriodic, whose centre"),
    "periodic prior": ({"periodic": True, "prior": True}, "HSGPPeriodic, whose centre"),
    "periodic, numpy": ({"periodic": True, "numpy": True}, "HSGPPeriodic, whose centre"),
}


@pytest.mark.parametrize("case", BAD_HSGP)
def test_a_basis_that_the_records_place_is_refused(case: str) -> None:
    kwargs, text = BAD_HSGP[case]
    model = hsgp(**kwargs)
    public = [d.name for d in model.data_vars if d.name != "inputs"]
    with pytest.raises(
        UnsupportedModelError, match=f"'y' is built on pm.gp.{text}.*gp._X_center = pm.Data"
    ) as error:
        build_record_model(model, public_data=public)
    assert ("gp.L = " in str(error.value)) is not bool(kwargs.get("periodic"))


@pytest.mark.parametrize("kwargs", [{}, {"prior": True}, {"columns": 2}, {"periodic": True}, {"numpy": True}])
def test_a_basis_in_a_public_place_is_accepted(kwargs: dict[str, Any]) -> None:
    """And is the same whatever the records are, which the one that PyMC places is not."""
    declared: dict[str, Any] = {
        "centre": "declared",
        **({} if "periodic" in kwargs else {"boundary": "declared"}),
    }

    def logp(extreme: float) -> float:
        model = hsgp(extreme=extreme, **declared, **kwargs)
        public = ["center", *(["boundary"] if "boundary" in declared else [])]
        record = DPADVI(model=model, public_data=public, **SETTINGS)._record  # with its check of the rows
        assert "center" in " ".join(record.public_arrays)
        inputs = [*record.rows, *record.value_vars]
        value = pytensor.function(inputs, record.row_logp, mode="PYTHON")
        rows = [np.full(row.type.shape, 3.0, dtype=row.dtype) for row in record.rows]
        shapes = [model.initial_point(0)[v.name].shape for v in record.value_vars]
        return float(value(*rows, *[np.ones(s) for s in shapes]))

    assert logp(10.0) == logp(50.0)


def test_pymc_places_the_basis_by_the_records() -> None:
    """So that the refusals are about something."""
    ends = []
    for extreme in (10.0, 50.0):
        model = hsgp(extreme=extreme)
        constants = [array_value(v) for v in walk([model["y"]]) if getattr(v, "data", None) is not None]
        ends.append(
            sorted(float(c.ravel()[0]) for c in constants if np.shape(c) == (1,) and c.dtype == float)
        )
    assert ends[0] != ends[1]


def test_a_basis_on_a_public_grid_is_accepted() -> None:
    """Records look it up; where it lies is known to everybody."""
    with pm.Model() as model:
        gp = pm.gp.HSGP(m=[5], L=[2.0], cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Exponential("ls", 1)))
        phi, psd = gp.prior_linearized(X=np.linspace(-1, 1, 21)[:, None])
        f = phi @ (pm.Normal("a", shape=5) * psd)
        pm.Normal("y", f[pm.Data("at", RNG.integers(0, 21, N))], 1.0, observed=Y)
    build_record_model(model)


# -------------------------------------------------------------------------------- index tables


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


# -------------------------------------------------------------------------------- formula packages


def formula_model(name: str = "b", dim: str = "g", obs: str | None = None) -> pm.Model:
    with pm.Model(coords={dim: range(2), **({obs: range(N)} if obs else {})}) as model:
        b = pm.Normal(name, dims=dim)
        pm.Normal("y", b.sum(), 1, observed=Y, dims=obs)
    return model


@pytest.mark.parametrize(
    ("kwargs", "mark"),
    [
        ({"name": "Intercept"}, "Intercept"),
        ({"name": "1|county"}, "1|county"),
        ({"dim": "county__factor_dim"}, "county__factor_dim"),
        ({"obs": "__obs__"}, "__obs__"),
        ({"name": "intercept", "dim": "factor_dim"}, None),
        ({"name": "x_sigma", "obs": "obs"}, None),
    ],
)
def test_marks_of_a_formula_package(kwargs: dict[str, Any], mark: str | None) -> None:
    assert formula_mark(formula_model(**kwargs)) == mark


@pytest.mark.usefixtures("without_compiling")
def test_a_formula_package_is_warned_of_whatever_the_records_are() -> None:
    said = []
    for y in (Y, Y * 0, Y + 1e6):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("Intercept"), 1, observed=y)
        with pytest.warns(PrivacyWarning, match=r"center_predictors=False, auto_scale=False") as caught:
            DPADVI(model=model, **SETTINGS).fit(1, progressbar=False)
        said.append([str(w.message) for w in caught])
    assert said[0] == said[1] == said[2] and len(said[0]) == 1
