"""`pymc_dpvi.audit` for users: right on a right mechanism, loud on a wrong one, and blind to the data."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy import stats

import pymc_dpvi
from pymc_dpvi import DPADVI, ArgumentError, AuditReport, DPFullRankADVI, InsecureNoiseWarning
from pymc_dpvi.auditing import CheckResult
from pymc_dpvi.auditing import statistics as st
from pymc_dpvi.auditing.transcript import noise_pvalues, summarise
from pymc_dpvi.errors import PrivacyWarning
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import hostile_records
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism
from pymc_dpvi.settings import PrivacySettings

CHECKS = ["one way out", "sensitivity", "gradient", "lattice", "noise", "sampling", "randomness", "attack"]
PYTHON = {"mode": "FAST_COMPILE"}
TERMS: dict[str, Any] = dict(noise_multiplier=1.0, delta=1e-5, sampling_prob=0.2, accountant="rdp")


def audit(model: pm.Model | None, method: Any = DPADVI, **kwargs: Any) -> AuditReport:
    given = dict(runs=200, compile_kwargs=PYTHON, random_seed=1)
    if isinstance(method, type):
        given |= TERMS
    return pymc_dpvi.audit(model, method, **{**given, **kwargs})


@pytest.fixture(scope="module")
def report(logistic: Callable[[], pm.Model]) -> AuditReport:
    return audit(logistic())


# ------------------------------------------------------------------------------------------------
# The report
# ------------------------------------------------------------------------------------------------


@pytest.mark.turns
def test_a_right_mechanism_passes(report: AuditReport):
    assert report.passed and not report.failures, str(report)
    assert [r.name for r in report.results] == CHECKS
    assert 0 < report.epsilon_lower_bound < report.epsilon_claimed
    assert report.delta == 1e-5
    # One Gaussian step at noise multiplier 1 (Balle and Wang 2018); RDP's bound is above it.
    exact = 4.377
    assert report.epsilon_lower_bound < exact < report.epsilon_claimed < 1.2 * exact


def test_text(report: AuditReport):
    text = str(report)
    assert "All 8 promises were kept" in text and "Weak evidence" in text and "Costs no privacy" in text
    assert all(f"[passed] {name}" in text for name in CHECKS)
    assert "noise_multiplier" in text and "cannot prove" in text and "pymc-dpvi" in text


def test_html_is_escaped(report: AuditReport):
    shown = report._repr_html_()
    assert shown.count("<tr>") >= 8 and "Weak evidence" in shown
    wicked = CheckResult("<b>", "a < b & c", False, 1.0, 0.0, "<script>")
    page = AuditReport((wicked,), 0.1, 0.95, 1.0, 1e-5)._repr_html_()
    assert "<script>" not in page and "<b>" not in page and html.escape("a < b & c") in page


def test_json(report: AuditReport):
    found = json.loads(report.to_json())
    assert found["passed"] is True and found["format"] == "pymc_dpvi.AuditReport"
    assert [r["name"] for r in found["results"]] == CHECKS
    assert found["weak_evidence"]["epsilon_lower_bound"] == report.epsilon_lower_bound
    assert "Weak evidence" in found["weak_evidence"]["words"]
    infinite = CheckResult("x", "y", False, float("inf"), 1.0, "z")
    text = AuditReport((infinite,), 0.0, 0.95, float("nan"), 1e-5).to_json()
    assert json.loads(text)["results"][0]["statistic"] == "inf"


def test_a_failure_is_said(report: AuditReport):
    bad = CheckResult("noise", "Noise.", False, 0.0, 1e-9, "None.")
    failed = AuditReport((*report.results[:2], bad), 3.0, 0.95, 1.0, 1e-5)
    assert not failed.passed and failed.failures == ("noise",)
    assert "BROKEN: noise" in str(failed) and "FAILED" in failed._repr_html_()


# ------------------------------------------------------------------------------------------------
# What it audits
# ------------------------------------------------------------------------------------------------


@pytest.mark.turns
@pytest.mark.parametrize(
    ("method", "given"),
    [
        (DPADVI, {"gradient": "vanilla"}),
        (DPFullRankADVI, {"sampler": "full_batch", "sampling_prob": None}),
        (DPADVI, {"sampler": "fixed_size", "neighboring_relation": "replace_one"}),
        (DPFullRankADVI, {"obj_n_mc": 2}),
    ],
    ids=["vanilla", "full batch", "fixed size", "two draws"],
)
def test_other_settings(linear: Callable[[], pm.Model], method: type[DPADVI], given: dict[str, Any]):
    found = audit(linear(), method, **given)
    assert found.passed, str(found)
    # Gradients are compared with the oracle where they are those of single records and draws.
    aligned = not {"gradient", "obj_n_mc"} & set(given)
    assert [r.name for r in found.results] == [n for n in CHECKS if aligned or n != "gradient"]


@pytest.mark.turns
def test_a_method_that_was_made(logistic: Callable[[], pm.Model]):
    model = logistic()
    method = DPADVI(model=model, **TERMS)
    method.fit(5, progressbar=False, compile_kwargs=PYTHON)
    assert audit(model, method).passed  # at what the fit released


@pytest.mark.turns
def test_the_noise_is_that_of_the_planned_steps(logistic: Callable[[], pm.Model]):
    terms: Any = dict(epsilon=1.0, delta=1e-5, sampling_prob=0.2, accountant="rdp", noise_multiplier=None)
    told = dict(audit(logistic(), n=1000, **terms).settings)["noise_multiplier"]
    terms = PrivacySettings(
        **terms,
        batch_size=None,
        l2_clip_norm=1.0,
        sampler="poisson",
        neighboring_relation="add_or_remove_one",
        gradient="aligned",
    )
    assert told == f"{terms.mechanism(1000, 61).noise_multiplier:.6g} (for 1000 steps)"


@pytest.mark.turns
def test_the_model_of_the_context(logistic: Callable[[], pm.Model]):
    with logistic():
        assert audit(None).passed


@pytest.mark.turns
def test_integers_indices_and_counts():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        group = pm.Data("group", rng.integers(0, 3, size=50))
        rate = pm.Normal("rate", 0, 1, shape=3)
        pm.Poisson("count", mu=pm.math.exp(rate[group]), observed=rng.poisson(2, size=50))
    found = audit(model)
    assert found.passed, str(found)


@pytest.mark.turns
def test_an_insecure_seed_is_a_broken_promise(logistic: Callable[[], pm.Model]):
    found = audit(logistic(), insecure_noise_seed=3)
    assert found.failures == ("randomness",)
    assert "insecure_noise_seed" in str(found)


@pytest.mark.turns
def test_a_wrong_mechanism_does_not_pass(logistic: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch):
    real = Mechanism.draw

    def short(self: Mechanism, *args: Any) -> Draws:
        draws = real(self, *args)
        return Draws(draws.indices, draws.offsets, (draws.noise * 0.5).astype(draws.noise.dtype))

    monkeypatch.setattr(Mechanism, "draw", short)
    found = audit(logistic(), runs=600)
    assert "noise" in found.failures and "Do not release" in str(found)


@pytest.mark.slow
def test_the_compiled_step(logistic: Callable[[], pm.Model]):
    found = pymc_dpvi.audit(logistic(), DPADVI, epsilon=1.0, delta=1e-6, n=2000, random_seed=1)
    assert found.passed, str(found)


# ------------------------------------------------------------------------------------------------
# What it leaves alone
# ------------------------------------------------------------------------------------------------


@pytest.mark.turns
def test_the_data_are_never_read(logistic: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch):
    method = DPADVI(model=logistic(), **TERMS)

    def refuse(*_: Any) -> None:
        raise AssertionError("the audit asked for the records")

    monkeypatch.setattr(RecordModel, "data", refuse)
    assert audit(None, method).passed


@pytest.mark.turns
def test_the_data_do_not_matter(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture):
    """Everything that leaves is the same for two data sets, up to the noise of the audit itself."""

    def said(value: float) -> tuple[Any, ...]:
        x = np.full((30, 2), value)
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=2)
            pm.Normal("y", x @ beta, 1.0, observed=x[:, 0])
        with caplog.at_level(logging.DEBUG, "pymc_dpvi"):
            caplog.clear()
            found = audit(model, runs=100)
        printed = capfd.readouterr()
        # The noise leaves its rounding in the distances, and nothing else.
        measured = [
            (r.name, r.promise, r.passed, f"{r.statistic:.6f}", r.words)
            for r in found.results
            if r.name in ("one way out", "sensitivity", "gradient")
        ]
        return measured, found.settings, caplog.text, printed.out, printed.err

    assert said(0.5) == said(31415.926)


@pytest.mark.turns
def test_the_method_is_as_it_was(logistic: Callable[[], pm.Model]):
    method = DPADVI(model=logistic(), insecure_noise_seed=5, random_seed=5, **TERMS)
    other = DPADVI(model=logistic(), insecure_noise_seed=5, random_seed=5, **TERMS)
    before = [p.get_value() for p in method.approx.params]
    audit(None, method)
    for a, b in zip(before, method.approx.params, strict=True):
        np.testing.assert_array_equal(a, b.get_value())
    with pytest.raises(pymc_dpvi.PrivacyError, match="call fit first"):
        _ = method.approx.privacy  # nothing was charged
    with pytest.warns(InsecureNoiseWarning):
        left = method.fit(20, progressbar=False, compile_kwargs=PYTHON)
    with pytest.warns(InsecureNoiseWarning):
        right = other.fit(20, progressbar=False, compile_kwargs=PYTHON)
    np.testing.assert_array_equal(left.params[0].get_value(), right.params[0].get_value())


@pytest.mark.turns
def test_random_seed_fixes_what_is_public(logistic: Callable[[], pm.Model]):
    model = logistic()
    first, again = audit(model, random_seed=4), audit(model, random_seed=4)
    named = {r.name: r for r in first.results}, {r.name: r for r in again.results}
    assert named[0]["gradient"] == named[1]["gradient"]
    assert named[0]["noise"].words != named[1]["noise"].words  # noise is the system's


# ------------------------------------------------------------------------------------------------
# Arguments
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n": 0}, "n must be an integer"),
        ({"runs": 99}, "runs must be an integer between 100"),
        ({"runs": 1e4}, "runs must be an integer"),
        ({"obj_n_mc": 0}, "obj_n_mc"),
        ({"random_seed": -1}, "random_seed"),
        ({"backend": "fortran"}, "backend"),
        ({"method": "advi"}, "method must be DPADVI"),
        ({"method": pm.ADVI}, "method must be DPADVI"),
        ({"model": 3}, "model must be a pymc.Model"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_bad_arguments(logistic: Callable[[], pm.Model], given: dict[str, Any], text: str):
    arguments: dict[str, Any] = {"model": logistic(), "method": DPADVI, **TERMS, **given}
    with pytest.raises(ArgumentError, match=text):
        pymc_dpvi.audit(**arguments)


def test_arguments_that_contradict(logistic: Callable[[], pm.Model]):
    model = logistic()
    method = DPADVI(model=model, **TERMS)
    with pytest.raises(ArgumentError, match="another model"):
        pymc_dpvi.audit(logistic(), method)
    with pytest.raises(ArgumentError, match=r"does not take \['delta'\]"):
        pymc_dpvi.audit(model, method, delta=1e-5)
    with pytest.raises(ArgumentError, match="audit\\(model, method\\)"):
        pymc_dpvi.audit(method)  # type: ignore[arg-type]
    method.approx.params[0].set_value(np.full(2, np.nan))
    with pytest.raises(ArgumentError, match="not finite"):
        pymc_dpvi.audit(model, method)


# ------------------------------------------------------------------------------------------------
# The statistics: exact under the hypothesis, powerful beside it
# ------------------------------------------------------------------------------------------------


def test_normal_scores_are_exactly_normal():
    rng = np.random.default_rng(0)
    for law in (stats.binom(7, 0.2), stats.binom(1000, 0.01), stats.hypergeom(50, 20, 10)):
        scores = st.normal_scores(law.rvs(size=20_000, random_state=rng), law, rng)
        assert stats.kstest(scores, "norm").pvalue > 1e-6
        wrong = st.normal_scores(law.rvs(size=20_000, random_state=rng) + 1, law, rng)
        assert stats.kstest(wrong[np.isfinite(wrong)], "norm").pvalue < 1e-12
    assert st.normal_scores(8, stats.binom(7, 0.2), rng) == np.inf
    far = st.normal_scores([900], stats.binom(1000, 0.01), rng)  # no loss of the tail
    assert far > 30


@pytest.mark.parametrize("n", [1, 4, 200])
def test_pvalues_are_uniform(n: int):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, n, 5000))
    for found in (
        st.chi2_pvalues(a, axis=0),
        st.product_pvalues(a, b, axis=0),
        st.normal_pvalues(a[0]),
    ):
        assert stats.kstest(found, "uniform").pvalue > 1e-6


def test_clopper_pearson_is_right_in_the_tail():
    """Defining property: at the bounds the observed count is as unlikely as the error that is allowed."""
    low, high = st.clopper_pearson(np.array([0, 3, 200]), 200, 1e-10)
    assert low[0] == 0 and high[2] == 1
    np.testing.assert_allclose(stats.binom.sf(2, 200, low[1]), 1e-10, rtol=1e-6)
    np.testing.assert_allclose(stats.binom.cdf(3, 200, high[1]), 1e-10, rtol=1e-6)


def test_repetitions():
    rng = np.random.default_rng(2)
    lattice = np.rint(rng.normal(size=200_000) * 2.0**40)
    assert st.repetition_pvalue(lattice) > 1e-6
    lattice[17] = -lattice[4711]
    assert st.repetition_pvalue(lattice[:20_000]) < 1e-3
    lattice[:50] = lattice[100:150]
    assert st.repetition_pvalue(lattice) < 1e-12


def test_summary_is_the_corrected_smallest():
    assert summarise({"a": [0.5, 0.2], "b": (0.01, np.ones(3))}) == (pytest.approx(0.08), "b")
    assert summarise({"a": np.nan})[0] == 0.0


def test_the_noise_test_names_what_is_wrong():
    rng = np.random.default_rng(3)
    blocks = {"one": np.arange(3), "two": np.arange(3, 5)}
    z = rng.normal(size=(2000, 5))
    assert summarise(noise_pvalues(z, blocks))[0] > 1e-6
    z[:, 3:] *= 0.8
    pvalue, where = summarise(noise_pvalues(z, blocks))
    assert pvalue < st.FALSE_ALARM and "two" in where


def test_hostile_records_keep_types_and_shapes():
    rows = [np.ones((4, 2), dtype="float32"), np.ones(4, dtype="uint8"), np.ones((4, 1), dtype=bool)]
    made = hostile_records(rows, np.random.default_rng(0))
    assert [m.dtype for m in made] == [r.dtype for r in rows]
    assert [m.shape[1:] for m in made] == [r.shape[1:] for r in rows] and len({len(m) for m in made}) == 1
    flat = made[0].ravel()
    assert np.isnan(flat).any() and np.isposinf(flat).any() and np.isneginf(flat).any() and (flat == 0).any()
    assert made[1].max() == 255 and made[1].min() == 0


@pytest.mark.turns
def test_single_precision_is_said():
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=2)
            x = pm.Data("x", np.zeros((20, 2), dtype="float32"))
            pm.Normal("y", x @ beta, 1.0, observed=np.zeros(20, dtype="float32"))
        with pytest.warns(PrivacyWarning, match="single precision"):
            found = audit(model)
    assert found.passed, str(found)
    assert "In single precision" in str(found) and "Use float64" in str(found)
