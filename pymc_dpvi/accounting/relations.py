"""The neighboring relations by name."""

from __future__ import annotations

from dp_accounting import NeighboringRelation

from pymc_dpvi.errors import ArgumentError

__all__ = ["check_relation"]

_RELATIONS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


def check_relation(value: object) -> NeighboringRelation:
    """Return the neighboring relation that `value` names.

    Parameters
    ----------
    value : str or dp_accounting.NeighboringRelation
        ``"add_or_remove_one"`` or ``"replace_one"``.

    Returns
    -------
    dp_accounting.NeighboringRelation

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    if isinstance(value, str) and value in _RELATIONS:
        return _RELATIONS[value]
    if isinstance(value, NeighboringRelation) and value in _RELATIONS.values():
        return value
    raise ArgumentError(
        f"neighboring_relation must be 'add_or_remove_one' or 'replace_one'; found {value!r}."
    )
