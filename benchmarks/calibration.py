"""Does the default fit know what it does not know? Coverage, widths and scores on problems that nobody chose.

A seed makes a problem (`calibration_problems`): logistic, linear, Poisson, negative-binomial or hierarchical
regression, 200 to 50,000 records, 2 to 50 predictors, with correlation, skew, heavy tails, rare binaries and
imbalance. Each is fitted at five ε with the defaults alone, and compared with

* the truth: central intervals of level α should hold it in a share α of the problems whose truth comes from
  the prior (simulation-based calibration: Talts et al., 2018, arXiv:1804.06788), and its ranks be uniform;
  so should the share of the draws that are nearer than the truth to a random point (TARP, for all values
  together: Lemos et al., 2023, arXiv:2302.03026);
* the posterior without privacy, by importance sampling about its mode or NUTS: widths and log scores;
* the prior, which is the answer where nothing is learnt;
* the base rate: the best density that looks at no predictor, fitted to the training data without privacy;
* gradient descent on all records with clipping and noise at the same ε and δ, whose clip norm, steps and rate
  are tuned for each problem by its own test score, which no user could.

Defaults are chosen on the development range of seeds. The judgement range is looked at once per decision.

    python benchmarks/calibration.py --range development [--problems 200] [--jobs 2] [--quick]

It goes on where it was interrupted. The comparisons are kept in a journal of their own: they do not depend on
the library.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from calibration_problems import DEVELOPMENT, FAMILIES, JUDGEMENT, Problem, draw_problem, reference
from experiment import command_line, understood
from journal import Fit, fits_of, write
from rich.console import Console
from rich.table import Table
from scipy import stats
from workers import compiling

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
LEVELS = (0.5, 0.8, 0.9, 0.95)
DRAWS = 1000
KINDS = ("noise_aware", "plain")
#: A log score that is so far below the base rate's counts as worse.
MARGIN = 0.01
_BINS = 10
_RANGES = {"development": DEVELOPMENT, "judgement": JUDGEMENT}


@dataclass(frozen=True)
class Comparison:
    """What a problem is compared with."""

    seed: int

    def __str__(self) -> str:
        return f"comparison {self.seed}"


@dataclass(frozen=True)
class Task:
    """One fit."""

    seed: int
    epsilon: float
    steps: int

    def __str__(self) -> str:
        return f"problem {self.seed}, ε = {self.epsilon:g}"


problem_of = lru_cache(maxsize=2)(draw_problem)


def _flat(values: Mapping[str, Any], names: Sequence[str], draws: bool) -> np.ndarray:
    rows = [np.reshape(values[v], (len(values[v]), -1) if draws else (1, -1)) for v in names]
    return np.concatenate(rows, axis=1)


def summary(problem: Problem, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Ranks of the truth, mean, width and score of a posterior."""
    names = sorted(problem.truth)
    flat, truth = _flat(draws, names, True), _flat(problem.truth, names, False)[0]
    # TARP: a point that depends on nothing but the design, and all values at once (Lemos et al., 2023).
    apart = np.random.default_rng([29, problem.num_records, *problem.x.shape])
    point = _flat(problem.prior_draws(1, apart), names, True)[0]
    near = np.linalg.norm(flat - point, axis=1) < np.linalg.norm(truth - point)
    return {
        "rank": np.mean(flat < truth, axis=0).round(4).tolist(),
        "joint_rank": round(float(np.mean(near)), 4),
        "error": (flat.mean(axis=0) - truth).tolist(),
        "stddev": flat.std(axis=0).tolist(),
        "score": problem.predictive(draws),
    }


def compare(task: Comparison) -> dict[str, Any]:
    """Compute what does not depend on the library."""
    problem = problem_of(task.seed)
    draws, pareto_k = reference(problem, DRAWS, np.random.default_rng([1, task.seed]))
    found = summary(problem, draws)
    found["pareto_k"], found["base_rate"] = pareto_k, problem.base_rate()
    prior = problem.prior_draws(DRAWS, np.random.default_rng([5, task.seed]))
    found["prior"] = problem.predictive(prior)
    for epsilon in EPSILONS:
        found[f"descent_{epsilon:g}"] = descent(problem, epsilon, np.random.default_rng([2, task.seed]))
    return found


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Noise multiplier of one Gaussian release (Balle and Wang 2018, theorem 8)."""
    low, high = 1e-3, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        a, b = 0.5 / middle - epsilon * middle, -0.5 / middle - epsilon * middle
        spent = stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


def descent(problem: Problem, epsilon: float, rng: np.random.Generator) -> float:
    """Best test score of private gradient descent over clip norms, steps and rates; two runs of each."""
    noise, n = gaussian_noise(epsilon, DELTA), problem.num_records
    start = np.zeros(problem.size)
    square = np.sum(problem.gradients(start) ** 2, axis=1)
    norm, curvature = math.sqrt(float(np.median(square))), float(np.mean(square)) / problem.size
    best = -math.inf
    for steps in (10, 30):
        for clip in (norm, 3.0 * norm):
            for rate in (0.1, 0.3, 1.0):
                scores = []
                for _ in range(2):
                    u = start
                    for _ in range(steps):
                        g = problem.gradients(u)
                        sizes = np.sqrt(np.sum(g**2, axis=1, keepdims=True))
                        total = (g * np.minimum(1.0, clip / np.maximum(sizes, 1e-300))).sum(axis=0)
                        total = total + noise * math.sqrt(steps) * clip * rng.standard_normal(len(u))
                        u = np.clip(u + rate * total / (n * curvature), -30, 30)
                    scores.append(problem.predictive(problem.split(u[None])))
                best = max(best, float(np.mean(scores)))
    return best


def fit_once(task: Task) -> dict[str, Any]:
    """Fit a problem with the defaults alone."""
    import pymc as pm

    from pymc_dpvi import DPADVI, plan

    problem = problem_of(task.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = plan(problem.num_records, task.epsilon, DELTA, num_params=problem.size, steps=()).chosen
        with problem.model():
            method = DPADVI(epsilon=task.epsilon, delta=DELTA, random_seed=task.seed)
            approx = pm.fit(task.steps, method=method, progressbar=False, **compiling())
        found: dict[str, Any] = {}
        for kind in KINDS:
            idata = approx.sample(DRAWS, noise_aware=kind == "noise_aware", random_seed=task.seed)
            draws = {v: idata["posterior"][v].values[0] for v in problem.truth}
            found[kind] = summary(problem, draws)
            if kind == "noise_aware":
                found["foretold"] = problem.foretold(draws, np.random.default_rng([6, task.seed]))
        found["share_of_prior"] = float(np.median(approx.diagnostics().share_of_prior))
    found["snr"] = chosen.snr
    return found


def coverage(ranks: Sequence[float], level: float) -> float:
    """Share of ranks in the central interval."""
    return float(np.mean(np.abs(np.asarray(ranks) - 0.5) <= level / 2.0))


def uniformity(fits: Sequence[Fit], kind: str) -> float:
    """p-value of a test that ranks are uniform: one for each problem, so that they are independent."""
    if len(fits) < 2:
        return math.nan
    chosen = [np.random.default_rng([3, f["seed"]]).choice(f[kind]["rank"]) for f in fits]
    counts, _ = np.histogram(chosen, bins=_BINS, range=(0.0, 1.0))
    return float(stats.chisquare(counts).pvalue)


def jointly_uniform(fits: Sequence[Fit], kind: str) -> float:
    """p-value of a Kolmogorov-Smirnov test that the TARP ranks are uniform."""
    return float(stats.kstest([f[kind]["joint_rank"] for f in fits], "uniform").pvalue) if fits else math.nan


def cells(fits: Sequence[Fit], compared: Mapping[int, Fit]) -> list[dict[str, Any]]:
    """Return one row for each family and ε, and one for all families."""
    rows = []
    for family in (*FAMILIES, "all"):
        for epsilon in EPSILONS:
            own = [f for f in fits if f["epsilon"] == epsilon]
            own = [f for f in own if family == "all" or FAMILIES[f["seed"] % len(FAMILIES)] == family]
            if own:
                rows.append({"family": family, "epsilon": epsilon, **_cell(own, epsilon, compared)})
    return rows


def _cell(fits: Sequence[Fit], epsilon: float, compared: Mapping[int, Fit]) -> dict[str, Any]:
    true = [f for f in fits if problem_kind(f["seed"]) == "prior"]
    other = [f for f in fits if problem_kind(f["seed"]) != "prior"]
    row: dict[str, Any] = {"problems": len(fits)}
    for kind in KINDS:
        for name, group in (("prior", true), ("other", other)):
            ranks = [r for f in group for r in f[kind]["rank"]]
            for level in LEVELS:
                row[f"{kind}_{name}_{level:g}"] = coverage(ranks, level) if ranks else math.nan
        row[f"{kind}_uniform"] = uniformity(true, kind)
        row[f"{kind}_jointly_uniform"] = jointly_uniform(true, kind)
        widths = [s / t for f in fits for s, t in _pairs(f, kind, "stddev", compared)]
        row[f"{kind}_width"] = float(np.median(widths))
        row[f"{kind}_error"] = float(np.median([_rms(f[kind]["error"]) for f in fits]))
        scores = np.array([f[kind]["score"] for f in fits])
        base = np.array([compared[f["seed"]]["base_rate"] for f in fits])
        full = np.array([compared[f["seed"]]["score"] for f in fits])
        rival = np.array([compared[f["seed"]][f"descent_{epsilon:g}"] for f in fits])
        row[f"{kind}_worse_than_base"] = float(np.mean(scores < base - MARGIN))
        row[f"{kind}_beats_descent"] = float(np.mean(scores >= rival))
        much = full - base > MARGIN
        gain = (scores - base)[much] / (full - base)[much]
        row[f"{kind}_gain"] = float(np.median(gain)) if much.any() else math.nan
    prior = np.array([compared[f["seed"]]["prior"] for f in fits])
    row["prior_worse_than_base"] = float(np.mean(prior < base - MARGIN))
    row["descent_worse_than_base"] = float(np.mean(rival < base - MARGIN))
    ranks = [r for f in true for r in compared[f["seed"]]["rank"]]
    row["non_private_0.9"] = coverage(ranks, 0.9) if ranks else math.nan
    return row


def _pairs(fit: Fit, kind: str, name: str, compared: Mapping[int, Fit]) -> Any:
    return zip(fit[kind][name], compared[fit["seed"]][name], strict=True)


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


@cache
def problem_kind(seed: int) -> str:
    """Where the truth of a problem comes from."""
    return draw_problem(seed).truth_kind


def warned(fits: Sequence[Fit], compared: Mapping[int, Fit]) -> list[dict[str, Any]]:
    """Precision and recall of `plan`'s warning, and of others that could be given after a fit.

    "posterior: half lost" is what the noise-aware posterior itself expects (`Problem.foretold`), given the
    predictors of the test records: no rule without them can know more, if that posterior is right.
    """
    from pymc_dpvi.planning import MIN_SNR

    lost = np.array([_lost_half(f, compared[f["seed"]]) for f in fits])
    snr, share = (np.array([f[name] for f in fits]) for name in ("snr", "share_of_prior"))
    rules = {f"plan: signal/noise < {MIN_SNR:g}": snr < MIN_SNR}
    rules.update({f"signal/noise < {limit}": snr < limit for limit in (10, 30)})
    loss, gain = np.array([f["foretold"] for f in fits]).T
    rules["posterior: half lost"] = loss > np.maximum(0.5 * gain, MARGIN)
    rules.update({f"{limit:g} of the prior's width": share > limit for limit in (0.7, 0.8, 0.9)})
    return [
        {
            "warning": rule,
            "fires": float(fires.mean()),
            "happens": float(lost.mean()),
            "precision": float((fires & lost).sum() / max(1, fires.sum())),
            "recall": float((fires & lost).sum() / max(1, lost.sum())),
        }
        for rule, fires in rules.items()
    ]


def error_within_two(fits: Sequence[Fit], compared: Mapping[int, Fit]) -> float:
    """Share of fits whose error is told within a factor 2 by the best multiple of √N / SNR.

    The error is that of the noise-aware mean against the mean without privacy, in standard deviations of the
    latter, in the mean square.
    """
    ratios = []
    for fit in fits:
        full = compared[fit["seed"]]
        apart = np.subtract(fit["noise_aware"]["error"], full["error"]) / np.array(full["stddev"])
        ratios.append(_rms(apart) * fit["snr"] / math.sqrt(problem_of(fit["seed"]).num_records))
    logs = np.log2(ratios)
    return float(np.mean(np.abs(logs - np.median(logs)) <= 1.0))


def _lost_half(fit: Fit, other: Fit) -> bool:
    """Whether privacy took more than half of what the predictors tell, and more than `MARGIN`."""
    gain = other["score"] - other["base_rate"]
    return bool(other["score"] - fit["noise_aware"]["score"] > max(0.5 * gain, MARGIN))


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table of cells."""
    table = Table(title="Defaults alone; coverage of central intervals, noise-aware / plain")
    for heading in (
        "",
        "ε",
        "problems",
        "50 %",
        "90 %",
        "90 %, other truths",
        "SBC p",
        "width",
        "below base",
    ):
        table.add_column(heading)
    for heading in ("beats descent", "gain", "not private, 90 %"):
        table.add_column(heading)
    for row in rows:

        def both(name: str, form: str = ".2f", row: dict[str, Any] = row) -> str:
            return " / ".join(format(row[f"{kind}_{name}"], form) for kind in KINDS)

        table.add_row(
            row["family"],
            f"{row['epsilon']:g}",
            str(row["problems"]),
            both("prior_0.5"),
            both("prior_0.9"),
            both("other_0.9"),
            both("uniform", ".1g"),
            both("width"),
            both("worse_than_base"),
            both("beats_descent"),
            both("gain"),
            f"{row['non_private_0.9']:.2f}",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, "five problems and 200 steps, not compiled; the figures mean nothing")
    parser.add_argument("--range", choices=sorted(_RANGES), default="development", help="of the seeds")
    parser.add_argument("--problems", type=int, default=200, help="how many of the range")
    chosen = understood(parser, arguments)
    if chosen.quick:
        chosen.problems = len(FAMILIES)
    first, console = _RANGES[chosen.range], Console(width=180)
    seeds = range(first, first + chosen.problems)
    epsilons = EPSILONS[1:4:2] if chosen.quick else EPSILONS
    steps = 200 if chosen.quick else 10_000
    folder, scripts = (
        chosen.output,
        [Path(__file__).resolve(), Path(__file__).parent / "calibration_problems.py"],
    )
    try:
        kept = fits_of(
            [Comparison(seed) for seed in seeds],
            compare,
            folder / f"calibration_{chosen.range}_compared.jsonl",
            {},
            chosen.jobs,
            console,
            scripts,
        )
        fits = fits_of(
            [Task(seed, epsilon, steps) for seed in seeds for epsilon in epsilons],
            fit_once,
            folder / f"calibration_{chosen.range}.jsonl",
            {"delta": DELTA},
            chosen.jobs,
            console,
        )
    except KeyboardInterrupt:
        raise SystemExit("Interrupted. The same command goes on where this one was.") from None
    compared = {one["seed"]: one for one in kept}
    rows, signs = cells(fits, compared), warned(fits, compared)
    show(rows, console)
    for sign in signs:
        told = ", ".join(f"{name} {sign[name]:.2f}" for name in ("fires", "happens", "precision", "recall"))
        console.print(f"{sign['warning']:28s} {told}", highlight=False)
    predicted = error_within_two(fits, compared)
    console.print(
        f"error within a factor 2 of the best multiple of sqrt(N)/SNR: {predicted:.2f}", highlight=False
    )
    command = f"python benchmarks/calibration.py --range {chosen.range} --problems {chosen.problems}"
    write(
        folder / f"calibration_{chosen.range}.json",
        command,
        {"delta": DELTA},
        cells=rows,
        warnings=signs,
        error_within_two=predicted,
    )
    console.print(f"{len(fits)} fits; written to {folder}")


if __name__ == "__main__":
    main()
