"""Which entries an operation reads or writes: indices and their axes, and indices that number the rows.

PyTensor 2 keeps all indices, and slices, among an operation's inputs; PyTensor 3 keeps what is known in
``idx_list``. Both are asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type import TensorType, discrete_dtypes
from pytensor.tensor.type_other import NoneTypeT

__all__ = [
    "INDEXING",
    "LOOKING_UP",
    "READING",
    "index_axes",
    "integer_indices",
    "numbers_rows",
    "row_position",
]

#: Operations that read entries by arrays of integers or masks; that read any; that read or write them.
LOOKING_UP = frozenset({"AdvancedSubtensor", "AdvancedSubtensor1"})
READING = LOOKING_UP | {"Subtensor"}
INDEXING = READING | {"AdvancedIncSubtensor", "AdvancedIncSubtensor1", "IncSubtensor"}


def index_axes(node: Apply) -> list[tuple[int, int]]:
    """Input position and axis of every index variable of an indexing node, in PyTensor 2 and 3."""
    name = type(node.op).__name__
    first = 2 if "Inc" in name else 1
    indices = list(node.inputs[first:])
    if name.endswith("1"):
        return [(first, 0)]
    idx_list = getattr(node.op, "idx_list", None)
    entries: Sequence[Any] = indices if idx_list is None else indices_from_subtensor(indices, idx_list)
    axes: list[tuple[int, int]] = []
    axis, used = 0, set()
    for entry in entries:
        if isinstance(entry, Variable) and isinstance(entry.type, NoneTypeT):
            continue
        if isinstance(entry, Variable) and isinstance(entry.type, ScalarType | TensorType):
            position = next(k for k, i in enumerate(indices) if i is entry and k not in used)
            used.add(position)
            axes.append((first + position, axis))
            axis += entry.type.ndim if getattr(entry.type, "dtype", "") == "bool" else 1
        else:
            axis += 1
    return axes


def integer_indices(node: Apply) -> list[Variable | None] | None:
    """Return an integer index per axis, None where all of it is taken; None if there is anything else.

    `node` is one that reads entries of an array.
    """
    if type(node.op).__name__ == "AdvancedSubtensor1":
        return [node.inputs[1]]
    idx_list = getattr(node.op, "idx_list", None)
    given = list(node.inputs[1:])
    entries = given if idx_list is None else indices_from_subtensor(given, idx_list)
    out: list[Variable | None] = []
    for entry in entries:
        if isinstance(entry, Constant) and isinstance(entry.data, slice):
            entry = entry.data
        if isinstance(entry, slice):
            if any(getattr(b, "data", b) is not None for b in (entry.start, entry.stop, entry.step)):
                return None
            out.append(None)
        elif isinstance(entry, Variable) and isinstance(entry.type, ScalarType | TensorType):
            if entry.type.dtype == "bool":
                return None
            out.append(entry)
        elif isinstance(entry, int | np.integer):
            out.append(pt.constant(int(entry)))
        else:
            return None
    return out


def row_position(node: Apply) -> int | None:
    """Return the position of the index of the first axis, where arrays pick entries by several axes."""
    if type(node.op).__name__ not in ("AdvancedSubtensor", "AdvancedIncSubtensor"):
        return None
    axes = index_axes(node)
    return next((position for position, axis in axes if axis == 0), None) if len(axes) > 1 else None


def numbers_rows(index: Variable, num_records: int) -> bool:
    """Whether an index is written 0, 1, ..., N - 1, by `numpy.arange` or PyTensor's, perhaps as a column."""
    while index.owner is not None and isinstance(index.owner.op, DimShuffle):
        inner = index.owner.inputs[0]
        if index.owner.op.new_order != (*range(inner.type.ndim), *"x" * (index.type.ndim - inner.type.ndim)):  # type: ignore[attr-defined]
            return False
        index = inner
    if index.owner is not None:
        bounds = index.owner.inputs if isinstance(index.owner.op, ARange) else ()
        known = bool(bounds) and all(isinstance(i, Constant) for i in bounds)
        return known and [int(i.data) for i in bounds] == [0, num_records, 1]  # type: ignore[attr-defined]
    if not isinstance(index, Constant) or not isinstance(index.type, TensorType) or not index.type.ndim:
        return False
    column = index.data.shape == (num_records, *[1] * (index.type.ndim - 1))
    whole = index.type.dtype in discrete_dtypes and index.type.dtype != "bool"
    return column and whole and np.array_equal(index.data.ravel(), np.arange(num_records))
