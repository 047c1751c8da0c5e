"""Private fits with the defaults alone, on ten models, against ordinary ADVI of the same models.

Nothing is set but ε, δ and a seed: the clip norm, sampling rate, number of steps, optimiser and start are the
library's own, the same for every model. For each model, each ε and each seed the predictive log-density of
test records, the accuracy, and the distance of the posterior mean from that of PyMC's own ADVI, in standard
deviations of the latter (root of the mean square over all unconstrained values). Writes to the output folder

- ``utility.jsonl``  every fit, as it is done: run the command again and it goes on where it was;
- ``utility.json``   all fits, the table, settings and versions;
- ``utility.png``    what is lost against ε, one panel a model.

    python benchmarks/utility.py [--quick] [--seeds 10] [--jobs 2] [--problems linear ...] [--output DIR]

To judge another default: ``--method '{"l2_clip_norm": 1.0}'``, ``--steps 2000``, or
``--optimizer '{"learning_rate": 0.02}'`` (of `falling_adam`); such runs want an output folder of their own.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import statistics
import time
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from utility_problems import PROBLEMS, Problem
from workers import in_processes, one_thread_each

from pymc_dpvi.graph_keys import source_hash

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
QUICK = ("abalone", "linear", "gaussian_mixture")
ORDINARY_STEPS = 4000
DRAWS = 300


@dataclass(frozen=True)
class Task:
    """One fit to do; ``epsilon`` is None for PyMC's own ADVI."""

    problem: str
    epsilon: float | None
    seed: int


@dataclass(frozen=True)
class Fit:
    """One fit that was done.

    ``mean`` and ``std`` are those of the unconstrained values, kept for ordinary fits only. ``seconds`` is
    all of it: checks, calibration, compilation, steps.
    """

    problem: str
    epsilon: float | None
    seed: int
    log_density: float
    accuracy: float | None
    mean_error: float | None
    std_ratio: float | None
    l2_clip_norm: float | None
    noise_multiplier: float | None
    sampling_prob: float | None
    spent_epsilon: float | None
    seconds: float
    mean: list[float] | None = None
    std: list[float] | None = None

    @property
    def task(self) -> Task:
        """What was to be done."""
        return Task(self.problem, self.epsilon, self.seed)


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    one_thread_each()
    console = Console()
    journal = arguments.output / "utility.jsonl"
    settings = settings_of(arguments)
    fits = read_journal(journal, settings)
    ordinary = [Task(problem, None, 0) for problem in arguments.problems]
    private = [
        Task(problem, epsilon, seed)
        for seed in range(arguments.seeds)  # seed by seed, so that an unfinished run has all models
        for problem in arguments.problems
        for epsilon in arguments.epsilons
    ]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar, journal.open("a", encoding="utf-8") as log:
        log.write("\n" * (journal.stat().st_size > 0))  # the last line may be half a line
        shown = bar.add_task("Fitting", total=len(ordinary) + len(private))
        for stage in (ordinary, private):  # private fits are compared with ordinary ones
            done = {fit.task: fit for fit in fits}
            left = [task for task in stage if task not in done]
            bar.advance(shown, len(stage) - len(left))
            references = {fit.problem: fit for fit in fits if fit.epsilon is None}
            given = [(task, references.get(task.problem), settings) for task in left]
            for fit in in_processes(fit_once, given, arguments.jobs):
                fits.append(fit)
                log.write(json.dumps({"settings": settings, **asdict(fit)}) + "\n")
                log.flush()
                bar.update(shown, advance=1, description=f"{fit.problem}, {label(fit.epsilon)}")
    wanted = {*ordinary, *private}
    fits = sorted(
        (fit for fit in fits if fit.task in wanted),
        key=lambda fit: (list(PROBLEMS).index(fit.problem), fit.epsilon or math.inf, fit.seed),
    )
    rows = summarise(fits)
    show(rows, console)
    write(rows, fits, settings, arguments.output / "utility.json")
    plot(rows, arguments.output / "utility.png")
    console.print(f"written to {arguments.output}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Private fits with the defaults alone, on ten models.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=10, help="fits of each kind")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--quick", action="store_true", help="three models, ε = 1, one short fit each")
    parser.add_argument("--steps", type=int, default=None, help="steps of a fit, in place of the default")
    parser.add_argument("--method", type=json.loads, default={}, help="arguments of DPADVI, as JSON")
    parser.add_argument("--optimizer", type=json.loads, default=None, help="of falling_adam, as JSON")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "output" / "utility")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.problems, arguments.epsilons, arguments.seeds = list(QUICK), [1.0], 1
        arguments.steps = arguments.steps or 500
        arguments.output = arguments.output / "quick"
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    return arguments


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what distinguishes this run from one with other defaults or another library."""
    return {
        "steps": arguments.steps,
        "method": arguments.method,
        "optimizer": arguments.optimizer,
        "sources": source_hash()[:12],
    }


def read_journal(path: Path, settings: dict[str, Any]) -> list[Fit]:
    """Return the fits that were done before, with the same settings."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was ended
        if fields.pop("settings") != settings:
            raise SystemExit(
                f"{path} holds fits of other settings or sources; move it, or give another --output."
            )
        found.append(Fit(**fields))
    return found


@cache
def built(name: str) -> tuple[Problem, Any]:
    """Make a problem and its model once a process."""
    problem = PROBLEMS[name]()
    return problem, problem.model()


def fit_once(given: tuple[Task, Fit | None, dict[str, Any]]) -> Fit:
    """Fit one model, and measure it on the test records."""
    # Imported here because the parent process only plans and plots.
    import pymc as pm

    task, ordinary, settings = given
    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    problem, model = built(task.problem)
    start = time.perf_counter()
    with model:
        approx, clip_norm = (
            (fit_ordinary(pm, task), None) if task.epsilon is None else fit_privately(pm, task, settings)
        )
    seconds = time.perf_counter() - start
    idata = approx.sample(DRAWS, random_seed=task.seed)
    draws = {str(k): np.asarray(v)[0] for k, v in idata.posterior.items()}
    mean, std = np.asarray(approx.mean.eval()), np.asarray(approx.std.eval())
    error = ratio = None
    if ordinary is not None and problem.identified:
        at, spread = np.array(ordinary.mean), np.array(ordinary.std)
        error = float(np.sqrt(np.mean(((mean - at) / spread) ** 2)))
        ratio = float(np.exp(np.mean(np.log(std / spread))))
    report = None if task.epsilon is None else approx.privacy
    return Fit(
        problem=task.problem,
        epsilon=task.epsilon,
        seed=task.seed,
        log_density=problem.predictive_log_density(draws),
        accuracy=None if problem.accuracy is None else problem.accuracy(draws),
        mean_error=error,
        std_ratio=ratio,
        l2_clip_norm=clip_norm,
        noise_multiplier=None if report is None else report.noise_multiplier,
        sampling_prob=None if report is None else report.sampling_prob,
        spent_epsilon=None if report is None else report.epsilon,
        seconds=seconds,
        mean=mean.tolist() if task.epsilon is None else None,
        std=std.tolist() if task.epsilon is None else None,
    )


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


def fit_privately(pm: Any, task: Task, settings: dict[str, Any]) -> tuple[Any, float]:
    """Run `DPADVI` with its defaults on the model in context; return approximation and last clip norm."""
    from pymc_dpvi import DPADVI
    from pymc_dpvi.optimizers import falling_adam

    method = DPADVI(epsilon=task.epsilon, delta=DELTA, random_seed=task.seed, **settings["method"])
    options: dict[str, Any] = {"progressbar": False}
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


def _mean(values: list[float | None]) -> tuple[float | None, float | None]:
    known = [v for v in values if v is not None]
    if not known:
        return None, None
    return statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known)) if len(
        known
    ) > 1 else None


def summarise(fits: list[Fit]) -> list[dict[str, Any]]:
    """Return one row per problem and ε: means, and their standard errors where there are several fits."""
    groups: dict[tuple[str, float | None], list[Fit]] = {}
    for fit in fits:
        groups.setdefault((fit.problem, fit.epsilon), []).append(fit)
    rows = []
    for (problem, epsilon), group in groups.items():
        row: dict[str, Any] = {"problem": problem, "epsilon": epsilon, "fits": len(group)}
        for name in ("log_density", "accuracy", "mean_error", "std_ratio", "l2_clip_norm", "seconds"):
            row[name], row[f"{name}_se"] = _mean([getattr(fit, name) for fit in group])
        rows.append(row)
    return rows


def _shown(value: float | None, error: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Defaults alone (mean ± s.e.), δ = {DELTA:g}")
    for heading in ("problem", "", "log-density", "accuracy", "mean error, sd", "sd ratio", "clip norm", "s"):
        table.add_column(heading)
    for row in rows:
        table.add_row(
            row["problem"],
            label(row["epsilon"]),
            _shown(row["log_density"], row["log_density_se"], 4),
            _shown(row["accuracy"], row["accuracy_se"], 4),
            _shown(row["mean_error"], row["mean_error_se"], 2),
            _shown(row["std_ratio"], None, 2),
            _shown(row["l2_clip_norm"], None, 2),
            _shown(row["seconds"], None, 1),
        )
    console.print(table)


def write(rows: list[dict[str, Any]], fits: list[Fit], settings: dict[str, Any], path: Path) -> None:
    """Write the table and every fit as JSON."""
    packages = ("pymc_dpvi", "pymc", "pytensor", "numpy", "numba", "dp-accounting")
    content = {
        "delta": DELTA,
        "settings": settings,
        "ordinary_steps": ORDINARY_STEPS,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "table": rows,
        "fits": [asdict(fit) for fit in fits],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
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
        ax.set(xscale="log", title=problem.replace("_", " "), xlabel="ε", ylabel="log-density")
    for ax in list(axes.flat)[len(problems) :]:
        ax.set_visible(False)
    axes.flat[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
