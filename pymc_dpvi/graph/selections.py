"""Refuse parts of arrays that a record may choose: by a mask, by counts, by a bound among the records.

The length of ``x[keep]`` follows from the values of ``keep``, and with it shapes, exceptions and refusals.
:func:`refuse_masks` finds such operations before any length is worked out, so that the refusal is the same
whatever the values are. It also finds free variables whose shape depends on values, as that of
``pm.Normal("b", shape=group.max() + 1)`` does.

``x[:11]`` of twelve records is the same part, whatever they hold. But a batch is not cut there, and the model
would be fitted as if nothing were cut. :func:`cuts_records` finds such slices in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import applys_between
from pytensor.tensor.basic import ScalarFromTensor, Split
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.type import TensorType

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.shape_constants import shape_vectors
from pymc_dpvi.graph.traversal import array_shape, is_array, walk

__all__ = ["cuts_records", "function_of_lengths", "has_bounds", "refuse_masks"]


def refuse_masks(model: pm.Model, public: Collection[Variable]) -> None:
    """Refuse parts of data whose length depends on values, and free variables whose shape does.

    A mask passes if it was declared public. So does one that chooses among numbers of the model, if no array
    behind it is as long as the records. No value is looked at.
    """
    _refuse_shapes(model, public)
    values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    lengths = {array_shape(a)[0] for a in _data(values.values(), (), model)}
    for term in [*model.observed_RVs, *model.potentials]:
        for var in walk([term, values.get(term, term)], stop=model.free_RVs):
            for table, chosen in _selections(var.owner):
                by = _data([chosen], public, model)
                among = _data([table], public, model)
                if by and (among or any(array_shape(a)[0] in lengths for a in by)):
                    raise NotSeparableError(
                        f"The likelihood of '{term.name}' takes a part whose size depends on values of the "
                        "data (a mask, or counts, whatever they hold), so which entry is whose turns on "
                        "other records. Use pt.switch with a condition instead, or select the records before "
                        "the model, each by its own values, and give it those and no others."
                    )


def _refuse_shapes(model: pm.Model, public: Collection[Variable]) -> None:
    """Refuse free variables whose shape depends on values of data that nobody declared public."""
    records = [model.rvs_to_values[rv] for rv in model.observed_RVs] or model.potentials
    lengths = {array_shape(a)[0] for a in _data(records, (), model)}
    for rv in model.free_RVs:
        graphs = [rv]
        transform = model.rvs_to_transforms.get(rv)
        if transform is not None:
            graphs.append(transform.forward(rv, *rv.owner.inputs))
        found = walk(graphs, stop=set(model.free_RVs) - {rv}, into_size=True)
        shapes = shape_vectors(found)
        arrays = [
            v
            for v in found
            if is_array(v)
            and len(array_shape(v))
            and v not in public
            and v not in shapes
            # A constant of another length was written by the user: the size of a variable, for example.
            and (not isinstance(v, Constant) or array_shape(v)[0] in lengths)
        ]
        if arrays and _shapes_read(graphs, arrays):
            raise UnsupportedModelError(
                f"The shape of '{rv.name}' depends on values of the data (their largest one, a mask, or "
                "counts, whatever they hold). What is fixed before the fit must not look at private data: "
                "use a number that is public or known beforehand, or name the array in public_data=[...] "
                "if everybody may know it."
            )


def _shapes_read(graphs: list[Any], arrays: list[Variable]) -> bool:
    """Whether the shapes of graphs depend on values of arrays, not on their shapes alone; if unsure, yes."""
    stand_ins = [a.type() for a in arrays]
    swap = dict(zip(arrays, stand_ins, strict=True))
    if any(isinstance(a, Constant) for a in arrays):
        # PyTensor has worked out the shapes from the values of constants, and the types know them.
        sizes = [g.owner.inputs[1] for g in graphs if isinstance(g.owner.op, RandomVariable)]
        if not set(arrays).isdisjoint(walk(sizes, columns_of=None)):
            return True
        with suppress(Exception):
            graphs, _ = resize_records(graphs, swap, num_records=-1, rows=-1, everything=True)
    shapes = graph_replace([g.shape for g in graphs], swap, strict=False)
    try:
        return function_of_lengths(stand_ins, shapes)[1]
    except Exception:  # its text quotes values, and it may depend on them
        return True


def function_of_lengths(arrays: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[Any, bool]:
    """Compile what should follow from the lengths of placeholders alone; say whether it reads entries."""
    fn = pm_compile(arrays, outputs, mode=Mode("py", "fast_run"), on_unused_input="ignore")
    graph = fn.maker.fgraph
    given = set(graph.inputs[: len(arrays)])  # generators come after
    # The function also computes the next states of generators: these do not count.
    return fn, any(
        not isinstance(node.op, Shape | Shape_i) and given & set(node.inputs)
        for node in applys_between((), graph.outputs[: len(outputs)])
    )


def _data(graphs: Iterable[Variable], public: Collection[Variable], model: pm.Model) -> list[Variable]:
    """List the arrays behind graphs that nobody declared public."""
    found = walk(graphs, stop=model.free_RVs, columns_of=None)
    return [v for v in found if is_array(v) and len(array_shape(v)) and v not in public]


def _selections(node: Apply | None) -> list[tuple[Variable, Variable]]:
    """Return what an operation chooses from, and what decides how many entries it takes."""
    if node is None:
        return []
    if isinstance(node.op, Repeat):
        times = node.inputs[1]
        return [(times, times)] if times.type.ndim else []
    if isinstance(node.op, Split):
        table, *between, counts = node.inputs  # in PyTensor 2 the axis is an input
        axis = getattr(between[0], "data", 0) if between else node.op.axis
        return [(table, counts)] if axis == 0 else []
    if isinstance(node.op, AdvancedSubtensor | AdvancedIncSubtensor):
        indices = node.inputs[2:] if isinstance(node.op, AdvancedIncSubtensor) else node.inputs[1:]
        masks = [i for i in indices if isinstance(i.type, TensorType) and i.type.dtype == "bool"]
        return [(node.inputs[0], mask) for mask in masks if mask.type.ndim]
    return []


def cuts_records(
    graphs: Iterable[Variable],
    record_axes: Callable[[Variable], Collection[int]],
    at_more: Callable[[Variable], Variable],
    rows: tuple[int, int],
    num_records: int,
) -> bool:
    """Whether a graph takes records by their place, in a way that a small batch does not show.

    That is if a slice along the records, read or set, takes all or nothing of the small batch, and another
    part of `num_records` rows; or if it has a computed bound, other than the number of all rows.

    `record_axes` gives the axes of a variable that run along the records, `at_more` what stands in its place
    in a larger batch, if that is known, else the variable. `rows` are the numbers of rows of both batches.
    """
    for cut in _slices(walk(graphs), record_axes):
        bounds = [cut.start, cut.stop, cut.step]
        small, more = ([_number(b) for b in side] for side in (bounds, map(at_more, bounds)))
        if any(isinstance(b, Variable) for b in small) or small != more:
            end = (small[1], more[1]) == rows or _reads_length(cut.stop, record_axes)
            if small[0] not in (None, 0) or small[2] not in (None, 1) or not (small[1] is None or end):
                return True
            continue
        batch, model = (_taken(slice(*small), n) for n in (rows[0], num_records))
        if batch != "some" and batch != model:
            return True
    return False


def has_bounds(found: Iterable[Variable], record_axes: Callable[[Variable], Collection[int]]) -> bool:
    """Whether a slice along the records (see :func:`cuts_records`) begins or ends at a number."""
    return any(
        isinstance(_number(b), int) for cut in _slices(found, record_axes) for b in (cut.start, cut.stop)
    )


def _slices(found: Iterable[Variable], record_axes: Callable[[Variable], Collection[int]]) -> Iterator[slice]:
    """Yield the slices along the records, of what is read and of what is set."""
    for var in found:
        node = var.owner
        if node is None or not isinstance(node.op, Subtensor | IncSubtensor):
            continue
        places = node.inputs[2:] if isinstance(node.op, IncSubtensor) else node.inputs[1:]
        axes = record_axes(node.inputs[0])
        for axis, cut in enumerate(indices_from_subtensor(places, node.op.idx_list)):
            if axis in axes and isinstance(cut, slice):
                yield cut


def _taken(cut: slice, length: int) -> str:
    """Say how much of an array of some length a slice takes."""
    part = range(length)[cut]
    return "all" if part == range(length) else "some" if part else "nothing"


def _reads_length(bound: Any, record_axes: Callable[[Variable], Collection[int]]) -> bool:
    """Whether the bound of a slice is just the length of an array along the records: ``x.shape[0]``."""
    node = getattr(bound, "owner", None)
    if node is not None and isinstance(node.op, ScalarFromTensor):
        node = node.inputs[0].owner
    if node is None:
        return False
    if isinstance(node.op, Shape_i):
        return node.op.i in record_axes(node.inputs[0])
    shape = node.inputs[0].owner if isinstance(node.op, Subtensor) else None
    if shape is None or not isinstance(shape.op, Shape):
        return False
    (entry, *_) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    place = _number(entry)
    return isinstance(place, int) and place % max(shape.inputs[0].type.ndim, 1) in record_axes(
        shape.inputs[0]
    )


def _number(bound: Any) -> Any:
    """Return a bound of a slice as an integer if it is one, else as it is."""
    node = getattr(bound, "owner", None)
    if node is not None and isinstance(node.op, ScalarFromTensor):
        bound = node.inputs[0]
    if isinstance(bound, Constant):
        bound = bound.data
    if isinstance(bound, int | np.integer) or (isinstance(bound, np.ndarray) and bound.ndim == 0):
        return int(bound)
    return bound
