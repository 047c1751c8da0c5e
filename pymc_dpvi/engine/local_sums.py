r"""Clipped sums over persons whose local values are integrated out: `unit_sums` with latent values.

The share of person p is the clipped gradient of :math:`\log\int e^{\ell_p(u)}du` by the rule of
`local_rules`,

.. math:: g_p = \sum_k \omega_k \sum_{r \in R_p} \nabla_z \ell_r(u_k), \qquad
          \omega_k \propto w_k \exp\Big(\sum_{r \in R_p} \ell_r(u_k)\Big) ,

where the prior of u counts as a part of the person's first row. Passes over the rows of a batch:

1. *Mode* of the continuous values (`local_modes`).
2. *Fit* (if the rule is `Variational`). A fixed number of Newton steps on expectations under a normal
   distribution, from the mode.
3. *Places*: :math:`u_k = m + S x_k`, where :math:`(S S^\top)^{-1} = L L^\top` is minus the second
   derivatives at the mode. :math:`S = L^{-\top}` after a fit. Otherwise :math:`S = L^{-\top} Q`, whose
   columns are the principal axes (`turn_to_axes`): errors then do not depend on the order of the variables,
   and the worst ones are smaller (`benchmarks/integrals.py`). If there are discrete values, each of their
   combinations has a mode and places of its own.
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

from pymc_dpvi.engine.local_modes import backward, forward, triangle
from pymc_dpvi.numba_cache import kernel

__all__ = [
    "add_log_densities",
    "add_slopes",
    "begin_logs",
    "move_normals",
    "persons_of",
    "place_nodes",
    "rows_at_places",
    "starts_of",
    "turn_to_axes",
    "weigh",
]

#: The longest step of a fit, in standard deviations.
_FAR = 3.0
#: Two axes whose cosine is smaller are taken for orthogonal. Without it, rounding would choose the axes of
#: independent values that are equally wide.
_ORTHOGONAL = 1e-3
#: Most rounds over all pairs of axes; three are usual.
_ROUNDS = 8

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
def persons_of(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover
    """Return each row's person, and 1 for each person's first row, 0 for the others: (rows,)."""
    whose, first = np.zeros(starts[-1], np.int64), np.zeros(starts[-1])
    for p in range(starts.size - 1):
        first[starts[p]] = 1.0
        for i in range(starts[p], starts[p + 1]):
            whose[i] = p
    return whose, first


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
def turn_to_axes(lower: np.ndarray, root: np.ndarray) -> None:  # pragma: no cover
    r"""Turn the columns of ``root = inv(lower).T`` to principal axes, in place.

    They are those of the precision :math:`P = L L^\top` in units of :math:`P_{ii}^{-1/2}`, so that they do
    not depend on the units of the variables. Pairs of columns are turned until they are orthogonal (Hestenes
    1958).
    """
    size = lower.shape[0]
    scale = np.zeros(size)
    for i in range(size):
        for k in range(i + 1):
            scale[i] += lower[i, k] * lower[i, k]
    for _ in range(_ROUNDS):
        turned = False
        for a in range(size - 1):
            for b in range(a + 1, size):
                of_a, of_b, both = 0.0, 0.0, 0.0
                for i in range(size):
                    of_a += scale[i] * root[i, a] * root[i, a]
                    of_b += scale[i] * root[i, b] * root[i, b]
                    both += scale[i] * root[i, a] * root[i, b]
                if not (abs(both) > _ORTHOGONAL * np.sqrt(of_a) * np.sqrt(of_b)):  # also NaN
                    continue
                turned = True
                cot = 0.5 * (of_b - of_a) / both  # of twice the angle
                tan = (1.0 if cot >= 0.0 else -1.0) / (abs(cot) + np.sqrt(1.0 + cot * cot))
                cos = 1.0 / np.sqrt(1.0 + tan * tan)
                for i in range(size):
                    old = root[i, a]
                    root[i, a] = cos * (old - tan * root[i, b])
                    root[i, b] = cos * (tan * old + root[i, b])
        if not turned:
            break


@_kernel
def place_nodes(
    best: np.ndarray, curvature: np.ndarray, nodes: np.ndarray, values: np.ndarray, turned: bool
) -> np.ndarray:  # pragma: no cover
    """Return where each person's integrand is evaluated: (persons, M K, d + e).

    `best` and `curvature` are those of M searches of each person, `nodes` are (K, d), along principal axes
    if they are `turned`. `values` are the combinations of discrete values, (M, e), which come after the
    continuous ones.
    """
    size, count, combinations = best.shape[1], nodes.shape[0], values.shape[0]
    persons = best.shape[0] // combinations
    out = np.empty((persons, combinations * count, size + values.shape[1]))
    lower, root = np.zeros((size, size)), np.zeros((size, size))
    unit, x = np.zeros(size), np.zeros(size)
    for s in range(best.shape[0]):
        p, c = s // combinations, s % combinations
        triangle(curvature[s], lower)
        for k in range(size):
            unit[k] = 1.0
            backward(lower, unit, x)
            unit[k] = 0.0
            for j in range(size):
                root[j, k] = x[j]
        if turned:
            turn_to_axes(lower, root)
        for n in range(count):
            for j in range(size):
                at = best[s, j]
                for k in range(size):
                    at += root[j, k] * nodes[n, k]
                out[p, c * count + n, j] = at
            for j in range(values.shape[1]):
                out[p, c * count + n, size + j] = values[c, j]
    return out


@_kernel
def begin_logs(curvature: np.ndarray, combinations: int, count: int) -> np.ndarray:  # pragma: no cover
    """Return the logarithm of :math:`|L^{-1}|` for each person's places, (persons, M K)."""
    searches, size = curvature.shape[:2]
    out = np.zeros((searches // combinations, combinations * count))
    lower = np.zeros((size, size))
    for s in range(searches):
        p, c = s // combinations, s % combinations
        triangle(curvature[s], lower)
        for j in range(size):
            out[p, c * count : (c + 1) * count] -= np.log(lower[j, j])
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
    lower, new, of_new = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    cross, slope, half, step = np.zeros((size, size)), np.zeros(size), np.zeros(size), np.zeros(size)
    for p in range(mean.shape[0]):
        triangle(precision[p], lower)
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
        if not triangle(new, of_new):
            for i in range(size):
                for j in range(size):
                    new[i, j], of_new[i, j] = precision[p, i, j], lower[i, j]
        length = forward(of_new, slope, half)
        if not (length < np.inf):  # also NaN
            continue
        shorter = min(1.0, _FAR / np.sqrt(length)) if length > 0.0 else 1.0
        backward(of_new, half, step)
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
