"""Keyboard interrupts: that they wait, and that they are noticed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["noticed", "uninterrupted"]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a keyboard interrupt wait, so that the state and the count of steps belong together.

    Otherwise Python would nearly always raise it after the compiled call and before its results are stored.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


@contextmanager
def noticed(came: list[int]) -> Iterator[None]:
    """Write down keyboard interrupts, which are raised as ever.

    Python cannot pass on what is raised in a function that a library calls, as LLVM does while it compiles.
    An interrupt is then lost, or has become another error.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def notice(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
