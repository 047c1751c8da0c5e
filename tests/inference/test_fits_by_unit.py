"""Fits whose records are persons with several rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import DPADVI, PrivacyBudget, PrivacyReport, audit
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

RNG = np.random.default_rng(5)
ROWS = RNG.integers(1, 7, size=300)
IDS = RNG.permutation(np.repeat(np.arange(300), ROWS))
X = RNG.normal(size=(IDS.size, 2))
Y = X @ [1.0, -0.5] + RNG.normal(size=IDS.size)
OPTIONS: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "sampling_prob": 0.2,
    "random_seed": 1,
    "insecure_noise_seed": 2,
}


def visits(rows: Any = slice(None)) -> pm.Model:
    with pm.Model() as model:
        pm.Data("person", IDS[rows])
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", pm.Data("x", X[rows]) @ b, pm.HalfNormal("s"), observed=Y[rows])
    return model


def fitted(model: pm.Model, n: int = 60, backend: str = "python", **more: Any) -> np.ndarray:
    approx = DPADVI(**{**OPTIONS, **more}, model=model).fit(n, progressbar=False, backend=backend)
    return np.concatenate([p.get_value() for p in approx.params])


@pytest.mark.turns
@pytest.mark.parametrize("clip", [1.0, "adaptive"])
def test_where_everybody_has_one_row_it_is_the_fit_by_rows(clip: Any):
    by_rows = fitted(visits(), l2_clip_norm=clip)
    by_persons = fitted(visits(), l2_clip_norm=clip, unit=np.arange(IDS.size))
    np.testing.assert_allclose(by_rows, by_persons, rtol=1e-9)


@pytest.mark.turns
@pytest.mark.parametrize("sampler", ["poisson", "full_batch"])
def test_it_is_the_fit_of_a_model_with_one_wide_row_for_each_person(sampler: str):
    """Persons of three rows, which can be written as one row: the same batches, the same sums."""
    ids = np.repeat(np.arange(100), 3)
    x, y = X[:300], Y[:300]
    with pm.Model() as tall:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", pm.Data("x", x) @ b, pm.HalfNormal("s"), observed=y)
    with pm.Model() as wide:
        b = pm.Normal("b", 0, 1, shape=2)
        mean = pm.Data("x", x.reshape(100, 3, 2)) @ b
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=y.reshape(100, 3))
    options = {"sampler": sampler, "sampling_prob": 0.2 if sampler == "poisson" else None}
    found = fitted(tall, unit=ids, **options)
    np.testing.assert_allclose(found, fitted(wide, **options), rtol=1e-8)
    order = np.random.default_rng(0).permutation(300)
    with pm.Model() as shuffled:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", pm.Data("x", x[order]) @ b, pm.HalfNormal("s"), observed=y[order])
    np.testing.assert_allclose(found, fitted(shuffled, unit=ids[order], **options), rtol=1e-8)


@pytest.mark.turns
@pytest.mark.parametrize("backend", ["numba", pytest.param("c", marks=pytest.mark.slow), "jax"])
def test_backends_agree(backend: str):
    expected = fitted(visits(), n=20, unit="person", max_rows_per_unit=4)
    found = fitted(visits(), n=20, backend=backend, unit="person", max_rows_per_unit=4)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.turns
def test_the_report_speaks_of_persons():
    method = DPADVI(epsilon=1.0, delta=1e-6, unit="person", max_rows_per_unit=5, model=visits())
    report = method.fit(20, progressbar=False).privacy
    assert report.by_unit and report.releasable
    assert report.unit.startswith("all rows of 'y' with the same 'person'; of more than 5 rows, 5 are drawn")
    assert "All rows of one id are one record" in str(report)
    assert PrivacyReport.from_json(report.to_json()) == report
    assert report.interpret().unit == report.unit
    for secret in (str(len(ROWS)), str(IDS.size)):
        assert secret not in report.to_json()


@pytest.mark.turns
def test_a_report_of_an_older_version_is_by_rows():
    report = DPADVI(epsilon=1.0, delta=1e-6, model=visits()).fit(20, progressbar=False).privacy
    older = report.to_json().replace('"format_version": 7', '"format_version": 5')
    assert PrivacyReport.from_json(older.replace('"by_unit": false, "on_workers": false, ', "")) == report


@pytest.mark.turns
def test_the_number_of_persons_sets_a_batch_size():
    method = DPADVI(**{**OPTIONS, "sampling_prob": None}, batch_size=60, unit="person", model=visits())
    assert method.fit(5, progressbar=False).privacy.sampling_prob == 60 / len(np.unique(IDS))


@pytest.mark.turns
def test_refine_goes_on_by_person_and_asks_for_the_same_ids():
    model = visits()
    method = DPADVI(**OPTIONS, unit="person", model=model)
    method.fit(10, progressbar=False, backend="python")
    method.refine(10, progressbar=False)
    assert len(method.approx.privacy.runs) == 2
    with model:
        pm.set_data({"person": IDS[::-1].copy()})
    for go_on in (lambda: method.refine(10), lambda: method.approx.sample(3)):
        with pytest.raises(UnsupportedModelError, match="ids in 'person'"):
            go_on()
    assert len(method.approx.privacy.runs) == 2


@pytest.mark.turns
def test_neither_ids_nor_numbers_of_rows_are_in_a_sample():
    method = DPADVI(**OPTIONS, unit="person", model=visits())
    posterior = method.fit(30, progressbar=False, backend="python").sample(4, noise_aware=False)["posterior"]
    assert set(posterior.data_vars) == {"b", "s"}
    assert set(posterior.dims) == {"chain", "draw", "b_dim_0"}


@pytest.mark.turns
def test_an_audit_is_of_persons():
    report = audit(
        method=DPADVI(epsilon=1.0, delta=1e-6, unit="person", max_rows_per_unit=5, model=visits()),
        n=100,
        runs=200,
        backend="python",
        random_seed=1,
    )
    assert report.passed, str(report)
    assert "all rows of 'y' with the same 'person'" in str(report)


def test_a_person_with_500_hostile_rows_moves_the_fit_by_one_persons_share():
    """The same noise in both: the sum moves by at most C, however many rows, and whatever they hold."""
    rng = np.random.default_rng(2)
    ids, x, y = np.append(IDS, np.full(500, 999)), np.vstack([X, rng.normal(size=(500, 2)) * 50]), None
    y = np.append(Y, np.full(500, 1e4))

    def sum_of_gradients(rows: slice) -> np.ndarray:
        with pm.Model() as model:
            b = pm.Normal("b", 0, 1, shape=2)
            pm.Normal("y", pm.Data("x", x[rows]) @ b, 1.0, observed=y[rows])
        method = DPADVI(
            **{**OPTIONS, "sampling_prob": None},
            sampler="full_batch",
            l2_clip_norm=2.0,
            unit=ids[rows],
            model=model,
        )
        taken: list[np.ndarray] = []

        def keep(grads: Any, params: Any) -> Any:
            return [(p, p - g) for p, g in zip(params, grads, strict=True)]

        before = [p.get_value() for p in method.approx.params]
        method.fit(1, progressbar=False, backend="python", obj_optimizer=keep)
        taken = [a - p.get_value() for a, p in zip(before, method.approx.params, strict=True)]
        return np.asarray(taken[[p.name for p in method.approx.params].index("mu")])

    apart = sum_of_gradients(slice(None)) - sum_of_gradients(slice(IDS.size))
    assert 1.9 < np.linalg.norm(apart) <= 2.001


@pytest.mark.turns
def test_a_budget_adds_up_fits_with_one_kind_of_record_alone():
    budget = PrivacyBudget(epsilon=10.0, delta=1e-4)
    common: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "budget": budget}
    DPADVI(**common, unit="person", model=visits()).fit(5, progressbar=False, backend="python")
    for other in ({}, {"unit": np.arange(IDS.size) // 2}):
        with pytest.raises(ArgumentError, match="do not add up"):
            DPADVI(**common, **other, model=visits()).fit(5, progressbar=False, backend="python")
    assert len(budget.to_dict()["charges"]) == 1
