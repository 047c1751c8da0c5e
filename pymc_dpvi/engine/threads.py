"""Threads of this process that take turns at pieces of work, the caller's among them.

A thread takes the next piece when it is done with one, so that a core that is busy with other work holds up
nobody. What a piece is, and that the result does not depend on who takes it, is the work's affair: `executor`
adds up records, `columns` computes long vectors.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pymc_dpvi.engine.atomics import load, store
from pymc_dpvi.engine.silence import silence
from pymc_dpvi.numba_cache import kernel

__all__ = ["NOBODY", "Threads", "available_cores", "ring"]

T = TypeVar("T")

#: How often a thread looks at a bell before it sleeps: a third of a millisecond.
_LOOKS = 1 << 20
#: Places in a helper's bell: number of the work that the bell was rung for, of the one that was laid down
#: last, of the one that is done; whether the helper sleeps, and whether its caller does, waiting for it.
_RUNG_FOR, _LAID_DOWN, _DONE, _ASLEEP, _CALLER_ASLEEP = range(5)
#: Length of a bell: a line of the cache, so that no two threads write to one.
_BELL = 8
#: The bells of no helper, for work that is done alone.
NOBODY = np.empty((0, _BELL), dtype=np.int64)
#: What a helper may see that stands by.
_RUNG, _QUIET, _CALLER_SLEEPS = range(3)


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _keep_memory() -> None:
    """Let the C library keep what large arrays leave free, for the next ones.

    glibc gives memory back to the system once more is free than two of the largest arrays so far. A thread of
    a large model would then get 30 MB anew in each step, page by page: a third of the step's time.
    The limit follows the largest array that was ever freed, up to 32 MiB. So one of almost that size is made
    and freed, without being touched.
    """
    np.empty((1 << 25) - (1 << 13), dtype=np.uint8)


@kernel(nogil=True)
def ring(bells: np.ndarray) -> None:  # pragma: no cover
    """Tell the helpers whose rows of `bells` these are that there is work."""
    for i in range(len(bells)):
        store(bells[i], bells[i, _LAID_DOWN])


@kernel(nogil=True)
def _stand_by(bell: np.ndarray, number: int, looks: int) -> int:  # pragma: no cover
    """Say that work `number` is done, and look for the next: `_RUNG`, `_QUIET`, or `_CALLER_SLEEPS`."""
    store(bell[_DONE:], number)
    if load(bell[_CALLER_ASLEEP:]):
        return _CALLER_SLEEPS
    for _ in range(looks):
        if load(bell) != number:
            return _RUNG
    return _QUIET


@kernel(nogil=True)
def _is_done(bell: np.ndarray, number: int, looks: int) -> bool:  # pragma: no cover
    """Look many times whether work `number` is done."""
    for _ in range(looks):
        if load(bell[_DONE:]) == number:
            return True
    return False


@kernel()
def _falls_asleep(bell: np.ndarray) -> None:  # pragma: no cover
    """Tell who lays work down that it has to wake the helper."""
    store(bell[_ASLEEP:], 1)


@kernel()
def _is_done_before_sleep(bell: np.ndarray, number: int) -> bool:  # pragma: no cover
    """Tell the helper that it has to wake the caller; then look once more whether work `number` is done."""
    store(bell[_CALLER_ASLEEP:], 1)
    return load(bell[_DONE:]) == number


class _Helper:
    """A thread that does one piece of work after another, and its bell: a row of numbers.

    To wake a thread that sleeps takes a system some ten microseconds, and a virtual machine a tenth of a
    millisecond: as long as the work that it is woken for. So a thread that waits for the next step looks at
    its bell for about that long, without Python's lock. It would also have to sleep if it were called while
    another thread holds that lock. So who has work rings the bell when it has let go of the lock, in compiled
    code (`ring`). Who has done some says so there too (`_stand_by`), and does not take the lock before the
    bell is rung again.
    """

    def __init__(self, bell: np.ndarray, looks: int) -> None:
        self._bell, self._looks, self._changed = bell, looks, threading.Condition()
        self._work: Callable[[np.ndarray], Any] | None = None
        self._found: Any = None
        self._failed: BaseException | None = None
        # A daemon: a fit that is given up, as in a generator that nobody closes, must not keep Python open.
        self._thread = threading.Thread(target=self._run, name="pymc_dpvi", daemon=True)
        self._thread.start()

    def give(self, work: Callable[[np.ndarray], Any] | None) -> None:
        """Lay some work down, for which the bell will be rung; None ends the thread."""
        self._work = work
        self._bell[_LAID_DOWN] += 1  # from now on it does not fall asleep
        if self._bell[_ASLEEP]:
            with self._changed:
                self._changed.notify_all()
        if work is None:
            ring(self._bell[None])

    def result(self) -> Any:
        """Wait until the work is done, and return what it returned, or raise what it raised."""
        ring(self._bell[None])  # if the work did not
        number = int(self._bell[_LAID_DOWN])
        if not _is_done(self._bell, number, self._looks):
            with self._changed:
                # Each time: the helper takes the flag back when it wakes the caller, for this or before.
                while not _is_done_before_sleep(self._bell, number):
                    self._changed.wait()
                self._bell[_CALLER_ASLEEP] = 0
        found, failed, self._found, self._failed = self._found, self._failed, None, None
        if failed is not None:
            raise failed
        return found

    def _run(self) -> None:
        number = 0
        while True:
            number = self._after(number)
            work, self._work = self._work, None
            if work is None:
                return
            try:
                with silence():  # a thread does not have the settings of the one that began it
                    self._found = work(NOBODY)
            except BaseException as error:
                self._failed = error
            work = None  # it holds a batch

    def _after(self, number: int) -> int:
        """Say that work `number` is done, wait for the next one, and return its number."""
        bell = self._bell
        while (seen := _stand_by(bell, number, self._looks)) != _RUNG:
            with self._changed:
                if seen == _CALLER_SLEEPS:
                    bell[_CALLER_ASLEEP] = 0
                    self._changed.notify_all()
                else:
                    _falls_asleep(bell)
                    self._changed.wait_for(lambda: bell[_LAID_DOWN] != number)
                    bell[_ASLEEP] = 0
        return int(bell[_RUNG_FOR])


def _end(helpers: Sequence[_Helper]) -> None:
    for helper in helpers:
        helper.give(None)


class Threads:
    """`cores` threads, begun when they are first needed, and ended with this object at the latest."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        #: How often one looks whether there is work: a core that looks may be another thread's.
        self.looks = _LOOKS if cores <= available_cores() else 1
        self._helpers: list[_Helper] = []
        self._bells = NOBODY

    def each(self, work: Callable[[np.ndarray], T], pieces: int) -> list[T]:
        """Let as many threads `work` as there are cores, and at most one a piece; return what they return.

        `work` is given bells, which it is to `ring` in compiled code, without Python's lock: then the others
        begin. It takes pieces until none is left. If one raises, so does this: when all have stopped, or at
        once if an interrupt ends the waiting. Then all threads are ended. The caller holds `silence`.
        """
        if self.cores > 1 and not self._helpers:
            self._begin_all()
        try:
            others = self._helpers[: max(0, pieces - 1)]
            for other in others:
                other.give(work)
            failed: BaseException | None = None
            results = []
            own: Callable[[], T] = partial(work, self._bells[: len(others)])
            for result in [own, *(other.result for other in others)]:
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
        helpers: list[_Helper] = []
        self._bells = np.zeros((self.cores - 1, _BELL), dtype=np.int64)
        try:
            for bell in self._bells:
                helpers.append(_Helper(bell, self.looks))
        except BaseException:  # such as no room for so many threads: those that wait would wait for ever
            _end(helpers)
            raise
        self._helpers = helpers
        # At the end of Python they end by themselves, as daemons.
        weakref.finalize(self, _end, helpers).atexit = False

    def close(self) -> None:
        """End the threads; later work begins new ones."""
        helpers, self._helpers = self._helpers, []
        _end(helpers)
        helpers.clear()
