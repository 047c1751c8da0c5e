"""Threads of this process that take turns at pieces of work, the caller's among them.

A thread takes the next piece when it is done with one, so that a core that is busy with other work holds up
nobody. What a piece is, and that the result does not depend on who takes it, is the work's affair: `executor`
adds up records, `columns` computes long vectors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from pymc_dpvi.engine.silence import silence
from pymc_dpvi.numba_cache import kernel

__all__ = ["Threads", "available_cores", "take_turn"]

T = TypeVar("T")

#: How often a thread looks at a bell before it sleeps: a third of a millisecond.
_LOOKS = 1 << 20


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@intrinsic
def take_turn(typing_context: Any, turns: Any) -> Any:  # pragma: no cover
    """Return the first entry of an int64 array, and add one to it, in one go for all threads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(turns), codegen


def _keep_memory() -> None:
    """Let the C library keep what large arrays leave free, for the next ones.

    glibc gives memory back to the system once more is free than two of the largest arrays so far. A thread of
    a large model would then get 30 MB anew in each step, page by page: a third of the step's time.
    The limit follows the largest array that was ever freed, up to 32 MiB. So one of almost that size is made
    and freed, without being touched.
    """
    np.empty((1 << 25) - (1 << 13), dtype=np.uint8)


class Bell:
    """A number that goes up, for which another thread waits: awake for a while, then asleep.

    To wake a thread that sleeps takes a system some ten microseconds, and a virtual machine a tenth of a
    millisecond: as long as the work that it is woken for. So a thread that waits for the next step looks at
    the number itself for about that long, without Python's lock.
    """

    def __init__(self, looks: int) -> None:
        self._rung = np.zeros(1, dtype=np.int64)
        self._changed, self._looks = threading.Condition(), looks

    def ring(self) -> None:
        """Add one to the number."""
        with self._changed:
            self._rung[0] += 1
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Return when the bell has been rung so often."""
        if not _seen(self._rung, number, self._looks):
            with self._changed:
                self._changed.wait_for(lambda: self._rung[0] >= number)


@intrinsic
def _read(typing_context: Any, numbers: Any) -> Any:  # pragma: no cover
    """Return the first entry of an int64 array, which another thread may change."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "acquire", 8)

    return types.int64(numbers), codegen


@kernel(nogil=True)
def _seen(rung: np.ndarray, number: int, looks: int) -> bool:  # pragma: no cover
    """Look at a bell many times; return whether it has been rung so often."""
    for _ in range(looks):
        if _read(rung) >= number:
            return True
    return False


class _Helper:
    """A thread that does one piece of work after another."""

    def __init__(self, looks: int) -> None:
        self._given, self._done, self._works = Bell(looks), Bell(looks), 0
        self._work: Callable[[], Any] | None = None
        self._found: Any = None
        self._failed: BaseException | None = None
        # A daemon: a fit that is given up, as in a generator that nobody closes, must not keep Python open.
        self._thread = threading.Thread(target=self._run, name="pymc_dpvi", daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], Any] | None) -> None:
        """Begin some work, when the one before is done; None ends the thread."""
        self._work, self._works = work, self._works + 1
        self._given.ring()

    def result(self) -> Any:
        """Wait until the work is done, and return what it returned, or raise what it raised."""
        self._done.wait_for(self._works)
        found, failed, self._found, self._failed = self._found, self._failed, None, None
        if failed is not None:
            raise failed
        return found

    def _run(self) -> None:
        number = 0
        while True:
            number += 1
            self._given.wait_for(number)
            work, self._work = self._work, None
            if work is None:
                return
            try:
                with silence():  # a thread does not have the settings of the one that began it
                    self._found = work()
            except BaseException as error:
                self._failed = error
            work = None  # it holds a batch
            self._done.ring()


class Threads:
    """`cores` threads, begun when they are first needed."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._helpers: list[_Helper] = []

    def each(self, work: Callable[[], T], pieces: int) -> list[T]:
        """Let as many threads `work` as there are cores, and at most one a piece; return what they return.

        `work` takes pieces until none is left, and releases Python's lock meanwhile. If one raises, so does
        this: when all have stopped, or at once if an interrupt ends the waiting. Then all threads are ended.
        The caller holds `silence`.
        """
        if self.cores > 1 and not self._helpers:
            self._begin_all()
        try:
            others = self._helpers[: max(0, pieces - 1)]
            for other in others:
                other.give(work)
            failed: BaseException | None = None
            results = []
            for result in (work, *(other.result for other in others)):
                try:
                    results.append(result())
                except BaseException as error:
                    failed = error
            if failed is not None:
                raise failed
            return results
        except BaseException:  # a thread may be at work, or have some without having heard its bell
            self.close()
            raise

    def _begin_all(self) -> None:
        """Begin all threads, whatever the batch: which of them are there would tell how large it is."""
        _keep_memory()
        looks = _LOOKS if self.cores <= available_cores() else 0  # a core that looks is another thread's
        helpers: list[_Helper] = []
        try:
            for _ in range(self.cores - 1):
                helpers.append(_Helper(looks))
        except BaseException:  # such as no room for so many threads: those that wait would wait for ever
            for helper in helpers:
                helper.give(None)
            raise
        self._helpers = helpers

    def close(self) -> None:
        """End the threads; later work begins new ones."""
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.give(None)
