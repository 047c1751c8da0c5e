"""Models and arguments that cannot be private as written, and the refusal that each must get.

Every entry builds a PyMC model that PyMC itself accepts; the refusal must come from the analysis of
the model, before any noise is drawn or any budget is spent. An entry says

* ``error``: the name of the class in `pymc_dpvi.errors` (an instance of a subclass is fine);
* ``guilty``: the name of the variable or argument, which the message must hold as it is written;
* ``contains``: texts that the message must hold too, compared in lower case. Where an element is a
  tuple, any one of its texts is enough. They ask for the cause and the way out, not a wording;
* ``kwargs``: the arguments of the inference (``record_dim``, ``public_data``) that go with it.

`SENTINEL` is a number planted in data; no message may contain it (`leaks` looks).

NotSeparableError is for models in which one record's data enter another record's term;
UnsupportedModelError for parts that have no place in a private fit whether or not they separate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.signal import convolve2d

__all__ = ["REFUSALS", "SENTINEL", "Refusal", "leaks", "missing_texts"]

SENTINEL = 31.4159265


@dataclass(frozen=True)
class Refusal:
    """One model that must be refused, and what the refusal must say."""

    name: str
    build: Callable[[], pm.Model]
    error: str
    guilty: str
    contains: tuple[str | tuple[str, ...], ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


REFUSALS: dict[str, Refusal] = {}


def refusal(
    name: str,
    error: str,
    guilty: str,
    *contains: str | tuple[str, ...],
    **kwargs: Any,
) -> Callable[[Callable[[], pm.Model]], Callable[[], pm.Model]]:
    """Register a builder together with the refusal that it must get."""

    def register(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
        assert name not in REFUSALS, name
        REFUSALS[name] = Refusal(name, build, error, guilty, contains, kwargs)
        return build

    return register


def missing_texts(entry: Refusal, message: str) -> list[str | tuple[str, ...]]:
    """What `message` ought to say for `entry` and does not."""
    lower = message.lower()
    missing: list[str | tuple[str, ...]] = []
    if entry.guilty not in message:
        missing.append(entry.guilty)
    for wanted in entry.contains:
        choices = (wanted,) if isinstance(wanted, str) else wanted
        if not any(choice.lower() in lower for choice in choices):
            missing.append(wanted)
    return missing


def leaks(message: str) -> bool:
    """Whether the planted data value shows in `message` (its first digits are enough)."""
    return "31.4" in message or "3.14e" in message.lower()


def _xy(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[0, 0] = SENTINEL
    y = rng.normal(size=n)
    y[1] = SENTINEL
    return x, y, rng


# What a message about mixed records may call it, and the ways out that it may offer.
MIXES = ("other record", "another record", "between records", "across records", "separate", "mixes")
OUTSIDE = ("numpy", "before the model", "outside the model", "beforehand", "preprocess", "public")


# ------------------------------------------------------------------------------------------------
# Records that enter each other's terms
# ------------------------------------------------------------------------------------------------


@refusal("centring_in_graph", "NotSeparableError", "y", MIXES, OUTSIDE)
def centring_in_graph() -> pm.Model:
    x, y, _ = _xy(24, 3, 1)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Normal("y", (x_data - x_data.mean(axis=0)) @ beta, 1.0, observed=y)
    return model


@refusal("centred_fitted_values", "NotSeparableError", "y", MIXES)
def centred_fitted_values() -> pm.Model:
    # No data variable is centred, only the linear predictor.
    x, y, _ = _xy(25, 2, 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        eta = x @ beta
        pm.Normal("y", eta - pm.math.mean(eta), 1.0, observed=y)
    return model


@refusal("batch_norm_network", "NotSeparableError", "t", MIXES)
def batch_norm_network() -> pm.Model:
    x, _, rng = _xy(27, 3, 3)
    with pm.Model(coords={"obs": range(27), "hidden": range(4)}) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, shape=(3, 4), initval=rng.normal(size=(3, 4)))
        v = pm.Normal("v", 0, 1, dims="hidden")
        h = x_data @ w
        h = pt.tanh((h - h.mean(axis=0)) / pt.sqrt(h.var(axis=0) + 1e-3))
        pm.Bernoulli("t", logit_p=h @ v, observed=rng.integers(0, 2, 27), dims="obs")
    return model


@refusal("share_of_total", "NotSeparableError", "sales", MIXES, OUTSIDE)
def share_of_total() -> pm.Model:
    x, y, _ = _xy(22, 1, 4)
    with pm.Model() as model:
        spend = pm.Data("spend", np.abs(x[:, 0]))
        b = pm.Normal("b", 0, 1)
        pm.Normal("sales", b * spend / spend.sum(), 1.0, observed=y)
    return model


@refusal("cumulative_exposure", "NotSeparableError", "y", MIXES)
def cumulative_exposure() -> pm.Model:
    x, y, _ = _xy(26, 1, 5)
    with pm.Model() as model:
        dose = pm.Data("dose", x[:, 0])
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * pt.cumsum(dose), 1.0, observed=y)
    return model


@refusal("lagged_outcome", "NotSeparableError", "now", MIXES)
def lagged_outcome() -> pm.Model:
    # An autoregression by hand: row i reads the outcome of row i - 1.
    _, y, _ = _xy(28, 1, 6)
    with pm.Model(coords={"day": range(28)}) as model:
        series = pm.Data("series", y, dims="day")
        rho = pm.Uniform("rho", -1, 1)
        previous = pt.concatenate([[0.0], series[:-1]])
        pm.Normal("now", rho * previous, 1.0, observed=series, dims="day")
    return model


@refusal("geometric_adstock", "NotSeparableError", "sales", MIXES)
def geometric_adstock() -> pm.Model:
    # Marketing-mix carry-over: a weighted sum of the rows before.
    x, y, _ = _xy(30, 1, 7)
    with pm.Model() as model:
        spend = pm.Data("spend", np.abs(x[:, 0]))
        decay = pm.Beta("decay", 1, 3)
        lags = [spend] + [pt.concatenate([pt.zeros(k), spend[:-k]]) for k in (1, 2, 3)]
        carried = sum(decay**k * lag for k, lag in enumerate(lags))
        pm.Normal("sales", carried, 1.0, observed=y)
    return model


@refusal("autoregression", "NotSeparableError", "y", ("AR", "time series", "timeseries"))
def autoregression() -> pm.Model:
    _, y, _ = _xy(29, 1, 8)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.AR("y", rho=rho, sigma=sigma, init_dist=pm.Normal.dist(0, 2), observed=y)
    return model


@refusal("random_walk", "NotSeparableError", "price", ("RandomWalk", "random walk", "time series"))
def random_walk() -> pm.Model:
    _, y, _ = _xy(31, 1, 9)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk("price", sigma=sigma, init_dist=pm.Normal.dist(0, 50), observed=y, steps=30)
    return model


@refusal("garch", "NotSeparableError", "returns", ("GARCH", "time series", "timeseries", *MIXES))
def garch() -> pm.Model:
    _, y, _ = _xy(23, 1, 10)
    with pm.Model() as model:
        omega = pm.HalfNormal("omega", 1)
        a, b = pm.Beta("a", 2, 8), pm.Beta("b", 8, 2)
        pm.GARCH11("returns", omega=omega, alpha_1=a, beta_1=b, initial_vol=1.0, observed=y)
    return model


@refusal("gp_marginal", "NotSeparableError", "y", ("HSGP", "inducing", "basis"))
def gp_marginal() -> pm.Model:
    x, y, _ = _xy(24, 1, 11)
    with pm.Model() as model:
        ell = pm.Gamma("ell", 2, 1)
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=ell))
        gp.marginal_likelihood("y", X=x, y=y, sigma=pm.HalfNormal("sigma", 1))
    return model


@refusal("mvnormal_over_records", "NotSeparableError", "y", ("MvNormal", "multivariate"))
def mvnormal_over_records() -> pm.Model:
    # Exchangeable records with a common correlation: one joint density for all of them.
    _, y, _ = _xy(21, 1, 12)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        cov = pt.eye(21) + tau**2 * pt.ones((21, 21))
        pm.MvNormal("y", mu=mu * pt.ones(21), cov=cov, observed=y)
    return model


@refusal("multinomial_over_records", "NotSeparableError", "votes", ("Multinomial", *MIXES))
def multinomial_over_records() -> pm.Model:
    # One multinomial whose cells are the records.
    x, _, rng = _xy(26, 2, 13)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        counts = rng.multinomial(200, np.ones(26) / 26)
        pm.Multinomial("votes", n=200, p=pm.math.softmax(x @ beta), observed=counts)
    return model


@refusal("cox_partial_likelihood", "NotSeparableError", "cox", MIXES)
def cox_partial_likelihood() -> pm.Model:
    # The risk set of each event holds everybody who leaves later.
    x, _, rng = _xy(33, 2, 14)
    event = rng.integers(0, 2, 33)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        event_data = pm.Data("event", event)
        beta = pm.Normal("beta", 0, 0.01, shape=2)
        eta = x_data @ beta
        risk = pt.log(pt.cumsum(pt.exp(eta)[::-1])[::-1])
        pm.Potential("cox", event_data * (eta - risk))
    return model


@refusal("pairwise_partner", "NotSeparableError", "y", MIXES)
def pairwise_partner() -> pm.Model:
    # Each record reads the covariate of the record that `partner` points to.
    x, y, rng = _xy(28, 1, 15)
    with pm.Model() as model:
        x_data = pm.Data("x", x[:, 0])
        partner = pm.Data("partner", rng.permutation(28))
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * x_data[partner], 1.0, observed=y)
    return model


@refusal("ranks_in_graph", "NotSeparableError", "y", MIXES)
def ranks_in_graph() -> pm.Model:
    x, y, _ = _xy(25, 1, 16)
    with pm.Model() as model:
        x_data = pm.Data("x", x[:, 0])
        b = pm.Normal("b", 0, 1)
        ranks = pt.argsort(pt.argsort(x_data)) / 25.0
        pm.Normal("y", b * ranks, 1.0, observed=y)
    return model


@refusal("custom_logp_mixes_values", "NotSeparableError", "y", MIXES)
def custom_logp_mixes_values() -> pm.Model:
    # The coupling hides in the log-density of a CustomDist, and keeps the shape (N,).
    _, y, _ = _xy(24, 1, 17)

    def logp(value, mu):
        return -0.5 * (value - value.mean() - mu) ** 2

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu", 0, 1), logp=logp, observed=y)
    return model


@refusal("custom_logp_holds_differences", "UnsupportedModelError", "y", "public", "logp=")
def custom_logp_holds_differences() -> pm.Model:
    # The records come back through the closure of a log-density, with an axis of another length.
    _, y, _ = _xy(24, 1, 25)
    steps = np.diff(y)

    def logp(value, mu):
        return -0.5 * (value - mu) ** 2 - 1e-3 * ((mu - pt.as_tensor(steps)) ** 2).sum()

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu", 0, 1), logp=logp, observed=y)
    return model


@refusal("potentials_of_single_numbers", "UnsupportedModelError", "p0", "single numbers", "observed=")
def potentials_of_single_numbers() -> pm.Model:
    # One Potential for each record, with the record written into it as a number.
    _, y, _ = _xy(90, 1, 26)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        for k, v in enumerate(y):
            pm.Potential(f"p{k}", -((mu - float(v)) ** 2))
        pm.Normal("z", mu, 1.0, observed=y)
    return model


@refusal(
    "hsgp_centred_on_the_records", "UnsupportedModelError", "y", "HSGP", "_X_center", "gp.L", "public_data"
)
def hsgp_centred_on_the_records() -> pm.Model:
    x, y, _ = _xy(27, 1, 27)
    with pm.Model() as model:
        gp = pm.gp.HSGP(m=[9], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Exponential("ls", 1.0)))
        f = gp.prior("f", X=pm.Data("x", x))
        pm.Normal("y", f, 1.0, observed=y)
    return model


@refusal("self_attention", "NotSeparableError", "y", MIXES)
def self_attention() -> pm.Model:
    x, y, _ = _xy(23, 3, 18)
    with pm.Model() as model:
        x_data = pm.Data("x", x / 40)
        w = pm.Normal("w", 0, 1, shape=(3, 3))
        v = pm.Normal("v", 0, 1, shape=3)
        attention = pm.math.softmax((x_data @ w) @ x_data.T, axis=-1)
        pm.Normal("y", attention @ x_data @ v, 1.0, observed=y)
    return model


@refusal("group_mean_in_graph", "NotSeparableError", "y", MIXES, OUTSIDE)
def group_mean_in_graph() -> pm.Model:
    # Mundlak's device: the covariate's mean in the record's group, computed from all records.
    x, y, rng = _xy(32, 1, 19)
    idx = rng.integers(0, 4, 32)
    with pm.Model(coords={"group": range(4)}) as model:
        x_data = pm.Data("x", x[:, 0])
        one_hot = pt.eye(4)[idx]
        means = (one_hot.T @ x_data) / (one_hot.sum(axis=0) + 1)
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", b[0] * x_data + b[1] * means[idx], 1.0, observed=y)
    return model


@refusal("reinforcement_learning_scan", "NotSeparableError", "action", "Scan")
def reinforcement_learning_scan() -> pm.Model:
    # Q-learning: a Scan runs along each person's own trials; persons are columns of its state. It does
    # separate, but a Scan cannot be remade for one record, so nobody can show that it does.
    rng = np.random.default_rng(124)
    actions = rng.integers(0, 2, (21, 5))
    rewards = rng.integers(0, 2, (21, 5)).astype(float)

    def update(action, reward, q, lr):
        chosen = pt.eye(2)[action]
        return q + lr * chosen * (reward[:, None] - q)

    with pm.Model() as model:
        lr = pm.Beta("lr", 1, 1)
        temperature = pm.HalfNormal("temperature", 1)
        values = pytensor.scan(
            update,
            sequences=[pt.as_tensor(actions).T, pt.as_tensor(rewards).T],
            outputs_info=[pt.as_tensor(np.full((21, 2), 0.5))],
            non_sequences=[lr],
            return_updates=False,
        )
        q = pt.concatenate([0.5 * pt.ones_like(values[:1]), values[:-1]], axis=0)
        logit = temperature * (q[..., 1] - q[..., 0]).T
        pm.Bernoulli("action", logit_p=logit, observed=actions)
    return model


# ------------------------------------------------------------------------------------------------
# Arrays and lengths
# ------------------------------------------------------------------------------------------------


@refusal("spatial_weights_matrix", "UnsupportedModelError", "W", ("second", "axis 1", "both axes"))
def spatial_weights_matrix() -> pm.Model:
    # A square (record, record) neighbourhood matrix.
    _, y, rng = _xy(20, 1, 30)
    with pm.Model() as model:
        w = pm.Data("W", rng.dirichlet(np.ones(20), 20))
        y_data = pm.Data("y_obs", y)
        rho = pm.Uniform("rho", -1, 1)
        pm.Normal("y", rho * (w @ y_data), 1.0, observed=y_data)
    return model


@refusal("square_design_matrix", "UnsupportedModelError", "x", ("second", "axis 1", "both axes"), "dims")
def square_design_matrix() -> pm.Model:
    # As many features as records, and no dims to tell the axes apart.
    x, y, _ = _xy(21, 21, 31)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=21)
        pm.Normal("y", x_data @ beta, 1.0, observed=y)
    return model


@refusal("observed_of_different_lengths", "UnsupportedModelError", "survey", "length", "census")
def observed_of_different_lengths() -> pm.Model:
    _, y, rng = _xy(22, 1, 32)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("survey", mu, 1.0, observed=y)
        pm.Normal("census", mu, 0.1, observed=rng.normal(size=35))
    return model


@refusal("scalar_observation", "UnsupportedModelError", "k", ("axis", "scalar", "leading"))
def scalar_observation() -> pm.Model:
    # Already aggregated: one binomial count, no record in sight.
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        pm.Binomial("k", n=100, p=p, observed=42)
    return model


@refusal(
    "records_on_second_axis",
    "UnsupportedModelError",
    "y",
    ("leading", "first axis", "axis 0"),
    ("transpose", ".T", "swap"),
    record_dim="person",
)
def records_on_second_axis() -> pm.Model:
    _, _, rng = _xy(24, 1, 33)
    with pm.Model(coords={"outcome": ["a", "b", "c"], "person": range(24)}) as model:
        x = pm.Data("x", rng.normal(size=24), dims="person")
        a = pm.Normal("a", 0, 1, dims="outcome")
        b = pm.Normal("b", 0, 1, dims="outcome")
        mu = a[:, None] + b[:, None] * x[None, :]
        pm.Normal("y", mu, 1.0, observed=rng.normal(size=(3, 24)), dims=("outcome", "person"))
    return model


@refusal("no_observed", "UnsupportedModelError", "", ("observed", "likelihood"))
def no_observed() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1.0)
    return model


@refusal("no_free_variables", "UnsupportedModelError", "", ("free", "parameter", "latent"))
def no_free_variables() -> pm.Model:
    _, y, _ = _xy(23, 1, 35)
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=y)
    return model


# ------------------------------------------------------------------------------------------------
# Latent variables
# ------------------------------------------------------------------------------------------------


@refusal("record_local_latent", "UnsupportedModelError", "eps", ("marginal", "integrat"))
def record_local_latent() -> pm.Model:
    # Overdispersion through one latent number per record.
    x, _, rng = _xy(27, 2, 40)
    with pm.Model(coords={"obs": range(27)}) as model:
        beta = pm.Normal("beta", 0, 0.01, shape=2)
        eps = pm.Normal("eps", 0, 1, dims="obs")
        pm.Poisson("y", pm.math.exp(x @ beta + eps), observed=rng.poisson(1, 27), dims="obs")
    return model


@refusal("factor_scores", "UnsupportedModelError", "scores", ("marginal", "integrat"))
def factor_scores() -> pm.Model:
    _, _, rng = _xy(26, 1, 41)
    with pm.Model() as model:
        loadings = pm.Normal("loadings", 0, 1, shape=(2, 5))
        scores = pm.Normal("scores", 0, 1, shape=(26, 2))
        pm.Normal("y", scores @ loadings, 1.0, observed=rng.normal(size=(26, 5)))
    return model


@refusal("gp_latent", "UnsupportedModelError", "f_rotated_", ("marginal", "integrat", "HSGP"))
def gp_latent() -> pm.Model:
    x, _, rng = _xy(22, 1, 42)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        f = gp.prior("f", X=x)
        pm.Bernoulli("y", logit_p=f, observed=rng.integers(0, 2, 22))
    return model


@refusal("random_walk_latent", "UnsupportedModelError", "volatility", ("marginal", "integrat"))
def random_walk_latent() -> pm.Model:
    # The stochastic volatility model of the gallery: the latent path is as long as the data.
    _, y, _ = _xy(25, 1, 43)
    with pm.Model(coords={"day": range(25)}) as model:
        step = pm.Exponential("step_size", 10)
        volatility = pm.GaussianRandomWalk(
            "volatility", sigma=step, init_dist=pm.Normal.dist(0, 100), dims="day"
        )
        nu = pm.Exponential("nu", 0.1)
        pm.StudentT("returns", nu=nu, lam=np.exp(-2 * volatility), observed=y, dims="day")
    return model


@refusal("noisy_covariate", "UnsupportedModelError", "x_true", ("marginal", "integrat"))
def noisy_covariate() -> pm.Model:
    x, y, _ = _xy(29, 1, 44)
    with pm.Model() as model:
        x_true = pm.Normal("x_true", 0, 1, shape=29)
        pm.Normal("x_seen", x_true, 0.5, observed=x[:, 0])
        pm.Normal("y", pm.Normal("b", 0, 1) * x_true, 1.0, observed=y)
    return model


@refusal("one_random_intercept_per_record", "UnsupportedModelError", "z", ("marginal", "integrat"))
def one_random_intercept_per_record() -> pm.Model:
    # Eight schools: every school is one record, so its effect is that record's own latent.
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, SENTINEL])
    se = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, se, observed=y, dims="school")
    return model


@refusal("discrete_record_latent", "UnsupportedModelError", "z", ("marginal", "Mixture"))
def discrete_record_latent() -> pm.Model:
    # A mixture with its assignments left in.
    _, y, _ = _xy(24, 1, 45)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", 0, 5, shape=3)
        z = pm.Categorical("z", p=w, shape=24)
        pm.Normal("y", mu[z], 1.0, observed=y)
    return model


@refusal("discrete_global_latent", "UnsupportedModelError", "switchpoint", "discrete")
def discrete_global_latent() -> pm.Model:
    # The coal-mining model of the PyMC overview.
    rng = np.random.default_rng(46)
    year = np.arange(1851, 1882)
    with pm.Model() as model:
        switchpoint = pm.DiscreteUniform("switchpoint", lower=1851, upper=1881)
        early, late = pm.Exponential("early", 1.0), pm.Exponential("late", 1.0)
        rate = pm.math.switch(switchpoint >= year, early, late)
        pm.Poisson("disasters", rate, observed=rng.poisson(2.0, 31))
    return model


@refusal("missing_outcomes", "UnsupportedModelError", "y", "missing", ("drop", "remove", "complete"))
def missing_outcomes() -> pm.Model:
    x, y, _ = _xy(28, 2, 47)
    y[[3, 7]] = np.nan
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC announces that it will impute
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", x @ beta, 1.0, observed=y)
    return model


@refusal("missing_covariate", "UnsupportedModelError", "age", "missing")
def missing_covariate() -> pm.Model:
    x, y, _ = _xy(27, 1, 48)
    age = np.ma.masked_array(x[:, 0], mask=np.arange(27) % 9 == 4)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        age_full = pm.Normal("age", pm.Normal("mu_age", 0, 1), 1.0, observed=age)
        pm.Normal("y", pm.Normal("b", 0, 1) * age_full, 1.0, observed=y)
    return model


# ------------------------------------------------------------------------------------------------
# PyMC features that a private fit replaces or cannot honour
# ------------------------------------------------------------------------------------------------


@refusal("minibatch", "UnsupportedModelError", "Minibatch", ("full data", "whole data", "all the data"))
def minibatch() -> pm.Model:
    x, y, _ = _xy(36, 2, 50)
    x_batch, y_batch = pm.Minibatch(x, y, batch_size=6)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", x_batch @ beta, 1.0, observed=y_batch, total_size=36)
    return model


@refusal("minibatch_without_total_size", "UnsupportedModelError", "Minibatch")
def minibatch_without_total_size() -> pm.Model:
    x, y, _ = _xy(34, 2, 51)
    x_batch, y_batch = pm.Minibatch(x, y, batch_size=7)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC misses total_size
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", x_batch @ beta, 1.0, observed=y_batch)
    return model


@refusal("total_size", "UnsupportedModelError", "y", "total_size")
def total_size() -> pm.Model:
    x, y, _ = _xy(25, 2, 52)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", x @ beta, 1.0, observed=y, total_size=1000)
    return model


@refusal("scalar_potential_on_data", "UnsupportedModelError", "loglike", "potential", ("sum", "scalar"))
def scalar_potential_on_data() -> pm.Model:
    x, y, _ = _xy(26, 2, 53)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        y_data = pm.Data("y_obs", y)
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Potential("loglike", pm.logp(pm.Normal.dist(x_data @ beta, 1.0), y_data).sum())
        pm.Normal("y", x_data @ beta, 1.0, observed=y_data)
    return model


@refusal("prior_centred_on_data", "UnsupportedModelError", "mu", "prior", OUTSIDE)
def prior_centred_on_data() -> pm.Model:
    _, y, _ = _xy(24, 1, 54)
    with pm.Model() as model:
        y_data = pm.Data("y_obs", y)
        mu = pm.Normal("mu", y_data.mean(), 2 * y_data.std())
        pm.Normal("y", mu, 1.0, observed=y_data)
    return model


@refusal("number_that_steps_update", "UnsupportedModelError", "level", "default_update")
def number_that_steps_update() -> pm.Model:
    # PyTensor adds the records to it at each call, and no graph shows that.
    x, y, _ = _xy(22, 2, 60)
    level = pytensor.shared(np.asarray(0.0), name="level")
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTensor 3: deprecated
        x_data = pm.Data("x", x)
        level.default_update = level + x_data.mean()
        beta = pm.Normal("beta", level, 1.0, shape=2)
        pm.Normal("y", x_data @ beta, 1.0, observed=y)
    return model


@refusal("score_for_each_record", "UnsupportedModelError", "score", "latent value per record", "unit='id'")
def score_for_each_record() -> pm.Model:
    # A factor analysis as in PyMC's gallery: the scores have a dim of their own.
    x, _, _ = _xy(23, 3, 61)
    with pm.Model(coords={"respondent": range(23)}) as model:
        score = pm.Normal("score", dims="respondent")
        loading = pm.Normal("loading", shape=3)
        pm.Normal("y", (1.0 + score)[list(range(23))][:, None] * loading, 1.0, observed=x)
    return model


@refusal("g_prior", "UnsupportedModelError", "beta", "prior", OUTSIDE)
def g_prior() -> pm.Model:
    # Zellner's g-prior: the prior covariance is the inverse Gram matrix of the records.
    x, y, _ = _xy(28, 2, 55)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.MvNormal("beta", mu=np.zeros(2), tau=x_data.T @ x_data / 28, shape=2)
        pm.Normal("y", x_data @ beta, 1.0, observed=y)
    return model


@refusal("prior_scaled_by_constant_data", "UnsupportedModelError", "sigma", "prior")
def prior_scaled_by_constant_data() -> pm.Model:
    # The same without pm.Data: a constant of length N below a PyTensor reduction.
    x, y, _ = _xy(23, 1, 56)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        sigma = pm.HalfNormal("sigma", pt.std(pt.as_tensor(y)))
        pm.Normal("y", b * x[:, 0], sigma, observed=y)
    return model


@refusal("number_of_groups_from_data", "UnsupportedModelError", "effect", ("shape", "size", "length"))
def number_of_groups_from_data() -> pm.Model:
    # How many groups there are is read off the records, so one record can change the model.
    _, y, rng = _xy(30, 1, 57)
    with pm.Model() as model:
        idx = pm.Data("idx", rng.integers(0, 5, 30))
        effect = pm.Normal("effect", 0, 1, shape=idx.max() + 1)
        pm.Normal("y", effect[idx], 1.0, observed=y)
    return model


@refusal("initval_from_data", "UnsupportedModelError", "mu", ("initval", "initial"))
def initval_from_data() -> pm.Model:
    _, y, _ = _xy(27, 1, 58)
    with pm.Model() as model:
        y_data = pm.Data("y_obs", y)
        mu = pm.Normal("mu", 0, 10, initval=y_data.mean())
        pm.Normal("y", mu, 1.0, observed=y_data)
    return model


@refusal("transform_from_data", "UnsupportedModelError", "theta", ("prior", "transform", "bound"))
def transform_from_data() -> pm.Model:
    # The bounds of a uniform prior, and with them its transform, are the range of the data.
    _, y, _ = _xy(26, 1, 59)
    with pm.Model() as model:
        y_data = pm.Data("y_obs", y)
        theta = pm.Uniform("theta", y_data.min(), y_data.max())
        pm.Normal("y", theta, 1.0, observed=y_data)
    return model


@refusal("potential_of_summary", "UnsupportedModelError", "penalty", "potential")
def potential_of_summary() -> pm.Model:
    # A penalty on parameters whose strength comes from the records.
    x, y, _ = _xy(25, 3, 60)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Potential("penalty", -(x_data.var(axis=0) * beta**2))  # shape (3,): no record axis
        pm.Normal("y", x_data @ beta, 1.0, observed=y)
    return model


@refusal("simulator", "UnsupportedModelError", "s", "Simulator")
def simulator() -> pm.Model:
    # Approximate Bayesian computation: a distance between summaries of all records.
    _, y, _ = _xy(22, 1, 61)

    def simulate(rng, mu, size=None):
        return rng.normal(mu, 1.0, size=22)

    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC 6 uses a deprecated default of its own
        mu = pm.Normal("mu", 0, 1)
        pm.Simulator("s", simulate, params=(mu,), sum_stat="sort", epsilon=1.0, observed=y)
    return model


# ------------------------------------------------------------------------------------------------
# Models as they are published, and mistakes as they are made
# ------------------------------------------------------------------------------------------------


@refusal("rat_tumours", "UnsupportedModelError", "theta", "BetaBinomial", "latent value per record")
def rat_tumours() -> pm.Model:
    # Gelman et al. (2013), chapter 5, as in PyMC's gallery: the outcome has no dims.
    rng = np.random.default_rng(80)
    trials = rng.integers(10, 50, 23)
    with pm.Model(coords={"group": range(23)}) as model:
        a, b = pm.HalfFlat("a"), pm.HalfFlat("b")
        theta = pm.Beta("theta", alpha=a, beta=b, dims="group")
        pm.Binomial("y", n=trials, p=theta, observed=rng.binomial(trials, 0.2))
    return model


@refusal("latent_per_record_in_a_predictor", "UnsupportedModelError", "theta", ("marginal",), "theta[group]")
def latent_per_record_in_a_predictor() -> pm.Model:
    x, y, _ = _xy(22, 2, 81)
    with pm.Model(coords={"group": range(22)}) as model:
        theta = pm.Normal("theta", 0, 1, dims="group")
        pm.Normal("y", theta + x @ pm.Normal("b", 0, 1, shape=2), 1.0, observed=y)
    return model


@refusal("censored_rows_in_a_potential", "UnsupportedModelError", "cens", "pm.Censored", "publish")
def censored_rows_in_a_potential() -> pm.Model:
    # PyMC's "Censored data models", second parametrisation.
    _, y, _ = _xy(25, 1, 82)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        pm.Normal("seen", mu, sigma, observed=y[:16])
        pm.Potential("cens", pm.logcdf(pm.Normal.dist(-mu, sigma), -y[16:]))
    return model


@refusal("censored_pm_data_in_a_potential", "UnsupportedModelError", "cens", "pm.Censored", "publish")
def censored_pm_data_in_a_potential() -> pm.Model:
    _, y, _ = _xy(25, 1, 83)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        limits = pm.Data("limits", y[16:])
        pm.Normal("seen", mu, sigma, observed=y[:16])
        pm.Potential("cens", pm.logcdf(pm.Normal.dist(-mu, sigma), -limits).sum())
    return model


@refusal("predictors_in_rows", "UnsupportedModelError", "X", "transpose", "axis 1")
def predictors_in_rows() -> pm.Model:
    x, y, _ = _xy(24, 3, 84)
    with pm.Model() as model:
        x_data = pm.Data("X", x.T)
        pm.Normal("y", pm.Normal("b", 0, 1, shape=3) @ x_data, 1.0, observed=y)
    return model


@refusal("outcome_in_one_row", "UnsupportedModelError", "y", "transpose", "fewer than two")
def outcome_in_one_row() -> pm.Model:
    _, y, _ = _xy(24, 1, 85)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1.0, observed=y[None, :])
    return model


@refusal("outcomes_in_rows", "UnsupportedModelError", "a", "transpose", "'y'")
def outcomes_in_rows() -> pm.Model:
    x, y, _ = _xy(24, 1, 86)
    with pm.Model() as model:
        x_data, y_data = pm.Data("X", x.T), pm.Data("Y", np.stack([y, y]))
        pm.Normal("y", pm.Normal("a", 0, 1, shape=(2, 1)) @ x_data, 1.0, observed=y_data)
    return model


@refusal("table_of_bins", "NotSeparableError", "counts", "pm.Categorical", ("bins", "histogram"))
def table_of_bins() -> pm.Model:
    # PyMC's "Estimating parameters of a distribution from awkwardly binned data".
    edges = np.array([-1.0, 0.5, 1.7])
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        cdf = pm.math.exp(pm.logcdf(pm.Normal.dist(mu, sigma), edges))
        p = pm.math.concatenate([[0], cdf, [1]])
        pm.Multinomial("counts", n=60, p=p[1:] - p[:-1], observed=np.array([10, 20, 18, 12]))
    return model


@refusal(
    "convolution", "NotSeparableError", "y", "Convolve2d", "x[:, patches] @ kernel", "public_data=['patches']"
)
def convolution() -> pm.Model:
    _, y, rng = _xy(20, 2, 92)
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(20, 5, 5)))
        kernel = pm.Normal("kernel", 0, 1, shape=(3, 3))
        pm.Normal("y", convolve2d(x, kernel, mode="valid").sum(axis=(1, 2)), 1.0, observed=y)
    return model


@refusal("bins_by_searchsorted", "NotSeparableError", "y", "(x[:, None] > edges).sum(axis=1)", "bin")
def bins_by_searchsorted() -> pm.Model:
    x, y, _ = _xy(25, 1, 87)
    with pm.Model() as model:
        x_data = pm.Data("x", x[:, 0])
        effect = pm.Normal("effect", 0, 1, shape=4)
        pm.Normal("y", effect[pt.searchsorted(np.array([-1.0, 0.0, 1.0]), x_data)], 1.0, observed=y)
    return model


@refusal("interpolated_outcome", "UnsupportedModelError", "y", "pm.Interpolated", "pm.Mixture")
def interpolated_outcome() -> pm.Model:
    _, y, _ = _xy(24, 1, 88)
    with pm.Model() as model:
        pm.Interpolated("y", np.linspace(-40, 40, 9), np.ones(9), observed=y)
        pm.Normal("z", pm.Normal("mu", 0, 1), 1.0, observed=y)
    return model


@refusal("rows_of_probabilities", "UnsupportedModelError", "y", "pm.Data('p', p)", "divides all rows")
def rows_of_probabilities() -> pm.Model:
    # Forecasts of two experts; whoever's do not sum to one makes PyMC rescale those for everybody.
    rng = np.random.default_rng(90)
    first, second = rng.dirichlet(np.ones(3), size=(2, 24))
    with pm.Model() as model:
        experts = [pm.Categorical.dist(p=first), pm.Categorical.dist(p=second)]
        w = pm.Dirichlet("w", np.ones(2))
        pm.Mixture("y", w=w, comp_dists=experts, observed=rng.integers(0, 3, 24))
    return model


@refusal("logp_of_arrays", "UnsupportedModelError", "p", "pm.logp", "pm.Data('x', x)", "observed=")
def logp_of_arrays() -> pm.Model:
    x, y, _ = _xy(24, 1, 92)
    with pm.Model() as model:
        dist = pm.TruncatedNormal.dist(
            pm.Normal("b", 0, 1) * x[:, 0], 1.0, lower=np.full(24, -np.inf), upper=y + 1
        )
        pm.Potential("p", pm.logp(dist, pt.as_tensor(y)))
    return model


@refusal("density_of_a_copy", "UnsupportedModelError", "p", "random variable", "observed=")
def density_of_a_copy() -> pm.Model:
    # pm.logp derives it of a copy of beta, drawn anew at each call; it was fitted with gradient zero.
    x, y, _ = _xy(24, 2, 91)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beta = pm.Normal("beta", 0, 1, shape=2)
        density = pm.logp(pt.exp(pm.Normal.dist(pt.dot(pm.Data("x", x), beta), 1.0)), pm.Data("y", np.exp(y)))
        pm.Potential("p", density)
    return model


@refusal("density_of_a_copy_in_a_prior", "UnsupportedModelError", "pull", "random variable", "pm.logp")
def density_of_a_copy_in_a_prior() -> pm.Model:
    # A symbolic random variable; the penalty was another number at each call, with gradient zero.
    _, y, _ = _xy(24, 1, 93)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = pm.ZeroSumNormal("level", shape=3)
        pm.Potential("pull", pm.logp(pt.exp(pm.Normal.dist(level, 1.0)), np.full(3, 2.0)).sum())
        pm.Normal("y", level[0], 1.0, observed=y)
    return model


@refusal("spline_of_data_in_a_prior", "UnsupportedModelError", "SplineWrapper", "unprotected")
def spline_of_data_in_a_prior() -> pm.Model:
    # The same operation as in a pm.Interpolated beside it, but with other numbers in it.
    from pymc.distributions.dist_math import SplineWrapper
    from scipy.interpolate import InterpolatedUnivariateSpline

    _, y, _ = _xy(24, 1, 89)
    points = np.linspace(0, 1, 5)
    with pm.Model() as model:
        known = pm.Interpolated("known", points, np.ones(5))
        fitted = InterpolatedUnivariateSpline(points, 1 + y[:5] ** 2, k=1, ext="zeros")
        pm.Potential("penalty", SplineWrapper(fitted)(known))
        pm.Normal("y", known, 1.0, observed=y)
    return model


@refusal("start_is_nan", "UnsupportedModelError", "theta", "initval=", "finite")
def start_is_nan() -> pm.Model:
    _, y, _ = _xy(24, 1, 90)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("theta", 0, 1, initval=np.nan), 1.0, observed=y)
    return model


@refusal("start_beyond_the_support", "UnsupportedModelError", "theta", "initval=", "finite")
def start_beyond_the_support() -> pm.Model:
    _, y, _ = _xy(24, 1, 91)
    with pm.Model() as model:
        pm.Normal("y", pm.Uniform("theta", 0, 1, initval=2.0), 1.0, observed=y)
    return model


@refusal("cutpoints_that_start_equal", "UnsupportedModelError", "cut", "initval=", "ordered")
def cutpoints_that_start_equal() -> pm.Model:
    x, _, rng = _xy(26, 1, 92)
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 1, shape=3, transform=pm.distributions.transforms.ordered)
        eta = x[:, 0] * pm.Normal("b", 0, 1)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cut, observed=rng.integers(0, 4, 26))
    return model


@refusal("prior_without_density_at_the_start", "UnsupportedModelError", "theta", "initval=", "prior")
def prior_without_density_at_the_start() -> pm.Model:
    _, y, _ = _xy(24, 1, 93)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, pt.sqrt(pm.Normal("variance", -1, 0.1)))
        pm.Normal("y", theta, 1.0, observed=y)
    return model


@refusal("predictor_one_shorter", "UnsupportedModelError", "y", "shapes that do not fit", "shorter")
def predictor_one_shorter() -> pm.Model:
    x, y, _ = _xy(24, 1, 94)
    with pm.Model() as model:
        pm.Normal("y", x[1:, 0] * pm.Normal("b", 0, 1), 1.0, observed=y)
    return model


@refusal("outcome_with_one_column", "UnsupportedModelError", "y", "df['y'] for df[['y']]")
def outcome_with_one_column() -> pm.Model:
    x, y, _ = _xy(24, 2, 95)
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("b", 0, 1, shape=2), 1.0, observed=y[:, None])
    return model


@refusal("records_chosen_by_a_mask", "NotSeparableError", "y", "depends on values of the data", "mask")
def records_chosen_by_a_mask() -> pm.Model:
    x, y, rng = _xy(24, 1, 96)
    mask = rng.uniform(size=24) < 0.5
    with pm.Model() as model:
        mu = x[:, 0] * pm.Normal("b", 0, 1)
        pm.Normal("y", mu[mask], 1.0, observed=y[mask])
    return model


@refusal("shape_from_a_mask", "UnsupportedModelError", "effect", "shape", "depends on values of the data")
def shape_from_a_mask() -> pm.Model:
    _, y, _ = _xy(22, 1, 97)
    with pm.Model() as model:
        outcome = pm.Data("outcome", y)
        effect = pm.Normal("effect", outcome[outcome > 0], 1)
        pm.Normal("y", effect.sum(), 1.0, observed=outcome)
    return model


@refusal("change_at_a_record", "NotSeparableError", "y", "by their place", "column of its own")
def change_at_a_record() -> pm.Model:
    # From the 14th record on another level holds; a batch has no 14th record.
    x, y, _ = _xy(24, 1, 98)
    with pm.Model() as model:
        before, after = pm.Normal("before", 0, 1), pm.Normal("after", 0, 1)
        mu = pt.set_subtensor((before + pm.Data("x", x[:, 0]))[13:], after)
        pm.Normal("y", mu, 1.0, observed=y)
    return model


@refusal("lag_of_a_season", "NotSeparableError", "y", "by their place")
def lag_of_a_season() -> pm.Model:
    x, y, _ = _xy(24, 1, 99)
    with pm.Model() as model:
        season = pt.roll(pm.Data("x", x[:, 0]), 10)
        pm.Normal("y", pm.Normal("b", 0, 1) * season, 1.0, observed=y)
    return model


# ------------------------------------------------------------------------------------------------
# Arguments that do not fit the model
# ------------------------------------------------------------------------------------------------


def _plain(seed: int) -> pm.Model:
    x, y, _ = _xy(24, 2, seed)
    with pm.Model(coords={"obs": range(24), "feature": ["a", "b"]}) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        pm.Normal("y", x_data @ beta, 1.0, observed=y, dims="obs")
    return model


@refusal("unknown_record_dim", "ArgumentError", "record_dim", "obs", record_dim="persons")
def unknown_record_dim() -> pm.Model:
    return _plain(70)


@refusal("record_dim_of_parameters", "ArgumentError", "record_dim", "feature", record_dim="feature")
def record_dim_of_parameters() -> pm.Model:
    return _plain(71)


@refusal("unknown_public_data", "ArgumentError", "public_data", "z", public_data=("z",))
def unknown_public_data() -> pm.Model:
    return _plain(72)


@refusal("outcome_declared_public", "ArgumentError", "public_data", "y", public_data=("y",))
def outcome_declared_public() -> pm.Model:
    return _plain(73)
