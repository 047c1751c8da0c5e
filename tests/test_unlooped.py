"""`Split` and `Join` of a batch without a loop over its records, and with the values that the loop has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.blockwise import Blockwise
from zoo import ZOO

from pymc_dpvi.approximation import DPMeanField
from pymc_dpvi.clipping import private_sum
from pymc_dpvi.gradients import aligned_gradients
from pymc_dpvi.pieces import PiecewiseSum, in_pieces
from pymc_dpvi.records import build_record_model
from pymc_dpvi.unlooped import without_loops

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


@pytest.mark.parametrize("name", ["normal_mixture", "zero_inflated_poisson", "polynomial_broadcast_scalar"])
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
    (cut,) = in_pieces([release], batch, data, indices, {"mode": "PYTHON"})
    per_record = next(
        v.owner.op.per_record
        for v in ancestors([cut])
        if v.owner is not None and isinstance(v.owner.op, PiecewiseSum)
    )
    left = loops([out.variable for out in per_record.maker.outputs])
    assert not [op for op in left if isinstance(op.core_op, Split | Join)]


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
