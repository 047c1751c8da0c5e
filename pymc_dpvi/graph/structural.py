r"""Arrays that say no more than their shape and a few numbers.

A constant array beside the records is public only if somebody declares it, as nobody can see where its
entries come from. Some need no declaration, because they hold nothing to be told: an identity, an index
table, a regular grid. One argument recognises them. *Let a rule make an array out of a shape, at most k real
numbers and a few lengths. Whoever knows these can write the array down, so it tells no more than they do.*
Single numbers and lengths that are written into a model count as public anyway. So each rule states the
numbers and lengths that it needs, and an array passes only if the rule gives it back, entry by entry.

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
"""

from __future__ import annotations

import numpy as np

__all__ = ["is_grid", "is_structural"]

#: Rows of a grid of points, each with its own numbers and lengths.
_MOST_AXES = 8
#: Times that a band matrix changes from its first diagonal to its last.
_MOST_CHANGES = 4
#: Largest multiple of its one number that stands in a band matrix (second differences have -2).
_LARGEST_MULTIPLE = 2
#: Columns of a matrix in which flat positions are looked for.
_MOST_COLUMNS = 2048


def is_structural(array: np.ndarray) -> bool:
    """Whether an array says no more than its shape, a few lengths and at most one number.

    Parameters
    ----------
    array : numpy.ndarray

    Returns
    -------
    bool
        Whether one of the rules of this module, the last one excepted, gives the array back exactly.
    """
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
    """Whether an array says no more than its shape, and two numbers and two lengths for each axis of a grid.

    That is steps of equal width, ``a, a + b, a + 2 b, ...`` (the frequencies of a Fourier series, inducing
    points), or the points of a grid of several such axes as ``numpy.meshgrid`` lays them out (the basis of
    ``pm.gp.HSGP``).

    Parameters
    ----------
    array : numpy.ndarray

    Returns
    -------
    bool
        Up to rounding, to 1 part in 10¹².
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

    Each has more entries than twice as many as they are: a square could be told by its rows in full.
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
    """Whether entry i is ``(i // run) % period``, or that backwards."""
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
    """Whether row i holds one number, in column ``(i // run) % period`` or that backwards, and zeros."""
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
