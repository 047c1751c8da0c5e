"""Generalised linear models and curves: one row, one outcome."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import accepted, refused, table


@accepted(
    "issue 24, smallest case; PyMC gallery: generalized_linear_models/GLM-negative-binomial-regression", 31
)
def negative_binomial_hyper_prior() -> pm.Model:
    counts = np.random.default_rng(1).negative_binomial(3, 0.4, 31)
    with pm.Model() as model:
        mu = pm.Gamma("mu", 2, 1)
        alpha = pm.Exponential("a", 0.5)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=counts)
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-negative-binomial-regression", 44)
def sneezes_negative_binomial() -> pm.Model:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"alcohol": rng.integers(0, 2, 44) == 1, "nomeds": rng.integers(0, 2, 44) == 1})
    frame["nsneeze"] = rng.negative_binomial(3, 0.3, 44)
    coords = {"regressor": ["nomeds", "alcohol", "nomeds:alcohol"], "obs_idx": frame.index}
    with pm.Model(coords=coords) as model:
        a = pm.Normal("intercept", mu=0, sigma=5)
        b = pm.Normal("slopes", mu=0, sigma=1, dims="regressor")
        alpha = pm.Exponential("alpha", 0.5)
        m = pm.ConstantData if hasattr(pm, "ConstantData") else pm.Data
        nomeds = m("nomeds", frame["nomeds"], dims="obs_idx")
        alcohol = m("alcohol", frame["alcohol"], dims="obs_idx")
        mu = pm.math.exp(a + b[0] * nomeds + b[1] * alcohol + b[2] * nomeds * alcohol)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=frame["nsneeze"], dims="obs_idx")
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-robust (the Student-t model)", 36, withheld="mu")
def robust_student_t() -> pm.Model:
    rng = np.random.default_rng(3)
    x = np.linspace(0, 1, 36)
    y = 1 + 2 * x + rng.standard_t(2, 36) * 0.5
    with pm.Model() as model:
        xdata = pm.Data("x", x, dims="obs_id")
        intercept = pm.Normal("intercept", mu=0, sigma=1)
        slope = pm.Normal("slope", mu=0, sigma=1)
        mu = pm.Deterministic("mu", intercept + slope * xdata, dims="obs_id")
        sigma = pm.HalfNormal("sigma", sigma=10)
        nu = pm.Gamma("nu", alpha=2, beta=0.1)
        pm.StudentT("y", mu=mu, sigma=sigma, nu=nu, observed=y, dims="obs_id")
    return model


@refused(
    "PyMC gallery: generalized_linear_models/GLM-robust-with-outlier-detection (Hogg's method)",
    "UnsupportedModelError",
    "is_outlier",
    ("marginal", "Mixture"),
)
def hogg_outlier_indicators() -> pm.Model:
    rng = np.random.default_rng(4)
    x = rng.normal(size=27)
    frame = pd.DataFrame({"x": x, "y": x + rng.normal(size=27), "sigma_y": rng.uniform(0.1, 0.4, 27)})
    coords = {"coefs": ["intercept", "slope"], "datapoint_id": [f"p{i}" for i in range(27)]}
    with pm.Model(coords=coords) as model:
        x_data = pm.Data("x_data", frame["x"], dims="datapoint_id")
        y_data = pm.Data("y_data", frame["y"], dims="datapoint_id")
        sigma = pm.Data("sigma", frame["sigma_y"], dims="datapoint_id")
        beta = pm.Normal("beta", mu=0.0, sigma=10.0, dims="coefs")
        y_est_in = beta[0] + beta[1] * x_data
        y_est_out = pm.Normal("y_est_out", mu=0.0, sigma=10.0, initval=0.0)
        sigma_y_out = pm.HalfNormal("sigma_y_out", sigma=10.0, initval=1.0)
        frac_outliers = pm.Uniform("frac_outliers", lower=0.0, upper=0.5)
        is_outlier = pm.Bernoulli("is_outlier", p=frac_outliers, dims="datapoint_id")
        inlier = pm.logp(pm.Normal.dist(mu=y_est_in, sigma=sigma), y_data)
        outlier = pm.logp(pm.Normal.dist(mu=y_est_out, sigma=sigma + sigma_y_out), y_data)
        pm.Potential("obs", ((1 - is_outlier) * inlier).sum() + (is_outlier * outlier).sum())
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-binomial-regression", 28, withheld="p")
def binomial_regression() -> pm.Model:
    rng = np.random.default_rng(5)
    x = np.linspace(-2, 2, 28)
    y = rng.binomial(20, 1 / (1 + np.exp(-0.7 - 2 * x)))
    with pm.Model(coords={"observation": np.arange(28)}) as model:
        x_data = pm.Data("x", x, dims="observation")
        beta0 = pm.Normal("beta0", mu=0, sigma=1)
        beta1 = pm.Normal("beta1", mu=0, sigma=1)
        p = pm.Deterministic("p", pm.math.invlogit(beta0 + beta1 * x_data), dims="observation")
        pm.Binomial("y", n=20, p=p, observed=y, dims="observation")
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-out-of-sample-predictions", 41, withheld="mu p")
def logistic_with_interaction() -> pm.Model:
    x, eta, rng = table(41, 2, 6)
    labels = ["Intercept", "x1", "x2", "x1:x2"]
    design = np.column_stack([np.ones(41), x, x[:, 0] * x[:, 1]])
    with pm.Model(coords={"coeffs": labels}) as model:
        X = pm.Data("X", design)
        y = pm.Data("y", rng.binomial(1, 1 / (1 + np.exp(-eta))))
        b = pm.Normal("b", mu=0, sigma=1, dims="coeffs")
        mu = pm.Deterministic("mu", pm.math.dot(X, b))
        p = pm.Deterministic("p", pm.math.invlogit(mu))
        pm.Bernoulli("obs", p=p, observed=y)
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-truncated-censored-regression (truncated)", 33)
def truncated_regression() -> pm.Model:
    rng = np.random.default_rng(7)
    x = rng.uniform(-5, 5, 33)
    y = np.clip(x + rng.normal(size=33), -4.5, 4.5)
    with pm.Model() as model:
        slope = pm.Normal("slope", mu=0, sigma=1)
        intercept = pm.Normal("intercept", mu=0, sigma=1)
        sigma = pm.HalfNormal("σ", sigma=1)
        normal_dist = pm.Normal.dist(mu=slope * x + intercept, sigma=sigma)
        pm.Truncated("obs", normal_dist, lower=-5, upper=5, observed=y)
    return model


@accepted("PyMC gallery: generalized_linear_models/GLM-truncated-censored-regression (censored)", 34)
def censored_regression() -> pm.Model:
    rng = np.random.default_rng(8)
    x = rng.uniform(-5, 5, 34)
    y = np.clip(x + rng.normal(size=34), -4, 4)
    with pm.Model() as model:
        slope = pm.Normal("slope", mu=0, sigma=1)
        intercept = pm.Normal("intercept", mu=0, sigma=1)
        sigma = pm.HalfNormal("σ", sigma=1)
        y_latent = pm.Normal.dist(mu=slope * x + intercept, sigma=sigma)
        pm.Censored("obs", y_latent, lower=-4, upper=4, observed=y)
    return model


@refused(
    "PyMC gallery: generalized_linear_models/GLM-missing-values-in-covariates",
    "UnsupportedModelError",
    "xk",
    ("missing",),
    ("drop", "remove", "complete"),
)
def missing_values_in_covariates() -> pm.Model:
    x, eta, rng = table(39, 2, 9)
    missing = np.ma.masked_array(x, mask=rng.uniform(size=x.shape) < 0.2)
    coords = {"xj_nm": ["a"], "xk_nm": ["c", "d"], "oid": np.arange(39)}
    import warnings

    with warnings.catch_warnings(), pm.Model(coords=coords) as model:
        warnings.simplefilter("ignore")  # PyMC announces that it will impute
        y = pm.Data("y", eta, dims="oid")
        xk_mu = pm.Normal("xk_mu", mu=0.0, sigma=1, dims="xk_nm")
        xk = pm.Normal("xk", mu=xk_mu, sigma=1.0, observed=missing, dims=("oid", "xk_nm"))
        b = pm.Normal("beta_k", mu=0.0, sigma=1.0, dims="xk_nm")
        sigma = pm.Exponential("epsilon", 1)
        pm.Normal("yhat", mu=pm.math.dot(xk, b), sigma=sigma, observed=y, dims="oid")
    return model


@refused(
    "PyMC gallery: generalized_linear_models/GLM-rolling-regression (one intercept per day)",
    "UnsupportedModelError",
    "alpha",
    ("marginal", "integrat", "spline", "basis"),
)
def rolling_regression() -> pm.Model:
    rng = np.random.default_rng(10)
    gfi = rng.normal(size=37)
    gld = 0.5 * gfi + rng.normal(size=37)
    with pm.Model(coords={"time": pd.date_range("2010-01-01", periods=37)}) as model:
        sigma_alpha = pm.Exponential("sigma_alpha", 50.0)
        alpha = pm.GaussianRandomWalk(
            "alpha", sigma=sigma_alpha, init_dist=pm.Normal.dist(0, 10), dims="time"
        )
        beta = pm.Normal("beta", 0, 1)
        sd = pm.HalfNormal("sd", sigma=0.1)
        pm.Normal("y", mu=alpha + beta * gfi, sigma=sd, observed=gld, dims="time")
    return model


@accepted("PyMC gallery: case_studies/putting_workflow (the geometry-based model)", 29)
def golf_putting() -> pm.Model:
    rng = np.random.default_rng(11)
    distance = np.linspace(2, 20, 29)
    tries = rng.integers(100, 1500, 29)
    ball, cup = 1.68 / 2 / 12, 4.25 / 2 / 12

    def phi(x):
        return 0.5 + 0.5 * pt.erf(x / pt.sqrt(2.0))

    with pm.Model() as model:
        distance_ = pm.Data("distance", distance, dims="obs_id")
        tries_ = pm.Data("tries", tries, dims="obs_id")
        successes_ = pm.Data("successes", rng.binomial(tries, np.exp(-distance / 12)), dims="obs_id")
        sigma_angle = pm.HalfNormal("sigma_angle")
        p_goes_in = 2 * phi(pt.arcsin((cup - ball) / distance_) / sigma_angle) - 1
        pm.Binomial("success", n=tries_, p=p_goes_in, observed=successes_, dims="obs_id")
    return model


@accepted("PyMC gallery: howto/lasso_block_update", 30)
def lasso() -> pm.Model:
    rng = np.random.default_rng(12)
    x1 = rng.normal(size=30)
    x2 = x1 + rng.normal(size=30) * 0.1
    y = 2 * x1 + x2 + rng.normal(size=30)
    with pm.Model() as model:
        lam = pm.Exponential("lam", 0.1)
        s = pm.Exponential("s", 1.0)
        intercept = pm.Normal("intercept", mu=0, sigma=10)
        m1 = pm.Laplace("beta1", 0, lam)
        m2 = pm.Laplace("beta2", 0, lam)
        p = pm.Deterministic("p", m1 * 2)
        pm.Normal("y", mu=intercept + m1 * x1 + m2 * x2 + 0 * p, sigma=s, observed=y)
    return model


@accepted("PyMC gallery: howto/updating_priors (from posterior to prior by Interpolated)", 26)
def updating_priors() -> pm.Model:
    x, eta, rng = table(26, 2, 13)
    grid = np.linspace(-3, 3, 100)

    def from_posterior(param: str, centre: float) -> pm.Distribution:
        return pm.Interpolated(param, grid, np.exp(-0.5 * (grid - centre) ** 2))

    with pm.Model() as model:
        alpha = from_posterior("alpha", 0.1)
        beta0 = from_posterior("beta0", -0.4)
        beta1 = from_posterior("beta1", 0.6)
        mu = alpha + beta0 * x[:, 0] + beta1 * x[:, 1]
        pm.Normal("Y_obs", mu=mu, sigma=1, observed=eta + rng.normal(size=26))
    return model


@accepted("PyMC gallery: howto/spline (cherry blossoms)", 40, withheld="mu")
def cherry_blossoms() -> pm.Model:
    rng = np.random.default_rng(14)
    year = np.sort(rng.integers(812, 2015, 40))
    knots = np.quantile(np.arange(812, 2015), np.linspace(0, 1, 6))
    basis = np.maximum(0, 1 - np.abs(year[:, None] - knots[None, :]) / 250.0)  # linear B-splines
    with pm.Model(coords={"splines": np.arange(6)}) as model:
        a = pm.Normal("a", 100, 5)
        w = pm.Normal("w", mu=0, sigma=3, size=6, dims="splines")
        mu = pm.Deterministic("mu", a + pm.math.dot(np.asarray(basis, order="F"), w.T))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("D", mu=mu, sigma=sigma, observed=rng.normal(105, 6, 40))
    return model


@accepted("NumPyro examples: horseshoe_regression", 32)
def regularised_horseshoe() -> pm.Model:
    x, eta, _ = table(32, 6, 15)
    with pm.Model(coords={"predictors": [f"x{i}" for i in range(6)]}) as model:
        intercept = pm.Normal("intercept", 100, 50)
        sigma = pm.HalfNormal("sigma", 25)
        tau = pm.HalfStudentT("tau", 2, 2 / (6 - 2) * sigma / np.sqrt(32))
        lam = pm.HalfStudentT("lam", 5, dims="predictors")
        c2 = pm.InverseGamma("c2", 1, 1)
        z = pm.Normal("z", 0.0, 1.0, dims="predictors")
        shrunk = z * tau * lam * pt.sqrt(c2 / (c2 + tau**2 * lam**2))
        beta = pm.Deterministic("beta", shrunk, dims="predictors")
        pm.Normal("scores", mu=intercept + x @ beta, sigma=sigma, observed=100 + eta)
    return model


@accepted("Stan user's guide, chapter Time-series: logistic growth; posteriordb losscurve_sislob", 35)
def growth_curves() -> pm.Model:
    rng = np.random.default_rng(16)
    t = rng.uniform(0.2, 10.0, 35)
    cohort = rng.integers(0, 4, 35)
    with pm.Model(coords={"cohort": list("abcd")}) as model:
        omega = pm.LogNormal("omega", 0, 0.5)
        theta = pm.LogNormal("theta", 0, 0.5)
        mu_lr = pm.Normal("mu_LR", 0, 0.5)
        sd_lr = pm.LogNormal("sd_LR", 0, 0.5)
        lr = pm.LogNormal("LR", mu_lr, sd_lr, dims="cohort")
        gf = t**omega / (t**omega + theta**omega)
        pm.StudentT("loss", nu=4, mu=lr[cohort] * gf, sigma=0.2, observed=gfree(t, rng))
    return model


def gfree(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Losses around a log-logistic curve."""
    return t / (t + 1) + rng.normal(0, 0.1, len(t))


@accepted(
    "Bayesian Analysis with Python, chapter 6: distributional model of babies' length", 38, withheld="μ σ"
)
def babies_growth() -> pm.Model:
    rng = np.random.default_rng(17)
    month = rng.uniform(0, 24, 38)
    length = 50 + 7 * np.sqrt(month) + rng.normal(0, 2, 38)
    with pm.Model() as model:
        x_shared = pm.Data("x_shared", month)
        alpha = pm.Normal("α", sigma=10)
        beta = pm.Normal("β", sigma=10)
        gamma = pm.HalfNormal("γ", sigma=10)
        delta = pm.HalfNormal("δ", sigma=10)
        mu = pm.Deterministic("μ", alpha + beta * x_shared**0.5)
        sigma = pm.Deterministic("σ", gamma + delta * x_shared)
        pm.Normal("y_pred", mu=mu, sigma=sigma, observed=length)
    return model
