"""Memory and time of a fit whose records are on the disk, and the time of the same fit in memory.

``python benchmarks/out_of_memory.py [--records 10000000] [--full]`` simulates a logistic regression with 20
columns, float32, piece by piece into a temporary folder; fits it with default settings in a process of its
own, which maps the files (``DPADVI(records=...)``); and prints the most memory that this process has held.
If the records fit into memory, another process fits them there, as float32 too. ``--full`` is for 10^8
records, 8 GB on the disk. Pages of the files that the operating system keeps count as the process's resident
memory as long as nobody else asks for that memory; so both the peak of all and that of memory of its own
(anonymous, which no file backs) are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from workers import one_thread_each, peak_bytes

COLUMNS = 20
PIECE = 1_000_000


def write(folder: Path, num_records: int) -> None:
    """Write x.npy and y.npy, piece by piece."""
    rng = np.random.default_rng(20)
    coefficients = rng.normal(size=COLUMNS) / 2
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.dtype("float32"), (num_records, COLUMNS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.dtype("int8"), (num_records,))
    for first in range(0, num_records, PIECE):
        rows = rng.standard_normal((min(PIECE, num_records - first), COLUMNS), dtype=np.float32)
        x[first : first + PIECE] = rows
        y[first : first + PIECE] = rows @ coefficients + rng.logistic(size=len(rows)) > 0
    x.flush()
    y.flush()


def anonymous_bytes() -> int:
    """Return the process's resident memory that no file backs (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class Peak(threading.Thread):
    """Looks now and then how much memory of its own the process has; `most` is the most seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.02):
            self.most = max(self.most, anonymous_bytes())


def fit(folder: Path, where: str, n_steps: int, sampling_prob: float | None) -> None:
    """Fit; print memory and time of a step, and leave them in the folder."""
    import pymc as pm

    from pymc_dpvi import DPADVI

    files = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}
    if where == "disk":
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(100, COLUMNS)).astype("float32"), rng.integers(0, 2, size=100)
    else:
        x, y = (np.array(file) for file in files.values())
    with pm.Model() as model:
        data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=COLUMNS)
        pm.Bernoulli("y", logit_p=data @ beta, observed=y)
    del x, y
    before, peak = anonymous_bytes(), Peak()
    peak.start()
    method = DPADVI(
        epsilon=1.0,
        delta=1e-9,
        sampling_prob=sampling_prob,
        records=files if where == "disk" else None,
        model=model,
    )
    started: list[float] = []

    def first(*args: object) -> None:
        started.append(time.perf_counter())

    first.every = n_steps  # type: ignore[attr-defined]  # after the first step and the last
    start = time.perf_counter()
    approx = method.fit(n_steps, progressbar=False, callbacks=[first])
    end = time.perf_counter()
    peak.over.set()
    step = (started[-1] - started[0]) / (n_steps - 1)
    q = approx.privacy.runs[0].sampling_prob
    print(
        f"{where:6}  q = {q:.4g}, {q * len(files['y']):,.0f} records expected in a batch; "
        f"{1e3 * step:.2f} ms a step; fit {end - start:.1f} s, {started[0] - start:.1f} s of it to the first "
        "step\n"
        f"{'':6}  peak of resident memory {peak_bytes() / 2**20:,.0f} MiB; of memory of its own "
        f"{peak.most / 2**20:,.0f} MiB, {before / 2**20:,.0f} MiB before the method was made",
        flush=True,
    )
    found = {"seconds a step": step, "bytes of its own": peak.most, "bytes": peak_bytes()}
    (folder / f"{where}.json").write_text(json.dumps(found), encoding="utf-8")


def measured(
    num_records: int,
    n_steps: int = 2000,
    sampling_prob: float | None = None,
    in_memory: bool = True,
    parent: Path | None = None,
) -> dict[str, dict[str, float]]:
    """Write records to a temporary folder, fit them in processes of their own, and return what was found."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        start = time.perf_counter()
        write(folder, num_records)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"{num_records:,} records, {size / 2**30:.2f} GiB, written in {time.perf_counter() - start:.0f} s"
        )
        found = {}
        for where in ("disk", "memory")[: 1 + in_memory]:
            chosen = ["--steps", str(n_steps), "--folder", str(folder), "--fit", where]
            if sampling_prob is not None:
                chosen += ["--sampling-prob", str(sampling_prob)]
            subprocess.run([sys.executable, __file__, *chosen], check=True)
            found[where] = json.loads((folder / f"{where}.json").read_text(encoding="utf-8"))
        return found
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Write the records, and fit them from the disk and in memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--full", action="store_true", help="10^8 records")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sampling-prob", type=float, help="by default that of DPADVI")
    parser.add_argument(
        "--in-memory", action=argparse.BooleanOptionalAction, help="by default up to 2 * 10^7"
    )
    parser.add_argument("--fit", choices=["disk", "memory"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made")
    args = parser.parse_args()
    if args.fit:
        fit(args.folder, args.fit, args.steps, args.sampling_prob)
        return
    one_thread_each()
    num_records = 100_000_000 if args.full else args.records
    in_memory = num_records <= 20_000_000 if args.in_memory is None else args.in_memory
    measured(num_records, args.steps, args.sampling_prob, in_memory, args.folder)


if __name__ == "__main__":
    main()
