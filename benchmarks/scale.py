"""Steps on several threads, on a cluster and from the disk, as ratios, and what a process keeps of a fit.

``python benchmarks/scale.py`` measures

* *threads*: seconds of a step in one compiled call, and with ``cores=1`` and ``cores=2``, in turn, for a wide
  logistic regression, a full batch as large as Adult, a small model, and a network (784-1000-10). Beside
  them stands what the machine has to give: the seconds of a step in one compiled call while another process
  takes the same steps. Two processes share no work, no lock and no barrier, so their gain, twice the seconds
  alone over the seconds beside another, is the most that two threads could gain;
* *cluster*: seconds of a step with ``client=`` on two workers of a ``LocalCluster``, and on one thread, for
  batches of different sizes: what a round costs, and from which size on two workers are faster;
* *disk*: seconds of a step with 10^7 records of 20 columns in a file that is mapped, and in memory, and the
  memory that the process held (``out_of_memory.py``, whose ``--full`` has 10^8);
* *growth*: how much a process grows with 1,000 fits of one model (``memory_of_fits.py``).

It takes half an hour on two cores, on which nothing else should run. ``--only`` measures one of them, and
``--write`` writes ``figures/scale.json``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from out_of_memory import measured

from pymc_dpvi import DPADVI

#: Seconds that a variant of a problem runs at a time, and how often.
SECONDS, TURNS = 1.0, 5
FIGURE = Path(__file__).parent / "figures" / "scale.json"


def logistic(num_records: int, columns: int) -> Callable[[], None]:
    """Return what builds a logistic regression on simulated records."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(num_records, columns)), rng.integers(0, 2, size=num_records)

    def build() -> None:
        beta = pm.Normal("beta", 0, 1, shape=columns)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=y)

    return build


def network(num_records: int) -> Callable[[], None]:
    """Return what builds the network of Ermis and Cemgil (2017), on pictures of noise."""
    rng = np.random.default_rng(1)
    x, y = rng.random(size=(num_records, 784)), rng.integers(0, 10, size=num_records)

    def build() -> None:
        hidden = pm.Normal("hidden", 0, 1, shape=(784, 1000))
        out = pm.Normal("out", 0, 1, shape=(1000, 10))
        pm.Categorical("y", logit_p=pt.maximum(pm.Data("x", x) @ hidden, 0) @ out, observed=y)

    return build


THREADS: dict[str, tuple[Callable[[], Callable[[], None]], dict[str, Any]]] = {
    "logistic, 100 columns, batch of 10,000": (lambda: logistic(20_000, 100), {"sampling_prob": 0.5}),
    "logistic, 100 columns, 32,561 records, full batch": (
        lambda: logistic(32_561, 100),
        {"sampler": "full_batch"},
    ),
    "logistic, 14 columns, 32,561 records, full batch": (
        lambda: logistic(32_561, 14),
        {"sampler": "full_batch"},
    ),
    "logistic, 10 columns, batch of 200": (lambda: logistic(20_000, 10), {"sampling_prob": 0.01}),
    "network 784-1000-10, batch of 600": (lambda: network(20_000), {"batch_size": 600}),
}


class Clock:
    """A callback that is called after the first step of a run and after the last."""

    every = 10**9

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, *_: Any) -> None:
        """Take the time."""
        self.times.append(time.perf_counter())


class Steps:
    """A method that has made its first steps; `time` says how long further ones take."""

    def __init__(self, build: Callable[[], None], cores: int | None, **kwargs: Any) -> None:
        self._called = Clock()
        with patch("pymc_dpvi.engine.step.is_long", lambda *_: False), pm.Model():
            build()
            self.method = DPADVI(epsilon=1.0, delta=1e-6, **kwargs)
            self.method.fit(2, progressbar=False, callbacks=[self._called], backend="numba", cores=cores)
        self.at_once = 2
        while (seconds := self.time() * self.at_once) < SECONDS / 2:
            self.at_once = int(self.at_once * min(10.0, 1 + SECONDS / max(seconds, 1e-3)))

    def time(self) -> float:
        """Return the seconds of a step, the mean of many."""
        self.method.refine(self.at_once, progressbar=False)
        first, last = self._called.times[-2:]
        return (last - first) / (self.at_once - 1)


def in_turn(variants: Mapping[str, Steps | Beside]) -> dict[str, float]:
    """Return the median seconds of a step of each variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(TURNS):
        for name, steps in variants.items():
            times[name].append(steps.time())
    return {name: statistics.median(found) for name, found in times.items()}


class Beside:
    """Steps of one compiled call, while a process of its own takes the same steps."""

    def __init__(self, problem: str, alone: Steps) -> None:
        self._alone = alone
        context = multiprocessing.get_context("spawn")
        self._wanted, self._busy = context.Event(), context.Event()
        self._process = context.Process(
            target=_keep_busy, args=(problem, self._wanted, self._busy), daemon=True
        )
        self._process.start()
        self._busy.wait()
        self._wait_until(busy=False)

    def _wait_until(self, busy: bool) -> None:
        while self._busy.is_set() is not busy:
            time.sleep(0.01)

    def time(self) -> float:
        """Return the seconds of a step, the mean of many."""
        self._wanted.set()
        self._wait_until(busy=True)
        found = self._alone.time()
        assert self._busy.is_set(), "the other process ended"
        self._wanted.clear()
        self._wait_until(busy=False)
        return found

    def close(self) -> None:
        """End the other process."""
        self._process.terminate()
        self._process.join()


def _keep_busy(problem: str, wanted: Any, busy: Any) -> None:
    """Take steps of a problem whenever they are wanted."""
    make, kwargs = THREADS[problem]
    steps = Steps(make(), None, **kwargs)
    busy.set()
    while True:
        if not wanted.is_set():
            busy.clear()
            wanted.wait()
            busy.set()
        steps.time()


def threads() -> dict[str, dict[str, float]]:
    """Measure steps in one call, on one and two threads, and beside another process."""
    found = {}
    print(f"{'':52} one call   cores=1   cores=2    beside    gain   most")
    for problem, (make, kwargs) in THREADS.items():
        build = make()
        alone = Steps(build, None, **kwargs)
        other = Beside(problem, alone)
        variants: dict[str, Steps | Beside] = {"one call": alone}
        variants |= {f"cores={n}": Steps(build, n, **kwargs) for n in (1, 2)}
        found[problem] = in_turn({**variants, "beside another process": other})
        other.close()
        texts = "  ".join(f"{1e3 * seconds:5.2f} ms" for seconds in found[problem].values())
        one, _, two, beside = found[problem].values()
        print(f"{problem:52} {texts}   {one / two:.2f}   {2 * one / beside:.2f}", flush=True)
    return found


def cluster() -> dict[str, dict[str, float]]:
    """Measure steps on a cluster of two workers, and on one thread in memory."""
    import dask.array as da
    from distributed import Client, LocalCluster

    num_records, columns, shards = 2_000_000, 20, 8
    rng = da.random.default_rng(1)
    rows = num_records // shards
    x = rng.normal(size=(num_records, columns), chunks=(rows, columns))
    y = rng.integers(0, 2, size=num_records, chunks=rows)
    found = {}
    print(f"{'':32} one thread   two workers   one thread / two workers")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        build = logistic(num_records, columns)
        template = logistic(64, columns)
        for q in (0.0005, 0.005, 0.05, 0.3, 0.9):
            variants = {
                "one thread": Steps(build, None, sampling_prob=q),
                "two workers": Steps(
                    template, None, sampling_prob=q, records={"x": x, "y": y}, client=client
                ),
            }
            name = f"batch of {q * num_records:,.0f}"
            found[name] = in_turn(variants)
            one, two = found[name].values()
            print(f"{name:32} {1e3 * one:7.2f} ms   {1e3 * two:8.2f} ms   {one / two:.2f}", flush=True)
    return found


def disk() -> dict[str, dict[str, float]]:
    """Measure a fit whose records are on the disk, and the same in memory."""
    found = measured(10_000_000)
    on_disk, in_memory = found["disk"], found["memory"]
    time_, memory = (on_disk[what] / in_memory[what] for what in ("seconds a step", "bytes of its own"))
    print(f"from the disk, {time_:.2f} times the seconds and {memory:.2f} times the memory of the process")
    return found


def growth() -> dict[str, float]:
    """Measure the memory of a process after some fits of one model; MiB."""
    with tempfile.TemporaryDirectory() as folder:
        script, file = Path(__file__).with_name("memory_of_fits.py"), Path(folder, "found.json")
        subprocess.run([sys.executable, script, "--fits", "1000", "--json", file], check=True)
        found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Measure all parts, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["threads", "cluster", "disk", "growth"])
    parser.add_argument("--write", action="store_true", help="write figures/scale.json")
    args = parser.parse_args()
    parts = {"threads": threads, "cluster": cluster, "disk": disk, "growth": growth}
    found: dict[str, Any] = {"cores": os.cpu_count()}
    for name, part in parts.items():
        if args.only in (None, name):
            found[name] = part()
    if args.write:
        earlier = json.loads(FIGURE.read_text(encoding="utf-8"))
        FIGURE.write_text(json.dumps({**earlier, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
