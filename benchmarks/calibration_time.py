"""How long calibration takes, and how close to its target it comes.

Two sets of settings. *Usual* ones: q from 0.001 to 0.05, 1000 to 100,000 steps, epsilon 0.1, 1 and 8, delta
1e-5 and 1e-6, Poisson batches under either relation and batches of fixed size. And *the whole range* that
the functions accept, drawn log-uniformly: q in [1e-6, 1], 1 to 10,000,000 steps, epsilon in [0.01, 100],
delta in [1e-12, 0.1], any sampler, any relation that it has a meaning for, and the corners of this box. For
each: `noise_multiplier`, then, with the noise found, `max_steps`, `epsilon` and `delta`, with nothing
remembered from before.

It stops with an error if an answer is not one-sided: epsilon of the noise above its target or, for the
tight accountant, below 0.999 of it although a little less noise would do; fewer steps than the noise was
made for; an epsilon that one step more does not exceed; a number that is none. An error message in place of
an answer is counted.

Times are of the process, not of the clock: other programs on the machine do not count, though they slow the
caches.

    python benchmarks/calibration_time.py [--draws 300] [--seed 0] [--accountants pld rdp ...]
    [--independent 20]
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymc_dpvi.accounting import (
    ACCOUNTANT_NAMES,
    UnsupportedEventError,
    delta,
    epsilon,
    evaluation,
    max_steps,
    noise_multiplier,
    step_event,
)
from pymc_dpvi.accounting.evaluation import MAX_STEPS, MIN_NOISE_MULTIPLIER
from pymc_dpvi.accounting.papers import fixed_size_rdp, rdp
from pymc_dpvi.accounting.pld import gaussian_steps
from pymc_dpvi.errors import CalibrationError
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler

ADD, REPLACE = "add_or_remove_one", "replace_one"
FUNCTIONS = ("noise_multiplier", "max_steps", "epsilon", "delta")
POPULATION = 1_000_000


@dataclass(frozen=True)
class Setting:
    """A run and its target."""

    target: float
    delta: float
    n_steps: int
    sampler: Any
    relation: str

    def __str__(self) -> str:
        return (
            f"{self.sampler.name} {self.relation} q={self.sampler.sampling_prob:.3g} T={self.n_steps} "
            f"epsilon={self.target:.3g} delta={self.delta:.2g}"
        )


@dataclass
class Tally:
    """What came of one accountant on one set of settings."""

    seconds: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: {f: [] for f in FUNCTIONS})
    ratios: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    jumps: int = 0


def usual() -> Iterator[Setting]:
    """Yield settings like those of published runs."""
    for q, steps, target, at in itertools.product(
        (0.001, 0.01, 0.05), (1000, 10_000, 100_000), (0.1, 1.0, 8.0), (1e-5, 1e-6)
    ):
        yield Setting(target, at, steps, PoissonSampler(q), ADD)
        yield Setting(target, at, steps, PoissonSampler(q), REPLACE)
        yield Setting(target, at, steps, FixedSizeSampler(round(q * POPULATION), POPULATION), REPLACE)


def corners() -> Iterator[Setting]:
    """Yield the corners of the box."""
    for target, at, steps, q in itertools.product(
        (0.01, 100.0), (1e-12, 0.1), (1, MAX_STEPS), (1e-6, 0.5, 1.0)
    ):
        sampler = FullBatchSampler() if q == 1.0 else PoissonSampler(q)
        yield Setting(target, at, steps, sampler, ADD)
        yield Setting(target, at, steps, sampler, REPLACE)


def anywhere(rng: np.random.Generator, draws: int) -> Iterator[Setting]:
    """Yield settings from the whole box."""

    def log_uniform(low: float, high: float) -> float:
        return float(min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high))

    for _ in range(draws):
        kind = rng.choice(["poisson", "full_batch", "fixed_size"], p=[0.6, 0.1, 0.3])
        relation = REPLACE if kind == "fixed_size" else str(rng.choice([ADD, REPLACE]))
        q = log_uniform(1e-6, 1.0)
        if kind == "fixed_size":
            records = round(log_uniform(2, 1e6))
            sampler: Any = FixedSizeSampler(max(1, round(q * records)), records)
        else:
            sampler = PoissonSampler(q) if kind == "poisson" else FullBatchSampler()
        steps = round(log_uniform(1.0, MAX_STEPS))
        yield Setting(log_uniform(0.01, 100.0), log_uniform(1e-12, 0.1), steps, sampler, relation)


def timed(function: Callable[..., float], **arguments: Any) -> tuple[float, float]:
    """Return the answer, and the seconds of the process without anything remembered."""
    evaluation._epsilon_cached.cache_clear()
    gaussian_steps._law.cache_clear()
    rdp._divergence.cache_clear()
    fixed_size_rdp._log_differences.cache_clear()
    start = time.process_time()
    found = function(**arguments)
    return found, time.process_time() - start


def measure(setting: Setting, accountant: str, tally: Tally) -> None:
    """Time the four functions on one setting, and check what they say."""
    run = dict(sampler=setting.sampler, neighboring_relation=setting.relation, accountant=accountant)
    target = dict(epsilon=setting.target, delta=setting.delta, allow_unproven=True)
    try:
        noise, seconds = timed(noise_multiplier, n_steps=setting.n_steps, **target, **run)
    except UnsupportedEventError:
        return
    except CalibrationError as error:
        tally.refused.append(f"{setting}: {error}")
        return
    tally.seconds["noise_multiplier"].append((seconds, str(setting)))
    spent, seconds = timed(
        epsilon, delta=setting.delta, noise_multiplier=noise, n_steps=setting.n_steps, **run
    )
    tally.seconds["epsilon"].append((seconds, str(setting)))
    tally.ratios.append(spent / setting.target)
    loose = spent < 0.999 * setting.target and accountant == "pld" and noise > MIN_NOISE_MULTIPLIER
    if loose:  # where the accountant chooses another grid, epsilon may jump across the target
        less = noise * (1.0 - 2e-5)
        loose = not epsilon(noise_multiplier=less, n_steps=setting.n_steps, delta=setting.delta, **run) > (
            setting.target
        )
        tally.jumps += 1
    if not 0.0 <= spent <= setting.target or loose:
        raise AssertionError(f"{accountant}, {setting}: noise {noise!r} spends {spent!r}")
    steps, seconds = timed(max_steps, noise_multiplier=noise, **target, **run)
    tally.seconds["max_steps"].append((seconds, str(setting)))
    at = dict(delta=setting.delta, noise_multiplier=noise, **run)
    if not setting.n_steps <= steps <= MAX_STEPS or epsilon(n_steps=int(steps), **at) > setting.target:
        raise AssertionError(f"{accountant}, {setting}: {steps} steps at noise {noise!r}")
    if steps < MAX_STEPS and not epsilon(n_steps=int(steps) + 1, **at) > setting.target:
        raise AssertionError(f"{accountant}, {setting}: more than {steps} steps at noise {noise!r}")
    found, seconds = timed(delta, epsilon=spent, noise_multiplier=noise, n_steps=setting.n_steps, **run)
    tally.seconds["delta"].append((seconds, str(setting)))
    if not 0.0 <= found <= 1.0:
        raise AssertionError(f"{accountant}, {setting}: delta {found!r} at noise {noise!r}")


def report(console: Console, title: str, tallies: dict[str, Tally]) -> None:
    """Print one set of settings."""
    table = Table(title=f"{title}: seconds of a call")
    for column in ("accountant", "function", "calls", "median", "95 %", "99 %", "worst"):
        table.add_column(column, justify="left" if column in ("accountant", "function") else "right")
    for name, tally in tallies.items():
        for function in FUNCTIONS:
            times = [seconds for seconds, _ in tally.seconds[function]]
            if times:
                cells = [f"{np.quantile(times, level):.3f}" for level in (0.5, 0.95, 0.99, 1.0)]
                table.add_row(name, function, str(len(times)), *cells)
    console.print(table)
    table = Table(title=f"{title}: epsilon of the noise found, over its target")
    for column in ("accountant", "least", "1 %", "median", "largest", "jumps", "no answer"):
        table.add_column(column, justify="left" if column == "accountant" else "right")
    for name, tally in tallies.items():
        if tally.ratios:
            cells = [f"{np.quantile(tally.ratios, level):.6f}" for level in (0.0, 0.01, 0.5, 1.0)]
            table.add_row(name, *cells, str(tally.jumps), str(len(tally.refused)))
    console.print(table)
    for name, tally in tallies.items():
        for function in ("noise_multiplier", "max_steps"):
            for seconds, which in sorted(tally.seconds[function], reverse=True)[:3]:
                console.print(f"slow: {seconds:6.2f} s  {name} {function}  {which}", soft_wrap=True)
        for refusal in tally.refused[:3]:
            console.print(f"no answer: {name}  {refusal}", soft_wrap=True)


def independent(console: Console, settings: list[Setting]) -> None:
    """Evaluate the noise by dp-accounting's own PLD accountant, where it can be believed: not fixed sizes."""
    ratios = []
    for setting in track(settings, "independent", console=console):
        run = dict(sampler=setting.sampler, neighboring_relation=setting.relation)
        noise = noise_multiplier(epsilon=setting.target, delta=setting.delta, n_steps=setting.n_steps, **run)
        kind = NeighboringRelation[setting.relation.upper()]
        # dp-accounting's grid raises the variance of a step by a relative O(interval² / variance)
        spread = setting.sampler.sampling_prob * math.sqrt(math.expm1(min(noise**-2, 4.0)))
        other = PLDAccountant(kind, min(3e-4, 0.07 * spread))
        event = step_event(
            sampler=setting.sampler, noise_multiplier=noise, neighboring_relation=kind, accountant=other
        )
        ratios.append(other.compose(event, setting.n_steps).get_epsilon(setting.delta) / setting.target)
    console.print(
        f"independent evaluation of {len(ratios)} usual settings by dp-accounting's grid and FFT, over the "
        f"target: {min(ratios):.5f} to {max(ratios):.5f}"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--draws", type=int, default=300, help="settings from the whole range")
    parser.add_argument("--seed", type=int, default=0)
    names = [name for name in ACCOUNTANT_NAMES if name != "bayesian"]  # which needs gradients
    parser.add_argument("--accountants", nargs="+", default=names, choices=names)
    parser.add_argument("--independent", type=int, default=20, help="settings evaluated by dp-accounting too")
    arguments = parser.parse_args()
    console = Console()
    rng = np.random.default_rng(arguments.seed)
    usual_ones = list(usual())
    sets = {
        "Usual settings": usual_ones,
        "The whole range": [*corners(), *anywhere(rng, arguments.draws)],
    }
    for title, settings in sets.items():
        tallies = {name: Tally() for name in arguments.accountants}
        for setting in track(settings, title, console=console):
            for name in arguments.accountants:
                measure(setting, name, tallies[name])
        report(console, title, tallies)
    if arguments.independent:
        known = [setting for setting in usual_ones if isinstance(setting.sampler, PoissonSampler)]
        chosen = rng.choice(len(known), size=min(arguments.independent, len(known)), replace=False)
        independent(console, [known[i] for i in chosen])


if __name__ == "__main__":
    main()
