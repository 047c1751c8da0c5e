"""The split of a model into one record's log-density and a data-free prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from oracle import latents_of, points
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.replace import graph_replace
from zoo import ZOO

from pymc_dpvi.errors import ArgumentError, NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.record_model import RecordModel, assert_no_record_array
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value

N = 17


def linear() -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model(coords={"person": range(N), "feature": ["a", "b", "c"]}) as model:
        x = pm.Data("x", rng.normal(size=(N, 3)), dims=("person", "feature"))
        y = pm.Data("y_seen", rng.normal(size=N), dims="person")
        centre = pm.Data("centre", np.array([0.1, 0.2, 0.3]), dims="feature")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Potential("ridge", -pt.sum(beta**2))
        pm.Potential("weight", -0.1 * y**2 * sigma)
        mu = pm.Deterministic("mu", (x - centre) @ beta, dims="person")
        pm.Deterministic("size", pt.sum(beta**2))
        pm.Normal("y", mu, sigma, observed=y, dims="person")
    return model


@pytest.fixture(scope="module")
def record() -> RecordModel:
    return build_record_model(linear(), public_data=("centre",))


def function_of(record: RecordModel, graph: Any) -> Callable[..., np.ndarray]:
    """Make a graph of the record model a function of a latent vector and one row."""
    latents, _ = latents_of(record.model)
    flat = pt.vector("z")
    swap = dict(zip(latents.value_vars, latents.split(flat), strict=True))
    (graph,) = graph_replace([graph], swap, strict=False)
    return pm_compile([flat, *record.rows], graph, mode="PYTHON", on_unused_input="ignore")


def at(record: RecordModel, graph: Any, z: np.ndarray, rows: list[np.ndarray] | None = None) -> np.ndarray:
    """Evaluate a graph of the record model at a latent vector, for one row."""
    rows = rows or [array_value(a)[:1] for a in record.arrays]
    return np.asarray(function_of(record, graph)(z, *rows))


def test_facts(record: RecordModel):
    assert record.num_records == N
    assert record.record_dims == {"person"}
    assert {a.name for a in record.arrays} == {"x", "y_seen"}
    assert [r.type.shape for r in record.rows] == [(1, *array_value(a).shape[1:]) for a in record.arrays]
    assert [v.name for v in record.value_vars] == ["beta", "sigma_log__"]
    assert set(record.factors) == {"y", "weight"}
    assert "'y'" in record.unit and "'person'" in record.unit and str(N) not in record.unit


def test_public_arrays_are_listed_without_the_number_of_records(record: RecordModel):
    assert "centre (3,)" in record.public_arrays
    assert not any(name.startswith(("x ", "y_seen")) for name in record.public_arrays)
    assert not any(str(N) in name for name in record.public_arrays)


def test_prior_holds_data_free_potentials_and_jacobians(record: RecordModel):
    beta, log_sigma = np.array([0.3, -1.0, 0.5]), 0.2
    sigma = np.exp(log_sigma)
    expected = -0.5 * np.sum(beta**2) - 1.5 * np.log(2 * np.pi) - np.sum(beta**2)
    expected += 0.5 * np.log(2 / np.pi) - 0.5 * sigma**2 + log_sigma
    assert at(record, record.prior_logp, np.array([*beta, log_sigma])) == pytest.approx(expected, rel=1e-12)


def test_row_logp_is_that_of_the_row_given(record: RecordModel):
    beta, log_sigma = np.array([0.3, -1.0, 0.5]), 0.2
    sigma, x, y = np.exp(log_sigma), np.array([[1.0, 2.0, -1.0]]), np.array([0.7])
    mu = float((x[0] - [0.1, 0.2, 0.3]) @ beta)
    expected = -0.5 * ((0.7 - mu) / sigma) ** 2 - log_sigma - 0.5 * np.log(2 * np.pi) - 0.1 * 0.49 * sigma
    rows = [x if a.name == "x" else y for a in record.arrays]
    got = at(record, record.row_logp, np.array([*beta, log_sigma]), rows)
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["linear", "radon_centered", "several_outcomes", "weighted_custom_dist"])
def test_prior_and_rows_add_up_to_the_model(name: str):
    record = build_record_model(ZOO[name].build())
    _, start = latents_of(record.model)
    latents, _ = latents_of(record.model)
    row_logp = function_of(record, record.row_logp)
    for z in points(start, 2):
        rows = [
            row_logp(z, *[array_value(a)[i : i + 1] for a in record.arrays])
            for i in range(record.num_records)
        ]
        point = {
            v.name: z[s].reshape(shape)
            for v, s, shape in zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
        }
        whole = record.model.compile_logp(mode="PYTHON")(point)
        assert at(record, record.prior_logp, z) + np.sum(rows) == pytest.approx(float(whole), rel=1e-10)


def test_model_is_left_as_it_was():
    model = linear()
    before = set(model.named_vars)
    logp = float(model.compile_logp(mode="PYTHON")(model.initial_point(0)))
    build_record_model(model, public_data=("centre",))
    assert set(model.named_vars) == before
    assert float(model.compile_logp(mode="PYTHON")(model.initial_point(0))) == logp


def test_data_are_held_once_and_survive_set_data():
    model = linear()
    record = build_record_model(model, public_data=("centre",))
    data = record.data()
    for shared, array in zip(data, record.arrays, strict=True):
        assert np.shares_memory(shared.get_value(borrow=True), array_value(array))
    before = [d.get_value() for d in data]
    with model:
        pm.set_data({"y_seen": np.zeros(N)})
    for shared, old in zip(data, before, strict=True):
        np.testing.assert_array_equal(shared.get_value(), old)


def test_may_be_released(record: RecordModel):
    model = record.model
    assert not record.may_be_released(model["mu"])
    assert not record.may_be_released(model["y"])
    assert not record.may_be_released(model["x"].mean())
    assert not record.may_be_released(model["beta"] * pt.as_tensor([1.5, 2.5]))  # whose numbers?
    assert not record.may_be_released(pt.as_tensor(3.0))  # no free variable behind it
    assert not record.may_be_released(model["beta"] * model["x"].shape[0])  # the number of records
    assert record.may_be_released(model["size"])
    assert record.may_be_released(model["beta"] * model["centre"])  # declared public
    assert record.may_be_released(model["beta"] * model["x"].shape[1])  # a number of columns


# What the last assertion must see, planted in a finished record model.


@pytest.mark.parametrize("what", ["a record array", "its sum", "the outcome"])
def test_a_record_array_left_in_the_row_is_found(record: RecordModel, what: str):
    x = next(a for a in record.arrays if a.name == "x")
    y = next(a for a in record.arrays if a.name == "y_seen")
    left = {"a record array": x[:1, 0], "its sum": x.sum(), "the outcome": y[3]}[what]
    planted = dataclasses.replace(record, factors={"y": record.factors["y"] + left})
    with pytest.raises(NotSeparableError, match="y_seen" if what == "the outcome" else "'x'"):
        assert_no_record_array(planted)


def test_an_unknown_array_over_records_is_found(record: RecordModel):
    for shape in ((N,), (2, N), (1, N)):
        hidden = pt.as_tensor(np.full(shape, 31.4159) + np.arange(N))
        planted = dataclasses.replace(record, factors={"y": record.factors["y"] + hidden.sum()})
        with pytest.raises(NotSeparableError, match="axis as long as the number of records") as caught:
            assert_no_record_array(planted)
        assert "31.4" not in str(caught.value)


def test_a_record_array_in_the_prior_is_found(record: RecordModel):
    planted = dataclasses.replace(record, prior_logp=record.prior_logp + record.arrays[0].sum())
    with pytest.raises(UnsupportedModelError, match="prior"):
        assert_no_record_array(planted)


def test_shapes_of_record_arrays_may_stay(record: RecordModel):
    x = next(a for a in record.arrays if a.name == "x")
    assert_no_record_array(
        dataclasses.replace(record, factors={"y": record.factors["y"] * x.shape[1].astype("float64")})
    )


# Arguments


def ambiguous() -> pm.Model:
    rng = np.random.default_rng(1)
    with pm.Model(coords={"person": range(N), "cell": range(N)}) as model:
        table = pm.Data("table", rng.normal(size=N), dims="cell")
        where = pm.Data("where", rng.integers(0, N, N), dims="person")
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * table[where], 1.0, observed=rng.normal(size=N), dims="person")
    return model


@pytest.mark.parametrize("by", ["name", "string", "variable"])
def test_public_data_stay_whole(by: str):
    model = ambiguous()
    public: Any = {"name": ("table",), "string": "table", "variable": [model["table"]]}[by]
    record = build_record_model(model, public_data=public)
    assert model["table"] not in record.arrays
    assert model["where"] in record.arrays
    assert record.public == {model["table"]}
    assert f"table ({N},)" in record.public_arrays  # as it is: a declared shape is public


@pytest.mark.parametrize("dim", ["person", None])
def test_record_dim_may_be_named(dim: str | None):
    assert build_record_model(linear(), record_dim=dim, public_data=("centre",)).record_dims == {"person"}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"record_dim": "persons"},
        {"record_dim": "feature"},
        {"public_data": ("nothing",)},
        {"public_data": ("beta",)},
        {"public_data": (3,)},
    ],
)
def test_bad_arguments(kwargs: dict[str, Any]):
    with pytest.raises(ArgumentError, match=next(iter(kwargs))):
        build_record_model(linear(), **{"public_data": ("centre",), **kwargs})


def test_frozen(record: RecordModel):
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.num_records = 3


#: Terms with a parameter that is written as a vector of one number.
CAPPED: dict[str, Callable[[Any, np.ndarray, Any], Any]] = {
    "censored": lambda a, y, c: pm.Censored(
        "y", pm.Normal.dist(a, 2, shape=len(y)), lower=None, upper=c, observed=y
    ),
    "truncated": lambda a, y, c: pm.Truncated(
        "y", pm.Normal.dist(a, 2, shape=len(y)), lower=None, upper=c, observed=y
    ),
    "truncated_normal": lambda a, y, c: pm.TruncatedNormal("y", a, 2, upper=c, observed=y),
    "own": lambda a, y, c: pm.CustomDist(
        "y", a, c, logp=lambda value, a, c: -pt.minimum(abs(value - a), c), observed=y
    ),
    "spread": lambda a, y, c: pm.Normal("y", a, c, observed=y),
    "trials": lambda a, y, c: pm.Binomial("y", n=c, p=pm.math.sigmoid(a), observed=y.astype(int)),
    "stacked": lambda a, y, c: pm.Censored(
        "y", pm.Normal.dist(a, 2, shape=len(y)), lower=None, upper=pt.stack([c[0], a])[:1], observed=y
    ),
}


@pytest.mark.parametrize("name", CAPPED)
def test_a_number_of_the_model_is_no_number_of_records(name: str) -> None:
    """It was taken for a length where it was equal to N, and the fit was that of another model."""
    found = []
    for n in (11, 12, 13):
        y = np.random.default_rng(0).uniform(0, 11.9, 13)[:n]
        with pm.Model() as model:
            a = pm.Normal("a", 0, 1)
            CAPPED[name](a, y, np.array([12]) if name == "trials" else np.array([12.0]))
        record = build_record_model(model)
        rows = [np.array([11.5]).astype(row.type.dtype) for row in record.rows]
        found.append([at(record, record.factors["y"], np.array([z]), rows) for z in (0.3, 9.0, 14.0)])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_a_bound_may_be_infinite() -> None:
    y = np.random.default_rng(0).normal(size=12)
    with pm.Model() as model:
        CAPPED["censored"](pm.Normal("a", 0, 1), y, np.array([np.inf]))
    record = build_record_model(model)
    assert np.isfinite(at(record, record.factors["y"], np.zeros(1)))


def penalised(n: int, *, dims: str | None = None, declared: bool = False) -> RecordModel:
    """A penalty with a row for each of 12 pairs of coefficients, beside n records."""
    differences = np.diff(np.eye(14), n=2, axis=0)
    with pm.Model(coords={"person": range(n)}) as model:
        b = pm.Normal("b", 0, 1, shape=14)
        matrix = pm.Data("D", differences) if declared or dims else differences
        pm.Potential("smooth", -0.5 * ((matrix @ b) / 0.05) ** 2, dims=dims)
        pm.Normal("y", b[0], 1, observed=np.random.default_rng(0).normal(size=n), dims="person")
    return build_record_model(model, public_data=["D"] if declared else [])


def test_a_length_makes_no_record_of_a_penalty() -> None:
    """For as many records it was clipped and noised, for others it was a part of the prior."""
    assert list(penalised(11).factors) == list(penalised(13).factors) == ["y"]
    with pytest.raises(UnsupportedModelError, match=r"'smooth' is a Potential with arrays.*public_data=\["):
        penalised(12)
    assert list(penalised(12, declared=True).factors) == ["y"]
    assert sorted(penalised(12, dims="person").factors) == ["smooth", "y"]


def test_what_is_listed_turns_on_no_number_of_records() -> None:
    listed = []
    for n in (12, 13):
        scale = pt.constant(np.array([12, 3]))
        with pm.Model() as model:
            a = pm.Normal("a", 0, 1.0 / scale[0])
            pm.Normal("y", a, 1, observed=np.random.default_rng(0).normal(size=(n, 3)))
        listed.append(build_record_model(model).public_arrays)
    assert listed == [("constant of a (2,)",)] * 2


def choice(x: Any, beta: Any, chosen: Any) -> Any:
    return pm.logp(pm.Categorical.dist(logit_p=x @ beta), chosen)


def taken_along(x: Any, beta: Any, chosen: Any) -> Any:
    return pt.take_along_axis(pt.special.log_softmax(x @ beta, axis=-1), chosen[:, None], axis=1)[:, 0]


def split_columns(x: Any, beta: Any, chosen: Any) -> Any:
    first, rest = pt.split(x, [1, 2], axis=1, n_splits=2)
    return pm.logp(pm.Normal.dist((rest @ beta[:2]).sum(axis=1), 1.0), first[:, 0])


def positive(x: Any, beta: Any, chosen: Any) -> Any:
    return x[pt.nonzero(chosen)[0], 0] * beta[0, 0]


def of_potential(form: Callable[..., Any]) -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x, chosen = pm.Data("x", rng.normal(size=(N, 3))), pm.Data("chosen", rng.integers(0, 4, N))
        pm.Potential("term", form(x, pm.Normal("beta", 0, 1, shape=(3, 4)), chosen))
    return model


@pytest.mark.parametrize("form", [choice, taken_along, split_columns])
def test_a_constant_that_says_how_arrays_lie_is_no_data(form: Callable[..., Any]) -> None:
    """The length of the Potential was said to turn on values: those of a shape, or the counts of a split."""
    model = of_potential(form)
    record = build_record_model(model)
    z = np.random.default_rng(1).normal(size=12)
    term = function_of(record, record.factors["term"])
    rows = [[array_value(a)[i : i + 1] for a in record.arrays] for i in range(N)]
    (value,) = model.value_vars
    (together,) = model.replace_rvs_by_values(model.potentials)
    expected = pm_compile([value], together, mode="PYTHON")(z.reshape(3, 4))
    np.testing.assert_allclose([np.sum(term(z, *row)) for row in rows], expected)


def test_a_length_that_values_decide_is_refused() -> None:
    with pytest.raises(NotSeparableError, match="The length of 'term' depends on values"):
        build_record_model(of_potential(positive))
