r"""What intervals of a network's predictions hold, where there are more than 4,096 latent values.

A network of one hidden layer is drawn from its own prior, and data from the network,

    h = max(x W1 + b1, 0),   y ~ Bernoulli(sigmoid(h W2 + b2)),

with 20 predictors and 200 units: 4,401 weights, for which `sample()` has the fitted family and no
noise-aware posterior. Predictors are standard normal. The priors are W1 ~ N(0, 2 / 20), b1 ~ N(0, 0.1²), W2 ~
N(0, 4 / 200) and b2 ~ N(0, 0.1²), by which a logit has a standard deviation of about 2. The fit has the
same priors, so that its intervals are at fault where they do not hold the truth as often as they say, and
not the model.

Single weights mean nothing: units can be exchanged. What has a meaning is the probability at a new x. Of
500 new ones, and 400 draws from the fit, scores are

- how often the central 50 and 90 % intervals of p(x) hold the p(x) of the network that made the data;
- the median length of the 90 % intervals;
- what is lost by predicting with the mean of p(x): the divergence from the true p(x), in nats a record,
  beside that of the share of ones, which is what a prediction without x would lose;
- the expected calibration error of that mean (15 bins; against true probabilities).

=============  ===================================================================================
mean-field     every weight is independent: what a fit has if nothing is said
low rank       ``LowRank(10)`` for all weights
point          ``Point()``: no interval; only what is lost tells
=============  ===================================================================================

Each is fitted with defaults at epsilon of 10, 1 and 0.1 (delta = 1e-5), and at 100, which stands for no
privacy: the same algorithm, with little noise. The exact
posterior of 4,401 weights, by MCMC, is not among them: it would take hours.

    python benchmarks/network_intervals.py [--seeds 10] [--records 2000 20000] [--quick] [--output DIR]

It writes ``network_intervals.jsonl`` (every fit, as it is done: run the command again and it goes on where
it was) and ``network_intervals.json``.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from experiment import carry_out, command_line, understood
from journal import Fit, groups, mean_and_error
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import special
from workers import compiling

Array = NDArray[Any]

PREDICTORS, HIDDEN = 20, 200
SPREADS = {"W1": math.sqrt(2.0 / PREDICTORS), "b1": 0.1, "W2": 2.0 / math.sqrt(HIDDEN), "b2": 0.1}
SHAPES: dict[str, tuple[int, ...]] = {"W1": (PREDICTORS, HIDDEN), "b1": (HIDDEN,), "W2": (HIDDEN,), "b2": ()}
RECORDS = (2000, 20_000)
EPSILONS = (100.0, 10.0, 1.0, 0.1)
METHODS = ("mean-field", "low rank", "point")
DELTA = 1e-5
STEPS, QUICK_STEPS = 10_000, 5
RANK = 10
NEW, DRAWS, BINS = 500, 400, 15
LEVELS = (0.5, 0.9)
#: Networks, data and starts are drawn with this number before the seed.
KEY = 4401


@dataclass(frozen=True)
class Task:
    """One fit."""

    method: str
    num_records: int
    epsilon: float
    n_steps: int
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        return f"{self.method}, N = {self.num_records}, ε = {self.epsilon:g}"


@dataclass(frozen=True)
class Problem:
    """A network, its data, and what it says of new records."""

    x: Array
    y: Array
    x_new: Array
    p_new: Array
    start: dict[str, Array]


def tasks(chosen: argparse.Namespace) -> list[Task]:
    """List the fits, seed by seed, so that an unfinished run has all of the table."""
    return [
        Task(method, num_records, epsilon, chosen.n_steps, seed)
        for seed in range(chosen.seeds)
        for num_records in chosen.records
        for epsilon in EPSILONS
        for method in chosen.methods
    ]


def weights(rng: np.random.Generator) -> dict[str, Array]:
    """Draw a network from the prior."""
    return {name: np.asarray(rng.normal(0.0, SPREADS[name], shape)) for name, shape in SHAPES.items()}


def logits(x: Array, of: dict[str, Array]) -> Array:
    """Return the logit of each row of `x`."""
    return np.asarray(np.maximum(x @ of["W1"] + of["b1"], 0.0) @ of["W2"] + of["b2"])


@cache
def problem(num_records: int, seed: int) -> Problem:
    """Draw a network and its data."""
    rng = np.random.default_rng([KEY, num_records, seed])
    truth = weights(rng)
    x, x_new = (rng.normal(size=(number, PREDICTORS)) for number in (num_records, NEW))
    y = (rng.random(num_records) < special.expit(logits(x, truth))).astype("int8")
    return Problem(x, y, x_new, special.expit(logits(x_new, truth)), weights(rng))


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, and score its probabilities at new records."""
    import pymc as pm

    from pymc_dpvi import DPADVI, GuideFamily, LowRank, MeanField, Point, Quadrature
    from pymc_dpvi.errors import InsecureNoiseWarning

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    of = problem(task.num_records, task.seed)
    family = {"mean-field": MeanField(), "low rank": LowRank(RANK), "point": Point()}[task.method]
    guide: dict[str | tuple[str, ...], GuideFamily | Quadrature] = {tuple(SHAPES): family}
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)  # a benchmark's noise is the same in every run
        w = {name: pm.Normal(name, 0.0, SPREADS[name], shape=shape) for name, shape in SHAPES.items()}
        hidden = pm.math.maximum(pm.Data("x", of.x) @ w["W1"] + w["b1"], 0.0)
        pm.Bernoulli("y", logit_p=hidden @ w["W2"] + w["b2"], observed=of.y)
        # Units that start as equals stay equals. The start is a draw from the prior, which no record knows.
        method = DPADVI(
            epsilon=task.epsilon,
            delta=DELTA,
            guide=guide,
            start=of.start,
            random_seed=task.seed,
            insecure_noise_seed=task.seed,
        )
        approx = method.fit(task.n_steps, progressbar=False, **compiling())
    draws = 1 if task.method == "point" else DRAWS
    flat = approx.draw_latents(draws, np.random.default_rng([20, task.seed]))
    places = zip(approx.latents.value_vars, approx.latents.slices, approx.latents.shapes, strict=True)
    by_name = {str(var.name): (at, shape) for var, at, shape in places}
    probs = np.array(
        [
            special.expit(logits(of.x_new, {n: row[at].reshape(shape) for n, (at, shape) in by_name.items()}))
            for row in flat
        ]
    )
    return scored(probs, of.p_new, float(of.y.mean()))


def scored(probs: Array, truth: Array, share: float) -> dict[str, Any]:
    """Score draws of probabilities, shape ``(draws, new records)``."""
    found: dict[str, Any] = {}
    for level in LEVELS:
        low, high = np.quantile(probs, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
        found[f"holds_{level:g}"] = float(((low <= truth) & (truth <= high)).mean())
    found["length"] = float(np.median(high - low))
    mean = probs.mean(axis=0)
    found["lost"], found["lost_by_share"] = divergence(truth, mean), divergence(truth, share)
    bins = np.minimum((mean * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=truth - mean, minlength=BINS)
    found["calibration_error"] = float(np.abs(gaps).sum() / len(truth))
    return found


def divergence(truth: Array, said: Array | float) -> float:
    """Return the mean divergence of Bernoulli distributions."""
    ones = special.rel_entr(truth, said)
    return float((ones + special.rel_entr(1.0 - truth, 1.0 - np.asarray(said))).mean())


def summarise(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Return one row per number of records, epsilon and method."""
    names = ("num_records", "epsilon", "method")
    rows = []
    for key, group in groups(fits, names).items():
        row: dict[str, Any] = {**dict(zip(names, key, strict=True)), "fits": len(group)}
        scores = (*(f"holds_{level:g}" for level in LEVELS), "length", "lost", "lost_by_share")
        for score in (*scores, "calibration_error"):
            row[score], row[f"{score}_se"] = mean_and_error(fit[score] for fit in group)
        rows.append(row)
    return sorted(rows, key=lambda row: (row["num_records"], -row["epsilon"], METHODS.index(row["method"])))


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the table."""
    del folder
    rows = summarise(fits)
    table = Table(title=f"probabilities at {NEW} new records, δ = {DELTA:g} (mean ± s.e.)")
    for heading in ("N", "ε", "family", "90 %", "50 %", "length", "lost", "by the share", "ECE"):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    for row in rows:
        held = row["method"] != "point"
        table.add_row(
            f"{row['num_records']:,}",
            f"{row['epsilon']:g}",
            row["method"],
            *(_cell(row, score) if held else "" for score in ("holds_0.9", "holds_0.5", "length")),
            *(_cell(row, score) for score in ("lost", "lost_by_share", "calibration_error")),
        )
    console.print(table)
    return {"table": rows}


def _cell(row: dict[str, Any], score: str) -> str:
    error = row[f"{score}_se"]
    return f"{row[score]:.3f}" + ("" if error is None else f" ± {error:.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = command_line(__doc__, f"one fit of each kind, of {QUICK_STEPS} steps")
    parser.add_argument("--records", nargs="+", type=int, default=list(RECORDS), help="numbers of records")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    chosen = understood(parser, arguments)
    if min(chosen.records) < 100:
        parser.error("--records must be at least 100")
    chosen.n_steps = QUICK_STEPS if chosen.quick else STEPS
    said = " ".join(f"{number}" for number in chosen.records)
    size = "--quick" if chosen.quick else f"--seeds {chosen.seeds}"
    command = f"network_intervals.py {size} --records {said} --methods " + " ".join(
        f'"{name}"' if " " in name else name for name in chosen.methods
    )
    settings = {"delta": DELTA, "hidden": HIDDEN, "draws": DRAWS, "new": NEW, "rank": RANK}
    carry_out("network_intervals", command, __doc__, tasks(chosen), fit_once, settings, report, chosen)


if __name__ == "__main__":
    main()
