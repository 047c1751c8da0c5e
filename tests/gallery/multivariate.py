"""Several numbers a row: factor models, structural equations, copulas, matrices of ratings."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.registry import INTEGRATE, accepted, refused


def _packed_loadings(d: int, k: int) -> pt.TensorVariable:
    """Loadings with ones on the diagonal and zeros above it, in rising scales, as the gallery makes them."""
    n_od = k * d - k * (k - 1) // 2 - k
    z = pm.HalfNormal("W_z", 1.0, dims="latent_columns")
    b = pm.Normal("W_b", 0.0, 1.0, shape=(n_od,))
    lower = pt.set_subtensor(pt.zeros((d, k))[np.tril_indices(d, k=-1, m=k)], b)
    lower = pt.set_subtensor(lower[(np.arange(k), np.arange(k))], pt.ones(k))
    return pm.Deterministic("W", lower @ pt.diag(pt.extra_ops.cumsum(z)))


@accepted(
    "PyMC gallery: case_studies/factor_analysis (packed loadings, scores integrated out)", 33, withheld="W"
)
def factor_analysis_packed() -> pm.Model:
    rng = np.random.default_rng(901)
    with pm.Model(coords={"observed_columns": range(6), "latent_columns": range(2)}) as model:
        w = _packed_loadings(6, 2)
        psi = pm.HalfNormal("psi", 1.0, dims="observed_columns")
        cov = pt.dot(w, w.T) + pt.diag(psi)
        pm.MvNormal("X", pt.zeros(6), cov=cov, observed=rng.normal(size=(33, 6)))
    return model


@refused(
    "PyMC gallery: case_studies/factor_analysis (as first published: scores F for each row, rows in columns)",
    "UnsupportedModelError",
    "F",
    INTEGRATE,
)
def factor_analysis_scores() -> pm.Model:
    rng = np.random.default_rng(902)
    with pm.Model(
        coords={"latent_columns": range(2), "rows": range(33), "observed_columns": range(6)}
    ) as model:
        w = pm.Normal("W", dims=("observed_columns", "latent_columns"))
        f = pm.Normal("F", dims=("rows", "latent_columns"))
        psi = pm.HalfNormal("psi", 1.0)
        pm.Normal(
            "X",
            mu=pt.dot(f, w.T),
            sigma=psi,
            observed=rng.normal(size=(33, 6)),
            dims=("rows", "observed_columns"),
        )
    return model


@refused(
    "PyMC gallery: case_studies/CFA_SEM (confirmatory factor analysis, ksi for each person)",
    "UnsupportedModelError",
    "ksi",
    INTEGRATE,
)
def confirmatory_factor_analysis() -> pm.Model:
    rng = np.random.default_rng(903)
    with pm.Model(
        coords={"obs": range(37), "latent": ["ksi1", "ksi2"], "indicators": list("abcdef")}
    ) as model:
        lambdas1 = pm.Normal("lambdas1", 1, 0.5, shape=3)
        lambdas2 = pm.Normal("lambdas2", 1, 0.5, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol_cov", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2))
        ksi = pm.MvNormal("ksi", mu=np.zeros(2), chol=chol, dims=("obs", "latent"))
        m = pt.stack([ksi[:, i // 3] * (lambdas1 if i < 3 else lambdas2)[i % 3] for i in range(6)], axis=1)
        psi = pm.InverseGamma("Psi", 5, 10, dims="indicators")
        pm.Normal("likelihood", m, psi, observed=rng.normal(size=(37, 6)), dims=("obs", "indicators"))
    return model


@accepted("PyMC gallery: case_studies/bayesian_sem_workflow (marginal structural equations)", 37)
def marginal_sem() -> pm.Model:
    rng = np.random.default_rng(904)
    places = [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    with pm.Model(coords={"indicators": list("abcdef"), "latent": ["f1", "f2", "f3"]}) as model:
        lam = pm.Normal("lambda_", 1, 0.5, shape=6)
        load = pt.zeros((6, 3))
        for i, (r, c) in enumerate(places):
            load = pt.set_subtensor(load[r, c], 1.0 if r % 2 == 0 else lam[i])
        b = pm.Normal("b", 0, 0.5, shape=3)
        beta = pt.zeros((3, 3))
        for i, (r, c) in enumerate([(1, 0), (2, 0), (2, 1)]):
            beta = pt.set_subtensor(beta[r, c], b[i])
        psi_f = pm.HalfNormal("Psi_latent", 1, dims="latent")
        psi = pm.HalfNormal("Psi", 1, dims="indicators")
        inverse = pt.linalg.solve(pt.eye(3) - beta, pt.eye(3))
        cov = load @ inverse @ pt.diag(psi_f) @ inverse.T @ load.T + pt.diag(psi)
        tau = pm.Normal("tau", 0, 1, dims="indicators")
        pm.MvNormal("likelihood", mu=tau, cov=cov, observed=rng.normal(size=(37, 6)))
    return model


@accepted("PyMC gallery: howto/copula-estimation (Gaussian copula, margins first)", 34)
def gaussian_copula() -> pm.Model:
    data = np.random.default_rng(905).normal(size=(34, 2))
    with pm.Model(coords={"param": ["a", "b"], "param_bis": ["a", "b"], "obs_id": np.arange(34)}) as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2), compute_corr=True
        )
        pm.Deterministic("cov", chol.dot(chol.T), dims=("param", "param_bis"))
        pm.MvNormal("N", mu=0.0, chol=chol, observed=data, dims=("obs_id", "param"))
    return model


@accepted("Sklar 1959; Stan forum: copula and margins in one model (exponential and normal)", 30)
def copula_with_margins() -> pm.Model:
    rng = np.random.default_rng(906)
    y1, y2 = rng.exponential(2, 30), rng.normal(size=30)
    with pm.Model() as model:
        lam, mu, sd = pm.Gamma("lam", 2, 2), pm.Normal("mu", 0, 1), pm.HalfNormal("sd", 1)
        rho = pm.Uniform("rho", -1, 1)
        y1, y2 = pm.Data("of_y1", y1), pm.Data("of_y2", y2)
        u = pt.clip(1 - pt.exp(-lam * y1), 1e-6, 1 - 1e-6)
        z1, z2 = pt.sqrt(2.0) * pt.erfinv(2 * u - 1), (y2 - mu) / sd
        copula = -0.5 * pt.log1p(-(rho**2)) - (rho**2 * (z1**2 + z2**2) - 2 * rho * z1 * z2) / (
            2 * (1 - rho**2)
        )
        pm.Potential("copula", copula)
        pm.Exponential("y1", lam, observed=y1)
        pm.Normal("y2", mu, sd, observed=y2)
    return model


@accepted("PyMC gallery: case_studies/probabilistic_matrix_factorization, ratings in long form", 50)
def matrix_factorisation_long() -> pm.Model:
    rng = np.random.default_rng(907)
    user, movie = rng.integers(0, 9, 50), rng.integers(0, 12, 50)
    with pm.Model(coords={"users": range(9), "movies": range(12), "latent_factors": range(3)}) as model:
        u = pm.Normal("U", 0, 1, dims=("users", "latent_factors"))
        v = pm.Normal("V", 0, 1, dims=("movies", "latent_factors"))
        mu = (u[user] * v[movie]).sum(axis=-1)
        pm.Normal("R", mu=mu, tau=2.0, observed=rng.uniform(-1, 1, 50))
    return model


@accepted("BUGS examples volume 2: Birats / Jaw (repeated measures with an unstructured covariance)", 20)
def bugs_jaws() -> pm.Model:
    rng = np.random.default_rng(908)
    age = np.array([8.0, 8.5, 9.0, 9.5])
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", 50, 10), pm.Normal("beta1", 2, 1)
        chol, _, _ = pm.LKJCholeskyCov("Sigma", n=4, eta=1, sd_dist=pm.HalfNormal.dist(3, shape=4))
        pm.MvNormal("Y", mu=beta0 + beta1 * (age - 8.75), chol=chol, observed=rng.normal(50, 2, (20, 4)))
    return model


@accepted(
    "PyMC docs: pm.WishartBartlett's successor; pm.MvStudentT with a Cholesky factor of correlations", 29
)
def lkj_corr_student() -> pm.Model:
    rng = np.random.default_rng(909)
    with pm.Model() as model:
        nu, mu = pm.Gamma("nu", 2, 0.1), pm.Normal("mu", 0, 1, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=3))
        pm.MvStudentT("y", nu=nu + 2, mu=mu, chol=chol, observed=rng.normal(size=(29, 3)))
    return model


@accepted(
    "Mardia; circular statistics: sine and cosine predictors of a direction, projected on the circle", 27
)
def circular_regression() -> pm.Model:
    rng = np.random.default_rng(910)
    theta = rng.uniform(-np.pi, np.pi, 27)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=(3, 2))
        kappa = pm.Gamma("kappa", 2, 1)
        x = np.column_stack([np.ones(27), np.cos(theta), np.sin(theta)])
        mu = pt.arctan2(x @ b[:, 0], x @ b[:, 1])
        pm.VonMises("wind", mu=mu, kappa=kappa, observed=rng.vonmises(0.5, 2, 27))
    return model


@accepted("Wrapped normal, after Stan's user's guide on circular data (three turns of the sum)", 28)
def wrapped_normal() -> pm.Model:
    angle = np.random.default_rng(911).vonmises(0.0, 2.0, 28)

    def logp(value, mu, sigma):
        turns = 2 * np.pi * np.arange(-3, 4)
        return pt.logsumexp(pm.logp(pm.Normal.dist(mu, sigma), value[..., None] + turns), axis=-1)

    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        pm.CustomDist("angle", mu, sigma, logp=logp, observed=angle)
    return model


_IDENTIFIED = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]], dtype=bool)


@accepted(
    "PyMC gallery: case_studies/CFA_SEM (loadings masked by a public pattern)", 34, public_data=("pattern",)
)
def confirmatory_factor_analysis_mask() -> pm.Model:
    rng = np.random.default_rng(951)
    with pm.Model() as model:
        pattern = pm.Data("pattern", _IDENTIFIED)
        free = pm.Normal("loadings", 0, 1, shape=int(_IDENTIFIED.sum()))
        w = pt.set_subtensor(pt.zeros(_IDENTIFIED.shape)[pattern], free)
        sigma = pm.HalfNormal("sigma", 1, shape=6)
        cov = w @ w.T + pt.diag(sigma**2)
        pm.MvNormal("X", pt.zeros(6), cov=cov, observed=rng.normal(size=(34, 6)))
    return model


@refused(
    "PyMC gallery: case_studies/CFA_SEM (the pattern is a constant in the code)",
    "UnsupportedModelError",
    "X",
    ("public_data",),
)
def confirmatory_factor_analysis_constant() -> pm.Model:
    rng = np.random.default_rng(952)
    with pm.Model() as model:
        loadings = pm.Normal("loadings", 0, 1, shape=_IDENTIFIED.shape)
        w = pt.switch(_IDENTIFIED, loadings, 0.0)
        pm.MvNormal("X", pt.zeros(6), cov=w @ w.T + pt.eye(6), observed=rng.normal(size=(34, 6)))
    return model


@accepted("Stan user's guide, chapter Factor analysis: a lower triangle of loadings, by a boolean mask", 34)
def factor_analysis_boolean_triangle() -> pm.Model:
    rng = np.random.default_rng(953)
    with pm.Model() as model:
        free = pm.Normal("free", 0, 1, shape=10)
        w = pt.zeros((4, 4))[np.tri(4, dtype=bool)].set(free)
        pm.MvNormal("X", pt.zeros(4), cov=w @ w.T + pt.eye(4), observed=rng.normal(size=(34, 4)))
    return model
