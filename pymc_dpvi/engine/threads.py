"""Threads of this process that take turns at pieces of work, the caller's among them.

A thread takes the next piece when it is done with one, so that a core that is busy with other work holds up
nobody. What a piece is, and that the result does not depend on who takes it, is the work's affair: `executor`
adds up records, `columns` computes long vectors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from pymc_dpvi.engine.silence import silence

__all__ = ["Threads", "available_cores", "take_turn"]

T = TypeVar("T")


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@intrinsic
def take_turn(typing_context: Any, turns: Any) -> Any:  # pragma: no cover
    """Return the first entry of an int64 array, and add one to it, in one go for all threads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(turns), codegen


def _keep_memory() -> None:
    """Let the C library keep what large arrays leave free, for the next ones.

    glibc gives memory back to the system once more is free than two of the largest arrays so far. A thread of
    a large model would then get 30 MB anew in each step, page by page: a third of the step's time.
    The limit follows the largest array that was ever freed, up to 32 MiB. So one of almost that size is made
    and freed, without being touched.
    """
    np.empty((1 << 25) - (1 << 13), dtype=np.uint8)


class Threads:
    """`cores` threads, begun when they are first needed."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[], T], pieces: int) -> list[T]:
        """Let as many threads `work` as there are cores, and at most one a piece; return what they return.

        `work` takes pieces until none is left, and releases Python's lock meanwhile. If one raises, so does
        this when all have stopped. The caller holds `silence`.
        """

        def in_silence() -> T:
            with silence():  # a thread does not have the settings of the one that began it
                return work()

        if self.cores > 1 and self._pool is None:
            self._pool = self._all_begun()
        helpers = min(self.cores, pieces) - 1
        others = [] if self._pool is None else [self._pool.submit(in_silence) for _ in range(helpers)]
        failed: BaseException | None = None
        results = []
        for result in (work, *(other.result for other in others)):
            try:
                results.append(result())
            except BaseException as error:
                failed = error
        if failed is not None:
            raise failed
        return results

    def _all_begun(self) -> ThreadPoolExecutor:
        """Begin all threads, whatever the batch: which of them are there would tell how large it is."""
        _keep_memory()
        pool, met = ThreadPoolExecutor(self.cores - 1, "pymc_dpvi"), threading.Barrier(self.cores)
        try:
            for _ in range(self.cores - 1):
                pool.submit(met.wait)
            met.wait()
        except BaseException:  # such as no room for so many threads: those that wait would wait for ever
            met.abort()
            raise
        return pool

    def close(self) -> None:
        """End the threads; later work begins new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
