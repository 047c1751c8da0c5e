"""What a private fit replaces or cannot honour: Minibatch, black boxes, totals, priors from data."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import Apply, Op

from gallery.registry import OUTSIDE, accepted, refused, table


class LogLike(Op):
    """The gallery's black box: a log-likelihood of each row, computed by NumPy from data that it holds."""

    __props__ = ()

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def make_node(self, m, c):
        return Apply(self, [pt.as_tensor(m), pt.as_tensor(c)], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        m, c = inputs
        outputs[0][0] = -0.5 * (self.y - m * self.x - c) ** 2


@refused(
    "PyMC gallery: howto/blackbox_external_likelihood_numpy",
    "UnsupportedModelError",
    "likelihood",
    ("PyTensor",),
)
def black_box_likelihood() -> pm.Model:
    x, eta, _ = table(26, 1, 1101)
    with pm.Model() as model:
        m, c = pm.Uniform("m", lower=-10.0, upper=10.0), pm.Uniform("c", lower=-10.0, upper=10.0)
        pm.Potential("likelihood", LogLike(x[:, 0], eta)(m, c))
    return model


@refused(
    "PyMC gallery: variational_inference/bayesian_neural_network_advi (as published)",
    "UnsupportedModelError",
    "out",
    ("full data", "whole data", "all the data"),
)
def neural_network_minibatch() -> pm.Model:
    x, eta, rng = table(44, 2, 1102)
    label = (eta > 0).astype(float)
    coords = {"hidden_layer_1": np.arange(5), "hidden_layer_2": np.arange(5), "train_cols": np.arange(2)}
    with pm.Model(coords=coords) as model:
        xb, yb = pm.Minibatch(x, label, batch_size=11)
        w1 = pm.Normal("w_in_1", 0, 1, initval=rng.normal(size=(2, 5)), dims=("train_cols", "hidden_layer_1"))
        w2 = pm.Normal(
            "w_1_2", 0, 1, initval=rng.normal(size=(5, 5)), dims=("hidden_layer_1", "hidden_layer_2")
        )
        w3 = pm.Normal("w_2_out", 0, 1, initval=rng.normal(size=5), dims="hidden_layer_2")
        act = pm.math.tanh(pm.math.dot(pm.math.tanh(pm.math.dot(xb, w1)), w2))
        pm.Bernoulli("out", pm.math.sigmoid(pm.math.dot(act, w3)), observed=yb, total_size=44)
    return model


@refused(
    "PyMC gallery: variational_inference/bayesian_neural_network_advi (total_size without Minibatch)",
    "UnsupportedModelError",
    "out",
    ("total_size",),
)
def neural_network_total_size() -> pm.Model:
    x, eta, _ = table(40, 2, 1103)
    with pm.Model(coords={"train_cols": np.arange(2)}) as model:
        ann_input, ann_output = pm.Data("ann_input", x), pm.Data("ann_output", (eta > 0).astype(float))
        w = pm.Normal("w_in_out", 0, 1, dims="train_cols")
        pm.Bernoulli(
            "out", pm.math.sigmoid(pm.math.dot(ann_input, w)), observed=ann_output, total_size=40 * 3
        )
    return model


@accepted("PyMC gallery: variational_inference/bayesian_neural_network_advi, on the full data", 44)
def neural_network() -> pm.Model:
    x, eta, rng = table(44, 2, 1104)
    coords = {"hidden_layer_1": np.arange(5), "hidden_layer_2": np.arange(5), "train_cols": np.arange(2)}
    with pm.Model(coords=coords) as model:
        ann_input = pm.Data("ann_input", x, dims=("obs_id", "train_cols"))
        ann_output = pm.Data("ann_output", (eta > 0).astype(float), dims="obs_id")
        w1 = pm.Normal("w_in_1", 0, 1, initval=rng.normal(size=(2, 5)), dims=("train_cols", "hidden_layer_1"))
        w2 = pm.Normal(
            "w_1_2", 0, 1, initval=rng.normal(size=(5, 5)), dims=("hidden_layer_1", "hidden_layer_2")
        )
        w3 = pm.Normal("w_2_out", 0, 1, initval=rng.normal(size=5), dims="hidden_layer_2")
        act_1 = pm.math.tanh(pm.math.dot(ann_input, w1))
        act_2 = pm.math.tanh(pm.math.dot(act_1, w2))
        act_out = pm.math.sigmoid(pm.math.dot(act_2, w3))
        pm.Bernoulli("out", act_out, observed=ann_output, dims="obs_id")
    return model


@refused(
    "PyMC gallery: variational_inference/GLM-hierarchical-advi-minibatch",
    "UnsupportedModelError",
    "radon_like",
    ("full data", "whole data", "all the data"),
)
def radon_minibatch() -> pm.Model:
    rng = np.random.default_rng(1105)
    county, floor, radon = rng.integers(0, 6, 42), rng.integers(0, 2, 42), rng.normal(size=42)
    county_idx, floor_idx, log_radon = pm.Minibatch(county, floor, radon, batch_size=8)
    with pm.Model(coords={"counties": range(6)}) as model:
        a, b = pm.Normal("alpha", 0, 1, dims="counties"), pm.Normal("beta", 0, 1, dims="counties")
        mu = a[county_idx] + b[county_idx] * floor_idx
        pm.Normal("radon_like", mu, pm.HalfCauchy("eps", 5), observed=log_radon, total_size=42)
    return model


@refused(
    "PyMC gallery: case_studies/binning (counts of bins)",
    "NotSeparableError",
    "counts1",
    ("Categorical",),
)
def binning() -> pm.Model:
    edges = np.arange(-2.0, 2.5, 0.5)
    counts = np.random.default_rng(1106).multinomial(1000, np.full(len(edges) + 1, 1 / (len(edges) + 1)))
    with pm.Model() as model:
        sigma, mu = pm.HalfNormal("sigma"), pm.Normal("mu")
        probs = pm.math.exp(pm.logcdf(pm.Normal.dist(mu=mu, sigma=sigma), edges))
        probs = pm.math.concatenate([[0], probs, [1]])
        pm.Multinomial("counts1", p=pt.extra_ops.diff(probs), n=counts.sum(), observed=counts)
    return model


@accepted(
    "PyMC gallery: case_studies/binning, a row for each person (the cell that the person is in)",
    39,
    public_data=("edges",),
)
def binned_persons() -> pm.Model:
    rng = np.random.default_rng(1107)
    edges = np.arange(-2.0, 2.5, 0.5)
    with pm.Model() as model:
        sigma, mu = pm.HalfNormal("sigma"), pm.Normal("mu")
        cdf = pm.math.exp(pm.logcdf(pm.Normal.dist(mu=mu, sigma=sigma), pm.Data("edges", edges)))
        probs = pt.extra_ops.diff(pm.math.concatenate([[0], cdf, [1]]))
        pm.Categorical("cell", p=probs, observed=np.digitize(rng.normal(size=39), edges))
    return model


@refused(
    "PyMC gallery: case_studies/BEST (two groups of different lengths)",
    "UnsupportedModelError",
    "drug",
    ("length",),
)
def best_two_groups() -> pm.Model:
    rng = np.random.default_rng(1108)
    drug, placebo = rng.normal(101, 5, 47), rng.normal(100, 3, 42)
    with pm.Model() as model:
        m1, m2 = pm.Normal("group1_mean", 100, 10), pm.Normal("group2_mean", 100, 10)
        s1, s2 = pm.Uniform("group1_std", 1, 10), pm.Uniform("group2_std", 1, 10)
        nu = pm.Exponential("nu_minus_one", 1 / 29.0) + 1
        pm.StudentT("drug", nu=nu, mu=m1, lam=s1**-2, observed=drug)
        pm.StudentT("placebo", nu=nu, mu=m2, lam=s2**-2, observed=placebo)
    return model


@accepted("PyMC gallery: case_studies/BEST, both groups in one column", 45)
def best_one_column() -> pm.Model:
    rng = np.random.default_rng(1109)
    group, iq = rng.integers(0, 2, 45), rng.normal(100, 4, 45)
    with pm.Model(coords={"group": ["drug", "placebo"]}) as model:
        mean = pm.Normal("mean", 100, 10, dims="group")
        std = pm.Uniform("std", 1, 10, dims="group")
        nu = pm.Exponential("nu_minus_one", 1 / 29.0) + 1
        pm.Deterministic("difference of means", mean[0] - mean[1])
        pm.StudentT("iq", nu=nu, mu=mean[group], lam=std[group] ** -2, observed=iq)
    return model


@refused(
    "PyMC gallery: case_studies/BEST (priors from the pooled data, in the graph)",
    "UnsupportedModelError",
    "group1_mean",
    OUTSIDE,
)
def best_pooled_priors() -> pm.Model:
    y = np.random.default_rng(1110).normal(100, 4, 38)
    with pm.Model() as model:
        iq = pm.Data("iq", y)
        mean = pm.Normal("group1_mean", mu=iq.mean(), sigma=iq.std() * 2)
        pm.StudentT("obs", nu=pm.Exponential("nu", 1 / 29), mu=mean, sigma=pm.HalfNormal("s", 5), observed=iq)
    return model


@refused(
    "PyMC docs: pm.Potential as a likelihood (its sum, as in many forum posts)",
    "UnsupportedModelError",
    "loglik",
    ("sum", "scalar"),
)
def summed_potential() -> pm.Model:
    x, eta, _ = table(33, 2, 1111)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        x_data, y_data = pm.Data("x", x), pm.Data("y", eta)
        pm.Potential("loglik", pt.sum(pm.logp(pm.Normal.dist(x_data @ beta, 1.0), y_data)))
        pm.Normal("also", x_data @ beta, 1.0, observed=y_data)
    return model


@refused(
    "pymc-marketing docs: clv/gamma_gamma (as published: arrays of NumPy in a Potential)",
    "UnsupportedModelError",
    "likelihood",
    ("pm.Data('x', x)",),
)
def potential_of_arrays() -> pm.Model:
    rng = np.random.default_rng(1113)
    x, z_mean = rng.integers(1, 9, 31).astype(float), rng.gamma(6, 5, 31)
    with pm.Model() as model:
        p, q, v = pm.HalfFlat("p"), pm.HalfFlat("q"), pm.HalfFlat("v")
        logp = pt.gammaln(p * x + q) - pt.gammaln(p * x) - pt.gammaln(q) + q * pt.log(v)
        pm.Potential("likelihood", logp + (p * x - 1) * pt.log(z_mean) - (p * x + q) * pt.log(x * z_mean + v))
    return model


@refused(
    "PyMC gallery: samplers/SMC-ABC_Lotka-Volterra_example (Simulator)",
    "UnsupportedModelError",
    "sim",
    ("Simulator",),
)
def approximate_bayesian_computation() -> pm.Model:
    y = np.random.default_rng(1112).normal(size=28)

    def normal_sim(rng, a, b, size=28):
        return rng.normal(a, b, size=size)

    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC 6 uses a deprecated default of its own
        a, b = pm.Normal("a", 0, 5), pm.HalfNormal("b", 1)
        pm.Simulator("sim", normal_sim, params=(a, b), sum_stat="sort", epsilon=1, observed=y)
    return model


@refused(
    "PyMC docs: imputation of a masked outcome (disasters with missing years)",
    "UnsupportedModelError",
    "disasters",
    ("missing",),
    ("drop", "remove", "complete"),
)
def coal_mining_missing() -> pm.Model:
    y = np.random.default_rng(1113).poisson(2.0, 41)
    masked = np.ma.masked_array(y, mask=np.arange(41) % 20 == 7)
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC announces that it will impute
        rate = pm.Exponential("rate", 1.0)
        pm.Poisson("disasters", rate, observed=masked)
    return model
