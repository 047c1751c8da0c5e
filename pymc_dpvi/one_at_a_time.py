"""One fit at a time by one method: of two at once, neither would report what the other spends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pymc_dpvi.errors import PrivacyError

__all__ = ["Turn", "one_at_a_time"]

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """The right to fit, of one thread at a time, in the process that made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        """Take the turn, or raise a PrivacyError."""
        if os.getpid() != self._process:
            raise PrivacyError(
                "This method was made in another process, which may fit with it as well, and neither would "
                "report what the other spends. Make a DPADVI in the process that fits."
            )
        if not self._lock.acquire(blocking=False):
            raise PrivacyError(
                "This fit is still running: fit and refine cannot be called from one of its callbacks, or "
                "from another thread. Make a DPADVI for each thread."
            )

    def __exit__(self, *error: object) -> None:
        """Give the turn back."""
        self._lock.release()


def one_at_a_time(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method of an object with a `_turn` to run alone, and not in a forked process."""

    @wraps(method)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        this: Any = args[0]
        with this._turn:
            return method(*args, **kwargs)

    return alone
