"""Keyboard interrupts: that they wait, and that they are noticed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["noticed", "uninterrupted"]

_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a keyboard interrupt wait, so that the state and the count of steps belong together.

    Otherwise Python would nearly always raise it after the compiled call and before its results are stored.
    """
    late: list[Callable[[], Any]] = []

    def wait(handler: _Handler) -> _Handler:
        return lambda number, frame: late.append(lambda: handler(number, frame))

    try:
        with _handled(wait):
            yield
    finally:
        if late:
            late[0]()


@contextmanager
def noticed(raised: list[type[BaseException]]) -> Iterator[None]:
    """Write down what the handler of a keyboard interrupt raises, by its type; it is raised as ever.

    Python cannot pass on what is raised in a function that a library calls, as LLVM does while it compiles.
    An interrupt is then lost, or has become another error.
    """

    def note(handler: _Handler) -> _Handler:
        def noting(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                raised.append(type(error))
                raise

        return noting

    with _handled(note):
        yield


@contextmanager
def _handled(other: Callable[[_Handler], _Handler]) -> Iterator[None]:
    """Put another handler in place of the one of keyboard interrupts, if there is one in Python."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, other(handler))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
