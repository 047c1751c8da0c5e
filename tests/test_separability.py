"""The verdict on a model: right, on synthetic records only, and with a way out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from oracle import latents_of

from pymc_dpvi import gradients, separability
from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.gradients import Latents
from pymc_dpvi.records import RecordModel, build_record_model
from pymc_dpvi.separability import check_separable

N = 19


def prepare(model: pm.Model) -> tuple[RecordModel, Latents, np.ndarray]:
    return build_record_model(model), *latents_of(model)


def plain(x: np.ndarray | None = None, y: np.ndarray | None = None) -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        eta = (rng.normal(size=(N, 2)) if x is None else x) @ beta
        pm.Normal("y", eta, 1.0, observed=rng.normal(size=N) if y is None else y)
    return model


def coupled(mix: Any, **kwargs: Any) -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(N, 2)))
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", mix(x, x @ beta), 1.0, observed=rng.normal(size=N))
    return model


def test_a_product_over_records_passes():
    assert check_separable(*prepare(plain())) is None


MIXED = {
    "Sum": lambda x, eta: eta - eta.sum(),
    "Max": lambda x, eta: eta / pt.max(x),
    "Cumsum": lambda x, eta: pt.cumsum(eta),
    "Sort": lambda x, eta: eta + pt.sort(x[:, 0]),
    "Subtensor": lambda x, eta: eta[::-1],
    "small": lambda x, eta: eta + 1e-4 * x.sum(),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_refused_and_the_operation_named(name: str):
    with pytest.raises(NotSeparableError) as caught:
        check_separable(*prepare(coupled(MIXED[name])))
    message = str(caught.value)
    assert "'y'" in message
    assert (name if name != "small" else "Sum") in message
    assert "known without these records" in message


def test_a_sum_along_a_row_is_no_mixing():
    check_separable(*prepare(coupled(lambda x, eta: eta * pt.sum(x, axis=1))))


CUT = {
    "up to the last but one": (lambda x, b, n: b[0] + x[: n - 1, 0], True),
    "the last ones": (lambda x, b, n: b[0] + x[1 - n :, 0], True),
    "as many as are tried": (lambda x, b, n: b[0] + x[:5, 0], True),
    "of what was computed": (lambda x, b, n: b[0] + (x @ b)[: n - 1], True),
    "all": (lambda x, b, n: b[0] + x[:n, 0] + x[0:, 1] + x[-n:, 0], False),
    "more than all": (lambda x, b, n: b[0] + x[: 2 * n, 0], False),
    "columns": (lambda x, b, n: b[0] + x[:, :1].sum(axis=1) + x[:, -2:] @ b[:5], False),
    "parameters": (lambda x, b, n: x @ b[: n - 1], False),
}


@pytest.mark.parametrize("name", CUT)
def test_records_chosen_by_their_place_are_refused(name: str):
    """With the five records that are tried nothing is cut, and it would be another model."""
    mean, cut = CUT[name]
    group = np.arange(N) % 2
    with pm.Model() as model:
        x = pm.Data("x", np.random.default_rng(0).normal(size=(N, 2)))
        b, c = pm.Normal("b", shape=2), pm.Normal("c", shape=2)
        # The one-record graph has no static length that would tell.
        pm.Normal("y", c[pm.Data("group", group)] + mean(x, b, N), 1.0, observed=np.zeros(N))
    if not cut:
        check_separable(*prepare(model))
        return
    with pytest.raises(NotSeparableError, match="'y' takes some of the records by their place"):
        check_separable(*prepare(model))


def test_records_chosen_by_their_place_in_a_logp_are_refused():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.CustomDist("y", mu, logp=lambda v, m: -((v[:11] - m) ** 2), observed=np.zeros(N))
    with pytest.raises(NotSeparableError, match="'y' takes some of the records by their place"):
        check_separable(*prepare(model))


HOSTILE_X = [np.full((N, 2), v) for v in (np.nan, np.inf, 1e300, 0.0, -7.0)]


@pytest.mark.parametrize("x", HOSTILE_X, ids=lambda x: str(x[0, 0]))
def test_the_verdict_does_not_turn_on_the_data(x: np.ndarray):
    check_separable(*prepare(plain(x)))
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", (x - pt.as_tensor(x).mean(axis=0)) @ beta, 1.0, observed=rng.normal(size=N))
    with pytest.raises(NotSeparableError) as caught:
        check_separable(*prepare(model))
    assert not any(text in str(caught.value) for text in ("nan", "inf", "1e+300"))


def test_the_data_are_never_evaluated(monkeypatch: pytest.MonkeyPatch):
    record, latents, start = prepare(plain())

    def refuse(*_: Any) -> None:
        raise AssertionError("the check read the records")

    monkeypatch.setattr(RecordModel, "data", refuse)
    inputs: list[Any] = []
    real = separability.python_function

    def watch(ins: Any, outs: Any) -> Any:
        inputs.append((ins, outs))
        return real(ins, outs)

    monkeypatch.setattr(separability, "python_function", watch)
    check_separable(record, latents, start)
    held = set(record.arrays)
    assert len(inputs) >= 2
    for _, outs in inputs:
        assert not held & set(separability.walk(outs, into_size=True))


# Planted: the one-row graph is not the model's


@pytest.mark.parametrize("bug", ["scaled", "shifted", "other row count"])
def test_a_wrong_one_row_graph_is_found(bug: str):
    record, latents, start = prepare(plain())
    factor = record.factors["y"]
    wrong = {"scaled": 1.001 * factor, "shifted": factor + 1e-3, "other row count": factor * N}[bug]
    with pytest.raises(NotSeparableError, match="'y'"):
        check_separable(dataclasses.replace(record, factors={"y": wrong}), latents, start)


def test_records_that_meet_in_the_gradient_are_found(monkeypatch: pytest.MonkeyPatch):
    """Both likelihoods agree, but the vectorised gradient mixes the batch."""
    real = gradients._over_batch

    def mixed(record: RecordModel, grads: Any, batch: Any) -> Any:
        return [g + 1e-300 * g.sum(axis=0, keepdims=True) for g in real(record, grads, batch)]  # NaN spreads

    monkeypatch.setattr(gradients, "_over_batch", mixed)
    with pytest.raises(NotSeparableError, match="gradient of one record"):
        check_separable(*prepare(plain()))


def test_a_likelihood_that_is_never_finite_is_not_taken_on_trust():
    def logp(value: Any, mu: Any) -> Any:
        return pt.switch(value > 1e6, -(value - mu - value.mean()), -np.inf)

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.CustomDist("y", mu, logp=logp, observed=np.full(N, 2e6))
    with pytest.raises(NotSeparableError, match=r"finite for none") as caught:
        check_separable(*prepare(model))
    assert "2e+06" not in str(caught.value) and "2000000" not in str(caught.value)


def test_each_of_several_likelihoods_is_checked():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Data("x", rng.normal(size=N))
        pm.Normal("fine", mu, 1.0, observed=rng.normal(size=N))
        pm.Normal("mixed", mu * x / x.sum(), 1.0, observed=rng.normal(size=N))
    with pytest.raises(NotSeparableError, match="'mixed'"):
        check_separable(*prepare(model))
