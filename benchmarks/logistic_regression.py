"""The main job: Bayesian logistic regression on Abalone and Adult, private and not.

For each dataset, PyMC's own ADVI on all of the data, then `DPADVI` at several epsilon, each with
several seeds. Prints a table, and writes to the output folder

- ``logistic_regression.csv``   the table;
- ``logistic_regression.json``  the table, every single fit, the settings and the versions;
- ``accuracy.png``              accuracy against epsilon;
- ``posterior_<dataset>.png``   the ordinary and a private posterior side by side, by ArviZ.

The private fits take the library's defaults, the same on both: nothing about them was tuned on these
data, as nothing may be on yours. Their noise comes from the operating system's randomness, as in real
use, so that the figures change from run to run within their standard error; ``--insecure-noise-seed``
fixes them.

    python benchmarks/logistic_regression.py [--quick] [--seeds 5] [--jobs 2] [--output DIR]
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import math
import os
import platform
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import LOADERS, Dataset
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from workers import in_processes, one_thread_each

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0)
SHOWN_EPSILON = 1.0  # of the posterior plot


PRIVATE_STEPS = 10_000  # what `fit` does if it is not told
#: Full-data steps of PyMC's ADVI, enough for the accuracy to stand still.
ORDINARY_STEPS = {"abalone": 3000, "adult": 2000}
ORDINARY_FITS = 3  # at most: they hardly differ


@dataclass(frozen=True)
class Task:
    """One fit to do; ``epsilon`` is None for PyMC's own ADVI."""

    dataset: str
    epsilon: float | None
    seed: int
    quick: bool
    insecure_noise_seed: int | None
    save_posterior: str | None


@dataclass(frozen=True)
class Fit:
    """One fit that was done. ``seconds`` is all of it: checks, calibration, compilation, steps."""

    dataset: str
    epsilon: float | None
    seed: int
    accuracy: float
    seconds: float
    noise_multiplier: float | None
    spent_epsilon: float | None


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    one_thread_each()
    console = Console()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        tasks = plan(arguments, Path(scratch))
        fits = []
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            bar = progress.add_task("Fitting", total=len(tasks))
            for fit in in_processes(fit_once, tasks, arguments.jobs):
                fits.append(fit)
                progress.update(bar, advance=1, description=f"{fit.dataset}, {label(fit.epsilon)}")
            progress.update(bar, description="Fitted")
        fits.sort(key=lambda fit: (fit.dataset, fit.epsilon or 0.0, fit.seed))
        rows = summarise(fits)
        show(rows, console)
        write_tables(rows, fits, arguments, time.perf_counter() - start)
        plot_accuracy(rows, arguments.output / "accuracy.png")
        for dataset in arguments.datasets:
            saved = {
                "ADVI": Path(scratch) / f"{dataset}-none.nc",
                f"DPADVI, ε = {arguments.shown_epsilon:g}": Path(scratch)
                / f"{dataset}-{arguments.shown_epsilon:g}.nc",
            }
            plot_posterior(saved, arguments.output / f"posterior_{dataset}.png")
    console.print(f"{len(fits)} fits in {time.perf_counter() - start:.0f} s; written to {arguments.output}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Private and ordinary logistic regression on Abalone and Adult.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--datasets", nargs="+", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=5, help="fits of each kind")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument(
        "--insecure-noise-seed",
        type=int,
        default=None,
        help="make the private fits repeatable; such a result would not be private",
    )
    parser.add_argument("--quick", action="store_true", help="one short fit of each kind, ε = 1")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "output")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epsilons, arguments.seeds = [1.0], 1
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    arguments.shown_epsilon = min(
        arguments.epsilons, key=lambda epsilon: abs(math.log(epsilon / SHOWN_EPSILON))
    )
    return arguments


def plan(arguments: argparse.Namespace, scratch: Path) -> list[Task]:
    """List the fits; the first seed of the two that are plotted saves its posterior."""
    return [
        Task(
            dataset=dataset,
            epsilon=epsilon,
            seed=seed,
            quick=arguments.quick,
            insecure_noise_seed=(
                None if arguments.insecure_noise_seed is None else arguments.insecure_noise_seed + seed
            ),
            save_posterior=(
                str(scratch / f"{dataset}-{'none' if epsilon is None else f'{epsilon:g}'}.nc")
                if seed == 0 and epsilon in (None, arguments.shown_epsilon)
                else None
            ),
        )
        for seed in range(arguments.seeds)
        for epsilon in (None, *arguments.epsilons)
        for dataset in arguments.datasets  # side by side, so that each process compiles another model
        if epsilon is not None or seed < ORDINARY_FITS
    ]


@cache
def load(name: str) -> Dataset:
    """Load a dataset once a process."""
    return LOADERS[name]()


def logistic_model(data: Dataset) -> Any:
    """Return the PyMC model of the papers: no intercept, standard normal priors."""
    import pymc as pm

    with pm.Model(coords={"feature": list(data.features)}) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        # In PyMC 5 the gradient of `logit_p` is NaN where the probability rounds to 1, beyond 37,
        # which outliers reach (a height 24 standard deviations out): ADVI would stop with an error.
        logit = pm.math.clip(data.x_train @ beta, -30, 30)
        pm.Bernoulli("label", logit_p=logit, observed=data.y_train)
    return model


def fit_once(task: Task) -> Fit:
    """Fit one model, and measure it on the test rows."""
    # Imported here because the parent process only plans and plots.
    import numpy as np
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    data = load(task.dataset)
    shorten = 10 if task.quick else 1
    start = time.perf_counter()
    with logistic_model(data):
        if task.epsilon is None:
            approx = pm.fit(
                ORDINARY_STEPS[task.dataset] // shorten,
                method="advi",
                obj_optimizer=pm.adam(learning_rate=0.02),
                random_seed=task.seed,
                progressbar=False,
            )
        else:
            approx = fit_privately(task, PRIVATE_STEPS // shorten)
    seconds = time.perf_counter() - start
    idata = approx.sample(1000, random_seed=task.seed)
    draws = np.asarray(idata.posterior["beta"]).reshape(-1, len(data.features))
    if task.save_posterior is not None:
        save_posterior(draws, data.features, task.save_posterior)
    report = None if task.epsilon is None else approx.privacy
    return Fit(
        dataset=task.dataset,
        epsilon=task.epsilon,
        seed=task.seed,
        accuracy=data.accuracy(draws.mean(axis=0)),
        seconds=seconds,
        noise_multiplier=None if report is None else float(report.noise_multiplier),
        spent_epsilon=None if report is None else float(report.epsilon),
    )


def fit_privately(task: Task, n_steps: int) -> Any:
    """Run `DPADVI`, with its defaults, on the model in context and return its approximation."""
    import pymc as pm

    from pymc_dpvi import DPADVI
    from pymc_dpvi.errors import InsecureNoiseWarning

    with warnings.catch_warnings():
        if task.insecure_noise_seed is not None:
            warnings.simplefilter("ignore", InsecureNoiseWarning)  # asked for on the command line
        method = DPADVI(
            epsilon=task.epsilon,
            delta=DELTA,
            random_seed=task.seed,
            insecure_noise_seed=task.insecure_noise_seed,
        )
        return pm.fit(n_steps, method=method, progressbar=False)


def save_posterior(draws: Any, features: tuple[str, ...], path: str) -> None:
    """Write draws of shape (n_draws, num_features) as one chain, for `plot_posterior`."""
    import xarray as xr

    beta = xr.DataArray(draws[None], dims=("chain", "draw", "feature"), coords={"feature": list(features)})
    beta.to_dataset(name="beta").to_netcdf(path, engine="h5netcdf")


def label(epsilon: float | None) -> str:
    """Name a method as the table does."""
    return "ADVI (not private)" if epsilon is None else f"DPADVI, ε = {epsilon:g}"


def summarise(fits: list[Fit]) -> list[dict[str, Any]]:
    """Return one row per dataset and epsilon; the standard error is None for a single fit."""
    groups: dict[tuple[str, float | None], list[Fit]] = {}
    for fit in fits:
        groups.setdefault((fit.dataset, fit.epsilon), []).append(fit)
    rows = []
    for (dataset, epsilon), group in groups.items():
        accuracies = [fit.accuracy for fit in group]
        rows.append(
            {
                "dataset": dataset,
                "method": "ADVI" if epsilon is None else "DPADVI",
                "epsilon": epsilon,
                "delta": None if epsilon is None else DELTA,
                "fits": len(group),
                "accuracy": statistics.fmean(accuracies),
                "accuracy_se": (
                    statistics.stdev(accuracies) / math.sqrt(len(group)) if len(group) > 1 else None
                ),
                "seconds": statistics.fmean(fit.seconds for fit in group),
                "noise_multiplier": group[0].noise_multiplier,
            }
        )
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Test accuracy (mean ± s.e.), δ = {DELTA:g}")
    for heading, side in (
        ("dataset", "left"),
        ("method", "left"),
        ("accuracy", "right"),
        ("seconds", "right"),
        ("noise multiplier", "right"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in rows:
        error = "" if row["accuracy_se"] is None else f" ± {row['accuracy_se']:.4f}"
        noise = "–" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.3f}"
        table.add_row(
            row["dataset"],
            label(row["epsilon"]),
            f"{row['accuracy']:.4f}{error}",
            f"{row['seconds']:.1f}",
            noise,
            end_section=row is rows[-1],
        )
    console.print(table)


def write_tables(
    rows: list[dict[str, Any]], fits: list[Fit], arguments: argparse.Namespace, seconds: float
) -> None:
    """Write the CSV and JSON files."""
    from pymc_dpvi import __version__

    stem = arguments.output / "logistic_regression"
    with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    packages = ("pymc", "pytensor", "arviz", "numpy", "numba", "dp-accounting")
    document = {
        "table": rows,
        "fits": [asdict(fit) for fit in fits],
        "steps": {"private": PRIVATE_STEPS, "ordinary": ORDINARY_STEPS},
        "delta": DELTA,
        "quick": arguments.quick,
        "jobs": arguments.jobs,
        "insecure_noise_seed": arguments.insecure_noise_seed,
        "total_seconds": seconds,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"pymc_dpvi": __version__} | {name: version(name) for name in packages},
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    stem.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def plot_accuracy(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against epsilon, a panel per dataset, with two public yardsticks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, panels = plt.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.4), squeeze=False, layout="constrained"
    )
    for axes, name in zip(panels[0], names, strict=True):
        (ordinary,) = (row for row in rows if row["dataset"] == name and row["epsilon"] is None)
        private = [row for row in rows if row["dataset"] == name and row["epsilon"] is not None]
        share = load(name).y_test.mean()
        axes.axhline(ordinary["accuracy"], color="0.35", label="ADVI, not private")
        axes.axhline(max(share, 1 - share), color="0.6", linestyle=":", label="majority class")
        axes.errorbar(
            [row["epsilon"] for row in private],
            [row["accuracy"] for row in private],
            yerr=[row["accuracy_se"] or 0.0 for row in private],
            color="C0",
            marker="o",
            capsize=3,
            label="DPADVI (mean ± s.e.)",
        )
        axes.set_xscale("log")
        axes.set_xticks([row["epsilon"] for row in private])
        axes.set_xticklabels([f"{row['epsilon']:g}" for row in private])
        axes.minorticks_off()
        axes.set_xlabel("ε")
        axes.set_title(f"{name.capitalize()}, δ = {DELTA:g}")
    panels[0][0].set_ylabel("test accuracy")
    panels[0][-1].legend(frameon=False, loc="center right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_posterior(saved: dict[str, Path], path: Path) -> None:
    """Draw the saved posteriors as one ArviZ forest plot."""
    import matplotlib

    matplotlib.use("Agg")
    import arviz as az
    import matplotlib.pyplot as plt
    import xarray as xr

    posteriors = {}
    for name, file in saved.items():
        with xr.open_dataset(file, engine="h5netcdf") as dataset:
            posteriors[name] = dataset.load()
    if int(version("arviz").partition(".")[0]) < 1:
        axes = az.plot_forest(
            [az.InferenceData(posterior=posterior) for posterior in posteriors.values()],
            model_names=list(posteriors),
            combined=True,
            figsize=(7, 6),
        )
        figure = axes[0].figure
    else:
        plots = az.plot_forest(
            {name: xr.DataTree.from_dict({"posterior": posterior}) for name, posterior in posteriors.items()},
            combined=True,
            backend="matplotlib",
        )
        plots.add_legend("model")
        figure = plots.viz["figure"].item()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    main()
