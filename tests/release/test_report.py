"""The privacy report: totals, words, and round trips."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from typing import Any

import numpy as np
import pytest

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun

RUN = PrivacyRun(
    epsilon=0.99971,
    delta=1e-6,
    n_steps=2000,
    steps_run=2000,
    sampling_prob=0.024,
    noise_multiplier=4.5678,
    l2_clip_norm=1.0,
)
REPORT = PrivacyReport(
    neighboring_relation="add_or_remove_one",
    unit="one row along the leading axis of 'income'",
    sampler="poisson",
    gradient="aligned",
    accountant="pld",
    guarantee="proven",
    secure_randomness=True,
    num_records_public=False,
    noise="lattice",
    versions=(("pymc", "5.28.5"), ("numpy", "2.4.6")),
)


def test_empty_report() -> None:
    assert (REPORT.epsilon, REPORT.delta, REPORT.runs) == (0.0, 0.0, ())
    with pytest.raises(AttributeError):
        _ = REPORT.n_steps
    assert PrivacyReport.from_json(REPORT.to_json()) == REPORT


def test_runs_add_up() -> None:
    second = dataclasses.replace(RUN, epsilon=0.5, delta=3e-6, n_steps=100, steps_run=0)
    report = REPORT.with_run(RUN).with_run(second)
    assert report.epsilon == math.fsum([0.99971, 0.5])
    assert report.delta == math.fsum([1e-6, 3e-6])
    assert (report.n_steps, report.runs) == (100, (RUN, second))
    assert (report.sampling_prob, report.noise_multiplier, report.l2_clip_norm) == (
        0.024,
        4.5678,
        1.0,
    )
    assert REPORT.runs == ()  # nothing was changed in place


def test_several_runs_without_a_budget_rest_on_a_promise() -> None:
    promise = "limited in advance"
    assert promise not in str(REPORT.with_run(RUN))
    assert promise in str(REPORT.with_run(RUN).with_run(RUN))
    assert promise not in str(dataclasses.replace(REPORT, budget="survey").with_run(RUN).with_run(RUN))
    assert "this is checked" in str(REPORT) and "this was checked" in str(REPORT.with_run(RUN))


def test_steps_run_do_not_change_the_cost() -> None:
    report = REPORT.with_run(RUN)
    stopped = report.with_steps_run(17)
    assert stopped.runs[-1].steps_run == 17
    assert (stopped.epsilon, stopped.delta) == (report.epsilon, report.delta)
    assert "2000 steps planned (17 run)" in str(stopped)
    assert "run)" not in str(report)


def test_frozen_and_hashable() -> None:
    report = REPORT.with_run(RUN)
    assert hash(report) == hash(REPORT.with_run(RUN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.guarantee = "proven"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        report.epsilon = 0.0  # type: ignore[misc]


def test_insecure_randomness_is_said_first() -> None:
    insecure = dataclasses.replace(REPORT, secure_randomness=False).with_run(RUN)
    assert str(insecure).startswith("NOT FOR RELEASE: ")
    assert "NOT FOR RELEASE" in insecure._repr_html_()
    secure = REPORT.with_run(RUN)
    assert "NOT FOR RELEASE" not in str(secure) + secure._repr_html_()
    assert secure.releasable
    assert not insecure.releasable


@pytest.mark.parametrize("guarantee", ["heuristic", "bayesian", "unknown (user supplied)"])
def test_an_unproven_bound_is_said_first(guarantee: str) -> None:
    report = dataclasses.replace(REPORT, guarantee=guarantee).with_run(RUN)
    first, *rest = str(report).splitlines()
    assert first.startswith("NOT FOR RELEASE: ")
    assert guarantee in first and "not a proven bound" in first and "'pld'" in first
    assert "upper bound" not in "".join(rest)
    assert report._repr_html_().startswith(f"<div><p><strong>{html.escape(first)}</strong></p>")
    assert not report.releasable
    both = dataclasses.replace(report, secure_randomness=False)
    assert "not a proven bound" in str(both).splitlines()[0]
    assert "came from a seed" in str(both).splitlines()[0]
    assert len(both.obstacles) == 2


def test_the_noise_decides_what_is_said_about_rounding() -> None:
    floating = "rounding is not accounted for"
    assert floating not in str(REPORT) + REPORT._repr_html_()
    assert "lattice" in str(REPORT)
    assert REPORT.releasable
    fields = {f.name: getattr(REPORT, f.name) for f in dataclasses.fields(REPORT) if f.name != "noise"}
    silent = PrivacyReport(**fields)
    assert silent.noise == "gaussian_float64"  # fails closed where nobody said
    assert floating in str(silent)
    assert str(silent).startswith("NOT FOR RELEASE: Noise was added in floating point")
    assert not silent.releasable
    with pytest.raises(ArgumentError, match="noise must be one of"):
        dataclasses.replace(REPORT, noise="gaussian")


def test_a_budget_is_named() -> None:
    named = dataclasses.replace(REPORT, budget="survey <2026>").with_run(RUN)
    assert "survey <2026>" in str(named)
    assert "survey &lt;2026&gt;" in named._repr_html_()
    assert PrivacyReport.from_json(named.to_json()).budget == "survey <2026>"
    assert "budget" not in str(REPORT.with_run(RUN))
    with pytest.raises(ArgumentError, match="budget"):
        dataclasses.replace(REPORT, budget=3)  # type: ignore[arg-type]


def test_a_report_of_format_1_is_read() -> None:
    found = REPORT.with_run(RUN).to_dict()
    del found["noise"], found["budget"]
    found["format_version"] = 1
    old = dataclasses.replace(REPORT.with_run(RUN), noise="gaussian_float64")
    assert PrivacyReport.from_json(json.dumps(found)) == old
    found["noise"] = "lattice"  # there was no such field, so it says nothing
    assert PrivacyReport.from_json(json.dumps(found)) == old
    del found["noise"]
    found["format_version"] = 2  # here the fields must be there
    with pytest.raises(ArgumentError, match="missing or wrong"):
        PrivacyReport.from_json(json.dumps(found))


def test_words() -> None:
    report = dataclasses.replace(
        REPORT,
        num_records_public=True,
        public_arrays=("region",),
        withheld=("residual",),
        guarantee="unknown (user supplied)",
    ).with_run(RUN)
    text = str(report)
    for part in (
        "0.9998",  # rounded up
        "1e-06",
        "adding or removing one record",
        "one row along the leading axis of 'income'",
        "pld",
        "unknown (user supplied)",
        "region",
        "residual",
        "numpy 2.4.6",
        "Preparation of the data",
        "Choice of the model",
        "number of records is public",
    ):
        assert part in text
        assert html.escape(part) in report._repr_html_()
    assert "probability 1" not in text  # "epsilon holds with probability 1 - delta" is false
    replaced = dataclasses.replace(report, neighboring_relation="replace_one")
    assert "replacing one record" in str(replaced)


def test_html_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    report = dataclasses.replace(
        REPORT,
        unit=evil,
        accountant=evil,
        withheld=(evil,),
        public_arrays=(evil,),
        guarantee=evil,
        versions=((evil, evil),),
    )
    assert "<script" not in report.with_run(RUN)._repr_html_()


def test_it_has_no_field_for_the_number_of_records() -> None:
    assert not any("num_records" in key and key != "num_records_public" for key in REPORT.to_dict())


def test_json() -> None:
    report = dataclasses.replace(REPORT, withheld=("a", "b")).with_run(RUN).with_run(RUN)
    found = json.loads(report.to_json())
    assert found["epsilon"] == report.epsilon
    assert found["runs"][0]["noise_multiplier"] == 4.5678
    assert found["versions"] == {"pymc": "5.28.5", "numpy": "2.4.6"}
    assert PrivacyReport.from_json(report.to_json()) == report


def test_infinite_epsilon_is_strict_json() -> None:
    report = REPORT.with_run(dataclasses.replace(RUN, epsilon=math.inf))
    text = report.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert PrivacyReport.from_json(text).epsilon == math.inf
    assert "infinite" in str(report)


def test_numpy_scalars_become_plain() -> None:
    run = dataclasses.replace(RUN, epsilon=np.float64(0.5), n_steps=2000, delta=np.float64(1e-6))
    assert type(run.epsilon) is float
    assert PrivacyReport.from_json(REPORT.with_run(run).to_json()).runs == (run,)


def broken(**changes: Any) -> str:
    found = REPORT.with_run(RUN).to_dict()
    for key, value in changes.items():
        if value is None:
            del found[key]
        else:
            found[key] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "{}",
        '{"format": "other"}',
        broken(format_version=99),
        broken(format_version=True),
        broken(format_version=[1]),
        broken(noise="other"),
        broken(budget=3),
        broken(epsilon=0.1),  # smaller than its runs: tampered with
        broken(delta=1e-9),
        broken(runs=None),
        broken(runs=[{"epsilon": 1.0}]),
        broken(runs=3),
        broken(unit=None),
        broken(unit=3),
        broken(versions=3),
        broken(secure_randomness="yes"),
        broken(withheld="abc"),
        broken(neighboring_relation="other"),
    ],
)
def test_bad_json(text: str) -> None:
    with pytest.raises(ArgumentError):
        PrivacyReport.from_json(text)


@pytest.mark.parametrize(
    "changes",
    [
        dict(epsilon=-1.0),
        dict(epsilon=math.nan),
        dict(epsilon="1"),
        dict(epsilon=True),
        dict(n_steps=1.5),
        dict(n_steps=10, steps_run=11),
        dict(steps_run=-1),
    ],
)
def test_bad_runs(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        dataclasses.replace(RUN, **changes)
