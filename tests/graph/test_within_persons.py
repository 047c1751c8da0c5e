"""Formulas over the rows of one person, written in the graph: lags, running sums, means, residuals."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from test_persons_zoo import released_of_everybody

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import NotSeparableError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.made_up_rows import MadeUpRows
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(27)
P = 12
ROWS = RNG.permutation(np.r_[1, 1, 2, RNG.integers(2, 7, size=P - 4), 11])
WHO = np.repeat(RNG.permutation(P), ROWS)
N = WHO.size
X, Y = RNG.normal(size=N), RNG.normal(size=N)
FRAME = pd.DataFrame({"who": WHO, "x": X, "y": Y})
BY = FRAME.groupby("who")

Write = Callable[[Any, Any, Any], Any]


def model(write: Write, x: np.ndarray = X, y: np.ndarray = Y, ids: np.ndarray = WHO) -> pm.Model:
    """Make a model from a function of the ids, of x and of the outcome to the mean."""
    with pm.Model(coords={"who": [f"name {p}" for p in range(P)]}) as made:
        person, outcome = pm.Data("person", ids), pm.Data("outcome", y)
        mean = write(person, pm.Data("x", x), outcome)
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=outcome)
    return made


def method(made: pm.Model, **more: Any) -> DPADVI:
    whole = {"noise_multiplier": 1.0, "delta": 1e-6, "random_seed": 1, "sampler": "full_batch"}
    return DPADVI(**{**whole, "l2_clip_norm": 1e6, "unit": "person", **more}, model=made)


def gradients(made: pm.Model, persons: Any = ()) -> np.ndarray:
    return released_of_everybody(method(made), "PYTHON", persons)[0]


def columns(made: pm.Model) -> list[np.ndarray]:
    within = build_record_model(made, unit="person").within
    assert within is not None
    return [array_value(c) for c in within.columns]


def begins(person: Any, lag: int = 1) -> Any:
    return pt.concatenate([pt.ones(lag, dtype="bool"), pt.neq(person[lag:], person[:-lag])])


def before(person: Any, values: Any, lag: int = 1) -> Any:
    moved = pt.concatenate([pt.zeros(lag), values[:-lag]])
    return pt.switch(begins(person, lag), 0.0, moved)


def b() -> Any:
    return pm.Normal("b", initval=0.3)


def lag(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, y)


def lag_that_is_set(person: Any, x: Any, y: Any) -> Any:
    moved = pt.set_subtensor(pt.zeros_like(x)[1:], x[:-1])
    return b() * pt.switch(begins(person), 0.0, moved)


def lag_of_two(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, x, 2)


def the_next(person: Any, x: Any, y: Any) -> Any:
    ends = pt.concatenate([pt.neq(person[1:], person[:-1]), [True]])
    return b() * pt.switch(ends, 0.0, pt.concatenate([x[1:], [0.0]]))


def mean_by_count(person: Any, x: Any, y: Any) -> Any:
    return b() * (pt.bincount(person, x) / pt.bincount(person))[person]


def mean_by_sums(person: Any, x: Any, y: Any) -> Any:
    sums, rows = pt.zeros(P)[person].inc(x), pt.zeros(P)[person].inc(1.0)
    return b() * (x - (sums / rows)[person])


def running_sum(person: Any, x: Any, y: Any) -> Any:
    so_far = pt.eq(person[:, None], person[None, :]) * pt.tri(person.shape[0])
    return b() * (so_far @ x)


def running_sum_from_the_first(person: Any, x: Any, y: Any) -> Any:
    total = pt.cumsum(x)
    first = pt.zeros(P)[person[::-1]].set((total - x)[::-1])
    return b() * (total - first[person])


def number_of_visits(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.log(pt.bincount(person)[person])


def beside_a_value(person: Any, x: Any, y: Any) -> Any:
    return pm.Normal("u", 0, 1, dims="who")[person] + b() * before(person, y)


def error_before(person: Any, x: Any, y: Any) -> Any:
    mean = pm.Normal("a", initval=0.2) + b() * x
    return mean + pm.Uniform("rho", -1, 1) * before(person, y - mean)


def errors_before(person: Any, x: Any, y: Any) -> Any:
    error = y - pm.Normal("a", initval=0.2) - b() * x
    return y - error + 0.4 * before(person, error) + pm.Normal("rho") * before(person, error, 2)


def error_beside_a_value(person: Any, x: Any, y: Any) -> Any:
    mean = pm.Normal("u", 0, 1, dims="who")[person] + b() * x
    return mean + pm.Uniform("rho", -1, 1) * before(person, y - mean)


def first_mean(person: Any, x: Any, y: Any) -> Any:
    """Before a person's first visit, a value that is fitted stands."""
    first = pm.Normal("first", initval=0.5)
    moved = pt.concatenate([first[None], (b() * pt.exp(x))[:-1]])
    return pt.switch(begins(person), first, moved)


def shifted(values: Any, lag: int = 1) -> np.ndarray:
    return BY[values].shift(lag, fill_value=0.0).to_numpy()


def column(values: np.ndarray) -> Write:
    return lambda person, x, y: b() * pm.Data("column", values)


def written(of: Callable[[Any, Any], Any], **more: np.ndarray) -> Write:
    """Write a mean of x and of columns that were computed before the model."""

    def write(person: Any, x: Any, y: Any) -> Any:
        return of({"x": x, "y": y, "person": person, **{k: pm.Data(k, v) for k, v in more.items()}}, b)

    return write


ROW_BEFORE = {"x1": shifted("x"), "y1": shifted("y"), "later": (BY.cumcount() > 0).to_numpy(dtype=float)}
TWO_BEFORE = {"x2": shifted("x", 2), "y2": shifted("y", 2), "late": (BY.cumcount() > 1).to_numpy(dtype=float)}


def _error_before(d: Any, b: Any) -> Any:
    a, slope = pm.Normal("a", initval=0.2), b()
    rho = pm.Uniform("rho", -1, 1)
    return a + slope * d["x"] + rho * d["later"] * (d["y1"] - a - slope * d["x1"])


def _errors_before(d: Any, b: Any) -> Any:
    a, slope = pm.Normal("a", initval=0.2), b()
    last, one_more = d["y1"] - a - slope * d["x1"], d["y2"] - a - slope * d["x2"]
    return a + slope * d["x"] + 0.4 * d["later"] * last + pm.Normal("rho") * d["late"] * one_more


def _error_beside_a_value(d: Any, b: Any) -> Any:
    u, slope = pm.Normal("u", 0, 1, dims="who")[d["person"]], b()
    rho = pm.Uniform("rho", -1, 1)
    return u + slope * d["x"] + rho * d["later"] * (d["y1"] - u - slope * d["x1"])


def _first_mean(d: Any, b: Any) -> Any:
    first = pm.Normal("first", initval=0.5)
    return pt.switch(d["later"] > 0, b() * pt.exp(d["x1"]), first)


def _beside_a_value(d: Any, b: Any) -> Any:
    return pm.Normal("u", 0, 1, dims="who")[d["person"]] + b() * d["y1"]


#: Each formula, and the same model with columns that pandas computed.
FORMULAS: dict[Write, Write] = {
    lag: column(shifted("y")),
    lag_that_is_set: column(shifted("x")),
    lag_of_two: column(shifted("x", 2)),
    the_next: column(shifted("x", -1)),
    mean_by_count: column(BY["x"].transform("mean").to_numpy()),
    mean_by_sums: column(X - BY["x"].transform("mean").to_numpy()),
    running_sum: column(BY["x"].cumsum().to_numpy()),
    running_sum_from_the_first: column(BY["x"].cumsum().to_numpy()),
    number_of_visits: column(np.log(BY["x"].transform("size").to_numpy())),
    beside_a_value: written(_beside_a_value, **ROW_BEFORE),
    error_before: written(_error_before, **ROW_BEFORE),
    errors_before: written(_errors_before, **ROW_BEFORE, **TWO_BEFORE),
    error_beside_a_value: written(_error_beside_a_value, **ROW_BEFORE),
    first_mean: written(_first_mean, **ROW_BEFORE),
}
NAMED = [pytest.param(w, id=w.__name__) for w in FORMULAS]
#: Local values besides are the business of other tests as well, and take longer.
BY_TURNS = [
    pytest.param(w, id=w.__name__, marks=[pytest.mark.turns] if "beside" in w.__name__ else [])
    for w in FORMULAS
]


@pytest.mark.parametrize("write", BY_TURNS)
def test_gradients_are_those_of_columns_computed_before(write: Write):
    found, expected = gradients(model(write)), gradients(model(FORMULAS[write]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("write", NAMED)
def test_another_persons_rows_decide_nothing(write: Write):
    """By a bit: neither other numbers in them, nor that they are gone."""
    one = 4
    x, y = X.copy(), Y.copy()
    x[WHO == one], y[WHO == one] = 1e300, -np.inf
    others = WHO != one
    for before, after in zip(columns(model(write)), columns(model(write, x, y)), strict=True):
        np.testing.assert_array_equal(before[others], after[others])
    rest = model(write, X[others], Y[others], WHO[others])
    for before, after in zip(columns(model(write)), columns(rest), strict=True):
        np.testing.assert_array_equal(before[others], after)


@pytest.mark.turns
@pytest.mark.parametrize("write", NAMED)
def test_another_persons_rows_move_no_gradient(write: Write):
    x, y = X.copy(), Y.copy()
    x[WHO == 4], y[WHO == 4] = 2.5, -2.5
    others = [p for p in range(P) if p != 4]
    made, changed = model(write), model(write, x, y)
    assert np.array_equal(gradients(made, others), gradients(changed, others))
    if write is not number_of_visits:
        assert not np.array_equal(gradients(made, [4]), gradients(changed, [4]))


@pytest.mark.parametrize("write", [lag, mean_by_sums])
def test_without_ids_the_message_says_how_to_give_them(write: Write):
    """What it says is typed in by the other tests."""
    with pytest.raises(NotSeparableError, match=r"DPADVI\(unit='person'\), with person = pm\.Data\("):
        method(model(write), unit=None)


def test_rows_may_lie_in_any_order():
    """The row before is the person's last one, whoever's rows lie between."""
    order = RNG.permutation(N)
    frame = FRAME.iloc[order]
    expected = frame.groupby("who")["y"].shift(fill_value=0.0).to_numpy()
    made = model(lag, *(frame[k].to_numpy() for k in ("x", "y", "who")))
    np.testing.assert_array_equal(columns(made)[0], expected)


def sum_that_goes_on(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.cumsum(x)


def minus_the_mean(person: Any, x: Any, y: Any) -> Any:
    return b() * (x - x.mean())


def whoever_was_before(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.concatenate([[0.0], y[:-1]])


def error_of_whoever_was_before(person: Any, x: Any, y: Any) -> Any:
    mean = b() * x
    return mean + pm.Normal("rho") * pt.concatenate([[0.0], (y - mean)[:-1]])


def against_all_persons(person: Any, x: Any, y: Any) -> Any:
    mean = pt.bincount(person, x) / pt.bincount(person)
    return b() * (mean - mean.mean())[person]


def the_first_of_all(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.eq(person, person[0])


def by_number(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.cumsum(pt.eq(person, 3))


def largest_number(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.bincount(person).shape[0] * x


def the_ids(person: Any, x: Any, y: Any) -> Any:
    return b() * person


def number_of_rows(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.bincount(person, x)[person] / x.shape[0]


def another_array(person: Any, x: Any, y: Any) -> Any:
    weights = pm.Data("weights", [0.7, 0.3])
    return b() * (weights[0] * x + weights[1] * before(person, x))


def lag_of_a_constant(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, pt.constant(X))


def length_of_a_dim(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.bincount(person, x)[person] / pm.modelcontext(None).dim_lengths["who"]


def drawn(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, x + pm.draw(pm.Normal.dist(), random_seed=1) * pm.Normal.dist(x))


def value_of_others(person: Any, x: Any, y: Any) -> Any:
    u = pm.Normal("u", 0, 1, dims="who")[person]
    return pt.concatenate([[0.0], u[:-1]]) + b() * x


def basis_of_a_lag(person: Any, x: Any, y: Any) -> Any:
    """PyMC takes its centre from the largest and the smallest entry of all."""
    gp = pm.gp.HSGP(m=[4], L=[4.0], cov_func=pm.gp.cov.ExpQuad(1, 1.0))
    functions, psd = gp.prior_linearized(before(person, x)[:, None])
    return functions @ (pm.Normal("weights", 0, 1, shape=4) * psd)


class Own(pytensor.graph.op.Op):
    """An operation of the user's, which may hold anything."""

    def make_node(self, x: Any) -> Any:
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = inputs[0]


def in_a_loop(person: Any, x: Any, y: Any) -> Any:
    """PyTensor's scan over the rows; a running sum would be written otherwise."""
    same = pt.cast(~begins(person), "float64")
    total = pytensor.scan(
        lambda value, again, before: value + again * before,
        sequences=[x, same],
        outputs_info=[pt.zeros(())],
        return_updates=False,
    )
    return b() * total


def as_many_as_an_entry_says(person: Any, x: Any, y: Any) -> Any:
    """One entry of one person could ask for all memory."""
    visit = pt.cast(x, "int64")
    return b() * before(person, pt.bincount(visit)[visit])


def rows_and_persons(person: Any, x: Any, y: Any) -> Any:
    """An entry would be one person's as a row, and another's by the ids."""
    return b() * x[person] + pm.Normal("a") * before(person, x)


def a_list_of_numbers(person: Any, x: Any, y: Any) -> Any:
    table = pt.stack([pt.constant(float(v)) for v in np.r_[np.sort(Y), np.zeros(60)]])
    return b() * (before(person, x) + table[pt.cast(x, "int64")])


def numbers_in_a_loop(person: Any, x: Any, y: Any) -> Any:
    return b() * (before(person, x) + sum(pt.sqr(x - float(v)) for v in np.r_[Y, Y**2]))


def as_often_as_an_entry_says(person: Any, x: Any, y: Any) -> Any:
    return b() * (before(person, x) + 1e-20 * pt.repeat(x, pt.cast(x[0], "int64")).sum())


def up_to_an_entry(person: Any, x: Any, y: Any) -> Any:
    some = pt.eq(x[:, None], pt.arange(pt.cast(x.max(), "int64"))).sum(axis=1)
    return b() * (before(person, x) + some)


def printed(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, pytensor.printing.Print("x")(x))


def by_singular_values(person: Any, x: Any, y: Any) -> Any:
    own = pt.switch(pt.eq(person[:, None], person[None, :]), x[:, None], 0.0)
    return b() * (before(person, x) + pt.linalg.svd(own, compute_uv=False).max())


def for_large_ids(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.switch(person > 4, before(person, x), 0.0)


def all_rows_for_large_entries(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.switch(x > 1, x.mean(), before(person, x))


def sum_of_what_is_below_zero(person: Any, x: Any, y: Any) -> Any:
    return b() * (before(person, x) + pt.cumsum(pt.minimum(x, 0.0)))


def of_the_users_own(person: Any, x: Any, y: Any) -> Any:
    return b() * before(person, Own()(x))


def treated_by_the_mean_of_all(person: Any, x: Any, y: Any) -> Any:
    """No covariate, nor value of a class, is tried at one number alone: here all would be zero."""
    treated = pm.Data("treated", np.arange(P) % 2, dims="who")
    return b() * treated[person] * (x - x.mean())


def a_class_by_the_mean_of_all(person: Any, x: Any, y: Any) -> Any:
    return b() * pm.Bernoulli("kind", pm.Beta("share", 1, 1), dims="who")[person] * (x - x.mean())


def if_a_value_is_below_zero(person: Any, x: Any, y: Any) -> Any:
    return pt.maximum(-b(), 0) * (x - x.mean())


def of_some_ids(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.switch(person >= 2000, x, before(person, x))


def of_one_id(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.switch(pt.eq(person, 5), x, before(person, x))


def in_small_numbers(person: Any, x: Any, y: Any) -> Any:
    return b() * (x - x.mean()) / 1e8


def between_bounds(person: Any, x: Any, y: Any) -> Any:
    ages = pt.clip(x, 18, 90)
    return b() * (ages - ages.mean())


def of_some_years(person: Any, x: Any, y: Any) -> Any:
    return b() * pt.switch(pm.Data("year", np.full(N, 2005)) >= 2000, x - x.mean(), 0.0)


MIXED = [
    treated_by_the_mean_of_all,
    a_class_by_the_mean_of_all,
    if_a_value_is_below_zero,
    of_some_ids,
    of_one_id,
    in_small_numbers,
    between_bounds,
    of_some_years,
    sum_that_goes_on,
    minus_the_mean,
    whoever_was_before,
    error_of_whoever_was_before,
    against_all_persons,
    the_first_of_all,
    by_number,
    largest_number,
    the_ids,
    number_of_rows,
    another_array,
    lag_of_a_constant,
    length_of_a_dim,
    drawn,
    value_of_others,
    basis_of_a_lag,
    in_a_loop,
    as_many_as_an_entry_says,
    rows_and_persons,
    a_list_of_numbers,
    numbers_in_a_loop,
    as_often_as_an_entry_says,
    up_to_an_entry,
    printed,
    by_singular_values,
    for_large_ids,
    all_rows_for_large_entries,
    sum_of_what_is_below_zero,
    of_the_users_own,
]


@pytest.mark.parametrize("write", MIXED, ids=lambda w: w.__name__)
def test_what_mixes_persons_is_refused(write: Write, capfd: pytest.CaptureFixture[str]):
    with pytest.raises((NotSeparableError, UnsupportedModelError)) as caught:
        method(model(write))
    assert caught.value.__context__ is None
    said = "".join(capfd.readouterr())
    assert not any(f"{abs(v):.7f}"[:8] in said for v in X)  # an operation may print rows that are made up


def test_an_entry_of_a_constant_does_not_choose_the_refusal():
    """Groups of persons as an array of NumPy's: refused, whether or not somebody's group is in the table."""

    def said(last: int) -> str:
        groups = np.r_[np.arange(P - 1) % 3, last]

        def write(person: Any, x: Any, y: Any) -> Any:
            return pm.Normal("level", shape=3)[pt.constant(groups)][person] + b() * before(person, x)

        with pytest.raises((NotSeparableError, UnsupportedModelError)) as caught:
            method(model(write))
        return f"{type(caught.value)} {caught.value}"

    assert said(1) == said(777)


def test_what_is_tried_does_not_turn_on_how_many_persons_or_rows_there_are():
    def tried(persons: int) -> list[Any]:
        ids = np.repeat(np.arange(persons), 3)
        with pm.Model(coords={"who": range(persons), "row": range(3 * persons)}) as made:
            person, x = pm.Data("person", ids, dims="row"), pm.Data("x", np.zeros(ids.size), dims="row")
            level = pm.Normal("u", 0, 1, dims="who")[person] + b() * before(person, x)
            level = level / made.dim_lengths["who"]
            pm.Normal("y", level, 1, observed=np.zeros(ids.size), dims="row")
        rows = MadeUpRows(made, person, ids.size, [])
        return [[u.starts.tolist(), *(r.tolist() for r in arrays)] for arrays, u, _ in rows._sets]

    assert tried(60) == tried(97)


def test_the_message_says_how_a_lag_is_written():
    with pytest.raises(NotSeparableError) as caught:
        method(model(whoever_was_before))
    begins, moved = re.search(r"begins = (.*) is true.* and (.*) is a lag", str(caught.value)).groups()  # type: ignore[union-attr]

    def write(person: Any, x: Any, y: Any) -> Any:
        names = {"pt": pt, "person": person, "y": y}
        return b() * eval(moved, {**names, "begins": eval(begins, names)})

    np.testing.assert_array_equal(columns(model(write))[0], shifted("y"))


def test_arrays_of_rows_are_data():
    """An array of NumPy's would be seen by no later check once it is behind a column."""
    with pytest.raises(UnsupportedModelError, match=r"array or a list of numbers.*pm\.Data"):
        method(model(lambda person, x, y: b() * pt.zeros(P)[person].inc(pt.constant(X))[person]))


def test_public_arrays_may_stand_in_a_formula():
    with pm.Model() as made:
        person, x = pm.Data("person", WHO), pm.Data("x", X)
        weights = pm.Data("weights", [0.7, 0.3])
        pm.Normal("y", b() * before(person, pt.stack([x, x**2], axis=1) @ weights), 1, observed=Y)
    record = build_record_model(made, unit="person", public_data=["weights"])
    assert record.public_arrays == ("weights (2,)",) and record.within is not None
    (found,) = map(array_value, record.within.columns)
    expected = FRAME.assign(v=0.7 * X + 0.3 * X**2).groupby("who")["v"].shift(fill_value=0.0)
    np.testing.assert_allclose(found, expected)


def test_a_formula_that_fails_for_one_person_is_missing_there():
    """And says nothing: no error, no warning."""

    def write(person: Any, x: Any, y: Any) -> Any:
        index = pt.cast(pt.bincount(person, x)[person], "int64")  # beyond the table for a large sum
        return b() * before(person, pt.arange(100.0)[index])

    x = RNG.uniform(size=N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (usual,) = columns(model(write, x))
        x[WHO == 3] = 1e9
        (found,) = columns(model(write, x))
    assert np.isnan(found[WHO == 3]).all()
    np.testing.assert_array_equal(found[WHO != 3], usual[WHO != 3])


@pytest.mark.parametrize("wrong", [777, 1])
def test_no_covariate_decides_whether_a_formula_is_accepted(wrong: int):
    """Not even one of a person whose group is no place in the table."""
    group = RNG.integers(0, 3, size=P)
    group[2] = wrong

    def write(person: Any, x: Any, y: Any) -> Any:
        level = pm.Normal("level", 0, 1, shape=3)
        of_persons = level[pm.Data("group", group)] + pm.Normal("u", 0, 1, dims="who")
        return of_persons[person] + b() * before(person, x)

    assert len(columns(model(write))) == 1


@pytest.mark.parametrize(
    "write", [lag, pytest.param(error_beside_a_value, marks=pytest.mark.turns)], ids=lambda w: w.__name__
)
def test_nothing_of_the_columns_is_released(write: Write):
    made = model(write)
    with made:
        pm.Deterministic("moved", made["b"] * before(made["person"], made["x"]))
    approx = method(made).fit(2, progressbar=False, backend="python")
    usual = method(model(column(X))).fit(2, progressbar=False, backend="python")
    assert approx.privacy.public_arrays == usual.privacy.public_arrays
    found = approx.sample(20)
    assert "moved" not in found.posterior and "name 3" not in str(found)
    assert "moved" in approx.withheld
    with pytest.raises(PrivacyError):
        approx.sample_node(made["b"] * before(made["person"], made["x"]))


def test_an_exchanged_array_asks_for_a_new_method():
    made = model(lag)
    private = method(made)
    pm.set_data({"outcome": Y + 1}, model=made)
    with pytest.raises(UnsupportedModelError, match=r"'outcome'.*was exchanged.*new DPADVI"):
        private.fit(2, progressbar=False)


def test_new_persons_have_formulas_of_their_own():
    approx = method(model(error_beside_a_value)).fit(5, progressbar=False, backend="python")
    data = {"person": [7, 7, 9], "outcome": np.array([0.5, 1.0, 2.0]), "x": np.array([0.1, 0.2, 0.3])}
    assert approx.local_posterior(data).posterior["u"].sizes["person"] == 2
    apart = {k: np.asarray(v)[[2, 0, 1]] for k, v in data.items()}
    assert approx.local_posterior(apart).posterior["u"].sizes["person"] == 2


def test_records_in_files_have_columns_computed_before():
    sources = {"person": WHO, "outcome": Y, "x": X}
    with pytest.raises(UnsupportedModelError, match=r"With records=, compute it before the model"):
        method(model(lag), records=sources, sampler="poisson", sampling_prob=0.5, l2_clip_norm=1.0)
