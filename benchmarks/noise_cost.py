"""What lattice noise costs: nanoseconds per deviate, and the whole step against plain float noise.

First the sampler, against NumPy's `standard_normal`, which is neither private in floating point nor drawn
from a cryptographic generator. Then the whole private step of a logistic regression with D coefficients
(batch, latent draw, noise, gradients, clipped sum, update), against the same step with what it would have
without a lattice: float64 noise from NumPy, added to the sum in float64. Both variants run in one process,
in turn, round by round; times are process times (hence one thread), and a ratio is the median over the rounds
of the ratio within a round, so that it holds on a machine that others use too.

    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python benchmarks/noise_cost.py [--rounds 15] [--quick] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table

from pymc_dpvi import numba_cache
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine import clipping
from pymc_dpvi.engine.loop import iterate
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism, Streams
from pymc_dpvi.posterior.approximation import DPMeanField
from pymc_dpvi.randomness.lattice_noise import LatticeNoise
from pymc_dpvi.sampling import PoissonSampler


@dataclass(frozen=True)
class Size:
    """Coefficients, records, expected batch size, and steps in a round."""

    num_params: int
    num_records: int
    batch_size: int
    n_steps: int


SIZES = (Size(100, 20_000, 100, 1000), Size(10_000, 500, 50, 200), Size(100_000, 100, 25, 50))


@numba.njit
def without_lattice(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, noise: np.ndarray, unit: float
) -> np.ndarray:
    """Stand in for `clipping.round_and_add`. The noise is float64 behind int64's back."""
    return high + noise.view(np.float64)


class FloatMechanism(Mechanism):
    """The mechanism with float64 noise from NumPy's generator."""

    def draw(self, streams: Streams, num_records: int, n_steps: int, num_noise: int) -> Draws:
        """Draw batches as they are, and noise in float64."""
        indices, offsets = self.sampler.draw(streams.sampling, num_records, n_steps)
        noise = GENERATOR.standard_normal((n_steps, num_noise))
        noise *= self.noise.stddev
        return Draws(indices, offsets, noise.view(np.int64))


GENERATOR = np.random.default_rng(1)


def seconds(run: Callable[[], Any]) -> float:
    """Return the process time of a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def deviates(n: int, rounds: int) -> dict[str, Any]:
    """Nanoseconds per deviate, the least of the rounds, and the ratio."""
    stream, noise = Streams.make(None).noise, LatticeNoise(1.0)
    variants = {"lattice": lambda: noise.draw(stream, n), "numpy": lambda: GENERATOR.standard_normal(n)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for name in [*variants, *(list(variants) * rounds)]:
        times[name].append(1e9 * seconds(variants[name]) / n)
    best = {name: min(list_[1:]) for name, list_ in times.items()}
    return {
        "n": n,
        **best,
        "ratio": statistics.median(
            a / b for a, b in zip(times["lattice"][1:], times["numpy"][1:], strict=True)
        ),
    }


def make_runner(size: Size, lattice: bool) -> Callable[[], None]:
    """Compile the step of one variant; the function makes a round of steps."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(size.num_records, size.num_params)) / np.sqrt(size.num_params)
    y = (rng.random(size.num_records) < 0.5).astype(np.int64)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=size.num_params)
        pm.Bernoulli("label", logit_p=x @ beta, observed=y)
    record = build_record_model(model)
    approx = DPMeanField(record, random_seed=1)
    mechanism = (Mechanism if lattice else FloatMechanism)(
        PoissonSampler(size.batch_size / size.num_records), 1.0, 4.0, "add_or_remove_one", "aligned"
    )
    with ExitStack() as stack:
        if not lattice:
            stack.enter_context(mock.patch.object(clipping, "round_and_add", without_lattice))
            # Another code has another name, or the compiled lattice would be found again.
            stack.enter_context(mock.patch.object(numba_cache, "_SOURCES", "without a lattice"))
        step = PrivateStep(
            record,
            approx.latents,
            approx.groups[0],
            mechanism,
            n_mc=1,
            optimizer=pm.adam(learning_rate=0.01),
            max_grad_norm=None,
            compile_kwargs=compile_mode("numba", None),
        )
    streams, public = Streams.make(None), np.random.default_rng(3)

    def run() -> None:
        for _ in iterate(step, mechanism, streams, public, size.num_records, size.n_steps):
            pass

    return run


def steps(size: Size, rounds: int) -> dict[str, Any]:
    """Microseconds per step, the least of the rounds, and the ratio."""
    runners = {"lattice": make_runner(size, True), "float": make_runner(size, False)}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for run in runners.values():
        run()  # compiles
    for k in range(rounds):
        for name in sorted(runners, reverse=bool(k % 2)):
            times[name].append(1e6 * seconds(runners[name]) / size.n_steps)
    return {
        "num_params": size.num_params,
        "batch_size": size.batch_size,
        **{name: min(list_) for name, list_ in times.items()},
        "ratio": statistics.median(a / b for a, b in zip(times["lattice"], times["float"], strict=True)),
    }


def main() -> None:
    """Measure, print two tables and write a JSON file."""
    parser = argparse.ArgumentParser(description="Cost of lattice noise.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds of the two smaller steps")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent / "output" / "noise_cost.json"
    )
    arguments = parser.parse_args()
    rounds, sizes = (3, SIZES[:2]) if arguments.quick else (arguments.rounds, SIZES)
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    warnings.simplefilter("ignore")  # numba's, on matrix products of strided views
    console = Console()

    drawn = [deviates(n, 3 * rounds) for n in (20_000, 500_000)]
    table = Table("deviates", "lattice, ns", "NumPy, ns", "ratio", title="One deviate")
    for row in drawn:
        table.add_row(f"{row['n']:,}", f"{row['lattice']:.1f}", f"{row['numpy']:.1f}", f"{row['ratio']:.2f}")
    console.print(table)

    stepped = [steps(size, rounds) for size in sizes]
    table = Table("D", "batch", "lattice, µs", "float, µs", "ratio", title="One private step")
    for row in stepped:
        cells = (f"{row['num_params']:,}", f"{row['batch_size']}", f"{row['lattice']:.0f}")
        table.add_row(*cells, f"{row['float']:.0f}", f"{row['ratio']:.2f}")
    console.print(table)

    document = {
        "deviates": drawn,
        "steps": stepped,
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("pymc", "pytensor", "numba", "numpy", "cryptography")},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"Written to {arguments.output}")


if __name__ == "__main__":
    main()
