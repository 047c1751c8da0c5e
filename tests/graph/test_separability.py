"""The verdict on a model: right, on synthetic records only, and with a way out."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from oracle import latents_of

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import NotSeparableError, PrivacyWarning
from pymc_dpvi.graph import gradients, separability
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.separability import check_separable

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
    assert check_separable(*prepare(plain())) is False


def zeros_and_shares(inside: float | None) -> pm.Model:
    """Zeros mixed with a beta distribution, which has no gradient at zero unless its argument is moved."""
    y = np.where(np.arange(40) % 4 == 0, 0.0, np.linspace(0.1, 0.9, 40))
    with pm.Model() as model:
        chance, mean = pm.Beta("chance", 1, 1), pm.Beta("mean", 1, 1)
        beta = pm.Beta.dist(4 * mean, 4 * (1 - mean))
        if inside is None:
            weights = pt.stack([chance, 1 - chance])
            pm.Mixture("y", w=weights, comp_dists=[pm.DiracDelta.dist(0.0), beta], observed=y)
        else:
            seen = pm.Data("seen", y)
            term = pm.logp(beta, pt.switch(seen > 0, seen, inside))
            pm.Potential("y", pt.switch(seen > 0, pt.log1p(-chance) + term, pt.log(chance)))
    return model


def test_outcomes_without_a_gradient_are_warned_of() -> None:
    """Known: all records with a zero were left out, and nothing said so."""
    said = pytest.warns(PrivacyWarning, match=r"'y' is finite, and its gradient is not")
    with zeros_and_shares(None), said:
        DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.3)
    with zeros_and_shares(0.5), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.3)


def test_nothing_is_said_of_a_potential_for_which_nothing_is_drawn() -> None:
    """Made-up bounds of an interval may be in the wrong order, where the density is finite by rounding."""
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("error")
        lower = pm.Data("lower", np.linspace(1.0, 2.0, 30))
        own = pm.LogNormal.dist(pm.Normal("mu", 1, 1), pm.HalfNormal("sigma", 1))
        upper = pm.Data("upper", np.linspace(2.0, 4.0, 30))
        pm.Potential("interval", pm.math.logdiffexp(pm.logcdf(own, upper), pm.logcdf(own, lower)))
        DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.3)


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


def _transposed(cut: Any) -> Any:
    return lambda x, b: cut(pt.stack([x, 2 * x]).T.T, b)


#: By place, by a lag, or by the number of rows, each in a way that five records do not show.
PLACES = {
    "set beyond five": lambda x, b: pt.set_subtensor((b[0] + x)[7:], b[1]),
    "set before": lambda x, b: pt.set_subtensor((b[0] + x)[:7], b[1]),
    "add beyond five": lambda x, b: pt.inc_subtensor((b[0] + x)[7:], b[1]),
    "sum beyond five": lambda x, b: b[0] * x + b[1] * x[7:].sum(),
    "on the second axis": _transposed(lambda v, b: pt.concatenate([b[0] * v[0, :7], b[1] * v[1, 7:]])),
    "bound that is computed": lambda x, b: _halves(x, b, pt.constant(3) + 4),
    "bound from the length": lambda x, b: _halves(x, b, pt.minimum(7, x.shape[0])),
    "bound that is data": lambda x, b: _halves(x, b, pt.cast(pm.Data("k", 7.0), "int64")),
    "bound far away": lambda x, b: _halves(x, b, pt.minimum(700, x.shape[0])),
    "computed, then cut": lambda x, b: _halves(x[x.shape[0] * 0 :], b, 7),
    "roll by five": lambda x, b: b[0] + b[1] * pt.roll(x, 5),
    "roll by twice five": lambda x, b: b[0] + b[1] * pt.roll(x, 10),
    "lag of five": lambda x, b: b[0] + x + b[1] * pt.set_subtensor(pt.zeros_like(x)[5:], x[:-5]),
    "eye": lambda x, b: b[0] + b[1] * (pt.eye(x.shape[0], k=5) @ x),
    "tril": lambda x, b: b[0] * x + b[1] * (pt.tril(pt.ones((x.shape[0], x.shape[0])), k=-5) @ x),
    "arange": lambda x, b: pt.switch(pt.arange(x.shape[0]) >= 7, b[0], b[1]) + 0 * x,
    "arange far away": lambda x, b: pt.switch(pt.arange(x.shape[0]) >= 70, b[0], b[1]) + 0 * x,
    "number of rows": lambda x, b: b[0] + b[1] * x * pt.gt(x.shape[0], 5),
    "difference of rows": lambda x, b: b[0] * x + pt.maximum(0, x.shape[0] - 5),
}
#: These take every record as it is.
NO_PLACES = {
    "whole": lambda x, b: b[0] * x[: x.shape[0]] + b[1],
    "whole of what is computed": lambda x, b: (b[0] * x)[: (b[0] * x).shape[0]],
    "sets all": lambda x, b: pt.set_subtensor(pt.zeros_like(x)[:], b[0] * x),
    "five columns": lambda x, b: (pt.stack([x] * 5, axis=1)[:, :5] * b[0]).sum(axis=1),
    "lags of a row": lambda x, b: pt.roll(pt.stack([x] * 7, axis=1) * b[0], 5, axis=1).sum(axis=1),
}


def _halves(x: Any, b: Any, k: Any) -> Any:
    return pt.concatenate([b[0] + x[:k], b[1] + x[k:]])


def placed(mean: Any, n: int = 12) -> pm.Model:
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(-1, 1, n))
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", mean(x, b), 1.0, observed=pm.Data("seen", np.linspace(0, 1, n)))
    return model


@pytest.mark.parametrize("name", PLACES)
def test_places_that_a_small_batch_does_not_show_are_refused(name: str):
    with pytest.raises(NotSeparableError, match=r"by their place|not a product over records"):
        check_separable(*prepare(placed(PLACES[name])))


@pytest.mark.parametrize("name", NO_PLACES)
def test_slices_that_take_all_records_pass(name: str):
    check_separable(*prepare(placed(NO_PLACES[name])))


@pytest.mark.parametrize("name", ["arange", "number of rows"])
def test_the_number_of_records_does_not_decide_how_many_are_tried(name: str):
    """With four records `arange(n) >= 7` does nothing; that there are so few must not be seen."""
    said = []
    for n in (4, 12, 60):
        with pytest.raises(NotSeparableError) as caught:
            check_separable(*prepare(placed(PLACES[name], n)))
        said.append(str(caught.value))
    assert len(set(said)) == 1


@pytest.mark.parametrize("n", [12, 31])
def test_a_refusal_does_not_tell_the_number_of_records(n: int):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.CustomDist("y", mu, logp=lambda v, m: -((v[: n - 1] - m) ** 2), observed=np.zeros(n))
    with pytest.raises(NotSeparableError) as caught:
        check_separable(*prepare(model))
    assert str(n) not in str(caught.value)


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


def test_rows_of_records_that_are_declared_public_are_named():
    x = np.linspace(0.0, 1.0, 24).reshape(12, 2)
    with pm.Model() as model:
        mean = pm.Data("x", x) @ pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", mean, 1.0, observed=x[:, 0])
    with pytest.raises(NotSeparableError, match=r"Or rows of 'x' belong to records"):
        DPADVI(model=model, epsilon=1.0, delta=1e-5, public_data=["x"])


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
