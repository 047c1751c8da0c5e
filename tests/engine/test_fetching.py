"""What is fetched is what NumPy would take."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytest

from pymc_dpvi.engine.fetching import in_order, places_of, take_entries, take_rows

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
}


@pytest.mark.turns
@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 100, 5000])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_rows_are_taken_as_numpy_takes_them(width: int, dtype: str):
    rng = np.random.default_rng(width)
    records = rng.integers(-9, 9, size=(50, width)).astype(dtype)
    indices = rng.integers(0, 50, size=40)
    for layout in LAYOUTS.values():
        if width:
            for first, length in ((0, 40), (3, 14), (39, 1), (30, 24)):
                places = indices[np.minimum(np.arange(first, first + length), 39)]
                np.testing.assert_array_equal(places_of(indices, first, length), places)
                taken = take_rows(layout(records), indices, first, length)
                assert taken.dtype == records.dtype and taken.flags.c_contiguous
                np.testing.assert_array_equal(taken, records[places])
                entries = take_entries(layout(records[:, 0]), indices, first, length)
                assert entries.dtype == records.dtype and entries.flags.c_contiguous
                np.testing.assert_array_equal(entries, records[places, 0])


@numba.njit
def every(step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a matrix that only lives here; numba does not know how they lie."""
    matrix = np.arange(3.0 * rows).reshape(rows, 3)[::step]
    return matrix, in_order(matrix)


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_arrays_are_put_in_order_and_only_if_they_are_not(step: int, rows: int):
    matrix, found = every(step, rows)
    np.testing.assert_array_equal(found, np.arange(3.0 * rows).reshape(rows, 3)[::step])
    assert found.flags.c_contiguous
    if rows == 7:
        assert np.shares_memory(matrix, found) == (step == 1)
    del matrix  # the other one keeps the memory, and gives it back
    np.testing.assert_array_equal(found, np.arange(3.0 * rows).reshape(rows, 3)[::step])


@pytest.mark.parametrize("step", [1, 2])
def test_arrays_put_in_order_give_their_memory_back(step: int):
    resource = pytest.importorskip("resource")
    every(step, 50_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):  # of 1.2 MB
        every(step, 50_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB on Linux
