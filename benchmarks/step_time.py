"""What a private step costs: microseconds, seconds to the first step, and memory.

Measures, in turn and each in a process of its own, on the same data, model and batch size:

- ``numpy``    gather a batch and take the gradient of its log-likelihood, the work nobody avoids;
- ``advi``     PyMC's own ADVI with `pm.Minibatch`, ``total_size`` and ``score=False``;
- ``dpadvi``   `DPADVI`, Poisson batches of the same expected size, ``score`` being refused anyway.

The time of a step is the median over blocks of 100 steps, taken by a callback that both methods
call after each step. The seconds to the first step, from before the call of `fit`, hold the checks,
the compilation and, for DPADVI, the accounting; each process has a compile cache of its own, empty
at first. Memory is the peak of the process above what it held with the data loaded, before the
model was built. Rounds alternate the three, and the ratio is taken round by round: on a machine
whose speed drifts, ratios hold better than times.

    python benchmarks/step_time.py [--rounds 3] [--steps 10000] [--quick] [--output FILE]
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


@dataclass(frozen=True)
class Size:
    """A logistic regression: records, features, (expected) batch size."""

    num_records: int
    num_features: int
    batch_size: int


SIZES = (Size(39073, 15, 195), Size(100_000, 100, 1000))


@dataclass(frozen=True)
class Measurement:
    """What one process measured. ``first_step_seconds`` is None where nothing is compiled."""

    step_microseconds: float
    first_step_seconds: float | None
    peak_mebibytes: float
    data_mebibytes: float


class Stopwatch:
    """A callback of `pm.fit` that notes when each step ends."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.ends: list[float] = []

    def __call__(self, *_: Any) -> None:
        """Note the time; what the callback is given is not looked at."""
        self.ends.append(time.perf_counter())

    def step_microseconds(self) -> float:
        """Return the median over blocks, the first of which warms up."""
        marks = self.ends[BLOCK::BLOCK]
        blocks = [after - before for before, after in pairwise(marks)]
        return 1e6 * statistics.median(blocks) / BLOCK


def main() -> None:
    """Run the benchmark, or, as its own child process, one measurement."""
    parser = argparse.ArgumentParser(
        description="Time and memory of a private step, against PyMC's own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each measurement")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="one round of 1000 steps")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent / "output" / "step_time.json"
    )
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        method, size = arguments.one[0], Size(**json.loads(arguments.one[1]))
        print(json.dumps(asdict(measure(method, size, arguments.steps))))
        return
    if arguments.quick:
        arguments.rounds, arguments.steps = 1, 1000
    if arguments.rounds < 1 or arguments.steps < 3 * BLOCK:
        parser.error(f"--rounds must be at least 1 and --steps at least {3 * BLOCK}")
    console = Console()
    measured: dict[Size, dict[str, list[Measurement]]] = {
        size: {method: [] for method in arguments.methods} for size in SIZES
    }
    jobs = [(size, method) for size in SIZES for _ in range(arguments.rounds) for method in arguments.methods]
    for size, method in track(jobs, description="Measuring", console=console):
        measured[size][method].append(measure_in_child(method, size, arguments.steps))
    results = [summarise(size, by_method) for size, by_method in measured.items()]
    for result in results:
        show(result, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "results": results,
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("pymc", "pytensor", "numba", "numpy")},
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"Written to {arguments.output}")


def measure_in_child(method: str, size: Size, steps: int) -> Measurement:
    """Measure in a fresh process with an empty compile cache."""
    with tempfile.TemporaryDirectory() as cache:
        flags = [flag for flag in [os.environ.get("PYTENSOR_FLAGS", "")] if flag]
        environment = os.environ | {
            # The last one counts, so this overrides what the caller may have set.
            "PYTENSOR_FLAGS": ",".join([*flags, f"base_compiledir={cache}"]),
            "NUMBA_CACHE_DIR": cache,
        }
        command = [sys.executable, __file__, "--steps", str(steps)]
        command += ["--one", method, json.dumps(asdict(size))]
        child = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
    if child.returncode != 0:
        raise SystemExit(f"measuring {method} failed; its messages are above")
    return Measurement(**json.loads(child.stdout.splitlines()[-1]))


def measure(method: str, size: Size, steps: int) -> Measurement:
    """Measure one method in this process."""
    import numpy as np

    if method != "numpy":  # so that the imports count as held before, not as the method's own
        import pymc  # noqa: F401
    if method == "dpadvi":
        import pymc_dpvi  # noqa: F401
    rng = np.random.default_rng(20240612)
    # Logits of order 1 at the start of ADVI, whose first standard deviation is 1.3.
    x = rng.normal(size=(size.num_records, size.num_features)) / np.sqrt(size.num_features)
    # int64 would be cast by PyMC, which refuses a cast `pm.Minibatch` as observed.
    y = (rng.random(size.num_records) < 0.5).astype(np.int32)
    before = peak_bytes()
    first_step = None
    if method == "numpy":
        step_microseconds = numpy_steps(x, y, size, steps)
    else:
        stopwatch = fit(method, x, y, size, steps)
        step_microseconds = stopwatch.step_microseconds()
        first_step = stopwatch.ends[0] - stopwatch.start
    return Measurement(
        step_microseconds=step_microseconds,
        first_step_seconds=first_step,
        peak_mebibytes=(peak_bytes() - before) / 2**20,
        data_mebibytes=(x.nbytes + y.nbytes) / 2**20,
    )


def numpy_steps(x: Any, y: Any, size: Size, steps: int) -> float:
    """Return microseconds per gather and gradient; drawing the indices is not timed."""
    import numpy as np

    rng = np.random.default_rng(1)
    coefficients = rng.normal(size=size.num_features)
    blocks = []
    for _ in range(max(2, steps // BLOCK)):
        batches = rng.integers(size.num_records, size=(BLOCK, size.batch_size))
        start = time.perf_counter()
        for batch in batches:
            rows = x[batch]
            rows.T @ (y[batch] - 1.0 / (1.0 + np.exp(-(rows @ coefficients))))
        blocks.append(time.perf_counter() - start)
    return 1e6 * statistics.median(blocks) / BLOCK


def fit(method: str, x: Any, y: Any, size: Size, steps: int) -> Stopwatch:
    """Fit the model by one of the two methods, with Adam, and return the times of its steps."""
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
            steps,
            progressbar=False,
            callbacks=[stopwatch],
            obj_optimizer=pm.adam(learning_rate=0.01),
            **options,
        )
    return stopwatch


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


def summarise(size: Size, by_method: dict[str, list[Measurement]]) -> dict[str, Any]:
    """Return medians over the rounds, and the median of the rounds' ratios of DPADVI to ADVI."""
    result: dict[str, Any] = {**asdict(size), "methods": {}, "dpadvi_over_advi": {}}
    fields = ("step_microseconds", "first_step_seconds", "peak_mebibytes")
    for method, rounds in by_method.items():
        values = {name: [getattr(one, name) for one in rounds] for name in fields}
        result["methods"][method] = {
            name: None if None in list_ else statistics.median(list_) for name, list_ in values.items()
        } | {"rounds": [asdict(one) for one in rounds]}
        result["data_mebibytes"] = rounds[0].data_mebibytes
    if {"advi", "dpadvi"} <= by_method.keys():
        for name in fields:
            result["dpadvi_over_advi"][name] = statistics.median(
                getattr(ours, name) / getattr(theirs, name)
                for ours, theirs in zip(by_method["dpadvi"], by_method["advi"], strict=True)
            )
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """Print one size's table."""
    table = Table(
        title=(
            f"N = {result['num_records']}, D = {result['num_features']}, "
            f"B = {result['batch_size']} (data {result['data_mebibytes']:.0f} MiB)"
        )
    )
    table.add_column("method")
    for heading in ("µs per step", "s to first step", "peak MiB above data"):
        table.add_column(heading, justify="right")
    rows = dict(result["methods"])
    if result["dpadvi_over_advi"]:
        rows["dpadvi / advi"] = result["dpadvi_over_advi"]
    for name, row in rows.items():
        ratio = name not in METHODS
        table.add_row(
            name,
            f"{row['step_microseconds']:.2f}" if ratio else f"{row['step_microseconds']:.0f}",
            "–" if row["first_step_seconds"] is None else f"{row['first_step_seconds']:.2f}",
            f"{row['peak_mebibytes']:.2f}" if ratio else f"{row['peak_mebibytes']:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
