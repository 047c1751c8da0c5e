"""Chapters of books, Stan's regression examples, and distributions that PyMC has not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


@accepted("PyMC gallery: case_studies/GEV (yearly maxima; the density of pymc-extras' GenExtreme)", 34)
def generalised_extreme_value() -> pm.Model:
    data = np.random.default_rng(1201).gumbel(3.9, 0.2, 34)

    def logp(value, mu, sigma, xi):
        scaled = (value - mu) / sigma
        gumbel = -pt.log(sigma) - scaled - pt.exp(-scaled)
        t = pt.maximum(1 + xi * scaled, 1e-9)
        general = -pt.log(sigma) - (1 + 1 / xi) * pt.log(t) - t ** (-1 / xi)
        logp = pt.switch(pt.lt(pt.abs(xi), 1e-6), gumbel, general)
        return pt.switch(pt.gt(1 + xi * scaled, 0), logp, -np.inf)

    with pm.Model() as model:
        mu = pm.Normal("μ", mu=3.8, sigma=0.2)
        sigma = pm.HalfNormal("σ", sigma=0.3)
        xi = pm.TruncatedNormal("ξ", mu=0, sigma=0.2, lower=-0.6, upper=0.6)
        pm.CustomDist("gev", mu, sigma, xi, logp=logp, observed=data)
        pm.Deterministic("z_p", mu - sigma / xi * (1 - (-np.log(1 - 0.1)) ** (-xi)))
    return model


@accepted("Statistical Rethinking, m5.3: divorce, marriage and age at marriage", 50, withheld="mu")
def waffle_divorce() -> pm.Model:
    x, eta, rng = table(50, 2, 1202)
    with pm.Model() as model:
        a, bm, ba = pm.Normal("a", 0, 0.2), pm.Normal("bM", 0, 0.5), pm.Normal("bA", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        mu = pm.Deterministic("mu", a + bm * x[:, 0] + ba * x[:, 1])
        pm.Normal("divorce_std", mu=mu, sigma=sigma, observed=eta + rng.normal(size=50))
    return model


@refused(
    "Statistical Rethinking, m15.2: divorce with errors of measurement on both sides",
    "UnsupportedModelError",
    "D_true",
    INTEGRATE,
)
def waffle_divorce_measurement_error() -> pm.Model:
    x, eta, rng = table(50, 2, 1203)
    se = rng.uniform(0.1, 0.5, 50)
    with pm.Model() as model:
        a, bm, ba = pm.Normal("a", 0, 0.2), pm.Normal("bM", 0, 0.5), pm.Normal("bA", 0, 0.5)
        d_true = pm.Normal("D_true", a + bm * x[:, 0] + ba * x[:, 1], pm.Exponential("sigma", 1), shape=50)
        pm.Normal("D_obs", d_true, se, observed=eta)
    return model


@accepted(
    "Statistical Rethinking, m4.7: cherry blossoms' polynomial twin; Howell's heights, cubic",
    37,
    withheld="mu",
)
def howell_cubic() -> pm.Model:
    rng = np.random.default_rng(1204)
    weight = rng.normal(size=37)
    m = np.vstack([weight, weight**2, weight**3]).T
    with pm.Model() as model:
        a, b1 = pm.Normal("a", 178, 20), pm.LogNormal("b1", 0, 1)
        b2 = pm.Normal("b2", 0, 1, shape=2)
        sigma = pm.Uniform("sigma", 0, 50)
        mu = pm.Deterministic("mu", a + b1 * m[:, 0] + pm.math.dot(m[:, 1:], b2))
        pm.Normal("height", mu=mu, sigma=sigma, observed=150 + 10 * weight + rng.normal(0, 5, 37))
    return model


@accepted("Statistical Rethinking, m9.1: ruggedness by continent", 32)
def ruggedness() -> pm.Model:
    rng = np.random.default_rng(1205)
    cid, rugged = rng.integers(0, 2, 32), rng.uniform(0, 1, 32)
    with pm.Model() as model:
        a, b = pm.Normal("a", 1, 0.1, shape=2), pm.Normal("b", 0, 0.3, shape=2)
        mu = a[cid] + b[cid] * (rugged - 0.215)
        pm.Normal("log_gdp_std", mu, pm.Exponential("sigma", 1), observed=rng.normal(1, 0.2, 32))
    return model


@accepted("Statistical Rethinking, m11.8; NumPyro examples: ucbadmit (admissions by sex and department)", 36)
def berkeley_admissions() -> pm.Model:
    rng = np.random.default_rng(1206)
    gender, dept, n = rng.integers(0, 2, 36), rng.integers(0, 6, 36), rng.integers(10, 300, 36)
    with pm.Model(coords={"dept": list("ABCDEF")}) as model:
        v_mu = pm.Normal("v_mu", [0, -1], [4.0, 1.0], shape=2)
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        v = pm.Normal("v", 0, 1, shape=(6, 2))
        alpha = v_mu[0] + v[:, 0] * sigma[0]
        beta = v_mu[1] + v[:, 1] * sigma[1]
        pm.Binomial(
            "admit", n=n, p=pm.math.invlogit(alpha[dept] + beta[dept] * gender), observed=rng.binomial(n, 0.4)
        )
    return model


@accepted("Statistical Rethinking, m16.1: height and weight of cylinders", 33)
def cylinders() -> pm.Model:
    h = np.random.default_rng(1207).uniform(0.5, 1.2, 33)
    with pm.Model() as model:
        p, k, sigma = pm.Beta("p", 25, 50), pm.Exponential("k", 0.5), pm.Exponential("sigma", 1)
        pm.LogNormal("w", pm.math.log(np.pi * k * p**2 * h**3), sigma, observed=h**3)
    return model


@accepted("Statistical Rethinking, m16.4: Panda nut opening", 40)
def panda_nuts() -> pm.Model:
    rng = np.random.default_rng(1208)
    nuts, age, seconds = rng.poisson(10, 40), rng.uniform(0.2, 1.0, 40), rng.uniform(5, 60, 40)
    with pm.Model() as model:
        phi, k, theta = (
            pm.LogNormal("phi", 0, 0.1),
            pm.LogNormal("k", 2, 0.25),
            pm.LogNormal("theta", 1.6, 0.25),
        )
        pm.Poisson("n", seconds * phi * (1 - pm.math.exp(-k * age)) ** theta, observed=nuts)
    return model


@accepted("ARM chapter 5; posteriordb wells_data (well switching)", 45)
def arsenic_wells() -> pm.Model:
    rng = np.random.default_rng(1209)
    wells = pd.DataFrame({"dist": rng.uniform(1, 300, 45), "arsenic": rng.uniform(0.5, 5, 45)})
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 5), pm.Normal("beta", 0, 5, shape=3)
        d, a = wells["dist"] / 100, wells["arsenic"]
        x = np.column_stack([d, a, d * a])
        pm.Bernoulli("switch", logit_p=alpha + pt.dot(x, beta), observed=rng.integers(0, 2, 45))
    return model


@accepted("ARM chapter 3; posteriordb kidiq_interaction", 43)
def kid_scores() -> pm.Model:
    rng = np.random.default_rng(1210)
    mom_hs, mom_iq = rng.integers(0, 2, 43), rng.normal(100, 15, 43)
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=4)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mu = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
        pm.Normal("kid_score", mu, sigma, observed=rng.normal(86, 20, 43))
    return model


@accepted("BDA3 section 3.7: bioassay", 24)
def bioassay() -> pm.Model:
    rng = np.random.default_rng(1211)
    log_dose = rng.uniform(-1, 1, 24)
    with pm.Model() as model:
        chol = np.linalg.cholesky(np.array([[4.0, 10.0], [10.0, 100.0]]))
        theta = pm.MvNormal("theta", mu=np.array([0.0, 10.0]), chol=chol, shape=2)
        pm.Binomial(
            "deaths", n=5, p=pm.math.invlogit(theta[0] + theta[1] * log_dose), observed=rng.integers(0, 6, 24)
        )
    return model


@accepted("Bayesian Analysis with Python, chapter 5: penguins (softmax of body measures)", 38, withheld="θ")
def penguins() -> pm.Model:
    x, _, rng = table(38, 4, 1212)
    with pm.Model() as model:
        alpha, beta = pm.Normal("α", 0, 1, shape=2), pm.Normal("β", 0, 1, shape=(4, 2))
        mu = pt.concatenate([pt.zeros((38, 1)), alpha + pm.math.dot(x, beta)], axis=1)
        theta = pm.Deterministic("θ", pm.math.softmax(mu, axis=1))
        pm.Categorical("species", p=theta, observed=rng.integers(0, 3, 38))
    return model


@accepted(
    "Bayesian Modeling and Computation in Python, chapter 5: bikes by the hour, splines with walking weights",
    40,
)
def bikes_walking_splines() -> pm.Model:
    rng = np.random.default_rng(1213)
    hour = rng.uniform(0, 24, 40)
    basis = np.clip(1 - np.abs(hour[:, None] - np.arange(0, 25, 4.0)[None, :]) / 4, 0, 1)
    with pm.Model() as model:
        tau = pm.HalfCauchy("τ", 1)
        beta = pm.GaussianRandomWalk("β", sigma=tau, init_dist=pm.Normal.dist(0, 1), shape=7)
        pm.Normal("cnt", pm.math.dot(basis, beta), pm.HalfNormal("σ", 1), observed=rng.normal(size=40))
    return model


@accepted("BUGS examples volume 2: Orange trees (logistic growth, a row is a measurement)", 35)
def bugs_orange_trees() -> pm.Model:
    rng = np.random.default_rng(1214)
    tree, age = np.repeat(np.arange(5), 7), np.tile(np.linspace(118, 1582, 7), 5)
    with pm.Model(coords={"tree": range(5)}) as model:
        mu = pm.Normal("mu", [5.0, 2.0, -6.0], 1.0, shape=3)
        sigma = pm.HalfNormal("sigma", 0.5, shape=3)
        theta = pm.Normal("theta", mu[:, None], sigma[:, None], shape=(3, 5))
        phi1, phi2, phi3 = pt.exp(theta[0]), pt.exp(theta[1]) - 1, -pt.exp(theta[2])
        eta = phi1[tree] / (1 + phi2[tree] * pt.exp(phi3[tree] * age))
        pm.Normal("Y", eta, pm.HalfNormal("sigma_C", 20), observed=rng.normal(100, 30, 35))
    return model


@accepted("BUGS examples volume 1: Stacks (robust regression by double exponential errors)", 21)
def bugs_stacks() -> pm.Model:
    x, eta, rng = table(21, 3, 1215)
    with pm.Model() as model:
        beta0, beta = pm.Normal("beta0", 0, 300), pm.Normal("beta", 0, 300, shape=3)
        pm.Laplace(
            "Y", mu=beta0 + pt.dot(x, beta), b=pm.HalfCauchy("sigma", 5), observed=eta + rng.laplace(size=21)
        )
    return model


@accepted(
    "PyMC docs: pm.Moyal, pm.Logistic, pm.LogitNormal, pm.Rice, pm.PolyaGamma's neighbours (rare families)",
    30,
)
def rare_families() -> pm.Model:
    rng = np.random.default_rng(1216)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        pm.Moyal("energy", mu, sigma, observed=rng.normal(2, 1, 30))
        pm.Logistic("score", mu, sigma, observed=rng.logistic(size=30))
        pm.LogitNormal("share", mu, sigma, observed=rng.beta(2, 3, 30))
        pm.Rice("amplitude", nu=pt.exp(mu), sigma=sigma, observed=rng.gamma(4, 0.5, 30))
        pm.Triangular("guess", lower=-3.0, c=pt.tanh(mu), upper=3.0, observed=rng.uniform(-2, 2, 30))
    return model


@accepted(
    "PyMC docs: pm.StudentT and pm.SkewStudentT in a meta-regression of effect sizes with known errors", 26
)
def meta_regression() -> pm.Model:
    x, eta, rng = table(26, 1, 1217)
    se = rng.uniform(0.1, 0.6, 26)
    with pm.Model() as model:
        a, b, tau = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1), pm.HalfNormal("tau", 0.5)
        sd = pm.math.sqrt(se**2 + tau**2)
        pm.SkewStudentT("effect", a=3.0, b=3.0, mu=a + b * x[:, 0], sigma=sd, observed=eta)
    return model


@refused(
    "Stan user's guide, chapter Measurement error; Fuller 1987 (a true value for each row)",
    "UnsupportedModelError",
    "x_true",
    INTEGRATE,
)
def errors_in_variables() -> pm.Model:
    x, eta, _ = table(28, 1, 1218)
    with pm.Model(coords={"unit": range(28)}) as model:
        x_true = pm.Normal("x_true", 0, 10, dims="unit")
        pm.Normal("x_meas", x_true, 0.3, observed=x[:, 0])
        pm.Normal("y", pm.Normal("alpha", 0, 10) + pm.Normal("beta", 0, 10) * x_true, 1.0, observed=eta)
    return model
