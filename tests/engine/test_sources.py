"""Sources of records: whatever holds them, the rows are those of the array."""

from __future__ import annotations

import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_dpvi.engine.read_ahead import _distinct
from pymc_dpvi.engine.shards import hold
from pymc_dpvi.engine.source_units import units_of
from pymc_dpvi.engine.sources import in_type, read_into, source_of
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.units import Units

RNG = np.random.default_rng(3)
X = RNG.normal(size=(1000, 4)).astype("float32")
Y = RNG.integers(0, 9, size=1000)
INDICES = [np.array([0]), np.array([999]), np.array([3, 4, 5, 500]), np.flatnonzero(RNG.random(1000) < 0.2)]


def same(given: Any, array: np.ndarray) -> None:
    source = source_of(given)
    assert (source.num_rows, source.row_shape) == (len(array), array.shape[1:])
    assert source.dtype == array.dtype
    for indices in [*INDICES, np.arange(len(array))]:
        found = source.rows(indices)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, array[indices])


def test_missing_values_are_nan_or_refused_before_any_row_is_read(tmp_path: Path) -> None:
    """Known: one missing value in a Parquet file ended a fit that had been charged."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    floats = pa.array([1.0, None, 3.0, 4.0])
    integers = pa.array([1, None, 3, 4])
    lists = pa.array([[1.0, 2.0], None, [5.0, 6.0], [7.0, None]], type=pa.list_(pa.float64(), 2))
    whole = pa.array([1, 2, 3, 4])
    names = ["floats", "integers", "lists", "whole"]
    table = pa.table([floats, integers, lists, whole], names=names)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    pq.write_table(table, tmp_path / "silent.parquet", write_statistics=False)
    file, silent = (pq.ParquetFile(tmp_path / name) for name in ("x.parquet", "silent.parquet"))
    for good in (table.column("floats"), (file, "floats"), (silent, "floats")):
        found = source_of(good).rows(np.array([0, 1, 3]))
        np.testing.assert_array_equal(found, [1.0, np.nan, 4.0])
    np.testing.assert_array_equal(source_of((file, "whole")).rows(np.array([1, 3])), [2, 4])
    bad = [table.column("integers"), table.column("lists"), (file, "integers"), (file, "lists")]
    for given in (*bad, (silent, "whole"), (file, ["whole", "integers"]), (file, ["floats", "integers"])):
        with pytest.raises(ArgumentError, match="it has missing values, or does not say"):
            source_of(given)


@pytest.mark.parametrize(
    "array", [X, Y, X.T.copy().T, X[:, ::2], X[::-1], X.astype(">f8"), X.reshape(-1, 2, 2)]
)
def test_numpy(array: np.ndarray, tmp_path: Path) -> None:
    same(array, array)
    np.save(tmp_path / "x.npy", array)
    same(np.load(tmp_path / "x.npy", mmap_mode="r"), array)


@pytest.mark.parametrize("options", [{}, {"chunks": (64, 4)}, {"chunks": (64, 2), "compression": "gzip"}])
def test_h5py(options: dict[str, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        same(file.create_dataset("x", data=X, **options), X)
        same(file.create_dataset("y", data=Y), Y)


def test_xarray(tmp_path: Path) -> None:
    xr.Dataset({"x": (("row", "column"), X), "y": ("row", Y)}).to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "x.nc", engine="h5netcdf") as dataset:
        same(dataset["x"], X)
        same(dataset["y"], Y)
        assert not dataset["x"].variable._in_memory
    same(xr.DataArray(X), X)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr(zarr_format: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3")
    for name, array in {"x": X, "y": Y}.items():
        path, chunks = tmp_path / name, (64, *array.shape[1:])
        options = {"shape": array.shape, "chunks": chunks, "dtype": array.dtype}
        zarr.create_array(path, zarr_format=zarr_format, **options)[:] = array
        same(zarr.open_array(path, mode="r"), array)


def test_dask() -> None:
    dask = pytest.importorskip("dask.array")
    same(dask.from_array(X, chunks=(64, 2)), X)
    same(dask.from_array(Y, chunks=100) * 2, Y * 2)
    same(xr.DataArray(dask.from_array(X, chunks=(64, 2))), X)


def blocks_of(*blocks: np.ndarray, lengths: tuple[int, ...] = (), dtype: str = "float64") -> Any:
    """Return a lazy array of blocks, each in a type of its own, as where files are read by inferred types."""
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    lengths = lengths or tuple(map(len, blocks))
    parts = [
        da.from_delayed(dask.delayed(lambda b: b)(block), shape=(n,), dtype=dtype)
        for block, n in zip(blocks, lengths, strict=True)
    ]
    return da.concatenate(parts)


@pytest.mark.parametrize("wrap", [lambda a: a, xr.DataArray], ids=["dask", "xarray"])
def test_a_row_is_the_same_whatever_is_read_with_it(wrap: Any) -> None:
    """Dask gives what it reads together the type of the first block: fractions in others were cut off."""
    whole, objects = np.arange(5), np.array([1, None, True, 2.5], dtype=object)
    source = source_of(wrap(blocks_of(whole, whole + 0.25, np.array([1.0, np.nan, 3.0]), objects)))
    everything = np.arange(17)
    together = source.rows(everything)
    alone = np.concatenate([source.rows(everything[k : k + 1]) for k in everything])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together[5:10], whole + 0.25)
    assert source.dtype == together.dtype == np.float64


def test_a_block_of_another_length_than_its_array_says_is_not_read() -> None:
    """Else every later row of the block would be another record's."""
    for block in (np.arange(4.0), np.arange(6.0), np.arange(5.0)[:, None]):
        source = source_of(blocks_of(np.arange(5.0), block, np.arange(5.0), lengths=(5, 5, 5)))
        assert source.rows(np.array([1, 12])).tolist() == [1.0, 2.0]
        for row in (5, 7, 9):
            with pytest.raises(TypeError, match="another shape"):
                source.rows(np.array([row, 12]))


def test_rows_of_a_block_are_counted_and_not_looked_up() -> None:
    """A series is indexed by its labels, and a frame by its columns."""
    pd = pytest.importorskip("pandas")
    rows = np.array([1, 3])
    series = pd.Series(Y[:5]).sort_values()
    assert np.array_equal(source_of(blocks_of(series)).rows(rows), series.to_numpy()[rows])
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    square = pd.DataFrame(X[:4, :1] + np.arange(4.0))
    lazy = da.from_delayed(dask.delayed(square), shape=(4, 4), dtype="float64")
    assert np.array_equal(source_of(lazy).rows(rows), square.to_numpy()[rows])


def test_masked_entries_are_gaps() -> None:
    """As netCDF4 gives them. What lies beneath a mask is no entry."""
    masked = np.ma.array(np.arange(5.0), mask=[0, 1, 0, 0, 0])
    for dtype, gap in (("float64", np.nan), ("float32", np.nan), ("int64", -(2**63)), ("uint8", 0)):
        source = source_of(blocks_of(masked, masked.astype(object), dtype=dtype))
        for rows in (np.arange(5), np.array([1, 3]), np.arange(5, 10)):
            found = in_type(source.rows(rows), np.dtype(dtype))
            expected = np.array([gap if n % 5 == 1 else n % 5 for n in rows], dtype=dtype)
            np.testing.assert_array_equal(found, expected)
    template = Units.by_codes(np.array([0, 1]), "person", None)
    with pytest.raises(ArgumentError, match="rows without an id"):
        units_of("person", source_of(blocks_of(masked.astype("int64"), dtype="int64")), template)


def test_workers_read_the_same_numbers() -> None:
    """By the model's type, whatever a block and its array are."""
    block = np.array([1.5, np.nan, 3.0, -7.0])
    for kind in ("float64", "float32", "object"):
        for promised in ("int64", "float64", "int16"):
            source = source_of(blocks_of(block.astype(kind), dtype=promised))
            for dtype in ("float64", "float32", "int64", "uint8"):
                out = np.empty(4, dtype)
                read_into(out, source, np.arange(4))
                group = hold([[block.astype(kind)]], [dtype], [()], [4])
                assert not isinstance(group, str)
                np.testing.assert_array_equal(out, group[0][0])
                np.testing.assert_array_equal(out, in_type(block, np.dtype(dtype)))


def test_ids_in_blocks_are_compared_exactly() -> None:
    """Of signed and unsigned numbers NumPy makes floats, and long ones would be rounded and merged."""
    template = Units.by_codes(np.array([0, 1]), "person", None)
    ids = 10**17 + np.arange(6)
    whole = source_of(blocks_of(ids[:3], ids[3:].astype(object), dtype="int64"))
    assert len(units_of("person", whole, template)) == 6
    assert len(units_of("person", source_of(blocks_of(ids[:3], ids[3:], dtype="int64")), template)) == 6
    assert len(whole.parts(np.arange(6))) == 2  # type: ignore[attr-defined]
    large = np.array([2**53 + 1, 2**53]), np.array([2**63, 5], dtype="uint64")
    assert len(units_of("person", source_of(blocks_of(*large, dtype="int64")), template)) == 4


NUMBERS, WORDS = np.array([1, 2, 3]), np.array(["1", "2", "x"])
MIXED: dict[str, tuple[str, np.ndarray, np.ndarray]] = {
    "floats": ("int64", NUMBERS, NUMBERS.astype(float)),
    "truth values": ("int64", NUMBERS, NUMBERS > 1),
    "words": ("int64", NUMBERS, WORDS),
    "words alone": ("int64", WORDS, WORDS),
    "words as objects": ("int64", NUMBERS, WORDS.astype(object)),
    "an id that is missing": ("int64", NUMBERS, np.array([1, None, 3], dtype=object)),
    "numbers": ("object", WORDS.astype(object), NUMBERS),
    "numbers alone": ("object", NUMBERS, NUMBERS),
    "a word that is missing": ("object", WORDS, np.array(["1", np.nan, "x"], dtype=object)),
    "floats that were made text": ("object", WORDS, np.array(["7.0", "1.0"])),
    "one that was made text": ("object", WORDS, np.array([1.0, np.nan, 2.0]).astype(str)),
    "spans of time": ("int64", NUMBERS, np.array([*NUMBERS.astype("m8[s]")], dtype=object)),
    "bytes": ("object", WORDS, WORDS.astype("S1")),
}


@pytest.mark.parametrize("case", MIXED)
def test_ids_are_all_of_the_type_that_the_array_says(case: str) -> None:
    """Read as text by one word among them, 001 is another id than 1, and a person falls into two."""
    dtype, *blocks = MIXED[case]
    template = Units.by_codes(np.array([0, 1]), "person", None)
    for order in (blocks, blocks[::-1]):
        with pytest.raises(ArgumentError, match=f"ids of the type {dtype}, .* Some part"):
            units_of("person", source_of(blocks_of(*order, dtype=dtype)), template)


def test_ids_may_be_words_in_arrays_of_two_kinds() -> None:
    template = Units.by_codes(np.array([0, 1]), "person", None)
    source = source_of(blocks_of(WORDS, WORDS.astype(object), dtype="object"))
    assert len(units_of("person", source, template)) == 3


def arrow() -> Any:
    """Return the module, and a table with columns of X, Y, flags, and the rows of X as lists."""
    pa = pytest.importorskip("pyarrow", minversion="17")
    columns = {f"c{k}": X[:, k] for k in range(4)}
    rows = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    return pa, pa.table({**columns, "y": Y, "flag": Y > 4, "row": rows})


NAMES = [f"c{k}" for k in range(4)]


def check_table(table: Any) -> None:
    same(table.select(NAMES), X)
    same(table["y"], Y)
    same(table["flag"], Y > 4)
    same(table["row"], X)


def test_arrow_ipc(tmp_path: Path) -> None:
    pa, table = arrow()
    check_table(table)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=128)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "x.arrow"))).read_all()
    assert mapped["y"].num_chunks == 8
    check_table(mapped)
    before = pa.total_allocated_bytes()
    source_of(mapped.select(NAMES)).rows(INDICES[3])
    assert pa.total_allocated_bytes() == before
    same(pa.array(Y), Y)


def test_missing_values_in_arrow() -> None:
    pa = pytest.importorskip("pyarrow", minversion="17")
    numbers = pa.chunked_array([[1.0, None], [3.0]])
    np.testing.assert_array_equal(source_of(numbers).rows(np.arange(3)), [1.0, np.nan, 3.0])
    with pytest.raises(ArgumentError, match="missing values"):
        source_of(pa.chunked_array([[1, None], [3]]))
    for kind, lists in ((pa.int32(), [[1, 2], [1, None]]), (pa.bool_(), [[True, None]])):
        with pytest.raises(ArgumentError, match="missing values"):
            source_of(pa.chunked_array([pa.array(lists, type=pa.list_(kind, 2))]))
    lists = pa.array([[1.0, 2.0], [1.0, None]], type=pa.list_(pa.float64(), 2))
    np.testing.assert_array_equal(source_of(lists).rows(np.arange(2)), [[1.0, 2.0], [1.0, np.nan]])


def test_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    _, table = arrow()
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=128)
    file = pq.ParquetFile(tmp_path / "x.parquet")
    same((file, NAMES), X)
    same((file, "y"), Y)
    same((file, "row"), X)
    read, groups = file.read_row_group, []

    class Watched:
        schema_arrow, metadata = file.schema_arrow, file.metadata

        def read_row_group(self, k: int, columns: list[str]) -> Any:
            groups.append((k, columns))
            return read(k, columns=columns)

    np.testing.assert_array_equal(source_of((Watched(), "y")).rows(np.array([5, 6, 900])), Y[[5, 6, 900]])
    assert groups == [(0, ["y"]), (7, ["y"])]
    for given, text in [
        ((file, "z"), r"no column \['z'\]"),
        ((file, 3), "the name of a column"),
        (file, "give"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            source_of(given)


def test_the_type_of_a_part_tells_nothing_of_one_entry() -> None:
    """As pandas reads a column: whole numbers, with a gap floats, truth values with a gap objects."""
    whole = np.arange(20, 26)
    numbers = (np.nan, 1e300, -1e300, np.float64(1e300), 2**70, 10**400, np.inf, Decimal(3), True)
    entries = (*numbers, None, pd.NA, pd.NaT, np.ma.masked)
    for dtype in map(np.dtype, ("int32", "int64", "float32", "float64", "uint8")):
        for entry in entries:
            for kind in ("float64", object):
                if kind == "float64" and not isinstance(entry, float):
                    continue
                part = whole.astype(kind)
                part[3] = entry
                found = in_type(part, dtype)
                assert found.dtype == dtype
                np.testing.assert_array_equal(np.delete(found, 3), np.delete(whole, 3))
    given = np.array([1.0, None, -(10**400), 10**400, Decimal("sNaN")], dtype=object)
    expected = [1.0, np.nan, -np.inf, np.inf, np.nan]
    np.testing.assert_array_equal(in_type(given, np.dtype("float64")), expected)
    long = np.array([2**60 + 2**36 + 1, 0])  # half a unit of float32, and a little more
    beside_a_gap = np.array([long[0], None], dtype=object)
    assert in_type(long, np.dtype("f4"))[0] == in_type(beside_a_gap, np.dtype("f4"))[0]
    assert in_type(long, np.dtype("f4"))[0] == in_type(long.astype("f8"), np.dtype("f4"))[0]
    for entry in (np.array([5.0]), [5.0], "5", 5j):
        within = np.array([1.0, None], dtype=object)
        within[1] = entry
        with pytest.raises(TypeError, match="no real numbers"):
            in_type(within, np.dtype("float64"))
    days = np.array(["2020-01-01"], "M8[D]")
    for block in (np.ones(2, complex), np.array(["1.5", "2"]), np.array([b"1"]), days, days - days):
        for kind in (block.dtype, object):
            with pytest.raises(TypeError):
                in_type(block.astype(kind), np.dtype("float64"))


def test_what_a_type_does_not_hold_is_one_number_wherever_it_stands() -> None:
    """Of NaN as an unsigned number, compiled loops make another one than the loop over the rest."""
    for dtype in map(np.dtype, ("int8", "uint8", "int32", "uint32", "int64", "uint64", "bool")):
        least = 0 if dtype.kind == "b" else np.iinfo(dtype).min
        for kind in ("float64", "float32", "int64", "uint64", "object"):
            for entry in (np.nan, 1e20, -1e20, 2**62, -5, 300, 2**31, 2**63 - 1):
                if kind.endswith("64") and "int" in kind and not 0 <= entry < 2**63:
                    continue
                given, expected = np.full(1, entry, kind)[0], least
                if dtype.kind == "b":
                    expected = not np.isnan(entry)
                elif not np.isnan(entry) and np.iinfo(dtype).min <= int(given) <= np.iinfo(dtype).max:
                    expected = int(given)
                for rows in (1, 2, 3, 8, 33):
                    found = set(in_type(np.full(rows, entry, dtype=kind), dtype).tolist())
                    assert found == {expected}, (dtype, kind, entry)


@pytest.mark.parametrize("entry", [1e300, np.ma.masked, None, np.nan, 2**70])
def test_nothing_is_printed_of_an_entry(entry: Any) -> None:
    objects = np.array([1.0, None, 2.0], dtype=object)
    objects[1] = entry
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for dtype in ("float32", "float64", "uint8", "int64"):
            in_type(objects, np.dtype(dtype))
            assert not isinstance(hold([[objects]], [dtype], [()], [3]), str)
    assert not said


@pytest.mark.parametrize("empty", [False, True])
def test_distinct(empty: bool) -> None:
    indices = np.array([3, 9, 12, 1, 3, 12, 0][: 0 if empty else None], dtype=np.int64)
    records, places = _distinct(indices)
    assert records.dtype == places.dtype == np.int64
    assert records.tolist() == sorted(set(indices.tolist()))
    np.testing.assert_array_equal(records[places], indices)
