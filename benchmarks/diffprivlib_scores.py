"""Log scores of diffprivlib's regressions beside the default fit, on the problems of `calibration.py`.

IBM's diffprivlib has logistic regression by perturbing the objective (Chaudhuri, Monteleoni and Sarwate,
2011) and linear regression by perturbing the coefficients of the squared error (Zhang et al., 2012), at
δ = 0. Both give a point. Its bounds and its penalty are tuned for each problem by its own test score, and
the scale of a linear problem's residuals is taken without privacy, which no user could: what stands here is
the best that it can do.

It needs a scikit-learn that is older than what is installed beside PyMC, and has an environment of its own:

    python benchmarks/diffprivlib_scores.py make
    python benchmarks/calibration.py --range judgement
    python benchmarks/diffprivlib_scores.py run --range judgement

The last prints, by family and ε, the share of problems in which the default fit's log score is at least that
of diffprivlib, and how often each is below the base rate. ``diffprivlib_judgement.json`` has the scores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from calibration_problems import DEVELOPMENT, FAMILIES, JUDGEMENT, Problem, draw_problem
from d3p_step import python_of

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "output" / "diffprivlib"
PACKAGES = ("diffprivlib==0.6.6", "scikit-learn<1.6", "numpy>=2", "scipy")
RANGES = {"development": DEVELOPMENT, "judgement": JUDGEMENT}
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FITTED = ("logistic", "linear")
#: Inverse penalties, and the quantiles of norms and values that bounds are taken from.
PENALTIES, QUANTILES = (0.01, 0.1, 1.0, 10.0), (0.5, 0.95)


def make(folder: Path) -> None:
    """Make the environment, with the Python that runs this."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([str(python_of(folder)), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    print(f"Made {folder}")


def serve(first: int, problems: int) -> None:
    """Print the scores of each problem as a line of JSON; runs in diffprivlib's environment."""
    warnings.simplefilter("ignore")
    for seed in range(first, first + problems):
        if FAMILIES[seed % len(FAMILIES)] in FITTED:
            problem = draw_problem(seed)
            scores = {f"{epsilon:g}": best_score(problem, epsilon, seed) for epsilon in EPSILONS}
            print(json.dumps({"seed": seed, "scores": scores}), flush=True)


def best_score(problem: Problem, epsilon: float, seed: int) -> float:
    """Best test score over bounds and penalties."""
    models = import_module("diffprivlib.models")
    x, y, found = problem.x, problem.y, []
    common = {"epsilon": epsilon, "fit_intercept": False, "random_state": seed}  # x has a column of ones
    for quantile in QUANTILES:
        if problem.family == "logistic":
            norm = float(np.quantile(np.linalg.norm(x, axis=1), quantile))
            for penalty in PENALTIES:
                fit = models.LogisticRegression(data_norm=norm, C=penalty, max_iter=1000, **common)
                beta = fit.fit(x, y.astype(int)).coef_[0]
                found.append(problem.predictive({"beta": beta[None]}))
        else:
            low, high = (np.quantile(x, 0.5 + side * quantile / 2, axis=0) for side in (-1, 1))
            bounds = np.minimum(low, high - 1e-3), high
            fit = models.LinearRegression(bounds_X=bounds, bounds_y=(y.min(), y.max()), **common)
            beta = fit.fit(x, y).coef_
            scale = np.array([np.std(y - x @ beta)])
            found.append(problem.predictive({"beta": beta[None], "sigma": scale}))
    return max(found)


def run(name: str, problems: int, folder: Path, output: Path) -> None:
    """Compare with what `calibration.py` wrote."""
    python = python_of(folder)
    if python is None:
        raise SystemExit("diffprivlib is not installed: python benchmarks/diffprivlib_scores.py make")
    ours, compared = (
        {_key(f): f["found"] for f in map(json.loads, filter(None, path.read_text("utf-8").split("\n")))}
        for path in (output / f"calibration_{name}{end}.jsonl" for end in ("", "_compared"))
    )
    serving = [str(python), __file__, "serve", str(RANGES[name]), str(problems)]
    served = subprocess.run(serving, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in served.stdout.splitlines()]
    rows = rows_of(found, ours, compared)
    for row in rows:
        told = ", ".join(f"{key} {value:.2f}" for key, value in row.items() if isinstance(value, float))
        print(f"{row['family']:10s} {row['problems']:4d} problems: {told}")
    path = output / f"diffprivlib_{name}.json"
    command = f"python benchmarks/diffprivlib_scores.py run --range {name}"
    content = {"command": command, "packages": PACKAGES}
    path.write_text(
        json.dumps({**content, "cells": rows, "scores": found}, indent=1) + "\n", encoding="utf-8"
    )


def _key(line: Mapping[str, Any]) -> Any:
    task = line["task"]
    return (task["seed"], task["epsilon"]) if "epsilon" in task else task["seed"]


def rows_of(
    found: Sequence[Mapping[str, Any]], ours: Mapping[Any, Any], compared: Mapping[Any, Any]
) -> list[dict[str, Any]]:
    """Return one row for each family and ε."""
    from calibration import MARGIN

    rows = []
    for family in FITTED:
        own = [one for one in found if FAMILIES[one["seed"] % len(FAMILIES)] == family]
        for epsilon in EPSILONS if own else ():
            theirs = np.array([one["scores"][f"{epsilon:g}"] for one in own])
            score = np.array([ours[one["seed"], epsilon]["noise_aware"]["score"] for one in own])
            base = np.array([compared[one["seed"]]["base_rate"] for one in own])
            row: dict[str, Any] = {"family": family, "problems": len(own), "epsilon": epsilon}
            row["ours_at_least"] = float(np.mean(score >= theirs))
            row["ours_below_base"] = float(np.mean(score < base - MARGIN))
            row["diffprivlib_below_base"] = float(np.mean(theirs < base - MARGIN))
            rows.append(row)
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="its log scores on the problems of calibration.py")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make the environment")
    running = commands.add_parser("run", help="fit, and compare with calibration.py's fits")
    running.add_argument("--range", choices=sorted(RANGES), default="development")
    running.add_argument("--problems", type=int, default=200)
    running.add_argument("--output", type=Path, default=HERE / "output")
    for one in (making, running):
        one.add_argument("--folder", type=Path, default=FOLDER)
    serving = commands.add_parser("serve", help="what `run` calls")
    serving.add_argument("first", type=int)
    serving.add_argument("problems", type=int)
    chosen = parser.parse_args()
    if chosen.command == "make":
        make(chosen.folder)
    elif chosen.command == "serve":
        serve(chosen.first, chosen.problems)
    else:
        run(chosen.range, chosen.problems, chosen.folder, chosen.output)


if __name__ == "__main__":
    main()
