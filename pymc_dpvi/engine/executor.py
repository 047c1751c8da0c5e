"""Who adds up the clipped gradients of a batch: the interface, and threads.

An executor is given a batch and what all records share at the released values, and returns the sum of the
clipped gradients in integers (`lattice_sums`). It knows neither noise nor budget: these stay with the one
who asks. Integers are the same in any order, so a step does not depend on who adds up.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pymc_dpvi.engine.pieces import Batch, PieceSum
from pymc_dpvi.engine.threads import Threads, ring

__all__ = ["Executor", "OnThreads"]


class Executor(Protocol):
    """What a step needs of the one who adds up."""

    def sums(self, batch: Batch) -> np.ndarray:
        """Return the sum over a batch in parts, (parts, 2, size), int64, without noise: it must not leave."""

    def close(self) -> None:
        """Let go of workers, until the next sum."""


class OnThreads:
    """Pieces of a batch on the threads of this process."""

    def __init__(self, piece_sum: PieceSum, threads: Threads) -> None:
        self.piece_sum, self.threads = piece_sum, threads

    def sums(self, batch: Batch) -> np.ndarray:
        """Return the sum of each thread; see `Executor.sums`."""
        cuts, turns = self.piece_sum.cuts(batch.indices), np.zeros(1, dtype=np.int64)
        sums = np.empty((min(self.threads.cores, cuts.size - 1), 2, batch.size), dtype=np.int64)
        rest = iter(sums)

        def work(bells: np.ndarray) -> None:
            ring(bells)
            own = next(rest)
            own.fill(0)
            self.piece_sum(batch, cuts, turns, own)

        self.threads.each(work, len(sums))
        return sums

    def close(self) -> None:
        """Do nothing: the threads are the step's."""
