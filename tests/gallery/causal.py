"""Causal inference: designs, mediators, instruments, counterfactual series."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


@accepted("PyMC gallery: causal_inference/mediation_analysis", 40, withheld="mu_m mu_y")
def mediation() -> pm.Model:
    rng = np.random.default_rng(801)
    x = rng.normal(size=40)
    m = 0.5 * x + rng.normal(size=40)
    y = 0.8 * m + rng.normal(size=40)
    with pm.Model(coords={"obs": np.arange(40)}) as model:
        x_ = pm.Data("x", x, dims="obs")
        y_ = pm.Data("y", y, dims="obs")
        m_ = pm.Data("m", m, dims="obs")
        im, iy = pm.Normal("im", mu=0, sigma=10), pm.Normal("iy", mu=0, sigma=10)
        a, b = pm.Normal("a", mu=0, sigma=10), pm.Normal("b", mu=0, sigma=10)
        cprime = pm.Normal("cprime", mu=0, sigma=10)
        sigma_m, sigma_y = pm.HalfCauchy("σm", 1), pm.HalfCauchy("σy", 1)
        mu_m = pm.Deterministic("mu_m", im + a * x_, dims="obs")
        pm.Normal("mlikelihood", mu=mu_m, sigma=sigma_m, observed=m_, dims="obs")
        mu_y = pm.Deterministic("mu_y", iy + b * m_ + cprime * x_, dims="obs")
        pm.Normal("ylikelihood", mu=mu_y, sigma=sigma_y, observed=y_, dims="obs")
        indirect = pm.Deterministic("indirect effect", a * b)
        pm.Deterministic("total effect", indirect + cprime)
    return model


@accepted("PyMC gallery: causal_inference/moderation_analysis", 37, withheld="μ")
def moderation() -> pm.Model:
    rng = np.random.default_rng(802)
    x, m = rng.uniform(5, 40, 37), rng.uniform(18, 70, 37)
    with pm.Model() as model:
        x_ = pm.Data("x", x)
        m_ = pm.Data("m", m)
        b0, b1 = pm.Normal("β0", mu=0, sigma=10), pm.Normal("β1", mu=0, sigma=10)
        b2, b3 = pm.Normal("β2", mu=0, sigma=10), pm.Normal("β3", mu=0, sigma=10)
        sigma = pm.HalfCauchy("σ", 1)
        mu = pm.Deterministic("μ", b0 + b1 * x_ + b2 * x_ * m_ + b3 * m_)
        pm.Normal("y", mu=mu, sigma=sigma, observed=0.1 * x + rng.normal(size=37))
    return model


@accepted("PyMC gallery: causal_inference/difference_in_differences", 32, withheld="mu")
def difference_in_differences() -> pm.Model:
    rng = np.random.default_rng(803)
    frame = pd.DataFrame({"group": rng.integers(0, 2, 32), "t": rng.choice([0.0, 1.0, 1.5], 32)})
    frame["treated"] = ((frame.t > 0.5) & (frame.group == 1)).astype(int)
    with pm.Model() as model:
        t = pm.Data("t", frame["t"].values, dims="obs_idx")
        treated = pm.Data("treated", frame["treated"].values, dims="obs_idx")
        group = pm.Data("group", frame["group"].values, dims="obs_idx")
        intercept = pm.Normal("control_intercept", 0, 5)
        delta_group = pm.Normal("Δ", 0, 1)
        trend = pm.Normal("trend", 0, 5)
        delta = pm.Normal("δ", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        mu = intercept + delta_group * group + trend * t + delta * treated * group
        mu = pm.Deterministic("mu", mu, dims="obs_idx")
        pm.Normal("obs", mu, sigma, observed=1 + rng.normal(size=32), dims="obs_idx")
    return model


@accepted("PyMC gallery: causal_inference/regression_discontinuity", 47, withheld="mu")
def regression_discontinuity() -> pm.Model:
    rng = np.random.default_rng(804)
    x = rng.normal(size=47)
    treated = x < -0.1
    with pm.Model() as model:
        x_ = pm.Data("x", x, dims="obs_id")
        treated_ = pm.Data("treated", treated, dims="obs_id")
        sigma = pm.HalfNormal("sigma", 1)
        delta = pm.Cauchy("effect", alpha=0, beta=1)
        mu = pm.Deterministic("mu", x_ + (delta * treated_), dims="obs_id")
        pm.Normal("y", mu=mu, sigma=sigma, observed=x + treated + rng.normal(size=47), dims="obs_id")
    return model


@accepted("PyMC gallery: causal_inference/interrupted_time_series", 36, withheld="mu")
def interrupted_time_series() -> pm.Model:
    rng = np.random.default_rng(805)
    coords = {"date": pd.date_range("2014-01-01", periods=36, freq="MS")}
    with pm.Model() as model:
        model.add_coords(coords)
        time = pm.Data("time", np.arange(36.0), dims="obs_id")
        beta0 = pm.Normal("beta0", 0, 1)
        beta1 = pm.Normal("beta1", 0, 0.2)
        mu = pm.Deterministic("mu", beta0 + (beta1 * time), dims="obs_id")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("obs", mu=mu, sigma=sigma, observed=rng.normal(size=36), dims="obs_id")
    return model


@accepted("PyMC gallery: causal_inference/excess_deaths (months of mean zero)", 48, withheld="mu")
def excess_deaths() -> pm.Model:
    rng = np.random.default_rng(806)
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    with pm.Model(coords={"month": months}) as model:
        month = pm.Data("month_idx", np.arange(48) % 12, dims="t")
        time = pm.Data("time", np.arange(48.0), dims="t")
        temp = pm.Data("temp", rng.normal(10, 5, 48), dims="t")
        intercept = pm.Normal("intercept", 40_000, 10_000)
        month_mu = pm.ZeroSumNormal("month mu", sigma=3000, dims="month")
        linear_trend = pm.TruncatedNormal("linear trend", 0, 50, lower=0)
        temp_coeff = pm.Normal("temp coeff", 0, 200)
        mu = intercept + (linear_trend * time) + month_mu[month] + (temp_coeff * temp)
        mu = pm.Deterministic("mu", mu, dims="t")
        sigma = pm.HalfNormal("sigma", 2_000)
        pm.TruncatedNormal(
            "obs", mu=mu, sigma=sigma, lower=0, observed=rng.normal(45_000, 3_000, 48), dims="t"
        )
    return model


@accepted("CausalPy docs and Abadie 2003: synthetic control, weights on a simplex", 34, withheld="mu")
def synthetic_control() -> pm.Model:
    x, _, rng = table(34, 5, 807)
    with pm.Model(coords={"coeffs": list("abcde"), "obs_ind": np.arange(34)}) as model:
        X = pm.Data("X", x, dims=["obs_ind", "coeffs"])
        y = pm.Data("y", x @ [0.4, 0.3, 0.2, 0.1, 0.0] + 0.1 * rng.normal(size=34), dims="obs_ind")
        beta = pm.Dirichlet("beta", a=np.ones(5), dims="coeffs")
        sigma = pm.HalfNormal("sigma", 1)
        mu = pm.Deterministic("mu", pm.math.dot(X, beta), dims="obs_ind")
        pm.Normal("y_hat", mu, sigma, observed=y, dims="obs_ind")
    return model


@accepted(
    "CausalPy docs: instrumental variables (joint normal errors of treatment and outcome)",
    38,
    withheld="mu_y mu_t",
)
def instrumental_variables() -> pm.Model:
    rng = np.random.default_rng(808)
    z = np.column_stack([np.ones(38), rng.normal(size=38)])
    t = z[:, 1] + rng.normal(size=38)
    x = np.column_stack([np.ones(38), t])
    y = 2 * t + rng.normal(size=38)
    with pm.Model(
        coords={"instruments": ["Intercept", "risk"], "covariates": ["Intercept", "logpgp"]}
    ) as model:
        beta_t = pm.Normal("beta_t", mu=0, sigma=2, dims="instruments")
        beta_z = pm.Normal("beta_z", mu=0, sigma=2, dims="covariates")
        sd_dist = pm.Exponential.dist(1.0, shape=2)
        chol, _corr, _sigmas = pm.LKJCholeskyCov("chol_cov", eta=2, n=2, sd_dist=sd_dist)
        pm.Deterministic("cov", pt.dot(chol, chol.T))
        mu_y = pm.Deterministic("mu_y", pt.dot(x, beta_z))
        mu_t = pm.Deterministic("mu_t", pt.dot(z, beta_t))
        mu = pm.math.stack(tensors=(mu_y, mu_t), axis=1)
        pm.MvNormal("likelihood", mu=mu, chol=chol, observed=np.stack(arrays=(y, t)).T, shape=mu.shape)
    return model


@accepted("Statistical Rethinking, m14.6: instruments by a multivariate normal", 33)
def rethinking_instruments() -> pm.Model:
    rng = np.random.default_rng(809)
    q, e, w = rng.integers(1, 5, 33) - 2.5, rng.normal(size=33), rng.normal(size=33)
    with pm.Model() as model:
        ae, aw = pm.Normal("aE", 0.0, 0.2), pm.Normal("aW", 0.0, 0.2)
        beq, bew = pm.Normal("bQE", 0.0, 0.5), pm.Normal("bEW", 0.0, 0.5)
        mu = pt.stack([aw + bew * e, ae + beq * q], axis=1)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2))
        pm.MvNormal("We", mu, chol=chol, observed=np.column_stack([w, e]))
    return model


@accepted(
    "Neyman and Rubin; PyMC labs: propensity score beside the outcome (doubly robust)", 42, withheld="ps"
)
def propensity_weighting() -> pm.Model:
    x, _, rng = table(42, 3, 810)
    t, y = rng.integers(0, 2, 42), rng.normal(size=42)
    with pm.Model(coords={"coeffs": list("abc")}) as model:
        model.add_coord("obs", range(42))
        X = pm.Data("X", x, dims=("obs", "coeffs"))
        b = pm.Normal("b", 0, 1, dims="coeffs")
        ps = pm.Deterministic("ps", pm.math.invlogit(pt.dot(X, b)), dims="obs")
        pm.Bernoulli("t_pred", p=ps, observed=t, dims="obs")
        g, tau = pm.Normal("g", 0, 1, dims="coeffs"), pm.Normal("tau", 0, 1)
        pm.Normal("y_pred", pt.dot(X, g) + tau * t, pm.HalfNormal("s", 1), observed=y, dims="obs")
    return model


@refused(
    "Pearl; PyMC gallery: causal_inference (an unobserved confounder for each person)",
    "UnsupportedModelError",
    "u",
    INTEGRATE,
)
def unobserved_confounder() -> pm.Model:
    rng = np.random.default_rng(811)
    t, y = rng.normal(size=31), rng.normal(size=31)
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, size=31)
        a, b, c = (pm.Normal(name, 0, 1) for name in "abc")
        pm.Normal("t", a * u, 1, observed=t)
        pm.Normal("y", b * t + c * u, 1, observed=y)
    return model
