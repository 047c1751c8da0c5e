"""Settings of the whole process that hold while any of Python's threads needs them.

Fits may run in several threads. If each put back what it found, the first to end would put the user's own
setting back while another still needs ours, and the last would put back ours.
"""

from __future__ import annotations

import threading

__all__ = ["ProcessWide"]


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
