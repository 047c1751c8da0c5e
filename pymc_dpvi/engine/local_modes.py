r"""The modes of persons' local values: the first pass of `local_sums` over the rows of a batch.

Newton's method, from a point near 0, for all persons at once, each with a step that is halved until the
density grows. A person is left alone once a step is short beside the width of the posterior. Where the
density of the first point is zero (a person's non-decision time that is longer than a reaction time), the
search begins at the first point that has one, of some to both sides along each axis. Where persons have
discrete values, too, each has a search for each of their combinations: search s is that of combination s % M
of person s // M.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.numba_cache import kernel

__all__ = [
    "LONGEST_SEARCH",
    "add_derivatives",
    "backward",
    "begin_search",
    "forward",
    "move",
    "of_open",
    "rows_of_search",
    "triangle",
]

#: Most evaluations in the search of a mode.
LONGEST_SEARCH = 40
#: Most points to begin with, if the density is zero at the first ones: both sides of seven axes, at least.
_BEGINNINGS = 14
#: A search ends with a step that is shorter than this, in standard deviations: the next one would be about
#: the square of it.
_SHORT = 0.1
#: The same of a step that was halved. The density did not grow, so it is not what its derivatives said, and a
#: standard deviation may be much less than they say.
_SHORTEST = 1e-3

_kernel = kernel(fastmath=False)


@_kernel
def begin_search(searches: int, size: int) -> tuple[np.ndarray, ...]:  # pragma: no cover
    """Return the state of the searches.

    They are: the points to evaluate, the best points, the steps from these, (searches, size); the best
    log-densities and the numbers of evaluations left, (searches,); minus the second derivatives at the
    best points, (searches, size, size), the identity to begin with.
    """
    curvature, at = np.zeros((searches, size, size)), np.empty((searches, size))
    for s in range(searches):
        for j in range(size):
            curvature[s, j, j] = 1.0
            at[s, j] = 0.1 * (-0.7) ** j  # not zero, where the density may have a saddle by symmetry
    return (
        at,
        at.copy(),
        np.zeros((searches, size)),
        np.full(searches, -np.inf),
        np.full(searches, LONGEST_SEARCH),
        curvature,
    )


@_kernel
def of_open(
    starts: np.ndarray, left: np.ndarray, combinations: int
) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover
    """Return the places in the batch of the rows of searches that go on, and whose they are."""
    rows = 0
    for s in range(left.size):
        if left[s] > 0:
            rows += starts[s // combinations + 1] - starts[s // combinations]
    places, whose = np.empty(rows, np.int64), np.empty(rows, np.int64)
    k = 0
    for s in range(left.size):
        if left[s] > 0:
            for i in range(starts[s // combinations], starts[s // combinations + 1]):
                places[k], whose[k] = i, s
                k += 1
    return places, whose


@_kernel
def rows_of_search(
    rows: np.ndarray,
    begins: np.ndarray,
    places: np.ndarray,
    whose: np.ndarray,
    at: np.ndarray,
    values: np.ndarray,
    first: int,
    length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover
    """Return the rows of a microbatch of the search, their local values, and whether a person begins there.

    `values` are the combinations of discrete values, (M, e), which come after the continuous ones. Copies of
    the last row fill the microbatch up; without any row, it is the first of the data, at zero.
    """
    size = at.shape[1]
    window, begin = np.zeros(length, np.int64), np.zeros(length)
    local = np.zeros((length, size + values.shape[1]))
    for j in range(length if places.size else 0):
        t = min(first + j, places.size - 1)
        window[j], begin[j] = rows[places[t]], begins[places[t]]
        for k in range(size):
            local[j, k] = at[whose[t], k]
        for k in range(values.shape[1]):
            local[j, size + k] = values[whose[t] % values.shape[0], k]
    return window, local, begin


@_kernel
def add_derivatives(
    value: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
    whose: np.ndarray,
    first: int,
    count: int,
    values: np.ndarray,
    slopes: np.ndarray,
    curvatures: np.ndarray,
) -> None:  # pragma: no cover
    """Add rows' log-densities and derivatives to those of their searches."""
    for i in range(count):
        s = whose[first + i]
        values[s] += np.float64(value[i])
        for j in range(slope.shape[1]):
            slopes[s, j] += np.float64(slope[i, j])
            for k in range(slope.shape[1]):
                curvatures[s, j, k] -= np.float64(curvature[i, j, k])


@_kernel
def triangle(matrix: np.ndarray, out: np.ndarray) -> bool:  # pragma: no cover
    """Cholesky's factor, and whether there is one: a pivot that is not positive is replaced by its size."""
    size, exists = matrix.shape[0], True
    for j in range(size):
        for i in range(j, size):
            total = matrix[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            if i > j:
                out[i, j] = total / out[j, j]
            else:
                least = 1e-10 * (1e-10 + abs(matrix[j, j]))
                if not (least < total < np.inf):  # also NaN
                    exists, total = False, abs(total)
                    if not (least < total < np.inf):
                        total = abs(matrix[j, j])
                    if not (1e-8 < total < np.inf):
                        total = 1.0
                out[j, j] = np.sqrt(total)
    return exists


@_kernel
def forward(lower: np.ndarray, x: np.ndarray, out: np.ndarray) -> float:  # pragma: no cover
    """Solve ``lower @ out = x``; return the squared length of `out`."""
    length = 0.0
    for j in range(x.size):
        total = x[j]
        for k in range(j):
            total -= lower[j, k] * out[k]
        out[j] = total / lower[j, j]
        length += out[j] * out[j]
    return length


@_kernel
def backward(lower: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover
    """Solve ``lower.T @ out = x``."""
    for j in range(x.size - 1, -1, -1):
        total = x[j]
        for k in range(j + 1, x.size):
            total -= lower[k, j] * out[k]
        out[j] = total / lower[j, j]


@_kernel
def move(
    values: np.ndarray,
    slopes: np.ndarray,
    curvatures: np.ndarray,
    at: np.ndarray,
    best: np.ndarray,
    step: np.ndarray,
    best_value: np.ndarray,
    left: np.ndarray,
    best_curvature: np.ndarray,
) -> None:  # pragma: no cover
    """Move each open search on by one evaluation: a Newton step if the density grew, else half a step."""
    size = at.shape[1]
    lower, half = np.zeros((size, size)), np.zeros(size)
    for s in range(left.size):
        if left[s] <= 0:
            continue
        left[s] -= 1
        length, grew = 0.0, values[s] > best_value[s]
        if grew:
            best_value[s] = values[s]
            exists = triangle(curvatures[s], lower)
            length = forward(lower, slopes[s], half)
            backward(lower, half, step[s])
            for j in range(size):
                best[s, j] = at[s, j]
                for k in range(size):
                    best_curvature[s, j, k] = curvatures[s, j, k]
                    if not exists:  # a form that is negative somewhere would say that a long step is short
                        best_curvature[s, j, k] = 0.0
                        for i in range(min(j, k) + 1):
                            best_curvature[s, j, k] += lower[j, i] * lower[k, i]
        elif best_value[s] == -np.inf:  # no density so far: 1, 2, 4, ... to both sides of the first point
            tried = LONGEST_SEARCH - 1 - left[s]
            length = 1.0 if tried < _BEGINNINGS else 0.0
            for j in range(size):
                step[s, j] = 0.0
            side = -1.0 if tried % 2 == 0 else 1.0
            step[s, tried // 2 % size] = side * 2.0 ** (tried // (2 * size))
        else:
            for j in range(size):
                step[s, j] *= 0.5
            for j in range(size):
                for k in range(size):
                    length += step[s, j] * best_curvature[s, j, k] * step[s, k]
        if not (length > (_SHORT * _SHORT if grew else _SHORTEST * _SHORTEST)):  # also NaN
            left[s] = 0
        for j in range(size):
            at[s, j] = best[s, j] + step[s, j]
            if grew and left[s] == 0 and length <= _SHORT * _SHORT:
                best[s, j] = at[s, j]
