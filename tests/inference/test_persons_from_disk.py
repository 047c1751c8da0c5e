"""Fits of persons whose rows are in sources: the same posterior bit by bit, and what is refused."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from short_fits import CHEAP, MARKS, Iterates, params, quiet

from pymc_dpvi import DPADVI, ArgumentError, PrivacyBudget, audit
from pymc_dpvi.engine import read_ahead, source_units

pytestmark = MARKS

N, PERSONS = 613, 151
SENTINEL = "SENTINEL-7231"
_RNG = np.random.default_rng(5)
X = _RNG.normal(size=(N, 2))
# From one row to some dozens, in no order; the last is there by certain.
PERSON = np.minimum(_RNG.geometric(0.02, N), PERSONS) - 1
PERSON[:PERSONS] = np.arange(PERSONS)
Y = (X @ [1.0, -0.5] + _RNG.normal(size=PERSONS)[PERSON] + _RNG.logistic(size=N) > 0).astype("int8")
RECORDS = {"x": X, "y": Y, "person": PERSON}


def fixed(x: np.ndarray, y: np.ndarray, person: np.ndarray, persons: int) -> pm.Model:
    with pm.Model() as model:
        pm.Data("person", person)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ pm.Normal("beta", 0, 1, shape=2), observed=y)
    return model


def intercepts(x: np.ndarray, y: np.ndarray, person: np.ndarray, persons: int) -> pm.Model:
    with pm.Model(coords={"who": np.arange(persons)}) as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        u = pm.Normal("u", 0, pm.HalfNormal("between", 1), dims="who")
        ids = pm.Data("person", person)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta + u[ids], observed=y)
    return model


def template(model: Callable[..., pm.Model]) -> pm.Model:
    return model(np.linspace(-1, 1, 24).reshape(12, 2), np.array([0, 1] * 6), np.arange(12) // 3, 4)


def fit(model: pm.Model, n: int, cores: int | None = None, **kwargs: Any) -> tuple[np.ndarray, ...]:
    method = DPADVI(**{**CHEAP, **kwargs}, unit="person", model=model)
    seen = Iterates()
    approx = quiet(method, n, callbacks=[seen], cores=cores)
    method.refine(3, progressbar=False)
    return (*seen.values, params(approx), approx.sample(3)["posterior"]["beta"].values)


MODELS = {"fixed effects": fixed, "random intercepts": intercepts}
SETTINGS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "some rows of a person": {"max_rows_per_unit": 2},
    "fixed size": {
        "sampler": "fixed_size",
        "neighboring_relation": "replace_one",
        "sampling_prob": None,
        "batch_size": 40,
    },
}


@pytest.mark.turns
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_same_bit_by_bit(model: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 1 << 12)  # some steps at once
    monkeypatch.setattr(source_units, "_AT_ONCE", 100)
    memory = fit(MODELS[model](X, Y, PERSON, PERSONS), 8, **SETTINGS[settings])
    disk = fit(template(MODELS[model]), 8, records=RECORDS, **SETTINGS[settings])
    assert not np.array_equal(memory[0], memory[-2])
    for a, b in zip(memory, disk, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.turns
@pytest.mark.compiled
@pytest.mark.parametrize(
    "model", ["fixed effects", pytest.param("random intercepts", marks=pytest.mark.slow)]
)
def test_same_bit_by_bit_compiled(model: str) -> None:
    memory = fit(MODELS[model](X, Y, PERSON, PERSONS), 20, cores=1)
    disk = fit(template(MODELS[model]), 20, records=RECORDS)
    for a, b in zip(memory, disk, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.turns
@pytest.mark.parametrize(
    "ids", [PERSON.astype("int64") + 2**40, np.array([f"id {p:04}" for p in PERSON], dtype=object)]
)
def test_ids_may_be_what_the_template_could_not_hold(ids: np.ndarray) -> None:
    plain = fit(template(fixed), 4, records=RECORDS)
    other = fit(template(fixed), 4, records={**RECORDS, "person": ids})
    if ids.dtype == object:  # strings are numbered as they come, so batches are others
        assert np.isfinite(other[-2]).all()
    else:
        np.testing.assert_array_equal(other[-2], plain[-2])


def test_persons_are_what_is_sampled_and_reported() -> None:
    settings = {**CHEAP, "sampling_prob": None, "batch_size": 30}
    approx = quiet(DPADVI(**settings, unit="person", model=template(fixed), records=RECORDS), 5)
    assert approx.privacy.runs[0].sampling_prob == 30 / PERSONS
    assert "the same 'person'" in str(approx.privacy)
    assert not re.search(rf"\b{PERSONS}\b", str(approx.privacy))  # fingerprints have any digits


@pytest.mark.turns
def test_new_persons_have_local_values() -> None:
    approx = quiet(DPADVI(**CHEAP, unit="person", model=template(intercepts), records=RECORDS), 3)
    new = {"person": [7, 7, 9], "x": X[:3], "y": Y[:3]}
    assert approx.local_posterior(new, 5, noise_aware=False)["posterior"]["u"].shape == (1, 5, 2)


class Broken:
    """Ids that cannot be read."""

    shape, dtype = (N,), np.dtype("int64")

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        raise OSError(SENTINEL)


class TooLarge(Broken):
    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        raise MemoryError(f"Unable to allocate an array of {SENTINEL}")


BAD: dict[str, tuple[Any, str]] = {
    "missing": (None, r"records lacks 'person'"),
    "floats": (PERSON.astype(float), "of the type float64"),
    "a matrix": (PERSON[:, None], r"records\['person'\] must have one id for each row"),
    "another length": (PERSON[:-1], "different lengths"),
    "one person": (np.zeros(N, dtype=int), "All rows have the same 'person'"),
    "broken": (Broken(), "OSError was raised. Nothing is spent"),
    "too large": (TooLarge(), "no room in memory for the ids"),
    "a missing id": (np.array(["a", None] * (N // 2) + ["b"], dtype=object), "without an id"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ids_are_refused_and_tell_nothing(name: str, nothing_spent: None) -> None:
    ids, message = BAD[name]
    records = {k: v for k, v in {**RECORDS, "person": ids}.items() if v is not None}
    with pytest.raises(ArgumentError, match=f"(?s){message}") as caught:
        DPADVI(**CHEAP, unit="person", model=template(fixed), records=records)
    text = "".join(traceback.format_exception(caught.value))
    assert SENTINEL not in text
    assert str(N) not in str(caught.value) and str(PERSONS) not in str(caught.value)


@pytest.mark.turns
def test_ids_of_another_length_later_are_refused(nothing_spent: None) -> None:
    class Growing(Broken):
        def __getitem__(self, indices: np.ndarray) -> np.ndarray:
            return PERSON[indices]

    ids = Growing()
    method = DPADVI(**CHEAP, unit="person", model=template(intercepts), records={**RECORDS, "person": ids})
    ids.shape = (N + 1,)
    with pytest.raises(ArgumentError, match=r"records\['person'\] has another length"):
        quiet(method, 3)


@pytest.mark.turns
def test_an_audit_passes() -> None:
    method = DPADVI(
        **{**CHEAP, "insecure_noise_seed": None}, unit="person", model=template(fixed), records=RECORDS
    )
    report = audit(method=method, n=20, runs=200, backend="python")
    assert report.passed, str(report)


@pytest.mark.turns
def test_a_budget_says_whose_the_rows_are() -> None:
    budget = PrivacyBudget(epsilon=10.0, delta=1e-3)
    settings = {**CHEAP, "insecure_noise_seed": None, "budget": budget}
    quiet(DPADVI(**settings, unit="person", model=template(fixed), records=RECORDS), 3)
    assert [run.record for run in budget.ledger] == ["the same 'person'"]
