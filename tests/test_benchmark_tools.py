"""What the benchmarks share: README's table of accuracies, and processes that say no more than they must."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def readme_table() -> Any:
    return benchmark("readme_table")


def run() -> dict[str, Any]:
    """What `logistic_regression.py` writes, in short."""
    rows, fits = [], []
    for name in ("abalone", "adult"):
        for epsilon in (None, 0.1, 3.0):
            accuracies = [0.75, 0.77] if epsilon else [0.8]
            fits += [{"dataset": name, "epsilon": epsilon, "accuracy": a} for a in accuracies]
            mean, error = (0.76, 0.01) if epsilon else (0.8, None)
            rows.append(
                {
                    "dataset": name,
                    "epsilon": epsilon,
                    "fits": len(accuracies),
                    "accuracy": mean,
                    "accuracy_se": error,
                }
            )
    return {
        "table": rows,
        "fits": fits,
        "delta": 1e-5,
        "quick": False,
        "insecure_noise_seed": None,
        "python": "3.11.7",
        "versions": {"pymc": "5.28.1"},
    }


def test_the_table_of_the_readme(readme_table: Any) -> None:
    text = readme_table.section(run())
    assert "of two private fits (one ordinary ones), δ = 1e-5" in text
    assert "(Python 3.11, PyMC 5.28)" in text
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert head == "| | ADVI (not private) | ε = 0.1 | ε = 3 |" and rule == "|---|---|---|---|"
    assert rows == [
        "| Abalone | 0.8000 | 0.7600 ± 0.0100 | 0.7600 ± 0.0100 |",
        "| Adult | 0.8000 | 0.7600 ± 0.0100 | 0.7600 ± 0.0100 |",
    ]
    assert text.endswith(
        "At ε = 0.1 single fits are between 0.750 and 0.770 on Abalone, between 0.750 and 0.770 on Adult."
    )


def test_it_goes_into_the_readme_and_nowhere_else(readme_table: Any) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    tables, marks = benchmark("page_tables"), readme_table.MARKS
    new = tables.replaced(page, readme_table.section(run()), marks)
    begin, end = (page.index(mark) for mark in marks)
    assert new.startswith(page[:begin]) and new.endswith(page[end:]) and "0.7600 ± 0.0100" in new
    assert "0.7600" not in tables.replaced(new, page[begin + len(marks[0]) : end], marks)
    with pytest.raises(ValueError, match="once each"):
        tables.replaced("no marks", "text", marks)


@pytest.mark.parametrize(("name", "value"), [("quick", True), ("insecure_noise_seed", 1)])
def test_other_runs_are_not_for_the_readme(readme_table: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="a full run"):
        readme_table.section(run() | {name: value})


SAYS = (
    "import warnings\n"  # Python 3.13 shows the line of a warning
    "warnings.warn('PyTensor could not link to a BLAS installation. Operations ...')\n"
    "warnings.warn('another one')"
)


def test_processes_are_quiet_about_blas_and_nothing_else() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "import subprocess, workers\n"
        "workers.quiet_about_blas()\n"
        f"subprocess.run([sys.executable, '-c', {SAYS!r}])\n{SAYS}"
    )
    for asked in ({}, {"PYTHONWARNINGS": "ignore::ImportWarning"}):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, **asked},
            check=True,
        )
        assert "BLAS" not in found.stderr and found.stderr.count("UserWarning: another one") == 2
    loud = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert "BLAS" in loud.stderr


@pytest.fixture(scope="module")
def problems() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("calibration_problems")


@pytest.mark.parametrize("seed", range(5))
def test_a_problem_has_the_density_of_its_model(problems: Any, seed: int) -> None:
    """The formulas that references are drawn by, against PyMC's; their gradients against differences."""
    problem = next(p for k in range(seed, 400, 5) if (p := problems.draw_problem(k)).num_records < 600)
    model, rng = problem.model(), np.random.default_rng(seed)
    compiled = model.compile_logp(mode="FAST_COMPILE")
    values = [v.name for v in model.value_vars]
    found, slopes = [], []
    for _ in range(3):
        u = 0.3 * rng.standard_normal(problem.size)
        d, k = problem.x.shape[1], problem.num_groups
        parts = [u[:d], *([u[-1]] if problem.scale_name else []), *([u[d : d + k]] if k else [])]
        point = dict(zip(values, parts, strict=True))
        value, slope = problem.log_joint(u)
        found.append(value - compiled({name: np.asarray(x) for name, x in point.items()}))
        step = 1e-6 * rng.standard_normal(problem.size)
        apart = problem.log_joint(u + step)[0] - problem.log_joint(u - step)[0]
        slopes.append(abs(apart - 2 * step @ slope) / np.linalg.norm(slope) / 1e-6)
    np.testing.assert_allclose(np.diff(found), 0.0, atol=1e-6 * abs(value))  # up to a constant
    assert max(slopes) < 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_a_posterior_foretells_its_loss(problems: Any, seed: int) -> None:
    """One that knows next to nothing loses what there is to gain, one that knows the truth nothing."""
    problem = next(p for k in range(seed, 400, 5) if (p := problems.draw_problem(k)).num_records < 600)
    rng = np.random.default_rng(seed)
    known = {name: np.repeat(np.asarray(value)[None], 300, axis=0) for name, value in problem.truth.items()}
    loss, gain = problem.foretold(known, rng)
    assert loss == pytest.approx(0.0, abs=1e-9)
    actual = problem.predictive({name: value[:1] for name, value in known.items()}) - problem.base_rate()
    assert gain == pytest.approx(actual, abs=max(0.1, 0.25 * abs(actual)))
    ignorant, all_of_it = problem.foretold(problem.prior_draws(1000, rng), rng)
    assert ignorant > 0.25 * all_of_it > 0.0


@pytest.mark.turns
def test_references_cover_and_ranges_do_not_meet(problems: Any) -> None:
    assert problems.JUDGEMENT - problems.DEVELOPMENT >= 1_000_000
    ranks = []
    for seed in [k for k in range(60) if k % 5 in (0, 2)]:
        problem = problems.draw_problem(seed)
        if problem.num_records < 2000 and problem.truth_kind == "prior":
            draws, pareto_k = problems.reference(problem, 400, np.random.default_rng(seed))
            assert pareto_k < 0.7 and problem.predictive(draws) > problem.base_rate() - 0.05
            ranks += np.mean(draws["beta"] < problem.truth["beta"], axis=0).tolist()
    inside = np.abs(np.array(ranks) - 0.5) < 0.45
    assert len(ranks) > 40 and abs(inside.mean() - 0.9) < 4 * np.sqrt(0.09 / len(ranks))


def test_the_table_of_calibration() -> None:
    table = benchmark("calibration_table")
    names = ("prior_0.9", "prior_0.5", "other_0.9", "width", "worse_than_base", "beats_descent")
    values = {f"{kind}_{n}": v for kind, v in (("noise_aware", 0.875), ("plain", 0.5)) for n in names}
    row = {"family": "negative_binomial", "epsilon": 0.3, "noise_aware_uniform": "nan", **values}
    row |= {"noise_aware_jointly_uniform": 0.25, "prior_worse_than_base": 0.625}
    head, rule, line = table.section({"cells": [row]}).splitlines()
    assert head == table.HEAD and rule.count("|") == head.count("|") == line.count("|")
    assert line.startswith("| negative binomial | 0.3 | 0.88 / 0.50 |") and "| – | 0.2 |" in line
    assert "| 0.62 | 0.88 / 0.50 |" in line


def test_diffprivlib_is_compared_problem_by_problem() -> None:
    rival = benchmark("diffprivlib_scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        found = [{"seed": s, "scores": {f"{e:g}": -0.5 for e in rival.EPSILONS}} for s in (0, 5)]
        ours = {
            (s, e): {"noise_aware": {"score": score}}
            for s, score in ((0, -0.4), (5, -0.7))
            for e in rival.EPSILONS
        }
        rows = rival.rows_of(found, ours, {s: {"base_rate": -0.6} for s in (0, 5)})
    assert [row["epsilon"] for row in rows] == list(rival.EPSILONS)
    assert {(row["family"], row["ours_at_least"], row["ours_below_base"]) for row in rows} == {
        ("logistic", 0.5, 0.5)
    }


@pytest.mark.turns
def test_integrals_by_the_default_nodes_are_near_those_by_many() -> None:
    found = benchmark("integrals").measure("intercepts", 12)
    assert found["values"] == 1 and found["many, wider"] < 1e-4
    assert found["default"] < min(0.01, found["fewer"]), found
