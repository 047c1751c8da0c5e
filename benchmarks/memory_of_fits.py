"""How much a process grows with each fit of one and the same model, built anew each time.

``python benchmarks/memory_of_fits.py --fits 100 [--method advi]`` prints the resident memory now
and then.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from pymc_dpvi import DPADVI


def model(seed: int) -> pm.Model:
    """Return a logistic regression on data of their own."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 3))
    with pm.Model() as made:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=x @ beta, observed=rng.random(500) < 0.5)
    return made


def resident() -> float:
    """Return the process's resident memory in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Fit again and again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=100)
    parser.add_argument("--steps", type=int, default=250, help="more than 200 are compiled")
    parser.add_argument("--method", choices=["dpadvi", "advi"], default="dpadvi")
    parser.add_argument("--backend", choices=["numba", "c", "jax", "python"])
    parser.add_argument("--json", type=Path, help="a file for the MiB after some numbers of fits")
    parser.add_argument("--draws", type=int, default=10, help="draws from each; 0 for none")
    args = parser.parse_args()
    start, found = 0.0, {}
    for number in range(1, args.fits + 1):
        with model(number):
            method: Any = "advi"
            named: dict[str, Any] = {}
            if args.method == "dpadvi":
                method = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp")
                named = {"backend": args.backend}
            approx = pm.fit(args.steps, method=method, progressbar=False, **named)
        if args.draws:
            approx.sample(args.draws)
        del approx, method
        if number in (3, 10, 30, 100, 300, 1000) or number == args.fits:
            gc.collect()
            now = found[number] = resident()
            start = start or now
            print(f"after {number:4d} fits {now:7.0f} MiB, grown by {now - start:6.1f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
