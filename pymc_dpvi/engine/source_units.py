"""Whose the records in sources are: ``DPADVI(unit="person", records={"person": ids, ...})``.

The ids are read once, whole, when the method is made: eight bytes for each row stay in memory, and as many
for each person. The template has made-up ids, by which the checks of models go. The numbers of rows of a
batch's persons are known before a row is read, so persons in sources are the persons in memory, bit by bit.

What it must never do: let an id, the number of persons or of anybody's rows into an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc_dpvi.engine.sources import Source, parts_of
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.units import Units, codes_of, is_integer
from pymc_dpvi.redaction import shielded

__all__ = ["BY_NAME", "Unread", "units_of"]

#: Said of ids that are no ``pm.Data``.
BY_NAME = (
    "unit= with records= must be the name of a pm.Data of the template, with made-up ids, and records= gives "
    "the ids by that name: unit='person', records={'person': ids, ...}."
)

#: Ids that are read in one go.
_AT_ONCE = 1 << 20
#: What becomes of a missing id where it is made text.
_MISSING = frozenset({"nan", "NaN", "None", "<NA>", "NaT"})


class Unread:
    """A source whose rows no step needs, the ids: they are zeros of the template's type."""

    row_shape: tuple[int, ...] = ()

    def __init__(self, ids: Source, dtype: np.dtype) -> None:
        self._ids, self.dtype = ids, dtype

    @property
    def num_rows(self) -> int:
        """How many ids there are now."""
        return self._ids.num_rows

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros(len(indices), dtype=self.dtype)


def units_of(name: str, source: Source, template: Units) -> Units:
    """Return the rows of each person, by the ids in `source`; `template` has those of the made-up rows."""
    length = source.num_rows

    if source.row_shape:
        raise ArgumentError(f"records[{name!r}] must have one id for each row; found rows of another shape.")

    def codes_in_source() -> np.ndarray | None:
        try:
            parts: list[np.ndarray] = []
            for first in range(0, length, _AT_ONCE):
                rows = np.arange(first, min(first + _AT_ONCE, length))
                # Ids are compared exactly: of floats among them no whole number is made.
                parts += parts_of(source, rows)
            return codes_of(_joined(name, parts, source.dtype), template.words, length)
        except MemoryError:  # its text tells how many rows there are; raised below, not chained
            return None

    text = f"records[{name!r}] cannot be read: {{}} was raised. Nothing is spent."
    codes = shielded(codes_in_source, ArgumentError, text)
    if codes is None:
        raise ArgumentError(
            f"There is no room in memory for the ids in records[{name!r}]: 8 bytes for each row, and as much "
            "again while they are sorted. Nothing is spent."
        )
    return Units.by_codes(codes, template.words, template.max_rows, source=template.source, ids=template.ids)


def _joined(name: str, parts: Sequence[np.ndarray], promised: np.dtype) -> np.ndarray:
    """Put parts of the ids together, if all of them are what the source says: integers, or strings.

    A part whose type was inferred turns on one id: with a word among them, whole numbers are read as text,
    where 001 is not 1. NumPy would make text of the other parts too.
    """
    integers = promised.kind not in "UO"
    wanted = "integers" if integers else "strings"
    of_one_type = promised.kind in "iuUO" and all(_are(part, integers) for part in parts)
    if not of_one_type or (not integers and _were_floats(parts)):
        raise ArgumentError(
            f"records[{name!r}] has ids of the type {promised}, which must be integers or strings. Some part "
            f"holds others than {wanted}, or rows without an id. Drop these rows, and give all ids one type "
            f"where the file is read, as by pandas.read_csv(..., dtype={{{name!r}: str}}). Later is too "
            "late: to .astype(str), 1 and 1.0 are two persons."
        )
    parts = [np.asarray(part) for part in parts]
    if len({part.dtype.kind for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]  # of signed and unsigned, NumPy makes floats
    return np.concatenate(parts)


def _were_floats(parts: Sequence[np.ndarray]) -> bool:
    """Whether "1" and "1.0" are ids: of whole numbers made text, where a missing one had made some floats."""
    ids = {i for part in parts for i in part.tolist()}
    return any(i.endswith(".0") and i[:-2] in ids for i in ids)


def _are(ids: np.ndarray, integers: bool) -> bool:
    """Whether all ids of a part are there, and are integers, or all strings."""
    if np.ma.is_masked(ids) or ids.dtype.kind not in ("iuO" if integers else "UO"):
        return False
    if ids.dtype.kind in "iu":
        return True
    if integers:
        return all(map(is_integer, ids))
    return all(isinstance(i, str) and i not in _MISSING for i in ids)
