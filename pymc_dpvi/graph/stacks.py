r"""Stacks of matrices in NumPy, where PyTensor calls LAPACK for each matrix of a ``Blockwise``.

A density that is vectorised over points has a small matrix for each point: the Cholesky factor of a
covariance and the triangular systems of a multivariate normal. A call of LAPACK from Python takes ten
microseconds and more, which for a 2 × 2 matrix is nearly all overhead. Here

* a Cholesky decomposition is NumPy's of the whole stack, and of each matrix where one has none (NaN there);
* a triangular system is solved by substitution, row by row for all of the stack,
  :math:`x_i = (b_i - \sum_{j<i} A_{ij} x_j) / A_{ii}` (Golub and Van Loan, algorithm 3.1.1);
* vectors are put on diagonals of zeros, and PyMC's splines (`pm.Interpolated`) take all numbers at once;
* what PyTensor 3 has as a function of its own (a softmax, ``logsumexp``, their derivatives) is written out
  *before* the graph is vectorised, since such a function is vectorised by a loop.

For matrices as small as those of priors; for what Python computes, not for compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.blockwise import Blockwise

from pymc_dpvi.graph.rebuild import resize_records

__all__ = ["stacked", "written_out"]


def cholesky(matrices: np.ndarray) -> np.ndarray:
    """Return lower Cholesky factors, NaN for a matrix that has none.

    Parameters
    ----------
    matrices : ndarray, shape (..., m, m)
        Of which the lower triangles are read.

    Returns
    -------
    ndarray, shape (..., m, m)
    """
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # of which matrix it is not said
        out = np.full_like(matrices, np.nan)
    for at in np.ndindex(*matrices.shape[:-2]):
        try:
            out[at] = np.linalg.cholesky(matrices[at])
        except np.linalg.LinAlgError:
            continue
    return out


def solve_triangular(a: np.ndarray, b: np.ndarray, lower: bool, unit_diagonal: bool) -> np.ndarray:
    """Solve triangular systems by substitution.

    Parameters
    ----------
    a : ndarray, shape (..., m, m)
        Of which one triangle is read.
    b : ndarray, shape (..., m, n)
    lower, unit_diagonal : bool

    Returns
    -------
    ndarray, shape (..., m, n)
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
    """A ``Blockwise`` in one call of a function of stacks."""

    __props__ = ("looped",)

    def __init__(self, looped: Blockwise) -> None:
        self.looped = looped

    def make_node(self, *inputs: Variable) -> Apply:
        """Return what the loop has, of the same types."""
        return Apply(self, list(inputs), [v.type() for v in self.looped.make_node(*inputs).outputs])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute."""
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


#: By name: where the operations stand differs between PyTensor 2 and 3.
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
    """Return the same graphs, with what stands in functions of their own written out.

    Parameters
    ----------
    outputs : sequence of Variable

    Returns
    -------
    list of Variable
    """
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
    """Return what a function computes of its arguments, or a loop over batches of them."""
    inner: Any = _function(node).fgraph  # type: ignore[attr-defined]
    looped = isinstance(node.op, Blockwise)
    given = [v.type() for v in inner.inputs] if looped else node.inputs
    known = dict(zip(inner.inputs, given, strict=True))
    body, _ = resize_records(inner.outputs, known, num_records=-1, rows=-1, everything=True)
    return vectorize_graph(body, dict(zip(given, node.inputs, strict=True))) if looped else body


def stacked(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the same graphs, with no loop over matrices of the kinds above, for Python to compute.

    Parameters
    ----------
    outputs : sequence of Variable

    Returns
    -------
    list of Variable
    """
    graph = _copied(outputs)
    in2out(_one_call).rewrite(graph)
    return list(graph.outputs)


def _copied(outputs: Sequence[Variable]) -> FunctionGraph:
    return FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False)
