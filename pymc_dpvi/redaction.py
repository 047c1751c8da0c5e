"""Exceptions without records, as they leave the process in crash reports, notebooks and logs.

An exception can hold records in two places: in its text, if another package wrote it (PyTensor quotes the
inputs of the operation that failed), and in the local variables of the frames on its traceback, which crash
reporters and ``%debug`` show. :func:`shielded` replaces the exception by one of ours, which quotes nothing.
:func:`sealed` clears the local variables of library frames; the lines of the traceback stay. The caller's own
frames, callbacks among them, are left as they are. Both take its text from a MemoryError: NumPy's tells the
shape of the array that it had no room for, and so how many records there are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from pymc_dpvi.errors import PrivacyError

__all__ = ["LEFT_OUT", "clear_locals", "sealed", "shielded"]

P = ParamSpec("P")
T = TypeVar("T")

#: Said of what ended a run, and may have come of a record.
LEFT_OUT = (
    "What it said is left out, as it may tell of the records. Keep to yourself that it came: a single record "
    "may be the cause."
)
#: Said in place of what a MemoryError says.
_NO_ROOM = "There is not enough memory. How much was asked for is left out."
#: Packages whose frames are cleared; all others are the caller's.
_LIBRARIES = frozenset(
    {
        "arviz",
        "arviz_base",
        "contextlib",
        "dp_accounting",
        "functools",
        "numba",
        "numpy",
        "pymc",
        "pymc_dpvi",
        "pytensor",
        "scipy",
        "xarray",
    }
)


def _with_causes(error: BaseException) -> list[BaseException]:
    """Return an error and all that are chained to it, each once."""
    todo, found = [error], list[BaseException]()
    while todo:
        this = todo.pop()
        if not any(this is other for other in found):
            found.append(this)
            todo += [e for e in (this.__cause__, this.__context__) if e is not None]
    return found


def clear_locals(error: BaseException) -> None:
    """Clear the local variables of library frames on the tracebacks of an error and of its causes.

    Frames that are still running stay as they are.
    """
    for this in _with_causes(error):
        for frame, _ in traceback.walk_tb(this.__traceback__):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if package in _LIBRARIES:
                with suppress(RuntimeError):  # it is still running
                    frame.clear()


def sealed(entry: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function to clear the frames of whatever it raises, and the text of a MemoryError."""

    @wraps(entry)
    def sealed_entry(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return entry(*args, **kwargs)
        except BaseException as error:
            del args, kwargs  # this frame is on the traceback too
            clear_locals(error)
            _cut_memory_errors(error)
            if not isinstance(error, MemoryError):
                raise
            no_room = MemoryError(_NO_ROOM).with_traceback(error.__traceback__)
        try:
            raise no_room  # here, so that it is not chained to the other
        finally:
            del no_room

    return sealed_entry


def _cut_memory_errors(error: BaseException) -> None:
    """Take MemoryErrors out of an error's causes."""
    for this in _with_causes(error):
        for link in ("__cause__", "__context__"):
            if isinstance(getattr(this, link), MemoryError):
                setattr(this, link, None)


def shielded(action: Callable[[], T], error: type[PrivacyError], message: str) -> T:
    """Run `action`; replace an exception of another package by `error`, which quotes nothing of it.

    `message` has ``{}`` for the name of the exception's type. PrivacyError passes. A MemoryError stays one,
    without its text, which may tell how many records there are.
    """
    failure, no_room = "", False
    try:
        return action()
    except PrivacyError:
        raise
    except MemoryError:  # raised below, so that it is not chained
        no_room = True
    except Exception as found:  # raised below, too
        failure = type(found).__name__
    if no_room:
        raise MemoryError(_NO_ROOM)
    raise error(message.format(failure))
