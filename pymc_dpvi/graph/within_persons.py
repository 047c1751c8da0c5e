"""What a row has of the other rows of its person: a lag, a running sum, a mean by person.

In: a model with ``unit=`` and one table, in which rows of one person enter each other's terms by a formula of
the data, such as ``pt.switch(pt.neq(person[1:], person[:-1]), 0.0, y[:-1])``. Out: a view of it, in which
such a formula is a column: a record array like any other. So all later steps see rows that are independent
given the latent values.

*Whose data decide an entry.* The formula is evaluated for each person **on that person's rows alone**, in the
table's order. So an entry of the column is a function of the person's own data, whatever the formula is: the
sensitivity rests on this. Behind it may be ``pm.Data`` with a row for each row of the table, the ids, what
was declared public, and single numbers; nothing else (`made_up_rows`). Rows for which it cannot be evaluated
are NaN, or zero among integers: no record can make it raise. (A lag of two needs two rows, and a person may
have one. Then a made-up person follows, whose rows are the person's first row with another id.)

*Whether it is the user's model.* On the rows of several persons together the formula has to say the same.
`made_up_rows` compares both models on made-up rows. A running sum that does not begin anew with each
person is refused. Made-up rows lie person by person. If those of the table do not, the row before is the
person's last one, whoever's rows lie between.

A lag of what depends on latent values, such as a residual, is a lag of the data behind it (`shifted_rows`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.local_latents import by_ids_of
from pymc_dpvi.graph.made_up_rows import MadeUpRows, compiled, placed_on_rows
from pymc_dpvi.graph.model_checks import array_name
from pymc_dpvi.graph.model_views import check_same_variables, variables_of
from pymc_dpvi.graph.precomputed import refuse_hsgp, refuse_inspected
from pymc_dpvi.graph.rebuild import remade_view
from pymc_dpvi.graph.shifted_rows import shifted
from pymc_dpvi.graph.traversal import array_value, walk
from pymc_dpvi.graph.units import Units

__all__ = ["WithinPersons", "within_persons"]


@dataclass(frozen=True)
class WithinPersons:
    """Columns of the view, and how they are made of the arrays of the user's model."""

    model: pm.Model  # the user's
    columns: tuple[Variable, ...] = field(repr=False)
    arrays: tuple[Variable, ...] = field(repr=False)  # of the user's model, one row each, behind the columns
    formulas: Callable[..., list[np.ndarray]] = field(repr=False)  # of the `arrays` of one person
    graphs: tuple[Variable, ...] = field(repr=False)  # the formulas, of placeholders of any number of rows
    source: Variable = field(repr=False)  # the ids
    beside: int  # rows of the made-up person that follow each person's: more than the longest lag
    entries: tuple[tuple[int, ...], ...]  # the shape of a column's entry
    variables: tuple[Variable, ...] = field(repr=False)  # of the user's model, as they were
    held: tuple[Any, ...] = field(repr=False)  # what `arrays` held

    def values(self, given: Mapping[Variable, np.ndarray], units: Units) -> list[np.ndarray]:
        """Return the columns, (rows, ...), of rows whose `arrays` are `given`."""
        made = [
            np.empty((len(units.rows), *shape), dtype=c.type.dtype)  # type: ignore[attr-defined]
            for c, shape in zip(self.columns, self.entries, strict=True)
        ]
        for a, b in pairwise(units.starts):
            own = units.rows[a:b]
            for column, entries in zip(made, self._of_one([given[v][own] for v in self.arrays]), strict=True):
                column[own] = entries
        return made

    def _of_one(self, rows: Sequence[np.ndarray]) -> Sequence[Any]:
        """Evaluate the formulas on the rows of one person, if need be with those of the other, or give up."""
        count = len(rows[0])
        for beside in (0, self.beside):
            place = np.r_[np.arange(count), np.zeros(beside, dtype=int)]
            other = np.arange(len(place)) >= count
            made = [
                other.astype(r.dtype) if v is self.source else r[place]
                for v, r in zip(self.arrays, rows, strict=True)
            ]
            with suppress(Exception), np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.formulas(*made)
                if all(f.shape == (len(place), *e) for f, e in zip(found, self.entries, strict=True)):
                    return [f[:count] for f in found]
        return [np.nan if _is_float(c) else 0 for c in self.columns]

    def refuse_tables(self, by_ids: Collection[Variable]) -> None:
        """Raise if an array of rows is looked up by the ids, too: an entry would be of two persons."""
        for array in self.arrays:
            if array in by_ids:
                raise UnsupportedModelError(
                    f"{array_name(self.model, array)} is looked up by the ids, as an array with an entry for "
                    "each person, and a formula over the rows of a person takes it as one with an entry for "
                    "each row. Give the model two arrays."
                )

    def check_unchanged(self) -> None:
        """Raise if the user's model has other variables now, or the arrays hold something else."""
        check_same_variables(self.model, self.variables)
        for array, value in zip(self.arrays, self.held, strict=True):
            if array_value(array) is not value:
                raise UnsupportedModelError(
                    f"{array_name(self.model, array)}, from which a formula takes other rows of the same "
                    "person, was exchanged (pm.set_data) since the method was made. Make a new DPADVI."
                )


def within_persons(
    model: pm.Model, units: Units | None, num_rows: int, public: Collection[Variable]
) -> tuple[pm.Model, WithinPersons | None]:
    """Return a view of the model in which formulas over the rows of a person are columns, and these.

    The model itself, and None, if it has none.
    """
    if units is None or units.source is None:
        return model, None
    rows = MadeUpRows(model, units.source, num_rows, public)
    view = remade_view(model, shifted(model, units.source, rows.is_long), num_rows)
    formulas = rows.formulas(view)
    if not formulas:
        _refuse_constants(model, units.source, rows.constants)
        return model, None
    arrays = [v for v in rows.arrays if v in walk(formulas) and isinstance(v, SharedVariable)]
    refuse_inspected(model, rows.arrays)
    refuse_hsgp(model, rows.arrays, public)
    columns, entries = [], []
    for formula in formulas:
        shape = rows.of_formula(formula).shape[1:]
        empty = np.zeros((num_rows, *shape), dtype=formula.type.dtype)
        columns.append(pytensor.shared(empty, name=_name(formula, arrays), shape=(None, *shape), borrow=True))
        entries.append(shape)
    placeholders, graphs = placed_on_rows(formulas, arrays)
    within = WithinPersons(
        model=model,
        columns=tuple(columns),
        arrays=tuple(arrays),
        formulas=compiled(placeholders, graphs),
        graphs=tuple(graphs),
        beside=rows.longest,
        source=units.source,
        entries=tuple(entries),
        variables=variables_of(model),
        held=tuple(map(array_value, arrays)),
    )
    view = remade_view(view, dict(zip(formulas, columns, strict=True)), num_rows)
    _refuse_constants(view, units.source, rows.constants)
    if (other := rows.other_term(view, within.columns, within.values)) is not None:
        names = ", ".join(sorted({f"'{a.name}'" for a in arrays}))
        ids = units.source.name
        raise NotSeparableError(
            f"The likelihood '{other}' takes rows of other persons, or rows by their place, from {names}: "
            "for one person's rows alone its formula says something else than beside the rows of others. "
            "Begin anew with each person: "
            f"begins = pt.concatenate([[True], pt.neq({ids}[1:], {ids}[:-1])]) is true in first rows, and "
            "pt.switch(begins, 0.0, pt.concatenate([[0.0], y[:-1]])) is a lag. "
            "Or compute the column from each person's own rows before the model, and give it as pm.Data."
        )
    made = within.values(dict(zip(arrays, within.held, strict=True)), units)
    for column, values in zip(columns, made, strict=True):
        column.set_value(values, borrow=True)
    return view, within


def _refuse_constants(view: pm.Model, source: Variable, constants: Collection[Variable]) -> None:
    """Raise if a formula that is no column reads the ids, and may be none because of arrays in it."""
    terms = [*view.observed_RVs, *view.potentials]
    look_ups = [out for out, (base, _) in by_ids_of(view, source).items() if source not in walk([base])]
    found = walk(terms, stop=[*view.free_RVs, *look_ups])
    if source in found and any(v in found for v in constants):
        raise UnsupportedModelError(
            f"A formula that reads the ids '{source.name}' also holds an array or a list of numbers. What a "
            "row has from the other rows of its person (a lag, a mean) may be written with pm.Data that have "
            f"one entry for each row, '{source.name}', single numbers, and arrays that public_data= names. "
            "Put arrays of the rows into pm.Data; write [0.0, 0.0] as pt.zeros(2)."
        )


def _is_float(column: Variable) -> bool:
    return np.dtype(column.type.dtype).kind == "f"  # type: ignore[attr-defined]


def _name(formula: Variable, arrays: Sequence[Variable]) -> str:
    """Name a column by what it is made of."""
    behind = [str(a.name) for a in arrays if a in walk([formula])]
    return str(formula.name or f"formula of {', '.join(behind)}")
