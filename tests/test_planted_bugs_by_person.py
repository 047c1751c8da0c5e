"""Bugs of a step whose records are persons with several rows, planted one by one: the suite must catch each.

As `test_planted_bugs`, which has the bugs that both kinds of records can have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from suite import CLIP, Suite, layers, look_ups, regression

from pymc_dpvi import Variational
from pymc_dpvi.engine import (
    generated_unit_sums,
    local_modes,
    local_sums,
    loop,
    microbatch,
    sums_of_step,
    unit_sums,
)
from pymc_dpvi.engine.unit_batches import in_rows
from pymc_dpvi.engine.unit_sums import add_row, add_unit
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Draws
from pymc_dpvi.randomness.keystream import KeyStream

#: The checks take thousands of steps: Python mode takes longer than numba with its compilation.
BACKENDS = [pytest.param("FAST_COMPILE", marks=pytest.mark.slow), "numba"]
IDS = np.random.default_rng(0).permutation(np.repeat(np.arange(9), [1, 1, 1, 2, 2, 3, 4, 4, 6]))

Plant = Callable[[pytest.MonkeyPatch], None]
Add = Callable[..., None]


def build(model: Callable[[], pm.Model] = regression, **kwargs: Any) -> Suite:
    return Suite(model(), **{"unit": IDS, **kwargs})


def sums(make: Callable[[Any], Add]) -> Plant:
    """Put another sum over persons in place of the package's."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(microbatch, "write_add_units", lambda layout, factored: make(layout))

    return plant


def written_out(layout: Any, arrays: Any, count: int) -> np.ndarray:
    """The rows of dense and outer blocks as one matrix, in order."""
    rest, columns = iter(arrays), []
    for form in layout:
        assert form.kind in ("dense", "outer")
        left = np.asarray(next(rest))[:count]
        if form.kind == "outer":
            right_ = np.asarray(next(rest))[:count]
            left = (left[:, :, None] * right_[:, None, :]).reshape(count, left.shape[1] * right_.shape[1])
        columns.append(left)
    return np.concatenate(columns, axis=1)


def over_rows(
    layout: Any,
    when: Callable[[int, np.ndarray], bool] = lambda i, marked: bool(marked[i] & 1),
    skip: Callable[[int, np.ndarray], bool] = lambda i, marked: False,
    end: Callable[[np.ndarray, int], float] = lambda person, rows: 0.0,
) -> Add:
    """As it should be, but for when a person ends, which rows are left out, and what is left of the sum."""

    def add_units(*args: Any) -> None:
        *arrays, marked, begin, count, bound, units, person, high, low, tally = args
        matrix, rows = written_out(layout, arrays, count), 0
        for i in range(count):
            rows += 1
            if not skip(begin + i, marked):
                add_row(matrix, i, person, 0)
            if when(begin + i, marked):
                share = end(person, rows)
                kept = share * np.where(np.isfinite(person), person, 0.0)
                add_unit(person, bound, units, high, low, tally)
                person[:] = kept
                rows = 0

    return add_units


def right(layout: Any) -> Add:
    return over_rows(layout)


def clipped_by_row(layout: Any) -> Add:
    return over_rows(layout, when=lambda i, marked: True)


def each_row_clipped_and_added_up(layout: Any) -> Add:
    """The sum of clipped rows is as long as there are rows."""

    def add_units(*args: Any) -> None:
        *arrays, _, _, count, _, _, _, high, _, _ = args
        rows = written_out(layout, arrays, count)
        with np.errstate(all="ignore"):
            rows = np.where(np.isfinite(np.sum(rows**2, axis=1))[:, None], rows, 0.0)
            sizes = np.linalg.norm(rows, axis=1, keepdims=True)
            high += (rows * np.minimum(1.0, CLIP * 0.999 / np.where(sizes > 0, sizes, 1.0))).sum(axis=0)

    return add_units


def two_persons_taken_for_one(layout: Any) -> Add:
    """As if their ids had collided: the mark between two neighbours in the batch is lost."""

    def when(i: int, marked: np.ndarray) -> bool:
        ends = np.count_nonzero(marked[: i + 1] & 1)
        return bool(marked[i] & 1) and (ends % 2 == 0 or i == len(marked) - 1)

    return over_rows(layout, when)


def without_the_last_row(layout: Any) -> Add:
    def skip(i: int, marked: np.ndarray) -> bool:
        return bool(marked[i] & 1) and i > 0 and not marked[i - 1] & 1

    return over_rows(layout, skip=skip)


def divided_by_the_rows(layout: Any) -> Add:
    """Means over the rows, where the model has a product."""

    def end(person: np.ndarray, rows: int) -> float:
        person /= rows
        return 0.0

    return over_rows(layout, end=end)


def what_is_left_goes_on(layout: Any) -> Add:
    """The sum of a person is not made zero after it was added."""
    return over_rows(layout, end=lambda person, rows: 0.5)


def batches(bug: Callable[[Draws, Units, KeyStream], Draws]) -> Plant:
    """Turn batches of persons into batches of rows in another way, in the package's loop."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "in_rows", bug)

    return plant


def rows_are_sampled(draws: Draws, units: Units, stream: KeyStream) -> Draws:
    """The coins are thrown for rows: a person with many rows is there more often."""
    n_steps, n = len(draws.offsets) - 1, len(units.rows)
    rng = np.random.default_rng(int(stream.words(1)[0]))
    share = draws.indices.size / (n_steps * len(units))
    made = [2 * np.flatnonzero(rng.random(n) < share) + 1 for _ in range(n_steps)]
    offsets = np.cumsum([0, *map(len, made)])
    return dataclasses.replace(draws, indices=np.concatenate(made), offsets=offsets)


def a_row_too_few(draws: Draws, units: Units, stream: KeyStream) -> Draws:
    made = in_rows(draws, units, stream)
    marked = made.indices.copy()
    first = np.flatnonzero((marked & 1) == 0)[0]  # not the only row of its person
    offsets = made.offsets - (made.offsets > first)
    return dataclasses.replace(made, indices=np.delete(marked, first), offsets=offsets)


def a_row_of_somebody_else(draws: Draws, units: Units, stream: KeyStream) -> Draws:
    made = in_rows(draws, units, stream)
    marked = made.indices.copy()
    marked[3] = 2 * units.rows[-1] + (marked[3] & 1)
    return dataclasses.replace(made, indices=marked)


def more_rows_than_the_cap(draws: Draws, units: Units, stream: KeyStream) -> Draws:
    return in_rows(draws, dataclasses.replace(units, max_rows=None), stream)


SENSITIVITY: Any = Suite.sensitivity
GRADIENT: Any = Suite.gradients
BATCHES: Any = Suite.batches

BUGS: dict[str, tuple[Plant, Any, dict[str, Any]]] = {
    "rows are clipped, not persons": (sums(clipped_by_row), SENSITIVITY, {}),
    "rows are clipped and then added up": (sums(each_row_clipped_and_added_up), SENSITIVITY, {}),
    "two ids collide": (sums(two_persons_taken_for_one), SENSITIVITY, {}),
    "the last row is lost": (sums(without_the_last_row), GRADIENT, {}),
    "means of rows": (sums(divided_by_the_rows), GRADIENT, {"adaptive": True}),
    "one person's sum goes into the next one's": (sums(what_is_left_goes_on), SENSITIVITY, {}),
    "rows are counted, not persons": (sums(clipped_by_row), SENSITIVITY, {"adaptive": True}),
    "rows are sampled, not persons": (batches(rows_are_sampled), BATCHES, {}),
    "a row is missing": (batches(a_row_too_few), BATCHES, {}),
    "a row is somebody else's": (batches(a_row_of_somebody_else), BATCHES, {}),
    "the cap is not kept": (batches(more_rows_than_the_cap), BATCHES, {"max_rows": 3}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    plant, check, setting = BUGS[bug]
    plant(monkeypatch)
    found = check(build(**setting))
    assert not found.passed, str(found)
    assert "raises" not in found.words


@pytest.mark.turns
@pytest.mark.parametrize("setting", [{}, {"adaptive": True}, {"max_rows": 3}], ids=str)
def test_without_a_bug_the_same_checks_pass(setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    for stand_in in (None, right):
        if stand_in is not None:
            sums(stand_in)(monkeypatch)
        suite = build(**setting)
        for check in (SENSITIVITY, GRADIENT, BATCHES):
            found = check(suite)
            assert found.passed, str(found)


@pytest.mark.parametrize("sampler", ["poisson", "poisson, replace", "full batch", "full batch, replace"])
@pytest.mark.parametrize(
    "model", [regression, layers, pytest.param(look_ups, marks=pytest.mark.slow)], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_form_of_a_gradient_is_as_private_by_person(
    model: Callable[[], pm.Model], sampler: str, backend: str
):
    suite = build(model, sampler=sampler, backend=backend, adaptive=True)
    assert max(len(m) for m in suite.probe.members) == 500
    keeps_every_promise(suite)


@pytest.mark.parametrize("sampler", ["poisson", "full batch, replace"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_factored_gradients_are_as_private_by_person(
    sampler: str, backend: str, monkeypatch: pytest.MonkeyPatch
):
    stays_factored(monkeypatch)
    keeps_every_promise(build(layers, sampler=sampler, backend=backend, adaptive=True))


def stays_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices stay factored, too."""
    monkeypatch.setattr(sums_of_step, "_FACTORED", 1)
    monkeypatch.setattr(sums_of_step, "_LONG", 1)


def norm_of_rows(left: np.ndarray, right: np.ndarray) -> float:
    """As if the rows of a person were at right angles."""
    return float(np.sum(np.sum(left**2, axis=1) * np.sum(right**2, axis=1)))


def norm_of_one_factor(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.sum((left.T @ left) ** 2))


def every_row_is_a_person(marked: np.ndarray, begin: int, first: int, count: int) -> tuple[int, bool]:
    return first + 1, False


def a_row_of_the_next_person(marked: np.ndarray, begin: int, first: int, count: int) -> tuple[int, bool]:
    last, cut = unit_sums.end_of_person(marked, begin, first, count)
    return min(last + 1, count), cut


FACTORED_BUGS: dict[str, tuple[str, Any, Any]] = {
    "the norm is that of the rows": ("squared_norm_of_products", norm_of_rows, SENSITIVITY),
    "the norm is that of one factor": ("squared_norm_of_products", norm_of_one_factor, SENSITIVITY),
    "rows are clipped one by one": ("end_of_person", every_row_is_a_person, SENSITIVITY),
    "persons are cut elsewhere": ("end_of_person", a_row_of_the_next_person, SENSITIVITY),
}


@pytest.mark.parametrize("bug", FACTORED_BUGS)
def test_planted_bug_with_factored_gradients_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    name, function, check = FACTORED_BUGS[bug]
    stays_factored(monkeypatch)
    scope = generated_unit_sums.defined

    def planted(*args: Any, **more: Any) -> Any:
        return scope(*args, **more, **{name: function})

    monkeypatch.setattr(generated_unit_sums, "defined", planted)
    found = check(build(layers))
    assert not found.passed, str(found)
    assert "raises" not in found.words


def keeps_every_promise(suite: Suite) -> None:
    promises = (Suite.one_way_out, SENSITIVITY, GRADIENT, Suite.lattice, Suite.noise, BATCHES, Suite.attack)
    for check in promises:
        found = check(suite)
        assert found.passed, str(found)


# ------------------------------------------------------------------------------------------------
# Persons with values of their own
# ------------------------------------------------------------------------------------------------


def intercepts() -> pm.Model:
    with pm.Model() as model:
        person = pm.Data("person", IDS)
        u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), shape=9)
        mean = pm.Data("x", np.zeros((24, 2))) @ pm.Normal("b", 0.3, 0.5, shape=2)
        pm.Normal("y", mean + u[person], 0.7, observed=np.zeros(24))
    return model


def in_local_sums(name: str, bug: Callable[..., Any], module: Any = local_sums) -> Plant:
    """Put a function in place of one of `local_sums`; it gets the real one first."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: bug(real, *args))

    return plant


def in_local_modes(name: str, bug: Callable[..., Any]) -> Plant:
    return in_local_sums(name, bug, local_modes)


def classes() -> pm.Model:
    """Persons with a class and an effect, whose spread goes by the class."""
    with pm.Model() as model:
        person = pm.Data("person", IDS)
        kind = pm.Bernoulli("kind", pm.Beta("share", 2, 2), shape=9)
        u = pm.Normal("u", 0, pm.HalfNormal("tau", [0.5, 2.0], shape=2)[kind], shape=9)
        mean = pm.Normal("level", [-1.0, 1.0], 0.5)[kind] + u
        pm.Normal("y", mean[person], 0.7, observed=np.zeros(24))
    return model


def prior_in_every_row(real: Any, starts: np.ndarray) -> tuple[np.ndarray, ...]:
    return real(starts)[0], np.ones(starts[-1])


def without_prior(real: Any, starts: np.ndarray) -> tuple[np.ndarray, ...]:
    return real(starts)[0], np.zeros(starts[-1])


def places_of_the_first_person(real: Any, *args: Any) -> np.ndarray:
    placed = real(*args)
    return np.broadcast_to(placed[:1], placed.shape).copy()


def equal_weights(real: Any, logs: np.ndarray, *rest: Any) -> Any:
    return real(np.zeros_like(logs), *rest)


def logs_of_the_person_before(real: Any, logs: np.ndarray, *rest: Any) -> Any:
    return real(np.roll(logs, 1, axis=0), *rest)


def rows_at_the_places_of_the_first(real: Any, rows: Any, begins: Any, whose: Any, *rest: Any) -> Any:
    return real(rows, begins, np.zeros_like(whose), *rest)


def everybody_with_the_worst_curvature(real: Any, *args: Any) -> None:
    """The search of one person goes by what others have."""
    real(*args)
    step, curvature = args[5], args[8]
    if len(step):
        step[:] = step.mean(axis=0)
        curvature[:] = curvature.mean(axis=0)


LOCAL_BUGS: dict[str, tuple[Plant, Any]] = {
    "the prior is in every row": (in_local_sums("persons_of", prior_in_every_row), GRADIENT),
    "the prior is left out": (in_local_sums("persons_of", without_prior), GRADIENT),
    "all at the places of one": (in_local_sums("place_nodes", places_of_the_first_person), SENSITIVITY),
    "all places weigh alike": (in_local_sums("weigh", equal_weights), GRADIENT),
    "a person is weighed by another": (in_local_sums("weigh", logs_of_the_person_before), SENSITIVITY),
    "rows at places of the first": (
        in_local_sums("rows_at_places", rows_at_the_places_of_the_first),
        SENSITIVITY,
    ),
    "searches go by the others": (in_local_modes("move", everybody_with_the_worst_curvature), SENSITIVITY),
}


def fits_by_the_mean_of_all(real: Any, slopes: np.ndarray, *rest: Any) -> None:
    """One person's normal distribution moves by the slopes of everybody."""
    real(np.broadcast_to(slopes.mean(axis=0), slopes.shape) if len(slopes) else slopes, *rest)


def a_root_for_a_precision(real: Any, *args: Any) -> None:
    precision = args[4]
    real(*args)
    precision[:] = np.sqrt(np.abs(precision))


def never_moved(real: Any, *args: Any) -> None:
    args[3][:] = 0.0


FITTED_BUGS: dict[str, tuple[Plant, Any]] = {
    "fits go by the others": (in_local_sums("move_normals", fits_by_the_mean_of_all), SENSITIVITY),
    "the root of a precision": (in_local_sums("move_normals", a_root_for_a_precision), GRADIENT),
    "no fit": (in_local_sums("move_normals", never_moved), GRADIENT),
    "the prior is left out of a fit": (in_local_sums("persons_of", without_prior), GRADIENT),
    "rows at others' places": (in_local_sums("rows_at_places", rows_at_the_places_of_the_first), SENSITIVITY),
}


def without_widths(real: Any, *args: Any) -> np.ndarray:
    return np.zeros_like(real(*args))


def widths_of_the_person_before(real: Any, *args: Any) -> np.ndarray:
    return np.roll(real(*args), 1, axis=0)


def searches_of_one_class(real: Any, *args: Any) -> Any:
    """All classes have the mode of the first."""
    values = args[5]
    return real(*args[:5], np.broadcast_to(values[:1], values.shape).copy(), *args[6:])


def rows_of_the_wrong_person(real: Any, starts: np.ndarray, left: np.ndarray, combinations: int) -> Any:
    """Searches go class by class, and their rows person by person."""
    places, whose = real(starts, left, combinations)
    order = np.argsort(whose % combinations, kind="stable")
    return places, whose[order]


CLASS_BUGS: dict[str, tuple[Plant, Any]] = {
    "widths are left out": (in_local_sums("begin_logs", without_widths), GRADIENT),
    "widths of another": (in_local_sums("begin_logs", widths_of_the_person_before), SENSITIVITY),
    "searches of one class": (in_local_modes("rows_of_search", searches_of_one_class), GRADIENT),
    "rows of the wrong person": (in_local_modes("of_open", rows_of_the_wrong_person), SENSITIVITY),
}
PLANTED = {**LOCAL_BUGS, **FITTED_BUGS, **CLASS_BUGS}


@pytest.mark.turns
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_with_local_values_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    plant, check = PLANTED[bug]
    plant(monkeypatch)
    guide = {"u": Variational()} if bug in FITTED_BUGS else None
    model = classes if bug in CLASS_BUGS else intercepts
    found = check(build(model, unit="person", adaptive=True, guide=guide))
    assert not found.passed, str(found)
    assert "raises" not in found.words


RULES = ["quadrature", *(pytest.param(r, marks=pytest.mark.turns) for r in ("fit", "classes"))]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_persons_with_local_values_are_as_private(backend: str, rule: str):
    guide = {"u": Variational()} if rule == "fit" else None
    model = classes if rule == "classes" else intercepts
    suite = build(model, unit="person", adaptive=True, backend=backend, guide=guide)
    keeps_every_promise(suite)
