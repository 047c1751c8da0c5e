"""Numbers that no graph shows: in operations that keep some, and in constants that are no dense arrays.

Each way to hide records there is tried in the likelihood, in the prior, in a Deterministic and in an
expression; and nothing that is an ordinary operation is taken for one (the zoo tests that for all models).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pymc.distributions.dist_math import SplineWrapper
from pymc.ode import DifferentialEquation
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.typed_list import TypedListType
from pytensor.typed_list import length as list_length
from scipy.interpolate import InterpolatedUnivariateSpline

from pymc_dpvi import UnsupportedModelError
from pymc_dpvi.graph.opaque import is_opaque_value, opaque_part
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.posterior.approximation import DPMeanField

# PyTensor 3, of random variables that are called as these are.
pytestmark = [
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Calling a RandomVariable without:DeprecationWarning"),
]

N = 13
X = np.linspace(-1.0, 1.0, N)
Y = X**2


@wrap_py(itypes=[pt.dscalar], otypes=[pt.dvector])
def wrapped(b: Any) -> Any:
    return b * X


def spline(b: Any) -> Any:
    return SplineWrapper(InterpolatedUnivariateSpline(X, Y))(b)


def ode(b: Any) -> Any:
    def slope(y: Any, t: Any, p: Any) -> Any:
        return p[0] * y[0]

    return DifferentialEquation(slope, times=list(X[X > 0]), n_states=1, n_theta=1)([1.0], pt.stack([b]))


def random(b: Any) -> Any:
    class Records(RandomVariable):
        name, signature, dtype = "records", "()->()", "float64"

        @classmethod
        def rng_fn(cls, rng: Any, b: Any, size: Any) -> Any:
            return b * X.sum()

    return Records()(b)


def custom(b: Any) -> Any:
    return pm.CustomDist.dist(b, random=lambda b, rng=None, size=None: X.sum(), signature="()->()")


def sparse(b: Any) -> Any:
    return ps.dense_from_sparse(ps.as_sparse_variable(scipy.sparse.csr_matrix(X[None, 1:]))) * b


def typed_list(b: Any) -> Any:
    held = TypedListType(pt.dvector).make_constant([X[:3], X[3:5]])
    return b * list_length(held)


HIDDEN: dict[str, Callable[[Any], Variable]] = {
    "wrap_py": wrapped,
    "spline": spline,
    "ode": ode,
    "random variable": random,
    "custom distribution": custom,
    "sparse": sparse,
    "typed list": typed_list,
}
#: PyMC itself refuses what is random in a log-density.
RANDOM = ("random variable", "custom distribution")


def model_of(**parts: Callable[[Any], Any]) -> pm.Model:
    """A regression with hidden numbers in one of its parts."""
    with pm.Model() as model:
        b = pm.Normal("b")
        nothing: Callable[[Any], Any] = lambda b: 0.0  # noqa: E731
        more = pt.sum(parts.get("likelihood", nothing)(b))
        pm.Normal("y", b * X + more, 1.0, observed=Y)
        pm.Normal("c", pt.sum(parts.get("prior", nothing)(b)))
        if "deterministic" in parts:
            pm.Deterministic("d", parts["deterministic"](b))
    return model


@functools.cache
def plain() -> tuple[RecordModel, DPMeanField]:
    record = build_record_model(model_of())
    return record, DPMeanField(record, random_seed=1)


@pytest.mark.turns
@pytest.mark.parametrize("where", ["likelihood", "prior"])
@pytest.mark.parametrize("name", [name for name in HIDDEN if name not in RANDOM])
def test_what_is_hidden_does_not_enter_a_step(name: str, where: str) -> None:
    with pytest.raises(UnsupportedModelError):
        build_record_model(model_of(**{where: HIDDEN[name]}))


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_not_released(name: str) -> None:
    record = build_record_model(model_of(deterministic=HIDDEN[name]))
    approx = DPMeanField(record, random_seed=1)
    assert "d" in approx.withheld
    with pytest.raises(UnsupportedModelError, match="records"):
        approx.sample_node(record.model["d"])


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_does_not_come_out_of_an_expression(name: str) -> None:
    record, approx = plain()
    expression = HIDDEN[name](record.model["b"])
    for ask in (approx.sample_node, approx.to_flat_input, approx.symbolic_single_sample):
        with pytest.raises(UnsupportedModelError, match="records"):
            ask(expression)


def test_ordinary_expressions_come_out() -> None:
    record, approx = plain()
    b = record.model["b"]
    many = pt.vectorize(lambda b: pt.exp(b) * 2.0, "()->()")(pt.stack([b, b]))
    for node in (
        pt.exp(b),
        pt.linalg.det(pt.eye(2) * b),
        pt.stack([b, 1.0]).sum(),
        pm.math.invlogit(b),
        many,
    ):
        assert record.may_be_released(node)
        approx.sample_node(node)


def test_parts_of_operations() -> None:
    assert opaque_part(spline(pt.dscalar()).owner.op) == "SplineWrapper"
    inner = pt.vectorize(lambda b: spline(b), "()->()")(pt.dvector())
    assert opaque_part(inner.owner.op) == "SplineWrapper"
    for ordinary in (pt.dvector().sum(), pt.dvector()[None], pt.exp(pt.dvector()), pt.random.normal()):
        assert opaque_part(ordinary.owner.op) is None


def test_values() -> None:
    assert not is_opaque_value(pt.constant(X)) and not is_opaque_value(pytensor.shared(X))
    assert not is_opaque_value(pt.dvector())
    assert is_opaque_value(ps.as_sparse_variable(scipy.sparse.csr_matrix(X[None])))
    assert is_opaque_value(pytensor.shared({"x": X}))


@pytest.mark.parametrize("n", [N, N + 1])
def test_no_error_tells_the_number_of_records(n: int) -> None:
    x = np.linspace(0.0, 1.0, n) ** 2
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Normal("y", b * x, 1.0, observed=x)
        pm.Potential("p", pt.concatenate([x * b, x * b]))
    with pytest.raises(UnsupportedModelError, match="no entry for each") as caught:
        build_record_model(model)
    assert str(n) not in str(caught.value) and str(2 * n) not in str(caught.value)
