"""Ids of several tables: equal ids are one person, whichever tables they are in.

The tables come from several files as a rule. A person whose id is kept or spelled otherwise in one of them
would be two people, each protected at a part of what is accounted for. Where that shows, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytensor

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.units import Ids, Units, codes_of, is_integer

__all__ = ["units_of_tables"]


def units_of_tables(
    tables: Sequence[tuple[tuple[str, ...], Ids]], max_rows: int | None
) -> tuple[Units, np.ndarray]:
    """Return whose the rows of all tables are, and the number of each row's person, (rows,).

    `tables` have names of observed variables and the ids of their rows.
    """
    ids = [i for _, i in tables]
    given = [i.values.to_numpy() if hasattr(i.values, "to_numpy") else i.values for i in ids]
    if not all(isinstance(values, np.ndarray) and values.dtype.kind == "i" for values in given):
        # Of signed and unsigned integers NumPy makes floats, and of integers and strings strings.
        given = [_objects(values) for values in given]
    in_model = [i.source for i in ids if i.source is not None]
    if in_model:
        _refuse_wrapped([values for i, values in zip(ids, given, strict=True) if i.source is None])
    _refuse_spellings({i for values in given for i in values.tolist() if isinstance(i, str)})
    names = [i.dim if i.source is None else i.source.name for i in ids]
    words = "the same id in unit="
    if None not in names:
        named = zip(names, tables, strict=True)
        parts = [f"'{name}' of {', '.join(map(repr, terms))}" for name, (terms, _) in named]
        words = f"the same id ({'; '.join(parts)})"
    rows = np.concatenate(given)
    codes = codes_of(rows, words, rows.size)
    source = pytensor.shared(codes, name=str(in_model[0].name)) if in_model else None
    return Units.by_codes(codes, words, max_rows, source=source, ids=tuple(ids)), codes


def _objects(ids: Any) -> np.ndarray:
    out = np.empty(len(ids), dtype=object)
    out[:] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return out


def _refuse_wrapped(outside: Sequence[np.ndarray]) -> None:
    """Raise if there are ids that a ``pm.Data`` of another table cannot hold."""
    if any(is_integer(i) and abs(int(i)) >= 2**31 for ids in outside for i in ids.tolist()):
        raise ArgumentError(
            "unit has ids beyond 2³¹ for one table, and a pm.Data of ids for another. PyMC keeps the "
            "integers of a pm.Data in 32 bits, in which larger ones are others. Give the ids of all "
            "tables as arrays, unit={'cost': ids, ...}."
        )


def _refuse_spellings(ids: Iterable[str]) -> None:
    """Raise if there are ids that may be two spellings of one."""
    spelled: dict[str, str] = {}
    for i in ids:
        plain = i.strip(" \t\r\n\0")
        if plain[:1].isdigit():
            plain = plain.removesuffix(".0").lstrip("0") or "0"
        if spelled.setdefault(plain, i) != i:
            raise ArgumentError(
                "unit has ids that differ only by spaces, by zeros at the front or by '.0' at the end. In "
                "several tables they are easily one person's, and would be two people's. Spell the ids of "
                "all tables in one way, where the files are read."
            )
