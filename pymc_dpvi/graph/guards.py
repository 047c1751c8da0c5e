r"""Make the one-row log-density a total function: no record can make it raise, or read another row.

Some compiled code checks no bounds: an index that is out of range for one record then reads, or in a gradient
writes, the memory of others before anything is clipped. An operation that raises tells everybody that such a
record is there. So, before the one-row graph is differentiated and vectorised:

* every index that depends on the record is put into range, and a record for which that changed anything has
  log-density :math:`-\infty` and gradient zero;
* so is every other index, in the prior too, but for constants that are in range or that all backends check:
  one from latent values or a public array would read what lies beside its table, and that may be records;
* so is the number of steps of a loop that sees no record: it ends with the shortest of its sequences;
* so is every float of the record that becomes an integer: what a NaN or 1e300 turns into is undefined in C,
  and raises in Python;
* so are the arguments of an operation that sees the record and iterates: beyond these ranges (`_RANGES`) it
  would run for seconds;
* every other operation that sees the record must be known to be harmless for all values (`_TOTAL`); anything
  else, such as a `Scan`, a shape that depends on values, or a matrix inverse, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast, IntDiv, Mod, Pow, ScalarOp, ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.basic import AllocDiag, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.indexing import INDEXING, index_axes
from pymc_dpvi.graph.shape_constants import is_structural
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = ["guard_records"]

#: Operations that neither raise nor mix entries that a batch axis separates, whatever their input holds.
_TOTAL = set(
    """
    All AllocDiag Any Argmax CAReduce CumOp DimShuffle Dot Elemwise ExtractDiag KroneckerProduct LogAddExp
    LogSoftmax LogSumExp MakeVector Max Mean Min Prod ScalarFromTensor Softmax SoftmaxGrad Sum
    TensorFromScalar XLog1PY XLogY
    """.split()
)
#: The same of matrices, also as core operations of `Blockwise`. Where they fail, they give NaN.
_TOTAL_MATRIX = {"BlockDiagonal", "Cholesky", "Dot", "ExtractDiag", "SolveTriangular"}
#: Operations in which only the first input may depend on a record: the others are shapes and axes.
_SHAPED = {"Alloc", "ArgSortOp", "BroadcastTo", "Reshape", "SortOp", "SpecifyShape", "Split", "Unbroadcast"}
#: Operations that iterate: the ends of each argument's range in which they and their gradients end soon, and
#: a number in it. A trigamma takes as many steps as its argument is below zero. The gradient of a
#: hypergeometric function diverges beyond one; within, it ends after a million steps (0.05 s). The gradients
#: of incomplete gamma and beta functions end after 10⁵ steps, whatever their arguments are. Those of gamma
#: functions take all these steps where nothing converges: at NaN, at infinity and below zero.
_RANGES = {
    "Psi": ((-1e4, np.inf, 1),),
    "TriGamma": ((-1e4, np.inf, 1),),
    "PolyGamma": ((0.0, 1e3, 1), (-1e4, np.inf, 1)),
    "GammaInc": ((0.0, 1e15, 1), (0.0, 1e15, 1)),
    "GammaIncC": ((0.0, 1e15, 1), (0.0, 1e15, 1)),
    "Hyp2F1": ((-1e3, 1e3, 1), (-1e3, 1e3, 1), (1e-3, 1e4, 1), (-0.999, 0.999, 0)),
}
#: The same of operations whose second derivatives, which local variables need, are among those above.
_RANGES_TWICE = {"GammaLn": ((-1e4, np.inf, 1),), "Gamma": ((-1e4, np.inf, 1),)}

_ELEMENTWISE = (
    "Write it with elementwise operations, indexing, sums and matrix products, or do it outside the model, "
    "record by record."
)
_BINS = (
    "To put a record into a bin, compare it with fixed edges: (x[:, None] > edges).sum(axis=1) is the number "
    "of its bin, if x is the record's value. Or bin before the model, by edges that everybody may know."
)
_CONVOLUTION = (
    "A convolution is a product of patches: x[:, patches] @ kernel, where the integers patches, shape "
    "(places of the kernel, its length), say which columns of x each patch has. Put them into "
    "pm.Data('patches', ...) and say public_data=['patches']."
)
#: What to type in place of some operations.
_INSTEAD = {
    "AdvancedSubtensor": "It looks up one table for each record, or for each value of a variable that was "
    "marginalised: write the sum over the values yourself, as in pm.Categorical(p=weights @ table).",
    "Convolve1d": _CONVOLUTION,
    "Convolve2d": _CONVOLUTION,
    "SearchsortedOp": _BINS,
    "Unique": "Number the groups before the model, by a public list of them.",
}


def guard_records(
    terms: Sequence[TensorVariable],
    rows: Sequence[Variable],
    latent: Iterable[Variable],
    public: Iterable[Variable],
    name: Callable[[Variable], str],
    twice: bool = False,
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Return the terms of one record, safe for every value that the record may hold.

    `terms` are log-densities as functions of `rows`, the record's placeholders (none for the prior), and of
    `latent`, the unconstrained values. `name` names a variable in an error, and `twice` says that the terms
    will be differentiated twice. The second result has a condition
    for each index that depends on neither records nor latent values: that it is in range. For any other index
    it is that the table has an entry 0, which is looked up in place of one that it has not.
    """
    seen = set(rows)
    free = set(latent)
    undecided = seen | free
    declared = set(public)
    memo: dict[Variable, Variable] = {}
    valid: list[Variable] = []
    fixed: list[Variable] = []
    for var in walk(terms, into_size=True):
        node = var.owner
        if var in memo or node is None:
            continue
        if any(i in free for i in node.inputs):
            free.update(node.outputs)
        inputs = [memo.get(i, i) for i in node.inputs]
        marked = [k for k, i in enumerate(node.inputs) if i in seen]
        if marked and type(node.op).__name__ not in ("Shape", "Shape_i"):
            seen.update(node.outputs)

            def where(var: Variable = var) -> str:
                return name(var)

            if type(node.op).__name__ in INDEXING:
                table = node.inputs[0]
                if _looks_up(node, marked, where) and table not in seen | free:
                    _refuse_table(table, declared, where)
            elif _truncates(node):
                inputs[0], ok = _representable(inputs[0], node.outputs[0].type.dtype)
                valid.append(ok)
            else:
                _check_total(node, marked, where)
        loose: list[tuple[int, Variable, Variable]] = []
        if type(node.op).__name__ in INDEXING:
            loose = [(k, *_in_range(inputs[k], inputs[0], axis)) for k, axis in _loose_indices(node)]
        elif isinstance(node.op, Scan):
            loose = _bounded_steps(node.op, inputs)
        elif marked:
            loose = _bounded_work(node, inputs, _RANGES | _RANGES_TWICE if twice else _RANGES)
        if (hidden := _hidden_index(node.op, itself=False)) is not None:
            raise UnsupportedModelError(
                f"{name(node.outputs[0])} goes through {hidden} within {type(node.op).__name__}, where it is "
                "not known that an index stays within its table. Index it outside of that, or write the "
                "log-density without a loop."
            )
        for position, safe, ok in loose:
            inputs[position] = safe
            valid.append(ok)
            if undecided.isdisjoint(ancestors([ok])):
                fixed.append(ok)
        if type(node.op).__name__ in INDEXING:
            fixed += [pt.gt(n, 0) for n in _lengths_looked_up(node, inputs[0], undecided)]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            memo.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))
    new = [memo.get(t, t) for t in terms]
    if valid:
        whole = pt.all(pt.stack([pt.all(v) for v in valid]))
        new = [pt.switch(whole, t, np.asarray(-np.inf, dtype=t.dtype)) for t in new]
    return new, [pt.all(v) for v in fixed]


def _in_range(index: Variable, table: Variable, axis: int) -> tuple[Variable, Variable]:
    """Replace an index that is out of range by 0, and say whether it was in range.

    A mask whose shape is not that of the axes that it is for selects nothing.
    """
    if index.type.dtype == "bool":
        lengths = [_length(table, axis + k) for k in range(index.type.ndim)]
        ok = pt.all(pt.eq(index.shape, pt.stack(lengths)))
        return pt.and_(index, ok), ok
    scalar = isinstance(index.type, ScalarType)
    tensor = pt.tensor_from_scalar(index) if scalar else index
    length = _length(table, axis)
    ok = pt.lt(tensor, length)
    if index.type.dtype[0] != "u":  # in C, an unsigned number is not above a negative one
        ok = pt.and_(ok, pt.ge(tensor, -length))
    safe = pt.switch(ok, tensor, pt.zeros_like(tensor))
    return (pt.scalar_from_tensor(safe) if scalar else safe), ok


def _lengths_looked_up(node: Apply, table: Variable, undecided: set[Variable]) -> list[Variable]:
    """Return lengths, which `pm.set_data` may change, of the axes along which undecided indices go."""
    axes = [axis for k, axis in _loose_indices(node) if not undecided.isdisjoint(ancestors([node.inputs[k]]))]
    lengths = [_length(table, axis) for axis in axes]
    return [n for n in lengths if not isinstance(n, Constant) and undecided.isdisjoint(ancestors([n]))]


def _length(table: Variable, axis: int) -> Variable:
    """Return the length of an axis, a constant if the type knows it.

    That of ``X - pm.Data("center", ...)`` is asked of the public array. Asked of the difference, it would be
    computed for each record, and an index that is compared with it must be the same for all records.
    """
    known = table.type.shape[axis]
    if known is not None:
        return pt.constant(known, dtype="int64")
    if table.owner is not None and isinstance(table.owner.op, Elemwise):
        # Inputs of unknown length are as long as the output: PyTensor broadcasts what is known to be 1.
        return _length(next(i for i in table.owner.inputs if i.type.shape[axis] != 1), axis)
    if table.owner is not None and isinstance(table.owner.op, DimShuffle):
        return _length(table.owner.inputs[0], table.owner.op.new_order[axis])
    return table.shape[axis]


def _truncates(node: Apply) -> bool:
    """Whether the operation turns floats into integers."""
    if not isinstance(getattr(node.op, "scalar_op", None), Cast):
        return False
    before, after = np.dtype(node.inputs[0].type.dtype), np.dtype(node.outputs[0].type.dtype)
    return before.kind == "f" and after.kind in "iu"


def _representable(value: Variable, dtype: str) -> tuple[Variable, Variable]:
    """Replace a float beyond the range of the integer type by 0, and say whether it was within."""
    limits = np.iinfo(dtype)
    # The largest int64 is no float64; one more is.
    ok = pt.and_(pt.ge(value, float(limits.min)), pt.lt(value, float(limits.max) + 1.0))
    return pt.switch(ok, value, pt.zeros_like(value)), ok


def _looks_up(node: Apply, marked: Sequence[int], where: Callable[[], str]) -> bool:
    """Whether the record chooses an entry of the table; raise where it would choose how many."""
    axes = dict(index_axes(node))
    first = 2 if "Inc" in type(node.op).__name__ else 1
    own = [position for position in marked if position >= first]
    if any(position not in axes or node.inputs[position].type.dtype == "bool" for position in own):
        raise NotSeparableError(
            f"{where()} takes a part whose size depends on the record's values (a mask, or a slice with "
            "a bound from the data). Use pt.switch with a condition instead."
        )
    return bool(own)


def _loose_indices(node: Apply) -> list[tuple[int, int]]:
    """Return positions and axes of the indices that are not known to be within range.

    A constant number is not among them where no index is an array: there all backends check it.
    """
    loose = []
    for position, axis in index_axes(node):
        index, shape = node.inputs[position], node.inputs[0].type.shape
        if isinstance(index, Constant):
            values = np.asarray(index.data)
            if not type(node.op).__name__.startswith("Advanced") or not values.size:
                continue
            if values.dtype == bool:
                if values.shape == shape[axis : axis + values.ndim]:
                    continue
            elif shape[axis] is not None and -shape[axis] <= values.min() and values.max() < shape[axis]:
                continue
        loose.append((position, axis))
    return loose


def _bounded_steps(op: Scan, inputs: Sequence[Variable]) -> list[tuple[int, Variable, Variable]]:
    """Let a loop end with the shortest of its sequences: numba reads on beyond their ends."""
    sequences = inputs[1 : 1 + op.info.n_seqs]
    if not sequences:
        return []
    shortest = reduce(pt.minimum, [_length(s, 0) for s in sequences])
    return [(0, pt.minimum(inputs[0], shortest), pt.le(inputs[0], shortest))]


def _hidden_index(op: Any, itself: bool = True) -> str | None:
    """Name an operation inside this one that indexes by arrays or loops; None if there is none."""
    if itself and (type(op).__name__.startswith("Advanced") or isinstance(op, Scan)):
        return type(op).__name__
    if type(op) is AllocDiag:  # it indexes by 0, 1, 2, ..., as many as the diagonal has
        return None
    core = getattr(op, "core_op", None)
    inside = [node.op for node in getattr(getattr(op, "fgraph", None), "apply_nodes", ())]
    for part in [*inside, *([] if core is None else [core])]:
        if (found := _hidden_index(part)) is not None:
            return found
    return None


def _check_total(node: Apply, marked: Sequence[int], where: Callable[[], str]) -> None:
    """Raise unless the operation is harmless whatever the record holds."""
    op = node.op
    kind = type(op).__name__
    core = getattr(op, "core_op", None)
    known, shaped = _TOTAL | _TOTAL_MATRIX, _SHAPED
    if core is not None:
        kind, known, shaped = type(core).__name__, _TOTAL_MATRIX, {"SortOp"}
    allowed = kind in known or (kind in shaped and marked == [0])
    if kind == "Join" and core is None:  # in PyTensor 2 the first input is the axis
        allowed = hasattr(op, "axis") or 0 not in marked
    scalar_op = getattr(op, "scalar_op", None)
    if isinstance(scalar_op, IntDiv | Mod | Pow) and node.outputs[0].type.dtype[:3] in ("int", "uin", "boo"):
        allowed = allowed and _is_safe_operand(scalar_op, node.inputs[1])
        kind = type(scalar_op).__name__
    if not allowed:
        raise NotSeparableError(
            f"{where()} puts the record through the operation {kind}, of which it is not known that it can "
            f"neither mix records nor fail for some value of a record. {_INSTEAD.get(kind, _ELEMENTWISE)}"
        )


def _is_safe_operand(op: ScalarOp, operand: Variable) -> bool:
    """Whether dividing any integer by `operand`, or raising it to that power, is harmless.

    Division by zero raises, and so does zero to a negative power. The least integer divided by -1 is beyond
    the largest, at which the processor stops the process. So only a constant is known to be safe.
    """
    try:
        value = int(get_underlying_scalar_constant_value(operand))
    except NotScalarConstantError:
        if not isinstance(operand, Constant):
            return False
        values = np.asarray(operand.data)
        return not np.isin(values, (0, -1)).any() if not isinstance(op, Pow) else bool((values >= 0).all())
    return value >= 0 if isinstance(op, Pow) else value not in (0, -1)


def _bounded_work(
    node: Apply, inputs: Sequence[Variable], all_ranges: Mapping[str, Any]
) -> list[tuple[int, Variable, Variable]]:
    """Put the arguments of an operation that iterates into the ranges where it ends soon.

    Return for each its position, a safe argument, and whether it was within range.
    """
    ranges = all_ranges.get(type(getattr(node.op, "scalar_op", None)).__name__, ())
    held = []
    for position, (low, high, within) in enumerate(ranges):
        x = inputs[position]
        ok = pt.and_(pt.ge(x, low), pt.le(x, high))
        held.append((position, pt.switch(ok, x, np.asarray(within, dtype=x.type.dtype)), ok))
    return held


def _refuse_table(table: Variable, declared: set[Variable], where: Callable[[], str]) -> None:
    """Raise if a record looks up a constant table that nobody declared public."""
    for var in walk([table], into_size=True):
        if not is_array(var) or var in declared or is_structural(array_value(var)):
            continue
        if isinstance(var, Constant) and var.owner is None:
            raise UnsupportedModelError(
                f"{where()} looks up a record's entry in a constant table"
                f"{f' ({var.name!r})' if var.name else ''} that has no gradient and so no noise. If "
                "everybody may know the table, put it into pm.Data('name', table) and say "
                "public_data=['name']; if it holds personal data, expand it to one row per record."
            )
