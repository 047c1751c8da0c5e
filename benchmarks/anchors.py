"""Anchors beside the default fit: noise-aware regression from noisy sums, released once.

For linear regression X'X, X'y and y'y are all that the data tell, and for logistic regression X'X and X'y
nearly so. One Gaussian release of them is a strong rival of many noisy gradients, and it claims the same as
we do: a posterior that knows of the noise (`anchor_posterior` has the formulas). It is fitted to the linear
and logistic problems of `calibration.py`, at the same ε and δ, by adding or removing a record, with the
same prior, and judged alike. Poisson regression is left out: no quadratic is near an exponential, and y has
no bound.

What favours the anchor: the bound of ‖x‖ is the problem's own .95 quantile, and that of |y| its maximum,
both taken without privacy, where a user would have to guess. What does not: it takes the predictors of a
logistic problem for normal ones.

    python benchmarks/anchors.py --range development [--problems 60] [--jobs 1] [--polynomial] [--quick]

``--polynomial`` fits the logistic problems alone, by the paper's quadratic log-likelihood (``_polynomial``
is added to the files' names). The posteriors without privacy are those of `calibration.py` if the folder
holds its journal, and are computed otherwise.

Sources: Bernstein and Sheldon, 2019, arXiv:1910.13153; Kulkarni et al., 2021, arXiv:2011.00467.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anchor_posterior import Posterior, release, sample
from calibration import (
    _RANGES,
    DELTA,
    EPSILONS,
    LEVELS,
    MARGIN,
    Comparison,
    compare,
    coverage,
    gaussian_noise,
    problem_kind,
    problem_of,
    summary,
)
from calibration_problems import FAMILIES, reference
from experiment import command_line, understood
from journal import Fit, fits_of, write
from rich.console import Console
from rich.table import Table

ANCHORED = ("linear", "logistic")
DRAWS = 1000


@dataclass(frozen=True)
class Task:
    """One anchor."""

    seed: int
    epsilon: float
    draws: int
    polynomial: bool

    def __str__(self) -> str:
        return f"anchor {self.seed}, ε = {self.epsilon:g}"


def fit_once(task: Task) -> dict[str, Any]:
    """Release once and draw from the posterior."""
    problem = problem_of(task.seed)
    rng = np.random.default_rng([4, task.seed, round(100 * task.epsilon)])
    seen = release(problem, gaussian_noise(task.epsilon, DELTA), rng)
    target = Posterior(seen, problem.num_records, problem.prior_stddev, task.polynomial)
    draws, accepted = sample(target, task.draws, rng)
    return {**summary(problem, draws), "accepted": accepted}


def compare_only(task: Comparison) -> dict[str, Any]:
    """Compute the posterior without privacy and the base rate; `calibration.compare` does more."""
    problem = problem_of(task.seed)
    draws, pareto_k = reference(problem, DRAWS, np.random.default_rng([1, task.seed]))
    return {**summary(problem, draws), "pareto_k": pareto_k, "base_rate": problem.base_rate()}


def cells(fits: Sequence[Fit], compared: Mapping[int, Fit]) -> list[dict[str, Any]]:
    """Return one row for each family and ε, under the names of `calibration.cells`."""
    rows = []
    for family in (*ANCHORED, "all"):
        for epsilon in EPSILONS:
            own = [f for f in fits if f["epsilon"] == epsilon and family in ("all", family_of(f["seed"]))]
            if own:
                rows.append({"family": family, "epsilon": epsilon, **_cell(own, compared)})
    return rows


def family_of(seed: int) -> str:
    """Family of the problem of a seed."""
    return FAMILIES[seed % len(FAMILIES)]


def _cell(fits: Sequence[Fit], compared: Mapping[int, Fit]) -> dict[str, Any]:
    row: dict[str, Any] = {"problems": len(fits)}
    for name in ("prior", "other"):
        group = [f for f in fits if (problem_kind(f["seed"]) == "prior") == (name == "prior")]
        for whose, found in (("anchor", group), ("non_private", [compared[f["seed"]] for f in group])):
            ranks = [r for f in found for r in f["rank"]]
            for level in LEVELS:
                row[f"{whose}_{name}_{level:g}"] = coverage(ranks, level) if ranks else math.nan
    widths = [s / t for f in fits for s, t in zip(f["stddev"], compared[f["seed"]]["stddev"], strict=True)]
    row["anchor_width"] = float(np.median(widths))
    row["anchor_error"] = float(np.median([np.sqrt(np.mean(np.square(f["error"]))) for f in fits]))
    base = np.array([compared[f["seed"]]["base_rate"] for f in fits])
    gain = np.array([f["score"] for f in fits]) - base
    full = np.array([compared[f["seed"]]["score"] for f in fits]) - base
    row["anchor_worse_than_base"] = float(np.mean(gain < -MARGIN))
    much = full > MARGIN
    row["anchor_gain"] = float(np.median(gain[much] / full[much])) if much.any() else math.nan
    return row


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table of cells."""
    names = ("prior_0.5", "prior_0.9", "other_0.5", "other_0.9", "width", "worse_than_base", "gain")
    headings = ("50 %", "90 %", "50 %, other truths", "90 %, other truths", "width", "below base", "gain")
    table = Table(title="Noise-aware regression from noisy sums; coverage of central intervals")
    for heading in ("", "ε", "problems", *headings, "not private, 90 %", "other truths"):
        table.add_column(heading)
    for row in rows:
        numbers = [f"{row[f'anchor_{name}']:.2f}" for name in names]
        numbers += [f"{row[f'non_private_{name}_0.9']:.2f}" for name in ("prior", "other")]
        table.add_row(row["family"], f"{row['epsilon']:g}", str(row["problems"]), *numbers)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, "two problems and 100 draws; the figures mean nothing")
    parser.add_argument("--range", choices=sorted(_RANGES), default="development", help="of the seeds")
    parser.add_argument("--problems", type=int, default=60, help="how many of the range, of all families")
    parser.add_argument("--polynomial", action="store_true", help="logistic problems alone, by a quadratic")
    chosen = understood(parser, arguments)
    if chosen.quick:
        chosen.problems = 2
    first, console = _RANGES[chosen.range], Console(width=160)
    families = ("logistic",) if chosen.polynomial else ANCHORED
    seeds = [seed for seed in range(first, first + chosen.problems) if family_of(seed) in families]
    epsilons, draws = (EPSILONS[1:4:2], 100) if chosen.quick else (EPSILONS, DRAWS)
    own = f"anchors_{chosen.range}" + "_polynomial" * chosen.polynomial
    here, folder = Path(__file__).resolve().parent, chosen.output
    basis = [here / "calibration.py", here / "calibration_problems.py"]
    shared = folder / f"calibration_{chosen.range}_compared.jsonl"  # of calibration.py, if it was run
    ours = folder / f"anchors_{chosen.range}_compared.jsonl"
    there = shared.exists()
    try:
        kept = fits_of(
            [Comparison(seed) for seed in seeds],
            compare if there else compare_only,
            shared if there else ours,
            {},
            chosen.jobs,
            console,
            basis,
        )
        fits = fits_of(
            [Task(seed, epsilon, draws, chosen.polynomial) for seed in seeds for epsilon in epsilons],
            fit_once,
            folder / f"{own}.jsonl",
            {"delta": DELTA},
            chosen.jobs,
            console,
            [*basis, here / "anchors.py", here / "anchor_posterior.py"],
        )
    except KeyboardInterrupt:
        raise SystemExit("Interrupted. The same command goes on where this one was.") from None
    rows = cells(fits, {one["seed"]: one for one in kept})
    show(rows, console)
    command = f"python benchmarks/anchors.py --range {chosen.range} --problems {chosen.problems}"
    command += " --polynomial" * chosen.polynomial
    settings = {"delta": DELTA, "draws": draws}
    write(folder / f"{own}.json", command, settings, cells=rows)
    console.print(f"{len(fits)} fits; written to {folder}")


if __name__ == "__main__":
    main()
