"""People with several rows: fits by person, fits by row with group privacy, and no privacy at all.

Each problem (`unit_problems`) is fitted with the defaults alone, at the same δ and the same ε *for a person*:

- ``person``   the model as a statistician writes it, a value for each person, with ``unit="person"``;
- ``rows``     at most eight rows of a person are kept, drawn at random; a fit by row at ε/8 and the δ that
               makes it ε and δ for eight rows (group privacy: Dwork and Roth 2014, theorem 2.2, with the
               geometric sum of δ). It cannot have values of persons, so the model is pooled.

What is counted: how often central intervals of 50 and 90 % hold the truth, for the coefficients and for the
spreads between persons; widths in those of the posterior without privacy; and the error of the mean.
On the wages of 545 men nobody knows the truth: there the distance from the posterior without privacy counts.

    python benchmarks/units.py --range development [--seeds 24] [--jobs 2] [--quick] [--output DIR]

Defaults may be chosen on the development range. The judgement range is looked at once per decision. The run
goes on where it was interrupted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from calibration import coverage
from experiment import command_line, understood
from journal import Fit, fits_of, mean_and_error, write
from rich.console import Console
from rich.table import Table
from unit_problems import DEVELOPMENT, FAMILIES, JUDGEMENT, PersonProblem, draw_problem, reference, wages
from workers import compiling

HERE = Path(__file__).resolve().parent
DELTA = 1e-5
EPSILONS = (0.3, 1.0, 3.0)
KEPT_ROWS = 8
DRAWS = 1000
WAGES = -1  # in place of a seed
METHODS = ("person", "rows")
_RANGES = {"development": DEVELOPMENT, "judgement": JUDGEMENT}


@dataclass(frozen=True)
class Reference:
    """The posterior without privacy of one problem."""

    seed: int

    def __str__(self) -> str:
        return f"no privacy, problem {self.seed}"


@dataclass(frozen=True)
class Task:
    """One private fit."""

    seed: int
    repeat: int
    method: str
    epsilon: float
    steps: int

    def __str__(self) -> str:
        return f"problem {self.seed}, {self.method}, ε = {self.epsilon:g}"


@lru_cache(maxsize=2)
def problem_of(seed: int) -> PersonProblem:
    """Draw or load a problem."""
    return wages() if seed == WAGES else draw_problem(seed)


def of_one_row(epsilon: float, delta: float, rows: int) -> tuple[float, float]:
    """Return ε and δ for a row that make `epsilon` and `delta` for so many rows together."""
    own = epsilon / rows
    return own, delta * math.expm1(own) / math.expm1(epsilon)


def summary(problem: PersonProblem, draws: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean and width of each variable, and the rank of the truth if there is one."""
    found: dict[str, Any] = {}
    for name, values in draws.items():
        flat = values.reshape(len(values), -1)
        found[name] = {"mean": flat.mean(axis=0).tolist(), "stddev": flat.std(axis=0).tolist()}
        if name in problem.truth:
            found[name]["rank"] = np.mean(flat < problem.truth[name].reshape(1, -1), axis=0).tolist()
    return found


def compare(task: Reference) -> dict[str, Any]:
    """Compute what does not depend on the library."""
    problem = problem_of(task.seed)
    rows = {"persons": problem.num_persons, "rows": len(problem.y)}
    return rows | summary(problem, reference(problem, DRAWS, np.random.default_rng([1, abs(task.seed)])))


def fit_once(task: Task) -> dict[str, Any]:
    """Fit a problem with the defaults alone."""
    import pymc as pm

    from pymc_dpvi import DPADVI

    problem, seed = problem_of(task.seed), [2, abs(task.seed), task.repeat]
    number = int(np.random.default_rng(seed).integers(2**31))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if task.method == "person":
            model = problem.model()
            settings: dict[str, Any] = {"epsilon": task.epsilon, "delta": DELTA, "unit": "person"}
        else:
            epsilon, delta = of_one_row(task.epsilon, DELTA, KEPT_ROWS)
            model = problem.pooled(problem.some_rows(KEPT_ROWS, np.random.default_rng(seed)))
            settings = {"epsilon": epsilon, "delta": delta}
        with model:
            method = DPADVI(random_seed=number, **settings)
            approx = pm.fit(task.steps, method=method, progressbar=False, **compiling())
        posterior = approx.sample(DRAWS, random_seed=number)["posterior"]
    names = ("beta", *(name for name in problem.scales if name in posterior))
    return summary(problem, {name: posterior[name].to_numpy()[0] for name in names})


def cells(fits: Sequence[Fit], compared: dict[int, Fit]) -> list[dict[str, Any]]:
    """Return one row for each method, family, kind of variable and ε."""
    rows = []
    for method in METHODS:
        for family in (*FAMILIES, "all"):
            for epsilon in sorted({f["epsilon"] for f in fits}):
                own = [f for f in fits if (f["method"], f["epsilon"]) == (method, epsilon)]
                own = [f for f in own if f["seed"] != WAGES and family in ("all", _family(f["seed"]))]
                for kind, names in (("coefficients", ["beta"]), ("spreads", ["tau", "tau_slope"])):
                    found = [(f, name) for f in own for name in names if name in f]
                    if found:
                        about = {"method": method, "family": family, "epsilon": epsilon, "kind": kind}
                        rows.append(about | {"problems": len(own)} | _cell(found, compared))
    return rows


def _family(seed: int) -> str:
    return FAMILIES[seed % len(FAMILIES)]


def _cell(found: Sequence[tuple[Fit, str]], compared: dict[int, Fit]) -> dict[str, Any]:
    ranks = [r for fit, name in found for r in fit[name]["rank"]]
    exact = [r for fit, name in found for r in compared[fit["seed"]][name]["rank"]]
    truth = [draw_problem(fit["seed"]).truth[name].reshape(-1) for fit, name in found]
    error = [np.array(fit[name]["mean"]) - t for (fit, name), t in zip(found, truth, strict=True)]
    widths = [
        s / t
        for fit, name in found
        for s, t in zip(fit[name]["stddev"], compared[fit["seed"]][name]["stddev"], strict=True)
    ]
    return {
        "0.5": coverage(ranks, 0.5),
        "0.9": coverage(ranks, 0.9),
        "0.9_se": mean_and_error([coverage(fit[name]["rank"], 0.9) for fit, name in found])[1],
        "not_private_0.9": coverage(exact, 0.9),
        "width": float(np.median(widths)),
        "rmse": float(np.sqrt(np.mean(np.concatenate(error) ** 2))),
    }


def on_wages(fits: Sequence[Fit], compared: dict[int, Fit]) -> list[dict[str, Any]]:
    """Return for each method and ε how far the posterior is from that without privacy."""
    rows = []
    for method in METHODS:
        for epsilon in sorted({f["epsilon"] for f in fits if f["seed"] == WAGES}):
            own = [f for f in fits if (f["seed"], f["method"], f["epsilon"]) == (WAGES, method, epsilon)]
            known = compared[WAGES]
            apart, width, holds = [], [], []
            for fit in own:
                for name in ("beta", *problem_of(WAGES).scales):
                    if name in fit:
                        mean, stddev = (np.array(fit[name][k]) for k in ("mean", "stddev"))
                        exact = np.array(known[name]["mean"])
                        apart.append(mean - exact)
                        width.append(stddev / np.array(known[name]["stddev"]))
                        holds.append(np.abs(mean - exact) <= 1.645 * stddev)
            if own:
                rows.append(
                    {
                        "method": method,
                        "epsilon": epsilon,
                        "fits": len(own),
                        "rms_distance": float(np.sqrt(np.mean(np.concatenate(apart) ** 2))),
                        "width": float(np.median(np.concatenate(width))),
                        "holds_exact_mean": float(np.mean(np.concatenate(holds))),
                    }
                )
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw coverage of 90 % intervals by person, and errors by both methods, against ε."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    whole = [row for row in rows if row["family"] == "all"]
    for kind, marker in (("coefficients", "o"), ("spreads", "s")):
        for method, line in zip(METHODS, ("-", "--"), strict=True):
            own = [row for row in whole if (row["kind"], row["method"]) == (kind, method)]
            if own:
                at = [row["epsilon"] for row in own]
                label = f"{kind}, by {method.rstrip('s')}"
                error = [row["0.9_se"] or 0.0 for row in own]
                color = "C0" if kind == "coefficients" else "C1"
                left.errorbar(at, [row["0.9"] for row in own], error, None, line + marker, color=color)
                right.plot(at, [row["rmse"] for row in own], line + marker, color=color, label=label)
    left.axhspan(0.85, 0.95, color="0.92")
    left.set(xscale="log", xlabel="ε for a person", ylabel="coverage of 90 % intervals", ylim=(0, 1.02))
    right.set(xscale="log", yscale="log", xlabel="ε for a person", ylabel="rms error of the mean")
    right.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def show(rows: Sequence[dict[str, Any]], wage_rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print both tables."""
    table = Table(title=f"Intervals by person, δ = {DELTA:g}; ε is for a person")
    for heading in ("", "", "ε", "", "90 %", "50 %", "90 %, no privacy", "width", "rmse"):
        table.add_column(heading)
    for row in rows:
        error = "" if row["0.9_se"] is None else f" ± {row['0.9_se']:.2f}"
        table.add_row(
            row["method"], row["family"], f"{row['epsilon']:g}", row["kind"], f"{row['0.9']:.2f}{error}",
            f"{row['0.5']:.2f}", f"{row['not_private_0.9']:.2f}", f"{row['width']:.2f}", f"{row['rmse']:.3f}",
        )  # fmt: skip
    console.print(table)
    table = Table(title="Wages of 545 men: distance from the posterior without privacy")
    for heading in ("", "ε", "fits", "rms distance of means", "width", "90 % holds its mean"):
        table.add_column(heading)
    for row in wage_rows:
        table.add_row(
            row["method"], f"{row['epsilon']:g}", str(row["fits"]), f"{row['rms_distance']:.3f}",
            f"{row['width']:.2f}", f"{row['holds_exact_mean']:.2f}",
        )  # fmt: skip
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = command_line(__doc__, "four problems, ε = 1, short fits", HERE / "output" / "units")
    parser.set_defaults(seeds=24)
    parser.add_argument("--range", choices=_RANGES, default="development", help="of seeds")
    parser.add_argument("--steps", type=int, default=10_000, help="of a fit; what pm.fit takes by default")
    chosen = understood(parser, arguments)
    first, repeats = _RANGES[chosen.range], 5
    epsilons: Sequence[float] = EPSILONS
    if chosen.quick:
        chosen.seeds, chosen.steps, epsilons, repeats = 4, min(chosen.steps, 20), (1.0,), 1
    seeds = [WAGES, *range(first, first + chosen.seeds)]
    journal, console = chosen.output / f"units_{chosen.range}", Console()
    own = [HERE / "unit_problems.py", HERE / "datasets.py"]
    exact = fits_of(
        [Reference(s) for s in seeds], compare, Path(f"{journal}_exact.jsonl"), {}, chosen.jobs, console, own
    )
    tasks = [
        Task(seed, repeat, method, epsilon, chosen.steps)
        for seed in seeds
        for repeat in range(repeats if seed == WAGES else 1)
        for method in METHODS
        for epsilon in epsilons
    ]
    settings = {"delta": DELTA, "kept_rows": KEPT_ROWS, "steps": chosen.steps}
    fits = fits_of(tasks, fit_once, Path(f"{journal}.jsonl"), settings, chosen.jobs, console)
    compared = {f["seed"]: f for f in exact}
    rows, wage_rows = cells(fits, compared), on_wages(fits, compared)
    show(rows, wage_rows, console)
    plot(rows, Path(f"{journal}.png"))
    command = f"python benchmarks/units.py --range {chosen.range} --seeds {chosen.seeds}"
    write(Path(f"{journal}.json"), command, settings, table=rows, wages=wage_rows, fits=fits, exact=exact)
    console.print(f"{len(fits)} fits; written to {journal}.json")


if __name__ == "__main__":
    main()
