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

from collections.abc import Callable, Mapping

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
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
    terms = [*model.observed_RVs, *model.potentials]
    free = set(model.free_RVs)
    found = walk(terms, stop=free)
    latent = set(free)
    for var in found:
        if var.owner is not None and var not in free and any(i in latent for i in var.owner.inputs):
            latent.add(var)
    read: set[Variable] = set()  # by something that is no selection
    for var in found:
        if var.owner is not None and not _selects(var.owner):
            read.update(var.owner.inputs)
    done: dict[Variable, Variable] = {}
    for var in found:
        node = var.owner
        if node is None or var not in latent or var in free or not _selects(node) or var not in read:
            continue
        if var.type.ndim == 1 and is_long(var):
            new = _shifted(var, latent, source, is_long, done)
            if new is not None:
                done[var] = new
    return done


def _selects(node: Apply) -> bool:
    """Whether an operation puts rows in other places, and does nothing else."""
    if isinstance(node.op, IncSubtensor):
        return bool(node.op.set_instead_of_inc)
    return isinstance(node.op, Join | Subtensor)


def _shifted(
    selection: Variable,
    latent: set[Variable],
    source: Variable,
    is_long: Callable[[Variable], bool],
    done: Mapping[Variable, Variable],
) -> Variable | None:
    """Write a selection as one of the data; None if that is not possible."""
    rows, others = _selected(selection, latent, is_long)
    if not rows or any(v.type.ndim != 1 for v in rows) or any(v.type.shape != (1,) for v in others):
        return None
    count = source.shape[0]
    blank = {v: pt.zeros(count, v.type.dtype) for v in rows} | {v: pt.zeros(1, v.type.dtype) for v in others}
    constant = _with(selection, blank)
    # What the data bring in is in `constant` and taken off again.
    parts = [constant]
    numbers = pt.arange(count)
    for r in rows:
        mine = pt.neq(_with(selection, {**blank, r: pt.ones(count, r.type.dtype)}) - constant, 0)
        place = _with(selection, {**blank, r: numbers.astype("float64")}) - constant
        place = pt.switch(mine, pt.round(place).astype("int64"), numbers)
        behind = _rows_of_data(r, latent, source, is_long)
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


def _selected(
    selection: Variable, latent: set[Variable], is_long: Callable[[Variable], bool]
) -> tuple[list[Variable], list[Variable]]:
    """Return what a selection takes rows from that depends on latent values: with all rows, and others."""
    rows: dict[Variable, None] = {}
    others: dict[Variable, None] = {}
    stack = [selection]
    while stack:
        var = stack.pop()
        if var not in latent:
            continue
        if var.owner is not None and _selects(var.owner) and _has_rows(var, latent, is_long):
            stack += var.owner.inputs
        else:
            (rows if is_long(var) else others)[var] = None
    return list(rows), list(others)


def _has_rows(var: Variable, latent: set[Variable], is_long: Callable[[Variable], bool]) -> bool:
    """Whether a selection takes rows of something that has all of them."""
    for i in var.owner.inputs:  # type: ignore[union-attr]
        if i in latent and (
            is_long(i) or (i.owner is not None and _selects(i.owner) and _has_rows(i, latent, is_long))
        ):
            return True
    return False


def _rows_of_data(
    var: Variable, latent: set[Variable], source: Variable, is_long: Callable[[Variable], bool]
) -> list[Variable]:
    """Return the largest formulas of data behind a variable with an entry for each row, but for the ids."""
    found: dict[Variable, None] = {}
    for v in walk([var], stop=[w for w in latent if w.owner is None]):
        if v in latent and v.owner is not None:
            found.update(dict.fromkeys(i for i in v.owner.inputs if i not in latent))
    return [v for v in found if v is not source and is_long(v)]
