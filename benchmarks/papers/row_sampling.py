"""Sample persons, or sample rows and account for persons? What each needs in noise, at the same ε.

Charles, Ganesh, McKenna, McMahan, Mitchell, Pillutla and Rush (2024, arXiv:2407.07737) compare two ways to
protect a person with k rows. *Persons* are sampled, and the sum of a person's gradients is clipped to C₁ (the
library's ``unit=``). Or *rows* are sampled, each clipped to C, and a person's rows in a batch, a binomial
number, are accounted for together (a mixture of Gaussians, by dp-accounting). With the same probability q
both have the same expected number of rows in a batch, so that the noise in the sum tells which is better:

* rows: σ_rows C;
* persons: σ_persons C₁, where C₁ is between √k C (the gradients of a person's rows have nothing in common)
  and k C (they are equal).

Printed are σ of both, and the noise of sampled rows over that of sampled persons at both ends. Above 1 the
library's way adds less noise.

    python benchmarks/papers/row_sampling.py [--quick] [--output DIR]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from rich.console import Console
from rich.table import Table
from scipy import optimize, stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from journal import write

HERE = Path(__file__).resolve().parents[1]
DELTA = 1e-5
#: Probability and steps: an epoch of small batches, many of them, and batches of a fifth.
SETTINGS = ((0.01, 1000), (0.05, 1000), (0.2, 200))
_GRID = 1e-3  # of the privacy loss; a finer one changes the third digit of nothing below
EPSILONS, ROWS = (1.0, 3.0, 10.0), (2, 8, 32)


def persons(sigma: float, q: float) -> DpEvent:
    """One step with sampled persons, whose sums have norm 1."""
    return PoissonSampledDpEvent(q, GaussianDpEvent(sigma))


def rows(sigma: float, q: float, k: int) -> DpEvent:
    """One step with sampled rows of norm 1: of k rows of a person, a binomial number is in the batch."""
    number = np.arange(k + 1)
    return MixtureOfGaussiansDpEvent(sigma, number.tolist(), stats.binom.pmf(number, k, q).tolist())


def noise(step: Callable[[float], DpEvent], steps: int, epsilon: float, start: float) -> float:
    """Find σ at which so many steps cost ε; the search begins at `start`."""

    def apart(log_sigma: float) -> float:
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, _GRID)
        accountant.compose(step(math.exp(log_sigma)), steps)
        return float(accountant.get_epsilon(DELTA)) - epsilon

    low = high = math.log(start)
    while apart(low) < 0:
        low -= 0.3
    while apart(high) > 0:
        high += 0.3
    return math.exp(optimize.brentq(apart, low, high, xtol=2e-3))


def cells(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield one row for each setting, ε and number of rows."""
    for q, steps in SETTINGS[-1:] if quick else SETTINGS:
        for epsilon in EPSILONS[1:2] if quick else EPSILONS:
            sigma = noise(partial(persons, q=q), steps, epsilon, 1.0)
            for k in ROWS[:1] if quick else ROWS:
                by_rows = noise(partial(rows, q=q, k=k), steps, epsilon, k * sigma)
                yield {
                    "sampling_prob": q,
                    "steps": steps,
                    "epsilon": epsilon,
                    "rows": k,
                    "sigma_persons": sigma,
                    "sigma_rows": by_rows,
                    "ratio_unrelated": by_rows / (math.sqrt(k) * sigma),
                    "ratio_equal": by_rows / (k * sigma),
                }


def main() -> None:
    """Compute, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one setting")
    parser.add_argument("--output", type=Path, default=HERE / "output", help="a folder")
    chosen = parser.parse_args()
    table = Table(title=f"Noise of sampled rows over that of sampled persons, δ = {DELTA:g}")
    for heading in ("q", "steps", "ε", "rows", "σ persons", "σ rows", "unrelated rows", "equal rows"):
        table.add_column(heading)
    console, found = Console(), []
    for cell in cells(chosen.quick):
        found.append(cell)
        table.add_row(*(f"{value:.3g}" for value in cell.values()))
    console.print(table)
    chosen.output.mkdir(parents=True, exist_ok=True)
    quick = " --quick" if chosen.quick else ""
    command = f"python benchmarks/papers/row_sampling.py{quick}"
    write(chosen.output / "row_sampling.json", command, {"delta": DELTA}, table=found)


if __name__ == "__main__":
    main()
