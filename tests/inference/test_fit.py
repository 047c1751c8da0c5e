"""What comes out of `pm.fit`, `.fit` and `fit_dpadvi`, with which start, optimiser and backend."""

from __future__ import annotations

from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from short_fits import CHEAP, DATA_TREE, MARKS, SEEDED, Build, Iterates, params, quiet, still

from pymc_dpvi import (
    DPADVI,
    AdaptiveClip,
    ArgumentError,
    DPFullRank,
    DPFullRankADVI,
    DPMeanField,
    PrivacyReport,
    accounting,
    fit_dpadvi,
    runs,
)

pytestmark = MARKS


@pytest.mark.compiled
def test_the_example(table: tuple[np.ndarray, ...], tmp_path: Any) -> None:
    x, label, _ = table
    with pm.Model(coords={"feature": ["age", "weight"]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        pm.Bernoulli("income", logit_p=x @ beta, observed=label)
        approx = pm.fit(50, method=DPADVI(epsilon=1.0, delta=1e-6), progressbar=False)

    idata = approx.sample(100)
    assert type(idata).__name__ == ("DataTree" if DATA_TREE else "InferenceData")
    posterior = idata["posterior"]
    assert set(posterior.data_vars) == {"beta"}
    assert posterior["beta"].dims == ("chain", "draw", "feature")
    assert posterior["beta"].shape == (1, 100, 2)
    assert list(posterior["feature"].values) == ["age", "weight"]
    assert len(az.summary(idata, kind="stats")) == 2

    report = approx.privacy
    assert isinstance(report, PrivacyReport)
    assert 0.99 < report.epsilon <= 1.0
    assert report.delta == 1e-6
    assert (report.n_steps, report.runs[0].steps_run) == (50, 50)
    assert (report.neighboring_relation, report.sampler) == ("add_or_remove_one", "poisson")
    assert (report.gradient, report.accountant, report.guarantee) == ("aligned", "pld", "proven")
    assert report.secure_randomness and report.releasable
    assert not report.num_records_public
    assert report.unit == "one row along the leading axis of 'income'"
    assert dict(report.versions)["pymc"] == pm.__version__
    assert report.sampling_prob == accounting.default_sampling_prob(epsilon=1.0, delta=1e-6, n_steps=50)
    # nothing in the model is changed
    assert model.observed_RVs[0].eval().shape == label.shape

    path = tmp_path / "posterior.nc"
    idata.to_netcdf(str(path))
    back = az.from_netcdf(str(path))
    np.testing.assert_array_equal(back["posterior"]["beta"].values, posterior["beta"].values)
    for attrs in (idata.attrs, back.attrs, back["posterior"].attrs):
        assert attrs["privacy_epsilon"] == report.epsilon
        assert attrs["privacy_delta"] == report.delta
        assert PrivacyReport.from_json(attrs["privacy_report"]) == report


@pytest.mark.turns
@pytest.mark.parametrize(("method", "family"), [(DPADVI, DPMeanField), (DPFullRankADVI, DPFullRank)])
def test_private_fit_finds_the_posterior_at_huge_epsilon(method: Any, family: type) -> None:
    """Linear regression with known noise: the exact posterior is a formula."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    y = x @ [1.0, -0.5] + rng.normal(size=200)
    covariance = np.linalg.inv(np.eye(2) + x.T @ x)
    mean = covariance @ x.T @ y
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", x @ beta, 1, observed=y)
        private = method(**{**CHEAP, "noise_multiplier": 0.2}, l2_clip_norm=20.0)
        approx = private.fit(1500, progressbar=False)
    assert isinstance(approx, family)
    assert approx is private.approx
    sd = np.sqrt(np.diag(covariance))
    assert np.abs(approx.mean.eval() - mean).max() < 0.2 * sd.min()
    draws = approx.sample(4000, random_seed=1)["posterior"]["beta"].values[0]
    np.testing.assert_allclose(draws.mean(0), approx.mean.eval(), atol=0.02)
    # The noise-aware posterior has the correlations, whatever the family; the plain one is the family's.
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.005)
    plain = approx.sample(4000, random_seed=1, noise_aware=False)["posterior"]["beta"].values[0]
    np.testing.assert_allclose(np.cov(plain.T), approx.cov.eval(), atol=0.005)
    exact = covariance[0, 1] / sd.prod()
    assert abs(exact) > 0.7
    assert abs(np.corrcoef(draws.T)[0, 1] - exact) < 0.12
    assert abs(np.corrcoef(plain.T)[0, 1] - (exact if family is DPFullRank else 0.0)) < 0.12


@pytest.mark.turns
def test_every_shape_of_variable() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(31, 3))
    with pm.Model(coords={"group": ["a", "b"], "k": [10, 20, 30]}):
        scalar = pm.HalfNormal("scalar")
        vector = pm.Normal("vector", shape=4)
        matrix = pm.Normal("matrix", dims=("k", "group"))
        simplex = pm.Dirichlet("simplex", np.ones(2), dims="group")
        loc = x @ (matrix @ simplex) + vector.sum()
        pm.Normal("y", loc, scalar, observed=x[:, 0])
        approx = quiet(DPADVI(**CHEAP))
    posterior = approx.sample(7)["posterior"]
    dims = {name: posterior[name].dims[2:] for name in posterior.data_vars}
    assert dims == {
        "scalar": (),
        "vector": ("vector_dim_0",),
        "matrix": ("k", "group"),
        "simplex": ("group",),
    }
    assert posterior["vector"].shape == (1, 7, 4)
    assert posterior["matrix"].shape == (1, 7, 3, 2)
    assert list(posterior["k"].values) == [10, 20, 30]
    assert (posterior["scalar"].values > 0).all()
    np.testing.assert_allclose(posterior["simplex"].values.sum(-1), 1.0)


def test_model_argument(logistic: Build) -> None:
    assert quiet(DPADVI(model=logistic(), **CHEAP), 2).privacy.n_steps == 2


@pytest.mark.turns
def test_fit_dpadvi(logistic: Build) -> None:
    with logistic():
        idata = fit_dpadvi(6, draws=11, progressbar=False, **SEEDED)
        full = fit_dpadvi(
            6,
            method=DPFullRankADVI,
            draws=3,
            fit_kwargs={"obj_n_mc": 2, "include_transformed": True},
            progressbar=False,
            **CHEAP,
        )
        for wrong in ({"method": "advi"}, {"method": DPADVI(**CHEAP)}, {"draws": 0}, {"draws": 2.5}):
            with pytest.raises(ArgumentError):
                fit_dpadvi(6, progressbar=False, **wrong, **CHEAP)
    assert idata["posterior"]["beta"].shape == (1, 11, 2)
    assert full["posterior"]["beta"].shape == (1, 3, 2)
    assert 0.9 < idata.attrs["privacy_epsilon"] <= 1.0


@pytest.mark.turns
def test_score_false_is_fine(logistic: Build) -> None:
    with logistic():
        assert quiet(DPADVI(**CHEAP), 2, score=False).privacy.n_steps == 2


# -------------------------------------------------------------------------------- start


@pytest.mark.turns
def test_start(linear: Build) -> None:
    start = {"beta": np.array([1.5, -2.5]), "sigma": 0.7}
    with linear():
        approx = quiet(
            DPADVI(**CHEAP, start=start, start_sigma={"beta": np.array([0.25, 0.5])}), obj_optimizer=still()
        )
        full = quiet(DPFullRankADVI(**CHEAP, start={"beta": [1.5, -2.5]}), obj_optimizer=still())
    order = {name: s for name, s, *_ in approx.groups[0].ordering.values()}
    np.testing.assert_allclose(approx.mean.eval()[order["beta"]], [1.5, -2.5])
    np.testing.assert_allclose(approx.mean.eval()[order["sigma_log__"]], [np.log(0.7)])
    np.testing.assert_allclose(approx.std.eval()[order["beta"]], [0.25, 0.5])
    np.testing.assert_allclose(full.mean.eval()[order["beta"]], [1.5, -2.5])


def test_steps_are_in_units_of_the_priors_width_where_that_is_below_one(
    table: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = runs.falling_adam

    def watched(n: int, *rate: Any, **kwargs: Any) -> Any:
        seen.append((n, kwargs["widths"]))
        return real(n, *rate, **kwargs)

    monkeypatch.setattr(runs, "falling_adam", watched)
    with pm.Model():
        beta = pm.Normal("beta", 0, [0.05, 7.0])
        flat = pm.Flat("flat")
        pm.Normal("y", pm.Data("x", table[0]) @ beta + flat, 1.0, observed=table[2])
        approx = quiet(DPADVI(**CHEAP), 2)
    ((n, widths),) = seen
    assert n == 2
    np.testing.assert_allclose(widths, [0.05, 1.0, 1.0], rtol=0.2)
    np.testing.assert_array_equal(widths, approx._widths)


# -------------------------------------------------------------------------------- optimisers


OPTIMIZERS = ["sgd", "adagrad_window", "adam", "adadelta"]
MORE_OPTIMIZERS = ["momentum", "nesterov_momentum", "adagrad", "rmsprop", "adamax"]


@pytest.mark.parametrize(
    "name", [*OPTIMIZERS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_OPTIMIZERS)]
)
def test_optimizers(logistic: Build, name: str) -> None:
    rate = {"adadelta": 1.0}.get(name, 0.01)
    seen = Iterates()
    with logistic():
        quiet(DPADVI(**CHEAP), 3, obj_optimizer=getattr(pm, name)(learning_rate=rate), callbacks=[seen])
    moves = np.diff(seen.values, axis=0)
    assert np.isfinite(moves).all() and (moves != 0).all()


@pytest.mark.turns
def test_sgd_moves_by_rate_times_gradient(logistic: Build) -> None:
    ends = []
    for rate in (1e-4, 2e-4):
        with logistic():
            method = DPADVI(**CHEAP)
            begin = params(method.approx)
            ends.append(params(quiet(method, 1, obj_optimizer=pm.sgd(learning_rate=rate))) - begin)
    np.testing.assert_allclose(ends[1], 2 * ends[0], rtol=1e-8)


def test_total_grad_norm_constraint(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        begin = params(method.approx)
        end = params(
            quiet(method, 1, obj_optimizer=pm.sgd(learning_rate=1.0), total_grad_norm_constraint=0.5)
        )
    assert np.linalg.norm(end - begin) == pytest.approx(0.5, rel=1e-3)


def test_divergence_is_said(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        with pytest.raises(FloatingPointError, match="learning rate"):
            quiet(method, 20, obj_optimizer=pm.sgd(learning_rate=pytensor.shared(1e308)))
    assert method.approx.privacy.runs[0].n_steps == 20


# -------------------------------------------------------------------------------- backends


@pytest.mark.slow
@pytest.mark.compiled
def test_a_rare_outcome_is_learnt() -> None:
    """Known: with a share of the records clipped, a rate of two percent became a hundredth of a percent."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    y = rng.random(20_000) < 1 / (1 + np.exp(4.0 - x @ [0.5, -0.5, 0.2]))
    rates = []
    for clip in (AdaptiveClip(), AdaptiveClip(quantile=0.9)):
        with pm.Model():
            logits = pm.Normal("a", 0, 3) + pm.Data("x", x) @ pm.Normal("b", 0, 1, shape=3)
            pm.Bernoulli("y", logit_p=logits, observed=y)
            approx = quiet(DPADVI(epsilon=1.0, delta=1e-6, l2_clip_norm=clip, random_seed=1), 3000)
        a, *b = approx.mean.eval()
        rates.append(np.mean(1 / (1 + np.exp(-a - x @ b))) / y.mean())
    assert 0.6 < rates[0] < 1.6 and rates[1] < 0.1


@pytest.mark.compiled
def test_backends_agree(logistic: Build) -> None:
    results = []
    for kwargs in (
        {},
        {"backend": "numba"},
        {"backend": "c"},
        {"backend": "jax"},
        {"compile_kwargs": {"mode": "PYTHON"}},
    ):
        with logistic():
            results.append(params(pm.fit(8, method=DPADVI(**CHEAP), progressbar=False, **kwargs)))
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-9)


def test_compile_kwargs_reach_pytensor(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method, 1, compile_kwargs={"name": "my_step"})
    assert method._runs.step is not None and method._runs.step.chunk.step.name == "my_step"


def test_whole_numbers_in_a_matrix_are_as_good_as_fractions():
    """Known: int64 predictors times the transpose of the weights, as in ``X @ W.T``, did not fit."""
    rng = np.random.default_rng(0)
    whole, kinds = rng.integers(0, 3, (60, 5)), rng.integers(0, 3, 60)
    found = []
    for dtype in ("int64", "float64"):
        with pm.Model():
            w = pm.Normal("w", 0, 1, shape=(3, 5))
            pm.Categorical("y", logit_p=pt.as_tensor(whole.astype(dtype)) @ w.T, observed=kinds)
            found.append(params(quiet(DPADVI(**CHEAP), 6, obj_n_mc=2)))
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("usable", [False, True])
def test_a_fit_that_no_record_moves_says_so(usable: bool, caplog: pytest.LogCaptureFixture) -> None:
    """By its noisy counts: a column of NaN makes every gradient zero, and the result looks like any other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 2))
    if not usable:
        x[:, 1] = np.nan
    with pm.Model():
        pm.Normal("y", pt.as_tensor(x) @ pm.Normal("b", shape=2), 1.0, observed=rng.normal(size=1000))
        method = DPADVI(noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, accountant="rdp")
        method.fit(40, progressbar=False)
    assert ("tell of no record" in caplog.text) is not usable
