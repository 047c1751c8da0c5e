"""The attacks, as streams of findings.

`attack_rows` puts each hostile record into a piece of ordinary ones, in one compiled function: whether that
raises, warns or prints, whether the other records' gradients are the same bit by bit, whether the record's
own share is finite and within the bound, and how long it takes.

`attack_fits` builds the model anew for a few hostile records, and without a record, and compares `outlets`:
everything that leaves a fit. It also compares the other records' gradients, so that what a user computes from
the data in Python is seen where it enters other records' terms.

Each yields a `Begun` before a call that may not end, for whoever watches, and a `Finding` where something
differs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.outlets import difference, listening, outlets_of
from attacks.records import Hostile, few, hostile_records
from attacks.shares import CLIP, RowsOfPersons, Shares, alike
from attacks.subjects import PLACE, Subject
from pymc_dpvi.errors import ArgumentError, PrivacyError

__all__ = ["COMPILING", "EVALUATING", "Begun", "Finding", "Refused", "attack_fits", "attack_rows"]

#: Seconds that a call may take: one that compiles, and one that does not.
COMPILING, EVALUATING = 600.0, 10.0
#: Seconds that a piece of records may take beyond five times what ordinary ones take, at the best of three.
SLOW = 1.0
#: Seconds for all hostile records together, beyond which only some are taken: of slow models in Python.
_TOGETHER = 100.0


@dataclass(frozen=True)
class Begun:
    """A call begins that should end within some seconds."""

    record: str
    limit: float


@dataclass(frozen=True)
class Finding:
    """Something that one record changes and may not change."""

    subject: str
    backend: str
    record: str
    what: str

    def __str__(self) -> str:
        return f"{self.subject} [{self.backend}] {self.record}: {self.what}"


@dataclass(frozen=True)
class Refused:
    """The model is refused at the ordinary data: there is nothing to attack."""

    reason: str


Event = Begun | Finding | Refused


def attack_rows(subject: Subject, backend: str, skip: int = 0) -> Iterator[Event]:
    """Attack the rows of a step with every hostile record.

    Parameters
    ----------
    subject : Subject
    backend : str
        As of `Shares`.
    skip : int
        Hostile records to leave out, of the first: where an attack goes on that had to be killed.
    """
    with subject.flags():
        yield Begun("nothing yet: it compiles", COMPILING)
        try:
            model = subject.neighbour(None)
        except (NotImplementedError, TypeError, ValueError) as error:
            yield Refused(f"no model: {type(error).__name__}")
            return
        try:
            record = subject.split(model)
            shares = (Shares if record.local is None else RowsOfPersons)(record, backend)
        except (PrivacyError, NotImplementedError) as error:  # the latter is PyTensor's, of what JAX has not
            yield Refused(type(error).__name__)
            return
        whole = [np.asarray(a.get_value(borrow=True)) for a in record.data()]
        names = [a.name or f"array {k}" for k, a in enumerate(record.arrays)]
        ordinary = [np.resize(a, (shares.piece, *a.shape[1:])) for a in whole]
        place = shares.piece // 2 + 1
        others = np.delete(np.arange(shares.piece), place)
        with listening() as heard:
            try:
                clean = [shares.gradients(ordinary, point) for point in shares.points]
            except (AttributeError, NameError):  # a mistake, which would be the same for every record
                raise
            except Exception as error:
                yield Refused(f"{type(error).__name__} on ordinary records")
                return
            for gradients in clean:  # numba compiles the kernel here
                shares.release(gradients)
            usual = min(_seconds(shares, ordinary, point) for point in shares.points)
        said = set(heard)
        made = hostile_records(ordinary, names, place)
        made = made[:: 1 + int(len(made) * len(shares.points) * usual / _TOGETHER)]
        for hostile in made[skip:]:
            yield Begun(hostile.name, EVALUATING)
            rows = [a.copy() for a in ordinary]
            for array, row in zip(rows, hostile.rows, strict=True):
                array[place] = row
            for point in shares.points:
                with listening() as heard:
                    what = _of_piece(shares, rows, point, clean[point], place, others, usual)
                what += [f"it says {text}" for text in sorted(set(heard) - said)]
                for one in what:
                    yield Finding(subject.name, backend, hostile.name, one)
                if what:
                    break


def _of_piece(
    shares: Shares,
    rows: Sequence[np.ndarray],
    point: int,
    clean: Sequence[np.ndarray],
    place: int,
    others: np.ndarray,
    usual: float,
) -> list[str]:
    """Compare one piece with the ordinary one."""
    started = time.perf_counter()
    try:
        found = shares.gradients(rows, point)
    except Exception as error:
        return [f"it raises {type(error).__name__}"]
    taken = time.perf_counter() - started
    most = 5 * usual + SLOW
    if taken > most and min(_seconds(shares, rows, point) for _ in range(2)) > most:
        return [f"it takes more than {SLOW:g} seconds longer"]
    what = []
    for k, (new, old) in enumerate(zip(found, clean, strict=True)):
        if len(new) == 1 == len(old):  # the same for all records
            continue
        if new.shape != old.shape or new.dtype != old.dtype:
            return [f"shape or type of array {k} differ"]
        if not alike(new[others], old[others]):
            moved = sum(not alike(a, b) for a, b in zip(new[others], old[others], strict=True))
            what.append(f"it moves the gradients of {moved} other records")
    share = shares.release([a if len(a) == 1 else a[place : place + 1] for a in found])
    if not np.isfinite(share).all():
        what.append("its share is not finite")
    elif np.linalg.norm(share) > CLIP * (1 + 1e-9):
        what.append("its share is above the bound")
    return what


def _seconds(shares: Shares, rows: Sequence[np.ndarray], point: int) -> float:
    started = time.perf_counter()
    shares.gradients(rows, point)
    return time.perf_counter() - started


def attack_fits(subject: Subject, backend: str, skip: int = 0, most: int = 6) -> Iterator[Event]:
    """Compare all that leaves a fit, at a few hostile records and without a record.

    Parameters
    ----------
    subject, backend, skip
        As of `attack_rows`.
    most : int
        Number of hostile records.
    """
    with subject.flags():
        yield Begun("nothing yet: ordinary records", COMPILING)
        clean = outlets_of(subject, subject.neighbour(None), backend)
        if "refused" in clean:
            yield Refused(clean["refused"])
        _refuse_mistakes(subject, clean)
        arrays, names = subject.arrays()
        hostile_ones = [h for h in hostile_records(arrays, names, PLACE) if subject.may_hold(h.rows)]
        cases: list[Hostile | None] = [*few(hostile_ones, most), None]
        shares = None if "refused" in clean else _others(subject, None, arrays)
        for number, hostile in enumerate(cases):
            if number < skip:
                continue
            label = "the record is taken away" if hostile is None else hostile.name
            yield Begun(label, COMPILING)
            model = subject.without() if hostile is None else subject.neighbour(hostile.rows)
            if model is None:
                continue
            found = outlets_of(subject, model, backend)
            if hostile is None and ("refused" in clean) != ("refused" in found):
                continue  # whether another length is that of the records: docs/limitations.md
            for what in difference(clean, found):
                yield Finding(subject.name, backend, label, what)
            if hostile is not None and shares is not None and "refused" not in found:
                moved = _others(subject, hostile, arrays)
                if not all(map(alike, shares, moved)):
                    yield Finding(subject.name, backend, label, "it moves the gradients of other records")


def _refuse_mistakes(subject: Subject, clean: dict[str, Any]) -> None:
    """Raise if ordinary records are not fitted because of a mistake, of the package or of a plant.

    The error would be the same for every record, so that nothing would ever be found.
    """
    if "refused" in clean:
        with contextlib.suppress(PrivacyError):
            subject.split(subject.neighbour(None))  # with the exceptions as they are raised
            raise AssertionError(f"{subject.name} is refused, and no check refuses it: {clean['refused']}")
    elif clean["fit"] and not clean["fit"].startswith(ArgumentError.__name__):  # as on a backend that cannot
        raise AssertionError(f"{subject.name}: the fit of ordinary records raises {clean['fit']}")


def _others(subject: Subject, hostile: Hostile | None, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the gradients of all records but one, in the model of the data set with the hostile one.

    Nothing if they are persons' with values of their own, whose rows have none by themselves.
    """
    record = subject.split(subject.neighbour(None if hostile is None else hostile.rows))
    if record.local is not None:
        return []
    shares = Shares(record, "PYTHON")
    data = [np.asarray(a.get_value(borrow=True)) for a in record.data()]
    kept = [np.delete(a, PLACE, axis=0) for a in data]
    piece = [np.resize(a, (shares.piece, *a.shape[1:])) for a in kept]
    return [g for point in shares.points for g in shares.gradients(piece, point)]
