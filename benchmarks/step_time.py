"""What a private step costs: microseconds, seconds to the first step, and memory.

Measures, on the same data, model and batch size:

- ``numpy``    gather a batch and take the gradient of its log-likelihood, the work nobody avoids;
- ``advi``     PyMC's own ADVI with `pm.Minibatch`, ``total_size`` and ``score=False``;
- ``dpadvi``   `DPADVI`, Poisson batches of the same expected size, ``score`` being refused anyway.

**The time of a step** is processor time, of blocks of 100 steps; batches, noise and latent draws are in it.
The three take turns in one process, a thousand steps each, for several rounds. The table has the
median block and the fastest one: on a machine that others use too, the fastest says more, and ratios hold
better than times.

**The first step** and **memory** are measured in processes of their own, whose compile cache is empty at
first: seconds from before the call of `fit` until the first step is done, which holds the checks, the
compilation and, for DPADVI, the accounting; and the peak of the process above what it held with the
data loaded, before the model was built. ``again`` is the first step with the compile cache filled.

    python benchmarks/step_time.py [--rounds 5] [--quick] [--output FILE]
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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

METHODS = ("numpy", "advi", "dpadvi")
BLOCK = 100
TURN = 1000


@dataclass(frozen=True)
class Size:
    """A logistic regression: records, features, (expected) batch size."""

    num_records: int
    num_features: int
    batch_size: int


SIZES = (Size(39073, 15, 195), Size(100_000, 100, 1000))


class Stopwatch:
    """A callback of `pm.fit` that notes the processor time after each block of steps."""

    #: `DPADVI` calls it no more often, so that it can run many steps in one call.
    every = BLOCK

    def __init__(self) -> None:
        self.first: float | None = None
        self.marks: list[float] = []

    def __call__(self, approximation: Any, losses: Any, i: int) -> None:
        """Note the time; what the callback is given is not looked at, but for the number of the step."""
        if self.first is None:
            self.first = time.perf_counter()
        if i % BLOCK == 0:
            self.marks.append(time.process_time())

    def microseconds(self) -> list[float]:
        """Return the time of a step in each block since this was last called."""
        blocks = [1e6 * (after - before) / BLOCK for before, after in pairwise(self.marks)]
        self.marks = []
        return blocks


def main() -> None:
    """Run the benchmark, or, as its own child process, one measurement."""
    parser = argparse.ArgumentParser(
        description="Time and memory of a private step, against PyMC's own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help=f"turns of {TURN} steps for each method")
    parser.add_argument("--quick", action="store_true", help="one round; no times of the first step")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent / "output" / "step_time.json"
    )
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "SIZE", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, size, rounds = arguments.child
        print(json.dumps(measure(what, Size(**json.loads(size)), int(rounds))))
        return
    if arguments.quick:
        arguments.rounds = 1
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    firsts = [] if arguments.quick else [m for m in METHODS if m != "numpy" for _ in range(2)]
    jobs = [(size, what) for size in SIZES for what in (*firsts, "steps")]
    measured: dict[Size, dict[str, list[dict[str, Any]]]] = {size: {} for size in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for size, what in track(jobs, description="Measuring", console=console):
            # A compile cache for each size and method: empty for the first process, filled for the second.
            cache = Path(folder) / f"{what}-{size.num_features}"
            found = measure_in_child(what, size, arguments.rounds, cache)
            measured[size].setdefault(what, []).append(found)
    results = [summarise(size, found) for size, found in measured.items()]
    for result in results:
        show(result, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "results": results,
        "rounds": arguments.rounds,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("pymc", "pytensor", "numba", "numpy")},
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"Written to {arguments.output}")


def measure_in_child(what: str, size: Size, rounds: int, cache: Path) -> dict[str, Any]:
    """Measure in a fresh process with a compile cache of its own."""
    cache.mkdir(exist_ok=True)
    flags = [flag for flag in [os.environ.get("PYTENSOR_FLAGS", "")] if flag]
    environment = os.environ | {
        # The last one counts, so this overrides what the caller may have set.
        "PYTENSOR_FLAGS": ",".join([*flags, f"base_compiledir={cache}"]),
        "NUMBA_CACHE_DIR": str(cache),
    }
    command = [sys.executable, __file__, "--child", what, json.dumps(asdict(size)), str(rounds)]
    child = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    if child.returncode != 0:
        raise SystemExit(f"measuring {what} failed; its messages are above")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def measure(what: str, size: Size, rounds: int) -> dict[str, Any]:
    """Measure in this process: the steps of all methods, or the first step and memory of one."""
    import numpy as np
    import pymc  # noqa: F401  so that the imports count as held before, not as the method's own

    import pymc_dpvi  # noqa: F401

    rng = np.random.default_rng(20240612)
    # Logits of order 1 at the start of ADVI, whose first standard deviation is 1.3.
    x = rng.normal(size=(size.num_records, size.num_features)) / np.sqrt(size.num_features)
    # int64 would be cast by PyMC, which refuses a cast `pm.Minibatch` as observed.
    y = (rng.random(size.num_records) < 0.5).astype(np.int32)
    data = (x.nbytes + y.nbytes) / 2**20
    if what == "steps":
        return {"microseconds": steps(x, y, size, rounds), "data_mebibytes": data}
    before = peak_bytes()
    start = time.perf_counter()
    _, stopwatch = fit(what, x, y, size, 3 * BLOCK)
    assert stopwatch.first is not None
    return {
        "first_step_seconds": stopwatch.first - start,
        "peak_mebibytes": (peak_bytes() - before) / 2**20,
        "data_mebibytes": data,
    }


def steps(x: Any, y: Any, size: Size, rounds: int) -> dict[str, list[list[float]]]:
    """Return microseconds per step in each block, by method and round; the methods take turns."""
    fitted = {method: fit(method, x, y, size, 3 * BLOCK) for method in METHODS if method != "numpy"}
    found: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    for _, stopwatch in fitted.values():
        stopwatch.microseconds()  # these held the compilation
    for _ in range(rounds):
        found["numpy"].append(numpy_steps(x, y, size))
        for method, (inference, stopwatch) in fitted.items():
            inference.refine(TURN + BLOCK, progressbar=False)
            found[method].append(stopwatch.microseconds())
    return found


def numpy_steps(x: Any, y: Any, size: Size) -> list[float]:
    """Return microseconds per gather and gradient; drawing the indices is not timed."""
    import numpy as np

    rng = np.random.default_rng(1)
    coefficients = rng.normal(size=size.num_features)
    blocks = []
    for _ in range(TURN // BLOCK):
        batches = rng.integers(size.num_records, size=(BLOCK, size.batch_size))
        start = time.process_time()
        for batch in batches:
            rows = x[batch]
            rows.T @ (y[batch] - 1.0 / (1.0 + np.exp(-(rows @ coefficients))))
        blocks.append(1e6 * (time.process_time() - start) / BLOCK)
    return blocks


def fit(method: str, x: Any, y: Any, size: Size, n: int) -> tuple[Any, Stopwatch]:
    """Fit the model by one of the two methods, with Adam; return the method and its stopwatch."""
    import pymc as pm

    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=size.num_features)
        if method == "advi":
            x_batch, y_batch = pm.Minibatch(x, y, batch_size=size.batch_size)
            pm.Bernoulli("label", logit_p=x_batch @ beta, observed=y_batch, total_size=size.num_records)
            inference: Any = pm.ADVI(random_seed=1)
            options: dict[str, Any] = {"score": False}
        else:
            from pymc_dpvi import DPADVI

            pm.Bernoulli("label", logit_p=x @ beta, observed=y)
            inference = DPADVI(
                noise_multiplier=4.0,
                delta=1e-6,
                sampling_prob=size.batch_size / size.num_records,
                random_seed=1,
            )
            options = {}
        stopwatch = Stopwatch()
        inference.fit(
            n,
            progressbar=False,
            callbacks=[stopwatch],
            obj_optimizer=pm.adam(learning_rate=0.01),
            **options,
        )
    return inference, stopwatch


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def summarise(size: Size, measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the table shows, and all that was measured."""
    times = measured["steps"][0]["microseconds"]
    rows: dict[str, dict[str, float | None]] = {}
    for method in METHODS:
        blocks = [block for turn in times[method] for block in turn]
        cold, again = measured.get(method, [{}, {}])
        rows[method] = {
            "median_microseconds": statistics.median(blocks),
            "fastest_microseconds": min(blocks),
            "first_step_seconds": cold.get("first_step_seconds"),
            "again_seconds": again.get("first_step_seconds"),
            "peak_mebibytes": again.get("peak_mebibytes"),
        }
    ours, theirs = rows["dpadvi"], rows["advi"]
    rows["dpadvi / advi"] = {
        name: None if ours[name] is None or theirs[name] is None else ours[name] / theirs[name]  # type: ignore[operator]
        for name in ours
    }
    # Turn by turn, and the median of that: a machine that slows down does so for both.
    rows["dpadvi / advi"]["median_microseconds"] = statistics.median(
        statistics.median(a) / statistics.median(b)
        for a, b in zip(times["dpadvi"], times["advi"], strict=True)
    )
    return {
        **asdict(size),
        "data_mebibytes": measured["steps"][0]["data_mebibytes"],
        "rows": rows,
        "measured": measured,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print one size's table."""
    table = Table(
        title=(
            f"N = {result['num_records']}, D = {result['num_features']}, "
            f"B = {result['batch_size']} (data {result['data_mebibytes']:.0f} MiB)"
        )
    )
    table.add_column("method")
    for heading in ("µs per step", "fastest", "s to first step", "again", "peak MiB above data"):
        table.add_column(heading, justify="right")
    for name, row in result["rows"].items():
        ratio = name not in METHODS
        formats = [".2f"] * 5 if ratio else [".0f", ".0f", ".2f", ".2f", ".0f"]
        cells = ["–" if v is None else format(v, f) for v, f in zip(row.values(), formats, strict=True)]
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
