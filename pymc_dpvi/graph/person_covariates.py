"""Covariates of persons: arrays with an entry for each person, looked up by the ids.

A model may hold a person's age or group in an array of persons, ``age[person]``, ``(a[group] + u)[person]``,
or in the prior of a person's value, ``pm.Normal("u", b * age, tau)``. The entry of a person is a part of
that person's record: of ids that are places in the array, different ones name different entries, so no entry
belongs to two persons.

:func:`by_row` makes an array of rows of each such array, the entry of the row's person in each row. It is a
record array like any other, and takes the place of what is looked up: in the model's graph if no local
variable is looked up with it, else where `Locals` rebuilds what it looks up and the priors. The array of
persons itself is then in no graph that is evaluated; `private_constants` refuses the model if it is, as in
``age[person] - age.mean()``. Only a ``pm.Data`` may be one: into constants PyMC looks while the model is
written (`precomputed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.local_latents import by_ids_of, table_length, with_priors
from pymc_dpvi.graph.model_checks import array_name
from pymc_dpvi.graph.model_views import check_same_variables, copied, variables_of
from pymc_dpvi.graph.rebuild import remade_view, resize_records
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, walk
from pymc_dpvi.graph.units import Units

__all__ = ["PersonCovariates", "by_row"]


@dataclass(frozen=True)
class PersonCovariates:
    """Arrays of persons in the user's model, and the arrays of rows that were made of them."""

    model: pm.Model  # the user's
    rows_of: Mapping[Variable, Variable] = field(repr=False)
    variables: tuple[Variable, ...] = field(repr=False)  # of the user's model, as they were
    held: tuple[tuple[Variable, Any], ...] = field(repr=False)  # what the arrays of persons held

    @property
    def dims(self) -> frozenset[str]:
        """Dims that run over persons: none of their labels is released."""
        named = (self.model.named_vars_to_dims.get(str(array.name)) for array in self.rows_of)
        return frozenset(dims[0] for dims in named if dims and dims[0] is not None)

    def check_unchanged(self) -> None:
        """Raise if the user's model has other variables now, or its arrays of persons hold something else."""
        check_same_variables(self.model, self.variables)
        for array, value in self.held:
            if array_value(array) is not value:
                raise UnsupportedModelError(
                    f"{array_name(self.model, array)}, which has an entry for each person, was exchanged "
                    "(pm.set_data) since the method was made. Make a new DPADVI."
                )


def by_row(model: pm.Model, units: Units | None) -> tuple[pm.Model, PersonCovariates | None]:
    """Return a view of the model in which arrays of persons are arrays of rows, and these.

    The model itself, and None, if it has none.
    """
    if units is None or units.source is None:
        return model, None
    shapes = model.eval_rv_shapes()
    free = list(model.free_RVs)
    rows_of: dict[Variable, Variable] = {}
    swapped: dict[Variable, Variable] = {}
    for out, (base, rest) in by_ids_of(model, units.source).items():
        length = table_length(base, free, shapes)
        if length is None:
            continue
        own = [rv for rv in free if rv.type.ndim and shapes[rv.name][0] == length]
        local = with_priors([base], own, free)
        behind = [base, *(i for rv in local for i in rv.owner.inputs)]
        found = [v for v in walk(behind, stop=free) if _has_entries(v, length) and v is not units.source]
        for array in found:
            rows_of.setdefault(array, _rows(model, array, units.source))
        if found and not local:
            number = len(array_value(units.source))
            (new,), _ = resize_records([base], rows_of, num_records=length, rows=number)
            swapped[out] = new[(slice(None), *rest)] if rest else new
    if not rows_of:
        return model, None
    held = tuple((array, array_value(array)) for array in rows_of)
    view = remade_view(model, swapped, len(array_value(units.source))) if swapped else copied(model)
    return view, PersonCovariates(model, rows_of, variables_of(model), held)


def _has_entries(var: Variable, length: int) -> bool:
    """Whether a variable is a ``pm.Data`` of some length."""
    return isinstance(var, SharedVariable) and is_array(var) and array_shape(var)[:1] == (length,)


def _rows(model: pm.Model, array: Any, source: Variable) -> Variable:
    """Return the entry of the row's person in each row, as an array of the model."""
    ids, entries = array_value(source), array_value(array)
    if ids.size and (ids.min() < 0 or ids.max() >= len(entries)):
        raise ArgumentError(
            f"{array_name(model, array)} is looked up by the ids in '{source.name}' and has too few entries: "
            "ids must be places in it, from 0 to its length less 1. pd.factorize(ids)[0] makes such ids."
        )
    rows = np.asarray(entries)[ids]
    return pytensor.shared(rows, name=array.name, shape=(None, *rows.shape[1:]), borrow=True)
