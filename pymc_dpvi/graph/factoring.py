r"""How each free variable enters one record's log-density, and the form that its gradient has because of it.

A variable v is used in one of three ways. In the first two its gradient need not be formed (`blocks`):

* ``x @ v`` with something x of the record: with :math:`h = x v` and :math:`\delta = \partial\ell/\partial h`
  the gradient is :math:`x^\top\delta`, an outer product for each row of h;
* ``v[i]`` with indices i from the record: with :math:`h = v[i]` it is :math:`\partial\ell/\partial h`,
  scattered to the places that were looked up;
* anything else: dense.

So the graph is differentiated with respect to h instead of v. If a variable is used several times in one of
the first two ways, the products, or the entries, are put side by side. If it is used in several ways, its
gradient is dense. A variable that no record's density uses (a parameter of other variables' priors) has the
form of a look-up of nothing.

**Uses made visible.** Models are not always written so that v itself is multiplied or looked up. For
variables that no record enters, rewrites move operations behind the look-up or the product:

=====================================  ==========================================
``f(u, v, ...)[i]``, f elementwise     ``f(u[i], v[i], ...)``
``u[:, i]``                            ``u.T[i].T``
``(u @ v)[i]``, ``(u @ v)[:, i]``      ``u[i] @ v``, ``u @ v[:, i]``
``x @ (s * v)``, s constant along an   ``(x @ v) * s``, ``(x * s) @ v``
axis of v
=====================================  ==========================================

So ``(mu + sigma * offset)[group]`` looks up ``offset``, and ``x @ (scale * w)`` multiplies ``w``. Only the
order of operations changes. A record's gradient is a function of the record and of public numbers whatever is
rewritten: of records, nothing but the record's own placeholders stands in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, MergeOptimizer, node_rewriter
from pytensor.scalar.basic import Mul
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.graph.blocks import MOST_PRODUCTS, Form
from pymc_dpvi.graph.indexing import READING, integer_indices
from pymc_dpvi.graph.traversal import walk

__all__ = ["Use", "find_uses", "lift_uses"]

#: A look-up, or several products, must be shorter than the gradient by this factor.
_GAIN = 2

Clients = dict[Variable, list[tuple[Apply, int]]]


@dataclass(frozen=True)
class Use:
    """How one variable's gradient is put together from gradients by other variables."""

    form: Form
    by: tuple[TensorVariable, ...]  # to differentiate by
    # From these gradients to the arrays of a `blocks.Block` of one record.
    arrays: Callable[[Sequence[TensorVariable]], list[TensorVariable]]


class _Depends:
    """Whether a variable depends on some others, remembered."""

    def __init__(self, on: Sequence[Variable]) -> None:
        self._known = dict.fromkeys(on, True)

    def __call__(self, var: Variable) -> bool:
        if var not in self._known:
            for v in walk([var], stop=list(self._known), into_size=True):
                if v not in self._known:
                    self._known[v] = v.owner is not None and any(self._known.get(i) for i in v.owner.inputs)
        return self._known[var]


def _integers(node: Apply) -> list[tuple[int, TensorVariable]]:
    """Return axes and indices of a node that looks up some axes by integers and takes the others whole."""
    if type(node.op).__name__ not in READING:
        return []
    entries = enumerate(integer_indices(node) or ())
    return [(axis, pt.as_tensor_variable(e)) for axis, e in entries if e is not None]


# -------------------------------------------------------------------------------- rewrites


def lift_uses(
    graph: TensorVariable, draw: Sequence[TensorVariable], rows: Sequence[TensorVariable]
) -> TensorVariable:
    """Bring look-ups and products with the record to the free variables; see the module.

    `graph` is one record's log-density, whose nodes are changed in place; `draw` and `rows` are placeholders,
    of known shapes, of the free variables' values and of the record.
    """
    from_record, from_draw = _Depends(rows), _Depends(draw)

    def shared(var: Variable) -> bool:
        """Whether free variables enter, and the record does not."""
        return not from_record(var) and from_draw(var)

    @node_rewriter(None)
    def lookup(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        found = [(axis, index) for axis, index in _integers(node) if from_record(index)]
        if len(found) != 1 or not shared(node.inputs[0]):
            return None
        out = _lookup(node, *found[0])
        return None if out is None else [_as_type(out, node.outputs[0])]

    @node_rewriter(None)
    def product(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        if not isinstance(node.op, Dot) or not all(i.type.ndim == 2 for i in node.inputs):
            return None
        for k in (0, 1):
            weights, other = node.inputs[k], node.inputs[1 - k]
            if shared(weights) and from_record(other):
                out = _scaled_product(node, k)
                if out is not None:
                    return [_as_type(out, node.outputs[0])]
        return None

    fgraph = FunctionGraph(outputs=[graph], clone=False)
    # Merged, so that what a model writes twice is looked up once.
    MergeOptimizer().rewrite(fgraph)
    EquilibriumGraphRewriter([lookup, product], max_use_ratio=20).rewrite(fgraph)
    MergeOptimizer().rewrite(fgraph)
    (out,) = fgraph.outputs
    return out  # type: ignore[return-value]


def _as_type(var: Variable, old: Variable) -> Variable:
    return old.type.filter_variable(var, allow_convert=True)


def _take(var: Variable, axis: int, index: TensorVariable) -> TensorVariable:
    """Take entries of `var` along an axis: along the first, as PyTensor vectorises no other look-up."""
    if axis == 0:
        return var[index]  # type: ignore[index, no-any-return]
    rest = [k for k in range(var.type.ndim) if k != axis]
    new, n = index.type.ndim, len(rest)
    back = [*range(new, new + axis), *range(new), *range(new + axis, new + n)]
    return var.dimshuffle([axis, *rest])[index].dimshuffle(back)  # type: ignore[attr-defined, no-any-return]


def _lookup(node: Apply, axis: int, index: TensorVariable) -> Variable | None:
    """Write ``base[..., index, ...]`` with the last operation of the base after the look-up."""
    base, others = node.inputs[0], [(k, other) for k, other in _integers(node) if k != axis]
    if others:  # base[index, 0] is base[index][:, 0]
        together = sorted([axis, *(k for k, _ in others)])
        if index.type.ndim != 1 or together != list(range(together[0], together[-1] + 1)):
            return None
        if any(other.type.ndim for _, other in others):
            return None
        rest: list[object] = [slice(None)] * (together[-1] + 1)
        for k, other in others:
            rest[k] = other
        return _take(base, axis, index)[tuple(rest)]
    lifted = _lifted(base, axis, index)
    return _take(base, axis, index) if lifted is None and axis > 0 else lifted


def _lifted(base: Variable, axis: int, index: TensorVariable) -> Variable | None:
    """Look up the inputs of `base` instead, if that can be done."""
    if base.owner is None:
        return None
    op, inputs = base.owner.op, base.owner.inputs
    if isinstance(op, DimShuffle) and index.type.ndim == 1 and op.new_order[axis] != "x":
        inner = _lifted(inputs[0], op.new_order[axis], index)
        return None if inner is None else inner.dimshuffle(op.new_order)  # type: ignore[attr-defined, no-any-return]
    if isinstance(op, Elemwise) and len(base.owner.outputs) == 1 and base.type.shape[axis] != 1:
        parts = []
        for i in inputs:
            if i.type.shape[axis] == 1:  # broadcast along the axis
                kept: list[int | str] = list(range(axis))
                kept += ["x"] * index.type.ndim
                kept += range(axis + 1, i.type.ndim)
                parts.append(i.dimshuffle(kept))
            else:
                parts.append(_take(i, axis, index))
        return op.make_node(*parts).outputs[0]
    if isinstance(op, Dot) and index.type.ndim == 1:
        left, right = inputs
        pair = (_take(left, 0, index), right) if axis == 0 else (left, _take(right, 1, index))
        return op.make_node(*pair).outputs[0]
    return None


def _scaled_product(node: Apply, which: int) -> Variable | None:
    """Write a product with ``s * v`` as one with ``v``, where ``s`` is constant along an axis."""
    weights = node.inputs[which]
    if weights.owner is None or not isinstance(getattr(weights.owner.op, "scalar_op", None), Mul):
        return None
    shape = weights.type.shape
    if 1 in shape or None in shape:
        return None  # then nothing is gained: the product is as long as the weights
    full = [i for i in weights.owner.inputs if i.type.shape == shape]
    scales = [i for i in weights.owner.inputs if i not in full]
    if len(full) != 1 or not scales:
        return None
    other = node.inputs[1 - which]
    inner = {s: s.type.shape[1 - which] for s in scales}  # along the axis that is summed over
    for s in scales:
        other = other if inner[s] == 1 else other * s.T
    pair = (full[0], other) if which == 0 else (other, full[0])
    out = node.op.make_node(*pair).outputs[0]
    for s in scales:
        out = out * s if inner[s] == 1 else out
    return out


# -------------------------------------------------------------------------------- uses


def find_uses(
    graph: TensorVariable,
    draw: Sequence[TensorVariable],
    rows: Sequence[TensorVariable],
    products: bool = True,
) -> list[Use]:
    """Say for each free variable, in their order, how its gradient is computed; given as for `lift_uses`.

    Without `products`, those are dense: what is multiplied may be no number where the slope is zero.
    """
    clients: Clients = {}
    for node in dict.fromkeys(v.owner for v in walk([graph], into_size=True) if v.owner is not None):
        if not isinstance(node.op, Shape | Shape_i):
            for k, i in enumerate(node.inputs):
                clients.setdefault(i, []).append((node, k))
    from_record = _Depends(rows)
    return [
        _nothing(v, graph, clients)
        or _lookups(v, clients, from_record)
        or (_products(v, clients, from_record) if products else None)
        or _dense(v)
        for v in draw
    ]


def _dense(v: TensorVariable) -> Use:
    return Use(Form("dense"), (v,), lambda grads: [grads[0].flatten()])


def _nothing(v: TensorVariable, graph: TensorVariable, clients: Clients) -> Use | None:
    """`v` is not used: it is a parameter of other variables' priors."""
    if v in clients or v is graph:
        return None
    nothing = [pt.constant(np.empty(0, dtype)) for dtype in (v.type.dtype, "int64")]
    return Use(Form("sparse", math.prod(v.type.shape), True), (), lambda grads: nothing)  # type: ignore[arg-type]


def _ends(
    v: TensorVariable, clients: Clients, views: tuple[type, ...]
) -> list[tuple[list[Apply], Apply, int]] | None:
    """List the operations that use `v`, each with the views of it on the way; None if there are none."""
    ends: list[tuple[list[Apply], Apply, int]] = []
    todo: list[tuple[Variable, list[Apply]]] = [(v, [])]
    while todo:
        var, way = todo.pop()
        for node, k in clients.get(var, ()):
            if isinstance(node.op, views) and k == 0:
                todo.append((node.outputs[0], [*way, node]))
            else:
                ends.append((way, node, k))
    return ends or None


def _lookups(v: TensorVariable, clients: Clients, from_record: Callable[[Variable], bool]) -> Use | None:
    """`v` is looked up by indices of the record, and not used otherwise."""
    ends = _ends(v, clients, (DimShuffle, Reshape, SpecifyShape))
    if ends is None or not v.type.ndim:
        return None
    size = math.prod(v.type.shape)  # type: ignore[arg-type]
    table = pt.constant(np.arange(size).reshape(v.type.shape))
    found: dict[TensorVariable, TensorVariable] = {}
    alone = True
    for way, node, k in ends:
        if k != 0 or type(node.op).__name__ not in READING or not from_record(node.outputs[0]):
            return None
        if None in node.outputs[0].type.shape:
            return None
        places: Variable = table
        for view in (*way, node):
            places = view.op.make_node(places, *view.inputs[1:]).outputs[0]
        found[node.outputs[0]] = places.flatten()
        alone &= all(
            not isinstance(i.type, TensorType) or math.prod(n or 2 for n in i.type.shape) == 1
            for i in node.inputs[1:]
        )
    entries = sum(math.prod(h.type.shape) for h in found)
    if _GAIN * entries > size:
        return None
    places = _joined(list(found.values())).astype("int64")
    form = Form("sparse", size, alone and len(found) == 1)
    return Use(form, tuple(found), lambda grads: [_joined([g.flatten() for g in grads]), places])


def _joined(vectors: list[TensorVariable]) -> TensorVariable:
    return vectors[0] if len(vectors) == 1 else pt.concatenate(vectors)


def _products(v: TensorVariable, clients: Clients, from_record: Callable[[Variable], bool]) -> Use | None:
    """`v` is multiplied by something of the record, and not used otherwise."""
    ends = _ends(v, clients, (DimShuffle,))
    if ends is None or not v.type.ndim:
        return None
    products = [_product(v, *end, from_record) for end in ends]
    found = [p for p in products if p is not None]
    if len(found) < len(products) or len({p.h for p in found}) < len(found):
        return None
    if len({p.widths for p in found}) > 1:
        return None
    (a, b), terms = found[0].widths, sum(p.terms for p in found)
    if a == b == 1 or (terms > 1 and (_GAIN * terms * (a + b) > a * b or terms > MOST_PRODUCTS)):
        return None

    def arrays(grads: Sequence[TensorVariable]) -> list[TensorVariable]:
        pairs = [p.factors(grad) for p, grad in zip(found, grads, strict=True)]
        left, right = (_joined([pair[k] for pair in pairs]) for k in (0, 1))
        return [left[0], right[0]] if terms == 1 else [left, right]

    return Use(Form("outer" if terms == 1 else "products"), tuple(p.h for p in found), arrays)


@dataclass(frozen=True)
class _Product:
    """``h = other @ v``, or ``h = v @ other`` if `left`, where v may be transposed."""

    h: TensorVariable
    other: TensorVariable  # shape (terms, inner)
    left: bool
    inner_first: bool  # in v, the axis that is summed over is the first of the two
    inner: int
    outer: int

    @property
    def terms(self) -> int:
        return int(self.other.type.shape[0])  # type: ignore[arg-type]

    @property
    def widths(self) -> tuple[int, int]:
        return (self.inner, self.outer) if self.inner_first else (self.outer, self.inner)

    def factors(self, grad: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Return the factors of each term, in the order of v's axes; shapes (terms, a) and (terms, b)."""
        turned = grad.swapaxes(-1, -2) if self.left else grad
        delta = turned.reshape((self.terms, self.outer))
        return (self.other, delta) if self.inner_first else (delta, self.other)


def _product(
    v: TensorVariable, way: list[Apply], node: Apply, k: int, from_record: Callable[[Variable], bool]
) -> _Product | None:
    if not isinstance(getattr(node.op, "core_op", node.op), Dot) or len(node.inputs) != 2:
        return None
    weights, other, h = node.inputs[k], node.inputs[1 - k], node.outputs[0]
    if not from_record(other) or any(x.type.ndim < 2 or None in x.type.shape for x in (weights, other, h)):
        return None
    axes: list[int | str] = list(range(v.type.ndim))
    for view in way:
        axes = ["x" if a == "x" else axes[a] for a in view.op.new_order]
    if any(n != 1 for n in weights.type.shape[:-2]):
        return None  # a product for each part of v
    summed, kept = (-1, -2) if k == 0 else (-2, -1)
    inner, outer = int(weights.type.shape[summed]), int(weights.type.shape[kept])
    order = [int(axes[axis]) for axis, n in ((summed, inner), (kept, outer)) if n != 1]
    turned = other.swapaxes(-1, -2) if k == 0 else other
    terms = math.prod(turned.type.shape[:-1])
    return _Product(h, turned.reshape((terms, inner)), k == 0, order == sorted(order), inner, outer)
