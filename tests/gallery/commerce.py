"""Marketing and customers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, MIXES, accepted, refused, table


@accepted("pymc-marketing docs: clv/bg_nbd (BetaGeoModel)", 43)
def bg_nbd() -> pm.Model:
    rng = np.random.default_rng(701)
    frequency = rng.poisson(2, 43).astype(float)
    T = rng.uniform(20, 40, 43)
    recency = np.where(frequency > 0, T * rng.uniform(0.1, 1, 43), 0.0)

    def logp(value, a, b, r, alpha, T):
        t_x, x = value[:, 0], value[:, 1]
        d1 = pt.gammaln(r + x) - pt.gammaln(r) + pt.gammaln(a + b) + pt.gammaln(b + x)
        d1 = d1 - pt.gammaln(b) - pt.gammaln(a + b + x)
        c3 = -(r + x) * pt.log(alpha + T)
        c4 = pt.log(a) - pt.log(b + pt.maximum(x, 1) - 1) - (r + x) * pt.log(alpha + t_x)
        return d1 + r * pt.log(alpha) + pt.switch(x > 0, pt.logaddexp(c3, c4), c3)

    with pm.Model(coords={"customer_id": range(43)}) as model:
        phi, kappa = pm.Uniform("phi_dropout", 0, 1), pm.Pareto("kappa_dropout", 1, 1)
        a = pm.Deterministic("a", phi * kappa)
        b = pm.Deterministic("b", (1 - phi) * kappa)
        alpha, r = pm.Weibull("alpha", 2, 10), pm.Weibull("r", 2, 1)
        data = np.column_stack([recency, frequency])
        pm.Potential("likelihood", logp(pm.Data("data", data), a, b, r, alpha, pm.Data("T", T)))
    return model


@accepted("pymc-marketing docs: clv/gamma_gamma (spend per customer)", 31)
def gamma_gamma() -> pm.Model:
    rng = np.random.default_rng(702)
    x, z_mean = rng.integers(1, 9, 31).astype(float), rng.gamma(6, 5, 31)
    with pm.Model(coords={"customer_id": range(31)}) as model:
        p, q, v = pm.HalfFlat("p"), pm.HalfFlat("q"), pm.HalfFlat("v")
        x, z_mean = pm.Data("x", x), pm.Data("z_mean", z_mean)
        pm.Potential(
            "likelihood",
            pt.gammaln(p * x + q)
            - pt.gammaln(p * x)
            - pt.gammaln(q)
            + q * pt.log(v)
            + (p * x - 1) * pt.log(z_mean)
            + (p * x) * pt.log(x)
            - (p * x + q) * pt.log(x * z_mean + v),
        )
    return model


@refused(
    "pymc-marketing docs: clv/gamma_gamma, individual version (a spend rate for each customer)",
    "UnsupportedModelError",
    "nu",
    INTEGRATE,
)
def gamma_gamma_individual() -> pm.Model:
    rng = np.random.default_rng(703)
    x, z_mean = rng.integers(1, 9, 29).astype(float), rng.gamma(6, 5, 29)
    with pm.Model(coords={"customer_id": range(29)}) as model:
        p, q, v = pm.HalfFlat("p"), pm.HalfFlat("q"), pm.HalfFlat("v")
        nu = pm.Gamma("nu", q, v, dims="customer_id")
        pm.Gamma("spend", p * x, nu * x, observed=z_mean, dims="customer_id")
    return model


@accepted("pymc-marketing docs: clv/sBG (contractual churn in whole periods)", 34)
def shifted_beta_geometric() -> pm.Model:
    rng = np.random.default_rng(704)
    t, alive = rng.integers(1, 8, 34), rng.integers(0, 2, 34)
    with pm.Model() as model:
        alpha, beta = pm.HalfFlat("alpha"), pm.HalfFlat("beta")
        t, alive = pm.Data("t", t), pm.Data("alive", alive)
        survive = (
            pt.gammaln(beta + t) + pt.gammaln(alpha + beta) - pt.gammaln(beta) - pt.gammaln(alpha + beta + t)
        )
        churn = pt.gammaln(alpha + 1) - pt.gammaln(alpha) + pt.gammaln(beta + t - 1) - pt.gammaln(beta)
        churn = churn + pt.gammaln(alpha + beta) - pt.gammaln(alpha + beta + t)
        pm.Potential("churn", pt.switch(pt.eq(alive, 1), survive, churn))
    return model


@refused(
    "pymc-marketing docs: mmm_example (geometric adstock by convolution)", "NotSeparableError", "y", MIXES
)
def media_mix_adstock() -> pm.Model:
    rng = np.random.default_rng(705)
    spend = rng.uniform(0, 1, (39, 2))
    with pm.Model(coords={"channel": ["x1", "x2"]}) as model:
        model.add_coord("date", pd.date_range("2020-01-06", periods=39, freq="W-MON"))
        x = pm.Data("channel_data", spend, dims=("date", "channel"))
        alpha = pm.Beta("adstock_alpha", 1, 3, dims="channel")
        lam = pm.Gamma("saturation_lam", 3, 1, dims="channel")
        beta = pm.HalfNormal("saturation_beta", 2, dims="channel")
        carried = pt.zeros_like(x)
        for lag in range(5):
            shifted = pt.concatenate([pt.zeros((lag, 2)), x[: 39 - lag]], axis=0)
            carried = carried + alpha**lag * shifted
        saturated = (1 - pt.exp(-lam * carried)) / (1 + pt.exp(-lam * carried))
        mu = pm.Normal("intercept", 0, 2) + (beta * saturated).sum(axis=-1)
        pm.Normal("y", mu=mu, sigma=pm.HalfNormal("y_sigma", 2), observed=rng.normal(size=39), dims="date")
    return model


@accepted(
    "pymc-marketing docs: mmm_example, saturation without carry-over", 39, withheld="channel_contributions"
)
def media_mix_saturation() -> pm.Model:
    rng = np.random.default_rng(706)
    with pm.Model(coords={"channel": ["x1", "x2"]}) as model:
        model.add_coord("date", pd.date_range("2020-01-06", periods=39, freq="W-MON"))
        x = pm.Data("channel_data", rng.uniform(0, 1, (39, 2)), dims=("date", "channel"))
        lam = pm.Gamma("saturation_lam", 3, 1, dims="channel")
        beta = pm.HalfNormal("saturation_beta", 2, dims="channel")
        effect = beta * (1 - pt.exp(-lam * x)) / (1 + pt.exp(-lam * x))
        contributions = pm.Deterministic("channel_contributions", effect, dims=("date", "channel"))
        mu = pm.Normal("intercept", 0, 2) + contributions.sum(axis=-1)
        pm.Normal("y", mu=mu, sigma=pm.HalfNormal("y_sigma", 2), observed=rng.normal(size=39), dims="date")
    return model


@accepted("pymc-marketing docs: bass_example (adoptions in each period)", 30, withheld="adopters")
def bass_diffusion() -> pm.Model:
    rng = np.random.default_rng(707)
    t = np.arange(1.0, 31.0)
    with pm.Model() as model:
        model.add_coord("date", t)
        time = pm.Data("t", t, dims="date")
        m = pm.Gamma("m", mu=500, sigma=100)
        p, q = pm.Beta("p", 1.5, 20), pm.Beta("q", 5, 8)
        decay = pt.exp(-(p + q) * time)
        f = (p + q) ** 2 / p * decay / (1 + q / p * decay) ** 2
        adopters = pm.Deterministic("adopters", m * f, dims="date")
        pm.Poisson("y", mu=adopters, observed=rng.poisson(20, 30), dims="date")
    return model


@accepted("PyMC labs: price elasticity by product (log-log hierarchical regression)", 46)
def price_elasticity() -> pm.Model:
    rng = np.random.default_rng(708)
    product, log_price = rng.integers(0, 6, 46), rng.normal(0, 0.3, 46)
    with pm.Model(coords={"product": list("abcdef")}) as model:
        mu_e, sd_e = pm.Normal("mu_elasticity", -1, 1), pm.HalfNormal("sd_elasticity", 0.5)
        elasticity = pm.Normal("elasticity", mu_e, sd_e, dims="product")
        base = pm.Normal("base", 3, 1, dims="product")
        mu = pt.exp(base[product] + elasticity[product] * log_price)
        pm.NegativeBinomial("sales", mu=mu, alpha=pm.HalfNormal("alpha", 5), observed=rng.poisson(20, 46))
    return model


@accepted(
    "Google's LightweightMMM and geo experiments: weights of rows in a Potential (GLM with weights)", 35
)
def weighted_by_exposure() -> pm.Model:
    x, eta, rng = table(35, 2, 709)
    weights = rng.integers(1, 6, 35)
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 1, shape=2), pm.HalfNormal("sigma", 1)
        lift = pm.Normal.dist(pt.dot(pm.Data("x", x), beta), sigma)
        sales = pm.Data("sales", eta + rng.normal(size=35))
        pm.Potential("weighted", pm.Data("weights", weights) * pm.logp(lift, sales))
    return model
