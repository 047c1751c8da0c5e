r"""The gradient of a person's marginal log-density, the slow and obvious way.

It is :math:`\int \nabla_z\ell(u)\,e^{\ell(u)}du \big/ \int e^{\ell(u)}du`, as sums over a grid about the
mode, which smaller and smaller grids find: without derivatives, unlike `local_modes`. Its points are the
hyperbolic sines of regular ones, in standard deviations: dense at the mode, and far enough for heavy tails,
kinks and second modes. All of it is evaluated in Python, one row at a time and all points at once. For each
combination of discrete values there is such a grid. Where PyTensor's gradient of the density as written is
no number, differences take its place.

With `Variational`, it is that of the lower bound, whose normal distribution SciPy finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy import optimize

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.graph.batched_ops import stacked, without_loops, written_out
from pymc_dpvi.graph.gradients import Latents, in_draws, put
from pymc_dpvi.graph.local_rules import Places
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import vectorized

__all__ = ["MarginalGradient", "can_integrate"]

#: Points of the grid in each dimension, and how far it reaches, by the number of dimensions.
_POINTS = {1: (1001, 7.0), 2: (61, 5.0), 3: (21, 5.0)}
_NEGLIGIBLE = 1e-30
_FAR = 100.0  # a log-density so far below the largest one adds nothing
_STEP = 1e-3  # of second derivatives by differences
#: Of the search of a mode: points of a grid in each dimension, half its width at the end, and most grids.
_ACROSS, _SMALLEST, _GRIDS = 9, 1e-4, 80
#: Coordinates of the points of which the best begins the search of a mode: at zero there may be no density.
_BEGIN = np.array([0.0, -0.5, 0.5, -1.0, 1.0, -2.0, 2.0, -4.0, 4.0, -8.0, 8.0])


def can_integrate(record: RecordModel) -> bool:
    """Whether a person has no local values, or so few that a grid is not too large."""
    return record.local is None or record.local.places.continuous in (0, *_POINTS)


class MarginalGradient:
    """The gradient of a person's log-density with local values integrated out."""

    def __init__(self, record: RecordModel, latents: Latents) -> None:
        assert record.local is not None
        self._local = record.local
        z = pt.vector("z", shape=(latents.size,), dtype=pytensor.config.floatX)
        (density,), draw = in_draws([record.row_logp], latents)
        with quiet_pytensor():
            grads = pytensor.grad(density, draw, disconnected_inputs="ignore", return_disconnected="zero")
        slope = pt.concatenate([g.flatten() for g in grads])
        own = record.rows[len(record.arrays)]
        points = own.type.clone(shape=(None, *own.type.shape))()
        one = written_out(put([density, slope], draw, latents.split(z)))
        graphs = stacked(without_loops(vectorized(one, {own: points})))
        inputs = [*(points if r is own else r for r in record.rows), z]
        self._terms = python_function(inputs, graphs)
        self._densities = python_function(inputs, graphs[:1])

    def at(
        self, rows: Sequence[Sequence[np.ndarray]], z: np.ndarray, points: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density, (K,), and its gradient by z, (K, D), at local values, (K, size)."""
        values, slopes = self._sums(self._terms, rows, z, points)
        values, slopes = values + np.zeros(len(points)), slopes + np.zeros((len(points), z.size))
        top = np.max(values, where=np.isfinite(values), initial=-np.inf)
        no_number = ~np.isfinite(slopes).all(axis=1) & (values > top - _FAR) & np.isfinite(values)
        if no_number.any():
            slopes[no_number] = self._differences(rows, z, points[no_number])
        return values, slopes

    def _differences(
        self, rows: Sequence[Sequence[np.ndarray]], z: np.ndarray, points: np.ndarray
    ) -> np.ndarray:
        """Return slopes by differences, (K, D): as written, that of a Bernoulli at p = 0 is NaN."""
        step = np.cbrt(np.finfo(z.dtype).eps)
        moves = (step * np.maximum(np.abs(z), 1.0) * np.eye(z.size)).astype(z.dtype)
        ends = [[self._sums(self._densities, rows, z + s * m, points)[0] for s in (1, -1)] for m in moves]
        one = [(above - below) / (2.0 * m.max()) for (above, below), m in zip(ends, moves, strict=True)]
        return np.stack([d + np.zeros(len(points)) for d in one], axis=1)

    def _sums(
        self,
        terms: Callable[..., list[np.ndarray]],
        rows: Sequence[Sequence[np.ndarray]],
        z: np.ndarray,
        points: np.ndarray,
    ) -> list[np.ndarray]:
        at, first = points[:, None].astype(z.dtype), np.eye(len(rows), 1, dtype=z.dtype)
        with np.errstate(all="ignore"):
            found = [terms(*row, at, is_first, z) for row, is_first in zip(rows, first, strict=True)]
        return [np.sum(of_rows, axis=0) for of_rows in zip(*found, strict=True)]

    def _fine_grid(
        self, rows: Sequence[Sequence[np.ndarray]], z: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rule = self._local.places
        points, log_weights = [], []
        for values in rule.values:

            def beside(u: np.ndarray, values: np.ndarray = values) -> np.ndarray:
                return np.concatenate([u, np.broadcast_to(values, (len(u), values.size))], axis=1)

            def density(u: np.ndarray, beside: Callable[[np.ndarray], np.ndarray] = beside) -> np.ndarray:
                return self._sums(self._densities, rows, z, beside(u))[0]

            grid, of_grid = _grid(density, rule.continuous)
            points.append(beside(grid))
            log_weights.append(of_grid)
        return np.concatenate(points), np.concatenate(log_weights)

    def error_at(
        self,
        rows: Sequence[Sequence[np.ndarray]],
        z: np.ndarray,
        points: np.ndarray,
        log_weights: np.ndarray,
        fine: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> float:
        """Return how far the gradient by these points is from that by finer ones, in its terms' own size.

        The finer ones are a grid about the mode, if none are given.
        """
        exact, size = self._integral(rows, z, *(fine or self._fine_grid(rows, z)))
        values, slopes = self.at(rows, z, points)
        found = _mean(values, slopes, log_weights)[0] if np.isfinite(values).any() else 0.0
        return float(np.linalg.norm(found - exact) / size)

    def __call__(self, rows: Sequence[Sequence[np.ndarray]], z: np.ndarray) -> np.ndarray:
        """Return the gradient by z, (D,), of a person with these rows: of each, an entry of all arrays."""
        places = self._local.places
        if places.steps:
            points = _best_normal(lambda u: self._sums(self._densities, rows, z, u)[0], places)
            return np.asarray(places.weights @ self.at(rows, z, points)[1])
        return self._integral(rows, z, *self._fine_grid(rows, z))[0]

    def _integral(
        self, rows: Sequence[Sequence[np.ndarray]], z: np.ndarray, points: np.ndarray, log_weights: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the mean over those points that count (`_mean`)."""
        values = self._sums(self._densities, rows, z, points)[0] + np.zeros(len(points))
        logs = np.where(np.isfinite(values), values + log_weights, -np.inf)
        some = logs > logs.max() - 2.0 * _FAR
        some |= ~some.any()
        return _mean(*self.at(rows, z, points[some]), log_weights[some])


def _mean(values: np.ndarray, slopes: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean of gradients by the posterior, (D,), and the root of their mean squared length."""
    logs = np.where(np.isfinite(values), values + log_weights, -np.inf)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    some = weights > _NEGLIGIBLE  # far away, a gradient may be no number
    squares = weights[some] @ np.sum(slopes[some] ** 2, axis=1)
    return np.asarray(weights[some] @ slopes[some]), float(np.sqrt(squares))


def _best_normal(log_density: Callable[[np.ndarray], np.ndarray], places: Places) -> np.ndarray:
    """Return the places under the normal distribution with the largest lower bound, (K, size)."""
    size = places.at.shape[1]
    below = np.tril_indices(size, -1)

    def at(v: np.ndarray) -> np.ndarray:
        root = np.diag(np.exp(v[size : 2 * size]))
        root[below] = v[2 * size :]
        return np.asarray(v[:size] + places.at @ root.T)

    def cost(v: np.ndarray) -> float:
        bound = float(places.weights @ log_density(at(v)) + v[size : 2 * size].sum())
        return -bound if np.isfinite(bound) else 1e300

    found = np.zeros(2 * size + len(below[0]))
    for _ in range(2):  # from where it stopped, with a new simplex
        options = {"xatol": 1e-5, "fatol": 1e-8, "maxiter": 10_000, "maxfev": 10_000}
        found = optimize.minimize(cost, found, method="Nelder-Mead", options=options).x
    return at(found)


def _grid(log_density: Callable[[np.ndarray], np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points about the mode, dense there and far apart beyond, and the logs of their weights."""
    if size == 0:
        return np.zeros((1, 0)), np.zeros(1)

    def values(points: np.ndarray) -> np.ndarray:
        found = log_density(points) + np.zeros(len(points))
        return np.where(np.isfinite(found), found, -1e300)

    begin = np.array(list(itertools.product(_BEGIN, repeat=size)))
    mode, half = begin[np.argmax(values(begin))], 2.0
    one = np.array(list(itertools.product(np.linspace(-1.0, 1.0, _ACROSS), repeat=size)))
    one = one[np.argsort(np.max(np.abs(one), axis=1), kind="stable")]  # of equal values, the nearest
    for _ in range(_GRIDS):
        move = one[np.argmax(values(mode + half * one))]
        mode = mode + half * move
        if np.max(np.abs(move)) <= 0.5:  # further away, the next grid is as wide
            half /= 2.0
        if half < _SMALLEST:
            break
    steps = _STEP * np.eye(size)
    ends = [i * a + j * b for a in steps for b in steps for i in (1, -1) for j in (1, -1)]
    corners = values(mode + np.array(ends)).reshape(size, size, 4) @ [-1.0, 1.0, 1.0, -1.0]
    variances, axes = np.linalg.eigh(corners / (4 * _STEP**2))
    widths = 1.0 / np.sqrt(np.clip(np.abs(variances), 1e-2, 1e4))
    count, far = _POINTS[size]
    s = np.linspace(-far, far, count)
    points = np.array(list(itertools.product(np.sinh(s), repeat=size)))
    log_weights = np.array([sum(w) for w in itertools.product(np.log(np.cosh(s)), repeat=size)])
    return mode + points * widths @ axes.T, log_weights + np.log(widths).sum()
