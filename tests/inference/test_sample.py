"""What a fitted approximation gives: draws, with the noise inferred or not, and no copy of itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from short_fits import CHEAP, DATA_TREE, MARKS, Build, quiet
from zoo import ZOO

from pymc_dpvi import DPADVI, ArgumentError, DPFullRankADVI, PrivacyError, UnsupportedModelError
from pymc_dpvi.engine import gradient_moments
from pymc_dpvi.posterior import approximation

pytestmark = MARKS


@pytest.mark.turns
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


@pytest.mark.turns
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


def test_sample_seed(fitted: Any) -> None:
    def draw(seed: Any) -> np.ndarray:
        return fitted.sample(3, random_seed=seed)["posterior"]["beta"].values

    np.testing.assert_array_equal(draw(5), draw(5))
    np.testing.assert_array_equal(draw(np.random.default_rng(5)), draw(5))
    assert not np.array_equal(draw(5), draw(6))
    assert not np.array_equal(draw(None), draw(None))


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


# -------------------------------------------------------------------------------- noise-aware draws


@pytest.mark.turns
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


@pytest.mark.turns
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


@pytest.mark.turns
def test_where_not_all_correlations_can_be_inferred_the_plain_posterior_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = 6
    for module in (gradient_moments, approximation):
        monkeypatch.setattr(module, "GROUP", group)
    for size in (group, group + 1):
        with pm.Model():
            z = pm.Normal("z", 0, 1, shape=size)
            pm.Normal("y", pm.Data("x", np.ones((20, size))) @ z, 1.0, observed=np.zeros(20))
            approx = quiet(DPADVI(**CHEAP), 128)
        assert approx.sample(2).attrs["noise_aware"] == (size == group)
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


# -------------------------------------------------------------------------------- copies


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


@pytest.mark.turns
def test_the_loops_of_a_model_stay_as_they_are() -> None:
    """PyTensor 2 compiles a loop in place: then neither a second method nor PyMC could take its gradient."""
    model = ZOO["epidemic_by_scan"].build()
    for _ in range(2):
        method = DPADVI(**CHEAP, model=model)
        approx = quiet(method, 2)
        assert np.isfinite(approx.sample(3)["posterior"]["share"]).all()
        method.refine(1, progressbar=False)
    assert np.isfinite(model.compile_dlogp(mode="FAST_COMPILE")(model.initial_point())).all()
