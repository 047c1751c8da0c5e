"""Regression problems drawn at random, on which calibration is judged: nobody chose the designs one by one.

A seed decides on everything: the family, the numbers of records and predictors, correlation, skew, heavy
tails, rare binaries, the scale of the prior, and the truth, which comes from the model's own prior or is
smaller, larger or sparse. Two ranges of seeds are kept apart: defaults are chosen on `DEVELOPMENT`;
`JUDGEMENT` is looked at once per decision, and reported whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

__all__ = ["DEVELOPMENT", "FAMILIES", "JUDGEMENT", "Problem", "draw_problem", "reference"]

Array = NDArray[np.float64]
Draws = Mapping[str, NDArray[np.float64]]

#: First seeds of the two ranges.
DEVELOPMENT, JUDGEMENT = 0, 1_000_000
FAMILIES = ("logistic", "linear", "poisson", "negative_binomial", "hierarchical")
TRUTHS = ("prior", "prior", "prior", "smaller", "larger", "sparse")
_TEST = 2000
_TRUTHS = 10
_RECORDS = (200, 50_000)
_PREDICTORS = (2, 3, 5, 8, 12, 20, 30, 50)
_GROUPS = (10, 20, 40)


@dataclass(frozen=True)
class Problem:
    """One design with data; the unconstrained vector u is (beta, group effects, logarithm of a scale).

    Attributes
    ----------
    family, truth_kind : str
    x, x_test : ndarray, shape (n, D)
    y, y_test : ndarray, shape (n,)
    group, group_test : ndarray, shape (n,)
        Of the hierarchical family; zeros otherwise.
    num_groups : int
        0 but for the hierarchical family.
    prior_stddev : float
        Of the coefficients.
    truth : dict
        By variable, as the model names them.
    """

    family: str
    truth_kind: str
    x: Array
    y: Array
    group: NDArray[np.int64]
    x_test: Array
    y_test: Array
    group_test: NDArray[np.int64]
    num_groups: int
    prior_stddev: float
    truth: dict[str, Array]

    @property
    def num_records(self) -> int:
        """N."""
        return len(self.y)

    @property
    def scale_name(self) -> str | None:
        """Name of the model's scale, if it has one."""
        return {"linear": "sigma", "negative_binomial": "alpha", "hierarchical": "tau"}.get(self.family)

    def model(self) -> Any:
        """Write the model that the truth fits."""
        import pymc as pm

        with pm.Model() as made:
            x, y = pm.Data("x", self.x), pm.Data("y_data", self.y)
            beta = pm.Normal("beta", 0.0, self.prior_stddev, shape=self.x.shape[1])
            eta = x @ beta
            if self.family == "logistic":
                pm.Bernoulli("y", logit_p=pm.math.clip(eta, -30, 30), observed=y)
            elif self.family == "linear":
                pm.Normal("y", eta, pm.HalfNormal("sigma", 1.0), observed=y)
            elif self.family == "poisson":
                pm.Poisson("y", pm.math.exp(eta), observed=y)
            elif self.family == "negative_binomial":
                pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.Gamma("alpha", 2.0, 0.5), observed=y)
            else:
                tau = pm.HalfNormal("tau", 1.0)
                effect = pm.Normal("effect", 0.0, tau, shape=self.num_groups)
                at = eta + effect[pm.Data("group", self.group)]
                pm.Bernoulli("y", logit_p=pm.math.clip(at, -30, 30), observed=y)
        return made

    def prior_draws(self, draws: int, rng: np.random.Generator) -> Draws:
        """Draw from the prior."""
        found: dict[str, Array] = {"beta": self.prior_stddev * rng.standard_normal((draws, self.x.shape[1]))}
        if self.scale_name == "alpha":
            found["alpha"] = rng.gamma(2.0, 2.0, draws)
        elif self.scale_name is not None:
            found[self.scale_name] = np.abs(rng.standard_normal(draws))
        if self.num_groups:
            found["effect"] = found["tau"][:, None] * rng.standard_normal((draws, self.num_groups))
        return found

    def split(self, u: Array) -> Draws:
        """Return variables by name for unconstrained vectors, shape ``(draws, size)``."""
        d = self.x.shape[1]
        out = {"beta": u[:, :d]}
        if self.num_groups:
            out["effect"] = u[:, d : d + self.num_groups]
        if self.scale_name is not None:
            out[self.scale_name] = np.exp(u[:, -1])
        return out

    def _etas(self, draws: Draws) -> Array:
        """Linear predictors of the test records, shape ``(draws, n)``."""
        eta = draws["beta"] @ self.x_test.T
        return np.asarray(eta + draws["effect"][:, self.group_test] if self.num_groups else eta)

    def predictive(self, draws: Draws) -> float:
        """Mean over test records of the log of the predictive density, in nats."""
        scale = None if self.scale_name is None else draws[self.scale_name][:, None]
        each = _log_density(self.family, self._etas(draws), scale, self.y_test)
        return float(np.mean(special.logsumexp(each, axis=0) - np.log(len(each))))

    def base_rate(self) -> float:
        """Return the same of the best density that looks at no predictor, fitted to the training data."""
        return _base_rate(self.family, self.y, self.y_test)

    def foretold(self, draws: Draws, rng: np.random.Generator) -> tuple[float, float]:
        """Return what a posterior says of its own predictions: their loss, and the gain over the base rate.

        Each of some draws is taken for the truth, and outcomes of the test records are drawn from it. The
        loss of the other draws' log score is against that truth's own, its gain over the base rate's.
        """
        some = rng.permutation(len(draws["beta"]))[: _TRUTHS + 200]
        eta = self._etas({name: value[some] for name, value in draws.items()})
        scale = None if self.scale_name in (None, "tau") else draws[self.scale_name][some, None]
        found = []
        for k in range(_TRUTHS):
            own = None if scale is None else scale[k]
            y = _outcomes(self.family, eta[k], own, rng)
            each = _log_density(self.family, eta, scale, y)
            best, others = float(np.mean(each[k])), each[_TRUTHS:]
            score = float(np.mean(special.logsumexp(others, axis=0) - np.log(len(others))))
            found.append((best - score, best - _base_rate(self.family, y, y)))
        loss, gain = np.median(found, axis=0)
        return float(loss), float(gain)

    @property
    def size(self) -> int:
        """Length of u."""
        return self.x.shape[1] + self.num_groups + (self.scale_name is not None)

    def gradients(self, u: Array) -> Array:
        """Gradient of each record's log-likelihood by u, shape ``(N, size)``."""
        eta, scale = self._linear(u)
        by_eta, by_log = _slopes(self.family, eta, scale, self.y)
        parts = [self.x * by_eta[:, None]]
        if self.num_groups:
            parts.append((self.group[:, None] == np.arange(self.num_groups)) * by_eta[:, None])
        if self.scale_name is not None:
            parts.append((np.zeros_like(by_eta) if by_log is None else by_log)[:, None])
        return np.column_stack(parts)

    def _linear(self, u: Array) -> tuple[Array, Any]:
        d = self.x.shape[1]
        eta = self.x @ u[:d]
        if self.num_groups:
            eta = eta + u[d : d + self.num_groups][self.group]
        return eta, None if self.scale_name in (None, "tau") else np.exp(u[-1])

    def log_joint(self, u: Array) -> tuple[float, Array]:
        """Log posterior density of u, up to a constant, and its gradient."""
        eta, scale = self._linear(u)
        value, slope = _log_prior(self, u)
        value += float(_log_density(self.family, eta, scale, self.y).sum())
        by_eta, by_log = _slopes(self.family, eta, scale, self.y)
        d = self.x.shape[1]
        slope[:d] += self.x.T @ by_eta
        if self.num_groups:
            slope[d : d + self.num_groups] += np.bincount(self.group, by_eta, self.num_groups)
        if by_log is not None:
            slope[-1] += by_log.sum()
        return value, slope


def _base_rate(family: str, y: Array, y_test: Array) -> float:
    if family in ("logistic", "hierarchical"):
        p = (y.sum() + 0.5) / (len(y) + 1.0)
        each = np.where(y_test > 0, np.log(p), np.log1p(-p))
    elif family == "linear":
        each = stats.norm.logpdf(y_test, y.mean(), max(float(y.std()), 1e-3))
    elif family == "poisson":
        each = stats.poisson.logpmf(y_test, max(float(y.mean()), 1e-3))
    else:
        mean, excess = max(float(y.mean()), 1e-3), float(y.var() - y.mean())
        alpha = np.clip(mean**2 / max(excess, 1e-9), 1e-2, 1e4)
        each = stats.nbinom.logpmf(y_test, alpha, alpha / (alpha + mean))
    return float(np.mean(each))


def _outcomes(family: str, eta: Array, scale: Any, rng: np.random.Generator) -> Array:
    """Draw what is observed, given the linear predictors and the family's scale."""
    if family == "linear":
        return np.asarray(eta + scale * rng.standard_normal(len(eta)))
    if family in ("poisson", "negative_binomial"):
        mean = np.exp(np.clip(eta, -30, 12))
        if family == "negative_binomial":
            mean = mean * rng.gamma(scale, 1.0 / scale, len(eta))
        return rng.poisson(mean).astype(float)
    return (rng.random(len(eta)) < special.expit(eta)).astype(float)


def _log_density(family: str, eta: Array, scale: Any, y: Array) -> Array:
    if family in ("logistic", "hierarchical"):
        return np.asarray(-np.logaddexp(0.0, np.where(y > 0, -1.0, 1.0) * np.clip(eta, -30, 30)))
    if family == "linear":
        return np.asarray(stats.norm.logpdf(y, eta, scale))
    eta = np.clip(eta, -30, 15)
    if family == "poisson":
        return np.asarray(y * eta - np.exp(eta) - special.gammaln(y + 1.0))
    ratio = special.gammaln(y + scale) - special.gammaln(scale) - special.gammaln(y + 1.0)
    at = np.log(scale) - np.logaddexp(np.log(scale), eta)
    return np.asarray(ratio + scale * at + y * (eta - np.log(scale) + at))


def _slopes(family: str, eta: Array, scale: Any, y: Array) -> tuple[Array, Array | None]:
    """Slopes of the log-density by eta and by the logarithm of the scale."""
    if family in ("logistic", "hierarchical"):
        return y - special.expit(eta), None
    if family == "linear":
        apart = (y - eta) / scale
        return apart / scale, apart**2 - 1.0
    mean = np.exp(np.clip(eta, -30, 15))
    if family == "poisson":
        return y - mean, None
    by_scale = special.digamma(y + scale) - special.digamma(scale) + np.log(scale / (scale + mean))
    return (y - mean) * scale / (scale + mean), scale * (by_scale + (mean - y) / (scale + mean))


def _log_prior(problem: Problem, u: Array) -> tuple[float, Array]:
    d = problem.x.shape[1]
    beta = u[:d]
    slope = np.zeros(len(u))
    slope[:d] = -beta / problem.prior_stddev**2
    value = -0.5 * float(np.sum((beta / problem.prior_stddev) ** 2))
    if problem.scale_name is None:
        return value, slope
    scale = float(np.exp(np.clip(u[-1], -30, 30)))
    if problem.scale_name == "alpha":  # Gamma(2, 0.5), with the Jacobian
        return value + 2.0 * u[-1] - 0.5 * scale, slope + _last(len(u), 2.0 - 0.5 * scale)
    value += u[-1] - 0.5 * scale**2  # half-normal, with the Jacobian
    slope[-1] += 1.0 - scale**2
    if problem.num_groups:
        effect = u[d : d + problem.num_groups]
        square = float(np.sum(effect**2)) / scale**2
        value += -0.5 * square - problem.num_groups * u[-1]
        slope[d : d + problem.num_groups] -= effect / scale**2
        slope[-1] += square - problem.num_groups
    return value, slope


def _last(size: int, value: float) -> Array:
    out = np.zeros(size)
    out[-1] = value
    return out


def _predictors(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw correlated columns, some of them binary, skewed or heavy-tailed."""
    rho = rng.uniform(0.0, 0.9)
    apart = np.abs(np.arange(d)[:, None] - np.arange(d))
    corr = np.where(apart == 0, 1.0, rho) if rng.random() < 0.5 else rho**apart
    z = rng.standard_normal((n, d)) @ np.linalg.cholesky(corr).T
    for j in range(1, d):
        kind = rng.choice(["normal", "binary", "skewed", "heavy"], p=[0.55, 0.2, 0.15, 0.1])
        if kind == "binary":
            z[:, j] = z[:, j] > stats.norm.isf(rng.uniform(0.02, 0.3))
        elif kind == "skewed":
            z[:, j] = (np.exp(z[:, j]) - 1.6487) / 2.1612
        elif kind == "heavy":
            z[:, j] = stats.t.ppf(stats.norm.cdf(z[:, j]), 3) / np.sqrt(3.0)
    z[:, 0] = 1.0
    return z


def draw_problem(seed: int) -> Problem:
    """Draw the problem of a seed.

    Parameters
    ----------
    seed : int
        In one of the ranges.

    Returns
    -------
    Problem
    """
    rng = np.random.default_rng([25, seed])
    family = FAMILIES[seed % len(FAMILIES)]
    kind = str(rng.choice(TRUTHS))
    n = round(float(np.exp(rng.uniform(*np.log(_RECORDS)))))
    d = int(rng.choice(_PREDICTORS[:3] if family == "hierarchical" else _PREDICTORS))
    num_groups = int(rng.choice(_GROUPS)) if family == "hierarchical" else 0
    x = _predictors(rng, n + _TEST, d)
    # The linear predictor has this standard deviation under the prior.
    spread = float(rng.choice((0.3, 0.6, 1.0) if family in ("poisson", "negative_binomial") else (0.5, 1, 2)))
    stddev = spread / np.sqrt(d)
    beta = stddev * rng.standard_normal(d)
    beta *= {"smaller": 0.3, "larger": 2.0}.get(kind, 1.0)
    if kind == "sparse":
        beta[rng.permutation(d)[: int(0.8 * d)]] = 0.0
    truth: dict[str, Array] = {"beta": beta}
    eta = x @ beta
    group = np.zeros(n + _TEST, dtype=np.int64)
    if family == "linear":
        truth["sigma"] = np.asarray(abs(rng.standard_normal()) + 1e-3)
    elif family == "negative_binomial":
        truth["alpha"] = np.asarray(rng.gamma(2.0, 2.0))
    elif num_groups:
        truth["tau"] = np.asarray(abs(rng.standard_normal()) + 1e-3)
        truth["effect"] = truth["tau"] * rng.standard_normal(num_groups)
        group = rng.choice(num_groups, n + _TEST, p=rng.dirichlet(np.full(num_groups, 2.0)))
        eta = eta + truth["effect"][group]
    y = _outcomes(family, eta, truth.get("sigma", truth.get("alpha")), rng)
    return Problem(
        family,
        kind,
        x[:n],
        y[:n],
        group[:n],
        x[n:],
        y[n:],
        group[n:],
        num_groups,
        stddev,
        {name: np.asarray(value, dtype=float) for name, value in truth.items()},
    )


def reference(problem: Problem, draws: int, rng: np.random.Generator) -> tuple[Draws, float]:
    """Draw from the posterior without privacy: importance sampling about its mode, or NUTS.

    Parameters
    ----------
    problem : Problem
    draws : int
    rng : numpy.random.Generator

    Returns
    -------
    draws : mapping
        By variable.
    pareto_k : float
        Of the importance weights (Vehtari et al., 2024); where it is above 0.7, the draws are NUTS's.
    """
    start = np.zeros(problem.size)

    def objective(u: Array) -> tuple[float, Array]:
        value, slope = problem.log_joint(u)
        return -value, -slope

    mode = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x
    for _ in range(20):  # to the last digit
        hessian = _hessian(problem, mode)
        step = np.linalg.solve(hessian, problem.log_joint(mode)[1])
        if not np.isfinite(step).all() or np.abs(step).max() > 1.0:
            break
        mode = mode + step
        if np.abs(step).max() < 1e-9:
            break
    values, vectors = np.linalg.eigh(_hessian(problem, mode))
    root = vectors / np.sqrt(np.maximum(values, 1e-9))
    if values[0] > 0:
        many = 8 * draws
        proposal = stats.multivariate_t(df=7, shape=np.eye(len(mode)), seed=rng)
        unit = np.atleast_2d(proposal.rvs(many)).reshape(many, -1)
        u = mode + unit @ root.T
        weights = np.array([problem.log_joint(one)[0] for one in u]) - proposal.logpdf(unit)
        smooth, k = _smoothed(weights - weights.max())
        if k <= 0.7:
            chosen = rng.choice(many, draws, p=special.softmax(np.asarray(smooth)))
            return problem.split(u[chosen]), k
    import pymc as pm

    with problem.model():
        found = pm.sample(
            draws // 2, tune=1000, chains=2, cores=1, progressbar=False, random_seed=int(rng.integers(2**31)),
            target_accept=0.95, compute_convergence_checks=False,
        ).posterior  # fmt: skip
    names = problem.truth
    return {v: found[v].values.reshape(-1, *found[v].shape[2:]) for v in names}, float("inf")


def _smoothed(log_weights: Array) -> tuple[Array, float]:
    """Pareto-smoothed importance weights, logarithms, and the tail's shape."""
    try:
        from arviz_stats.base import array_stats  # ArviZ 1, which takes the negative
    except ImportError:
        from arviz import psislw

        smooth, k = psislw(log_weights)
    else:
        smooth, k = array_stats.psislw(-log_weights)
    return np.asarray(smooth), float(np.max(np.asarray(k)))


def _hessian(problem: Problem, u: Array) -> Array:
    width = 1e-5 * np.maximum(1.0, np.abs(u))
    rows = [
        (problem.log_joint(u - w * e)[1] - problem.log_joint(u + w * e)[1]) / (2 * w)
        for w, e in zip(width, np.eye(len(u)), strict=True)
    ]
    return (np.array(rows) + np.array(rows).T) / 2.0
