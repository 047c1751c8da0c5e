"""Views of a PyMC model: the same variables, in lists and tables of the view's own.

What is done to a view is not seen in the user's model. A view shares the variables themselves, and the
numbers that they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_dpvi.errors import UnsupportedModelError

__all__ = ["check_same_variables", "copied", "swap_variables", "variables_of"]

_LISTS = ("observed_RVs", "potentials", "deterministics", "data_vars")
_TABLES = ("rvs_to_values", "rvs_to_transforms", "rvs_to_initial_values")


def copied(model: pm.Model) -> pm.Model:
    """Return a model of the same variables, with lists of its own."""
    view = object.__new__(type(model))
    for name, value in model.__dict__.items():
        own = isinstance(value, dict | list)
        view.__dict__[name] = type(value)(value) if own else value
    return view


def variables_of(model: pm.Model) -> tuple[Variable, ...]:
    """Return what a model's density is made of."""
    return (*model.free_RVs, *model.observed_RVs, *model.potentials)


def check_same_variables(model: pm.Model, variables: Sequence[Variable]) -> None:
    """Raise if a model has other variables now than `variables`, those when a view of it was made."""
    if list(map(id, variables_of(model))) != list(map(id, variables)):
        raise UnsupportedModelError(
            "The model has other variables now than when the method was made, so the checks of the model "
            "hold no longer. Make a new DPADVI."
        )


def swap_variables(view: pm.Model, swapped: Mapping[Any, Any], gone: Collection[Any] = ()) -> None:
    """Put variables in place of others, under the same names; leave out free variables that are `gone`."""
    for kind in _LISTS:
        listed = getattr(view, kind)
        setattr(view, kind, type(listed)(swapped.get(v, v) for v in listed))
    view.free_RVs = type(view.free_RVs)(rv for rv in view.free_RVs if rv not in gone)
    for table in _TABLES:
        entries = getattr(view, table)
        kept = {swapped.get(rv, rv): value for rv, value in entries.items() if rv not in gone}
        setattr(view, table, type(entries)(kept))
    values = {rv: swapped.get(value, value) for rv, value in view.rvs_to_values.items()}
    view.rvs_to_values = type(view.rvs_to_values)(values)
    view.values_to_rvs = type(view.values_to_rvs)({v: rv for rv, v in view.rvs_to_values.items()})
    names = {str(rv.name) for rv in gone}
    named = {name: swapped.get(v, v) for name, v in view.named_vars.items() if name not in names}
    view.named_vars = type(view.named_vars)(named)
    dims = {name: d for name, d in view.named_vars_to_dims.items() if name not in names}
    view.named_vars_to_dims = type(view.named_vars_to_dims)(dims)
