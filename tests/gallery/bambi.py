"""Models as Bambi's PyMC backend builds them: "1|subject_offset", constants that it computed from the data.

Bambi centres predictors and scales its default priors by the data. That happens before a graph exists: those
numbers stand in the model as constants, and nothing tells them from numbers that somebody chose. Here they
are written as such. What the library warns of is tested where the warning is.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import accepted, refused, table


def _intercepts(group: str, levels: int, scale: float) -> pt.TensorVariable:
    """Return the common part of "(1|group)": hyper-prior, offset, and their product under the term's name."""
    sigma = pm.HalfNormal(f"1|{group}_sigma", sigma=scale)
    offset = pm.Normal(f"1|{group}_offset", 0, 1, dims=f"{group}__factor_dim")
    assert levels > 1
    return pm.Deterministic(f"1|{group}", sigma * offset, dims=f"{group}__factor_dim")


@accepted("Bambi docs: t-test", 32, withheld="mu")
def bambi_t_test() -> pm.Model:
    rng = np.random.default_rng(201)
    group = rng.integers(0, 2, 32)
    with pm.Model(coords={"group_dim": ["B"]}) as model:
        model.add_coord("__obs__", range(32))
        intercept = pm.Normal("Intercept", 25.0, 7.5)
        b = pm.Normal("group", 0.0, 9.3, dims="group_dim")
        sigma = pm.HalfStudentT("sigma", nu=4.0, sigma=3.1)
        design = np.eye(2)[group][:, 1:]
        mu = pm.Deterministic("mu", intercept + pt.dot(design, b), dims="__obs__")
        pm.Normal("score", mu=mu, sigma=sigma, observed=25 + rng.normal(0, 3, 32), dims="__obs__")
    return model


@accepted("Bambi docs: logistic_regression (ANES)", 43, withheld="p")
def bambi_logistic() -> pm.Model:
    rng = np.random.default_rng(202)
    party, age = rng.integers(0, 3, 43), rng.integers(18, 90, 43).astype(float)
    x = np.column_stack([np.eye(3)[party], np.eye(3)[party] * age[:, None]])
    coords = {"party_id_dim": ["democrat", "independent", "republican"], "__obs__": range(43)}
    with pm.Model(coords=coords) as model:
        a = pm.Normal("party_id", 0.0, 1.0, dims="party_id_dim")
        b = pm.Normal("party_id:age", 0.0, 0.06, dims="party_id_dim")
        eta = pt.dot(x[:, :3], a) + pt.dot(x[:, 3:], b)
        p = pm.Deterministic("p", pt.sigmoid(eta), dims="__obs__")
        pm.Bernoulli("vote", p=p, observed=rng.integers(0, 2, 43), dims="__obs__")
    return model


@accepted("Bambi docs: multi-level_regression (sleepstudy with (Days|Subject))", 54, withheld="mu")
def bambi_sleepstudy() -> pm.Model:
    rng = np.random.default_rng(203)
    subject, days = np.repeat(np.arange(9), 6), np.tile(np.arange(6.0), 9)
    coords = {"Subject__factor_dim": [str(s) for s in range(308, 317)], "__obs__": range(54)}
    with pm.Model(coords=coords) as model:
        intercept = pm.Normal("Intercept", 298.5, 261.0)
        slope = pm.Normal("Days", 0, 48.9)
        by_subject = _intercepts("Subject", 9, 261.0)
        sigma = pm.HalfNormal("Days|Subject_sigma", sigma=48.9)
        offset = pm.Normal("Days|Subject_offset", 0, 1, dims="Subject__factor_dim")
        slopes = pm.Deterministic("Days|Subject", sigma * offset, dims="Subject__factor_dim")
        mu = intercept + slope * (days - 2.5) + by_subject[subject] + slopes[subject] * days
        mu = pm.Deterministic("mu", mu, dims="__obs__")
        noise = pm.HalfStudentT("sigma", nu=4, sigma=56.2)
        pm.Normal("Reaction", mu=mu, sigma=noise, observed=298 + rng.normal(0, 40, 54), dims="__obs__")
    return model


@accepted("Bambi docs: hierarchical_binomial_bambi (batting averages, one row per season)", 45, withheld="p")
def bambi_hierarchical_binomial() -> pm.Model:
    rng = np.random.default_rng(204)
    player, at_bat = rng.integers(0, 15, 45), rng.integers(10, 300, 45)
    with pm.Model(coords={"playerID__factor_dim": np.arange(15), "__obs__": range(45)}) as model:
        intercept = pm.Normal("Intercept", 0.0, 1.5)
        eta = intercept + _intercepts("playerID", 15, 1.0)[player]
        p = pm.Deterministic("p", pt.sigmoid(eta), dims="__obs__")
        pm.Binomial("p(H, AB)", p=p, n=at_bat, observed=rng.binomial(at_bat, 0.26), dims="__obs__")
    return model


@refused(
    "Bambi docs: hierarchical_binomial_bambi (as published: one row per player)",
    "UnsupportedModelError",
    "1|playerID_offset",
    ("one latent value per record",),
)
def bambi_one_row_per_player() -> pm.Model:
    # Row k reads effect k: each effect is one player's alone, and would be released.
    rng = np.random.default_rng(205)
    player, at_bat = np.arange(16), rng.integers(10, 300, 16)
    with pm.Model(coords={"playerID__factor_dim": np.arange(16), "__obs__": range(16)}) as model:
        intercept = pm.Normal("Intercept", 0.0, 1.5)
        p = pt.sigmoid(intercept + _intercepts("playerID", 16, 1.0)[player])
        pm.Binomial("p(H, AB)", p=p, n=at_bat, observed=rng.binomial(at_bat, 0.26), dims="__obs__")
    return model


@accepted("Bambi docs: distributional_models (gamma with a model for alpha)", 34, withheld="mu alpha")
def bambi_distributional() -> pm.Model:
    x, eta, rng = table(34, 1, 206)
    with pm.Model(coords={"__obs__": range(34)}) as model:
        intercept, b = pm.Normal("Intercept", 0, 2.5), pm.Normal("x", 0, 2.5)
        a0, a1 = pm.Normal("alpha_Intercept", 0, 1), pm.Normal("alpha_x", 0, 1)
        mu = pm.Deterministic("mu", pt.exp(intercept + b * x[:, 0]), dims="__obs__")
        alpha = pm.Deterministic("alpha", pt.exp(a0 + a1 * x[:, 0]), dims="__obs__")
        y = rng.gamma(2.0, np.exp(eta) / 2) + 0.01
        pm.Gamma("y", mu=mu, sigma=mu / pt.sqrt(alpha), observed=y, dims="__obs__")
    return model


@accepted(
    "Bambi docs: zero_inflated_regression (fish, zero-inflated negative binomial)", 47, withheld="psi mu"
)
def bambi_zero_inflated_negative_binomial() -> pm.Model:
    rng = np.random.default_rng(207)
    livebait, persons = rng.integers(0, 2, 47), rng.integers(1, 5, 47)
    x = np.column_stack([livebait, persons])
    with pm.Model(coords={"__obs__": range(47)}) as model:
        b0, b1 = pm.Normal("Intercept", 0, 2.5), pm.Normal("livebait", 0, 5.0)
        b2, p0 = pm.Normal("persons", 0, 2.3), pm.Normal("psi_Intercept", 0, 1)
        p1 = pm.Normal("psi_persons", 0, 1)
        alpha = pm.HalfCauchy("alpha", 1)
        mu = pm.Deterministic("mu", pt.exp(b0 + b1 * x[:, 0] + b2 * x[:, 1]), dims="__obs__")
        psi = pm.Deterministic("psi", pt.sigmoid(p0 + p1 * persons), dims="__obs__")
        y = rng.negative_binomial(1, 0.3, 47) * rng.integers(0, 2, 47)
        pm.ZeroInflatedNegativeBinomial("count", psi=psi, mu=mu, alpha=alpha, observed=y, dims="__obs__")
    return model


@accepted("Bambi docs: ordinal_regression (trolley, cumulative logit)", 40)
def bambi_trolley() -> pm.Model:
    rng = np.random.default_rng(208)
    x = rng.integers(0, 2, (40, 3)).astype(float)
    with pm.Model(coords={"__obs__": range(40)}) as model:
        b = [pm.Normal(name, 0, 1) for name in ("action", "intention", "contact")]
        threshold = pm.Normal(
            "threshold",
            mu=np.linspace(-2, 2, 6),
            sigma=1,
            shape=6,
            transform=pm.distributions.transforms.ordered,
        )
        eta = b[0] * x[:, 0] + b[1] * x[:, 1] + b[2] * x[:, 2]
        pm.OrderedLogistic(
            "response", eta=eta, cutpoints=threshold, observed=rng.integers(0, 7, 40), compute_p=False
        )
    return model


@accepted("Bambi docs: beta_regression", 33, withheld="mu")
def bambi_beta() -> pm.Model:
    rng = np.random.default_rng(209)
    batch, temp = rng.integers(0, 4, 33), rng.uniform(200, 450, 33)
    with pm.Model(coords={"batch_dim": ["2", "3", "4"], "__obs__": range(33)}) as model:
        intercept, b_temp = pm.Normal("Intercept", 0, 2.5), pm.Normal("temp", 0, 0.04)
        b = pm.Normal("batch", 0, 6.0, dims="batch_dim")
        kappa = pm.Gamma("kappa", alpha=2, beta=2)
        eta = intercept + b_temp * (temp - 332.1) + pt.dot(np.eye(4)[batch][:, 1:], b)
        mu = pm.Deterministic("mu", pt.sigmoid(eta), dims="__obs__")
        pm.Beta(
            "yield", alpha=mu * kappa, beta=(1 - mu) * kappa, observed=rng.beta(3, 12, 33), dims="__obs__"
        )
    return model


@accepted("Bambi docs: wald_gamma_glm (insurance claims, inverse Gaussian)", 35, withheld="mu")
def bambi_wald() -> pm.Model:
    rng = np.random.default_rng(210)
    agecat = rng.integers(0, 6, 35)
    with pm.Model(coords={"agecat_dim": list("23456"), "__obs__": range(35)}) as model:
        intercept = pm.Normal("Intercept", 0, 2.5)
        b = pm.Normal("C(agecat)", 0, 1, dims="agecat_dim")
        lam = pm.HalfCauchy("lam", 1)
        mu = pm.Deterministic("mu", pt.exp(intercept + pt.dot(np.eye(6)[agecat][:, 1:], b)), dims="__obs__")
        pm.Wald("claimcst0", mu=mu, lam=lam, observed=rng.gamma(1.0, 2.0, 35) + 0.05, dims="__obs__")
    return model


@accepted("Bambi docs: categorical_regression (iris)", 39, withheld="p")
def bambi_categorical() -> pm.Model:
    x, _, rng = table(39, 4, 211)
    names = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
    coords = {
        "species_reduced_dim": ["versicolor", "virginica"],
        "species_dim": list("svg"),
        "__obs__": range(39),
    }
    with pm.Model(coords=coords) as model:
        eta = pm.Normal("Intercept", 0, 2.5, dims="species_reduced_dim")[None, :]
        for j, name in enumerate(names):
            eta = eta + x[:, j][:, None] * pm.Normal(name, 0, 2.5, dims="species_reduced_dim")
        eta = pt.concatenate([pt.zeros((39, 1)), eta], axis=1)
        p = pm.Deterministic("p", pt.special.softmax(eta, axis=-1), dims=("__obs__", "species_dim"))
        pm.Categorical("species", p=p, observed=rng.integers(0, 3, 39), dims="__obs__")
    return model


@accepted("Bambi docs: quantile_regression (asymmetric Laplace with a spline)", 38, withheld="mu")
def bambi_quantile() -> pm.Model:
    rng = np.random.default_rng(212)
    age = np.sort(rng.uniform(1, 45, 38))
    basis = np.column_stack([np.clip(1 - np.abs(age - k) / 10, 0, 1) for k in (5, 15, 25, 35, 44)])
    with pm.Model(coords={"bs(age, knots=knots)_dim": np.arange(5), "__obs__": range(38)}) as model:
        intercept = pm.Normal("Intercept", 25, 15)
        b = pm.Normal("bs(age, knots=knots)", 0, 20, dims="bs(age, knots=knots)_dim")
        scale = pm.HalfNormal("b", 1)
        mu = pm.Deterministic("mu", intercept + pt.dot(basis - 0.2, b), dims="__obs__")
        y = 15 + 0.4 * age + rng.normal(0, 2, 38)
        pm.AsymmetricLaplace("bmi", b=scale, mu=mu, q=0.9, observed=y, dims="__obs__")
    return model


@accepted("Bambi docs: survival_model / Cat adoption (censored exponential)", 41)
def bambi_censored() -> pm.Model:
    rng = np.random.default_rng(213)
    black = rng.integers(0, 2, 41)
    days = rng.exponential(40, 41)
    with pm.Model(coords={"color_id_dim": ["black", "other"], "__obs__": range(41)}) as model:
        a = pm.Normal("color_id", 0, 1, dims="color_id_dim")
        rate = pt.exp(-pt.dot(np.eye(2)[black], a))
        upper = np.where(rng.uniform(size=41) < 0.3, days, np.inf)
        pm.Censored(
            "censored(days_to_event, adopt)",
            pm.Exponential.dist(rate),
            lower=None,
            upper=upper,
            observed=days,
        )
    return model


@refused("Bambi docs: hsgp_1d", "UnsupportedModelError", "y", ("centre", "center", "X_center", "public"))
def bambi_hsgp() -> pm.Model:
    x, eta, rng = table(36, 1, 214)
    with pm.Model(coords={"__obs__": range(36)}) as model:
        ell = pm.InverseGamma("hsgp(x, m=10, c=2)_ell", 3, 1)
        sigma = pm.Exponential("hsgp(x, m=10, c=2)_sigma", 1)
        gp = pm.gp.HSGP(m=[10], c=2, cov_func=sigma**2 * pm.gp.cov.ExpQuad(1, ls=ell))
        x_data = pm.Data("x", x, dims=("__obs__", "hsgp_var"))
        f = gp.prior("hsgp(x, m=10, c=2)", X=x_data)
        pm.Normal(
            "y", mu=f, sigma=pm.HalfNormal("sigma", 1), observed=eta + rng.normal(size=36), dims="__obs__"
        )
    return model
