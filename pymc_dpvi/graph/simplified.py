r"""A record's log-density with fewer exponentials and logarithms: rewrites that PyTensor does not make.

=================================  ========================
``switch(y, f(a), f(b))``          ``f(switch(y, a, b))``
``sigmoid(a) >= 0``, ``<= 1``      ``a`` is a number
``exp(a) >= 0``                    ``a`` is a number
=================================  ========================

The first is how PyMC writes a Bernoulli outcome, :math:`-\log(1 + e^{\mp a})`, and the others are its checks
of parameters. Compiled code evaluates both arms of a switch and all checks, for each record, at each place of
its local values. The values are the same, bit by bit. So are slopes, but for one thing: that of the arm which
is not taken no longer counts if it is no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, node_rewriter
from pytensor.scalar.basic import GE, LE, Exp, Switch
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.graph.traversal import depends_on

__all__ = ["simplified"]


def simplified(graph: TensorVariable, rows: Sequence[TensorVariable]) -> TensorVariable:
    """Rewrite a record's log-density, whose nodes are changed in place; `rows` are the record's placeholders.

    What all records share is computed once anyway, and stays as it is.
    """

    @node_rewriter([Elemwise])
    def one_arm(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        if not isinstance(node.op.scalar_op, Switch):
            return None
        condition, *arms = node.inputs
        made = [arm.owner for arm in arms]
        if any(m is None or not isinstance(m.op, Elemwise) or len(m.inputs) != 1 for m in made):
            return None
        (first, second), (a, b) = made, (m.inputs[0] for m in made)  # type: ignore[union-attr]
        kinds = {v.type.broadcastable for v in (*node.outputs, a, b)}
        if first.op != second.op or a.type.dtype != b.type.dtype or len(kinds) > 1:
            return None
        if not all(depends_on([v], rows) for v in (a, b)):
            return None
        out = first.op(pt.switch(condition, a, b))
        return [node.outputs[0].type.filter_variable(out, allow_convert=True)]

    @node_rewriter([Elemwise])
    def in_range(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        if not isinstance(node.op.scalar_op, GE | LE):
            return None
        value, bound = node.inputs
        inner: Any = getattr(getattr(value.owner, "op", None), "scalar_op", None)
        above = isinstance(node.op.scalar_op, GE)
        if not isinstance(inner, Sigmoid | Exp if above else Sigmoid):
            return None
        try:
            limit = get_underlying_scalar_constant_value(bound)
        except NotScalarConstantError:
            return None
        if node.outputs[0].type.broadcastable != value.type.broadcastable or not (
            limit <= 0 if above else limit >= 1
        ):
            return None
        return [pt.invert(pt.isnan(value.owner.inputs[0]))]

    fgraph = FunctionGraph(outputs=[graph], clone=False)
    EquilibriumGraphRewriter([one_arm, in_range], max_use_ratio=20).rewrite(fgraph)
    return fgraph.outputs[0]  # type: ignore[return-value]
