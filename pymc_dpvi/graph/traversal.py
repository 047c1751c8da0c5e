"""Walk a PyTensor graph: what a variable depends on, and what an array of the model holds.

A walk follows what a graph computes with. So it looks into inner graphs for constants, leaves out the
``size`` of random variables unless asked for it, and may leave out the number of columns, which everybody
knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor
from pytensor.tensor.type import TensorType

__all__ = [
    "array_shape",
    "array_value",
    "depends_on",
    "is_array",
    "own_loops",
    "substituted",
    "vectorized",
    "walk",
]


def walk(
    outputs: Iterable[Variable],
    stop: Iterable[Variable] = (),
    *,
    into_size: bool = False,
    columns_of: Collection[Variable] | None = (),
) -> list[Variable]:
    """List the ancestors of `outputs` and themselves, each once, inputs before outputs.

    Nothing behind `stop` is looked at. With `into_size`, the ``size`` and generator inputs of random
    variables are followed too. What reads only the number of columns of the arrays `columns_of` (None: of any
    array) is not followed: it is part of the schema. Constants captured in inner graphs are listed.
    """
    stopped = set(stop)
    order: list[Variable] = []
    done: set[Variable] = set()
    stack: list[tuple[Variable, bool]] = [(v, False) for v in reversed(list(outputs))]
    while stack:
        var, expanded = stack.pop()
        if var in done:
            continue
        if expanded or var.owner is None or var in stopped:
            done.add(var)
            order.append(var)
            continue
        stack.append((var, True))
        inputs = var.owner.inputs
        if columns_of != () and _reads_columns(var, columns_of):
            inputs = []
        elif isinstance(var.owner.op, RandomVariable) and not into_size:
            inputs = var.owner.op.dist_params(var.owner)
        stack.extend(
            (i, False) for i in reversed([*_inner_constants(var.owner.op), *inputs]) if i not in done
        )
    return order


def _inner_constants(op: Any) -> list[Variable]:
    """Return the constants that are captured in the inner graph of an op, such as that of a `Scan`."""
    found: list[Variable] = []
    for inner in (op, getattr(op, "core_op", None)):
        for node in getattr(getattr(inner, "fgraph", None), "apply_nodes", ()):
            random = isinstance(node.op, RandomVariable)  # its size is left out, as in `walk`
            inputs = node.op.dist_params(node) if random else node.inputs
            found += [i for i in inputs if isinstance(i, Constant)]
            found += _inner_constants(node.op)
    return found


def _reads_columns(var: Variable, arrays: Collection[Variable] | None) -> bool:
    """Whether `var` is the length of a trailing axis of one of these arrays as it was given: ``X.shape[1]``.

    The leading length is the number of records, and any length of ``X.T`` may be that. The shape of something
    computed, such as ``pt.nonzero(x)[0].shape``, may depend on values.
    """
    node = var.owner
    if node is None:
        return False
    if isinstance(node.op, Shape_i):
        base, axis = node.inputs[0], node.op.i
    elif isinstance(node.op, Subtensor) and len(node.inputs) in (1, 2):
        shape = node.inputs[0].owner
        entries = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
        if shape is None or not isinstance(shape.op, Shape) or len(entries) != 1:
            return False
        base, axis = shape.inputs[0], getattr(entries[0], "data", entries[0])
        if not isinstance(axis, int | np.integer | np.ndarray):
            return False
    else:
        return False
    known = arrays is None or base in arrays or not is_array(base)
    trailing = int(axis) > 0 or -base.type.ndim < int(axis) < 0
    return known and base.owner is None and trailing


def depends_on(
    outputs: Iterable[Variable],
    held: Iterable[Variable],
    stop: Iterable[Variable] = (),
    *,
    into_size: bool = False,
) -> bool:
    """Whether `outputs` can depend on `held`, but for numbers of columns and, without `into_size`, sizes."""
    wanted = set(held)
    return any(v in wanted for v in walk(outputs, stop=stop, into_size=into_size, columns_of=None))


def is_array(var: Variable) -> bool:
    """Whether `var` is a constant or shared array of numbers."""
    return isinstance(var, Constant | SharedVariable) and isinstance(var.type, TensorType)


def _held(var: Variable) -> Any:
    return var.get_value(borrow=True) if isinstance(var, SharedVariable) else var.data  # type: ignore[attr-defined]


def array_value(var: Variable) -> np.ndarray:
    """Return the numbers of a constant or shared array, without a copy where that is possible."""
    return np.asarray(_held(var))


def array_shape(var: Variable) -> tuple[int, ...]:
    """Return the shape of a constant or shared array, dense or sparse."""
    return tuple(_held(var).shape)


def substituted(outputs: Sequence[Variable], swap: Mapping[Variable, Variable]) -> list[Variable]:
    """Put other variables in place of some; nothing behind a replaced one is looked at.

    ``pytensor.graph.replace.graph_replace`` raises "not a part of graph" in PyTensor 2 where one of the
    replaced variables is needed for another one alone.
    """
    memo = dict(swap)
    for node in io_toposort(list(swap), list(outputs)):
        inputs = [memo.get(i, i) for i in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            for old, new in zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True):
                memo.setdefault(old, new)
    return [memo.get(out, out) for out in outputs]


def vectorized(graphs: Sequence[Variable], swap: Mapping[Variable, Variable]) -> list[Any]:
    """PyTensor's `vectorize_graph`, also of sums of a number along an axis that it has not.

    NumPy and PyTensor take ``tau.sum(axis=-1)`` of a number for the number, and PyMC's CAR writes it.
    """
    numbers: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        if isinstance(node.op, CAReduce) and node.op.axis is not None and not node.inputs[0].type.ndim:
            (number,) = substituted(node.inputs, numbers)
            numbers[node.outputs[0]] = number.astype(node.outputs[0].type.dtype)
    return list(vectorize_graph(substituted(graphs, numbers) if numbers else list(graphs), dict(swap)))


def own_loops(graphs: Sequence[Variable]) -> list[Any]:
    """Give each loop a graph of its own inside, and take off a Blockwise that repeats it once.

    PyTensor 2 compiles the inner graph in place, also behind a Blockwise in a copy, and then it has no
    gradient. So what is compiled must not be the model's own.
    """
    loops: dict[Variable, Variable] = {}
    for var in walk(graphs):
        node = var.owner
        if node is None or var in loops:
            continue
        plain = isinstance(node.op, Blockwise) and not node.op.batch_ndim(node)
        op = node.op.core_op if plain else node.op
        if isinstance(op, Scan):
            inputs = substituted(node.inputs, loops)  # of loops before it
            loops.update(zip(node.outputs, op.clone().make_node(*inputs).outputs, strict=True))
    return substituted(graphs, loops) if loops else list(graphs)
