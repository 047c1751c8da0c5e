"""Who adds up the clipped gradients of a batch: the interface, and threads.

An executor is given a batch and what all records share at the released values, and returns the sum of the
clipped gradients in integers (`lattice_sums`). It knows neither noise nor budget: these stay with the one
who asks. Integers are the same in any order, so a step does not depend on who adds up.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from pymc_dpvi.engine.lattice_sums import no_sum
from pymc_dpvi.engine.pieces import Batch, PieceSum
from pymc_dpvi.engine.silence import silence

__all__ = ["Executor", "Threads", "available_cores"]


class Executor(Protocol):
    """What a step needs of the one who adds up."""

    def sum(self, batch: Batch) -> np.ndarray:
        """Return the sum over a batch, (2, size), int64, without noise: it must not leave."""

    def close(self) -> None:
        """Let go of threads or workers, until the next sum."""


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Threads:
    """Pieces of a batch on several threads of this process, the caller's among them.

    A thread takes the next piece when it is done with one, so that a core that is busy with other work holds
    up nobody. An error of one is raised when all have stopped.
    """

    def __init__(self, piece_sum: PieceSum, cores: int) -> None:
        self.piece_sum, self.cores = piece_sum, cores
        self._pool: ThreadPoolExecutor | None = None

    def sum(self, batch: Batch) -> np.ndarray:
        """Return the sum over the batch; see `Executor.sum`."""
        cuts, turns = self.piece_sum.cuts(batch.indices), np.zeros(1, dtype=np.int64)

        def work() -> np.ndarray:
            total = no_sum(batch.size)
            with silence():  # a thread does not have the settings of the one that began it
                self.piece_sum(batch, cuts, turns, total)
            return total

        helpers = min(self.cores, cuts.size - 1) - 1
        if self.cores > 1 and self._pool is None:
            self._pool = self._all_begun()
        others = [] if self._pool is None else [self._pool.submit(work) for _ in range(helpers)]
        failed: BaseException | None = None
        total = no_sum(batch.size)
        try:
            total += work()
        except BaseException as error:
            failed = error
        for other in others:
            try:
                total += other.result()
            except BaseException as error:
                failed = error
        if failed is not None:
            raise failed
        return total

    def _all_begun(self) -> ThreadPoolExecutor:
        """Begin all threads, whatever the batch: which of them are there would tell how large it is."""
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
        """End the threads; a later sum begins new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
