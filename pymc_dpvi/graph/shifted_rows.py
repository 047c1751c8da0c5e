r"""Rows that a model takes from what depends on latent values: the residual of the visit before.

A *selection* w puts rows of other variables in their places: ``pt.concatenate([[0.0], r[:-1]])``,
``pt.set_subtensor(w[1:], r[:-1])``. It computes nothing: each of its rows is one of r or of another input.
Where r is a function of rows of the data, :math:`r_i = f(x_i, z)`, taking a row of r is taking that row of
the data:

.. math:: w_i = r_{s(i)} = f(x_{s(i)}, z).

:func:`shifted` writes it so, with masks for what the other inputs bring in,
:math:`w = c + m_r\,f(x_s, z) + \sum_k m_k v_k`. The masks m, the rows s and the constant part c are what the
same selection makes of ones, of row numbers and of zeros: formulas of the data, which `within_persons`
evaluates for each person. A mistake here leaks nothing; it gives another model, which is found there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.basic import Join
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.traversal import walk

__all__ = ["shifted"]


def shifted(
    model: pm.Model, source: Variable, is_long: Callable[[Variable], bool]
) -> dict[Variable, Variable]:
    """Map selections among rows that depend on latent values to what they are of shifted data.

    `source` are the ids, and `is_long` says whether a variable has an entry for each row.
    """
    found = walk([*model.observed_RVs, *model.potentials], stop=model.free_RVs)
    graph = _Graph.of(model, found, source, is_long)
    read: set[Variable] = set()  # by something that is no selection
    for var in found:
        if var.owner is not None and not _selects(var):
            read.update(var.owner.inputs)
    done: dict[Variable, Variable] = {}
    for var in found:
        if var in graph.latent and var in read and _selects(var) and var.type.ndim == 1 and is_long(var):
            new = _shifted(var, graph, done)
            if new is not None:
                done[var] = new
    return done


class _Graph(NamedTuple):
    """What is known of the variables of a model."""

    free: frozenset[Variable]
    latent: frozenset[Variable]  # what depends on free variables, and these
    source: Variable
    is_long: Callable[[Variable], bool]

    @classmethod
    def of(cls, model: pm.Model, found: Sequence[Variable], *more: Any) -> _Graph:
        free = frozenset(model.free_RVs)
        latent = set(free)
        for var in found:
            if var.owner is not None and not latent.isdisjoint(var.owner.inputs):
                latent.add(var)
        return cls(free, frozenset(latent), *more)


def _selects(var: Variable) -> bool:
    """Whether a variable has rows of others in other places, and nothing else."""
    op = getattr(var.owner, "op", None)
    return isinstance(op, Join | Subtensor) or (isinstance(op, IncSubtensor) and op.set_instead_of_inc)


def _shifted(selection: Variable, graph: _Graph, done: Mapping[Variable, Variable]) -> Variable | None:
    """Write a selection as one of the data; None if that is not possible."""
    rows, others = _selected(selection, graph)
    if not rows or any(v.type.ndim != 1 for v in rows) or any(v.type.shape != (1,) for v in others):
        return None
    count = graph.source.shape[0]
    blank = {v: pt.zeros(count, v.type.dtype) for v in rows} | {v: pt.zeros(1, v.type.dtype) for v in others}
    constant = _with(selection, blank)
    # What the data bring in is in `constant` and taken off again.
    parts = [constant]
    numbers = pt.arange(count)
    for r in rows:
        mine = pt.neq(_with(selection, {**blank, r: pt.ones(count, r.type.dtype)}) - constant, 0)
        place = _with(selection, {**blank, r: numbers.astype("float64")}) - constant
        place = pt.switch(mine, pt.round(place).astype("int64"), numbers)
        behind = _rows_of_data(r, graph)
        if not behind:
            return None
        (moved,) = resize_records([r], {**done, **{x: x[place] for x in behind}}, num_records=-1, rows=-1)[0]
        parts.append(pt.switch(mine, moved, 0))
    for v in others:
        mine = pt.neq(_with(selection, {**blank, v: pt.ones(1, v.type.dtype)}) - constant, 0)
        parts.append(pt.switch(mine, v, 0))
    return pt.add(*parts).astype(selection.type.dtype)


def _with(selection: Variable, values: Mapping[Variable, Variable]) -> TensorVariable:
    return resize_records([selection], values, num_records=-1, rows=-1)[0][0]  # type: ignore[return-value]


def _selected(selection: Variable, graph: _Graph) -> tuple[list[Variable], list[Variable]]:
    """Return what a selection takes rows from that depends on latent values: with all rows, and others."""
    rows: dict[Variable, None] = {}
    others: dict[Variable, None] = {}
    stack = [selection]
    while stack:
        var = stack.pop()
        if var not in graph.latent:
            continue
        if _selects(var) and _has_rows(var, graph):
            stack += var.owner.inputs
        else:
            (rows if graph.is_long(var) else others)[var] = None
    return list(rows), list(others)


def _has_rows(selection: Variable, graph: _Graph) -> bool:
    """Whether a selection takes rows of something that has all of them."""
    latent = [i for i in selection.owner.inputs if i in graph.latent]
    return any(graph.is_long(i) or (_selects(i) and _has_rows(i, graph)) for i in latent)


def _rows_of_data(var: Variable, graph: _Graph) -> list[Variable]:
    """Return the largest formulas of data behind a variable with an entry for each row, but for the ids."""
    found: dict[Variable, None] = {}
    for v in walk([var], stop=graph.free):
        if v in graph.latent and v not in graph.free:
            found.update(dict.fromkeys(i for i in v.owner.inputs if i not in graph.latent))
    return [v for v in found if v is not graph.source and graph.is_long(v)]
