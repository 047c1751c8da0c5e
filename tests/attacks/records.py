"""Hostile records: what a person might put into their own row, by the types of a model's arrays.

A record is given as one row for each record array. From an ordinary record are made, for each value that the
type of an entry can hold (`VALUES`),

* the record with that value in one entry, for each entry of each array (a few of a wide one): so the outcome
  alone, a predictor alone, an index alone, an exponent alone;
* the record with the value in all entries of its kind at once, and in all arrays but one;
* and a few hundred drawn ones: two entries, or all of them, with a value each.

Integers have the numbers that overflow, underflow or never end where they are an exponent, a lag, a shape or
a number of trials, the neighbours of powers of two, the limits of their type, and what lies just outside of
the range of the column, which is an index there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Hostile", "few", "hostile_records", "values"]

_TINY = float(np.finfo(np.float64).tiny)
_HUGE = float(np.finfo(np.float64).max)
FLOATS: tuple[float, ...] = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, _TINY, 1e-300, -1e-300, 1e-160, 1e-8),
    *(0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1.0 + 2.0**-52, 1.0 - 2.0**-53, -0.9999999999999999, 37.5),
    *(171.7, 745.2, -745.2, 1100.0, -1100.0, 5000.0, -5000.0, 1e8, -1e8, 2.0**31, 2.0**53, 1e15, -1e15),
    *(2.0**63, -(2.0**63), 1e40, 1e77, 1e154, -1e154, 1e300, -1e300, _HUGE, -_HUGE),
)
INTEGERS: tuple[int, ...] = (
    *(0, 1, -1, 2, -2, 3, -3, 5, 50, 170, -170, 1100, -1100, 5000, -5000, 10**6, -(10**9), 10**15, -(10**15)),
    *(s * (2**k + d) for k in (7, 8, 15, 16, 31, 32, 53, 62) for s in (1, -1) for d in (-1, 0, 1)),
    *(2**63 - 1, -(2**63), -(2**63) + 1, 2**64 - 1),
)
#: Entries of one array that get all values; of a wider one the first, the last and some between.
_ENTRIES = 4
_PAIRS, _DRAWN = 96, 32
#: Values that cancel in a sum, as far as the row goes.
_CANCEL = (2.0**90, -(2.0**90), 1e6, 2.0**60)


@dataclass(frozen=True)
class Hostile:
    """One hostile record.

    Attributes
    ----------
    name : str
        What is wrong with it. The numbers in it are the attacker's own, never those of other records.
    rows : tuple of ndarray
        One row for each array, without the axis of the records.
    """

    name: str
    rows: tuple[np.ndarray, ...]


def values(column: np.ndarray) -> list[Any]:
    """Return the hostile values of a column, of its own type.

    Parameters
    ----------
    column : ndarray
        The entries of all records: an index just outside of their range is hostile too.
    """
    dtype = column.dtype
    if dtype.kind == "b":
        return [dtype.type(False), dtype.type(True)]
    if dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            return [dtype.type(v) for v in FLOATS]
    if dtype.kind not in "iu":
        return []
    most = int(column.max()) if column.size else 0
    limits = np.iinfo(dtype)
    near = (most + 1, most + 2, -most - 1, -most - 2, int(limits.max), int(limits.min))
    inside = (v for v in dict.fromkeys((*INTEGERS, *near)) if limits.min <= v <= limits.max)
    return [dtype.type(v) for v in inside]


def hostile_records(arrays: Sequence[np.ndarray], names: Sequence[str], place: int) -> list[Hostile]:
    """Return what the record at `place` may be turned into.

    Parameters
    ----------
    arrays : sequence of ndarray
        The record arrays, the first axis that of the records.
    names : sequence of str
        Theirs, for what is reported.
    place : int
        Which record is changed.
    """
    made = [*_single(arrays, names, place), *_together(arrays, names, place), *_drawn(arrays, names, place)]
    unlike: dict[bytes, Hostile] = {}
    for one in made:
        unlike.setdefault(b"|".join(r.tobytes() for r in one.rows), one)
    own = b"|".join(a[place].tobytes() for a in arrays)
    return [one for key, one in unlike.items() if key != own]


def few(hostile: Sequence[Hostile], most: int = 6) -> list[Hostile]:
    """Return some of the hostile records, for what takes long: those that are wrong throughout first."""
    wanted = ("all = nan", "all = -inf", "all = -5000.0", "all = 1e+300", "all = -1.0")
    first = [h for w in wanted for h in hostile if h.name == w][: (most + 1) // 2]
    rest = [h for h in hostile if h.name not in wanted]
    return [*first, *rest[:: max(1, len(rest) // max(1, most - len(first)))]][:most]


def _entries(row_size: int) -> list[int]:
    if row_size <= _ENTRIES:
        return list(range(row_size))
    return sorted({0, 1, row_size // 2, row_size - 1})


def _spots(arrays: Sequence[np.ndarray]) -> list[tuple[int, int, list[Any]]]:
    """Return array, entry and hostile values of each entry that is changed."""
    return [
        (k, entry, values(a.reshape(len(a), -1)[:, entry]))
        for k, a in enumerate(arrays)
        for entry in _entries(a[0].size)
    ]


def _copy(arrays: Sequence[np.ndarray], place: int) -> list[np.ndarray]:
    return [np.array(a[place]) for a in arrays]


def _put(row: np.ndarray, entry: int, value: Any) -> None:
    row.reshape(-1)[entry] = value


def _where(names: Sequence[str], k: int, entry: int, row: np.ndarray) -> str:
    return names[k] if row.size == 1 else f"{names[k]}[{entry}]"


def _single(arrays: Sequence[np.ndarray], names: Sequence[str], place: int) -> Iterator[Hostile]:
    for k, entry, hostile in _spots(arrays):
        for value in hostile:
            rows = _copy(arrays, place)
            _put(rows[k], entry, value)
            yield Hostile(f"{_where(names, k, entry, rows[k])} = {_shown(value)}", tuple(rows))


def _together(arrays: Sequence[np.ndarray], names: Sequence[str], place: int) -> Iterator[Hostile]:
    """Yield one value throughout, in all arrays and in all but one; and numbers that cancel."""
    for value in FLOATS:
        for kept in (None, *range(len(arrays))) if len(arrays) > 1 else (None,):
            rows = _copy(arrays, place)
            for k, row in enumerate(rows):
                if k != kept:
                    row[...] = _as_type(value, row.dtype)
            yield Hostile(
                f"all = {_shown(value)}" + ("" if kept is None else f" but {names[kept]}"), tuple(rows)
            )
    for k, array in enumerate(arrays):
        size = array[0].size
        if array.dtype.kind == "f" and size > 2:
            for shift in range(3):
                rows = _copy(arrays, place)
                with np.errstate(over="ignore"):
                    rows[k][...] = np.resize(np.roll(_CANCEL, shift), size).reshape(rows[k].shape)
                yield Hostile(f"{names[k]} cancels, {shift}", tuple(rows))


def _drawn(arrays: Sequence[np.ndarray], names: Sequence[str], place: int) -> Iterator[Hostile]:
    """Yield two entries with a hostile value each, and records in which every entry has one."""
    rng = np.random.default_rng(sum(a[0].size for a in arrays))
    spots = _spots(arrays)
    for number in range(_PAIRS if len(spots) > 1 else 0):
        rows, said = _copy(arrays, place), []
        for pick in rng.choice(len(spots), size=2, replace=False):
            k, entry, hostile = spots[pick]
            value = hostile[rng.integers(len(hostile))]
            _put(rows[k], entry, value)
            said.append(f"{_where(names, k, entry, rows[k])} = {_shown(value)}")
        yield Hostile(f"pair {number}: {', '.join(said)}", tuple(rows))
    for number in range(_DRAWN):
        rows = _copy(arrays, place)
        for k, row in enumerate(rows):
            hostile = values(arrays[k])
            for entry in range(row.size):
                _put(row, entry, hostile[rng.integers(len(hostile))])
        yield Hostile(f"drawn {number}", tuple(rows))


def _shown(value: Any) -> str:
    """Return a number so that no other one is written alike."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def _as_type(value: float, dtype: np.dtype) -> Any:
    """Return a float as what comes closest to its purpose in another type."""
    if dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            return dtype.type(value)
    if dtype.kind == "b":
        return dtype.type(value > 0)
    limits = np.iinfo(dtype)
    if np.isnan(value):
        return dtype.type(limits.max)
    inside = value if np.isinf(value) else int(value)
    return dtype.type(limits.max if value >= limits.max else limits.min if value <= limits.min else inside)
