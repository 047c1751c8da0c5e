"""Who adds up the clipped gradients of a batch: the interface, and threads.

An executor is given a batch and what all records share at the released values, and returns the sum of the
clipped gradients in integers (`lattice_sums`). It knows neither noise nor budget: these stay with the one
who asks. Integers are the same in any order, so a step does not depend on who adds up.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pymc_dpvi.engine.lattice_sums import no_sum
from pymc_dpvi.engine.pieces import Batch, PieceSum
from pymc_dpvi.engine.threads import Threads, ring

__all__ = ["Executor", "OnThreads"]

#: Columns of a sum that one thread adds to another's at a time.
_COLUMNS = 1 << 16


class Executor(Protocol):
    """What a step needs of the one who adds up."""

    def sum(self, batch: Batch) -> np.ndarray:
        """Return the sum over a batch, (2, size), int64, without noise: it must not leave."""

    def close(self) -> None:
        """Let go of workers, until the next sum."""


class OnThreads:
    """Pieces of a batch on the threads of this process."""

    def __init__(self, piece_sum: PieceSum, threads: Threads) -> None:
        self.piece_sum, self.threads = piece_sum, threads

    def sum(self, batch: Batch) -> np.ndarray:
        """Return the sum over the batch; see `Executor.sum`."""
        cuts, turns = self.piece_sum.cuts(batch.indices), np.zeros(1, dtype=np.int64)

        def work(bells: np.ndarray) -> np.ndarray:
            total = no_sum(batch.size)
            self.piece_sum(batch, cuts, turns, total, bells)
            return total

        total, *others = self.threads.each(work, cuts.size - 1)
        if others:
            columns = iter(range(0, batch.size, _COLUMNS))  # one thread at a time asks it for the next

            def add(bells: np.ndarray) -> None:
                ring(bells)
                for first in columns:
                    own = slice(first, first + _COLUMNS)
                    for other in others:
                        total[:, own] += other[:, own]

            self.threads.each(add, -(-batch.size // _COLUMNS))
        return total

    def close(self) -> None:
        """Do nothing: the threads are the step's."""
