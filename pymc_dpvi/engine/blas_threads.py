"""BLAS on one thread while a private step runs.

With several threads, BLAS divides a matrix product by rows, and each thread may add up in another order: a
record's row would then depend on its place in the batch (docs/noise.md, section 4). The number of threads is
one for the whole process. So it stays at one while a step runs in any of Python's threads.
"""

from __future__ import annotations

import threading
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["ONE_THREAD", "OneThread"]


class OneThread:
    """The first to enter sets BLAS to one thread, the last to leave restores the number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None
        self._libraries = ThreadpoolController()

    def look(self) -> None:
        """Find the libraries that are loaded by now."""
        with self._lock:
            self._libraries = ThreadpoolController()

    def __enter__(self) -> None:
        """Set BLAS to one thread."""
        with self._lock:
            if not self._inside:
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        """Set it back, if nobody else is inside."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


ONE_THREAD = OneThread()
