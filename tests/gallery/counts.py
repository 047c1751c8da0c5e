"""Counts and shares: Poisson and its kin, compositions, capture and recapture."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor import TensorVariable

from gallery.registry import INTEGRATE, accepted, refused, table


@accepted("PyMC gallery: generalized_linear_models/GLM-poisson-regression", 30)
def poisson_interaction() -> pm.Model:
    rng = np.random.default_rng(501)
    x1, x2 = rng.integers(0, 2, 30), rng.integers(0, 2, 30)
    with pm.Model() as model:
        b0, b1, b2, b3 = (
            pm.Normal(name, 0, 1) for name in ("Intercept", "alcohol", "antihist", "interaction")
        )
        theta = pm.math.exp(b0 + b1 * x1 + b2 * x2 + b3 * x1 * x2)
        pm.Poisson("y", mu=theta, observed=rng.poisson(6, 30))
    return model


@accepted("Statistical Rethinking, chapter 11: scientific model of Oceanic tools", 20)
def oceanic_tools() -> pm.Model:
    rng = np.random.default_rng(502)
    population, contact = rng.integers(1000, 30000, 20).astype(float), rng.integers(0, 2, 20)
    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 1.0, shape=2)
        b = pm.Exponential("b", 1.0, shape=2)
        g = pm.Exponential("g", 1.0)
        lam = pt.exp(a[contact]) * population ** b[contact] / g
        pm.Poisson("T", lam, observed=rng.poisson(30, 20))
    return model


@accepted("Statistical Rethinking, m12.3: monks, zero-inflated", 45)
def monks() -> pm.Model:
    rng = np.random.default_rng(503)
    y = rng.poisson(1.0, 45) * rng.binomial(1, 0.8, 45)
    with pm.Model() as model:
        ap, al = pm.Normal("ap", -1.5, 1.0), pm.Normal("al", 1.0, 0.5)
        p = pm.Deterministic("p", pm.math.invlogit(ap))
        lam = pm.Deterministic("lambda", pm.math.exp(al))
        pm.ZeroInflatedPoisson("y", 1.0 - p, lam, observed=y)
    return model


@accepted("Bambi docs: zero_inflated_regression (fish); issue 24: zero-inflated negative binomial", 43)
def zero_inflated_negative_binomial() -> pm.Model:
    x, eta, rng = table(43, 2, 504)
    y = rng.negative_binomial(2, 2 / (2 + np.exp(eta))) * rng.integers(0, 2, 43)
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        alpha = pm.Exponential("alpha", 1)
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.ZeroInflatedNegativeBinomial(
            "y", psi=psi, mu=pm.math.exp(pt.dot(x, beta)), alpha=alpha, observed=y
        )
    return model


@accepted("Bambi docs: hurdle gamma (zero-or-positive expenditure)", 37)
def hurdle_gamma() -> pm.Model:
    x, eta, rng = table(37, 2, 505)
    y = rng.gamma(2.0, np.exp(eta) / 2) * rng.integers(0, 2, 37)
    with pm.Model() as model:
        b, g = pm.Normal("b", 0, 1, shape=2), pm.Normal("g", 0, 1, shape=2)
        alpha = pm.HalfNormal("alpha", 5)
        mu = pm.math.exp(x @ b)
        pm.HurdleGamma("y", psi=pm.math.invlogit(x @ g), alpha=alpha, beta=alpha / mu, observed=y)
    return model


@accepted(
    "Stan case studies, Bob Carpenter: Poisson-gamma; BDA3 section 2.7 (disease rates by county rows)", 28
)
def poisson_gamma() -> pm.Model:
    rng = np.random.default_rng(506)
    exposure = rng.uniform(0.5, 4, 28)
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 0.5), pm.Gamma("beta", 2, 1)
        pm.NegativeBinomial("deaths", n=alpha, p=beta / (beta + exposure), observed=rng.poisson(2 * exposure))
    return model


@refused(
    "Stan example-models: poisson with over-dispersion, OxfordBNF / BUGS Epil (an effect for each visit)",
    "UnsupportedModelError",
    "b1",
    INTEGRATE,
)
def bugs_epilepsy() -> pm.Model:
    x, _, rng = table(59, 3, 507)
    with pm.Model() as model:
        a0, beta = pm.Normal("a0", 0, 1), pm.Normal("beta", 0, 1, shape=3)
        sigma_b = pm.HalfNormal("sigma_b", 1)
        b1 = pm.Normal("b1", 0, sigma_b, shape=59)
        b = pm.Normal("b", 0, 1, shape=(59, 4))
        mu = pt.exp(a0 + (x @ beta + b1)[:, None] + b)
        pm.Poisson("y", mu, observed=rng.poisson(3, (59, 4)))
    return model


@accepted("BUGS examples volume 1: Salm (extra-Poisson mutagenicity, dose curve)", 27)
def bugs_salm() -> pm.Model:
    rng = np.random.default_rng(508)
    x = rng.choice([0.0, 10, 33, 100, 333, 1000], 27)
    with pm.Model() as model:
        alpha, beta, gamma = pm.Normal("alpha", 0, 3), pm.Normal("beta", 0, 1), pm.Normal("gamma", 0, 0.01)
        phi = pm.HalfNormal("phi", 5)
        mu = pt.exp(alpha + beta * np.log(x + 10) + gamma * x)
        pm.NegativeBinomial("y", mu=mu, alpha=phi, observed=rng.poisson(25, 27))
    return model


@accepted(
    "Stan example-models: capture-recapture Mb/Mh (posteriordb Mt_data), observed animals given capture", 41
)
def capture_recapture() -> pm.Model:
    rng = np.random.default_rng(509)
    caught = rng.integers(0, 2, (41, 5))
    caught[:, 0] |= caught.sum(axis=1) == 0
    with pm.Model(coords={"occasion": range(5)}) as model:
        p = pm.Uniform("p", 0, 1, dims="occasion")
        never = pt.sum(pt.log1p(-p))
        caught = pm.Data("caught", caught)
        logp = (caught * pt.log(p) + (1 - caught) * pt.log1p(-p)).sum(axis=1)
        pm.Potential("history", logp - pt.log1mexp(never))
    return model


@accepted(
    "PyMC docs: pm.DiscreteWeibull (time to failure in cycles); Bayesian Modeling and Computation, chapter 2",
    26,
)
def discrete_weibull() -> pm.Model:
    with pm.Model() as model:
        q, beta = pm.Beta("q", 2, 2), pm.LogNormal("beta", 0, 0.5)
        pm.DiscreteWeibull("cycles", q=q, beta=beta, observed=np.random.default_rng(510).geometric(0.3, 26))
    return model


@accepted("PyMC docs: pm.Kumaraswamy; reservoir levels as a double-bounded share", 29)
def kumaraswamy_regression() -> pm.Model:
    x, _, rng = table(29, 2, 511)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        b = pm.LogNormal("b", 0, 1)
        pm.Kumaraswamy("level", a=pt.exp(x @ beta), b=b, observed=rng.beta(2, 2, 29))
    return model


@accepted("Aitchison; Stan forum: compositional data, log-ratios with a multivariate normal", 31)
def compositional_log_ratios() -> pm.Model:
    x, _, rng = table(31, 2, 512)
    shares = rng.dirichlet([4, 3, 2], 31)
    alr = np.log(shares[:, :2] / shares[:, 2:])
    with pm.Model() as model:
        b = pm.Normal("B", 0, 1, shape=(2, 2))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
        pm.MvNormal("alr", mu=pt.dot(x, b), chol=chol, observed=alr)
    return model


@accepted("Blair and Imai 2012: item count technique (list experiment), marginal over the sensitive item", 44)
def item_count() -> pm.Model:
    rng = np.random.default_rng(513)
    treated = rng.integers(0, 2, 44)
    y = rng.binomial(4, 0.5, 44) + treated * rng.binomial(1, 0.3, 44)

    def logp(
        value: TensorVariable, p: TensorVariable, pi: TensorVariable, t: TensorVariable
    ) -> TensorVariable:
        control = pm.Binomial.dist(n=4, p=p)
        without = pm.logp(control, value)
        both = pm.math.logaddexp(pt.log1p(-pi) + without, pt.log(pi) + pm.logp(control, value - 1))
        return pt.switch(pt.eq(t, 1), both, without)

    with pm.Model() as model:
        p, pi = pm.Beta("p", 1, 1), pm.Beta("sensitive", 1, 1)
        pm.CustomDist("y", p, pi, treated, logp=logp, observed=y)
    return model


@accepted("Stan user's guide: dogs (posteriordb dogs_log); avoidance learned over 6 trials of a row", 25)
def solomon_wynne_dogs() -> pm.Model:
    y = np.random.default_rng(514).integers(0, 2, (25, 6))
    with pm.Model() as model:
        dog = pm.Data("shocked", y, dims=("dog", "trial"))
        beta = pm.Uniform("beta", lower=np.array([0.0, 0.0]), upper=1.0, shape=2)
        before = pt.cumsum(dog, axis=1) - dog
        avoided = pt.arange(6)[None, :] - before
        p = beta[0] ** avoided * beta[1] ** before
        pm.Bernoulli("y", p=0.99 * p + 0.001, observed=y, dims=("dog", "trial"))
    return model


@accepted(
    "PyMC gallery: introductory/api_quickstart and case_studies: A/B test with a row for each visitor", 38
)
def ab_test_by_visitor() -> pm.Model:
    rng = np.random.default_rng(515)
    visits = pd.DataFrame({"variant": rng.integers(0, 2, 38), "converted": rng.integers(0, 2, 38)})
    with pm.Model(coords={"variant": ["A", "B"]}) as model:
        p = pm.Beta("p", alpha=10, beta=10, dims="variant")
        pm.Deterministic("reluplift_b", p[1] / p[0] - 1)
        pm.Bernoulli("y", p=p[visits["variant"].to_numpy()], observed=visits["converted"])
    return model


@refused(
    "PyMC gallery: case_studies/bayesian_ab_testing_introduction (two totals)",
    "UnsupportedModelError",
    "p",
    INTEGRATE,
)
def ab_test_by_totals() -> pm.Model:
    with pm.Model() as model:
        p = pm.Beta("p", alpha=100, beta=100, shape=2)
        pm.Binomial("y", n=[4100, 3900], p=p, observed=[830, 990], shape=2)
        pm.Deterministic("reluplift_b", p[1] / p[0] - 1)
    return model
