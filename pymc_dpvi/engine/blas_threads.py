"""BLAS on one thread while a private step runs.

With several threads, BLAS divides a matrix product by rows, and each thread may add up in another order: a
record's row would then depend on its place in the batch (docs/noise.md, section 4). The number of threads is
one for the whole process. So it stays at one while a step runs in any of Python's threads.
"""

from __future__ import annotations

from typing import Any

from threadpoolctl import ThreadpoolController

from pymc_dpvi.process_wide import ProcessWide

__all__ = ["ONE_THREAD", "OneThread"]


class OneThread(ProcessWide):
    """The first to enter sets BLAS to one thread, the last to leave restores the number."""

    def __init__(self) -> None:
        super().__init__()
        self._limit: Any = None
        self._libraries = ThreadpoolController()

    def look(self) -> None:
        """Find the libraries that are loaded by now."""
        with self._lock:
            self._libraries = ThreadpoolController()

    def _make(self) -> None:
        self._limit = self._libraries.limit(limits=1, user_api="blas")

    def _put_back(self) -> None:
        self._limit.restore_original_limits()


ONE_THREAD = OneThread()
