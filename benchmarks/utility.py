"""Private fits with the defaults alone, on ten models, against ordinary ADVI of the same models.

Nothing is set but ε, δ and a seed: the clip norm, sampling rate, number of steps, optimiser and start are the
library's own, the same for every model. For each model, each ε and each seed the predictive log-density of
test records, the accuracy, and the distance of the posterior mean from that of PyMC's own ADVI, in standard
deviations of the latter (root of the mean square over all unconstrained values): of the posterior that
``sample()`` gives, and of the plain and the noise-aware one, of which it gives one. Writes to the output
folder

- ``utility.jsonl``  every fit, as it is done: run the command again and it goes on where it was;
- ``utility.json``   all fits, the table, settings and versions;
- ``utility.png``    what is lost against ε, one panel a model.

    python benchmarks/utility.py [--quick] [--seeds 10] [--jobs 2] [--problems linear ...] [--output DIR]

To judge another default: ``--method '{"l2_clip_norm": 1.0}'``, or ``{"quantile": 0.9}`` in place of 1.0 for
an adaptive one, ``--steps 2000``, or ``--optimizer '{"learning_rate": 0.02}'`` (of `falling_adam`); such
runs want an output folder of their own.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shlex
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from experiment import command_line, understood
from journal import Fit, fits_of, groups, mean_and_error, write
from rich.console import Console
from rich.table import Table
from utility_problems import PROBLEMS, Problem
from workers import compiling

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
QUICK = ("abalone", "linear", "gaussian_mixture")
ORDINARY_STEPS = 4000
SCORES = ("log_density", "accuracy", "mean_error")  # of what sample() gives, and of
KINDS = ("plain", "noise_aware")
DRAWS = 300


@dataclass(frozen=True)
class Task:
    """One fit to do; ``epsilon`` is None for PyMC's own ADVI."""

    problem: str
    epsilon: float | None
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        return f"{self.problem}, {label(self.epsilon)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    chosen = understood(parser(), arguments)
    if chosen.quick:
        chosen.problems, chosen.epsilons, chosen.steps = list(QUICK), [1.0], chosen.steps or 500
    settings = {
        "delta": DELTA,
        "ordinary_steps": ORDINARY_STEPS,
        "steps": chosen.steps,
        "method": chosen.method,
        "optimizer": chosen.optimizer,
    }
    journal, console = chosen.output / "utility.jsonl", Console()
    tasks = [Task(problem, None, 0) for problem in chosen.problems]
    ordinary = fits_of(tasks, fit_once, journal, settings, chosen.jobs, console)
    references = {fit["problem"]: fit for fit in ordinary}  # private fits are compared with these
    tasks = [
        Task(problem, epsilon, seed)
        for seed in range(chosen.seeds)  # seed by seed, so that an unfinished run has all models
        for problem in chosen.problems
        for epsilon in chosen.epsilons
    ]
    fit = partial(fit_once, references=references, settings=settings)
    fits = ordinary + fits_of(tasks, fit, journal, settings, chosen.jobs, console)
    rows = summarise(fits)
    show(rows, console)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "benchmarks/utility.py", *given])
    write(chosen.output / "utility.json", command, settings, table=rows, fits=fits)
    plot(rows, chosen.output / "utility.png")
    console.print(f"{len(fits)} fits; written to {chosen.output}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = command_line(
        __doc__, "three models, ε = 1, one short fit each", Path(__file__).parent / "output" / "utility"
    )
    found.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    found.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    found.add_argument("--steps", type=int, default=None, help="steps of a fit, in place of the default")
    found.add_argument("--method", type=json.loads, default={}, help="arguments of DPADVI, as JSON")
    found.add_argument("--optimizer", type=json.loads, default=None, help="of falling_adam, as JSON")
    return found


@cache
def built(name: str) -> tuple[Problem, Any]:
    """Make a problem and its model once a process."""
    problem = PROBLEMS[name]()
    return problem, problem.model()


def fit_once(
    task: Task, references: Mapping[str, Fit] | None = None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fit one model, and measure it on the test records.

    ``mean`` and ``std`` are those of the unconstrained values, kept for ordinary fits only. ``seconds`` is
    all of it: checks, calibration, compilation, steps.
    """
    # Imported here because the parent process only plans and plots.
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    problem, model = built(task.problem)
    start = time.perf_counter()
    with model:
        approx, clip_norm = (
            (fit_ordinary(pm, task), None)
            if task.epsilon is None
            else fit_privately(pm, task, settings or {})
        )
    found: dict[str, Any] = {"seconds": time.perf_counter() - start, "l2_clip_norm": clip_norm}
    mean, std = np.asarray(approx.mean.eval()), np.asarray(approx.std.eval())
    if task.epsilon is None:
        found |= predictions(problem, approx.sample(DRAWS, random_seed=task.seed))
        nothing = dict.fromkeys(["mean_error", "std_ratio", *(f"{k}_{s}" for k in KINDS for s in SCORES)])
        return nothing | found | {"mean": mean.tolist(), "std": std.tolist()}
    default = approx.sample(DRAWS, random_seed=task.seed)
    found["noise_aware"] = default.attrs["noise_aware"]
    means = {"plain": mean, "noise_aware": approx.diagnostics().mean}
    for kind, place in means.items():
        draws = approx.sample(DRAWS, random_seed=task.seed, noise_aware=kind == "noise_aware")
        error = ratio = None
        if references is not None and problem.identified:
            at, spread = (np.array(references[task.problem][name]) for name in ("mean", "std"))
            error = float(np.sqrt(np.mean(((place - at) / spread) ** 2)))
            ratio = float(np.exp(np.mean(np.log(std / spread))))
        scores = predictions(problem, draws) | {"mean_error": error}
        found |= {f"{kind}_{name}": score for name, score in scores.items()}
    chosen = KINDS[found["noise_aware"]]
    report = approx.privacy
    return found | {
        **{name: found[f"{chosen}_{name}"] for name in SCORES},
        "std_ratio": ratio,
        "noise_multiplier": report.noise_multiplier,
        "sampling_prob": report.sampling_prob,
        "spent_epsilon": report.epsilon,
    }


def predictions(problem: Problem, idata: Any) -> dict[str, float | None]:
    """Score the draws of a posterior on the test records."""
    draws = {str(k): np.asarray(v)[0] for k, v in idata["posterior"].data_vars.items()}
    accuracy = None if problem.accuracy is None else problem.accuracy(draws)
    return {"log_density": problem.predictive_log_density(draws), "accuracy": accuracy}


def fit_ordinary(pm: Any, task: Task) -> Any:
    """Run PyMC's ADVI on all records, with a step size that falls, as far as it goes."""
    from pymc_dpvi.optimizers import falling_adam

    model = pm.modelcontext(None)
    narrow = {model.rvs_to_values[rv].name: 0.1 for rv in model.free_RVs}
    return pm.fit(
        ORDINARY_STEPS,
        method="advi",
        start_sigma=narrow,  # as a private fit starts, so that both have converged
        obj_optimizer=falling_adam(ORDINARY_STEPS, 0.05, final=0.01),
        obj_n_mc=3,
        random_seed=task.seed,
        progressbar=False,
        score=False,
    )


def fit_privately(pm: Any, task: Task, settings: Mapping[str, Any]) -> tuple[Any, float]:
    """Run `DPADVI` with its defaults on the model in context; return approximation and last clip norm."""
    from pymc_dpvi import DPADVI, AdaptiveClip
    from pymc_dpvi.optimizers import falling_adam

    given = dict(settings["method"])
    if isinstance(given.get("l2_clip_norm"), dict):
        given["l2_clip_norm"] = AdaptiveClip(**given["l2_clip_norm"])
    method = DPADVI(epsilon=task.epsilon, delta=DELTA, random_seed=task.seed, **given)
    options: dict[str, Any] = {"progressbar": False, **compiling()}
    if settings["steps"] is not None:
        options["n"] = settings["steps"]
    if settings["optimizer"] is not None:
        options["obj_optimizer"] = falling_adam(settings["steps"] or 10_000, **settings["optimizer"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return method.fit(**options), method.l2_clip_norm


def label(epsilon: float | None) -> str:
    """Name a fit as the table does."""
    return "not private" if epsilon is None else f"ε = {epsilon:g}"


def summarise(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Return one row per problem and ε: means, and their standard errors where there are several fits."""
    rows = []
    for (problem, epsilon), group in groups(fits, ("problem", "epsilon")).items():
        row: dict[str, Any] = {"problem": problem, "epsilon": epsilon, "fits": len(group)}
        more = (f"{kind}_{score}" for kind in KINDS for score in SCORES)
        for name in (*SCORES, *more, "std_ratio", "l2_clip_norm", "seconds"):
            known = [fit[name] for fit in group if fit[name] is not None]
            row[name], row[f"{name}_se"] = mean_and_error(known) if known else (None, None)
        rows.append(row)
    order = list(PROBLEMS)
    return sorted(rows, key=lambda row: (order.index(row["problem"]), row["epsilon"] or math.inf))


def _shown(value: float | None, error: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Defaults alone (mean ± s.e.), δ = {DELTA:g}")
    for heading in ("problem", "", "log-density", "accuracy", "mean error, sd"):
        table.add_column(heading)
    for heading in ("plain: log-density", "noise-aware: log-density", "sd ratio", "clip norm", "s"):
        table.add_column(heading)
    for row in rows:
        table.add_row(
            row["problem"],
            label(row["epsilon"]),
            _shown(row["log_density"], row["log_density_se"], 4),
            _shown(row["accuracy"], row["accuracy_se"], 4),
            _shown(row["mean_error"], row["mean_error_se"], 2),
            *(_shown(row[f"{kind}_log_density"], row[f"{kind}_log_density_se"], 4) for kind in KINDS),
            _shown(row["std_ratio"], None, 2),
            _shown(row["l2_clip_norm"], None, 2),
            _shown(row["seconds"], None, 1),
        )
    console.print(table)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot predictive log-density against ε, one panel a problem, ordinary ADVI as a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(row["problem"] for row in rows))
    columns = min(5, len(problems))
    figure, axes = plt.subplots(
        math.ceil(len(problems) / columns),
        columns,
        figsize=(3 * columns, 2.6 * math.ceil(len(problems) / columns)),
        layout="constrained",
        squeeze=False,
    )
    for ax, problem in zip(axes.flat, problems, strict=False):
        own = [row for row in rows if row["problem"] == problem]
        private = sorted((row for row in own if row["epsilon"] is not None), key=lambda row: row["epsilon"])
        for row in own:
            if row["epsilon"] is None:
                ax.axhline(row["log_density"], color="0.5", linestyle="--", label="not private")
        ax.errorbar(
            [row["epsilon"] for row in private],
            [row["log_density"] for row in private],
            yerr=[2 * (row["log_density_se"] or 0.0) for row in private],
            marker="o",
            label="DPADVI, defaults (± 2 s.e.)",
        )
        for kind, marker in zip(KINDS, "+x", strict=True):
            ax.plot(
                [row["epsilon"] for row in private],
                [row[f"{kind}_log_density"] for row in private],
                marker=marker,
                linestyle=":",
                linewidth=1,
                label=kind.replace("_", "-"),
            )
        ax.set(xscale="log", title=problem.replace("_", " "), xlabel="ε", ylabel="log-density")
    for ax in list(axes.flat)[len(problems) :]:
        ax.set_visible(False)
    axes.flat[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
