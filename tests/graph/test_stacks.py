"""Linear algebra on stacks against PyTensor's loop over their matrices."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import SplineWrapper
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.basic import alloc_diag
from pytensor.tensor.blockwise import Blockwise
from scipy.interpolate import InterpolatedUnivariateSpline

from pymc_dpvi.graph.stacks import cholesky, solve_triangular, stacked, written_out

STACK = (4, 3)


def loops(outputs: list[Variable]) -> list[Variable]:
    return [v for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, Blockwise)]


def check(inputs: list[Variable], before: Variable, values: list[np.ndarray]) -> np.ndarray:
    """No loop is left, and what it computed is."""
    (after,) = stacked([before])
    assert loops([before]) and not loops([after])
    assert after.type == before.type
    one, other = pytensor.function(inputs, [before, after], mode="FAST_COMPILE")(*values)
    assert one.shape == other.shape and one.dtype == other.dtype
    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    return other


def covariances(size: int) -> np.ndarray:
    root = np.random.default_rng(size).normal(size=(*STACK, size, size + 2))
    return root @ np.swapaxes(root, -1, -2)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_factors(size: int, lower: bool) -> None:
    x = pt.tensor("x", shape=(*STACK, size, size))
    values = covariances(size)
    found = check([x], pt.linalg.cholesky(x, lower=lower), [values])
    back = found if lower else np.swapaxes(found, -1, -2)
    np.testing.assert_allclose(back @ np.swapaxes(back, -1, -2), values)


def test_one_matrix_without_a_factor_takes_none_from_the_others() -> None:
    values = covariances(3)
    values[1, 2] -= 100.0 * np.eye(3)
    values[3, 0] = np.nan
    x = pt.tensor("x", shape=values.shape)
    found = check([x], pt.linalg.cholesky(x), [values])
    bad = np.isnan(found).any(axis=(2, 3))
    assert bad[1, 2] and bad[3, 0] and bad.sum() == 2 and np.isfinite(found[~bad]).all()
    np.testing.assert_array_equal(found[~bad], cholesky(values[~bad]))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("columns", [None, 1, 4])
@pytest.mark.parametrize("one_for_all", [True, False])
def test_triangular_systems(lower: bool, unit_diagonal: bool, columns: int | None, one_for_all: bool) -> None:
    """The other triangle is not read, and a matrix may be that of all right-hand sides."""
    rng = np.random.default_rng(0)
    a_value = rng.normal(size=(*((1, 1) if one_for_all else STACK), 3, 3)) + 3.0 * np.eye(3)
    b_value = rng.normal(size=(*STACK, 3, *([] if columns is None else [columns])))
    a, b = pt.tensor("a", shape=a_value.shape), pt.tensor("b", shape=b_value.shape)
    graph = pt.linalg.solve_triangular(
        a, b, lower=lower, unit_diagonal=unit_diagonal, b_ndim=1 if columns is None else 2
    )
    check([a, b], graph, [a_value, b_value])


def test_a_singular_system_is_not_finite_and_harms_no_other() -> None:
    a, b = np.repeat(np.tril(np.ones((3, 3)))[None], 2, axis=0), np.ones((2, 3, 1))
    a[1, 1, 1] = 0.0
    with np.errstate(all="ignore"):
        x = solve_triangular(a, b, lower=True, unit_diagonal=False)
    np.testing.assert_array_equal(x[0, :, 0], [1.0, 0.0, 0.0])
    assert not np.isfinite(x[1]).all()
    np.testing.assert_array_equal(b, 1.0)  # what was given stays


@pytest.mark.parametrize("offset", [0, 1, -2])
@pytest.mark.parametrize(("axis1", "axis2"), [(0, 1), (1, 2), (0, 2)])
def test_diagonals(offset: int, axis1: int, axis2: int) -> None:
    one = pt.tensor("one", shape=(2, 3))
    x = pt.tensor("x", shape=(*STACK, 2, 3))
    graph = vectorize_graph(alloc_diag(one, offset, axis1, axis2), {one: x})
    check([x], graph, [np.random.default_rng(0).normal(size=x.type.shape)])


def test_splines() -> None:
    spline = InterpolatedUnivariateSpline(np.arange(5.0), [0.0, 1.0, 0.5, 2.0, 1.0], k=2, ext="zeros")
    one, x = pt.dscalar("one"), pt.tensor("x", shape=(*STACK, 2))
    values = np.random.default_rng(0).uniform(-1.0, 5.0, size=x.type.shape)
    for op in map(SplineWrapper, (spline, spline.derivative())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyMC 6's has a gradient as of PyTensor 2
            graph = vectorize_graph(op(one), {one: x})
        check([x], graph, [values])


def test_functions_are_written_out() -> None:
    """In PyTensor 3 these are functions, and so are their derivatives: a loop, once vectorised."""
    one = pt.vector("one", shape=(4,))
    value = pt.logsumexp(one) + pt.special.softmax(one)[0] + pt.special.log_softmax(one)[1]
    before = [value, pytensor.grad(value, one)]
    same = vectorize_graph(before, {one: pt.vector("same", shape=(4,))})  # a loop over nothing, in PyTensor 3
    again = graph_replace(same, {v: one for v in graph_inputs(same) if v.name == "same"})
    check_written_out(one, before, written_out(before))
    check_written_out(one, before, written_out(again))


def check_written_out(one: Variable, before: list[Variable], after: list[Variable]) -> None:
    rows = pt.matrix("rows", shape=(5, 4))
    for var in ancestors(after):
        if var.owner is not None:
            assert not isinstance(getattr(var.owner.op, "core_op", var.owner.op), OpFromGraph)
    many = vectorize_graph(after, {one: rows})
    at = np.abs(np.random.default_rng(0).normal(size=(5, 4)))
    found = pytensor.function([rows], many, mode="FAST_COMPILE")(at)
    single = pytensor.function([one], before, mode="FAST_COMPILE")
    for k, row in enumerate(at):
        for wanted, all_of_them in zip(single(row), found, strict=True):
            np.testing.assert_allclose(all_of_them[k], wanted, rtol=1e-10)
