"""The sources of all record arrays of a model, checked against its template.

The model of a fit with ``DPADVI(records=...)`` is written on a few made-up rows, the *template*, and all
checks of models see these. The records are in sources, one for each record array. Here it is checked that
these fit together, before anything is spent, and rows of all of them are read.

What it must never do: let the text of a source's exception, which may quote values, into an error; tell how
many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pymc_dpvi.engine.cluster import Cluster
from pymc_dpvi.engine.source_units import BY_NAME, Unread, units_of
from pymc_dpvi.engine.sources import Source, read_into, source_of
from pymc_dpvi.errors import ArgumentError, RecordSourceError
from pymc_dpvi.graph.amortized import Numbers
from pymc_dpvi.graph.model_checks import array_name
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import array_value
from pymc_dpvi.graph.units import Units
from pymc_dpvi.redaction import LEFT_OUT, shielded

__all__ = ["SourceRecords", "source_records"]

#: Bytes that are read from a source in one go; what comes is copied into a buffer, and converted.
_READ_BYTES = 1 << 23


class SourceRecords:
    """The rows of all record arrays, in sources.

    Parameters
    ----------
    names : sequence of str
        Of the record arrays, in the order of ``RecordModel.arrays``.
    sources : sequence of Source
    dtypes : sequence of dtype
        Those of the template's arrays.
    units : Units, optional
        Whose the rows are.
    """

    def __init__(
        self,
        names: Sequence[str],
        sources: Sequence[Source],
        dtypes: Sequence[np.dtype],
        units: Units | None = None,
    ) -> None:
        self.units = units
        self._names, self._sources, self._dtypes = tuple(names), tuple(sources), tuple(dtypes)
        self.num_rows = sources[0].num_rows
        self._shapes = {name: source.row_shape for name, source in zip(names, sources, strict=True)}
        entries = [int(np.prod(s.row_shape, dtype=np.int64)) for s in sources]
        #: Bytes of a record in memory.
        self.row_bytes = sum(n * d.itemsize for n, d in zip(entries, self._dtypes, strict=True))
        self._at_once = [
            max(1, _READ_BYTES // max(1, n * s.dtype.itemsize)) for n, s in zip(entries, sources, strict=True)
        ]

    def check_unchanged(self) -> None:
        """Raise an ArgumentError if a source has another length, shape or type than at the start."""
        for name, source, dtype in zip(self._names, self._sources, self._dtypes, strict=True):
            length, shape, found = _ask(name, source)
            if length != self.num_rows or shape != self._shapes[name] or not _fits(found, dtype):
                raise ArgumentError(
                    f"records[{name!r}] has another length or type now than when the method was made, so "
                    "what was checked and accounted for holds no longer. Make a new DPADVI."
                )

    def read(self, indices: np.ndarray, stopped: Callable[[], bool] = bool) -> list[np.ndarray]:
        """Return the rows at `indices` of all arrays, in C order, with the types of the template.

        `indices` are ascending and all different. There is one row of zeros if there are none. If `stopped`
        says so, reading ends early, and what is returned has no meaning. A RecordSourceError, without the
        text of its cause, if a source raises or returns what it should not.
        """
        out = []
        for name, source, dtype, step in zip(
            self._names, self._sources, self._dtypes, self._at_once, strict=True
        ):
            rows = np.zeros((max(1, len(indices)), *source.row_shape), dtype=dtype)
            failure = ""
            for first in range(0, len(indices), step):
                if stopped():
                    return []
                part = indices[first : first + step]
                try:
                    with np.errstate(all="ignore"):  # of a lazy source, on a record
                        read_into(rows[first : first + len(part)], source, part)
                except Exception as error:  # raised below, so that it is not chained
                    failure = type(error).__name__
                if failure:
                    raise RecordSourceError(
                        f"records[{name!r}] raised {failure} while rows were read. What was planned has been "
                        f"charged. {LEFT_OUT}"
                    )
            out.append(rows)
        return out


def _fits(found: np.dtype, wanted: np.dtype) -> bool:
    return found.kind in "biuf" and np.can_cast(found, wanted, "safe")


def _ask(name: str, source: Source) -> tuple[int, tuple[int, ...], np.dtype]:
    """Return the source's length, the shape of a row and its type as they are now."""
    text = f"records[{name!r}] cannot be read: {{}} was raised."
    return shielded(lambda: (source.num_rows, source.row_shape, source.dtype), ArgumentError, text)


def source_records(record: RecordModel, records: Any, client: Any = None) -> SourceRecords | Cluster:
    """Return the sources of all record arrays, or raise an ArgumentError that says what to type instead.

    With `client`, no row is read here.
    """
    if not isinstance(records, Mapping) or not all(isinstance(name, str) for name in records):
        raise ArgumentError(
            f"records must be a dict of names and sources, such as {{'x': np.load('x.npy', mmap_mode='r')}}; "
            f"found a {type(records).__name__}."
        )
    numbers = {} if record.encoded is None else record.encoded.numbers
    named = {_name(record.model, array): array for array in record.arrays if array not in numbers}
    ids = _name_of_ids(record)
    if ids is not None and record.units is not None:
        named[ids] = record.units.source
    if missing := [name for name in named if name not in records]:
        raise ArgumentError(
            f"records lacks {_listed(missing)}: the model has no rows of its own but made-up ones, so every "
            f"array of records needs a source. Say records={{{missing[0]!r}: ...}}. If it holds no records "
            "and has as many rows as the template by chance, give the template another number of rows."
        )
    if extra := sorted(set(records) - set(named)):
        raise ArgumentError(
            f"records names {_listed(extra)}, which is no array of records of the model; these are "
            f"{_listed(list(named))}."
        )
    sources = _checked(record, named, records, ids)
    dtypes = [array_value(array).dtype for array in named.values()]
    if client is not None:
        return Cluster(client, {name: records[name] for name in named}, dtypes)
    units = None
    if ids is not None and record.units is not None:
        units = units_of(ids, sources[ids], record.units)
        sources[ids] = Unread(sources[ids], array_value(named[ids]).dtype)
    length = next(iter(sources.values())).num_rows
    by_array: dict[Variable, Source] = {named[name]: source for name, source in sources.items()}
    by_array.update((a, OwnNumbers(own, length, array_value(a).dtype)) for a, own in numbers.items())
    made = SourceRecords(
        [str(a.name) if a in numbers else _name(record.model, a) for a in record.arrays],
        [by_array[a] for a in record.arrays],
        [array_value(a).dtype for a in record.arrays],
        units,
    )
    _rehearse(made)
    return made


def _checked(
    record: RecordModel, named: Mapping[str, Any], records: Mapping[str, Any], ids: str | None
) -> dict[str, Source]:
    """Return the sources by name, of one length and of the template's types; ids may be of any."""
    sources = {name: _source(name, records[name]) for name in named}
    for name, source in sources.items():
        if name != ids:
            row = record.rows[record.arrays.index(named[name])]
            _check(name, source, row, array_value(named[name]).dtype)
    first = next(iter(sources))
    for name, source in sources.items():
        if source.num_rows != sources[first].num_rows:
            raise ArgumentError(
                f"records[{first!r}] and records[{name!r}] have different lengths. Row i of all of them is "
                "record i: bring them to one length."
            )
    if sources[first].num_rows < 2:
        raise ArgumentError(
            f"records[{first!r}] has fewer than two rows. There is nothing to learn privately from one."
        )
    return sources


def _name_of_ids(record: RecordModel) -> str | None:
    """Return the name by which `records` gives the ids of persons, if records are persons."""
    if record.units is None:
        return None
    if record.units.source is None:
        raise ArgumentError(BY_NAME)
    return str(record.units.source.name)


class OwnNumbers:
    """A source of the uniform numbers that an encoder gives to records: they are made when they are read."""

    def __init__(self, numbers: Numbers, num_rows: int, dtype: np.dtype) -> None:
        self._numbers, self.num_rows, self.dtype = numbers, num_rows, dtype
        self.row_shape = (numbers.size,)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbers of the records at `indices`."""
        return self._numbers.of(indices).astype(self.dtype)


def _rehearse(sources: SourceRecords) -> None:
    """Read one record, in a thread as a fit does: what cannot work fails before anything is spent."""
    failed = ""
    with ThreadPoolExecutor(1) as reader:
        try:
            reader.submit(sources.read, np.zeros(1, dtype=np.int64)).result()
        except RecordSourceError as error:  # raised below, so that it is not chained
            failed = str(error).partition(" What was planned")[0]
    if failed:
        raise ArgumentError(f"{failed} Rows are read in a thread of their own. Nothing is spent.")


def _name(model: pm.Model, array: Variable) -> str:
    """Return the name by which `records` may give the array; raise if it has none."""
    if array.name is not None and model.named_vars.get(array.name) is array:
        return str(array.name)
    observed = [str(rv.name) for rv in model.observed_RVs if model.rvs_to_values[rv] is array]
    if observed:
        return observed[0]
    raise ArgumentError(
        f"{array_name(model, array)} has a row for each row of the template, and is none that records= can "
        "give rows to: it is written into the model. Wrap it as pm.Data('x', ...), and name it in records=."
    )


def _source(name: str, given: Any) -> Source:
    try:
        return shielded(
            lambda: source_of(given), ArgumentError, "{} was raised when its shape and type were looked up"
        )
    except ArgumentError as error:
        reason = str(error)
    raise ArgumentError(f"records[{name!r}] is no source of records: {reason}.")


def _check(name: str, source: Source, row: Any, dtype: np.dtype) -> None:
    """Raise unless the source has rows of the template's shape, and entries that become its type safely."""
    _, shape, found = _ask(name, source)
    wanted = tuple(row.type.shape[1:])
    if shape != wanted:
        raise ArgumentError(
            f"records[{name!r}] has rows of shape {shape}, and those of the template have shape {wanted}. "
            "Write the template with rows as they are in the source."
        )
    if not _fits(found, dtype):
        is_number = found.kind in "biufc"
        kind = f"numbers of type {found.name}" if is_number else f"entries of type {found.type.__name__}"
        raise ArgumentError(
            f"records[{name!r}] has {kind}, which do not all fit into the template's {dtype}. Write the "
            f"template with that type, or store the records as {dtype}."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
