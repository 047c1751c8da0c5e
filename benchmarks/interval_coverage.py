"""Do nominal intervals cover? The noise-aware and the plain posterior on simulated regressions.

Parameters are drawn from the prior and data from the model, so that a calibrated posterior's intervals of
level α hold the parameter in a share α of the data sets. For linear, logistic and Poisson regression (five
coefficients, 2000 records) and ε from 0.3 to 10 at δ = 1e-5, the library's own step is compiled once and run
on many data sets, with noise and batches anew. Reported for each: the share of coefficients inside the
central 50 % and 90 % intervals, the same for balls around a random point (TARP: Lemos, Coogan, Hezaveh and
Perreault-Levasseur, ICML 2023), and the error of the posterior mean; of the noise-aware posterior, of the
plain one, and of the optimum that mean-field ADVI without privacy converges to (by Newton steps on its bound,
with Gauss-Hermite quadrature), whose own failings are no matter of noise.

``--clip default`` takes the clip norm that the library takes if none is given; ``--clip wide`` one that clips
a few per cent of the records, so that what is measured is the noise and not the bias of clipping, which no
interval knows of.

    python benchmarks/interval_coverage.py [--quick] [--clip default wide] [--seeds 60] [--output FILE]

It goes on where it was interrupted: cells that the output holds, with the same settings and sources, are not
run again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from journal import write
from rich.progress import Progress

from pymc_dpvi import DPADVI, InsecureNoiseWarning
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine.gradient_moments import GradientTrace
from pymc_dpvi.engine.loop import iterate
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.mechanism.mechanism import Streams
from pymc_dpvi.numba_cache import source_hash
from pymc_dpvi.optimizers import falling_adam
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior

HERE = Path(__file__).parent
DELTA = 1e-5
NUM_RECORDS, D = 2000, 5
N_STEPS = 10_000  # what pm.fit takes if it is not told
DRAWS = 1000
LEVELS = (0.5, 0.9)
EPSILONS = (0.3, 1.0, 3.0, 10.0)
PRIOR_STDDEV = {"linear": 1.0, "logistic": 1.0, "poisson": 0.5}
WIDE = {"linear": 5.0, "logistic": 3.0, "poisson": 6.0}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def simulate(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw parameters from the prior, and data."""
    beta = PRIOR_STDDEV[name] * rng.standard_normal(D)
    x = rng.standard_normal((NUM_RECORDS, D))
    eta = x @ beta
    if name == "linear":
        return beta, x, eta + rng.standard_normal(NUM_RECORDS)
    if name == "logistic":
        return beta, x, (rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    return beta, x, rng.poisson(np.exp(eta)).astype(np.int64)


def make_model(name: str, x: np.ndarray, y: np.ndarray) -> pm.Model:
    """Write the model that the data are simulated from."""
    with pm.Model() as model:
        records, outcome = pm.Data("x", x), pm.Data("y_data", y)
        beta = pm.Normal("beta", 0.0, PRIOR_STDDEV[name], shape=D)
        eta = records @ beta
        if name == "linear":
            pm.Normal("y", eta, 1.0, observed=outcome)
        elif name == "logistic":
            pm.Bernoulli("y", logit_p=eta, observed=outcome)
        else:
            pm.Poisson("y", pm.math.exp(eta), observed=outcome)
    return model


def advi_optimum(name: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviations at which mean-field ADVI without privacy converges."""
    precision = PRIOR_STDDEV[name] ** -2
    mu, var = np.zeros(D), np.full(D, 1e-3)
    for _ in range(60):
        eta = (x @ mu)[:, None] + np.sqrt(x**2 @ var)[:, None] * NODES
        if name == "linear":
            mean, slope = x @ mu, np.ones(len(x))
        elif name == "logistic":
            p = 1 / (1 + np.exp(-eta))
            mean, slope = p @ WEIGHTS, (p * (1 - p)) @ WEIGHTS
        else:
            mean = slope = np.exp(np.minimum(eta, 30.0)) @ WEIGHTS
        hessian = x.T @ (slope[:, None] * x) + precision * np.eye(D)
        step = np.linalg.solve(hessian, x.T @ (y - mean) - precision * mu)
        mu = mu + step * min(1.0, 1.0 / np.abs(step).max())
        var = 1.0 / np.diag(hessian)
    return mu, np.sqrt(var)


class Fit:
    """The library's step, compiled for one model and ε, and run on one data set after another.

    `clip` is ``"default"``, ``"wide"`` or a clip norm.
    """

    def __init__(self, name: str, epsilon: float, clip: str | float, n_steps: int) -> None:
        _, x, y = simulate(name, np.random.default_rng(0))
        norm = WIDE[name] if clip == "wide" else clip
        bound: dict[str, Any] = {} if clip == "default" else {"l2_clip_norm": norm}
        with make_model(name, x, y):
            method = DPADVI(epsilon=epsilon, delta=DELTA, random_seed=0, **bound)
        self.approx, self.n_steps = method.approx, n_steps
        self.mechanism = method._settings.mechanism(n_steps, NUM_RECORDS)
        self.optimiser_state: list[Any] = []

        def optimizer(grads: list[Any], params: list[Any]) -> dict[Any, Any]:
            updates = falling_adam(n_steps)(grads, params)
            self.optimiser_state = list(updates)
            return updates

        self.step = PrivateStep(
            method._record,
            self.approx.latents,
            self.approx.groups[0],
            self.mechanism,
            n_mc=1,
            optimizer=optimizer,
            max_grad_norm=None,
            compile_kwargs=compile_mode("numba", None),
        )
        chunk = self.step.chunk
        self.tables = {v.name: v for v in chunk.held if v.name in ("x", "y_data")}
        state = {*self.optimiser_state, *chunk.state, *chunk.held} - set(self.tables.values())
        self.state = [(v, v.get_value()) for v in state]

    def __call__(self, x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Fit; return draws of the noise-aware and of the plain posterior."""
        for variable, value in self.state:
            variable.set_value(value)
        self.tables["x"].set_value(x)
        self.tables["y_data"].set_value(y.astype(self.tables["y_data"].get_value(borrow=True).dtype))
        self.step.trace = GradientTrace(D)
        self.step.trace.begin(self.n_steps)
        rng = np.random.default_rng(seed)
        for _ in iterate(self.step, self.mechanism, Streams.make(seed), rng, NUM_RECORDS, self.n_steps):
            pass
        for param, average in zip(self.step.params, self.step.averages, strict=True):
            param.set_value(average.get_value())
        known = NoiseAwarePosterior(self.step.trace, rng)
        return known.draw(DRAWS, rng), self.approx.draw_latents(DRAWS, rng)


def scores(draws: np.ndarray, beta: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Ranks of the parameters, of the distance to a random point, and the error of the mean."""
    near = np.linalg.norm(draws - reference, axis=1) < np.linalg.norm(beta - reference)
    return {
        "rank": np.mean(draws < beta, axis=0).tolist(),
        "tarp": float(near.mean()),
        "error": (draws.mean(axis=0) - beta).tolist(),
        "stddev": draws.std(axis=0).tolist(),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Coverage and error over data sets; the standard error of coverage is between data sets."""
    rank = np.array([f["rank"] for f in found])
    tarp = np.array([f["tarp"] for f in found])
    out = {}
    for level in LEVELS:
        inside = (np.abs(rank - 0.5) < level / 2).mean(axis=1)
        out[f"coverage_{level:g}"] = float(inside.mean())
        out[f"coverage_{level:g}_se"] = float(inside.std(ddof=1) / np.sqrt(len(inside)))
        out[f"tarp_{level:g}"] = float(np.mean(tarp < level))
    out["rmse"] = float(np.sqrt(np.mean(np.square([f["error"] for f in found]))))
    out["stddev"] = float(np.mean([f["stddev"] for f in found]))
    return out


def run_cell(
    name: str, epsilon: float, clip: str, seeds: int, progress: Progress, task: Any
) -> dict[str, Any]:
    """Fit all data sets of one model at one ε."""
    fit = Fit(name, epsilon, clip, N_STEPS)
    found: dict[str, list[dict[str, Any]]] = {"noise_aware": [], "plain": [], "non_private": []}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 17])
        beta, x, y = simulate(name, rng)
        reference = PRIOR_STDDEV[name] * rng.standard_normal(D)
        noise_aware, plain = fit(x, y, seed + 1)
        mu, sd = advi_optimum(name, x, y)
        exact = mu + sd * rng.standard_normal((DRAWS, D))
        for key, draws in (("noise_aware", noise_aware), ("plain", plain), ("non_private", exact)):
            found[key].append(scores(draws, beta, reference))
        progress.advance(task)
    mechanism = fit.mechanism
    return {
        "sampling_prob": mechanism.sampler.sampling_prob,
        "noise_multiplier": mechanism.noise_multiplier,
        "l2_clip_norm": mechanism.l2_clip_norm,
        **{key: summary(list_) for key, list_ in found.items()},
    }


def draw_figure(cells: dict[str, Any], path: Path) -> None:
    """Coverage of 90 % intervals against ε, a panel for each model and kind of clipping."""
    import matplotlib.pyplot as plt

    kinds = sorted({key.split()[2] for key in cells})
    figure, axes = plt.subplots(
        len(kinds), 3, figsize=(11, 3.2 * len(kinds)), sharey=True, squeeze=False, layout="constrained"
    )
    styles = {"noise_aware": ("C0", "-o"), "plain": ("C1", "--s"), "non_private": ("0.5", ":")}
    for row, kind in zip(axes, kinds, strict=True):
        for ax, name in zip(row, PRIOR_STDDEV, strict=True):
            here = {float(k.split()[1]): v for k, v in cells.items() if k.split()[::2] == [name, kind]}
            at = sorted(here)
            ax.axhspan(0.85, 0.95, color="0.92")
            for key, (color, style) in styles.items():
                y = [here[e][key]["coverage_0.9"] for e in at]
                se = [here[e][key]["coverage_0.9_se"] for e in at]
                ax.errorbar(at, y, yerr=se, fmt=style, color=color, label=key.replace("_", "-"))
            ax.set(xscale="log", title=f"{name}, {kind} clip norm", xlabel="ε", ylim=(0, 1.02))
        row[0].set_ylabel("coverage of 90 % intervals")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run what is missing, write JSON and figure, print a table."""
    parser = argparse.ArgumentParser(description="Coverage of private posteriors.")
    parser.add_argument("--seeds", type=int, default=60, help="data sets for each model and ε")
    parser.add_argument("--clip", nargs="+", choices=("default", "wide"), default=["default", "wide"])
    parser.add_argument(
        "--quick", action="store_true", help="logistic regression at ε = 1, wide, ten data sets"
    )
    parser.add_argument("--output", type=Path, default=HERE / "output" / "coverage.json", help="a file")
    args = parser.parse_args()
    warnings.simplefilter("ignore", InsecureNoiseWarning)
    wanted = [(m, e, c) for c in args.clip for m in PRIOR_STDDEV for e in EPSILONS]
    if args.quick:
        wanted, args.seeds = [("logistic", 1.0, "wide")], 10
        if args.output == parser.get_default("output"):
            args.output = args.output.with_name("coverage_quick.json")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "num_records": NUM_RECORDS,
        "num_params": D,
        "n_steps": N_STEPS,
        "delta": DELTA,
        "draws": DRAWS,
        "seeds": args.seeds,
    }
    command = shlex.join(["python", "benchmarks/interval_coverage.py", *sys.argv[1:]])
    cells: dict[str, Any] = {}
    if args.output.exists():
        before = json.loads(args.output.read_text(encoding="utf-8"))
        if before["settings"] == settings and before["sources"] == source_hash()[:12]:
            cells = before["cells"]
    missing = [w for w in wanted if "{} {:g} {}".format(*w) not in cells]
    with Progress() as progress:
        task = progress.add_task("data sets", total=len(missing) * args.seeds)
        for name, epsilon, clip in missing:
            key = f"{name} {epsilon:g} {clip}"
            progress.update(task, description=key)
            cells[key] = run_cell(name, epsilon, clip, args.seeds, progress, task)
            write(args.output, command, settings, cells=cells)
    head = "plain 50 90 TARP90 rmse | noise-aware 50 90 TARP90 rmse | non-private 50 90 TARP90 rmse"
    print(f"{'cell':24} {head}")
    for name, epsilon, clip in wanted:
        cell = cells[f"{name} {epsilon:g} {clip}"]
        parts = [
            f"{c['coverage_0.5']:.2f} {c['coverage_0.9']:.2f} ± {c['coverage_0.9_se']:.2f} "
            f"{c['tarp_0.9']:.2f} {c['rmse']:.3f}"
            for c in (cell[k] for k in ("plain", "noise_aware", "non_private"))
        ]
        print(f"{name:9} ε={epsilon:<5g} {clip:8}", " | ".join(parts))
    if not args.quick:
        draw_figure(cells, args.output.with_suffix(".png"))
    print(f"Written to {args.output}")


if __name__ == "__main__":
    main()
