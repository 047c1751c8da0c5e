"""Parts of arrays that no record may choose: by a mask, by counts, by a bound among the records.

The length of ``x[keep]`` follows from the values of ``keep``, and so does what comes of the model after it:
another shape, another exception, another refusal. :func:`refuse_masks` finds such operations by their types,
before anything else is worked out, so that the refusal is the same whatever the values are.

``x[:11]`` of twelve records is another thing: the same part, whatever they hold. But a batch is not cut
there, and the model would be fitted as if nothing were cut. :func:`cuts_records` finds it in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import ScalarFromTensor, Split
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.type import TensorType

from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.graphs import array_shape, is_array, walk

__all__ = ["cuts_records", "refuse_masks"]


def refuse_masks(model: pm.Model, public: Collection[Variable]) -> None:
    """Refuse parts of data whose length depends on values, by the types of the operations alone.

    A mask that was declared public may stand, and one that chooses among numbers of the model that are not as
    many as the records.

    Parameters
    ----------
    model : pymc.Model
    public : collection of Variable
        What was declared public.

    Raises
    ------
    NotSeparableError
        No value is looked at.
    """
    values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    lengths = {array_shape(a)[0] for a in _data(values.values(), (), model)}
    for term in [*model.observed_RVs, *model.potentials]:
        for var in walk([term, values.get(term, term)], stop=model.free_RVs):
            for table, chosen in _selections(var.owner):
                by = _data([chosen], public, model)
                among = _data([table], public, model)
                if by and (among or any(array_shape(a)[0] in lengths for a in by)):
                    raise NotSeparableError(
                        f"The likelihood of '{term.name}' takes a part whose size depends on values "
                        "of the data (a mask, or counts, whatever they hold), so which "
                        "entry is whose turns on other records. Use pt.switch with a condition instead, or "
                        "select the records before the model, each by its own values, and give it those and "
                        "no others."
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
    graphs: Iterable[Variable], lengths: Callable[[Variable], tuple[int | None, int | None]], num_records: int
) -> bool:
    """Whether a graph leaves out records by their place, where a batch of other length leaves out none.

    Parameters
    ----------
    graphs : iterable of Variable
        Of the model, or of a batch.
    lengths : callable
        Of a variable, its length in this graph, if it is known, and in a batch. PyTensor may have left out
        what cuts nothing there.
    num_records : int
        The number of records in the model.

    Returns
    -------
    bool
        Whether a slice along the first axis of what follows from the records does not take all of them.
    """
    for var in walk(graphs):
        node = var.owner
        if node is None or not isinstance(node.op, Subtensor):
            continue
        first, *_ = indices_from_subtensor(node.inputs[1:], node.op.idx_list) or (None,)
        if not isinstance(first, slice):
            continue
        bounds = [_number(b) for b in (first.start, first.stop, first.step)]
        if not all(b is None or isinstance(b, int) for b in bounds):
            continue
        here, batch = lengths(node.inputs[0])
        cut = slice(*bounds)
        if here in (None, num_records, batch) and batch is not None:
            if range(batch)[cut] == range(batch) and range(num_records)[cut] != range(num_records):
                return True
    return False


def _number(bound: Any) -> Any:
    """Return a bound of a slice as an integer if it is one, or None."""
    node = getattr(bound, "owner", None)
    if node is not None and isinstance(node.op, ScalarFromTensor):
        bound = node.inputs[0]
    if isinstance(bound, Constant):
        bound = bound.data
    if isinstance(bound, int | np.integer) or (isinstance(bound, np.ndarray) and bound.ndim == 0):
        return int(bound)
    return bound
