"""Exceptions leave the process too: in a crash report, a notebook, a debugger's log.

Two things of an exception can hold records without being written by this package: the text of somebody
else's exception (PyTensor quotes the inputs of the operation that failed), and the local variables of
the frames on its traceback, which crash reporters and ``%debug`` show. :func:`shielded` replaces the
first by an error of ours that quotes nothing; :func:`sealed` empties the second. The lines of the
traceback stay. The caller's own frames, callbacks among them, are left as they are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from pymc_dpvi.errors import PrivacyError

__all__ = ["clear_locals", "sealed", "shielded"]

P = ParamSpec("P")
T = TypeVar("T")

#: Packages whose frames are emptied; all others are the caller's.
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


def clear_locals(error: BaseException) -> None:
    """Empty the local variables of library frames on the tracebacks of an error and of its causes.

    Frames that are still running stay as they are.
    """
    todo, seen = [error], set()
    while todo:
        this = todo.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        todo += [e for e in (this.__cause__, this.__context__) if e is not None]
        for frame, _ in traceback.walk_tb(this.__traceback__):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if package in _LIBRARIES:
                with suppress(RuntimeError):  # it is still running
                    frame.clear()


def sealed(entry: Callable[P, T]) -> Callable[P, T]:
    """Make a function of the package's surface empty the frames of whatever it raises."""

    @wraps(entry)
    def sealed_entry(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return entry(*args, **kwargs)
        except BaseException as error:
            del args, kwargs  # this frame is on the traceback too
            clear_locals(error)
            raise

    return sealed_entry


def shielded(action: Callable[[], T], error: type[PrivacyError], message: str) -> T:
    """Run `action`; replace an exception of another package by `error`, which quotes nothing of it.

    `message` has ``{}`` where the name of the exception's type goes. PrivacyError passes, and so does
    MemoryError: it quotes sizes only.
    """
    failure = ""
    try:
        return action()
    except (PrivacyError, MemoryError):
        raise
    except Exception as found:  # raised below, so that it is not chained
        failure = type(found).__name__
    raise error(message.format(failure))
