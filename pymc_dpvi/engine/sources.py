"""Sources of records: arrays that are too large for memory, read row by row.

In: what a user gave for a record array, such as a memory map or a file's data set. Out: a :class:`Source`,
which has a length, the shape and type of a row, and `rows`, which reads those that are asked for. A package
that reads files is known by what its objects look like, and is never imported from here.

=============================================  ===========================================================
given                                          how rows are read
=============================================  ===========================================================
``numpy.ndarray``, ``numpy.memmap``            one by one; the operating system reads pages
zarr array (2 and 3)                           by ``oindex``: the chunks that hold them
``pyarrow.ChunkedArray``, ``Array``            one by one, if the file is memory mapped; a list array of one
                                               length has rows of that length
``pyarrow.Table``                              as above; its columns are the columns of a matrix
``(ParquetFile, names)``                       one row group at a time, and only those that hold some
dask array, ``xarray.DataArray`` on one        block by block, computed in the calling thread
``xarray.DataArray``                           what it selects is computed, in the calling thread
h5py data set, any object with shape, dtype    by ``given[indices]``
=============================================  ===========================================================

What it must never do: read all of a source, keep rows that it has read, or tell of a value or of a number of
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from importlib import import_module
from itertools import pairwise
from numbers import Real
from typing import Any, Protocol

import numpy as np

from pymc_dpvi.errors import ArgumentError

__all__ = ["Source", "in_type", "parts_of", "read_into", "source_of"]


class Source(Protocol):
    """An array of records that can be read by rows."""

    @property
    def num_rows(self) -> int:
        """How many rows there are now."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row, without the leading axis."""

    @property
    def dtype(self) -> np.dtype:
        """The type of an entry."""

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows at `indices`: int64, ascending, all different, and at least one.

        Their type may be another one than `dtype`, and some entries masked.
        """


def in_type(found: Any, dtype: np.dtype) -> np.ndarray:
    """Return what a source gave in the model's type, entry by entry, whatever is beside it.

    The type of a part of a lazy array may turn on one record: pandas reads whole numbers with a gap as
    floats, and truth values with a gap as objects. The other entries are the same in the model's type. A
    gap, masked or not, is NaN; in a type without NaN it is the least number, and so is what the type does not
    hold. A TypeError for text, dates and complex numbers: one word makes text of a whole column, and only
    who read the file knows which numbers the others would have been.
    """
    array = found if isinstance(found, np.ma.MaskedArray) else np.asarray(found)
    plain, masked = np.asarray(array), np.ma.getmaskarray(array) if np.ma.is_masked(array) else None
    if plain.dtype.kind == "O":
        out = np.empty(plain.shape, dtype)
        for place in np.ndindex(plain.shape):
            hidden = masked is not None and masked[place]
            out[place] = in_type(np.nan if hidden else _number(plain[place]), dtype)
        return out
    if plain.dtype.kind not in "biuf":
        raise TypeError("no real numbers")
    if plain.dtype == dtype and masked is None:
        return plain
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            out, least = plain.astype(np.float64).astype(dtype), np.nan
        else:
            out, least = plain.astype(dtype), 0 if dtype.kind == "b" else np.iinfo(dtype).min
            out[~_holds(dtype, plain)] = least
    if masked is not None:
        out[masked] = least
    return out


def _number(entry: Any) -> Any:
    """Return an object as one of NumPy's numbers, NaN if it says that something is missing."""
    if entry is None or entry is np.ma.masked or type(entry).__name__ in ("NAType", "NaTType"):
        return np.nan
    if not isinstance(entry, Real | Decimal | np.bool_):
        raise TypeError("no real numbers")
    number = np.asarray(entry)
    if number.dtype.kind != "O":
        return number
    try:
        return float(entry)  # a long whole number, a fraction or a Decimal
    except OverflowError:
        return np.inf if entry > 0 else -np.inf  # type: ignore[operator]
    except ValueError:  # of a Decimal: a NaN that signals
        return np.nan


def _holds(dtype: np.dtype, array: np.ndarray) -> np.ndarray:
    """Say of each number whether a type of whole numbers, or of truth values, has it without its fraction."""
    if dtype.kind == "b":
        return ~np.isnan(array)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if array.dtype.kind == "f":  # low and high + 1 are powers of two
        exact = array.astype(np.float64)
        return (exact >= float(low)) & (exact < float(high + 1))
    if array.dtype.kind == "b":
        return np.ones(array.shape, np.bool_)
    own = np.iinfo(array.dtype)
    return (array >= max(low, int(own.min))) & (array <= min(high, int(own.max)))


class _Array:
    """What has shape, dtype and a way to read rows by their numbers."""

    def __init__(self, given: Any, read: Callable[[np.ndarray], Any]) -> None:
        self._given, self._read = given, read

    num_rows = property(lambda self: int(self._given.shape[0]))
    row_shape = property(lambda self: tuple(int(n) for n in self._given.shape[1:]))
    dtype = property(lambda self: np.dtype(self._given.dtype))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._read(indices)
        return found


def _by_part(
    bounds: np.ndarray, indices: np.ndarray, read: Callable[[int, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Read rows by part; part k begins at ``bounds[k]``, and `read` gets k and ascending places in it."""
    found = [read(k, places) for k, _, places in _parts_of(bounds, indices)]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _parts_of(bounds: np.ndarray, indices: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Say of each part that has some of ascending rows: its number, where they stand, their places in it."""
    parts = np.searchsorted(bounds, indices, side="right") - 1
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(indices)]
    for a, b in pairwise(cuts):
        yield int(parts[a]), slice(a, b), indices[a:b] - bounds[parts[a]]


class _Dask:
    """A dask array, read block by block.

    Dask gives rows that it reads together one type, that of the first block. Where the types of blocks turn
    on their entries, as pandas infers them, one record would change how all others are read.
    """

    def __init__(self, given: Any) -> None:
        if any(not float(n).is_integer() for lengths in given.chunks for n in lengths):
            raise ArgumentError("it has blocks of unknown length: call .compute_chunk_sizes() on it first")
        self.dtype = np.dtype(given.dtype)
        self.row_shape = tuple(int(n) for n in given.shape[1:])
        ends = np.cumsum([0, *given.chunks[0]])
        self.num_rows, self._bounds = int(ends[-1]), ends[:-1]
        self._chunks, self._blocks = given.chunks, given.to_delayed()

    def rows(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self.row_shape), dtype=self.dtype)
        self.read_into(out, indices)
        return out

    def read_into(self, out: np.ndarray, indices: np.ndarray) -> None:
        """Put rows into an array, in its type."""
        for place, part in self._read(indices):
            out[place] = in_type(part, out.dtype)

    def parts(self, indices: np.ndarray) -> list[np.ndarray]:
        """Return single numbers or words as they are, in the type of each block."""
        return [part for _, part in self._read(indices)]

    def _read(self, indices: np.ndarray) -> list[tuple[tuple[slice, ...], np.ndarray]]:
        """Compute the blocks that have some of the rows; say where in these rows each belongs.

        Blocks are made whole, and one is given up before the next is made.
        """
        dask = import_module("dask")
        picked = dask.delayed(_picked, pure=False, traverse=False)
        asked, places = [], []
        tails = [_slices(lengths) for lengths in self._chunks[1:]]
        for k, rows, own in _parts_of(self._bounds, indices):
            for tail in np.ndindex(*map(len, tails)):
                block = (k, *tail)
                shape = tuple(int(lengths[b]) for lengths, b in zip(self._chunks, block, strict=True))
                asked.append(picked(self._blocks[block], own, shape))
                places.append((rows, *(of_axis[t] for of_axis, t in zip(tails, tail, strict=True))))
        return list(zip(places, dask.compute(*asked, **_HERE), strict=True))


def _picked(block: Any, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return rows of a block, by their places, if it has as many as its array says.

    With a row too few or too many, the later ones would be other records'.
    """
    found = block if isinstance(block, np.ma.MaskedArray) else np.asarray(block)
    if found.shape != shape:
        raise TypeError("a block of another shape than its array says")
    return found[rows]


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Return where each of some pieces of an axis is."""
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *lengths]).tolist())]


class _Arrow:
    """A column of Arrow: a ChunkedArray of numbers, or of lists of one length."""

    def __init__(self, given: Any) -> None:
        self._chunks = list(given.chunks) if hasattr(given, "chunks") else [given]
        size = getattr(given.type, "list_size", None)
        self.row_shape: tuple[int, ...] = () if size is None else (int(size),)
        kind = given.type if size is None else given.type.value_type
        self.dtype = np.dtype(kind.to_pandas_dtype())
        missing = given.null_count and (self.dtype.kind != "f" or self.row_shape)
        # `null_count` counts lists, and not what is missing in one.
        if missing or (self.row_shape and self.dtype.kind != "f" and any(map(_any_missing, self._chunks))):
            raise ArgumentError(_MISSING)
        ends = np.cumsum([0, *map(len, self._chunks)])
        self.num_rows = int(ends[-1])
        self._bounds = ends[:-1]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return _by_part(self._bounds, indices, self._of_chunk)

    def _of_chunk(self, k: int, places: np.ndarray) -> np.ndarray:
        chunk = self._chunks[k]
        plain = not self.row_shape and not chunk.null_count and self.dtype.kind != "b"
        if plain:
            return np.asarray(chunk.to_numpy(zero_copy_only=True)[places])
        taken = chunk.take(places)
        if self.row_shape:
            taken = taken.flatten()
        return np.asarray(taken.to_numpy(zero_copy_only=False)).reshape(-1, *self.row_shape)


def _any_missing(lists: Any) -> bool:
    """Whether a number is missing in one of the lists of a chunk."""
    return bool(lists.flatten().null_count)


class _Columns:
    """Columns of Arrow, side by side."""

    def __init__(self, columns: Sequence[_Arrow]) -> None:
        if any(c.row_shape for c in columns) or not columns:
            raise ArgumentError("a table must have columns of single numbers; give a list column by itself")
        self._columns = columns
        self.num_rows = columns[0].num_rows
        self.row_shape = (len(columns),)
        self.dtype = np.result_type(*(c.dtype for c in columns))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), len(self._columns)), dtype=self.dtype)
        for k, column in enumerate(self._columns):
            out[:, k] = column.rows(indices)
        return out


def _of_arrow(table: Any) -> _Arrow | _Columns:
    """Return the source of a table, or of a column."""
    if not hasattr(table, "column_names"):
        return _Arrow(table)
    return _Columns([_Arrow(table.column(k)) for k in range(table.num_columns)])


class _Parquet:
    """Columns of a Parquet file, which is read by row groups."""

    def __init__(self, file: Any, names: Any) -> None:
        if not (isinstance(names, str) or (isinstance(names, list) and all(type(n) is str for n in names))):
            raise ArgumentError("give a ParquetFile with the name of a column, or a list of names")
        self._file, self._names = file, [names] if isinstance(names, str) else names
        self._alone = isinstance(names, str)
        if missing := sorted(set(self._names) - set(file.schema_arrow.names)):
            raise ArgumentError(f"the file has no column {missing}")
        kinds = file.schema_arrow.empty_table().select(self._names)
        empty = self._of(kinds)
        self.row_shape, self.dtype = empty.row_shape, empty.dtype
        meta = file.metadata
        self._refuse_missing(meta)
        ends = np.cumsum([0, *(meta.row_group(k).num_rows for k in range(meta.num_row_groups))])
        self.num_rows = int(ends[-1])
        self._bounds = ends[:-1]

    def _refuse_missing(self, meta: Any) -> None:
        """Raise unless each column is of floats, or the file says that it has no missing value."""
        schema = self._file.schema_arrow
        for name in self._names:
            field = schema.field(name)
            is_float = not self.row_shape and np.dtype(field.type.to_pandas_dtype()).kind == "f"
            if is_float or not (field.nullable or self.row_shape):
                continue
            for k in range(meta.num_row_groups):
                group = meta.row_group(k)
                parts = [group.column(j) for j in range(group.num_columns)]
                own = [p for p in parts if p.path_in_schema.partition(".")[0] == name]
                counts = [p.statistics.null_count if p.is_stats_set else None for p in own]
                if not counts or any(count != 0 for count in counts):
                    raise ArgumentError(_MISSING)

    def _of(self, table: Any) -> _Arrow | _Columns:
        return _of_arrow(table.column(0) if self._alone else table.select(self._names))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        def read(k: int, places: np.ndarray) -> np.ndarray:
            return self._of(self._file.read_row_group(k, columns=self._names)).rows(places)

        return _by_part(self._bounds, indices, read)


def _of_numpy(given: np.ndarray) -> _Array:
    plain = np.asarray(given)  # no subclass: rows of a memory map are in memory

    def read(indices: np.ndarray) -> np.ndarray:
        # `take` is faster, and copies the whole of an array in another order.
        if plain.flags.c_contiguous and plain.flags.aligned and plain.dtype.isnative:
            return plain.take(indices, axis=0)
        return plain[indices]

    return _Array(plain, read)


def read_into(out: np.ndarray, source: Source, indices: np.ndarray) -> None:
    """Put rows into an array, (len(indices), ...), each entry in the array's type (`in_type`)."""
    if isinstance(source, _Dask):
        source.read_into(out, indices)
        return
    found = source.rows(indices)
    if np.shape(found) != out.shape:
        raise TypeError("rows of another shape")
    out[...] = in_type(found, out.dtype)


def parts_of(source: Source, indices: np.ndarray) -> list[np.ndarray]:
    """Return rows in pieces, each in the type that it was read in: nothing is brought into another type."""
    return source.parts(indices) if isinstance(source, _Dask) else [source.rows(indices)]


def source_of(given: Any) -> Source:
    """Return the source that reads what the user gave; an ArgumentError says what to give instead."""
    package = type(given).__module__.partition(".")[0]
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "read_row_group"):
        return _Parquet(*given)
    for found, instead in (
        (isinstance(given, str | bytes) or hasattr(given, "__fspath__"), _OPEN),
        (isinstance(given, list | tuple | np.ma.MaskedArray), "give np.asarray(...) of it"),
        (hasattr(given, "read_row_group"), "give (file, 'column'), or (file, ['a', 'b']) for a matrix"),
        (package in ("pandas", "polars"), "give its .to_numpy()"),
        (hasattr(given, "tocsr"), "sparse rows cannot be read; give .toarray() of fewer columns"),
        (hasattr(given, "data_vars"), "give one of its variables, dataset['x']"),
        (hasattr(given, "column_names") and package != "pyarrow", "give one of its columns"),
    ):
        if found:
            raise ArgumentError(f"it is a {type(given).__name__}: {instead}")
    if isinstance(given, np.ndarray):
        return _of_numpy(given)
    if package == "pyarrow" and (hasattr(given, "null_count") or hasattr(given, "column_names")):
        return _of_arrow(given)
    if not all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        raise ArgumentError(
            f"it is a {type(given).__name__}. Give an array that has shape and dtype and is read by "
            "source[indices]: a numpy.memmap, a zarr array, an h5py data set, ..."
        )
    try:
        np.dtype(given.dtype)
    except TypeError:
        raise ArgumentError(f"it is a {type(given).__name__}, whose dtype is none of NumPy's") from None
    if hasattr(given, "__dask_graph__") and hasattr(given, "compute") and not hasattr(given, "isel"):
        return _Dask(given)
    if hasattr(given, "isel") and hasattr(given, "dims"):
        if getattr(given, "chunks", None) is not None:
            return _Dask(given.data)
        leading = given.dims[0]
        return _Array(given, lambda indices: given.isel({leading: indices}).compute(**_HERE).values)
    if hasattr(given, "oindex") and hasattr(given, "store"):
        return _Array(given, lambda indices: given.oindex[indices])
    return _Array(given, lambda indices: given[indices])


_MISSING = (
    "it has missing values, or does not say that it has none; fill them in, record by record, with "
    ".fill_null(...), or give a column of floats, where they are NaN"
)
#: Dask computes in the thread that reads, and leaves no thread of its own behind.
_HERE = {"scheduler": "synchronous"}
_OPEN = (
    "open it first, and leave the rows on the disk: np.load('x.npy', mmap_mode='r'), "
    "zarr.open_array('x.zarr', mode='r'), h5py.File('x.h5')['x'], ..."
)
