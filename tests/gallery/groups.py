"""Hierarchies: few groups with many rows each pass, a group for each row does not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


def _season(rng: np.random.Generator) -> pd.DataFrame:
    games = pd.DataFrame({"home": rng.integers(0, 6, 45)})
    games["away"] = (games["home"] + rng.integers(1, 6, 45)) % 6
    games["home_score"] = rng.poisson(25, 45)
    games["away_score"] = rng.poisson(18, 45)
    return games


@accepted("PyMC gallery: case_studies/rugby_analytics", 45)
def rugby() -> pm.Model:
    games = _season(np.random.default_rng(101))
    coords = {"team": ["Wales", "France", "Ireland", "Scotland", "Italy", "England"]}
    with pm.Model(coords=coords) as model:
        home_team = pm.Data("home_team", games["home"], dims="match")
        away_team = pm.Data("away_team", games["away"], dims="match")
        home = pm.Normal("home", mu=0, sigma=1)
        sd_att = pm.HalfNormal("sd_att", sigma=2)
        sd_def = pm.HalfNormal("sd_def", sigma=2)
        intercept = pm.Normal("intercept", mu=3, sigma=1)
        atts_star = pm.Normal("atts_star", mu=0, sigma=sd_att, dims="team")
        defs_star = pm.Normal("defs_star", mu=0, sigma=sd_def, dims="team")
        atts = pm.Deterministic("atts", atts_star - pt.mean(atts_star), dims="team")
        defs = pm.Deterministic("defs", defs_star - pt.mean(defs_star), dims="team")
        home_theta = pt.exp(intercept + home + atts[home_team] + defs[away_team])
        away_theta = pt.exp(intercept + atts[away_team] + defs[home_team])
        pm.Poisson("home_points", mu=home_theta, observed=games["home_score"], dims="match")
        pm.Poisson("away_points", mu=away_theta, observed=games["away_score"], dims="match")
    return model


@accepted("PyMC gallery: generalized_linear_models (zero-sum version of rugby); PyMC docs: ZeroSumNormal", 45)
def rugby_zero_sum() -> pm.Model:
    games = _season(np.random.default_rng(102))
    with pm.Model(coords={"team": list("WFISTE"), "field": ["att", "def"]}) as model:
        sd = pm.HalfNormal("sd", sigma=1, dims="field")
        intercept = pm.Normal("intercept", mu=3, sigma=1)
        home = pm.Normal("home", 0, 0.5)
        raw = pm.ZeroSumNormal("raw", sigma=1, dims=("field", "team"))
        atts = raw[0] * sd[0]
        defs = raw[1] * sd[1]
        h, a = games["home"].to_numpy(), games["away"].to_numpy()
        pm.Poisson(
            "home_points", mu=pt.exp(intercept + home + atts[h] + defs[a]), observed=games["home_score"]
        )
        pm.Poisson("away_points", mu=pt.exp(intercept + atts[a] + defs[h]), observed=games["away_score"])
    return model


@accepted("PyMC gallery: causal_inference/GLM-simpsons-paradox (model 3, hierarchical)", 40, withheld="μ")
def simpsons_paradox() -> pm.Model:
    rng = np.random.default_rng(103)
    group = pd.Categorical(rng.choice(["one", "two", "three", "four", "five"], 40))
    frame = pd.DataFrame({"x": rng.normal(size=40), "group_idx": group.codes})
    with pm.Model(coords={"group": list(group.categories)}) as model:
        intercept_mu = pm.Normal("intercept_mu", 0, 1)
        intercept_sigma = pm.HalfNormal("intercept_sigma", 1)
        slope_mu = pm.Normal("slope_mu", 0, 1)
        slope_sigma = pm.HalfNormal("slope_sigma", 1)
        beta0 = pm.Normal("β0", intercept_mu, intercept_sigma, dims="group")
        beta1 = pm.Normal("β1", slope_mu, slope_sigma, dims="group")
        x = pm.Data("x", frame.x, dims="obs_id")
        g = pm.Data("g", frame.group_idx, dims="obs_id")
        mu = pm.Deterministic("μ", beta0[g] + beta1[g] * x, dims="obs_id")
        sigma = pm.Gamma("sigma", 2, 2)
        y = -frame.x + 2 * frame.group_idx
        pm.Normal("y", mu=mu, sigma=sigma, observed=y, dims="obs_id")
    return model


@accepted(
    "PyMC gallery: generalized_linear_models/multilevel_modeling (contextual effect, public county table)",
    42,
    withheld="y_hat",
    public_data=("xbar_county",),
)
def radon_contextual() -> pm.Model:
    rng = np.random.default_rng(104)
    county = rng.integers(0, 7, 42)
    floor = rng.integers(0, 2, 42).astype(float)
    with pm.Model(coords={"county": [f"c{i}" for i in range(7)]}) as model:
        floor_idx = pm.Data("floor_idx", floor, dims="obs_id")
        county_idx = pm.Data("county_idx", county, dims="obs_id")
        xbar = pm.Data("xbar_county", np.linspace(0, 1, 7), dims="county")
        gamma = pm.Normal("g", mu=0.0, sigma=10, size=3)
        mu_a = pm.Deterministic("mu_a", gamma[0] + gamma[1] * xbar + gamma[2] * xbar**2, dims="county")
        sigma_a = pm.Exponential("sigma_a", 1)
        epsilon_a = pm.Normal("epsilon_a", mu=0, sigma=1, dims="county")
        alpha = pm.Deterministic("alpha", mu_a + sigma_a * epsilon_a, dims="county")
        beta = pm.Normal("beta", mu=0.0, sigma=10)
        sigma_y = pm.Uniform("sigma_y", lower=0, upper=100)
        y_hat = pm.Deterministic("y_hat", alpha[county_idx] + beta * floor_idx, dims="obs_id")
        pm.Normal("y_like", mu=y_hat, sigma=sigma_y, observed=1.3 + rng.normal(size=42), dims="obs_id")
    return model


@accepted("PyMC gallery: case_studies/LKJ (varying intercepts and slopes, non-centred)", 36, withheld="mu")
def lkj_varying_slopes() -> pm.Model:
    rng = np.random.default_rng(105)
    cafe, afternoon = rng.integers(0, 5, 36), rng.integers(0, 2, 36)
    coords = {"cafe": np.arange(5), "effect": ["intercept", "slope"]}
    with pm.Model(coords=coords) as model:
        sd_dist = pm.Exponential.dist(0.5, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol_cov", eta=2, n=2, sd_dist=sd_dist, compute_corr=True)
        ab = pm.Normal("ab", mu=[5.0, -1.0], sigma=[2.0, 0.5], dims="effect")
        z = pm.Normal("z", 0.0, 1.0, dims=("effect", "cafe"))
        ab_cafe = pm.Deterministic("ab_cafe", pt.dot(chol, z).T, dims=("cafe", "effect"))
        mu = pm.Deterministic("mu", ab[0] + ab_cafe[cafe, 0] + (ab[1] + ab_cafe[cafe, 1]) * afternoon)
        sigma_within = pm.Exponential("sigma_within", 1.0)
        pm.Normal("wait", mu=mu, sigma=sigma_within, observed=rng.normal(4, 1, 36))
    return model


@accepted("NumPyro tutorial: bayesian_hierarchical_linear_regression (OSIC pulmonary fibrosis)", 48)
def pulmonary_fibrosis() -> pm.Model:
    rng = np.random.default_rng(106)
    code, weeks = np.repeat(np.arange(8), 6), np.tile(np.arange(6.0), 8)
    with pm.Model(coords={"patient": np.arange(8)}) as model:
        mu_a, sigma_a = pm.Normal("μ_α", 0, 500), pm.HalfNormal("σ_α", 100)
        mu_b, sigma_b = pm.Normal("μ_β", 0, 3), pm.HalfNormal("σ_β", 3)
        a = pm.Normal("α", mu_a, sigma_a, dims="patient")
        b = pm.Normal("β", mu_b, sigma_b, dims="patient")
        sigma = pm.HalfNormal("σ", 100)
        pm.Normal("obs", a[code] + b[code] * weeks, sigma, observed=rng.normal(2800, 100, 48))
    return model


@accepted("Statistical Rethinking, m13.6: chimpanzees with actors and blocks, non-centred", 50)
def chimpanzees() -> pm.Model:
    rng = np.random.default_rng(107)
    actor, block, tid = rng.integers(0, 7, 50), rng.integers(0, 6, 50), rng.integers(0, 4, 50)
    with pm.Model() as model:
        z = pm.Normal("z", 0.0, 1.0, shape=7)
        x = pm.Normal("x", 0.0, 1.0, shape=6)
        sigma_a, sigma_g = pm.Exponential("sigma_a", 1.0), pm.Exponential("sigma_g", 1.0)
        a_bar = pm.Normal("a_bar", 0.0, 1.5)
        b = pm.Normal("b", 0.0, 0.5, shape=4)
        p = pm.math.invlogit(a_bar + z[actor] * sigma_a + x[block] * sigma_g + b[tid])
        pm.Binomial("pulled_left", 1, p, observed=rng.integers(0, 2, 50))
        pm.Deterministic("a", a_bar + z * sigma_a)
    return model


@accepted(
    "Stan example-models: ARM chapter 14, election88; PyMC gallery: case_studies/mrp",
    52,
    public_data=("repvote",),
)
def multilevel_poststratification() -> pm.Model:
    rng = np.random.default_rng(108)
    state, eth, age = rng.integers(0, 9, 52), rng.integers(0, 4, 52), rng.integers(0, 3, 52)
    male, vote = rng.choice([-0.5, 0.5], 52), np.linspace(0.3, 0.7, 9)
    coords = {"state": np.arange(9), "eth": list("abcd"), "edu_age": ["y", "m", "o"]}
    with pm.Model(coords=coords) as model:
        vote_ = pm.Data("repvote", vote, dims="state")
        intercept = pm.Normal("Intercept", 0, 1)
        b_male, b_vote = pm.Normal("b_male", 0, 1), pm.Normal("b_repvote", 0, 1)
        s_state, s_eth = pm.HalfNormal("s_state", 1), pm.HalfNormal("s_eth", 1)
        a_state = pm.Normal("a_state", b_vote * vote_, s_state, dims="state")
        a_eth = pm.ZeroSumNormal("a_eth", s_eth, dims="eth")
        a_cell = pm.ZeroSumNormal("a_cell", 1.0, dims=("eth", "edu_age"), n_zerosum_axes=2)
        p = pm.math.invlogit(intercept + b_male * male + a_state[state] + a_eth[eth] + a_cell[eth, age])
        pm.Binomial("abortion", n=rng.integers(1, 20, 52), p=p, observed=rng.integers(0, 2, 52))
    return model


@refused(
    "BDA3 chapter 5: rat tumours; PyMC gallery: diagnostics of hierarchical binomials (dims of theta alone)",
    "UnsupportedModelError",
    "theta",
    INTEGRATE,
)
def rat_tumours() -> pm.Model:
    rng = np.random.default_rng(109)
    n_rats = rng.integers(10, 50, 31)
    y = rng.binomial(n_rats, 0.15)
    coords = {"obs_id": np.arange(31), "param": ["alpha", "beta"]}

    def logp_ab(value):
        return pt.log(pt.pow(pt.sum(value), -5 / 2))

    with pm.Model(coords=coords) as model:
        n_val = pm.Data("n_val", n_rats)
        ab = pm.HalfNormal("ab", sigma=10, dims="param")
        pm.Potential("p(a, b)", logp_ab(ab))
        pm.Deterministic("X", pm.math.log(ab[0] / ab[1]))
        theta = pm.Beta("theta", alpha=ab[0], beta=ab[1], dims="obs_id")
        pm.Binomial("y", p=theta, observed=y, n=n_val)
    return model


@accepted("BDA3 chapter 5: rat tumours, the rates integrated out", 31)
def rat_tumours_beta_binomial() -> pm.Model:
    rng = np.random.default_rng(110)
    n_rats = rng.integers(10, 50, 31)
    with pm.Model(coords={"param": ["alpha", "beta"]}) as model:
        ab = pm.HalfNormal("ab", sigma=10, dims="param")
        pm.Potential("p(a, b)", pt.log(pt.pow(pt.sum(ab), -5 / 2)))
        pm.BetaBinomial("y", alpha=ab[0], beta=ab[1], n=n_rats, observed=rng.binomial(n_rats, 0.15))
    return model


@refused(
    "PyMC gallery: case_studies/hierarchical_partial_pooling (Efron and Morris' baseball)",
    "UnsupportedModelError",
    "thetas",
    INTEGRATE,
)
def baseball() -> pm.Model:
    rng = np.random.default_rng(111)
    with pm.Model(coords={"player_names": [f"player {i}" for i in range(18)]}) as model:
        phi = pm.Uniform("phi", lower=0.0, upper=1.0)
        kappa_log = pm.Exponential("kappa_log", lam=1.5)
        kappa = pm.Deterministic("kappa", pt.exp(kappa_log))
        thetas = pm.Beta("thetas", alpha=phi * kappa, beta=(1.0 - phi) * kappa, dims="player_names")
        pm.Binomial("y", n=45, p=thetas, dims="player_names", observed=rng.binomial(45, 0.27, 18))
    return model


@refused(
    "BUGS examples volume 1: Rats (a growth curve for each row)", "UnsupportedModelError", "alpha", INTEGRATE
)
def bugs_rats() -> pm.Model:
    rng = np.random.default_rng(112)
    x = np.array([8.0, 15.0, 22.0, 29.0, 36.0])
    y = rng.normal(240 + 6 * (x - 22.0), 10, size=(30, 5))
    with pm.Model() as model:
        mu_alpha, mu_beta = pm.Normal("mu_alpha", 0, 100), pm.Normal("mu_beta", 0, 100)
        sigma_alpha, sigma_beta = pm.HalfCauchy("sigma_alpha", 10), pm.HalfCauchy("sigma_beta", 10)
        alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=30)
        beta = pm.Normal("beta", mu_beta, sigma_beta, shape=30)
        mu = alpha[:, None] + beta[:, None] * (x - x.mean())
        pm.Normal("y", mu, pm.HalfCauchy("sigma_y", 5), observed=y)
    return model


@refused(
    "BUGS examples volume 1: Pumps (a failure rate for each pump)",
    "UnsupportedModelError",
    "theta",
    INTEGRATE,
)
def bugs_pumps() -> pm.Model:
    rng = np.random.default_rng(113)
    t = rng.uniform(1, 120, 23)
    with pm.Model() as model:
        alpha = pm.Exponential("alpha", 1)
        beta = pm.Gamma("beta", 0.1, 1)
        theta = pm.Gamma("theta", alpha, beta, shape=23)
        pm.Poisson("x", theta * t, observed=rng.poisson(0.4 * t))
    return model


@refused(
    "BUGS examples volume 1: Seeds (a random effect for each plate)", "UnsupportedModelError", "b", INTEGRATE
)
def bugs_seeds() -> pm.Model:
    rng = np.random.default_rng(114)
    x1, x2, n = rng.integers(0, 2, 21), rng.integers(0, 2, 21), rng.integers(5, 70, 21)
    with pm.Model(coords={"plate": np.arange(21)}) as model:
        alpha = pm.Normal("alpha", 0, 10, shape=4)
        sigma = pm.HalfNormal("sigma", 1)
        b = pm.Normal("b", 0, sigma, dims="plate")
        eta = alpha[0] + alpha[1] * x1 + alpha[2] * x2 + alpha[3] * x1 * x2 + b
        pm.Binomial("r", n=n, p=pm.math.invlogit(eta), observed=rng.binomial(n, 0.5))
    return model


@refused(
    "Statistical Rethinking, m13.2: Reed frogs (an intercept for each tank)",
    "UnsupportedModelError",
    "a",
    INTEGRATE,
)
def reed_frogs() -> pm.Model:
    rng = np.random.default_rng(115)
    density = rng.choice([10, 25, 35], 48)
    tank = np.arange(48)
    with pm.Model() as model:
        a_bar = pm.Normal("a_bar", 0.0, 1.5)
        sigma = pm.Exponential("sigma", 1.0)
        a = pm.Normal("a", a_bar, sigma, shape=48)
        p = pm.math.invlogit(a[tank])
        pm.Binomial("S", n=density, p=p, observed=rng.binomial(density, 0.7))
    return model


@refused(
    "BDA3 section 5.6: meta-analysis of beta blockers (an effect for each trial)",
    "UnsupportedModelError",
    "delta",
    INTEGRATE,
)
def meta_analysis() -> pm.Model:
    _, y, rng = table(22, 1, 116)
    with pm.Model(coords={"study": np.arange(22)}) as model:
        d = pm.Normal("d", 0, 10)
        tau = pm.HalfNormal("tau", 1)
        delta = pm.Normal("delta", d, tau, dims="study")
        pm.Normal("log_odds_ratio", delta, rng.uniform(0.1, 0.8, 22), observed=y, dims="study")
    return model


@accepted("BDA3 section 5.6: meta-analysis of beta blockers, the effects integrated out", 22)
def meta_analysis_marginal() -> pm.Model:
    _, y, rng = table(22, 1, 117)
    se = rng.uniform(0.1, 0.8, 22)
    with pm.Model(coords={"study": np.arange(22)}) as model:
        d = pm.Normal("d", 0, 10)
        tau = pm.HalfNormal("tau", 1)
        pm.Normal("log_odds_ratio", d, pm.math.sqrt(tau**2 + se**2), observed=y, dims="study")
    return model


@accepted(
    "Bayesian Modeling and Computation in Python, chapter 4: salads, non-centred and shared variance", 37
)
def pooled_salads() -> pm.Model:
    rng = np.random.default_rng(118)
    location = pd.Categorical(rng.choice(["north", "south", "west"], 37))
    customers = rng.integers(20, 90, 37).astype(float)
    with pm.Model(coords={"locations": location.categories}) as model:
        sigma_hyperprior = pm.HalfNormal("σ_hyperprior", 20)
        beta = pm.HalfNormal("β", sigma=20, dims="locations")
        sigma = pm.HalfNormal("σ", sigma=sigma_hyperprior, dims="locations")
        mu = beta[location.codes] * customers
        pm.Normal("sales", mu=mu, sigma=sigma[location.codes], observed=5 * customers + rng.normal(0, 9, 37))
    return model
