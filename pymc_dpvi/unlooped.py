"""Operations that PyTensor vectorises by a loop over the records, written as one.

A graph for one record is vectorised over a batch by `vectorize_graph`. What has no rule there becomes a
``Blockwise``: a loop that calls the operation for each record. For `Split`, and for a `Join` of something
that all records share with something that they do not, nothing is to be computed, and one operation on all
rows does the same, along the axis after those of the batch. PyTensor's newer versions have the first rule.
JAX has no such loop at all, since a split's sizes must be known when it compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.basic import Join, Split, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.exceptions import NotScalarConstantError

__all__ = ["without_loops"]


def _axis(op: Op, axis: Sequence[Variable], ndim: int, batch: int) -> int | None:
    """Return which of all axes the operation's is, one of `ndim` of a record's array; None if not known.

    In PyTensor 3 the operation has it, in PyTensor 2 it is an input.
    """
    try:
        known = get_underlying_scalar_constant_value(axis[0], elemwise=True) if axis else op.axis
    except NotScalarConstantError:
        return None
    return int(known) % ndim + batch


def _shared(variable: Variable, batch: int) -> bool:
    """Whether all records have the same."""
    return all(variable.type.broadcastable[:batch])


@node_rewriter([Blockwise])
def _one_operation(fgraph: FunctionGraph, node: Apply) -> Any:
    """Write a ``Blockwise`` of `Split` or `Join` as that operation."""
    op, batch = node.op.core_op, node.op.batch_ndim(node)
    if isinstance(op, Split):
        x, *axis, sizes = node.inputs
        along = _axis(op, axis, x.type.ndim - batch, batch)
        if along is None or not _shared(sizes, batch):
            return None
        one = sizes.squeeze(tuple(range(batch)))
        new = list(pt.split(x, one, n_splits=op.len_splits, axis=along))
    elif isinstance(op, Join):
        first = 0 if hasattr(op, "axis") else 1
        axis, parts = node.inputs[:first], node.inputs[first:]
        along = _axis(op, axis, parts[0].type.ndim - batch, batch)
        if along is None:
            return None
        rows = pt.broadcast_shape(*[p[(..., *[0] * (p.type.ndim - batch))] for p in parts])
        same = len({p.type.broadcastable[:batch] for p in parts}) == 1
        if not same:
            parts = [pt.broadcast_to(p, (*rows, *p.shape[batch:])) for p in parts]
        new = [pt.join(along, *parts)]
    else:
        return None
    return [
        pt.specify_shape(v, old.type.shape) if old.type.shape != v.type.shape else v
        for v, old in zip(new, node.outputs, strict=True)
    ]


def without_loops(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the same graphs, with no ``Blockwise`` of `Split` or `Join` in them where it can be helped."""
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False)
    in2out(_one_operation).rewrite(graph)
    return list(graph.outputs)
