"""Rewrites of a record's log-density: the same values and slopes with fewer exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Exp, Switch
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import Elemwise
from zoo import ZOO

from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.simplified import simplified

#: As written: otherwise both are rewritten to the same.
AS_WRITTEN = Mode("py", optimizer=None)
VALUES = np.array([-np.inf, -800.0, -40.0, -1.5, -0.0, 0.0, 1e-300, 0.3, 36.0, 800.0, np.inf, np.nan])


def count(graph: Variable, *kinds: Any) -> int:
    nodes = {v.owner for v in ancestors([graph]) if v.owner is not None}
    return sum(isinstance(getattr(node.op, "scalar_op", None), kinds) for node in nodes)


def rewritten(graph: Variable, *rows: Variable) -> Any:
    (copy,) = clone_replace([graph])
    return simplified(copy, list(rows))


def bernoulli() -> tuple[Any, Any, Any]:
    """PyMC's density of a Bernoulli outcome by its logit, as one record's."""
    x, y = pt.tensor("x", shape=(1,)), pt.tensor("y", shape=(1,), dtype="int64")
    stable = pytensor.graph.rewriting.utils.rewrite_graph(
        pm.logp(pm.Bernoulli.dist(logit_p=x), y), include=("stabilize",)
    )
    return x, y, stable


def test_a_bernoulli_outcome_takes_one_logarithm():
    x, y, density = bernoulli()
    new = rewritten(density, x, y)
    assert count(density, Softplus) == 2 and count(density, Sigmoid) > 0
    assert count(new, Softplus) == 1 and not count(new, Sigmoid)
    slopes = [pytensor.grad(d.sum(), x) for d in (density, new)]
    assert count(slopes[1], Sigmoid) < count(slopes[0], Sigmoid)


def test_values_and_slopes_are_the_same_bit_by_bit():
    x, y, density = bernoulli()
    new = rewritten(density, x, y)
    both = [d for density in (density, new) for d in (density, pytensor.grad(density.sum(), x))]
    found = pytensor.function([x, y], both, mode=AS_WRITTEN)
    with np.errstate(all="ignore"):
        for value in VALUES[:-1]:  # PyMC's check raises at NaN
            for outcome in (-1, 0, 1, 2):
                old, slope, now, new_slope = found(np.array([value]), np.array([outcome]))
                np.testing.assert_array_equal(old, now)
                assert np.isnan(slope) or slope == new_slope


@pytest.mark.parametrize("bound", [-1.0, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("compare", [pt.ge, pt.le])
@pytest.mark.parametrize("function", [pt.sigmoid, pt.exp])
def test_comparisons_hold_for_the_same_numbers(function: Any, compare: Any, bound: float):
    x = pt.tensor("x", shape=(1,))
    graph = compare(function(x), bound)
    found = pytensor.function([x], [graph, rewritten(graph, x)], mode=AS_WRITTEN)
    with np.errstate(all="ignore"):
        for value in VALUES:
            np.testing.assert_array_equal(*found(np.array([value])))
    always = bound <= 0 if compare is pt.ge else bound >= 1 and function is pt.sigmoid
    assert count(rewritten(graph, x), Sigmoid, Exp) == (not always)


def test_what_records_share_is_not_computed_for_each():
    x, shared = pt.tensor("x", shape=(1,)), pt.tensor("shared", shape=(1,))
    for arms in ((shared, -shared), (x, shared)):
        graph = pt.switch(pt.gt(x, 0), pt.exp(arms[0]), pt.exp(arms[1]))
        assert count(rewritten(graph, x), Exp) == 2
    graph = pt.switch(pt.gt(x, 0), pt.exp(x), pt.exp(-x))
    assert count(rewritten(graph, x), Exp) == 1


def test_arms_of_other_shapes_or_functions_stay():
    x, number, wide = pt.tensor("x", shape=(1,)), pt.scalar("number"), pt.tensor("wide", shape=(1, 5))
    for graph in (
        pt.switch(pt.gt(wide, 0), pt.exp(x), pt.exp(-x)),
        pt.switch(pt.gt(x, 0), pt.exp(number), pt.exp(-number)),
        pt.switch(pt.gt(x, 0), pt.exp(x), pt.log(x)),
        pt.switch(pt.gt(x, 0), pt.exp(x), 0.0),
    ):
        assert count(rewritten(graph, x, number, wide), Switch) == 1
        assert isinstance(rewritten(graph, x, number, wide).owner.op, Elemwise)
        assert isinstance(rewritten(graph, x, number, wide).owner.op.scalar_op, Switch)


@pytest.mark.parametrize("name", ["logistic_logit", "probit", "ordered_logistic", "zero_inflated_poisson"])
def test_models_of_the_zoo_have_the_density_that_they_had(name: str):
    model = ZOO[name].build()
    record = build_record_model(model)
    start = model.initial_point(0)
    shapes = [*(r.type.shape for r in record.rows), *(start[v.name].shape for v in record.value_vars)]
    inputs = [*record.rows, *record.value_vars]
    both = [record.row_logp, rewritten(record.row_logp, *record.rows)]
    terms = pytensor.function(inputs, both, mode="FAST_COMPILE", on_unused_input="ignore")
    rng, finite = np.random.default_rng(0), 0
    for _ in range(20):
        given = [
            np.asarray(
                rng.normal(size=shape) if v.type.dtype.startswith("float") else rng.integers(0, 2, shape),
                dtype=v.type.dtype,
            )
            for v, shape in zip(inputs, shapes, strict=True)
        ]
        old, new = terms(*given)
        np.testing.assert_allclose(old, new, rtol=1e-12)
        finite += bool(np.isfinite(old))
    assert finite
