"""What a private step costs, beside steps that are not private, of the same model and batch size.

- ``private``   `DPADVI`: Poisson batches, per-record clipping, noise on the lattice, Adam, averaging;
- ``c, jax``    the same with these backends;
- ``own``       the same loop without privacy: batches of fixed size drawn by NumPy, the gradient of the
                batch's log-likelihood, Adam, averaging; compiled in the same way, many steps in one call;
- ``advi``      PyMC's ADVI with `pm.Minibatch`, ``total_size`` and ``score=False``;
- ``bare``      the rows of a batch and the gradient of their log-likelihood in NumPy, and nothing else;
- ``numpyro``   NumPyro's SVI with an `AutoNormal` guide, its steps fused by ``lax.fori_loop``, in float32,
                batches drawn with replacement; if NumPyro is installed;
- ``d3p``       d3p's private SVI, fused in the same way, its batches of fixed size drawn without replacement,
                in float32; if `d3p_step.py` has made its environment.

**The time of a step** is processor time (of all threads), in blocks; whatever a step needs is in it. The
methods take turns in one process, with one thread for BLAS. The table has the median block and the fastest
one: on a machine that others use too, the fastest says more, and ratios hold better than times.

**The first step** and **memory** are measured in processes of their own, whose compile cache is empty at
first: seconds until the first step is done, which holds the checks, the compilation and, for DPADVI, the
accounting; and the peak of the process above what it held with the data loaded.
``again`` is the first step with the compile cache filled.

    python benchmarks/step_time.py [--models standard] [--methods ...] [--rounds 5] [--quick]
    python benchmarks/step_time.py --scaling
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from d3p_step import Remote
from rich.console import Console
from rich.table import Table
from step_methods import METHODS, Unavailable
from step_models import MODELS, Case, regression
from workers import one_thread_each, peak_bytes

#: Processor seconds that one turn of a method should take.
TURN_SECONDS = 0.5
BLOCKS = 5

#: Cost against B, D and N, one of them at a time.
SCALING = {
    "B": [regression("", 100_000, 50, b) for b in (10, 100, 1000, 10_000)],
    "D": [regression("", 20_000, d, 200) for d in (5, 50, 500, 2000)],
    "N": [regression("", n, 15, 195) for n in (10_000, 100_000, 1_000_000, 10_000_000)],
}


def main() -> None:
    """Run the benchmark, or, as its own child process, one measurement."""
    parser = argparse.ArgumentParser(
        description="Time and memory of a private step, against steps that are not private.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = ", ".join(MODELS)
    parser.add_argument(
        "--models", nargs="+", default=["standard"], help=f"standard, large, all, or some of {names}"
    )
    methods = [m for m in METHODS if m not in ("c", "jax")]
    parser.add_argument("--methods", nargs="+", default=methods, choices=list(METHODS))
    parser.add_argument(
        "--rounds", type=int, default=argparse.SUPPRESS, help="turns for each method (5, with --quick 1)"
    )
    parser.add_argument("--quick", action="store_true", help="neither memory nor times of the first step")
    parser.add_argument("--scaling", action="store_true", help="cost of a private step against B, D and N")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent / "output" / "step_time.json"
    )
    parser.add_argument(
        "--child", nargs=4, metavar=("WHAT", "CASE", "METHODS", "ROUNDS"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    one_thread_each()  # BLAS threads that wait count as work, whoever's step they belong to
    if arguments.child:
        what, case, methods, turns = arguments.child
        print(json.dumps(measure(what, find(case), methods.split(","), int(turns))))
        return
    rounds = getattr(arguments, "rounds", 1 if arguments.quick else 5)
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    if arguments.scaling:
        document = scaling(rounds, console)
    else:
        cases = [name for name in MODELS if chosen(name, arguments.models)]
        if not cases:
            parser.error(f"--models: none of {arguments.models} is known; there are {names}")
        results = {}
        for name in cases:
            results[name] = compare(name, arguments.methods, rounds, arguments.quick, console)
            show(MODELS[name], results[name], console)
        document = {"results": results}
    document |= {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            n: v for n in ("pymc", "pytensor", "numba", "numpy", "numpyro", "jax") if (v := installed(n))
        },
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"Written to {arguments.output}")


def installed(name: str) -> str | None:
    """Return the version of a package, if there is one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def chosen(name: str, given: list[str]) -> bool:
    """Whether a model is asked for, by its name or a tag."""
    return "all" in given or bool({name, *MODELS[name].tags} & set(given))


def find(name: str) -> Case:
    """Return a model by name, or a case of the scaling figure (``N:2``)."""
    if ":" in name:
        axis, k = name.split(":")
        return replace(SCALING[axis][int(k)], numpyro=None)
    return MODELS[name]


# ------------------------------------------------------------------------------------------------
# In a child process
# ------------------------------------------------------------------------------------------------


def measure(what: str, case: Case, methods: list[str], rounds: int) -> dict[str, Any]:
    """Measure in this process: the steps of all methods, or the first step and memory of one."""
    import pymc  # noqa: F401  so that the imports count as held before, not as the method's own

    import pymc_dpvi  # noqa: F401

    data = case.data(np.random.default_rng(20240612), case.num_records)
    if what == "steps":
        return {"microseconds": steps(case, data, methods, rounds)}
    (method,) = methods
    before = peak_bytes()
    start = time.perf_counter()
    run = METHODS[method](case, data)
    first = time.perf_counter() - start
    run(20)
    if isinstance(run, Remote):  # without the start of its process, which holds the imports
        return run.last
    return {"first_step_seconds": first, "peak_mebibytes": (peak_bytes() - before) / 2**20}


def steps(case: Case, data: dict[str, np.ndarray], methods: list[str], rounds: int) -> dict[str, Any]:
    """Return microseconds per step in each block, by method; the methods take turns."""
    ready: dict[str, Callable[[int], None]] = {}
    found: dict[str, Any] = {}
    clocks: dict[str, Callable[[], float]] = {}
    for method in methods:
        try:
            ready[method] = run = METHODS[method](case, data)
            clocks[method] = run.clock if isinstance(run, Remote) else time.process_time
            found[method] = []
        except Unavailable as reason:
            found[method] = str(reason)
    n_steps = {method: steps_in(run, clocks[method]) for method, run in ready.items()}
    for _ in range(rounds):
        for method, run in ready.items():
            clock = clocks[method]
            for _ in range(BLOCKS):
                start = clock()
                run(n_steps[method])
                found[method].append(1e6 * (clock() - start) / n_steps[method])
    return found


def steps_in(run: Callable[[int], None], clock: Callable[[], float]) -> int:
    """Return how many steps make a block that takes long enough to be measured."""
    run(1)
    n = 1
    while True:
        start = clock()
        run(n)
        seconds = clock() - start
        if seconds > 0.2 * TURN_SECONDS / BLOCKS:
            return max(1, round(n * TURN_SECONDS / BLOCKS / seconds))
        n *= 4


def in_child(what: str, case: str, methods: list[str], rounds: int, cache: Path) -> dict[str, Any]:
    """Measure in a fresh process with a compile cache of its own."""
    cache.mkdir(exist_ok=True)
    flags = [flag for flag in [os.environ.get("PYTENSOR_FLAGS", "")] if flag]
    environment = os.environ | {
        # The last one counts, so this overrides what the caller may have set.
        "PYTENSOR_FLAGS": ",".join([*flags, f"base_compiledir={cache}"]),
        "NUMBA_CACHE_DIR": str(cache),
    }
    command = [sys.executable, __file__, "--child", what, case, ",".join(methods), str(rounds)]
    child = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    if child.returncode != 0:
        raise SystemExit(f"measuring {methods} on {case} failed; its messages are above")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------------------------------------
# What is shown
# ------------------------------------------------------------------------------------------------


def compare(
    name: str, methods: list[str], rounds: int, quick: bool, console: Console
) -> dict[str, dict[str, Any]]:
    """Measure one model by all methods."""
    with tempfile.TemporaryDirectory() as folder, console.status(f"Measuring {name}"):
        measured = in_child("steps", name, methods, rounds, Path(folder) / "steps")["microseconds"]
        rows: dict[str, dict[str, Any]] = {}
        for method, blocks in measured.items():
            if isinstance(blocks, str):
                rows[method] = {"unavailable": blocks}
                continue
            rows[method] = {
                "median_microseconds": statistics.median(blocks),
                "fastest_microseconds": min(blocks),
            }
            if quick:
                continue
            cold, again = (in_child("first", name, [method], 1, Path(folder) / method) for _ in range(2))
            rows[method] |= {
                "first_step_seconds": cold["first_step_seconds"],
                "again_seconds": again["first_step_seconds"],
                "peak_mebibytes": again["peak_mebibytes"],
            }
    ours = rows.get("private", {})
    for method in [m for m in rows if m != "private" and "unavailable" not in rows[m]]:
        rows[f"private / {method}"] = {k: ours[k] / v for k, v in rows[method].items() if k in ours}
    return rows


COLUMNS = {
    "median_microseconds": "µs a step",
    "fastest_microseconds": "fastest",
    "first_step_seconds": "s to first step",
    "again_seconds": "again",
    "peak_mebibytes": "peak MiB above data",
}


def show(case: Case, rows: dict[str, dict[str, Any]], console: Console) -> None:
    """Print one model's table."""
    table = Table(title=f"{case.title}: N = {case.num_records}, D = {case.num_params}, B = {case.batch_size}")
    table.add_column("method")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        if "unavailable" in row:
            table.add_row(name, "–")
            continue
        cells = [f"{row[k]:.3g}" if k in row else "–" for k in COLUMNS]
        table.add_row(name, *cells)
    console.print(table)
    for name, row in rows.items():
        if "unavailable" in row:
            console.print(f"{name}: {row['unavailable']}")


def scaling(rounds: int, console: Console) -> dict[str, Any]:
    """Measure private and own steps of logistic regressions against B, D and N."""
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for axis, cases in SCALING.items():
            table = Table(title=f"Microseconds a step (fastest block) against {axis}")
            for heading in ("N", "D", "B", "private", "own", "private / own"):
                table.add_column(heading, justify="right")
            for k, case in enumerate(cases):
                found = in_child("steps", f"{axis}:{k}", ["private", "own"], rounds, Path(folder) / "steps")
                private, own = (min(found["microseconds"][m]) for m in ("private", "own"))
                size = {"N": case.num_records, "D": case.num_params, "B": case.batch_size}
                document.setdefault(axis, []).append(size | {"private": private, "own": own})
                table.add_row(
                    *map(str, size.values()), f"{private:.1f}", f"{own:.1f}", f"{private / own:.2f}"
                )
            console.print(table)
    return {"scaling": document}


if __name__ == "__main__":
    main()
