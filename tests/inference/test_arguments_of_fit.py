"""What is refused, by the method or by its fit, before anything is spent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from short_fits import CHEAP, MARKS, TARGET, Build, quiet

from pymc_dpvi import (
    DPADVI,
    ArgumentError,
    CalibrationError,
    DPFullRankADVI,
    NotSeparableError,
    PrivacyError,
    PrivacyWarning,
    UnsupportedModelError,
    accounting,
)

pytestmark = MARKS


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


def test_an_unproven_accountant_must_be_asked_for(logistic: Build, nothing_spent: None) -> None:
    with logistic(), pytest.raises(ArgumentError, match=r"'generic' is heuristic.*allow_unproven=True"):
        DPADVI(**TARGET, accountant="generic")


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


# -------------------------------------------------------------------------------- by the fit


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
    "compile_kwargs profile": ({"compile_kwargs": {"profile": True}}, "count the records"),
    "compile_kwargs unknown": ({"compile_kwargs": {"nonsense": True}}, "found something else"),
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


def test_run_profiling_is_refused(unspent: DPADVI, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match="unaccounted"):
        unspent.run_profiling()


BAD_PLANS: dict[str, dict[str, Any]] = {
    "full batch and q": {**TARGET, "sampler": "full_batch", "sampling_prob": 0.1},
    "noise without q": {"noise_multiplier": 1.0, "delta": 1e-6},
    "rdp and replace": {**TARGET, "accountant": "rdp", "neighboring_relation": "replace_one"},
    "tiny delta": {"epsilon": 1.0, "delta": 1e-13},
    "tiny epsilon": {"epsilon": 1e-9, "delta": 1e-8, "sampler": "full_batch"},
    "too little noise": {"noise_multiplier": 1e-5, "delta": 1e-6, "sampling_prob": 0.1},
}


@pytest.mark.turns
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


@pytest.mark.turns
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


def test_a_bayesian_accountant_does_not_know_the_counts_of_an_adaptive_clip_norm(logistic: Build) -> None:
    """They are part of the release, and its distances are those of the sum of gradients."""
    accountant = accounting.BayesianAccountant([0.1, 0.2, 0.3, 0.4], distances_are_public=True)
    given = {**CHEAP, "accountant": accountant, "allow_unproven": True}
    with logistic():
        with pytest.raises(ArgumentError, match=r"counts.*l2_clip_norm=1\.0"):
            DPADVI(**{**given, "l2_clip_norm": "adaptive"})
        DPADVI(**{**given, "l2_clip_norm": 1.0})
