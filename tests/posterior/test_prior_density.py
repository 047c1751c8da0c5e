"""The prior's density and place against PyMC's own, and against formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from oracle import latents_of, points
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from scipy import stats
from zoo import ZOO

from pymc_dpvi.graph.gradients import prior_and_slope, put
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.posterior import over_points
from pymc_dpvi.posterior.prior_density import Prior


def effects() -> pm.Model:
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2.0)
        mean = pm.Normal("mean", 1.0, 3.0)
        effect = pm.Normal("effect", mean, tau, shape=3)
        group = pm.Data("group", np.arange(12) % 3)
        pm.Normal("y", effect[group], 1.0, observed=pm.Data("y_data", np.linspace(-1.0, 1.0, 12)))
    return model


def correlated() -> pm.Model:
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
        slopes = pm.MvNormal("slopes", np.zeros(2), chol=chol)
        x = pm.Data("x", np.linspace(-1.0, 1.0, 24).reshape(12, 2))
        pm.Normal("y", x @ slopes, 1.0, observed=pm.Data("y_data", np.linspace(-1.0, 1.0, 12)))
    return model


def shares() -> pm.Model:
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.array([1.0, 2.0, 5.0]))
        pm.Categorical("y", p=p, observed=pm.Data("y_data", np.arange(12) % 3))
    return model


def prior_of(model: pm.Model) -> tuple[Prior, np.ndarray]:
    latents, start = latents_of(model)
    return Prior(build_record_model(model), latents), start


def neighbours() -> pm.Model:
    """PyMC sums the number tau along an axis."""
    with pm.Model() as model:
        tau = pm.Gamma("tau", 2, 2)
        phi = pm.CAR("phi", mu=np.zeros(3), W=np.ones((3, 3)) - np.eye(3), alpha=0.5, tau=tau)
        area = pm.Data("area", np.arange(12) % 3)
        pm.Normal("y", phi[area], 1.0, observed=pm.Data("y_data", np.linspace(-1.0, 1.0, 12)))
    return model


@pytest.mark.parametrize("build", [effects, correlated, shares])
def test_a_density_that_has_no_form_for_many_points_is_evaluated_at_one_after_the_other(
    build: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled when the fit has been charged, and must not fail then."""

    def fails(*args: Any) -> None:
        raise NotImplementedError("no vectorised form")

    (prior, start), (again, _) = prior_of(build()), prior_of(build())
    at = np.array(points(start, 4))
    expected = prior.density(at)
    monkeypatch.setattr(over_points, "vectorized", fails)
    for found, value in zip(again.density(at), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12)


@pytest.mark.parametrize("build", [effects, correlated, shares, neighbours])
def test_density_and_slope_are_pymcs(build: Callable[[], pm.Model]) -> None:
    model = build()
    prior, start = prior_of(model)
    z = np.array(points(start, 5, scale=0.8))
    value, slope = prior.density(z)
    assert value.shape == (5,) and slope.shape == z.shape
    # PyMC's own, one point at a time, and without the records.
    values, latents = list(prior.latents.value_vars), prior.latents
    logp = model.logp(vars=model.free_RVs)
    graphs = [logp, *pytensor.grad(logp, values, disconnected_inputs="ignore")]
    own = pm_compile(values, graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    first = None
    for row, found, found_slope in zip(z, value - value[0], slope, strict=True):
        wanted, *by = own(*(row[s].reshape(n) for s, n in zip(latents.slices, latents.shapes, strict=True)))
        first = wanted if first is None else first
        np.testing.assert_allclose(found, wanted - first, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(
            found_slope, np.concatenate([np.ravel(g) for g in by]), rtol=1e-8, atol=1e-8
        )


#: Of each kind that PyTensor vectorises by a loop over points, or NumPy computes entry by entry.
VECTORISED = (
    *("crossed_effects", "dirichlet_multinomial", "dpvi_gaussian_mixture", "interpolated_prior"),
    "latent_class_analysis",
    *("layer_norm_network", "lkj_mvnormal", "ordered_dirichlet_cutpoints", "penalised_spline_random_walk"),
    *("spherical_mixture_potential", "varying_slopes_mvnormal_centered"),
)


def in_python(function: Any) -> list[Apply]:
    """What Python computes in a loop: over points, or over the entries of arrays of them."""
    graph = function.maker.fgraph
    nodes = [n for n in graph.toposort() if not set(graph.inputs).isdisjoint(ancestors(n.outputs))]
    loops = [
        n
        for n in nodes
        if isinstance(n.op, Blockwise)
        and not (n.op.gufunc_spec or getattr(n.op.core_op, "gufunc_spec", None))
    ]
    kinds = [n for n in nodes if isinstance(n.op, Elemwise)]
    return loops + [n for n in kinds if (n.op.nfunc_spec or (None, None))[1] != len(n.inputs)]


# PyMC 6's spline has its gradient in the form of PyTensor 2.
@pytest.mark.turns
@pytest.mark.filterwarnings("ignore:SplineWrapper should:FutureWarning")
@pytest.mark.parametrize("name", VECTORISED)
def test_all_points_at_once_are_one_after_the_other(name: str) -> None:
    """What is vectorised and rewritten against the graph of one point as it stands, and computed by NumPy.

    A first `sample` evaluates it hundreds of times: a loop in Python would take half a minute.
    """
    entry = ZOO[name]
    with entry.flags():
        record = build_record_model(entry.build(), record_dim=entry.record_dim, public_data=entry.public_data)
        latents, start = latents_of(record.model)
        prior = Prior(record, latents)
        z = start + np.random.default_rng(0).normal(size=(6, latents.size))
        value, slope = prior.density(z)
        slow = [
            n for n in in_python(prior.compiled) if not str(n.op).startswith("Softplus")
        ]  # NumPy has none
        assert slow == []
        at = pt.vector("at", shape=(latents.size,))
        logp, by, blocks = prior_and_slope(record, latents)
        one = python_function([at], put([logp, by], blocks, latents.split(at)))
        for row, found, found_slope in zip(z, value, slope, strict=True):
            wanted, wanted_slope = one(row)
            np.testing.assert_allclose(found, wanted, rtol=1e-9)
            np.testing.assert_allclose(found_slope, wanted_slope, rtol=1e-7, atol=1e-9)


def test_a_loop_in_python_would_be_noticed() -> None:
    x, m = pt.dmatrix("x"), pt.dtensor3("m")
    for graph in (pt.mul(x, x, x), pt.fill(x, x[0]), pt.linalg.cholesky(m)):
        inputs = [x] if graph.type.ndim == 2 else [m]
        assert len(in_python(pytensor.function(inputs, graph, mode="FAST_COMPILE"))) == 1


def test_density_is_the_priors_alone() -> None:
    """Of a model whose prior is written down here: z = (log tau, mean, effects)."""
    prior, _ = prior_of(effects())
    assert [v.name for v in prior.latents.value_vars] == ["tau_log__", "mean", "effect"]
    z = np.random.default_rng(0).normal(size=(6, 5))
    tau, mean = np.exp(z[:, 0]), z[:, 1]
    wanted = stats.halfnorm(scale=2.0).logpdf(tau) + z[:, 0] + stats.norm(1.0, 3.0).logpdf(mean)
    wanted += stats.norm(mean[:, None], tau[:, None]).logpdf(z[:, 2:]).sum(axis=1)
    value, slope = prior.density(z)
    np.testing.assert_allclose(value - value[0], wanted - wanted[0], rtol=1e-10)
    np.testing.assert_allclose(slope[:, 2:], -(z[:, 2:] - mean[:, None]) / tau[:, None] ** 2, rtol=1e-10)


def test_a_density_that_is_nowhere_near_warns_of_nothing() -> None:
    value, slope = prior_of(effects())[0].density(np.full((2, 5), 1e4))
    assert value.shape == (2,) and slope.shape == (2, 5)


def test_centres_and_widths_are_those_of_draws() -> None:
    rng = np.random.default_rng(0)
    prior, _ = prior_of(effects())
    log = np.log(np.abs(2.0 * rng.normal(size=100_000)))
    effect = 1.0 + np.hypot(3.0, np.exp(log)) * rng.normal(size=log.size)
    for column, wanted in enumerate([log, rng.normal(1.0, 3.0, size=log.size), effect, effect, effect]):
        low, middle, high = np.quantile(wanted, [0.1587, 0.5, 0.8413])
        assert abs(prior.centre[column] - middle) < 0.25 * (high - low) / 2
        np.testing.assert_allclose(prior.stddev[column], (high - low) / 2, rtol=0.2)


def test_the_reach_is_of_the_tails() -> None:
    """Of a normal prior it is the width; effects whose spread has a prior too lie farther now and then."""
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 1.0)
        effect = pm.Normal("effect", 0.0, tau, shape=2)
        b = pm.Normal("b", 0.0, 2.0)
        pm.Normal("y", effect[pm.Data("group", np.arange(12) % 2)] + b, 1.0, observed=np.ones(12))
    prior, _ = prior_of(model)
    where = {v.name: at for v, at in zip(prior.latents.value_vars, prior.latents.slices, strict=True)}
    share = prior.reach / prior.stddev
    assert (share >= 1.0).all() and share[where["b"]] < 1.3 and (share[where["effect"]] > 5.0).all()


def test_what_has_no_draws_has_no_centre() -> None:
    with pm.Model() as model:
        flat = pm.Flat("flat", initval=0.0)
        normal = pm.Normal("normal", 5.0, 0.1)
        pm.Normal("y", flat + normal, 1.0, observed=pm.Data("y_data", np.ones(12)))
    prior, _ = prior_of(model)
    assert np.isnan(prior.centre[0]) and np.isinf(prior.stddev[0]) and np.isinf(prior.reach[0])
    np.testing.assert_allclose([prior.centre[1], prior.stddev[1]], [5.0, 0.1], atol=0.03)
    value, slope = prior.density(np.array([[0.0, 5.0], [9.0, 5.1]]))
    np.testing.assert_allclose(value[1] - value[0], -0.5, rtol=1e-6)
    np.testing.assert_allclose(slope, [[0.0, 0.0], [0.0, -10.0]], atol=1e-6)


def test_more_variables_than_numpy_takes_operands() -> None:
    with pm.Model() as model:
        b = [pm.Normal(f"b{k}", 0, 1) for k in range(40)]
        pm.Normal("y", b[0], 1, observed=np.zeros(20))
    prior = Prior(build_record_model(model), latents_of(model)[0])
    z = np.random.default_rng(0).normal(size=(3, 40))
    value, slope = prior.density(z)
    np.testing.assert_allclose(value - value[0], -0.5 * ((z**2).sum(1) - (z[0] ** 2).sum()), atol=1e-9)
    np.testing.assert_allclose(slope, -z)
