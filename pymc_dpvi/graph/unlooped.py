"""Operations that PyTensor vectorises by a loop over the records, written as one.

A graph for one record is vectorised over a batch by `vectorize_graph`. What has no rule there becomes a
``Blockwise``: a loop that calls the operation for each record. For `Split`, and for a `Join` of something
that all records share with something that they do not, nothing is to be computed, and one operation on all
rows does the same, along the axis after those of the batch. PyTensor's newer versions have the first rule.
JAX has no such loop at all, since a split's sizes must be known when it compiles.

Three more loops that models of groups and classes have, each a good part of their step:

* what all records share, looked up by a record (``beta[group]``), is one look-up by all records' indices;
* one entry put into zeros, the gradient of ``p[y]``, is a comparison of all places with the record's;
* the gradient of a softmax is zero where what comes to it is: checks of its parameters send zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import Add, Mul, Second
from pytensor.tensor import special
from pytensor.tensor.basic import Alloc, Join, Split, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

__all__ = ["without_loops"]

#: Entries up to which a record's zeros with one entry are a comparison.
_FEW = 32


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


def _split(op: Split, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, *axis, sizes = inputs
    along = _axis(op, axis, x.type.ndim - batch, batch)
    if along is None or not _shared(sizes, batch):
        return None
    one = sizes.squeeze(tuple(range(batch)))
    return list(pt.split(x, one, n_splits=op.len_splits, axis=along))


def _join(op: Join, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    first = 0 if hasattr(op, "axis") else 1
    axis, parts = inputs[:first], list(inputs[first:])
    along = _axis(op, axis, parts[0].type.ndim - batch, batch)
    if along is None:
        return None
    rows = pt.broadcast_shape(*[p[(..., *[0] * (p.type.ndim - batch))] for p in parts])
    same = len({p.type.broadcastable[:batch] for p in parts}) == 1
    if not same:
        parts = [pt.broadcast_to(p, (*rows, *p.shape[batch:])) for p in parts]
    return [pt.join(along, *parts)]


def _indices(op: Op, given: Sequence[Variable], batch: int) -> list[Variable] | None:
    """Return integer indices of the first axes, of all records, as they broadcast; None for others.

    In PyTensor 3 the operation says where they stand, in PyTensor 2 they stand in order.
    """
    order = getattr(op, "idx_list", None) or range(len(given))
    if batch != 1 or tuple(order) != tuple(range(len(given))) or any(i.type.dtype == "bool" for i in given):
        return None
    axes = max(i.type.ndim for i in given)
    return [pt.expand_dims(i, tuple(range(1, 1 + axes - i.type.ndim))) for i in given]


def _look_up(op: AdvancedSubtensor, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, *given = inputs
    indices = _indices(op, given, batch)
    if indices is None or not _shared(x, batch):
        return None
    return [x.squeeze(0)[tuple(indices)]]


def _put_in(op: AdvancedIncSubtensor, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, entry, *given = inputs
    indices, shape = _indices(op, given, batch), x.type.shape[batch:]
    if indices is None or len(indices) != len(shape) or not _is_zero(x):
        return None
    if (
        None in shape
        or math.prod(shape) > _FEW
        or any(n != 1 for i in (entry, *indices) for n in i.type.shape[1:])
    ):
        return None
    here: Variable = pt.constant(np.array(True))
    for axis, (n, index) in enumerate(zip(shape, indices, strict=True)):
        if n == 1:  # an index that is in range is this one
            continue
        at = index.reshape((-1,))
        at = pt.switch(at < 0, at + n, at)
        places = pt.arange(n).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        here = here & pt.eq(at[(slice(None), *[None] * len(shape))], places[None])
    value = entry.reshape((-1, *[1] * len(shape)))
    return [pt.switch(here, value, pt.zeros_like(value)).astype(x.type.dtype)]


def _softmax_gradient(op: Op, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    gradient, values = inputs
    return [pt.zeros_like(values)] if _is_zero(gradient) else None


def _fewer_rows(new: Variable, old: Variable, batch: int) -> bool:
    """Whether records would share what they had of their own, as where a rule leaves an input out."""
    pairs = zip(new.type.broadcastable[:batch], old.type.broadcastable[:batch], strict=True)
    return any(one and not before for one, before in pairs)


def _is_zero(variable: Variable) -> bool:
    """Whether it can be seen from the graph that a variable is zero everywhere.

    Zero times anything is, as in PyTensor's own rewrites, which do not think of NaN.
    """
    node = variable.owner
    if node is None:
        return isinstance(variable, Constant) and not np.any(variable.data)
    if isinstance(node.op, DimShuffle | Alloc):
        return _is_zero(node.inputs[0])
    scalar = node.op.scalar_op if isinstance(node.op, Elemwise) else None
    if isinstance(scalar, Second):
        return _is_zero(node.inputs[1])
    if isinstance(scalar, Add):
        return all(map(_is_zero, node.inputs))
    return isinstance(scalar, Mul) and any(map(_is_zero, node.inputs))


_RULES: dict[type[Op], Callable[[Any, Sequence[Variable], int], list[Variable] | None]] = {
    Split: _split,
    Join: _join,
    AdvancedSubtensor: _look_up,
    AdvancedIncSubtensor: _put_in,
}
if hasattr(special, "SoftmaxGrad"):  # in PyTensor 2; in 3 it is no operation of its own
    _RULES[special.SoftmaxGrad] = _softmax_gradient


@node_rewriter([Blockwise])
def _one_operation(fgraph: FunctionGraph, node: Apply) -> Any:
    """Write a ``Blockwise`` as one operation on all rows."""
    op = node.op.core_op
    rule = _RULES.get(type(op))
    batch = node.op.batch_ndim(node)
    new = None if rule is None else rule(op, node.inputs, batch)
    if new is None or any(_fewer_rows(v, old, batch) for v, old in zip(new, node.outputs, strict=True)):
        return None
    return [
        pt.specify_shape(v, old.type.shape) if old.type.shape != v.type.shape else v
        for v, old in zip(new, node.outputs, strict=True)
    ]


def without_loops(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the same graphs, with no loop of the kinds above in them where it can be helped."""
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False)
    in2out(_one_operation).rewrite(graph)
    return list(graph.outputs)
