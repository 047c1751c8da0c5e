"""The argument ``guide=``: families for variables of all, rules for local ones, and what a family may read.

In: the user's dict. Out: what `local_rules` reads, and tuples of value variables with a `GuideFamily` each,
for `guide.joint`. An `ArgumentError` names the entry and says what to type.

A family of the user's own is looked at: its transform and its entropy may depend on its parameters, its mean
and the base draws, and on single numbers. An array is refused, and so is a shared variable, of any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.opaque import hides_numbers
from pymc_dpvi.graph.private_constants import says_nothing
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import array_value, is_array, walk
from pymc_dpvi.graph.unrolled_loops import is_long
from pymc_dpvi.guide import Amortized, Dropout, GuideFamily
from pymc_dpvi.guide.family import is_ours, shown
from pymc_dpvi.guide.fixed import Fixed
from pymc_dpvi.guide.joint import Joint

__all__ = ["check_families", "check_reads_no_record", "sorted_out"]

_READS = (
    "The family {} of {} reads an array, many numbers, or an operation that may hold some, and nobody "
    "accounts for that. Use its parameters, its mean, the base draws and single numbers."
)
_Names = tuple[str, ...]


def sorted_out(guide: Any) -> tuple[dict[Any, GuideFamily], dict[Any, Amortized], Any]:
    """Split ``guide=`` into families, encoders, and everything else, which `local_rules` checks."""
    if not isinstance(guide, Mapping):
        return {}, {}, guide
    for name, given in guide.items():
        if isinstance(given, type):
            raise ArgumentError(
                f"guide[{name!r}] is the class {given.__name__}; write an instance: {given.__name__}(...)."
            )
    families = {name: given for name, given in guide.items() if isinstance(given, GuideFamily)}
    encoders = {name: given for name, given in guide.items() if isinstance(given, Amortized)}
    rest = {name: given for name, given in guide.items() if name not in families and name not in encoders}
    return families, encoders, rest or None


def check_families(families: Mapping[Any, GuideFamily], record: RecordModel) -> dict[_Names, GuideFamily]:
    """Return the families by the names of value variables."""
    model = record.model
    by_name = {str(rv.name): rv for rv in record.fitted_RVs}
    local = () if record.local is None else record.local.names
    found: dict[_Names, GuideFamily] = {}
    seen: set[str] = set()
    for key, family in families.items():
        names = key if isinstance(key, tuple) else (key,)
        for name in names:
            if name in local:
                raise ArgumentError(
                    f"guide[{key!r}] is a family, and '{name}' is local to a person: it is integrated out "
                    "and never released. Give it a rule, such as Quadrature(7), or leave it out."
                )
            if not isinstance(name, str) or name not in by_name:
                what = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
                raise ArgumentError(
                    f"guide names {what}, which is no free variable; they are {sorted(by_name)}."
                )
            if name in seen:
                raise ArgumentError(f"guide names '{name}' twice. Give it one family.")
            if isinstance(family, Dropout) and not isinstance(by_name[name].owner.op, pm.Flat.rv_type):
                raise ArgumentError(
                    f"guide[{key!r}] is Dropout, which has a prior of its own, the log-uniform one, and "
                    f"'{name}' has another. Write pm.Flat('{name}', shape=...), or take MeanField()."
                )
            seen.add(name)
        if not names:
            raise ArgumentError("guide has a family for no variable: an empty tuple. Leave it out.")
        found[tuple(str(model.rvs_to_values[by_name[name]].name) for name in names)] = family
    turns = () if record.encoded is None else record.encoded.turns
    return found | {(turn,): Fixed() for turn in turns}


def check_reads_no_record(record: RecordModel, group: Joint) -> None:
    """Raise if a family of the user's own reads records, or may: what it made is looked at, once and for all.

    Its graphs may hold its parameters, its mean, base draws, and arrays that say next to nothing.
    """
    for part in group.parts:
        if is_ours(part.family):
            continue
        own = {group.params_dict["mu"], group.symbolic_initial, *part.params.values()}
        found = walk(part.graphs, stop=own, into_size=True)
        held = {*record.brought_by_users, *record.model.free_RVs}
        for var in found:
            if var in own:
                continue
            is_table = is_array(var) and array_value(var).ndim > 0 and not says_nothing(var)
            if var in held or isinstance(var, SharedVariable) or is_table or hides_numbers(var):
                raise UnsupportedModelError(_READS.format(shown(part.family), list(part.names)))
        if is_long([v for v in found if v not in own]):
            raise UnsupportedModelError(_READS.format(shown(part.family), list(part.names)))
