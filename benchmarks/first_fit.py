"""What a user waits for in a first fit: seconds to the first step, to 200 steps and to 10,000, by backend.

    python benchmarks/first_fit.py [--models logistic ...] [--backends numba ...] [--steps 10000]

Each fit runs in a process of its own, with ``pm.fit``'s defaults but for the backend, on 10,000 records.
*Cold* starts with empty caches, as after an installation; *warm* is the same again, in a new process.
``advi`` is PyMC's own ADVI with its default backend and no minibatches, for comparison. Imports are not
counted. The first number is wall time, the one in brackets the process's own processor time, which other
programs disturb less, and which leaves out the C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

from workers import one_thread_each

MODELS = ("linear", "logistic", "negative_binomial", "hierarchical", "mixture")
BACKENDS = ("numba", "c", "jax", "python", "advi")
EARLY = 200


def model(kind: str) -> Any:
    """Return the model, on made-up data."""
    import numpy as np
    import pymc as pm

    rng = np.random.default_rng(0)
    n = 10_000
    x = rng.normal(size=(n, 5))
    eta = x @ np.linspace(-0.5, 0.5, 5)
    yes = rng.random(n) < 1.0 / (1.0 + np.exp(-eta))
    with pm.Model() as made:
        if kind == "mixture":
            weights, mu = pm.Dirichlet("weights", np.ones(2)), pm.Normal("mu", 0.0, 1.0, shape=2)
            pm.NormalMixture("y", weights, mu, 1.0, observed=rng.normal(size=n))
            return made
        beta = pm.Normal("beta", 0.0, 1.0, shape=5)
        if kind == "linear":
            sigma = pm.HalfNormal("sigma", 1.0)
            pm.Normal("y", x @ beta, sigma, observed=eta + rng.normal(size=n))
        elif kind == "logistic":
            pm.Bernoulli("y", logit_p=x @ beta, observed=yes)
        elif kind == "negative_binomial":
            alpha = pm.Exponential("alpha", 1.0)
            pm.NegativeBinomial("y", pm.math.exp(x @ beta), alpha, observed=rng.poisson(np.exp(eta)))
        else:
            tau, u = pm.HalfNormal("tau", 1.0), pm.Normal("u", 0.0, 1.0, shape=20)
            group = rng.integers(0, 20, n)
            pm.Bernoulli("y", logit_p=x @ beta + tau * u[group], observed=yes)
    return made


def fit(kind: str, backend: str, steps: int) -> dict[str, list[float]]:
    """Return wall and processor seconds to the first step, to an early one, and to the end."""
    import pymc as pm

    from pymc_dpvi import DPADVI

    made = model(kind)
    seen: dict[str, list[float]] = {}

    def look(_approx: Any, _losses: Any, i: int) -> None:
        if i in (1, EARLY, steps):
            seen[str(i)] = [time.perf_counter() - wall, time.process_time() - cpu]

    look.every = EARLY  # type: ignore[attr-defined]
    wall, cpu = time.perf_counter(), time.process_time()
    with made:
        if backend == "advi":
            pm.fit(steps, method="advi", progressbar=False, callbacks=[look])
        else:
            method = DPADVI(epsilon=1.0, delta=1e-6)
            pm.fit(steps, method=method, progressbar=False, callbacks=[look], backend=backend)
    return seen


def in_a_process(kind: str, backend: str, steps: int, cache: str) -> dict[str, list[float]]:
    """Fit in a new process, with these directories for what is compiled."""
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": f"base_compiledir={cache}/pytensor,blas__ldflags=",
        "NUMBA_CACHE_DIR": f"{cache}/numba",
    }
    command = [sys.executable, __file__, "--one", kind, backend, str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        warnings.simplefilter("ignore")
        kind, backend, steps = arguments.one
        print(json.dumps(fit(kind, backend, int(steps))))
        return
    one_thread_each()
    print("| model | backend | cache | first step | 200 steps | " + f"{arguments.steps:,} steps |")
    print("|---|---|---|---|---|---|", flush=True)
    for kind in arguments.models:
        for backend in arguments.backends:
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    found = in_a_process(kind, backend, arguments.steps, cache)
                    cells = [f"{wall:.1f} ({cpu:.1f})" for wall, cpu in found.values()]
                    print(f"| {kind} | {backend} | {state} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
