"""Operations on a batch without a loop over its records, and with the values that the loop has."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import SplineWrapper
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor import special
from pytensor.tensor.basic import Split, alloc_diag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor
from scipy.interpolate import InterpolatedUnivariateSpline
from zoo import ZOO

from pymc_dpvi import DPADVI
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.private_sum import private_sum
from pymc_dpvi.engine.sums_of_step import in_microbatches
from pymc_dpvi.graph.batched_ops import cholesky, solve_triangular, stacked, without_loops, written_out
from pymc_dpvi.graph.gradients import aligned_gradients
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.posterior.approximation import DPMeanField

ROWS = 5


def loops(outputs: list[Variable]) -> list[Any]:
    return [
        v.owner.op for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, Blockwise)
    ]


def looped(graph: Variable, over: Variable) -> tuple[Variable, list[Variable]]:
    """The rows of `over`, and the graph vectorised over them as PyTensor does where it has no rule."""
    rows = pt.tensor("rows", dtype=over.type.dtype, shape=(ROWS, *over.type.shape))
    vectorised = vectorize_graph([graph], {over: rows})
    return rows, list(vectorised)


def split_in_a_loop(rows: Variable, sizes: Variable, axis: int, each: str, parts: str) -> list[Variable]:
    """A split of each of the rows; the axis is an input in PyTensor 2, and belongs to the operation in 3."""
    if "axis" in Split.__props__:
        op = Blockwise(Split(2, axis % (rows.type.ndim - 1)), signature=f"{each},(s)->{parts}")
        return list(op(rows, sizes, return_list=True))
    op = Blockwise(Split(2), signature=f"{each},(),(s)->{parts}")
    return list(op(rows, np.int64(axis), sizes, return_list=True))


def check(rows: Variable, before: list[Variable], names: tuple[str, ...]) -> None:
    after = without_loops(before)
    assert not [op for op in loops(after) if str(op.core_op).startswith(names)]
    assert [v.type.shape[0] for v in after] == [ROWS] * len(after)
    value = np.random.default_rng(0).normal(size=rows.type.shape)
    both = pytensor.function([rows], [*before, *after], mode="FAST_COMPILE")(value)
    for one, other in zip(both[: len(before)], both[len(before) :], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_a_split_of_every_record(axis: int):
    x = pt.tensor("x", shape=(3, 4))
    sizes = [1, x.type.shape[axis] - 1]
    rows = pt.tensor("rows", shape=(ROWS, 3, 4))
    before = split_in_a_loop(rows, pt.constant(sizes), axis, "(i,j)", "(k,l),(m,n)")
    assert loops(before)
    check(rows, before, ("Split",))


@pytest.mark.parametrize("axis", [0, -1])
def test_a_join_with_what_all_records_share(axis: int):
    x, same = pt.tensor("x", shape=(3, 2)), pt.constant(np.arange(6.0).reshape(3, 2))
    rows, before = looped(pt.join(axis, same, x, same), x)
    assert loops(before)
    check(rows, before, ("Join",))


def same_without_loops(given: dict[Variable, np.ndarray], graph: Variable) -> None:
    """Vectorise a record's graph, write its loop as one operation, and compare with one record at a time."""
    rows = {v: v.type.clone(shape=(ROWS, *v.type.shape))() for v in given}
    before = [vectorize_graph(graph, rows)]
    kind = type(graph.owner.op)
    assert kind in [type(op.core_op) for op in loops(before)]
    after = without_loops(before)
    assert kind not in [type(op.core_op) for op in loops(after)]
    found = pytensor.function(list(rows.values()), after, mode="FAST_COMPILE", on_unused_input="ignore")
    one = pytensor.function(list(given), graph, mode="FAST_COMPILE", on_unused_input="ignore")
    values = list(given.values())
    np.testing.assert_array_equal(found(*values)[0], [one(*[v[i] for v in values]) for i in range(ROWS)])


TABLE = pt.constant(np.random.default_rng(2).normal(size=(4, 3, 2)))


def some_indices(*shape: int, below: int = 4) -> np.ndarray:
    """As in Python, from -below to below - 1."""
    return np.random.default_rng(3).integers(-below, below, size=(ROWS, *shape))


@pytest.mark.parametrize("shape", [(1,), (2,), (2, 3)])
def test_a_look_up_of_what_is_shared(shape: tuple[int, ...]):
    i = pt.tensor("i", dtype="int64", shape=shape)
    same_without_loops({i: some_indices(*shape)}, TABLE[i])


def test_a_look_up_along_two_axes():
    i, j = pt.tensor("i", dtype="int64", shape=(2,)), pt.tensor("j", dtype="int64", shape=(3, 1))
    same_without_loops({i: some_indices(2), j: some_indices(3, 1, below=3)}, TABLE[i, j])


def entry_gradient(shape: tuple[int, ...], n: int = 1) -> tuple[dict[Variable, np.ndarray], Variable]:
    """The gradient of ``p[i, j, ...]``, zeros but for one entry."""
    p = pt.tensor("p", shape=shape)
    at = {pt.tensor("i", dtype="int64", shape=(n,)): some_indices(n, below=size) for size in shape}
    weight = pt.tensor("weight", shape=(1,))
    graph = pytensor.grad((p[tuple(at)] * weight).sum(), p)
    return {weight: np.random.default_rng(4).normal(size=(ROWS, 1)), p: np.ones((ROWS, *shape)), **at}, graph


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4), (2, 1, 5)])
def test_one_entry_in_zeros(shape: tuple[int, ...]):
    same_without_loops(*entry_gradient(shape))


def same_without_loops_at_places(given: dict[Variable, np.ndarray], graph: Variable) -> None:
    """The same of a graph that is vectorised over places of local values first, then over records."""
    places = 3
    inner = {v: v.type.clone(shape=(places, *v.type.shape))() for v in given}
    at_places = vectorize_graph(graph, inner)
    rows = {v: v.type.clone(shape=(ROWS, *v.type.shape))() for v in inner.values()}
    before = [vectorize_graph(at_places, rows)]
    kind = type(graph.owner.op)
    assert kind in [type(op.core_op) for op in loops(before)]
    after = without_loops(before)
    assert kind not in [type(op.core_op) for op in loops(after)]
    assert after[0].type.shape[:2] == (ROWS, places)
    rng = np.random.default_rng(5)
    values = [rng.permuted(np.stack([v] * places, axis=1), axis=0) for v in given.values()]
    one, found = (
        pytensor.function(list(of), out, mode="FAST_COMPILE", on_unused_input="ignore")
        for of, out in ((given, graph), (rows.values(), after[0]))
    )
    expected = [[one(*[v[i, k] for v in values]) for k in range(places)] for i in range(ROWS)]
    np.testing.assert_array_equal(found(*values), expected)


@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_a_look_up_at_places(shape: tuple[int, ...]):
    i = pt.tensor("i", dtype="int64", shape=shape)
    same_without_loops_at_places({i: some_indices(*shape)}, TABLE[i])


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_one_entry_in_zeros_at_places(shape: tuple[int, ...]):
    same_without_loops_at_places(*entry_gradient(shape))


@pytest.mark.parametrize(("shape", "n"), [((3,), 2), ((40,), 1)])
def test_several_entries_or_long_zeros_stay_a_loop(shape: tuple[int, ...], n: int):
    given, graph = entry_gradient(shape, n)
    rows = {v: v.type.clone(shape=(ROWS, *v.type.shape))() for v in given}
    left = loops(without_loops([vectorize_graph(graph, rows)]))
    assert AdvancedIncSubtensor in [type(op.core_op) for op in left]


def test_an_entry_of_what_is_not_zero_stays_a_loop():
    p, i = pt.tensor("p", shape=(3,)), pt.tensor("i", dtype="int64", shape=(1,))
    rows = {v: v.type.clone(shape=(ROWS, *v.type.shape))() for v in (p, i)}
    assert loops(without_loops([vectorize_graph(p[i].inc(1.0), rows)]))


@pytest.mark.skipif(not hasattr(special, "SoftmaxGrad"), reason="no operation of its own in PyTensor 3")
def test_the_gradient_of_a_softmax_that_nothing_comes_to():
    x = pt.tensor("x", shape=(3,))
    nothing = pt.zeros(3) + pt.ones(3) * np.zeros(3)
    rows, zero = looped(special.SoftmaxGrad(axis=0)(nothing, x), x)
    assert loops(zero) and not loops(without_loops(zero))
    value = np.random.default_rng(0).normal(size=(ROWS, 3))
    np.testing.assert_array_equal(
        pytensor.function([rows], without_loops(zero))(value)[0], np.zeros((ROWS, 3))
    )
    _, other = looped(special.SoftmaxGrad(axis=0)(nothing + np.array([0.0, 1e-300, 0.0]), x), x)
    assert loops(without_loops(other))


@pytest.mark.parametrize(
    "name",
    [
        "normal_mixture",
        "zero_inflated_poisson",
        "polynomial_broadcast_scalar",
        "bnn_two_layers",
        "radon_centered",
    ],
)
def test_models_that_had_such_a_loop(name: str):
    record = build_record_model(ZOO[name].build())
    latents = DPMeanField(record, random_seed=1).latents
    indices, noise, z = pt.lvector(), pt.lvector(), pt.matrix("z", shape=(1, latents.size))
    data = record.data()
    batch = [
        pt.specify_shape(d[indices], (None, *row.type.shape[1:]))
        for d, row in zip(data, record.rows, strict=True)
    ]
    gradients = aligned_gradients(record, batch, latents, z, 1)
    release = private_sum(gradients, noise, 1.0, np.asarray(2.0**-36), indices.size)
    (cut,) = in_microbatches([release], batch, data, indices, {"mode": "PYTHON"})
    per_record = next(
        v.owner.op.per_record
        for v in ancestors([cut])
        if v.owner is not None and isinstance(v.owner.op, MicrobatchedSum)
    )
    left = loops([out.variable for out in per_record.maker.outputs])
    gone = ("Split", "Join", "SoftmaxGrad", "AdvancedIncSubtensor")
    assert not [op for op in left if type(op.core_op).__name__ in gone]


def test_what_each_record_has_of_its_own_is_not_shared():
    """Zeros of a record that meet what all records share: the result still has a row per record."""
    p, y = pt.tensor("p", shape=(3,)), pt.tensor("y", shape=(3,))
    graphs = [(y * 0.0)[pt.constant([1])].inc(2.0), p[pt.constant([0])].sum() * y]
    if hasattr(special, "SoftmaxGrad"):
        graphs.append(special.SoftmaxGrad(axis=0)(y * 0.0, p))
    for graph in graphs:
        rows = pt.tensor("rows", shape=(None, 3))
        (after,) = without_loops(vectorize_graph([graph], {y: rows}))
        found = pytensor.function([p, rows], after, mode="FAST_COMPILE", on_unused_input="ignore")
        assert found(np.ones(3), np.ones((ROWS, 3))).shape == (ROWS, 3)


@pytest.mark.turns
def test_a_model_with_such_zeros_can_be_fitted():
    with pm.Model() as model:
        mu, v = pm.Normal("mu"), pm.Normal("v", shape=3)
        y = pm.Data("y", np.arange(12.0))
        nothing = (pm.math.softmax(v) * pt.zeros(3)).sum()
        pm.Potential("density", -((y - mu) ** 2) + y * nothing)
    fit = DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.9, model=model).fit(5, progressbar=False)
    assert np.isfinite(fit.mean.eval()).all()


def test_where_it_cannot_be_helped_the_loop_stays():
    """Sizes of a split that each record has of its own."""
    rows, sizes = pt.tensor("rows", shape=(ROWS, 4)), pt.tensor("sizes", dtype="int64", shape=(ROWS, 2))
    before = split_in_a_loop(rows, sizes, 0, "(i)", "(k),(m)")
    after = without_loops(before)
    assert [type(v.owner.op) for v in after] == [Blockwise] * 2


def test_graphs_that_are_given_stay_as_they_are():
    x, same = pt.tensor("x", shape=(3,)), pt.constant(np.arange(2.0))
    _, before = looped(pt.concatenate([same, x]), x)
    without_loops(before)
    assert loops(before)


# -------------------------------------------------------------------------------- stacks of matrices

STACK = (4, 3)


def check_stacked(inputs: list[Variable], before: Variable, values: list[np.ndarray]) -> np.ndarray:
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
    found = check_stacked([x], pt.linalg.cholesky(x, lower=lower), [values])
    back = found if lower else np.swapaxes(found, -1, -2)
    np.testing.assert_allclose(back @ np.swapaxes(back, -1, -2), values)


@pytest.mark.turns
def test_one_matrix_without_a_factor_takes_none_from_the_others() -> None:
    values = covariances(3)
    values[1, 2] -= 100.0 * np.eye(3)
    values[3, 0] = np.nan
    x = pt.tensor("x", shape=values.shape)
    found = check_stacked([x], pt.linalg.cholesky(x), [values])
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
    check_stacked([a, b], graph, [a_value, b_value])


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
    check_stacked([x], graph, [np.random.default_rng(0).normal(size=x.type.shape)])


def test_splines() -> None:
    spline = InterpolatedUnivariateSpline(np.arange(5.0), [0.0, 1.0, 0.5, 2.0, 1.0], k=2, ext="zeros")
    one, x = pt.dscalar("one"), pt.tensor("x", shape=(*STACK, 2))
    values = np.random.default_rng(0).uniform(-1.0, 5.0, size=x.type.shape)
    for op in map(SplineWrapper, (spline, spline.derivative())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyMC 6's has a gradient as of PyTensor 2
            graph = vectorize_graph(op(one), {one: x})
        check_stacked([x], graph, [values])


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
