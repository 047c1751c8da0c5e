"""A second run of one method, by `.refine` or by another `.fit`: it goes on, it adds up, its noise is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
from short_fits import CHEAP, MARKS, SEEDED, Build, Iterates, params, quiet, still

from pymc_dpvi import DPADVI, ArgumentError, accounting
from pymc_dpvi.pages import shown

pytestmark = MARKS


def switched() -> tuple[Any, Any]:
    """Return an SGD optimiser and the shared learning rate that it reads."""
    rate = pytensor.shared(np.asarray(0.05, dtype=pytensor.config.floatX))
    return (lambda grads, params: pm.sgd(grads, params, learning_rate=rate)), rate


@pytest.mark.turns
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


@pytest.mark.turns
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


def test_refine_before_fit(unspent: DPADVI) -> None:
    with pytest.raises(TypeError, match="fit"):
        unspent.refine(3)


@pytest.mark.turns
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


# -------------------------------------------------------------------------------- another fit


@pytest.mark.turns
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


@pytest.mark.turns
def test_bad_second_fit_leaves_the_result(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        approx = quiet(method, 6)
        report, values = approx.privacy, params(approx)
        with pytest.raises(ArgumentError):
            quiet(method, 6, obj_optimizer=3)
    assert approx.privacy is report
    np.testing.assert_array_equal(params(approx), values)


@pytest.mark.turns
def test_noise_differs_between_runs(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    """A second run must not use the first one's noise again: the difference would be exact."""
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method, 3)
        method.refine(3, progressbar=False)
        quiet(method, 3)
    noise = np.concatenate([noise for _, noise, _ in steps_seen])
    assert len(np.unique(noise)) == noise.size == 9 * 5


@pytest.mark.turns
def test_a_second_fit_says_what_both_cost(logistic: Build, caplog: pytest.LogCaptureFixture) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method)
        assert "another fit" not in caplog.text
        quiet(method)
    assert f"together epsilon = {shown(method.approx.privacy.epsilon, up=True)}," in caplog.text
    method.refine(1, progressbar=False)  # meant to add
    assert caplog.text.count("another fit") == 1
