r"""Several tables of the same people: ``unit={"cost": "who_came", "smoker": "who_answered"}``.

In: a model whose observed variables have different lengths, and for each of them whose its rows are. Out: a
view of the model in which all tables lie one under the other, so that all other modules see a single one. A
row of the view is a row of one table,

.. math:: \log p(\text{row } r \mid z) = \sum_t 1[r \in t]\, \log p_t(x_r \mid z),

and a record is all rows of a person, whichever tables they are in. So the sensitivity rests on the same
proof as with one table: a person's rows enter that person's sum alone.

*The view* (`stack_tables`). Each array with a row for each row of a table becomes one with a row for each row
of all tables, the observed variables and Potentials of the table are remade on it (`rebuild`), and the ids of
all tables become one array. The view holds no number of the data. `Tables.values` makes the arrays of a fit.

*What is not taken.* In the columns of another table, a row has zeros. Its density is computed in all tables,
and that of its own is taken (`Tables.own`). The density at the zeros may be no number, and zero times its
slope none, so the same choice is made once more between the gradients (`own_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.local_latents import look_ups, table_length
from pymc_dpvi.graph.model_checks import array_name, check_against_records, check_orientation
from pymc_dpvi.graph.model_views import check_same_variables, copied, swap_variables, variables_of
from pymc_dpvi.graph.precomputed import refuse_hsgp, refuse_inspected
from pymc_dpvi.graph.public_data import shown
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.record_axis import find_record_arrays, find_record_axis
from pymc_dpvi.graph.table_ids import units_of_tables
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, walk
from pymc_dpvi.graph.units import Ids, Units, check_max_rows, codes_of, dims_of_ids, find_ids

__all__ = ["Tables", "by_ids", "own_gradients", "stack_tables"]

_EXAMPLE = "unit={'cost': 'who_came', 'smoker': 'who_answered'}"


@dataclass(frozen=True)
class Table:
    """Observed variables, and Potentials, that have one row for each row of a table."""

    terms: tuple[str, ...]
    num_rows: int = field(repr=False)
    dims: frozenset[str]
    ids: Ids
    #: From each array of the user's to the one of all tables.
    arrays: Mapping[Variable, Variable] = field(repr=False)


@dataclass(frozen=True)
class Tables:
    """The tables of a model, from the first row to the last; their order is that of `unit`."""

    model: pm.Model  # the user's
    tables: tuple[Table, ...]
    units: Units = field(repr=False)
    codes: np.ndarray = field(repr=False)  # of the person of each row, (rows,)
    which: Variable  # an array that holds the number of each row's table
    variables: tuple[Variable, ...] = field(repr=False)  # of the user's model, as they were
    held: tuple[tuple[Variable, Any], ...] = field(repr=False)  # arrays with ids outside of the model

    @property
    def num_rows(self) -> tuple[int, ...]:
        """How many rows the tables have."""
        return tuple(t.num_rows for t in self.tables)

    @property
    def dims(self) -> frozenset[str]:
        """Dims that run over rows of a table."""
        return frozenset[str]().union(*(t.dims for t in self.tables))

    @property
    def originals(self) -> frozenset[Variable]:
        """The user's arrays of records. None of them is read by the view."""
        return frozenset(a for t in self.tables for a in t.arrays)

    def number_of(self, term: str) -> int:
        """Return which table an observed variable or Potential belongs to."""
        return next(k for k, t in enumerate(self.tables) if term in t.terms)

    def own(self, term: str, log_density: TensorVariable, which: Variable) -> TensorVariable:
        """Return a term's log-densities, (rows, ...), with zeros in the rows of other tables."""
        mine = pt.eq(which, self.number_of(term))
        return pt.switch(mine.dimshuffle(0, *"x" * (log_density.type.ndim - 1)), log_density, 0.0)

    def values(self, array: Variable) -> np.ndarray:
        """Return what an array of the view holds in a fit, from the user's arrays as they are now."""
        given = {a: array_value(a) for a in self.originals}
        return self.stacked(array, given, self.num_rows, self.codes)

    def stacked(
        self, array: Any, given: Mapping[Variable, np.ndarray], num_rows: Sequence[int], codes: np.ndarray
    ) -> np.ndarray:
        """Put rows of all tables one under the other; `given` are those of the user's arrays."""
        if array is self.which:
            return np.repeat(np.arange(len(num_rows), dtype="int32"), num_rows)
        if array is self.units.source:
            return codes
        pairs = ((k, a) for k, t in enumerate(self.tables) for a, b in t.arrays.items() if b is array)
        number, original = next(pairs)
        out = np.zeros((sum(num_rows), *array_shape(original)[1:]), dtype=array.type.dtype)
        first = sum(num_rows[:number])
        out[first : first + num_rows[number]] = given[original]
        return out

    def check_unchanged(self) -> None:
        """Raise if the user's model has other variables now, or its arrays other shapes or ids."""
        model = self.model
        check_same_variables(model, self.variables)
        for table in self.tables:
            for array, stacked in table.arrays.items():
                if array_shape(array) != (table.num_rows, *stacked.type.shape[1:]):  # type: ignore[attr-defined]
                    raise UnsupportedModelError(
                        f"{array_name(model, array)} has another shape now than when the method was made "
                        "(pm.set_data), so the checks of the model hold no longer. Put the data of the fit "
                        "back. A new DPADVI is needed only to fit other data, at a new cost."
                    )
        self.units.check_unchanged(model)
        if any(array_value(array) is not value for array, value in self.held):
            raise UnsupportedModelError(
                "The data of the model were exchanged (pm.set_data) since the method was made, "
                "and the ids of unit= are no part of the model, so it is not known whose the rows are. "
                "Make a new DPADVI."
            )


def own_gradients(
    cost: TensorVariable,
    wrt: Sequence[TensorVariable],
    which: Variable,
    grad: Callable[..., list[TensorVariable]],
) -> list[TensorVariable]:
    """Differentiate one row's log-density in its own table; `which` is the placeholder of that table.

    `grad` is `pytensor.grad`, with zeros where nothing depends. What :meth:`Tables.own` has chosen between is
    differentiated alone, and chosen again.
    """
    chosen = [v for v in walk([cost]) if _chooses(v, which)]
    if not chosen:
        return grad(cost, wrt)
    total = grad(cost, wrt, consider_constant=chosen)
    for var, slope in zip(chosen, grad(cost, chosen), strict=True):
        mine, log_density, _ = var.owner.inputs  # type: ignore[union-attr]
        found = grad(None, wrt, known_grads={log_density: slope.astype(log_density.type.dtype)})
        is_own = mine.flatten()[0]
        total = [a + pt.switch(is_own, b, 0.0) for a, b in zip(total, found, strict=True)]
    return total


def _chooses(var: Variable, which: Variable) -> bool:
    """Whether a variable is something in the rows of a table, and zero in the others."""
    op = None if var.owner is None else var.owner.op
    if not isinstance(op, Elemwise) or not isinstance(op.scalar_op, Switch):
        return False
    roots = {v for v in walk(var.owner.inputs[:1]) if v.owner is None and not isinstance(v, Constant)}  # type: ignore[union-attr]
    return roots == {which}


def _on_arrays(model: pm.Model) -> list[TensorVariable]:
    """Return Potentials that read an array: they may be likelihood terms."""
    behind = ((p, walk([p], stop=model.free_RVs)) for p in model.potentials)
    return [p for p, found in behind if any(is_array(v) and array_shape(v) for v in found)]


def by_ids(model: pm.Model, unit: Mapping[Any, Any]) -> dict[Any, tuple[tuple[str, ...], Any]]:
    """Group the names in `unit` by their ids: one group is one table; raise for a name that is no term."""
    terms = {str(v.name) for v in (*model.observed_RVs, *model.potentials)}
    needed = [str(v.name) for v in model.observed_RVs or _on_arrays(model)]
    names = sorted(terms) if not model.observed_RVs else sorted(needed)
    groups: dict[Any, tuple[tuple[str, ...], Any]] = {}
    for name, ids in unit.items():
        if not isinstance(name, str) or name not in terms:
            raise ArgumentError(
                f"unit names {shown(name)}, which is no observed variable; they are {names}. A dict says of "
                f"each observed variable whose its rows are: {_EXAMPLE}."
            )
        key = ids.name if isinstance(ids, Variable) and ids.name else ids if isinstance(ids, str) else id(ids)
        groups[key] = ((*groups.get(key, ((),))[0], name), ids)
    missing = sorted(name for name in needed if name not in unit)
    if missing:
        raise ArgumentError(
            f"unit= is a dict, and has no ids for {', '.join(map(repr, missing))}. Say of each observed "
            f"variable whose its rows are: {_EXAMPLE}."
        )
    return groups


def stack_tables(
    model: pm.Model,
    groups: Iterable[tuple[tuple[str, ...], Any]],
    max_rows: Any,
    record_dim: str | None,
    public: set[Variable],
) -> tuple[pm.Model, Tables]:
    """Return the view of a model with one table under the other, and the tables."""
    if record_dim is not None:
        raise ArgumentError(
            "record_dim= names the dim of the rows of one table, and unit= says whose the rows of several "
            "are. Leave record_dim= out."
        )
    max_rows = check_max_rows(groups, max_rows)
    parts = [(_part(model, terms), terms, find_ids(model, ids, public)) for terms, ids in groups]
    local = set().union(*(_of_persons(part, ids) for part, _, ids in parts))
    found = [_table(part, terms, ids, public, local) for part, terms, ids in parts]
    _refuse_shared(model, found, public)
    units, codes = units_of_tables([(t.terms, t.ids) for t in found], max_rows)
    total = sum(t.num_rows for t in found)
    tables = []
    view = copied(model)
    swapped: dict[Variable, Any] = {}
    for table in found:
        arrays: dict[Variable, Variable] = {
            a: units.source if a is table.ids.source and units.source is not None else _empty(a, total)
            for a in table.arrays
        }
        swapped |= arrays
        swapped |= _stacked(model, table, arrays, total)
        tables.append(Table(table.terms, table.num_rows, table.dims, table.ids, arrays))
    swap_variables(view, swapped)
    named = view.named_vars_to_dims
    for old in swapped:
        if named.get(old.name):  # the rows of a table have its dim; those of all tables have none
            named[str(old.name)] = (None, *named[str(old.name)][1:])
    which = pytensor.shared(np.broadcast_to(np.int32(0), (total,)), name="table", borrow=True)
    outside = [t for t in tables if t.ids.source is None]
    held = tuple((a, array_value(a)) for t in outside for a in t.arrays)
    return view, Tables(model, tuple(tables), units, codes, which, variables_of(model), held)


def _part(model: pm.Model, terms: tuple[str, ...]) -> pm.Model:
    """Return the model with the observed variables and Potentials of one table alone."""
    part = copied(model)
    part.observed_RVs = type(model.observed_RVs)(rv for rv in model.observed_RVs if rv.name in terms)
    part.potentials = type(model.potentials)(p for p in model.potentials if p.name in terms)
    return part


def _table(
    part: pm.Model, terms: tuple[str, ...], ids: Ids, public: set[Variable], local: set[Variable]
) -> Table:
    """Find the rows and arrays of a table, and check it as a model of its own would be.

    `local` are variables with an entry for each person, whichever table looks them up.
    """
    num_rows, dims = find_record_axis(part, None)
    arrays, dims = find_record_arrays(part, num_rows, dims, public)
    codes_of(ids.values, ids.words, num_rows, of_data=ids.source is not None, alone=True)
    dims |= dims_of_ids(part, [ids])
    if ids.source is not None and ids.source not in arrays:
        arrays.append(ids.source)  # also if this table's variables do not read it
    refuse_inspected(part, arrays)
    refuse_hsgp(part, arrays, public)
    check_orientation(part, num_rows, arrays, public)
    part.free_RVs = type(part.free_RVs)(rv for rv in part.free_RVs if rv not in local)
    check_against_records(part, num_rows, dims, arrays, by_person=True)
    return Table(terms, num_rows, dims, ids, {a: a for a in arrays})


def _of_persons(part: pm.Model, ids: Ids) -> set[Variable]:
    """Return variables with an entry for each person: as many, perhaps, as the table has rows."""
    if ids.source is None:
        return set()
    bases = [base for base, _ in look_ups(part, ids.source).values()]
    shapes = part.eval_rv_shapes()
    lengths = {table_length(base, part.free_RVs, shapes) for base in bases}
    behind = set(walk(bases))
    vectors = [rv for rv in part.free_RVs if rv in behind and len(shapes[rv.name])]
    return {rv for rv in vectors if shapes[rv.name][0] in lengths}


def _refuse_shared(model: pm.Model, tables: Sequence[Table], public: set[Variable]) -> None:
    """Raise if a term reads rows of another table than its own, or rows of a table and has no ids."""
    known = {name for t in tables for name in t.terms}
    for number, table in enumerate(tables):
        rest = [t for k, t in enumerate(tables) if k != number]
        others = {a for t in rest for a in t.arrays} | {model.named_vars[n] for t in rest for n in t.terms}
        others |= {model.dim_lengths[d] for t in rest for d in t.dims - table.dims}
        for name in table.terms:
            term = model.named_vars[name]
            for var in walk([term, model.rvs_to_values.get(term, term)], stop=model.free_RVs, into_size=True):
                if var in others:
                    what = array_name(model, var) if is_array(var) else f"'{var.name or 'A length'}'"
                    raise UnsupportedModelError(
                        f"{what} has a row for each row of one table, and '{name}', of another table, "
                        "reads it. Rows of two tables have no order in common: give each table an array of "
                        "its own, with an entry for each of its rows."
                    )
    lengths = {t.num_rows for t in tables}
    for pot in model.potentials:
        if pot.name in known:
            continue
        found = set(walk([pot], stop=model.free_RVs, columns_of=None)) - public
        of_rows = any(is_array(v) and array_shape(v)[:1] and array_shape(v)[0] in lengths for v in found)
        if of_rows or not found.isdisjoint(model.observed_RVs):
            raise ArgumentError(
                f"The Potential '{pot.name}' reads rows of a table, and unit= does not say whose they are. "
                f"Name it there, as the observed variables are: {_EXAMPLE}."
            )


def _named(terms: Iterable[str]) -> str:
    return ", ".join(map(repr, terms))


def _empty(array: Any, total: int) -> Variable:
    """Return an array of the view: as the user's, with rows for all tables, and no number in it."""
    shape = (total, *array_shape(array)[1:])
    empty = np.broadcast_to(np.zeros((), dtype=array.type.dtype), shape)
    return pytensor.shared(empty, name=array.name, shape=shape, borrow=True)


def _stacked(
    model: pm.Model, table: Table, arrays: Mapping[Variable, Variable], total: int
) -> dict[Variable, Variable]:
    """Remake the observed variables, their values and the Potentials of a table for rows of all tables."""
    observed = [rv for rv in model.observed_RVs if rv.name in table.terms]
    potentials = [p for p in model.potentials if p.name in table.terms]
    values = [model.rvs_to_values[rv] for rv in observed]
    lengths = {
        length: pt.constant(total, dtype="int64")
        for length in (model.dim_lengths.get(d) for d in table.dims)
        if isinstance(length, Variable)
    }
    old = [*observed, *potentials, *values]
    new, _ = resize_records(
        old,
        {**arrays, **lengths, **{rv: rv for rv in model.free_RVs}},
        num_records=table.num_rows,
        rows=total,
        resize=observed,
        describe=lambda var: f"'{var.name}'" if var.name else f"A part of {_named(table.terms)}",
    )
    made = dict(zip(old, new, strict=True))
    for rv in (*observed, *potentials):
        made[rv].name = rv.name
    return made
