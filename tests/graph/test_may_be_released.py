"""What a release has of a model: nothing that a length, an entry or a record could decide about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI, NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.posterior.approximation import DPMeanField

N = 83
RNG = np.random.default_rng(23)
Y = RNG.normal(size=N)
X = RNG.normal(size=(N, 3))
SETTINGS: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.5,
    "accountant": "rdp",
}


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


def test_it_is_said_why_a_deterministic_is_withheld() -> None:
    """By what stands in its formula, and by no entry of it."""
    said = []
    for y in (Y, Y[::-1] * 2.0, Y[:-1], Y[: len(Y) // 2]):  # an array below is as long as one of them
        with pm.Model(coords={"row": range(len(y))}) as model:
            b = pm.Normal("b", shape=2)
            x = pm.Data("x", y)
            census, more = pm.Data("census", y[:2]), pm.Data("more", y[2:4])
            pm.Deterministic("as long", b[0] * pm.Data("table", np.ones(len(Y) - 1)))
            pm.Deterministic("of rows", b[0] * x)
            pm.Deterministic("over rows", b[0] + pt.zeros(len(y)), dims="row")
            pm.Deterministic("of tables", b * census / more)
            pm.Deterministic("fine", b * 2)
            pm.Deterministic("written", b * y[:2])
            pm.Deterministic("of nothing", pt.as_tensor(float(y[0])))
            pm.Deterministic("long", sum(b[0] ** k for k in range(80)))
            pm.Normal("y", b[0] + x, 1.0, observed=y, dims="row")
        said.append(DPMeanField(build_record_model(model), random_seed=1).withheld)
    assert all(one == said[0] for one in said)
    why = {name: reason.partition(":")[0] for name, reason in said[0].items()}
    assert why == {
        "of rows": "it depends on the records",
        "over rows": "it has a dim of the records",
        "as long": "it depends on data that nobody declared",
        "of tables": "it depends on data that nobody declared",
        "written": "an array is written into its formula, or a list of positions",
        "of nothing": "it depends on no free variable",
        "long": "more than 64 constants, operands or operations in a row are in its formula",
    }
    assert said[0]["of tables"].endswith("public_data=['census', 'more']")


def test_all_deterministics_together_may_be_too_long() -> None:
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        for k in range(40):
            pm.Deterministic(f"d{k}", b[0] * k + k)
        pm.Normal("y", b[0], 1.0, observed=Y)
    withheld = DPMeanField(build_record_model(model), random_seed=1).withheld
    assert len(withheld) == 40 and all("together" in reason for reason in withheld.values())


@pytest.mark.turns
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
    assert tuple(approx.withheld) == ("chosen", "packed", "of both")
    for name in ("chol_corr", "chol_stds", "reshaped"):
        (flat,) = model.replace_rvs_by_values([model[name]])
        one = approx.symbolic_single_sample(flat)
        assert np.isfinite(approx.set_size_and_deterministic(one, 1, 1).eval()).all()
        assert len(approx.sample_node(model[name], size=2).eval()) == 2
    for name in approx.withheld:
        (flat,) = model.replace_rvs_by_values([model[name]])
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            approx.symbolic_single_sample(flat)


def test_a_curve_over_declared_points_is_released() -> None:
    """PyMC's covariance functions take columns by a list of positions."""
    for declared in (["points"], []):
        with pm.Model() as model:
            points = pm.Data("points", np.linspace(0, 1, 5)[:, None])
            covariance = pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 2, 1))
            curve = pm.gp.Latent(cov_func=covariance).prior("curve", X=points)
            pm.Normal("y", curve[0], 1.0, observed=Y)
        if declared:
            assert model["curve"] in build_record_model(model, public_data=declared).released
        else:
            with pytest.raises(UnsupportedModelError, match=r"public_data=\['points'\]"):
                build_record_model(model)


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


@pytest.mark.turns
@pytest.mark.parametrize("what", ["count", "length", "sign", "tuple"])
def test_numbers_of_draws_are_no_expressions_of_records(what: str) -> None:
    """Known: `size=(x > 0).sum()` gave as many draws as there were such records."""
    with pm.Model() as model:
        x = pm.Data("x", X[:, 0])
        b = pm.Normal("b")
        pm.Normal("y", b * x, 1, observed=Y)
    approx = DPMeanField(build_record_model(model), random_seed=1)
    size: Any = {"count": (x > 0).sum(), "length": x.shape[0], "sign": 3, "tuple": (2, x.shape[0])}[what]
    drawn: Any = (x[5] > 0) if what == "sign" else 0
    (flat,) = model.replace_rvs_by_values([b])
    checked = approx.to_flat_input(flat)
    for ask in (
        lambda: approx.sample_node(b, size=size, deterministic=drawn),
        lambda: approx.set_size_and_deterministic(checked, size, drawn),
        lambda: approx.make_size_and_deterministic_replacements(size, drawn),
    ):
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            ask()
    assert len(approx.sample_node(b, size=4).eval()) == 4


def test_a_dim_that_no_array_carries_counts_as_that_of_the_records() -> None:
    """Known: its length, and that of the records, was released without being listed."""
    with pm.Model(
        coords={"obs": range(len(Y)), "level": ["a", "b"], "lag": range(3), "row": range(len(Y))}
    ) as model:
        b = pm.Normal("b", dims="level")
        pm.Deterministic("each", pt.full((model.dim_lengths["obs"],), b[0]), dims="obs")
        pm.Deterministic("share", b[0] / model.dim_lengths["obs"])
        pm.Deterministic("twice", 2 * b, dims="level")
        # The columns of the records are part of the schema.
        pm.Deterministic("over_lags", b[0] / model.dim_lengths["lag"])
        pm.Normal("y", b[0] * X[:, 0], 1, observed=Y)
        pm.Normal("panel", b[1], 1, observed=X[:, :3], dims=("row", "lag"))
    approx = DPMeanField(build_record_model(model), random_seed=1)
    assert tuple(approx.withheld) == ("each", "share")
