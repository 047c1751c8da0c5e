"""Settings of the whole process that hold while a private step runs in any of Python's threads.

Fits may run in several threads. If each put back what it found, the first to end would put the user's own
setting back while another's step still runs, and the last would put back that of a step.
"""

from __future__ import annotations

import threading
from typing import Any

from scipy import special

__all__ = ["SCIPY_IS_QUIET", "ProcessWide"]


class ProcessWide:
    """The first to enter makes the setting, the last to leave puts back what there was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        """Make the setting, if nobody is inside."""
        with self._lock:
            if not self._inside:
                self._make()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        """Put back what there was, if nobody else is inside."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._put_back()

    def _make(self) -> None:
        raise NotImplementedError

    def _put_back(self) -> None:
        raise NotImplementedError


class _QuietSciPy(ProcessWide):
    """SciPy's special functions neither raise nor warn, which `scipy.special.seterr` can make them do."""

    def _make(self) -> None:
        self._before: dict[str, Any] = special.seterr(all="ignore")

    def _put_back(self) -> None:
        special.seterr(**self._before)


SCIPY_IS_QUIET = _QuietSciPy()
