r"""The gradient of a person's marginal log-density, the slow and obvious way.

It is :math:`\nabla_z \log\int e^{\ell(u)}du = \int \nabla_z\ell(u)\,e^{\ell(u)}du \big/ \int
e^{\ell(u)}du`, as sums over a regular grid of eight standard deviations on either side of the mode, which
SciPy finds. All of it is evaluated in Python, one row and one point at a time. The values of a discrete
variable are its grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize

from pymc_dpvi.graph.local_latents import Locals

__all__ = ["marginal_gradient"]

#: Points of the grid in each dimension, by the number of dimensions.
_POINTS = {1: 161, 2: 33, 3: 17}
_WIDTH = 8.0
_STEP = 1e-3  # of second derivatives by differences


def marginal_gradient(
    terms: Callable[..., list[np.ndarray]], rows: Sequence[Sequence[np.ndarray]], z: np.ndarray, local: Locals
) -> np.ndarray:
    """Return the gradient by z, (D,), of a person with these rows.

    `terms` gives the log-density and its gradient by z of ``(*row, local, first, z)``.
    """
    dtype = z.dtype

    def at(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = 0.0, np.zeros(z.shape)
        for k, row in enumerate(rows):
            first = np.asarray([1.0 if k == 0 else 0.0], dtype=dtype)
            found = terms(*row, np.asarray(u, dtype=dtype).reshape(1, -1), first, z)
            value, slope = value + float(found[0]), slope + found[1]
        return value, slope

    grid = local.places.at if not local.places.adaptive else _grid(lambda u: at(u)[0], local.size)
    values, slopes = zip(*(at(u) for u in grid), strict=True)
    logs = np.asarray(values)
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return np.asarray(np.sum([w * slope for w, slope in zip(weights, slopes, strict=True) if w > 0], axis=0))


def _grid(log_density: Callable[[np.ndarray], float], size: int) -> np.ndarray:
    """Return points about the mode, regular in coordinates in which the second derivatives are one."""

    def cost(u: np.ndarray) -> float:
        value = -log_density(u)
        return value if np.isfinite(value) else 1e300

    options = {"xatol": 1e-4, "fatol": 1e-6}
    mode = optimize.minimize(cost, np.zeros(size), method="Nelder-Mead", options=options).x
    hessian, steps = np.empty((size, size)), _STEP * np.eye(size)
    for j, a in enumerate(steps):
        for k, b in enumerate(steps):
            corners = cost(mode + a + b) - cost(mode + a - b) - cost(mode - a + b) + cost(mode - a - b)
            hessian[j, k] = corners / (4 * _STEP**2)
    variances, axes = np.linalg.eigh(hessian)
    widths = 1.0 / np.sqrt(np.clip(np.abs(variances), 1e-2, None))
    points = np.linspace(-_WIDTH, _WIDTH, _POINTS.get(size, 9))
    return np.asarray(mode + np.array(list(itertools.product(points, repeat=size))) * widths @ axes.T)
