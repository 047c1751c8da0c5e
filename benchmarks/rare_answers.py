"""Logistic regression where few records have a one: the rare answer is learnt, or clipped away.

A fit learns the common answer first. A clip norm that follows the norms of most of the gradients then falls,
and clips those of the rare answer (`pymc_dpvi.engine.running_clip`). Here are five standard normal
predictors, coefficients drawn from N(0, 1/4), and an intercept by which a share ``ones`` of the outcomes is
one; the fit has the priors N(0, 9) for the intercept and N(0, 1) for the coefficients. The seeds are public.

===========  =====================================================================================
default      the clip norm of ``DPADVI()``: a share of the sum of the norms, and never below its start
by records   ``AdaptiveClip(quantile=0.9)``: a tenth of the records is clipped, however low the norm
===========  =====================================================================================

Of each fit, noise-aware and plain: the mean predicted probability at 5,000 new records (about ``ones`` is
right), and the log score by these records' true probabilities, in nats a record, beyond that of the share of
ones among the training records, which is not private.

    python benchmarks/rare_answers.py [--seeds 10] [--jobs 2] [--quick] [--output DIR]

It writes ``rare_answers.jsonl`` (every fit, as it is done: the same command goes on where it was) and
``rare_answers.json``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from experiment import carry_out, command_line, understood
from journal import Fit, groups
from rich.console import Console
from rich.table import Table
from scipy import optimize, special
from workers import compiling

RECORDS = (3000, 20_000)
ONES = (0.02, 0.05)
EPSILONS = (0.1, 0.3, 1.0)
METHODS = ("default", "by records")
PREDICTORS, NEW, DRAWS = 5, 5000, 400
DELTA = 1e-6
STEPS, QUICK_STEPS = 10_000, 20


@dataclass(frozen=True)
class Task:
    """One fit."""

    method: str
    num_records: int
    ones: float
    epsilon: float
    n_steps: int
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        return f"{self.method}, N = {self.num_records}, {self.ones:.0%} of ones, ε = {self.epsilon:g}"


def tasks(chosen: argparse.Namespace) -> list[Task]:
    """List the fits, seed by seed, so that an unfinished run has all of the table."""
    return [
        Task(method, num_records, ones, epsilon, QUICK_STEPS if chosen.quick else STEPS, seed)
        for seed in range(chosen.seeds)
        for num_records in RECORDS[: 1 if chosen.quick else None]
        for ones in ONES
        for epsilon in EPSILONS
        for method in METHODS
    ]


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, and score it at new records."""
    import pymc as pm

    from pymc_dpvi import DPADVI, AdaptiveClip
    from pymc_dpvi.errors import InsecureNoiseWarning

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    rng = np.random.default_rng(task.seed)
    x, slopes = rng.normal(size=(task.num_records, PREDICTORS)), 0.5 * rng.normal(size=PREDICTORS)

    def excess(intercept: float) -> float:
        return float(special.expit(intercept + x @ slopes).mean() - task.ones)

    intercept = optimize.brentq(excess, -20.0, 5.0)
    y = rng.binomial(1, special.expit(intercept + x @ slopes))
    x_new = rng.normal(size=(NEW, PREDICTORS))
    truth = special.expit(intercept + x_new @ slopes)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)  # a figure's noise is the same in every run
        a, b = pm.Normal("a", 0, 3), pm.Normal("b", 0, 1, shape=PREDICTORS)
        pm.Bernoulli("y", logit_p=a + pm.Data("x", x) @ b, observed=y)
        clip = AdaptiveClip() if task.method == "default" else AdaptiveClip(quantile=0.9)
        seeds: dict[str, Any] = {"random_seed": task.seed, "insecure_noise_seed": task.seed}
        method = DPADVI(epsilon=task.epsilon, delta=DELTA, l2_clip_norm=clip, model=model, **seeds)
        approx = method.fit(task.n_steps, progressbar=False, **compiling())
    found: dict[str, Any] = {"l2_clip_norm": float(method.l2_clip_norm)}
    for kind, aware in (("noise_aware", True), ("plain", False)):
        posterior = approx.sample(DRAWS, random_seed=1, noise_aware=aware).posterior
        logits = (
            posterior["a"].values.reshape(-1, 1) + posterior["b"].values.reshape(-1, PREDICTORS) @ x_new.T
        )
        predicted = np.clip(special.expit(logits).mean(axis=0), 1e-12, 1.0 - 1e-12)
        share = max(y.mean(), 1.0 / y.size)
        gained = truth * np.log(predicted / share) + (1 - truth) * np.log((1 - predicted) / (1 - share))
        found |= {f"{kind}_rate": float(predicted.mean()), f"{kind}_gain": float(gained.mean())}
    return found


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print, for each setting and method, the range of the rates, and the mean and the worst gain."""
    rows = []
    table = Table(title="A rare answer: predicted rates, and the log score beyond the share's")
    kinds = ("rates, noise-aware", "gain, worst", "rates, plain", "gain, worst")
    for heading in ("N", "ones", "ε", "clip norm", *kinds):
        table.add_column(heading)
    names = ("num_records", "ones", "epsilon", "method")
    for (num_records, ones, epsilon, method), own in groups(fits, names).items():
        row: dict[str, Any] = {"num_records": num_records, "ones": ones, "epsilon": epsilon, "method": method}
        cells = []
        for kind in ("noise_aware", "plain"):
            rates, gains = ([fit[f"{kind}_{name}"] for fit in own] for name in ("rate", "gain"))
            numbers = (min(rates), max(rates), float(np.mean(gains)), min(gains))
            row |= {
                f"{kind}_{n}": v for n, v in zip(("least", "most", "gain", "worst"), numbers, strict=True)
            }
            cells += [f"{numbers[0]:.4f} to {numbers[1]:.4f}", f"{numbers[2]:+.3f}, {numbers[3]:+.3f}"]
        rows.append(row)
        table.add_row(str(num_records), f"{ones:.0%}", f"{epsilon:g}", method, *cells)
    console.print(table)
    return {"table": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = command_line(__doc__, f"{QUICK_STEPS} steps of each kind of fit, not compiled")
    chosen = understood(parser, arguments)
    settings = {"delta": DELTA, "steps": STEPS, "draws": DRAWS}
    command = " ".join(["rare_answers.py", *(sys.argv[1:] if arguments is None else arguments)])
    carry_out("rare_answers", command, __doc__, tasks(chosen), fit_once, settings, report, chosen)


if __name__ == "__main__":
    main()
