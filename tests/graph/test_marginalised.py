"""Models after `pymc_extras.marginalize`: one record's term is the model's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value

pmx = pytest.importorskip("pymc_extras")

N = 13
RNG = np.random.default_rng(0)
Y, X, COUNTS = RNG.normal(size=N), RNG.normal(size=(N, 2)), RNG.poisson(2, N)


def two_groups() -> pm.Model:
    with pm.Model() as model:
        z = pm.Bernoulli("z", pm.Beta("p", 1, 1), shape=N)
        pm.Normal("y", pm.Normal("mu", 0, 1, shape=2)[z], 1.0, observed=Y)
    return model


def dims_and_two_tables() -> pm.Model:
    with pm.Model(coords={"obs": range(N), "k": range(3)}) as model:
        w = pm.Dirichlet("w", np.ones(3), dims="k")
        mu, sigma = pm.Normal("mu", 0, 1, dims="k"), pm.HalfNormal("sigma", 1, dims="k")
        z = pm.Categorical("z", w, dims="obs")
        pm.Normal("y", mu[z], sigma[z], observed=Y, dims="obs")
    return model


def record_data_within() -> pm.Model:
    with pm.Model() as model:
        x = pm.Data("x", X)
        z = pm.Bernoulli("z", logit_p=x @ pm.Normal("gate", 0, 1, shape=2))
        pm.Poisson("y", pt.exp(x @ pm.Normal("beta", 0, 1, shape=2) * z), observed=COUNTS)
    return model


def two_outcomes_share_it() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        z = pm.Bernoulli("z", 0.3, shape=N)
        pm.Normal("y", mu[z], 1.0, observed=Y)
        pm.Poisson("count", pt.exp(mu[z]), observed=COUNTS)
    return model


def several_columns() -> pm.Model:
    with pm.Model() as model:
        z = pm.Bernoulli("z", pm.Beta("p", 1, 1), shape=N)
        pm.Normal("y", pm.Normal("mu", 0, 1, shape=2)[z][:, None], 1.0, observed=X)
    return model


@pytest.mark.filterwarnings("ignore:There are multiple dependent variables")
@pytest.mark.parametrize(
    "build", [two_groups, dims_and_two_tables, record_data_within, two_outcomes_share_it, several_columns]
)
def test_one_record_has_the_model_s_own_term(build: Callable[[], pm.Model]):
    model = pmx.marginalize(build(), ["z"])
    record = build_record_model(model)
    point = model.initial_point()
    values = [
        np.asarray(point[v.name]) + 0.3 * RNG.normal(size=point[v.name].shape) for v in record.value_vars
    ]
    arguments = {"on_unused_input": "ignore", "mode": "FAST_COMPILE"}
    own = pytensor.function(
        list(record.value_vars), model.logp(vars=model.observed_RVs, sum=False), **arguments
    )
    one = pytensor.function([*record.rows, *record.value_vars], list(record.factors.values()), **arguments)
    wanted = sum(np.asarray(t).reshape(N, -1).sum(axis=1) for t in own(*values) if np.ndim(t))
    for i in range(N):
        row = [array_value(a)[i : i + 1] for a in record.arrays]
        np.testing.assert_allclose(sum(np.sum(t) for t in one(*row, *values)), wanted[i], rtol=1e-10)
    DPADVI(epsilon=1.0, delta=1e-6, model=model)  # and the check of separability holds


def test_fit_of_a_marginalised_model():
    model = pmx.marginalize(two_groups(), ["z"])
    method = DPADVI(noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, accountant="rdp", model=model)
    idata = method.fit(3, progressbar=False, backend="python").sample(2)
    assert set(idata["posterior"].data_vars) == {"p", "mu"}


def test_a_variable_that_all_records_share_is_refused():
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.3)
        pm.Normal("y", pm.Normal("mu", 0, 1, shape=2)[z], 1.0, observed=Y)
    with pytest.raises(NotSeparableError, match="'y' was marginalised over 'z', which all records share"):
        DPADVI(epsilon=1.0, delta=1e-6, model=pmx.marginalize(model, ["z"]))
