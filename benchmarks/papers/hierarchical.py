"""Hierarchical logistic regression of d3p (its section 5.3), and ours beside it.

Prediger, Loppi, Kaski and Honkela (PoPETs 2022, arXiv 2103.11648) simulate N records in L = 3 groups, with
D = 5 covariates and K = 3 known covariates of each group, g, and fit

    M ~ Normal(0, 4) (D x K),   w[l] ~ Normal(M g[l], I),   y[n] ~ Bernoulli(logit = x[n] w[group[n]]) .

The records are simulated from narrower ones, M ~ Normal(0, 1) and w[l] ~ Normal(M g[l], 0.1 I). They report
the area under the ROC curve (AUC) on test records, over 10 runs, at delta = 1/N. Four panels: box plots of it
by epsilon and N, for d3p's algorithm and for both posteriors of our defaults; against the number of steps, up
to 100 000.

=============  =========================================================================================
advi           PyMC's ADVI on all records, not private, with the optimiser and steps of ``d3p``
d3p            its algorithm (`published_dpvi`): batches of 10 on average, C = 1, Adam at 0.001, last iterate
defaults       `DPADVI(epsilon, delta)` and nothing else: the mean of ``sample()``
plain          the same fits: the mean of the approximation, from which ``sample(noise_aware=False)`` draws
=============  =========================================================================================

A further line is the AUC of the coefficients that the records were simulated with.

Writes to the output folder

- ``hierarchical.jsonl``  every fit, as it is done: run the command again and it goes on where it was;
- ``hierarchical.json``   all fits, the table, settings and versions;
- ``hierarchical.png``    the panels.

    python benchmarks/papers/hierarchical.py [--quick] [--seeds 10] [--jobs 2] [--output DIR]

What differs from the paper
---------------------------
- The guide of d3p's script (PROBIC/d3p-paper-experiments) is for M alone: w is drawn from its prior in every
  step, and never learned. Here w is inferred too, as M g plus an own part (the same model, not centred), and
  predictions are made with its posterior mean, in place of M g.
- Privacy is for one record added or removed, by privacy loss distributions, with Poisson batches of 10 on
  average. d3p calibrates for one record replaced, by a Fourier accountant, and draws batches of exactly 10.
- The script, as it was published, runs epsilon of 2, 4 and 8; 1 is added.
- M starts at random, as do the logarithms of its standard deviations; here all means start at 0 and all
  standard deviations at 1.
- Not private, theirs is the same stochastic optimisation in batches of 10; here it is on all records.
- The simulated M and w are the same for every N (theirs differ, being drawn after the covariates), and the
  test set is 5000 records (theirs: N), so that what varies is the fit.
- Steps: the script has all N and epsilon at up to ten numbers of steps, 10 runs each. Here the last panel has
  `LONG_SEEDS` runs, N of 100 and 1000, epsilon of 1 and 8, and `STEPS`, so that all takes less than an hour.
- The AUC is at the end of the fit; there is no picture of it during the fit.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import special, stats

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCHMARKS))

from experiment import reproduce  # noqa: E402
from journal import Fit, groups, mean_and_error  # noqa: E402
from published_dpvi import ADAM, fit_as_published, optimizer  # noqa: E402
from workers import compiling  # noqa: E402

Array = NDArray[Any]

GROUPS, GROUP_COVARIATES, COVARIATES = 3, 3, 5
KNOWN = np.eye(GROUPS, GROUP_COVARIATES)  # the covariates of the groups
SPREAD = 0.1  # variance of a simulated group's coefficients
TEST = 5000
SIZES = (100, 200, 500, 1000)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
BATCH = 10
CLIP = 1.0
TASK_STEPS = 10_000  # of the box plots: as the last run of the script, and what `DPADVI` does by default
STEPS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
LONG_SIZES = (100, 1000)
LONG_EPSILONS = (1.0, 8.0)
LONG_SEEDS = 5
METHODS = ("advi", "d3p", "defaults", "plain")
FITTED = METHODS[:3]  # ``plain`` is the other posterior of the fits of ``defaults``
DRAWS = 1000


@dataclass(frozen=True)
class Simulated:
    """Records: covariates of shape ``(num_records, 5)``, group and label of each."""

    x: Array
    group: Array
    y: Array


@dataclass(frozen=True)
class Task:
    """One fit; ``epsilon`` is None where nothing is private."""

    method: str
    num_records: int
    epsilon: float | None
    n_steps: int
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        private = "" if self.epsilon is None else f", ε = {self.epsilon:g}"
        return f"{self.method}, N = {self.num_records}{private}, {self.n_steps:,} steps"


def tasks(seeds: int, quick: bool) -> list[Task]:
    """List the fits, seed by seed, so that an unfinished run has all of the figure."""
    if quick:
        return [Task(m, 200, None if m == "advi" else 4.0, 1000, 0) for m in FITTED]
    found: dict[Task, None] = {}  # the box plots and the last panel share some
    for seed in range(seeds):
        for n in SIZES:
            found[Task("advi", n, None, TASK_STEPS, seed)] = None
            for method in FITTED[1:]:
                found.update((Task(method, n, epsilon, TASK_STEPS, seed), None) for epsilon in EPSILONS)
        if seed < LONG_SEEDS:
            for n in LONG_SIZES:
                for steps in STEPS:
                    found[Task("advi", n, None, steps, seed)] = None
                    found.update((Task("d3p", n, epsilon, steps, seed), None) for epsilon in LONG_EPSILONS)
    return list(found)


@cache
def coefficients() -> Array:
    """Return what the records are simulated with, shape ``(3, 5)``: a row for each group."""
    rng = np.random.default_rng(2022)
    means = KNOWN @ rng.normal(size=(COVARIATES, GROUP_COVARIATES)).T
    return means + SPREAD**0.5 * rng.normal(size=means.shape)


@cache
def simulated(num_records: int, seed: int) -> Simulated:
    """Draw records."""
    rng = np.random.default_rng([2022, seed])
    x = rng.normal(size=(num_records, COVARIATES))
    group = rng.integers(GROUPS, size=num_records)
    chance = special.expit((x * coefficients()[group]).sum(axis=1))
    return Simulated(x, group, rng.binomial(1, chance))


def training(num_records: int) -> Simulated:
    """Return the records to fit, the same in every run."""
    return simulated(num_records, num_records)


def auc(weights: Array) -> float:
    """Area under the ROC curve of a coefficient matrix, shape ``(3, 5)``, on the test records."""
    test = simulated(TEST, 0)
    return area((test.x * weights[test.group]).sum(axis=1), test.y)


def area(scores: Array, labels: Array) -> float:
    """Return the chance that a record with label 1 has the larger score; a tie counts a half."""
    positive = int(labels.sum())
    above = float(stats.rankdata(scores)[labels == 1].sum()) - 0.5 * positive * (positive + 1)
    return above / (positive * (len(labels) - positive))


@cache
def regression(num_records: int) -> Any:
    """Return the PyMC model, made once a process."""
    import pymc as pm

    data = training(num_records)
    with pm.Model() as model:
        common = pm.Normal("common", 0, 4, shape=(COVARIATES, GROUP_COVARIATES))
        own = pm.Normal("own", 0, 1, shape=(GROUPS, COVARIATES))
        weights = pm.Deterministic("weights", KNOWN @ common.T + own)
        x, group = pm.Data("x", data.x), pm.Data("group", data.group)
        pm.Bernoulli("y", logit_p=(x * weights[group]).sum(axis=1), observed=data.y)
    return model


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, and measure it on the test records."""
    import pymc as pm

    from pymc_dpvi import DPADVI
    from pymc_dpvi.errors import PrivacyWarning

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    start = time.perf_counter()
    noise_multiplier = None
    privacy: dict[str, Any] = {
        "epsilon": task.epsilon,
        "delta": 1.0 / task.num_records,
        "random_seed": task.seed,
    }
    with regression(task.num_records):
        if task.method == "advi":
            approx = pm.fit(
                task.n_steps,
                method="advi",
                obj_optimizer=optimizer("adam"),
                random_seed=task.seed,
                progressbar=False,
            )
        elif task.method == "d3p":
            approx = fit_as_published(
                task.n_steps,
                optimizer_name="adam",
                sampling_prob=BATCH / task.num_records,
                l2_clip_norm=CLIP,
                **privacy,
            )
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivacyWarning)  # delta is one over the number of records
                approx = DPADVI(**privacy).fit(task.n_steps, progressbar=False, **compiling())
        if task.method != "advi":
            noise_multiplier = float(approx.privacy.noise_multiplier)
    # The coefficients are linear in the latent values, so their mean is that of the means.
    flat = np.asarray(approx.mean.eval())
    means = {name: flat[at].reshape(shape) for name, at, shape, _ in approx.groups[0].ordering.values()}
    found = {"auc": auc_of(means), "noise_multiplier": noise_multiplier}
    if task.method == "defaults":
        posterior = approx.sample(DRAWS, random_seed=task.seed)["posterior"]
        means = {name: posterior[name].values[0].mean(axis=0) for name in means}
        found |= {"auc": auc_of(means), "auc_plain": found["auc"]}
    return {**found, "seconds": time.perf_counter() - start}


def auc_of(means: Mapping[str, Array]) -> float:
    """AUC of the coefficients that means of the model's variables make."""
    return auc(KNOWN @ means["common"].T + means["own"])


def summarise(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Return one row per method, size, epsilon and number of steps."""
    names = ("method", "num_records", "epsilon", "n_steps")
    rows = []
    fits = [*fits, *({**f, "method": "plain", "auc": f["auc_plain"]} for f in fits if "auc_plain" in f)]
    for key, group in groups(fits, names).items():
        values = [fit["auc"] for fit in group]
        mean, error = mean_and_error(values)
        rows.append(
            {
                **dict(zip(names, key, strict=True)),
                "fits": len(group),
                "auc": mean,
                "auc_se": error,
                "auc_median": statistics.median(values),
                "aucs": values,
                "noise_multiplier": group[0]["noise_multiplier"],
                "seconds": mean_and_error(fit["seconds"] for fit in group)[0],
            }
        )

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return METHODS.index(row["method"]), row["num_records"], row["epsilon"] or np.inf, row["n_steps"]

    return sorted(rows, key=place)


def pick(rows: Sequence[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """Return the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def cell(row: dict[str, Any]) -> str:
    """Write mean and standard error."""
    return f"{row['auc']:.3f}" + ("" if row["auc_se"] is None else f" ± {row['auc_se']:.3f}")


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table by size and epsilon, and one by the number of steps."""
    label = {None: "not private"}
    steps = min(TASK_STEPS, max(row["n_steps"] for row in rows))
    for title, down, across in (
        (f"AUC by N (mean ± s.e.), δ = 1/N, {steps:,} steps", ("method", "epsilon"), "num_records"),
        ("AUC by the number of steps", ("method", "num_records", "epsilon"), "n_steps"),
    ):
        own = pick(rows, n_steps=steps) if across == "num_records" else rows
        places = sorted({row[across] for row in own})
        if across == "n_steps" and len(places) == 1:
            continue
        table = Table(title=title)
        table.add_column("")
        for place in places:
            table.add_column(f"{place:,}", justify="right")
        for key in dict.fromkeys(tuple(row[name] for name in down) for row in own):
            line = pick(own, **dict(zip(down, key, strict=True)))
            if across == "n_steps" and len(line) == 1:
                continue
            cells = {row[across]: cell(row) for row in line}
            *names, epsilon = key
            words = [str(names[0]), *(f"N = {n}" for n in names[1:]), label.get(epsilon, f"ε = {epsilon}")]
            table.add_row(", ".join(words), *[cells.get(place, "") for place in places])
        console.print(table)
    console.print(f"AUC of the simulated coefficients: {auc(coefficients()):.3f}")


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw box plots by epsilon and N for the private methods, and AUC against steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = min(TASK_STEPS, max(row["n_steps"] for row in rows))
    figure, axes = plt.subplots(1, 4, figsize=(20.0, 4.2), layout="constrained")
    *boxed, last = axes
    sizes = sorted({row["num_records"] for row in pick(rows, n_steps=steps)})
    for ax, method in zip(boxed, METHODS[1:], strict=True):
        budgets = sorted({row["epsilon"] for row in pick(rows, method=method, n_steps=steps)})
        for k, size in enumerate(sizes):
            own = [
                *pick(rows, method=method, num_records=size, n_steps=steps),
                *pick(rows, method="advi", num_records=size, n_steps=steps),
            ]
            places = [
                (budgets.index(row["epsilon"]) if row["method"] != "advi" else len(budgets))
                + (k - 0.5 * (len(sizes) - 1)) * 0.2
                for row in own
            ]
            boxes = ax.boxplot([row["aucs"] for row in own], positions=places, widths=0.16, patch_artist=True)
            for box in boxes["boxes"]:
                box.set_facecolor(f"C{k}")
            for median in boxes["medians"]:
                median.set_color("black")
            ax.plot([], [], "s", color=f"C{k}", label=f"N = {size}")
        ax.set_xticks(range(len(budgets) + 1), [*(f"{e:g}" for e in budgets), "not private"])
        ax.set(xlabel="ε", title=f"{method}, {steps:,} steps, δ = 1/N")
    lowest = min(ax.get_ylim()[0] for ax in boxed)
    for ax in axes:
        ax.axhline(auc(coefficients()), color="0.4", linestyle=":", label="simulated coefficients")
    for ax in boxed:
        ax.set_ylim(lowest - 0.005, auc(coefficients()) + 0.01)
    for ax in (axes[0], last):
        ax.set_ylabel("AUC")
    last.set_visible(any(row["n_steps"] != steps for row in rows))  # --quick has one number of steps
    axes[0].legend(frameon=False, fontsize=7, loc="lower right")
    for method in METHODS[:2]:
        for size in LONG_SIZES:
            for epsilon in (None, *LONG_EPSILONS):
                line = pick(rows, method=method, num_records=size, epsilon=epsilon)
                if len(line) < 2:
                    continue
                budget = "not private" if epsilon is None else f"{method}, ε = {epsilon:g}"
                last.errorbar(
                    [row["n_steps"] for row in line],
                    [row["auc"] for row in line],
                    yerr=[row["auc_se"] or 0.0 for row in line],
                    color=f"C{sizes.index(size)}",
                    linestyle={None: ":", LONG_EPSILONS[0]: "--"}.get(epsilon, "-"),
                    marker="o",
                    markersize=3,
                    capsize=2,
                    label=f"N = {size}, {budget}",
                )
    last.set(xscale="log", xlabel="steps in all", title="effect of the number of steps (mean ± s.e.)")
    last.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the table and draw the figure."""
    rows = summarise(fits)
    show(rows, console)
    plot(rows, folder / "hierarchical.png")
    return {"table": rows, "auc_of_simulated_coefficients": auc(coefficients())}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    settings = {
        "covariates": COVARIATES,
        "groups": GROUPS,
        "group_covariates": GROUP_COVARIATES,
        "batch_size": BATCH,
        "l2_clip_norm": CLIP,
        "adam": ADAM,
        "test_records": TEST,
    }
    reproduce(
        "hierarchical",
        __doc__,
        "one short fit of each method, N = 200, ε = 4",
        tasks,
        fit_once,
        settings,
        report,
        arguments,
    )


if __name__ == "__main__":
    main()
