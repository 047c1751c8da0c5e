"""A zoo of PyMC models, written as people write them, that separate over their records.

Every entry is one model whose log-density is ``log p(z) + sum_i log p(x_i | z)`` over the rows
``i`` of its leading axis, so each of them must go through the library unchanged. The tests ask of
each: is the record axis found, do one-record log-densities equal the model's own row by row, and do
the per-record gradients add up to the full one.

The data are made by `numpy.random.default_rng`, so a model is the same on every machine. The number
of records differs from every other length of its model, except under the tag ``ambiguous``, where
`Entry.record_dim` or the model's ``dims`` decide. What stands in an entry is what a test may check:

* ``withheld``: Deterministics that depend on record data, which a release must leave out;
* ``float32``: build *and evaluate* under ``pytensor.config.change_flags(floatX="float32")``;
* ``public_data``: names to declare public (lookup tables that happen to have N rows).

Tags: ``data`` (pm.Data), ``constants`` (arrays closed over), ``dims``, ``pt``, ``pm.math`` (style);
``hierarchical``, ``mixture``, ``survival``, ``counts``, ``multivariate``, ``ordinal``, ``basis``,
``nn``, ``custom``, ``potential``, ``panel`` (a row is a short series), ``multi`` (several
outcomes); ``quick``: a handful that together touch most of the machinery; ``literal_length``: N
stands as a number inside the graph (``pt.zeros((N, 1))``), where no array shows it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

__all__ = ["ZOO", "Entry", "select"]


@dataclass(frozen=True)
class Entry:
    """One model of the zoo and what is known about it."""

    name: str
    build: Callable[[], pm.Model]
    num_records: int
    tags: frozenset[str] = frozenset()
    record_dim: str | None = None
    public_data: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    float32: bool = False

    def flags(self) -> AbstractContextManager[None]:
        """Configuration under which the model is meant to be built and evaluated."""
        return pytensor.config.change_flags(floatX="float32" if self.float32 else "float64")


ZOO: dict[str, Entry] = {}


def zoo(
    name: str,
    *,
    n: int,
    tags: str,
    withheld: str = "",
    record_dim: str | None = None,
    public_data: tuple[str, ...] = (),
    float32: bool = False,
) -> Callable[[Callable[[], pm.Model]], Callable[[], pm.Model]]:
    """Register a builder; `tags` and `withheld` are blank-separated."""

    def register(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
        assert name not in ZOO, name
        ZOO[name] = Entry(
            name,
            build,
            n,
            frozenset(tags.split()),
            record_dim,
            public_data,
            tuple(withheld.split()),
            float32,
        )
        return build

    return register


def select(tags: Iterable[str]) -> list[Entry]:
    """Entries that carry every one of `tags`."""
    wanted = frozenset(tags)
    return [entry for entry in ZOO.values() if wanted <= entry.tags]


def _quiet_scan() -> AbstractContextManager[None]:
    """Silence what PyMC 5 says to itself when it truncates a count distribution."""
    return warnings.catch_warnings(action="ignore", category=DeprecationWarning)


def _regression(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A design matrix, its linear predictor for fixed coefficients, and the generator."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ np.linspace(-0.8, 0.8, d), rng


# ------------------------------------------------------------------------------------------------
# Regressions: one outcome, one design matrix
# ------------------------------------------------------------------------------------------------


@zoo("linear", n=30, tags="constants pt quick")
def linear() -> pm.Model:
    x, eta, rng = _regression(30, 3, 1)
    y = eta + rng.normal(size=30)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 10)
        beta = pm.Normal("beta", 0, 10, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu=alpha + x @ beta, sigma=sigma, observed=y)
    return model


@zoo("linear_pandas", n=27, tags="constants pt", withheld="mu")
def linear_pandas() -> pm.Model:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"height": rng.normal(154, 8, 27), "age": rng.integers(18, 80, 27)})
    frame["weight"] = 45 + 0.6 * (frame["height"] - 154) + rng.normal(0, 4, 27)
    with pm.Model() as model:
        a = pm.Normal("a", mu=178, sigma=20)
        b = pm.LogNormal("b", mu=0, sigma=1)
        c = pm.Normal("c", 0, 0.1)
        sigma = pm.Uniform("sigma", 0, 50)
        mu = pm.Deterministic(
            "mu", a + b * (frame["height"].to_numpy() - 154.0) + c * frame["age"].to_numpy()
        )
        pm.Normal("weight", mu=mu, sigma=sigma, observed=frame["weight"])
    return model


@zoo("linear_data_dims", n=31, tags="data dims pm.math", withheld="mu")
def linear_data_dims() -> pm.Model:
    x, eta, rng = _regression(31, 4, 3)
    coords = {"obs": np.arange(31), "feature": list("abcd")}
    with pm.Model(coords=coords) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        y_data = pm.Data("y_obs", eta + rng.normal(size=31), dims="obs")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.Exponential("sigma", 1)
        mu = pm.Deterministic("mu", pm.math.dot(x_data, beta), dims="obs")
        pm.Normal("y", mu, sigma, observed=y_data, dims="obs")
    return model


@zoo("polynomial_broadcast_scalar", n=29, tags="data pt")
def polynomial_broadcast_scalar() -> pm.Model:
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, 29)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        b = pm.Normal("b", 0, 1, shape=4)
        powers = pt.stack([x_data**k for k in range(4)], axis=1)
        sigma = pm.HalfCauchy("sigma", 1)
        pm.Normal("y", (powers * b).sum(axis=-1), sigma, observed=x**2 + rng.normal(0, 0.1, 29))
    return model


@zoo("intercept_only", n=22, tags="constants", withheld="")
def intercept_only() -> pm.Model:
    y = np.random.default_rng(5).normal(1.0, 2.0, 22)
    with pm.Model() as model:
        mu = pm.Flat("mu")
        sigma = pm.HalfFlat("sigma")
        pm.Normal("y", mu, sigma, observed=y)
    return model


@zoo("heteroscedastic", n=26, tags="constants pt", withheld="sigma")
def heteroscedastic() -> pm.Model:
    x, eta, rng = _regression(26, 2, 6)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        gamma = pm.Normal("gamma", 0, 1, shape=2)
        sigma = pm.Deterministic("sigma", pt.softplus(pt.dot(x, gamma)) + 1e-3)
        pm.Normal("y", pt.dot(x, beta), sigma, observed=eta + rng.normal(size=26))
    return model


@zoo("logistic_logit", n=33, tags="constants dims quick")
def logistic_logit() -> pm.Model:
    x, eta, rng = _regression(33, 5, 7)
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
    with pm.Model(coords={"feature": [f"f{i}" for i in range(5)]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        pm.Bernoulli("income", logit_p=x @ beta, observed=y)
    return model


@zoo("logistic_invlogit_bool", n=24, tags="data dims pm.math", withheld="p")
def logistic_invlogit_bool() -> pm.Model:
    x, eta, rng = _regression(24, 2, 8)
    y = rng.uniform(size=24) < 1 / (1 + np.exp(-eta))  # a boolean outcome
    smoker = rng.uniform(size=24) < 0.3  # a boolean covariate
    with pm.Model(coords={"person": range(24), "feature": ["u", "v"]}) as model:
        x_data = pm.Data("x", x, dims=("person", "feature"))
        smoker_data = pm.Data("smoker", smoker, dims="person")
        intercept = pm.Normal("intercept", 0, 1.5)
        beta = pm.Normal("beta", 0, 1, dims="feature")
        effect = pm.Normal("effect", 0, 1)
        eta_ = intercept + pm.math.dot(x_data, beta) + pm.math.switch(smoker_data, effect, 0.0)
        p = pm.Deterministic("p", pm.math.invlogit(eta_), dims="person")
        pm.Bernoulli("sick", p=p, observed=y, dims="person")
    return model


@zoo("probit", n=25, tags="constants pm.math")
def probit() -> pm.Model:
    x, eta, rng = _regression(25, 3, 9)
    y = (eta + rng.normal(size=25) > 0).astype("int8")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", p=pm.math.invprobit(pm.math.dot(x, beta)), observed=y)
    return model


@zoo("cloglog", n=23, tags="constants pt")
def cloglog() -> pm.Model:
    x, _eta, rng = _regression(23, 2, 10)
    y = rng.binomial(1, 0.4, 23)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.5, shape=2)
        pm.Bernoulli("y", p=1 - pt.exp(-pt.exp(x @ beta - 0.5)), observed=y)
    return model


@zoo("poisson_exposure", n=28, tags="data dims pm.math counts quick", withheld="rate")
def poisson_exposure() -> pm.Model:
    x, eta, rng = _regression(28, 2, 11)
    exposure = rng.uniform(0.5, 3.0, 28)
    with pm.Model(coords={"feature": ["age", "dose"]}) as model:
        model.add_coord("clinic_visit", np.arange(28))
        x_data = pm.Data("x", x, dims=("clinic_visit", "feature"))
        log_exposure = pm.Data("log_exposure", np.log(exposure), dims="clinic_visit")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        rate = pm.Deterministic("rate", pm.math.exp(x_data @ beta + log_exposure))
        pm.Poisson("n", mu=rate, observed=rng.poisson(exposure * np.exp(eta)), dims="clinic_visit")
    return model


@zoo("negative_binomial", n=34, tags="constants pm.math counts")
def negative_binomial() -> pm.Model:
    x, eta, rng = _regression(34, 2, 12)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        alpha = pm.Gamma("alpha", 2, 0.5)
        y = rng.negative_binomial(3, 3 / (3 + np.exp(1 + eta)))
        pm.NegativeBinomial("y", mu=pm.math.exp(1 + pm.math.dot(x, beta)), alpha=alpha, observed=y)
    return model


@zoo("gamma_log_link", n=21, tags="constants pt")
def gamma_log_link() -> pm.Model:
    x, eta, rng = _regression(21, 2, 13)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        shape = pm.Gamma("shape", 2, 1)
        mu = pt.exp(pt.dot(x, beta))
        pm.Gamma("y", alpha=shape, beta=shape / mu, observed=rng.gamma(2.0, np.exp(eta) / 2.0))
    return model


@zoo("beta_regression", n=32, tags="data pm.math", withheld="mu")
def beta_regression() -> pm.Model:
    x, eta, rng = _regression(32, 2, 14)
    m = 1 / (1 + np.exp(-eta))
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=2)
        nu = pm.HalfNormal("nu", 10)
        mu = pm.Deterministic("mu", pm.math.sigmoid(x_data @ beta))
        pm.Beta("share", mu=mu, nu=nu, observed=rng.beta(8 * m, 8 * (1 - m)))
    return model


@zoo("student_t_robust", n=37, tags="constants pt")
def student_t_robust() -> pm.Model:
    x, eta, rng = _regression(37, 2, 15)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        nu_minus_one = pm.Exponential("nu_minus_one", 1 / 29)
        nu = pm.Deterministic("nu", nu_minus_one + 1)
        y = eta + rng.standard_t(3, 37)
        pm.StudentT("y", nu=nu, mu=x @ beta, sigma=sigma, observed=y)
    return model


@zoo("quantile_asymmetric_laplace", n=24, tags="constants pt")
def quantile_asymmetric_laplace() -> pm.Model:
    x, eta, rng = _regression(24, 2, 16)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        b = pm.HalfNormal("b", 1)
        y = eta + rng.laplace(size=24)
        pm.AsymmetricLaplace("y", b=b, mu=x @ beta, q=0.9, observed=y)
    return model


@zoo("skew_normal_and_exgaussian", n=27, tags="constants multi")
def skew_normal_and_exgaussian() -> pm.Model:
    rng = np.random.default_rng(17)
    group = rng.integers(0, 2, 27)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        alpha = pm.Normal("alpha", 0, 2)
        nu = pm.HalfNormal("nu", 1)
        pm.SkewNormal("score", mu=mu[group], sigma=sigma[0], alpha=alpha, observed=rng.normal(size=27))
        pm.ExGaussian("rt", mu=mu[group], sigma=sigma[1], nu=nu, observed=rng.gamma(2.0, 0.5, size=27))
    return model


@zoo("von_mises", n=26, tags="constants pt")
def von_mises() -> pm.Model:
    rng = np.random.default_rng(18)
    x = rng.normal(size=26)
    with pm.Model() as model:
        mu = pm.VonMises("mu", 0, 1)
        b = pm.Normal("b", 0, 1)
        kappa = pm.HalfNormal("kappa", 2)
        angle = mu + 2 * pt.arctan(b * x)
        pm.VonMises("direction", mu=angle, kappa=kappa, observed=rng.vonmises(0.3, 2.0, 26))
    return model


@zoo("dose_response_curve", n=36, tags="data dims pm.math", withheld="saturation")
def dose_response_curve() -> pm.Model:
    rng = np.random.default_rng(19)
    dose = rng.uniform(0.1, 10.0, 36)
    with pm.Model(coords={"subject": np.arange(36)}) as model:
        dose_data = pm.Data("dose", dose, dims="subject")
        top = pm.TruncatedNormal("top", mu=5, sigma=2, lower=0)
        ec50 = pm.LogNormal("ec50", 0, 1)
        hill = pm.Gamma("hill", 4, 2)
        curve = dose_data**hill / (ec50**hill + dose_data**hill)
        saturation = pm.Deterministic("saturation", curve, dims="subject")
        sigma = pm.HalfNormal("sigma", 1)
        y = 4 * dose / (2 + dose) + rng.normal(0, 0.3, 36)
        pm.Normal("response", top * saturation, sigma, observed=y, dims="subject")
    return model


@zoo("epidemic_by_scan", n=34, tags="data scan counts")
def epidemic_by_scan() -> pm.Model:
    """Loops over the days, of free variables alone, one on the other; each record has its own day."""
    rng = np.random.default_rng(78)
    days = 12

    def step(healthy: Variable, ill: Variable, beta: Variable, gamma: Variable) -> tuple[Variable, Variable]:
        new = beta * healthy * ill
        return healthy - new, ill + new - gamma * ill

    with pm.Model(coords={"on": range(days)}) as model:
        beta = pm.LogNormal("beta", -0.5, 0.3)
        gamma = pm.LogNormal("gamma", -2.0, 0.3)
        day = pm.Data("day", rng.integers(0, days, 34))
        with _quiet_scan():
            curves = pytensor.scan(
                step,
                outputs_info=[pt.as_tensor(0.97), pt.as_tensor(0.03)],
                non_sequences=[beta, gamma],
                n_steps=days,
                return_updates=False,
            )
            late = pytensor.scan(
                lambda now, before: 0.6 * before + 0.4 * now,
                sequences=[curves[1]],
                outputs_info=[pt.as_tensor(0.03)],
                return_updates=False,
            )
        share = pm.Deterministic("share", late, dims="on")
        pm.Bernoulli("ill", share[day], observed=rng.integers(0, 2, 34))
    return model


@zoo("changepoint_in_covariate", n=35, tags="constants pm.math")
def changepoint_in_covariate() -> pm.Model:
    rng = np.random.default_rng(20)
    year = np.sort(rng.integers(1851, 1962, 35))
    with pm.Model() as model:
        tau = pm.Uniform("tau", 1851, 1962)
        early = pm.Exponential("early", 1.0)
        late = pm.Exponential("late", 1.0)
        weight = pm.math.sigmoid((year - tau) / 5.0)
        rate = early * (1 - weight) + late * weight
        pm.Poisson("disasters", rate, observed=rng.poisson(2.0, 35))
    return model


@zoo("float32", n=29, tags="data dims", float32=True, withheld="p")
def float32() -> pm.Model:
    x, eta, rng = _regression(29, 3, 21)
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
    with (
        pytensor.config.change_flags(floatX="float32"),
        pm.Model(coords={"feature": list("abc")}) as model,
    ):
        x_data = pm.Data("x", x.astype("float32"), dims=("obs", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        p = pm.Deterministic("p", pm.math.sigmoid(x_data @ beta))
        pm.Bernoulli("y", p=p, observed=y)
        pm.Normal("z", x_data @ beta, sigma, observed=eta.astype("float32"))
    return model


@zoo("observed_later", n=25, tags="data dims", withheld="mu")
def observed_later() -> pm.Model:
    x, eta, rng = _regression(25, 2, 22)
    with pm.Model(coords={"trial": np.arange(25), "feature": ["a", "b"]}) as generative:
        x_data = pm.Data("x", x, dims=("trial", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        mu = pm.Deterministic("mu", x_data @ beta, dims="trial")
        pm.Normal("y", mu, sigma, dims="trial")
    return pm.observe(generative, {"y": eta + rng.normal(size=25)})


@zoo("nested_model_names", n=24, tags="constants pt")
def nested_model_names() -> pm.Model:
    x, eta, rng = _regression(24, 2, 23)
    with pm.Model() as model:
        with pm.Model(name="trend"):
            beta = pm.Normal("beta", 0, 1, shape=2)
        with pm.Model(name="noise"):
            sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", x @ beta, sigma, observed=eta + rng.normal(size=24))
    return model


# ------------------------------------------------------------------------------------------------
# Counts and categories
# ------------------------------------------------------------------------------------------------


@zoo("binomial_trials", n=28, tags="data dims pm.math counts", withheld="p")
def binomial_trials() -> pm.Model:
    x, eta, rng = _regression(28, 2, 30)
    trials = rng.integers(1, 40, 28)
    with pm.Model(coords={"ward": range(28), "feature": ["a", "b"]}) as model:
        trials_data = pm.Data("trials", trials, dims="ward")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        p = pm.Deterministic("p", pm.math.invlogit(pm.math.dot(x, beta)), dims="ward")
        wins = rng.binomial(trials, 1 / (1 + np.exp(-eta)))
        pm.Binomial("wins", n=trials_data, p=p, observed=wins, dims="ward")
    return model


@zoo("beta_binomial", n=31, tags="constants counts")
def beta_binomial() -> pm.Model:
    rng = np.random.default_rng(31)
    admits = rng.integers(1, 60, 31)
    gid = rng.integers(0, 2, 31)
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.5, shape=2)
        phi = pm.Exponential("phi", 1.0)
        theta = pm.Deterministic("theta", phi + 2.0)
        pbar = pm.math.invlogit(a[gid])
        pm.BetaBinomial("A", alpha=pbar * theta, beta=(1.0 - pbar) * theta, n=admits, observed=admits // 3)
    return model


@zoo("zero_inflated_poisson", n=33, tags="constants pm.math mixture counts")
def zero_inflated_poisson() -> pm.Model:
    x, _, rng = _regression(33, 2, 32)
    y = rng.poisson(2.0, 33) * rng.binomial(1, 0.7, 33)
    with pm.Model() as model:
        ap = pm.Normal("ap", -1.5, 1.0)
        beta = pm.Normal("beta", 0, 0.5, shape=2)
        psi = pm.math.invlogit(ap + x[:, 0])
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(x @ beta), observed=y)
    return model


@zoo("zero_inflated_counts", n=29, tags="data mixture counts multi")
def zero_inflated_counts() -> pm.Model:
    rng = np.random.default_rng(33)
    trials = rng.integers(3, 12, 29)
    with pm.Model() as model:
        trials_data = pm.Data("trials", trials)
        psi = pm.Beta("psi", 2, 2)
        mu = pm.Gamma("mu", 2, 1)
        alpha = pm.Exponential("alpha", 1)
        p = pm.Beta("p", 1, 1)
        pm.ZeroInflatedNegativeBinomial("visits", psi=psi, mu=mu, alpha=alpha, observed=rng.poisson(1.5, 29))
        pm.ZeroInflatedBinomial("hits", psi=psi, n=trials_data, p=p, observed=rng.binomial(trials, 0.3))
    return model


@zoo("hurdle_poisson", n=30, tags="constants pm.math mixture counts")
def hurdle_poisson() -> pm.Model:
    x, _, rng = _regression(30, 2, 34)
    with pm.Model() as model, _quiet_scan():
        beta = pm.Normal("beta", 0, 0.5, shape=2)
        psi = pm.Beta("psi", 2, 2)
        y = rng.poisson(1.2, 30)
        pm.HurdlePoisson("y", psi=psi, mu=pm.math.exp(x @ beta), observed=y)
    return model


@zoo("hurdle_negative_binomial", n=26, tags="data mixture counts")
def hurdle_negative_binomial() -> pm.Model:
    x, _, rng = _regression(26, 2, 35)
    with pm.Model() as model, _quiet_scan():
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 0.5, shape=2)
        gamma = pm.Normal("gamma", 0, 0.5, shape=2)
        alpha = pm.Exponential("alpha", 1)
        pm.HurdleNegativeBinomial(
            "y",
            psi=pm.math.sigmoid(x_data @ gamma),
            mu=pm.math.exp(x_data @ beta),
            alpha=alpha,
            observed=rng.poisson(1.2, 26),
        )
    return model


@zoo("hurdle_continuous", n=28, tags="constants mixture multi")
def hurdle_continuous() -> pm.Model:
    rng = np.random.default_rng(36)
    wet = rng.binomial(1, 0.6, 28)
    with pm.Model() as model:
        psi = pm.Beta("psi", 2, 2)
        alpha = pm.Gamma("alpha", 2, 1)
        beta = pm.Gamma("beta", 2, 1)
        mu = pm.Normal("mu", 0, 1)
        rain = wet * rng.gamma(2.0, 1.0, 28)
        cost = wet * rng.lognormal(0.0, 1.0, 28)
        pm.HurdleGamma("rain", psi=psi, alpha=alpha, beta=beta, observed=rain)
        pm.HurdleLogNormal("cost", psi=psi, mu=mu, sigma=1.0, observed=cost)
    return model


@zoo("categorical_softmax", n=32, tags="data dims pm.math quick", withheld="p")
def categorical_softmax() -> pm.Model:
    x, _, rng = _regression(32, 4, 37)
    species = pd.Categorical(rng.choice(["setosa", "versicolor", "virginica"], 32))
    coords = {"flower": np.arange(32), "feature": list("abcd"), "species": species.categories}
    with pm.Model(coords=coords) as model:
        x_data = pm.Data("x", x, dims=("flower", "feature"))
        codes = pm.Data("species_idx", species.codes, dims="flower")  # int8 codes
        alpha = pm.Normal("alpha", 0, 1, dims="species")
        beta = pm.Normal("beta", 0, 1, dims=("feature", "species"))
        p = pm.Deterministic("p", pm.math.softmax(alpha + x_data @ beta, axis=1))
        pm.Categorical("y", p=p, observed=codes, dims="flower")
    return model


@zoo("categorical_pivot", n=27, tags="constants pt")
def categorical_pivot() -> pm.Model:
    x, _, rng = _regression(27, 2, 38)
    codes, _ = pd.factorize(pd.Series(rng.choice(["car", "bus", "train"], 27)), sort=True)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=(2, 2))
        utility = pt.concatenate([np.zeros((27, 1)), x @ beta], axis=1)
        pm.Categorical("choice", logit_p=utility, observed=codes)
    return model


@zoo("categorical_pivot_alloc", n=27, tags="data pt literal_length")
def categorical_pivot_alloc() -> pm.Model:
    # The same, but the pivot's zeros are made in the graph with N as a number.
    x, _, rng = _regression(27, 2, 38)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=(2, 2))
        utility = pt.concatenate([pt.zeros((27, 1)), x_data @ beta], axis=1)
        pm.Categorical("choice", logit_p=utility, observed=rng.integers(0, 3, 27))
    return model


@zoo("conditional_logit", n=25, tags="data dims pt multi")
def conditional_logit() -> pm.Model:
    # A three-dimensional design: person by alternative by attribute, as in discrete choice.
    rng = np.random.default_rng(39)
    coords = {"person": range(25), "alternative": ["car", "bus", "rail"], "attr": ["cost", "time"]}
    with pm.Model(coords=coords) as model:
        attributes = pm.Data(
            "attributes", rng.normal(size=(25, 3, 2)), dims=("person", "alternative", "attr")
        )
        taste = pm.Normal("taste", 0, 1, dims="attr")
        asc = pm.ZeroSumNormal("asc", 1, dims="alternative")
        utility = pt.tensordot(attributes, taste, axes=[[2], [0]]) + asc[None, :]
        p = pt.special.softmax(utility, axis=-1)
        pm.Categorical("choice", p=p, observed=rng.integers(0, 3, 25), dims="person")
    return model


@zoo("ordered_logistic", n=34, tags="constants pt ordinal", withheld="rating_probs")
def ordered_logistic() -> pm.Model:
    x, _, rng = _regression(34, 2, 40)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        cutpoints = pm.Normal(
            "cutpoints",
            mu=[-1, 0, 1],
            sigma=1,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 0.0, 1.0],
        )
        pm.OrderedLogistic(
            "rating", eta=pt.dot(x, beta), cutpoints=cutpoints, observed=rng.integers(0, 4, 34)
        )
    return model


@zoo("ordered_probit", n=30, tags="data dims ordinal")
def ordered_probit() -> pm.Model:
    x, _, rng = _regression(30, 2, 41)
    grade = pd.Categorical(
        rng.choice(["low", "mid", "high"], 30), categories=["low", "mid", "high"], ordered=True
    )
    with pm.Model(coords={"pupil": range(30), "cut": [0, 1], "feature": ["a", "b"]}) as model:
        x_data = pm.Data("x", x, dims=("pupil", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.Exponential("sigma", 1)
        cutpoints = pm.Normal(
            "cutpoints",
            0,
            1.5,
            dims="cut",
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-0.5, 0.5]),
        )
        pm.OrderedProbit(
            "grade",
            eta=x_data @ beta,
            cutpoints=cutpoints,
            sigma=sigma,
            compute_p=False,
            observed=grade.codes,
            dims="pupil",
        )
    return model


@zoo("ordered_dirichlet_cutpoints", n=26, tags="constants pt ordinal", withheld="y_probs")
def ordered_dirichlet_cutpoints() -> pm.Model:
    # Monotonic effect of an ordinal predictor and induced cutpoints, both through a simplex.
    rng = np.random.default_rng(42)
    education = rng.integers(0, 5, 26)
    with pm.Model() as model:
        delta = pm.Dirichlet("delta", np.ones(4))
        steps = pt.concatenate([[0.0], pt.cumsum(delta)])
        b = pm.Normal("b", 0, 1)
        theta = pm.Dirichlet("theta", np.ones(3))
        cutpoints = pm.Deterministic("cutpoints", pm.math.logit(pt.cumsum(theta)[:-1]))
        pm.OrderedLogistic(
            "y", eta=b * steps[education], cutpoints=cutpoints, observed=rng.integers(0, 3, 26)
        )
    return model


@zoo("multinomial", n=24, tags="data dims pm.math counts", withheld="p")
def multinomial() -> pm.Model:
    x, _, rng = _regression(24, 2, 43)
    totals = rng.integers(5, 50, 24)
    counts = np.stack([rng.multinomial(t, [0.2, 0.3, 0.5]) for t in totals])
    coords = {"poll": np.arange(24), "party": ["red", "green", "blue"], "feature": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        n_data = pm.Data("n", totals, dims="poll")
        y_data = pm.Data("counts", counts, dims=("poll", "party"))
        alpha = pm.Normal("alpha", 0, 1, dims="party")
        beta = pm.Normal("beta", 0, 1, dims=("feature", "party"))
        p = pm.Deterministic("p", pm.math.softmax(alpha + pm.math.dot(x, beta), axis=-1))
        pm.Multinomial("votes", n=n_data, p=p, observed=y_data, dims=("poll", "party"))
    return model


@zoo("dirichlet_multinomial", n=28, tags="constants dims counts")
def dirichlet_multinomial() -> pm.Model:
    rng = np.random.default_rng(44)
    total = 50
    counts = rng.multinomial(total, [0.4, 0.3, 0.1, 0.1, 0.1], size=28)
    coords = {"tree": list("pqrst"), "forest": np.arange(28)}
    with pm.Model(coords=coords) as model:
        frac = pm.Dirichlet("frac", a=np.ones(5), dims="tree")
        conc = pm.LogNormal("conc", mu=1, sigma=1)
        pm.DirichletMultinomial("counts", n=total, a=frac * conc, observed=counts, dims=("forest", "tree"))
    return model


@zoo("dirichlet_regression", n=23, tags="constants pt multivariate")
def dirichlet_regression() -> pm.Model:
    x, _, rng = _regression(23, 2, 45)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.5, shape=(2, 3))
        shares = rng.dirichlet(np.ones(3) * 4, 23)
        pm.Dirichlet("shares", a=pt.exp(x @ beta), observed=shares)
    return model


# ------------------------------------------------------------------------------------------------
# Survival, censoring, truncation
# ------------------------------------------------------------------------------------------------


@zoo("exponential_censored", n=31, tags="constants pm.math survival")
def exponential_censored() -> pm.Model:
    x, eta, rng = _regression(31, 2, 50)
    time = rng.exponential(np.exp(eta))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        latent = pm.Exponential.dist(lam=pm.math.exp(-pm.math.dot(x, beta)))
        pm.Censored("time", latent, lower=None, upper=2.0, observed=np.minimum(time, 2.0))
    return model


@zoo("weibull_censored", n=35, tags="data dims pm.math survival quick")
def weibull_censored() -> pm.Model:
    x, eta, rng = _regression(35, 2, 51)
    time = rng.weibull(1.5, 35) * np.exp(eta)
    end = rng.uniform(0.5, 3.0, 35)  # every patient leaves the study at another time
    with pm.Model(coords={"patient": np.arange(35), "feature": ["age", "dose"]}) as model:
        x_data = pm.Data("x", x, dims=("patient", "feature"))
        end_data = pm.Data("end_of_study", end, dims="patient")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        alpha = pm.HalfNormal("alpha", 2)
        latent = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(x_data @ beta))
        pm.Censored(
            "time",
            latent,
            lower=None,
            upper=end_data,
            observed=np.minimum(time, end),
            dims="patient",
        )
    return model


@zoo("weibull_event_potential", n=30, tags="data pt survival potential")
def weibull_event_potential() -> pm.Model:
    # The survival likelihood by hand: log density for events, log survival for the censored ones.
    rng = np.random.default_rng(52)
    event = rng.uniform(size=30) < 0.6
    with pm.Model() as model:
        t = pm.Data("t", rng.weibull(1.2, 30) + 0.01)
        event_data = pm.Data("event", event)
        lam = pm.Gamma("lam", 2, 2)
        k = pm.Gamma("k", 3, 2)
        hazard = pt.log(k) + (k - 1) * pt.log(t) - k * pt.log(lam)
        loglike = pt.where(event_data, hazard, 0.0) - (t / lam) ** k
        pm.Potential("survival", loglike)
        pm.Bernoulli("relapse", logit_p=pm.Normal("a", 0, 1), observed=rng.integers(0, 2, 30))
    return model


@zoo("split_potential_logcdf", n=29, tags="potential survival")
def split_potential_logcdf() -> pm.Model:
    # Censoring by a row weight on logp and logcdf instead of pm.Censored.
    rng = np.random.default_rng(53)
    y = np.minimum(rng.normal(size=29), 0.5)
    seen = (y < 0.5).astype(float)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        dist = pm.Normal.dist(mu, sigma)
        y_data = pm.Data("y", y)
        inside, beyond = pm.logp(dist, y_data), pm.logcdf(pm.Normal.dist(-mu, sigma), -y_data)
        shown = pm.Data("seen", seen)
        pm.Potential("likelihood", shown * inside + (1 - shown) * beyond)
        pm.Normal("second", mu, 1.0, observed=rng.normal(size=29))
    return model


@zoo("tobit_two_sided", n=27, tags="constants survival")
def tobit_two_sided() -> pm.Model:
    x, eta, rng = _regression(27, 2, 54)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        latent = pm.Normal.dist(mu=x @ beta, sigma=sigma)
        y = np.clip(eta + rng.normal(size=27), -1.0, 1.0)
        pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=y)
    return model


@zoo("truncated_generic", n=32, tags="data pt survival")
def truncated_generic() -> pm.Model:
    x, eta, rng = _regression(32, 2, 55)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        nu = pm.Gamma("nu", 5, 1)
        base = pm.StudentT.dist(nu=nu, mu=x_data @ beta, sigma=sigma)
        y = np.abs(eta + rng.normal(size=32))
        pm.Truncated("y", base, lower=0.0, upper=None, observed=y)
    return model


@zoo("truncated_normal", n=28, tags="constants survival")
def truncated_normal() -> pm.Model:
    rng = np.random.default_rng(56)
    x = rng.normal(size=28)
    lower = rng.uniform(-2.0, -1.0, 28)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        y = np.clip(x + rng.normal(size=28), lower + 0.1, 0.9)
        pm.TruncatedNormal("y", mu=slope * x, sigma=sigma, lower=lower, upper=1.0, observed=y)
    return model


@zoo("piecewise_hazard", n=33, tags="data dims pm.math survival multi", withheld="mu")
def piecewise_hazard() -> pm.Model:
    # Piecewise-constant Cox model as a Poisson with a (patient, interval) matrix outcome.
    rng = np.random.default_rng(57)
    exposure = rng.uniform(0.1, 1.0, (33, 4))
    death = rng.binomial(1, 0.2, (33, 4))
    coords = {"patient": range(33), "interval": range(4)}
    with pm.Model(coords=coords) as model:
        metastasized = pm.Data("metastasized", rng.integers(0, 2, 33), dims="patient")
        lambda0 = pm.Gamma("lambda0", 0.1, 0.1, dims="interval", initval=np.full(4, 0.5))
        beta = pm.Normal("beta", 0, 1)
        lam = pt.outer(pm.math.exp(beta * metastasized), lambda0)
        mu = pm.Deterministic("mu", exposure * lam, dims=("patient", "interval"))
        pm.Poisson("obs", mu, observed=death, dims=("patient", "interval"))
    return model


# ------------------------------------------------------------------------------------------------
# Mixtures, marginalised
# ------------------------------------------------------------------------------------------------


@zoo("normal_mixture", n=36, tags="constants mixture quick")
def normal_mixture() -> pm.Model:
    rng = np.random.default_rng(60)
    y = np.concatenate([rng.normal(-2, 0.5, 18), rng.normal(2, 0.5, 18)])
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal(
            "mu",
            0,
            2,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-2, 2, 3),
        )
        sigma = pm.HalfNormal("sigma", 1, shape=3)
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


@zoo("outlier_mixture", n=29, tags="data dims mixture")
def outlier_mixture() -> pm.Model:
    x, eta, rng = _regression(29, 2, 61)
    with pm.Model(coords={"obs": range(29), "feature": ["a", "b"]}) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        w = pm.Beta("w", 1, 9)
        components = [
            pm.Normal.dist(x_data @ beta, sigma),
            pm.StudentT.dist(nu=2, mu=0.0, sigma=10.0),
        ]
        y = eta + rng.standard_cauchy(29)
        pm.Mixture("y", w=[1 - w, w], comp_dists=components, observed=y, dims="obs")
    return model


@zoo("poisson_mixture", n=25, tags="constants mixture counts")
def poisson_mixture() -> pm.Model:
    y = np.random.default_rng(62).poisson(3.0, 25)
    with pm.Model() as model:
        w = pm.Dirichlet("w", a=np.array([1.0, 1.0]))
        lam = pm.Exponential("lam", 0.5, shape=2, initval=np.array([1.0, 4.0]))
        pm.Mixture("y", w=w, comp_dists=pm.Poisson.dist(lam), observed=y)
    return model


@zoo("mixture_of_experts", n=31, tags="data pm.math mixture")
def mixture_of_experts() -> pm.Model:
    # The mixture weights and the component means both change from row to row.
    x, eta, rng = _regression(31, 2, 63)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        gate = pm.Normal("gate", 0, 1, shape=(2, 3))
        beta = pm.Normal("beta", 0, 1, shape=(2, 3))
        sigma = pm.HalfNormal("sigma", 1, shape=3)
        w = pm.math.softmax(x_data @ gate, axis=-1)
        experts = pm.Normal.dist(mu=x_data @ beta, sigma=sigma)
        pm.Mixture("y", w=w, comp_dists=experts, observed=eta + rng.normal(size=31))
    return model


@zoo("dpvi_gaussian_mixture", n=40, tags="constants mixture multivariate quick")
def dpvi_gaussian_mixture() -> pm.Model:
    # The Gaussian mixture of Jälkö et al. 2017, section 4.3, with spherical components.
    rng = np.random.default_rng(64)
    k, d = 5, 2
    y = rng.normal(size=(40, d)) * 0.5 + 2 * rng.integers(-1, 2, size=(40, d))
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(k))
        means = pm.Normal("means", 0, 1, shape=(k, d))
        variances = pm.InverseGamma("variances", 1, 1, shape=k)
        components = [pm.MvNormal.dist(mu=means[j], cov=variances[j] * np.eye(d)) for j in range(k)]
        pm.Mixture("x", w=weights, comp_dists=components, observed=y)
    return model


@zoo("spherical_mixture_potential", n=38, tags="data pt mixture potential multivariate")
def spherical_mixture_potential() -> pm.Model:
    # The same mixture by hand, with logsumexp, as the NIPS-style gallery notebooks do.
    rng = np.random.default_rng(65)
    k, d = 3, 2
    with pm.Model() as model:
        points = pm.Data("points", rng.normal(size=(38, d)))
        weights = pm.Dirichlet("weights", np.ones(k))
        means = pm.Normal("means", 0, 1, shape=(k, d))
        variances = pm.InverseGamma("variances", 1, 1, shape=k)
        square = ((points[:, None, :] - means[None, :, :]) ** 2).sum(axis=-1)
        terms = pt.log(weights) - 0.5 * square / variances - 0.5 * d * pt.log(variances)
        pm.Potential("mixture", pt.logsumexp(terms, axis=1))
        pm.Normal("marker", means[0, 0], 1.0, observed=rng.normal(size=38))
    return model


@zoo("latent_class_analysis", n=39, tags="constants pm.math mixture custom")
def latent_class_analysis() -> pm.Model:
    # Binary items (a bool matrix) given an unobserved class, marginalised in a CustomDist.
    rng = np.random.default_rng(66)
    answers = rng.uniform(size=(39, 5)) < 0.5

    def logp(value, w, p):
        v = pt.cast(value, "float64")[..., None, :]
        per_class = (v * pt.log(p) + (1 - v) * pt.log1p(-p)).sum(axis=-1)
        return pm.math.logsumexp(pt.log(w) + per_class, axis=-1, keepdims=False)

    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        p = pm.Beta("p", 2, 2, shape=(2, 5))
        pm.CustomDist(
            "answers",
            w,
            p,
            logp=logp,
            signature="(k),(k,d)->(d)",
            dtype="bool",
            observed=answers,
        )
    return model


# ------------------------------------------------------------------------------------------------
# Several numbers per record
# ------------------------------------------------------------------------------------------------


@zoo("lkj_mvnormal", n=33, tags="constants dims multivariate quick")
def lkj_mvnormal() -> pm.Model:
    y = np.random.default_rng(70).normal(size=(33, 3))
    with pm.Model(coords={"axis": ["x", "y", "z"], "obs": np.arange(33)}) as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3), compute_corr=True
        )
        mu = pm.Normal("mu", 0.0, 1.5, dims="axis")
        pm.MvNormal("y", mu, chol=chol, observed=y, dims=("obs", "axis"))
    return model


@zoo("multivariate_regression", n=30, tags="data pt multivariate")
def multivariate_regression() -> pm.Model:
    x, _, rng = _regression(30, 3, 71)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=(3, 2))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=1.0, sd_dist=pm.HalfNormal.dist(1.0))
        pm.MvNormal("y", mu=pt.dot(x_data, beta), chol=chol, observed=rng.normal(size=(30, 2)))
    return model


@zoo("factor_analysis_marginal", n=35, tags="constants pt multivariate")
def factor_analysis_marginal() -> pm.Model:
    # Probabilistic PCA with the latent scores integrated out: covariance W W' + diag(psi).
    y = np.random.default_rng(72).normal(size=(35, 4))
    with pm.Model() as model:
        w = pm.Normal("W", 0, 1, shape=(4, 2))
        psi = pm.InverseGamma("psi", 2, 1, shape=4)
        mu = pm.Normal("mu", 0, 1, shape=4)
        pm.MvNormal("y", mu, cov=w @ w.T + pt.diag(psi), observed=y)
    return model


@zoo("mv_student_t", n=26, tags="constants multivariate")
def mv_student_t() -> pm.Model:
    y = np.random.default_rng(73).standard_t(4, size=(26, 2))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        nu = pm.Gamma("nu", 2, 0.1)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        pm.MvStudentT("y", nu=nu, mu=mu, chol=chol, observed=y)
    return model


@zoo("matrix_normal_errors", n=29, tags="data dims pm.math", withheld="mu")
def matrix_normal_errors() -> pm.Model:
    # Each record is a row of independent measurements, one column per gene.
    rng = np.random.default_rng(74)
    coords = {"sample": np.arange(29), "gene": [f"g{i}" for i in range(6)], "arm": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        arm = pm.Data("arm_idx", rng.integers(0, 2, 29), dims="sample")
        y_data = pm.Data("expression_obs", rng.normal(size=(29, 6)), dims=("sample", "gene"))
        base = pm.Normal("base", 0, 1, dims="gene")
        effect = pm.Normal("effect", 0, 1, dims=("arm", "gene"))
        mu = pm.Deterministic("mu", base + effect[arm], dims=("sample", "gene"))
        sigma = pm.HalfNormal("sigma", 1, dims="gene")
        pm.Normal("expression", mu, sigma, observed=y_data, dims=("sample", "gene"))
    return model


@zoo("item_response_matrix", n=28, tags="constants pm.math")
def item_response_matrix() -> pm.Model:
    # Ability is predicted from covariates (not a latent per person), so it separates.
    x, _, rng = _regression(28, 2, 75)
    correct = rng.uniform(size=(28, 7)) < 0.6
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0, 1, shape=2)
        difficulty = pm.Normal("difficulty", 0, 1, shape=7)
        discrimination = pm.LogNormal("discrimination", 0, 0.5, shape=7)
        ability = pm.math.dot(x, gamma)
        logit = discrimination * (ability[:, None] - difficulty)
        pm.Bernoulli("correct", logit_p=logit, observed=correct)
    return model


@zoo("three_way_observation", n=22, tags="constants dims")
def three_way_observation() -> pm.Model:
    y = np.random.default_rng(76).normal(size=(22, 3, 4))
    coords = {"subject": range(22), "session": range(3), "electrode": range(4)}
    with pm.Model(coords=coords) as model:
        session = pm.Normal("session_effect", 0, 1, dims="session")
        electrode = pm.Normal("electrode_effect", 0, 1, dims="electrode")
        sigma = pm.HalfNormal("sigma", 1)
        mu = session[:, None] + electrode[None, :]
        pm.Normal("eeg", mu, sigma, observed=y, dims=("subject", "session", "electrode"))
    return model


@zoo("several_outcomes", n=32, tags="data dims multi quick", withheld="risk")
def several_outcomes() -> pm.Model:
    x, eta, rng = _regression(32, 3, 77)
    with pm.Model(coords={"person": np.arange(32), "feature": list("abc")}) as model:
        x_data = pm.Data("x", x, dims=("person", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        load = pm.Normal("load", 1, 0.5, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        risk = pm.Deterministic("risk", x_data @ beta, dims="person")
        pm.Normal("pressure", load[0] * risk, sigma, observed=eta, dims="person")
        sick = rng.integers(0, 2, 32)
        pm.Bernoulli("sick", logit_p=load[1] * risk, observed=sick, dims="person")
        visits = rng.poisson(2.0, 32)
        pm.Poisson("visits", pm.math.exp(load[2] * risk), observed=visits, dims="person")
    return model


@zoo("outcome_feeds_outcome", n=27, tags="data multi", withheld="propensity")
def outcome_feeds_outcome() -> pm.Model:
    # A causal chain: the observed treatment enters the model of the outcome of the same row.
    x, eta, rng = _regression(27, 2, 78)
    treated = rng.integers(0, 2, 27)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        gamma = pm.Normal("gamma", 0, 1, shape=2)
        beta = pm.Normal("beta", 0, 1, shape=2)
        ate = pm.Normal("ate", 0, 1)
        propensity = pm.Deterministic("propensity", pm.math.sigmoid(x_data @ gamma))
        t = pm.Bernoulli("t", propensity, observed=treated)
        y = eta + treated + rng.normal(size=27)
        pm.Normal("y", x_data @ beta + ate * t, 1.0, observed=y)
    return model


@zoo("panel_random_walk", n=24, tags="constants panel multivariate")
def panel_random_walk() -> pm.Model:
    # Dependence runs along a person's own row, not between persons.
    y = np.random.default_rng(79).normal(size=(24, 6)).cumsum(axis=1)
    with pm.Model() as model:
        drift = pm.Normal("drift", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk(
            "path", mu=drift, sigma=sigma, init_dist=pm.Normal.dist(0, 2), shape=(24, 6), observed=y
        )
    return model


@zoo("panel_ar1_by_hand", n=23, tags="data dims panel pt")
def panel_ar1_by_hand() -> pm.Model:
    y = np.random.default_rng(80).normal(size=(23, 5))
    with pm.Model(coords={"patient": range(23), "lag": range(4)}) as model:
        previous = pm.Data("previous", y[:, :-1], dims=("patient", "lag"))
        rho = pm.Uniform("rho", -1, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("now", rho * previous, sigma, observed=y[:, 1:], dims=("patient", "lag"))
    return model


@zoo("panel_ar", n=25, tags="constants panel")
def panel_ar() -> pm.Model:
    y = np.random.default_rng(81).normal(size=(25, 6))
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.AR("y", rho=rho, sigma=sigma, init_dist=pm.Normal.dist(0, 2, shape=2), observed=y)
    return model


@zoo("random_intercept_marginal", n=21, tags="constants panel multivariate pt")
def random_intercept_marginal() -> pm.Model:
    # The private way to write a per-person intercept: integrate it out of the person's row.
    rng = np.random.default_rng(82)
    week = np.arange(4.0)
    y = rng.normal(size=(21, 1)) + 0.3 * week + rng.normal(size=(21, 4))
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        sigma = pm.HalfNormal("sigma", 1)
        cov = tau**2 * pt.ones((4, 4)) + sigma**2 * pt.eye(4)
        pm.MvNormal("y", mu=slope * week, cov=cov, observed=y)
    return model


# ------------------------------------------------------------------------------------------------
# Hierarchies: group indices, shrinkage
# ------------------------------------------------------------------------------------------------


def _radon(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, list[str], np.random.Generator]:
    """Measurements in seven counties; every county has a uranium level of its own."""
    rng = np.random.default_rng(seed)
    names = ["AITKIN", "ANOKA", "BECKER", "BELTRAMI", "BENTON", "CARVER", "CASS"]
    counties = pd.Categorical.from_codes(rng.integers(0, 7, n), names)
    uranium = rng.normal(size=7)
    floor = rng.integers(0, 2, n)
    radon = 1.3 - 0.6 * floor + 0.7 * uranium[counties.codes] + rng.normal(0, 0.7, n)
    frame = pd.DataFrame({"county": counties, "floor": floor, "log_radon": radon})
    return frame, uranium, names, rng


@zoo("radon_centered", n=38, tags="data dims hierarchical quick", withheld="theta")
def radon_centered() -> pm.Model:
    frame, _, names, _ = _radon(38, 90)
    with pm.Model(coords={"county": names, "obs_id": frame.index}) as model:
        floor_idx = pm.Data("floor_idx", frame["floor"].to_numpy(), dims="obs_id")
        county_idx = pm.Data("county_idx", frame["county"].cat.codes.to_numpy(), dims="obs_id")
        mu_a = pm.Normal("mu_a", mu=0.0, sigma=10.0)
        sigma_a = pm.Exponential("sigma_a", 1)
        alpha = pm.Normal("alpha", mu=mu_a, sigma=sigma_a, dims="county")
        beta = pm.Normal("beta", mu=0.0, sigma=10.0)
        sd_y = pm.Exponential("sd_y", 1)
        theta = pm.Deterministic("theta", alpha[county_idx] + beta * floor_idx, dims="obs_id")
        pm.Normal("y", theta, sigma=sd_y, observed=frame["log_radon"], dims="obs_id")
    return model


@zoo("radon_noncentered_uranium", n=36, tags="constants dims hierarchical", public_data=("county_uranium",))
def radon_noncentered_uranium() -> pm.Model:
    # `uranium` belongs to the counties, not to the records: it stays a public constant.
    frame, uranium, names, _ = _radon(36, 91)
    county = frame["county"].cat.codes.to_numpy()
    with pm.Model(coords={"county": names}) as model:
        county_uranium = pm.Data("county_uranium", uranium, dims="county")
        g = pm.Normal("g", 0, 10, shape=2)
        z_a = pm.Normal("z_a", 0, 1, dims="county")
        sigma_a = pm.Exponential("sigma_a", 1)
        mu_a = pm.Deterministic("mu_a", g[0] + g[1] * county_uranium, dims="county")
        a = pm.Deterministic("a", mu_a + z_a * sigma_a, dims="county")
        b = pm.Normal("b", 0, 1)
        sigma = pm.Exponential("sigma", 1)
        y_hat = a[county] + b * frame["floor"].to_numpy()
        pm.Normal("y", y_hat, sigma, observed=frame["log_radon"].to_numpy())
    return model


@zoo("varying_slopes_lkj", n=34, tags="data dims hierarchical multivariate", withheld="theta")
def varying_slopes_lkj() -> pm.Model:
    frame, _, names, _ = _radon(34, 92)
    coords = {"county": names, "param": ["alpha", "beta"], "obs_id": frame.index}
    with pm.Model(coords=coords) as model:
        floor_idx = pm.Data("floor_idx", frame["floor"].to_numpy(), dims="obs_id")
        county_idx = pm.Data("county_idx", frame["county"].cat.codes.to_numpy(), dims="obs_id")
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(0.5, shape=2))
        mu = pm.Normal("mu", 0.0, 5.0, dims="param")
        z = pm.Normal("z", 0.0, 1.0, dims=("param", "county"))
        ab = pm.Deterministic("ab", pt.dot(chol, z).T, dims=("county", "param"))
        theta = pm.Deterministic(
            "theta",
            mu[0] + ab[county_idx, 0] + (mu[1] + ab[county_idx, 1]) * floor_idx,
            dims="obs_id",
        )
        sigma = pm.Exponential("sigma", 1.0)
        pm.Normal("y", theta, sigma=sigma, observed=frame["log_radon"], dims="obs_id")
    return model


@zoo("varying_slopes_mvnormal_centered", n=31, tags="constants hierarchical multivariate")
def varying_slopes_mvnormal_centered() -> pm.Model:
    rng = np.random.default_rng(93)
    cafe = rng.integers(0, 5, 31)
    afternoon = rng.integers(0, 2, 31)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        ab_bar = pm.Normal("ab_bar", [5.0, -1.0], [2.0, 0.5], shape=2)
        ab = pm.MvNormal("ab", mu=ab_bar, chol=chol, shape=(5, 2))
        sigma = pm.Exponential("sigma", 1)
        mu = ab[cafe, 0] + ab[cafe, 1] * afternoon
        pm.Normal("wait", mu, sigma, observed=rng.normal(4.0, 1.0, 31))
    return model


@zoo("crossed_effects", n=40, tags="data dims hierarchical pm.math")
def crossed_effects() -> pm.Model:
    rng = np.random.default_rng(94)
    coords = {"actor": range(7), "block": range(6), "treatment": ["RN", "LN", "RP", "LP"]}
    with pm.Model(coords=coords) as model:
        actor = pm.Data("actor_id", rng.integers(0, 7, 40).astype("int32"))
        block = pm.Data("block_id", rng.integers(0, 6, 40).astype("uint8"))
        treatment = pm.Data("treatment_id", rng.integers(0, 4, 40))
        sigma_a = pm.Exponential("sigma_a", 1)
        sigma_g = pm.Exponential("sigma_g", 1)
        a = pm.ZeroSumNormal("a", sigma_a, dims="actor")
        g = pm.Normal("g", 0, 1, dims="block") * sigma_g
        b = pm.Normal("b", 0, 0.5, dims=("treatment", "actor"))
        logit = a[actor] + g[block] + b[treatment, actor]
        pm.Bernoulli("pulled_left", logit_p=logit, observed=rng.integers(0, 2, 40))
    return model


@zoo("nested_index_of_index", n=33, tags="data dims hierarchical", public_data=("school_district",))
def nested_index_of_index() -> pm.Model:
    # Pupils in schools in districts: the school-to-district table is public and has no record axis.
    rng = np.random.default_rng(95)
    coords = {"district": range(3), "school": range(8), "pupil": range(33)}
    with pm.Model(coords=coords) as model:
        school_district = pm.Data("school_district", rng.integers(0, 3, 8), dims="school")
        school = pm.Data("school_idx", rng.integers(0, 8, 33), dims="pupil")
        district_effect = pm.Normal("district_effect", 0, 1, dims="district")
        tau = pm.HalfNormal("tau", 1)
        school_effect = pm.Normal("school_effect", district_effect[school_district], tau, dims="school")
        pm.Normal("grade", school_effect[school], 1.0, observed=rng.normal(size=33), dims="pupil")
    return model


@zoo("one_hot_dot", n=26, tags="constants pt hierarchical")
def one_hot_dot() -> pm.Model:
    rng = np.random.default_rng(96)
    dummies = pd.get_dummies(pd.Series(rng.choice(list("abc"), 26)))  # a bool DataFrame
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        mu = pt.dot(dummies.to_numpy().astype(float), effect)
        pm.Normal("y", mu, sigma, observed=rng.normal(size=26))
    return model


@zoo("horseshoe", n=30, tags="constants dims pt")
def horseshoe() -> pm.Model:
    # The Finnish (regularised) horseshoe.
    x, eta, rng = _regression(30, 8, 97)
    with pm.Model(coords={"feature": range(8)}) as model:
        sigma = pm.HalfNormal("sigma", 1)
        tau = pm.HalfStudentT("tau", 2, 0.25 * sigma)
        lam = pm.HalfStudentT("lam", 5, dims="feature")
        c2 = pm.InverseGamma("c2", 1, 1)
        z = pm.Normal("z", 0.0, 1.0, dims="feature")
        shrunk = z * tau * lam * pt.sqrt(c2 / (c2 + tau**2 * lam**2))
        beta = pm.Deterministic("beta", shrunk, dims="feature")
        pm.Normal("y", x @ beta, sigma, observed=eta + rng.normal(size=30))
    return model


@zoo("r2d2_like_lasso", n=29, tags="data pt")
def r2d2_like_lasso() -> pm.Model:
    x, eta, rng = _regression(29, 4, 98)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        r2 = pm.Beta("r2", 2, 2)
        phi = pm.Dirichlet("phi", np.ones(4))
        sigma = pm.HalfNormal("sigma", 1)
        raw = pm.Laplace("raw", 0, 1, shape=4)
        beta = raw * pt.sqrt(phi * r2 / (1 - r2)) * sigma
        pm.Normal("y", x_data @ beta, sigma, observed=eta + rng.normal(size=29))
    return model


# ------------------------------------------------------------------------------------------------
# Bases, Gaussian processes, networks
# ------------------------------------------------------------------------------------------------


@zoo("spline_design_matrix", n=35, tags="constants dims basis pm.math", withheld="mu")
def spline_design_matrix() -> pm.Model:
    rng = np.random.default_rng(100)
    doy = rng.uniform(0, 1, 35)
    knots = np.linspace(0, 1, 6)
    basis = np.maximum(0.0, 1 - np.abs(doy[:, None] - knots) * 5)  # linear B-splines
    with pm.Model(coords={"spline": np.arange(6)}) as model:
        a = pm.Normal("a", 100, 5)
        w = pm.Normal("w", mu=0, sigma=3, size=6, dims="spline")
        mu = pm.Deterministic("mu", a + pm.math.dot(np.asarray(basis, order="F"), w.T))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("D", mu=mu, sigma=sigma, observed=100 + rng.normal(size=35))
    return model


@zoo("penalised_spline_random_walk", n=32, tags="data basis")
def penalised_spline_random_walk() -> pm.Model:
    # The random walk runs over the coefficients, which is a prior and data free.
    rng = np.random.default_rng(101)
    basis = rng.dirichlet(np.ones(7), 32)
    with pm.Model() as model:
        basis_data = pm.Data("basis", basis)
        tau = pm.HalfNormal("tau", 1)
        w = pm.GaussianRandomWalk("w", sigma=tau, init_dist=pm.Normal.dist(0, 5), shape=7)
        pm.Poisson("y", pm.math.exp(basis_data @ w), observed=rng.poisson(2.0, 32))
    return model


@zoo("hsgp", n=37, tags="data basis", withheld="f", public_data=("center", "boundary"))
def hsgp() -> pm.Model:
    rng = np.random.default_rng(102)
    x = rng.uniform(-1, 1, 37)
    with pm.Model() as model:
        x_data = pm.Data("x", x[:, None])
        ell = pm.InverseGamma("ell", 3, 1)
        eta = pm.Exponential("eta", 1)
        cov = eta**2 * pm.gp.cov.Matern52(input_dim=1, ls=ell)
        gp = pm.gp.HSGP(m=[9], L=[2.0], cov_func=cov)
        gp._X_center = pm.Data("center", [0.0])  # public, or PyMC takes it from the records
        gp.L = pm.Data("boundary", [2.0])
        f = gp.prior("f", X=x_data)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu=f, sigma=sigma, observed=np.sin(3 * x) + rng.normal(0, 0.2, 37))
    return model


@zoo("hsgp_linearized", n=34, tags="data dims basis", public_data=("center", "boundary"))
def hsgp_linearized() -> pm.Model:
    rng = np.random.default_rng(103)
    x = rng.uniform(0, 10, 34)
    with pm.Model(coords={"basis": np.arange(11)}) as model:
        x_data = pm.Data("x", x, dims="obs_id")
        ell = pm.InverseGamma("ell", 3, 6)
        cov = pm.gp.cov.ExpQuad(1, ls=ell)
        gp = pm.gp.HSGP(m=[11], c=1.5, cov_func=cov)
        gp._X_center, gp.L = pm.Data("center", [5.0]), pm.Data("boundary", [7.5])
        phi, sqrt_psd = gp.prior_linearized(X=x_data[:, None])
        beta = pm.Normal("beta", 0, 1, dims="basis")
        f = phi @ (beta * sqrt_psd)
        pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=2.0, observed=rng.poisson(3.0, 34))
    return model


@zoo("fourier_seasonality", n=36, tags="data dims basis pt")
def fourier_seasonality() -> pm.Model:
    rng = np.random.default_rng(104)
    day = rng.integers(0, 365, 36)
    with pm.Model(coords={"fourier": range(6), "obs": range(36)}) as model:
        t = pm.Data("day", day, dims="obs")
        order = np.arange(1, 4)
        angle = 2 * np.pi * order * t[:, None] / 365.25
        features = pt.concatenate([pt.cos(angle), pt.sin(angle)], axis=1)
        beta = pm.Normal("beta", 0, 1, dims="fourier")
        pm.Normal("y", features @ beta, 1.0, observed=rng.normal(size=36), dims="obs")
    return model


@zoo("inducing_points_gp", n=33, tags="constants basis pt")
def inducing_points_gp() -> pm.Model:
    # A GP on a fixed public grid, read at the records: deterministic-training-conditional style.
    rng = np.random.default_rng(105)
    x = rng.uniform(0, 1, 33)
    grid = np.linspace(0, 1, 5)
    with pm.Model() as model:
        ell = pm.Gamma("ell", 3, 6)
        cov = pm.gp.cov.ExpQuad(1, ls=ell)
        kuu = cov(grid[:, None]) + 1e-4 * np.eye(5)
        v = pm.Normal("v", 0, 1, shape=5)
        weights = pt.linalg.solve_triangular(pt.linalg.cholesky(kuu).T, v, lower=False)
        f = cov(x[:, None], grid[:, None]) @ weights
        pm.Normal("y", f, 0.3, observed=np.sin(6 * x) + rng.normal(0, 0.2, 33))
    return model


@zoo("bnn_one_layer", n=39, tags="data dims nn pt")
def bnn_one_layer() -> pm.Model:
    x, _, rng = _regression(39, 2, 106)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    with pm.Model(coords={"hidden": range(5), "feature": range(2), "obs": range(39)}) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        y_data = pm.Data("t", y, dims="obs")
        w_in = pm.Normal("w_in", 0, 1, dims=("feature", "hidden"), initval=rng.normal(size=(2, 5)))
        w_out = pm.Normal("w_out", 0, 1, dims="hidden", initval=rng.normal(size=5))
        act = pt.tanh(pt.dot(x_data, w_in))
        pm.Bernoulli("out", pm.math.sigmoid(pt.dot(act, w_out)), observed=y_data, dims="obs")
    return model


@zoo("bnn_two_layers", n=31, tags="constants nn pm.math")
def bnn_two_layers() -> pm.Model:
    x, _, rng = _regression(31, 3, 107)
    with pm.Model() as model:
        w1 = pm.Normal("w1", 0, 1, shape=(3, 6), initval=rng.normal(size=(3, 6)))
        b1 = pm.Normal("b1", 0, 1, shape=6)
        w2 = pm.Normal("w2", 0, 1, shape=(6, 4), initval=rng.normal(size=(6, 4)))
        w3 = pm.Normal("w3", 0, 1, shape=(4, 3), initval=rng.normal(size=(4, 3)))
        h1 = pm.math.tanh(pm.math.dot(x, w1) + b1)
        h2 = pm.math.maximum(pm.math.dot(h1, w2), 0.0)
        p = pm.math.softmax(pm.math.dot(h2, w3), axis=1)
        pm.Categorical("digit", p=p, observed=rng.integers(0, 3, 31))
    return model


@zoo("convolution_by_patches", n=32, tags="data nn pt", public_data=("patches",))
def convolution_by_patches() -> pm.Model:
    # Images of 5 × 5, a layer of three kernels of 3 × 3, and classes by all that it finds.
    rng = np.random.default_rng(126)
    corner, inside = (np.add.outer(5 * np.arange(3), np.arange(3)).ravel() for _ in range(2))
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(32, 25)))
        patches = pm.Data("patches", np.add.outer(corner, inside))
        kernel = pm.Normal("kernel", 0, 1, shape=(9, 3), initval=rng.normal(size=(9, 3)))
        weight = pm.Normal("weight", 0, 1, shape=(27, 2), initval=rng.normal(size=(27, 2)))
        found = pt.maximum(x[:, patches] @ kernel, 0)
        logits = found.reshape((-1, 27)) @ weight
        pm.Categorical("y", logit_p=logits, observed=rng.integers(0, 2, 32))
    return model


@zoo("layer_norm_network", n=27, tags="data nn pt")
def layer_norm_network() -> pm.Model:
    # Normalisation along a record's own features is fine; along the batch it is not.
    x, eta, rng = _regression(27, 4, 108)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        w = pm.Normal("w", 0, 1, shape=(4, 6), initval=rng.normal(size=(4, 6)))
        v = pm.Normal("v", 0, 1, shape=6)
        h = x_data @ w
        h = (h - h.mean(axis=1, keepdims=True)) / (h.std(axis=1, keepdims=True) + 0.1)
        pm.Normal("y", h @ v, 1.0, observed=eta)
    return model


# ------------------------------------------------------------------------------------------------
# Potentials, weights, custom distributions, deterministics
# ------------------------------------------------------------------------------------------------


@zoo("weighted_potential", n=30, tags="data dims potential")
def weighted_potential() -> pm.Model:
    # Survey weights: the weighted log-density as a Potential with the record axis.
    x, eta, rng = _regression(30, 2, 110)
    with pm.Model(coords={"respondent": range(30), "feature": ["a", "b"]}) as model:
        x_data = pm.Data("x", x, dims=("respondent", "feature"))
        weight = pm.Data("weight", rng.uniform(0.2, 3.0, 30), dims="respondent")
        y_data = pm.Data("y", rng.integers(0, 2, 30), dims="respondent")
        beta = pm.Normal("beta", 0, 1, dims="feature")
        logp = pm.logp(pm.Bernoulli.dist(logit_p=x_data @ beta), y_data)
        pm.Potential("weighted", weight * logp, dims="respondent")
        pm.Normal("income", x_data[:, 0] * beta[0], 1.0, observed=eta, dims="respondent")
    return model


@zoo("potential_only_likelihood", n=26, tags="data potential pt")
def potential_only_likelihood() -> pm.Model:
    # No observed variable at all: the Potential with the record axis is the likelihood.
    x, eta, rng = _regression(26, 2, 111)
    with pm.Model() as model:
        x_data = pm.Data("x", x)
        y_data = pm.Data("y", eta + rng.normal(size=26))
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Potential("loglike", -pt.abs(y_data - x_data @ beta))
    return model


@zoo("weighted_custom_dist", n=28, tags="constants custom quick")
def weighted_custom_dist() -> pm.Model:
    x, eta, rng = _regression(28, 2, 112)
    weight = rng.uniform(0.5, 2.0, 28)

    def logp(value, mu, sigma, w):
        return w * pm.logp(pm.Normal.dist(mu, sigma), value)

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.CustomDist("y", x @ beta, sigma, weight, logp=logp, observed=eta)
    return model


@zoo("custom_dist_logp", n=25, tags="data dims custom pt")
def custom_dist_logp() -> pm.Model:
    x, eta, rng = _regression(25, 2, 113)

    def logp(value, mu, delta):  # Huber's density, up to its constant
        r = pt.abs(value - mu)
        return -pt.where(r < delta, 0.5 * r**2, delta * (r - 0.5 * delta))

    with pm.Model(coords={"obs": range(25), "feature": ["a", "b"]}) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        y = eta + rng.standard_t(2, 25)
        pm.CustomDist("y", x_data @ beta, 1.345, logp=logp, observed=y, dims="obs")
    return model


@zoo("custom_dist_dist", n=29, tags="constants custom")
def custom_dist_dist() -> pm.Model:
    x, eta, rng = _regression(29, 2, 114)

    def dist(mu, sigma, size):  # a shifted log-normal, its density derived by PyMC
        return pm.math.exp(pm.Normal.dist(mu, sigma, size=size)) + 0.5

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        y = np.exp(eta + 0.3 * rng.normal(size=29)) + 0.5
        pm.CustomDist("rt", x @ beta, sigma, dist=dist, observed=y)
    return model


@zoo("custom_dist_of_mixture", n=31, tags="data custom mixture")
def custom_dist_of_mixture() -> pm.Model:
    x, eta, rng = _regression(31, 2, 115)

    def dist(mu, sigma, w, size):
        parts = [pm.Normal.dist(mu, sigma, size=size), pm.Normal.dist(0.0, 10.0, size=size)]
        return pm.Mixture.dist(w=pt.stack([1 - w, w]), comp_dists=parts, size=size)

    with pm.Model() as model:
        x_data = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 1, shape=2)
        w = pm.Beta("w", 1, 5)
        y = eta + rng.standard_cauchy(31)
        pm.CustomDist("y", x_data @ beta, 1.0, w, dist=dist, class_name="Robust", observed=y)
    return model


@zoo("data_free_potential", n=27, tags="constants potential pm.math")
def data_free_potential() -> pm.Model:
    # A soft constraint on parameters belongs to the prior and costs nothing.
    x, eta, rng = _regression(27, 3, 116)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Potential("sum_to_zero", -50.0 * pm.math.sum(beta) ** 2)
        pm.Potential("order", pm.math.log(pm.math.sigmoid(beta[1:] - beta[:-1])))
        pm.Normal("y", x @ beta, 1.0, observed=eta + rng.normal(size=27))
    return model


@zoo("deterministics", n=33, tags="data dims pm.math", withheld="x_scaled mu residual above")
def deterministics() -> pm.Model:
    # Some depend on records and stay back, some on parameters and are released.
    x, eta, rng = _regression(33, 3, 117)
    coords = {"obs": range(33), "feature": list("abc")}
    with pm.Model(coords=coords) as model:
        x_data = pm.Data("x", x, dims=("obs", "feature"))
        y_data = pm.Data("y_obs", eta + rng.normal(size=33), dims="obs")
        scaled = pm.Deterministic("x_scaled", x_data / 2.0, dims=("obs", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Deterministic("precision", sigma**-2)
        pm.Deterministic("odds", pm.math.exp(beta), dims="feature")
        mu = pm.Deterministic("mu", scaled @ beta, dims="obs")
        pm.Normal("y", mu, sigma, observed=y_data, dims="obs")
        pm.Deterministic("residual", y_data - mu, dims="obs")
        pm.Deterministic("above", (mu > 0).mean())  # a scalar, and still about the records
    return model


@zoo("measurement_error_known_se", n=24, tags="data dims")
def measurement_error_known_se() -> pm.Model:
    # Meta-analysis with the study effects integrated out: the standard errors are record data.
    rng = np.random.default_rng(118)
    se = rng.uniform(0.1, 0.6, 24)
    with pm.Model(coords={"study": range(24)}) as model:
        se_data = pm.Data("se", se, dims="study")
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfCauchy("tau", 0.5)
        y = rng.normal(0.3, se)
        pm.Normal("effect", mu, pm.math.sqrt(se_data**2 + tau**2), observed=y, dims="study")
    return model


@zoo("integer_covariates", n=28, tags="data pt")
def integer_covariates() -> pm.Model:
    # int8, uint16 and bool columns in arithmetic, a comparison and a clip, without any casting.
    rng = np.random.default_rng(119)
    with pm.Model() as model:
        children = pm.Data("children", rng.integers(0, 6, 28).astype("int8"))
        year = pm.Data("year", rng.integers(1950, 2005, 28).astype("uint16"))
        owner = pm.Data("owner", rng.uniform(size=28) < 0.5)
        b = pm.Normal("b", 0, 1, shape=4)
        mu = b[0] + b[1] * children + b[2] * (year - 1980) / 10 + b[3] * owner * (children > 2)
        pm.Poisson("cars", pt.exp(pt.clip(mu, -3, 3)), observed=rng.poisson(1.0, 28))
    return model


@zoo("column_vector_outcome", n=23, tags="constants pt")
def column_vector_outcome() -> pm.Model:
    # y of shape (N, 1), as scikit-learn users keep it.
    x, eta, rng = _regression(23, 2, 120)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=(2, 1))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", x @ beta, sigma, observed=(eta + rng.normal(size=23))[:, None])
    return model


@zoo("feature_major_matrix", n=26, tags="constants pt", withheld="")
def feature_major_matrix() -> pm.Model:
    # The design is stored (feature, record) in NumPy and turned before it enters the model.
    x, eta, rng = _regression(26, 3, 121)
    stored = np.ascontiguousarray(x.T)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        mu = pt.dot(beta, pt.as_tensor(stored.T).T)  # a transposition inside the graph
        pm.Normal("y", mu, 1.0, observed=eta + rng.normal(size=26))
    return model


@zoo("as_many_groups_as_records", n=20, tags="data dims ambiguous", record_dim="obs")
def as_many_groups_as_records() -> pm.Model:
    # Twenty records in twenty groups: only the dims say which axis is which.
    rng = np.random.default_rng(122)
    with pm.Model(coords={"obs": range(20), "group": range(20)}) as model:
        idx = pm.Data("group_idx", rng.integers(0, 20, 20), dims="obs")
        effect = pm.Normal("effect", 0, 1, dims="group")
        pm.Normal("y", effect[idx], 1.0, observed=rng.normal(size=20), dims="obs")
    return model


@zoo(
    "public_table_of_length_n",
    n=22,
    tags="data dims ambiguous",
    record_dim="person",
    public_data=("map",),
)
def public_table_of_length_n() -> pm.Model:
    # A public lookup table that happens to have as many rows as there are records.
    rng = np.random.default_rng(123)
    with pm.Model(coords={"person": range(22), "cell": range(22)}) as model:
        table = pm.Data("map", rng.normal(size=22), dims="cell")
        where = pm.Data("cell_idx", rng.integers(0, 22, 22), dims="person")
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * table[where], 1.0, observed=rng.normal(size=22), dims="person")
    return model


# ------------------------------------------------------------------------------------------------
# Names and priors
# ------------------------------------------------------------------------------------------------


@zoo("names_of_formulas", n=28, tags="data dims hierarchical", withheld="mu(i)")
def names_of_formulas() -> pm.Model:
    # As Bambi names them; PyTensor's pt.tensor(name=...) would read some as signatures.
    rng = np.random.default_rng(220)
    coords = {"g|expr": ["a, b", "c|d", "e"], "x_dim: levels": ["1", "2"]}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x -> y, [N]", rng.normal(size=(28, 2)), dims=(None, "x_dim: levels"))
        group = pm.Data("g (index)", rng.integers(0, 3, 28))
        sigma = pm.HalfNormal("1|g_sigma", 1)
        offset = pm.Normal("1|g_offset", 0, 1, dims="g|expr")
        effect = pm.Deterministic("1|g", sigma * offset, dims="g|expr")
        slope = pm.Normal("x, z", 0, 1, dims="x_dim: levels")
        mu = pm.Deterministic("mu(i)", effect[group] + x @ slope)
        pm.Normal("2nd outcome", mu, pm.HalfNormal("größe %s {}", 1), observed=rng.normal(size=28))
    return model


@zoo("interpolated_prior", n=26, tags="constants")
def interpolated_prior() -> pm.Model:
    # The posterior of an earlier study as the prior of this one: PyMC's "Updating priors".
    rng = np.random.default_rng(221)
    points = np.array([-3.0, -1.5, -0.5, 0.0, 0.7, 1.4, 3.1])
    with pm.Model() as model:
        mu = pm.Interpolated("mu", points, np.exp(-0.5 * points**2) + 0.01)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=rng.normal(size=26))
    return model


@zoo("neighbouring_areas", n=31, tags="data hierarchical counts")
def neighbouring_areas() -> pm.Model:
    # Disease mapping: PyMC's CAR writes a sum of the number tau along an axis.
    rng = np.random.default_rng(222)
    neighbours = np.eye(5, k=1) + np.eye(5, k=-1)
    with pm.Model() as model:
        tau, alpha = pm.Gamma("tau", 2, 2), pm.Beta("alpha", 2, 2)
        phi = pm.CAR("phi", mu=np.zeros(5), W=neighbours, alpha=alpha, tau=tau)
        area = pm.Data("area", rng.integers(0, 5, 31))
        pm.Poisson("cases", pm.math.exp(pm.Normal("level") + phi[area]), observed=rng.poisson(1.5, 31))
    return model


@zoo("curve_over_public_ages", n=29, tags="data hierarchical", public_data=("ages",))
def curve_over_public_ages() -> pm.Model:
    # A latent Gaussian process over all ages, looked up by each person's.
    rng = np.random.default_rng(223)
    with pm.Model() as model:
        ages = pm.Data("ages", np.linspace(0.0, 2.0, 6)[:, None])
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 5, 5)))
        curve = gp.prior("curve", X=ages)
        age = pm.Data("age", rng.integers(0, 6, 29))
        pm.Normal("y", curve[age], pm.HalfNormal("sigma", 1), observed=rng.normal(size=29))
    return model


@zoo("chosen_by_a_potential", n=27, tags="data potential pt")
def chosen_by_a_potential() -> pm.Model:
    rng = np.random.default_rng(224)
    with pm.Model() as model:
        x, chosen = pm.Data("x", rng.normal(size=(27, 2))), pm.Data("chosen", rng.integers(0, 3, 27))
        utility = x @ pm.Normal("beta", 0, 1, shape=(2, 3))
        pm.Potential("choice", pm.logp(pm.Categorical.dist(logit_p=utility), chosen))
    return model
