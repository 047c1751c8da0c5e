"""Regressions on people with several rows, drawn at random, and wages of men in eight years.

A seed makes a problem: 500 to 20,000 persons with 1 to 50 rows each, heavy-tailed (most have few, some have
fifty), predictors of rows and of persons, a random intercept or a random intercept and slope, and an outcome
that is normal, binary or a count. The truth comes from the model's own prior. `DEVELOPMENT` and `JUDGEMENT`
are the first seeds of two ranges, as in `calibration_problems`.

The posterior without privacy is found as lme4 does it: the persons' values are integrated out (in closed form
where the outcome is normal, over a fine grid elsewhere), and the rest is a normal at the mode. Nothing of the
library is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import read_table
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = ["DEVELOPMENT", "FAMILIES", "JUDGEMENT", "PersonProblem", "draw_problem", "reference", "wages"]

Array = NDArray[Any]

#: First seeds of the two ranges.
DEVELOPMENT, JUDGEMENT = 0, 1_000_000
FAMILIES = ("normal_intercepts", "logistic_intercepts", "poisson_intercepts", "normal_slopes")
MOST_ROWS = 50
_PERSONS = (500, 20_000)
_PREDICTORS = 5


@dataclass(frozen=True)
class PersonProblem:
    """One design with data.

    Attributes
    ----------
    family : str
    x : ndarray, shape (rows, D)
        The first column is 1; the second is what random slopes belong to.
    y : ndarray, shape (rows,)
    person : ndarray of int, shape (rows,)
        From 0 on, in order.
    prior_stddev : float
        Of the coefficients.
    truth : dict
        By variable, as the model names them; empty for real data.
    """

    family: str
    x: Array
    y: Array
    person: Array
    prior_stddev: float
    truth: dict[str, Array]

    @property
    def num_persons(self) -> int:
        """N."""
        return int(self.person[-1]) + 1

    @property
    def scales(self) -> tuple[str, ...]:
        """Names of the positive variables."""
        slopes = ("tau_slope",) if self.family == "normal_slopes" else ()
        return ("tau", *slopes, *(("sigma",) if self.family.startswith("normal") else ()))

    @property
    def scale_stddev(self) -> float:
        """Of the scales' half-normal prior."""
        return 0.5 if self.family == "poisson_intercepts" else 1.0

    def model(self) -> Any:
        """Write the model as a statistician does, with a value for each person."""
        import pymc as pm

        with pm.Model(coords={"who": np.arange(self.num_persons)}) as made:
            person = pm.Data("person", self.person)
            eta = self._fixed(pm)
            u = pm.Normal("u", 0.0, pm.HalfNormal("tau", self.scale_stddev), dims="who")
            eta = eta + u[person]
            if self.family == "normal_slopes":
                v = pm.Normal("v", 0.0, pm.HalfNormal("tau_slope", self.scale_stddev), dims="who")
                eta = eta + v[person] * made["slope_of"]
            self._outcome(pm, eta)
        return made

    def pooled(self, rows: Array | None = None) -> Any:
        """Write the model of some rows without values of persons: all that a fit by row admits."""
        import pymc as pm

        with pm.Model() as made:
            self._outcome(pm, self._fixed(pm, rows), rows)
        return made

    def _fixed(self, pm: Any, rows: Array | None = None) -> Any:
        x = self.x if rows is None else self.x[rows]
        beta = pm.Normal("beta", 0.0, self.prior_stddev, shape=x.shape[1])
        if rows is None and self.family == "normal_slopes":
            pm.Data("slope_of", x[:, 1])
        return pm.Data("x", x) @ beta

    def _outcome(self, pm: Any, eta: Any, rows: Array | None = None) -> None:
        y = pm.Data("y_data", self.y if rows is None else self.y[rows])
        if self.family == "logistic_intercepts":
            pm.Bernoulli("y", logit_p=pm.math.clip(eta, -30, 30), observed=y)
        elif self.family == "poisson_intercepts":
            pm.Poisson("y", pm.math.exp(pm.math.clip(eta, -30, 12)), observed=y)
        else:
            pm.Normal("y", eta, pm.HalfNormal("sigma", self.scale_stddev), observed=y)

    def some_rows(self, most: int, rng: np.random.Generator) -> Array:
        """Return places of rows, at most so many of each person, drawn at random."""
        order = np.lexsort((rng.random(len(self.person)), self.person))
        first = np.searchsorted(self.person, self.person)
        return np.sort(order[np.arange(len(order)) - first < most])

    def split(self, u: Array) -> dict[str, Array]:
        """Return variables by name for unconstrained vectors, shape ``(draws, size)``."""
        d = self.x.shape[1]
        return {"beta": u[:, :d], **{name: np.exp(u[:, d + k]) for k, name in enumerate(self.scales)}}

    def log_joint(self, u: Array) -> float:
        """Log posterior density of ``(beta, log scales)`` up to a constant, the persons integrated out."""
        d = self.x.shape[1]
        scales = dict(zip(self.scales, np.exp(u[d:]), strict=True))
        value = -0.5 * float(np.sum((u[:d] / self.prior_stddev) ** 2))
        value += float(sum(u[d:]) - 0.5 * sum((s / self.scale_stddev) ** 2 for s in scales.values()))
        eta = self.x @ u[:d]
        return value + (self._normal(eta, scales) if "sigma" in scales else self._on_grid(eta, scales["tau"]))

    def _normal(self, eta: Array, scales: Mapping[str, float]) -> float:
        """By the matrix-determinant lemma and Woodbury's formula, person by person."""
        noise = scales["sigma"] ** 2
        columns = [np.full(len(eta), scales["tau"])]
        if "tau_slope" in scales:
            columns.append(self.x[:, 1] * scales["tau_slope"])
        z, apart = np.stack(columns, axis=1), self.y - eta
        starts = np.searchsorted(self.person, np.arange(self.num_persons))
        inner = np.eye(z.shape[1]) + np.add.reduceat(z[:, :, None] * z[:, None, :], starts) / noise
        by_person = np.add.reduceat(z * apart[:, None], starts)
        solved = np.linalg.solve(inner, by_person[..., None])[..., 0]
        square = np.sum(apart**2) / noise - np.sum(by_person * solved) / noise**2
        determinants = np.linalg.slogdet(inner)[1].sum() + len(eta) * np.log(noise)
        return -0.5 * float(square + determinants)

    def _on_grid(self, eta: Array, tau: float) -> float:
        """By the trapezoidal rule, whose error falls exponentially for what is as smooth as this."""
        starts = np.searchsorted(self.person, np.arange(self.num_persons))
        if self.family == "poisson_intercepts":
            grid = np.linspace(-6.0, 6.0, 961)  # fifty counts of a person tell much
            sums = np.add.reduceat(np.stack([self.y, np.exp(np.clip(eta, -30, 12))], axis=1), starts)
            by_person = sums[:, :1] * tau * grid - sums[:, 1:] * np.exp(tau * grid)
            fixed = float(self.y @ eta)
        else:
            grid, fixed = np.linspace(-6.0, 6.0, 121), 0.0
            at = np.where(self.y > 0, -1.0, 1.0)[:, None] * (eta[:, None] + tau * grid)
            by_person = np.add.reduceat(-np.logaddexp(0.0, at), starts)
        return fixed + float(np.sum(special.logsumexp(by_person - 0.5 * grid**2, axis=1)))


def draw_problem(seed: int) -> PersonProblem:
    """Draw the problem of a seed, in one of the ranges."""
    rng = np.random.default_rng([27, seed])
    family = FAMILIES[seed % len(FAMILIES)]
    n = round(float(np.exp(rng.uniform(*np.log(_PERSONS)))))
    heavy = np.arange(1, MOST_ROWS + 1) ** -rng.uniform(1.2, 2.2)
    rows = rng.choice(MOST_ROWS, n, p=heavy / heavy.sum()) + 1
    person = np.repeat(np.arange(n), rows)
    x = rng.standard_normal((len(person), _PREDICTORS))
    x[:, 0] = 1.0
    x[:, 3] = rng.standard_normal(n)[person]  # of a person
    x[:, 4] = (rng.random(n) < rng.uniform(0.1, 0.5))[person]
    stddev = float(rng.choice((0.3, 0.6, 1.0))) / np.sqrt(_PREDICTORS)
    problem = PersonProblem(family, x, np.zeros(len(x)), person, stddev, {})
    truth = {"beta": stddev * rng.standard_normal(_PREDICTORS)}
    truth |= {s: np.asarray(problem.scale_stddev * abs(rng.standard_normal())) for s in problem.scales}
    eta = x @ truth["beta"] + truth["tau"] * rng.standard_normal(n)[person]
    if "tau_slope" in truth:
        eta = eta + truth["tau_slope"] * rng.standard_normal(n)[person] * x[:, 1]
    if family == "logistic_intercepts":
        y = (rng.random(len(eta)) < special.expit(eta)).astype(np.int64)
    elif family == "poisson_intercepts":
        y = rng.poisson(np.exp(np.clip(eta, -30, 12)))
    else:
        y = eta + truth["sigma"] * rng.standard_normal(len(eta))
    return PersonProblem(family, x, y, person, stddev, truth)


def wages() -> PersonProblem:
    """545 young men, each asked in eight years what he earns (Vella and Verbeek 1998)."""
    table = {name: np.array(column, dtype=float) for name, column in read_table("wages.csv.gz").items()}
    person = np.unique(table["nr"].astype(int), return_inverse=True)[1]
    order = np.argsort(person, kind="stable")
    x = np.column_stack(
        [
            np.ones(len(person)),
            (table["year"] - 1980) / 7,
            (table["educ"] - 12) / 4,
            table["union"],
            table["married"],
        ]
    )
    wage = table["lwage"] - np.log(6)  # against six dollars an hour, which is known without these men
    return PersonProblem("normal_intercepts", x[order], wage[order], person[order], 0.5, {})


def reference(problem: PersonProblem, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draw from the normal at the mode of the posterior without privacy, the scales on their logarithms."""
    size = problem.x.shape[1] + len(problem.scales)

    def negative(u: Array) -> float:
        return -problem.log_joint(u)

    start = np.concatenate([np.zeros(problem.x.shape[1]), np.full(len(problem.scales), -0.5)])
    mode = optimize.minimize(negative, start, method="BFGS", options={"gtol": 1e-3}).x
    step = 1e-3 * np.eye(size)
    here = negative(mode)
    one = [negative(mode + e) for e in step]
    back = [negative(mode - e) for e in step]
    hessian = np.zeros((size, size))
    for i in range(size):
        hessian[i, i] = (one[i] - 2 * here + back[i]) / 1e-6
        for j in range(i):
            both = negative(mode + step[i] + step[j]) + negative(mode - step[i] - step[j])
            hessian[i, j] = hessian[j, i] = (both - one[i] - one[j] - back[i] - back[j] + 2 * here) / 2e-6
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, 1e-3))  # a spread near zero is flat on its logarithm
    return problem.split(mode + rng.standard_normal((draws, size)) @ root.T)
