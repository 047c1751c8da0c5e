"""A step of d3p, in an environment of its own.

d3p 0.2.0 (December 2022) runs with the JAX of its time, which needs Python 3.9 or 3.10. So it is measured in
a process of that Python, which reads commands from its standard input: `step_time.py` counts the processor
time that this process reports, and its memory.

    python benchmarks/d3p_step.py make [--python PYTHON3.9] [--folder benchmarks/output/d3p]

makes the environment, from the package index. The versions that d3p calls compatible are not there any more;
those below are the oldest that are. Batches of fixed size are drawn by its `subsample_batchify_data`, without
replacement, with its default (secure) generator, and the steps are fused by ``lax.fori_loop``, in float32.
Poisson batches are on d3p's main branch, which is not on the index.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "output" / "d3p"
PACKAGES = ("d3p==0.2.0", "jax==0.4.13", "jaxlib==0.4.13", "numpyro==0.11.0", "numpy<2", "scipy<1.13")
LEARNING_RATE, CLIP, NOISE = 0.01, 1.0, 4.0


def python_of(folder: Path = FOLDER) -> Path | None:
    """Return the interpreter of an environment that `make` made."""
    found = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return found if found.exists() else None


def make(python: str | None, folder: Path) -> None:
    """Make the environment."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [python] if python else [shutil.which(f"python3.{k}") for k in (9, 10)]
    candidates += [] if python else [str(p) for k in (9, 10) for p in roots.glob(f"3.{k}.*/bin/python")]
    for candidate in filter(None, candidates):
        version = [
            candidate,
            "-c",
            "import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 9), (3, 10)))",
        ]
        if subprocess.run(version, capture_output=True).returncode == 0:
            break
    else:
        raise SystemExit("No Python 3.9 or 3.10 was found: give one with --python.")
    subprocess.run([candidate, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([str(python_of(folder)), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    print(f"Made {folder}")


def prepare(name: str) -> Any:
    """Return the loop of a model's steps; runs in d3p's environment."""
    from step_models import MODELS

    jax, infer, optim = map(import_module, ("jax", "numpyro.infer", "numpyro.optim"))
    autoguide, handlers = map(import_module, ("numpyro.infer.autoguide", "numpyro.handlers"))
    generator, minibatch, private = map(import_module, ("d3p.random", "d3p.minibatch", "d3p.svi"))
    case = MODELS[name]
    data = case.data(np.random.default_rng(20240612), case.num_records)
    arrays = tuple(jax.numpy.asarray(v) for v in data.values())

    written = case.numpyro
    assert written is not None

    def model(*batch: Any) -> None:
        size = len(batch[0])
        with handlers.substitute(data={"records": jax.numpy.arange(size)}):
            written(dict(zip(data, batch)), case.num_records, size)  # noqa: B905  Python 3.9

    guide = autoguide.AutoDiagonalNormal(model, init_loc_fn=infer.init_to_median(num_samples=1))
    svi = private.DPSVI(model, guide, optim.Adam(LEARNING_RATE), infer.Trace_ELBO(), CLIP, NOISE)
    begin, batch_of = minibatch.subsample_batchify_data(arrays, batch_size=case.batch_size)
    key = generator.PRNGKey(1)
    _, batches = begin(key)
    state = [svi.init(key, *batch_of(0, batches))]
    loop = jax.jit(
        lambda n, first: jax.lax.fori_loop(0, n, lambda i, s: svi.update(s, *batch_of(i, batches))[0], first)
    )

    def run(n: int) -> None:
        state[0] = jax.block_until_ready(loop(n, state[0]))

    return data, run


def serve(name: str) -> None:
    """Say what the first step took; then make steps for each number that is read, and say what was used."""
    from workers import peak_bytes

    import_module("d3p.svi")  # so that the imports count as held before
    before, start = peak_bytes(), time.perf_counter()
    data, run = prepare(name)
    held = sum(v.nbytes for v in data.values())
    run(1)
    first = time.perf_counter() - start
    print(json.dumps({"first_step_seconds": first}), flush=True)
    for line in sys.stdin:
        run(int(line))
        peak = (peak_bytes() - before - held) / 2**20
        print(json.dumps({"seconds": time.process_time(), "peak_mebibytes": peak}), flush=True)


class Remote:
    """The steps of a model in d3p's environment, to be called with a number of steps."""

    def __init__(self, python: Path, name: str) -> None:
        threads = {k: "1" for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.process = subprocess.Popen(
            [str(python), __file__, "serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | threads,
        )
        self.last = self.answer()

    def answer(self) -> dict[str, Any]:
        """Read one line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("d3p's process has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def __call__(self, n: int) -> None:
        """Make steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        self.last |= self.answer()

    def clock(self) -> float:
        """Return the processor seconds that its process has used when it last answered."""
        return float(self.last.get("seconds", 0.0))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="d3p's environment, and its steps for step_time.py.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make the environment")
    making.add_argument("--python", help="a Python 3.9 or 3.10; by default one that is found")
    making.add_argument("--folder", type=Path, default=FOLDER)
    serving = commands.add_parser("serve", help="what step_time.py calls")
    serving.add_argument("model")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.python, arguments.folder)
    else:
        serve(arguments.model)


if __name__ == "__main__":
    main()
