"""Copies of a microbatch's records, and arrays in C order.

The records of a batch are scattered in memory, and waiting for them would take most of a step. So while one
record is copied, those some kilobytes ahead are prefetched (LLVM's ``prefetch``). Of a long record the first
cache lines are enough: the processor fetches the rest by itself.

A microbatch always has the same length (`microbatch`): copies of the batch's last record fill it up.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

__all__ = ["in_order", "places_of", "take_entries", "take_rows"]

#: How many bytes ahead to prefetch.
_AHEAD = 4096
#: Most bytes of a record to prefetch: for all of a long one it takes longer than to wait for it.
_OF_A_RECORD = 512
_CACHE_LINE = 64


@intrinsic
def _prefetch(typing_context: Any, array: Any, offset: Any) -> Any:  # pragma: no cover
    """Prefetch the cache line at a byte offset from the start of an array: a hint, which reads nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.gep(builder.bitcast(data, byte), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [place, word(0), word(3), word(1)])  # to read, often, data
        return context.get_dummy_value()

    return numba.types.void(array, offset), codegen


@intrinsic
def _known_to_be_in_order(typing_context: Any, array: Any) -> Any:  # pragma: no cover
    """Return the array itself, with a type that says C order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array.copy(layout="C")(array), codegen


@numba.njit
def in_order(array: np.ndarray) -> np.ndarray:  # pragma: no cover
    """Return an array in C order, with a type that says so; it is copied only if it is in another order.

    The types of most of PyTensor's arrays leave the strides open, and loops are then several times slower.
    """
    expected, in_order = array.itemsize, True
    for axis in range(array.ndim - 1, -1, -1):
        in_order &= array.strides[axis] == expected
        expected *= array.shape[axis]
    if in_order:
        return _known_to_be_in_order(array)
    return array.copy()


@numba.njit
def places_of(indices: np.ndarray, first: int, length: int) -> np.ndarray:  # pragma: no cover
    """Return ``indices[first : first + length]``, filled up with the last index."""
    out = np.empty(length, np.int64)
    for i in range(length):
        out[i] = indices[min(first + i, indices.size - 1)]
    return out


@numba.njit
def take_entries(
    records: np.ndarray, indices: np.ndarray, first: int, length: int
) -> np.ndarray:  # pragma: no cover
    """Copy the entries at `places_of` of a vector."""
    out = np.empty(length, records.dtype)
    there = min(length, indices.size - first)
    for i in range(there):
        out[i] = records[indices[first + i]]
    for i in range(there, length):
        out[i] = out[there - 1]
    return out


@numba.njit
def take_rows(
    records: np.ndarray, indices: np.ndarray, first: int, length: int
) -> np.ndarray:  # pragma: no cover
    """Copy the rows at `places_of` of a matrix, and prefetch those that come next."""
    width = records.shape[1]
    row_bytes = width * records.itemsize
    together = width > 0 and records.strides[1] == records.itemsize
    ahead = 1 + _AHEAD // max(row_bytes, _CACHE_LINE)
    out = np.empty((length, width), records.dtype)
    there = min(length, indices.size - first)
    for i in range(there):
        if together and first + i + ahead < indices.size:
            start = indices[first + i + ahead] * records.strides[0]
            for byte in range(0, min(row_bytes, _OF_A_RECORD), _CACHE_LINE):
                _prefetch(records, start + byte)
        row = indices[first + i]
        for j in range(width):
            out[i, j] = records[row, j]
    for i in range(there, length):
        for j in range(width):
            out[i, j] = out[there - 1, j]
    return out
