"""Several tables of the same people: what ``unit={...}`` takes, what it refuses, and what a fit reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import ArgumentError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import aligned_gradients, local_terms
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import array_value

RNG = np.random.default_rng(3)
P = 12
CAME, ANSWERED = RNG.integers(0, P, size=30), RNG.permutation(P)[:9]
COST, DOSE, SMOKES = RNG.gamma(2.0, 1.0, size=30), RNG.normal(size=30), RNG.integers(0, 2, size=9)
UNIT: dict[str, Any] = {"cost": "came", "smokes": "answered"}
OPTIONS: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-6, "sampling_prob": 0.5, "random_seed": 1}


def two(more: Callable[[], None] = lambda: None, local: bool = True, came: Any = CAME) -> pm.Model:
    """Visits that cost something, and answers to a questionnaire; they share a value of the person."""
    coords = {
        "who": range(P),
        "visit": [f"v{i}" for i in range(len(came))],
        "answer": [f"a{i}" for i in ANSWERED],
    }
    with pm.Model(coords=coords) as model:
        visits, answers = pm.Data("came", came), pm.Data("answered", ANSWERED)
        base, slope, share = pm.Normal("base"), pm.Normal("slope"), pm.Normal("share")
        of_visit, of_answer = 0.0, 0.0
        if local:
            u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who")
            of_visit, of_answer = u[visits], u[answers]
        mean = pm.Deterministic(
            "mean", base + slope * pm.Data("dose", DOSE[: len(came)]) + of_visit, dims="visit"
        )
        cost = pm.Data("costs", COST[: len(came)])
        pm.Gamma("cost", 2.0, pm.math.exp(-mean), observed=cost, dims="visit")
        pm.Bernoulli("smokes", logit_p=share + of_answer * pt.ones(len(ANSWERED)), observed=SMOKES)
        more()
    return model


def taken(model: pm.Model, unit: Any = UNIT, **more: Any) -> RecordModel:
    return build_record_model(model, unit=unit, **more)


def rows_by_person(record: RecordModel) -> list[list[int]]:
    units = record.units
    assert units is not None
    found = (units.rows[a:b].tolist() for a, b in zip(units.starts[:-1], units.starts[1:], strict=True))
    return sorted(found)


WAYS: dict[str, dict[str, Any]] = {
    "names of pm.Data": UNIT,
    "arrays": {"cost": CAME, "smokes": ANSWERED},
    "a name and an array": {"cost": "came", "smokes": ANSWERED},
    "strings": {
        "cost": [f"p{i}" for i in CAME],
        "smokes": pd.Series(ANSWERED, index=range(5, 14)).map("p{}".format),
    },
    "unsigned beside signed": {
        "cost": CAME.astype("uint64") + 2**63,
        "smokes": ANSWERED.astype(object) + 2**63,
    },
    "labels of dims": {"cost": "visit_id", "smokes": "answer_id"},
}


@pytest.mark.parametrize("way", WAYS)
def test_equal_ids_are_one_person_whichever_table_they_are_in(way: str):
    model = two(local=False)
    if way == "labels of dims":
        model = two(local=False)
        model.add_coords({"visit_id": [f"p{i}" for i in CAME], "answer_id": [f"p{i}" for i in ANSWERED]})
    ids = np.concatenate([CAME, ANSWERED])
    expected = sorted([np.flatnonzero(ids == i).tolist() for i in np.unique(ids)])
    assert rows_by_person(taken(model, WAYS[way])) == expected


def test_the_ids_of_one_table_in_a_dict_are_those_without():
    with pm.Model() as model:
        pm.Data("came", CAME)
        pm.Gamma("cost", 2.0, pm.HalfNormal("b"), observed=COST)
    assert rows_by_person(taken(model, {"cost": "came"})) == rows_by_person(taken(model, "came"))
    assert taken(model, {"cost": "came"}).tables is None


def test_a_record_is_all_rows_of_a_person_and_the_report_says_so():
    record = taken(two())
    ids = "'came' of 'cost'; 'answered' of 'smokes'"
    assert record.unit == f"all rows of 'cost', 'smokes' (dim 'visit') with the same id ({ids})"
    assert record.local is not None and record.local.names == ("u",)
    assert record.num_units == len({*CAME, *ANSWERED})
    assert not {"visit", "answer"} & record.released_dims and not record.released


def test_the_view_holds_no_number_of_the_data_but_whose_rows_are_whose():
    model = two()
    record = taken(model)
    assert record.whole_model is model
    for array in record.arrays:
        assert record.units is not None
        if array is not record.units.source:
            assert not array_value(array).any(), array.name
    held = {a.name: array_value(a) for a in record.data()}
    assert held["costs"][:30].tolist() == COST.tolist() and not held["costs"][30:].any()
    assert held["table"].tolist() == [0] * 30 + [1] * 9
    (smokes,) = (v for v in held.values() if v.shape == (39,) and v[30:].tolist() == SMOKES.tolist())
    assert not smokes[:30].any()


def test_what_is_written_of_it_shows_no_number_of_the_data():
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b = pm.Normal("b")
        pm.Normal("cost", b * DOSE, 1.0, observed=COST)
        pm.Normal("smokes", b, 1.0, observed=SMOKES)
    written = repr(taken(model)) + repr(taken(model).tables) + repr(taken(model).units)
    for number in ("30", "39", "9", str(P), str(COST[0])[:6], str(DOSE[0])[:6]):
        assert not re.search(rf"(?<![\w.]){re.escape(number)}(?![\w])", written), (number, written)


@pytest.mark.parametrize("local", [False, True])
def test_a_density_that_is_no_number_at_the_zeros_of_other_rows_does_no_harm(local: bool):
    """A square root of rt - shift has no slope below: the rows of the other table have rt = 0."""
    with pm.Model(coords={"who": range(P)}) as model:
        came, answered = pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        shift, share = pm.Normal("shift"), pm.Normal("share")
        own = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who") if local else None
        mean = pt.sqrt(pm.Data("rt", 1 + COST) - shift)
        pm.Normal("cost", mean if own is None else mean + own[came], 1.0, observed=DOSE)
        pm.Bernoulli("smokes", logit_p=share if own is None else share + own[answered], observed=SMOKES)
    made = DPADVI(**OPTIONS, unit=UNIT, model=model)
    record, latents = made._record, made.approx.latents
    z = pt.matrix("z", shape=(1, latents.size), dtype="float64")
    batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
    if local:
        graphs = local_terms(record, batch, latents, z)
    else:
        graphs = [as_matrix(aligned_gradients(record, batch, latents, z, 1))]
    data = [array_value(a) for a in record.data()]
    if local:
        data += [np.full((39, 1), 0.3), np.ones(39)]
    at = np.full((1, latents.size), 0.9)
    found = python_function([*batch, z], graphs)(*data, at)
    assert all(np.isfinite(f).all() for f in found)
    if not local:
        place = [v.name for v in latents.value_vars].index("shift")
        slope = (found[0][:30, place] * 2 * np.sqrt(1 + COST - 0.9)).ravel()
        np.testing.assert_allclose(slope, -(DOSE - np.sqrt(1 + COST - 0.9)), rtol=1e-9)
        assert not found[0][30:, place].any()


def test_a_person_without_a_row_in_some_table_counts_as_the_others_do():
    """Rows of the other table are no part of a person's log-density, nor of its gradient."""
    record = taken(two(local=False))
    point = {v.name: np.asarray(0.3) for v in record.value_vars}
    data = [array_value(a) for a in record.data()]
    terms = python_terms(record)
    for row, name in ((3, "cost"), (33, "smokes")):
        values = terms(*(d[row : row + 1] for d in data), *(point[v.name] for v in record.value_vars))
        found = dict(zip(record.factors, values, strict=True))
        assert found.pop(name) != 0.0 and not any(found.values())


def python_terms(record: RecordModel) -> Any:
    return python_function([*record.rows, *record.value_vars], [f.sum() for f in record.factors.values()])


def shares_an_array() -> pm.Model:
    return two(lambda: pm.Potential("p", -(pm.modelcontext(None)["dose"] ** 2) * pt.ones(30)))


def of_equal_lengths() -> pm.Model:
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", CAME[::-1].copy())
        x, b = pm.Data("dose", DOSE), pm.Normal("b")
        pm.Normal("cost", b * x, 1.0, observed=COST)
        pm.Normal("smokes", -b * x, 1.0, observed=DOSE)
    return model


def reads_the_other_table() -> pm.Model:
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        x, b = pm.Data("dose", DOSE), pm.Normal("b")
        pm.Normal("cost", b * x, 1.0, observed=COST)
        pm.Normal("smokes", b * x[:9], 1.0, observed=DOSE[:9])
    return model


def beside(
    mean: Callable[[pm.Model, Any], Any], prior: Callable[[], Any] = lambda: 0.0
) -> Callable[[], pm.Model]:
    """Write visits that cost b, and nine answers whose mean, or b's, looks at what it should not."""

    def build() -> pm.Model:
        with pm.Model(coords={"visit": range(30)}) as model:
            pm.Data("came", CAME), pm.Data("answered", ANSWERED)
            b = pm.Normal("b", prior())
            pm.Normal("cost", b, 1.0, observed=COST, dims="visit")
            pm.Normal("smokes", mean(model, b), 1.0, observed=DOSE[:9])
        return model

    return build


def one_draw() -> pm.Model:
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b = pm.Normal("b")
        pm.Normal("cost", b, 1.0, observed=COST)
        pm.MvNormal("smokes", b * np.ones(9), np.eye(9), observed=DOSE[:9])
    return model


def another_value_by_copied_ids() -> pm.Model:
    with pm.Model() as model:
        came = pm.Data("came", CAME)
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=P)
        pm.Data("answered", ANSWERED)
        pm.Normal("cost", u[came], 1.0, observed=COST)
        pm.Normal("smokes", u[ANSWERED], 1.0, observed=DOSE[:9])
    return model


def of_records_without_ids() -> pm.Model:
    def more() -> None:
        pm.Potential("late", -(pm.Data("days", np.ones(9)) ** 2) * pm.modelcontext(None)["share"])

    return two(more)


def ids_as_a_predictor() -> pm.Model:
    with pm.Model() as model:
        came = pm.Data("came", CAME)
        pm.Data("answered", CAME[::-1].copy())
        b = pm.Normal("b")
        pm.Normal("cost", b, 1.0, observed=COST)
        pm.Normal("smokes", b * came, 1.0, observed=DOSE)
    return model


def as_many_globals_as_rows(dims: bool = False) -> Callable[[], pm.Model]:
    def build() -> pm.Model:
        with pm.Model(coords={"visit": range(30), "who": range(P)}) as model:
            came = pm.Data("came", CAME, dims="visit" if dims else None)
            answered = pm.Data("answered", ANSWERED)
            be = pm.Normal("be", 0, 1, **({"dims": "visit"} if dims else {"shape": 30}))
            u = pm.Normal("u", be.mean(), 1, dims="who")
            pm.Normal("cost", u[came], 1.0, observed=COST)
            pm.Normal("smokes", u[answered], 1.0, observed=DOSE[:9])
        return model

    return build


REFUSED: dict[str, tuple[Callable[[], pm.Model], dict[str, Any], str]] = {
    "a name that is none": (
        two,
        {"unit": {**UNIT, "costs": "came"}},
        "'costs', which is no observed variable",
    ),
    "no name": (two, {"unit": {**UNIT, 3: "came"}}, "unit names a int, which is no observed variable"),
    "one is missing": (two, {"unit": {"cost": "came"}}, "has no ids for 'smokes'"),
    "a dict of nothing": (two, {"unit": {}}, "has no ids for 'cost', 'smokes'"),
    "no such data": (two, {"unit": {**UNIT, "cost": "cane"}}, "'cane' is no pm.Data"),
    "ids of the other table": (two, {"unit": {"cost": "answered", "smokes": "came"}}, "one id for each row"),
    "floats": (two, {"unit": {**UNIT, "smokes": ANSWERED / 2}}, "found floats"),
    "strings and integers": (
        two,
        {"unit": {"cost": CAME, "smokes": ANSWERED.astype(str)}},
        "strings or integers as ids, all of one kind",
    ),
    "masked": (two, {"unit": {**UNIT, "smokes": np.ma.array(ANSWERED, mask=[1] + [0] * 8)}}, "masked"),
    "all one person's": (
        lambda: two(local=False),
        {"unit": {"cost": [1] * 30, "smokes": [1] * 9}},
        "they would be one person's",
    ),
    "ids that are public": (two, {"unit": UNIT, "public_data": ["came"]}, "not public"),
    "labels that are released": (
        two,
        {"unit": {"cost": "who", "smokes": "answered"}},
        "whose labels are released",
    ),
    "record_dim": (two, {"unit": UNIT, "record_dim": "visit"}, "Leave record_dim= out"),
    "rows of a person": (two, {"unit": UNIT, "max_rows_per_unit": 0}, "max_rows_per_unit"),
    "a Potential without ids": (of_records_without_ids, {"unit": UNIT}, "'late' reads rows of a table"),
    "an array in two": (of_equal_lengths, {"unit": UNIT}, "'dose' has a row for each row of one table"),
    "a part of the other": (
        reads_the_other_table,
        {"unit": UNIT},
        "'dose' has a row for each row of one table",
    ),
    "another length": (beside(lambda m, b: b * pm.Data("x", DOSE).mean()), {"unit": UNIT}, "'x'"),
    "a prior": (
        beside(lambda m, b: b, lambda: pm.Data("x", DOSE[:9]).mean()),
        {"unit": UNIT},
        "prior of 'b' depends on the records",
    ),
    "a prior of a length": (
        beside(lambda m, b: b * m["x"], lambda: pm.Data("x", DOSE[:9]).shape[0]),
        {"unit": UNIT},
        "prior of 'b' depends on the records",
    ),
    "a value for each row": (
        beside(lambda m, b: b * pm.Normal("v", 0, 1, shape=9)),
        {"unit": UNIT},
        "'v' has an axis over records",
    ),
    "one draw": (one_draw, {"unit": UNIT}, "behind 'smokes' has a second axis"),
    "copied ids": (another_value_by_copied_ids, {"unit": UNIT}, "'u'"),
    "ids as a predictor": (ids_as_a_predictor, {"unit": UNIT}, "'came' has a row for each row of one table"),
    "the outcome": (
        beside(lambda m, b: b * m["cost"].mean()),
        {"unit": UNIT},
        "has a row for each row of one table",
    ),
    "a length": (
        beside(lambda m, b: b * m.dim_lengths["visit"]),
        {"unit": UNIT},
        "has a row for each row of one table",
    ),
    "as many globals": (as_many_globals_as_rows(), {"unit": UNIT}, "'be' has an axis over records"),
    "globals by a dim": (as_many_globals_as_rows(True), {"unit": UNIT}, "'be' has an axis over records"),
    "large ids": (two, {"unit": {"cost": "came", "smokes": ANSWERED + 2**33}}, "beyond 2³¹"),
    "a zero in front": (
        lambda: two(local=False),
        {"unit": {"cost": CAME.astype(str), "smokes": [f"{i:02d}" for i in ANSWERED]}},
        "differ only by spaces",
    ),
    "floats that were made text": (
        lambda: two(local=False),
        {"unit": {"cost": CAME.astype(str), "smokes": [f"{i}.0" for i in ANSWERED]}},
        "differ only by spaces",
    ),
    "no dict": (two, {"unit": "came"}, "have different lengths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_one_model_is_refused_by_name(name: str):
    build, options, text = REFUSED[name]
    with pytest.raises(PrivacyError) as caught:
        DPADVI(**OPTIONS, **options, model=build())
    assert text in str(caught.value), str(caught.value)
    for number in ("30", "39", str(COST[0]), "'v1'"):
        assert number not in str(caught.value)


CHANGES: dict[str, tuple[dict[str, Any], Callable[[], None], str]] = {
    "other ids": (UNIT, lambda: pm.set_data({"came": CAME[::-1].copy()}), "ids in 'came' are others now"),
    "another length": (
        UNIT,
        lambda: pm.set_data(
            {"dose": DOSE[:20], "costs": COST[:20], "came": CAME[:20]}, coords={"visit": range(20)}
        ),
        "another shape now",
    ),
    "rows with ids outside": (
        {"cost": CAME, "smokes": "answered"},
        lambda: pm.set_data({"costs": COST[::-1].copy()}),
        "not known whose the rows are",
    ),
    "another variable": (UNIT, lambda: pm.Normal("more", 0, 1, observed=DOSE), "other variables now"),
    "another parameter": (UNIT, lambda: pm.Normal("more"), "other variables now"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_has_changed_is_refused(name: str):
    unit, change, text = CHANGES[name]
    model = two(local=unit is UNIT)
    made = DPADVI(**OPTIONS, unit=unit, model=model)
    with model:
        change()
    with pytest.raises(UnsupportedModelError, match=text):
        made.fit(3, progressbar=False, backend="python")
    with pytest.raises(PrivacyError, match="Nothing was spent"):
        _ = made.approx.privacy


def test_exchanged_data_are_those_of_the_next_fit():
    model = two()
    record = taken(model)
    with model:
        pm.set_data({"costs": COST + 1.0})
    held = {a.name: array_value(a) for a in record.data()}
    assert held["costs"][:30].tolist() == (COST + 1.0).tolist()


def test_sources_and_encoders_take_one_table():
    model = two()
    with pytest.raises(ArgumentError, match="name of a pm"):
        DPADVI(**OPTIONS, unit=UNIT, records={"came": CAME}, model=model)


@pytest.mark.turns
@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
def test_new_persons_have_rows_in_some_of_the_tables():
    approx = DPADVI(**OPTIONS, insecure_noise_seed=1, unit=UNIT, model=two()).fit(
        3, progressbar=False, backend="python"
    )
    # fmt: off
    new = {"came": ["a", "a", "b"], "dose": [0.0, 1.0, 2.0], "costs": [1.0, 2.0, 3.0],
           "answered": ["b", "c"], "smokes": [1, 0]}
    # fmt: on
    found = approx.local_posterior(new, 4, noise_aware=False)["posterior"]["u"]
    assert found.dims == ("chain", "draw", "came") and found["came"].to_numpy().tolist() == ["a", "b", "c"]
    none = {**new, "answered": [], "smokes": []}
    assert approx.local_posterior(none, 4, noise_aware=False)["posterior"]["u"].shape == (1, 4, 2)
    with pytest.raises(ArgumentError, match="missing \\['answered'\\]"):
        approx.local_posterior({k: v for k, v in new.items() if k != "answered"}, 4, noise_aware=False)
    with pytest.raises(ArgumentError, match="'smokes'"):
        approx.local_posterior({**new, "smokes": [1]}, 4, noise_aware=False)


def later_dim(model: pm.Model) -> Any:
    if "day" not in model.dim_lengths:
        model.add_coord("day", range(30))
    return model.dim_lengths["day"]


def unread(model: pm.Model) -> Any:
    if "unread" not in model.named_vars:
        with model:
            pm.Data("unread", RNG.normal(size=(2, 17)))
    return model["unread"]


STARTS: dict[str, Callable[[pm.Model], Any]] = {
    "data": lambda model: model["dose"].mean(),
    "the observed variable": lambda model: model["cost"].mean(),
    "one without arrays": lambda model: model["smokes"].mean(),
    "observed values": lambda model: model.rvs_to_values[model["smokes"]].mean(),
    "a constant": lambda model: pt.constant(DOSE).mean(),
    "ids": lambda model: model["came"].max(),
    "ids that no variable reads": lambda model: model["answered"].max(),
    "a number of rows": lambda model: model["dose"].shape[0],
    "the length of a dim": lambda model: pt.as_tensor(model.dim_lengths["visit"]),
    "the number of persons, perhaps": lambda model: pt.as_tensor(model.dim_lengths["who"]),
    "a dim that came later": lambda model: pt.as_tensor(later_dim(model)),
    "data that no variable reads": lambda model: unread(model).mean(),
    "columns of such data": lambda model: pt.as_tensor(unread(model).shape[1]),
    "a size": lambda model: pm.Normal.dist(0, 1, size=(model.dim_lengths["visit"],)).shape[0],
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("argument", ["start", "start_sigma"])
def test_nothing_of_a_table_decides_where_a_fit_starts(name: str, argument: str):
    model = two(local=False)
    value = STARTS[name](model).astype("float64")
    with pytest.raises(PrivacyError, match="depend"):
        DPADVI(**OPTIONS, unit=UNIT, model=model, **{argument: {"base": value}})


@pytest.mark.parametrize("unit", [None, "came", {"cost": "came"}])
@pytest.mark.parametrize("argument", ["start", "start_sigma"])
@pytest.mark.parametrize(
    "name", [name for name in STARTS if name not in ("one without arrays", "observed values")]
)
def test_nothing_of_one_table_does(name: str, argument: str, unit: Any):
    with pm.Model(coords={"who": range(P), "visit": range(30)}) as model:
        pm.Data("came", CAME), pm.Data("answered", RNG.integers(0, P, size=30), dims="visit")
        pm.Gamma(
            "cost", 2.0, pm.math.exp(pm.Normal("base") * pm.Data("dose", DOSE)), observed=COST, dims="visit"
        )
    value = STARTS[name](model).astype("float64")
    with pytest.raises(PrivacyError, match="depend"):
        DPADVI(**OPTIONS, unit=unit, model=model, **{argument: {"base": value}})


@pytest.mark.parametrize("of", [lambda u: u.shape[0], lambda u: u.mean()])
def test_values_of_persons_do_not_either(of: Any):
    model = two()
    with pytest.raises(PrivacyError, match="depend"):
        DPADVI(**OPTIONS, unit=UNIT, model=model, start={"base": of(model["u"]).astype("float64")})


@pytest.mark.parametrize("name", STARTS)
def test_an_optimiser_reads_no_table(name: str):
    model = two(local=False)
    made = DPADVI(**OPTIONS, unit=UNIT, model=model)
    value = STARTS[name](model)
    if name == "a constant":
        pytest.skip("a number of the user's own, as with one table")

    def optimiser(grads: Any, params: Any) -> dict[Any, Any]:
        pairs = zip(params, grads, strict=True)
        return {p: p - 0.01 * g + value.astype(p.dtype) for p, g in pairs}

    with pytest.raises(ArgumentError, match="brings data of the model"):
        made.fit(2, progressbar=False, backend="python", obj_optimizer=optimiser)
    with pytest.raises(PrivacyError):
        made.approx.sample_node(value)


def test_a_distribution_by_a_function_has_parameters_of_rows():
    """PyMC's remaking of it reads the parameters that it was made with."""
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b, x = pm.Normal("b"), pm.Data("x", DOSE)
        normal = {"dist": lambda mu, sd, size: pm.Normal.dist(mu, sd, size=size)}
        pm.CustomDist("cost", b * x, 1.0, **normal, observed=COST)
        pm.Normal("smokes", b, 1.0, observed=DOSE[:9])
    record = taken(model)
    values = python_terms(record)(*(array_value(a)[4:5] for a in record.data()), np.asarray(0.3))
    assert float(values[0]) == pytest.approx(-0.5 * np.log(2 * np.pi) - 0.5 * (COST[4] - 0.3 * DOSE[4]) ** 2)


FACTORS: dict[str, Callable[[Any, Any], Any]] = {
    "logarithms times coefficients": lambda x, b: pt.log(x) @ b,
    "reciprocals times coefficients": lambda x, b: (1 / x) @ b,
    "several products": lambda x, b: (1 / x) @ b + pt.exp(-(pt.log(x) @ b)),
    "a look-up": lambda x, b: pt.log(x[:, 0]) * b[pt.gt(x[:, 1], 2).astype("int64")],
    "a table": lambda x, b: pt.log(x) @ pt.outer(b, b) @ b,
}


@pytest.mark.parametrize("name", FACTORS)
def test_gradients_are_those_of_the_users_density(name: str):
    """At numbers for which the zeros of other rows have none."""
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b, share = pm.Normal("b", shape=2), pm.Normal("share")
        mean = FACTORS[name](pm.Data("x", np.stack([COST, COST + 1], axis=1)), b)
        pm.Normal("cost", mean, 1.0, observed=DOSE)
        pm.Bernoulli("smokes", logit_p=share * pt.ones(9), observed=SMOKES)
    made = DPADVI(**OPTIONS, unit=UNIT, model=model)
    record, latents = made._record, made.approx.latents
    z = pt.matrix("z", shape=(1, latents.size), dtype="float64")
    batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
    rows = python_function([*batch, z], [as_matrix(aligned_gradients(record, batch, latents, z, 1))])
    at = np.array([[0.3, -0.2, 0.5]])
    with np.errstate(all="ignore"):
        found = rows(*(array_value(a) for a in record.data()), at)[0]
    assert found.any(axis=1).all()
    whole = model.compile_dlogp(vars=[b, share])(
        dict(zip(["b", "share"], [at[0, :2], at[0, 2]], strict=True))
    )
    np.testing.assert_allclose(found.sum(axis=0), whole + at[0], rtol=1e-9)  # without the prior's


def test_labels_and_deterministics_are_those_of_the_model_as_it_is_now():
    model = two(local=False)
    with model:
        model.add_coord("group", ["a", "b"])
        pm.Deterministic("early", model["base"] * pt.ones(2), dims="group")
    approx = DPADVI(**OPTIONS, unit=UNIT, model=model).fit(3, progressbar=False, backend="python")
    with model:
        pm.Deterministic("later", 3 * model["base"])
        pm.Deterministic("rows", model["dose"] * model["base"], dims="visit")
        pm.Deterministic("named", model["base"] * pt.ones(30), dims="visit")
    posterior = approx.sample(3, noise_aware=False)["posterior"]
    assert {"base", "slope", "share", "later"} <= set(posterior.data_vars)
    assert {"rows", "named", "mean"} <= {*approx.withheld} and "visit" not in posterior.coords


def test_new_labels_of_a_released_dim_are_refused():
    with pm.Model(coords={"region": ["r0", "r1"]}) as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b = pm.Normal("b", dims="region")
        pm.Normal("cost", b[0], 1.0, observed=COST)
        pm.Normal("smokes", b[1], 1.0, observed=DOSE[:9])
    made = DPADVI(**OPTIONS, unit=UNIT, model=model)
    model._coords["region"] = ("z1", "z0")
    with pytest.raises(UnsupportedModelError, match="'region' has other labels now"):
        made.fit(3, progressbar=False, backend="python")
    model._coords["region"] = ("r0", "r1")
    approx = made.fit(3, progressbar=False, backend="python")
    model._coords["region"] = ("z1", "z0")
    with pytest.raises(UnsupportedModelError, match="'region' has other labels now"):
        approx.sample(3, noise_aware=False)
    model._coords["region"] = ("r0", "r1")
    posterior = approx.sample(3, noise_aware=False)["posterior"]
    assert posterior["region"].to_numpy().tolist() == ["r0", "r1"]


def test_potentials_that_read_no_array_need_no_ids():
    with pm.Model() as model:
        pm.Data("came", CAME), pm.Data("answered", ANSWERED)
        b = pm.Normal("b")
        pm.Potential("cost", -((pm.Data("x", DOSE) - b) ** 2))
        pm.Potential("smokes", -((pm.Data("y", DOSE[:9]) - b) ** 2))
        pm.Potential("free", -(b**2))
    assert list(taken(model).factors) == ["cost", "smokes"]
