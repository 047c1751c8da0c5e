"""Per-record gradients against finite differences and against one record at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from oracle import latents_of, points
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.replace import graph_replace
from zoo import ZOO

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph import opaque
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import Latents, aligned_gradients, vanilla_gradients
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField

# Dense and outer gradients, matrix-valued parameters, several outcomes, parameters that no record reaches.
MODELS = ("linear", "logistic_logit", "categorical_softmax", "radon_centered", "several_outcomes")


def unused_parameter() -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        pm.Normal("unused", 0, 1, shape=2)
        w = pm.Normal("w", 0, 1, shape=(3, 2), initval=rng.normal(size=(3, 2)))
        v = pm.Normal("v", 0, 1, shape=2, initval=[0.3, -0.4])
        sigma = pm.HalfNormal("sigma", 1)
        h = pt.tanh(pm.Data("x", rng.normal(size=(14, 3))) @ w)
        pm.Normal("y", h @ v, sigma, observed=rng.normal(size=14))
    return model


def build(name: str) -> RecordModel:
    return build_record_model(unused_parameter() if name == "unused" else ZOO[name].build())


def evaluate(inputs: list[Any], outputs: Any, *values: Any) -> Any:
    return pm_compile(inputs, outputs, mode="PYTHON", on_unused_input="ignore")(*values)


def row_logp(record: RecordModel, latents: Latents) -> Any:
    """``f(z, i)``: the model's own log-density of record i, without the prior."""
    model = record.model
    z = pt.vector("z")
    terms = model.logp(vars=list(model.observed_RVs), sum=False)
    rows = sum(t.sum(axis=tuple(range(1, t.ndim))) if t.ndim > 1 else t for t in terms)
    swap = dict(zip(latents.value_vars, latents.split(z), strict=True))
    (out,) = graph_replace([rows], swap, strict=False)
    return pm_compile([z], out, mode="PYTHON", on_unused_input="ignore")


def gather(record: RecordModel, rows: np.ndarray) -> list[Any]:
    """The rows, as the step has them: with an unknown number of them."""
    values = [array_value(a)[rows] for a in record.arrays]
    return [pt.specify_shape(pytensor.shared(v), (None, *v.shape[1:])) for v in values]


def aligned(record: RecordModel, latents: Latents, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
    n_mc = len(z)
    batch = gather(record, rows)
    at = pt.matrix("z", shape=(n_mc, latents.size))
    return evaluate([at], as_matrix(aligned_gradients(record, batch, latents, at, n_mc)), z)


@pytest.mark.parametrize("name", [*MODELS, "unused"])
def test_aligned_against_finite_differences(name: str):
    record = build(name)
    latents, start = latents_of(record.model)
    (z,) = points(start, 1)
    logp = row_logp(record, latents)
    got = aligned(record, latents, np.arange(record.num_records), z[None])
    assert got.shape == (record.num_records, latents.size)
    for j in range(latents.size):
        h = np.zeros_like(z)
        h[j] = 1e-5
        difference = (logp(z + h) - logp(z - h)) / 2e-5
        np.testing.assert_allclose(got[:, j], difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_aligned_against_one_record_at_a_time(name: str):
    record = build(name)
    latents, start = latents_of(record.model)
    (z,) = points(start, 1)
    model = record.model
    at = pt.vector("z")
    terms = model.logp(vars=list(model.observed_RVs), sum=False)
    which = pt.iscalar("i")
    one = sum(t[which].sum() for t in terms)
    grads = pytensor.grad(
        one, list(latents.value_vars), disconnected_inputs="ignore", return_disconnected="zero"
    )
    flat = pt.concatenate([g.flatten() for g in grads])
    swap = dict(zip(latents.value_vars, latents.split(at), strict=True))
    (flat,) = graph_replace([flat], swap, strict=False)
    fn = pm_compile([at, which], flat, mode="PYTHON", on_unused_input="ignore")
    rows = np.array([5, 0, 7, 7])  # any order, and twice the same
    expected = np.array([fn(z, np.int32(i)) for i in rows])
    np.testing.assert_allclose(aligned(record, latents, rows, z[None]), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.turns
@pytest.mark.parametrize("name", ["linear", "radon_centered", "unused"])
def test_several_draws_are_stacked_and_divided_by_the_root(name: str):
    record = build(name)
    latents, start = latents_of(record.model)
    z = np.array(points(start, 3))
    rows = np.array([1, 4, 2])
    got = aligned(record, latents, rows, z)
    singles = [aligned(record, latents, rows, draw[None]) for draw in z]
    np.testing.assert_allclose(got, np.concatenate(singles, axis=1) / np.sqrt(3), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", [DPMeanField, DPFullRank])
@pytest.mark.parametrize("n_mc", [1, 2])
def test_vanilla_is_the_gradient_of_each_records_share(family: type[DPApproximation], n_mc: int):
    """L_i = mean over draws of (log p(x_i|z) + log p(z)/N) + H/N, by finite differences."""
    record = build("linear")
    approx = family(record, random_seed=0)
    latents, group = approx.latents, approx.groups[0]
    params = list(group.params)
    rng = np.random.default_rng(1)
    for p in params:
        p.set_value(p.get_value() + rng.normal(scale=0.2, size=p.get_value().shape))
    epsilon = rng.normal(size=(n_mc, latents.size))
    fixed = {group.symbolic_initial: pt.as_tensor(epsilon)}
    z, logq = graph_replace([group.symbolic_random, group.symbolic_logq_not_scaled], fixed, strict=False)
    rows = np.array([3, 0, 8])
    batch = gather(record, rows)
    draws_in = pt.as_tensor(epsilon)
    blocks = vanilla_gradients(record, batch, latents, group, draws_in, z, -logq.mean(), n_mc)
    got = evaluate([], as_matrix(blocks))
    assert got.shape == (3, sum(p.get_value().size for p in params))

    logp, at = row_logp(record, latents), pt.vector("z")
    swap = dict(zip(latents.value_vars, latents.split(at), strict=True))
    (prior,) = graph_replace([record.model.varlogp], swap, strict=False)
    prior_fn = pm_compile([at], prior, mode="PYTHON")
    draws = pm_compile([], [z, -logq.mean()], mode="PYTHON")
    n = record.num_records

    def shares() -> np.ndarray:
        latent, entropy = draws()
        return np.mean([logp(v)[rows] + prior_fn(v) / n for v in latent], axis=0) + entropy / n

    column = 0
    for p in params:
        value = p.get_value()
        for j in range(value.size):
            h = np.zeros_like(value)
            h[j] = 1e-5
            p.set_value(value + h)
            up = shares()
            p.set_value(value - h)
            np.testing.assert_allclose(got[:, column], (up - shares()) / 2e-5, rtol=1e-4, atol=1e-5)
            column += 1
        p.set_value(value)


def test_latents_split_and_size():
    a, b, c = pt.vector("a"), pt.matrix("b"), pt.scalar("c", dtype="float32")
    latents = Latents((a, b, c), (slice(4, 6), slice(0, 4), slice(6, 7)), ((2,), (2, 2), ()))
    assert latents.size == 7
    z = np.arange(14.0).reshape(2, 7)
    at = pt.matrix("z")
    one, two, three = evaluate([at], latents.split(at), z)
    np.testing.assert_array_equal(one, [[4, 5], [11, 12]])
    np.testing.assert_array_equal(two, [[[0, 1], [2, 3]], [[7, 8], [9, 10]]])
    np.testing.assert_array_equal(three, [6, 13])
    assert three.dtype == np.float32
    single = pt.vector("z1")
    np.testing.assert_array_equal(evaluate([single], latents.split(single)[1], z[0]), [[0, 1], [2, 3]])


def test_a_gradient_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch):
    class Opaque(pytensor.graph.op.Op):
        itypes, otypes = [pt.dscalar], [pt.dscalar]

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = np.asarray(inputs[0])

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", Opaque()(mu) * pm.Data("x", np.ones(8)), 1.0, observed=np.zeros(8))
    # An operation that is not PyTensor's is refused earlier; one of PyTensor's may have no gradient either.
    monkeypatch.setattr(opaque, "_KNOWN_PACKAGES", {Opaque.__module__, *opaque._KNOWN_PACKAGES})
    record = build_record_model(model)
    latents, start = latents_of(model)
    with pytest.raises(UnsupportedModelError, match="no gradient"):
        aligned(record, latents, np.arange(3), start[None])
