r"""Constants that say no more than a shape and a few numbers, by their entries or by how they are read.

**By their entries.** A constant array beside the records is public only if somebody declares it, as nobody
can see where its entries come from. Some need no declaration, because they hold nothing to be told: an
identity, an index table, a regular grid. One argument recognises them. *Let a rule make an array out of a
shape, at most k real numbers and a few lengths. Whoever knows these can write the array down, so it tells no
more than they do.* Single numbers and lengths that are written into a model count as public anyway. So each
rule states the numbers and lengths that it needs, and an array passes only if the rule gives it back, entry
by entry.

=======================================================================  =============  =============
array                                                                    numbers        lengths
=======================================================================  =============  =============
one number throughout                                                    1              0
entry (i, j) depends on j - i, or on i + j: a small integer times one    1              4
number, which changes at most four times (``v * eye(n, m, k)``,
``tri``, differences)
one entry v in each row, in column ``(i // r) % p``, and zeros (group    1              2
membership in blocks or in turns; reversed orders), or so by columns
``(i // r) % p``, upwards or downwards, along the flattened array or     0              2 a row
in each of a few rows or columns (``arange``, ``i // r``, ``i % p``,
``tile``, ``repeat``, ``meshgrid``, ``indices``)
``tril_indices(n, k, m)``, ``triu_indices(n, k, m)``: rows, columns,     0              4
both together, or positions in the flattened matrix
grid: ``a + b * ((i // r) % p)``, as in the last row but one             2 a row        2 a row
(``linspace`` and its ``meshgrid``)
=======================================================================  =============  =============

All but the last are *structural* (`is_structural`), and may stand in any graph. A *grid* (`is_grid`) has
numbers of its own for each axis, and may stand in the likelihood.

**By how they are read.** A constant vector is a shape if every operation that reads it takes it for one
(`shape_vectors`). What is released is decided so, as no entry may decide there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, Join, Split
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor

from pymc_dpvi.graph.indexing import LOOKING_UP, index_axes
from pymc_dpvi.graph.rebuild import is_static_shape
from pymc_dpvi.graph.traversal import array_value, is_array

__all__ = [
    "is_grid",
    "is_structural",
    "lone_numbers",
    "shape_vectors",
    "written_shapes",
    "written_triangles",
]

#: Most axes of an array: entries of a vector of lengths, and rows of a grid of points.
_MOST_AXES = 8
#: Most changes of a band matrix from its first diagonal to its last.
_MOST_CHANGES = 4
#: Largest multiple of its one number that stands in a band matrix (second differences have -2).
_LARGEST_MULTIPLE = 2
#: Most columns of a matrix in which flat positions are looked for.
_MOST_COLUMNS = 2048


def is_structural(array: np.ndarray) -> bool:
    """Whether one of the rules of this module, the last one excepted, gives the array back exactly."""
    array = _squeezed(array)
    if array.size <= 1 or bool(np.all(array == array.flat[0])):
        return True
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return False
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    if _is_count(array.ravel()) or (array.ndim == 1 and _is_triangle(array)):
        return True
    if array.ndim == 2:
        if _is_band(array) or _is_band(array[:, ::-1]) or _is_incidence(array) or _is_incidence(array.T):
            return True
        pair = array if len(array) == 2 else array.T
        if len(pair) == 2 and pair.shape[1] > 2 and _is_triangle_pair(pair[0], pair[1]):
            return True
    return any(all(map(_is_count, rows)) for rows in _few_rows(array))


def is_grid(array: np.ndarray) -> bool:
    """Whether the last rule gives the array back, up to rounding, to 1 part in 10¹².

    That is steps of equal width (the frequencies of a Fourier series, inducing points), or the points of a
    grid of several such axes as ``numpy.meshgrid`` lays them out (the basis of ``pm.gp.HSGP``).
    """
    array = _squeezed(array)
    if array.dtype.kind not in "iuf" or not array.size or not np.isfinite(array).all():
        return False
    if _is_grid_axis(array.ravel()) or (array.ndim == 2 and _is_band(array)):
        return True
    return any(all(map(_is_grid_axis, rows)) for rows in _few_rows(array))


def _squeezed(array: np.ndarray) -> np.ndarray:
    """Leave out axes of length one: they are part of the shape."""
    return array.reshape([n for n in array.shape if n != 1])


def _few_rows(array: np.ndarray) -> list[np.ndarray]:
    """Return the array as a few vectors, along its first axis and along its last one.

    Each must be longer than twice their number, or the numbers that the rules need could tell every entry.
    """
    if array.ndim < 2:
        return []
    found = [axes.reshape(len(axes), -1) for axes in (array, np.moveaxis(array, -1, 0)) if len(axes)]
    return [rows for rows in found if len(rows) <= _MOST_AXES and rows.shape[1] > 2 * len(rows)]


def _is_grid_axis(values: np.ndarray) -> bool:
    """Whether entry i is ``a + b * ((i // run) % period)``, each of the values equally often."""
    position, whole = _position(values)
    levels = values[[int(np.argmax(position == k)) for k in range(int(position.max()) + 1)]]
    if not whole or not np.array_equal(values, levels[position]):
        return False
    even = np.linspace(float(levels[0]), float(levels[-1]), len(levels))
    width = max(float(np.abs(even).max()), np.finfo(float).tiny)
    return bool((np.abs(levels.astype(float) - even) <= 1e-12 * width).all())


def _is_count(values: np.ndarray) -> bool:
    """Whether entry i is ``(i // run) % period``, or that downwards."""
    position, _ = _position(values)
    return np.array_equal(values, position) or np.array_equal(values, position.max() - position)


def _position(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return ``(i // run) % period`` as the values suggest it, and whether they end with a period."""
    changes = np.flatnonzero(values != values[0])
    run = int(changes[0]) if changes.size else len(values)
    steps = values[::run]
    again = np.flatnonzero(steps[1:] == steps[0])
    period = int(again[0]) + 1 if again.size else len(steps)
    return (np.arange(len(values)) // run) % period, len(values) % (run * period) == 0


def _is_band(matrix: np.ndarray) -> bool:
    """Whether entries depend on the diagonal alone, and are few small multiples of one number."""
    if not np.array_equal(matrix[1:, 1:], matrix[:-1, :-1]):
        return False
    diagonals = np.concatenate([matrix[::-1, 0], matrix[0, 1:]]).astype(float)
    multiples = diagonals / np.abs(diagonals[diagonals != 0]).min()
    small = np.abs(multiples).max() <= _LARGEST_MULTIPLE and np.array_equal(multiples, np.rint(multiples))
    # The outermost diagonals are single entries, which could be anything.
    alone = any(a not in (0, b) for a, b in (diagonals[:2], diagonals[:-3:-1]))
    return bool(small) and not alone and int(np.count_nonzero(np.diff(diagonals))) <= _MOST_CHANGES


def _is_incidence(matrix: np.ndarray) -> bool:
    """Whether row i is one number in column ``(i // run) % period``, or that downwards, and zeros."""
    held = matrix != 0
    if not (held.sum(axis=1) == 1).all():
        return False
    numbers = matrix[held]
    return bool((numbers == numbers[0]).all()) and _is_count(held.argmax(axis=1))


def _is_triangle(values: np.ndarray) -> bool:
    """Whether values are rows or columns of ``tril_indices`` or ``triu_indices``, or flat positions."""
    whole = _positions(values)
    if whole is None:
        return False
    if _are_rows(whole) or _are_columns(np.split(whole, np.flatnonzero(np.diff(whole) != 1) + 1)):
        return True
    widths = range(2, min(int(whole.max()), _MOST_COLUMNS) + 2)
    return len(whole) > 2 and any(_is_triangle_pair(whole // m, whole % m) for m in widths)


def _is_triangle_pair(rows: np.ndarray, columns: np.ndarray) -> bool:
    """Whether values are the rows and the columns of one triangle."""
    whole, across = _positions(rows), _positions(columns)
    if whole is None or across is None or not _are_rows(whole):
        return False
    return _are_columns(np.split(across, np.flatnonzero(np.diff(whole)) + 1))


def _positions(values: np.ndarray) -> np.ndarray | None:
    """Return values as integers from 0, or None if they are others."""
    if values.min() < 0 or values.max() >= 2**53:
        return None
    whole = np.rint(values).astype(np.int64)
    return whole if np.array_equal(whole, values) else None


def _are_rows(values: np.ndarray) -> bool:
    """Whether values are r, r + 1, ..., as often as a triangle has columns there."""
    steps = np.diff(values)
    if not ((steps == 0) | (steps == 1)).all():
        return False
    counts = np.bincount(values - values[0])
    return _is_slope(counts) and (values[0] == 0 or counts[0] < counts[-1])


def _are_columns(rows: list[np.ndarray]) -> bool:
    """Whether values count up by one, row by row, from a common start or to a common end."""
    if any((np.diff(r) != 1).any() for r in rows):
        return False
    starts, ends = {int(r[0]) for r in rows}, {int(r[-1]) for r in rows}
    counts = np.array([len(r) for r in rows])
    return _is_slope(counts) and (starts == {0} or (len(ends) == 1 and counts[0] > counts[-1]))


def _is_slope(counts: np.ndarray) -> bool:
    """Whether counts rise by one and are constant then, or are constant and fall by one then."""
    steps = np.diff(counts)
    rises = bool((steps >= 0).all() and (steps <= 1).all() and (np.diff(steps) <= 0).all())
    falls = bool((steps <= 0).all() and (steps >= -1).all() and (np.diff(steps) <= 0).all())
    return rises or falls


def shape_vectors(found: Iterable[Variable]) -> set[Variable]:
    """Return the constant integer vectors of a graph that are read as shapes and in no other way.

    That is the shape of a reshape, the size of a random variable, the lengths of parts, and what stands for
    the shape of an array whose type knows it. The operations that read a vector decide, and no entry of it.
    """
    return {v for v, how in _readers(found).items() if how == {"shape"} or is_static_shape(v)}


def lone_numbers(found: Iterable[Variable]) -> set[Variable]:
    """Return the constants of one entry that are joined to something, or take a column, and do nothing else.

    This puts a number before a vector, ``pt.concatenate([[0.0], cutpoints])``, or takes one column of a
    ``pm.Data``, ``X[:, [0]]``, as PyMC's covariance functions do. No type tells it from an array of the
    records of which one entry is left (``docs/limitations.md``, 1).
    """
    lone: set[Variable] = set()
    others: set[Variable] = set()
    for node in _all_nodes(found):
        for k, i in enumerate(node.inputs):
            one = isinstance(i, Constant) and is_array(i) and array_value(i).shape == (1,)
            (lone if one and (isinstance(node.op, Join) or _takes_column(node, k)) else others).add(i)
    return lone - others


def _takes_column(node: Apply, position: int) -> bool:
    """Whether an input is an index of a shared array, and not of its first axis."""
    if type(node.op).__name__ not in LOOKING_UP or not isinstance(node.inputs[0], SharedVariable):
        return False
    return any(own == position and axis > 0 for own, axis in index_axes(node))


def written_shapes(found: Sequence[Variable]) -> set[Variable]:
    """Return `shape_vectors`, and the vectors that are read entry by entry and repeat a part of a shape.

    PyMC reads the size of a random variable so. As counts of records may repeat a shape too, this decides
    only what the report lists, and neither a refusal nor a release.
    """
    shapes: set[tuple[int | None, ...]] = {getattr(v.type, "shape", ()) for v in found if not is_array(v)}
    for node in _all_nodes(found):
        shapes.update(getattr(v.type, "shape", ()) for v in node.outputs)
    parts = {s[a:b] for s in shapes for a in range(len(s)) for b in range(a + 1, len(s) + 1)}
    return shape_vectors(found) | {
        v
        for v, how in _readers(found).items()
        if how <= {"shape", "entry"} and tuple(array_value(v).tolist()) in parts
    }


def _all_nodes(found: Iterable[Variable]) -> Iterator[Apply]:
    """Yield the operations of a graph and of the graphs inside them."""
    nodes = list({v.owner: None for v in found if v.owner is not None})
    while nodes:
        node = nodes.pop()
        yield node
        nodes += getattr(getattr(node.op, "fgraph", None), "apply_nodes", ())


def _readers(found: Iterable[Variable]) -> dict[Variable, set[str]]:
    """Say of each constant vector of a few integers how it is read: as a shape, by its entries, or else."""
    readers: dict[Variable, set[str]] = {}
    for node in _all_nodes(found):
        for k, i in enumerate(node.inputs):
            if not isinstance(i, Constant) or not is_array(i):
                continue
            if i.type.dtype[:3] in ("int", "uin") and i.type.ndim == 1 and array_value(i).size <= _MOST_AXES:
                entry = isinstance(node.op, Subtensor) and node.outputs[0].type.ndim == 0
                shape = (
                    (isinstance(node.op, Reshape) and k == 1)
                    or (isinstance(node.op, Split) and k == len(node.inputs) - 1)
                    or (isinstance(node.op, RandomVariable) and i is node.op.size_param(node))
                )
                readers.setdefault(i, set()).add("shape" if shape else "entry" if entry else "other")
    return readers


def written_triangles(found: Iterable[Variable], is_packed: Callable[[Variable], bool]) -> set[Variable]:
    """Return the index tables by which a packed vector is written into the lower triangle of a new matrix.

    PyMC unpacks the Cholesky factor of ``pm.LKJCholeskyCov`` so, by ``tril_indices(n)``. The entries are
    compared, so that no other table passes. That tells of no record, as the packed vector must be an LKJ
    variable (`is_packed`): at other places its numbers are no Cholesky factor, so in no model does a record
    decide on the places. Any other vector may be written to places that records decide, such as the pairs
    that occur among them.
    """
    tables: set[Variable] = set()
    for node in {v.owner: None for v in found if v.owner is not None}:
        if "IncSubtensor" not in type(node.op).__name__ or len(node.inputs) != 4:
            continue
        into, packed, *indices = node.inputs
        n = into.type.shape[0] if into.type.ndim == 2 and len(set(into.type.shape)) == 1 else None
        if n is None or into.owner is None or not isinstance(into.owner.op, Alloc) or not is_packed(packed):
            continue
        if all(isinstance(i, Constant) and is_array(i) for i in indices) and all(
            np.array_equal(array_value(i), table)
            for i, table in zip(indices, np.tril_indices(n), strict=True)
        ):
            tables.update(indices)
    return tables
