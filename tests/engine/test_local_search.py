"""The search of persons' modes against SciPy's, where densities are not concave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import optimize

from pymc_dpvi.engine.local_search import find_modes
from pymc_dpvi.graph.local_rules import places_of
from pymc_dpvi.graph.synthetic_records import python_function

ROWS, PERSONS = 5, 40
RNG = np.random.default_rng(9)
X = RNG.uniform(0, 2, size=(PERSONS, ROWS))
Y = 2 * RNG.normal(size=(PERSONS, 1)) + 3 * np.exp(RNG.normal(size=(PERSONS, 1))) * X
Y += 0.3 * RNG.normal(size=X.shape)


def responses(u: Any, y: Any, x: Any) -> Any:
    return -0.5 * ((y - u[0] - pt.exp(1 + u[1]) * x) / 0.3) ** 2


def growth(u: Any, y: Any, x: Any) -> Any:
    return -0.5 * ((y - pt.exp(1 + u[0]) * pt.sigmoid(4 * (x - u[1]))) / 0.3) ** 2


def outliers(u: Any, y: Any, x: Any) -> Any:
    return -2.0 * pt.log1p((y - u[0] - u[1] * x) ** 2)


def own_spread(u: Any, y: Any, x: Any) -> Any:
    return -0.5 * ((y - u[0] - u[2] * x) / pt.exp(u[1])) ** 2 - u[1]


def reactions(u: Any, y: Any, x: Any) -> Any:
    """A lognormal time after an own delay: where the search begins, most have no density."""
    time = x + 0.05 - pt.exp(u[0] - 1)
    log_time = pt.log(pt.switch(time > 0, time, 1.0))
    return pt.switch(time > 0, -0.5 * ((log_time - u[1]) / 0.5) ** 2 - log_time, -np.inf)


MODELS = [(responses, 2), (growth, 2), (outliers, 2), (own_spread, 3), (reactions, 2)]


@pytest.mark.parametrize(("terms", "size"), MODELS)
def test_a_search_ends_at_a_mode(terms: Callable[..., Any], size: int):
    u, y, x = pt.matrix("u", shape=(None, size)), pt.vector("y"), pt.vector("x")
    value = terms(u.T, y, x) - 0.5 * (u**2).sum(axis=1) / ROWS
    slope = pytensor.grad(value.sum(), u)
    curved = pt.stack([pytensor.grad(slope[:, j].sum(), u) for j in range(size)], axis=1)
    rows = python_function([u, y, x], [value, slope, curved])

    y_rows, x_rows = Y.ravel(), X.ravel()

    def derivatives(places: np.ndarray, at: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return list(rows(at, y_rows[places], x_rows[places]))

    def cost(v: np.ndarray, p: int) -> tuple[float, np.ndarray]:
        values, slopes, _ = derivatives(np.arange(ROWS) + ROWS * p, np.tile(v, (ROWS, 1)))
        return (-float(values.sum()), -slopes.sum(axis=0)) if np.isfinite(values).all() else (1e300, 0.0 * v)

    starts = np.arange(0, ROWS * PERSONS + 1, ROWS)
    modes, curvature = find_modes(derivatives, starts, places_of(size, None, []))
    assert (np.linalg.eigvalsh(curvature) > 0).all()
    for p, mode in enumerate(modes):
        assert cost(mode, p)[0] < 1e300, (p, mode)
        best = optimize.minimize(cost, mode, (p,), jac=True)
        assert cost(mode, p)[0] - best.fun < 0.02, (p, mode, best.x)
