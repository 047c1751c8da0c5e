"""The models that the defaults are judged on, each with data, a test set and a score.

Nothing about a fit is set here: every problem is fitted with the same defaults. Simulated data come from a
fixed seed, so that every run sees the same; the noise of the fits differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from datasets import load_abalone, load_adult, read_table
from numpy.typing import NDArray
from scipy import special, stats

__all__ = ["PROBLEMS", "Problem"]

Draws = Mapping[str, NDArray[np.float64]]
Array = NDArray[Any]

_TRAIN, _TEST = 2000, 1000  # records of simulated problems


@dataclass(frozen=True)
class Problem:
    """One model with data.

    Attributes
    ----------
    num_records : int
        Records that are fitted.
    model : callable
        Makes the PyMC model.
    log_density : callable
        Posterior draws (by variable, draws first) → log-density of each test record under each draw, shape
        ``(draws, test)``.
    accuracy : callable or None
        Share of right predictions, from the log-densities' arguments; None where nothing is classified.
    identified : bool
        Whether the posterior has one mode, so that its mean can be compared.
    """

    num_records: int
    model: Callable[[], Any]
    log_density: Callable[[Draws], Array]
    accuracy: Callable[[Draws], float] | None = None
    identified: bool = True

    def predictive_log_density(self, draws: Draws) -> float:
        """Mean over test records of the log of the posterior predictive density, in nats."""
        each = self.log_density(draws)
        return float(np.mean(special.logsumexp(each, axis=0) - np.log(len(each))))


def _logistic(x: Array, y: Array, x_test: Array, y_test: Array) -> Problem:
    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            beta = pm.Normal("beta", 0, 1, shape=x.shape[1])
            # In PyMC 5 the gradient of `logit_p` is NaN where the probability rounds to 1, beyond 37.
            pm.Bernoulli("y", logit_p=pm.math.clip(pm.Data("x", x) @ beta, -30, 30), observed=y)
        return made

    sign = 2 * y_test - 1

    def log_density(draws: Draws) -> Array:
        return -np.logaddexp(0, -sign * (draws["beta"] @ x_test.T))

    def accuracy(draws: Draws) -> float:
        # The mean decides as the predictive does, for a normal posterior: both change sides at x @ beta = 0.
        return float(np.mean((x_test @ draws["beta"].mean(axis=0) > 0) == (y_test == 1)))

    return Problem(len(y), model, log_density, accuracy)


def abalone() -> Problem:
    data = load_abalone()
    return _logistic(data.x_train, data.y_train, data.x_test, data.y_test)


def adult() -> Problem:
    data = load_adult()
    return _logistic(data.x_train, data.y_train, data.x_test, data.y_test)


def breast_cancer() -> Problem:
    """Take 456 records for 31 coefficients: too few for most budgets, which the figures should show."""
    table = {
        name: np.array(values, dtype=float) for name, values in read_table("breast_cancer.csv.gz").items()
    }
    y = table.pop("benign").astype(int)
    x = np.column_stack(list(table.values()))
    x = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(y))])
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:456], order[456:]
    return _logistic(x[train], y[train], x[test], y[test])


def _covariates(seed: int, width: int) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=(_TRAIN + _TEST, width))


def linear() -> Problem:
    rng, x = _covariates(1, 5)
    y = x @ rng.normal(size=5) + 0.5 * rng.normal(size=len(x))

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            beta = pm.Normal("beta", 0, 1, shape=5)
            sigma = pm.HalfNormal("sigma", 1)
            pm.Normal("y", pm.Data("x", x[:_TRAIN]) @ beta, sigma, observed=y[:_TRAIN])
        return made

    def log_density(draws: Draws) -> Array:
        mean = draws["beta"] @ x[_TRAIN:].T
        return np.asarray(stats.norm.logpdf(y[_TRAIN:], mean, draws["sigma"][:, None]))

    return Problem(_TRAIN, model, log_density)


def poisson() -> Problem:
    rng, x = _covariates(2, 4)
    y = rng.poisson(np.exp(1.0 + x @ rng.normal(scale=0.4, size=4)))

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            intercept = pm.Normal("intercept", 0, 2)
            beta = pm.Normal("beta", 0, 1, shape=4)
            pm.Poisson("y", pm.math.exp(intercept + pm.Data("x", x[:_TRAIN]) @ beta), observed=y[:_TRAIN])
        return made

    def log_density(draws: Draws) -> Array:
        rate = np.exp(draws["intercept"][:, None] + draws["beta"] @ x[_TRAIN:].T)
        return np.asarray(stats.poisson.logpmf(y[_TRAIN:], rate))

    return Problem(_TRAIN, model, log_density)


def negative_binomial() -> Problem:
    rng, x = _covariates(3, 4)
    mean = np.exp(1.0 + x @ rng.normal(scale=0.4, size=4))
    y = rng.poisson(mean * rng.gamma(2.0, 1 / 2.0, size=len(x)))

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            intercept = pm.Normal("intercept", 0, 2)
            beta = pm.Normal("beta", 0, 1, shape=4)
            alpha = pm.Gamma("alpha", 2, 1)
            rate = pm.math.exp(intercept + pm.Data("x", x[:_TRAIN]) @ beta)
            pm.NegativeBinomial("y", mu=rate, alpha=alpha, observed=y[:_TRAIN])
        return made

    def log_density(draws: Draws) -> Array:
        rate = np.exp(draws["intercept"][:, None] + draws["beta"] @ x[_TRAIN:].T)
        alpha = draws["alpha"][:, None]
        with np.errstate(all="ignore"):
            wide = stats.nbinom.logpmf(y[_TRAIN:], alpha, alpha / (alpha + rate))
            found = np.where(alpha > 1e8, stats.poisson.logpmf(y[_TRAIN:], rate), wide)
        # Where nothing holds alpha or the rate, a draw can be beyond floating point: no mass on any count.
        return np.asarray(np.where(np.isnan(found), -np.inf, found))

    return Problem(_TRAIN, model, log_density)


def hierarchical_logistic() -> Problem:
    rng, x = _covariates(4, 3)
    group = rng.integers(10, size=len(x))
    level = 0.5 + rng.normal(scale=0.8, size=10)
    y = rng.binomial(1, special.expit(level[group] + x @ rng.normal(size=3)))

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            mean = pm.Normal("mean", 0, 1)
            spread = pm.HalfNormal("spread", 1)
            offset = pm.Normal("offset", 0, 1, shape=10)
            beta = pm.Normal("beta", 0, 1, shape=3)
            own = (mean + spread * offset)[pm.Data("group", group[:_TRAIN])]
            pm.Bernoulli("y", logit_p=own + pm.Data("x", x[:_TRAIN]) @ beta, observed=y[:_TRAIN])
        return made

    def logits(draws: Draws) -> Array:
        own = draws["mean"][:, None] + draws["spread"][:, None] * draws["offset"]
        return np.asarray(own[:, group[_TRAIN:]] + draws["beta"] @ x[_TRAIN:].T)

    def log_density(draws: Draws) -> Array:
        return -np.logaddexp(0, -(2 * y[_TRAIN:] - 1) * logits(draws))

    def accuracy(draws: Draws) -> float:
        chance = special.expit(logits(draws)).mean(axis=0)
        return float(np.mean((chance > 0.5) == (y[_TRAIN:] == 1)))

    return Problem(_TRAIN, model, log_density, accuracy)


def gaussian_mixture() -> Problem:
    rng = np.random.default_rng(5)
    centre = np.array([-3.0, 0.0, 3.0])
    y = centre[rng.choice(3, p=[0.5, 0.3, 0.2], size=_TRAIN + _TEST)] + 0.7 * rng.normal(size=_TRAIN + _TEST)

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            weight = pm.Dirichlet("weight", np.ones(3))
            mean = pm.Normal("mean", [-1.0, 0.0, 1.0], 3.0, shape=3)  # a public order of the components
            sigma = pm.HalfNormal("sigma", 2)
            pm.NormalMixture("y", weight, mean, sigma, observed=y[:_TRAIN])
        return made

    def log_density(draws: Draws) -> Array:
        sigma = draws["sigma"][:, None, None]
        each = stats.norm.logpdf(y[_TRAIN:, None], draws["mean"][:, None, :], sigma)
        return np.asarray(special.logsumexp(each + np.log(draws["weight"])[:, None, :], axis=2))

    return Problem(_TRAIN, model, log_density, identified=False)


def softmax_digits() -> Problem:
    """Take 1437 records for 650 coefficients."""
    table = read_table("digits.csv.gz")
    y = np.array(table.pop("digit"), dtype=int)
    x = np.column_stack([np.array(c, dtype=float) for c in table.values()]) / 16.0
    x = np.column_stack([x, np.ones(len(y))])
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1437], order[1437:]

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            beta = pm.Normal("beta", 0, 1, shape=(65, 10))
            pm.Categorical("y", logit_p=pm.Data("x", x[train]) @ beta, observed=y[train])
        return made

    def log_chance(draws: Draws) -> Array:
        logits = np.einsum("nd,sdk->snk", x[test], draws["beta"])
        return np.asarray(special.log_softmax(logits, axis=2))

    def log_density(draws: Draws) -> Array:
        return np.asarray(log_chance(draws)[:, np.arange(len(test)), y[test]])

    def accuracy(draws: Draws) -> float:
        return float(np.mean(np.exp(log_chance(draws)).mean(axis=0).argmax(axis=1) == y[test]))

    return Problem(len(train), model, log_density, accuracy)


def small_network() -> Problem:
    """Make two interleaved half circles, and a Bayesian neural network with eight hidden units for them."""
    rng = np.random.default_rng(7)
    size = _TRAIN + _TEST
    y = rng.integers(2, size=size)
    angle = rng.uniform(0, np.pi, size=size)
    x = np.column_stack(
        [np.where(y, 1 - np.cos(angle), np.cos(angle)), np.where(y, 0.5 - np.sin(angle), np.sin(angle))]
    )
    x = (x - [0.5, 0.25] + 0.15 * rng.normal(size=(size, 2))) * 1.5
    x = np.column_stack([x, np.ones(size)])

    def model() -> Any:
        import pymc as pm

        with pm.Model() as made:
            first = pm.Normal("first", 0, 1, shape=(3, 8))
            second = pm.Normal("second", 0, 1, shape=8)
            third = pm.Normal("third", 0, 1)
            hidden = pm.math.tanh(pm.Data("x", x[:_TRAIN]) @ first)
            pm.Bernoulli("y", logit_p=hidden @ second + third, observed=y[:_TRAIN])
        return made

    def logits(draws: Draws) -> Array:
        hidden = np.tanh(np.einsum("nd,sdk->snk", x[_TRAIN:], draws["first"]))
        return np.asarray(np.einsum("snk,sk->sn", hidden, draws["second"]) + draws["third"][:, None])

    def log_density(draws: Draws) -> Array:
        return -np.logaddexp(0, -(2 * y[_TRAIN:] - 1) * logits(draws))

    def accuracy(draws: Draws) -> float:
        chance = special.expit(logits(draws)).mean(axis=0)
        return float(np.mean((chance > 0.5) == (y[_TRAIN:] == 1)))

    return Problem(_TRAIN, model, log_density, accuracy, identified=False)


#: Made once a process, when first asked for.
PROBLEMS: dict[str, Callable[[], Problem]] = {
    make.__name__: cache(make)
    for make in (
        abalone,
        adult,
        breast_cancer,
        linear,
        poisson,
        negative_binomial,
        hierarchical_logistic,
        gaussian_mixture,
        softmax_digits,
        small_network,
    )
}
