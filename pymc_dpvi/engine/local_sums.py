r"""Clipped sums over persons whose local values are integrated out: `unit_sums` with latent values.

The share of person p is the clipped gradient of :math:`\log\int e^{\ell_p(u)}du` by the rule of
`local_rules`,

.. math:: g_p = \sum_k \omega_k \sum_{r \in R_p} \nabla_z \ell_r(u_k), \qquad
          \omega_k \propto w_k \exp\Big(\sum_{r \in R_p} \ell_r(u_k)\Big) ,

where the prior of u counts as a part of the person's first row. Passes over the rows of a batch:

1. *Mode* (if the places are adaptive). Newton's method, from a point near 0, for all persons at once,
   each with a step that is halved until the density grows. A person is left alone once a step is short beside
   the width of the posterior.
2. *Fit* (if the rule is `Variational`). A fixed number of Newton steps on expectations under a normal
   distribution, from the mode.
3. *Places*: :math:`u_k = m + L^{-\top} x_k`, where :math:`L L^\top` is minus the second derivatives
   at the mode.
4. *Weights*: the log-density of each row at all places, added up by person; those of the rule itself after a
   fit.
5. *Gradients* of :math:`\sum_k \omega_k \ell_r(u_k)` with the places and weights held, one for each row,
   which are added up and clipped as those of any row (`unit_sums`). What a row computes without the local
   values, such as :math:`x_r^\top\beta`, it computes once in a pass, not once at each place.

Every number of a person follows from the rows of that person and from public values, in a fixed order of
additions. So a share is the same in every batch, and the proof is the one of `unit_sums`: whatever a
share is, it is clipped.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.numba_cache import kernel

__all__ = [
    "LONGEST_SEARCH",
    "add_derivatives",
    "add_log_densities",
    "add_slopes",
    "begin_search",
    "first_rows",
    "move",
    "move_normals",
    "of_open",
    "place_nodes",
    "rows_at_places",
    "rows_of_search",
    "starts_of",
    "weigh",
]

#: Most evaluations in the search of a mode.
LONGEST_SEARCH = 40
#: A search ends with a step that is shorter than this, in standard deviations: the next one would be about
#: the square of it.
_SHORT = 0.1

#: The longest step of a fit, in standard deviations.
_FAR = 3.0

_kernel = kernel(fastmath=False)


@_kernel
def starts_of(marked: np.ndarray, count: int) -> np.ndarray:  # pragma: no cover
    """Return where in the batch each person begins, and where the last one ends: (persons + 1,)."""
    persons = 0
    for i in range(count):
        persons += marked[i] & 1
    out = np.zeros(persons + 1, np.int64)
    p = 0
    for i in range(count):
        if marked[i] & 1:
            p += 1
            out[p] = i + 1
    return out


@_kernel
def first_rows(starts: np.ndarray) -> np.ndarray:  # pragma: no cover
    """Return 1 for each person's first row, 0 for the others: (rows,)."""
    out = np.zeros(starts[-1])
    for p in range(starts.size - 1):
        out[starts[p]] = 1.0
    return out


@_kernel
def begin_search(persons: int, size: int) -> tuple[np.ndarray, ...]:  # pragma: no cover
    """Return the state of the searches.

    They are: the points to evaluate, the best points, the steps from these, (persons, size); the best
    log-densities and the numbers of evaluations left, (persons,); minus the second derivatives at the
    best points, (persons, size, size), the identity to begin with.
    """
    curvature, at = np.zeros((persons, size, size)), np.empty((persons, size))
    for p in range(persons):
        for j in range(size):
            curvature[p, j, j] = 1.0
            at[p, j] = 0.1 * (-0.7) ** j  # not zero, where the density may have a saddle by symmetry
    return (
        at,
        at.copy(),
        np.zeros((persons, size)),
        np.full(persons, -np.inf),
        np.full(persons, LONGEST_SEARCH),
        curvature,
    )


@_kernel
def of_open(starts: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover
    """Return the places in the batch of the rows of persons whose search goes on, and whose they are."""
    rows = 0
    for p in range(left.size):
        if left[p] > 0:
            rows += starts[p + 1] - starts[p]
    places, whose = np.empty(rows, np.int64), np.empty(rows, np.int64)
    k = 0
    for p in range(left.size):
        if left[p] > 0:
            for i in range(starts[p], starts[p + 1]):
                places[k], whose[k] = i, p
                k += 1
    return places, whose


@_kernel
def rows_of_search(
    rows: np.ndarray,
    begins: np.ndarray,
    places: np.ndarray,
    whose: np.ndarray,
    at: np.ndarray,
    first: int,
    length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover
    """Return the rows of a microbatch of the search, their local values, and whether a person begins there.

    Copies of the last row fill it up; without any row, it is the first of the data, at zero.
    """
    window, begin = np.zeros(length, np.int64), np.zeros(length)
    local = np.zeros((length, at.shape[1]))
    for j in range(length if places.size else 0):
        t = min(first + j, places.size - 1)
        window[j], begin[j] = rows[places[t]], begins[places[t]]
        for k in range(at.shape[1]):
            local[j, k] = at[whose[t], k]
    return window, local, begin


@_kernel
def rows_at_places(
    rows: np.ndarray,
    begins: np.ndarray,
    whose: np.ndarray,
    nodes: np.ndarray,
    node_weights: np.ndarray,
    first: int,
    length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover
    """Return the rows of a microbatch, whether a person begins there, their places, and weights of these.

    The places are (length, K, size), the weights (length, K). Copies of the last row fill it up; without any
    row, it is the first of the data, at zero.
    """
    window, begin = np.zeros(length, np.int64), np.zeros(length)
    placed, weights = np.zeros((length, *nodes.shape[1:])), np.zeros((length, nodes.shape[1]))
    for j in range(length if whose.size else 0):
        i = min(first + j, whose.size - 1)
        window[j], begin[j] = rows[i], begins[i]
        for k in range(nodes.shape[1]):
            weights[j, k] = node_weights[whose[i], k]
            for d in range(nodes.shape[2]):
                placed[j, k, d] = nodes[whose[i], k, d]
    return window, begin, placed, weights


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
    """Add rows' log-densities and derivatives to those of their persons."""
    for i in range(count):
        p = whose[first + i]
        values[p] += np.float64(value[i])
        for j in range(slope.shape[1]):
            slopes[p, j] += np.float64(slope[i, j])
            for k in range(slope.shape[1]):
                curvatures[p, j, k] -= np.float64(curvature[i, j, k])


@_kernel
def _triangle(matrix: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover
    """Cholesky's factor; a pivot that is not positive is replaced, so that there always is one."""
    size = matrix.shape[0]
    for j in range(size):
        for i in range(j, size):
            total = matrix[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            if i == j:
                if not (total > 1e-10 * (1e-10 + abs(matrix[j, j]))):  # also NaN
                    total = abs(matrix[j, j])
                    if not (1e-8 < total < np.inf):
                        total = 1.0
                out[j, j] = np.sqrt(total)
            else:
                out[i, j] = total / out[j, j]


@_kernel
def _is_positive(matrix: np.ndarray, out: np.ndarray) -> bool:  # pragma: no cover
    """Cholesky's factor, and whether there is one."""
    size = matrix.shape[0]
    for j in range(size):
        for i in range(j, size):
            total = matrix[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            if i > j:
                out[i, j] = total / out[j, j]
            elif 1e-10 * abs(matrix[j, j]) < total < np.inf:  # False for NaN
                out[j, j] = np.sqrt(total)
            else:
                return False
    return True


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
    for p in range(left.size):
        if left[p] <= 0:
            continue
        left[p] -= 1
        length, grew = 0.0, values[p] > best_value[p]
        if grew:
            best_value[p] = values[p]
            _triangle(curvatures[p], lower)
            for j in range(size):  # lower @ half = slope
                total = slopes[p, j]
                for k in range(j):
                    total -= lower[j, k] * half[k]
                half[j] = total / lower[j, j]
                length += half[j] * half[j]
            for j in range(size - 1, -1, -1):  # lower.T @ step = half
                total = half[j]
                for k in range(j + 1, size):
                    total -= lower[k, j] * step[p, k]
                step[p, j] = total / lower[j, j]
            for j in range(size):
                best[p, j] = at[p, j]
                for k in range(size):
                    best_curvature[p, j, k] = curvatures[p, j, k]
        else:
            for j in range(size):
                step[p, j] *= 0.5
                for k in range(size):
                    length += step[p, j] * best_curvature[p, j, k] * step[p, k]
        if not (length > _SHORT * _SHORT):  # also NaN
            left[p] = 0
        for j in range(size):
            at[p, j] = best[p, j] + step[p, j]
            if grew and left[p] == 0 and length <= _SHORT * _SHORT:
                best[p, j] = at[p, j]


@_kernel
def place_nodes(
    best: np.ndarray, curvature: np.ndarray, nodes: np.ndarray, adaptive: bool
) -> np.ndarray:  # pragma: no cover
    """Return where each person's integrand is evaluated: (persons, K, size)."""
    persons, size = best.shape
    out = np.empty((persons, nodes.shape[0], size))
    lower, x = np.zeros((size, size)), np.zeros(size)
    for p in range(persons):
        if adaptive:
            _triangle(curvature[p], lower)
        for n in range(nodes.shape[0]):
            if adaptive:
                for j in range(size - 1, -1, -1):  # lower.T @ x = node
                    total = nodes[n, j]
                    for k in range(j + 1, size):
                        total -= lower[k, j] * x[k]
                    x[j] = total / lower[j, j]
                    out[p, n, j] = best[p, j] + x[j]
            else:
                for j in range(size):
                    out[p, n, j] = nodes[n, j]
    return out


@_kernel
def add_log_densities(
    values: np.ndarray, whose: np.ndarray, first: int, count: int, logs: np.ndarray
) -> None:  # pragma: no cover
    """Add rows' log-densities at their places, (length, K), to those of their persons, (persons, K)."""
    for i in range(count):
        p = whose[first + i]
        for k in range(logs.shape[1]):
            logs[p, k] += np.float64(values[i, k])


@_kernel
def add_slopes(
    values: np.ndarray, whose: np.ndarray, first: int, count: int, slopes: np.ndarray
) -> None:  # pragma: no cover
    """Add rows' slopes at their places, (length, K, size), to those of their persons, (persons, K, size)."""
    for i in range(count):
        p = whose[first + i]
        for k in range(slopes.shape[1]):
            for j in range(slopes.shape[2]):
                slopes[p, k, j] += np.float64(values[i, k, j])


@_kernel
def move_normals(
    slopes: np.ndarray, nodes: np.ndarray, weights: np.ndarray, mean: np.ndarray, precision: np.ndarray
) -> None:  # pragma: no cover
    """Move each person's normal distribution one step towards the best one (`local_rules`).

    `slopes` are those of the log-density at its places, (persons, K, size), `weights` those of the rule,
    (K,). A step is no longer than `_FAR`, and a precision that would be no number, or not positive definite,
    stays as it is.
    """
    size = mean.shape[1]
    lower, new, triangle = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    cross, slope, half, step = np.zeros((size, size)), np.zeros(size), np.zeros(size), np.zeros(size)
    for p in range(mean.shape[0]):
        _triangle(precision[p], lower)
        slope[:] = 0.0
        cross[:] = 0.0
        for k in range(weights.size):
            for i in range(size):
                weighted = weights[k] * slopes[p, k, i]
                slope[i] += weighted
                for j in range(size):
                    cross[i, j] += weighted * nodes[k, j]
        for i in range(size):
            for j in range(size):
                new[i, j] = 0.0
        for i in range(size):  # half of the old one, half of minus the symmetric part of cross @ lower.T
            for j in range(size):
                new[i, j] += 0.5 * precision[p, i, j]
                total = 0.0
                for k in range(j + 1):
                    total += cross[i, k] * lower[j, k]
                new[i, j] -= 0.25 * total
                new[j, i] -= 0.25 * total
        if not _is_positive(new, triangle):
            for i in range(size):
                for j in range(size):
                    new[i, j], triangle[i, j] = precision[p, i, j], lower[i, j]
        length = 0.0
        for j in range(size):  # triangle @ half = slope
            total = slope[j]
            for k in range(j):
                total -= triangle[j, k] * half[k]
            half[j] = total / triangle[j, j]
            length += half[j] * half[j]
        if not (length < np.inf):  # also NaN
            continue
        shorter = min(1.0, _FAR / np.sqrt(length)) if length > 0.0 else 1.0
        for j in range(size - 1, -1, -1):  # triangle.T @ step = half
            total = half[j]
            for k in range(j + 1, size):
                total -= triangle[k, j] * step[k]
            step[j] = total / triangle[j, j]
        for i in range(size):
            mean[p, i] += shorter * step[i]
            for j in range(size):
                precision[p, i, j] = new[i, j]


@_kernel
def weigh(logs: np.ndarray, log_weights: np.ndarray, placed: np.ndarray) -> np.ndarray:  # pragma: no cover
    """Return the weights of each person's places, (persons, K); those of a person add up to one.

    `log_weights` are those of the rule, (K,). A place that has none takes the position of the one that has
    most, in `placed`, since its gradient may be no number. A person with no density at all has NaN, and so
    counts as zero.
    """
    weights = np.zeros(logs.shape)
    for p in range(logs.shape[0]):
        best, unknown, total = 0, 0, 0.0
        for k in range(log_weights.size):
            weights[p, k] = logs[p, k] + log_weights[k]
            if not (weights[p, k] < np.inf):  # NaN and infinity: a place that does not count
                weights[p, k] = -np.inf
                unknown += 1
            if weights[p, k] > weights[p, best]:
                best = k
        top = weights[p, best]
        for k in range(log_weights.size):
            weights[p, k] = np.exp(weights[p, k] - top) if top > -np.inf else 0.0
            total += weights[p, k]
        for k in range(log_weights.size):
            weights[p, k] = np.nan if unknown == log_weights.size else weights[p, k] / max(total, 1.0)
            if weights[p, k] == 0.0:
                for d in range(placed.shape[2]):
                    placed[p, k, d] = placed[p, best, d]
    return weights
