"""Mixtures: marginalised ones pass, ones with a label or a weight vector for each row do not."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused, table


def _stick_breaking(beta: pt.TensorVariable) -> pt.TensorVariable:
    remaining = pt.concatenate([[1], pt.extra_ops.cumprod(1 - beta)[:-1]])
    return beta * remaining


@accepted("PyMC gallery: mixture_models/dp_mix (Old Faithful)", 46)
def dirichlet_process_mixture() -> pm.Model:
    rng = np.random.default_rng(301)
    waiting = np.concatenate([rng.normal(-1, 0.5, 18), rng.normal(0.8, 0.4, 28)])
    with pm.Model(coords={"component": np.arange(30), "obs_id": np.arange(46)}) as model:
        alpha = pm.Gamma("alpha", 1.0, 1.0)
        beta = pm.Beta("beta", 1, alpha, dims="component")
        w = pm.Deterministic("w", _stick_breaking(beta), dims="component")
        tau = pm.Gamma("tau", 1.0, 1.0, dims="component")
        lambda_ = pm.Gamma("lambda_", 10.0, 1.0, dims="component")
        mu = pm.Normal("mu", 0, tau=lambda_ * tau, dims="component")
        pm.NormalMixture("obs", w, mu, tau=lambda_ * tau, observed=waiting, dims="obs_id")
    return model


@accepted("PyMC gallery: mixture_models/dp_mix (sunspots, Poisson components)", 33)
def sunspots() -> pm.Model:
    counts = np.random.default_rng(302).poisson(40, 33)
    with pm.Model(coords={"component": np.arange(7)}) as model:
        alpha = pm.Gamma("alpha", 1.0, 1.0)
        beta = pm.Beta("beta", 1, alpha, dims="component")
        w = pm.Deterministic("w", _stick_breaking(beta) / _stick_breaking(beta).sum(), dims="component")
        mu = pm.Uniform("mu", 0.0, 300.0, dims="component")
        pm.Mixture("obs", w, pm.Poisson.dist(mu), observed=counts)
    return model


@accepted("PyMC gallery: mixture_models/dependent_density_regression (LIDAR)", 37, withheld="w mu")
def dependent_density_regression() -> pm.Model:
    rng = np.random.default_rng(303)
    std_range = np.linspace(-1.7, 1.7, 37)[:, np.newaxis]
    std_logratio = -std_range + rng.normal(0, 0.3, (37, 1))

    def norm_cdf(z):
        return 0.5 * (1 + pt.erf(z / np.sqrt(2)))

    def stick_breaking(v):
        return v * pt.concatenate(
            [pt.ones_like(v[:, :1]), pt.extra_ops.cumprod(1 - v, axis=1)[:, :-1]], axis=1
        )

    with pm.Model(coords={"N": np.arange(37), "K": np.arange(20) + 1, "one": [1]}) as model:
        alpha = pm.Normal("alpha", 0, 5, dims="K")
        beta = pm.Normal("beta", 0, 5, dims=("one", "K"))
        x = pm.Data("x", std_range, dims=("N", "one"))
        v = norm_cdf(alpha + pt.dot(x, beta))
        w = pm.Deterministic("w", stick_breaking(v), dims=["N", "K"])
        gamma = pm.Normal("gamma", 0, 3, dims="K")
        delta = pm.Normal("delta", 0, 3, dims=("one", "K"))
        mu = pm.Deterministic("mu", gamma + pt.dot(x, delta))
        sigma = pm.HalfNormal("sigma", 3, dims="K")
        y = pm.Data("y", std_logratio, dims=("N", "one"))
        pm.NormalMixture("obs", w, mu, sigma=sigma, observed=y[:, 0], dims="N")
    return model


@accepted("PyMC gallery: mixture_models/marginalized_gaussian_mixture_model", 41)
def marginalised_gaussian_mixture() -> pm.Model:
    rng = np.random.default_rng(304)
    x = np.concatenate([rng.normal(-4, 1, 15), rng.normal(3, 1.5, 26)])
    with pm.Model(coords={"cluster": np.arange(3), "obs_id": np.arange(41)}) as model:
        w = pm.Dirichlet("w", np.ones(3), dims="cluster")
        mu = pm.Normal(
            "mu",
            np.zeros(3),
            10.0,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 0, 1],
            dims="cluster",
        )
        tau = pm.Gamma("tau", 1.0, 1.0, dims="cluster")
        pm.NormalMixture("x_obs", w, mu, tau=tau, observed=x, dims="obs_id")
    return model


@accepted("PyMC discourse and docs of pm.Mixture: mixture of MvNormals with LKJ covariances", 34, slow=True)
def mixture_of_mvnormals() -> pm.Model:
    rng = np.random.default_rng(305)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        components = []
        for k in range(2):
            mu = pm.Normal(f"mu_{k}", 0, 5, shape=3)
            chol, _, _ = pm.LKJCholeskyCov(f"chol_{k}", n=3, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=3))
            components.append(pm.MvNormal.dist(mu=mu, chol=chol))
        pm.Mixture("y", w=w, comp_dists=components, observed=rng.normal(size=(34, 3)))
    return model


@accepted("Stan user's guide, chapter Finite mixtures: mixture of regressions", 32)
def mixture_of_regressions() -> pm.Model:
    x, eta, rng = table(32, 1, 306)
    with pm.Model() as model:
        theta = pm.Beta("theta", 5, 5)
        a, b = pm.Normal("a", 0, 2, shape=2), pm.Normal("b", 0, 2, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        parts = [pm.Normal.dist(a[k] + b[k] * x[:, 0], sigma) for k in range(2)]
        pm.Mixture("y", w=pt.stack([theta, 1 - theta]), comp_dists=parts, observed=eta + rng.normal(size=32))
    return model


@refused(
    "PyMC gallery: mixture_models/gaussian_mixture_model, with the categories left in",
    "UnsupportedModelError",
    "category",
    ("marginal", "Mixture"),
)
def mixture_with_labels() -> pm.Model:
    y = np.random.default_rng(307).normal(size=29)
    with pm.Model(coords={"cluster": range(3), "obs": range(29)}) as model:
        p = pm.Dirichlet("p", a=np.ones(3), dims="cluster")
        mu = pm.Normal("mu", 0, 10, dims="cluster")
        sd = pm.HalfNormal("sd", 5)
        category = pm.Categorical("category", p=p, dims="obs")
        pm.Normal("points", mu=mu[category], sigma=sd, observed=y, dims="obs")
    return model


@accepted(
    "Statistical Rethinking, 4th part (chapter 16.2): ordinary differently (Boxes, five strategies)", 39
)
def boxes() -> pm.Model:
    rng = np.random.default_rng(308)
    y, first = rng.integers(0, 3, 39), rng.integers(0, 2, 39)
    theta = np.zeros((39, 5, 3))
    theta[:, 0, 1] = theta[:, 1, 2] = theta[:, 2, 0] = 1.0
    theta[:, 3] = 1 / 3
    theta[np.arange(39), 4, np.where(first == 1, 2, 0)] = 1.0
    theta = 0.97 * theta + 0.01
    with pm.Model() as model:
        p = pm.Dirichlet("p", 4 * np.ones(5))
        pm.Categorical("y", p=pt.sum(theta * p[None, :, None], axis=1), observed=y)
    return model


@accepted("Blei, Ng, Jordan 2003, topics marginalised; PyMC discourse: LDA (a row is a word)", 50)
def latent_dirichlet_allocation() -> pm.Model:
    rng = np.random.default_rng(309)
    doc, word = rng.integers(0, 6, 50), rng.integers(0, 11, 50)
    with pm.Model(coords={"topic": range(3), "doc": range(6), "vocabulary": range(11)}) as model:
        theta = pm.Dirichlet("theta", a=np.ones(3), dims=("doc", "topic"))
        phi = pm.Dirichlet("phi", a=np.full(11, 0.5), dims=("topic", "vocabulary"))
        pm.Categorical("w", p=pt.dot(theta, phi)[doc], observed=word)
    return model


@refused(
    "PyMC gallery: mixture_models/dirichlet_mixture_of_multinomials (the explicit mixture)",
    "UnsupportedModelError",
    "p",
    INTEGRATE,
)
def trees_explicit_mixture() -> pm.Model:
    rng = np.random.default_rng(310)
    counts = rng.multinomial(50, [0.2, 0.3, 0.1, 0.3, 0.1], size=24)
    coords = {"tree": ["pine", "oak", "ebony", "rosewood", "mahogany"], "forest": range(24)}
    with pm.Model(coords=coords) as model:
        frac = pm.Dirichlet("frac", a=np.ones(5), dims="tree")
        conc = pm.LogNormal("conc", mu=1, sigma=1)
        p = pm.Dirichlet("p", a=frac * conc, dims=("forest", "tree"))
        pm.Multinomial("counts", n=50, p=p, observed=counts, dims=("forest", "tree"))
    return model


@accepted("PyMC gallery: mixture_models/dirichlet_mixture_of_multinomials (marginalised)", 24)
def trees_dirichlet_multinomial() -> pm.Model:
    rng = np.random.default_rng(311)
    counts = rng.multinomial(50, [0.2, 0.3, 0.1, 0.3, 0.1], size=24)
    coords = {"tree": ["pine", "oak", "ebony", "rosewood", "mahogany"], "forest": range(24)}
    with pm.Model(coords=coords) as model:
        frac = pm.Dirichlet("frac", a=np.ones(5), dims="tree")
        conc = pm.LogNormal("conc", mu=1, sigma=1)
        pm.DirichletMultinomial("counts", n=50, a=frac * conc, observed=counts, dims=("forest", "tree"))
    return model


@refused(
    "Stan user's guide, chapter Latent discrete parameters; NumPyro examples: annotation (Dawid and Skene)",
    "UnsupportedModelError",
    "c",
    ("marginal", "Mixture"),
)
def dawid_skene_labels() -> pm.Model:
    rng = np.random.default_rng(312)
    annotations = rng.integers(0, 4, (27, 5))
    with pm.Model() as model:
        beta = pm.Dirichlet("beta", a=np.ones((5, 4, 4)))
        pi = pm.Dirichlet("pi", a=np.ones(4))
        c = pm.Categorical("c", p=pi, shape=27)
        pm.Categorical("y", p=beta[:, c].transpose(1, 0, 2), observed=annotations)
    return model


@accepted("Stan user's guide, chapter Latent discrete parameters: Dawid and Skene, the labels summed out", 27)
def dawid_skene_marginal() -> pm.Model:
    rng = np.random.default_rng(313)
    annotations = rng.integers(0, 4, (27, 5))
    with pm.Model() as model:
        beta = pm.Dirichlet("beta", a=np.ones((5, 4, 4)))
        pi = pm.Dirichlet("pi", a=np.ones(4))
        annotations = pm.Data("annotations", annotations)
        log_p = pt.log(beta)[np.arange(5)[None, :], :, annotations].sum(axis=1)  # (item, class)
        pm.Potential("y", pt.logsumexp(pt.log(pi) + log_p, axis=1))
    return model


@accepted(
    "Nigam et al. 2000; Stan user's guide, chapter Clustering models (naive Bayes, a row is a document)", 27
)
def documents_of_topics() -> pm.Model:
    counts = np.random.default_rng(315).multinomial(8, np.ones(6) / 6, size=27)
    with pm.Model(coords={"topic": range(2), "vocabulary": range(6)}) as model:
        theta = pm.Dirichlet("theta", a=np.ones(2), dims="topic")
        phi = pm.Dirichlet("phi", a=np.ones(6), dims=("topic", "vocabulary"))
        pm.Mixture("counts", w=theta, comp_dists=pm.Multinomial.dist(n=8, p=phi), observed=counts)
    return model
