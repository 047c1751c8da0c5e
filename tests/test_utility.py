"""The utility benchmark, but for its fits: problems, scores, and going on after an interrupt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import utility  # noqa: E402
from utility_problems import PROBLEMS  # noqa: E402

#: Draws that know nothing, and what they must score: by variable, shapes without the leading axis.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "abalone": {"beta": (8,)},
    "adult": {"beta": (14,)},
    "breast_cancer": {"beta": (31,)},
    "linear": {"beta": (5,), "sigma": ()},
    "poisson": {"intercept": (), "beta": (4,)},
    "negative_binomial": {"intercept": (), "beta": (4,), "alpha": ()},
    "hierarchical_logistic": {"mean": (), "spread": (), "offset": (10,), "beta": (3,)},
    "gaussian_mixture": {"weight": (3,), "mean": (3,), "sigma": ()},
    "softmax_digits": {"beta": (65, 10)},
    "small_network": {"first": (3, 8), "second": (8,), "third": ()},
}
CHANCE = {"abalone": 2, "adult": 2, "breast_cancer": 2, "hierarchical_logistic": 2, "small_network": 2}


def draws(name: str, value: float = 0.0, n: int = 3) -> dict[str, Any]:
    found = {key: np.full((n, *shape), value) for key, shape in SHAPES[name].items()}
    for key in ("sigma", "alpha"):
        if key in found:
            found[key] = np.ones_like(found[key])
    if "weight" in found:
        found["weight"] = np.full_like(found["weight"], 1 / 3)
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_scores(name: str):
    problem = PROBLEMS[name]()
    each = problem.log_density(draws(name))
    assert each.shape[0] == 3 and np.isfinite(each).all()
    # Three equal draws predict what one does.
    assert problem.predictive_log_density(draws(name)) == pytest.approx(each[0].mean())
    chance = {**CHANCE, "softmax_digits": 10}.get(name)
    if chance is not None:
        assert each == pytest.approx(-np.log(chance))
        assert problem.accuracy is not None
        assert 0.0 <= problem.accuracy(draws(name)) <= 0.9
    # A draw that is far off predicts worse, and a mixture with it is dominated by the better one.
    worse = problem.log_density(draws(name, 40.0))
    assert worse.mean() < each.mean() or chance is not None


@pytest.mark.parametrize("name", ["linear", "gaussian_mixture", "small_network"])
def test_models_have_the_variables_that_are_scored(name: str):
    problem = PROBLEMS[name]()
    model = problem.model()
    assert {v.name: tuple(v.shape.eval()) for v in model.free_RVs} == SHAPES[name]
    (observed,) = model.observed_RVs
    assert len(model.rvs_to_values[observed].eval()) == problem.num_records


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = []

    def fake(task: utility.Task, references: Any = None, settings: Any = None) -> dict[str, Any]:
        done.append(task)
        assert task.epsilon is None or references["linear"]["mean"] == [0.0]
        number = 1.0 if task.epsilon is None else task.seed + task.epsilon
        found = dict.fromkeys(("std_ratio", "l2_clip_norm", "seconds"), number) | {"mean": [0.0]}
        for kind in ("", *(f"{k}_" for k in utility.KINDS)):
            found |= {f"{kind}log_density": -number, f"{kind}mean_error": number, f"{kind}accuracy": None}
        return found

    monkeypatch.setattr(utility, "fit_once", fake)
    command = ["--problems", "linear", "--epsilons", "1", "3", "--jobs", "1", "--output", str(tmp_path)]
    utility.main([*command, "--seeds", "2"])
    assert len(done) == 5
    journal = tmp_path / "utility.jsonl"
    journal.write_text(journal.read_text() + '{"settings": {"ste', encoding="utf-8")  # ended in a line
    utility.main([*command, "--seeds", "3"])
    assert len(done) == 7 and len(set(done)) == 7
    found = json.loads((tmp_path / "utility.json").read_text())
    rows = {row["epsilon"]: row for row in found["table"]}
    assert rows[1.0]["fits"] == 3 and rows[None]["fits"] == 1
    assert rows[1.0]["log_density"] == pytest.approx(-2.0)
    assert rows[1.0]["log_density_se"] == pytest.approx(1 / np.sqrt(3))
    assert rows[1.0]["accuracy"] is None
    assert (tmp_path / "utility.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="other settings"):
        utility.main([*command, "--steps", "7"])


def test_a_private_fit_is_compared_with_the_ordinary_one(without_compiling: None):
    settings = {"steps": 40, "method": {}, "optimizer": None}
    ordinary = {"linear": {"mean": [0.0] * 6, "std": [0.01] * 6}}
    found = utility.fit_once(utility.Task("linear", 1.0, 0), references=ordinary, settings=settings)
    assert found["spent_epsilon"] <= 1.0 and found["noise_multiplier"] > 0.1
    # Few steps from means of 0 and standard deviations of 0.1.
    assert 0.0 < found["mean_error"] < 200.0 and 3.0 < found["std_ratio"] < 10.0
    assert found["noise_aware"] == 1 and 0.0 < found["plain_mean_error"] < 200.0
    for score in ("log_density", "mean_error"):
        assert np.isfinite(found[score]) and found[score] == found[f"noise_aware_{score}"]
        assert found[score] != found[f"plain_{score}"]
    assert found["l2_clip_norm"] > 0.0
