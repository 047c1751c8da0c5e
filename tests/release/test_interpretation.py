"""What a release means: the same figures from every source, in words that are true."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from types import MappingProxyType
from typing import Any

import arviz as az
import pytest

import pymc_dpvi
from pymc_dpvi import DPADVI, Interpretation, PrivacyError, accounting, interpret
from pymc_dpvi.accounting.curves.comparison import compare_accountants, epsilon_by_steps
from pymc_dpvi.accounting.curves.profiles import composed_profile, privacy_profile
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun

SETTINGS: dict[str, Any] = dict(noise_multiplier=4.0, n_steps=1000, sampling_prob=0.01)
DELTA = 1e-5
EPSILON = accounting.epsilon(delta=DELTA, **SETTINGS)
RUN = PrivacyRun(epsilon=EPSILON, delta=DELTA, steps_run=1000, l2_clip_norm=1.0, **SETTINGS)
EMPTY = PrivacyReport(
    neighboring_relation="add_or_remove_one",
    unit="one row along the leading axis of 'income'",
    sampler="poisson",
    gradient="aligned",
    accountant="pld",
    guarantee="proven",
    secure_randomness=True,
    num_records_public=False,
    noise="lattice",
)
REPORT = EMPTY.with_run(RUN)
SMALL = dataclasses.replace(
    RUN,
    n_steps=100,
    steps_run=100,
    epsilon=accounting.epsilon(delta=DELTA, **{**SETTINGS, "n_steps": 100}),
)


@pytest.fixture(scope="module")
def plan() -> Interpretation:
    return interpret(**SETTINGS, delta=DELTA)


# ------------------------------------------------------------------------ sources


def test_a_plan_and_a_report_say_the_same(plan: Interpretation) -> None:
    from_report = interpret(REPORT)
    assert from_report.epsilon == EPSILON
    assert plan.epsilon == pytest.approx(EPSILON, rel=1e-3)
    for found in (plan, from_report):
        assert isinstance(found, Interpretation)
        assert (found.delta, found.guarantee, found.basis) == (DELTA, "proven", "one_run")
        assert found.neighboring_relation == "add_or_remove_one"
    assert from_report.to_dict()["runs"][0]["accountants"] == plan.to_dict()["runs"][0]["accountants"]
    assert from_report.advantage == plan.advantage == privacy_profile(**SETTINGS).advantage
    assert REPORT.interpret().to_dict() == from_report.to_dict()
    assert from_report.unit == REPORT.unit
    assert set(REPORT.assumptions) <= set(from_report.assumptions)
    assert from_report.not_covered == REPORT.not_covered


@pytest.mark.usefixtures("without_compiling")
def test_a_fit_and_its_result(logistic: Any, tmp_path: Any) -> None:
    with logistic():
        method = DPADVI(noise_multiplier=4.0, sampling_prob=0.1, delta=1e-6)
        with pytest.raises(PrivacyError, match="call fit first"):
            interpret(method.approx)
        approx = method.fit(3, progressbar=False)
    found = interpret(approx, group_sizes=())
    assert found.to_dict() == approx.privacy.interpret(group_sizes=()).to_dict()
    assert found.epsilon == approx.privacy.epsilon
    idata = approx.sample(2)
    assert interpret(idata, group_sizes=()).to_dict() == found.to_dict()
    assert interpret(idata.posterior, group_sizes=()).to_dict() == found.to_dict()
    idata.to_netcdf(tmp_path / "posterior.nc")
    again = az.from_netcdf(tmp_path / "posterior.nc")
    assert interpret(again, group_sizes=()).to_dict() == found.to_dict()
    assert interpret(tmp_path / "posterior.nc", group_sizes=()).to_dict() == found.to_dict()
    with pytest.raises(FileNotFoundError, match="there is no file 'report'"):
        interpret("report")
    del idata.attrs["privacy_report"]  # the group has it too
    assert interpret(idata, group_sizes=()).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((3,), "source must be"),
        (([],), "source must be"),
        ((EMPTY,), "nothing has been run"),
        ((), "noise_multiplier is missing. Source must be"),
    ],
)
def test_bad_sources(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        interpret(*arguments)


@pytest.mark.parametrize(
    "change",
    [
        dict(delta=None),
        dict(delta=0.0),
        dict(delta=2.0),
        dict(n_steps=None),
        dict(sampling_prob=None),
        dict(sampler="other"),
        dict(sampler="fixed_size"),
        dict(neighboring_relation="other"),
        dict(group_sizes=(0,)),
        dict(runs_fixed_in_advance="yes"),
    ],
)
def test_bad_plans(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        interpret(**{**SETTINGS, "delta": DELTA, **change})


def test_a_source_and_a_plan_together() -> None:
    with pytest.raises(ArgumentError, match="n_steps= describes a plan"):
        interpret(REPORT, n_steps=3)


def test_data_without_a_report() -> None:
    class Data:
        attrs = MappingProxyType({})

    with pytest.raises(ArgumentError, match="no attribute 'privacy_report'"):
        interpret(Data())


# ------------------------------------------------------------------------ figures


def test_figures_are_those_of_the_curve(plan: Interpretation) -> None:
    profile = privacy_profile(**SETTINGS)
    assert plan.accuracy == 0.5 + profile.advantage / 2
    assert plan.true_positive_rate(1e-3) == profile.true_positive_rate(1e-3)
    assert plan.trade_off(1e-2) == 1 - profile.true_positive_rate(1e-2)
    assert plan.from_epsilon_alone.advantage > 1.5 * plan.advantage
    for group, records in zip(plan.groups, (2, 5), strict=True):
        assert group.records == records
        assert group.delta == DELTA
        assert group.epsilon == profile.group(records).epsilon(DELTA)
        assert plan.group(records).epsilon == group.epsilon
    assert plan.epsilon < plan.groups[0].epsilon < plan.groups[1].epsilon


def test_steps_that_were_not_run_are_counted() -> None:
    stopped = EMPTY.with_run(dataclasses.replace(RUN, steps_run=3))
    assert interpret(stopped).advantage == interpret(REPORT).advantage


@pytest.mark.parametrize(
    ("sampler", "relation", "rdp_supports"),
    [
        ("full_batch", "add_or_remove_one", True),
        ("full_batch", "replace_one", True),
        ("poisson", "replace_one", False),
        ("fixed_size", "replace_one", True),
    ],
)
def test_other_mechanisms(sampler: str, relation: str, rdp_supports: bool) -> None:
    prob = 1.0 if sampler == "full_batch" else 0.02
    noise = 60.0 if sampler == "full_batch" else 4.0
    run = dataclasses.replace(RUN, n_steps=50, steps_run=50, sampling_prob=prob, noise_multiplier=noise)
    report = dataclasses.replace(
        EMPTY, sampler=sampler, neighboring_relation=relation, num_records_public=True
    ).with_run(run)
    found = report.interpret(group_sizes=())
    figures = {f.name: f for f in found.runs[0].accountants}
    assert figures["pld"].epsilon == pytest.approx(found.profile.epsilon(DELTA), rel=2e-3)
    assert (figures["rdp"].epsilon is not None) == rdp_supports
    text = str(found)
    assert ("not supported" in text) == any(f.epsilon is None for f in figures.values())
    assert ("which of two given records" in text) == (relation == "replace_one")
    assert "The number of records." in text  # not covered


def test_every_accountant_is_compared(plan: Interpretation) -> None:
    figures = plan.runs[0].accountants
    assert [f.name for f in figures] == list(accounting.ACCOUNTANT_NAMES)
    for figure in figures:
        info = accounting.accountant_info(figure.name)
        assert (figure.guarantee, figure.source) == (info.guarantee, info.source)
        if figure.epsilon is None:
            assert figure.refusal
        else:
            asked = accounting.epsilon(delta=DELTA, accountant=figure.name, **SETTINGS)
            assert figure.epsilon == asked
        row = next(line for line in str(plan).splitlines() if line.split()[:1] == [figure.name])
        assert figure.guarantee in row
        assert ("not supported" in row) == (figure.epsilon is None)
        assert ("NOT a bound" in row) == (figure.guarantee != "proven")
    proven = [f.epsilon for f in figures if f.guarantee == "proven" and f.epsilon is not None]
    assert min(proven) == pytest.approx(plan.epsilon, rel=1e-3)
    with pytest.raises(ArgumentError, match="accountant must be"):
        compare_accountants(plan.runs[0].run, delta=DELTA, accountants=["other"])


def test_epsilon_by_steps(plan: Interpretation) -> None:
    found = epsilon_by_steps(plan.runs[0].run, delta=DELTA, n_steps=[10, 1000], accountants=["rdp", "pld"])
    assert list(found) == ["rdp", "pld"]
    assert found["pld"][1] == EPSILON
    assert found["pld"][0] < found["rdp"][0] < found["rdp"][1]
    run = Run.from_names(sampler="poisson", sampling_prob=0.1, noise_multiplier=4.0, n_steps=1)
    refused = epsilon_by_steps(
        run, delta=DELTA, n_steps=[5], neighboring_relation="replace_one", accountants=["rdp", "pld"]
    )
    assert list(refused) == ["pld"]


# ------------------------------------------------------------------------ several runs


def test_several_runs() -> None:
    report = REPORT.with_run(SMALL)
    free, fixed = interpret(report), interpret(report, runs_fixed_in_advance=True)
    first = privacy_profile(**SETTINGS)
    assert (free.basis, fixed.basis) == ("limited_in_advance", "fixed_in_advance")
    for found in (free, fixed):
        assert found.epsilon == report.epsilon
        assert found.delta == report.delta
        assert [part.run.n_steps for part in found.runs] == [1000, 100]
        assert [part.epsilon for part in found.runs] == [RUN.epsilon, SMALL.epsilon]
        assert found.runs[0].profile.advantage == first.advantage
    # The steps of both together, where that is allowed; the first and anything within the budget, where not.
    together = privacy_profile(**{**SETTINGS, "n_steps": 1100})
    assert fixed.advantage == pytest.approx(together.advantage, rel=5e-3)
    assert free.advantage == first.then(SMALL.epsilon, DELTA).advantage
    assert first.advantage < fixed.advantage < free.advantage < free.from_epsilon_alone.advantage
    assert free.profile.epsilon(free.delta) <= report.epsilon * 1.001
    assert "limited in advance" in str(free) and "limited in advance" not in str(fixed)
    assert "Run 2 by every accountant" in str(free)


def test_runs_of_different_settings_are_composed() -> None:
    other = dataclasses.replace(SMALL, noise_multiplier=2.0, sampling_prob=0.02)
    report = REPORT.with_run(other)
    parts = [
        Run.from_names(
            sampler="poisson",
            sampling_prob=r.sampling_prob,
            noise_multiplier=r.noise_multiplier,
            n_steps=r.n_steps,
        )
        for r in report.runs
    ]
    found = interpret(report, runs_fixed_in_advance=True, group_sizes=())
    assert found.advantage == composed_profile(parts).advantage
    assert found.advantage == pytest.approx(composed_profile(parts[::-1]).advantage, rel=1e-9)
    assert found.advantage > max(part.profile.advantage for part in found.runs)


def test_groups_for_several_runs_have_a_finite_epsilon() -> None:
    found = interpret(REPORT.with_run(SMALL))
    for group in found.groups:
        k = group.records
        basic = found.delta * math.expm1(k * found.epsilon) / math.expm1(found.epsilon)
        assert group.delta == pytest.approx(basic)
        assert 0 < group.epsilon <= k * found.epsilon


def test_an_infinite_epsilon() -> None:
    report = REPORT.with_run(dataclasses.replace(SMALL, epsilon=math.inf))
    found = interpret(report)
    assert found.epsilon == math.inf
    assert found.advantage == 1.0
    assert "infinite" in str(found)
    assert "no limit that could be shown" in str(found)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["epsilon"] == "inf"


# ------------------------------------------------------------------------ unproven accountants


def test_unproven_figures_are_recomputed_and_said_first() -> None:
    report = dataclasses.replace(EMPTY, accountant="mine", guarantee="unknown (user supplied)").with_run(
        dataclasses.replace(RUN, epsilon=0.001)
    )
    found = interpret(report)
    assert found.epsilon == pytest.approx(EPSILON, rel=1e-3)
    assert found.advantage == interpret(REPORT).advantage
    first, *rest = str(found).splitlines()
    assert first.startswith("NOT FOR RELEASE: ") and "not a proven bound" in first
    assert any("proven here from the settings" in line for line in rest)
    assert found.obstacles == report.obstacles
    assert found._repr_html_().startswith(f"<div><p><strong>{html.escape(first)}")


# ------------------------------------------------------------------------ words


def test_words(plan: Interpretation) -> None:
    text = str(plan)
    for part in (
        "guesses right at most",
        "wrongly in at most 0.1 % of cases",
        "wrongly in at most 1 % of cases",
        "odds",
        "several records",
        "Does not cover",
        "Preparation of the data",
        "Choice of the model",
        "nothing has been run",
        "This is a plan",
    ):
        assert part in text
        assert html.escape(part) in plan._repr_html_()
    # "epsilon holds with probability 1 - delta" is false
    assert "with probability" not in text
    assert "1 - delta" not in text and "1 − δ" not in text


def test_shown_figures_are_rounded_up(plan: Interpretation) -> None:
    line = next(line for line in str(plan).splitlines() if "guesses right" in line)
    shown = float(line.split("at most ")[1].split(" %")[0]) / 100
    assert plan.accuracy <= shown <= plan.accuracy * 1.01


def test_html_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    report = dataclasses.replace(REPORT, unit=evil, public_arrays=(evil,), withheld=(evil,))
    assert "<script" not in report.interpret(group_sizes=())._repr_html_()


def test_dict_is_plain(plan: Interpretation) -> None:
    found = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert found == plan.to_dict()
    assert found["advantage"] == plan.advantage
    assert [r["false_positive_rate"] for r in found["true_positive_rates"]] == [1e-3, 1e-2]
    assert found["runs"][0]["n_steps"] == 1000
    assert found["groups"][0]["records"] == 2


def test_frozen(plan: Interpretation) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epsilon = 0.0  # type: ignore[misc]
    assert isinstance(plan.profile, PrivacyProfile)


def test_it_is_at_the_top() -> None:
    assert pymc_dpvi.interpret is interpret
    assert {"interpret", "Interpretation"} <= set(pymc_dpvi.__all__)
