"""What counts as public beside the records: what the user declared, and what else the report lists.

The report lists, with its shape as it is, what the release depends on beside the records and single numbers:
arrays that were declared public, constants that the user wrote into a prior, an initial value or a
transform, grids in the likelihood, and the labels of released dims. An unnamed constant that says no more
than a shape (`shape_constants`) is not listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant, Variable

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.scalar_constants import MOST_NUMBERS, holds_table
from pymc_dpvi.graph.shape_constants import is_structural, written_shapes
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = ["describe_public", "public_variables", "shown"]


def public_variables(model: pm.Model, public_data: Iterable[str | Variable]) -> set[Variable]:
    """Return the arrays that were declared public; raise for an entry that neither is nor names one."""
    if isinstance(public_data, str | Variable):
        public_data = [public_data]
    if not isinstance(public_data, list | tuple | set | frozenset):
        # Not any iterable: a column of strings would be taken for names, and the first one quoted.
        raise ArgumentError(f"public_data must be a list of names; found {shown(public_data)}.")
    public: set[Variable] = set()
    names = sorted(repr(d.name) for d in model.data_vars)
    for item in public_data:
        var = model.named_vars.get(item) if isinstance(item, str) else item
        if not isinstance(var, Variable) or not is_array(var):
            raise ArgumentError(
                f"public_data must name pm.Data of the model; found {shown(item)}. The model "
                f"{'has ' + ', '.join(names) if names else 'has no pm.Data'}."
            )
        public.add(var)
    for rv in model.observed_RVs:
        if (value := model.rvs_to_values[rv]) in public:
            raise ArgumentError(
                f"public_data names {shown(value.name)}, the observed values of '{rv.name}'. These are the "
                "records, which the fit protects: leave it out."
            )
    return public


def shown(value: object) -> str:
    """Show what the user typed if it is a name; else only its type, since it may be data."""
    return repr(value) if type(value) is str else f"a {type(value).__name__}"


def describe_public(
    model: pm.Model,
    arrays: Sequence[Variable],
    evaluated: Sequence[Variable],
    prior: Sequence[Variable],
    dims: Collection[str],
) -> list[str]:
    """Name what the release depends on beside the record arrays `arrays`.

    `evaluated` are all graphs that a fit and a release evaluate, but for `prior`, the log prior and the
    initial points; `dims` are those whose labels are released. Examples of entries: ``"region (7,)"`` for an
    array with a name, ``"constant of beta (3,)"`` for one without, ``"labels of county (7,)"``, and one
    sentence if prior or start hold very many single numbers.
    """
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    roots = [*model.free_RVs, *model.observed_RVs, *model.potentials, *values]
    # `evaluated` has the likelihood as rebuilt for one record. What fell out of it (the condition of a check)
    # is not listed, and the list does not depend on the number of records.
    found = walk([*model.free_RVs, *prior, *evaluated], columns_of=arrays)
    plain = written_shapes(found) | set(arrays)
    own = set(walk(roots))
    places = _places(model, prior)
    initial = {rv.name: v for rv, v in model.rvs_to_initial_values.items() if isinstance(v, np.ndarray)}
    names = Counter(f"initial value of {name} {v.shape}" for name, v in initial.items() if v.ndim)
    seen: set[tuple[str, bytes]] = set()
    for var in found:
        if not is_array(var) or var in plain or (array_value(var).ndim == 0 and var not in model.data_vars):
            continue
        value = array_value(var)
        # PyMC names the constants that it makes of initial values by their types.
        name = None if var.name == var.type.dtype else var.name
        if not name and isinstance(var, Constant):
            if is_structural(value) or (
                var not in own and any(np.array_equal(value, v) for v in initial.values())
            ):
                continue
        entry = f"{name or 'constant' + places.get(var, '')} {value.shape}"
        if (entry, value.tobytes()) not in seen:
            seen.add((entry, value.tobytes()))
            names[entry] += 1
    for dim in dims:
        if (labels := model.coords.get(dim)) is not None:
            names[f"labels of {dim} ({len(labels)},)"] += 1
    if holds_table(walk([*model.free_RVs, *prior], columns_of=arrays)):
        names[f"more than {MOST_NUMBERS} single numbers in the prior or the start"] += 1
    return sorted(name if times == 1 else f"{name}, {times} of them" for name, times in names.items())


def _places(model: pm.Model, prior: Sequence[Variable]) -> dict[Variable, str]:
    """Map each variable of the graphs to words for the model's variable that it stands directly behind."""
    named = [*model.free_RVs, *model.observed_RVs, *model.potentials, *model.deterministics]
    initial = [(rv, v) for rv, v in model.rvs_to_initial_values.items() if isinstance(v, Variable)]
    places: dict[Variable, str] = {}
    for one, graph in [*((v, v) for v in named), *initial]:
        for var in walk([graph], stop=[v for v in named if v is not graph]):
            places.setdefault(var, f" of {one.name}")
    for var in walk(prior, into_size=True):
        places.setdefault(var, " of the prior")
    return places
