"""Checks of the arguments that the accounting functions share.

Each returns the value in its plain Python type, or raises :class:`ArgumentError` with the name of
the argument, what was found, and what to type instead. Booleans and strings are refused although
Python would convert them: ``epsilon=True`` is a mistake, not a budget of one.
"""

from __future__ import annotations

import math
import numbers

from dp_accounting import NeighboringRelation

from pymc_dpvi.errors import ArgumentError

__all__ = ["check_integer", "check_number", "check_relation"]

_RELATIONS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


def check_number(name: str, value: object, *, low: float, high: float, closed_high: bool = False) -> float:
    """Return `value` as a float strictly above `low` and below `high`.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        What the caller gave.
    low, high : float
        Open bounds.
    closed_high : bool
        Whether `high` itself is allowed.

    Returns
    -------
    float

    Raises
    ------
    ArgumentError
        If `value` is not a real number in the range.
    """
    bracket = "]" if closed_high else ")"
    wanted = f"a finite number in ({low:g}, {high:g}{bracket}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{name} must be {wanted}; found a {type(value).__name__}.")
    number = float(value)
    inside = low < number < high or (closed_high and number == high)
    if not math.isfinite(number) or not inside:
        raise ArgumentError(f"{name} must be {wanted}; found {number!r}.")
    return number


def check_integer(name: str, value: object, *, high: int) -> int:
    """Return `value` as an int between 1 and `high`.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        What the caller gave; NumPy integers count, floats such as 10.0 do not.
    high : int
        The largest value allowed.

    Returns
    -------
    int

    Raises
    ------
    ArgumentError
        If `value` is not an integer in the range.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(
            f"{name} must be an integer between 1 and {high:,}; found a {type(value).__name__}."
        )
    number = int(value)
    if not 1 <= number <= high:
        raise ArgumentError(f"{name} must be between 1 and {high:,}; found {number}.")
    return number


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
