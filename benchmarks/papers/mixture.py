"""Gaussian mixture of the UAI 2017 paper (its Fig. 4-5) and of d3p (Fig. 7), and ours beside them.

Records in the plane come from five spherical normal components at (0, 0) and (±2, ±2), each with variance 0.5
per coordinate and weight 1/5. They are fitted by five components with unknown weights, means and variances:
Dirichlet(1), Normal(0, 1), InverseGamma(1, 1). The score is the log-density that the posterior predicts for a
test record, in nats, at delta = 1e-3.

=========  =======  =====  =====  ===  ===================================================================
setting    records  q      steps  C    source
=========  =======  =====  =====  ===  ===================================================================
uai        1000     0.003  3000   5    Jälkö, Dikmen and Honkela (UAI 2017, arXiv 1610.08749)
d3p        2000     0.003  1000   1    d3p (Prediger et al. 2022, arXiv 2103.11648), as its script has it
=========  =======  =====  =====  ===  ===================================================================

=============  =========================================================================================
advi           PyMC's ADVI on all records, not private; best of three starts by its bound
truth          the density that the records come from
dpvi-ac        the algorithm of the UAI paper (`published_dpvi`), noise by advanced composition
dpvi-ma        the same, by the moments accountant
dp-sgld        Langevin dynamics on the noisy clipped gradients (`dp_sgld`), by the moments accountant
d3p            the algorithm with d3p's optimiser, noise by advanced composition as in its Fig. 7
defaults       `DPADVI(epsilon, delta)` and nothing else
=============  =========================================================================================

Writes to the output folder

- ``mixture.jsonl``  every fit, as it is done: run the command again and it goes on where it was;
- ``mixture.json``   all fits, the table, settings and versions;
- ``mixture.png``    log-density against epsilon, and the components of one fit of each method at epsilon = 1.

    python benchmarks/papers/mixture.py [--quick] [--seeds 10] [--jobs 2] [--output DIR]

What differs from the papers
----------------------------
- The UAI paper and its code (DPBayes/DPVI-code) disagree. The text has 1000 records, 3000 steps and C = 5,
  the code 2000, 1000 and 1, and InverseGamma(10, 0.1) as prior of the variances. ``uai`` is the text.
- Their learning rates differ by variable (0.2; variances 0.05, weights 0.01), and their AdaGrad forgets
  every ten steps; here all have 0.1, over a window of ten. They take four latent draws a step, here one.
  Their prior and entropy stand outside of the clip, here a 1/N share is inside, as in Algorithm 1.
- d3p's script has 2000 records in batches of six, and InverseGamma(1, 1) for the standard deviations; here it
  is for the variances. All its unconstrained values start at random in [-2, 2], here the means do. Its noise
  solves the UAI formula for sigma, whose noise multiplier is 2 sigma, but is run with sigma; here epsilon
  holds. It scores the posterior medians; here all scores are of the predictive density. What its Fig. 7 has
  for Jälkö et al. are numbers kept from 2017; of which of the above settings is not told. ``d3p`` and
  ``dpvi-ac`` here share all settings but the optimiser and the start.
- Privacy is for one record added or removed; batches are Poisson samples. Advanced composition is the proven
  form.
- The data are not theirs, but drawn anew with a seed of our own, with 1000 test records in place of 100, so
  that the score is that of the posterior and not of the test set.
- The moments accountant, whose orders end at 32, states no epsilon below log(1/delta)/32 = 0.22: dpvi-ma and
  dp-sgld begin at 0.316.
- DP-SGLD: as in `dpvi.py`. Its score is that of the second half of its iterates.
- Nothing private but ``d3p`` is started at random, and nothing private is run more than once: the components
  part by the latent draws and the noise alone.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import special

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCHMARKS))

from experiment import reproduce  # noqa: E402
from journal import Fit, groups, mean_and_error  # noqa: E402
from published_dpvi import ADAGRAD, ADAM, fit_as_published, least_by_moments  # noqa: E402
from workers import compiling  # noqa: E402

Array = NDArray[np.float64]

CENTRES = np.array([[0.0, 0.0], [2.0, 2.0], [-2.0, -2.0], [-2.0, 2.0], [2.0, -2.0]])
VARIANCE = 0.5
TEST = 1000
DELTA = 1e-3
EPSILONS = tuple(float(e) for e in np.geomspace(0.1, 10.0, 5).round(3))
SHOWN = 1.0  # epsilon of the picture
LOWEST = -6.0  # of the picture: some fits of dpvi-ac are far below
DRAWS = 200
WHERE = {"uai": "Jälkö et al. 2017, figure 4", "d3p": "d3p, figure 7"}
#: First step size of DP-SGLD, times the number of records: the curvature of a record is some units.
SGLD_SIZE = 0.2
ADVI_STEPS = 3000
ADVI_STARTS = 3
DEFAULT_STEPS = 10_000  # what `fit` does if it is not told


@dataclass(frozen=True)
class Setting:
    """Records, sampling rate, steps and clip norm of a paper."""

    num_records: int
    sampling_prob: float
    n_steps: int
    l2_clip_norm: float


PAPERS = {"uai": Setting(1000, 0.003, 3000, 5.0), "d3p": Setting(2000, 0.003, 1000, 1.0)}
BY_MOMENTS = ("dpvi-ma", "dp-sgld")
METHODS = {
    "uai": ("advi", "dpvi-ac", "dpvi-ma", "dp-sgld", "defaults"),
    "d3p": ("advi", "dpvi-ac", "d3p", "defaults"),
}


@dataclass(frozen=True)
class Task:
    """One fit; ``epsilon`` is None where nothing is private."""

    paper: str
    method: str
    epsilon: float | None
    n_steps: int
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        return f"{self.paper}, {self.method}"


def tasks(seeds: int, quick: bool) -> list[Task]:
    """List the fits, seed by seed, so that an unfinished run has all of the figure."""
    found = []
    epsilons = (SHOWN,) if quick else EPSILONS
    for seed in range(seeds):
        for paper, setting in PAPERS.items():
            for method in METHODS[paper]:
                if quick and paper != "uai" and method in METHODS["uai"]:
                    continue  # other settings are another step to compile
                steps = {"advi": ADVI_STEPS, "defaults": DEFAULT_STEPS}.get(method, setting.n_steps)
                steps //= (100 if method == "advi" else 10) if quick else 1
                if method != "advi":
                    least = least_by_moments(DELTA) if method in BY_MOMENTS else 0.0
                    found += [
                        Task(paper, method, epsilon, steps, seed) for epsilon in epsilons if epsilon >= least
                    ]
                elif seed == 0:
                    found.append(Task(paper, method, None, steps, seed))
    return found


@cache
def records(num_records: int) -> tuple[Array, Array]:
    """Return training and test records, two columns, the same in every run."""
    rng = np.random.default_rng(2017)
    size = num_records + TEST
    drawn = CENTRES[rng.integers(len(CENTRES), size=size)] + VARIANCE**0.5 * rng.normal(size=(size, 2))
    return drawn[TEST:], drawn[:TEST]


@cache
def mixture(num_records: int) -> Any:
    """Return the PyMC model, made once a process."""
    import pymc as pm
    import pytensor.tensor as pt

    def log_density(value: Any, weights: Any, means: Any, variances: Any) -> Any:
        square = ((value[..., None, :] - means) ** 2).sum(axis=-1)
        width = value.shape[-1] * pt.log(2.0 * np.pi * variances)
        return pt.logsumexp(pt.log(weights) - 0.5 * (square / variances + width), axis=-1)

    components, plane = CENTRES.shape
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(components))
        means = pm.Normal("means", 0, 1, shape=(components, plane))
        variances = pm.InverseGamma("variances", 1, 1, shape=components)
        pm.CustomDist(
            "x",
            weights,
            means,
            variances,
            logp=log_density,
            signature="(k),(k,d),(k)->(d)",
            observed=records(num_records)[0],
        )
    return model


def log_densities(draws: Mapping[str, Array], points: Array) -> Array:
    """Log-density of each point under each draw, shape ``(draws, points)``."""
    variances = draws["variances"][:, None, :]
    square = ((points[None, :, None, :] - draws["means"][:, None]) ** 2).sum(axis=-1)
    with np.errstate(all="ignore"):
        each = np.log(draws["weights"])[:, None, :] - 0.5 * square / variances
        each -= 0.5 * points.shape[-1] * np.log(2.0 * np.pi * variances)
    # A variance can be beyond floating point, small or large: no mass anywhere else.
    return np.asarray(special.logsumexp(np.where(np.isnan(each), -np.inf, each), axis=-1))


def score(draws: Mapping[str, Array], points: Array) -> float:
    """Mean over points of the log of the predictive density, in nats."""
    each = log_densities(draws, points)
    return float(np.mean(special.logsumexp(each, axis=0) - np.log(len(each))))


def true_score(points: Array) -> float:
    """Score of the density that the records come from."""
    truth = {
        "weights": np.full((1, len(CENTRES)), 1.0 / len(CENTRES)),
        "means": CENTRES[None],
        "variances": np.full((1, len(CENTRES)), VARIANCE),
    }
    return score(truth, points)


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, and measure it on the test records."""
    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    setting = PAPERS[task.paper]
    start = time.perf_counter()
    noise_multiplier = None
    with mixture(setting.num_records) as model:
        if task.method == "advi":
            draws = not_private(task)
        elif task.method == "dp-sgld":
            noise_multiplier, draws = langevin(model, task, setting)
        else:
            approx = with_defaults(task) if task.method == "defaults" else as_published(task, setting)
            noise_multiplier = float(approx.privacy.noise_multiplier)
            draws = drawn(approx, task.seed)
    return {
        "log_density": score(draws, records(setting.num_records)[1]),
        "weights": draws["weights"].mean(axis=0).tolist(),
        "means": draws["means"].mean(axis=0).tolist(),
        "variances": np.exp(np.log(draws["variances"]).mean(axis=0)).tolist(),
        "noise_multiplier": noise_multiplier,
        "seconds": time.perf_counter() - start,
    }


def drawn(approx: Any, seed: int) -> dict[str, Array]:
    """Draw from an approximation."""
    posterior = approx.sample(DRAWS, random_seed=seed).posterior
    return {name: np.asarray(posterior[name])[0] for name in ("weights", "means", "variances")}


def not_private(task: Task) -> dict[str, Array]:
    """Run PyMC's ADVI from a few starts; it ends in the mode that it is near to."""
    import pymc as pm

    from pymc_dpvi.optimizers import falling_adam

    best = (np.inf, None)
    for attempt in range(ADVI_STARTS):
        rng = np.random.default_rng([task.seed, attempt])
        approx = pm.fit(
            task.n_steps,
            method="advi",
            start={"means": rng.normal(size=CENTRES.shape)},
            start_sigma={"means": 0.1, "weights_simplex__": 0.1, "variances_log__": 0.1},
            obj_optimizer=falling_adam(task.n_steps, 0.05, final=0.01),
            random_seed=task.seed,
            progressbar=False,
        )
        loss = float(np.mean(approx.hist[-100:]))
        if loss < best[0]:
            best = (loss, approx)
    return drawn(best[1], task.seed)


def as_published(task: Task, setting: Setting) -> Any:
    """Run the algorithm of the papers."""
    own: dict[str, Any] = {}
    if task.method == "d3p":
        means = np.random.default_rng(task.seed).uniform(-2.0, 2.0, size=CENTRES.shape)
        own = {"optimizer_name": "adam", "start": {"means": means}, "start_sigma": 0.1}
    return fit_as_published(
        task.n_steps,
        **own,
        epsilon=task.epsilon,
        delta=DELTA,
        sampling_prob=setting.sampling_prob,
        l2_clip_norm=setting.l2_clip_norm,
        accountant="moments" if task.method == "dpvi-ma" else "advanced_composition",
        random_seed=task.seed,
    )


def with_defaults(task: Task) -> Any:
    """Run `DPADVI` as it is."""
    from pymc_dpvi import DPADVI
    from pymc_dpvi.errors import PrivacyWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is one over the number of records
        method = DPADVI(epsilon=task.epsilon, delta=DELTA, random_seed=task.seed)
        return method.fit(task.n_steps, progressbar=False, **compiling())


def langevin(model: Any, task: Task, setting: Setting) -> tuple[float, dict[str, Array]]:
    """Run DP-SGLD; return its noise multiplier and draws."""
    from dp_sgld import StepSizes, calibrated, dp_sgld

    assert task.epsilon is not None
    mechanism = calibrated(
        epsilon=task.epsilon,
        delta=DELTA,
        n_steps=task.n_steps,
        sampling_prob=setting.sampling_prob,
        l2_clip_norm=setting.l2_clip_norm,
    )
    sizes = StepSizes(SGLD_SIZE / setting.num_records)
    draws = dp_sgld(model, mechanism, task.n_steps, sizes, random_seed=task.seed)
    return mechanism.noise_multiplier, {name: draw[:: -(-len(draw) // DRAWS)] for name, draw in draws.items()}


def summarise(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Return one row per paper, method and epsilon."""
    names = ("paper", "method", "epsilon")
    rows = []
    for key, group in groups(fits, names).items():
        density, error = mean_and_error(fit["log_density"] for fit in group)
        rows.append(
            {
                **dict(zip(names, key, strict=True)),
                "fits": len(group),
                "log_density": density,
                "log_density_se": error,
                "noise_multiplier": group[0]["noise_multiplier"],
                "seconds": mean_and_error(fit["seconds"] for fit in group)[0],
            }
        )
    for paper in dict.fromkeys(row["paper"] for row in rows):
        density = true_score(records(PAPERS[paper].num_records)[1])
        rows.append({"paper": paper, "method": "truth", "epsilon": None, "log_density": density})
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table for each paper: methods down, epsilon across."""
    for paper in dict.fromkeys(row["paper"] for row in rows):
        own = [row for row in rows if row["paper"] == paper]
        places = sorted({row["epsilon"] for row in own if row["epsilon"] is not None})
        table = Table(title=f"{paper}: predictive log-density of a test record (mean ± s.e.), δ = {DELTA:g}")
        table.add_column("")
        for place in places:
            table.add_column(f"ε={place:.3g}", justify="right")
        for method in dict.fromkeys(row["method"] for row in own):
            cells = {row["epsilon"]: cell(row) for row in own if row["method"] == method}
            table.add_row(method, *[cells.get(place, cells.get(None, "")) for place in places])
        console.print(table)


def cell(row: dict[str, Any]) -> str:
    """Write mean and standard error."""
    error = row.get("log_density_se")
    return f"{row['log_density']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def plot(rows: Sequence[dict[str, Any]], fits: Sequence[Fit], path: Path) -> None:
    """Draw log-density against epsilon for each paper, and the components of one fit of each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {
        fit["method"]: fit
        for fit in fits
        if fit["paper"] == "uai" and fit["seed"] == 0 and fit["epsilon"] in (None, SHOWN)
    }
    figure = plt.figure(figsize=(14.5, 6.8), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.2, 1.0])
    names = list(dict.fromkeys(method for methods in METHODS.values() for method in methods))
    for ax, paper in zip(upper.subplots(1, len(PAPERS)), PAPERS, strict=True):
        own = [row for row in rows if row["paper"] == paper]
        for method in dict.fromkeys(row["method"] for row in own):
            curve = [row for row in own if row["method"] == method]
            curve.sort(key=lambda row: row["epsilon"] or 0.0)
            if curve[0]["epsilon"] is None:
                style = {"truth": ":", "advi": "--"}[method]
                label = {"truth": "truth", "advi": "advi, not private"}[method]
                ax.axhline(curve[0]["log_density"], color="0.4", linestyle=style, label=label)
                continue
            ax.errorbar(
                [row["epsilon"] for row in curve],
                [row["log_density"] for row in curve],
                yerr=[row["log_density_se"] or 0.0 for row in curve],
                color=f"C{names.index(method)}",
                marker="o",
                markersize=3,
                capsize=2,
                label=method,
            )
        ax.set(xscale="log", xlabel="ε", ylabel="log-density of a test record")
        ax.set_ylim(bottom=max(ax.get_ylim()[0], LOWEST))
        ax.set_title(f"{WHERE[paper]}, δ = {DELTA:g}")
        ax.legend(frameon=False, fontsize=7)
    points = records(PAPERS["uai"].num_records)[0]
    for ax, (method, fit) in zip(lower.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        ax.plot(*points.T, ".", color="0.8", markersize=2)
        for centre in CENTRES:
            ax.add_patch(plt.Circle(centre, 2.0 * VARIANCE**0.5, color="black", fill=False))
        for k, (centre, variance) in enumerate(zip(fit["means"], fit["variances"], strict=True)):
            radius = 2.0 * variance**0.5
            ax.add_patch(plt.Circle(centre, radius, color=f"C{k}", fill=False, linestyle="--"))
            ax.plot(*centre, "o", color=f"C{k}", markersize=3)
        private = "not private" if fit["epsilon"] is None else f"ε = {fit['epsilon']:g}"
        ax.set(aspect="equal", xlim=(-5, 5), ylim=(-5, 5), title=f"{method}, {private}", xlabel="$x_1$")
    lower.supylabel("$x_2$")
    lower.suptitle("components as simulated (black) and as fitted (dashed), out to two standard deviations")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the table and draw the figure."""
    rows = summarise(fits)
    show(rows, console)
    plot(rows, fits, folder / "mixture.png")
    return {"table": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    settings = {
        "delta": DELTA,
        "papers": {name: asdict(setting) for name, setting in PAPERS.items()},
        "adagrad": ADAGRAD,
        "adam": ADAM,
        "sgld_size": SGLD_SIZE,
        "test_records": TEST,
    }
    reproduce(
        "mixture",
        __doc__,
        "one short fit of each method, ε = 1",
        tasks,
        fit_once,
        settings,
        report,
        arguments,
    )


if __name__ == "__main__":
    main()
