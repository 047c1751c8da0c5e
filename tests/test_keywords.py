"""Arguments that nobody would read are refused, with what to type instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import DPADVI, PrivacyBudget
from pymc_dpvi.errors import ArgumentError


@pytest.fixture
def model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1.0, observed=np.random.default_rng(0).normal(size=20))
    return model


def method(model: pm.Model, **kwargs: Any) -> DPADVI:
    return DPADVI(
        noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, accountant="rdp", model=model, **kwargs
    )


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"start": {"mu": 1.0}}, "start"),
        ({"random_seed": 3}, "random_seed"),
        ({"inf_kwargs": {"start_sigma": {"mu": 1.0}}}, "start_sigma"),
        ({"inf_kwargs": {"anything": 1}}, "anything"),
    ],
)
def test_what_pm_fit_drops_is_refused(model: pm.Model, kwargs: dict[str, Any], name: str):
    budget = PrivacyBudget(epsilon=100.0, delta=1e-5)
    with model, pytest.raises(ArgumentError, match=rf"pm.fit\(..., {name}=\).*{name}= to DPADVI itself"):
        pm.fit(2, method=method(model, budget=budget), progressbar=False, **kwargs)
    assert not budget.ledger


def test_pm_fit_with_another_model_is_refused(model: pm.Model):
    with pm.Model() as other:
        pm.Normal("z", 0, 1)
    with pytest.raises(ArgumentError, match="another model"):
        pm.fit(2, method=method(model), model=other, progressbar=False)
    with other, pytest.raises(ArgumentError, match="another model"):
        pm.fit(2, method=method(model), progressbar=False)


@pytest.mark.turns
def test_pm_fit_with_nothing_dropped_runs(model: pm.Model):
    approx = pm.fit(2, method=method(model, random_seed=3), model=model, progressbar=False, backend="python")
    assert approx.privacy.n_steps == 2


@pytest.mark.turns
def test_own_fit_inside_of_another_pm_fit_is_not_blamed(model: pm.Model):
    # It is a callback that calls it, not pm.fit, whose random_seed= is PyMC's own.
    inner = []

    def fit_inside(approx: Any, losses: Any, i: int) -> None:
        if not inner:
            inner.append(method(model).fit(1, progressbar=False, backend="python"))

    with model:
        pm.fit(2, method="advi", random_seed=1, callbacks=[fit_inside], progressbar=False)
    assert inner


def test_pm_fit_never_asks_the_class(model: pm.Model):
    # Nothing of ours is called, so PyMC's own text is all that can be said; see the notes of DPADVI.
    with model, pytest.raises(TypeError, match="Inference instance"):
        pm.fit(2, method=DPADVI)
    with model, pytest.raises(KeyError, match="Inference instance"):
        pm.fit(2, method="dpadvi")
