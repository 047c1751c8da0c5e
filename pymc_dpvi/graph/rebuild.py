"""Remake a PyTensor graph for another number of records.

``pytensor.graph.replace`` swaps variables but keeps the nodes, with all that was decided when the model was
built on N records: static shapes, ``SpecifyShape``, ``Alloc(x, N)``, the ``size`` of a random variable.
:func:`resize_records` makes every node anew that depends on a replaced array, or makes N rows itself. It goes
in topological order, so that the shapes follow from the replaced arrays:

* a random variable is resized with PyMC's own ``change_dist_size``;
* any other ``OpFromGraph`` is inlined, but for those of `marginalised`;
* a parameter check becomes ``switch(ok, x, -inf)`` and an assertion is dropped. Vectorised, either would ask
  whether *all* records of a batch are valid, and one record could then silence the others;
* a constant N that stands for the leading length in ``Alloc``, ``Reshape`` or ``SpecifyShape`` becomes the
  new number of rows;
* every other node is ``op.make_node`` on the new inputs.

A mistake here leaks no record, because all record arrays are replaced (`private_constants` looks at the
result); it can only give a wrong log-density, which `separability` then refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.logprob.abstract import MeasurableOp
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, MakeVector, ScalarFromTensor
from pytensor.tensor.math import All
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.graph.indexing import LOOKING_UP, numbers_rows, row_position
from pymc_dpvi.graph.marginalised import is_marginal, remake_marginal
from pymc_dpvi.graph.model_views import copied, swap_variables
from pymc_dpvi.graph.traversal import walk

__all__ = ["fold_shapes", "is_static_shape", "remade_view", "resize_records", "with_leading_indices"]

_LOOP = (
    "A loop (pytensor.scan) over records mixes them; one over the entries of one row can be written out, as "
    "a loop in Python."
)
_MIXES = (
    "It probably mixes records, or uses an array whose leading length equals the number of records by "
    "chance; if so, put that array into pm.Data(name, ..., dims=...) with its own dim, or name it in "
    "public_data=[...]."
)


def resize_records(
    outputs: Sequence[Variable],
    replacements: Mapping[Variable, Variable],
    *,
    num_records: int,
    rows: int,
    resize: Iterable[Variable] = (),
    everything: bool = False,
    inline: bool = True,
    describe: Callable[[Variable], str] = str,
) -> tuple[list[Variable], dict[Variable, Variable]]:
    """Remake `outputs` with `rows` records in place of `num_records`; return them, and what changed to what.

    `replacements` maps every record array to its stand-in with `rows` rows, and other variables to what takes
    their place. `resize` are random variables (the observed ones) whose leading batch axis is known to be the
    record axis. `everything` remakes also what no replacement reaches, `inline` inlines an ``OpFromGraph``,
    and `describe` names a variable in an error.
    """
    memo: dict[Variable, Variable] = dict(replacements)
    observed = set(resize)
    for var in walk(outputs, stop=replacements, into_size=False):
        node = var.owner
        if var in memo or node is None:
            continue
        changed = any(i in memo for i in node.inputs) or is_marginal(node.op)
        random = isinstance(node.op, MeasurableOp) and isinstance(node.op, RandomVariable | OpFromGraph)
        static: tuple[int | None, ...] = getattr(var.type, "shape", ())
        leading = bool(static) and static[0] == num_records
        made = leading and (random or isinstance(node.op, Alloc))
        if isinstance(node.op, Shape | Shape_i) and (shape := _static_shape(node, memo)) is not None:
            memo[var] = shape
            continue
        check = isinstance(node.op, CheckAndRaise)
        if not (changed or made or check or everything or var in observed):
            continue
        failure = ""
        olds: Sequence[Variable]
        try:
            if is_marginal(node.op):
                inputs = [memo.get(i, i) for i in node.inputs]
                new = _resize_marginal(node, inputs, memo, num_records, rows)
                olds = node.outputs
            elif random:
                new = [_resize_random(var, memo, num_records, rows, leading or var in observed)]
                olds = [var]
            else:
                inputs = [memo.get(i, i) for i in node.inputs]
                new = _remake(node, inputs, num_records, rows, inline)
                olds = node.outputs
        except NotSeparableError:
            raise
        except Exception as error:  # raised below, so that nothing of this one is chained to it
            failure = type(error).__name__
        if failure:
            raise NotSeparableError(
                f"{describe(var)} cannot be written for one record at a time: the operation "
                f"{type(node.op).__name__} does not work on fewer records than it was built with "
                f"({failure}). " + (_LOOP if isinstance(node.op, Scan) else _MIXES)
            )
        for old, fresh in zip(olds, new, strict=True):
            if fresh.name is None:
                fresh.name = old.name
            memo[old] = fresh
    return [memo.get(v, v) for v in outputs], memo


def remade_view(model: pm.Model, swapped: Mapping[Variable, Variable], rows: int) -> pm.Model:
    """Return a view of a model of some `rows` with variables behind its likelihood in place of others."""
    view = copied(model)
    if not swapped:
        return view
    terms: Sequence[Any] = [*model.observed_RVs, *model.potentials]
    kept = {rv: rv for rv in model.free_RVs}
    new, _ = resize_records(terms, {**swapped, **kept}, num_records=rows, rows=rows)
    for old, made in zip(terms, new, strict=True):
        made.name = old.name
    swap_variables(view, dict(zip(terms, new, strict=True)))
    return view


def fold_shapes(outputs: Sequence[Variable]) -> list[Variable]:
    """Replace shapes that the types know by constants, and remake what follows from them.

    PyTensor works out a symbolic shape again for every node that is made on it, which takes minutes for
    a mixture of multivariate normals.
    """
    return resize_records(outputs, {}, num_records=-1, rows=-1, inline=False)[0]


def _static_shape(node: Apply, memo: Mapping[Variable, Variable]) -> Variable | None:
    static = memo.get(node.inputs[0], node.inputs[0]).type.shape
    if isinstance(node.op, Shape_i):
        length = static[node.op.i]
        return None if length is None else pt.constant(length, dtype="int64")
    if any(length is None for length in static):
        return None
    lengths = pt.constant(np.array(static, dtype="int64"))
    lengths.tag.static_shape = True
    return lengths


def is_static_shape(var: Variable) -> bool:
    """Whether a constant stands in place of the shape of an array whose type knows it."""
    return bool(getattr(var.tag, "static_shape", False))


def _with_own_rows(node: Apply, inputs: list[Variable], num_records: int, rows: int) -> list[Variable]:
    """Let the index of ``x[np.arange(N), choice]``, which names each record's own row, have so many rows."""
    at = row_position(node)
    if at is None or not numbers_rows(node.inputs[at], num_records):
        return inputs
    if inputs[0] is node.inputs[0] or inputs[0].type.shape[:1] != (rows,):  # type: ignore[attr-defined]
        if any(new is not old for new, old in zip(inputs[1:], node.inputs[1:], strict=True)):
            raise NotSeparableError(
                "Each record reads a row of its own of a table, as table[np.arange(n), k], and its rows are "
                "not the records'. If the table has a row for each record, leave it out of public_data=."
            )
        return inputs
    axes = range(1, node.inputs[at].type.ndim)  # type: ignore[attr-defined]
    return [*inputs[:at], pt.expand_dims(pt.arange(rows), tuple(axes)), *inputs[at + 1 :]]


def _rows_for(dim: Variable, num_records: int, rows: int) -> Variable:
    """Replace a scalar shape constant N by the number of rows."""
    if isinstance(dim, Constant) and np.ndim(dim.data) == 0 and int(dim.data) == num_records:
        return pt.constant(rows, dtype=dim.type.dtype)
    return dim


def _rows_for_vector(shape: Variable, num_records: int, rows: int) -> Variable:
    """Replace a leading constant N of a shape vector by the number of rows."""
    if isinstance(shape, Constant) and np.ndim(shape.data) == 1 and len(shape.data):
        if int(shape.data[0]) == num_records:
            return pt.constant(np.array([rows, *shape.data[1:]], dtype=shape.data.dtype))
    elif shape.owner is not None and type(shape.owner.op).__name__ == "MakeVector":
        first, *rest = shape.owner.inputs
        return shape.owner.op(_rows_for(first, num_records, rows), *rest)
    return shape


def _remake(node: Apply, inputs: list[Variable], num_records: int, rows: int, inline: bool) -> list[Variable]:
    op = node.op
    inputs = _with_own_rows(node, inputs, num_records, rows)
    leading = getattr(node.outputs[0].type, "shape", (None,))[:1] == (num_records,)
    if (entries := _one_table(node, inputs)) is not None:
        return [entries]
    if isinstance(op, ViewOp):  # of a Deterministic
        return [inputs[0]]
    if inline and isinstance(op, OpFromGraph):
        inner = dict(zip(op.fgraph.inputs, inputs, strict=True))
        outputs, _ = resize_records(
            op.fgraph.outputs, inner, num_records=num_records, rows=rows, everything=True
        )
        return outputs
    if isinstance(op, CheckAndRaise):
        value, conditions = inputs[0], inputs[1:]
        if not isinstance(op, CheckParameterValue):
            return [value]
        checks = [_row_by_row(c, value) for c in conditions]
        valid = functools.reduce(pt.and_, checks)
        return [pt.switch(valid, value, -np.inf)]
    if isinstance(op, AdvancedSubtensor) and any(
        new is not old for new, old in zip(inputs[1:], node.inputs[1:], strict=True)
    ):
        in_front = with_leading_indices(inputs)
        if in_front is not None:
            return [in_front]
    if isinstance(op, SpecifyShape) and leading:
        value, first, *rest = inputs
        inputs = [value, _rows_for(first, num_records, rows), *rest]
    elif isinstance(op, Alloc) and leading:
        value, first, *rest = inputs
        inputs = [value, _rows_for(first, num_records, rows), *rest]
    elif isinstance(op, Reshape) and leading:
        value, shape = inputs
        inputs = [value, _rows_for_vector(shape, num_records, rows)]
    return list(op.make_node(*inputs).outputs)


def _one_table(node: Apply, inputs: Sequence[Variable]) -> Variable | None:
    """Write ``Blockwise(AdvancedSubtensor)`` on one table as an ordinary index, which can be guarded.

    That is what becomes of ``table[z]`` where z is enumerated. With T the table without its batch axes, which
    all have length one, an entry at batch position b is ``T[z[b]]``: the entry at b of ``T[z]``.
    """
    core = getattr(node.op, "core_op", None)
    if type(core).__name__ not in LOOKING_UP:
        return None
    table, *indices = inputs
    signature: tuple[tuple[str, ...], ...] = getattr(node.op, "inputs_sig", ())
    batch_ndim = table.type.ndim - len(signature[0])
    plain = getattr(core, "idx_list", None) in (None, tuple(range(len(indices))))
    if not plain or any(length != 1 for length in table.type.shape[:batch_ndim]):
        return None
    for index, axes in zip(indices, signature[1:], strict=True):
        tensor = isinstance(index.type, TensorType) and index.type.dtype[:3] in ("int", "uin")
        if not tensor or index.type.ndim != batch_ndim + len(axes) or len(axes) != len(signature[1]):
            return None
    return table[(0,) * batch_ndim][tuple(indices)]


def with_leading_indices(inputs: Sequence[Variable]) -> TensorVariable | None:
    """Write an index without slices and new axes; None if it has none of them, or a mask.

    PyTensor 2 cannot vectorise an advanced index beside a slice or a new axis if the index differs from
    record to record; PyTensor 3 can. With the indices broadcast to ``B``,

        x[..., i_1, ..., i_k, ...]  =  x.transpose(advanced axes, other axes)[i_1, ..., i_k],

    whose axes are those of ``B`` and then the others. NumPy leaves them there if the advanced axes are not
    next to each other, and else moves those of ``B`` to the place of the first advanced one.
    """
    x: Any = inputs[0]
    indices = list(inputs[1:])
    kinds = [type(i.type) for i in indices]
    if not {SliceType, NoneTypeT} & {*kinds}:
        return None
    if any(getattr(i.type, "dtype", "") == "bool" for i in indices):
        return None
    x = pt.expand_dims(x, [k for k, kind in enumerate(kinds) if kind is NoneTypeT])
    advanced = [k for k, kind in enumerate(kinds) if kind not in (SliceType, NoneTypeT)]
    x = x[tuple(_as_slice(i) if isinstance(i.type, SliceType) else slice(None) for i in indices)]
    others = [k for k in range(x.type.ndim) if k not in advanced]
    out = x.transpose(*advanced, *others)[tuple(indices[k] for k in advanced)]
    if advanced != list(range(advanced[0], advanced[-1] + 1)):
        return out
    looked_up = list(range(out.type.ndim - len(others)))
    rest = list(range(len(looked_up), out.type.ndim))
    return out.transpose(*rest[: advanced[0]], *looked_up, *rest[advanced[0] :])


def _as_slice(var: Variable) -> slice:
    if isinstance(var, Constant):
        return var.data
    assert var.owner is not None
    return slice(*(None if isinstance(i.type, NoneTypeT) else i for i in var.owner.inputs))


def _row_by_row(condition: Variable, value: Variable) -> TensorVariable:
    """Apply PyMC's check of parameters row by row.

    PyMC takes ``all`` over all rows: one record with an invalid parameter would make every term -infinity.
    """
    if condition.owner is not None and isinstance(condition.owner.op, ScalarFromTensor):
        condition = condition.owner.inputs[0]
    if condition.owner is not None and isinstance(condition.owner.op, All) and condition.type.ndim == 0:  # type: ignore[attr-defined]
        inner = condition.owner.inputs[0]
        if inner.owner is not None and isinstance(inner.owner.op, MakeVector):
            parts = [_row_by_row(part, value) for part in inner.owner.inputs]
            return functools.reduce(pt.and_, parts)
        first, *others = getattr(value.type, "shape", ()) or (1,)
        if first not in (1, None) and inner.type.ndim > len(others) and inner.type.shape[0] == first:
            by_row = pt.all(inner, axis=tuple(range(1, inner.type.ndim))) if inner.type.ndim > 1 else inner
            return pt.expand_dims(by_row, tuple(range(1, 1 + len(others))))
    return pt.as_tensor(condition)


def _resize_random(
    var: Variable, memo: Mapping[Variable, Variable], num_records: int, rows: int, leading: bool
) -> Variable:
    """Remake a random variable with PyMC's `change_dist_size`.

    That function is handed a node of the old op with the new parameters. It reads the parameters and builds
    everything else afresh, so that node is never evaluated.
    """
    node = var.owner
    assert node is not None
    op = node.op
    index = node.outputs.index(var)
    batch_ndim = var.type.ndim - op.ndim_supp
    new_inputs = set(memo.values())
    inputs = [memo.get(i, i) for i in node.inputs]
    # Only the size: a parameter whose first entry is N is a number of the model, not a length.
    if (at := _place_of_size(op)) is not None and inputs[at] not in new_inputs:
        inputs[at] = _rows_for_vector(inputs[at], num_records, rows)
    if not leading and var.type.shape[:1] == (None,):
        # No static length: it follows the records if a parameter of the same rank does.
        leading = any(
            i in new_inputs and getattr(i.type, "ndim", 0) >= batch_ndim and i.type.shape[:1] == (rows,)
            for i in inputs
        )
    size = _new_size(var, inputs, batch_ndim, rows, leading, memo) if batch_ndim else None
    if size is None:
        new = op.make_node(*inputs).outputs[index]
    else:
        stand_in = Apply(op, inputs, [out.clone() for out in node.outputs]).outputs[index]
        new = change_dist_size(stand_in, size)
    # Some implementations close over the parameters of the original variable (CustomDist), and OpFromGraph
    # wraps an input in SpecifyShape if its own input had another static length.
    assert new.owner is not None
    final = [_settle(i, memo) for i in new.owner.inputs]
    if isinstance(op, CustomSymbolicDistRV):
        final[1 : 1 + len(op.ndims_params)] = inputs[1 : 1 + len(op.ndims_params)]
    if any(a is not b for a, b in zip(final, new.owner.inputs, strict=True)):
        new = new.owner.op.make_node(*final).outputs[new.owner.outputs.index(new)]
    made = new.owner.inputs[at] if size is not None and at is not None else None
    if isinstance(made, Constant) and tuple(made.data)[1:] == var.type.shape[1:batch_ndim]:
        made.tag.static_shape = True  # the type of `var` knows it
    return new


def _place_of_size(op: Any) -> int | None:
    """Return which input of a random variable is its size, if one is."""
    if isinstance(op, RandomVariable):
        return 1
    if (base := getattr(op, "base_rv_op", None)) is not None:  # the inputs of a truncated one are the base's
        return _place_of_size(base)
    if getattr(op, "extended_signature", None) is None:
        return None
    (_, at, _), _ = op.get_input_output_type_idxs(op.extended_signature)
    return None if at is None else int(at)


def _resize_marginal(
    node: Apply, inputs: Sequence[Variable], memo: Mapping[Variable, Variable], num_records: int, rows: int
) -> list[Variable]:
    """Remake an operation of `pymc_extras.marginalize`, with all random variables in it resized."""

    def remake(outputs: Sequence[Variable], inner: Mapping[Variable, Variable]) -> list[Variable]:
        arrays = [v for v in outputs if isinstance(v.type, TensorType)]
        random = [v for v in arrays if v.owner is not None and isinstance(v.owner.op, MeasurableOp)]
        remade, _ = resize_records(
            arrays,
            inner,
            num_records=num_records,
            rows=rows,
            resize=[v for v in random if v.type.ndim > v.owner.op.ndim_supp],  # checked by `per_record`
            everything=True,
        )
        new = {**inner, **dict(zip(arrays, remade, strict=True))}
        made = {old.owner: new[old].owner for old in random}
        # The other outputs are next states of generators, each beside the variable that it was drawn for.
        return [new[v] if v in new else made[v.owner].outputs[v.owner.outputs.index(v)] for v in outputs]

    return remake_marginal(node, inputs, memo, remake)


def _settle(var: Variable, memo: Mapping[Variable, Variable]) -> Variable:
    """Look through SpecifyShape for the remade variable."""
    inner = var
    while inner not in memo and inner.owner is not None and isinstance(inner.owner.op, SpecifyShape):
        inner = inner.owner.inputs[0]
    if inner in memo:
        return memo[inner]
    return inner if inner in set(memo.values()) else var


def _new_size(
    var: Variable,
    inputs: Sequence[Variable],
    batch_ndim: int,
    rows: int,
    leading: bool,
    memo: Mapping[Variable, Variable],
) -> list[Any] | None:
    """Batch shape of the resized random variable, or None where its parameters imply it."""
    op = var.owner.op  # type: ignore[union-attr]
    static = var.type.shape[:batch_ndim]
    if leading and all(s is not None for s in static[1:]):
        return [rows, *static[1:]]
    if isinstance(op, RandomVariable):
        size = inputs[1]
        if isinstance(size.type, NoneTypeT):
            return [rows, *[var.shape[k] for k in range(1, batch_ndim)]] if leading else None
        entries = [size[k] for k in range(batch_ndim)]
        parts = size.owner.inputs if size.owner is not None else ()
        if len(parts) == batch_ndim and any(i in memo for i in parts[1:]):  # a MakeVector of lengths
            entries = [memo.get(i, i) for i in parts]
        return [rows, *entries[1:]] if leading else entries
    if leading:
        return [rows, *[var.shape[k] for k in range(1, batch_ndim)]]
    return None
