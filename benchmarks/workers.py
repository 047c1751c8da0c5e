"""Processes: several fits at a time, each handed over when it is done; threads and memory of one."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["compiling", "in_processes", "not_compiled", "one_thread_each", "peak_bytes", "quiet_about_blas"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def one_thread_each() -> None:
    """Let every process that is started from now on use one thread: they share the cores between them."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    quiet_about_blas()


def quiet_about_blas() -> None:
    """Leave out what PyTensor says, at length and in every process, if it was installed from PyPI.

    It links no BLAS then, and nobody who runs a benchmark can do anything about it.
    """
    text = "PyTensor could not link to a BLAS installation"
    warnings.filterwarnings("ignore", text, UserWarning)
    asked = [os.environ["PYTHONWARNINGS"]] if os.environ.get("PYTHONWARNINGS") else []
    if not any(text in filters for filters in asked):
        os.environ["PYTHONWARNINGS"] = ",".join([f"ignore:{text}:UserWarning", *asked])


def not_compiled() -> None:
    """Let what is imported from now on evaluate graphs in Python: for few steps, compiling takes longer."""
    flags = [os.environ["PYTENSOR_FLAGS"]] if os.environ.get("PYTENSOR_FLAGS") else []
    os.environ["PYTENSOR_FLAGS"] = ",".join([*flags, "linker=py", "optimizer=fast_compile"])


def compiling() -> dict[str, Any]:
    """Return what to pass to a private fit: its own default is numba, whatever `not_compiled` has said."""
    quick = "linker=py" in os.environ.get("PYTENSOR_FLAGS", "")
    return {"compile_kwargs": {"mode": "FAST_COMPILE"}} if quick else {}


def in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Do the tasks in `jobs` processes, and yield each result when it is there."""
    quiet_about_blas()
    if jobs == 1 or len(tasks) < 2:
        yield from map(function, tasks)
        return
    # Spawned, not forked: a fork would share the threads and locks of compiled code.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


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
