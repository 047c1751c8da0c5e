"""The user's path: pm.fit, .fit, .refine, fit_dpadvi, and everything that can be passed to them."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.variational.callbacks import CheckParametersConvergence, Tracker
from rich.theme import Theme

from pymc_dpvi import (
    DPADVI,
    ArgumentError,
    CalibrationError,
    DPFullRank,
    DPFullRankADVI,
    DPMeanField,
    InsecureNoiseWarning,
    NotSeparableError,
    PrivacyError,
    PrivacyReport,
    PrivacyWarning,
    UnsupportedModelError,
    accounting,
    fit_dpadvi,
    inference,
)
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.pages import shown
from pymc_dpvi.progress import StepProgress

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning"),
    pytest.mark.usefixtures("without_compiling"),
]

Build = Callable[[], pm.Model]

TARGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SEEDED: dict[str, Any] = {**TARGET, "insecure_noise_seed": 1, "random_seed": 2}
#: No calibration: the quickest way to a run.
CHEAP: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.3,
    "insecure_noise_seed": 1,
    "random_seed": 2,
}
DATA_TREE = int(az.__version__.split(".")[0]) >= 1


def quiet(method: DPADVI, n: int = 5, **kwargs: Any) -> Any:
    return method.fit(n, progressbar=False, **kwargs)


def params(approx: Any) -> np.ndarray:
    return np.concatenate([p.get_value().ravel() for p in approx.params])


class Iterates:
    """A callback that keeps every iterate, and the numbers it was called with."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []
        self.calls: list[tuple[Any, int]] = []

    def __call__(self, approx: Any, losses: Any, i: int) -> None:
        self.values.append(params(approx))
        self.calls.append((losses, i))


@pytest.fixture(scope="module")
def fitted(logistic: Build) -> Any:
    with logistic():
        kwargs = {"compile_kwargs": {"mode": "PYTHON"}}
        return pm.fit(20, method=DPADVI(**SEEDED), progressbar=False, **kwargs)


_UNSPENT: list[DPADVI] = []


@pytest.fixture
def unspent(logistic: Build) -> DPADVI:
    """Return a method that has spent nothing; the same one until some test spends it by mistake."""
    if not _UNSPENT or _UNSPENT[0].approx._report is not None:
        with logistic():
            _UNSPENT[:] = [DPADVI(**CHEAP)]
    return _UNSPENT[0]


@pytest.fixture
def nothing_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as a mechanism draws a batch or noise."""

    def draw(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the mechanism was run")

    monkeypatch.setattr(Mechanism, "draw", draw)


@pytest.fixture
def steps_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, ...]]:
    """Keep (indices, noise, latent draws) of every step that is made."""
    seen: list[tuple[np.ndarray, ...]] = []
    original = PrivateStep.__call__

    def step(self: PrivateStep, indices: Any, offsets: Any, noise: Any, epsilon: Any, weights: Any) -> None:
        for t in range(len(weights)):
            batch = indices[offsets[t] : offsets[t + 1]]
            seen.append((np.array(batch), np.array(noise[t]), np.array(epsilon[t])))
        original(self, indices, offsets, noise, epsilon, weights)

    monkeypatch.setattr(PrivateStep, "__call__", step)
    return seen


# -------------------------------------------------------------------------------- the example


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


def test_deterministics(linear: Build) -> None:
    with linear() as model, model:
        rows = pt.as_tensor(np.ones(61))
        pm.Deterministic("as_long_as_the_records", rows * model["sigma"], dims="person")
        pm.Deterministic("from_outcome", model["beta"].sum() + model["x"].mean())
        approx = quiet(DPADVI(**CHEAP))
    left_out = {"mean", "as_long_as_the_records", "from_outcome"}
    assert set(approx.withheld) == set(approx.privacy.withheld) == left_out
    idata = approx.sample(9)
    posterior = idata["posterior"]
    assert set(posterior.data_vars) == {"beta", "sigma", "twice"}
    assert "person" not in posterior.coords and "person" not in posterior.dims
    np.testing.assert_array_equal(posterior["twice"].values, 2 * posterior["beta"].values)
    for node in (model["mean"], model["from_outcome"], [model["twice"], model["outcome"]]):
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            approx.sample_node(node)
    assert approx.sample_node(model["twice"], size=3).eval().shape == (3, 2)


# -------------------------------------------------------------------------------- fit_dpadvi


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


# -------------------------------------------------------------------------------- callbacks


def test_tracker(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        tracker = Tracker(
            mean=method.approx.mean.eval, std=method.approx.std.eval, hist=lambda approx, losses, i: losses
        )
        approx = pm.fit(6, method=method, callbacks=[tracker], progressbar=False)
    assert np.shape(tracker["mean"]) == np.shape(tracker["std"]) == (6, 2)
    assert tracker["hist"] == [None] * 6
    assert len(np.unique(tracker["mean"], axis=0)) == 6
    # The result is the average of the last half of the iterates (of the parameters, not of std).
    np.testing.assert_allclose(approx.mean.eval(), np.mean(tracker["mean"][3:], axis=0), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_iterates_of_the_last_half_are_averaged(logistic: Build, n: int) -> None:
    seen = Iterates()
    with logistic():
        approx = quiet(DPADVI(**CHEAP), n, callbacks=[seen])
    np.testing.assert_allclose(params(approx), np.mean(seen.values[n // 2 :], axis=0), rtol=1e-10)
    assert seen.calls == [(None, i) for i in range(1, n + 1)]
    assert approx.hist.shape == (n,) and (approx.hist > 0).all()


def test_convergence_check_stops(logistic: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pymc_dpvi")
    check = CheckParametersConvergence(every=5, tolerance=1e9)
    with logistic():
        approx = pm.fit(30, method=DPADVI(**SEEDED), callbacks=[check], progressbar=False)
    run = approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (30, 5)
    assert 0.99 < run.epsilon <= 1.0  # the planned cost
    assert "Convergence achieved at 5" in caplog.text
    assert np.isfinite(approx.sample(3)["posterior"]["beta"].values).all()


def test_stop_iteration(logistic: Build) -> None:
    def stop(approx: Any, losses: Any, i: int) -> None:
        if i == 9:
            raise StopIteration

    seen = Iterates()
    with logistic():
        approx = quiet(DPADVI(**CHEAP), 12, callbacks=[seen, stop])
    assert approx.privacy.runs[0].steps_run == 9
    np.testing.assert_allclose(params(approx), np.mean(seen.values[6:], axis=0), rtol=1e-10)


@pytest.mark.parametrize(
    ("periods", "called"),
    [([5], [1, 5, 10, 12]), ([4, 6], [1, 2, 4, 6, 8, 10, 12]), ([5, None], range(1, 13))],
)
def test_callbacks_with_a_period(logistic: Build, periods: list[int | None], called: Any) -> None:
    """Called less often, they see what they would have seen; in a second run, the count goes on."""
    seen = [Iterates() for _ in periods]
    for callback, period in zip(seen, periods, strict=True):
        if period is not None:
            callback.every = period  # type: ignore[attr-defined]
    always = Iterates()
    for callbacks in (seen, [always]):
        with logistic():
            quiet(DPADVI(**CHEAP), 12, callbacks=callbacks)
    for callback in seen:
        assert [i for _, i in callback.calls] == list(called)
        for value, i in zip(callback.values, called, strict=True):
            np.testing.assert_array_equal(value, always.values[i - 1])


def test_a_period_counts_the_steps_of_all_runs(logistic: Build) -> None:
    seen = Iterates()
    seen.every = 5  # type: ignore[attr-defined]
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method, 12, callbacks=[seen])
        method.refine(6, progressbar=False)
    assert [i for _, i in seen.calls] == [1, 5, 10, 12, 13, 15, 18]


def test_callback_that_raises(logistic: Build) -> None:
    def boom(approx: Any, losses: Any, i: int) -> None:
        if i == 3:
            raise LookupError("mine")

    with logistic():
        method = DPADVI(**SEEDED)
        with pytest.raises(LookupError, match="mine"):
            pm.fit(10, method=method, callbacks=[boom], progressbar=False)
    run = method.approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (10, 3)
    assert 0.99 < run.epsilon <= 1.0
    assert method.approx.sample(2)["posterior"]["beta"].shape == (1, 2, 2)
    method.refine(4, progressbar=False)
    assert len(method.approx.privacy.runs) == 2


# -------------------------------------------------------------------------------- progress bar


@pytest.mark.parametrize("public", [True, False])
def test_progressbar(
    logistic: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """The speed tells of the number of records: where that is private, it does not stay."""
    theme = Theme({"bar.complete": "red"})
    monkeypatch.setenv("COLUMNS", "160")
    live: list[str] = []
    advance = StepProgress.advance

    def watched(self: StepProgress, steps: int) -> None:
        advance(self, steps)
        live.append(self._bar.tasks[0].fields["speed"])

    monkeypatch.setattr(StepProgress, "advance", watched)
    with logistic():
        relation = "replace_one" if public else "add_or_remove_one"
        method = DPADVI(**SEEDED, neighboring_relation=relation)
        pm.fit(20, method=method, progressbar=True, progressbar_theme=theme)
        method.refine(10)
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert "20/20 steps" in shown and "10/10 steps" in shown
    assert live and all("steps/s" in speed for speed in live)
    assert ("steps/s" in shown) is public and ("0:00" in shown) is public
    assert "ε = 1 at δ = 1e-06" in shown
    for word in ("loss", "elbo", "score"):
        assert word not in shown.lower()


def test_no_progressbar(logistic: Build, capsys: pytest.CaptureFixture[str]) -> None:
    with logistic():
        quiet(DPADVI(**CHEAP))
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


# -------------------------------------------------------------------------------- start


def still() -> Any:
    """Return an optimiser that does nothing, so that a fit ends where it starts."""
    return pm.sgd(learning_rate=0.0)


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


BAD_STARTS: list[tuple[str, Any]] = [
    ("start", {"nobody": 1.0}),
    ("start", {"beta": np.ones(3)}),
    ("start", {"beta": np.array([np.nan, 1.0])}),
    ("start", [1.0, 2.0]),
    ("start_sigma", {"nobody": 1.0}),
    ("start_sigma", {"beta": np.array([-1.0, 1.0])}),
    ("start_sigma", {"beta": np.zeros(2)}),
    ("start_sigma", {"beta": np.array([np.inf, 1.0])}),
    ("start_sigma", 0.5),
]


@pytest.mark.parametrize(("argument", "value"), BAD_STARTS)
def test_bad_start_is_refused(linear: Build, argument: str, value: Any, nothing_spent: None) -> None:
    with linear(), pytest.raises(ArgumentError, match=argument):
        DPADVI(**CHEAP, **{argument: value})


def test_start_from_the_records_is_refused(linear: Build, nothing_spent: None) -> None:
    with linear() as model:
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            DPADVI(**CHEAP, start={"beta": model["x"].mean(0)})
        with pytest.raises(ArgumentError, match="mean-field"):
            DPFullRankADVI(**CHEAP, start_sigma={"beta": 1.0})


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


def test_obj_n_mc_costs_nothing(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    reports = []
    for n_mc in (1, 4):
        with logistic():
            reports.append(quiet(DPADVI(**SEEDED), 3, obj_n_mc=n_mc).privacy)
    assert reports[0] == reports[1]
    # The counts of records are two numbers more, however many draws there are.
    assert [noise.shape for _, noise, _ in steps_seen] == [(4,)] * 3 + [(10,)] * 3
    assert [draws.shape for *_, draws in steps_seen] == [(1, 2)] * 3 + [(4, 2)] * 3


# -------------------------------------------------------------------------------- backends


@pytest.mark.slow
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
    assert method._step is not None and method._step.chunk.step.name == "my_step"


BAD_FITS: dict[str, tuple[dict[str, Any], str]] = {
    "score": ({"score": True}, "the loss is computed on the records"),
    "backend": ({"backend": "fortran"}, "backend='fortran' is not available: choose backend='numba'"),
    "backend type": ({"backend": 3}, "backend"),
    "mode jax": ({"compile_kwargs": {"mode": "JAX"}}, "not available"),
    "mode unknown": ({"compile_kwargs": {"mode": "nonsense"}}, "mode"),
    "mode that raises on data": ({"compile_kwargs": {"mode": "NanGuardMode"}}, "mode"),
    "mode twice": ({"backend": "c", "compile_kwargs": {"mode": "CVM"}}, "not both"),
    "compile_kwargs type": ({"compile_kwargs": 5}, "compile_kwargs"),
    "compile_kwargs updates": ({"compile_kwargs": {"updates": {}}}, "updates"),
    "compile_kwargs givens": ({"compile_kwargs": {"givens": {}}}, "givens"),
    "obj_n_mc zero": ({"obj_n_mc": 0}, "obj_n_mc must be an integer between 1 and 1,000"),
    "obj_n_mc float": ({"obj_n_mc": 1.5}, "obj_n_mc must be an integer"),
    "optimizer": ({"obj_optimizer": 3}, "obj_optimizer must be a function"),
    "optimizer result": ({"obj_optimizer": lambda grads, params: 3}, "obj_optimizer must be a function"),
    "callback": ({"callbacks": ["print"]}, "callbacks must be functions"),
    "norm": ({"total_grad_norm_constraint": -1.0}, "total_grad_norm_constraint"),
    "tf_n_mc": ({"tf_n_mc": 2}, "no test function"),
    "test_optimizer": ({"test_optimizer": pm.adam()}, "no test function"),
    "more_tf_params": ({"more_tf_params": []}, "no test function"),
    "more_obj_params": ({"more_obj_params": []}, "nobody accounts for"),
    "more_updates": ({"more_updates": {}}, "unaccounted"),
    "more_replacements": ({"more_replacements": {}}, "not accounted for"),
    "fn_kwargs": ({"fn_kwargs": {}}, "use compile_kwargs"),
    "unknown": ({"colour": "red"}, "does not take colour="),
    "misspelt": ({"obj_optimzer": None}, "does not take obj_optimzer=: did you mean obj_optimizer="),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_refused_by_pm_fit(unspent: DPADVI, case: str, nothing_spent: None) -> None:
    kwargs, message = BAD_FITS[case]
    with unspent.approx.model, pytest.raises(ArgumentError, match=message):
        pm.fit(5, method=unspent, progressbar=False, **kwargs)
    with pytest.raises(PrivacyError, match="Nothing was spent"):
        _ = unspent.approx.privacy


@pytest.mark.parametrize("n", [0, -1, 2.5, "10", True, None, 10**7 + 1, 2**1100])
def test_refused_number_of_steps(unspent: DPADVI, n: Any, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match="n must be"):
        unspent.fit(n, progressbar=False)
    with pytest.raises(PrivacyError):
        _ = unspent.approx.privacy


@pytest.mark.parametrize("name", ["start", "start_sigma", "random_seed"])
def test_refused_by_fit_with_the_way_out(unspent: DPADVI, name: str, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match=f"give {name}= to DPADVI itself"):
        unspent.fit(5, **{name: 1})


def test_score_false_is_fine(logistic: Build) -> None:
    with logistic():
        assert quiet(DPADVI(**CHEAP), 2, score=False).privacy.n_steps == 2


def test_run_profiling_is_refused(unspent: DPADVI, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match="unaccounted"):
        unspent.run_profiling()


# -------------------------------------------------------------------------------- arguments of the method


BAD_METHODS: dict[str, dict[str, Any]] = {
    "neither": {"delta": 1e-6},
    "both": {**TARGET, "noise_multiplier": 1.0},
    "epsilon zero": {**TARGET, "epsilon": 0.0},
    "epsilon negative": {**TARGET, "epsilon": -1.0},
    "epsilon nan": {**TARGET, "epsilon": np.nan},
    "epsilon infinite": {**TARGET, "epsilon": np.inf},
    "epsilon text": {**TARGET, "epsilon": "1"},
    "delta zero": {**TARGET, "delta": 0.0},
    "delta one": {**TARGET, "delta": 1.0},
    "delta None": {**TARGET, "delta": None},
    "noise": {"noise_multiplier": -1.0, "delta": 1e-6},
    "clip": {**TARGET, "l2_clip_norm": 0.0},
    "clip infinite": {**TARGET, "l2_clip_norm": np.inf},
    "sampler": {**TARGET, "sampler": "round_robin"},
    "relation": {**TARGET, "neighboring_relation": "swap"},
    "gradient": {**TARGET, "gradient": "straight"},
    "accountant": {**TARGET, "accountant": "abacus"},
    "q": {**TARGET, "sampling_prob": 1.5},
    "q zero": {**TARGET, "sampling_prob": 0.0},
    "q and batch": {**TARGET, "sampling_prob": 0.1, "batch_size": 5},
    "batch": {**TARGET, "batch_size": 62},
    "batch zero": {**TARGET, "batch_size": 0},
    "fixed size without replace": {**TARGET, "sampler": "fixed_size", "batch_size": 5},
    "record_dim": {**TARGET, "record_dim": "nobody"},
    "record_dim global": {**TARGET, "record_dim": "feature"},
    "public_data": {**TARGET, "public_data": ["nobody"]},
    "seed": {**TARGET, "insecure_noise_seed": -1},
    "seed float": {**TARGET, "insecure_noise_seed": 0.5},
    "random_seed": {**TARGET, "random_seed": "a"},
    "random_seed negative": {**TARGET, "random_seed": -1},
}


@pytest.mark.parametrize("case", BAD_METHODS)
def test_refused_by_the_method(logistic: Build, case: str, nothing_spent: None) -> None:
    with logistic(), pytest.raises(ArgumentError):
        DPADVI(**BAD_METHODS[case])


BAD_PLANS: dict[str, dict[str, Any]] = {
    "full batch and q": {**TARGET, "sampler": "full_batch", "sampling_prob": 0.1},
    "noise without q": {"noise_multiplier": 1.0, "delta": 1e-6},
    "rdp and replace": {**TARGET, "accountant": "rdp", "neighboring_relation": "replace_one"},
    "tiny delta": {"epsilon": 1.0, "delta": 1e-13},
    "tiny epsilon": {"epsilon": 1e-9, "delta": 1e-8, "sampler": "full_batch"},
    "too little noise": {"noise_multiplier": 1e-5, "delta": 1e-6, "sampling_prob": 0.1},
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_refused_plans(logistic: Build, case: str, nothing_spent: None) -> None:
    """Refused at the latest when the number of steps is known, and nothing is spent."""
    method = None
    with logistic(), pytest.raises((PrivacyError, ValueError, NotImplementedError)) as caught:
        method = DPADVI(**BAD_PLANS[case])
        method.fit(10, progressbar=False)
    assert len(str(caught.value)) > 20
    if method is not None:
        with pytest.raises(PrivacyError, match="Nothing was spent"):
            _ = method.approx.privacy


def test_impossible_target_says_what_is_possible(logistic: Build, nothing_spent: None) -> None:
    with logistic():
        method = DPADVI(epsilon=0.01, delta=1e-12, sampler="full_batch", accountant="rdp")
        with pytest.raises(CalibrationError, match=r"Try epsilon >= \S+") as caught:
            pm.fit(1_000_000, method=method, progressbar=False)
        possible = float(str(caught.value).split("epsilon >= ")[1].split()[0])
        assert 0.01 < possible < 1.0
        with pytest.raises(PrivacyError, match="Nothing was spent"):
            _ = method.approx.privacy
        with pytest.raises(PrivacyError, match="Nothing was spent"):
            method.approx.sample(5)


def test_models_that_cannot_be_private(table: tuple[np.ndarray, ...], nothing_spent: None) -> None:
    x, _, outcome = table
    with pm.Model():
        data = pm.Data("x", x)
        beta = pm.Normal("beta", shape=2)
        pm.Normal("y", (data - data.mean(0)) @ beta, 1, observed=outcome)
        with pytest.raises(NotSeparableError, match="'y'"):
            DPADVI(**TARGET)
    with pm.Model(), pytest.raises(UnsupportedModelError):
        pm.Normal("alone")
        DPADVI(**TARGET)
    with pytest.raises(TypeError, match="model"):
        DPADVI(**TARGET)


def test_model_argument(logistic: Build) -> None:
    assert quiet(DPADVI(model=logistic(), **CHEAP), 2).privacy.n_steps == 2


# -------------------------------------------------------------------------------- randomness


def test_insecure_seed_and_random_seed_reproduce(logistic: Build) -> None:
    def run(**kwargs: Any) -> np.ndarray:
        with logistic():
            approx = quiet(DPADVI(**{**CHEAP, **kwargs}), 6)
        return np.concatenate([params(approx), approx.sample(2)["posterior"]["beta"].values.ravel()])

    first = run()
    np.testing.assert_array_equal(run(), first)
    assert not np.array_equal(run(insecure_noise_seed=2), first)
    assert not np.array_equal(run(random_seed=3), first)
    assert not np.array_equal(run(insecure_noise_seed=None), first)


def test_random_seed_is_for_public_draws_only(
    logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]
) -> None:
    for _ in range(2):
        with logistic():
            quiet(DPADVI(**{**CHEAP, "insecure_noise_seed": None}, l2_clip_norm=1.0), 10)
    first, second = steps_seen[:10], steps_seen[10:]
    assert len(second) == 10
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a[2], b[2])  # the latent draws are the seed's
        assert not np.isin(a[1], b[1]).any()  # the noise is not
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=True))  # nor the batches


def test_sample_seed(fitted: Any) -> None:
    def draw(seed: Any) -> np.ndarray:
        return fitted.sample(3, random_seed=seed)["posterior"]["beta"].values

    np.testing.assert_array_equal(draw(5), draw(5))
    np.testing.assert_array_equal(draw(np.random.default_rng(5)), draw(5))
    assert not np.array_equal(draw(5), draw(6))
    assert not np.array_equal(draw(None), draw(None))


def test_insecure_seed_warns_and_is_reported(logistic: Build) -> None:
    with logistic():
        with pytest.warns(InsecureNoiseWarning, match="do not release") as caught:
            approx = quiet(DPADVI(**CHEAP))
        assert len(caught) == 1
        assert caught[0].filename == __file__
    report = approx.privacy
    assert str(report).splitlines()[0].startswith("NOT FOR RELEASE")
    assert not report.secure_randomness and not report.releasable


def test_a_second_fit_says_what_both_cost(logistic: Build, caplog: pytest.LogCaptureFixture) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method)
        assert "another fit" not in caplog.text
        quiet(method)
    assert f"together epsilon = {shown(method.approx.privacy.epsilon, up=True)}," in caplog.text
    method.refine(1, progressbar=False)  # meant to add
    assert caplog.text.count("another fit") == 1


@pytest.mark.parametrize("door", ["pm.fit", "refine", "fit_dpadvi"])
def test_warnings_point_at_the_line_of_the_caller(logistic: Build, door: str) -> None:
    """Python shows a text once for each line."""
    with logistic():
        with pytest.warns(InsecureNoiseWarning) as caught:
            if door == "fit_dpadvi":
                fit_dpadvi(1, **CHEAP, progressbar=False)
            else:
                method = DPADVI(**CHEAP)
                pm.fit(1, method=method, progressbar=False)
        if door == "refine":
            with pytest.warns(InsecureNoiseWarning) as caught:
                method.refine(1, progressbar=False)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize(
    ("delta", "sampling", "warns"),
    [
        (0.1, {"batch_size": 20}, "not below"),  # 61 records, and everybody knows
        (1 / 61, {"batch_size": 20}, "not below"),
        (1 / 70, {"batch_size": 20}, None),
        (1e-3, {"sampling_prob": 0.3}, "is large"),  # their number must not decide
        (1e-5, {"sampling_prob": 0.3}, None),
    ],
)
def test_large_delta_warns(logistic: Build, delta: float, sampling: dict, warns: str | None) -> None:
    arguments = {k: v for k, v in CHEAP.items() if k != "sampling_prob"} | {"delta": delta} | sampling
    with logistic():
        method = DPADVI(**arguments)
        if warns is None:
            quiet(method, 2)  # a warning would be an error
        else:
            with pytest.warns(PrivacyWarning, match=rf"delta=.* {warns}.*1 / \(number of records\)"):
                quiet(method, 2)


# -------------------------------------------------------------------------------- charging


def test_charged_before_the_first_draw(logistic: Build, nothing_spent: None) -> None:
    with logistic():
        method = DPADVI(**SEEDED)
        with pytest.raises(AssertionError, match="the mechanism was run"):
            quiet(method, 10)
    run = method.approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (10, 0)
    assert 0.99 < run.epsilon <= 1.0


def test_keyboard_interrupt_in_a_callback(logistic: Build) -> None:
    def interrupt(approx: Any, losses: Any, i: int) -> None:
        if i == 4:
            raise KeyboardInterrupt

    seen = Iterates()
    with logistic():
        approx = pm.fit(20, method=DPADVI(**SEEDED), callbacks=[seen, interrupt], progressbar=False)
    run = approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (20, 4)
    assert 0.99 < approx.privacy.epsilon <= 1.0
    np.testing.assert_array_equal(params(approx), seen.values[-1])
    assert approx.sample(2)["posterior"]["beta"].shape == (1, 2, 2)


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="POSIX signals")
def test_keyboard_interrupt_by_signal(
    logistic: Build, monkeypatch: pytest.MonkeyPatch, steps_seen: list[tuple[np.ndarray, ...]]
) -> None:
    advance = StepProgress.advance
    over = threading.Event()

    def interrupt() -> None:
        """Again after a while: CPython drops an interrupt that comes while an object is being deleted."""
        wait = 0.05
        while not over.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 10.0

    timer = threading.Thread(target=interrupt)

    def first_chunk(self: StepProgress, steps: int) -> None:
        if timer.ident is None:  # not earlier: the steps are to be interrupted
            timer.start()
        advance(self, steps)

    monkeypatch.setattr(StepProgress, "advance", first_chunk)
    # A shell's background job is started with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with logistic():
            approx = quiet(DPADVI(**CHEAP, accountant="rdp"), 90_000)  # PLD would take seconds
    finally:
        over.set()
        timer.join()
        signal.signal(signal.SIGINT, before)
    run = approx.privacy.runs[0]
    assert run.n_steps == 90_000
    assert 0 < len(steps_seen) < 90_000
    assert abs(run.steps_run - len(steps_seen)) <= 1
    planned = accounting.epsilon(
        delta=1e-6, noise_multiplier=2.0, n_steps=90_000, sampling_prob=0.3, accountant="rdp"
    )
    assert approx.privacy.epsilon == planned
    assert np.isfinite(approx.sample(2)["posterior"]["beta"].values).all()


def test_report_follows_the_accounting(fitted: Any) -> None:
    report = fitted.privacy
    again = accounting.epsilon(
        delta=1e-6,
        noise_multiplier=report.noise_multiplier,
        n_steps=20,
        sampling_prob=report.sampling_prob,
    )
    assert report.epsilon == again <= 1.0


def switched() -> tuple[Any, Any]:
    """Return an SGD optimiser and the shared learning rate that it reads."""
    rate = pytensor.shared(np.asarray(0.05, dtype=pytensor.config.floatX))
    return (lambda grads, params: pm.sgd(grads, params, learning_rate=rate)), rate


def test_refine_composes_and_goes_on_from_the_last_iterate(logistic: Build) -> None:
    optimizer, rate = switched()
    seen = Iterates()
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 20, obj_optimizer=optimizer, callbacks=[seen])
        first = approx.privacy
        average = params(approx)
        assert not np.allclose(average, seen.values[-1])
        rate.set_value(0.0)  # the run stands still where it goes on from
        assert method.refine(6, progressbar=False) is None
    np.testing.assert_array_equal(seen.values[20], seen.values[19])
    np.testing.assert_allclose(params(approx), seen.values[19], rtol=1e-12)
    assert [i for _, i in seen.calls] == list(range(1, 27))
    report = approx.privacy
    assert len(first.runs) == 1  # the earlier report is not changed
    assert report.runs[0] == first.runs[0]
    assert (report.runs[1].n_steps, report.runs[1].steps_run) == (6, 6)
    assert report.runs[1].noise_multiplier == report.runs[0].noise_multiplier
    cost = accounting.epsilon(delta=1e-6, noise_multiplier=2.0, n_steps=6, sampling_prob=0.3)
    assert report.runs[1].epsilon == cost
    assert report.epsilon == pytest.approx(first.epsilon + cost)
    assert report.delta == pytest.approx(2e-6)
    assert approx.sample(2).attrs["privacy_epsilon"] == report.epsilon


def test_refine_adds_to_the_trace_and_a_new_fit_begins_another(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 40)
        trace = approx._trace
        assert sum(b.n for b in trace.blocks) == 40
        method.refine(16, progressbar=False)
        assert approx._trace is trace and sum(b.n for b in trace.blocks) == 56
        assert trace.path[-1].step == 56
        quiet(method, 8)
        assert sum(b.n for b in approx._trace.blocks) == 8


def test_an_interrupted_fit_keeps_the_trace_of_the_steps_run(logistic: Build) -> None:
    def interrupt(approx: Any, losses: Any, i: int) -> None:
        if i == 33:
            raise KeyboardInterrupt

    with logistic():
        approx = quiet(DPADVI(**CHEAP), 100, callbacks=[interrupt])
    assert approx.privacy.runs[0].steps_run == sum(b.n for b in approx._trace.blocks) == 33
    assert approx.sample(4, noise_aware=True).attrs["noise_aware"] == 1
    assert 16 <= approx.diagnostics().n_steps_late <= 26


@pytest.mark.parametrize("method", [DPADVI, DPFullRankADVI])
def test_noise_aware_draws(logistic: Build, method: type[DPADVI]) -> None:
    with logistic():
        approx = quiet(method(**CHEAP), 60)
    aware, plain = (approx.sample(300, random_seed=3, noise_aware=aware) for aware in (True, False))
    assert (aware.attrs["noise_aware"], plain.attrs["noise_aware"]) == (1, 0)
    default = approx.sample(300, random_seed=3)
    for name, values in aware["posterior"].data_vars.items():
        np.testing.assert_array_equal(default["posterior"][name], values)
        assert not np.allclose(plain["posterior"][name], values)
    rng = np.random.default_rng(3)
    flat = approx.draw_latents(300, rng)
    assert flat.shape == (300, approx.latents.size)
    found = approx.diagnostics()
    assert len(found.names) == approx.latents.size
    np.testing.assert_array_equal(found.prior_stddev, approx._prior.stddev)
    np.testing.assert_allclose(found.prior_stddev, 1.0, atol=0.2)  # beta ~ N(0, 1)
    assert found.share_to_clip is not None and 0.01 <= found.share_to_clip <= 0.1


def test_the_posterior_is_inferred_once_for_each_state_of_the_trace(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 40)
        first = approx._noise_aware()
        assert first is not None and approx._noise_aware() is first
        assert first.n_rows <= 40
        method.refine(16, progressbar=False)
        second = approx._noise_aware()
        assert second is not first and second.n_rows > first.n_rows
        quiet(method, 40)
        assert approx._noise_aware() not in (first, second)


def test_steps_are_in_units_of_the_priors_width_where_that_is_below_one(
    table: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = inference.falling_adam

    def watched(n: int, **kwargs: Any) -> Any:
        seen.append((n, kwargs["widths"]))
        return real(n, **kwargs)

    monkeypatch.setattr(inference, "falling_adam", watched)
    with pm.Model():
        beta = pm.Normal("beta", 0, [0.05, 7.0])
        flat = pm.Flat("flat")
        pm.Normal("y", pm.Data("x", table[0]) @ beta + flat, 1.0, observed=table[2])
        approx = quiet(DPADVI(**CHEAP), 2)
    ((n, widths),) = seen
    assert n == 2
    np.testing.assert_allclose(widths, [0.05, 1.0, 1.0], rtol=0.2)
    np.testing.assert_array_equal(widths, approx._widths)


def test_where_not_all_correlations_can_be_inferred_the_plain_posterior_is_the_default() -> None:
    from pymc_dpvi.engine.gradient_moments import GROUP

    for size in (GROUP, GROUP + 1):
        with pm.Model():
            z = pm.Normal("z", 0, 1, shape=size)
            pm.Normal("y", pm.Data("x", np.ones((20, size))) @ z, 1.0, observed=np.zeros(20))
            approx = quiet(DPADVI(**CHEAP), 2 * size)
        assert approx.sample(2).attrs["noise_aware"] == (size == GROUP)
        assert approx.sample(2, noise_aware=True).attrs["noise_aware"] == 1


def test_noise_awareness_needs_steps(logistic: Build) -> None:
    with logistic():
        approx = quiet(DPADVI(**CHEAP), 3)
    assert approx.sample(2).attrs["noise_aware"] == 0
    for ask in (lambda: approx.sample(2, noise_aware=True), approx.diagnostics):
        with pytest.raises(PrivacyError, match="too few steps"):
            ask()
    with pytest.raises(ArgumentError, match="noise_aware"):
        approx.sample(2, noise_aware="yes")


def test_refine_before_fit(unspent: DPADVI) -> None:
    with pytest.raises(TypeError, match="fit"):
        unspent.refine(3)


def test_bad_refine_spends_nothing(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 4)
        report, values = approx.privacy, params(approx)
        for n in (0, -3, 1.5, "3"):
            with pytest.raises(ArgumentError):
                method.refine(n)
    assert approx.privacy is report
    np.testing.assert_array_equal(params(approx), values)


def test_bad_second_fit_leaves_the_result(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 6)
        report, values = approx.privacy, params(approx)
        with pytest.raises(ArgumentError):
            quiet(method, 6, obj_optimizer=3)
    assert approx.privacy is report
    np.testing.assert_array_equal(params(approx), values)


def test_fit_twice(logistic: Build) -> None:
    seen = Iterates()
    with logistic():
        method = DPADVI(**SEEDED)
        quiet(method, 10, callbacks=[seen])
        approx = quiet(method, 5, obj_optimizer=still())
    report = approx.privacy
    assert [run.n_steps for run in report.runs] == [10, 5]
    assert all(0.99 < run.epsilon <= 1.0 for run in report.runs)
    assert report.epsilon == sum(run.epsilon for run in report.runs)
    assert report.delta == 2e-6
    np.testing.assert_allclose(params(approx), seen.values[-1], rtol=1e-12)


def test_noise_differs_between_runs(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    """A second run must not use the first one's noise again: the difference would be exact."""
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method, 3)
        method.refine(3, progressbar=False)
        quiet(method, 3)
    noise = np.concatenate([noise for _, noise, _ in steps_seen])
    assert len(np.unique(noise)) == noise.size == 9 * 4


# -------------------------------------------------------------------------------- mechanisms


MECHANISMS: dict[str, dict[str, Any]] = {
    "q": {"sampling_prob": 0.2},
    "batch size": {"batch_size": 7},
    "replace": {"sampling_prob": 0.2, "neighboring_relation": "replace_one"},
    "fixed size": {"sampler": "fixed_size", "batch_size": 7, "neighboring_relation": "replace_one"},
    "full batch": {"sampler": "full_batch"},
    "full batch, replace": {"sampler": "full_batch", "neighboring_relation": "replace_one"},
    "rdp": {"sampling_prob": 0.2, "accountant": "rdp"},
    "vanilla": {"sampling_prob": 0.2, "gradient": "vanilla"},
    "clip": {"sampling_prob": 0.2, "l2_clip_norm": 0.01},
}


@pytest.mark.parametrize(
    ("case", "given"),
    [
        *((case, "epsilon") for case in MECHANISMS),
        ("fixed size", "noise_multiplier"),
        ("vanilla", "noise_multiplier"),
    ],
)
def test_mechanisms(logistic: Build, case: str, given: str, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    options = MECHANISMS[case]
    target = {given: {"epsilon": 1.0, "noise_multiplier": 3.0}[given]}
    with logistic():
        approx = quiet(DPADVI(**target, delta=1e-6, insecure_noise_seed=1, **options), 4)
    report = approx.privacy
    sampler = options.get("sampler", "poisson")
    relation = options.get("neighboring_relation", "add_or_remove_one")
    assert (report.sampler, report.neighboring_relation) == (sampler, relation)
    assert report.gradient == options.get("gradient", "aligned")
    assert report.accountant == options.get("accountant", "pld")
    adaptive = "l2_clip_norm" not in options
    assert report.l2_clip_norm == (AdaptiveClip().start if adaptive else options["l2_clip_norm"])
    assert bool(report.runs[0].tally_weight) == adaptive
    q = (
        {"batch_size": 7 / 61}.get("batch_size")
        if "batch_size" in options
        else options.get("sampling_prob", 1)
    )
    assert report.sampling_prob == pytest.approx(q)
    public = relation == "replace_one" or "batch_size" in options or "gradient" in options
    assert report.num_records_public == public
    if given == "epsilon":
        assert 0.99 < report.epsilon <= 1.0
    else:
        assert report.noise_multiplier == 3.0
    sizes = [len(indices) for indices, *_ in steps_seen]
    if sampler == "fixed_size":
        assert sizes == [7] * 4
    if sampler == "full_batch":
        assert sizes == [61] * 4
    noise = np.array([noise for _, noise, _ in steps_seen])
    assert noise.shape == (4, (4 if "gradient" in options else 2) + 2 * adaptive)
    assert 0.2 < noise.std() * 2.0**-40 < 2.5  # in units of the lattice, whatever the clip norm


def test_more_cost_under_replacement(logistic: Build) -> None:
    cost = {}
    for relation in ("add_or_remove_one", "replace_one"):
        with logistic():
            cost[relation] = quiet(DPADVI(**CHEAP, neighboring_relation=relation), 3).privacy.epsilon
    assert cost["replace_one"] > 1.3 * cost["add_or_remove_one"]


def test_empty_batches_are_normal_steps(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    with logistic():
        approx = quiet(DPADVI(**{**CHEAP, "sampling_prob": 1e-4}), 20)
    assert sum(len(indices) for indices, *_ in steps_seen) < 5
    assert any(len(indices) == 0 for indices, *_ in steps_seen)
    assert np.isfinite(params(approx)).all()


def test_divergence_is_said(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        with pytest.raises(FloatingPointError, match="learning rate"):
            quiet(method, 20, obj_optimizer=pm.sgd(learning_rate=pytensor.shared(1e308)))
    assert method.approx.privacy.runs[0].n_steps == 20


# -------------------------------------------------------------------------------- the approximation


def test_include_transformed(linear: Build) -> None:
    with linear():
        approx = pm.fit(3, method=DPADVI(**CHEAP), include_transformed=True, progressbar=False)
    idata = approx.sample(5)
    np.testing.assert_allclose(
        idata["unconstrained_posterior"]["sigma_log__"].values, np.log(idata["posterior"]["sigma"].values)
    )
    assert "sigma_log__" not in idata["posterior"].data_vars

    def groups(idata: Any) -> list[str]:
        return list(idata.children) if DATA_TREE else list(idata.groups())

    assert groups(idata) == ["posterior", "unconstrained_posterior"]
    assert groups(approx.sample(5, include_transformed=False)) == ["posterior"]
    with linear():
        plain = quiet(DPADVI(**CHEAP), 2)
    assert groups(plain.sample(5)) == ["posterior"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"draws": 0},
        {"draws": -1},
        {"draws": 1.5},
        {"draws": True},
        {"return_inferencedata": False},
        {"include_log_likelihood": True},
    ],
)
def test_refused_by_sample(fitted: Any, kwargs: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        fitted.sample(**kwargs)


def copies() -> dict[str, Callable[[Any], Any]]:
    import cloudpickle

    return {
        "pickle": pickle.dumps,
        "cloudpickle": cloudpickle.dumps,
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }


@pytest.mark.parametrize("how", ["pickle", "cloudpickle", "copy", "deepcopy"])
def test_pickling_and_copying_are_refused(unspent: DPADVI, fitted: Any, how: str) -> None:
    for thing in (fitted, unspent, {"inside": fitted}, {"inside": [unspent]}):
        if how == "copy" and isinstance(thing, dict):
            continue  # a shallow copy of a dict copies no value
        with pytest.raises(TypeError, match="to_netcdf"):
            copies()[how](thing)


def test_the_report_can_be_copied(fitted: Any) -> None:
    report = fitted.privacy
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report


def test_reprs(unspent: DPADVI, fitted: Any) -> None:
    assert repr(fitted) == str(fitted) == "DPMeanField(2 latent values)"
    assert "DPADVI" in repr(unspent)


# ------------------------------------------------------------------ accountants that prove nothing


def test_an_unproven_accountant_must_be_asked_for(logistic: Build, nothing_spent: None) -> None:
    with logistic(), pytest.raises(ArgumentError, match=r"'generic' is heuristic.*allow_unproven=True"):
        DPADVI(**TARGET, accountant="generic")


def test_an_unproven_accountant_is_named_first(logistic: Build) -> None:
    with logistic():
        approx = quiet(DPADVI(**TARGET, sampling_prob=0.3, accountant="generic", allow_unproven=True))
    first = str(approx.privacy).splitlines()[0]
    assert "heuristic" in first and not approx.privacy.releasable


@pytest.mark.parametrize("name", ["moments", "advanced_composition"])
def test_proven_accountants_calibrate(logistic: Build, name: str) -> None:
    with logistic():
        approx = quiet(DPADVI(**TARGET, sampling_prob=0.1, accountant=name))
    report = approx.privacy
    assert (report.accountant, report.guarantee) == (name, "proven")
    truth = accounting.epsilon(
        delta=report.delta,
        noise_multiplier=report.noise_multiplier,
        n_steps=5,
        sampling_prob=report.sampling_prob,
    )
    assert truth <= report.epsilon <= 1.0
