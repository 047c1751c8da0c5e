"""Time series, space and differential equations: records that depend on each other are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import wrap_py

from gallery.registry import GP, INTEGRATE, MIXES, accepted, refused, table


def _walk(n: int, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(size=n)), rng


@accepted("PyMC gallery: time_series/Air_passengers-Prophet_with_Bayesian_workflow", 48)
def air_passengers() -> pm.Model:
    y, rng = _walk(48, 1001)
    t = np.linspace(0, 1, 48)
    fourier = np.column_stack([f(2 * np.pi * k * t * 4) for k in (1, 2, 3) for f in (np.sin, np.cos)])
    with pm.Model(coords={"fourier_features": np.arange(6)}) as model:
        alpha, beta = pm.Normal("α", mu=0, sigma=0.5), pm.Normal("β", mu=0, sigma=0.5)
        seasonality = pm.Normal("β_fourier", mu=0, sigma=0.1, dims="fourier_features")
        trend = alpha + beta * t
        mu = trend * (1 + pm.math.sum(seasonality * fourier, axis=1))
        pm.Normal("likelihood", mu=mu, sigma=pm.HalfNormal("σ", 0.1), observed=y + rng.normal(size=48))
    return model


@accepted(
    "PyMC gallery: time_series (Prophet-like trend with changepoints); Taylor and Letham 2018",
    43,
    public_data=("s",),
)
def prophet_changepoints() -> pm.Model:
    y, _ = _walk(43, 1002)
    t = np.linspace(0, 1, 43)
    s = np.linspace(0, 0.8, 6)
    a = (t[:, None] > s) * 1.0
    with pm.Model(coords={"changepoint": range(6)}) as model:
        where = pm.Data("s", s, dims="changepoint")
        k, m = pm.Normal("k", 0, 1), pm.Normal("m", 0, 5)
        delta = pm.Laplace("delta", 0, 0.1, dims="changepoint")
        growth = (k + pt.dot(a, delta)) * t + (m + pt.dot(a, -where * delta))
        pm.Normal("obs", mu=growth, sigma=pm.HalfCauchy("sigma", 1), observed=y)
    return model


@refused(
    "PyMC gallery: time_series/Forecasting_with_structural_timeseries (latent AR over the dates)",
    "UnsupportedModelError",
    "ar",
    INTEGRATE,
)
def structural_ar() -> pm.Model:
    y, _ = _walk(40, 1003)
    with pm.Model() as model:
        model.add_coord("obs_id", np.arange(40))
        t = pm.Data("t", np.arange(40.0), dims="obs_id")
        coefs = pm.Normal("coefs", [0.2, 0.2], [0.5, 0.03])
        sigma = pm.HalfNormal("sigma", 8)
        alpha, beta = pm.Normal("alpha", -4, 0.1), pm.Normal("beta", 0.1, 0.2)
        init = pm.Normal.dist(-4, 0.1, size=1)
        ar = pm.AR("ar", coefs, sigma=sigma, init_dist=init, constant=True, steps=39, dims="obs_id")
        mu = ar + alpha + beta * t
        pm.Normal("likelihood", mu=mu, sigma=1, observed=y, dims="obs_id")
    return model


@refused(
    "PyMC gallery: time_series/AR (second order, observed)",
    "NotSeparableError",
    "likelihood",
    ("AR", "time series", "timeseries"),
)
def ar2() -> pm.Model:
    y, _ = _walk(38, 1004)
    with pm.Model() as model:
        rho = pm.Normal("rho", mu=0.0, sigma=1.0, shape=2)
        tau = pm.Exponential("tau", lam=0.5)
        pm.AR("likelihood", rho=rho, tau=tau, constant=False, init_dist=pm.Normal.dist(0, 10), observed=y)
    return model


@refused(
    "PyMC gallery: time_series/bayesian_var_model (lags taken in the graph)",
    "NotSeparableError",
    "obs",
    MIXES,
)
def vector_autoregression() -> pm.Model:
    rng = np.random.default_rng(1005)
    with pm.Model(coords={"vars": ["gdp", "invest"], "lags": [1, 2]}) as model:
        model.add_coord("time", range(36))
        data = pm.Data("data", rng.normal(size=(36, 2)), dims=("time", "vars"))
        coefs = pm.Normal("lag_coefs", 0, 1, shape=(2, 2, 2))
        zeros = pt.zeros((2, 2))
        padded = pt.concatenate([zeros, data])
        mean = sum(pt.dot(padded[2 - lag : 38 - lag], coefs[lag - 1]) for lag in (1, 2))
        pm.Normal(
            "obs", mu=mean, sigma=pm.HalfNormal("noise", 1, dims="vars"), observed=data, dims=("time", "vars")
        )
    return model


@refused(
    "PyMC gallery: time_series/MvGaussianRandomWalk_demo (a state for each month)",
    "UnsupportedModelError",
    "alpha",
    INTEGRATE,
)
def multivariate_random_walk() -> pm.Model:
    rng = np.random.default_rng(1006)
    coords = {"steps": range(30), "y": ["A", "B", "C"]}
    with pm.Model(coords=coords) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol_cov", n=3, eta=2, sd_dist=pm.LogNormal.dist(0, 2, shape=3))
        alpha = pm.MvGaussianRandomWalk(
            "alpha",
            mu=np.zeros(3),
            chol=chol,
            init_dist=pm.MvNormal.dist(np.zeros(3), np.eye(3)),
            shape=(30, 3),
            dims=("steps", "y"),
        )
        pm.Normal(
            "obs", alpha, pm.HalfNormal("sigma", 1), observed=rng.normal(size=(30, 3)), dims=("steps", "y")
        )
    return model


@refused(
    "PyMC gallery: gaussian_processes/gaussian_process smoothing (a random walk along the rows)",
    "UnsupportedModelError",
    "z",
    (*INTEGRATE, *GP),
)
def gaussian_smoothing() -> pm.Model:
    y, _ = _walk(35, 1007)
    with pm.Model() as model:
        smoothing = 0.9
        mu = pm.Normal("μ", sigma=100)
        tau = pm.Exponential("τ", 1.0 / 100)
        z = pm.GaussianRandomWalk(
            "z",
            mu=mu,
            sigma=pm.math.sqrt((1.0 - smoothing) / tau),
            shape=y.shape,
            init_dist=pm.Normal.dist(0, 100),
        )
        pm.Normal("obs", mu=z, tau=tau / smoothing, observed=y)
    return model


@refused(
    "NumPyro examples: ar2, hmm; Durbin and Koopman: local level model with a Kalman filter by Scan",
    "NotSeparableError",
    "filter",
    ("Scan", *MIXES),
)
def local_level_kalman() -> pm.Model:
    y, _ = _walk(30, 1008)

    def update(y_t, mean, var, q, r):
        var = var + q
        gain = var / (var + r)
        logp = pm.logp(pm.Normal.dist(mean, pt.sqrt(var + r)), y_t)
        return mean + gain * (y_t - mean), (1 - gain) * var, logp

    with pm.Model() as model:
        q, r = pm.HalfNormal("q", 1), pm.HalfNormal("r", 1)
        series = pm.Data("series", y)
        zero = pt.as_tensor(np.zeros(()))
        outputs = pytensor.scan(
            update,
            sequences=[series],
            outputs_info=[zero, zero + 1.0, None],
            non_sequences=[q, r],
            return_updates=False,
        )
        pm.Potential("filter", outputs[-1])
    return model


@refused(
    "PyMC gallery: spatial/conditional_autoregressive_priors (an effect for each county)",
    "UnsupportedModelError",
    "phi",
    INTEGRATE,
)
def lip_cancer_car() -> pm.Model:
    rng = np.random.default_rng(1009)
    w = np.eye(26, k=1) + np.eye(26, k=-1)
    with pm.Model(coords={"area_idx": np.arange(26)}) as model:
        beta0, beta1 = pm.Normal("beta0", 0.0, tau=1.0e-5), pm.Normal("beta1", 0.0, tau=1.0e-5)
        theta = pm.Normal("theta", mu=0, tau=1.0, dims="area_idx")
        phi = pm.CAR("phi", mu=np.zeros(26), tau=1.0, alpha=0.95, W=w, dims="area_idx")
        mu = pt.exp(beta0 + beta1 * rng.uniform(0, 2, 26) + theta + phi)
        pm.Poisson("y", mu=mu, observed=rng.poisson(5, 26), dims="area_idx")
    return model


@refused(
    "PyMC gallery: spatial/nyc_bym (ICAR effects, one for each tract)",
    "UnsupportedModelError",
    "phi",
    INTEGRATE,
)
def nyc_bym() -> pm.Model:
    rng = np.random.default_rng(1010)
    w = np.eye(28, k=1) + np.eye(28, k=-1)
    with pm.Model(coords={"area_idx": np.arange(28)}) as model:
        beta0, sigma = pm.Normal("beta0", 0, 5), pm.HalfNormal("sigma", 1)
        phi = pm.ICAR("phi", W=w)
        rho = pm.Beta("rho", 0.5, 0.5)
        theta = pm.Normal("theta", 0, 1, shape=28)
        mixture = pt.sqrt(1 - rho) * theta + pt.sqrt(rho) * phi
        mu = pt.exp(np.log(rng.uniform(1, 9, 28)) + beta0 + sigma * mixture)
        pm.Poisson("y", mu=mu, observed=rng.poisson(4, 28))
    return model


@accepted("Besag, York and Mollie 1991: people in seven regions, ICAR over the regions", 44)
def icar_regions() -> pm.Model:
    rng = np.random.default_rng(1011)
    region = rng.integers(0, 7, 44)
    w = np.eye(7, k=1) + np.eye(7, k=-1)
    with pm.Model(coords={"region": range(7)}) as model:
        phi = pm.ICAR("phi", W=w, dims="region")
        b, sigma = pm.Normal("b", 0, 1), pm.HalfNormal("sigma", 1)
        pm.Bernoulli("ill", logit_p=b + sigma * phi[region], observed=rng.integers(0, 2, 44))
    return model


@refused(
    "PyMC gallery: gaussian_processes/log-gaussian-cox-process (intensity of each cell)",
    "UnsupportedModelError",
    "log_intensity_rotated_",
    (*INTEGRATE, *GP),
)
def log_gaussian_cox_process() -> pm.Model:
    rng = np.random.default_rng(1012)
    centroids = np.array([(i, j) for i in range(5) for j in range(5)], dtype=float)
    with pm.Model() as model:
        mu = pm.Normal("mu", sigma=3)
        rho, variance = pm.Uniform("rho", lower=1, upper=10), pm.InverseGamma("variance", alpha=1, beta=1)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(mu), cov_func=variance * pm.gp.cov.Matern52(2, ls=rho)
        )
        log_intensity = gp.prior("log_intensity", X=centroids)
        pm.Poisson("counts", mu=pm.math.exp(log_intensity) * 4.0, observed=rng.poisson(3, 25))
    return model


@refused(
    "PyMC gallery: gaussian_processes/GP-SparseApprox (FITC marginal likelihood)",
    "NotSeparableError",
    "marginalapprox_loglik_y",
    GP,
)
def sparse_gp_marginal() -> pm.Model:
    x, eta, rng = table(31, 1, 1013)
    with pm.Model() as model:
        ell, eta_ = pm.Gamma("ell", alpha=2, beta=1), pm.HalfCauchy("eta", beta=5)
        gp = pm.gp.MarginalApprox(cov_func=eta_**2 * pm.gp.cov.Matern52(1, ell), approx="FITC")
        xu = np.linspace(-2, 2, 5)[:, None]
        gp.marginal_likelihood(
            "y", X=x, Xu=xu, y=eta + rng.normal(size=31), sigma=pm.HalfCauchy("sigma", beta=5)
        )
    return model


@refused(
    "PyMC gallery: gaussian_processes/GP-TProcess (latent Student-t process)",
    "UnsupportedModelError",
    "f_rotated_",
    (*INTEGRATE, *GP),
)
def student_t_process() -> pm.Model:
    x, eta, rng = table(27, 1, 1014)
    with pm.Model() as model:
        ell, nu = pm.Gamma("ell", alpha=2, beta=2), pm.Gamma("nu", alpha=2, beta=0.1)
        tp = pm.gp.TP(scale_func=pm.gp.cov.ExpQuad(1, ell), nu=nu)
        f = tp.prior("f", X=x)
        pm.Poisson("y", mu=pt.square(f), observed=rng.poisson(np.exp(eta)))
    return model


@refused("PyMC gallery: gaussian_processes/HSGP-Basic", "UnsupportedModelError", "y_obs", ("public",))
def hsgp_basic() -> pm.Model:
    x, eta, rng = table(37, 1, 1015)
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=2, sigma=1)
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, ls=ell)
        gp = pm.gp.HSGP(m=[9], c=1.5, cov_func=cov)
        X = pm.Data("X", x)
        f = gp.prior("f", X=X)
        pm.Normal("y_obs", mu=f, sigma=pm.HalfNormal("sigma", 1), observed=eta + rng.normal(size=37))
    return model


@refused(
    "PyMC gallery: time_series/Euler-Maruyama_and_SDEs (a path as long as the data)",
    "UnsupportedModelError",
    "xh",
    INTEGRATE,
)
def euler_maruyama() -> pm.Model:
    y, _ = _walk(29, 1016)

    def lin_sde(x, lam):
        return lam * x, 0.5

    with pm.Model() as model:
        lam = pm.Normal("lam", -0.5, 0.3)
        xh = pm.EulerMaruyama(
            "xh", dt=0.1, sde_fn=lin_sde, sde_pars=(lam,), init_dist=pm.Normal.dist(0, 1), shape=29
        )
        pm.Normal("zh", mu=xh, sigma=0.1, observed=y)
    return model


@refused(
    "PyMC gallery: ode_models/ODE_Lotka_Volterra_multiple_ways (SciPy's solver in an Op)",
    "UnsupportedModelError",
    "Y_obs",
    ("FromFunctionOp",),
    ("PyTensor",),
)
def lotka_volterra_op() -> pm.Model:
    rng = np.random.default_rng(1017)

    @wrap_py(itypes=[pt.dvector], otypes=[pt.dmatrix])
    def pytensor_forward_model_matrix(theta):
        t = np.linspace(0, 1, 21)
        return np.column_stack([theta[0] * np.exp(t), theta[1] * np.exp(-t)])

    with pm.Model() as model:
        alpha, beta = pm.LogNormal("alpha", 0, 0.1), pm.LogNormal("beta", 0, 0.1)
        sigma = pm.HalfNormal("sigma", 1)
        solution = pytensor_forward_model_matrix(pt.stack([alpha, beta]))
        pm.Normal("Y_obs", mu=solution, sigma=sigma, observed=rng.normal(30, 5, (21, 2)))
    return model


@refused(
    "PyMC gallery: ode_models/ODE_Lotka_Volterra_multiple_ways (Euler steps in a Scan over the years)",
    "UnsupportedModelError",
    "Y_obs",
    ("Scan",),
)
def lotka_volterra_scan() -> pm.Model:
    rng = np.random.default_rng(1018)

    def step(x, y, a, b, c, d):
        return x + (a * x - b * x * y) * 0.1, y + (-c * y + d * x * y) * 0.1

    with pm.Model() as model:
        theta = [pm.LogNormal(name, -1, 0.1) for name in ("alpha", "beta", "gamma", "delta")]
        x0, y0 = pm.LogNormal("xt0", 0, 0.1), pm.LogNormal("yt0", 0, 0.1)
        outputs = pytensor.scan(
            step, outputs_info=[x0, y0], non_sequences=theta, n_steps=24, return_updates=False
        )
        pm.Normal(
            "Y_obs",
            mu=pt.stack(outputs, axis=1),
            sigma=pm.HalfNormal("sigma", 1),
            observed=rng.normal(3, 1, (24, 2)),
        )
    return model


@accepted(
    "Stan: one-compartment pharmacokinetics (posteriordb one_comp_mm_elim_abs), linear case",
    40,
)
def one_compartment() -> pm.Model:
    rng = np.random.default_rng(1019)
    t, subject, dose = rng.uniform(0.25, 24, 40), rng.integers(0, 6, 40), 4.0
    with pm.Model(coords={"subject": range(6)}) as model:
        log_ka, log_ke = (
            pm.Normal("log_ka", 0.5, 0.3, dims="subject"),
            pm.Normal("log_ke", -2.5, 0.3, dims="subject"),
        )
        log_v = pm.Normal("log_v", -0.8, 0.3, dims="subject")
        ka, ke, v = (pt.exp(z)[subject] for z in (log_ka, log_ke, log_v))
        mu = dose * ka / (v * (ka - ke)) * (pt.exp(-ke * t) - pt.exp(-ka * t))
        pm.LogNormal(
            "conc", pt.log(pt.softplus(mu)), pm.HalfNormal("sigma", 0.5), observed=rng.gamma(3, 2, 40)
        )
    return model


@refused(
    "Stan user's guide, chapter Time-series: GARCH(1, 1) by Scan", "NotSeparableError", "r", ("Scan", *MIXES)
)
def garch_scan() -> pm.Model:
    y, _ = _walk(30, 1020)
    with pm.Model() as model:
        r = pm.Data("returns", y)
        a0, a1, b1 = pm.HalfNormal("alpha0", 1), pm.Beta("alpha1", 2, 8), pm.Beta("beta1", 8, 2)
        sigma = pytensor.scan(
            lambda previous, s, a0, a1, b1: pt.sqrt(a0 + a1 * previous**2 + b1 * s**2),
            sequences=[r[:-1]],
            outputs_info=[pt.as_tensor(np.ones(()))],
            non_sequences=[a0, a1, b1],
            return_updates=False,
        )
        pm.Normal("r", 0, pt.concatenate([[1.0], sigma]), observed=r)
    return model


@refused(
    "PyMC gallery: introductory overview (coal-mining disasters, a switch at an unknown year)",
    "UnsupportedModelError",
    "switchpoint",
    ("marginal", "Mixture", "continuous"),
)
def coal_mining() -> pm.Model:
    rng = np.random.default_rng(1021)
    years = pd.Series(np.arange(1851, 1892))
    with pm.Model() as model:
        switchpoint = pm.DiscreteUniform("switchpoint", lower=years.min(), upper=years.max())
        early_rate, late_rate = pm.Exponential("early_rate", 1.0), pm.Exponential("late_rate", 1.0)
        rate = pm.math.switch(switchpoint >= years, early_rate, late_rate)
        pm.Poisson("disasters", rate, observed=rng.poisson(2.0, 41))
    return model
