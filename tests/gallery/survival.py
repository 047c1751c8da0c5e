"""Time to an event: censoring by `pm.Censored` or by a row's own term passes, two blocks do not."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


def _times(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.weibull(1.3, n) * 10 + 0.1, rng.uniform(size=n) < 0.4, rng.integers(0, 2, n), rng


def _gumbel_sf(y, mu, sigma):
    return 1.0 - pt.exp(-pt.exp(-(y - mu) / sigma))


@refused(
    "PyMC gallery: survival_analysis/weibull_aft (observed and censored rows apart)",
    "UnsupportedModelError",
    "y_cens",
    ("pm.Censored",),
)
def weibull_aft_in_two_blocks() -> pm.Model:
    time, censored, _, _ = _times(40, 401)
    seen, left = np.log(time[~censored]), np.log(time[censored])

    def weibull_lccdf(x, alpha, beta):
        return -((x / beta) ** alpha)

    with pm.Model() as model:
        alpha_sd = 10.0
        mu = pm.Normal("mu", mu=0, sigma=100)
        alpha_raw = pm.Normal("a0", mu=0, sigma=0.1)
        alpha = pm.Deterministic("alpha", pt.exp(alpha_sd * alpha_raw))
        beta = pm.Deterministic("beta", pt.exp(mu / alpha))
        pm.Weibull("y_obs", alpha=alpha, beta=beta, observed=np.exp(seen))
        pm.Potential("y_cens", weibull_lccdf(np.exp(left), alpha, beta))
    return model


@refused(
    "PyMC gallery: survival_analysis/bayes_param_survival_pymc (the published arrangement, rows in pm.Data)",
    "UnsupportedModelError",
    "y_cens",
    ("pm.Censored",),
)
def parametric_survival_in_two_blocks() -> pm.Model:
    time, censored, x, _ = _times(37, 402)
    design = np.column_stack([np.ones(37), x])
    y_std = (np.log(time) - 2.0) / 0.7
    with pm.Model(coords={"predictors": ["intercept", "metastasized"]}) as model:
        cens_x = pm.Data("cens_x", design[censored])
        cens_y = pm.Data("cens_y", y_std[censored])
        beta = pm.Normal("beta", 0.0, 5.0, dims="predictors")
        s = pm.HalfNormal("s", 5.0)
        pm.Gumbel("events", pt.dot(design[~censored], beta), s, observed=y_std[~censored])
        pm.Potential("y_cens", pt.log(_gumbel_sf(cens_y, cens_x.dot(beta), s)))
    return model


@refused(
    "PyMC gallery: survival_analysis/bayes_param_survival_pymc (beta.dot(X.T): records in columns)",
    "UnsupportedModelError",
    "events",
    ("transpose",),
)
def parametric_survival_records_in_columns() -> pm.Model:
    time, _, x, _ = _times(38, 412)
    columns = np.column_stack([np.ones(38), x]).T
    with pm.Model(coords={"predictors": ["intercept", "metastasized"]}) as model:
        beta = pm.Normal("beta", 0.0, 5.0, dims="predictors")
        s = pm.HalfNormal("s", 5.0)
        pm.Gumbel("events", beta.dot(columns), s, observed=np.log(time))
    return model


@accepted("PyMC gallery: survival_analysis/weibull_aft, with pm.Censored in place of two blocks", 40)
def weibull_aft() -> pm.Model:
    time, censored, x, _ = _times(40, 403)
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", 0, 5), pm.Normal("beta1", 0, 5)
        s = pm.HalfNormal("s", 5.0)
        latent = pm.Weibull.dist(alpha=1 / s, beta=pt.exp(beta0 + beta1 * x))
        pm.Censored("y", latent, lower=None, upper=np.where(censored, time, np.inf), observed=time)
    return model


@accepted(
    "PyMC gallery: survival_analysis/survival_analysis (Cox's model as Poisson counts in intervals)",
    35,
    withheld="lambda mu",
)
def mastectomy() -> pm.Model:
    time, censored, metastasized, _ = _times(35, 404)
    bounds = np.arange(0, 30, 3.0)
    last = np.minimum(np.floor(time / 3).astype(int), 8)
    death, exposure = np.zeros((35, 9)), np.clip(time[:, None] - bounds[:-1][None, :], 0, 3.0)
    death[np.arange(35), last] = ~censored
    with pm.Model(coords={"intervals": bounds[:-1]}) as model:
        model.add_coord("patient", np.arange(35))
        lambda0 = pm.Gamma("lambda0", 0.01, 0.01, dims="intervals")
        beta = pm.Normal("beta", 0, sigma=1000)
        lambda_ = pm.Deterministic("lambda", pt.outer(pt.exp(beta * metastasized), lambda0))
        mu = pm.Deterministic("mu", exposure * lambda_ + 1e-9)
        pm.Poisson("obs", mu, observed=death)
    return model


@accepted(
    "PyMC gallery: survival_analysis/survival_analysis (time-varying effects, random walk over intervals)", 33
)
def mastectomy_time_varying() -> pm.Model:
    time, censored, metastasized, _ = _times(33, 405)
    last = np.minimum(np.floor(time / 3).astype(int), 8)
    death, exposure = np.zeros((33, 9)), np.clip(time[:, None] - np.arange(0, 27, 3.0)[None, :], 0, 3.0)
    death[np.arange(33), last] = ~censored
    with pm.Model(coords={"intervals": range(9)}) as model:
        lambda0 = pm.Gamma("lambda0", 0.01, 0.01, dims="intervals")
        beta = pm.GaussianRandomWalk("beta", sigma=1.0, init_dist=pm.Normal.dist(), dims="intervals")
        hazard = lambda0 * pt.exp(pt.outer(pt.constant(metastasized), beta))
        pm.Poisson("obs", exposure * hazard + 1e-9, observed=death)
    return model


@refused(
    "PyMC gallery: survival_analysis/frailty_models (a frailty for each person)",
    "UnsupportedModelError",
    "frailty",
    INTEGRATE,
)
def individual_frailty() -> pm.Model:
    time, censored, x, _ = _times(31, 406)
    exposure = np.clip(time[:, None] - np.arange(0, 24, 3.0)[None, :], 0, 3.0)
    quit_ = np.zeros((31, 8))
    quit_[np.arange(31), np.minimum((time // 3).astype(int), 7)] = ~censored
    with pm.Model(coords={"intervals": range(8), "individuals": range(31)}) as model:
        lambda0 = pm.Gamma("lambda0", 0.01, 0.01, dims="intervals")
        beta = pm.Normal("beta", 0, 1)
        mu_frailty = pm.Gamma("mu_frailty", 80, 80)
        frailty = pm.Gamma("frailty", mu_frailty, 1.0, dims="individuals")
        hazard = pt.outer(pt.exp(beta * x) * frailty, lambda0)
        pm.Poisson("obs", exposure * hazard + 1e-9, observed=quit_, dims=("individuals", "intervals"))
    return model


@accepted("PyMC gallery: survival_analysis/censored_data (unimputed censored model)", 40)
def unimputed_censored() -> pm.Model:
    y = np.clip(np.random.default_rng(408).normal(13, 5, 40), 4.0, 16.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", mu=0.0, sigma=12)
        sigma = pm.HalfNormal("sigma", sigma=10.0)
        pm.Censored("observed", pm.Normal.dist(mu=mu, sigma=sigma), lower=4.0, upper=16.0, observed=y)
    return model


@accepted("BUGS examples volume 1: Mice (Weibull regression with treatment groups)", 39)
def bugs_mice() -> pm.Model:
    time, censored, _, rng = _times(39, 409)
    group = rng.integers(0, 4, 39)
    with pm.Model(coords={"group": ["irradiated", "vehicle", "test", "positive"]}) as model:
        r = pm.Exponential("r", 0.001)
        beta = pm.Normal("beta", 0, 100, dims="group")
        time, censored = pm.Data("time", time), pm.Data("censored", censored)
        scale = pt.exp(-beta[pm.Data("group_of", group)] / r)
        log_sf = -((time / scale) ** r)
        log_pdf = pt.log(r) + (r - 1) * pt.log(time) - r * pt.log(scale) + log_sf
        pm.Potential("t", pt.switch(censored, log_sf, log_pdf))
        pm.Deterministic("median", pt.log(2) ** (1 / r) * pt.exp(-beta / r), dims="group")
    return model


@refused(
    "BUGS examples volume 1: Leuk (Cox regression, risk sets by sorting)",
    "UnsupportedModelError",
    "partial_likelihood",
    ("own record",),
)
def bugs_leukaemia_cox() -> pm.Model:
    x, _, rng = table(36, 2, 410)
    time = np.sort(rng.exponential(10, 36))
    at_risk = (time[None, :] >= time[:, None]).astype(float)  # a square table of who outlives whom
    with pm.Model(coords={"patient": range(36)}) as model:
        x_data = pm.Data("x", x, dims=("patient", "covariate"))
        beta = pm.Normal("beta", 0, 0.1, shape=2)
        eta = pt.dot(x_data, beta)
        pm.Potential("partial_likelihood", eta - pt.log(pt.dot(at_risk, pt.exp(eta))))
    return model


@accepted(
    "PyMC gallery: survival_analysis/reliability (interval censoring by rows)",
    34,
)
def interval_censored() -> pm.Model:
    rng = np.random.default_rng(411)
    lower = rng.exponential(5, 34) + 0.1
    upper = lower + rng.exponential(2, 34) + 0.1
    with pm.Model(coords={"item": range(34)}) as model:
        lo = pm.Data("lower", lower, dims="item")
        up = pm.Data("upper", upper, dims="item")
        dist = pm.LogNormal.dist(pm.Normal("mu", 1, 1), pm.HalfNormal("sigma", 1))
        pm.Potential("interval", pm.math.logdiffexp(pm.logcdf(dist, up), pm.logcdf(dist, lo)))
    return model
