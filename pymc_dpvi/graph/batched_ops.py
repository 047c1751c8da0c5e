r"""Operations that PyTensor vectorises by a loop over the batch, written as one on the whole batch.

A graph for one record is vectorised over a batch by `vectorize_graph`. What has no rule there becomes a
``Blockwise``: a loop that calls the operation for each record. JAX cannot compile a loop over a split, whose
sizes must be known at that time. The results without loops are the same, and a record's row depends on that
record as before.

:func:`without_loops`, for compiled code:

* a `Split`, and a `Join` of something that all records share with something that they do not, is one of all
  rows, along the axis after those of the batch (PyTensor's newer versions have the first rule);
* what all records share, looked up by a record (``beta[group]``), is one look-up by all records' indices;
* one entry put into zeros, the gradient of ``p[y]``, is a comparison of all places with the record's;
* if the gradient that comes to a softmax is zero, so is the softmax's. PyMC's parameter checks send zeros.

:func:`stacked` and :func:`written_out`, for densities that Python computes at many points. Each point has a
small matrix, such as the covariance of a multivariate normal. A call of LAPACK from Python takes ten
microseconds or more, and for a 2 × 2 matrix that is nearly all overhead:

* a Cholesky decomposition is NumPy's of the whole stack; if a matrix has none, of each alone (NaN there);
* a triangular system is solved by substitution, row by row for all of the stack,
  :math:`x_i = (b_i - \sum_{j<i} A_{ij} x_j) / A_{ii}` (Golub and Van Loan, algorithm 3.1.1);
* vectors are put on diagonals of zeros, and PyMC's splines (`pm.Interpolated`) take all numbers at once;
* what PyTensor 3 has as a function of its own (a softmax, ``logsumexp``, their derivatives) is written out
  *before* the graph is vectorised, since such a function is vectorised by a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import Add, Mul, Second
from pytensor.tensor import special
from pytensor.tensor.basic import Alloc, Join, Split, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_dpvi.graph.rebuild import resize_records

__all__ = ["joined_at_once", "stacked", "without_loops", "written_out"]

#: Most entries of a record's zeros with one entry that become a comparison.
_FEW = 32


def _axis(op: Op, axis: Sequence[Variable], ndim: int, batch: int) -> int | None:
    """Return the operation's axis, counted after the `batch` axes; None if it is not known.

    `ndim` is the number of axes of a record's array. In PyTensor 3 the operation has its axis, in PyTensor 2
    the axis is an input.
    """
    try:
        known = get_underlying_scalar_constant_value(axis[0], elemwise=True) if axis else op.axis
    except NotScalarConstantError:
        return None
    return int(known) % ndim + batch


def _shared(variable: Variable, batch: int) -> bool:
    """Whether all records share a variable: its batch axes have length one."""
    return all(variable.type.broadcastable[:batch])


def _split(op: Split, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, *axis, sizes = inputs
    along = _axis(op, axis, x.type.ndim - batch, batch)
    if along is None or not _shared(sizes, 1):
        return None
    # No record enters: records are the first axis. Parts of other lengths could not stand in one array.
    one = sizes[(0,) * batch]
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
    """Return all records' integer indices of the first axes, ready to broadcast; None for other indices.

    In PyTensor 3 the operation says where they stand, in PyTensor 2 they stand in order.
    """
    order = getattr(op, "idx_list", None) or range(len(given))
    if tuple(order) != tuple(range(len(given))) or any(i.type.dtype == "bool" for i in given):
        return None
    axes = max(i.type.ndim for i in given)
    return [pt.expand_dims(i, tuple(range(batch, batch + axes - i.type.ndim))) for i in given]


def _look_up(op: AdvancedSubtensor, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, *given = inputs
    indices = _indices(op, given, batch)
    if indices is None or not _shared(x, batch):
        return None
    return [x.squeeze(tuple(range(batch)))[tuple(indices)]]


def _put_in(op: AdvancedIncSubtensor, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    x, entry, *given = inputs
    indices, shape = _indices(op, given, batch), x.type.shape[batch:]
    if indices is None or len(indices) != len(shape) or not _is_zero(x):
        return None
    if (
        None in shape
        or math.prod(shape) > _FEW
        or any(n != 1 for i in (entry, *indices) for n in i.type.shape[batch:])
    ):
        return None
    here: Variable = pt.constant(np.array(True))
    for axis, (n, index) in enumerate(zip(shape, indices, strict=True)):
        if n == 1:  # an index that is in range is this one
            continue
        at = index.squeeze(tuple(range(batch, index.type.ndim)))
        at = pt.switch(at < 0, at + n, at)
        places = pt.arange(n).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        here = here & pt.eq(at[(..., *[None] * len(shape))], places[(*[None] * batch,)])
    entry = entry.squeeze(tuple(range(batch, entry.type.ndim)))
    value = entry[(..., *[None] * len(shape))]
    return [pt.switch(here, value, pt.zeros_like(value)).astype(x.type.dtype)]


def _softmax_gradient(op: Op, inputs: Sequence[Variable], batch: int) -> list[Variable] | None:
    gradient, values = inputs
    return [pt.zeros_like(values)] if _is_zero(gradient) else None


def _fewer_rows(new: Variable, old: Variable, batch: int) -> bool:
    """Whether records would share what each had of its own, because a rule left an input out."""
    pairs = zip(new.type.broadcastable[:batch], old.type.broadcastable[:batch], strict=True)
    return any(one and not before for one, before in pairs)


def _is_zero(variable: Variable) -> bool:
    """Whether it can be seen from the graph that a variable is zero everywhere.

    Zero times anything counts as zero, even times NaN, as in PyTensor's own rewrites.
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
def _one_join(fgraph: FunctionGraph, node: Apply) -> Any:
    """Write a ``Blockwise`` of a `Join` or a `Split` as one operation."""
    return _one(node) if isinstance(node.op.core_op, Join | Split) else None


@node_rewriter([Blockwise])
def _one_operation(fgraph: FunctionGraph, node: Apply) -> Any:
    """Write a ``Blockwise`` as one operation on all rows."""
    return _one(node)


def _one(node: Apply) -> list[Variable] | None:
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
    """Return the same graphs, with loops of the kinds above replaced where a rule fits."""
    graph = _copied(outputs)
    in2out(_one_operation).rewrite(graph)
    return list(graph.outputs)


def joined_at_once(outputs: Sequence[Variable]) -> list[Any]:
    """Return the same graphs, joined and split without a loop: gradients know the lengths of parts then."""
    graph = _copied(outputs)
    in2out(_one_join).rewrite(graph)
    return list(graph.outputs)


def _copied(outputs: Sequence[Variable]) -> FunctionGraph:
    return FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False)


# ------------------------------------------------------------ stacks of matrices, for Python


def cholesky(matrices: np.ndarray) -> np.ndarray:
    """Return lower Cholesky factors of matrices, shape (..., m, m), by their lower triangles; NaN if none."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # it does not say which matrix
        out = np.full_like(matrices, np.nan)
    for at in np.ndindex(*matrices.shape[:-2]):
        try:
            out[at] = np.linalg.cholesky(matrices[at])
        except np.linalg.LinAlgError:
            continue
    return out


def solve_triangular(a: np.ndarray, b: np.ndarray, lower: bool, unit_diagonal: bool) -> np.ndarray:
    """Solve a x = b by substitution; a has shape (..., m, m), of which one triangle is read, b (..., m, n).

    Not finite where a diagonal has a zero.
    """
    size = a.shape[-1]
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    x = np.broadcast_to(b, shape).astype(np.result_type(a, b))
    for k in range(size):
        i, known = (k, slice(0, k)) if lower else (size - 1 - k, slice(size - k, size))
        if k:
            x[..., i, :] -= np.einsum("...j,...jn->...n", a[..., i, known], x[..., known, :])
        if not unit_diagonal:
            x[..., i, :] /= a[..., i, i, None]
    return x


class Stacked(Op):
    """A ``Blockwise`` as one call of a function that takes whole stacks."""

    __props__ = ("looped",)

    def __init__(self, looped: Blockwise) -> None:
        self.looped = looped

    def make_node(self, *inputs: Variable) -> Apply:
        """Return outputs of the loop's types."""
        return Apply(self, list(inputs), [v.type() for v in self.looped.make_node(*inputs).outputs])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute the whole stack."""
        op = self.looped.core_op
        with np.errstate(all="ignore"):
            out = _COMPUTED[type(op).__name__](op, *inputs)
        output_storage[0][0] = np.asarray(out, dtype=node.outputs[0].type.dtype)


def _cholesky(op: Any, matrices: np.ndarray) -> np.ndarray:
    if op.lower:
        return cholesky(matrices)
    return np.swapaxes(cholesky(np.swapaxes(matrices, -1, -2)), -1, -2)


def _solve(op: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if op.b_ndim == 1:
        return solve_triangular(a, b[..., None], op.lower, op.unit_diagonal)[..., 0]
    return solve_triangular(a, b, op.lower, op.unit_diagonal)


def _diagonal(op: Any, vectors: np.ndarray) -> np.ndarray:
    places, offset = np.arange(vectors.shape[-1]), op.offset
    size = len(places) + abs(offset)
    out = np.zeros((*vectors.shape[:-1], size, size), dtype=vectors.dtype)
    out[..., places + max(0, -offset), places + max(0, offset)] = vectors
    ndim = op.fgraph.outputs[0].type.ndim  # of one
    return np.moveaxis(out, (-2, -1), (op.axis1 - ndim, op.axis2 - ndim))


#: By name, as PyTensor 2 and 3 have these operations in different modules.
_COMPUTED: dict[str, Callable[..., np.ndarray]] = {
    "AllocDiag": _diagonal,
    "Cholesky": _cholesky,
    "SolveTriangular": _solve,
    "SplineWrapper": lambda op, x: op.spline(x),
}


@node_rewriter([Blockwise])
def _one_call(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    return [Stacked(node.op)(*node.inputs)] if type(node.op.core_op).__name__ in _COMPUTED else None


def written_out(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the same graphs, with PyTensor's functions (``OpFromGraph``) written out."""
    graph = _copied(outputs)
    while functions := [n for n in graph.toposort() if _is_function(n)]:
        for node in functions:
            graph.replace_all(list(zip(node.outputs, _body(node), strict=True)), import_missing=True)
    return list(graph.outputs)


def _function(node: Apply) -> Op:
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def _is_function(node: Apply) -> bool:
    op = _function(node)
    return isinstance(op, OpFromGraph) and type(op).__name__ not in _COMPUTED


def _body(node: Apply) -> Sequence[Variable]:
    """Return the graph of a function, or of a loop over it, on its arguments."""
    inner: Any = _function(node).fgraph  # type: ignore[attr-defined]
    looped = isinstance(node.op, Blockwise)
    given = [v.type() for v in inner.inputs] if looped else node.inputs
    known = dict(zip(inner.inputs, given, strict=True))
    body, _ = resize_records(inner.outputs, known, num_records=-1, rows=-1, everything=True)
    return vectorize_graph(body, dict(zip(given, node.inputs, strict=True))) if looped else body


def stacked(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the same graphs, with no loop over matrices of the kinds above, for Python to compute."""
    graph = _copied(outputs)
    in2out(_one_call).rewrite(graph)
    return list(graph.outputs)
