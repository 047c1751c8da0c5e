r"""Networks on a GPU: seconds an epoch with JAX and with numba, and whether the two agree.

=============  ===========================================================================================
dropout        784-1000-10 with `Dropout`, batches of 600 of 60,000 records (Ermis and Cemgil 2017)
auto-encoder   d3p's, of 688,884 weights, batches of 128 of 60,000 records (Prediger et al. 2022, table 2)
=============  ===========================================================================================

Images are random numbers of MNIST's shape: a step costs the same, whatever they show. With ``backend="jax"``,
JAX computes the gradients of the records on its first device, in factors; they are clipped, added up and made
noisy on the processor, as with every backend. d3p published 0.56 s an epoch on a V100 for its auto-encoder.

For each backend: the wall clock of the first fit, which compiles; then the fastest of some blocks of steps.
Both backends draw the same batches and the same noise, so the weights after the same number of steps differ
by rounding alone: the table has the largest difference, and the furthest that a weight has moved.

Writes ``gpu.json`` to the output folder.

    python benchmarks/gpu.py [--models dropout auto-encoder] [--backends numba jax] [--blocks 3]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent / "papers"))

from journal import write

NUM_IMAGES, PIXELS, CLASSES, HIDDEN = 60_000, 784, 10, 1000
FIRST_STEPS, BLOCK_STEPS = 5, 30


def images() -> tuple[np.ndarray, np.ndarray]:
    """Draw images of pixels zero or one, and labels."""
    rng = np.random.default_rng(784)
    return (rng.random((NUM_IMAGES, PIXELS)) < 0.13).astype(np.int8), rng.integers(0, CLASSES, NUM_IMAGES)


def dropout() -> tuple[Any, dict[str, Any], int]:
    """Return a classifier with one hidden layer, the settings of its fit, and its batch."""
    import pymc as pm
    import pytensor.tensor as pt

    from pymc_dpvi import Dropout, Point

    x, y = images()
    shapes = {"W1": (PIXELS, HIDDEN), "b1": (HIDDEN,), "W2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    with pm.Model() as model:
        of = {name: pm.Flat(name, shape=shape) for name, shape in shapes.items()}
        hidden = pt.maximum(pm.Data("x", x.astype(float)) @ of["W1"] + of["b1"], 0.0)
        pm.Categorical("y", logit_p=hidden @ of["W2"] + of["b2"], observed=y)
    rng = np.random.default_rng(1)
    start = {name: rng.normal(size=shape) * 0.05 for name, shape in shapes.items()}
    return model, {"guide": {("W1", "W2"): Dropout(), ("b1", "b2"): Point()}, "start": start}, 600


def auto_encoder() -> tuple[Any, dict[str, Any], int]:
    """Return d3p's variational auto-encoder, the settings of its fit, and its batch."""
    import pymc as pm
    import pytensor.tensor as pt
    import vae

    from pymc_dpvi import Amortized, Point

    x, _ = images()
    hidden_units, code = vae.SIZES["mnist"]
    shapes = vae.shapes_of(PIXELS, hidden_units, code)
    with pm.Model() as model:
        of = {name: pm.Flat(name, shape=shape) for name, shape in shapes.items()}
        seen = pm.Data("x", x)
        hidden = pt.softplus(seen @ of["V1"] + of["c1"])
        encoder = Amortized(hidden @ of["V2"] + of["c2"], pt.exp(hidden @ of["V3"] + of["c3"]))
        z = pm.Normal("z", 0, 1, shape=(NUM_IMAGES, code))
        pm.Bernoulli("pixel", logit_p=vae.decoded(z, of, pt.softplus), observed=seen)
    settings = {"guide": {"z": encoder, tuple(of): Point()}, "start": vae.start_of(shapes, 1)}
    return model, settings, vae.BATCH


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any], int]]] = {
    "dropout": dropout,
    "auto-encoder": auto_encoder,
}


def device() -> str:
    """Name the device that JAX computes on."""
    import jax

    found = jax.devices()[0]
    return f"{found.platform}: {found.device_kind}"


def measured(name: str, backend: str, blocks: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Fit one model with one backend: times, and the weights before and after."""
    from pymc_dpvi import DPADVI
    from pymc_dpvi.errors import InsecureNoiseWarning, PrivacyWarning

    model, settings, batch = MODELS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)  # both backends need the same noise
        warnings.simplefilter("ignore", PrivacyWarning)
        method = DPADVI(
            noise_multiplier=1.5,
            delta=1.0 / NUM_IMAGES,
            batch_size=batch,
            random_seed=1,
            insecure_noise_seed=1,
            model=model,
            **settings,
        )
        before = np.asarray(method.approx.mean.eval())
        begun = time.perf_counter()
        method.fit(FIRST_STEPS, progressbar=False, backend=backend)
        first, times = time.perf_counter() - begun, []
        for _ in range(blocks):
            begun = time.perf_counter()
            method.refine(BLOCK_STEPS, progressbar=False)
            times.append((time.perf_counter() - begun) / BLOCK_STEPS)
    assert method.approx.privacy.runs[0].backend == backend
    row = {
        "model": name,
        "backend": backend,
        "batch": batch,
        "first_fit_seconds": first,
        "step_seconds": min(times),
        "epoch_seconds": min(times) * NUM_IMAGES / batch,
        "blocks": times,
    }
    return row, before, np.asarray(method.approx.mean.eval())


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Seconds an epoch of networks, with JAX and with numba.")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--backends", nargs="+", choices=["numba", "jax"], default=["numba", "jax"])
    parser.add_argument("--blocks", type=int, default=3, help=f"of {BLOCK_STEPS} steps each")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/output"))
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    console, rows, where = Console(width=120), [], device()
    table = Table(title=f"JAX on {where}; {os.cpu_count()} cores of {platform.machine()}")
    for heading in ("", "backend", "first fit, s", "ms a step", "s an epoch", "differs by", "moved by"):
        table.add_column(heading)
    for name in chosen.models:
        ends: list[np.ndarray] = []
        for backend in chosen.backends:
            row, before, after = measured(name, backend, chosen.blocks)
            ends.append(after)
            row["moved"] = float(np.abs(after - before).max())
            row["differs"] = float(np.abs(after - ends[0]).max())
            rows.append(row)
            table.add_row(
                name, backend, f"{row['first_fit_seconds']:.1f}", f"{1e3 * row['step_seconds']:.1f}",
                f"{row['epoch_seconds']:.2f}", f"{row['differs']:.1e}", f"{row['moved']:.2f}",
            )  # fmt: skip
            print(row, flush=True)
            command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
            write(chosen.output / "gpu.json", command, {"device": where}, rows=rows)
    console.print(table)


if __name__ == "__main__":
    main()
