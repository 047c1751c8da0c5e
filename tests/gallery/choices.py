"""Choices, ranks, ordered answers and item responses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


@accepted(
    "PyMC gallery: generalized_linear_models/GLM-discrete-choice_models (heating systems)", 42, withheld="p"
)
def discrete_choice() -> pm.Model:
    rng = np.random.default_rng(601)
    ic, oc = rng.uniform(5, 12, (42, 5)), rng.uniform(1, 6, (42, 5))
    coords = {"alts_intercepts": ["ec", "er", "gc", "gr"], "alts_probs": ["ec", "er", "gc", "gr", "hp"]}
    with pm.Model(coords=coords) as model:
        model.add_coord("obs", range(42))
        beta_ic, beta_oc = pm.Normal("beta_ic", 0, 1), pm.Normal("beta_oc", 0, 1)
        alphas = pm.Normal("alpha", 0, 1, dims="alts_intercepts")
        u = [alphas[j] + beta_oc * oc[:, j] + beta_ic * ic[:, j] for j in range(4)]
        u.append(np.zeros(42) + beta_oc * oc[:, 4] + beta_ic * ic[:, 4])
        s = pm.math.stack(u).T
        p_ = pm.Deterministic("p", pm.math.softmax(s, axis=1), dims=("obs", "alts_probs"))
        pm.Categorical("y_cat", p=p_, observed=rng.integers(0, 5, 42), dims="obs")
    return model


@accepted(
    "PyMC gallery: generalized_linear_models/GLM-discrete-choice_models (crackers)",
    48,
)
def discrete_choice_persons() -> pm.Model:
    rng = np.random.default_rng(602)
    disp, price, person = rng.integers(0, 2, (48, 4)), rng.uniform(0.5, 1.3, (48, 4)), rng.integers(0, 7, 48)
    coords = {"alts_intercepts": ["sunshine", "keebler", "nabisco"], "individuals": np.arange(7)}
    with pm.Model(coords=coords) as model:
        beta_disp, beta_price = pm.Normal("beta_disp", 0, 1), pm.Normal("beta_price", 0, 1)
        alphas = pm.Normal("alpha", 0, 1, dims="alts_intercepts")
        beta_individual = pm.Normal("beta_individual", 0, 0.1, dims=("individuals", "alts_intercepts"))
        u = [
            alphas[j] + beta_individual[person, j] + beta_disp * disp[:, j] + beta_price * price[:, j]
            for j in range(3)
        ]
        u.append(beta_disp * disp[:, 3] + beta_price * price[:, 3])
        p = pm.math.softmax(pt.stack(u, axis=1), axis=1)
        pm.Categorical("y_cat", p=p, observed=rng.integers(0, 4, 48))
    return model


@refused(
    "PyMC gallery: generalized_linear_models/GLM-discrete-choice_models (a taste for each household)",
    "UnsupportedModelError",
    "beta_ind",
    INTEGRATE,
)
def mixed_logit_by_household() -> pm.Model:
    rng = np.random.default_rng(603)
    cost = rng.uniform(1, 9, (34, 3))
    with pm.Model(coords={"household": np.arange(34)}) as model:
        mu, sd = pm.Normal("mu", 0, 1), pm.HalfNormal("sd", 1)
        beta_ind = pm.Normal("beta_ind", mu, sd, dims="household")
        alphas = pt.concatenate([[0.0], pm.Normal("alpha", 0, 1, shape=2)])
        p = pm.math.softmax(alphas + beta_ind[:, None] * cost, axis=1)
        pm.Categorical("choice", p=p, observed=rng.integers(0, 3, 34), dims="household")
    return model


@accepted(
    "PyMC gallery: generalized_linear_models/GLM-ordinal-features (monotonic effects)", 41, withheld="mu"
)
def ordinal_features() -> pm.Model:
    rng = np.random.default_rng(604)
    edu, salary = rng.integers(0, 6, 41), rng.normal(size=41)
    coords = {"lvl": ["low", "mid", "high", "more", "most"], "edu": range(5)}
    with pm.Model(coords=coords) as model:
        idx = pm.Data("d450_idx", edu, dims="oid")
        b0 = pm.Normal("beta_intercept", 0, 1)
        b_edu = pm.Normal("beta_d450", 0, 1)
        nu = pm.Dirichlet("nu_d450", a=np.ones(5), dims="lvl")
        nu_cumsum = pt.concatenate([pt.zeros(1), pt.extra_ops.cumsum(nu)])
        sigma = pm.InverseGamma("epsilon", alpha=11, beta=10)
        mu = pm.Deterministic("mu", b0 + b_edu * nu_cumsum[idx], dims="oid")
        pm.Normal("phcs", mu=mu, sigma=sigma, observed=salary, dims="oid")
    return model


@accepted(
    "PyMC gallery: generalized_linear_models/GLM-ordinal-regression (uniform cutpoints of a Dirichlet)",
    44,
    withheld="latent y_probs",
)
def ordinal_regression() -> pm.Model:
    rng = np.random.default_rng(605)
    salary, work = rng.normal(size=44), rng.integers(0, 2, 44)
    with pm.Model(coords={"preds": ["salary", "work_sat"]}) as model:
        probs = pm.Dirichlet("probs", np.ones(4) * 2)
        cut = pm.Deterministic("cutpoints", pt.concatenate([[0.0], pt.cumsum(probs * 5)[:-1]]))
        beta = pm.Normal("beta", 0, 1, dims="preds")
        mu = pm.Deterministic("latent", beta[0] * salary + beta[1] * work)
        pm.OrderedLogistic("y", eta=mu, cutpoints=cut, observed=rng.integers(0, 5, 44))
    return model


@accepted("Kruschke 2015, chapter 23; pm.OrderedProbit with sigma (movie ratings)", 36)
def ordered_probit_movies() -> pm.Model:
    rng = np.random.default_rng(606)
    movie = rng.integers(0, 4, 36)
    with pm.Model(coords={"movie": range(4)}) as model:
        mu = pm.Normal("mu", 3, 2, dims="movie")
        sigma = pm.HalfNormal("sigma", 2, dims="movie")
        inner = pm.Normal(
            "theta", np.array([2.5, 3.5]), 0.5, transform=pm.distributions.transforms.ordered, shape=2
        )
        cut = pt.concatenate([[1.5], inner, [4.5]])
        pm.OrderedProbit(
            "stars",
            eta=mu[movie],
            sigma=sigma[movie],
            cutpoints=cut,
            observed=rng.integers(0, 5, 36),
            compute_p=False,
        )
    return model


@accepted("Stan case studies: Bradley-Terry; baseball seasons (a row is a game)", 45)
def bradley_terry() -> pm.Model:
    rng = np.random.default_rng(607)
    home = rng.integers(0, 8, 45)
    away = (home + rng.integers(1, 8, 45)) % 8
    with pm.Model(coords={"team": range(8)}) as model:
        sigma = pm.LogNormal("sigma", 0, 0.5)
        alpha = pm.Normal("alpha", 0, sigma, dims="team")
        pm.Bernoulli("y", logit_p=alpha[home] - alpha[away], observed=rng.integers(0, 2, 45))
    return model


@accepted("Chess ratings after Elo and Davidson 1970 (ties), a row is a game", 40)
def elo_with_ties() -> pm.Model:
    rng = np.random.default_rng(608)
    white, black = rng.integers(0, 6, 40), rng.integers(0, 6, 40)
    with pm.Model(coords={"player": range(6)}) as model:
        rating = pm.Normal("rating", 0, 200, dims="player")
        advantage, nu = pm.Normal("advantage", 30, 30), pm.LogNormal("nu", 0, 0.5)
        d = (rating[white] - rating[black] + advantage) * np.log(10) / 400
        utility = pt.stack([-d / 2, pt.log(nu) + 0 * d, d / 2], axis=-1)
        pm.Categorical("result", p=pm.math.softmax(utility, axis=-1), observed=rng.integers(0, 3, 40))
    return model


@accepted("Plackett 1975, Luce 1959; Stan forum: a row is a ranking of five items", 30)
def plackett_luce() -> pm.Model:
    rng = np.random.default_rng(609)
    ranking = np.array([rng.permutation(5) for _ in range(30)])

    def logp(value, worth):
        u = worth[value]
        return (u - pt.log(pt.cumsum(pt.exp(u)[:, ::-1], axis=1)[:, ::-1])).sum(axis=1)

    with pm.Model(coords={"item": range(5)}) as model:
        worth = pm.ZeroSumNormal("worth", 1.0, dims="item")
        ranks = pm.Data("ranking", ranking, dims=("judge", "place"))
        pm.Potential("ranked", logp(ranks, worth))
    return model


@refused(
    "Thurstone 1927; PyMC discourse: Thurstonian ranking (latent utilities for each judge)",
    "UnsupportedModelError",
    "z",
    INTEGRATE,
)
def thurstonian_ranking() -> pm.Model:
    rng = np.random.default_rng(610)
    ranking = np.array([rng.permutation(4) for _ in range(26)])
    with pm.Model() as model:
        mu = pm.ZeroSumNormal("mu", 1.0, shape=4)
        z = pm.Normal("z", mu, 1.0, shape=(26, 4))
        ordered = pt.take_along_axis(z, pt.as_tensor(ranking), axis=1)
        pm.Potential("order", pt.log(pt.sigmoid(50 * (ordered[:, :-1] - ordered[:, 1:]))).sum(axis=1))
    return model


@accepted("PyMC gallery: case_studies/item_response_nba (a row is a foul call)", 50)
def nba_fouls() -> pm.Model:
    rng = np.random.default_rng(611)
    calls = pd.DataFrame({"com": rng.integers(0, 7, 50), "dis": rng.integers(0, 6, 50)})
    with pm.Model(coords={"disadvantaged": range(6), "committing": range(7)}) as model:
        mu_theta = pm.Normal("mu_theta", 0.0, 100.0)
        sigma_theta, sigma_b = pm.HalfCauchy("sigma_theta", 2.5), pm.HalfCauchy("sigma_b", 2.5)
        raw_theta = pm.Normal("Delta_theta", 0.0, 1.0, dims="disadvantaged")
        raw_b = pm.Normal("Delta_b", 0.0, 1.0, dims="committing")
        theta = pm.Deterministic("theta", raw_theta * sigma_theta + mu_theta, dims="disadvantaged")
        b = pm.Deterministic("b", raw_b * sigma_b, dims="committing")
        eta = theta[calls["dis"].to_numpy()] - b[calls["com"].to_numpy()]
        pm.Bernoulli("y", p=pm.math.sigmoid(eta), observed=rng.integers(0, 2, 50))
    return model


@refused(
    "Stan example-models, education/rasch: an ability for each person, a row is a person",
    "UnsupportedModelError",
    "theta",
    INTEGRATE,
)
def rasch_by_person() -> pm.Model:
    y = np.random.default_rng(612).integers(0, 2, (33, 6))
    with pm.Model(coords={"person": range(33), "item": range(6)}) as model:
        theta = pm.Normal("theta", 0, 1, dims="person")
        beta = pm.Normal("beta", 0, 3, dims="item")
        pm.Bernoulli("y", logit_p=theta[:, None] - beta[None, :], observed=y, dims=("person", "item"))
    return model


@accepted(
    "Stan example-models, education/2pl, ability integrated out by Gauss and Hermite",
    33,
    public_data=("nodes", "weights"),
)
def two_parameter_quadrature() -> pm.Model:
    y = np.random.default_rng(613).integers(0, 2, (33, 6))
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    with pm.Model(coords={"item": range(6), "node": range(9)}) as model:
        node = pm.Data("nodes", nodes, dims="node")
        log_weight = pt.log(pm.Data("weights", weights / weights.sum(), dims="node"))
        a = pm.LogNormal("a", 0, 0.5, dims="item")
        b = pm.Normal("b", 0, 2, dims="item")
        eta = a[:, None] * (node[None, :] - b[:, None])  # (item, node)
        answers = pm.Data("answers", y, dims=("person", "item"))
        sign = 2 * answers - 1
        logp = -pt.softplus(-sign[:, :, None] * eta[None]).sum(axis=1)
        pm.Potential("y", pt.logsumexp(logp + log_weight, axis=1))
    return model


@accepted("Stan example-models: item responses in long form (posteriordb irt_2pl), persons fixed", 52)
def item_response_long() -> pm.Model:
    rng = np.random.default_rng(614)
    person, item = rng.integers(0, 9, 52), rng.integers(0, 5, 52)
    with pm.Model(coords={"person": range(9), "item": range(5)}) as model:
        theta = pm.Normal("theta", 0, 1, dims="person")
        a, b = pm.LogNormal("a", 0, 0.5, dims="item"), pm.Normal("b", 0, 2, dims="item")
        pm.Bernoulli("y", logit_p=a[item] * (theta[person] - b[item]), observed=rng.integers(0, 2, 52))
    return model


@accepted("pymc-marketing docs: conjoint analysis; PyMC labs: choice tasks of three profiles", 36)
def conjoint() -> pm.Model:
    rng = np.random.default_rng(615)
    profiles = rng.integers(0, 2, (36, 3, 4)).astype(float)
    with pm.Model(coords={"attribute": ["brand", "price", "size", "colour"], "profile": range(3)}) as model:
        x = pm.Data("profiles", profiles, dims=("task", "profile", "attribute"))
        partworth = pm.Normal("partworth", 0, 1, dims="attribute")
        p = pm.math.softmax(pt.dot(x, partworth), axis=-1)
        pm.Categorical("chosen", p=p, observed=rng.integers(0, 3, 36))
    return model


@accepted("Stan user's guide 9.1 and BDA3 chapter 16: alligators (food choice, multinomial logit)", 37)
def alligators() -> pm.Model:
    x, _, rng = table(37, 3, 616)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=(3, 4))
        logits = pt.concatenate([pt.zeros((37, 1)), pt.dot(x, beta)], axis=1)
        pm.Categorical("food", logit_p=logits, observed=rng.integers(0, 5, 37))
    return model
